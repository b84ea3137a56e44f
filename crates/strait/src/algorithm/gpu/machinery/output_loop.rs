//! Writes output of any size through buffers of a fixed size (004 §3.2.2).
//!
//! ```text
//!  tasks ─► kernel ─► buffer full? ── no ─► the block goes to the receiver; done
//!    ▲                    │ yes
//!    │                    ├─► the block goes to the receiver, while the next round fills the other buffer
//!    └─ remaining tasks ◄─┘
//! ```
//!
//! The remaining tasks are the tasks that no thread block took, and the tasks on the redo list. A task with
//! more rows than one task may write is cut into parts: first by probe rows; and if a single probe row has
//! too many matches, by its matches. Several thread blocks can share the parts. (004 does not say what happens
//! when its output buffer is full.)
//!
//! Buffers outlive a run. So the device can join the next chunk of a stream while the rows of the chunk
//! before are copied out.
//!
//! Flavours that only count or flag write no rows, so no task is done again. The counters of all runs add up
//! on the device. If rows are counted, their number goes to [`Receiver::counted`] after each run, without a
//! wait, and the host reads all counters once, at the [end](OutputLoop::finish). So the device never waits
//! for the host between two chunks.

use super::wanted::{JoinResult, OutputBlock, Receiver, Wanted};
use crate::device::{DeviceStage, Event, Flavour, Memory, Session, View, abi};
use crate::error::{Error, Result};

/// The minimum rows per buffer. It is lower if one task may write only fewer rows.
const LEAST_CAPACITY: u64 = 8192;
/// The factor by which the next buffer is longer, after a buffer was full.
const GROWTH: u64 = 8;
/// The maximum number of redo tasks per launch. The other redo tasks wait on the host.
const AT_ONCE: u64 = 4096;
/// The maximum number of parts that a task is cut into at once.
const MAX_PARTS: u64 = 64;
/// The minimum number of tasks per launch: several times the parts of one cut task.
const LEAST_TASKS: u64 = 4 * MAX_PARTS;
/// After this many runs, a copy has very likely finished, so waiting for it takes no time.
const LONG_AGO: u32 = 4;
/// The maximum number of redo entries per task: one per round of its probe tuples.
const REDOS_PER_TASK: u64 = abi::ROUNDS_PER_TASK as u64;

/// The tasks of a join.
pub(crate) struct Work {
    /// The task list. `None` if each tile of probe rows is one task.
    pub(crate) tasks: Option<View>,
    pub(crate) count: u32,
    /// How to cut a task that has a single probe row.
    pub(crate) cut: Cut,
    /// Whether keys are mixed, and have to be unmixed when they are written.
    pub(crate) mixed: bool,
}

/// How to cut a task that has a single probe row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// By its build tuples.
    Build,
    /// By the run of matches that the kernel finds.
    Run,
}

/// The tasks of one launch.
enum Launch {
    /// Tasks `first..end` of the join's own list.
    Own { first: u32, end: u32 },
    /// Redo tasks, already cut where necessary.
    Again(Vec<abi::Task>),
}

/// The maximum number of tasks per launch.
#[derive(Clone, Copy)]
struct MostTasks {
    /// Of tasks from the join's own list.
    listed: u64,
    /// Of redo tasks.
    redo: u64,
}

/// The work that remains.
struct Left {
    /// The first task of the join's own list that no thread block has taken.
    own: u32,
    /// The length of that list.
    count: u32,
    /// Tasks that found no room in the buffer.
    again: Vec<abi::Redo>,
}

impl Left {
    /// Returns the tasks of the next launch: tasks of the list, or redo tasks. Redo tasks that would write more
    /// than `limit` rows are cut.
    fn next(&mut self, most: MostTasks, limit: u64, cut: Cut) -> Option<Launch> {
        if !self.again.is_empty() {
            return Some(Launch::Again(some(&mut self.again, most.redo as usize, limit, cut)));
        }
        let first = self.own;
        let end = (u64::from(first) + most.listed).min(u64::from(self.count)) as u32;
        self.own = end;
        (first < end).then_some(Launch::Own { first, end })
    }

    /// Records the tasks that a launch did not finish.
    fn book(&mut self, launch: Launch, seen: &abi::Control, redone: Vec<abi::Redo>) {
        self.again.extend(redone);
        match launch {
            // Thread blocks ask for tasks beyond the last one before they stop.
            Launch::Own { end, .. } if seen.full != 0 => self.own = seen.next.min(end),
            Launch::Again(tasks) if seen.full != 0 => {
                let left = tasks.iter().skip(seen.next as usize);
                self.again.extend(left.map(|&task| abi::Redo { task, rows: 0 }));
            }
            Launch::Own { .. } | Launch::Again(_) => {}
        }
    }
}

/// One output buffer.
struct Buffer {
    /// Keys (if wanted), build values and probe values.
    columns: [Option<Memory>; 3],
    capacity: u64,
    /// The event after which the previous content has been copied out, and the number of runs since then.
    gone: Option<(Event, u32)>,
}

impl Buffer {
    /// A buffer without capacity, for flavours that write no rows.
    fn none() -> Buffer {
        Buffer { columns: [None, None, None], capacity: 0, gone: None }
    }

    fn new(session: &Session<'_>, wanted: &Wanted, capacity: u64) -> Result<Buffer> {
        let column = |what: &str| session.device.allocate(capacity * session.word.bytes(), what);
        let keys = if wanted.keys { Some(column("the output's keys")?) } else { None };
        let build = column("the output's build values")?;
        let probe = column("the output's probe values")?;
        Ok(Buffer { columns: [keys, Some(build), Some(probe)], capacity, gone: None })
    }

    /// Returns the rows per buffer. One buffer may take 3/8 of the free memory, because there may be two.
    fn room(session: &Session<'_>, wanted: &Wanted) -> u64 {
        session.left() / 8 * 3 / (session.word.bytes() * (2 + u64::from(wanted.keys)))
    }

    /// Allocates the first of two buffers: as long as the expected output, if memory allows.
    fn first(session: &Session<'_>, wanted: &Wanted) -> Result<Buffer> {
        if !writes(wanted) {
            return Ok(Buffer::none());
        }
        let room = Buffer::room(session, wanted);
        let least = session.device.shape(session.word).most_rows.min(LEAST_CAPACITY);
        let asked = wanted.expected_rows + wanted.expected_rows / 64;
        Buffer::new(session, wanted, asked.min(room).max(least))
    }

    fn view(&self, column: usize) -> View {
        self.columns[column].as_ref().map_or(View::default(), |memory| memory.view)
    }

    fn block(&self, rows: u64) -> OutputBlock {
        OutputBlock { rows, keys: self.view(0), build: self.view(1), probe: self.view(2) }
    }
}

/// Returns whether a flavour writes rows.
fn writes(wanted: &Wanted) -> bool {
    matches!(wanted.flavour, Flavour::Pairs | Flavour::PairsFlagged)
}

/// Runs a stage until all its tasks are done, and returns the result: see [`OutputLoop::run`].
pub(crate) fn run(
    session: &Session<'_>,
    wanted: &Wanted,
    work: Work,
    stage: impl Fn(u64, u32, abi::Output) -> DeviceStage,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let mut output_loop = OutputLoop::new(session, wanted, work.count)?;
    output_loop.run(wanted, work, stage, to)?;
    output_loop.finish()
}

/// The device memory of the output loop: see the [module](self).
pub(crate) struct OutputLoop<'a> {
    session: &'a Session<'a>,
    control: Memory,
    redo: Memory,
    most_tasks: MostTasks,
    /// Memory for redo tasks, allocated when the first one appears.
    list: Option<Memory>,
    buffers: [Option<Buffer>; 2],
    current: usize,
    /// The rows of all runs that wrote rows.
    found: JoinResult,
    /// Whether the counters on the device have to be read at the end.
    counts: bool,
    /// The event after which the receiver no longer reads the counters on the device.
    taken: Option<Event>,
}

impl<'a> OutputLoop<'a> {
    /// Prepares for runs of at most `most_tasks` tasks. `wanted` says which rows and columns are written.
    pub(crate) fn new(session: &'a Session<'a>, wanted: &Wanted, most_tasks: u32) -> Result<Self> {
        let control_bytes = size_of::<abi::Control>() as u64;
        let control = session.device.allocate(control_bytes, "the join's counts")?;
        // If partitions are long on both sides, there may be too many tasks for one redo list. Then several
        // launches share the tasks.
        let entry = REDOS_PER_TASK * size_of::<abi::Redo>() as u64;
        let listed = if writes(wanted) { u64::from(most_tasks) } else { 0 };
        let slice = listed.min(session.left() / 8 / entry).max(LEAST_TASKS);
        let redo = session.device.allocate(slice * entry, "the redo list")?;
        let buffers = [Some(Buffer::first(session, wanted)?), None];
        let most_tasks = MostTasks { listed: slice, redo: AT_ONCE.min(slice - MAX_PARTS) };
        let (list, current, taken) = (None, 0, None);
        let (found, counts) = (JoinResult::default(), wanted.flavour == Flavour::Aggregate);
        let output_loop = OutputLoop {
            session,
            control,
            redo,
            most_tasks,
            list,
            buffers,
            current,
            found,
            counts,
            taken,
        };
        // From here on, the memory is not released before the fill is done.
        session.device.fill(session.compute, output_loop.control.view, 0)?;
        Ok(output_loop)
    }

    pub(crate) fn session(&self) -> &'a Session<'a> {
        self.session
    }

    /// Returns the result of all runs.
    pub(crate) fn finish(mut self) -> Result<JoinResult> {
        if self.counts {
            let seen = self.seen()?;
            self.found.add(seen.counted, &seen);
        }
        Ok(self.found)
    }

    /// Reads the counters, after all stages so far are done.
    fn seen(&self) -> Result<abi::Control> {
        Ok(self.session.read(self.control.view, 1)?.pop().unwrap_or_default())
    }

    /// Runs the stage that `stage(tasks, count, output)` returns until all tasks are done.
    pub(crate) fn run(
        &mut self,
        wanted: &Wanted,
        work: Work,
        stage: impl Fn(u64, u32, abi::Output) -> DeviceStage,
        to: &mut dyn Receiver,
    ) -> Result<()> {
        match writes(wanted) {
            true => self.run_in_rounds(wanted, work, stage, to),
            false => self.run_once(wanted, work, stage, to),
        }
    }

    /// Runs a stage that writes no rows. Its counters add up to those of the runs before.
    fn run_once(
        &mut self,
        wanted: &Wanted,
        work: Work,
        stage: impl Fn(u64, u32, abi::Output) -> DeviceStage,
        to: &mut dyn Receiver,
    ) -> Result<()> {
        let session = self.session;
        if let Some(taken) = self.taken.take() {
            session.device.wait(session.compute, taken)?;
        }
        // Only the number of the next task starts again.
        let next = self.counter(std::mem::offset_of!(abi::Control, next), size_of::<u32>());
        session.device.fill(session.compute, next, 0)?;
        let tasks = work.tasks.map_or(0, |view| view.address);
        session.run(stage(tasks, work.count, self.output(wanted, &work, &Buffer::none())))?;
        to.meanwhile(session)?;
        if self.counts {
            let counted = std::mem::offset_of!(abi::Control, counted);
            self.taken = to.counted(session, self.counter(counted, size_of::<u64>()))?;
        }
        Ok(())
    }

    /// Returns one of the counters, by its place in the control block.
    fn counter(&self, at: usize, bytes: usize) -> View {
        self.control.view.part(at as u64, bytes as u64)
    }

    /// Runs a stage that writes rows.
    fn run_in_rounds(
        &mut self,
        wanted: &Wanted,
        work: Work,
        stage: impl Fn(u64, u32, abi::Output) -> DeviceStage,
        to: &mut dyn Receiver,
    ) -> Result<()> {
        let session = self.session;
        self.forget()?;
        let most = session.device.shape(session.word).most_rows;
        let mut left = Left { own: 0, count: work.count, again: Vec::new() };
        let mut running = left.next(self.most_tasks, 0, work.cut);
        if let Some(launch) = &running {
            self.start(launch, wanted, &work, &stage)?;
        }
        while let Some(launch) = running {
            to.meanwhile(session)?;
            let seen = self.seen()?;
            let rows = if seen.full != 0 { seen.counted } else { seen.rows };
            self.found.add(rows, &seen);
            session.moved(rows * session.word.bytes() * (2 + u64::from(wanted.keys)));
            let redone = session.read::<abi::Redo>(self.redo.view, seen.redone as usize)?;
            left.book(launch, &seen, redone);

            let filled = self.current;
            let capacity = self.buffers[filled].as_ref().map_or(0, |buffer| buffer.capacity);
            running = left.next(self.most_tasks, most.min(capacity), work.cut);
            let more = running.is_some();
            // The next round, or the next run, fills the other buffer while the receiver has this one. If
            // there is no memory for a second buffer, the output loop and the receiver take turns.
            let other = rows > 0 && (more || to.more_follows());
            let other = other && self.other(wanted, capacity, seen.full != 0)?;
            if other {
                self.current = 1 - filled;
            }
            if other && let Some(launch) = &running {
                self.start(launch, wanted, &work, &stage)?;
            }
            if rows > 0
                && let Some(buffer) = &mut self.buffers[filled]
            {
                buffer.gone = to.block(session, buffer.block(rows))?.map(|gone| (gone, 0));
            }
            if !other && let Some(launch) = &running {
                self.start(launch, wanted, &work, &stage)?;
            }
        }
        Ok(())
    }

    /// Waits for events that are some runs old, because a device may forget old events. If many runs find no
    /// rows, the loop does not use its second buffer. Without this wait, the device could forget the event of
    /// that buffer.
    fn forget(&mut self) -> Result<()> {
        let session = self.session;
        for buffer in self.buffers.iter_mut().flatten() {
            match &mut buffer.gone {
                Some((gone, runs)) if *runs >= LONG_AGO => {
                    session.device.wait(session.compute, *gone)?;
                    buffer.gone = None;
                }
                Some((_, runs)) => *runs += 1,
                None => {}
            }
        }
        Ok(())
    }

    /// Launches some tasks that write into the current buffer.
    fn start(
        &mut self,
        launch: &Launch,
        wanted: &Wanted,
        work: &Work,
        stage: &impl Fn(u64, u32, abi::Output) -> DeviceStage,
    ) -> Result<()> {
        let session = self.session;
        let (tasks, first, count) = match launch {
            Launch::Own { first, end } => (work.tasks.map_or(0, |view| view.address), *first, *end),
            Launch::Again(tasks) => {
                let view = self.list()?;
                session.write(tasks, view)?;
                (view.address, 0, tasks.len() as u32)
            }
        };
        let Some(buffer) = &mut self.buffers[self.current] else {
            return Err(Error::internal("the output loop has no buffer"));
        };
        if let Some((gone, _)) = buffer.gone.take() {
            session.device.wait(session.compute, gone)?;
        }
        match first {
            // Unlike a write, a fill does not wait for the device.
            0 => session.device.fill(session.compute, self.control.view, 0)?,
            _ => session.write(&[session.control(first)], self.control.view)?,
        }
        let Some(buffer) = &self.buffers[self.current] else {
            return Err(Error::internal("the output loop has no buffer"));
        };
        session.run(stage(tasks, count, self.output(wanted, work, buffer)))
    }

    /// Returns the arguments of a stage that writes into `buffer`.
    fn output(&self, wanted: &Wanted, work: &Work, buffer: &Buffer) -> abi::Output {
        let session = self.session;
        let address = |flags: Option<View>| flags.map_or(0, |view| view.address);
        abi::Output {
            keys: buffer.view(0).address,
            build: buffer.view(1).address,
            probe: buffer.view(2).address,
            build_flags: address(wanted.build_flags),
            probe_flags: address(wanted.probe_flags),
            capacity: buffer.capacity,
            most: session.device.shape(session.word).most_rows,
            control: self.control.address(),
            redo: self.redo.address(),
            mixed: u32::from(work.mixed),
            sign: u32::from(wanted.signed),
            unmixing: session.unmixing(),
        }
    }

    /// Returns the memory for redo tasks.
    fn list(&mut self) -> Result<View> {
        if let Some(list) = &self.list {
            return Ok(list.view);
        }
        let bytes = (self.most_tasks.redo + MAX_PARTS) * size_of::<abi::Task>() as u64;
        let list = self.session.device.allocate(bytes, "tasks to be done again")?;
        Ok(self.list.insert(list).view)
    }

    /// Returns whether there is a second buffer, and allocates it if memory allows. If the current buffer was
    /// full, the output is longer than estimated, so the second buffer is longer.
    fn other(&mut self, wanted: &Wanted, capacity: u64, full: bool) -> Result<bool> {
        let session = self.session;
        let other = &mut self.buffers[1 - self.current];
        let wish = if full { capacity.saturating_mul(GROWTH) } else { capacity };
        let enough = wish.min(capacity * 2);
        if other.as_ref().is_none_or(|had| had.capacity < enough) {
            if let Some(old) = other.take() {
                session.device.synchronize(session.back)?;
                session.device.synchronize(session.compute)?;
                drop(old);
            }
            let capacity = wish.min(Buffer::room(session, wanted)).max(capacity);
            *other = Buffer::new(session, wanted, capacity).ok();
        }
        Ok(other.is_some())
    }
}

impl Drop for OutputLoop<'_> {
    fn drop(&mut self) {
        self.session.finish_before_drop([self.session.compute, self.session.back]);
    }
}

/// Takes some redo tasks from the list, and cuts them where necessary.
fn some(again: &mut Vec<abi::Redo>, at_once: usize, limit: u64, by: Cut) -> Vec<abi::Task> {
    let mut tasks = Vec::new();
    while tasks.len() < at_once
        && let Some(entry) = again.pop()
    {
        tasks.extend(cut(&entry, limit, by));
    }
    tasks
}

/// Returns the task itself, or its parts if it has more than `limit` rows. Parts that are still too long
/// come back through the redo list.
fn cut(entry: &abi::Redo, limit: u64, by: Cut) -> Vec<abi::Task> {
    let task = entry.task;
    if entry.rows <= limit {
        return vec![task];
    }
    // Parts vary in size, so the target is half the limit.
    let parts = entry.rows.div_ceil((limit / 2).max(1)).clamp(2, MAX_PARTS);
    let steps = |rows: u64| {
        let step = rows.div_ceil(parts).max(1);
        (0..rows).step_by(step as usize).map(move |at| (at, step.min(rows - at) as u32))
    };
    if task.probe_rows > 1 {
        let part = |(at, probe_rows)| abi::Task { probe: task.probe + at, probe_rows, ..task };
        return steps(u64::from(task.probe_rows)).map(part).collect();
    }
    let rows = match by {
        Cut::Build => u64::from(task.build_rows),
        Cut::Run => entry.rows,
    };
    let part = |(at, build_rows)| abi::Task { build: task.build + at, build_rows, ..task };
    steps(rows).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(build: u64, probe: u64, build_rows: u32, probe_rows: u32) -> abi::Task {
        abi::Task { build, probe, build_rows, probe_rows }
    }

    /// Parts cover a task without gaps: cut by probe rows, then by build rows or by the run.
    #[test]
    fn tasks_are_cut_into_parts_that_cover_them() {
        let whole = task(100, 200, 8, 10);
        let as_it_is = cut(&abi::Redo { task: whole, rows: 5 }, 5, Cut::Build);
        assert_eq!(as_it_is, [whole]);
        let parts = cut(&abi::Redo { task: whole, rows: 80 }, 40, Cut::Build);
        assert_eq!(parts.iter().map(|p| p.probe_rows).sum::<u32>(), 10);
        assert!(parts.windows(2).all(|p| p[0].probe + u64::from(p[0].probe_rows) == p[1].probe));
        assert!(parts.iter().all(|p| (p.build, p.build_rows) == (100, 8)));
        let parts = cut(&abi::Redo { task: task(100, 200, 8, 1), rows: 8 }, 4, Cut::Build);
        assert_eq!(parts, [0, 2, 4, 6].map(|at| task(100 + at, 200, 2, 1)));
        let parts = cut(&abi::Redo { task: task(0, 7, 0, 1), rows: 9 }, 6, Cut::Run);
        assert_eq!(parts, [0, 3, 6].map(|at| task(at, 7, 3, 1)));
        let parts = cut(&abi::Redo { task: task(50, 7, 20, 1), rows: 20 }, 20, Cut::Run);
        assert_eq!(parts.len(), 1, "a part of a run that fits");
        let many = cut(&abi::Redo { task: task(0, 0, 0, 1), rows: 1 << 40 }, 2, Cut::Run);
        assert!(many.len() as u64 <= MAX_PARTS);
    }
}

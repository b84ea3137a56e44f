//! Output of any size through buffers of a given one (004 §3.2.2).
//!
//! ```text
//!  tasks ─► kernel ─► buffer full? ── no ─► the block goes to the receiver; done
//!    ▲                    │ yes
//!    │                    ├─► the block goes to the receiver, while the next round fills the other
//!    └─ what is left ◄────┘
//! ```
//!
//! What is left are the tasks never taken and those on the redo list. A task with more rows than one
//! may write is cut: by probe rows first, then, when a single probe row has too many matches, by
//! these. (004 keeps a cursor a tuple; a cut task needs none, and its parts go to several blocks.)
//!
//! Buffers outlive a run, so that chunk after chunk of a stream is joined while the rows of the one
//! before are on their way out.

use super::{Block, JoinResult, Receiver, Session, Wanted};
use crate::device::{Event, Flavour, Memory, Stage, View, abi};
use crate::error::{Error, Result};

/// Rows of a buffer, at least, if a task may write as many.
const LEAST_CAPACITY: u64 = 8192;
/// How much longer the next buffer is when one was full.
const GROWTH: u64 = 8;
/// Tasks that are done again in one launch: what is left waits on the host.
const AT_ONCE: u64 = 4096;
/// Parts a task is cut into at once, at most.
const MAX_PARTS: u64 = 64;
/// Tasks that one launch takes, at least: several times the parts of one that is cut.
const LEAST_TASKS: u64 = 4 * MAX_PARTS;
/// Runs after which a copy of rows is long done.
const LONG_AGO: u32 = 4;
/// Redo entries a task may leave: one a round of its probe tuples.
const REDOS_PER_TASK: u64 = abi::ROUNDS_PER_TASK as u64;

/// The tasks of a join.
pub(super) struct Work {
    /// Where they lie; none where every tile of probe rows is one.
    pub(super) tasks: Option<View>,
    pub(super) count: u32,
    /// How a task of a single probe row is cut.
    pub(super) cut: Cut,
    /// Whether keys are mixed, and have to be unmixed when written.
    pub(super) mixed: bool,
}

/// How a task of a single probe row is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// By its build tuples.
    Build,
    /// By the run of matches that the kernel finds.
    Run,
}

/// Tasks of one launch.
enum Piece {
    /// Those of the join's own list from number `first` up to `end`.
    Own { first: u32, end: u32 },
    /// Some that are done again, cut where they had to be.
    Again(Vec<abi::Task>),
}

/// What is still to be done.
struct Left {
    /// The first task of the join's own list that was not taken.
    own: u32,
    /// How many the list has.
    count: u32,
    /// Tasks that found no room.
    again: Vec<abi::Redo>,
}

impl Left {
    /// The tasks of the next launch: at most `slice` of the list, or `at_once` others. None may
    /// write more than `limit` rows.
    fn next(&mut self, [slice, at_once]: [u64; 2], limit: u64, cut: Cut) -> Option<Piece> {
        if !self.again.is_empty() {
            return Some(Piece::Again(some(&mut self.again, at_once as usize, limit, cut)));
        }
        let first = self.own;
        let end = (u64::from(first) + slice).min(u64::from(self.count)) as u32;
        self.own = end;
        (first < end).then_some(Piece::Own { first, end })
    }

    /// Books what a launch left undone.
    fn book(&mut self, piece: Piece, seen: &abi::Control, redone: Vec<abi::Redo>) {
        self.again.extend(redone);
        match piece {
            // Blocks ask for tasks beyond the last before they stop.
            Piece::Own { end, .. } if seen.full != 0 => self.own = seen.next.min(end),
            Piece::Again(tasks) if seen.full != 0 => {
                let left = tasks.iter().skip(seen.next as usize);
                self.again.extend(left.map(|&task| abi::Redo { task, rows: 0 }));
            }
            Piece::Own { .. } | Piece::Again(_) => {}
        }
    }
}

/// One output buffer.
struct Buffer {
    /// Keys where they are wanted, build values and probe values.
    columns: [Option<Memory>; 3],
    capacity: u64,
    /// When what was in it has gone out, and how many runs ago that was asked for.
    gone: Option<(Event, u32)>,
}

impl Buffer {
    /// One without room, for flavours that write no rows.
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

    /// The rows of a buffer that may take three eighths of what is left: there may be two of them.
    fn room(session: &Session<'_>, wanted: &Wanted) -> u64 {
        session.left() / 8 * 3 / (session.word.bytes() * (2 + u64::from(wanted.keys)))
    }

    /// The first of two: as long as the output is expected to be, if memory allows.
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

    fn block(&self, rows: u64) -> Block {
        Block { rows, keys: self.view(0), build: self.view(1), probe: self.view(2) }
    }
}

/// Whether a flavour writes rows.
fn writes(wanted: &Wanted) -> bool {
    matches!(wanted.flavour, Flavour::Pairs | Flavour::PairsFlagged)
}

/// Runs a stage until all its tasks are done, once: see [`OutputLoop::run`].
pub(super) fn run(
    session: &Session<'_>,
    wanted: &Wanted,
    work: Work,
    stage: impl Fn(u64, u32, abi::Output) -> Stage,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    OutputLoop::new(session, wanted, work.count)?.run(wanted, work, stage, to)
}

/// What output_loop need on the device.
pub(super) struct OutputLoop<'a> {
    session: &'a Session<'a>,
    control: Memory,
    redo: Memory,
    /// Tasks that one launch takes of the list, and of those that are done again.
    at_once: [u64; 2],
    /// Where tasks lie that are done again, once there are some.
    list: Option<Memory>,
    buffers: [Option<Buffer>; 2],
    current: usize,
}

impl<'a> OutputLoop<'a> {
    /// For runs of at most `most_tasks` tasks, whose rows are wanted as `wanted` says.
    pub(super) fn new(session: &'a Session<'a>, wanted: &Wanted, most_tasks: u32) -> Result<Self> {
        let control_bytes = size_of::<abi::Control>() as u64;
        let control = session.device.allocate(control_bytes, "the join's counts")?;
        // Partitions that are long on both sides have more tasks than there is memory for a redo
        // list of all of them: then several launches share them.
        let entry = REDOS_PER_TASK * size_of::<abi::Redo>() as u64;
        let slice = u64::from(most_tasks).min(session.left() / 8 / entry).max(LEAST_TASKS);
        let redo = session.device.allocate(slice * entry, "the redo list")?;
        let buffers = [Some(Buffer::first(session, wanted)?), None];
        let at_once = [slice, AT_ONCE.min(slice - MAX_PARTS)];
        Ok(OutputLoop { session, control, redo, at_once, list: None, buffers, current: 0 })
    }

    pub(super) fn session(&self) -> &'a Session<'a> {
        self.session
    }

    /// Runs the stage that `stage(tasks, count, output)` makes until all tasks are done.
    pub(super) fn run(
        &mut self,
        wanted: &Wanted,
        work: Work,
        stage: impl Fn(u64, u32, abi::Output) -> Stage,
        to: &mut dyn Receiver,
    ) -> Result<JoinResult> {
        let session = self.session;
        self.forget()?;
        let most = session.device.shape(session.word).most_rows;
        let mut left = Left { own: 0, count: work.count, again: Vec::new() };
        let mut found = JoinResult::default();
        let mut running = left.next(self.at_once, 0, work.cut);
        if let Some(piece) = &running {
            self.start(piece, wanted, &work, &stage)?;
        }
        while let Some(piece) = running {
            to.meanwhile(session)?;
            let seen: abi::Control = session.read(self.control.view, 1)?.pop().unwrap_or_default();
            let rows = match (writes(wanted), seen.full != 0) {
                (true, true) => seen.counted,
                (true, false) => seen.rows,
                (false, _) => seen.counted,
            };
            found.add(rows, &seen);
            if writes(wanted) {
                session.moved(rows * session.word.bytes() * (2 + u64::from(wanted.keys)));
            }
            let redone = session.read::<abi::Redo>(self.redo.view, seen.redone as usize)?;
            left.book(piece, &seen, redone);

            let filled = self.current;
            let capacity = self.buffers[filled].as_ref().map_or(0, |buffer| buffer.capacity);
            running = left.next(self.at_once, most.min(capacity), work.cut);
            let more = running.is_some();
            // The next round, or the next run, fills the other buffer while the receiver has this
            // one. Without memory for a second one, output_loop and receiver take turns.
            let other = writes(wanted) && rows > 0 && (more || to.goes_on());
            let other = other && self.other(wanted, capacity, seen.full != 0)?;
            if other {
                self.current = 1 - filled;
            }
            if other && let Some(piece) = &running {
                self.start(piece, wanted, &work, &stage)?;
            }
            if rows > 0
                && writes(wanted)
                && let Some(buffer) = &mut self.buffers[filled]
            {
                buffer.gone = to.block(session, buffer.block(rows))?.map(|gone| (gone, 0));
            }
            if !other && let Some(piece) = &running {
                self.start(piece, wanted, &work, &stage)?;
            }
        }
        Ok(found)
    }

    /// Waits for what has gone out some runs ago, before the device forgets the event: while no rows
    /// are found, no buffer is changed for the other.
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

    /// Launches some tasks into the current buffer.
    fn start(
        &mut self,
        piece: &Piece,
        wanted: &Wanted,
        work: &Work,
        stage: &impl Fn(u64, u32, abi::Output) -> Stage,
    ) -> Result<()> {
        let session = self.session;
        let (tasks, first, count) = match piece {
            Piece::Own { first, end } => (work.tasks.map_or(0, |view| view.address), *first, *end),
            Piece::Again(tasks) => {
                let view = self.list()?;
                session.write(tasks, view)?;
                (view.address, 0, tasks.len() as u32)
            }
        };
        let Some(buffer) = &mut self.buffers[self.current] else {
            return Err(Error::Worker("the output loop has no buffer".to_string()));
        };
        if let Some((gone, _)) = buffer.gone.take() {
            session.device.wait(session.compute, gone)?;
        }
        session.write(&[session.control(first)], self.control.view)?;
        let address = |flags: Option<View>| flags.map_or(0, |view| view.address);
        let output = abi::Output {
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
        };
        session.run(stage(tasks, count, output))
    }

    /// Where tasks lie that are done again.
    fn list(&mut self) -> Result<View> {
        if let Some(list) = &self.list {
            return Ok(list.view);
        }
        let bytes = (self.at_once[1] + MAX_PARTS) * size_of::<abi::Task>() as u64;
        let list = self.session.device.allocate(bytes, "tasks to be done again")?;
        Ok(self.list.insert(list).view)
    }

    /// Whether there is a buffer beside the current one: longer where that was full, since the
    /// output proves longer than expected.
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
        // Nothing may be left running on memory that goes back.
        for stream in [self.session.compute, self.session.back] {
            if let Err(error) = self.session.device.synchronize(stream) {
                log::debug!("a device did not finish its work: {error}");
            }
        }
    }
}

/// Some of the tasks that are to be done again, cut where they have to be.
fn some(again: &mut Vec<abi::Redo>, at_once: usize, limit: u64, by: Cut) -> Vec<abi::Task> {
    let mut tasks = Vec::new();
    while tasks.len() < at_once
        && let Some(entry) = again.pop()
    {
        tasks.extend(cut(&entry, limit, by));
    }
    tasks
}

/// What a redone task becomes: itself, or, where it has more than `limit` rows, parts of it. Parts
/// that are still too long come back.
fn cut(entry: &abi::Redo, limit: u64, by: Cut) -> Vec<abi::Task> {
    let task = entry.task;
    if entry.rows <= limit {
        return vec![task];
    }
    // Parts come out uneven: half the limit leaves them room.
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

    /// Parts cover a task without a gap, by probe rows, then by build rows or by the run.
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

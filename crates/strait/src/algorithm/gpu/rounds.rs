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

use super::{Block, Found, Receiver, Session, Wanted};
use crate::device::{Flavour, Stage, View, abi};
use crate::error::Result;

/// Rows of a buffer, at least, if a task may write as many.
const LEAST_CAPACITY: u64 = 8192;
/// How much longer the next buffer is when one was full.
const GROWTH: u64 = 8;
/// Tasks that are done again in one launch: what is left waits on the host.
const AT_ONCE: usize = 4096;
/// Parts a task is cut into at once, at most.
const MOST_PARTS: u64 = 64;
/// Redo entries a task may leave: one a round of its probe tuples.
const REDOS_A_TASK: u64 = abi::ROUNDS_A_TASK as u64;

/// The tasks of a join.
pub(super) struct Work {
    /// Where they lie; none where every tile of probe rows is one.
    pub(super) tasks: Option<View>,
    pub(super) count: u32,
    /// How a task of a single probe row is cut.
    pub(super) cut: Cut,
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

/// One output buffer.
#[derive(Clone, Copy)]
struct Buffer {
    keys: View,
    build: View,
    probe: View,
    capacity: u64,
}

impl Buffer {
    fn new(session: &Session<'_>, wanted: &Wanted, capacity: u64) -> Result<Buffer> {
        let column = |wanted: bool, what: &str| match wanted {
            true => session.allocate(capacity * session.word.bytes(), what),
            false => Ok(View::default()),
        };
        let keys = column(wanted.keys, "the output's keys")?;
        let build = column(true, "the output's build values")?;
        let probe = column(true, "the output's probe values")?;
        Ok(Buffer { keys, build, probe, capacity })
    }

    /// The rows of a buffer that may take three eighths of what is left: there may be two of them.
    fn room(session: &Session<'_>, wanted: &Wanted) -> u64 {
        session.left() / 8 * 3 / (session.word.bytes() * (2 + u64::from(wanted.keys)))
    }

    fn views(&self) -> [View; 3] {
        [self.keys, self.build, self.probe]
    }

    /// The first of two: as long as the output is expected to be, if memory allows.
    fn first(session: &Session<'_>, wanted: &Wanted) -> Result<Buffer> {
        if !writes(wanted) {
            let none = View::default();
            return Ok(Buffer { keys: none, build: none, probe: none, capacity: 0 });
        }
        let room = Buffer::room(session, wanted);
        let least = session.device.shape(session.word).most_rows.min(LEAST_CAPACITY);
        let asked = wanted.expected_rows + wanted.expected_rows / 64;
        Buffer::new(session, wanted, asked.min(room).max(least))
    }
}

fn writes(wanted: &Wanted) -> bool {
    matches!(wanted.flavour, Flavour::Pairs | Flavour::PairsFlagged)
}

/// Runs the stage that `stage(tasks, count, output)` makes until all tasks are done.
pub(super) fn run(
    session: &Session<'_>,
    wanted: &Wanted,
    mixed: bool,
    work: Work,
    stage: impl Fn(u64, u32, abi::Output) -> Stage,
    to: &mut dyn Receiver,
) -> Result<Found> {
    let most = session.device.shape(session.word).most_rows;
    let control = session.allocate(size_of::<abi::Control>() as u64, "the join's counts")?;
    // Partitions that are long on both sides have more tasks than there is memory for a redo list of
    // all of them: then several launches share them.
    let entry = REDOS_A_TASK * size_of::<abi::Redo>() as u64;
    let least = (AT_ONCE as u64 + MOST_PARTS).min(u64::from(work.count).max(MOST_PARTS * 4));
    let slice = u64::from(work.count).min(session.left() / 8 / entry).max(least);
    let redo = session.allocate(slice * entry, "the redo list")?;
    let at_once = (least - MOST_PARTS) as usize;
    let mut list: Option<View> = None;
    let mut buffers = [Some(Buffer::first(session, wanted)?), None];
    let mut current = 0;
    let mut own = Some(0);
    let mut again: Vec<abi::Redo> = Vec::new();
    let mut found = Found::default();

    let mut start = |piece: &Piece, buffer: &Buffer| -> Result<()> {
        let (tasks, first, count) = match piece {
            Piece::Own { first, end } => (work.tasks.map_or(0, |view| view.address), *first, *end),
            Piece::Again(tasks) => {
                let view = match list {
                    Some(view) => view,
                    None => {
                        let bytes = least * size_of::<abi::Task>() as u64;
                        *list.insert(session.allocate(bytes, "tasks to be done again")?)
                    }
                };
                session.write(tasks, view)?;
                (view.address, 0, tasks.len() as u32)
            }
        };
        session.write(&[session.control(first)], control)?;
        let address = |flags: Option<View>| flags.map_or(0, |view| view.address);
        let output = abi::Output {
            keys: buffer.keys.address,
            build: buffer.build.address,
            probe: buffer.probe.address,
            build_flags: address(wanted.build_flags),
            probe_flags: address(wanted.probe_flags),
            capacity: buffer.capacity,
            most,
            control: control.address,
            redo: redo.address,
            mixed: u32::from(mixed),
            sign: u32::from(wanted.signed),
        };
        session.run(stage(tasks, count, output))
    };

    let next = |own: &mut Option<u32>, again: &mut Vec<abi::Redo>, limit: u64| {
        if again.is_empty() {
            let piece = |first: u32| Piece::Own {
                first,
                end: (u64::from(first) + slice).min(u64::from(work.count)) as u32,
            };
            return own.take().map(piece);
        }
        Some(Piece::Again(some(again, at_once, limit, work.cut)))
    };
    let mut running = next(&mut own, &mut again, 0);
    if let (Some(piece), Some(buffer)) = (&running, &buffers[0]) {
        start(piece, buffer)?;
    }
    while let (Some(piece), Some(buffer)) = (running, buffers[current]) {
        let seen: abi::Control = session.read(control, 1)?.pop().unwrap_or_default();
        let rows = match (writes(wanted), seen.full != 0) {
            (true, true) => seen.counted,
            (true, false) => seen.rows,
            (false, _) => seen.counted,
        };
        found.rows += rows;
        if writes(wanted) {
            session.moved(rows * session.word.bytes() * (2 + u64::from(wanted.keys)));
        }
        found.build_sum = found.build_sum.wrapping_add(seen.build_sum);
        found.probe_sum = found.probe_sum.wrapping_add(seen.probe_sum);
        again.extend(session.read::<abi::Redo>(redo, seen.redone as usize)?);
        match piece {
            // Blocks ask for tasks beyond the last before they stop.
            Piece::Own { end, .. } if seen.full != 0 => own = Some(seen.next.min(end)),
            Piece::Own { end, .. } => own = Some(end),
            Piece::Again(tasks) if seen.full != 0 => {
                let left = tasks.iter().skip(seen.next as usize);
                again.extend(left.map(|&task| abi::Redo { task, rows: 0 }));
            }
            Piece::Again(_) => {}
        }
        own = own.filter(|&first| first < work.count);

        // The next round fills the other buffer while the receiver has this one.
        running = next(&mut own, &mut again, most.min(buffer.capacity));
        let other = 1 - current;
        if running.is_some() && writes(wanted) {
            // An output that proves longer than expected gets longer buffers. Without memory for a
            // second one, rounds and receiver take turns.
            let wish = match seen.full != 0 {
                true => buffer.capacity.saturating_mul(GROWTH),
                false => buffer.capacity,
            };
            let had = buffers[other].filter(|had| had.capacity >= wish.min(buffer.capacity * 2));
            if had.is_none() {
                if let Some(old) = buffers[other].take() {
                    session.release(&old.views())?;
                }
                let capacity = wish.min(Buffer::room(session, wanted)).max(buffer.capacity);
                buffers[other] = Buffer::new(session, wanted, capacity).ok();
            }
        }
        let free = buffers[other].filter(|_| rows > 0);
        if let (Some(piece), Some(free)) = (&running, &free) {
            start(piece, free)?;
        }
        if rows > 0 && writes(wanted) {
            let Buffer { keys, build, probe, .. } = buffer;
            to.block(session, Block { rows, keys, build, probe })?;
        }
        match (&running, free) {
            (Some(_), Some(_)) => current = other,
            (Some(piece), None) => start(piece, &buffer)?,
            (None, _) => {}
        }
    }
    Ok(found)
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
    let parts = entry.rows.div_ceil((limit / 2).max(1)).clamp(2, MOST_PARTS);
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
        assert!(many.len() as u64 <= MOST_PARTS);
    }
}

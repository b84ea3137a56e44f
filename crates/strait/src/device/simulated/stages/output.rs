//! Where do the rows of a join go? This is the protocol by which join kernels take tasks and write rows.
//!
//! ```text
//!              ┌───────────────────────────────────────────────┐
//!              ▼                                               │
//!   full? ─▶ take the next task ─▶ too many rows? ─▶ redo ─────┤   (the host cuts it)
//!     │            │ none left            │ no                 │
//!    stop         stop              no room left? ─▶ redo, full┤   (the host empties the output)
//!                                         │ no                 │
//!                                       write ─────────────────┘
//! ```
//!
//! Many thread blocks do this at once. When the output becomes full, some have already taken a task. A
//! thread block may join its task in rounds. Then a round with too many rows is redone separately, and a
//! round without room is redone together with the rest of its task.

use fastrand::Rng;

use super::super::memory::{Space, nth};
use super::super::word::DeviceWord;
use super::{Machine, require};
use crate::device::Flavour;
use crate::device::abi::{Control, Output, Redo, Task};
use crate::error::Result;

/// The maximum number of tasks in progress when the output becomes full.
const IN_FLIGHT: u64 = 3;

/// A match, with the key as it must be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<W> {
    pub(super) key: W,
    pub(super) build: W,
    pub(super) probe: W,
}

/// The tasks: from a list, or one per tile of the probe side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tasks {
    pub(super) list: u64,
    pub(super) count: u32,
    /// Probe rows per tile, if there is no list.
    pub(super) tile: u32,
    /// The total number of probe rows.
    pub(super) rows: u64,
    /// The maximum probe rows per round.
    pub(super) round: u32,
}

impl Tasks {
    fn get(&self, space: &Space, number: u32) -> Result<Task> {
        if self.list != 0 {
            return space.get(nth::<Task>(self.list, number.into()), "tasks");
        }
        let probe = u64::from(number) * u64::from(self.tile);
        require(probe < self.rows && self.tile > 0, "a tile without rows")?;
        let rows = (self.rows - probe).min(self.tile.into());
        Ok(Task { build: 0, probe, build_rows: 0, probe_rows: rows as u32 })
    }
}

/// Takes tasks until there are none left or there is no room. Handles the rows that `find` returns as the
/// flavour requires.
pub(super) fn drive<W: DeviceWord>(
    machine: &mut Machine,
    flavour: Flavour,
    output: &Output,
    tasks: Tasks,
    find: impl Fn(&Space, &Task) -> Result<Vec<Row<W>>>,
) -> Result<()> {
    let Machine { space, random, .. } = machine;
    if tasks.list != 0 {
        space.check::<Task>(tasks.list, tasks.count.into(), "tasks")?;
    }
    if matches!(flavour, Flavour::Pairs | Flavour::PairsFlagged) {
        let first = space.get::<Control>(output.control, "control")?.next;
        check_room::<W>(space, output, tasks.count.saturating_sub(first))?;
    }
    let control = space.get::<Control>(output.control, "control")?;
    let mut block = ThreadBlocks { space, random, flavour, output, control, in_flight: 0 };
    while let Some(number) = block.take(tasks.count) {
        let mut rest = tasks.get(block.space, number)?;
        while rest.probe_rows > 0 {
            let round = Task { probe_rows: rest.probe_rows.min(tasks.round), ..rest };
            let rows = find(block.space, &round)?;
            if !block.resolve(rows, round, rest)? {
                break;
            }
            rest.probe += u64::from(round.probe_rows);
            rest.probe_rows -= round.probe_rows;
        }
    }
    let control = block.control;
    space.set(output.control, 0, control, "control")
}

/// All thread blocks of a kernel, one after another.
struct ThreadBlocks<'a> {
    space: &'a mut Space,
    random: &'a mut Rng,
    flavour: Flavour,
    output: &'a Output,
    control: Control,
    /// The number of tasks that are still taken once the output is full.
    in_flight: u64,
}

impl ThreadBlocks<'_> {
    /// Returns the number of the next task, if another one may be taken.
    fn take(&mut self, count: u32) -> Option<u32> {
        let control = &mut self.control;
        if control.full != 0 {
            self.in_flight = self.in_flight.checked_sub(1)?;
        }
        let number = control.next;
        control.next = number.saturating_add(1);
        if number >= count {
            // Every thread block finds out separately that there are no more.
            control.next = control.next.saturating_add(self.random.u64(..IN_FLIGHT + 1) as u32);
            return None;
        }
        Some(number)
    }

    /// Writes, flags or counts the rows of a round. Returns false if there was no room.
    fn resolve<W: DeviceWord>(
        &mut self,
        mut rows: Vec<Row<W>>,
        round: Task,
        rest: Task,
    ) -> Result<bool> {
        match self.flavour {
            Flavour::Aggregate => {
                add_up(&mut self.control, &rows, self.output.sign != 0);
                return Ok(true);
            }
            Flavour::Exists => return flag(self.space, self.output, &rows).map(|()| true),
            Flavour::PairsFlagged => flag(self.space, self.output, &rows)?,
            Flavour::Pairs => {}
        }
        let (count, capacity) = (rows.len() as u64, self.output.capacity);
        if count == 0 {
            return Ok(true);
        }
        if count > self.output.most.min(capacity) {
            return self.redo(Redo { task: round, rows: count }).map(|()| true);
        }
        // The count only grows: after a task found no room, no other task finds any.
        let begin = self.control.rows;
        self.control.rows = begin.saturating_add(count);
        if self.control.rows > capacity {
            if begin <= capacity {
                self.control.counted = begin;
            }
            if self.control.full == 0 {
                self.in_flight = self.random.u64(..IN_FLIGHT + 1);
            }
            self.control.full = 1;
            return self.redo(Redo { task: rest, rows: count }).map(|()| false);
        }
        self.random.shuffle(&mut rows);
        write(self.space, self.output, begin, &rows).map(|()| true)
    }

    fn redo(&mut self, redo: Redo) -> Result<()> {
        let place = self.control.redone;
        self.control.redone = place.saturating_add(1);
        self.space.set(self.output.redo, place.into(), redo, "redo")
    }
}

/// Checks that the output has room for its rows and its redo entries.
fn check_room<W>(space: &Space, output: &Output, tasks: u32) -> Result<()> {
    if output.keys != 0 {
        space.check::<W>(output.keys, output.capacity, "output keys")?;
    }
    space.check::<W>(output.build, output.capacity, "output build")?;
    space.check::<W>(output.probe, output.capacity, "output probe")?;
    space.check::<Redo>(output.redo, tasks.into(), "redo")
}

fn add_up<W: DeviceWord>(control: &mut Control, rows: &[Row<W>], sign: bool) {
    control.counted = control.counted.wrapping_add(rows.len() as u64);
    for row in rows {
        control.build_sum = control.build_sum.wrapping_add(row.build.widen(sign));
        control.probe_sum = control.probe_sum.wrapping_add(row.probe.widen(sign));
    }
}

fn flag<W: DeviceWord>(space: &mut Space, output: &Output, rows: &[Row<W>]) -> Result<()> {
    for row in rows {
        if output.build_flags != 0 {
            space.set(output.build_flags, row.build.to_u64(), 1u8, "build_flags")?;
        }
        if output.probe_flags != 0 {
            space.set(output.probe_flags, row.probe.to_u64(), 1u8, "probe_flags")?;
        }
    }
    Ok(())
}

fn write<W: DeviceWord>(
    space: &mut Space,
    output: &Output,
    at: u64,
    rows: &[Row<W>],
) -> Result<()> {
    let mut column = |address: u64, value: fn(&Row<W>) -> W| {
        let values: Vec<W> = rows.iter().map(value).collect();
        space.write(nth::<W>(address, at), &values, "output")
    };
    if output.keys != 0 {
        column(output.keys, |row| row.key)?;
    }
    column(output.build, |row| row.build)?;
    column(output.probe, |row| row.probe)
}

//! Small stages around the large ones: finds the starts of partitions, lists the tasks of co-partitions, and
//! gathers values by row number.

use super::super::memory::{aligned, nth};
use super::super::random::random_order;
use super::super::word::DeviceWord;
use super::{Machine, require};
use crate::device::abi::{Bounds, Gather, ListTasks, Task};
use crate::error::Result;
use crate::memory::Plain;

pub(super) fn bounds<W: DeviceWord>(machine: &mut Machine, stage: &Bounds) -> Result<()> {
    require(stage.shift <= W::BITS, "a partition's bits are outside the key")?;
    require(stage.partitions.is_power_of_two(), "partitions that are not a power of two")?;
    let tuples = machine.space.tuples::<W>(stage.tuples, stage.rows, "tuples")?;
    // If the shift leaves no bits, there is one partition.
    let mask = u64::from(stage.partitions - 1);
    let partition = |key: W| key.to_u64().checked_shr(stage.shift).unwrap_or(0) & mask;
    let ordered = tuples.is_sorted_by_key(|tuple| partition(tuple.key));
    require(ordered, "tuples that are not ordered by partition")?;
    let mut bounds: Vec<u64> = (0..u64::from(stage.partitions))
        .map(|wanted| tuples.partition_point(|tuple| partition(tuple.key) < wanted) as u64)
        .collect();
    bounds.push(stage.rows);
    machine.space.write(stage.bounds, &bounds, "bounds")
}

pub(super) fn list(machine: &mut Machine, stage: &ListTasks) -> Result<()> {
    require(stage.build_rows > 0 && stage.probe_rows > 0, "tasks without rows")?;
    let bounds = u64::from(stage.partitions) + 1;
    let build = machine.space.read::<u64>(stage.build_bounds, bounds, "build_bounds")?;
    let probe = machine.space.read::<u64>(stage.probe_bounds, bounds, "probe_bounds")?;
    for bounds in [&build, &probe] {
        require(bounds.is_sorted(), "a partition ends before it begins")?;
    }
    let capacity = u64::from(stage.capacity);
    machine.space.check::<Task>(stage.tasks, capacity, "tasks")?;
    let mut count = 0u64;
    for partition in random_order(&mut machine.random, stage.partitions as usize) {
        let builds = cut(build[partition], build[partition + 1], stage.build_rows);
        let probes = cut(probe[partition], probe[partition + 1], stage.probe_rows);
        let first = count;
        count = count.saturating_add(builds.len.saturating_mul(probes.len));
        require(count <= u64::from(u32::MAX), "more tasks than can be counted")?;
        for number in first..count.min(capacity) {
            let (build, build_rows) = builds.piece((number - first) % builds.len);
            let (probe, probe_rows) = probes.piece((number - first) / builds.len);
            let task = Task { build, probe, build_rows, probe_rows };
            machine.space.set(stage.tasks, number, task, "tasks")?;
        }
    }
    machine.space.set(stage.count, 0, count as u32, "count")
}

/// A range that is cut into pieces.
struct Pieces {
    from: u64,
    to: u64,
    rows: u32,
    /// The number of pieces.
    len: u64,
}

fn cut(from: u64, to: u64, rows: u32) -> Pieces {
    Pieces { from, to, rows, len: (to - from).div_ceil(u64::from(rows)) }
}

impl Pieces {
    /// Returns the start and the rows of a piece.
    fn piece(&self, number: u64) -> (u64, u32) {
        let from = self.from + number * u64::from(self.rows);
        (from, (self.to - from).min(u64::from(self.rows)) as u32)
    }
}

pub(super) fn gather<W: DeviceWord>(machine: &mut Machine, stage: &Gather) -> Result<()> {
    match stage.width {
        1 => fetch::<W, u8, 1>(machine, stage),
        2 => fetch::<W, u16, 1>(machine, stage),
        4 => fetch::<W, u32, 1>(machine, stage),
        8 => fetch::<W, u64, 1>(machine, stage),
        16 => fetch::<W, u64, 2>(machine, stage),
        _ => require(false, "values are 1, 2, 4, 8 or 16 bytes wide"),
    }
}

/// Gathers values of `PARTS` integers each.
fn fetch<W: DeviceWord, T: Plain, const PARTS: u64>(
    machine: &mut Machine,
    stage: &Gather,
) -> Result<()> {
    let rows = machine.space.read::<W>(stage.rows, stage.count, "rows")?;
    let parts = stage.count.saturating_mul(PARTS);
    aligned(stage.source, stage.width.into(), "source")?;
    aligned(stage.target, stage.width.into(), "target")?;
    machine.space.check::<T>(stage.target, parts, "target")?;
    for (to, row) in (0u64..).zip(rows) {
        let from = nth::<T>(stage.source, row.to_u64().saturating_mul(PARTS));
        let value = machine.space.read::<T>(from, PARTS, "source")?;
        machine.space.write(nth::<T>(stage.target, to * PARTS), &value, "target")?;
    }
    Ok(())
}

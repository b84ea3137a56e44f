//! The radix join on a device (003 §III, 004 §3.2).
//!
//! ```text
//!  build: columns ─► passes ─► partitions ─┐        ┌─► a table in shared memory a co-partition
//!                                          ├─ tasks ┤
//!  probe: columns ─► passes ─► partitions ─┘        └─► a list split where a partition is long
//! ```
//!
//! How passes go is the partitioner's. Those by histograms and by look-back are stable, so passes by
//! the lower and then the upper half of the radix bits order by all of them: no histogram a partition
//! is needed. A build partition that outgrows shared memory becomes several tasks; so does a long
//! probe partition, for which 004 used dynamic parallelism.

use super::rounds::{self, Cut, Work};
use super::{Found, Receiver, Session, Side, Wanted};
use crate::device::{Stage, View, abi};
use crate::error::Result;
use crate::join::Partitioner;
use crate::partition::gpu::{Digits, chained, counted, ordered};

/// Joins two sides.
pub(super) fn join(
    session: &Session<'_>,
    partitioner: Partitioner,
    [build, probe]: [&Side; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<Found> {
    let shape = session.device.shape(session.word);
    let bits = radix_bits(build.rows, shape.build_rows, session.word.bits());
    let mut spare = None;
    let mut partition =
        |side: &Side, what: &str| partitioned(session, partitioner, side, bits, &mut spare, what);
    let build_tuples = partition(build, "the partitioned build side")?;
    session.mark("partition build side")?;
    let probe_tuples = partition(probe, "the partitioned probe side")?;
    session.mark("partition probe side")?;

    let partitions = 1u32 << bits;
    let bounds = |tuples: View, rows: u64| -> Result<View> {
        let bounds = session.allocate((u64::from(partitions) + 1) * 8, "partition bounds")?;
        // One partition has all bits of the key to itself: shifted out in two steps by the kernel.
        let shift = session.word.bits() - bits;
        let (tuples, to) = (tuples.address, bounds.address);
        session.run(Stage::Bounds(abi::Bounds { tuples, rows, bounds: to, shift, partitions }))?;
        Ok(bounds)
    };
    let build_bounds = bounds(build_tuples, build.rows)?;
    let probe_bounds = bounds(probe_tuples, probe.rows)?;
    let (tasks, count) = list(session, [build_bounds, probe_bounds], [build, probe], partitions)?;
    // Partitioning is done: the spare memory may serve the output.
    if let Some(spare) = spare {
        session.release(&[spare])?;
    }
    session.mark("tasks")?;

    let work = Work { tasks: Some(tasks), count, cut: Cut::Build };
    let stage = |tasks: u64, count: u32, output: abi::Output| {
        let (build, probe) = (build_tuples.address, probe_tuples.address);
        let join = abi::JoinShared { build, probe, tasks, count, unused: 0, output };
        Stage::JoinShared(wanted.flavour, join)
    };
    session.moved((build.rows + probe.rows) * session.word.tuple());
    let found = rounds::run(session, wanted, true, work, stage, to)?;
    session.mark("join partitions")?;
    Ok(found)
}

/// A side's tuples, ordered by the top bits of their mixed keys.
fn partitioned(
    session: &Session<'_>,
    partitioner: Partitioner,
    side: &Side,
    bits: u32,
    spare: &mut Option<View>,
    what: &str,
) -> Result<View> {
    let digits = Digits::top(bits, session.word.bits());
    match partitioner {
        Partitioner::LookBack => ordered(session, side, &digits, spare, what),
        Partitioner::BucketPool => chained(session, side, &digits, spare, what),
        Partitioner::SharedHistogram => counted(session, side, &digits, spare, what),
    }
}

/// Bits that make build partitions fit shared memory with room to spare, since they come out
/// uneven.
fn radix_bits(rows: u64, fit: u32, word_bits: u32) -> u32 {
    let room = u64::from(fit - fit / 10).max(1);
    let partitions = rows.div_ceil(room).max(1).next_power_of_two();
    partitions.ilog2().clamp(1, 24.min(word_bits))
}

/// The tasks of all co-partitions, and how many there are.
fn list(
    session: &Session<'_>,
    [build_bounds, probe_bounds]: [View; 2],
    [build, probe]: [&Side; 2],
    partitions: u32,
) -> Result<(View, u32)> {
    let shape = session.device.shape(session.word);
    let pieces = |rows: u64, most: u32| rows / u64::from(most);
    let mut capacity = u64::from(partitions)
        + pieces(build.rows, shape.build_rows)
        + pieces(probe.rows, shape.probe_rows);
    loop {
        let count = session.zeroed(4, "the number of tasks")?;
        let tasks = session.allocate(capacity * size_of::<abi::Task>() as u64, "the task list")?;
        session.run(Stage::ListTasks(abi::ListTasks {
            build_bounds: build_bounds.address,
            probe_bounds: probe_bounds.address,
            tasks: tasks.address,
            count: count.address,
            partitions,
            build_rows: shape.build_rows,
            probe_rows: shape.probe_rows,
            capacity: capacity as u32,
        }))?;
        let found = session.read::<u32>(count, 1)?[0];
        if u64::from(found) <= capacity {
            return Ok((tasks, found));
        }
        // Long partitions on both sides multiply.
        session.release(&[tasks])?;
        capacity = u64::from(found);
    }
}

#[cfg(test)]
mod tests {
    use super::radix_bits;

    #[test]
    fn partitions_fit_shared_memory() {
        assert_eq!(radix_bits(1 << 27, 4608, 64), 15);
        assert_eq!(radix_bits(100, 4608, 64), 1);
        assert_eq!(radix_bits(u64::from(u32::MAX), 4, 32), 24);
    }
}

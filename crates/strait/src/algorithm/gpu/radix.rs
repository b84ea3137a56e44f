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

use super::output_loop::{Cut, OutputLoop, Work};
use super::{JoinResult, Receiver, Session, Side, Wanted};
use crate::device::{Stage, View, abi};
use crate::error::Result;
use crate::gpu_options::Partitioner;
use crate::partition::gpu::{Digits, chained, counted, ordered};

/// Joins two sides.
pub(super) fn join(
    session: &Session<'_>,
    partitioner: Partitioner,
    [build, probe]: [&Side; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let radix = Radix::of(session, partitioner, build.rows);
    let mut spare = None;
    let build = radix.partition(session, build, &mut spare, "the partitioned build side")?;
    session.mark("partition build side")?;
    let probe = radix.partition(session, probe, &mut spare, "the partitioned probe side")?;
    session.mark("partition probe side")?;
    let tasks = radix.list(session, [&build, &probe])?;
    // Partitioning is done: the spare memory may serve the output.
    if let Some(spare) = spare {
        session.release(&[spare])?;
    }
    session.mark("tasks")?;
    let mut output_loop = OutputLoop::new(session, wanted, tasks.1)?;
    let found = radix.join(&mut output_loop, [&build, &probe], tasks, wanted, to)?;
    session.mark("join partitions")?;
    Ok(found)
}

/// How both sides are partitioned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Radix {
    partitioner: Partitioner,
    /// Top bits of the mixed key that all tuples have the same, or that were used before.
    skip: u32,
    /// The bits below them, which tell partitions.
    bits: u32,
}

/// A side's tuples, ordered by partition.
pub(super) struct Partitioned {
    pub(super) tuples: View,
    pub(super) rows: u64,
    /// Where each partition begins, and where the last ends: 64 bits.
    pub(super) bounds: View,
}

impl Radix {
    /// For a build side of so many rows.
    pub(super) fn of(session: &Session<'_>, partitioner: Partitioner, build_rows: u64) -> Radix {
        Radix::below(session, partitioner, 0, build_rows)
    }

    /// The same, for tuples whose top bits have been used before.
    pub(super) fn below(
        session: &Session<'_>,
        partitioner: Partitioner,
        skip: u32,
        build_rows: u64,
    ) -> Radix {
        let fit = session.device.shape(session.word).build_rows;
        let bits = radix_bits(build_rows, fit, session.word.bits() - skip);
        Radix { partitioner, skip, bits }
    }

    /// For so many partitions, whatever the rows.
    pub(super) fn exactly(bits: u32) -> Radix {
        Radix { partitioner: Partitioner::LookBack, skip: 0, bits }
    }

    /// Orders a side's tuples. The spare memory is made on the first call and used again.
    pub(super) fn partition(
        &self,
        session: &Session<'_>,
        side: &Side,
        spare: &mut Option<View>,
        what: &str,
    ) -> Result<Partitioned> {
        let word_bits = session.word.bits();
        let digits = Digits::below(self.skip, self.bits, word_bits);
        let tuples = match self.partitioner {
            Partitioner::BucketPool => chained(session, side, &digits, spare, what),
            Partitioner::SharedHistogram => counted(session, side, &digits, spare, what),
            _ => ordered(session, side, &digits, spare, what),
        }?;
        let partitions = 1u32 << self.bits;
        let bounds = session.allocate((u64::from(partitions) + 1) * 8, "partition bounds")?;
        session.run(Stage::Bounds(abi::Bounds {
            tuples: tuples.address,
            rows: side.rows,
            bounds: bounds.address,
            // One partition has all bits of the key to itself: shifted out in two steps by the
            // kernel.
            shift: word_bits - self.skip - self.bits,
            partitions,
        }))?;
        Ok(Partitioned { tuples, rows: side.rows, bounds })
    }

    /// Orders a side's tuples, and gives back all memory that only ordering them took.
    pub(super) fn partition_alone(
        &self,
        session: &Session<'_>,
        side: &Side,
        what: &str,
    ) -> Result<Partitioned> {
        let point = session.point();
        let made = self.partition(session, side, &mut None, what)?;
        let kept = [session.take(made.tuples), session.take(made.bounds)];
        session.release_since(point)?;
        kept.into_iter().flatten().for_each(|memory| {
            session.keep(memory);
        });
        Ok(made)
    }

    /// The tasks that so many rows make, unless partitions are long on both sides.
    pub(super) fn tasks(&self, session: &Session<'_>, build_rows: u64, probe_rows: u64) -> u64 {
        let shape = session.device.shape(session.word);
        let pieces = |rows: u64, most: u32| rows / u64::from(most);
        (1u64 << self.bits)
            + pieces(build_rows, shape.build_rows)
            + pieces(probe_rows, shape.probe_rows)
    }

    /// The tasks of all co-partitions, and how many there are.
    pub(super) fn list(
        &self,
        session: &Session<'_>,
        [build, probe]: [&Partitioned; 2],
    ) -> Result<(View, u32)> {
        let shape = session.device.shape(session.word);
        let partitions = 1u32 << self.bits;
        let mut capacity = self.tasks(session, build.rows, probe.rows);
        loop {
            let count = session.zeroed(4, "the number of tasks")?;
            let task = size_of::<abi::Task>() as u64;
            let tasks = session.allocate(capacity * task, "the task list")?;
            session.run(Stage::ListTasks(abi::ListTasks {
                build_bounds: build.bounds.address,
                probe_bounds: probe.bounds.address,
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

    /// Joins co-partitions, in output_loop that others may follow.
    pub(super) fn join(
        &self,
        output_loop: &mut OutputLoop<'_>,
        [build, probe]: [&Partitioned; 2],
        (tasks, count): (View, u32),
        wanted: &Wanted,
        to: &mut dyn Receiver,
    ) -> Result<JoinResult> {
        let session = output_loop.session();
        let work = Work { tasks: Some(tasks), count, cut: Cut::Build, mixed: true };
        let stage = |tasks: u64, count: u32, output: abi::Output| {
            let (build, probe) = (build.tuples.address, probe.tuples.address);
            let join = abi::JoinShared { build, probe, tasks, count, unused: 0, output };
            Stage::JoinShared(wanted.flavour, join)
        };
        session.moved((build.rows + probe.rows) * session.word.tuple());
        output_loop.run(wanted, work, stage, to)
    }
}

/// Bits that make build partitions fit shared memory with room to spare, since they come out
/// uneven.
fn radix_bits(rows: u64, fit: u32, word_bits: u32) -> u32 {
    let room = u64::from(fit - fit / 10).max(1);
    let partitions = rows.div_ceil(room).max(1).next_power_of_two();
    partitions.ilog2().clamp(1, 24.min(word_bits))
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

//! Partitions a side in GPU memory, and joins co-partitions in shared memory (003 §III, 004 §3.2).
//!
//! The partitioner decides how a pass works. The histogram and look-back partitioners keep the order of
//! earlier passes. So two passes, first over the lower half of the radix bits and then over the upper half,
//! sort by all bits. No histogram per partition is needed. A build partition that does not fit shared memory
//! becomes several tasks. So does a long probe partition, for which 004 uses dynamic parallelism.

use super::output_loop::{Cut, OutputLoop, Work};
use super::wanted::{Receiver, Wanted};
use crate::device::{DeviceSide, DeviceStage, Session, View, abi};
use crate::error::Result;
use crate::gpu_options::RadixPartitioner;
use crate::partition::gpu::{Digits, chained, counted, ordered};
use crate::plan::gpu_shape::{partitioning_bytes, radix_bits};

/// How both sides are partitioned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Radix {
    partitioner: RadixPartitioner,
    /// The number of top bits of the mixed key to skip, because an earlier pass has partitioned by them.
    skip: u32,
    /// The number of bits below them, which choose the partition.
    bits: u32,
}

/// A side's tuples, ordered by partition.
pub(crate) struct Partitioned {
    pub(crate) tuples: View,
    pub(crate) rows: u64,
    /// The start of each partition and the end of the last, as 64-bit numbers.
    pub(crate) bounds: View,
}

/// The tasks that join co-partitions: [`abi::Task`]s in GPU memory.
#[derive(Clone, Copy)]
pub(crate) struct Tasks {
    pub(crate) list: View,
    pub(crate) count: u32,
}

impl Radix {
    /// Partitions by the top `bits` bits, as the plan says.
    pub(crate) fn top(partitioner: RadixPartitioner, bits: u32) -> Radix {
        Radix { partitioner, skip: 0, bits }
    }

    /// Partitions a working set of `build_rows` rows. An earlier pass has partitioned by the top `skip` bits.
    pub(crate) fn below(session: &Session<'_>, skip: u32, build_rows: u64) -> Radix {
        let fit = session.device.shape(session.word).build_rows;
        let bits = radix_bits(build_rows, fit, session.word.bits() - skip);
        Radix { partitioner: RadixPartitioner::LookBack, skip, bits }
    }

    /// Orders a side's tuples by partition. The first call allocates the spare memory, and later calls reuse
    /// it.
    pub(crate) fn partition(
        &self,
        session: &Session<'_>,
        side: &DeviceSide,
        spare: &mut Option<View>,
        what: &str,
    ) -> Result<Partitioned> {
        let word_bits = session.word.bits();
        let digits = Digits::below(self.skip, self.bits, word_bits);
        if self.skip == 0 {
            session.record_work(|work| work.radix_bits = digits.widths());
        }
        let tuples = match self.partitioner {
            RadixPartitioner::LookBack => ordered(session, side, &digits, spare, what),
            RadixPartitioner::BucketPool => chained(session, side, &digits, spare, what),
            RadixPartitioner::SharedHistogram => counted(session, side, &digits, spare, what),
        }?;
        let partitions = 1u32 << self.bits;
        let bounds = session.allocate((u64::from(partitions) + 1) * 8, "partition bounds")?;
        session.run(DeviceStage::Bounds(abi::Bounds {
            tuples: tuples.address,
            rows: side.rows,
            bounds: bounds.address,
            // If there is only one partition, the shift can equal the number of key bits. The kernel shifts
            // in two steps.
            shift: word_bits - self.skip - self.bits,
            partitions,
        }))?;
        Ok(Partitioned { tuples, rows: side.rows, bounds })
    }

    /// Orders a side's tuples by partition, and releases all memory but the result.
    pub(crate) fn partition_alone(
        &self,
        session: &Session<'_>,
        side: &DeviceSide,
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

    /// Estimates the number of tasks. There are more only if partitions are long on both sides.
    pub(crate) fn tasks(&self, session: &Session<'_>, build_rows: u64, probe_rows: u64) -> u64 {
        let shape = session.device.shape(session.word);
        let pieces = |rows: u64, most: u32| rows / u64::from(most);
        (1u64 << self.bits)
            + pieces(build_rows, shape.build_rows)
            + pieces(probe_rows, shape.probe_rows)
    }

    /// Lists the tasks of all co-partitions.
    pub(crate) fn list(
        &self,
        session: &Session<'_>,
        [build, probe]: [&Partitioned; 2],
    ) -> Result<Tasks> {
        let shape = session.device.shape(session.word);
        let partitions = 1u32 << self.bits;
        let mut capacity = self.tasks(session, build.rows, probe.rows);
        loop {
            let count = session.zeroed(4, "the number of tasks")?;
            let task = size_of::<abi::Task>() as u64;
            let tasks = session.allocate(capacity * task, "the task list")?;
            session.run(DeviceStage::ListTasks(abi::ListTasks {
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
                return Ok(Tasks { list: tasks, count: found });
            }
            // There are more tasks than estimated, because some partitions are long on both sides.
            session.release(&[tasks])?;
            capacity = u64::from(found);
        }
    }

    /// Joins co-partitions, with an output loop that the caller may use again.
    pub(crate) fn join(
        &self,
        output_loop: &mut OutputLoop<'_>,
        [build, probe]: [&Partitioned; 2],
        tasks: Tasks,
        wanted: &Wanted,
        to: &mut dyn Receiver,
    ) -> Result<()> {
        let session = output_loop.session();
        let work =
            Work { tasks: Some(tasks.list), count: tasks.count, cut: Cut::Build, mixed: true };
        let stage = |tasks: u64, count: u32, output: abi::Output| {
            let (build, probe) = (build.tuples.address, probe.tuples.address);
            let join = abi::JoinShared { build, probe, tasks, count, unused: 0, output };
            DeviceStage::JoinShared(wanted.flavour, join)
        };
        session.moved((build.rows + probe.rows) * session.word.tuple());
        output_loop.run(wanted, work, stage, to)
    }
}

/// Partitions a chunk and joins it.
pub(crate) fn join_chunk(
    output_loop: &mut OutputLoop<'_>,
    radix: &Radix,
    build: &Partitioned,
    chunk: &DeviceSide,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<()> {
    let session = output_loop.session();
    let point = session.point();
    let probe = radix.partition_alone(session, chunk, "a partitioned chunk")?;
    session.mark("partition probe side")?;
    let tasks = radix.list(session, [build, &probe])?;
    session.mark("tasks")?;
    radix.join(output_loop, [build, &probe], tasks, wanted, to)?;
    session.mark("join partitions")?;
    session.release_since(point)
}

/// Returns the device memory per row that partitioning needs.
pub(crate) fn partitioning(session: &Session<'_>) -> u64 {
    partitioning_bytes(session.device.shape(session.word), session.word)
}

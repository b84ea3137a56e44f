//! The radix join on a device (003 §III, 004 §3.2).
//!
//! ```text
//!  build: columns ─► passes ─► partitions ─┐        ┌─► per co-partition, a table in shared memory
//!                                          ├─ tasks ┤
//!  probe: columns ─► passes ─► partitions ─┘        └─► several tasks if a partition is long
//! ```
//!
//! [`one_pass`] is a variant for a long probe side. It makes one pass per side, and one table in GPU memory
//! whose parts stay in the L2 cache.

mod one_pass;

use super::machinery::output_loop::OutputLoop;
use super::machinery::partitions::Radix;
use super::{DeviceSide, JoinResult, Receiver, Session, Wanted};
use crate::error::Result;
use crate::gpu_options::{Partitioner, RadixPartitioner};

/// Joins two sides in GPU memory. Uses the one-pass join if that is faster; only the look-back partitioner
/// supports it.
pub(super) fn join(
    session: &Session<'_>,
    partitioner: Partitioner,
    sides: [&DeviceSide; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let partitioner = partitioner.for_radix()?;
    if partitioner == RadixPartitioner::LookBack
        && let Some(found) = one_pass::join(session, sides[0], sides[1], wanted, to)?
    {
        return Ok(found);
    }
    join_in_passes(session, partitioner, sides, wanted, to)
}

/// Partitions both sides completely, and joins co-partitions in shared memory.
fn join_in_passes(
    session: &Session<'_>,
    partitioner: RadixPartitioner,
    [build, probe]: [&DeviceSide; 2],
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
    // Partitioning is done, so the output may use the spare memory.
    if let Some(spare) = spare {
        session.release(&[spare])?;
    }
    session.mark("tasks")?;
    let mut output_loop = OutputLoop::new(session, wanted, tasks.count)?;
    let found = radix.join(&mut output_loop, [&build, &probe], tasks, wanted, to)?;
    session.mark("join partitions")?;
    Ok(found)
}

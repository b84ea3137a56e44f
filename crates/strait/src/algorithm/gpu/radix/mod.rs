//! The radix join on a device (003 §III, 004 §3.2).
//!
//! ```text
//!  build: columns ─► passes ─► partitions ─┐        ┌─► per co-partition, a table in shared memory
//!                                          ├─ tasks ┤
//!  probe: columns ─► passes ─► partitions ─┘        └─► several tasks if a partition is long
//! ```
//!
//! [`one_pass`] is a variant for a long probe side. It partitions each side in one pass and builds one table
//! in GPU memory. Only one part of the table is in use at a time, and it fits the L2 cache.

mod one_pass;

use super::machinery::output_loop::OutputLoop;
use super::machinery::partitions::Radix;
use super::{DeviceSide, JoinResult, Receiver, Session, Wanted};
use crate::error::Result;
use crate::plan::{Learned, Plan};

/// Joins two sides in GPU memory. The plan tells whether to try [`one_pass`]. If a build key occurs more than
/// once, that variant cannot join, and the sides are partitioned as in the diagram.
pub(super) fn join(
    session: &Session<'_>,
    plan: &mut Plan,
    sides: [&DeviceSide; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let partitioner = plan.facts.gpu_options.partitioner.unwrap_or_default().for_radix()?;
    let matchable = sides.map(|side| Some(side.rows));
    plan.refine(Learned { matchable, free: Some(session.left()), ..Learned::default() });
    if plan.details.table.is_some() {
        let [build, probe] = sides;
        let found = one_pass::join(session, plan.radix_bits(), build, probe, wanted, to)?;
        plan.refine(Learned { unique: Some(found.is_some()), ..Learned::default() });
        if let Some(found) = found {
            return Ok(found);
        }
    }
    join_in_passes(session, Radix::top(partitioner, plan.radix_bits()), sides, wanted, to)
}

/// Partitions both sides completely, and joins co-partitions in shared memory.
fn join_in_passes(
    session: &Session<'_>,
    radix: Radix,
    [build, probe]: [&DeviceSide; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
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
    radix.join(&mut output_loop, [&build, &probe], tasks, wanted, to)?;
    session.mark("join partitions")?;
    output_loop.finish()
}

//! Partitions of the build side stay in GPU memory; the probe side is streamed past them (003 §IV-A).
//!
//! ```text
//!  build: host ─► device ─► partitions ────────────────────────┐
//!                                                              ├─► rows ─► host
//!  probe: host ─► chunk, chunk, chunk ─► partition and join ───┘
//! ```
//!
//! Partitions take half the memory of a table, and frequent keys do not slow them down.

use super::machinery::flags::{Window, closed_after, opened};
use super::machinery::output_loop::OutputLoop;
use super::machinery::partitions::{Radix, join_chunk, partitioning};
use super::machinery::stream::{ProbeStream, release};
use super::{DeviceSide, JoinResult, Receiver, Wanted, Which, check_rows};
use crate::error::Result;
use crate::gpu_options::RadixPartitioner;
use crate::plan::Plan;
use crate::transfer::{HostSide, Incoming, TransferContext, load};

/// Joins two sides in host memory.
pub(super) fn join(
    link: &TransferContext<'_>,
    plan: &Plan,
    build: &HostSide,
    probe: &Incoming<'_>,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    check_rows(build.rows)?;
    let side = load(link, build)?;
    join_loaded(link, plan, side, probe, wanted, to)
}

/// Streams a probe side past the partitions of `build`, which is a build side on the device or a part of
/// one. Releases the columns of `build`.
pub(super) fn join_loaded(
    link: &TransferContext<'_>,
    plan: &Plan,
    build: DeviceSide,
    probe: &Incoming<'_>,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let session = link.session;
    let radix = Radix::top(RadixPartitioner::LookBack, plan.radix_bits());
    let held = radix.partition_alone(session, &build, "the partitioned build side")?;
    release(session, &build)?;
    session.mark("partition build side")?;
    let link = &link.with_chunks_of(plan.chunk_rows()?.probe);
    let mut stream = ProbeStream::new(link, probe, wanted, partitioning(session))?;
    let tasks = radix.tasks(session, build.rows, stream.chunk_rows);
    let mut output_loop = OutputLoop::new(session, &stream.wanted, tasks as u32)?;
    let mut flags = Window::new(session, Which::Build, wanted, build.rows)?;
    let build_flags = opened(&mut flags, session, build.first, build.rows)?;
    let joined = stream.each(build_flags, to, |chunk, wanted, to| {
        join_chunk(&mut output_loop, &radix, &held, chunk, wanted, to)
    });
    closed_after(joined, &flags, session, to)?;
    output_loop.finish()
}

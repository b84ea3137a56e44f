//! Joins on a GPU, over columns in GPU memory and over columns that must first be copied there.
//!
//! One file per `--algorithm`, named like it. The folder [`machinery`] has what they share.
//!
//! | file | what it does |
//! | --- | --- |
//! | [`no_partition`] | builds one table over the build side, and looks the probe side up in it |
//! | [`radix`] | partitions both sides, and joins co-partitions in shared memory |
//! | [`sort_merge`] | sorts both sides, then merges them |
//! | [`streamed_probe`] | keeps partitions of the build side in GPU memory, and streams the probe side |
//! | [`multi_pass`] | splits the build side into parts that fit, and streams the probe side once per part |
//! | [`cpu_partitioned`] | partitions both sides on the CPU and joins them on the GPU |
//! | [`triton`] | partitions both sides on the GPU, into host memory |
//!
//! [`join`] calls the algorithm for two sides in GPU memory. [`join_from_host`] calls it for two sides in host
//! memory.

mod cpu_partitioned;
mod machinery;
mod multi_pass;
mod no_partition;
mod radix;
mod sort_merge;
mod streamed_probe;
#[cfg(test)]
mod tests;
mod triton;

pub(crate) use machinery::host::{Attempt, Rest, Written, run};
pub(crate) use machinery::host_partitions::HostPartitions;
pub(crate) use machinery::wanted::{JoinResult, OutputBlock, PairsOnly, Receiver, Wanted, Which};
pub(crate) use sort_merge::varying_bits;
pub(crate) use triton::partition_side;

use crate::device::{Device, DeviceSide, Session};
use crate::error::{Error, Result};
use crate::options::Algorithm;
use crate::plan::gpu_shape::MAX_ROWS_AT_ONCE;
use crate::plan::{Learned, Plan};
use crate::stopwatch::GpuWork;
use crate::transfer::{HostSide, Incoming, TransferContext, load};
use crate::word::Width;
use machinery::flags::{Window, closed, opened};
use machinery::stream::without_matches;
use machinery::wanted::Watched;

/// The result of a join of two sides in device memory.
pub(crate) struct DeviceJoinResult {
    pub(crate) found: JoinResult,
    /// The algorithm that joined.
    pub(crate) algorithm: Algorithm,
}

/// Joins two sides in device memory. If `survey` is set and the plan is `radix`, the range of the build keys
/// is measured first, and the algorithm is chosen again.
pub(crate) fn join(
    session: &Session<'_>,
    plan: &mut Plan,
    survey: bool,
    sides: [&DeviceSide; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<DeviceJoinResult> {
    let [build, probe] = sides;
    let mut algorithm = plan.algorithm;
    if build.rows == 0 || probe.rows == 0 {
        return Ok(DeviceJoinResult { found: JoinResult::default(), algorithm });
    }
    check_rows(build.rows.max(probe.rows))?;
    let mut windows = [
        Window::new(session, Which::Build, wanted, build.rows)?,
        Window::new(session, Which::Probe, wanted, probe.rows)?,
    ];
    let build_flags = opened(&mut windows[0], session, build.first, build.rows)?;
    let probe_flags = opened(&mut windows[1], session, probe.first, probe.rows)?;
    let wanted = &Wanted { build_flags, probe_flags, ..*wanted };
    let found = match algorithm {
        Algorithm::NoPartition => no_partition::join(session, plan, build, probe, wanted, to),
        Algorithm::SortMerge => sort_merge::join(session, build, probe, wanted, to),
        Algorithm::Radix => {
            let found = match survey {
                true => no_partition::join_surveyed(session, sides, wanted, to)?,
                false => None,
            };
            match found {
                Some(found) => {
                    algorithm = Algorithm::NoPartition;
                    Ok(found)
                }
                None => radix::join(session, plan, sides, wanted, to),
            }
        }
        Algorithm::StreamedProbe
        | Algorithm::MultiPass
        | Algorithm::CpuPartitioned
        | Algorithm::Triton
        | Algorithm::Spill => Err(Error::invalid_option(
            "algorithm",
            format!("{algorithm} joins tables in host memory"),
            format!("for tables in GPU memory, use one of {}", Algorithm::names_anywhere()),
        )),
    }?;
    for window in &windows {
        closed(window, session, to)?;
    }
    Ok(DeviceJoinResult { found, algorithm })
}

/// Joins two sides in host memory. If the algorithm needs more GPU memory than there is, and has written no
/// row yet, its escalation joins instead. Escalation happens only here. Afterwards, the plan tells what was
/// done.
pub(crate) fn join_from_host(
    link: &TransferContext<'_>,
    plan: &mut Plan,
    build: &HostSide,
    probe: &Incoming<'_>,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let session = link.session;
    let point = session.point();
    let mut watched = Watched { to, blocks: 0 };
    let why = match join_as_planned(link, plan, build, probe, wanted, &mut watched) {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    let Some(algorithm) =
        plan.escalation.filter(|_| watched.blocks == 0 && why.escalation_may_help())
    else {
        return Err(why);
    };
    log::info!("{} was abandoned: {why}; going on with {algorithm}", plan.algorithm);
    session.release_since(point)?;
    session.record_work(|work| *work = GpuWork::default());
    *plan = plan.escalated(algorithm, &why.to_string());
    join_as_planned(link, plan, build, probe, wanted, to)
}

/// Joins two sides in host memory with the algorithm of the plan, without escalation.
fn join_as_planned(
    link: &TransferContext<'_>,
    plan: &mut Plan,
    build: &HostSide,
    probe: &Incoming<'_>,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    if build.rows == 0 {
        let link = &link.with_chunks_of(plan.chunk_rows()?.probe);
        return without_matches(link, probe, to);
    }
    if !probe.streams() && probe.held()?.rows == 0 {
        return Ok(JoinResult::default());
    }
    let probe_rows = if probe.streams() { None } else { Some(probe.held()?.rows) };
    plan.refine(Learned {
        matchable: [Some(build.rows), probe_rows],
        ..learned_of_device(link.session.device)
    });
    let (transfer, most_rows) = (plan.transfer()?, plan.chunk_rows()?.build);
    let link = &TransferContext { transfer, most_rows, ..*link };
    match plan.algorithm {
        Algorithm::NoPartition => {
            no_partition::join_from_host(link, plan, build, probe, wanted, to)
        }
        Algorithm::StreamedProbe => streamed_probe::join(link, plan, build, probe, wanted, to),
        Algorithm::MultiPass => multi_pass::join(link, plan, build, probe, wanted, to),
        Algorithm::CpuPartitioned => {
            cpu_partitioned::join(link, plan, [build, probe.held()?], wanted, to)
        }
        Algorithm::Triton => triton::join(link, plan, [build, probe.held()?], wanted, to),
        Algorithm::Radix | Algorithm::SortMerge => {
            let probe_link = &link.with_chunks_of(plan.chunk_rows()?.probe);
            let [build, probe] = [load(link, build)?, load(probe_link, probe.held()?)?];
            Ok(join(link.session, plan, false, [&build, &probe], wanted, to)?.found)
        }
        Algorithm::Spill => Err(Error::internal("a pair of spilled partitions has no plan")),
    }
}

/// Returns the facts that an open device tells.
pub(crate) fn learned_of_device(device: &dyn Device) -> Learned {
    let shapes = Some([Width::W32, Width::W64].map(|word| device.shape(word)));
    Learned { shapes, ..Learned::default() }
}

/// Returns an error if a side, or a part of it, is too long to be joined at once.
fn check_rows(rows: u64) -> Result<()> {
    match rows > MAX_ROWS_AT_ONCE {
        true => Err(Error::TooManyRows { rows, most: MAX_ROWS_AT_ONCE }),
        false => Ok(()),
    }
}

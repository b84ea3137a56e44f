//! Joins on a GPU, over columns in GPU memory and over columns that must first be copied there.
//!
//! | file | what it does |
//! | --- | --- |
//! | [`no_partition`] | builds one table over the build side, in GPU memory |
//! | [`radix`] | partitions both sides and joins co-partitions in shared memory |
//! | [`cached`] | the same in one pass, for a long probe side: a table whose parts stay in the L2 cache |
//! | [`sort_merge`] | sorts both sides, then merges them |
//! | [`streamed`] | keeps the build side in GPU memory and streams the probe side |
//! | [`multi_pass`] | the same, with the build side in several parts |
//! | [`cpu_partitioned`] | partitions both sides on the CPU and joins them on the GPU |
//! | [`triton`] | partitions both sides on the GPU, into host memory |
//! | [`working_set`], [`host_partitions`] | joins partitions in host memory, one working set at a time |
//! | [`in_order`] | looks up a table, and returns the result of every probe row in their order |
//! | [`output_loop`] | writes output of any size through buffers of a fixed size |
//! | [`flags`] | records which rows have a match |
//! | [`host`] | joins Arrow tables: key words go to the GPU, pairs of positions come back |

mod cached;
mod cpu_partitioned;
mod flags;
mod host;
mod host_partitions;
mod in_order;
mod multi_pass;
mod no_partition;
mod output_loop;
mod radix;
mod sort_merge;
mod streamed;
#[cfg(test)]
mod tests;
mod triton;
mod working_set;

pub(crate) use host::{Attempt, run};
pub(crate) use host_partitions::HostPartitions;
pub(crate) use sort_merge::varying_bits;
pub(crate) use triton::partition_side;

use crate::device::{Event, Flavour, Session, Side, View, abi};
use crate::error::{Error, Result};
use crate::gpu_options::{GpuOptions, Partitioner, RadixPartitioner};
use crate::options::Algorithm;
use crate::transfer::{HostSide, Incoming, TransferContext, load};
use flags::{Window, closed, opened};

/// What the join must produce for its matches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) flavour: Flavour,
    /// Whether the keys of the output rows are written too.
    pub(crate) keys: bool,
    /// Whether 32-bit values are summed as signed numbers.
    pub(crate) signed: bool,
    /// Whether rows of each side get a flag if they have a match. Only some flavours set flags.
    pub(crate) flag_build: bool,
    pub(crate) flag_probe: bool,
    /// One flag byte per value of each side. [`join`] and the other conductors set these views for each side,
    /// or for each part of a side.
    pub(crate) build_flags: Option<View>,
    pub(crate) probe_flags: Option<View>,
    /// The estimated number of output rows.
    pub(crate) expected_rows: u64,
}

/// The result of a join.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct JoinResult {
    pub(crate) rows: u64,
    /// The sums of the values over all rows, modulo 2^64, if the flavour computes sums.
    pub(crate) build_sum: u64,
    pub(crate) probe_sum: u64,
}

impl JoinResult {
    /// Adds the result of one launch.
    fn add(&mut self, rows: u64, seen: &abi::Control) {
        self.rows += rows;
        self.build_sum = self.build_sum.wrapping_add(seen.build_sum);
        self.probe_sum = self.probe_sum.wrapping_add(seen.probe_sum);
    }

    /// Adds the result of another join.
    fn and(self, other: JoinResult) -> JoinResult {
        JoinResult {
            rows: self.rows + other.rows,
            build_sum: self.build_sum.wrapping_add(other.build_sum),
            probe_sum: self.probe_sum.wrapping_add(other.probe_sum),
        }
    }
}

/// Output rows in GPU memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) rows: u64,
    pub(crate) keys: View,
    pub(crate) build: View,
    pub(crate) probe: View,
}

/// The results of consecutive probe rows, in their order, in GPU memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InOrderBlock {
    /// The number of probe rows, and the position of the first.
    pub(crate) rows: u64,
    pub(crate) first: u64,
    /// The build value of each probe row that has a match. `None` if only the bits are wanted.
    pub(crate) build: Option<View>,
    /// One bit per probe row: whether it has a match.
    pub(crate) found: View,
}

/// Receives the output, one block at a time.
pub(crate) trait Receiver {
    /// Receives a block. The caller reuses the block's memory after the returned event, or immediately if
    /// there is no event.
    fn block(&mut self, session: &Session<'_>, block: Block) -> Result<Option<Event>>;

    /// Receives the flags of a side's rows, starting at row number `first`: one byte per row, nonzero if the
    /// row has a match. The same rows may come several times.
    fn flags(&mut self, _which: Which, _first: u64, _flags: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Receives results in the order of the probe rows, like [`block`](Receiver::block).
    fn in_order(&mut self, _session: &Session<'_>, _block: InOrderBlock) -> Result<Option<Event>> {
        Err(Error::Worker("results in order were not asked for".to_string()))
    }

    /// Whether the next results should come [in order](Receiver::in_order), if the algorithm can do that.
    fn takes_order(&self) -> bool {
        false
    }

    /// Records that all results of a chunk of the probe side were handed over. Called only if that side is
    /// read while it is joined. The positions of the next chunk start at zero again.
    fn end_chunk(&mut self) -> Result<()> {
        Ok(())
    }

    /// Does pending work on the host while the device is busy.
    fn meanwhile(&mut self, _session: &Session<'_>) -> Result<()> {
        Ok(())
    }

    /// Whether another join follows this one. Its blocks may then come while blocks of this join are still
    /// being copied.
    fn goes_on(&self) -> bool {
        false
    }
}

/// One of the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Build,
    Probe,
}

/// How to join on a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Method {
    pub(crate) algorithm: Algorithm,
    /// Whether the plan chooses again, after a survey of the build keys. Only `radix` is chosen again.
    pub(crate) survey: bool,
    pub(crate) partitioner: Partitioner,
}

/// The result of a join of two sides in device memory.
pub(crate) struct DeviceJoinResult {
    pub(crate) found: JoinResult,
    /// The algorithm that joined.
    pub(crate) algorithm: Algorithm,
}

/// Joins two sides in device memory.
pub(crate) fn join(
    session: &Session<'_>,
    method: Method,
    sides: [&Side; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<DeviceJoinResult> {
    let [build, probe] = sides;
    let mut algorithm = method.algorithm;
    if build.rows == 0 || probe.rows == 0 {
        return Ok(DeviceJoinResult { found: JoinResult::default(), algorithm });
    }
    if build.rows.max(probe.rows) > MAX_ROWS {
        return Err(too_long(build.rows.max(probe.rows)));
    }
    let mut windows = [
        Window::new(session, Which::Build, wanted.flag_build, build.rows)?,
        Window::new(session, Which::Probe, wanted.flag_probe, probe.rows)?,
    ];
    let build_flags = opened(&mut windows[0], session, build.first, build.rows)?;
    let probe_flags = opened(&mut windows[1], session, probe.first, probe.rows)?;
    let wanted = &Wanted { build_flags, probe_flags, ..*wanted };
    let found = match algorithm {
        Algorithm::NoPartition => no_partition::join(session, build, probe, wanted, to),
        Algorithm::SortMerge => sort_merge::join(session, build, probe, wanted, to),
        Algorithm::Radix => {
            let found = match method.survey {
                true => no_partition::join_surveyed(session, sides, wanted, to)?,
                false => None,
            };
            match found {
                Some(found) => {
                    algorithm = Algorithm::NoPartition;
                    Ok(found)
                }
                None => partitioned(session, method.partitioner, sides, wanted, to),
            }
        }
        Algorithm::StreamedProbe
        | Algorithm::MultiPass
        | Algorithm::CpuPartitioned
        | Algorithm::Triton => Err(Error::Setting(format!(
            "{algorithm} joins tables in host memory; in GPU memory there are no-partition, radix and sort-merge"
        ))),
    }?;
    for window in &windows {
        closed(window, session, to)?;
    }
    Ok(DeviceJoinResult { found, algorithm })
}

/// Joins two sides in host memory. If the algorithm needs more GPU memory than there is, and has written no
/// row yet, its escalation joins instead. Escalation happens only here.
pub(crate) fn join_from_host(
    crossing: &TransferContext<'_>,
    how: &FromHost,
    sides: (&HostSide, &Incoming<'_>),
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<HostJoinResult> {
    let session = crossing.session;
    let point = session.point();
    let mut watched = Watched { to, blocks: 0 };
    let why = match join_as_told(crossing, how, sides, wanted, &mut watched) {
        Ok(found) => return Ok(HostJoinResult { found, escalated: None }),
        Err(error) => error,
    };
    let Some(algorithm) = how.escalation.filter(|_| watched.blocks == 0 && escalates(&why)) else {
        return Err(why);
    };
    log::info!("{} was abandoned: {why}; going on with {algorithm}", how.algorithm);
    session.release_since(point)?;
    let how = FromHost { algorithm, escalation: None, ..*how };
    let found = join_as_told(crossing, &how, sides, wanted, to)?;
    Ok(HostJoinResult { found, escalated: Some(Escalated { to: algorithm, why }) })
}

/// Returns whether an algorithm that needs less GPU memory may succeed after this error.
fn escalates(error: &Error) -> bool {
    matches!(error, Error::DeviceMemory { .. } | Error::TooManyRows { .. })
}

/// The result of a join of two sides in host memory.
pub(crate) struct HostJoinResult {
    pub(crate) found: JoinResult,
    pub(crate) escalated: Option<Escalated>,
}

/// The algorithm that joined instead of the planned one, which needed too much GPU memory.
#[derive(Debug)]
pub(crate) struct Escalated {
    pub(crate) to: Algorithm,
    pub(crate) why: Error,
}

/// Joins two sides in host memory with the algorithm of `how`, without escalation.
fn join_as_told(
    crossing: &TransferContext<'_>,
    how: &FromHost,
    (build, probe): (&HostSide, &Incoming<'_>),
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    if build.rows == 0 {
        return streamed::without_matches(crossing, probe, to);
    }
    if !probe.streams() && probe.held()?.rows == 0 {
        return Ok(JoinResult::default());
    }
    let one_table = matches!(how.algorithm, Algorithm::NoPartition | Algorithm::StreamedProbe);
    if one_table && build.rows > MAX_ROWS {
        return Err(too_long(build.rows));
    }
    let GpuOptions { partitioner, table, .. } = how.gpu_options;
    match how.algorithm {
        Algorithm::NoPartition => {
            streamed::no_partition(crossing, table, (build, probe), wanted, to)
        }
        Algorithm::StreamedProbe => streamed::streamed_probe(crossing, (build, probe), wanted, to),
        Algorithm::MultiPass => {
            multi_pass::join(crossing, how.part_rows, (build, probe), wanted, to)
        }
        Algorithm::CpuPartitioned => {
            cpu_partitioned::join(crossing, how.part_rows, [build, probe.held()?], wanted, to)
        }
        Algorithm::Triton => triton::join(crossing, how, [build, probe.held()?], wanted, to),
        Algorithm::Radix | Algorithm::SortMerge => {
            let [build, probe] = [load(crossing, build)?, load(crossing, probe.held()?)?];
            let partitioner = partitioner.unwrap_or_default();
            let method = Method { algorithm: how.algorithm, survey: false, partitioner };
            Ok(join(crossing.session, method, [&build, &probe], wanted, to)?.found)
        }
    }
}

fn too_long(rows: u64) -> Error {
    Error::TooManyRows { rows, most: MAX_ROWS }
}

/// How to join two sides in host memory.
pub(crate) struct FromHost {
    pub(crate) algorithm: Algorithm,
    pub(crate) gpu_options: GpuOptions,
    /// The algorithm to use if this one needs too much GPU memory.
    pub(crate) escalation: Option<Algorithm>,
    /// The maximum number of rows of a part or a working set. Tests set it, because their tables are small.
    pub(crate) part_rows: Option<u64>,
}

/// A receiver that counts the blocks it passes on.
struct Watched<'r> {
    to: &'r mut dyn Receiver,
    blocks: u64,
}

impl Receiver for Watched<'_> {
    fn block(&mut self, session: &Session<'_>, block: Block) -> Result<Option<Event>> {
        self.blocks += 1;
        self.to.block(session, block)
    }

    fn flags(&mut self, which: Which, first: u64, flags: &[u8]) -> Result<()> {
        self.to.flags(which, first, flags)
    }

    fn in_order(&mut self, session: &Session<'_>, block: InOrderBlock) -> Result<Option<Event>> {
        self.blocks += 1;
        self.to.in_order(session, block)
    }

    fn takes_order(&self) -> bool {
        self.to.takes_order()
    }

    fn end_chunk(&mut self) -> Result<()> {
        // The rows of this chunk cannot be read again.
        self.blocks += 1;
        self.to.end_chunk()
    }

    fn meanwhile(&mut self, session: &Session<'_>) -> Result<()> {
        self.to.meanwhile(session)
    }

    fn goes_on(&self) -> bool {
        self.to.goes_on()
    }
}

/// Joins by partitions. Uses the one-pass join if that is faster; only the look-back partitioner supports it.
fn partitioned(
    session: &Session<'_>,
    partitioner: Partitioner,
    sides: [&Side; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let partitioner = partitioner.for_radix()?;
    if partitioner == RadixPartitioner::LookBack
        && let Some(found) = cached::join(session, sides[0], sides[1], wanted, to)?
    {
        return Ok(found);
    }
    radix::join(session, partitioner, sides, wanted, to)
}

/// The maximum number of rows per side: positions in tables and runs have 32 bits.
pub(crate) const MAX_ROWS: u64 = (1 << 31) - 1;

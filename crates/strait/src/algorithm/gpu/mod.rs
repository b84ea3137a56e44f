//! Joins on a device: conductors over columns in its memory, and over columns that have to get there.
//!
//! | file | what it does |
//! | --- | --- |
//! | [`session`] | memory, stages, read-backs and times of one join |
//! | [`no_partition`] | one table over the build side, in the device's memory |
//! | [`radix`] | both sides partitioned, co-partitions joined in shared memory |
//! | [`cached`] | the same in one pass, for a long probe side: a table whose parts stay in the L2 cache |
//! | [`sort_merge`] | both sides sorted, then merged |
//! | [`streamed`] | the build side on the device, the probe side streamed past it |
//! | [`multi_pass`] | the same, with the build side in several parts |
//! | [`cpu_partitioned`] | both sides partitioned by the CPU, joined by the device |
//! | [`triton`] | both sides partitioned by the device, into host memory |
//! | [`working_set`], [`host_partitions`] | partitions in host memory, joined some at a time |
//! | [`output_loop`] | output of any size through buffers of a given one |
//! | [`flags`] | which rows have a match |
//! | [`host`] | a join of Arrow tables: words in, pairs out |
//! | [`hosted`] | a join of columns that lie in host memory, or the first pass of one, for measuring |
//! | [`resident`] | a join of columns that are on the device already, for measuring |

mod cached;
mod cpu_partitioned;
mod flags;
mod host;
mod host_partitions;
pub mod hosted;
mod multi_pass;
mod no_partition;
mod output_loop;
mod radix;
pub mod resident;
mod sort_merge;
mod streamed;
#[cfg(test)]
mod tests;
mod triton;
mod working_set;

pub(crate) use host::run;

use crate::device::{Event, Flavour, Session, Side, View, abi};
use crate::error::{Error, Result};
use crate::gpu_options::{GpuOptions, Partitioner};
use crate::options::Algorithm;
use crate::transfer::{HostSide, TransferContext, load};
use flags::{Window, closed, opened};

/// What is wanted of the matches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) flavour: Flavour,
    /// Whether the rows' keys are written too.
    pub(crate) keys: bool,
    /// Whether 32-bit values are added up as signed numbers.
    pub(crate) signed: bool,
    /// Whether rows of each side are flagged where they have a match, for the flavours that flag.
    pub(crate) flag_build: bool,
    pub(crate) flag_probe: bool,
    /// A byte a value of each side: made by [`join`] and others as sides, or parts of them, come.
    pub(crate) build_flags: Option<View>,
    pub(crate) probe_flags: Option<View>,
    /// Rows the output is likely to have.
    pub(crate) expected_rows: u64,
}

/// What was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct JoinResult {
    pub(crate) rows: u64,
    /// The sums of values over all rows, modulo 2^64, where the flavour adds up.
    pub(crate) build_sum: u64,
    pub(crate) probe_sum: u64,
}

impl JoinResult {
    /// Adds what one launch found.
    fn add(&mut self, rows: u64, seen: &abi::Control) {
        self.rows += rows;
        self.build_sum = self.build_sum.wrapping_add(seen.build_sum);
        self.probe_sum = self.probe_sum.wrapping_add(seen.probe_sum);
    }

    /// Adds what another join found.
    fn and(self, other: JoinResult) -> JoinResult {
        JoinResult {
            rows: self.rows + other.rows,
            build_sum: self.build_sum.wrapping_add(other.build_sum),
            probe_sum: self.probe_sum.wrapping_add(other.probe_sum),
        }
    }
}

/// Rows of output in device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) rows: u64,
    pub(crate) keys: View,
    pub(crate) build: View,
    pub(crate) probe: View,
}

/// Takes the output, a block at a time.
pub(crate) trait Receiver {
    /// Takes a block. Its memory is used again once the event has happened; at once where there is
    /// none.
    fn block(&mut self, session: &Session<'_>, block: Block) -> Result<Option<Event>>;

    /// Takes flags of a side's rows from number `first` on: a byte a row, set where it has a match.
    /// Rows may come several times.
    fn flags(&mut self, _which: Which, _first: u64, _flags: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Does what there is to do on the host, while the device works.
    fn meanwhile(&mut self, _session: &Session<'_>) -> Result<()> {
        Ok(())
    }

    /// Whether more joins follow this one, whose blocks may come while this one's are under way.
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
    /// None if the size of the table decides.
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) partitioner: Partitioner,
}

/// Joins two sides on a device.
pub(crate) fn join(
    session: &Session<'_>,
    method: Method,
    sides: [&Side; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let [build, probe] = sides;
    if build.rows == 0 || probe.rows == 0 {
        return Ok(JoinResult::default());
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
    let found = match method.algorithm {
        Some(Algorithm::NoPartition) => no_partition::join(session, build, probe, wanted, to),
        Some(Algorithm::SortMerge) => sort_merge::join(session, build, probe, wanted, to),
        Some(Algorithm::Radix) => partitioned(session, method.partitioner, sides, wanted, to),
        None => {
            let table = 2 * build.rows.next_power_of_two() * session.word.tuple();
            if table <= session.device.shape(session.word).l2 / 2 {
                no_partition::join(session, build, probe, wanted, to)
            } else if let Some(found) = no_partition::join_cached(session, sides, wanted, to)? {
                Ok(found)
            } else {
                partitioned(session, method.partitioner, sides, wanted, to)
            }
        }
        Some(
            algorithm @ (Algorithm::StreamedProbe
            | Algorithm::MultiPass
            | Algorithm::CpuPartitioned
            | Algorithm::Triton),
        ) => Err(Error::Setting(format!(
            "{algorithm} joins tables in host memory; in GPU memory there are no-partition, radix and sort-merge"
        ))),
    }?;
    for window in &windows {
        closed(window, session, to)?;
    }
    Ok(found)
}

/// Joins two sides in host memory. If the algorithm needs more memory than the device has, and no row was
/// written yet, the algorithm it escalates to goes on. This is the only place where that happens.
pub(crate) fn join_from_host(
    crossing: &TransferContext<'_>,
    how: &FromHost,
    sides: [&HostSide; 2],
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

/// Whether an algorithm that needs less GPU memory may succeed after this error.
fn escalates(error: &Error) -> bool {
    matches!(error, Error::DeviceMemory { .. } | Error::TooManyRows { .. })
}

/// What a join of two sides in host memory found.
pub(crate) struct HostJoinResult {
    pub(crate) found: JoinResult,
    pub(crate) escalated: Option<Escalated>,
}

/// An algorithm went on where another one needed too much GPU memory.
#[derive(Debug)]
pub(crate) struct Escalated {
    pub(crate) to: Algorithm,
    pub(crate) why: Error,
}

/// Joins two sides that lie in host memory, by what was asked for.
fn join_as_told(
    crossing: &TransferContext<'_>,
    how: &FromHost,
    sides: [&HostSide; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    if sides.iter().any(|side| side.rows == 0) {
        return Ok(JoinResult::default());
    }
    let one_table = matches!(how.algorithm, Algorithm::NoPartition | Algorithm::StreamedProbe);
    if one_table && sides[0].rows > MAX_ROWS {
        return Err(too_long(sides[0].rows));
    }
    let GpuOptions { partitioner, table, .. } = how.gpu_options;
    match how.algorithm {
        Algorithm::NoPartition => streamed::no_partition(crossing, table, sides, wanted, to),
        Algorithm::StreamedProbe => streamed::streamed_probe(crossing, sides, wanted, to),
        Algorithm::MultiPass => multi_pass::join(crossing, how.part_rows, sides, wanted, to),
        Algorithm::CpuPartitioned => {
            cpu_partitioned::join(crossing, how.part_rows, sides, wanted, to)
        }
        Algorithm::Triton => triton::join(crossing, how, sides, wanted, to),
        Algorithm::Radix | Algorithm::SortMerge => {
            let [build, probe] = [load(crossing, sides[0])?, load(crossing, sides[1])?];
            let partitioner = partitioner.unwrap_or_default();
            let method = Method { algorithm: Some(how.algorithm), partitioner };
            join(crossing.session, method, [&build, &probe], wanted, to)
        }
    }
}

fn too_long(rows: u64) -> Error {
    Error::TooManyRows { rows, most: MAX_ROWS }
}

/// How to join sides that lie in host memory.
pub(crate) struct FromHost {
    pub(crate) algorithm: Algorithm,
    pub(crate) gpu_options: GpuOptions,
    /// The algorithm that goes on if GPU memory does not suffice for this one.
    pub(crate) escalation: Option<Algorithm>,
    /// Rows of a part, a partition or a working set, at most: for tests, which have few.
    pub(crate) part_rows: Option<u64>,
}

/// A receiver that knows whether rows have gone out.
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

    fn meanwhile(&mut self, session: &Session<'_>) -> Result<()> {
        self.to.meanwhile(session)
    }

    fn goes_on(&self) -> bool {
        self.to.goes_on()
    }
}

/// Joins partitions: in one pass where that pays, which the partitioner of our own alone can.
fn partitioned(
    session: &Session<'_>,
    partitioner: Partitioner,
    sides: [&Side; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    if partitioner == Partitioner::LookBack
        && let Some(found) = cached::join(session, sides[0], sides[1], wanted, to)?
    {
        return Ok(found);
    }
    radix::join(session, partitioner, sides, wanted, to)
}

/// Rows of a side, at most: places in tables and runs have 32 bits.
pub(crate) const MAX_ROWS: u64 = (1 << 31) - 1;

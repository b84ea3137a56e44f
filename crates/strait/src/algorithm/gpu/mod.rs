//! Joins on a device: conductors over columns that lie in its memory.
//!
//! | file | what it does |
//! | --- | --- |
//! | [`session`] | memory, stages, read-backs and times of one join |
//! | [`no_partition`] | one table over the build side, in the device's memory |
//! | [`radix`] | both sides partitioned, co-partitions joined in shared memory |
//! | [`cached`] | the same in one pass, for a long probe side: a table whose parts stay in the L2 cache |
//! | [`sort_merge`] | both sides sorted, then merged |
//! | [`rounds`] | output of any size through buffers of a given one |
//! | [`host`] | a join of Arrow tables: words in, pairs out |
//! | [`resident`] | a join of columns that are on the device already, for measuring |

mod cached;
mod host;
mod no_partition;
mod radix;
pub mod resident;
mod rounds;
mod session;
mod sort_merge;

pub(crate) use host::run;
pub(crate) use session::Session;

use crate::device::{Flavour, View, abi};
use crate::error::{Error, Result};
use crate::join::{Algorithm, Partitioner};

/// One side in device memory: a key a row, and a value; without values, the row's number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side {
    pub(crate) keys: View,
    pub(crate) values: Option<View>,
    pub(crate) rows: u64,
}

impl Side {
    pub(crate) fn columns(&self) -> abi::Columns {
        let values = self.values.map_or(0, |values| values.address);
        abi::Columns { keys: self.keys.address, values, first: 0 }
    }
}

/// What is wanted of the matches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) flavour: Flavour,
    /// Whether the rows' keys are written too.
    pub(crate) keys: bool,
    /// Whether 32-bit values are added up as signed numbers.
    pub(crate) signed: bool,
    /// A byte a value of each side, for the flavours that flag.
    pub(crate) build_flags: Option<View>,
    pub(crate) probe_flags: Option<View>,
    /// Rows the output is likely to have.
    pub(crate) expected_rows: u64,
}

/// What was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) rows: u64,
    /// The sums of values over all rows, modulo 2^64, where the flavour adds up.
    pub(crate) build_sum: u64,
    pub(crate) probe_sum: u64,
}

/// Rows of output in device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) rows: u64,
    pub(crate) keys: View,
    pub(crate) build: View,
    pub(crate) probe: View,
}

/// Takes the output, a block at a time. When it returns, the block's memory is used again.
pub(crate) trait Receiver {
    fn block(&mut self, session: &Session<'_>, block: Block) -> Result<()>;
}

/// How to join on a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Method {
    pub(crate) algorithm: Algorithm,
    pub(crate) partitioner: Partitioner,
}

/// Joins two sides on a device.
pub(crate) fn join(
    session: &Session<'_>,
    method: Method,
    sides: [&Side; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<Found> {
    let [build, probe] = sides;
    if build.rows == 0 || probe.rows == 0 {
        return Ok(Found::default());
    }
    if build.rows.max(probe.rows) > MOST_ROWS {
        return Err(Error::Setting(format!(
            "a table of {} rows is too long for one join on a GPU, which takes {MOST_ROWS}; use --device cpu",
            build.rows.max(probe.rows)
        )));
    }
    match method.algorithm {
        Algorithm::NoPartition => no_partition::join(session, build, probe, wanted, to),
        Algorithm::SortMerge => sort_merge::join(session, build, probe, wanted, to),
        Algorithm::Radix => partitioned(session, method.partitioner, sides, wanted, to),
        // The planner has chosen before; where nobody did, the table decides.
        Algorithm::Auto => {
            let table = 2 * build.rows.next_power_of_two() * session.word.tuple();
            match table <= session.device.shape(session.word).l2 / 2 {
                true => no_partition::join(session, build, probe, wanted, to),
                false => partitioned(session, method.partitioner, sides, wanted, to),
            }
        }
    }
}

/// Joins partitions: in one pass where that pays, which the partitioner of our own alone can.
fn partitioned(
    session: &Session<'_>,
    partitioner: Partitioner,
    sides: [&Side; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<Found> {
    if partitioner == Partitioner::LookBack
        && let Some(found) = cached::join(session, sides[0], sides[1], wanted, to)?
    {
        return Ok(found);
    }
    radix::join(session, partitioner, sides, wanted, to)
}

/// Rows of a side, at most: places in tables and runs have 32 bits.
pub(crate) const MOST_ROWS: u64 = (1 << 31) - 1;

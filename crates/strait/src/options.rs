//! The choices a join is made of: join types, algorithms, equality, filters.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::error::ArrowError;

use crate::error::{Error, Result};

/// Which rows a join keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum JoinType {
    /// Every pair of rows with equal keys.
    #[default]
    Inner,
    /// The pairs, and every left row that found none.
    Left,
    /// The pairs, and every right row that found none.
    Right,
    /// The pairs, and every row of either side that found none.
    Full,
    /// Left rows that have a match, once each.
    LeftSemi,
    /// Right rows that have a match, once each.
    RightSemi,
    /// Left rows that have no match.
    LeftAnti,
    /// Right rows that have no match.
    RightAnti,
    /// Every left row once, with a boolean column that says whether it has a match.
    LeftMark,
    /// Every right row once, with a boolean column that says whether it has a match.
    RightMark,
}

impl JoinType {
    /// All of them.
    pub const ALL: [JoinType; 10] = [
        JoinType::Inner,
        JoinType::Left,
        JoinType::Right,
        JoinType::Full,
        JoinType::LeftSemi,
        JoinType::RightSemi,
        JoinType::LeftAnti,
        JoinType::RightAnti,
        JoinType::LeftMark,
        JoinType::RightMark,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            JoinType::Inner => "inner",
            JoinType::Left => "left",
            JoinType::Right => "right",
            JoinType::Full => "full",
            JoinType::LeftSemi => "left-semi",
            JoinType::RightSemi => "right-semi",
            JoinType::LeftAnti => "left-anti",
            JoinType::RightAnti => "right-anti",
            JoinType::LeftMark => "left-mark",
            JoinType::RightMark => "right-mark",
        }
    }
}

impl fmt::Display for JoinType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for JoinType {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        by_name("join type", text, JoinType::ALL, JoinType::name)
    }
}

/// How a join is carried out. Where no algorithm is named, the planner picks one, and the report says why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// One hash table over the build side, the probe side streamed through it.
    NoPartition,
    /// Both sides radix-partitioned until a pair of partitions fits the cache.
    Radix,
    /// Both sides sorted, then merged. The output is sorted by key, ascending, nulls last. On a GPU it
    /// comes in no order: the join runs there only where one was asked for by name
    /// ([`Processor::Gpu`]), never by [`Processor::Auto`].
    SortMerge,
    /// The build side partitioned in GPU memory, the probe side streamed to it. GPUs only.
    StreamedProbe,
    /// The build side in as many parts as GPU memory needs, the probe side streamed once for each.
    /// GPUs only.
    MultiPass,
    /// Both sides partitioned by the CPU, pairs of partitions joined by the GPU. GPUs only.
    CpuPartitioned,
    /// Both sides partitioned by the GPU, into host memory where GPU memory ends; pairs of partitions
    /// joined by the GPU. GPUs only.
    Triton,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 7] = [
        Algorithm::NoPartition,
        Algorithm::Radix,
        Algorithm::SortMerge,
        Algorithm::StreamedProbe,
        Algorithm::MultiPass,
        Algorithm::CpuPartitioned,
        Algorithm::Triton,
    ];

    /// Those that run without a GPU too.
    pub const ANYWHERE: [Algorithm; 3] =
        [Algorithm::NoPartition, Algorithm::Radix, Algorithm::SortMerge];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::NoPartition => "no-partition",
            Algorithm::Radix => "radix",
            Algorithm::SortMerge => "sort-merge",
            Algorithm::StreamedProbe => "streamed-probe",
            Algorithm::MultiPass => "multi-pass",
            Algorithm::CpuPartitioned => "cpu-partitioned",
            Algorithm::Triton => "triton",
        }
    }

    /// Whether it runs on a GPU only.
    pub fn needs_gpu(self) -> bool {
        !Algorithm::ANYWHERE.contains(&self)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        by_name("algorithm", text, Algorithm::ALL, Algorithm::name)
    }
}

/// What has that name, or an error that lists all names.
pub(crate) fn by_name<T: Copy, const N: usize>(
    what: &str,
    text: &str,
    all: [T; N],
    name: fn(T) -> &'static str,
) -> Result<T> {
    all.into_iter().find(|&t| name(t) == text).ok_or_else(|| {
        let names: Vec<_> = all.into_iter().map(name).collect();
        Error::Setting(format!("unknown {what} \"{text}\"; there are {}", names.join(", ")))
    })
}

/// One of the two tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The first table given to [`Join::run`].
    Left,
    /// The second.
    Right,
}

impl Side {
    /// The other one.
    pub fn other(self) -> Side {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }

    /// `left` or `right`.
    pub fn name(self) -> &'static str {
        match self {
            Side::Left => "left",
            Side::Right => "right",
        }
    }
}

/// Whether a null key equals another null key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NullEquality {
    /// As SQL's `=`: a row with a null in its key matches nothing.
    #[default]
    NeverEqual,
    /// As SQL's `IS NOT DISTINCT FROM`: null equals null.
    Equal,
}

/// Which floats are equal, as keys and inside nested keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FloatEquality {
    /// As in SQL engines: 0.0 equals -0.0, and NaN equals NaN, whatever its sign and payload. Sorted
    /// output has NaN after infinity.
    #[default]
    Numeric,
    /// As Arrow's comparison kernels, by IEEE 754's total order: floats are equal if their bits are,
    /// -0.0 sorts before 0.0, negative NaNs before all other values and positive ones after them.
    Total,
}

impl FloatEquality {
    /// All of them.
    pub const ALL: [FloatEquality; 2] = [FloatEquality::Numeric, FloatEquality::Total];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            FloatEquality::Numeric => "numeric",
            FloatEquality::Total => "total",
        }
    }
}

impl fmt::Display for FloatEquality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FloatEquality {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        by_name("float equality", text, FloatEquality::ALL, FloatEquality::name)
    }
}

/// The predicate of a [`Filter`].
pub type Predicate = Arc<dyn Fn(&RecordBatch) -> Result<BooleanArray, ArrowError> + Send + Sync>;

/// A condition beyond equality of keys: a pair of rows matches only where it is true.
///
/// The predicate is given batches of candidate pairs with just the columns it named, in that
/// order, and answers one boolean a row; null counts as false.
#[derive(Clone)]
pub struct Filter {
    pub(crate) columns: Vec<(Side, String)>,
    pub(crate) predicate: Predicate,
}

impl Filter {
    /// A filter over the named columns of either side.
    pub fn new<S: Into<String>>(
        columns: impl IntoIterator<Item = (Side, S)>,
        predicate: impl Fn(&RecordBatch) -> Result<BooleanArray, ArrowError> + Send + Sync + 'static,
    ) -> Self {
        let columns = columns.into_iter().map(|(side, name)| (side, name.into())).collect();
        Filter { columns, predicate: Arc::new(predicate) }
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filter").field("columns", &self.columns).finish_non_exhaustive()
    }
}

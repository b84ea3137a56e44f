//! The options of a join: join type, algorithm, equality of keys, and filter.

use std::fmt;
use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::error::ArrowError;

use crate::error::{Error, Result};

/// Defines the names of an enum's variants on the command line: `ALL`, `name`, `Display` and `FromStr`. The
/// arguments are the enum, what it is (for errors), and the documentation of `ALL`.
macro_rules! named {
    ($type:ident, $option:literal, $what:literal, $all:literal, $($variant:ident => $name:literal),+ $(,)?) => {
        impl $type {
            #[doc = $all]
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            /// Returns the name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::error::Error;
            fn from_str(text: &str) -> $crate::error::Result<Self> {
                $crate::options::by_name(($option, $what), text, $type::ALL, $type::name)
            }
        }
    };
}
pub(crate) use named;

/// The type of a join: which rows it returns.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use strait::{Join, JoinType};
///
/// let join = Join::new(JoinType::LeftAnti).on("id");
/// let (rows, _) = join.count(ids(vec![1, 2, 3]), ids(vec![2]))?;
/// assert_eq!(rows, 2);
/// assert_eq!("left-anti".parse::<JoinType>()?, JoinType::LeftAnti);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum JoinType {
    /// Every pair of rows with equal keys.
    #[default]
    Inner,
    /// All matching pairs, and every left row without a match.
    Left,
    /// All matching pairs, and every right row without a match.
    Right,
    /// All matching pairs, and every row of either side without a match.
    Full,
    /// Every left row that has a match, once.
    LeftSemi,
    /// Every right row that has a match, once.
    RightSemi,
    /// Every left row that has no match.
    LeftAnti,
    /// Every right row that has no match.
    RightAnti,
    /// Every left row, once, with a boolean column that tells whether the row has a match.
    LeftMark,
    /// Every right row, once, with a boolean column that tells whether the row has a match.
    RightMark,
}

named! {
    JoinType, "type", "join type", "All join types.",
    Inner => "inner",
    Left => "left",
    Right => "right",
    Full => "full",
    LeftSemi => "left-semi",
    RightSemi => "right-semi",
    LeftAnti => "left-anti",
    RightAnti => "right-anti",
    LeftMark => "left-mark",
    RightMark => "right-mark",
}

/// What an algorithm has to find, so that the join can produce its output. Less than all pairs suffices if
/// equal key words always are a match.
///
/// ```
/// use arrow::datatypes::{DataType, Field, Schema};
/// use strait::{Join, JoinType, Output, Yields};
///
/// let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
/// let yields = |join: Join, output| {
///     let plan = join.on("id").bind(output, &schema, &schema)?.explain();
///     Ok::<_, strait::Error>(plan.details.yields)
/// };
/// assert_eq!(yields(Join::inner(), Output::Rows)?, Yields::Pairs);
/// assert_eq!(yields(Join::inner(), Output::Count)?, Yields::Count);
/// assert_eq!(yields(Join::new(JoinType::LeftSemi), Output::Rows)?, Yields::Exists);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Yields {
    /// Only the number of matches.
    Count,
    /// Only which rows have a match.
    Exists,
    /// Every pair of matching rows.
    Pairs,
}

/// A join algorithm. If the caller names none, the planner chooses one, and the report gives the reason.
///
/// ```
/// use strait::{Algorithm, Error};
///
/// assert_eq!("sort-merge".parse::<Algorithm>()?, Algorithm::SortMerge);
/// assert!(Algorithm::Triton.needs_gpu());
/// let unknown = "nested-loops".parse::<Algorithm>();
/// assert!(matches!(unknown, Err(Error::InvalidOption { name: "algorithm", .. })));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Builds one hash table over the build side, and streams the probe side past it.
    NoPartition,
    /// Partitions both sides by radix bits until the hash table of a partition fits the cache, and joins the
    /// partitions pair by pair.
    Radix,
    /// Sorts both sides and merges them. On the CPU, the output is sorted by key, ascending, nulls last. On a
    /// GPU, the output has no order. So this algorithm runs on a GPU only if the caller names one
    /// ([`Processor::Gpu`](crate::Processor::Gpu)), never by [`Processor::Auto`](crate::Processor::Auto).
    SortMerge,
    /// Partitions the build side in GPU memory, and streams the probe side to the GPU. GPUs only.
    StreamedProbe,
    /// Splits the build side into parts that fit GPU memory, and streams the probe side once per part. GPUs
    /// only.
    MultiPass,
    /// Partitions both sides on the CPU, and joins pairs of partitions on the GPU. GPUs only.
    CpuPartitioned,
    /// Partitions both sides on the GPU, joins pairs of partitions there, and spills partitions that do not
    /// fit GPU memory to host memory. GPUs only.
    Triton,
    /// Partitions both sides to disk, and joins the partitions pair by pair. Each pair has a plan of its own, on
    /// the CPU or on a GPU. A join that [may spill](crate::Join::spill) does this by itself if it does not fit its
    /// memory limit. Then only the partitions that do not fit go to disk. If you ask for this algorithm, all
    /// partitions of both sides go to disk. (A join that asked for `sort-merge` writes sorted runs instead.)
    Spill,
}

named! {
    Algorithm, "algorithm", "algorithm", "All algorithms.",
    NoPartition => "no-partition",
    Radix => "radix",
    SortMerge => "sort-merge",
    StreamedProbe => "streamed-probe",
    MultiPass => "multi-pass",
    CpuPartitioned => "cpu-partitioned",
    Triton => "triton",
    Spill => "spill",
}

impl Algorithm {
    /// The algorithms that run on a CPU and on a GPU.
    pub const ANYWHERE: [Algorithm; 3] =
        [Algorithm::NoPartition, Algorithm::Radix, Algorithm::SortMerge];

    /// The algorithms that run on a GPU.
    pub const ON_GPU: [Algorithm; 7] = [
        Algorithm::NoPartition,
        Algorithm::Radix,
        Algorithm::SortMerge,
        Algorithm::StreamedProbe,
        Algorithm::MultiPass,
        Algorithm::CpuPartitioned,
        Algorithm::Triton,
    ];

    /// Lists the algorithms that run on a CPU and on a GPU, for messages.
    pub(crate) fn names_anywhere() -> String {
        names(Algorithm::ANYWHERE.map(Algorithm::name))
    }

    /// Returns whether the algorithm runs on a GPU only.
    pub fn needs_gpu(self) -> bool {
        Algorithm::ON_GPU.contains(&self) && !Algorithm::ANYWHERE.contains(&self)
    }
}

/// Returns the value with this name, or an error that lists all names. `option` is the name of the option, and
/// `what` is a noun for its values.
pub(crate) fn by_name<T: Copy, const N: usize>(
    (option, what): (&'static str, &str),
    text: &str,
    all: [T; N],
    name: fn(T) -> &'static str,
) -> Result<T> {
    all.into_iter().find(|&t| name(t) == text).ok_or_else(|| {
        let names = names(all.map(name));
        let unknown = format!("unknown {what} \"{text}\"");
        Error::invalid_option(option, unknown, format!("there are {names}"))
    })
}

/// Joins names to a list, separated by commas.
pub(crate) fn names(names: impl IntoIterator<Item = &'static str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// One of the two tables of a join.
///
/// ```
/// use strait::Side;
///
/// assert_eq!(Side::Left.other(), Side::Right);
/// assert_eq!(Side::Right.name(), "right");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The first table given to [`Join::run`](crate::Join::run).
    Left,
    /// The second table given to [`Join::run`](crate::Join::run).
    Right,
}

impl Side {
    /// Returns the other side.
    pub fn other(self) -> Side {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }

    /// Returns `left` or `right`.
    pub fn name(self) -> &'static str {
        match self {
            Side::Left => "left",
            Side::Right => "right",
        }
    }
}

/// Whether a null key equals another null key.
///
/// ```
/// use strait::{Join, NullEquality};
///
/// let join = Join::inner().on("id").null_equality(NullEquality::Equal);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NullEquality {
    /// As SQL's `=`: a row with a null in its key matches no row.
    #[default]
    NeverEqual,
    /// As SQL's `IS NOT DISTINCT FROM`: null equals null.
    Equal,
}

/// Which floats are equal, as keys and inside nested keys.
///
/// ```
/// use strait::{FloatEquality, Join};
///
/// let join = Join::inner().on("price").float_equality(FloatEquality::Total);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum FloatEquality {
    /// As in SQL engines: 0.0 equals -0.0, and all NaNs are equal, whatever their sign and payload. Sorted
    /// output has NaN after infinity.
    #[default]
    Numeric,
    /// As in Arrow's comparison kernels, by the total order of IEEE 754: two floats are equal if their bits
    /// are equal. -0.0 sorts before 0.0. Negative NaNs sort before all other values, positive NaNs after
    /// them.
    Total,
}

named! {
    FloatEquality, "float_equality", "float equality", "Both kinds of equality.",
    Numeric => "numeric",
    Total => "total",
}

/// The predicate of a [`Filter`]. It returns one boolean per row of the batch.
pub type Predicate = Arc<dyn Fn(&RecordBatch) -> Result<BooleanArray, ArrowError> + Send + Sync>;

/// A condition besides the equality of keys. A pair of rows matches only if the condition is true.
///
/// The predicate gets batches of candidate pairs. They have only the columns that the filter names, in that
/// order. It returns one boolean per row; null counts as false.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use arrow::array::AsArray;
/// use arrow::datatypes::Int64Type;
/// use strait::{Filter, Join, Side};
///
/// let odd = Filter::new([(Side::Left, "id")], |batch: &RecordBatch| {
///     let ids = batch.column(0).as_primitive::<Int64Type>();
///     Ok(ids.values().iter().map(|id| Some(id % 2 == 1)).collect())
/// });
/// let (rows, _) = Join::inner().on("id").filter(odd).count(ids(vec![1, 2, 3]), ids(vec![2, 3]))?;
/// assert_eq!(rows, 1);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone)]
pub struct Filter {
    pub(crate) columns: Vec<(Side, String)>,
    pub(crate) predicate: Predicate,
}

impl Filter {
    /// Creates a filter over the named columns of both sides.
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

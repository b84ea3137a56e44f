//! The plan of a join: all decisions, as typed fields.

use crate::gpu_options::Transfer;
use crate::key::KeyEncoding;
use crate::options::{Algorithm, JoinType, Side, Yields};
use crate::plan::refine::Facts;
use crate::plan::{JobCosts, Statistics};
use crate::word::Width;

/// A plan: what the join does, and why.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
/// use strait::{Join, Output, Processor, Side, Statistics};
///
/// let join = Join::inner().on("id").device(Processor::Cpu);
/// let join = join.statistics(Side::Left, Statistics::rows(1000).with_bytes(8000));
/// let join = join.statistics(Side::Right, Statistics::rows(9).with_bytes(72));
/// let plan = join.bind(Output::Rows, &schema, &schema)?.explain();
/// assert_eq!(plan.build_side, Some(Side::Right));
/// println!("{plan}");
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Plan {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The algorithm that takes over if this one needs more GPU memory than there is, before any row was
    /// written; `None` if there is no such algorithm.
    pub escalation: Option<Algorithm>,
    /// The processor that it runs on.
    pub device: PlanDevice,
    /// The join type.
    pub join_type: JoinType,
    /// The build side; `None` if the join chooses it while it reads.
    pub build_side: Option<Side>,
    /// The statistics of the build side.
    pub build: Statistics,
    /// The statistics of the probe side.
    pub probe: Statistics,
    /// How keys are converted to key words.
    pub key: KeyEncoding,
    /// The number of threads.
    pub threads: usize,
    /// The memory limit, if there is one.
    pub memory_limit: Option<u64>,
    /// The seed of the hash functions; `None` before the join starts.
    pub seed: Option<u64>,
    /// How the algorithm is carried out. Some of these decisions depend on facts that the join learns while it
    /// reads. In the plan of a [report](crate::Report), they are final.
    pub details: Details,
    /// The reason for this algorithm.
    pub reason: Reason,
    /// Whether no GPU was looked for, because finding and opening one is predicted to take longer than this join
    /// takes on the CPU.
    pub gpu_skipped: bool,
    /// The plans that were tried before and abandoned, in this order.
    pub abandoned: Vec<Abandoned>,
    /// The predictions for all algorithms.
    pub predictions: Vec<Prediction>,
    /// The work of reading and writing, as the caller stated it.
    pub job_costs: JobCosts,
    /// The facts that the details follow from.
    pub(crate) facts: Facts,
}

/// The processor that a plan is for.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
/// use strait::{Join, Output, PlanDevice, Processor};
///
/// let join = Join::inner().on("id").device(Processor::Cpu);
/// let plan = join.bind(Output::Rows, &schema, &schema)?.explain();
/// assert_eq!(plan.device, PlanDevice::Cpu);
/// assert_eq!(plan.device.to_string(), "the CPU");
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PlanDevice {
    /// The CPU.
    Cpu,
    /// A GPU.
    #[non_exhaustive]
    Gpu {
        /// The name of the GPU.
        name: String,
    },
}

impl PlanDevice {
    /// Returns whether it is a GPU.
    pub fn is_gpu(&self) -> bool {
        self.gpu_name().is_some()
    }

    /// Returns the name of the GPU; `None` for the CPU.
    pub fn gpu_name(&self) -> Option<&str> {
        match self {
            PlanDevice::Cpu => None,
            PlanDevice::Gpu { name } => Some(name),
        }
    }
}

/// How the algorithm of a [`Plan`] is carried out.
///
/// ```
/// use arrow::datatypes::{DataType, Field, Schema};
/// use strait::{Join, Output, ProbeSide, Processor, Yields};
///
/// let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
/// let join = Join::inner().on("id").device(Processor::Cpu);
/// let plan = join.bind(Output::Count, &schema, &schema)?.explain();
/// assert_eq!(plan.details.yields, Yields::Count);
/// assert_eq!(plan.details.probe_side, ProbeSide::Streamed);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Details {
    /// What the algorithm has to find. On a GPU, this is what comes back to the host.
    pub yields: Yields,
    /// The bits of a key word: 32 or 64. On a GPU, key words and values have the same width. Values may be row
    /// numbers, so a side with many rows makes key words wider, too.
    pub word_bits: u32,
    /// The bits of the value beside the key word in a tuple, which is a row id or an inlined payload: 32 or 64.
    pub value_bits: u32,
    /// Where the key words of the build side come from.
    pub build_keys: KeySource,
    /// Where the key words of the probe side come from.
    pub probe_keys: KeySource,
    /// Whether tuples hold the build columns of the output, or row ids.
    pub inlining: Inlining,
    /// Whether the probe side is streamed or held.
    pub probe_side: ProbeSide,
    /// Whether the source of the probe side may get a [`KeyFilter`](crate::KeyFilter), and leave out rows that have no
    /// match. Readers get none, and no source gets one if the output has row numbers.
    pub key_filter: bool,
    /// The kind of table, if there is one table over the build side: for `no-partition`, and on a GPU for the
    /// parts of `multi-pass` and for a `radix` join that makes one pass over each side.
    pub table: Option<TableKind>,
    /// The most bytes of the table that lie in GPU memory, if [`GpuOptions::table`](crate::GpuOptions::table) puts
    /// it into host memory or into both; the rest lies in host memory. It is an estimate until the join has
    /// measured GPU memory. `None` if the whole table lies in GPU memory, or if there is no such table.
    pub table_in_gpu_memory: Option<u64>,
    /// The radix bits of each pass over the build side. It is an estimate until the build side has been read.
    /// Empty if the algorithm does not partition, and for a GPU that is not open, because the bits depend on
    /// its shared memory. For `cpu-partitioned` and `triton`, these are the bits of the first pass. Their
    /// working sets are partitioned further, each by its number of rows.
    pub radix_bits: Vec<u32>,
    /// The number of parts of the build side that are joined one after the other: the parts of `multi-pass`,
    /// which reads the probe side once per part, or the working sets of `cpu-partitioned` and `triton`. It is an
    /// estimate until the join has measured GPU memory and counted the rows. `None` for all other algorithms.
    pub parts: Option<u64>,
    /// The most build rows of a part; zero if GPU memory does not suffice for any part. `None` if there are no
    /// parts.
    pub part_rows: Option<u64>,
    /// How rows cross to the GPU; `None` on the CPU. [`Transfer::Auto`] is already resolved here: to
    /// [`Transfer::StagedCopy`] for Arrow batches, which are not in pinned memory, and to
    /// [`Transfer::PinnedCopy`] for the tuples of `cpu-partitioned`.
    pub transfer: Option<Transfer>,
    /// The most rows that cross to the GPU together; `None` on the CPU. Chunks are shorter if memory does not suffice
    /// for so many rows.
    pub chunk_rows: Option<ChunkRows>,
    /// Whether results come back from the GPU in the order of the probe rows; `None` on the CPU.
    pub order: Option<ResultOrder>,
    /// The bytes that cross the link between host and GPU; `None` on the CPU.
    pub over_the_link: Option<LinkBytes>,
}

impl Details {
    /// Returns the width of key words.
    pub(crate) fn word(&self) -> Width {
        if self.word_bits == 32 { Width::W32 } else { Width::W64 }
    }

    /// Returns the width of values.
    pub(crate) fn value(&self) -> Width {
        if self.value_bits == 32 { Width::W32 } else { Width::W64 }
    }
}

/// Where the key words of a side come from.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![
/// #     Field::new("id", DataType::Int64, true),
/// #     Field::new("v", DataType::Int64, false),
/// # ]);
/// use strait::{Join, KeySource, Output, Processor};
///
/// let join = Join::inner().on("id").device(Processor::Cpu);
/// let plan = join.clone().bind(Output::Rows, &schema, &schema)?.explain();
/// assert_eq!(plan.details.probe_keys, KeySource::Column, "an integer is its own key word");
/// let plan = join.on("v").bind(Output::Rows, &schema, &schema)?.explain();
/// assert_eq!(plan.details.probe_keys, KeySource::Computed, "a hash of two columns");
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeySource {
    /// From the key column, whenever they are needed. No memory is needed for them.
    Column,
    /// From the key column if it has no nulls. Otherwise, they are computed first. The join learns this when it
    /// has read the side.
    ColumnIfNoNulls,
    /// They are computed from the key columns before they are used.
    Computed,
}

/// Whether tuples hold the build columns of the output. If they do, a lookup that finds the key also finds the
/// columns. Otherwise, tuples hold row ids, and the columns are gathered by row id.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![
/// #     Field::new("id", DataType::Int64, false),
/// #     Field::new("v", DataType::Int64, true),
/// # ]);
/// use strait::{Inlining, Join, Output, Processor, Side};
///
/// let join = Join::inner().on("id").device(Processor::Cpu).build_side(Side::Left);
/// let plan = join.bind(Output::Rows, &schema, &schema)?.explain();
/// match plan.details.inlining {
///     Inlining::IfNoNulls { columns, bytes } => assert_eq!((columns.len(), bytes), (1, 8)),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Inlining {
    /// Tuples hold these columns, which take `bytes` bytes per row.
    Inlined {
        /// The names of the columns.
        columns: Vec<String>,
        /// The bytes per row.
        bytes: usize,
    },
    /// Tuples hold these columns if none of them has a null, and row ids otherwise. The join learns this when
    /// it has read the build side.
    IfNoNulls {
        /// The names of the columns.
        columns: Vec<String>,
        /// The bytes per row.
        bytes: usize,
    },
    /// It is decided when the join knows which side is the build side.
    BuildSideUnknown,
    /// Tuples hold row ids.
    RowIds(RowIdReason),
}

impl Inlining {
    /// Returns the bytes per row that are inlined, or that are expected to be; zero for row ids.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Inlining::Inlined { bytes, .. } | Inlining::IfNoNulls { bytes, .. } => *bytes,
            Inlining::BuildSideUnknown | Inlining::RowIds(_) => 0,
        }
    }

    /// Returns whether the inlined value of a row is the value of one column that is as wide as a key word. Then the
    /// values can be staged from the batches, like key words that come [from the column](KeySource::Column).
    pub(crate) fn is_one_word(&self, word: Width) -> bool {
        match self {
            Inlining::Inlined { columns, bytes } => {
                columns.len() == 1 && *bytes as u64 == word.bytes()
            }
            _ => false,
        }
    }
}

/// The reason why tuples hold row ids instead of the build columns of the output.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![
/// #     Field::new("id", DataType::Int64, false),
/// #     Field::new("v", DataType::Utf8, false),
/// # ]);
/// use strait::{Inlining, Join, Output, Processor, RowIdReason, Side};
///
/// let join = Join::inner().on("id").device(Processor::Cpu).build_side(Side::Left);
/// let plan = join.bind(Output::Rows, &schema, &schema)?.explain();
/// let reason = RowIdReason::NoFixedWidth("v".to_string());
/// assert_eq!(plan.details.inlining, Inlining::RowIds(reason));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RowIdReason {
    /// The algorithm always uses row ids.
    Algorithm,
    /// Matches must be verified or filtered, which needs the rows.
    MatchesAreVerified,
    /// The join type returns build rows that have a match, or that have none. So it needs their row ids.
    BuildRowsAreFlagged,
    /// The output needs the row numbers or the coalesced keys of the build side.
    RowNumbersAreReturned,
    /// The output has no columns of the build side.
    NoColumns,
    /// This column has no fixed width.
    NoFixedWidth(String),
    /// The columns are too wide.
    TooWide {
        /// Their bytes per row.
        bytes: usize,
        /// The most bytes per row that can be inlined.
        most: usize,
    },
    /// This column has nulls.
    Nulls(String),
    /// Under the memory limit, the inlined columns would leave too little memory for the rest of the join.
    MemoryLimit,
    /// A test asks for row ids.
    Test,
}

/// Whether the probe side is streamed or held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProbeSide {
    /// It is read batch by batch. A batch is released when its rows have been joined.
    Streamed,
    /// It is read to its end before it is joined, and held in memory.
    Held(HoldReason),
}

/// The reason why the probe side is held.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![
/// #     Field::new("id", DataType::Int64, false),
/// #     Field::new("v", DataType::Int64, false),
/// # ]);
/// use strait::{Algorithm, HoldReason, Join, Output, ProbeSide, Processor};
///
/// let join = Join::inner().on("id").device(Processor::Cpu).algorithm(Algorithm::Radix);
/// let plan = join.bind(Output::Rows, &schema, &schema)?.explain();
/// assert_eq!(plan.details.probe_side, ProbeSide::Held(HoldReason::Partitioned));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldReason {
    /// The algorithm partitions the whole probe side before it joins.
    Partitioned,
    /// The algorithm sorts the whole probe side before it joins.
    Sorted,
    /// The algorithm reads the probe side once per part of the build side.
    ReadAgain,
    /// The transfer method pins or maps whole columns.
    Transfer,
}

/// The order in which a GPU returns results.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![
/// #     Field::new("id", DataType::Int64, false),
/// #     Field::new("v", DataType::Int64, false),
/// # ]);
/// use strait::{Join, Output, Processor};
///
/// let join = Join::inner().on("id").device(Processor::Cpu);
/// let plan = join.bind(Output::Rows, &schema, &schema)?.explain();
/// assert_eq!(plan.details.order, None, "no GPU returns results");
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResultOrder {
    /// In any order: as pairs of matching rows, as flags, or as a count.
    Unordered,
    /// In the order of the probe rows: one bit per probe row, and one value per probe row if pairs are
    /// needed. If pairs are needed and fewer than half of the rows of a chunk match, the next chunks come
    /// back as pairs.
    ProbeOrder,
    /// In the order of the probe rows if each build key occurs once, and in any order otherwise. The join learns
    /// this when it has built the table.
    ProbeOrderIfUnique,
}

/// The kind of table over the build side.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![
/// #     Field::new("id", DataType::Int64, false),
/// #     Field::new("v", DataType::Int64, false),
/// # ]);
/// use strait::{Algorithm, Join, Output, Processor, TableKind};
///
/// let join = Join::inner().on("id").device(Processor::Cpu).algorithm(Algorithm::NoPartition);
/// let plan = join.bind(Output::Rows, &schema, &schema)?.explain();
/// // Nobody has told the planner the range of the keys.
/// assert_eq!(plan.details.table, Some(TableKind::ArrayIfDense));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TableKind {
    /// A hash table.
    Hash,
    /// An array with one cell per key word from `min` to `max`.
    Array {
        /// The smallest key word.
        min: u64,
        /// The largest key word.
        max: u64,
    },
    /// An array if the keys are dense, and a hash table otherwise. The join learns the range of the keys when
    /// it has read the build side.
    ArrayIfDense,
}

/// The bytes that cross the link between host and GPU.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![
/// #     Field::new("id", DataType::Int64, false),
/// #     Field::new("v", DataType::Int64, false),
/// # ]);
/// use strait::{Join, LinkBytes, Output};
///
/// let plan = Join::inner().on("id").bind(Output::Rows, &schema, &schema)?.explain();
/// match plan.details.over_the_link {
///     Some(LinkBytes { per_row, per_match, .. }) => println!("{per_row} in, {per_match} out"),
///     None => println!("the join runs on the CPU"),
/// }
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LinkBytes {
    /// The bytes to the GPU when a row of either side is first sent. This is an upper bound, because keys are
    /// packed. Rows whose key has a null do not cross.
    pub per_row: u64,
    /// The further bytes to the GPU per build row, for inlined columns.
    pub per_build_row: u64,
    /// The bytes back to the host per match.
    pub per_match: u64,
    /// If results come back in probe order: the bytes back to the host per probe row, besides one bit. They replace
    /// `per_match`. Zero if results never come back in probe order, or if only the bits do.
    pub per_probe_row: u64,
    /// Whether one bit per probe row comes back, which tells whether the row has a match.
    pub probe_bits: bool,
    /// The bytes back to the host per build row, if a flag of each build row comes back.
    pub per_build_flag: u64,
    /// The bytes back to the host per probe row, if a flag of each probe row comes back.
    pub per_probe_flag: u64,
}

/// The most rows of a chunk. The rows of a chunk cross to the GPU together.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
/// use strait::{Join, Output, Processor};
///
/// let join = Join::inner().on("id").device(Processor::Cpu);
/// let plan = join.bind(Output::Rows, &schema, &schema)?.explain();
/// assert_eq!(plan.details.chunk_rows, None, "no rows cross to a GPU");
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ChunkRows {
    /// The most rows of a chunk of the build side.
    pub build: u64,
    /// The most rows of a chunk of the probe side.
    pub probe: u64,
    /// The most bytes of a chunk's rows, with all their columns, if the probe side is streamed from Arrow batches.
    /// Such chunks stay in host memory until their rows are written. Under a memory limit, it is an estimate until
    /// the first chunk is read.
    pub probe_bytes: Option<u64>,
    /// The most tuples that cross together when working sets are joined; `None` if there are no working sets.
    pub tuples: Option<u64>,
}

/// The predicted costs of one algorithm.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
/// use strait::{Join, Output, Processor};
///
/// let join = Join::inner().on("id").device(Processor::Cpu);
/// let plan = join.bind(Output::Rows, &schema, &schema)?.explain();
/// let chosen = plan.predictions.iter().find(|p| p.algorithm == plan.algorithm);
/// assert!(chosen.is_some_and(|p| !p.on_gpu && p.seconds >= 0.0));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Prediction {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Whether it runs on a GPU.
    pub on_gpu: bool,
    /// The time of the whole job: of the join, and of the reading and writing that
    /// [`Join::job_costs`](crate::Join::job_costs) states.
    pub seconds: f64,
    /// The time of reading and writing alone. It is zero if no costs were stated. On a GPU, a part of it may
    /// overlap with the join.
    pub read_write_seconds: f64,
    /// The most host memory that it holds at once, including held inputs, in bytes.
    pub bytes: u64,
    /// The most GPU memory that it holds at once, in bytes.
    pub device_bytes: u64,
    /// The bytes that cross the link between host and GPU, in both directions.
    pub crosses: u64,
    /// The least time that the link needs for these bytes, at its bandwidth in each direction.
    pub link_seconds: f64,
}

/// The reason why the planner chose an algorithm and a processor.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
/// use strait::{Join, Output, Processor, Reason};
///
/// let join = Join::inner().on("id").device(Processor::Cpu);
/// let plan = join.bind(Output::Rows, &schema, &schema)?.explain();
/// assert_eq!(plan.reason, Reason::Fastest);
/// assert_eq!(plan.reason.to_string(), "fastest by prediction");
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// It is the fastest by prediction.
    Fastest,
    /// It is the fastest by prediction among those that fit the memory limit.
    FastestWithin {
        /// The memory limit in bytes.
        limit: u64,
    },
    /// No algorithm is predicted to fit the memory limit. This one needs the least memory.
    LeastMemory,
    /// The caller asked for it.
    AskedFor,
    /// The caller asked for it. It runs on a GPU only, and no GPU is used.
    AskedForWithoutGpu,
    /// The caller asked for it. It needs more GPU memory than the limit allows.
    AskedForBeyondGpuMemory,
    /// The caller let the join [spill](crate::Join::spill), and it did not fit the memory limit. Only the plan of a
    /// [report](crate::Report) has this reason.
    Spilled,
    /// A GPU failed in the middle of the probe side, or could not hold it. This algorithm streams the rest.
    Continues,
}

/// A plan that a join started with and could not carry out.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use strait::Join;
///
/// let (_, report) = Join::inner().on("id").count(ids(vec![1, 2]), ids(vec![2]))?;
/// for abandoned in &report.plan.abandoned {
///     println!("{} was abandoned: {}", abandoned.algorithm, abandoned.reason);
/// }
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abandoned {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The processor that it was for.
    pub device: PlanDevice,
    /// The reason why the join continued with another plan.
    pub reason: String,
}

impl Plan {
    /// Returns this plan, with `other` added to its abandoned plans.
    pub(crate) fn after(mut self, other: &Plan, reason: &str) -> Plan {
        self.abandoned = other.abandoned.clone();
        let (algorithm, device) = (other.algorithm, other.device.clone());
        self.abandoned.push(Abandoned { algorithm, device, reason: reason.to_string() });
        self
    }
}

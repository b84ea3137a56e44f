//! The builder that describes a join.

use std::fmt;
use std::sync::Arc;

use crate::cancel::CancelToken;
use crate::gpu_options::{GpuOptions, Processor};
use crate::machine::Machine;
use crate::memory::MemoryBudget;
use crate::options::{Algorithm, Filter, FloatEquality, JoinType, NullEquality, Side};
use crate::overrides::TestOverrides;
use crate::plan::{JobCosts, Statistics};
use crate::progress::{OnProgress, Progress};
use crate::spill::{SpillCompression, SpillStore};

/// A builder that describes a join: its type, its keys, and how it runs.
///
/// [`run`](Join::run), [`pairs`](Join::pairs), [`count`](Join::count) and [`aggregate`](Join::aggregate) run
/// the join. A builder can be used for any number of joins.
///
/// # Output columns
///
/// The output has the columns of the left table, then the columns of the right table. A key column that has
/// the same name on both sides appears once:
///
/// - It has the value of the left row. In a right join, it has the value of the right row.
/// - In a full join, it has the value of the right row where the left row is absent. If the two key types
///   have no common type that represents all values of both exactly (`Int64` and `UInt64`, or timestamps of
///   different units), the output has both columns.
///
/// Any other right column that has the name of a left column gets a [suffix](Join::suffix).
///
/// ```
/// # use strait::{Join, JoinType};
/// let join = Join::new(JoinType::Left).on("id").on_pair("city", "town").threads(2);
/// ```
#[derive(Clone)]
pub struct Join {
    pub(crate) join_type: JoinType,
    pub(crate) keys: Vec<(String, String)>,
    pub(crate) null_equality: NullEquality,
    pub(crate) float_equality: FloatEquality,
    pub(crate) filter: Option<Filter>,
    pub(crate) projection: Option<Vec<String>>,
    pub(crate) keep_keys: bool,
    pub(crate) suffix: String,
    pub(crate) mark_column: String,
    pub(crate) threads: usize,
    pub(crate) memory_limit: Option<u64>,
    pub(crate) memory_budget: Option<Arc<MemoryBudget>>,
    pub(crate) spill: Option<Arc<dyn SpillStore>>,
    pub(crate) spill_compression: SpillCompression,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) processor: Processor,
    pub(crate) gpu_memory: Option<u64>,
    pub(crate) gpu_options: GpuOptions,
    pub(crate) build_side: Option<Side>,
    pub(crate) statistics: [Statistics; 2],
    pub(crate) job_costs: JobCosts,
    pub(crate) batch_size: usize,
    pub(crate) prompt: bool,
    pub(crate) progress: Option<OnProgress>,
    pub(crate) cancelled: Option<CancelToken>,
    pub(crate) overrides: TestOverrides,
}

/// The default number of rows per output batch. [`Join::batch_size`] changes it.
pub const DEFAULT_BATCH_SIZE: usize = 32 * 1024;

impl Join {
    /// Creates a join of the given type, without keys.
    pub fn new(join_type: JoinType) -> Self {
        Join {
            join_type,
            keys: Vec::new(),
            null_equality: NullEquality::default(),
            float_equality: FloatEquality::default(),
            filter: None,
            projection: None,
            keep_keys: false,
            suffix: "_right".to_string(),
            mark_column: "mark".to_string(),
            threads: Machine::detect().cores,
            memory_limit: None,
            memory_budget: None,
            spill: None,
            spill_compression: SpillCompression::default(),
            algorithm: None,
            processor: Processor::Auto,
            gpu_memory: None,
            gpu_options: GpuOptions::default(),
            build_side: None,
            statistics: [Statistics::unknown(); 2],
            job_costs: JobCosts::none(),
            batch_size: DEFAULT_BATCH_SIZE,
            prompt: false,
            progress: None,
            cancelled: None,
            overrides: TestOverrides::default(),
        }
    }

    /// Creates an inner join without keys.
    pub fn inner() -> Self {
        Join::new(JoinType::Inner)
    }

    /// Adds a key column that has the same name on both sides.
    pub fn on(self, column: impl Into<String>) -> Self {
        let column = column.into();
        self.on_pair(column.clone(), column)
    }

    /// Adds a pair of key columns: a left and a right column whose values must be equal.
    pub fn on_pair(mut self, left: impl Into<String>, right: impl Into<String>) -> Self {
        self.keys.push((left.into(), right.into()));
        self
    }

    /// Sets whether null keys match each other. By default, a row with a null in its key matches no row.
    pub fn null_equality(mut self, null_equality: NullEquality) -> Self {
        self.null_equality = null_equality;
        self
    }

    /// Sets which floats are equal as keys. By default, 0.0 equals -0.0 and NaN equals NaN.
    pub fn float_equality(mut self, float_equality: FloatEquality) -> Self {
        self.float_equality = float_equality;
        self
    }

    /// Sets a condition that a pair of rows with equal keys must also satisfy in order to match.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Selects the output columns, by their names in the output, in this order. By default, the output has
    /// all columns.
    pub fn select<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.projection = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// Sets whether the right key column stays in the output if the left one has the same name. If it stays,
    /// it gets the [suffix](Join::suffix). By default, the output has one column for both.
    pub fn keep_keys(mut self, keep: bool) -> Self {
        self.keep_keys = keep;
        self
    }

    /// Sets the suffix for a right column that has the name of a left column. The default is `_right`.
    pub fn suffix(mut self, suffix: impl Into<String>) -> Self {
        self.suffix = suffix.into();
        self
    }

    /// Sets the name of the boolean column of a mark join. The default is `mark`.
    pub fn mark_column(mut self, name: impl Into<String>) -> Self {
        self.mark_column = name.into();
        self
    }

    /// Sets the number of threads. The default is the number of cores that the process may use. The join uses
    /// fewer threads if there is too little work or memory for all of them.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets a hard limit on the host memory of the join, in bytes. The limit covers the input that the join
    /// holds, its tables, and the output that [`JoinReader`](crate::JoinReader) has not returned yet.
    ///
    /// A batch that `next` has returned no longer counts. It can keep input batches in memory, because its
    /// arrays may be slices and views of them.
    ///
    /// If the limit is reached, the join waits until the consumer has taken the finished output, and fails
    /// only if that does not help. So whether a join succeeds does not depend on how fast its output is read.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self.memory_budget = None;
        self
    }

    /// Sets a memory budget that the join shares with others, for example with the readers of its inputs. It
    /// replaces [`memory_limit`](Join::memory_limit).
    ///
    /// If the budget is used up, the join waits for its own workers and for the consumer of its own output,
    /// as with [`memory_limit`](Join::memory_limit). It does not wait for other owners of the budget, such as
    /// another join, because they may be waiting for this join. So a join that shares its budget with other
    /// joins can fail although it would succeed alone. To prevent this, give each join its own budget, or run
    /// the joins one after the other.
    pub fn memory_budget(mut self, budget: &Arc<MemoryBudget>) -> Self {
        self.memory_limit = budget.limit();
        self.memory_budget = Some(Arc::clone(budget));
        self
    }

    /// Lets the join write rows that do not fit its [memory limit](Join::memory_limit) to disk. Without this, a join
    /// that does not fit fails.
    ///
    /// The join partitions both tables by their keys. Some partitions stay in memory. The others go to files of the
    /// store, and are joined afterwards, pair by pair. If the caller asked for [`SortMerge`](Algorithm::SortMerge), the
    /// join sorts both tables in parts instead, writes the parts to files, and joins them in the order of the keys. So
    /// the output is sorted in this case, too.
    ///
    /// If the output has row numbers ([`pairs`](Join::pairs)), each row is written with its number.
    ///
    /// ```
    /// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
    /// # fn ids(ids: impl Iterator<Item = i64>) -> impl RecordBatchReader + Send + 'static {
    /// #     let column = std::sync::Arc::new(Int64Array::from_iter_values(ids)) as _;
    /// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
    /// #     let batches: Vec<_> = (0..batch.num_rows()).step_by(1000).map(|at| Ok(batch.slice(at, 1000))).collect();
    /// #     RecordBatchIterator::new(batches, batch.schema())
    /// # }
    /// use std::sync::Arc;
    /// use strait::{Join, TempFolders};
    ///
    /// let folder = std::env::temp_dir();
    /// let join = Join::inner().on("id").spill(Arc::new(TempFolders::new(vec![folder])));
    /// let (rows, report) = join.memory_limit(4 << 20).count(ids(0..200_000), ids(0..300_000))?;
    /// assert_eq!(rows, 200_000);
    /// assert!(report.spilled.bytes > 0);
    /// # Ok::<(), strait::Error>(())
    /// ```
    pub fn spill(mut self, store: Arc<dyn SpillStore>) -> Self {
        self.spill = Some(store);
        self
    }

    /// Sets how rows that go to disk are compressed. By default, they are not. Compression has an effect only on joins
    /// that [may spill](Join::spill).
    ///
    /// Compression takes processor time, and pays if the disk is slow or full.
    /// [`Spilled`](crate::Spilled) has the bytes with and without compression.
    pub fn spill_compression(mut self, compression: SpillCompression) -> Self {
        self.spill_compression = compression;
        self
    }

    /// Sets the algorithm. By default, and with `None`, the planner chooses it.
    pub fn algorithm(mut self, algorithm: impl Into<Option<Algorithm>>) -> Self {
        self.algorithm = algorithm.into();
        self
    }

    /// Sets where the join runs.
    ///
    /// By default, the planner uses a GPU only if it predicts that the join is faster there. If that GPU
    /// fails, the CPU joins the rows that the GPU has not joined, and the report says so. The CPU cannot
    /// continue if some, but not all, rows of a chunk were already returned, or if only the GPU knows which
    /// build rows have a match. Then the join fails, and the error says so. A GPU that is named here is
    /// opened when the join is [bound](Join::bind). If it fails, the join fails.
    pub fn device(mut self, processor: Processor) -> Self {
        self.processor = processor;
        self
    }

    /// Sets a hard limit on the GPU memory of the join, in bytes. The default is nine tenths of the free GPU
    /// memory.
    pub fn gpu_memory(mut self, bytes: u64) -> Self {
        self.gpu_memory = Some(bytes);
        self
    }

    /// Sets how a join runs on a GPU.
    pub fn gpu_options(mut self, options: GpuOptions) -> Self {
        self.gpu_options = options;
        self
    }

    /// Sets the build side. By default, it is the smaller side by its [statistics](Join::statistics). If the
    /// statistics do not tell which side is smaller, the join reads both sides in turns until one ends, and
    /// builds on that side. [`prompt`](Join::prompt) describes an exception.
    pub fn build_side(mut self, side: Side) -> Self {
        self.build_side = Some(side);
        self
    }

    /// Gives statistics of a side to the planner, which uses them to choose the build side, the algorithm and
    /// the device. Where the join counts rows and bytes itself, the counts replace the statistics.
    pub fn statistics(mut self, side: Side, statistics: Statistics) -> Self {
        self.statistics[side as usize] = statistics;
        self
    }

    /// Gives the expected work of reading and writing to the planner, which adds it to the predicted times of
    /// both processors. By default, the planner predicts the time of the join alone.
    pub fn job_costs(mut self, costs: JobCosts) -> Self {
        self.job_costs = costs;
        self
    }

    /// Sets the largest number of rows per output batch. It must be at least 1. No batch has more than 2^30
    /// rows, whatever the setting.
    pub fn batch_size(mut self, rows: usize) -> Self {
        self.batch_size = rows;
        self
    }

    /// Sets whether a streaming join returns its rows before it reads more input. By default, it collects
    /// rows into full batches, which is faster. Set this to get the first rows early from a reader that may
    /// block.
    ///
    /// If the [statistics](Join::statistics) say that one side is a [stream](Statistics::with_stream), and that
    /// the other side takes at most 1 GiB and at most a quarter of the memory limit, the join builds on that
    /// other side. So it joins the first rows of the stream at once.
    pub fn prompt(mut self, prompt: bool) -> Self {
        self.prompt = prompt;
        self
    }

    /// Sets a callback that reports progress. A thread of the join calls it ten times per second while the
    /// join runs, and once at the end.
    pub fn on_progress(mut self, callback: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(callback));
        self
    }

    /// Sets a token that cancels the join: soon after [`CancelToken::cancel`], the join fails with
    /// [`Error::Cancelled`](crate::Error::Cancelled). While a join waits for the consumer of its rows, it does not
    /// notice the cancellation before the consumer continues. Each run needs a token of its own: the join may cancel
    /// the token itself, when it fails or when its reader is dropped. (Dropping a [`JoinReader`](crate::JoinReader)
    /// cancels its join without this.)
    pub fn cancelled_by(mut self, token: &CancelToken) -> Self {
        self.cancelled = Some(token.clone());
        self
    }

    /// Returns the current memory limit. If the budget takes its bytes from a pool, its limit may change during a run.
    pub(crate) fn limit_now(&self) -> Option<u64> {
        match &self.memory_budget {
            Some(budget) => budget.limit(),
            None => self.memory_limit,
        }
    }

    /// Returns the algorithm that the caller chose for joins in memory. If the caller chose `spill`, returns `None`:
    /// the planner chooses the algorithm of each join in memory that `spill` consists of.
    pub(crate) fn algorithm_in_memory(&self) -> Option<Algorithm> {
        self.algorithm.filter(|&algorithm| algorithm != Algorithm::Spill)
    }

    /// Returns whether the chosen algorithm runs on a GPU only.
    pub(crate) fn needs_gpu(&self) -> bool {
        self.algorithm.is_some_and(Algorithm::needs_gpu)
    }

    /// Forces rare code paths, for tests.
    #[doc(hidden)]
    pub fn test_overrides(mut self, overrides: TestOverrides) -> Self {
        self.overrides = overrides;
        self
    }
}

impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Join")
            .field("join_type", &self.join_type)
            .field("keys", &self.keys)
            .field("null_equality", &self.null_equality)
            .field("float_equality", &self.float_equality)
            .field("filter", &self.filter)
            .field("projection", &self.projection)
            .field("algorithm", &self.algorithm)
            .field("threads", &self.threads)
            .field("memory_limit", &self.memory_limit)
            .finish_non_exhaustive()
    }
}

//! The builder: what a join is asked to do.

use std::fmt;
use std::sync::Arc;

use crate::gpu_options::{GpuOptions, Processor};
use crate::memory::MemoryBudget;
use crate::options::{Algorithm, Filter, FloatEquality, JoinType, NullEquality, Side};
use crate::overrides::TestOverrides;
use crate::plan::Statistics;
use crate::progress::{OnProgress, Progress};

/// A join to be run: a builder.
///
/// The output has the left columns, then the right ones. A key column that has the same name on both
/// sides comes once, with the left row's value, or the right row's in a right join and where a full
/// join has no left row; in a full join whose key types differ and have
/// no type in common that shows both as they are (`Int64` with `UInt64`, timestamps of different
/// units), both columns stay. Other right columns that share a name with a left one get a
/// [suffix](Join::suffix).
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
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) processor: Processor,
    pub(crate) gpu_memory: Option<u64>,
    pub(crate) gpu_options: GpuOptions,
    pub(crate) build_side: Option<Side>,
    pub(crate) statistics: [Statistics; 2],
    pub(crate) batch_size: usize,
    pub(crate) prompt: bool,
    pub(crate) progress: Option<OnProgress>,
    pub(crate) overrides: TestOverrides,
}

/// Rows in an output batch unless [`Join::batch_size`] says otherwise.
pub const DEFAULT_BATCH_SIZE: usize = 32 * 1024;

impl Join {
    /// A join of the given type, with no keys yet.
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
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory_limit: None,
            memory_budget: None,
            algorithm: None,
            processor: Processor::Auto,
            gpu_memory: None,
            gpu_options: GpuOptions::default(),
            build_side: None,
            statistics: [Statistics::unknown(); 2],
            batch_size: DEFAULT_BATCH_SIZE,
            prompt: false,
            progress: None,
            overrides: TestOverrides::default(),
        }
    }

    /// An inner join.
    pub fn inner() -> Self {
        Join::new(JoinType::Inner)
    }

    /// Adds a key column that has the same name on both sides.
    pub fn on(self, column: impl Into<String>) -> Self {
        let column = column.into();
        self.on_pair(column.clone(), column)
    }

    /// Adds a pair of key columns.
    pub fn on_pair(mut self, left: impl Into<String>, right: impl Into<String>) -> Self {
        self.keys.push((left.into(), right.into()));
        self
    }

    /// Whether null keys match each other. By default they match nothing.
    pub fn null_equality(mut self, null_equality: NullEquality) -> Self {
        self.null_equality = null_equality;
        self
    }

    /// Which floats are equal as keys. By default 0.0 equals -0.0 and NaN equals NaN.
    pub fn float_equality(mut self, float_equality: FloatEquality) -> Self {
        self.float_equality = float_equality;
        self
    }

    /// A condition that pairs with equal keys have to pass as well.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// The output columns, by their names in the output, in this order. All of them by default.
    pub fn select<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.projection = Some(columns.into_iter().map(Into::into).collect());
        self
    }

    /// Keeps the right key column even where the left one has the same name; it gets the suffix.
    pub fn keep_keys(mut self, keep: bool) -> Self {
        self.keep_keys = keep;
        self
    }

    /// What is appended to a right column's name that a left column has too: `_right` by default.
    pub fn suffix(mut self, suffix: impl Into<String>) -> Self {
        self.suffix = suffix.into();
        self
    }

    /// The name of the boolean column of a mark join: `mark` by default.
    pub fn mark_column(mut self, name: impl Into<String>) -> Self {
        self.mark_column = name.into();
        self
    }

    /// How many threads work on the join: by default, as many as the machine has cores. Fewer are used
    /// where there is too little work or memory for all.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// A hard limit on the memory of the join in bytes: inputs that are held, tables, and output until
    /// the reader's `next` returns it. A batch that was taken belongs to the consumer, with all that it
    /// refers to: slices and views keep the input batches alive that they are parts of.
    ///
    /// A join that is refused memory waits until its output was taken before it fails. So whether a
    /// join succeeds does not depend on how fast its output is read.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.memory_limit = Some(bytes);
        self.memory_budget = None;
        self
    }

    /// A budget that the join shares with others, the readers of its inputs say. It replaces
    /// [`memory_limit`](Join::memory_limit).
    ///
    /// A join that is refused memory waits for its own workers and for the consumer of its own output,
    /// as with [`memory_limit`](Join::memory_limit). It does not wait for memory that other owners of the
    /// budget hold, another join for instance: such an owner may itself wait for this join. So where
    /// several joins share a budget, a join may fail that would have succeeded alone. Give each of them a
    /// budget of its own, or run one after the other, if that must not be.
    pub fn memory_budget(mut self, budget: &Arc<MemoryBudget>) -> Self {
        self.memory_limit = budget.limit();
        self.memory_budget = Some(Arc::clone(budget));
        self
    }

    /// The algorithm. By default, and with `None`, the planner picks.
    pub fn algorithm(mut self, algorithm: impl Into<Option<Algorithm>>) -> Self {
        self.algorithm = algorithm.into();
        self
    }

    /// Where the join runs. By default on a GPU only where that is predicted to be faster; where the GPU
    /// then fails before the first row of output, the join goes on on the CPU, and the report says so. A
    /// GPU that is named here is opened when the join is [bound](Join::bind), and its failure is the
    /// join's.
    pub fn device(mut self, processor: Processor) -> Self {
        self.processor = processor;
        self
    }

    /// A hard limit on the GPU memory of the join in bytes. By default nine tenths of what is free.
    pub fn gpu_memory(mut self, bytes: u64) -> Self {
        self.gpu_memory = Some(bytes);
        self
    }

    /// How a join on a GPU is carried out.
    pub fn gpu_options(mut self, options: GpuOptions) -> Self {
        self.gpu_options = options;
        self
    }

    /// The side to build on. By default the smaller one by its [statistics](Join::statistics). If those do not
    /// tell, both sides are read in turns until one ends, and that one is the build side.
    pub fn build_side(mut self, side: Side) -> Self {
        self.build_side = Some(side);
        self
    }

    /// What is known of a side before it is read. The planner uses it to choose the build side, the algorithm
    /// and the device. Facts that the join learns while it reads replace what was said here.
    pub fn statistics(mut self, side: Side, statistics: Statistics) -> Self {
        self.statistics[side as usize] = statistics;
        self
    }

    /// How many rows an output batch has at most. Any number will do; batches of more than 2^30 rows
    /// are not made.
    pub fn batch_size(mut self, rows: usize) -> Self {
        self.batch_size = rows;
        self
    }

    /// Whether a streaming join hands its rows out before it reads more input. By default it collects
    /// them into full batches, which is faster. A caller that wants only the first rows, from a reader
    /// that may block, sets this.
    pub fn prompt(mut self, prompt: bool) -> Self {
        self.prompt = prompt;
        self
    }

    /// Calls back a few times a second, from a thread of the join, while it runs.
    pub fn on_progress(mut self, callback: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(callback));
        self
    }

    /// Whether the join cannot run on the CPU.
    pub(crate) fn needs_gpu(&self) -> bool {
        self.algorithm.is_some_and(Algorithm::needs_gpu)
    }

    /// Forces rare paths, for tests.
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

//! The operator that takes the place of a join.
//!
//! | mode | inputs | threads | used if |
//! | --- | --- | --- | --- |
//! | `Shared` | all partitions of both sides | all, for one join | no operator above needs the partitions of the output |
//! | `Partitioned` | partition i of both sides | one per partition | an operator above needs the partitions |
//! | `CollectLeft` | the whole left side, and partition i of the right side | one per partition | the same, if DataFusion reads the left side once for all partitions |
//! | declined | | | Strait cannot carry out the join; DataFusion's operator does |

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, JoinSide, Result, internal_err};
use datafusion::config;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{OrderingRequirements, Partitioning, PhysicalExpr};
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{
    CardinalityEffect, ChildrenPropertiesMode, ReplaceChildrenOptions, SchedulingType,
};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties,
    InputDistributionRequirements, PlanProperties, Statistics,
};
use futures_util::{StreamExt, TryStreamExt};
use strait::{Algorithm, SpillCompression};

use crate::execution::{Executions, Shared};
use crate::options::Settings;
use crate::run::{Bounds, JoinMemory, JoinMetrics, Parts, Run};
use crate::translate::Translated;

/// How a join is carried out.
#[derive(Debug, Clone)]
pub(crate) enum Mode {
    /// One join over all partitions of both inputs. Each batch of the output goes to the stream that asks first.
    Shared(Arc<Translated>),
    /// One join per partition.
    Separate(Arc<Translated>),
    /// The original carries out the join. The text is the reason.
    Declined(String),
}

/// A join that Strait carries out.
///
/// [`StraitJoinRule`](crate::StraitJoinRule) makes it from DataFusion's `HashJoinExec`. The operator keeps this
/// original, and takes the properties, the statistics and the expressions of the join from it. A sort-merge join that
/// Strait carries out has a `HashJoinExec` with the same rows as its original.
///
/// The rows of the output have no order.
pub struct StraitJoinExec {
    /// A hash join, or any join that was declined.
    original: Arc<dyn ExecutionPlan>,
    /// The inputs. With [`Mode::Shared`], they may differ from the inputs of the original, but have the same rows.
    inputs: [Arc<dyn ExecutionPlan>; 2],
    mode: Mode,
    settings: Settings,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    executions: Executions,
}

impl StraitJoinExec {
    /// Replaces a join. The original is a hash join, unless the join was declined. With [`Mode::Shared`], `inputs` have
    /// the same rows as the inputs of the original.
    pub(crate) fn new(
        original: Arc<dyn ExecutionPlan>,
        inputs: [Arc<dyn ExecutionPlan>; 2],
        mode: Mode,
        settings: Settings,
    ) -> StraitJoinExec {
        let properties = original.properties().as_ref().clone();
        let properties = match &mode {
            Mode::Declined(_) => properties,
            Mode::Separate(_) => {
                without_order(properties, false).with_scheduling_type(SchedulingType::Cooperative)
            }
            Mode::Shared(_) => {
                let partitions = properties.output_partitioning().partition_count();
                without_order(properties, true)
                    .with_partitioning(Partitioning::UnknownPartitioning(partitions))
                    .with_scheduling_type(SchedulingType::Cooperative)
            }
        };
        StraitJoinExec {
            original,
            inputs,
            mode,
            settings,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            executions: Executions::default(),
        }
    }

    /// Returns DataFusion's join: the one that this join has replaced, or the one that carries out the join if it was
    /// declined. For a sort-merge join that was replaced, it is a hash join with the same rows.
    pub fn original(&self) -> &Arc<dyn ExecutionPlan> {
        &self.original
    }

    fn hash_join(&self) -> Result<&HashJoinExec> {
        match self.original.downcast_ref::<HashJoinExec>() {
            Some(join) => Ok(join),
            None => internal_err!("{} is not a hash join", self.original.name()),
        }
    }

    /// Returns why Strait does not carry out this join; `None` if it does.
    pub fn declined(&self) -> Option<&str> {
        match &self.mode {
            Mode::Declined(why) => Some(why),
            Mode::Shared(_) | Mode::Separate(_) => None,
        }
    }

    fn partitions(&self) -> usize {
        self.properties.output_partitioning().partition_count()
    }

    /// Begins an execution.
    fn begin(&self, context: &TaskContext) -> Result<Shared> {
        let separate = matches!(self.mode, Mode::Separate(_));
        let runs = if separate { self.partitions() } else { 1 };
        let config = context.session_config().options();
        let left_runs = if self.collects_left() { 1 } else { runs };
        let bounds = Bounds::of(self.hash_join()?, &self.inputs[1], config, left_runs)?;
        let statistics = [self.known(JoinSide::Left, left_runs), self.known(JoinSide::Right, runs)];
        Ok(Shared::new(JoinMemory::register(context, runs), bounds, statistics))
    }

    /// Returns whether the left input is read once, for several runs. Such a join never returns left rows alone,
    /// neither left rows with a match nor left rows without one: DataFusion partitions its output like its right
    /// input.
    fn collects_left(&self) -> bool {
        matches!(self.mode, Mode::Separate(_))
            && self
                .hash_join()
                .is_ok_and(|join| *join.partition_mode() == PartitionMode::CollectLeft)
    }

    /// Returns what is known about the rows of an input that is divided among this number of runs.
    fn known(&self, side: JoinSide, runs: usize) -> strait::Statistics {
        let input = &self.inputs[usize::from(side == JoinSide::Right)];
        let computed = StatisticsContext::new().compute(input.as_ref(), &StatisticsArgs::new());
        let Ok(statistics) = computed else { return strait::Statistics::unknown() };
        let of_run = |all: usize| (all / runs.max(1)) as u64;
        match (statistics.num_rows.get_value(), statistics.total_byte_size.get_value()) {
            (Some(&rows), Some(&bytes)) => {
                strait::Statistics::rows(of_run(rows)).with_bytes(of_run(bytes))
            }
            (Some(&rows), None) => strait::Statistics::rows(of_run(rows)),
            _ => strait::Statistics::unknown(),
        }
    }
}

impl fmt::Debug for StraitJoinExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StraitJoinExec")
            .field("mode", &self.mode)
            .field("original", &self.original)
            .finish_non_exhaustive()
    }
}

impl DisplayAs for StraitJoinExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let mode = match &self.mode {
            Mode::Shared(_) => "Shared".to_string(),
            Mode::Separate(_) if self.collects_left() => "CollectLeft".to_string(),
            Mode::Separate(_) => "Partitioned".to_string(),
            Mode::Declined(why) => format!("declined ({why})"),
        };
        if matches!(t, DisplayFormatType::TreeRender) {
            writeln!(
                f,
                "{}",
                if self.declined().is_some() { mode } else { format!("mode={mode}") }
            )?;
            return self.original.fmt_as(t, f);
        }
        let original = ShownAs(self.original.as_ref(), t).to_string();
        match &self.mode {
            Mode::Declined(_) => write!(f, "StraitJoinExec: {mode}, {original}"),
            _ => {
                // The original shows its own name and mode first.
                let rest = original.split_once(", ").map_or("", |(_, rest)| rest);
                write!(f, "StraitJoinExec: mode={mode}, {rest}")
            }
        }
    }
}

/// Shows an operator without its inputs.
struct ShownAs<'a>(&'a dyn ExecutionPlan, DisplayFormatType);

impl fmt::Display for ShownAs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_as(self.1, f)
    }
}

impl ExecutionPlan for StraitJoinExec {
    fn name(&self) -> &'static str {
        "StraitJoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn input_distribution_requirements(&self) -> InputDistributionRequirements {
        match self.mode {
            Mode::Shared(_) => {
                let any = datafusion::physical_expr::Distribution::UnspecifiedDistribution;
                InputDistributionRequirements::new(vec![any.clone(), any])
            }
            _ => self.original.input_distribution_requirements(),
        }
    }

    fn required_input_ordering(&self) -> Vec<Option<OrderingRequirements>> {
        match self.mode {
            Mode::Declined(_) => self.original.required_input_ordering(),
            _ => vec![None; 2],
        }
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        match self.mode {
            Mode::Declined(_) => self.original.maintains_input_order(),
            _ => vec![false; 2],
        }
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.original.apply_expressions(f)
    }

    fn dynamic_expressions_produced(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.original.dynamic_expressions_produced()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Ok(inputs) = <[Arc<dyn ExecutionPlan>; 2]>::try_from(children) else {
            return internal_err!("a join has two inputs");
        };
        let original = match self.mode {
            Mode::Shared(_) => Arc::clone(&self.original),
            _ => {
                let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
                Arc::clone(&self.original).replace_children(inputs.to_vec(), options)?
            }
        };
        let exec = StraitJoinExec::new(original, inputs, self.mode.clone(), self.settings);
        Ok(Arc::new(exec))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let original = Arc::clone(&self.original).reset_state()?;
        let exec =
            StraitJoinExec::new(original, self.inputs.clone(), self.mode.clone(), self.settings);
        Ok(Arc::new(exec))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let translated = match &self.mode {
            Mode::Declined(_) => return self.original.execute(partition, context),
            Mode::Shared(translated) | Mode::Separate(translated) => Arc::clone(translated),
        };
        if partition >= self.partitions() {
            return internal_err!("a join has no partition {partition}");
        }
        let shared =
            self.executions.of(partition, self.partitions(), &context, || self.begin(&context))?;
        let separate = matches!(self.mode, Mode::Separate(_));
        let collects_left = self.collects_left();
        let config = context.session_config();
        let threads = if separate { 1 } else { config.target_partitions() };
        let disk = Arc::clone(&context.runtime_env().disk_manager);
        let wants_to_spill =
            shared.memory.is_limited() || self.settings.algorithm == Some(Algorithm::Spill);
        let may_spill = wants_to_spill && disk.tmp_files_enabled();
        let parts = {
            let (mut settings, memory) = (self.settings, Arc::clone(&shared.memory));
            // Separate runs use the GPU at the same time.
            let runs = if separate { self.partitions() as u64 } else { 1 };
            settings.gpu_memory = settings.gpu_memory.map(|bytes| bytes / runs);
            let run = if separate { partition } else { 0 };
            let (batch_size, null_aware) = (config.batch_size(), self.hash_join()?.null_aware);
            let metrics = JoinMetrics::new(&self.metrics, partition);
            let (bounds, statistics) = (shared.bounds.clone(), shared.statistics);
            let disk = may_spill.then_some(disk);
            let spill_compression = compression(config.options().execution.spill_compression);
            move |streams| Parts {
                translated,
                settings,
                streams,
                statistics,
                threads,
                batch_size,
                budget: memory.budget(run),
                disk,
                spill_compression,
                bounds,
                null_aware,
                metrics,
            }
        };
        let inputs = self.inputs.clone();
        let schema = self.schema();
        let start = async move {
            let run = match separate {
                false => shared.run(|| {
                    let [left, right] = inputs.map(|input| all_partitions(&input, &context));
                    Run::start(parts([left?, right?]))
                })?,
                true => {
                    let [left, right] = inputs;
                    let left = match collects_left {
                        true => shared.left_rows(&left, &context).await?,
                        false => left.execute(partition, Arc::clone(&context))?,
                    };
                    let right = right.execute(partition, context)?;
                    Run::start(parts([vec![left], vec![right]]))?
                }
            };
            Ok::<_, DataFusionError>((run, shared))
        };
        let fetch = self.original.fetch();
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        // The stream keeps the run, and what the streams share.
        let batches = futures_util::stream::once(start).map_ok(|kept| {
            futures_util::stream::unfold(kept, |kept| async move {
                kept.0.next().await.map(|batch| (batch, kept))
            })
        });
        let batches = limited(batches.try_flatten().boxed(), fetch, baseline);
        let stream = RecordBatchStreamAdapter::new(schema, batches);
        Ok(make_cooperative(Box::pin(stream)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        match self.mode {
            Mode::Declined(_) => self.original.metrics(),
            _ => Some(self.metrics.clone_inner()),
        }
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        match (&self.mode, partition) {
            // Before the join runs, nobody knows which rows go to which partition.
            (Mode::Shared(_), Some(_)) => vec![ChildStats::Skip, ChildStats::Skip],
            _ => self.original.child_stats_requests(partition),
        }
    }

    fn statistics_from_inputs(
        &self,
        input_stats: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        match (&self.mode, args.partition()) {
            (Mode::Shared(_), Some(_)) => Ok(Arc::new(Statistics::new_unknown(&self.schema()))),
            _ => self.original.statistics_from_inputs(input_stats, args),
        }
    }

    fn supports_limit_pushdown(&self) -> bool {
        self.original.supports_limit_pushdown()
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        let original = self.original.with_fetch(limit)?;
        let inputs = self.inputs.clone();
        Some(Arc::new(StraitJoinExec::new(original, inputs, self.mode.clone(), self.settings)))
    }

    fn fetch(&self) -> Option<usize> {
        self.original.fetch()
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.original.cardinality_effect()
    }
}

/// Removes what a join of Strait does not keep: orders, and, if it mixes partitions, columns that are constant within
/// each partition.
fn without_order(properties: PlanProperties, mixes_partitions: bool) -> PlanProperties {
    let mut known = properties.equivalence_properties().clone();
    known.clear_orderings();
    if mixes_partitions {
        known.clear_per_partition_constants();
    }
    properties.with_eq_properties(known)
}

/// Returns how the option `datafusion.execution.spill_compression` says to compress spilled rows.
fn compression(option: config::SpillCompression) -> SpillCompression {
    match option {
        config::SpillCompression::Zstd => SpillCompression::Zstd,
        config::SpillCompression::Lz4Frame => SpillCompression::Lz4,
        config::SpillCompression::Uncompressed => SpillCompression::None,
    }
}

/// Executes all partitions of a plan.
fn all_partitions(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
) -> Result<Vec<SendableRecordBatchStream>> {
    let partitions = plan.output_partitioning().partition_count();
    (0..partitions).map(|partition| plan.execute(partition, Arc::clone(context))).collect()
}

/// Ends a stream after a number of rows, and counts its rows.
fn limited(
    batches: impl futures_util::Stream<Item = Result<RecordBatch>> + Send + Unpin + 'static,
    fetch: Option<usize>,
    baseline: BaselineMetrics,
) -> impl futures_util::Stream<Item = Result<RecordBatch>> + Send {
    let left = fetch.unwrap_or(usize::MAX);
    futures_util::stream::unfold(
        (Some(batches), left, baseline),
        |(batches, left, baseline)| async move {
            let mut batches = batches.filter(|_| left > 0)?;
            let batch = match batches.next().await? {
                Ok(batch) if batch.num_rows() > left => batch.slice(0, left),
                Ok(batch) => batch,
                Err(error) => return Some((Err(error), (None, 0, baseline))),
            };
            baseline.record_output(batch.num_rows());
            let left = left - batch.num_rows();
            // The join is cancelled when the last stream is dropped.
            let rest = (left > 0).then_some(batches);
            Some((Ok(batch), (rest, left, baseline)))
        },
    )
}

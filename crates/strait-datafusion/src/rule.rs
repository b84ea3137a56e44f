//! The optimizer rule that replaces hash joins.

use std::sync::Arc;

use datafusion::common::{JoinType, Result};
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::{AcrossPartitions, ConstExpr, Distribution, Partitioning};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{
    ChildrenPropertiesMode, ReplaceChildrenOptions, replace_children_if_necessary,
};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::union::InterleaveExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::{Mode, StraitJoinExec};
use crate::options::Settings;
use crate::translate::Translated;

/// Replaces each hash join of a plan by a [`StraitJoinExec`].
///
/// Add it after all other rules, because several of DataFusion's rules look for `HashJoinExec`.
/// [`with_strait`](crate::WithStrait::with_strait) does this.
///
/// The rule also removes the operators that repartition the inputs of a join, if no operator above the join needs the
/// partitions of its output.
#[derive(Debug, Default, Clone, Copy)]
pub struct StraitJoinRule;

impl PhysicalOptimizerRule for StraitJoinRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let settings = Settings::of(config)?;
        match settings.enabled {
            true => rewrite(plan, false, settings),
            false => Ok(plan),
        }
    }

    fn name(&self) -> &str {
        "strait_joins"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Replaces the joins of a plan. `partitions_matter` says whether an operator above needs the rows of this plan in
/// their present partitions.
fn rewrite(
    plan: Arc<dyn ExecutionPlan>,
    partitions_matter: bool,
    settings: Settings,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        return replace(join, partitions_matter, settings);
    }
    let matter = partitions_of_inputs_matter(&plan, partitions_matter);
    with_rewritten(plan, &matter, settings)
}

/// Replaces the joins below a plan.
fn with_rewritten(
    plan: Arc<dyn ExecutionPlan>,
    partitions_matter: &[bool],
    settings: Settings,
) -> Result<Arc<dyn ExecutionPlan>> {
    let children: Vec<_> = plan.children().into_iter().map(Arc::clone).collect();
    let rewritten = children.iter().zip(partitions_matter);
    let rewritten = rewritten.map(|(child, &matter)| rewrite(Arc::clone(child), matter, settings));
    let rewritten = rewritten.collect::<Result<Vec<_>>>()?;
    replace_children_if_necessary(plan, rewritten)
}

/// For each input of a plan, returns whether the plan, or an operator above it, needs the rows of the input in their
/// present partitions.
fn partitions_of_inputs_matter(plan: &Arc<dyn ExecutionPlan>, of_output: bool) -> Vec<bool> {
    let merges = plan.is::<RepartitionExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<SortPreservingMergeExec>();
    let requirements = plan.input_distribution_requirements();
    let of_input = |required: &Distribution| match required {
        _ if plan.is::<InterleaveExec>() => true,
        Distribution::SinglePartition => false,
        Distribution::UnspecifiedDistribution => of_output && !merges,
        // The plan needs all rows of a key in one partition.
        _ => true,
    };
    requirements.per_child_distributions().map(of_input).collect()
}

/// Replaces a hash join, and the joins below it.
fn replace(
    join: &HashJoinExec,
    partitions_matter: bool,
    settings: Settings,
) -> Result<Arc<dyn ExecutionPlan>> {
    let translated = match declined(join, settings) {
        Some(why) => Err(why),
        None => Translated::new(join).map(Arc::new).map_err(|error| error.strip_backtrace()),
    };
    let inputs = [join.left(), join.right()].map(Arc::clone);
    let separate = matches!(
        (join.partition_mode(), join.properties().output_partitioning()),
        (PartitionMode::Partitioned, _) | (_, Partitioning::Hash(..) | Partitioning::Range(_))
    ) && partitions_matter;
    let (mode, inputs) = match translated {
        Ok(translated) if separate => (Mode::Separate(translated), inputs),
        Ok(translated) => {
            let [left, right] = inputs.map(|input| without_repartitioning(&input));
            let inputs = [rewrite(left, false, settings)?, rewrite(right, false, settings)?];
            let original = Arc::new(join.builder().build()?);
            let mode = Mode::Shared(translated);
            return Ok(Arc::new(StraitJoinExec::new(original, inputs, mode, settings)));
        }
        Err(why) => (Mode::Declined(why), inputs),
    };
    let matter = match join.partition_mode() {
        PartitionMode::Partitioned => [true, true],
        PartitionMode::CollectLeft | PartitionMode::Auto => [false, partitions_matter],
    };
    let [left, right] = inputs;
    let inputs = [rewrite(left, matter[0], settings)?, rewrite(right, matter[1], settings)?];
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let original = Arc::new(join.builder().build()?).replace_children(inputs.to_vec(), options)?;
    let Some(original) = original.downcast_ref::<HashJoinExec>() else { return Ok(original) };
    let original = Arc::new(original.builder().build()?);
    Ok(Arc::new(StraitJoinExec::new(original, inputs, mode, settings)))
}

/// Returns why Strait does not carry out a join. Does not check the column types: see `Translated::new`.
fn declined(join: &HashJoinExec, settings: Settings) -> Option<String> {
    let unbounded = |input: &Arc<dyn ExecutionPlan>| input.boundedness().is_unbounded();
    if unbounded(join.left()) || unbounded(join.right()) {
        return Some("an input is unbounded".to_string());
    }
    if join.properties().output_ordering().is_some() {
        return Some("it keeps the order of its probe side".to_string());
    }
    let differs = |constant: &ConstExpr| {
        matches!(constant.across_partitions, AcrossPartitions::Heterogeneous)
    };
    let has_constant = |input: &Arc<dyn ExecutionPlan>| {
        input.equivalence_properties().constants().iter().any(differs)
    };
    // DataFusion may have removed a sort by such a column. One join over all partitions would mix its values.
    if has_constant(join.left()) || has_constant(join.right()) {
        return Some("a column is constant within each partition".to_string());
    }
    if *join.partition_mode() == PartitionMode::Auto {
        return Some("its partition mode is not decided".to_string());
    }
    let simple = *join.join_type() == JoinType::LeftAnti
        && *join.partition_mode() == PartitionMode::CollectLeft
        && join.filter().is_none()
        && join.on().len() == 1;
    if join.null_aware && !simple {
        return Some("it is null-aware, and not a left anti join on one key".to_string());
    }
    let few = |input: &Arc<dyn ExecutionPlan>| {
        let computed = StatisticsContext::new().compute(input.as_ref(), &StatisticsArgs::new());
        let rows = computed.ok().and_then(|known| known.num_rows.get_value().copied());
        rows.is_some_and(|rows| rows < settings.min_rows)
    };
    if settings.min_rows > 0 && few(join.left()) && few(join.right()) {
        return Some(format!("both tables have fewer than {} rows", settings.min_rows));
    }
    None
}

/// Skips operators that only change partitions. Returns the first other operator.
fn without_repartitioning(plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    if let Some(repartition) = plan.downcast_ref::<RepartitionExec>() {
        return without_repartitioning(repartition.input());
    }
    match plan.downcast_ref::<CoalescePartitionsExec>() {
        Some(coalesce) if coalesce.fetch().is_none() => without_repartitioning(coalesce.input()),
        _ => Arc::clone(plan),
    }
}

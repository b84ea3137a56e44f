//! Orders below joins: sorts that a join of Strait makes superfluous, and rows that may be in an order.

use std::sync::Arc;

use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::StraitJoinExec;
use crate::unordered::UnorderedExec;

/// Skips operators that only change the order or the partitions of rows. Returns the first other operator.
pub(crate) fn without_arrangement(plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let skipped = |input: &Arc<dyn ExecutionPlan>| Some(without_arrangement(input));
    let rest = if plan.fetch().is_some() {
        None
    } else if let Some(repartition) = plan.downcast_ref::<RepartitionExec>() {
        skipped(repartition.input())
    } else if let Some(coalesce) = plan.downcast_ref::<CoalescePartitionsExec>() {
        skipped(coalesce.input())
    } else if let Some(merge) = plan.downcast_ref::<SortPreservingMergeExec>() {
        skipped(merge.input())
    } else if let Some(sort) = plan.downcast_ref::<SortExec>() {
        skipped(sort.input())
    } else {
        None
    };
    rest.unwrap_or_else(|| Arc::clone(plan))
}

/// Replaces a sort whose order is forgotten by an operator with the same rows in the same partitions.
pub(crate) fn without_sort(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    if plan.fetch().is_some() {
        return None;
    }
    let partitions = |plan: &Arc<dyn ExecutionPlan>| plan.output_partitioning().partition_count();
    if let Some(sort) = plan.downcast_ref::<SortExec>() {
        let same = partitions(sort.input()) == partitions(plan);
        return same.then(|| Arc::clone(sort.input()));
    }
    let merge = plan.downcast_ref::<SortPreservingMergeExec>()?;
    Some(Arc::new(CoalescePartitionsExec::new(Arc::clone(merge.input()))))
}

/// Returns whether DataFusion may have been told of an order of the rows of a plan. The properties of the plan do not say
/// this: they forget an order if its columns are no longer in the output, but the rows are still in that order, and
/// DataFusion has removed a sort above.
pub(crate) fn may_be_ordered(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.output_ordering().is_some() {
        return true;
    }
    if let Some(scan) = plan.downcast_ref::<DataSourceExec>() {
        let source = scan.data_source();
        let files = source.downcast_ref::<FileScanConfig>();
        let memory = source.downcast_ref::<MemorySourceConfig>();
        return match (files, memory) {
            (Some(files), _) => !files.output_ordering.is_empty(),
            // A projection removes orders whose columns it removes.
            (None, Some(memory)) => {
                memory.projection().is_some() || !memory.sort_information().is_empty()
            }
            (None, None) => true,
        };
    }
    // Other operators may promise a part of an order without maintaining the whole order. A union does.
    let is_exact = plan.is::<HashJoinExec>()
        || plan.is::<AggregateExec>()
        || plan.is::<RepartitionExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<StraitJoinExec>()
        || plan.is::<UnorderedExec>();
    let inputs = plan.children();
    let mut both = inputs.iter().zip(plan.maintains_input_order());
    inputs.is_empty() || both.any(|(input, keeps)| (keeps || !is_exact) && may_be_ordered(input))
}

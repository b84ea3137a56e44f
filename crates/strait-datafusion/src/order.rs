//! Sorts around joins: those that a join of Strait makes superfluous, and those that restore the order of its output.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::{AcrossPartitions, ConstExpr, LexOrdering};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::needs::{derives_order, passes};

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

/// Returns whether a sort makes the order of a plan. Nothing between the sort and the end of the plan needs the order.
pub(crate) fn is_sorted_below(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.is::<SortExec>() {
        return plan.fetch().is_none();
    }
    let inputs = plan.children();
    passes(plan) && inputs.into_iter().all(is_sorted_below)
}

/// Returns whether the output of a join may have the order of an input although the join promises no order, because the
/// columns of the order are not in its output.
pub(crate) fn hides_order(join: &dyn ExecutionPlan) -> bool {
    let keeps = join.maintains_input_order();
    join.children().into_iter().zip(keeps).any(|(input, keeps)| keeps && may_be_ordered(input))
}

/// Returns whether the rows of a plan may be in some order: an operator in it promises an order, or a file is sorted.
fn may_be_ordered(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_sorted = |scan: &DataSourceExec| {
        let files = scan.data_source().downcast_ref::<FileScanConfig>();
        files.is_some_and(|files| !files.output_ordering.is_empty())
    };
    plan.output_ordering().is_some()
        || plan.downcast_ref::<DataSourceExec>().is_some_and(is_sorted)
        || derives_order(plan) && plan.children().into_iter().any(may_be_ordered)
}

/// The order that a join promises for its output, if one sort restores it.
#[derive(Debug, Clone)]
pub(crate) struct Promised(LexOrdering);

impl Promised {
    /// Returns the order that a join promises; `None` if it promises none. Fails with the reason if a sort of Strait's
    /// output cannot restore it.
    pub(crate) fn of(join: &dyn ExecutionPlan) -> Result<Option<Promised>, String> {
        let properties = join.properties();
        let differs = |constant: &ConstExpr| {
            matches!(constant.across_partitions, AcrossPartitions::Heterogeneous)
        };
        let mut known = properties.equivalence_properties().clone();
        // DataFusion may have removed a sort by such a column. One join over all partitions would mix its values.
        if known.constants().iter().any(differs) {
            return Err("a column is constant within each partition".to_string());
        }
        let Some(order) = properties.output_ordering() else { return Ok(None) };
        known.clear_orderings();
        known.add_ordering(order.clone());
        let mut all = properties.equivalence_properties().oeq_class().iter();
        let restored = all.all(|order| known.ordering_satisfy(order.clone()).unwrap_or(false));
        match restored {
            true => Ok(Some(Promised(order.clone()))),
            false => Err("several orders of its output may be used".to_string()),
        }
    }

    /// Sorts the rows of each partition of a plan. `fetch` is the most rows that are needed of each partition.
    pub(crate) fn restored(
        self,
        plan: Arc<dyn ExecutionPlan>,
        fetch: Option<usize>,
    ) -> Arc<dyn ExecutionPlan> {
        let several = plan.output_partitioning().partition_count() > 1;
        let sort = SortExec::new(self.0, plan).with_preserve_partitioning(several);
        Arc::new(sort.with_fetch(fetch))
    }
}

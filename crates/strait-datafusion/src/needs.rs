//! What the operators of a plan need of their inputs: rows in their present partitions, and rows in order.
//!
//! A join of Strait keeps neither. So the rule goes down the plan from its root, and knows at each join what the
//! operators above need of its output.

use std::sync::Arc;

use datafusion::physical_expr::Distribution;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::analyze::AnalyzeExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::InterleaveExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

/// What the operators above an operator need of its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Whether they need the rows in their present partitions.
    pub(crate) partitions: bool,
    pub(crate) order: Order,
}

/// What the operators above an operator do with the order of its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// One of them relies on the order.
    Used,
    Unused,
    /// A join of Strait is above, and no operator between relies on the order. So sorts are superfluous.
    Forgotten,
}

impl Needs {
    /// Returns what is needed of the root of a plan.
    ///
    /// The rule cannot see whether the query has an `ORDER BY`. So the order of one output partition is used. Nobody
    /// merges several output partitions in order.
    pub(crate) fn of_root(plan: &Arc<dyn ExecutionPlan>) -> Needs {
        let one = plan.output_partitioning().partition_count() == 1;
        Needs { partitions: false, order: if one { Order::Used } else { Order::Unused } }
    }

    /// Returns what is needed of an input of a join of Strait.
    pub(crate) fn of_join_input(partitions: bool) -> Needs {
        Needs { partitions, order: Order::Forgotten }
    }

    /// Returns whether the order of an operator is used: by the operators above, or because the operator has a limit.
    /// The order decides which rows a limit keeps. Several partitions with a limit do not use it by themselves: an
    /// operator above merges them, and this operator says whether it uses the order.
    pub(crate) fn use_order_of(&self, plan: &dyn ExecutionPlan) -> bool {
        let limits = plan.fetch().is_some() || plan.is::<GlobalLimitExec>();
        let one = plan.properties().output_partitioning().partition_count() == 1;
        self.order == Order::Used || (limits && one)
    }

    /// Returns what is needed of each input of an operator.
    pub(crate) fn of_inputs(self, plan: &Arc<dyn ExecutionPlan>) -> Vec<Needs> {
        let partitions = self.partitions_of_inputs(plan);
        let orders = self.orders_of_inputs(plan);
        let both = partitions.into_iter().zip(orders);
        both.map(|(partitions, order)| Needs { partitions, order }).collect()
    }

    fn partitions_of_inputs(self, plan: &Arc<dyn ExecutionPlan>) -> Vec<bool> {
        let merges = plan.is::<RepartitionExec>()
            || plan.is::<CoalescePartitionsExec>()
            || plan.is::<SortPreservingMergeExec>();
        let requirements = plan.input_distribution_requirements();
        let of_input = |required: &Distribution| match required {
            _ if plan.is::<InterleaveExec>() => true,
            Distribution::SinglePartition => false,
            Distribution::UnspecifiedDistribution => self.partitions && !merges,
            // The plan needs all rows of a key in one partition.
            _ => true,
        };
        requirements.per_child_distributions().map(of_input).collect()
    }

    fn orders_of_inputs(self, plan: &Arc<dyn ExecutionPlan>) -> Vec<Order> {
        if plan.is::<AnalyzeExec>() {
            // `EXPLAIN ANALYZE` must show the plan that the query has without it.
            return plan.children().into_iter().map(|input| Needs::of_root(input).order).collect();
        }
        let uses = self.use_order_of(plan.as_ref());
        let derives = derives_order(plan);
        let aggregation = Aggregation::of(plan);
        let of_input = |(required, maintains): (bool, bool)| match (aggregation, self.order) {
            (Aggregation::Ordered, _) => Order::Used,
            (Aggregation::None, _) if required => Order::Used,
            _ if uses && (maintains || derives) => Order::Used,
            (_, Order::Forgotten) if passes(plan) => Order::Forgotten,
            _ => Order::Unused,
        };
        let required = plan.required_input_ordering().into_iter().map(|order| order.is_some());
        required.zip(plan.maintains_input_order()).map(of_input).collect()
    }
}

/// Returns whether the rows of an operator may have the order of one of its inputs. `maintains_input_order` does not say
/// this: a union promises the common part of its inputs' orders, unnested rows have the order of their input, and a hash
/// join adds the order of its build side to the one of its probe side, although these operators do not maintain the
/// whole order of these inputs. The properties of the operator do not say it either: they forget an order if its columns
/// are no longer in the output, but the rows are still in that order, and DataFusion has removed the sort above.
pub(crate) fn derives_order(plan: &Arc<dyn ExecutionPlan>) -> bool {
    // These two say what they maintain.
    if plan.is::<SortExec>() || plan.is::<AggregateExec>() {
        return false;
    }
    let mixes = plan.is::<RepartitionExec>() || plan.is::<CoalescePartitionsExec>();
    let several =
        |input: &&Arc<dyn ExecutionPlan>| input.output_partitioning().partition_count() > 1;
    !(mixes && plan.children().iter().any(several))
}

/// Whether and how an operator aggregates rows.
#[derive(Debug, Clone, Copy)]
enum Aggregation {
    None,
    /// The aggregates have no `ORDER BY`. The operator says that it requires sorted input if it has sorted input. It
    /// then takes one group after the other, but with other input, it hashes the groups.
    Unordered,
    /// An aggregate has an `ORDER BY`. It may rely on the order of its input even if the operator requires none:
    /// DataFusion tells `first_value` and `last_value` that their input is sorted, or reverses them.
    Ordered,
}

impl Aggregation {
    fn of(plan: &Arc<dyn ExecutionPlan>) -> Aggregation {
        let Some(aggregation) = plan.downcast_ref::<AggregateExec>() else {
            return Aggregation::None;
        };
        let mut aggregates = aggregation.aggr_expr().iter();
        match aggregates.all(|aggregate| aggregate.order_bys().is_empty()) {
            true => Aggregation::Unordered,
            false => Aggregation::Ordered,
        }
    }
}

/// Returns whether an operator gives the same rows for sorted and for unsorted input. Sorts below it are superfluous if
/// the order of its output is forgotten.
pub(crate) fn passes(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let one_by_one = plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<RepartitionExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<CooperativeExec>();
    one_by_one && plan.fetch().is_none()
}

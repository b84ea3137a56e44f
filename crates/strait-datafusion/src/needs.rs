//! What the operators of a plan need of their inputs: rows in their present partitions, and rows in order.
//!
//! A join of Strait keeps neither. So the rule goes down the plan from its root, and knows at each join what the
//! operators above need of its output. What they need of its order is decided before, by
//! [`StraitOrderRule`](crate::StraitOrderRule). If this rule did not run, each operator that is not known here may rely on
//! the order of its input.

use std::sync::Arc;

use datafusion::physical_expr::{Distribution, OrderingRequirements};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
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
    /// One of them may rely on the order.
    Used,
    /// None of them relies on the order.
    Unused,
    /// None of them relies on the order, because DataFusion was never told of one.
    Hidden,
    /// A join of Strait is above, and no operator between relies on the order. So sorts are superfluous.
    Forgotten,
}

impl Needs {
    /// Returns what is needed of the root of a plan.
    pub(crate) fn of_root() -> Needs {
        Needs { partitions: false, order: Order::Used }
    }

    /// Returns what is needed of an input of a join of Strait.
    pub(crate) fn of_join_input(partitions: bool) -> Needs {
        Needs { partitions, order: Order::Forgotten }
    }

    /// Returns what is needed of the input of an operator that hides its order.
    pub(crate) fn with_hidden_order(self) -> Needs {
        Needs { order: Order::Hidden, ..self }
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
        let of_input = |required: Option<OrderingRequirements>| match self.order {
            _ if required.is_some() => Order::Used,
            Order::Used if forgets(plan) => Order::Unused,
            order if passes(plan) => order,
            _ if forgets(plan) => Order::Unused,
            _ => Order::Used,
        };
        plan.required_input_ordering().into_iter().map(of_input).collect()
    }
}

/// Returns whether the order of the input of an operator is lost, and the operator itself does not rely on it.
fn forgets(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let keeps = plan.maintains_input_order().contains(&true);
    let mixes = || {
        let several =
            |input: &Arc<dyn ExecutionPlan>| input.output_partitioning().partition_count() > 1;
        (plan.is::<RepartitionExec>() || plan.is::<CoalescePartitionsExec>())
            && plan.children().into_iter().all(several)
    };
    // An aggregate with an `ORDER BY` may rely on the order of its input even if the operator requires none: DataFusion
    // tells `first_value` and `last_value` that their input is sorted, or reverses them.
    let hashes = || {
        let aggregation = plan.downcast_ref::<AggregateExec>();
        aggregation.is_some_and(|aggregation| {
            aggregation.aggr_expr().iter().all(|aggregate| aggregate.order_bys().is_empty())
        })
    };
    !keeps && (plan.is::<SortExec>() || mixes() || hashes())
}

/// Returns whether an operator gives the same rows for sorted and for unsorted input. It uses the order of its input only
/// if the operators above use the order of its output.
fn passes(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let one_by_one = plan.is::<FilterExec>()
        || plan.is::<RepartitionExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<CooperativeExec>();
    // The limit of a projection is the limit of its input.
    plan.is::<ProjectionExec>() || one_by_one && plan.fetch().is_none()
}

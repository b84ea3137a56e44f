//! The optimizer rule that hides the order of joins before DataFusion decides where a plan needs sorts.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_requirements::EnsureRequirements;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::options::Settings;
use crate::rule::could_replace;
use crate::unordered::UnorderedExec;

/// Hides the order of the joins that Strait replaces.
///
/// DataFusion's hash join keeps the order of its probe side, and its rule `EnsureRequirements` leaves out a sort that this
/// order makes superfluous. Later, nobody can see that the order is used: the sort is missing, and perhaps also the
/// columns by which the rows are sorted. Strait's joins keep no order. So this rule runs before `EnsureRequirements`, and
/// puts an operator above each join that promises no order. DataFusion then sorts where a sort is needed.
/// [`StraitJoinRule`](crate::StraitJoinRule) removes the operator.
///
/// A join keeps its order, and is not replaced, if the plan would need another sort without it. With
/// [`StraitOptions::restore_order`](crate::StraitOptions::restore_order), no join keeps its order.
///
/// [`with_strait`](crate::WithStrait::with_strait) adds this rule directly before `EnsureRequirements`. Without this
/// rule, [`StraitJoinRule`](crate::StraitJoinRule) declines each join whose order may be used.
#[derive(Debug, Default, Clone, Copy)]
pub struct StraitOrderRule;

impl PhysicalOptimizerRule for StraitOrderRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let settings = Settings::of(config)?;
        if !settings.enabled {
            return Ok(plan);
        }
        let joins = Joins { plan: &plan, settings, config };
        let hidden = joins.hidden()?;
        joins.hide(&hidden)
    }

    fn name(&self) -> &str {
        "strait_order"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The joins of a plan that Strait could replace. A join is named by its place among them, from the root down.
struct Joins<'a> {
    plan: &'a Arc<dyn ExecutionPlan>,
    settings: Settings,
    config: &'a ConfigOptions,
}

impl Joins<'_> {
    /// Returns for each join whether its order must be hidden.
    fn hidden(&self) -> Result<Vec<bool>> {
        let joins = count(self.plan, &|plan| could_replace(plan, self.settings));
        let all = vec![true; joins];
        if joins == 0 || self.settings.restore_order {
            return Ok(all);
        }
        let mut hidden = vec![false; joins];
        let ordered = self.with_sorts(&hidden)?;
        let has_order = |plan: &Arc<dyn ExecutionPlan>| {
            could_replace(plan, self.settings) && plan.output_ordering().is_some()
        };
        if count(&ordered, &has_order) == 0 {
            return Ok(all);
        }
        let fewest = sorts(&ordered);
        if sorts(&self.with_sorts(&all)?) <= fewest {
            return Ok(all);
        }
        for join in 0..joins {
            hidden[join] = true;
            hidden[join] = sorts(&self.with_sorts(&hidden)?) <= fewest;
        }
        Ok(hidden)
    }

    /// Returns the plan that DataFusion makes if the order of these joins is hidden.
    fn with_sorts(&self, hidden: &[bool]) -> Result<Arc<dyn ExecutionPlan>> {
        EnsureRequirements::new().optimize(self.hide(hidden)?, self.config)
    }

    /// Puts an operator that promises no order above each of these joins.
    fn hide(&self, hidden: &[bool]) -> Result<Arc<dyn ExecutionPlan>> {
        self.hide_below(self.plan, &mut hidden.iter().copied())
    }

    fn hide_below(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        hidden: &mut dyn Iterator<Item = bool>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let hide = could_replace(plan, self.settings) && hidden.next() == Some(true);
        let inputs = plan.children().into_iter().map(|input| self.hide_below(input, hidden));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let plan = replace_children_if_necessary(Arc::clone(plan), inputs)?;
        Ok(if hide { Arc::new(UnorderedExec::new(plan)) } else { plan })
    }
}

fn sorts(plan: &Arc<dyn ExecutionPlan>) -> usize {
    count(plan, &|plan| plan.is::<SortExec>())
}

/// Returns how many operators of a plan are of a kind.
fn count(plan: &Arc<dyn ExecutionPlan>, is: &dyn Fn(&Arc<dyn ExecutionPlan>) -> bool) -> usize {
    let below: usize = plan.children().into_iter().map(|input| count(input, is)).sum();
    below + usize::from(is(plan))
}

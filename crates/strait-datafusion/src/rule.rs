//! The optimizer rule that replaces joins.

use std::sync::Arc;

use datafusion::common::{JoinType, Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::Partitioning;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{
    ChildrenPropertiesMode, ReplaceChildrenOptions, replace_children_if_necessary,
};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode, SortMergeJoinExec};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Statistics};

use crate::exec::{Mode, StraitJoinExec};
use crate::needs::{Needs, Order};
use crate::options::Settings;
use crate::order::{Promised, hides_order, is_sorted_below, without_arrangement, without_sort};
use crate::translate::Translated;

/// Replaces each hash join of a plan by a [`StraitJoinExec`], and also each sort-merge join if
/// [`StraitOptions`](crate::StraitOptions) says so.
///
/// Add it after all other rules, because several of DataFusion's rules look for `HashJoinExec`.
/// [`with_strait`](crate::WithStrait::with_strait) does this.
///
/// The rule also removes operators below a join that the join makes superfluous: operators that repartition its inputs,
/// if no operator above the join needs the partitions of its output, and operators that sort them.
#[derive(Debug, Default, Clone, Copy)]
pub struct StraitJoinRule;

impl PhysicalOptimizerRule for StraitJoinRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let settings = Settings::of(config)?;
        let needs = Needs::of_root(&plan);
        match settings.enabled {
            true => rewrite(plan, needs, settings),
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

/// Replaces the joins of a plan.
fn rewrite(
    plan: Arc<dyn ExecutionPlan>,
    needs: Needs,
    settings: Settings,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        return replace_hash_join(&plan, join, needs, settings);
    }
    if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>()
        && settings.sort_merge_joins
    {
        return replace_sort_merge_join(&plan, join, needs, settings);
    }
    if needs.order == Order::Forgotten
        && let Some(unsorted) = without_sort(&plan)
    {
        return rewrite(unsorted, needs, settings);
    }
    let inputs = rewritten_inputs(&plan, needs, settings)?;
    replace_children_if_necessary(plan, inputs)
}

/// Replaces the joins below an operator. Returns the new inputs of the operator.
fn rewritten_inputs(
    plan: &Arc<dyn ExecutionPlan>,
    needs: Needs,
    settings: Settings,
) -> Result<Vec<Arc<dyn ExecutionPlan>>> {
    let inputs = plan.children().into_iter().zip(needs.of_inputs(plan));
    inputs.map(|(input, needs)| rewrite(Arc::clone(input), needs, settings)).collect()
}

/// Replaces a hash join, and the joins below it.
fn replace_hash_join(
    plan: &Arc<dyn ExecutionPlan>,
    join: &HashJoinExec,
    needs: Needs,
    settings: Settings,
) -> Result<Arc<dyn ExecutionPlan>> {
    let promised = promised_order(plan, needs, settings);
    let decided = promised.and_then(|order| Ok((order, translated(join, settings)?)));
    match decided {
        Err(why) => declined(plan, why, needs, settings),
        Ok((None, translated)) => carried_out(join, translated, needs.partitions, settings),
        Ok((Some(order), translated)) => {
            // The limit must keep the first rows. So the sort has it.
            let unlimited = join.builder().with_fetch(None).build()?;
            let joined = carried_out(&unlimited, translated, needs.partitions, settings)?;
            Ok(order.restored(joined, join.fetch()))
        }
    }
}

/// Replaces a sort-merge join, and the joins below it.
fn replace_sort_merge_join(
    plan: &Arc<dyn ExecutionPlan>,
    join: &SortMergeJoinExec,
    needs: Needs,
    settings: Settings,
) -> Result<Arc<dyn ExecutionPlan>> {
    let hashed = match hashed(join, settings) {
        Ok(hashed) => hashed,
        Err(error) => return declined(plan, error.strip_backtrace(), needs, settings),
    };
    // The hash join may be below a projection that restores the order of the columns.
    let child = hashed.children().first().map(|child| Arc::clone(child));
    let hash_join = match (hashed.downcast_ref::<HashJoinExec>(), &child) {
        (Some(join), _) => Some(join),
        (None, child) => child.as_ref().and_then(|child| child.downcast_ref::<HashJoinExec>()),
    };
    let Some(hash_join) = hash_join else { return internal_err!("the hash join is missing") };
    let promised = promised_order(plan, needs, settings);
    let decided = promised.and_then(|order| translated(hash_join, settings).map(|_| order));
    match decided {
        Err(why) => declined(plan, why, needs, settings),
        Ok(order) => {
            let joined = rewrite(hashed, Needs { order: Order::Unused, ..needs }, settings)?;
            Ok(match order {
                None => joined,
                Some(order) => order.restored(joined, None),
            })
        }
    }
}

/// Returns the hash join with the rows of a sort-merge join. Its left input is the smaller one, if that is known.
fn hashed(join: &SortMergeJoinExec, settings: Settings) -> Result<Arc<dyn ExecutionPlan>> {
    let [left, right] = [join.left(), join.right()];
    let hashed = HashJoinExec::try_new(
        Arc::clone(left),
        Arc::clone(right),
        join.on().to_vec(),
        join.filter().clone(),
        &join.join_type(),
        None,
        PartitionMode::Partitioned,
        join.null_equality(),
        false,
    )?;
    let may_swap = settings.join_reordering && join.join_type().supports_swap();
    match may_swap && is_larger(left, right) {
        true => hashed.swap_inputs(PartitionMode::Partitioned),
        false => Ok(Arc::new(hashed)),
    }
}

/// Returns whether the first plan is known to have more bytes, or more rows, than the second one.
fn is_larger(first: &Arc<dyn ExecutionPlan>, second: &Arc<dyn ExecutionPlan>) -> bool {
    let (Some(first), Some(second)) = (statistics(first), statistics(second)) else { return false };
    let known = |of: fn(&Statistics) -> Option<usize>| of(&first).zip(of(&second));
    let bytes = known(|plan| plan.total_byte_size.get_value().copied());
    let rows = || known(|plan| plan.num_rows.get_value().copied());
    bytes.or_else(rows).is_some_and(|(first, second)| first > second)
}

fn statistics(plan: &Arc<dyn ExecutionPlan>) -> Option<Statistics> {
    let computed = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
    computed.ok().map(|statistics| statistics.as_ref().clone())
}

/// Puts a join of Strait in the place of a hash join. The rows of its output have no order.
fn carried_out(
    join: &HashJoinExec,
    translated: Arc<Translated>,
    partitions_matter: bool,
    settings: Settings,
) -> Result<Arc<dyn ExecutionPlan>> {
    let separate = matches!(
        (join.partition_mode(), join.properties().output_partitioning()),
        (PartitionMode::Partitioned, _) | (_, Partitioning::Hash(..) | Partitioning::Range(_))
    ) && partitions_matter;
    let original: Arc<dyn ExecutionPlan> = Arc::new(join.builder().build()?);
    if !separate {
        let input = |input: &Arc<dyn ExecutionPlan>| {
            rewrite(without_arrangement(input), Needs::of_join_input(false), settings)
        };
        let inputs = [input(join.left())?, input(join.right())?];
        let mode = Mode::Shared(translated);
        return Ok(Arc::new(StraitJoinExec::new(original, inputs, mode, settings)));
    }
    let collects_left = *join.partition_mode() == PartitionMode::CollectLeft;
    let of_left = Needs::of_join_input(!collects_left);
    let inputs = [
        rewrite(Arc::clone(join.left()), of_left, settings)?,
        rewrite(Arc::clone(join.right()), Needs::of_join_input(true), settings)?,
    ];
    let original = with_inputs(original, inputs.to_vec())?;
    Ok(Arc::new(StraitJoinExec::new(original, inputs, Mode::Separate(translated), settings)))
}

/// Puts an operator in the place of a join that says why Strait does not carry it out.
fn declined(
    plan: &Arc<dyn ExecutionPlan>,
    why: String,
    needs: Needs,
    settings: Settings,
) -> Result<Arc<dyn ExecutionPlan>> {
    let inputs = rewritten_inputs(plan, needs, settings)?;
    let original = with_inputs(Arc::clone(plan), inputs.clone())?;
    let Ok(inputs) = inputs.try_into() else { return internal_err!("a join has two inputs") };
    Ok(Arc::new(StraitJoinExec::new(original, inputs, Mode::Declined(why), settings)))
}

fn with_inputs(
    plan: Arc<dyn ExecutionPlan>,
    inputs: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    plan.replace_children(inputs, options)
}

/// Returns whether DataFusion sorts the probe side of a hash join because the order of the output is used. Strait's join
/// does not need this sort, so a sort of its output takes its place.
fn moves_sort(join: &Arc<dyn ExecutionPlan>) -> bool {
    join.downcast_ref::<HashJoinExec>().is_some_and(|join| is_sorted_below(join.right()))
}

/// Returns the order that must be restored above a join, if any. Fails with the reason if it must not or cannot be
/// restored.
fn promised_order(
    join: &Arc<dyn ExecutionPlan>,
    needs: Needs,
    settings: Settings,
) -> Result<Option<Promised>, String> {
    if !needs.use_order_of(join.as_ref()) {
        return Ok(None);
    }
    match Promised::of(join.as_ref())? {
        Some(_) if !settings.restore_order && !moves_sort(join) => {
            Err("the order of its output is used, and strait.restore_order is false".to_string())
        }
        None if hides_order(join.as_ref()) => {
            Err("the order of its output may be used, and its columns are not in the output"
                .to_string())
        }
        order => Ok(order),
    }
}

/// Describes a join for Strait. Fails with the reason if Strait does not carry it out.
fn translated(join: &HashJoinExec, settings: Settings) -> Result<Arc<Translated>, String> {
    let unbounded = |input: &Arc<dyn ExecutionPlan>| input.boundedness().is_unbounded();
    if unbounded(join.left()) || unbounded(join.right()) {
        return Err("an input is unbounded".to_string());
    }
    if *join.partition_mode() == PartitionMode::Auto {
        return Err("its partition mode is not decided".to_string());
    }
    let simple = *join.join_type() == JoinType::LeftAnti
        && *join.partition_mode() == PartitionMode::CollectLeft
        && join.filter().is_none()
        && join.on().len() == 1;
    if join.null_aware && !simple {
        return Err("it is null-aware, and not a left anti join on one key".to_string());
    }
    let few = |input: &Arc<dyn ExecutionPlan>| {
        let rows = statistics(input).and_then(|known| known.num_rows.get_value().copied());
        rows.is_some_and(|rows| rows < settings.min_rows)
    };
    if settings.min_rows > 0 && few(join.left()) && few(join.right()) {
        return Err(format!("both tables have fewer than {} rows", settings.min_rows));
    }
    Translated::new(join).map(Arc::new).map_err(|error| error.strip_backtrace())
}

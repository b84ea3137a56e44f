//! Sessions with and without Strait, and facts about their plans.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use strait_datafusion::{StraitJoinExec, StraitOptions, WithStrait};

/// How long a test waits for something that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a number from the environment.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

/// Returns the options of the tests: `STRAIT_DEVICE` chooses the device.
pub(crate) fn options() -> StraitOptions {
    let mut options = StraitOptions::default();
    if let Ok(device) = std::env::var("STRAIT_DEVICE") {
        options.device = device;
    }
    options
}

/// Returns a session with Strait.
pub(crate) fn with_strait(
    config: SessionConfig,
    runtime: Arc<RuntimeEnv>,
    options: StraitOptions,
) -> SessionContext {
    let config = config.with_option_extension(options);
    let builder = SessionStateBuilder::new().with_config(config).with_runtime_env(runtime);
    SessionContext::new_with_state(builder.with_default_features().with_strait().build())
}

/// Returns a session with DataFusion's own joins.
///
/// Its joins have no dynamic filters: those of DataFusion 55 lose NaN keys, because the statistics of Parquet files leave
/// NaN out.
pub(crate) fn stock(mut config: SessionConfig, runtime: Arc<RuntimeEnv>) -> SessionContext {
    config.options_mut().optimizer.enable_join_dynamic_filter_pushdown = false;
    let builder = SessionStateBuilder::new().with_config(config).with_runtime_env(runtime);
    SessionContext::new_with_state(builder.with_default_features().build())
}

/// Returns all operators of a plan.
pub(crate) fn operators(plan: &Arc<dyn ExecutionPlan>) -> Vec<Arc<dyn ExecutionPlan>> {
    let mut all = vec![Arc::clone(plan)];
    all.extend(plan.children().into_iter().flat_map(operators));
    all
}

/// What the joins of a plan are.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Joins {
    pub(crate) replaced: usize,
    /// The reasons.
    pub(crate) declined: Vec<String>,
    /// Hash joins of DataFusion that the rule has not seen.
    pub(crate) stock: usize,
    /// Sort-merge joins of DataFusion that the rule was not asked to replace.
    pub(crate) sort_merge: usize,
}

pub(crate) fn joins(plan: &Arc<dyn ExecutionPlan>) -> Joins {
    let mut joins = Joins::default();
    for operator in operators(plan) {
        if let Some(join) = operator.downcast_ref::<StraitJoinExec>() {
            match join.declined() {
                Some(why) => joins.declined.push(why.to_string()),
                None => joins.replaced += 1,
            }
        }
        joins.stock += usize::from(operator.is::<HashJoinExec>());
        joins.sort_merge += usize::from(operator.is::<SortMergeJoinExec>());
    }
    joins
}

/// Returns the sum of a counter over all of Strait's joins of a plan.
pub(crate) fn counted(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let joins = operators(plan).into_iter().filter(|operator| operator.is::<StraitJoinExec>());
    joins.map(|join| metric(&join, name)).sum()
}

/// Returns the sum of a counter of one operator over its partitions.
pub(crate) fn metric(operator: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let metrics = operator.metrics().unwrap_or_default();
    metrics.sum(|metric| metric.value().name() == name).map_or(0, |sum| sum.as_usize())
}

/// Returns the physical plan of a query.
pub(crate) async fn plan(ctx: &SessionContext, sql: &str) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    assert_sane(&plan, sql);
    Ok(plan)
}

/// Panics if an input of an operator lacks the order or the partitions that the operator requires.
pub(crate) fn assert_sane(plan: &Arc<dyn ExecutionPlan>, about: &str) {
    if let Err(error) = sanity(plan) {
        panic!("{about}: {error}\n{}", displayable(plan.as_ref()).indent(false));
    }
}

/// DataFusion checks its plans before Strait's rule runs. This checks them again.
pub(crate) fn sanity(plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
    SanityCheckPlan::new().optimize(Arc::clone(plan), &ConfigOptions::default()).map(drop)
}

/// Runs a query. Panics if it takes too long.
pub(crate) async fn run(ctx: &SessionContext, sql: &str) -> Result<Vec<RecordBatch>> {
    let plan = plan(ctx, sql).await?;
    let collected = tokio::time::timeout(PATIENCE, collect(plan, ctx.task_ctx()));
    collected.await.unwrap_or_else(|_| panic!("the query hangs: {sql}"))
}

/// Waits until something holds. Panics if it does not hold in time.
pub(crate) async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until a pool has no reserved memory. The threads of a cancelled join end soon after the join.
pub(crate) async fn released(pool: &Arc<dyn MemoryPool>, about: &str) {
    eventually(&format!("all memory is released ({about})"), || pool.reserved() == 0).await;
}

//! Which joins are replaced, what `EXPLAIN` shows, and the options.

use std::sync::Arc;

use arrow::array::{AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::MemTable;
use datafusion::config::ConfigOptions;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{
    ChildrenPropertiesMode, ReplaceChildrenOptions, reset_plan_states,
};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use strait_datafusion::{StraitJoinExec, StraitJoinRule};

use crate::rows::assert_same;
use crate::session::{self, counted, joins, metric, operators};
use crate::streams::Scripted;

const SHARED: &str = "SELECT l.v, r.v FROM l JOIN r ON l.k = r.k";
const GROUPED: &str = "SELECT l.k, count(*), sum(r.v) FROM l JOIN r ON l.k = r.k GROUP BY l.k";

fn config(partitions: usize, collected: usize) -> SessionConfig {
    let mut config =
        SessionConfig::new().with_target_partitions(partitions).with_information_schema(true);
    let optimizer = &mut config.options_mut().optimizer;
    optimizer.hash_join_single_partition_threshold = collected;
    optimizer.hash_join_single_partition_threshold_rows = collected;
    config
}

/// A table with the columns `k` and `v`, in three partitions.
fn table(rows: i64) -> MemTable {
    let fields = ["k", "v"].map(|name| Field::new(name, DataType::Int64, false));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let batch = |partition: i64| {
        let rows = (partition * rows / 3)..((partition + 1) * rows / 3);
        let keys: Int64Array = rows.clone().map(|n| Some(n / 2)).collect();
        let values: Int64Array = rows.map(Some).collect();
        RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(keys), Arc::new(values)])
    };
    let partitions = (0..3).map(|partition| vec![batch(partition).expect("a valid batch")]);
    let partitions = partitions.collect();
    MemTable::try_new(Arc::clone(&schema), partitions).expect("one schema")
}

fn register(ctx: &SessionContext) {
    ctx.register_table("l", Arc::new(table(60))).expect("the name is new");
    ctx.register_table("r", Arc::new(table(900))).expect("the name is new");
}

fn with_tables(config: SessionConfig) -> SessionContext {
    let ctx = session::with_strait(config, Arc::default(), session::options());
    register(&ctx);
    ctx
}

/// Returns what a statement shows, as one text.
async fn shown(ctx: &SessionContext, statement: &str) -> String {
    let batches = session::run(ctx, statement).await.unwrap_or_else(|e| panic!("{statement}: {e}"));
    let columns = batches.iter().flat_map(|batch| batch.columns().last());
    let lines = columns.flat_map(|column| column.as_string::<i32>().iter().flatten());
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn explain_shows_the_mode() {
    let ctx = with_tables(config(3, 0));
    let plan = shown(&ctx, &format!("EXPLAIN {SHARED}")).await;
    assert!(
        plan.contains("StraitJoinExec: mode=Shared, join_type=Inner, on=[(k@0, k@0)]"),
        "{plan}"
    );
    // Nothing needs the partitions, so nothing makes them.
    assert!(!plan.contains("RepartitionExec") && !plan.contains("HashJoinExec"), "{plan}");
    let plan = shown(&ctx, &format!("EXPLAIN {GROUPED}")).await;
    assert!(plan.contains("StraitJoinExec: mode=Partitioned, join_type=Inner"), "{plan}");
    assert!(plan.contains("RepartitionExec: partitioning=Hash([k@0], 3)"), "{plan}");
    let plan = shown(&ctx, "EXPLAIN SELECT * FROM l WHERE k NOT IN (SELECT k FROM r)").await;
    assert!(plan.contains("StraitJoinExec: mode=Shared, join_type=LeftAnti"), "{plan}");
    // The left side is collected, and the groups of the right side stay where they are.
    let ctx = with_tables(config(3, 1 << 20));
    let sql = "SELECT g.k, count(*) FROM l JOIN (SELECT k, sum(v) AS s FROM r GROUP BY k) g \
               ON l.k = g.k GROUP BY g.k";
    let plan = shown(&ctx, &format!("EXPLAIN {sql}")).await;
    assert!(plan.contains("StraitJoinExec: mode=CollectLeft, join_type=Inner"), "{plan}");
    assert!(plan.contains("CoalescePartitionsExec"), "{plan}");
}

#[tokio::test]
async fn a_tree_shows_the_mode() {
    let ctx = with_tables(config(3, 0));
    let plan = shown(&ctx, &format!("EXPLAIN FORMAT TREE {SHARED}")).await;
    assert!(plan.contains("StraitJoinExec") && plan.contains("mode: Shared"), "{plan}");
}

#[tokio::test]
async fn a_join_of_an_unbounded_input_is_declined() {
    let ctx = with_tables(config(2, 0));
    let rows = Scripted::new(2, 50, 20, 10, &Arc::default()).table(false);
    // It ends, but it does not say so.
    let unbounded = Arc::into_inner(rows).expect("no other owner").with_infinite_table(true);
    ctx.register_table("u", Arc::new(unbounded)).expect("the name is new");
    let sql = "SELECT l.v, u.v FROM l JOIN u ON l.k = u.k";
    let plan = session::plan(&ctx, sql).await.expect("a plan");
    assert_eq!(joins(&plan).declined, ["an input is unbounded"]);
    let text = displayable(plan.as_ref()).indent(false).to_string();
    assert!(text.contains("StraitJoinExec: declined (an input is unbounded)"), "{text}");
    let found = collect(plan, ctx.task_ctx()).await.expect("no error");
    assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), 200);
}

#[tokio::test]
async fn small_joins_are_declined_on_request() {
    let ctx = with_tables(config(3, 0));
    for (min_rows, declined) in [(0, false), (61, false), (900, false), (901, true), (10_000, true)]
    {
        session::run(&ctx, &format!("SET strait.min_rows = {min_rows}")).await.expect("an option");
        let plan = session::plan(&ctx, SHARED).await.expect("a plan");
        let all = joins(&plan);
        let reason = format!("both tables have fewer than {min_rows} rows");
        let expected = if declined { vec![reason] } else { Vec::new() };
        assert_eq!(all.declined, expected, "min_rows {min_rows}");
        assert_eq!(all.replaced, usize::from(!declined), "min_rows {min_rows}");
        let found = collect(plan, ctx.task_ctx()).await.expect("no error");
        assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), 120);
    }
}

#[tokio::test]
async fn without_strait_the_plan_is_the_stock_plan() {
    let ctx = with_tables(config(3, 0));
    let stock = session::stock(config(3, 0), Arc::default());
    register(&stock);
    session::run(&ctx, "SET strait.enabled = false").await.expect("an option");
    for sql in [SHARED, GROUPED, "SELECT * FROM l WHERE k NOT IN (SELECT k FROM r)"] {
        let [of_stock, plan] = [&stock, &ctx].map(|ctx| session::plan(ctx, sql));
        let (of_stock, plan) = (of_stock.await.expect("a plan"), plan.await.expect("a plan"));
        let text =
            |plan: &Arc<dyn ExecutionPlan>| displayable(plan.as_ref()).indent(true).to_string();
        assert_eq!(text(&of_stock), text(&plan), "{sql}");
        assert!(joins(&plan).stock > 0);
    }
    session::run(&ctx, "SET strait.enabled = true").await.expect("an option");
    assert_eq!(joins(&session::plan(&ctx, SHARED).await.expect("a plan")).replaced, 1);
}

#[tokio::test]
async fn wrong_options_are_errors_that_name_the_option() {
    // DataFusion's errors about numbers and booleans have no name.
    for (name, value, named) in [
        ("strait.algorithm", "nonsense", true),
        ("strait.device", "moon", true),
        ("strait.device", "gpu:x", true),
        ("strait.enabled", "perhaps", false),
        ("strait.gpu_memory", "lots", false),
        ("strait.min_rows", "-1", false),
        ("strait.speed", "11", false),
    ] {
        let ctx = with_tables(config(2, 0));
        let set = session::run(&ctx, &format!("SET {name} = '{value}'")).await;
        let error = match set {
            Err(error) => error,
            Ok(_) => session::run(&ctx, SHARED).await.expect_err(name),
        };
        let error = error.to_string();
        assert!(error.contains(name) || !named, "{name} = {value}: {error}");
        assert!(error.contains(value) || name == "strait.speed", "{name} = {value}: {error}");
    }
}

#[tokio::test]
async fn options_are_listed() {
    let ctx = with_tables(config(2, 0));
    session::run(&ctx, "SET strait.min_rows = 77").await.expect("an option");
    // DataFusion lists the names of extensions without their prefix.
    let sql = "SELECT name || '=' || value FROM information_schema.df_settings \
               WHERE name IN ('min_rows', 'strait.min_rows') OR name IN ('algorithm', 'strait.algorithm')";
    let batches = session::run(&ctx, sql).await.expect("rows");
    let mut found = Vec::new();
    for batch in &batches {
        let column = arrow::compute::cast(batch.column(0), &DataType::Utf8).expect("text");
        found.extend(column.as_string::<i32>().iter().flatten().map(str::to_string));
    }
    found.sort();
    let found: Vec<_> = found.iter().map(|name| name.trim_start_matches("strait.")).collect();
    assert_eq!(found, ["algorithm=auto", "min_rows=77"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_algorithm_joins() {
    let stock = session::stock(config(3, 0), Arc::default());
    register(&stock);
    let queries = [
        SHARED,
        GROUPED,
        "SELECT l.v, r.v FROM l FULL JOIN r ON l.k = r.k AND r.v % 3 = 0",
        "SELECT * FROM l WHERE k NOT IN (SELECT k FROM r WHERE k % 2 = 0)",
        "SELECT * FROM r WHERE k IN (SELECT k FROM l) OR v % 100 = 1",
    ];
    for algorithm in ["auto", "no-partition", "radix", "sort-merge", "spill"] {
        let ctx = with_tables(config(3, 0));
        session::run(&ctx, &format!("SET strait.algorithm = '{algorithm}'"))
            .await
            .expect("an option");
        for sql in queries {
            let about = format!("{algorithm}: {sql}");
            let expected = session::run(&stock, sql).await.expect("DataFusion joins");
            let found = session::run(&ctx, sql).await.unwrap_or_else(|e| panic!("{about}: {e}"));
            assert_same(&expected, &found, &about);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_analyze_has_the_figures() {
    let pool = Arc::new(GreedyMemoryPool::new(1 << 20));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc().expect("a runtime");
    let ctx = session::with_strait(config(2, 0), runtime, session::options());
    ctx.register_table("l", Arc::new(table(60_000))).expect("the name is new");
    ctx.register_table("r", Arc::new(table(90_000))).expect("the name is new");
    let plan = shown(&ctx, &format!("EXPLAIN ANALYZE {SHARED}")).await;
    let line = plan.lines().find(|line| line.contains("StraitJoinExec")).expect("a join");
    for name in [
        "output_rows=",
        "build_input_rows=",
        "input_rows=",
        "join_time=",
        "peak_mem_used=",
        "spilled_bytes=",
    ] {
        assert!(line.contains(name), "{name} {line}");
    }
    let plan = session::plan(&ctx, SHARED).await.expect("a plan");
    let found = collect(Arc::clone(&plan), ctx.task_ctx()).await.expect("no error");
    let rows: usize = found.iter().map(RecordBatch::num_rows).sum();
    let all = operators(&plan);
    let join = all.iter().find(|operator| operator.is::<StraitJoinExec>()).expect("a join");
    assert_eq!(metric(join, "build_input_rows"), 60_000);
    assert_eq!(metric(join, "input_rows"), 90_000);
    assert_eq!((metric(join, "output_rows"), rows), (120_000, 120_000));
    assert!(metric(join, "spilled_bytes") > 0 && metric(join, "spill_count") > 0, "{line}");
    let peak = metric(join, "peak_mem_used");
    assert!(peak > 0 && peak <= 1 << 20, "the peak is {peak}");
    assert_eq!(counted(&plan, "bytes_to_gpu"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rule_may_run_twice() {
    let ctx = with_tables(config(3, 0));
    for sql in [SHARED, GROUPED] {
        let plan = session::plan(&ctx, sql).await.expect("a plan");
        let config = ConfigOptions::default();
        let again = StraitJoinRule.optimize(Arc::clone(&plan), &config).expect("a plan");
        let text =
            |plan: &Arc<dyn ExecutionPlan>| displayable(plan.as_ref()).indent(true).to_string();
        assert_eq!(text(&plan), text(&again), "{sql}");
        let first = collect(plan, ctx.task_ctx()).await.expect("no error");
        // The two plans have the same operators below their joins.
        let again = reset_plan_states(again).expect("the state is reset");
        let second = collect(again, ctx.task_ctx()).await.expect("no error");
        assert_same(&first, &second, sql);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_take_other_inputs() {
    let ctx = with_tables(config(3, 0));
    for sql in [SHARED, GROUPED] {
        let plan = session::plan(&ctx, sql).await.expect("a plan");
        let all = operators(&plan);
        let join = all.iter().find(|operator| operator.is::<StraitJoinExec>()).expect("a join");
        let children = join.children().into_iter().map(Arc::clone).collect();
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        let same = Arc::clone(join).replace_children(children, options).expect("a join");
        assert_eq!(same.schema(), join.schema());
        let first = collect(Arc::clone(join), ctx.task_ctx()).await.expect("no error");
        let same = reset_plan_states(same).expect("the state is reset");
        let second = collect(same, ctx.task_ctx()).await.expect("no error");
        assert_eq!(first.iter().map(RecordBatch::num_rows).sum::<usize>(), 120, "{sql}");
        assert_same(&first, &second, sql);
    }
}

#[tokio::test]
async fn a_session_without_the_options_has_the_defaults() {
    let state = SessionStateBuilder::new()
        .with_config(config(2, 0))
        .with_default_features()
        .with_physical_optimizer_rule(Arc::new(StraitJoinRule))
        .build();
    let ctx = SessionContext::new_with_state(state);
    register(&ctx);
    let plan = session::plan(&ctx, SHARED).await.expect("a plan");
    assert_eq!(joins(&plan).replaced, 1);
    let found = collect(plan, ctx.task_ctx()).await.expect("no error");
    assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), 120);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_over_a_join_can_be_written_and_read() {
    let ctx = with_tables(config(3, 0));
    session::run(&ctx, &format!("CREATE TABLE joined AS {GROUPED}")).await.expect("a table");
    let written = session::run(&ctx, "SELECT * FROM joined").await.expect("rows");
    let found = session::run(&ctx, GROUPED).await.expect("rows");
    assert_same(&found, &written, "the table and the query");
}

/// Each branch of the union has one value in `src`. DataFusion may remove sorts because of that, so a join must keep the
/// partitions apart if the order of its output is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_that_are_constant_within_each_partition() {
    let sql = "SELECT u.src, u.k FROM d RIGHT SEMI JOIN \
               (SELECT 'a' AS src, k FROM a UNION ALL SELECT 'b', k FROM b) u ON u.k = d.k";
    let config = config(2, 1 << 20);
    let stock = session::stock(config, Arc::default());
    for name in ["a", "b", "d"] {
        stock.register_table(name, Arc::new(table(900))).expect("the name is new");
    }
    let plan = session::plan(&stock, sql).await.expect("a plan");
    let all = operators(&plan);
    let join = all.iter().find(|operator| operator.is::<HashJoinExec>()).expect("a join");
    let src = join.schema().index_of("src").expect("a column of the union");
    let src: Arc<dyn PhysicalExpr> = Arc::new(Column::new("src", src));
    let order = LexOrdering::new([PhysicalSortExpr::new_default(src)]).expect("one column");
    let merge = SortPreservingMergeExec::new(order, Arc::clone(join));
    let optimized = |plan: Arc<dyn ExecutionPlan>| {
        StraitJoinRule.optimize(plan, &ConfigOptions::default()).expect("a plan")
    };
    let declined = joins(&optimized(Arc::new(merge))).declined;
    assert_eq!(declined, ["a column is constant within each partition"]);
    assert_eq!(joins(&optimized(plan)).replaced, 1);
}

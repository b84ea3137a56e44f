//! Sort-merge joins that Strait replaces.

use std::sync::Arc;

use datafusion::physical_plan::joins::SortMergeJoinExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use strait_datafusion::StraitJoinExec;

use crate::rows::{assert_same, sequence};
use crate::session::{self, joins, operators};
use crate::tables::{Family, Shape, Table};

const KINDS: [&str; 8] = [
    "JOIN",
    "LEFT JOIN",
    "RIGHT JOIN",
    "FULL JOIN",
    "LEFT SEMI JOIN",
    "RIGHT SEMI JOIN",
    "LEFT ANTI JOIN",
    "RIGHT ANTI JOIN",
];

fn config(partitions: usize) -> SessionConfig {
    let mut config = SessionConfig::new().with_target_partitions(partitions).with_batch_size(40);
    config.options_mut().optimizer.prefer_hash_join = false;
    config
}

/// Returns a session without Strait, and one that replaces sort-merge joins. The table `a` has more rows than `b`.
fn sessions(partitions: usize, restore: bool) -> [SessionContext; 2] {
    let mut options = session::options();
    options.sort_merge_joins = true;
    options.restore_order = restore;
    let stock = session::stock(config(partitions), Arc::default());
    let ctx = session::with_strait(config(partitions), Arc::default(), options);
    let mut rng = fastrand::Rng::with_seed(7);
    for (name, rows) in [("a", 500), ("b", 90)] {
        let shape = Shape { rows, partitions: 2, batch: 30, domain: 60, nulls: 10, wide: 5 };
        let families = [Family::Integer, Family::Text];
        let types = [arrow::datatypes::DataType::Int64, arrow::datatypes::DataType::Utf8];
        // DataFusion's join fails if it makes nulls of a column that has none.
        let nullable = |table: &Table| table.schema.field(0).is_nullable();
        let tables = std::iter::repeat_with(|| Table::random(&mut rng, &families, &types, &shape));
        let table = tables.into_iter().find(nullable).expect("it tries until it finds one");
        let table = table.provider(None);
        for ctx in [&stock, &ctx] {
            ctx.register_table(name, Arc::clone(&table) as _).expect("the name is new");
        }
    }
    [stock, ctx]
}

fn count<T: ExecutionPlan>(plan: &Arc<dyn ExecutionPlan>) -> usize {
    operators(plan).iter().filter(|operator| operator.is::<T>()).count()
}

fn text(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).indent(false).to_string()
}

/// Runs a query with and without Strait. DataFusion's plan has a sort-merge join, and Strait's plan has none.
async fn compare(
    [stock, ctx]: &[SessionContext; 2],
    sql: &str,
    sorted_by: usize,
) -> Arc<dyn ExecutionPlan> {
    let of_stock = session::plan(stock, sql).await.expect("a plan");
    assert_eq!(count::<SortMergeJoinExec>(&of_stock), 1, "{sql}\n{}", text(&of_stock));
    let expected = collect(of_stock, stock.task_ctx()).await.expect("no error");
    let plan = session::plan(ctx, sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let about = format!("{sql}\n{}", text(&plan));
    assert_eq!(count::<SortMergeJoinExec>(&plan), 0, "{about}");
    let found = collect(Arc::clone(&plan), ctx.task_ctx()).await.expect(&about);
    assert_same(&expected, &found, &about);
    let [expected, found] = [&expected, &found].map(|batches| sequence(batches, sorted_by));
    assert!(expected == found, "another order: {about}");
    plan
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_join_types_are_replaced() {
    let sessions = sessions(3, false);
    for kind in KINDS {
        for on in [
            "a.k0 = b.k0",
            "a.k1 = b.k1 AND a.k0 = b.k0",
            "a.k0 = b.k0 AND a.id < b.id + 200",
            "a.k0 IS NOT DISTINCT FROM b.k0",
        ] {
            for tables in [["a", "b"], ["b", "a"]] {
                let [left, right] = tables;
                let sql = format!("SELECT * FROM {left} {kind} {right} ON {on}");
                let plan = compare(&sessions, &sql, 0).await;
                let shown = text(&plan);
                assert_eq!(joins(&plan).replaced, 1, "{shown}");
                // Nothing needs sorted rows, nor partitions.
                assert_eq!(count::<SortExec>(&plan), 0, "{shown}");
                assert_eq!(count::<RepartitionExec>(&plan), 0, "{shown}");
                assert!(shown.contains("StraitJoinExec: mode=Shared"), "{shown}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_matter_are_kept() {
    let sessions = sessions(3, false);
    for kind in ["JOIN", "LEFT JOIN"] {
        for tables in [["a", "b"], ["b", "a"]] {
            let [left, right] = tables;
            let sql = format!(
                "SELECT {left}.k0, count(*), sum({right}.id) FROM {left} {kind} {right} \
                 ON a.k0 = b.k0 GROUP BY {left}.k0"
            );
            let plan = compare(&sessions, &sql, 0).await;
            let shown = text(&plan);
            assert!(shown.contains("StraitJoinExec: mode=Partitioned"), "{shown}");
            assert_eq!(
                (count::<SortExec>(&plan), count::<RepartitionExec>(&plan)),
                (0, 2),
                "{shown}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_smaller_table_is_the_build_side() {
    let sessions = sessions(3, false);
    for tables in [["a", "b"], ["b", "a"]] {
        let [left, right] = tables;
        let sql = format!("SELECT a.id, b.id, a.p0, b.p0 FROM {left} JOIN {right} ON a.k0 = b.k0");
        let plan = compare(&sessions, &sql, 0).await;
        let all = operators(&plan);
        let join = all.iter().find(|operator| operator.is::<StraitJoinExec>()).expect("a join");
        assert_eq!(session::metric(join, "build_input_rows"), 90, "{}", text(&plan));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_is_used_is_restored() {
    let sessions = sessions(3, true);
    for kind in ["JOIN", "LEFT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"] {
        let sql =
            format!("SELECT a.k0, a.id FROM a {kind} b ON a.k0 = b.k0 ORDER BY a.k0 NULLS FIRST");
        let plan = compare(&sessions, &sql, 1).await;
        assert_eq!((joins(&plan).replaced, count::<SortExec>(&plan)), (1, 1), "{}", text(&plan));
        let sql = format!("{sql} LIMIT 11");
        let plan = session::plan(&sessions[1], &sql).await.expect("a plan");
        let [expected, found] = [
            session::run(&sessions[0], &sql).await.expect("rows"),
            collect(plan, sessions[1].task_ctx()).await.expect("rows"),
        ];
        assert!(sequence(&expected, 1) == sequence(&found, 1), "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_that_is_not_replaced_says_why() {
    let [_, ctx] = sessions(3, false);
    let sql = "SELECT a.k0, a.id FROM a JOIN b ON a.k0 = b.k0 ORDER BY a.k0 NULLS FIRST";
    let plan = session::plan(&ctx, sql).await.expect("a plan");
    let shown = text(&plan);
    let why = "the order of its output is used, and strait.restore_order is false";
    assert_eq!(joins(&plan).declined, [why], "{shown}");
    assert!(shown.contains(&format!("declined ({why}), SortMergeJoinExec: join_type")), "{shown}");
    let [stock, _] = sessions(3, false);
    let expected = session::run(&stock, sql).await.expect("rows");
    let found = collect(plan, ctx.task_ctx()).await.expect("no error");
    assert_same(&expected, &found, sql);
    assert!(sequence(&expected, 1) == sequence(&found, 1));
    session::run(&ctx, "SET strait.min_rows = 1000").await.expect("an option");
    let plan = session::plan(&ctx, "SELECT * FROM a JOIN b ON a.k0 = b.k0").await.expect("a plan");
    assert_eq!(joins(&plan).declined, ["both tables have fewer than 1000 rows"]);
}

#[tokio::test]
async fn without_the_option_they_stay() {
    let [_, ctx] = sessions(3, true);
    session::run(&ctx, "SET strait.sort_merge_joins = false").await.expect("an option");
    let plan = session::plan(&ctx, "SELECT * FROM a JOIN b ON a.k0 = b.k0").await.expect("a plan");
    assert_eq!((joins(&plan).replaced, count::<SortMergeJoinExec>(&plan)), (0, 1));
}

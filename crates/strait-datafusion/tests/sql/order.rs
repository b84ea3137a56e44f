//! Joins whose order is used, and sorts that restore it.
//!
//! The table `s` is sorted by `v`, and `g` is sorted by `k`. So DataFusion joins them without a sort, and its join keeps
//! the order of its right input.

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::MemTable;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext, col};
use strait_datafusion::StraitJoinExec;

use crate::rows::{assert_same, sequence};
use crate::session::{self, joins, operators};
use crate::streams::key_and_value;

const PARTITIONS: [usize; 2] = [1, 3];

/// Queries that use the order of a join, and the number of columns by which their rows are sorted. These columns are the
/// first ones.
const ORDERED: [(&str, usize); 16] = [
    ("SELECT s.v, l.v FROM l JOIN s ON l.k = s.k ORDER BY s.v", 1),
    ("SELECT s.v, l.v FROM l JOIN s ON l.k = s.k AND l.v < s.v ORDER BY s.v", 1),
    ("SELECT s.v, l.v FROM l RIGHT JOIN s ON l.k = s.k ORDER BY s.v", 1),
    ("SELECT s.v FROM l RIGHT SEMI JOIN s ON l.k = s.k ORDER BY s.v", 1),
    ("SELECT s.v FROM l RIGHT ANTI JOIN s ON l.k = s.k ORDER BY s.v", 1),
    ("SELECT s.v FROM l JOIN s ON l.k = s.k ORDER BY s.v LIMIT 7", 1),
    ("SELECT s.v FROM l JOIN s ON l.k = s.k ORDER BY s.v LIMIT 7 OFFSET 5", 1),
    ("SELECT g.k, l.k FROM l JOIN g ON l.v = g.v ORDER BY g.k", 1),
    ("SELECT g.k, g.k + 1 FROM l JOIN g ON l.k = g.k ORDER BY l.k", 1),
    ("SELECT s.v, sum(l.v) OVER (ORDER BY s.v) FROM l JOIN s ON l.k = s.k ORDER BY s.v", 1),
    ("SELECT sum(l.v) OVER (ORDER BY s.v) FROM l JOIN s ON l.k = s.k", 0),
    ("SELECT array_agg(s.v ORDER BY s.v) FROM l JOIN s ON l.k = s.k", 0),
    (
        "SELECT l.v % 5, first_value(s.v ORDER BY s.v), last_value(s.v ORDER BY s.v) FROM l JOIN s ON l.k = s.k GROUP BY l.v % 5",
        0,
    ),
    (
        "SELECT count(*), max(v) FROM (SELECT s.v FROM l JOIN s ON l.k = s.k ORDER BY s.v LIMIT 9)",
        0,
    ),
    ("SELECT s.v, a.v FROM l a JOIN (l JOIN s ON l.k = s.k) ON a.k = s.k ORDER BY s.v", 1),
    ("SELECT g.k, count(*) FROM l JOIN g ON l.k = g.k GROUP BY g.k ORDER BY g.k", 1),
];

/// The same, for operators between the join and the use of its order that do not say that they maintain it.
const DERIVED: [(&str, usize); 6] = [
    ("SELECT s.v, l.v FROM l JOIN s ON l.k = s.k UNION ALL SELECT v, k FROM s ORDER BY 1", 1),
    ("SELECT s.v FROM l JOIN s ON l.k = s.k UNION ALL SELECT v FROM s ORDER BY 1 LIMIT 9", 1),
    ("SELECT s.v, unnest(make_array(l.v, 7)) AS x FROM l JOIN s ON l.k = s.k ORDER BY s.v", 1),
    (
        "SELECT v, x FROM (SELECT s.v, unnest(make_array(1, 1)) AS x FROM l JOIN s ON l.k = s.k) ORDER BY v LIMIT 11",
        1,
    ),
    (
        "SELECT v, row_number() OVER (ORDER BY v) - row_number() OVER (ORDER BY v) FROM \
         (SELECT s.v, unnest(make_array(1, 1)) AS x FROM l JOIN s ON l.k = s.k) ORDER BY v",
        1,
    ),
    // The order of the build side comes after the order of the probe side.
    (
        "SELECT g.k, w.v FROM (SELECT s.k, s.v FROM l JOIN s ON l.k = s.k) w JOIN g ON w.k = g.v ORDER BY g.k, w.v",
        2,
    ),
];

/// Queries that do not use the order.
const UNORDERED: [&str; 6] = [
    "SELECT count(*), sum(s.v) FROM l JOIN s ON l.k = s.k",
    "SELECT sum(k), sum(n) FROM (SELECT g.k, count(*) AS n FROM l JOIN g ON l.k = g.k GROUP BY g.k)",
    "SELECT count(*) FROM (SELECT DISTINCT g.k, l.v FROM l JOIN g ON l.k = g.k)",
    "SELECT s.v, l.v FROM l JOIN s ON l.k = s.k ORDER BY l.v, s.v",
    "SELECT s.v, sum(l.v) OVER (PARTITION BY l.k ORDER BY s.k, s.v) FROM l JOIN s ON l.k = s.k",
    "SELECT a.v, max(s.v) FROM l a JOIN (l JOIN s ON l.k = s.k) ON a.k = s.k GROUP BY a.v",
];

/// Returns a table whose partitions are sorted by one of its columns. Its values repeat.
fn sorted(rows: i64, partitions: usize, by: &str) -> MemTable {
    let partition = |number: usize| {
        let rows: Vec<_> = (0..rows).filter(|row| *row as usize % partitions == number).collect();
        let slow: Int64Array = rows.iter().map(|row| Some(row / 4)).collect();
        let mixed: Int64Array = rows.iter().map(|row| Some(row * 37 % 89)).collect();
        let columns = if by == "k" { [slow, mixed] } else { [mixed, slow] };
        let columns = columns.map(|column| Arc::new(column) as _).to_vec();
        let batch = RecordBatch::try_new(key_and_value(), columns).expect("a valid batch");
        let half = batch.num_rows() / 2;
        vec![batch.slice(0, half), batch.slice(half, batch.num_rows() - half)]
    };
    let partitions = (0..partitions).map(partition).collect();
    let table = MemTable::try_new(key_and_value(), partitions).expect("one schema");
    table.with_sort_order(vec![vec![col(by).sort(true, false)]])
}

fn config(partitions: usize, collected: usize) -> SessionConfig {
    let mut config = SessionConfig::new().with_target_partitions(partitions).with_batch_size(50);
    let optimizer = &mut config.options_mut().optimizer;
    optimizer.hash_join_single_partition_threshold = collected;
    optimizer.hash_join_single_partition_threshold_rows = collected;
    // It keeps sorted partitions apart.
    optimizer.prefer_existing_sort = true;
    config
}

fn register(ctx: &SessionContext, partitions: usize) {
    for (name, rows, by) in [("l", 60, "k"), ("s", 900, "v"), ("g", 700, "k")] {
        let table = sorted(rows, partitions, by);
        // The order of the left table is not known.
        let table = if name == "l" { table.with_sort_order(Vec::new()) } else { table };
        ctx.register_table(name, Arc::new(table)).expect("the name is new");
    }
}

/// Returns a session without Strait, and one with it.
fn sessions(partitions: usize, collected: usize, restore: bool) -> [SessionContext; 2] {
    let config = config(partitions, collected);
    let mut options = session::options();
    options.restore_order = restore;
    // It joins partition by partition, and so in another order than the rows of its inputs.
    options.algorithm = "spill".to_string();
    let stock = session::stock(config.clone(), Arc::default());
    let ctx = session::with_strait(config, Arc::default(), options);
    register(&stock, partitions);
    register(&ctx, partitions);
    [stock, ctx]
}

fn text(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).indent(false).to_string()
}

fn sorts(plan: &Arc<dyn ExecutionPlan>) -> usize {
    operators(plan).iter().filter(|operator| operator.is::<SortExec>()).count()
}

/// Runs a query with and without Strait. The rows must be the same, and sorted in the same way by the first columns.
async fn compare(
    [stock, ctx]: &[SessionContext; 2],
    sql: &str,
    sorted_by: usize,
) -> Arc<dyn ExecutionPlan> {
    let expected = session::run(stock, sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let plan = session::plan(ctx, sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let about = format!("{sql}\n{}", text(&plan));
    let found = collect(Arc::clone(&plan), ctx.task_ctx()).await;
    let found = found.unwrap_or_else(|error| panic!("{about}: {error}"));
    assert_same(&expected, &found, &about);
    let [of_expected, of_found] = [&expected, &found].map(|batches| sequence(batches, sorted_by));
    assert!(of_expected == of_found, "another order: {about}");
    plan
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_is_used_is_restored() {
    for partitions in PARTITIONS {
        for collected in [0, 1 << 20] {
            let sessions = sessions(partitions, collected, true);
            for (sql, sorted_by) in ORDERED {
                let plan = compare(&sessions, sql, sorted_by).await;
                let all = joins(&plan);
                assert_eq!((all.stock, all.declined.len()), (0, 0), "{sql}\n{}", text(&plan));
                // DataFusion's join of several partitions does not keep every order.
                assert!(sorts(&plan) == 1 || partitions > 1, "{sql}\n{}", text(&plan));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_whose_order_is_used_is_declined() {
    for partitions in PARTITIONS {
        for collected in [0, 1 << 20] {
            let sessions = sessions(partitions, collected, false);
            let mut declined = 0;
            for (sql, sorted_by) in ORDERED {
                let plan = compare(&sessions, sql, sorted_by).await;
                let all = joins(&plan);
                assert_eq!(all.stock, 0, "{sql}");
                for why in &all.declined {
                    assert_eq!(
                        why, "the order of its output is used, and strait.restore_order is false",
                        "{sql}"
                    );
                }
                if !all.declined.is_empty() {
                    let of_stock = session::plan(&sessions[0], sql).await.expect("a plan");
                    assert_eq!(sorts(&of_stock), sorts(&plan), "{sql}\n{}", text(&plan));
                }
                declined += all.declined.len();
            }
            // With several partitions on both sides, DataFusion does not keep the order without a sort.
            let expected = if partitions == 1 { ORDERED.len() } else { ORDERED.len() / 2 };
            assert!(declined >= expected, "{partitions} partitions: {declined}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_passes_unions_and_joins_is_used() {
    for partitions in PARTITIONS {
        for collected in [0, 1 << 20] {
            for restore in [false, true] {
                let sessions = sessions(partitions, collected, restore);
                let mut used = 0;
                for (sql, sorted_by) in DERIVED {
                    let plan = compare(&sessions, sql, sorted_by).await;
                    used += joins(&plan).declined.len() + sorts(&plan);
                }
                assert!(used > 0, "no query uses the order of a join");
            }
        }
    }
}

/// DataFusion sorts the right input, and then removes the column of the order from the output of the join.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_of_columns_that_are_not_in_the_output_is_kept() {
    let table = |rows: i64, of_k: i64, of_v: i64| {
        let k: Int64Array = (0..rows).map(|row| Some(row % of_k)).collect();
        // No two rows have the same v.
        let v: Int64Array = (0..rows).map(|row| Some(row * of_v % 1009)).collect();
        let batch = RecordBatch::try_new(key_and_value(), vec![Arc::new(k), Arc::new(v)]);
        let batch = batch.expect("a valid batch");
        Arc::new(MemTable::try_new(key_and_value(), vec![vec![batch]]).expect("one schema"))
    };
    for collected in [0, 1 << 20] {
        for restore in [false, true] {
            let sessions = sessions(1, collected, restore);
            for ctx in &sessions {
                ctx.register_table("few", table(50, 50, 3)).expect("the name is new");
                ctx.register_table("many", table(900, 60, 7919)).expect("the name is new");
            }
            for sql in [
                "SELECT k FROM many WHERE k IN (SELECT k FROM few) ORDER BY v",
                "SELECT k FROM many WHERE k IN (SELECT k FROM few) ORDER BY v LIMIT 7",
                "SELECT k FROM many WHERE NOT EXISTS (SELECT 1 FROM few WHERE few.k = many.k) ORDER BY v",
                "SELECT few.*, many.k FROM few JOIN many ON few.k = many.k ORDER BY many.v",
                "SELECT many.v FROM (SELECT k FROM few) f RIGHT SEMI JOIN many ON f.k = many.k ORDER BY many.k, many.v",
            ] {
                let expected = session::run(&sessions[0], sql).await.expect("an answer");
                let plan = session::plan(&sessions[1], sql).await.expect("a plan");
                let found = session::run(&sessions[1], sql).await.expect("an answer");
                let [expected, found] = [expected, found].map(|batches| {
                    pretty_format_batches(&batches).expect("rows can be shown").to_string()
                });
                assert!(expected == found, "another order: {sql}\n{}", text(&plan));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_whose_order_is_not_used_is_replaced() {
    for partitions in PARTITIONS {
        for collected in [0, 1 << 20] {
            let sessions = sessions(partitions, collected, false);
            let mut promised = 0;
            for sql in UNORDERED {
                let plan = compare(&sessions, sql, 0).await;
                let all = joins(&plan);
                assert_eq!((all.stock, all.declined.len()), (0, 0), "{sql}\n{}", text(&plan));
                let of_stock = session::plan(&sessions[0], sql).await.expect("a plan");
                let keeps = |operator: &&Arc<dyn ExecutionPlan>| {
                    operator.is::<HashJoinExec>()
                        && operator.properties().output_ordering().is_some()
                };
                promised += operators(&of_stock).iter().filter(keeps).count();
            }
            assert!(promised > 0, "no join of DataFusion keeps an order");
        }
    }
}

/// DataFusion sorts the right input, and its join keeps this order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sort_below_a_join_moves_above_it() {
    for partitions in PARTITIONS {
        let sessions = sessions(partitions, 1 << 20, false);
        for (sql, sorted_by) in [
            ("SELECT s.k, s.v, l.v FROM l JOIN s ON l.k = s.k ORDER BY s.k", 1),
            ("SELECT s.k, s.v, l.v FROM l RIGHT JOIN s ON l.k = s.k ORDER BY s.k, s.v DESC", 2),
            (
                "SELECT s.k, s.v, l.v FROM l JOIN s ON l.k = s.k AND s.v % 7 <> 3 ORDER BY s.k DESC",
                1,
            ),
        ] {
            let of_stock = session::plan(&sessions[0], sql).await.expect("a plan");
            let all = operators(&of_stock);
            let join = all.iter().find(|operator| operator.is::<HashJoinExec>()).expect("a join");
            assert_eq!(sorts(join), 1, "{}", text(&of_stock));
            let plan = compare(&sessions, sql, sorted_by).await;
            let all = operators(&plan);
            let join = all.iter().find(|operator| operator.is::<StraitJoinExec>()).expect("a join");
            assert_eq!(
                (joins(&plan).replaced, sorts(&plan), sorts(join)),
                (1, 1, 0),
                "{}",
                text(&plan)
            );
        }
        // A window needs the sort where it is.
        let sql = "SELECT x.k, x.w, l.v FROM l JOIN \
                   (SELECT k, sum(v) OVER (PARTITION BY k ORDER BY v) AS w FROM s) x ON x.k = l.k ORDER BY x.k";
        let plan = compare(&sessions, sql, 1).await;
        assert_eq!(joins(&plan).declined.len(), 1, "{}", text(&plan));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_analyze_shows_the_plan_of_the_query() {
    for (restore, shown) in [(true, "SortExec"), (false, "StraitJoinExec: declined")] {
        let [_, ctx] = sessions(1, 1 << 20, restore);
        let (sql, _) = ORDERED[0];
        let explained =
            session::run(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await.expect("a plan");
        let explained = pretty_format_batches(&explained).expect("texts").to_string();
        assert!(explained.contains(shown), "{explained}");
    }
}

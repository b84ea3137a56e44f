//! The meaning of joins, with answers written by hand: nulls, marks, filters, and empty tables.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::session;

const TABLES: [&str; 6] = [
    "CREATE TABLE l (k INT, v INT) AS VALUES (1, 10), (2, 20), (2, 21), (NULL, 30), (3, 40)",
    "CREATE TABLE r (k INT, w TEXT) AS VALUES (2, 'a'), (2, 'b'), (NULL, 'n'), (4, 'd'), (1, NULL)",
    "CREATE TABLE e (k INT, w TEXT) AS SELECT * FROM (VALUES (1, 'x')) WHERE column1 > 1",
    "CREATE TABLE n (k INT) AS VALUES (NULL::INT), (NULL::INT)",
    "CREATE TABLE f (k DOUBLE, v INT) AS VALUES \
     ('-0.0'::DOUBLE, 1), ('0.0'::DOUBLE, 2), ('NaN'::DOUBLE, 3), (NULL, 4), ('-Infinity'::DOUBLE, 5)",
    "CREATE TABLE edges (a INT, b INT) AS VALUES (1, 2), (2, 3), (3, 4), (4, 2), (5, 6)",
];

/// A query, and its rows in any order. Columns are separated by `|`, rows by `;`, and a null is `-`.
type Case = (&'static str, &'static str);

const MEMBERSHIP: &[Case] = &[
    ("SELECT v FROM l WHERE k IN (SELECT k FROM r)", "10; 20; 21"),
    ("SELECT v FROM l WHERE k IN (SELECT k FROM e)", ""),
    ("SELECT v FROM l WHERE k IN (SELECT k FROM n)", ""),
    // A null in the list: nothing is known to be outside of it.
    ("SELECT v FROM l WHERE k NOT IN (SELECT k FROM r)", ""),
    ("SELECT v FROM l WHERE k NOT IN (SELECT k FROM n)", ""),
    ("SELECT v FROM l WHERE k NOT IN (SELECT k FROM r WHERE k IS NOT NULL)", "40"),
    ("SELECT v FROM l WHERE k NOT IN (SELECT k FROM r WHERE k = 4)", "10; 20; 21; 40"),
    // An empty list: also a null is outside of it.
    ("SELECT v FROM l WHERE k NOT IN (SELECT k FROM e)", "10; 20; 21; 30; 40"),
    ("SELECT v FROM l WHERE k NOT IN (SELECT k FROM r WHERE k > 99)", "10; 20; 21; 30; 40"),
    ("SELECT count(*) FROM l WHERE k NOT IN (SELECT k FROM e)", "5"),
    ("SELECT k FROM e WHERE k NOT IN (SELECT k FROM r)", ""),
    ("SELECT count(*) FROM n WHERE k NOT IN (SELECT k FROM e)", "2"),
    ("SELECT count(*) FROM n WHERE k NOT IN (SELECT k FROM l)", "0"),
    ("SELECT v FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.k = l.k)", "10; 20; 21"),
    ("SELECT v FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.k = l.k)", "30; 40"),
    (
        "SELECT v FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.k = l.k AND w > 'a')",
        "10; 30; 40",
    ),
    ("SELECT v FROM l WHERE NOT EXISTS (SELECT 1 FROM e WHERE e.k = l.k)", "10; 20; 21; 30; 40"),
    // Marks.
    ("SELECT v FROM l WHERE k IN (SELECT k FROM r) OR v > 35", "10; 20; 21; 40"),
    (
        "SELECT v FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.k = l.k AND w = 'b') OR v = 30",
        "20; 21; 30",
    ),
    ("SELECT v FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.k = l.k) OR v = 20", "20; 30; 40"),
    ("SELECT v FROM l WHERE EXISTS (SELECT 1 FROM e WHERE e.k = l.k) OR v = 10", "10"),
    ("SELECT k FROM l INTERSECT SELECT k FROM r", "1; 2; -"),
    ("SELECT k FROM l EXCEPT SELECT k FROM r", "3"),
];

const OUTER: &[Case] = &[
    (
        "SELECT l.k, v, r.k, w FROM l FULL JOIN r ON l.k = r.k AND w = 'a'",
        "2|20|2|a; 2|21|2|a; 1|10|-|-; -|30|-|-; 3|40|-|-; -|-|2|b; -|-|-|n; -|-|4|d; -|-|1|-",
    ),
    (
        "SELECT v, w FROM l FULL JOIN r ON l.k = r.k",
        "10|-; 20|a; 20|b; 21|a; 21|b; 30|-; 40|-; -|n; -|d",
    ),
    // A condition over the preserved side alone does not remove its rows.
    (
        "SELECT v, w FROM l LEFT JOIN r ON l.k = r.k AND v > 20",
        "10|-; 20|-; 21|a; 21|b; 30|-; 40|-",
    ),
    ("SELECT v, w FROM l RIGHT JOIN r ON l.k = r.k AND w > 'a'", "20|b; 21|b; -|a; -|n; -|d; -|-"),
    ("SELECT v, w FROM l LEFT JOIN r ON l.k = r.k WHERE w IS NULL", "10|-; 30|-; 40|-"),
    ("SELECT v FROM l LEFT JOIN r ON l.k = r.k WHERE r.k IS NULL", "30; 40"),
    ("SELECT v, w FROM l LEFT JOIN e ON l.k = e.k", "10|-; 20|-; 21|-; 30|-; 40|-"),
    ("SELECT e.w, v FROM e RIGHT JOIN l ON l.k = e.k AND v > 10", "-|10; -|20; -|21; -|30; -|40"),
    ("SELECT e.w, v FROM e FULL JOIN l ON l.k = e.k WHERE v > 20", "-|21; -|30; -|40"),
    ("SELECT count(*) FROM l JOIN e ON l.k = e.k", "0"),
    ("SELECT count(*) FROM e a FULL JOIN e b ON a.k = b.k", "0"),
    ("SELECT count(*) FROM l FULL JOIN r ON l.k = r.k", "9"),
    ("SELECT count(*), count(v), count(w) FROM l FULL JOIN r ON l.k = r.k", "9|7|6"),
    // Filters over no column.
    ("SELECT count(*) FROM l LEFT JOIN r ON l.k = r.k AND random() >= 0.0", "7"),
    ("SELECT count(*), count(w) FROM l LEFT JOIN r ON l.k = r.k AND random() < 0.0", "5|0"),
    ("SELECT * FROM l NATURAL JOIN r", "1|10|-; 2|20|a; 2|20|b; 2|21|a; 2|21|b"),
    ("SELECT v, (SELECT count(*) FROM r WHERE r.k = l.k) FROM l", "10|1; 20|2; 21|2; 30|0; 40|0"),
    ("SELECT v, (SELECT max(w) FROM r WHERE r.k = l.k) FROM l", "10|-; 20|b; 21|b; 30|-; 40|-"),
];

const KEYS: &[Case] = &[
    (
        "SELECT v, w FROM l JOIN r ON l.k IS NOT DISTINCT FROM r.k",
        "10|-; 20|a; 20|b; 21|a; 21|b; 30|n",
    ),
    (
        "SELECT v, w FROM l FULL JOIN r ON l.k IS NOT DISTINCT FROM r.k",
        "10|-; 20|a; 20|b; 21|a; 21|b; 30|n; 40|-; -|d",
    ),
    ("SELECT v FROM l LEFT ANTI JOIN r ON l.k IS NOT DISTINCT FROM r.k", "40"),
    ("SELECT v FROM l LEFT SEMI JOIN n ON l.k IS NOT DISTINCT FROM n.k", "30"),
    ("SELECT count(*) FROM n a JOIN n b ON a.k IS NOT DISTINCT FROM b.k", "4"),
    ("SELECT count(*) FROM n a JOIN n b ON a.k = b.k", "0"),
    ("SELECT count(*) FROM n a FULL JOIN n b ON a.k = b.k", "4"),
    // One of two keys is null.
    (
        "SELECT a.v, b.v FROM l a JOIN l b ON (a.k IS NOT DISTINCT FROM b.k) AND a.v = b.v",
        "10|10; 20|20; 21|21; 30|30; 40|40",
    ),
    ("SELECT a.v, b.v FROM l a JOIN l b ON a.k = b.k AND a.v = b.v", "10|10; 20|20; 21|21; 40|40"),
    ("SELECT v FROM l LEFT SEMI JOIN r ON l.k = r.k AND w = 'a'", "20; 21"),
    ("SELECT v FROM l LEFT ANTI JOIN r ON l.k = r.k AND w = 'a'", "10; 30; 40"),
    ("SELECT w FROM l RIGHT SEMI JOIN r ON l.k = r.k AND v > 20", "a; b"),
    ("SELECT w FROM l RIGHT ANTI JOIN r ON l.k = r.k", "n; d"),
    // Keys that are expressions.
    ("SELECT v, w FROM l JOIN r ON l.k + 1 = r.k", "10|a; 10|b; 40|d"),
    ("SELECT v, w FROM l JOIN r ON l.k * 2 = r.k + r.k - r.k", "10|a; 10|b; 20|d; 21|d"),
    ("SELECT v, w FROM l JOIN r ON coalesce(l.k, 4) = r.k AND w = 'd'", "30|d"),
    ("SELECT v, w FROM l JOIN r ON l.k::BIGINT = r.k::TEXT::BIGINT AND w IS NULL", "10|-"),
    // One column several times.
    (
        "SELECT a.k, a.k AS x, b.k AS y FROM l a JOIN l b ON a.v = b.v WHERE a.v < 21",
        "1|1|1; 2|2|2",
    ),
    // The zeros are equal, and NaN is equal to itself.
    ("SELECT a.v, b.v FROM f a JOIN f b ON a.k = b.k", "1|1; 1|2; 2|1; 2|2; 3|3; 5|5"),
    ("SELECT v FROM f WHERE k NOT IN (SELECT k FROM f WHERE v IN (1, 3))", "5"),
    // A recursive query executes the plan of its join again and again.
    (
        "WITH RECURSIVE reached(n) AS (SELECT 1 UNION SELECT b FROM reached JOIN edges ON n = a) \
         SELECT n FROM reached",
        "1; 2; 3; 4",
    ),
    (
        "WITH RECURSIVE steps(n, s) AS (SELECT 1, 0 UNION ALL \
         SELECT b, s + 1 FROM edges JOIN steps ON n = a WHERE s < 4) SELECT n, s FROM steps",
        "1|0; 2|1; 3|2; 4|3; 2|4",
    ),
    (
        "SELECT a.b, c.b FROM edges a JOIN edges b ON a.b = b.a JOIN edges c ON b.b = c.a",
        "2|4; 3|2; 4|3; 2|4",
    ),
];

async fn session(strait: bool, partitions: usize, collected: usize) -> SessionContext {
    let mut config = SessionConfig::new().with_target_partitions(partitions).with_batch_size(2);
    let optimizer = &mut config.options_mut().optimizer;
    optimizer.hash_join_single_partition_threshold = collected;
    optimizer.hash_join_single_partition_threshold_rows = collected;
    let ctx = match strait {
        true => session::with_strait(config, Arc::default(), session::options()),
        false => session::stock(config, Arc::default()),
    };
    for table in TABLES {
        session::run(&ctx, table).await.expect("a table");
    }
    ctx
}

/// Returns the rows as text, sorted.
fn text(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::new().with_null("-");
    let mut rows = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter();
        let columns = columns.map(|column| ArrayFormatter::try_new(column, &options));
        let columns: Vec<_> = columns.collect::<Result<_, _>>().expect("values can be shown");
        for row in 0..batch.num_rows() {
            let values: Vec<_> =
                columns.iter().map(|column| column.value(row).to_string()).collect();
            rows.push(values.join("|"));
        }
    }
    rows.sort();
    rows
}

async fn check(cases: &[Case]) {
    let mut replaced = 0;
    for (strait, partitions, collected) in
        [(false, 1, 0), (true, 1, 0), (true, 3, 1 << 20), (true, 3, 0), (true, 4, 0)]
    {
        let ctx = session(strait, partitions, collected).await;
        for (sql, expected) in cases {
            let about =
                format!("{sql}, Strait {strait}, {partitions} partitions, {collected} collected");
            let found =
                session::run(&ctx, sql).await.unwrap_or_else(|error| panic!("{about}: {error}"));
            let mut expected: Vec<_> = expected.split("; ").map(str::to_string).collect();
            expected.retain(|row| !row.is_empty());
            expected.sort();
            assert_eq!(text(&found), expected, "{about}");
            let plan = session::plan(&ctx, sql).await.expect("a plan");
            let joins = session::joins(&plan);
            assert_eq!(joins.declined, Vec::<String>::new(), "{about}");
            assert!(joins.stock == 0 || !strait, "{about}");
            replaced += joins.replaced;
        }
    }
    assert!(replaced >= 3 * cases.len(), "only {replaced} joins for {} queries", cases.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn membership() {
    check(MEMBERSHIP).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outer_joins() {
    check(OUTER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys() {
    check(KEYS).await;
}

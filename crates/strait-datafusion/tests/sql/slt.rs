//! Runs the files of `tests/slt`. They have the format of [sqllogictest](https://www.sqlite.org/sqllogictest).
//!
//! Each file runs in DataFusion without Strait, with Strait, and with Strait whose joins all write their rows to disk. The
//! answers must be the ones that the file says, and Strait must carry out each hash join.
//!
//! | record | meaning |
//! | --- | --- |
//! | `statement ok` | the statement succeeds |
//! | `statement error TEXT` | the statement fails, and the message has the text |
//! | `query TYPES` | the query returns the rows after `----` in this order |
//! | `query TYPES rowsort` | the query returns these rows in any order |
//!
//! A type is `I` (integer), `R` (decimal or floating-point), `T` (text), `B` (boolean), `D` (date), `P` (timestamp) or `?`.
//! A null is `NULL`, and an empty text is `(empty)`. A blank line ends a record, and `#` begins a comment.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::DataFusionError;
use datafusion::physical_plan::collect;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::session::{self, counted, joins};

/// One statement of a file.
#[derive(Debug)]
struct Record<'a> {
    /// The file and the line.
    place: String,
    sql: String,
    expected: Expected<'a>,
}

#[derive(Debug)]
enum Expected<'a> {
    Success,
    /// A part of the message.
    Failure(&'a str),
    Rows {
        types: &'a str,
        any_order: bool,
        rows: Vec<String>,
    },
}

fn parse<'a>(file: &str, text: &'a str) -> Vec<Record<'a>> {
    let mut records = Vec::new();
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
    while let Some((number, header)) = lines.next() {
        if header.is_empty() {
            continue;
        }
        let place = format!("{file}:{}", number + 1);
        let mut record = lines.by_ref().map(|(_, line)| line).take_while(|line| !line.is_empty());
        let words: Vec<_> = header.split_whitespace().collect();
        let sql: Vec<_> = record.by_ref().take_while(|line| *line != "----").collect();
        let expected = match words[..] {
            ["statement", "ok"] => Expected::Success,
            ["statement", "error", ..] => {
                Expected::Failure(header.trim_start_matches("statement error").trim())
            }
            ["query", types, ref order @ ..] => {
                assert!(matches!(order, [] | ["rowsort"]), "{place}: {header}");
                let rows = record.map(|row| spaced(row.split_whitespace())).collect();
                Expected::Rows { types, any_order: !order.is_empty(), rows }
            }
            _ => panic!("{place}: not a record: {header}"),
        };
        records.push(Record { place, sql: sql.join("\n"), expected });
    }
    records
}

fn spaced<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the rows as the files show them.
fn shown(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::new().with_null("NULL");
    let mut rows = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter();
        let columns = columns.map(|column| ArrayFormatter::try_new(column, &options));
        let columns = columns.collect::<Result<Vec<_>, _>>().expect("values can be shown");
        for row in 0..batch.num_rows() {
            let values = columns.iter().map(|column| match column.value(row).to_string() {
                value if value.is_empty() => "(empty)".to_string(),
                value => value,
            });
            rows.push(spaced(values.collect::<Vec<_>>().join(" ").split_whitespace()));
        }
    }
    rows
}

/// Returns the letters of the types of the columns.
fn types(batches: &[RecordBatch]) -> Option<String> {
    let letter = |column: &Arc<dyn Array>| match column.data_type() {
        kind if kind.is_integer() => 'I',
        kind if kind.is_floating() || kind.is_decimal() => 'R',
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => 'T',
        DataType::Boolean => 'B',
        DataType::Date32 | DataType::Date64 => 'D',
        DataType::Timestamp(..) => 'P',
        _ => '?',
    };
    batches.first().map(|batch| batch.columns().iter().map(letter).collect())
}

/// The sessions in which each file runs, with the same settings.
struct Sessions {
    stock: SessionContext,
    strait: SessionContext,
    /// All joins write their rows to disk.
    spilling: SessionContext,
}

impl Sessions {
    /// Makes sessions. A left input with less than `collected` bytes is not repartitioned.
    fn new(partitions: usize, collected: usize) -> Sessions {
        let mut config = SessionConfig::new().with_target_partitions(partitions).with_batch_size(2);
        let optimizer = &mut config.options_mut().optimizer;
        optimizer.hash_join_single_partition_threshold = collected;
        optimizer.hash_join_single_partition_threshold_rows = collected;
        let mut options = session::options();
        let strait = session::with_strait(config.clone(), Arc::default(), options.clone());
        options.algorithm = "spill".to_string();
        let spilling = session::with_strait(config.clone(), Arc::default(), options);
        Sessions { stock: session::stock(config, Arc::default()), strait, spilling }
    }
}

/// What Strait did for a file.
#[derive(Debug, Default)]
struct Done {
    joins: usize,
    spilled_bytes: usize,
}

/// Runs a statement in one session.
async fn run(record: &Record<'_>, ctx: &SessionContext, done: &mut Done) {
    let Record { place, sql, expected } = record;
    let ran = async {
        let plan = session::plan(ctx, sql).await?;
        let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
        done.joins += joins(&plan).replaced;
        done.spilled_bytes += counted(&plan, "spilled_bytes");
        Ok::<_, DataFusionError>(batches)
    };
    let ran = tokio::time::timeout(session::PATIENCE, ran).await;
    let ran = ran.unwrap_or_else(|_| panic!("{place}: it hangs"));
    match (expected, ran) {
        (Expected::Failure(text), Err(error)) => {
            assert!(error.to_string().contains(text), "{place}: {error}");
        }
        (Expected::Failure(_), Ok(_)) => panic!("{place}: no error"),
        (_, Err(error)) => panic!("{place}: {error}"),
        (Expected::Success, Ok(_)) => {}
        (Expected::Rows { types: expected_types, any_order, rows }, Ok(batches)) => {
            let (mut rows, mut found) = (rows.clone(), shown(&batches));
            if *any_order {
                rows.sort();
                found.sort();
            }
            assert_eq!(found, rows, "{place}: {sql}");
            let found = types(&batches);
            assert!(found.is_none_or(|found| found == *expected_types), "{place}: other types");
        }
    }
}

/// Panics unless Strait carries out each hash join of a query.
async fn assert_replaced(record: &Record<'_>, sessions: &Sessions) {
    let plans = [&sessions.stock, &sessions.strait, &sessions.spilling].map(|ctx| async move {
        let plan = session::plan(ctx, &record.sql).await.expect("a plan");
        joins(&plan)
    });
    let [of_stock, strait, spilling] = plans;
    let of_stock = of_stock.await.stock;
    for found in [strait.await, spilling.await] {
        assert_eq!(found.declined, Vec::<String>::new(), "{}", record.place);
        assert_eq!((found.stock, found.replaced), (0, of_stock), "{}", record.place);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/slt");
    let files = fs::read_dir(folder).expect("the folder exists");
    for path in files.map(|file| file.expect("a file").path()) {
        let text = fs::read_to_string(&path).expect("a text");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let records = parse(&name, &text);
        for (partitions, collected) in [(1, 1 << 20), (3, 1 << 20), (4, 0)] {
            let sessions = Sessions::new(partitions, collected);
            let mut done = [Done::default(), Done::default(), Done::default()];
            for record in &records {
                if matches!(record.expected, Expected::Rows { .. }) {
                    assert_replaced(record, &sessions).await;
                }
                let Sessions { stock, strait, spilling } = &sessions;
                for (ctx, done) in [stock, strait, spilling].into_iter().zip(&mut done) {
                    run(record, ctx, done).await;
                }
            }
            let [stock, strait, spilling] = done;
            assert!(stock.joins == 0 && strait.joins > 0, "{name}: no join");
            assert_eq!(strait.joins, spilling.joins, "{name}");
            assert!(spilling.spilled_bytes > 0, "{name}: no join has spilled");
        }
    }
}

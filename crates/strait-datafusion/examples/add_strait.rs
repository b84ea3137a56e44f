//! Adds Strait to a DataFusion program: one call when the session is built.
//!
//! The session has 24 MiB of memory. The join needs more, so it writes rows to temporary files.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::datasource::MemTable;
use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use strait_datafusion::{StraitOptions, WithStrait};

#[tokio::main]
async fn main() -> Result<()> {
    let mut options = StraitOptions::default();
    options.device = "cpu".to_string();
    let config = SessionConfig::new().with_target_partitions(2).with_option_extension(options);
    let pool = Arc::new(FairSpillPool::new(24 << 20));
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build()?;

    // This is the call.
    let state = SessionStateBuilder::new()
        .with_config(config)
        .with_runtime_env(Arc::new(runtime))
        .with_default_features()
        .with_strait()
        .build();
    let context = SessionContext::new_with_state(state);

    for (name, rows) in [("customers", 1_000_000), ("orders", 2_000_000)] {
        context.register_table(name, Arc::new(table(rows)?))?;
    }
    let query =
        "SELECT count(*), sum(c.value + o.value) FROM customers c JOIN orders o ON c.id = o.id";
    let answer = context.sql(query).await?.collect().await?;
    println!("{}", arrow::util::pretty::pretty_format_batches(&answer)?);
    let number = |column: usize| {
        let values = answer[0].column(column).as_any().downcast_ref::<Int64Array>();
        values.map(|values| values.value(0))
    };
    // The ids are 0, 1, 2, …, and each value is three times the id.
    assert_eq!(number(0), Some(1_000_000));
    assert_eq!(number(1), Some(6 * (0..1_000_000).sum::<i64>()));

    let explained = context.sql(&format!("EXPLAIN ANALYZE {query}")).await?.collect().await?;
    let text = arrow::util::pretty::pretty_format_batches(&explained)?.to_string();
    println!("{text}");
    let join = text.lines().find(|line| line.contains("StraitJoinExec"));
    let join = join.expect("Strait did the join");
    assert!(!join.contains("spilled_bytes=0.0 B"), "it wrote rows to temporary files");
    Ok(())
}

/// A table with the ids 0, 1, 2, … in another order, and with values. A batch must fit the memory of the session.
fn table(rows: i64) -> Result<MemTable> {
    let batch = |first: i64| {
        // The factor has no common divisor with the numbers of rows, so each id occurs once.
        let ids = || (first..rows.min(first + 8192)).map(|row| row * 999_983 % rows);
        let columns: [(&str, ArrayRef); 2] = [
            ("id", Arc::new(Int64Array::from_iter_values(ids()))),
            ("value", Arc::new(Int64Array::from_iter_values(ids().map(|id| 3 * id)))),
        ];
        RecordBatch::try_from_iter(columns)
    };
    let batches = (0..rows).step_by(8192).map(batch).collect::<std::result::Result<Vec<_>, _>>()?;
    MemTable::try_new(batches[0].schema(), vec![batches])
}

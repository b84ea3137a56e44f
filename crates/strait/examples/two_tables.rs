//! Joins two tables in memory, prints the rows, and says what the join did.
//!
//!     cargo run -p strait --example two_tables

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader, StringArray};
use strait::{Join, JoinType};

/// A reader over one batch. Any `RecordBatchReader` will do as an input of a join.
fn reader(batch: RecordBatch) -> impl RecordBatchReader + Send + 'static {
    let schema = batch.schema();
    RecordBatchIterator::new([Ok(batch)], schema)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let people = RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from(vec![1, 2, 3])) as _),
        ("name", Arc::new(StringArray::from(vec!["Ada", "Bob", "Cleo"])) as _),
    ])?;
    let visits = RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from(vec![3, 1, 3, 4])) as _),
        ("page", Arc::new(StringArray::from(vec!["/", "/a", "/b", "/c"])) as _),
    ])?;

    // Every person, with their visits. Bob has none: his page is null.
    let mut joined = Join::new(JoinType::Left).on("id").run(reader(people), reader(visits))?;
    let mut rows = 0;
    for batch in joined.by_ref() {
        let batch = batch?;
        rows += batch.num_rows();
        println!("{batch:?}");
    }
    assert_eq!(rows, 4);

    // The report is complete after the last batch.
    if let Some(report) = joined.report() {
        println!("{report}");
    }
    Ok(())
}

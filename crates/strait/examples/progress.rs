//! Shows the progress of a join, and cancels another one after its first rows.
//!
//!     cargo run --release -p strait --example progress

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
use strait::Join;

/// A table of `rows` rows in batches.
fn table(rows: i64) -> Result<impl RecordBatchReader + Send + use<>, arrow::error::ArrowError> {
    const ROWS_PER_BATCH: i64 = 8192;
    let batch = |first: i64| {
        let keys = first..(first + ROWS_PER_BATCH).min(rows);
        let keys = Int64Array::from_iter_values(keys.map(|key| key.wrapping_mul(7919) % rows));
        RecordBatch::try_from_iter([("key", Arc::new(keys) as _)])
    };
    let schema = batch(0)?.schema();
    let starts = (0..rows).step_by(ROWS_PER_BATCH as usize);
    Ok(RecordBatchIterator::new(starts.map(batch).collect::<Vec<_>>(), schema))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rows = 1_000_000;
    let join = Join::inner().on("key").on_progress(|progress| {
        let read = progress.left_rows + progress.right_rows;
        eprintln!("{}: {read} rows read, {} written", progress.stage.name(), progress.output_rows);
    });
    let (count, report) = join.count(table(rows)?, table(rows)?)?;
    println!("{count} rows in {:.3} s", report.elapsed.as_secs_f64());

    // Dropping the reader cancels the join, and gives its memory back.
    let mut reader = Join::inner().on("key").run(table(rows)?, table(rows)?)?;
    let first = reader.next().transpose()?.map_or(0, |batch| batch.num_rows());
    let cancelled = Instant::now();
    drop(reader);
    println!("took {first} rows, cancelled in {:?}", cancelled.elapsed());
    assert_eq!(count, rows as u64);
    Ok(())
}

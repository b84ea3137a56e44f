//! Joins a table that all workers make at the same time, and counts the output in each worker.
//!
//!     cargo run --release -p strait --example parallel

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use strait::{Input, Join, Morsel, ReservedBatch, Sink, Source, SourceContext, Statistics};

const ROWS_PER_MORSEL: u64 = 64 * 1024;

/// A table with the keys `0, step, 2 * step, …`. A real source would decode a part of a file in each call.
struct Keys {
    rows: u64,
    step: u64,
    /// The next row that no call has taken.
    next: AtomicU64,
    schema: SchemaRef,
}

impl Keys {
    fn new(rows: u64, step: u64) -> Keys {
        let schema = Arc::new(Schema::new(vec![Field::new("key", DataType::Int64, false)]));
        Keys { rows, step, next: AtomicU64::new(0), schema }
    }
}

impl Source for Keys {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn statistics(&self) -> Statistics {
        Statistics::rows(self.rows)
    }

    fn has_row_numbers(&self) -> bool {
        true
    }

    fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        // First the memory, then the rows: a call that is refused memory must not take rows.
        let _decoder = context.budget().reserve(8 * ROWS_PER_MORSEL, "decoding keys")?;
        let first = self.next.fetch_add(ROWS_PER_MORSEL, Ordering::Relaxed);
        if first >= self.rows {
            return Ok(None);
        }
        let rows = first..(first + ROWS_PER_MORSEL).min(self.rows);
        let keys = Int64Array::from_iter_values(rows.map(|row| (row * self.step) as i64));
        let batch = RecordBatch::try_new(self.schema(), vec![Arc::new(keys)])?;
        Ok(Some(Morsel::numbered(batch, first)))
    }
}

/// Counts the rows that each worker pushes. A real sink would encode a part of a file in each call.
struct Counted(Vec<AtomicU64>);

impl Sink for Counted {
    fn push(&self, worker: usize, batch: ReservedBatch) -> Result<(), ArrowError> {
        self.0[worker].fetch_add(batch.batch().num_rows() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn finish(&self) -> Result<(), ArrowError> {
        println!("the output is complete");
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::thread::available_parallelism()?.get();
    let sink = Counted((0..threads).map(|_| AtomicU64::new(0)).collect());
    let join = Join::inner().on("key").threads(threads);
    let (small, large) = (Keys::new(100_000, 30), Keys::new(3_000_000, 1));
    let report = join.run_into(Input::source(small), Input::source(large), &sink)?;

    for (worker, rows) in sink.0.iter().enumerate() {
        println!("worker {worker} pushed {} rows", rows.load(Ordering::Relaxed));
    }
    println!("{} rows in {:.3} s", report.output_rows, report.elapsed.as_secs_f64());
    assert_eq!(report.output_rows, 100_000);
    Ok(())
}

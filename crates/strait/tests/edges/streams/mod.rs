//! Probe sides that a device joins while they are read.

mod chunks;
mod failures;
mod memory;
mod random;
mod readers;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchReader, StringArray};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use strait::testing::TestOverrides;
use strait::{Error, Join, Output};

use super::batches;

/// A simulated device, with chunks of seven rows.
fn tiny(seed: u64) -> TestOverrides {
    TestOverrides { simulated: Some(seed), tiny_chunks: true, ..TestOverrides::default() }
}

/// Returns the rows of some batches as text, sorted.
fn texts(batches: &[RecordBatch]) -> Vec<String> {
    let mut rows = Vec::new();
    let options = FormatOptions::default().with_null("null");
    for batch in batches {
        let columns: Vec<_> = batch
            .columns()
            .iter()
            .map(|c| ArrayFormatter::try_new(c.as_ref(), &options).expect("prints"))
            .collect();
        rows.extend(
            (0..batch.num_rows()).map(|i| {
                columns.iter().map(|c| c.value(i).to_string()).collect::<Vec<_>>().join("|")
            }),
        );
    }
    rows.sort();
    rows
}

/// Keys, and a text of so many bytes for each row.
fn with_text(keys: std::ops::Range<i64>, bytes: usize) -> RecordBatch {
    let long = "z".repeat(bytes);
    let text: ArrayRef = Arc::new(StringArray::from_iter_values(keys.clone().map(|_| &long)));
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(keys));
    RecordBatch::try_from_iter([("k", keys), ("t", text)]).expect("columns of one length")
}

fn table(made: &[RecordBatch]) -> impl RecordBatchReader + Send + 'static {
    batches(made[0].schema(), made.to_vec())
}

fn rows_of(
    join: &Join,
    output: Output,
    left: &[RecordBatch],
    right: &[RecordBatch],
    pause: bool,
) -> Result<Vec<String>, Error> {
    if output == Output::Count {
        return join.count(table(left), table(right)).map(|(rows, _)| vec![rows.to_string()]);
    }
    let reader = match output {
        Output::Pairs => join.pairs(table(left), table(right)),
        _ => join.run(table(left), table(right)),
    }?;
    let mut all = Vec::new();
    for batch in reader {
        if pause {
            std::thread::sleep(Duration::from_micros(500));
        }
        match batch {
            Ok(batch) => all.push(batch),
            Err(error) => {
                PARTIAL.set(texts(&all));
                return Err(Error::from_arrow(error));
            }
        }
    }
    Ok(texts(&all))
}

thread_local! {
    /// The rows that came before the error of the last join that failed.
    static PARTIAL: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

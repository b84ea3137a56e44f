//! Edge cases by name: sizes, keys, key filters, inlined payload, encodings, runs of rows, names, faults in the caller's
//! code, filters, limits, progress and messages.

mod chosen;
mod devices;
mod empty_values;
mod encodings;
mod faults;
mod filters;
mod floats;
mod gpu_plans;
mod inlined;
mod key_filters;
mod keys;
mod limits;
mod messages;
mod names;
mod nullability;
mod plans;
mod runs;
mod scarce;
mod sinks;
mod sizes;
mod sources;
mod statistics;
mod streams;
mod waiting;

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use strait::{Algorithm, Error, Join, JoinReader, Report};

/// The algorithms that these tests request by name.
const NAMED: [Algorithm; 3] = [Algorithm::NoPartition, Algorithm::Radix, Algorithm::SortMerge];

/// A batch of nullable Int64 columns.
fn ints<const N: usize>(columns: [(&str, Vec<Option<i64>>); N]) -> RecordBatch {
    let columns = columns.map(|(name, values)| {
        let array: ArrayRef = Arc::new(Int64Array::from(values));
        (name, array, true)
    });
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

/// Keys `k`, and payloads `p` counted from zero.
fn keyed(keys: impl IntoIterator<Item = i64>) -> RecordBatch {
    let keys: Vec<_> = keys.into_iter().map(Some).collect();
    let rows = (0..keys.len() as i64).map(Some).collect();
    ints([("k", keys), ("p", rows)])
}

/// A reader of one batch.
fn whole(batch: &RecordBatch) -> impl RecordBatchReader + Send + 'static {
    batches(batch.schema(), vec![batch.clone()])
}

/// A reader of some batches.
fn batches(
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
) -> impl RecordBatchReader + Send + 'static {
    RecordBatchIterator::new(batches.into_iter().map(Ok), schema)
}

/// Returns all batches of a join, and its report.
fn drained(mut reader: JoinReader) -> Result<(Vec<RecordBatch>, Report), Error> {
    let batches = reader.by_ref().collect::<Result<Vec<_>, _>>().map_err(Error::from_arrow)?;
    let report = reader.report().expect("a report after the last batch");
    Ok((batches, report))
}

/// Returns the number of rows of a join of two batches.
fn count(join: &Join, left: &RecordBatch, right: &RecordBatch) -> u64 {
    join.count(whole(left), whole(right)).expect("the join succeeds").0
}

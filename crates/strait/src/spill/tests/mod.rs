//! Tests of the whole module: types, compaction, damaged files and failing disks.

mod compaction;
mod damage;
mod faults;
mod nest;
mod types;

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};

use super::{Block, SpillCompression, SpillStore, SpillTarget, SpilledRows, encode};
use crate::memory::Budget;

/// Returns the rows `first..first + rows`.
fn numbers(first: i64, rows: i64) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
    let texts = (first..first + rows).map(|i| format!("row {i}"));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    RecordBatch::try_from_iter([("n", numbers), ("t", texts)]).expect("two columns")
}

fn block(batch: &RecordBatch) -> Block {
    encode(batch).expect("encodes")
}

fn target(store: &Arc<dyn SpillStore>, compression: SpillCompression) -> Arc<SpillTarget> {
    SpillTarget::new(store, compression, &unlimited())
}

/// Creates a file of the store, without compression.
fn create(store: &Arc<dyn SpillStore>) -> SpilledRows {
    SpilledRows::create(&target(store, SpillCompression::None)).expect("creates")
}

/// Writes the batches to a file of the store.
fn spill(store: &Arc<dyn SpillStore>, batches: &[RecordBatch]) -> Arc<SpilledRows> {
    spill_with(store, SpillCompression::None, batches)
}

fn spill_with(
    store: &Arc<dyn SpillStore>,
    compression: SpillCompression,
    batches: &[RecordBatch],
) -> Arc<SpilledRows> {
    let rows = SpilledRows::create(&target(store, compression)).expect("creates");
    for batch in batches {
        rows.append(&block(batch)).expect("appends");
    }
    Arc::new(rows)
}

fn unlimited() -> Arc<Budget> {
    Budget::new(None)
}

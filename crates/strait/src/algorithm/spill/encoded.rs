//! Gathers rows, encodes them as blocks, and reserves the memory that this takes.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, SchemaRef};

use crate::error::{Error, Result};
use crate::input::slice_bytes;
use crate::materialise::{Chosen, Columns};
use crate::memory::{Budget, Reservation};
use crate::spill::{Block, encode};

/// The bytes of a block besides its rows: headers, and the padding of its columns.
pub(crate) const BYTES_PER_BLOCK: u64 = 4096;

/// The purpose of the memory that gathering and encoding rows takes.
pub(super) const PARTITIONING: &str = "partitioning rows for the disk";

/// Gathers rows of a chunk into a batch, with their numbers if the schema has them. Returns it with the reservation of
/// its memory.
pub(super) fn gather_rows(
    columns: &Columns,
    (schema, rows): (&SchemaRef, &[u64]),
    budget: &Arc<Budget>,
) -> Result<(RecordBatch, Reservation)> {
    let picked = columns.pick(Chosen::Ids(rows.to_vec()), false);
    let reserved = budget.reserve(columns.bytes_with_numbers(schema, &picked), PARTITIONING)?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    let batch = columns
        .gather_with_numbers(schema, &picked)
        .and_then(|arrays| RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options));
    let batch = batch.map_err(Error::arrow("gathering the rows of a partition"))?;
    Ok((batch, reserved))
}

/// Gathers and encodes rows of a chunk. Returns the block with the reservation of its memory.
pub(crate) fn encode_rows(
    columns: &Columns,
    (schema, rows): (&SchemaRef, &[u64]),
    budget: &Arc<Budget>,
) -> Result<(Block, Reservation)> {
    let (batch, reserved) = gather_rows(columns, (schema, rows), budget)?;
    encode_reserved(batch, reserved, PARTITIONING)
}

/// Encodes a batch. `reserved` is the reservation of the batch, and grows for the block before the block is made. The
/// returned reservation has the size of the block.
///
/// The memory behind a batch may be much larger than its rows: the batch may be a slice, or have views of a long
/// buffer. The block has only the rows.
pub(crate) fn encode_reserved(
    batch: RecordBatch,
    mut reserved: Reservation,
    purpose: &str,
) -> Result<(Block, Reservation)> {
    reserved.grow(slice_bytes(&batch) + dictionary_bytes(&batch) + BYTES_PER_BLOCK, purpose)?;
    let block = encode(&batch)?;
    drop(batch);
    let takes = block.memory();
    match takes > reserved.bytes() {
        true => reserved.grow(takes - reserved.bytes(), purpose)?,
        false => reserved.shrink(reserved.bytes() - takes),
    }
    Ok((block, reserved))
}

/// Returns the bytes of the values of all dictionaries in a batch.
fn dictionary_bytes(batch: &RecordBatch) -> u64 {
    fn inside(data: &ArrayData) -> u64 {
        let values = match data.data_type() {
            DataType::Dictionary(..) => {
                data.child_data().iter().map(|v| v.get_array_memory_size() as u64).sum()
            }
            _ => 0,
        };
        values + data.child_data().iter().map(inside).sum::<u64>()
    }
    batch.columns().iter().map(|column| inside(&column.to_data())).sum()
}

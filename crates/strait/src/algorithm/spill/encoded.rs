//! Encodes batches as blocks, and reserves the memory that this takes.

use arrow::array::{Array, ArrayData, RecordBatch};
use arrow::datatypes::DataType;

use crate::error::Result;
use crate::input::slice_bytes;
use crate::memory::Reservation;
use crate::spill::{Block, encode};

/// The bytes of a block besides its rows: headers, and the padding of its columns.
pub(crate) const BYTES_PER_BLOCK: u64 = 4096;

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

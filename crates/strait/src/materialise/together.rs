//! Combines arrays: concatenates batches, and merges two columns into one.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::{cast, concat as concat_arrays};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

use crate::materialise::rows::{self, Selection};
use crate::materialise::{ABSENT, Picked, size};

/// Concatenates batches. If the result has too many values for the keys, offsets or run ends of a type,
/// [`too_long`](crate::error::too_long) recognises the error.
pub(crate) fn concat(
    schema: &SchemaRef,
    batches: &[&RecordBatch],
) -> Result<RecordBatch, ArrowError> {
    let column = |i: usize| {
        let chunks = columns(batches, i);
        match schema.field(i).data_type() {
            flat if rows::is_flat(flat) => concat_arrays(&chunks),
            other => rows::gather(other, &chunks, &Selection::whole(&chunks)),
        }
    };
    let arrays = (0..schema.fields().len()).map(column).collect::<Result<Vec<_>, _>>()?;
    let len = batches.iter().map(|batch| batch.num_rows()).sum();
    let options = RecordBatchOptions::new().with_row_count(Some(len));
    RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options)
}

/// Returns the bytes that [`concat()`] takes.
pub(crate) fn concat_bytes(schema: &SchemaRef, batches: &[&RecordBatch]) -> u64 {
    let column = |i: usize| size::whole(schema.field(i).data_type(), &columns(batches, i));
    (0..schema.fields().len()).map(column).sum()
}

fn columns<'a>(batches: &[&'a RecordBatch], column: usize) -> Vec<&'a dyn Array> {
    batches.iter().map(|batch| batch.column(column).as_ref()).collect()
}

/// Returns the left value if the left row exists, else the right value, as `data_type`.
pub(crate) fn coalesce(
    values: [Option<ArrayRef>; 2],
    picked: &[Option<Picked>; 2],
    data_type: &DataType,
) -> Result<ArrayRef, ArrowError> {
    let as_one = |array: &ArrayRef| {
        if array.data_type() == data_type { Ok(Arc::clone(array)) } else { cast(array, data_type) }
    };
    match (&values, picked) {
        ([Some(left), Some(right)], [Some(picked), _]) => {
            let (left, right) = (as_one(left)?, as_one(right)?);
            if picked.all_there() {
                return Ok(left);
            }
            let mut rows = Selection::of_chunks(2);
            for (i, &row) in picked.ids().iter().enumerate() {
                rows.push(usize::from(row == ABSENT), i, 1);
            }
            rows::gather(data_type, &[left.as_ref(), right.as_ref()], &rows)
        }
        ([Some(only), None], _) | ([None, Some(only)], _) => as_one(only),
        _ => Err(ArrowError::ComputeError("a row of no side".to_string())),
    }
}

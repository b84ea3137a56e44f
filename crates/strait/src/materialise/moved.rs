//! Moves columns of a held side onto huge pages, one column after the other.
//!
//! Gathering at random from small pages is slow ([flat](super::flat)). Without a memory limit, the columns that are
//! gathered are copied, and the batches keep theirs. Under a limit, two copies of each row would leave less memory for
//! the table. So here the batches get slices of the copy, and the memory of the old column is freed before the next
//! column is copied. Only one column has two copies at a time.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, make_array};
use arrow::buffer::Buffer;
use arrow::error::ArrowError;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::input::Relation;
use crate::materialise::MAX_INLINED;
use crate::materialise::cpu::Fixed;

/// Moves the `gathered` columns of a held side, as far as memory suffices and as far as this is worthwhile: see
/// [`is_moved`]. Returns the same rows in the same batches.
pub(crate) fn moved(
    cx: &Context<'_>,
    mut relation: Relation,
    gathered: &[usize],
) -> Result<Relation> {
    let Some(ledger) = cx.ledger.as_ref().filter(|_| is_moved(cx, &relation, gathered)) else {
        return Ok(relation);
    };
    for &column in gathered {
        let chunks: Vec<ArrayRef> =
            relation.batches().iter().map(|batch| Arc::clone(batch.column(column))).collect();
        let Some((values, reserved)) = Fixed::copied(cx, &chunks)? else { continue };
        let slices = slices(&chunks, &values).map_err(Error::arrow("moving a column"))?;
        drop(chunks);
        // All slices have the same allocation.
        ledger.adopt(&slices[..1], &reserved);
        relation = match relation.with_column(column, slices, ledger) {
            Ok(relation) => relation,
            // There is no memory for the records about the new batches.
            Err(relation) => return Ok(relation),
        };
    }
    Ok(relation)
}

/// Returns arrays with the values of `chunks`, as slices of the copy `values`.
fn slices(chunks: &[ArrayRef], values: &Buffer) -> Result<Vec<ArrayRef>, ArrowError> {
    let rows: usize = chunks.iter().map(|chunk| chunk.len()).sum();
    let width = values.len() / rows.max(1);
    let mut at = 0;
    let slice = |chunk: &ArrayRef| {
        let bytes = values.slice_with_length(at, chunk.len() * width);
        at += bytes.len();
        let data = ArrayData::builder(chunk.data_type().clone()).len(chunk.len());
        data.add_buffer(bytes).build().map(make_array)
    };
    chunks.iter().map(slice).collect()
}

/// Returns whether the gathered columns are moved. Columns that are narrow enough are inlined instead. One batch needs
/// no copy. Rows in very many batches would need many reservations.
fn is_moved(cx: &Context<'_>, relation: &Relation, gathered: &[usize]) -> bool {
    const LEAST_ROWS_PER_BATCH: u64 = 256;
    let fields = relation.schema().fields();
    let widths = gathered.iter().map(|&column| fields[column].data_type().primitive_width());
    let narrow = widths.map(|width| width.unwrap_or(MAX_INLINED + 1)).sum::<usize>() <= MAX_INLINED;
    let batches = relation.batches().len() as u64;
    let tiny = cx.overrides.tiny_partitions;
    let long = relation.rows() / batches.max(1) >= LEAST_ROWS_PER_BATCH || tiny;
    !cx.budget.unlimited() && !narrow && batches > 1 && long
}

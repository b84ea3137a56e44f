//! Gathers run-end encoded arrays.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RunArray, new_empty_array};
use arrow::buffer::{RunEndBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowNativeType, DataType, Int16Type, Int32Type, Int64Type, RunEndIndexType,
};
use arrow::error::ArrowError;

use crate::materialise::rows::{self, Selection};

/// Gathers the selected rows of run-end encoded arrays. Fails if there are more rows than a run end can
/// represent.
pub(super) fn gather(
    data_type: &DataType,
    ends: &DataType,
    values: &DataType,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    if rows.len == 0 {
        return Ok(new_empty_array(data_type));
    }
    match ends {
        DataType::Int16 => typed::<Int16Type>(data_type, values, chunks, rows),
        DataType::Int32 => typed::<Int32Type>(data_type, values, chunks, rows),
        _ => typed::<Int64Type>(data_type, values, chunks, rows),
    }
}

fn typed<R: RunEndIndexType>(
    data_type: &DataType,
    value_type: &DataType,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    let last = R::Native::from_usize(rows.len);
    last.ok_or(ArrowError::OffsetOverflowError(rows.len))?;
    let runs = as_runs::<R>(chunks);
    let (ends, selected) = selected(&runs, rows);
    let ends: ScalarBuffer<R::Native> = ends.into_iter().map(R::Native::usize_as).collect();
    let children: Vec<_> = runs.iter().map(|run| run.values().as_ref()).collect();
    let values = rows::gather(value_type, &children, &selected)?;
    // SAFETY: the ends ascend, from more than zero to the number of rows, which fits their type. There is one
    // value per end, of the type that `data_type` names.
    let runs = unsafe {
        let ends = RunEndBuffer::new_unchecked(ends, 0, rows.len);
        RunArray::<R>::new_unchecked(data_type.clone(), ends, values)
    };
    Ok(Arc::new(runs))
}

/// Returns the arrays as run-end encoded arrays.
pub(super) fn as_runs<'a, R: RunEndIndexType>(chunks: &[&'a dyn Array]) -> Vec<&'a RunArray<R>> {
    chunks.iter().map(|chunk| chunk.as_run::<R>()).collect()
}

/// Returns the runs of the selected rows: the end of each run, and its value.
pub(super) fn selected<R: RunEndIndexType>(
    runs: &[&RunArray<R>],
    rows: &Selection,
) -> (Vec<usize>, Selection) {
    let mut ends: Vec<usize> = Vec::new();
    let mut values = Selection::of_chunks(rows.absent);
    let mut end = 0;
    let mut add = |chunk: usize, value: usize, len: usize| {
        end += len;
        match ends.last_mut() {
            // These rows continue the previous run.
            Some(last) if values.places.last() == Some(&(chunk, value)) => *last = end,
            _ => {
                values.push(chunk, value, 1);
                ends.push(end);
            }
        }
    };
    for (chunk, first, len) in rows.stretches() {
        let Some(run) = runs.get(chunk) else {
            add(chunk, 0, len);
            continue;
        };
        let (run_ends, offset) = (run.run_ends().values(), run.run_ends().offset());
        let (mut at, to) = (offset + first, offset + first + len);
        let mut value = run.run_ends().get_physical_index(first);
        while at < to {
            let run_end = run_ends[value].as_usize().min(to);
            add(chunk, value, run_end - at);
            (at, value) = (run_end, value + 1);
        }
    }
    (ends, values)
}

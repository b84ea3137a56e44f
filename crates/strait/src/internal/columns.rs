//! Arrow columns as integers of 4 or 8 bytes.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Int32Type, Int64Type};

use crate::error::{Error, Result};
use crate::word::Width;

/// The size of the words that a table's keys become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WordSize {
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
}

impl WordSize {
    /// Returns the smallest words that hold all columns of these tables. Returns an error if a column is not
    /// an integer column without nulls.
    pub fn of(tables: &[&[RecordBatch]]) -> Result<WordSize> {
        let mut size = WordSize::Four;
        for column in tables.iter().copied().flatten().flat_map(|batch| batch.columns()) {
            if value_bytes(column)? == 8 {
                size = WordSize::Eight;
            }
        }
        Ok(size)
    }

    /// Returns the bytes per word.
    pub fn bytes(self) -> u64 {
        self.width().bytes()
    }

    pub(super) fn width(self) -> Width {
        match self {
            WordSize::Four => Width::W32,
            WordSize::Eight => Width::W64,
        }
    }
}

/// Returns the bytes per value of a column.
pub(super) fn value_bytes(column: &ArrayRef) -> Result<u32> {
    match column.data_type() {
        _ if column.null_count() > 0 => {
            Err(Error::key_values("a column has nulls", "columns in GPU memory have no nulls"))
        }
        DataType::Int32 => Ok(4),
        DataType::Int64 => Ok(8),
        other => Err(Error::key_values(
            format!("a table in GPU memory cannot have columns of type {other}"),
            "give signed integers of 4 or 8 bytes",
        )),
    }
}

/// Returns the number of rows, and the parts of each column.
pub(super) fn parts(batches: &[RecordBatch]) -> (u64, Vec<Vec<&ArrayRef>>) {
    let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    let columns = batches.first().map_or(0, RecordBatch::num_columns);
    let part = |column| batches.iter().map(|batch| batch.column(column)).collect();
    (rows, (0..columns).map(part).collect())
}

/// Returns a column's values as bytes, and the bytes per value. Other columns than `Int32` and `Int64` are
/// empty; [`value_bytes`] refuses them.
pub(super) fn bytes_of(column: &ArrayRef) -> (&[u8], usize) {
    match column.as_primitive_opt::<Int32Type>() {
        Some(narrow) => (narrow.values().inner().as_slice(), 4),
        None => {
            let wide = column.as_primitive_opt::<Int64Type>();
            (wide.map_or(&[], |wide| wide.values().inner().as_slice()), 8)
        }
    }
}

/// Copies values of `from_bytes` bytes to values of `to_bytes` bytes: the same number, or 8 instead of 4.
/// Extends the sign.
pub(super) fn widen((from, from_bytes): (&[u8], usize), (to, to_bytes): (&mut [u8], usize)) {
    if from_bytes == to_bytes {
        to.copy_from_slice(from);
        return;
    }
    for (to, from) in to.chunks_exact_mut(8).zip(from.chunks_exact(4)) {
        let value = i32::from_ne_bytes([from[0], from[1], from[2], from[3]]);
        to.copy_from_slice(&i64::from(value).to_ne_bytes());
    }
}

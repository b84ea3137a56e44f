//! Inlined columns: tuples hold the values of narrow columns instead of a row id.
//!
//! If the output columns of a build row have at most eight bytes together, they are inlined into its tuple. A
//! lookup that finds the key then has the values. It saves a second memory access, which would cost as much
//! as the first one.
//!
//! The value of an `Int32` and an `Int16` column:
//!
//! ```text
//!   bits 63..48   47..32   31..0        each column has its own bytes, the first one the lowest
//!           0      Int16   Int32
//! ```

use arrow::array::{Array, ArrayRef};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType};
use arrow::error::ArrowError;

use crate::error::{Error, Result};
use crate::input::Piece;
use crate::materialise::{Column, sum};
use crate::memory::{copy_past_cache, filled};
use crate::partition::{RowId, Values};

/// The position of each inlined column in a value.
pub(super) struct InlineLayout {
    fields: Vec<Field>,
    bytes: usize,
}

#[derive(Clone, Copy)]
struct Field {
    column: usize,
    /// The number of bits below it, and its width in bytes.
    shift: usize,
    width: usize,
}

/// The largest number of inlined bytes per row.
pub(crate) const MAX_INLINED: usize = 8;

impl InlineLayout {
    /// Lays out the columns that the plan inlines. Fails with an internal error if they have nulls or do not fit.
    /// The rest of this file relies on that.
    pub(super) fn new(columns: &[Column], wanted: &[usize]) -> Result<InlineLayout> {
        let mut layout = InlineLayout { fields: Vec::new(), bytes: 0 };
        for &column in wanted {
            if layout.field(column).is_none() {
                let fixed = columns.get(column).and_then(|column| column.fixed.as_ref());
                let Some(fixed) = fixed.filter(|fixed| fixed.complete()) else {
                    return Err(Error::internal(format!(
                        "the plan inlines column {column}, which has nulls or no fixed width"
                    )));
                };
                let width = fixed.width();
                layout.fields.push(Field { column, shift: 8 * layout.bytes, width });
                layout.bytes += width;
            }
        }
        match layout.bytes {
            1..=MAX_INLINED => Ok(layout),
            bytes => Err(Error::internal(format!("the plan inlines {bytes} bytes per row"))),
        }
    }

    fn field(&self, column: usize) -> Option<Field> {
        self.fields.iter().find(|field| field.column == column).copied()
    }

    /// Returns the values of each chunk without copying. There must be only one column, as wide as `I`. Returns
    /// `None` if an array is less aligned than `I`. The plan cannot know the alignment.
    pub(super) fn in_place<I: RowId + ArrowNativeType>(
        &self,
        columns: &[Column],
    ) -> Result<Option<Vec<ScalarBuffer<I>>>> {
        let field = match self.fields.as_slice() {
            [field] if field.width == size_of::<I>() => field,
            fields => {
                let (columns, bytes, word) = (fields.len(), self.bytes, size_of::<I>());
                return Err(Error::internal(format!(
                    "{columns} columns of {bytes} bytes are not one column of {word} bytes"
                )));
            }
        };
        let of_chunk = |chunk: &ArrayRef| {
            let data = chunk.to_data();
            let buffer = data.buffers().first()?;
            // Arrays of some types are less aligned than an integer of the same width.
            let aligned = buffer.as_ptr().cast::<I>().is_aligned();
            aligned.then(|| ScalarBuffer::new(buffer.clone(), data.offset(), data.len()))
        };
        Ok(columns[field.column].chunks.iter().map(of_chunk).collect())
    }

    /// Returns the values of a piece: the column's own buffer if possible, otherwise computed in `scratch`.
    pub(super) fn values<'a, I: RowId>(
        &'a self,
        columns: &'a [Column],
        piece: &Piece,
        scratch: &'a mut Vec<I>,
    ) -> &'a [I] {
        let start = |field: &Field| {
            let fixed = columns[field.column].fixed.as_ref()?;
            let chunk = &columns[field.column].chunks[piece.batch];
            assert!(piece.at + piece.len <= chunk.len(), "{piece:?} of {}", chunk.len());
            // SAFETY: asserted above; values have `width` bytes each.
            Some(unsafe { fixed.start(piece.batch).add(piece.at * field.width) })
        };
        if let [field] = self.fields.as_slice()
            && field.width == size_of::<I>()
            && let Some(start) = start(field).map(|s| s.cast::<I>()).filter(|s| s.is_aligned())
        {
            // SAFETY: there are `len` values of this width and alignment. The columns keep them alive, and
            // any bytes are a valid value.
            return unsafe { std::slice::from_raw_parts(start, piece.len) };
        }
        scratch.clear();
        scratch.resize(piece.len, I::default());
        for field in &self.fields {
            let Some(start) = start(field) else { continue };
            // SAFETY: as above, for any alignment.
            unsafe {
                match field.width {
                    1 => put::<u8, I>(scratch, start, field.shift),
                    2 => put::<u16, I>(scratch, start, field.shift),
                    4 => put::<u32, I>(scratch, start, field.shift),
                    _ => put::<u64, I>(scratch, start, field.shift),
                }
            }
        }
        scratch
    }

    /// Extracts a column's values.
    pub(super) fn column(
        &self,
        column: usize,
        values: &Values,
        pooled: bool,
    ) -> std::result::Result<Buffer, ArrowError> {
        let missing = || ArrowError::ComputeError(format!("column {column} is not inlined"));
        let field = self.field(column).ok_or_else(missing)?;
        Ok(match values {
            Values::Narrow(values) => field.of(values, pooled),
            Values::Wide(values) => field.of(values, pooled),
        })
    }

    /// Returns the sum of an integer column.
    pub(super) fn sum(&self, column: usize, data_type: &DataType, values: &Values) -> i128 {
        let Some(field) = self.field(column) else { return 0 };
        match values {
            Values::Narrow(values) => field.sum(data_type, values),
            Values::Wide(values) => field.sum(data_type, values),
        }
    }
}

impl Field {
    fn of<I: RowId>(&self, values: &[I], pooled: bool) -> Buffer {
        filled(values.len() * self.width, pooled, |to| {
            // SAFETY: `to` has room for `width` bytes per value.
            unsafe {
                match self.width {
                    width if width == size_of::<I>() => {
                        copy_past_cache(values.as_ptr().cast(), to, values.len() * width);
                    }
                    1 => cut(values, self.shift, |i, v| to.add(i).write(v as u8)),
                    2 => cut(values, self.shift, |i, v| {
                        to.cast::<u16>().add(i).write_unaligned(v as u16)
                    }),
                    _ => cut(values, self.shift, |i, v| {
                        to.cast::<u32>().add(i).write_unaligned(v as u32)
                    }),
                }
            }
        })
    }

    fn sum<I: RowId>(&self, data_type: &DataType, values: &[I]) -> i128 {
        if self.width == size_of::<I>() {
            // SAFETY: the values are those of the column, and have this type.
            let whole =
                unsafe { sum::of_run(data_type, values.as_ptr().cast::<u8>(), values.len()) };
            return whole.unwrap_or(0);
        }
        let values = values.iter().map(|value| value.to_u64() >> self.shift);
        let sum: i64 = match data_type {
            DataType::Int8 => values.map(|v| i64::from(v as i8)).sum(),
            DataType::Int16 => values.map(|v| i64::from(v as i16)).sum(),
            DataType::Int32 => values.map(|v| i64::from(v as i32)).sum(),
            DataType::UInt8 => values.map(|v| i64::from(v as u8)).sum(),
            DataType::UInt16 => values.map(|v| i64::from(v as u16)).sum(),
            DataType::UInt32 => values.map(|v| i64::from(v as u32)).sum(),
            _ => 0,
        };
        i128::from(sum)
    }
}

/// Calls `write(i, value)` with each value, shifted so that a field's bits are the lowest.
#[inline(always)]
fn cut<I: RowId>(values: &[I], shift: usize, write: impl Fn(usize, u64)) {
    for (i, value) in values.iter().enumerate() {
        write(i, value.to_u64() >> shift);
    }
}

/// Writes a column's values into their bits.
///
/// # Safety
/// `start` has a value of type `T` for each element of `values`.
unsafe fn put<T: Bits, I: RowId>(values: &mut [I], start: *const u8, shift: usize) {
    for (i, value) in values.iter_mut().enumerate() {
        // SAFETY: guaranteed by the caller.
        let bits = unsafe { start.cast::<T>().add(i).read_unaligned() }.bits();
        *value = I::from_u64(value.to_u64() | bits << shift);
    }
}

/// The bits of a narrow value.
trait Bits: Copy {
    fn bits(self) -> u64;
}

macro_rules! bits {
    ($($int:ty),*) => {
        $(impl Bits for $int {
            #[inline(always)]
            fn bits(self) -> u64 {
                self as u64
            }
        })*
    };
}

bits!(u8, u16, u32, u64);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int32Array, Int64Array, StringArray};

    use super::*;

    fn column(array: impl Array + 'static) -> Column {
        Column::new(&array.data_type().clone(), vec![Arc::new(array)])
    }

    /// The plan decides what is inlined. Columns that contradict the plan are a defect.
    #[test]
    fn columns_that_the_plan_must_not_inline_are_internal_errors() {
        let columns = [
            column(Int64Array::from(vec![1, 2])),
            column(Int64Array::from(vec![Some(1), None])),
            column(StringArray::from(vec!["a", "b"])),
            column(Int32Array::from(vec![1, 2])),
        ];
        assert!(InlineLayout::new(&columns, &[0, 0]).is_ok());
        for wrong in [&[1][..], &[2], &[0, 3], &[], &[9]] {
            let error = InlineLayout::new(&columns, wrong).err();
            assert!(matches!(error, Some(Error::Internal { .. })), "{wrong:?}: {error:?}");
        }
    }

    #[test]
    fn only_one_column_as_wide_as_a_word_is_used_in_place() {
        let columns = [3, 4].map(|first| column(Int32Array::from(vec![first, 2])));
        let one = InlineLayout::new(&columns, &[1]).unwrap();
        let values = one.in_place::<u32>(&columns).unwrap().expect("aligned");
        assert_eq!(values.iter().map(|v| v.to_vec()).collect::<Vec<_>>(), [[4, 2]]);
        let two = InlineLayout::new(&columns, &[0, 1]).unwrap();
        assert!(matches!(one.in_place::<u64>(&columns), Err(Error::Internal { .. })));
        assert!(matches!(two.in_place::<u64>(&columns), Err(Error::Internal { .. })));
    }
}

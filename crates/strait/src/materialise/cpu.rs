//! Gathers fixed-width values. Most output of a join comes from this loop.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

use crate::context::Context;
use crate::error::Result;
use crate::input::Location;
use crate::materialise::flat::{Flat, Stretch};
use crate::materialise::{ABSENT, sum};

/// The values of a fixed-width column, as one address per chunk.
pub(super) struct Fixed {
    width: usize,
    /// The address of row 0 of each chunk. The column's chunks keep the memory alive.
    starts: Vec<*const u8>,
    nullable: bool,
    /// The same values in one piece, if they are read in random order.
    flat: Option<Arc<Flat>>,
}

// SAFETY: the pointers refer to immutable Arrow buffers, which any thread may read.
unsafe impl Send for Fixed {}
// SAFETY: as above.
unsafe impl Sync for Fixed {}

impl Fixed {
    /// Returns `None` for types without a fixed width of 1, 2, 4, 8, 16 or 32 bytes.
    pub(super) fn new(data_type: &DataType, chunks: &[ArrayRef]) -> Option<Fixed> {
        let width = data_type.primitive_width()?;
        let mut starts = Vec::with_capacity(chunks.len());
        let mut nullable = false;
        for chunk in chunks {
            let data = chunk.to_data();
            let bytes = data.buffers().first()?.as_slice();
            starts.push(bytes.get(data.offset() * width..)?.as_ptr());
            nullable |= chunk.null_count() > 0;
        }
        Some(Fixed { width, starts, nullable, flat: None })
    }

    /// Copies the values into one piece if that pays off.
    pub(super) fn flatten(&mut self, cx: &Context<'_>, chunks: &[ArrayRef]) -> Result<()> {
        if !self.nullable {
            self.flat = Flat::copy(cx, chunks, &self.starts, self.width)?;
        }
        Ok(())
    }

    /// Returns the values in one piece, if they are contiguous and have no nulls.
    fn stretch(&self, chunks: &[ArrayRef]) -> Option<Stretch> {
        match (&self.flat, chunks) {
            (Some(flat), _) => Some(flat.stretch()),
            (None, [only]) if !self.nullable => {
                Some(Stretch { start: self.starts[0], width: self.width, rows: only.len() })
            }
            _ => None,
        }
    }

    /// Gathers the values of rows, if the values are in one piece. All rows must exist.
    pub(super) fn gather_stretch(
        &self,
        chunks: &[ArrayRef],
        rows: &[u64],
        pooled: bool,
    ) -> Option<Buffer> {
        // SAFETY: the caller guarantees that the rows exist; `self` keeps the stretch alive.
        self.stretch(chunks).map(|stretch| unsafe { stretch.gather(rows, pooled) })
    }

    /// Returns the sum of the integers of rows, if all rows exist and the values are in one piece.
    pub(super) fn sum_stretch(
        &self,
        data_type: &DataType,
        chunks: &[ArrayRef],
        rows: &[u64],
    ) -> Option<i128> {
        // `ABSENT` is the largest id, which no row has.
        let stretch = self.stretch(chunks).filter(|_| !rows.contains(&ABSENT))?;
        // SAFETY: as above.
        unsafe { stretch.sum(data_type, rows) }
    }

    /// Returns the sum of the integers of consecutive rows, if the values are in one piece.
    pub(super) fn sum_run(
        &self,
        data_type: &DataType,
        chunks: &[ArrayRef],
        rows: Range<u64>,
    ) -> Option<i128> {
        let stretch = self.stretch(chunks)?;
        assert!(rows.start <= rows.end && rows.end as usize <= stretch.rows, "{rows:?}");
        // SAFETY: asserted above; the values have this type, and `self` keeps them alive.
        unsafe {
            let start = stretch.start.add(rows.start as usize * self.width);
            sum::of_run(data_type, start, (rows.end - rows.start) as usize)
        }
    }

    /// Returns whether no value is null.
    pub(super) fn complete(&self) -> bool {
        !self.nullable
    }

    /// Returns the address of row 0 of a chunk.
    pub(super) fn start(&self, chunk: usize) -> *const u8 {
        self.starts[chunk]
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Gathers the values at `places`. If `rows` is given, absent rows become nulls.
    pub(super) fn gather(
        &self,
        data_type: &DataType,
        chunks: &[ArrayRef],
        places: &[Location],
        rows: Option<&[u64]>,
    ) -> std::result::Result<ArrayRef, ArrowError> {
        debug_assert!(places.iter().all(|l| (l.row as usize) < chunks[l.batch as usize].len()));
        // SAFETY: places are inside their chunks (`Places::locate`), whose values have `width` bytes each,
        // from `starts` on.
        let values = unsafe {
            match self.width {
                1 => copy::<u8>(&self.starts, places),
                2 => copy::<u16>(&self.starts, places),
                4 => copy::<u32>(&self.starts, places),
                8 => copy::<u64>(&self.starts, places),
                16 => copy::<u128>(&self.starts, places),
                _ => copy::<[u128; 2]>(&self.starts, places),
            }
        };
        let nulls = (self.nullable || rows.is_some()).then(|| validity(chunks, places, rows));
        let data = ArrayData::builder(data_type.clone())
            .len(places.len())
            .add_buffer(values)
            .nulls(nulls)
            .build()?;
        Ok(make_array(data))
    }
}

impl Fixed {
    /// Returns the sum of the integers at `places`.
    pub(super) fn sum(
        &self,
        data_type: &DataType,
        chunks: &[ArrayRef],
        places: &mut dyn Iterator<Item = Location>,
    ) -> i128 {
        let nulls: Vec<Option<&NullBuffer>> =
            if self.nullable { chunks.iter().map(|c| c.nulls()).collect() } else { Vec::new() };
        let valid = |place: &Location| {
            let nulls = nulls.get(place.batch as usize).copied().flatten();
            nulls.is_none_or(|n| n.is_valid(place.row as usize))
        };
        let places = places.filter(valid);
        macro_rules! add {
            ($native:ty) => {
                places
                    .map(|place| {
                        let start = self.starts[place.batch as usize].cast::<$native>();
                        // SAFETY: places are inside their chunks, whose values are `$native`.
                        let value = unsafe { start.add(place.row as usize).read_unaligned() };
                        i128::from(value)
                    })
                    .sum()
            };
        }
        match data_type {
            DataType::Int8 => add!(i8),
            DataType::Int16 => add!(i16),
            DataType::Int32 => add!(i32),
            DataType::Int64 => add!(i64),
            DataType::UInt8 => add!(u8),
            DataType::UInt16 => add!(u16),
            DataType::UInt32 => add!(u32),
            DataType::UInt64 => add!(u64),
            _ => 0,
        }
    }
}

/// Copies the values at `places` into one buffer.
///
/// # Safety
/// The chunk of each place has an address in `starts`, and its row has a value of type `T` there.
unsafe fn copy<T: Copy>(starts: &[*const u8], places: &[Location]) -> Buffer {
    let bytes = std::mem::size_of_val(places) / size_of::<Location>() * size_of::<T>();
    let mut out = MutableBuffer::with_capacity(bytes);
    let to = out.as_mut_ptr().cast::<T>();
    if let [start] = starts {
        for (i, place) in places.iter().enumerate() {
            // SAFETY: guaranteed by the caller; `out` has room for one value per place.
            unsafe {
                to.add(i)
                    .write_unaligned(start.cast::<T>().add(place.row as usize).read_unaligned())
            };
        }
    } else {
        for (i, place) in places.iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                let start = starts.get_unchecked(place.batch as usize).cast::<T>();
                to.add(i).write_unaligned(start.add(place.row as usize).read_unaligned());
            }
        }
    }
    // SAFETY: all `bytes` were written.
    unsafe { out.set_len(bytes) };
    out.into()
}

fn validity(chunks: &[ArrayRef], places: &[Location], rows: Option<&[u64]>) -> NullBuffer {
    let nulls: Vec<Option<&NullBuffer>> = chunks.iter().map(|c| c.nulls()).collect();
    NullBuffer::new(BooleanBuffer::collect_bool(places.len(), |i| {
        let place = places[i];
        let there = rows.is_none_or(|rows| rows[i] != ABSENT);
        there && nulls[place.batch as usize].is_none_or(|n| n.is_valid(place.row as usize))
    }))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{Field, Schema};

    use super::*;
    use crate::materialise::{Chosen, Columns};

    #[test]
    fn gathers_nulls_absent_rows_and_slices() {
        let array: ArrayRef = Arc::new(Int64Array::from(vec![Some(9), Some(1), None, Some(3)]));
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true)]));
        let batch = RecordBatch::try_new(schema, vec![array.slice(1, 3)]).expect("one column");
        let columns = Columns::of_batch(&batch, 0);
        let picked = columns.pick(Chosen::Ids(vec![2, ABSENT, 0, 1, 0]), false);
        let got = columns.gather(0, &picked).expect("gathers");
        let expected: ArrayRef =
            Arc::new(Int64Array::from(vec![Some(3), None, Some(1), None, Some(1)]));
        assert_eq!(&got, &expected);
        for rows in [Chosen::Ids(vec![1, 2]), Chosen::Run(1..3)] {
            let run = columns.gather(0, &columns.pick(rows, true)).expect("gathers");
            assert_eq!(
                run.to_data().buffers()[0].as_ptr(),
                array.slice(2, 2).to_data().buffers()[0].as_ptr()
            );
        }
    }
}

//! A fixed-width column of a held side, copied onto huge pages in one piece.
//!
//! Gathering at random from memory in small pages costs a page walk a row: 40 ns where huge pages
//! take 12 (`benchmarks/notes.md`). One copy in order is cheap against that, and a row is then
//! found without looking for its batch.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::buffer::Buffer as ArrowBuffer;
use arrow::datatypes::DataType;

use crate::context::Context;
use crate::error::Result;
use crate::memory::{Buffer, filled};
use crate::schedule::share;

/// The values of a column, row after row.
pub(super) struct Flat {
    bytes: Buffer<u8>,
    width: usize,
    rows: usize,
}

impl Flat {
    /// Copies the chunks' values; None where the budget has no room for that, or the column is so
    /// small that the caches hold it anyway.
    pub(super) fn copy(
        cx: &Context<'_>,
        chunks: &[ArrayRef],
        starts: &[*const u8],
        width: usize,
    ) -> Result<Option<Arc<Flat>>> {
        /// Small pages up to here have their translations cached.
        const WORTH: usize = 4 << 20;
        /// Bytes between two looks at whether the join was cancelled.
        const PIECE: usize = 16 << 20;
        let rows: usize = chunks.iter().map(|c| c.len()).sum();
        if rows * width < WORTH {
            return Ok(None);
        }
        let Ok(mut bytes) =
            Buffer::<u8>::uninit(rows * width, &cx.budget, "a column on huge pages")
        else {
            return Ok(None);
        };
        // Chunk i goes to places[i].
        let mut at = 0;
        let places: Vec<(usize, usize)> = chunks
            .iter()
            .map(|c| {
                at += c.len() * width;
                (at - c.len() * width, c.len() * width)
            })
            .collect();
        let from: Vec<Source> = starts.iter().map(|&start| Source(start)).collect();
        let out = bytes.shared();
        let workers = cx.workers.for_rows(rows);
        let parts = workers.threads();
        workers.run(|worker| {
            let mine = share(rows, parts, worker);
            let (first, last) = (mine.start * width, mine.end * width);
            for (i, &(begin, len)) in places.iter().enumerate() {
                let (from_byte, to_byte) = (begin.max(first), (begin + len).min(last));
                for at in (from_byte..to_byte).step_by(PIECE) {
                    cx.workers.check()?;
                    // SAFETY: shares do not overlap; the chunk has `len` bytes from its start on.
                    unsafe {
                        let target = out.range(at..to_byte.min(at + PIECE));
                        let source = from[i].0.add(at - begin);
                        std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len());
                    }
                }
            }
            Ok(())
        })?;
        Ok(Some(Arc::new(Flat { bytes, width, rows })))
    }

    pub(super) fn stretch(&self) -> Stretch {
        Stretch { start: self.bytes.as_ptr(), width: self.width, rows: self.rows }
    }
}

/// Values without nulls that lie in one piece, wherever that is.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    pub(super) start: *const u8,
    pub(super) width: usize,
    pub(super) rows: usize,
}

impl Stretch {
    /// The values of `rows`, in memory of the pool if `pooled`.
    ///
    /// # Safety
    /// All rows exist, and the stretch is alive.
    pub(super) unsafe fn gather(&self, rows: &[u64], pooled: bool) -> ArrowBuffer {
        // SAFETY: the caller's promise; `width` is that of the type.
        unsafe {
            match self.width {
                1 => self.typed::<u8>(rows, pooled),
                2 => self.typed::<u16>(rows, pooled),
                4 => self.typed::<u32>(rows, pooled),
                8 => self.typed::<u64>(rows, pooled),
                16 => self.typed::<u128>(rows, pooled),
                _ => self.typed::<[u128; 2]>(rows, pooled),
            }
        }
    }

    unsafe fn typed<T: Copy>(&self, rows: &[u64], pooled: bool) -> ArrowBuffer {
        let from = self.start.cast::<T>();
        filled(rows.len() * size_of::<T>(), pooled, |to| {
            let to = to.cast::<T>();
            for (i, &row) in rows.iter().enumerate() {
                debug_assert!((row as usize) < self.rows, "{row} of {}", self.rows);
                // SAFETY: rows exist, and their values are `width` bytes each; `to` has room for
                // all of them.
                unsafe { to.add(i).write_unaligned(from.add(row as usize).read_unaligned()) };
            }
        })
    }

    /// The sum of the integers of `rows`; None for other types.
    ///
    /// # Safety
    /// All rows exist, and the stretch is alive.
    pub(super) unsafe fn sum(&self, data_type: &DataType, rows: &[u64]) -> Option<i128> {
        // SAFETY: the caller's promise; the types are those of the column.
        unsafe {
            Some(match data_type {
                DataType::Int8 => self.add(rows, |v: i8| v.into()),
                DataType::Int16 => self.add(rows, |v: i16| v.into()),
                DataType::Int32 => self.add(rows, |v: i32| v.into()),
                DataType::Int64 => self.add(rows, |v: i64| v.into()),
                DataType::UInt8 => self.add(rows, |v: u8| v.into()),
                DataType::UInt16 => self.add(rows, |v: u16| v.into()),
                DataType::UInt32 => self.add(rows, |v: u32| v.into()),
                DataType::UInt64 => self.add(rows, |v: u64| v.into()),
                _ => return None,
            })
        }
    }

    unsafe fn add<T: Copy>(&self, rows: &[u64], value: impl Fn(T) -> i128) -> i128 {
        let from = self.start.cast::<T>();
        let at = |row: u64| {
            debug_assert!((row as usize) < self.rows, "{row} of {}", self.rows);
            // SAFETY: rows exist, and their values are of this type.
            value(unsafe { from.add(row as usize).read_unaligned() })
        };
        rows.iter().map(|&row| at(row)).sum()
    }
}

/// The rows as a range, if they follow one another.
pub(super) fn is_run(rows: &[u64]) -> Option<Range<u64>> {
    let first = *rows.first()?;
    let end = first.checked_add(rows.len() as u64)?;
    // Most rows that do not follow one another show it by their last.
    if rows.last() != Some(&(end - 1)) {
        return None;
    }
    (first..end).zip(rows).all(|(expected, &row)| expected == row).then_some(first..end)
}

/// An address that any thread may read from.
struct Source(*const u8);

// SAFETY: the address of an immutable Arrow buffer.
unsafe impl Sync for Source {}
// SAFETY: as above.
unsafe impl Send for Source {}

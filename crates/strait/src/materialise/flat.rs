//! Copies a fixed-width column of a held side onto huge pages, in one piece.
//!
//! Gathering at random from memory in small pages costs a page-table walk per row: 40 ns, where huge pages
//! take 12 ns (`benchmarks/notes.md`). One sequential copy is cheap in comparison. After it, a row is found
//! without searching for its batch.

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
    /// Copies the chunks' values. Returns `None` if the budget has no memory for that, or if the column is so
    /// small that the caches hold it anyway.
    pub(super) fn copy(
        cx: &Context<'_>,
        chunks: &[ArrayRef],
        starts: &[*const u8],
        width: usize,
    ) -> Result<Option<Arc<Flat>>> {
        /// Up to this size, the address translations of small pages are cached.
        const WORTH: usize = 4 << 20;
        /// The number of bytes between two checks for cancellation.
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
        // The start and length of each chunk in the copy, in bytes.
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
                    // SAFETY: shares do not overlap, and the chunk has `len` bytes from its start on.
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

/// Contiguous values without nulls.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    pub(super) start: *const u8,
    pub(super) width: usize,
    pub(super) rows: usize,
}

impl Stretch {
    /// Gathers the values of `rows`. With `pooled`, the memory comes from the pool.
    ///
    /// # Safety
    /// All rows exist, and the memory of the stretch is alive.
    pub(super) unsafe fn gather(&self, rows: &[u64], pooled: bool) -> ArrowBuffer {
        // SAFETY: guaranteed by the caller; `width` is the width of the type.
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
                // SAFETY: rows exist, and their values have `width` bytes each; `to` has room for all of
                // them.
                unsafe { to.add(i).write_unaligned(from.add(row as usize).read_unaligned()) };
            }
        })
    }

    /// Returns the sum of the integers of `rows`; `None` for other types.
    ///
    /// # Safety
    /// All rows exist, and the memory of the stretch is alive.
    pub(super) unsafe fn sum(&self, data_type: &DataType, rows: &[u64]) -> Option<i128> {
        // SAFETY: guaranteed by the caller; the types are those of the column.
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
            // SAFETY: rows exist, and their values have this type.
            value(unsafe { from.add(row as usize).read_unaligned() })
        };
        rows.iter().map(|&row| at(row)).sum()
    }
}

/// Returns the rows as a range, if they are consecutive.
pub(super) fn is_run(rows: &[u64]) -> Option<Range<u64>> {
    let first = *rows.first()?;
    let end = first.checked_add(rows.len() as u64)?;
    // For most rows that are not consecutive, the last row shows it.
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

//! A fixed-width column of a held side, copied onto huge pages in one piece.
//!
//! Gathering at random from memory in small pages costs a page walk a row: 40 ns where huge pages
//! take 12 (`benchmarks/notes.md`). One copy in order is cheap against that, and a row is then
//! found without looking for its batch.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::buffer::Buffer as ArrowBuffer;

use crate::algorithm::Context;
use crate::error::Result;
use crate::memory::Buffer;
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
        let rows: usize = chunks.iter().map(|c| c.len()).sum();
        if rows * width < WORTH {
            return Ok(None);
        }
        let Ok(mut bytes) = Buffer::<u8>::stale(rows * width, &cx.budget, "a column on huge pages")
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
                if from_byte < to_byte {
                    // SAFETY: shares do not overlap; the chunk has `len` bytes from its start on.
                    unsafe {
                        let target = out.range(from_byte..to_byte);
                        let source = from[i].0.add(from_byte - begin);
                        std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len());
                    }
                }
            }
            cx.workers.check()
        })?;
        Ok(Some(Arc::new(Flat { bytes, width, rows })))
    }

    /// The values of `rows`, which must all exist.
    pub(super) fn gather(&self, rows: &[u64]) -> ArrowBuffer {
        match self.width {
            1 => self.typed::<u8>(rows),
            2 => self.typed::<u16>(rows),
            4 => self.typed::<u32>(rows),
            8 => self.typed::<u64>(rows),
            16 => self.typed::<u128>(rows),
            _ => self.typed::<[u128; 2]>(rows),
        }
    }

    fn typed<T: Copy>(&self, rows: &[u64]) -> ArrowBuffer {
        let mut out =
            arrow::buffer::MutableBuffer::with_capacity(std::mem::size_of::<T>() * rows.len());
        let to = out.as_mut_ptr().cast::<T>();
        let from = self.bytes.as_ptr().cast::<T>();
        for (i, &row) in rows.iter().enumerate() {
            debug_assert!((row as usize) < self.rows, "{row} of {}", self.rows);
            // SAFETY: rows exist, and their values are `width` bytes each; `out` has room for all.
            unsafe { to.add(i).write_unaligned(from.add(row as usize).read_unaligned()) };
        }
        // SAFETY: all of them were written.
        unsafe { out.set_len(std::mem::size_of::<T>() * rows.len()) };
        out.into()
    }

    /// Calls `each` with the value of every row; all must exist.
    #[inline(always)]
    pub(super) fn visit<T: Copy>(&self, rows: &[u64], mut each: impl FnMut(T)) {
        let from = self.bytes.as_ptr().cast::<T>();
        for &row in rows {
            debug_assert!((row as usize) < self.rows, "{row} of {}", self.rows);
            // SAFETY: rows exist, and their values are of this width.
            each(unsafe { from.add(row as usize).read_unaligned() });
        }
    }
}

/// An address that any thread may read from.
struct Source(*const u8);

// SAFETY: the address of an immutable Arrow buffer.
unsafe impl Sync for Source {}
// SAFETY: as above.
unsafe impl Send for Source {}

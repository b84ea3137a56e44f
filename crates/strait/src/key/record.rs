//! Short strings of a held side, in records of fixed size.
//!
//! Reading a string through its offset takes two memory accesses, and the column is in small pages. A hash
//! join verifies matches at random rows of the build side. So each string is copied once into a record of
//! fixed size on huge pages: its bytes, and its length in the last byte.
//!
//! ```text
//!   "strait"       73 74 72 61 69 74 00 06
//! ```

use crate::context::Context;
use crate::error::Result;
use crate::key::verify::Bytes;
use crate::memory::Buffer;
use crate::schedule::share;

/// The longest string that fits a record.
const LONGEST: usize = 31;
/// The number of rows between two checks for cancellation.
const LOOK_EVERY: usize = 64 * 1024;

/// One string per row.
pub(super) struct Records {
    bytes: Buffer<u8>,
    /// The bytes per record: a power of two.
    size: usize,
}

impl Records {
    /// Copies the strings of all chunks. Returns `None` if a string is too long, or if the budget has no
    /// memory.
    pub(super) fn copy(cx: &Context<'_>, chunks: &[Bytes], rows: usize) -> Result<Option<Records>> {
        let mut longest = 0;
        for chunk in chunks {
            for first in (0..chunk.len()).step_by(LOOK_EVERY) {
                cx.workers.check()?;
                let some = first..chunk.len().min(first + LOOK_EVERY as u32);
                longest = some.map(|i| chunk.get(i).len()).fold(longest, usize::max);
                if longest > LONGEST {
                    return Ok(None);
                }
            }
        }
        let size = (longest + 1).next_power_of_two().max(8);
        let Ok(mut bytes) = Buffer::<u8>::uninit(rows * size, &cx.budget, "keys as records") else {
            return Ok(None);
        };
        let out = bytes.shared();
        let workers = cx.workers.for_rows(rows);
        workers.run(|worker| {
            let mine = share(rows, workers.threads(), worker);
            let mut first = 0;
            for chunk in chunks {
                let end = first + chunk.len() as usize;
                let (from, to) = (mine.start.max(first), mine.end.min(end));
                for row in from..to.max(from) {
                    if row % LOOK_EVERY == 0 {
                        cx.workers.check()?;
                    }
                    let value = chunk.get((row - first) as u32);
                    // SAFETY: each row belongs to one worker.
                    let record = unsafe { out.range(row * size..(row + 1) * size) };
                    record.fill(0);
                    record[..value.len()].copy_from_slice(value);
                    record[size - 1] = value.len() as u8;
                }
                first = end;
            }
            cx.workers.check()
        })?;
        Ok(Some(Records { bytes, size }))
    }

    /// Prefetches a row's record.
    #[inline(always)]
    pub(super) fn fetch(&self, row: u32) {
        crate::processor::prefetch(self.bytes.as_ptr().wrapping_add(row as usize * self.size));
    }

    /// Returns a row's string.
    #[inline(always)]
    pub(super) fn get(&self, row: u32) -> &[u8] {
        let record = &self.bytes[row as usize * self.size..][..self.size];
        &record[..usize::from(record[self.size - 1])]
    }

    /// Returns whether a row's string equals `value`.
    #[inline(always)]
    pub(super) fn is(&self, row: u32, value: &[u8]) -> bool {
        let own = self.get(row);
        own.len() == value.len() && same(own, value)
    }
}

/// Returns whether two strings of the same length, at most 31, are equal. It uses a few wide loads that may
/// overlap.
#[inline(always)]
fn same(a: &[u8], b: &[u8]) -> bool {
    #[inline(always)]
    fn ends<const N: usize>(s: &[u8]) -> Option<(&[u8; N], &[u8; N])> {
        Some((s.first_chunk()?, s.last_chunk()?))
    }
    match a.len() {
        16.. => ends::<16>(a) == ends::<16>(b),
        8.. => ends::<8>(a) == ends::<8>(b),
        4.. => ends::<4>(a) == ends::<4>(b),
        2.. => ends::<2>(a) == ends::<2>(b),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn strings_are_equal_if_all_bytes_are() {
        for len in 0..=super::LONGEST {
            let a: Vec<u8> = (0..len as u8).collect();
            assert!(same(&a, &a.clone()));
            for i in 0..len {
                let mut b = a.clone();
                b[i] ^= 0x80;
                assert!(!same(&a, &b), "byte {i} of {len}");
            }
        }
    }
}

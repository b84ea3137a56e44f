//! Memory for output columns: many small buffers cut from one mapping on huge pages.
//!
//! Fresh memory in small pages costs a page fault per 4 KiB, which is more than writing the rows. So a worker
//! cuts the columns of its batches from a slab. When the last of these columns is dropped, the slab returns
//! to the pool, and later batches use it again.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::buffer::{Buffer, MutableBuffer};

use crate::memory::pool::{self, Mapping};

/// The bytes of a slab: two huge pages.
const SLAB: usize = 4 << 20;
/// Shorter columns are allocated normally.
const FROM: usize = 16 << 10;
const LINE: usize = 64;

/// A mapping that returns to the pool with the last column that was cut from it.
struct Owner {
    mapping: Option<Mapping>,
}

// SAFETY: a mapping is only memory. Columns cut from it do not overlap, and are written before they are
// shared.
unsafe impl Sync for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(mapping) = self.mapping.take() {
            pool::give_back(mapping);
        }
    }
}

struct Slab {
    shared: Arc<Owner>,
    start: NonNull<u8>,
    used: usize,
}

thread_local! {
    static CURRENT: RefCell<Option<Slab>> = const { RefCell::new(None) };
}

/// Returns a buffer of `bytes` bytes. `fill` must write all of them. With `pooled`, the buffer may come from
/// a slab.
pub(crate) fn filled(bytes: usize, pooled: bool, fill: impl FnOnce(*mut u8)) -> Buffer {
    if let Some((start, owner)) =
        (pooled && (FROM..=SLAB).contains(&bytes)).then(|| cut(bytes)).flatten()
    {
        fill(start.as_ptr());
        // SAFETY: these `bytes` bytes of the slab belong to no other column, were just written, and live as
        // long as their owner.
        return unsafe { Buffer::from_custom_allocation(start, bytes, owner) };
    }
    let mut out = MutableBuffer::with_capacity(bytes);
    fill(out.as_mut_ptr());
    // SAFETY: all bytes were written.
    unsafe { out.set_len(bytes) };
    out.into()
}

/// Cuts the next `bytes` bytes from this thread's slab, or from a new one.
fn cut(bytes: usize) -> Option<(NonNull<u8>, Arc<Owner>)> {
    CURRENT.with_borrow_mut(|current| {
        if current.as_ref().is_none_or(|slab| slab.used + bytes > SLAB) {
            let mapping = pool::take(SLAB, true)?;
            let start = mapping.data();
            let shared = Arc::new(Owner { mapping: Some(mapping) });
            *current = Some(Slab { shared, start, used: 0 });
        }
        let slab = current.as_mut()?;
        // SAFETY: `used + bytes` is within the mapping.
        let start = unsafe { slab.start.add(slab.used) };
        slab.used += bytes.next_multiple_of(LINE);
        Some((start, Arc::clone(&slab.shared)))
    })
}

/// Copies `bytes` bytes to a new column. The cache lines of a long column bypass the cache: they would be
/// evicted before the consumer reads them, and would evict the join's table.
///
/// # Safety
/// Both are valid for `bytes` bytes and do not overlap. The bytes of `from` are initialised.
pub(crate) unsafe fn copy_past_cache(from: *const u8, to: *mut u8, bytes: usize) {
    let long = bytes >= FROM && to.addr().is_multiple_of(LINE);
    let lines = if long { bytes / LINE } else { 0 };
    // SAFETY: whole lines inside both, where those of `to` are aligned to 64 bytes; then the rest of both.
    unsafe {
        stream_lines(from, to, lines);
        let done = lines * LINE;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done);
    }
}

/// Copies whole lines with non-temporal stores, and then makes them visible to other threads.
///
/// # Safety
/// Both are valid for `lines` lines, and `to` is aligned to 64 bytes.
#[cfg(vectors)]
unsafe fn stream_lines(from: *const u8, to: *mut u8, lines: usize) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    // SAFETY: guaranteed by the caller; SSE2 is part of x86-64.
    unsafe {
        for at in (0..lines * LINE).step_by(16) {
            _mm_stream_si128(to.add(at).cast(), _mm_loadu_si128(from.add(at).cast()));
        }
        if lines > 0 {
            _mm_sfence();
        }
    }
}

/// Copies whole lines.
///
/// # Safety
/// Both are valid for `lines` lines.
#[cfg(not(vectors))]
unsafe fn stream_lines(from: *const u8, to: *mut u8, lines: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(from, to, lines * LINE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_past_the_cache_are_whole() {
        let from: Vec<u8> = (0..FROM + 3 * LINE).map(|i| i as u8 ^ (i >> 8) as u8).collect();
        for (skip, len) in [(0, 0), (1, 5), (0, FROM), (3, FROM + 1), (8, FROM + LINE + 63)] {
            for pooled in [false, true] {
                let column = filled(len, pooled, |to| {
                    // SAFETY: `len` bytes exist from `skip` on, and `filled` gives `len` bytes.
                    unsafe { copy_past_cache(from[skip..].as_ptr(), to, len) };
                });
                assert_eq!(column.as_slice(), &from[skip..skip + len]);
            }
        }
    }

    #[test]
    fn columns_do_not_overlap_and_outlive_the_slab() {
        let fill = |value: u8, bytes: usize| {
            move |start: *mut u8| {
                // SAFETY: `filled` gives `bytes` bytes.
                unsafe { std::ptr::write_bytes(start, value, bytes) };
            }
        };
        let sizes = [FROM, FROM + 1, SLAB / 2, SLAB / 2, SLAB, SLAB + 1, 10, FROM + 63];
        let columns: Vec<Buffer> = (0u8..)
            .zip(sizes.iter().cycle().take(64))
            .map(|(value, &bytes)| filled(bytes, true, fill(value, bytes)))
            .collect();
        for (value, column) in (0u8..).zip(&columns) {
            assert!(column.iter().all(|&byte| byte == value));
        }
    }
}

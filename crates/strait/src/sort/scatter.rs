//! Write combining: writes to many destinations without reading them first.
//!
//! A pass that sends tuples to hundreds of destinations touches another cache line with almost each store.
//! The processor would fetch each line only to overwrite it, and would evict it before it is full. Instead, a
//! [`WriteCombiner`] keeps a block of two lines per destination in the cache, and writes the whole block to
//! memory with stores that bypass the cache. One line would suffice for that. With two, the branch on whether
//! a value is the last one is mispredicted half as often, and memory is written in longer pieces. Four are
//! slightly faster for few destinations, but the blocks of thousands of destinations no longer fit the cache.
//!
//! With tuples of 16 bytes, eight per block, and a destination that starts at position 6:
//!
//! ```text
//! out        | … 6 7 | 8 9 … 15 | 16 …      blocks start at multiples of 8
//! push 1, 2  |   1 2 |                      the block ends: 6 and 7 are written separately,
//!                                           because those before belong to a neighbour
//! push 3–10          | 3 4 … 10 |           a whole block: streaming stores
//! push 11                       | 11        waits for `flush`, which writes only 16
//! ```

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::memory::{Plain, Shared};

/// The size of a cache line. Streaming stores write whole lines.
const LINE: usize = 64;
/// The bytes of a block.
const BLOCK: usize = 2 * LINE;

/// Values that wait until their block is complete.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct CombiningBuffer([MaybeUninit<u8>; BLOCK]);

/// Appends values to many destinations in one buffer, one block of cache lines at a time.
///
/// Destination `d` owns the positions from `starts[d]` on, as many as are pushed to it. They may start and
/// end anywhere. A block that is shared with a neighbour, here or on another thread, is written value by
/// value, so that the neighbour's values are not touched.
///
/// Pushed values are visible to all threads only after [`flush`](Self::flush). Blocks are computed from
/// positions. So blocks can be streamed only if the buffer is aligned to 64 bytes; otherwise the result is
/// right, but slower.
pub(crate) struct WriteCombiner<T: Plain> {
    blocks: Vec<CombiningBuffer>,
    /// The position of the next value of each destination.
    next: Vec<usize>,
    /// For each destination, the first position that belongs to it and may not be written yet. It is separate
    /// from `next`, because only complete blocks need it, and `next` has to fit the first-level cache.
    start: Vec<usize>,
    _values: PhantomData<T>,
}

impl<T: Plain> WriteCombiner<T> {
    /// The number of values per block. If values do not fill a block evenly, it is 1, and each value is
    /// written at once.
    const A_BLOCK: usize =
        if BLOCK.is_multiple_of(size_of::<T>()) { BLOCK / size_of::<T>() } else { 1 };

    /// Creates a combiner for destinations that start at `starts`.
    pub(crate) fn new(starts: &[usize]) -> Self {
        let blocks = vec![CombiningBuffer([MaybeUninit::uninit(); BLOCK]); starts.len()];
        WriteCombiner {
            blocks,
            next: starts.to_vec(),
            start: starts.to_vec(),
            _values: PhantomData,
        }
    }

    /// Appends `value` to destination `dest`.
    ///
    /// # Safety
    /// `dest` is below the number of starts. `out` is the same buffer in all calls. Until `flush`, no other
    /// thread accesses the positions that were pushed to.
    #[inline(always)]
    pub(crate) unsafe fn push(&mut self, dest: usize, value: T, out: &Shared<'_, T>) {
        debug_assert!(dest < self.next.len(), "{dest} of {}", self.next.len());
        // SAFETY: `next` has an element per start, and `dest` is below their number.
        let next = unsafe { self.next.get_unchecked_mut(dest) };
        let at = *next;
        *next += 1;
        if Self::A_BLOCK == 1 {
            // SAFETY: the position belongs to the caller.
            let place = unsafe { out.range(at..at + 1) };
            place[0] = value;
            return;
        }
        let slot = at % Self::A_BLOCK;
        // SAFETY: there is a block per destination. A block is aligned, and A_BLOCK values fit it.
        unsafe { self.blocks.as_mut_ptr().add(dest).cast::<T>().add(slot).write(value) };
        if slot + 1 == Self::A_BLOCK {
            // SAFETY: guaranteed by the caller; the block's values from `start` on were pushed.
            unsafe { self.write(dest, at + 1, out) };
        }
    }

    /// Writes all waiting values, and makes all values visible to the threads that this thread synchronises
    /// with.
    ///
    /// # Safety
    /// As for [`push`](Self::push).
    pub(crate) unsafe fn flush(&mut self, out: &Shared<'_, T>) {
        for dest in 0..self.next.len() {
            let next = self.next[dest];
            if next > self.start[dest] && !next.is_multiple_of(Self::A_BLOCK) {
                // SAFETY: guaranteed by the caller.
                unsafe { self.write(dest, next, out) };
            }
            self.start[dest] = next;
        }
        fence();
    }

    /// Writes the values of `dest` that wait in its block, up to position `next`.
    ///
    /// # Safety
    /// As for `push`; at least one value was pushed.
    #[inline(always)]
    unsafe fn write(&self, dest: usize, next: usize, out: &Shared<'_, T>) {
        // SAFETY: the caller guarantees that `dest` is below the number of starts.
        let start = *unsafe { self.start.get_unchecked(dest) };
        let first = ((next - 1) / Self::A_BLOCK * Self::A_BLOCK).max(start);
        // SAFETY: these positions were pushed to, so they belong to the caller.
        let target = unsafe { out.range(first..next) };
        let (target, len) = (target.as_mut_ptr(), target.len());
        // SAFETY: there is a block per destination, and `first` is in it.
        let source =
            unsafe { self.blocks.as_ptr().add(dest).cast::<T>().add(first % Self::A_BLOCK) };
        if len == Self::A_BLOCK && (target as usize).is_multiple_of(LINE) {
            let (source, target) = (source.cast::<u8>(), target.cast::<u8>());
            for at in (0..BLOCK).step_by(LINE) {
                // SAFETY: both are whole blocks, aligned to a line, and do not overlap.
                unsafe { stream(source.add(at), target.add(at)) };
            }
        } else {
            // SAFETY: `len` values of the block were pushed, and the target has `len` elements.
            unsafe { write_some(source.cast(), target.cast(), len * size_of::<T>()) };
        }
    }
}

/// Copies part of a block. Whole lines bypass the cache, if source and target have the same alignment.
///
/// # Safety
/// Both are valid for `bytes` bytes. `fence` is called before another thread reads them.
#[inline(never)]
unsafe fn write_some(source: *const u8, target: *mut u8, bytes: usize) {
    let alike = (source as usize ^ target as usize).is_multiple_of(LINE);
    let head = if alike { (target as usize).wrapping_neg() % LINE } else { bytes }.min(bytes);
    let lines = (bytes - head) / LINE * LINE;
    // SAFETY: head, lines and tail are `bytes` bytes together. Between head and tail, both are aligned to a
    // line.
    unsafe {
        std::ptr::copy_nonoverlapping(source, target, head);
        for at in (head..head + lines).step_by(LINE) {
            stream(source.add(at), target.add(at));
        }
        let tail = head + lines;
        std::ptr::copy_nonoverlapping(source.add(tail), target.add(tail), bytes - tail);
    }
}

/// Copies one cache line with streaming stores.
///
/// It is written in assembly because tuples may have padding: in Rust, loading uninitialised bytes as a value
/// is undefined behaviour.
///
/// # Safety
/// Both are valid for 64 bytes and aligned to 64. `fence` is called before another thread reads them.
#[cfg(vectors)]
#[inline(always)]
unsafe fn stream(source: *const u8, target: *mut u8) {
    // SAFETY: SSE2 is part of x86-64, and only the 64 bytes at `target` are written.
    unsafe {
        std::arch::asm!(
            "movaps {a}, [{source}]",
            "movaps {b}, [{source} + 16]",
            "movaps {c}, [{source} + 32]",
            "movaps {d}, [{source} + 48]",
            "movntps [{target}], {a}",
            "movntps [{target} + 16], {b}",
            "movntps [{target} + 32], {c}",
            "movntps [{target} + 48], {d}",
            source = in(reg) source,
            target = in(reg) target,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies one cache line.
///
/// # Safety
/// Both are valid for 64 bytes.
#[cfg(not(vectors))]
#[inline(always)]
unsafe fn stream(source: *const u8, target: *mut u8) {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(source, target, LINE) }
}

/// Orders streamed lines before all later stores of this thread.
fn fence() {
    #[cfg(vectors)]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;
    use crate::memory::{Budget, Buffer};

    /// Compares destinations of random sizes, at random starts, with one vector each. Gaps must keep their
    /// marks.
    fn check<T: Plain + PartialEq + std::fmt::Debug>(make: impl Fn(u64) -> T, shift: usize) {
        let mut random = Rng::with_seed(0x5eed + shift as u64);
        for case in 0..50 {
            let dests = 1 + random.u64(..40) as usize;
            let sizes: Vec<usize> = (0..dests).map(|_| random.u64(..30) as usize).collect();
            let mut starts = Vec::new();
            let mut end = shift;
            for size in &sizes {
                end += random.u64(..3) as usize;
                starts.push(end - shift);
                end += size;
            }
            let budget = Budget::new(None);
            let mut buffer = Buffer::zeroed(end + 1, &budget, "a test").expect("fits");
            buffer.iter_mut().for_each(|x| *x = make(u64::MAX));
            let mut expected = buffer.to_vec();
            let out = Shared::of(&mut buffer[shift..]);
            let mut combiner = WriteCombiner::<T>::new(&starts);
            let mut left = sizes;
            let mut next = starts;
            while left.iter().any(|&l| l > 0) {
                let dest = random.u64(..dests as u64) as usize;
                if left[dest] > 0 {
                    let value = make(random.u64(..));
                    expected[shift + next[dest]] = value;
                    // SAFETY: one thread, one buffer, positions inside it.
                    unsafe { combiner.push(dest, value, &out) };
                    (left[dest], next[dest]) = (left[dest] - 1, next[dest] + 1);
                }
                if random.u64(..100) == 0 {
                    // SAFETY: as above.
                    unsafe { combiner.flush(&out) };
                }
            }
            // SAFETY: as above.
            unsafe { combiner.flush(&out) };
            assert_eq!(&buffer[..], &expected[..], "case {case}");
        }
    }

    #[test]
    fn every_value_arrives_and_neighbours_stay() {
        use crate::partition::Tuple;
        for shift in 0..5 {
            check(|x| Tuple { key: x, row: x }, shift);
            check(|x| Tuple { key: x, row: x as u32 }, shift);
            check(|x| Tuple { key: x as u32, row: x as u32 }, shift);
            check(|x| x as u8, shift);
        }
    }
}

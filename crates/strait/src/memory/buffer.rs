//! Large arrays whose memory is reserved in a budget, on huge pages if the system has them.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::pool::{self, Mapping};
use crate::memory::{Budget, Reservation};

/// Types for which every bit pattern is a valid value, including all zeros.
///
/// # Safety
/// Implement it only for types with this property, whose padding is never read.
pub(crate) unsafe trait Plain: Copy + Send + Sync + 'static {}

// SAFETY: integers take any bit pattern.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for usize {}

/// A buffer of at least this size gets its own mapping, so that it has huge pages and returns to the system
/// at once.
const MAPPED_FROM: usize = 4 << 20;
/// The same without a memory limit. Then wasting the rest of the last huge page does not matter.
const FREELY_MAPPED_FROM: usize = 1 << 20;
/// The size of a cache line. Non-temporal stores write whole lines.
const LINE: usize = 64;

/// A fixed number of `T`, aligned to 64 bytes.
pub(crate) struct Buffer<T: Plain> {
    data: NonNull<T>,
    len: usize,
    memory: Memory,
    /// Whether the memory may be kept for the next join.
    pooled: bool,
    _reservation: Reservation,
    _owns: PhantomData<T>,
}

enum Memory {
    Nothing,
    Heap(Layout),
    /// `None` only while the buffer is being dropped.
    Mapped(Option<Mapping>),
}

// SAFETY: a buffer owns its memory and `T` may go to any thread.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// Allocates `len` zeros, reserved in `budget`. `what` names the purpose in error messages.
    pub(crate) fn zeroed(len: usize, budget: &Arc<Budget>, what: &str) -> Result<Self> {
        let buffer = Self::uninit(len, budget, what)?;
        if matches!(&buffer.memory, Memory::Mapped(Some(mapping)) if !mapping.fresh) {
            // SAFETY: `len` values of our own, for which zero is a value.
            unsafe { std::ptr::write_bytes(buffer.data.as_ptr(), 0, len) };
        }
        Ok(buffer)
    }

    /// Allocates `len` values with unspecified content. Callers must write each value before they read it.
    pub(crate) fn uninit(len: usize, budget: &Arc<Budget>, what: &str) -> Result<Self> {
        let refused = |needed| Error::OutOfMemory { what: what.to_string(), needed };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| refused(u64::MAX))?;
        let reservation = budget.reserve(bytes as u64, what)?;
        let pooled = budget.unlimited();
        let mapped_from = if pooled { FREELY_MAPPED_FROM } else { MAPPED_FROM };
        let (data, memory) = match bytes {
            0 => (NonNull::<T>::dangling().cast(), Memory::Nothing),
            _ if bytes < mapped_from => heap(bytes).ok_or_else(|| refused(bytes as u64))?,
            _ => {
                let mapping = pool::take(bytes, pooled);
                let mapping = mapping.ok_or_else(|| refused(bytes as u64))?;
                (mapping.data(), Memory::Mapped(Some(mapping)))
            }
        };
        Ok(Buffer {
            data: data.cast(),
            len,
            memory,
            pooled,
            _reservation: reservation,
            _owns: PhantomData,
        })
    }

    /// Returns the address of one value, for atomic access by several threads.
    #[inline(always)]
    pub(crate) fn cell(&self, index: usize) -> *mut T {
        assert!(index < self.len, "{index} of {}", self.len);
        // SAFETY: in bounds.
        unsafe { self.data.as_ptr().add(index) }
    }

    /// Returns a view through which several threads can write to disjoint ranges.
    pub(crate) fn shared(&mut self) -> Shared<'_, T> {
        Shared { data: self.data, len: self.len, _borrows: PhantomData }
    }
}

fn heap(bytes: usize) -> Option<(NonNull<u8>, Memory)> {
    let layout = Layout::from_size_align(bytes, LINE).ok()?;
    // SAFETY: the layout is not empty.
    let data = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
    Some((data, Memory::Heap(layout)))
}

impl<T: Plain> Drop for Buffer<T> {
    fn drop(&mut self) {
        match &mut self.memory {
            Memory::Nothing => {}
            Memory::Heap(layout) => {
                // SAFETY: allocated with this layout in `heap`.
                unsafe { std::alloc::dealloc(self.data.as_ptr().cast(), *layout) }
            }
            Memory::Mapped(mapping) => {
                if let Some(mapping) = mapping.take().filter(|_| self.pooled) {
                    pool::give_back(mapping);
                }
            }
        }
    }
}

impl<T: Plain> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the memory holds `len` values of a Plain type, and every byte is initialised: by us, by the
        // allocator's zeroing, or by the system's zero pages.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

/// A buffer that several threads write to, each in its own range.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    data: NonNull<T>,
    len: usize,
    _borrows: PhantomData<&'a mut [T]>,
}

// SAFETY: the contracts of the writing methods require disjoint ranges.
unsafe impl<T: Plain> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Shared<'_, T> {}

impl<'a, T: Plain> Shared<'a, T> {
    /// Shares a whole slice.
    pub(crate) fn of(slice: &'a mut [T]) -> Self {
        let len = slice.len();
        Shared { data: NonNull::from(slice).cast(), len, _borrows: PhantomData }
    }

    /// Writes one value.
    ///
    /// # Safety
    /// `index` is in bounds, and no other thread accesses this value at the same time.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, index: usize, value: T) {
        debug_assert!(index < self.len, "{index} of {}", self.len);
        // SAFETY: guaranteed by the caller.
        unsafe { self.data.as_ptr().add(index).write(value) }
    }

    /// Returns a part of the buffer for writing.
    ///
    /// # Safety
    /// No other thread accesses this range at the same time.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn range(&self, range: std::ops::Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: in bounds, and the caller guarantees that ranges are disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr().add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zero_aligned_and_accounted() {
        let budget = Budget::new(Some(64 << 20));
        for len in [0usize, 1, 1000, MAPPED_FROM / 8 - 1, MAPPED_FROM / 8, 3 << 20] {
            let mut buffer = Buffer::<u64>::zeroed(len, &budget, "a test").expect("fits");
            assert_eq!(budget.left(), (64 << 20) - 8 * len as u64);
            assert!(buffer.iter().all(|&x| x == 0));
            assert_eq!(buffer.as_ptr() as usize % if len == 0 { 8 } else { LINE }, 0);
            buffer.iter_mut().for_each(|x| *x = u64::MAX);
            assert!(buffer.iter().all(|&x| x == u64::MAX));
        }
        assert_eq!(budget.left(), 64 << 20);
        assert!(Buffer::<u64>::zeroed(9 << 20, &budget, "a test").is_err());
        assert!(Buffer::<u64>::zeroed(usize::MAX, &budget, "a test").is_err());
    }

    #[test]
    fn memory_used_again_is_zero_where_asked() {
        let budget = Budget::new(None);
        let len = 3 * MAPPED_FROM / 8;
        for _ in 0..3 {
            let mut buffer = Buffer::<u64>::zeroed(len, &budget, "a test").expect("fits");
            assert!(buffer.iter().all(|&x| x == 0));
            buffer.fill(u64::MAX);
        }
        crate::release_memory();
    }
}

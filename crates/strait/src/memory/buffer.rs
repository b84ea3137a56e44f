//! Large arrays: reserved in a budget, zeroed, on huge pages where the system has them.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::{Budget, Reservation};

/// Types for which any bytes, all zero among them, are a value.
///
/// # Safety
/// Implement it only where that holds, and padding is never read.
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

/// From here on a buffer is mapped by itself, so that it gets huge pages and returns at once.
const MAPPED_FROM: usize = 4 << 20;
const HUGE_PAGE: usize = 2 << 20;
/// A cache line, which non-temporal stores write whole.
const LINE: usize = 64;

/// A fixed number of `T`, zero at first, at an address that is a multiple of 64.
pub(crate) struct Buffer<T: Plain> {
    data: NonNull<T>,
    len: usize,
    memory: Memory,
    _reservation: Reservation,
    _owns: PhantomData<T>,
}

enum Memory {
    Nothing,
    Heap(Layout),
    Mapped { start: *mut libc::c_void, bytes: usize },
}

// SAFETY: a buffer owns its memory and `T` may go to any thread.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// `len` zeros, reserved in `budget` for `what`.
    pub(crate) fn zeroed(len: usize, budget: &Arc<Budget>, what: &str) -> Result<Self> {
        let refused = |needed| Error::OutOfMemory { what: what.to_string(), needed };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| refused(u64::MAX))?;
        let reservation = budget.reserve(bytes as u64, what)?;
        let (data, memory) = match bytes {
            0 => (NonNull::<T>::dangling().cast(), Memory::Nothing),
            1..MAPPED_FROM => heap(bytes).ok_or_else(|| refused(bytes as u64))?,
            _ => map(bytes).ok_or_else(|| refused(bytes as u64))?,
        };
        Ok(Buffer { data: data.cast(), len, memory, _reservation: reservation, _owns: PhantomData })
    }

    /// A view through which several threads write to disjoint places.
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

/// Maps `bytes` from a huge-page boundary on: fewer page faults, and one TLB entry for 2 MiB.
fn map(bytes: usize) -> Option<(NonNull<u8>, Memory)> {
    let mapped = bytes.checked_add(HUGE_PAGE)?;
    // SAFETY: an anonymous private mapping at an address of the system's choice.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            mapped,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    let aligned = (start as usize).next_multiple_of(HUGE_PAGE) - start as usize;
    // SAFETY: `aligned` is below HUGE_PAGE, so the address and `bytes` behind it are mapped.
    let data = unsafe { start.cast::<u8>().add(aligned) };
    #[cfg(target_os = "linux")]
    // SAFETY: advice on our own mapping; a refusal costs speed only.
    unsafe {
        libc::madvise(data.cast(), bytes, libc::MADV_HUGEPAGE);
    }
    Some((NonNull::new(data)?, Memory::Mapped { start, bytes: mapped }))
}

impl<T: Plain> Drop for Buffer<T> {
    fn drop(&mut self) {
        match self.memory {
            Memory::Nothing => {}
            // SAFETY: allocated with this layout in `heap`.
            Memory::Heap(layout) => unsafe {
                std::alloc::dealloc(self.data.as_ptr().cast(), layout)
            },
            // SAFETY: mapped with this extent in `map`.
            Memory::Mapped { start, bytes } => unsafe {
                libc::munmap(start, bytes);
            },
        }
    }
}

impl<T: Plain> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` values of a Plain type, zeroed at first.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len) }
    }
}

/// A buffer lent to several threads that write to disjoint places.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    data: NonNull<T>,
    len: usize,
    _borrows: PhantomData<&'a mut [T]>,
}

// SAFETY: the methods that write ask their callers to keep to disjoint places.
unsafe impl<T: Plain> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Shared<'_, T> {}

impl<'a, T: Plain> Shared<'a, T> {
    /// The whole of a slice.
    pub(crate) fn of(slice: &'a mut [T]) -> Self {
        let len = slice.len();
        Shared { data: NonNull::from(slice).cast(), len, _borrows: PhantomData }
    }

    /// Writes one value.
    ///
    /// # Safety
    /// `index` is in bounds and no other thread touches that place meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, index: usize, value: T) {
        debug_assert!(index < self.len, "{index} of {}", self.len);
        // SAFETY: the caller's promise.
        unsafe { self.data.as_ptr().add(index).write(value) }
    }

    /// A part of it to write to.
    ///
    /// # Safety
    /// No other thread touches that range meanwhile.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn range(&self, range: std::ops::Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: in bounds, and disjoint by the caller's promise.
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
}

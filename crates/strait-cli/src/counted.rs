//! An allocator for tests that counts the bytes that each thread holds.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

use mimalloc::MiMalloc;

/// Counts allocations, and passes them to the allocator of the real command.
pub(crate) struct Counted;

thread_local! {
    /// Bytes that this thread has allocated and not freed.
    static HELD: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

/// Runs `work`, and returns the most bytes that this thread held meanwhile.
pub(crate) fn most_held<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = HELD.get();
    MOST.set(before);
    let result = work();
    (result, (MOST.get() - before).max(0) as u64)
}

fn note(bytes: i64) {
    // A thread that ends may free memory after its counters are gone.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        MOST.set(MOST.get().max(held.get()));
    });
}

// SAFETY: every call goes to `MiMalloc` unchanged. Counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`, and `MiMalloc` has the same one.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, and `MiMalloc` has the same one.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        note(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `dealloc`, and `MiMalloc` has the same one.
        unsafe { MiMalloc.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The old and the new block may both be live while one is copied to the other.
        note(size as i64);
        note(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `realloc`, and `MiMalloc` has the same one.
        unsafe { MiMalloc.realloc(place, layout, size) }
    }
}

//! A tuple: the key word and the row it stands for.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::key::KeyWord;
use crate::memory::Plain;

/// A row id: the row's position in its side. 32 bits while that suffices, else 64.
///
/// The top bit is free for the table's own marks, and a table may number half as many places again
/// as there are rows, so the narrow one serves 2^30 rows.
pub(crate) trait RowId: Copy + Ord + Debug + Default + Plain {
    /// The top bit alone.
    const TOP: Self;
    /// The most rows a side may have.
    const MOST_ROWS: u64;
    fn from_u64(row: u64) -> Self;
    fn to_u64(self) -> u64;
    fn from_usize(row: usize) -> Self {
        Self::from_u64(row as u64)
    }
    fn to_usize(self) -> usize {
        self.to_u64() as usize
    }
    fn has_top(self) -> bool;
    fn with_top(self) -> Self;
    fn without_top(self) -> Self;
    /// Stores to a place that other threads may store to as well.
    ///
    /// # Safety
    /// The place is alive, and meanwhile touched by such stores only.
    unsafe fn store(place: *mut Self, value: Self);
}

macro_rules! row_id {
    ($int:ty, $atomic:ty) => {
        impl RowId for $int {
            const TOP: $int = 1 << (<$int>::BITS - 1);
            const MOST_ROWS: u64 = 1 << (<$int>::BITS - 2);
            #[inline(always)]
            fn from_u64(row: u64) -> $int {
                row as $int
            }
            #[inline(always)]
            fn to_u64(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn has_top(self) -> bool {
                self & Self::TOP != 0
            }
            #[inline(always)]
            fn with_top(self) -> $int {
                self | Self::TOP
            }
            #[inline(always)]
            fn without_top(self) -> $int {
                self & !Self::TOP
            }
            #[inline(always)]
            unsafe fn store(place: *mut $int, value: $int) {
                // SAFETY: the caller's promise; an atomic is aligned as its integer.
                unsafe { <$atomic>::from_ptr(place) }.store(value, Ordering::Relaxed);
            }
        }
    };
}

row_id!(u32, AtomicU32);
row_id!(u64, AtomicU64);

/// A key word (mixed, in hash joins) and its row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub(crate) struct Tuple<K, I> {
    pub(crate) key: K,
    pub(crate) row: I,
}

// SAFETY: two integers; the padding between (u64, u32) and the next tuple is never read as such.
unsafe impl<K: KeyWord, I: RowId> Plain for Tuple<K, I> {}

//! One flag per row of a side, or of a part of it: whether the row has a match. Any worker may set a flag, in any order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::Result;
use crate::memory::{Budget, Buffer};

/// One byte per row, so that setting a flag is a plain store.
pub(crate) struct Flags {
    bytes: Buffer<u8>,
}

impl Flags {
    pub(crate) fn new(rows: usize, budget: &Arc<Budget>) -> Result<Self> {
        Ok(Flags { bytes: Buffer::zeroed(rows, budget, "flags of matched rows")? })
    }

    #[inline(always)]
    fn cell(&self, row: u64) -> &AtomicU8 {
        // SAFETY: the byte lives as long as the buffer, and is accessed only through atomics.
        unsafe { AtomicU8::from_ptr(self.bytes.cell(row as usize)) }
    }

    #[inline(always)]
    pub(crate) fn set(&self, row: u64) {
        self.cell(row).store(1, Ordering::Relaxed);
    }

    /// Sets all flags that are set in `other`, which has as many rows.
    pub(crate) fn add(&self, other: &Flags) {
        let rows = 0..self.bytes.len().min(other.bytes.len()) as u64;
        rows.filter(|&row| other.get(row)).for_each(|row| self.set(row));
    }

    #[inline(always)]
    pub(crate) fn get(&self, row: u64) -> bool {
        self.cell(row).load(Ordering::Relaxed) != 0
    }
}

//! Host memory of the simulated device: aligned like device memory, and poisoned while it is fresh.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::memory::ALIGNMENT;
use crate::error::{Error, Result};

/// Host memory that it owns.
pub(super) struct HostMemory {
    start: *mut u8,
    /// The memory behind `start`.
    _words: Vec<u128>,
}

// SAFETY: it owns its memory. Callers must prevent concurrent writes.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates memory in which every byte is `byte`.
    pub(super) fn new(bytes: usize, byte: u8, what: &str) -> Result<HostMemory> {
        let refused = || Error::OutOfMemory { what: what.to_string(), needed: bytes as u64 };
        let mut words: Vec<u128> = Vec::new();
        let count = bytes.checked_add(ALIGNMENT as usize).ok_or_else(refused)?;
        let count = count.div_ceil(size_of::<u128>());
        words.try_reserve_exact(count).map_err(|_| refused())?;
        words.resize(count, u128::from_ne_bytes([byte; 16]));
        let start = words.as_mut_ptr().cast::<u8>();
        let past = start as usize % ALIGNMENT as usize;
        let start = start.wrapping_add((ALIGNMENT as usize - past) % ALIGNMENT as usize);
        Ok(HostMemory { start, _words: words })
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start
    }
}

/// A pin of somebody else's memory. It pins nothing, but is counted while it lives.
pub(super) struct Pin(Arc<AtomicUsize>);

impl Pin {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Pin {
        count.fetch_add(1, Ordering::Relaxed);
        Pin(Arc::clone(count))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

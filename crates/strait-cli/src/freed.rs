//! Decides when the allocator returns freed memory to the system.
//!
//! The system counts that memory as held by the process, but no reservation counts it. If the
//! allocator returned it at once, ordinary joins would spend much of their time on page faults. So
//! the allocator keeps it until the process comes near its limit, and returns it at once from then
//! on.

use std::ffi::{c_int, c_long};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// How often the process looks at its own size, in microseconds. A request of `LARGE` bytes looks
/// at once.
const LOOK_US: u64 = 1000;

const LARGE: u64 = 4 << 20;

/// `/proc/self/statm` counts in pages.
const PAGE: u64 = 4096;

/// Returns freed memory to the system when the process comes near its limit.
#[derive(Debug)]
pub(crate) struct Freed {
    limit: u64,
    /// `/proc/self/statm`.
    size: Option<File>,
    start: Instant,
    /// When the process last looked at its size, in microseconds since `start`.
    looked: AtomicU64,
    /// Whether the allocator returns memory at once.
    returned: AtomicBool,
}

impl Freed {
    pub(crate) fn new(limit: u64) -> Freed {
        let size = File::open("/proc/self/statm").ok();
        let freed = Freed {
            limit,
            start: Instant::now(),
            looked: AtomicU64::new(0),
            returned: AtomicBool::new(false),
            size,
        };
        freed.look(0);
        freed
    }

    /// Makes the allocator return what is free if the process would come near its limit with `more`
    /// bytes.
    pub(crate) fn keep_small(&self, more: u64) {
        if self.returned.load(Ordering::Relaxed) {
            return;
        }
        let now = self.start.elapsed().as_micros() as u64;
        if more >= LARGE || now >= self.looked.load(Ordering::Relaxed) + LOOK_US {
            self.looked.store(now, Ordering::Relaxed);
            self.look(more);
        }
    }

    fn look(&self, more: u64) {
        // Where the size is unknown, nothing may be kept.
        let held = self.size.as_ref().and_then(resident).unwrap_or(u64::MAX);
        let near = held.saturating_add(more) > self.limit - self.limit / 4;
        if near && !self.returned.swap(true, Ordering::Relaxed) {
            return_freed();
        }
    }
}

/// The memory that the process has from the system, in bytes.
fn resident(statm: &File) -> Option<u64> {
    let mut text = [0; 128];
    let length = statm.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    text.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(PAGE)
}

/// Makes the allocator return all free memory now, and from now on as soon as it is free.
fn return_freed() {
    unsafe extern "C" {
        fn mi_option_set(option: c_int, value: c_long);
        fn mi_collect(force: bool);
    }
    /// `mi_option_purge_delay` in mimalloc.h.
    const PURGE_DELAY: c_int = 15;
    // SAFETY: mimalloc is linked, because it is the allocator of this program. Both functions may be
    // called at any time. The first one sets an option. The second one returns only freed memory.
    unsafe {
        mi_option_set(PURGE_DELAY, 0);
        mi_collect(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_the_process_is_known() {
        let statm = File::open("/proc/self/statm").unwrap();
        let before = resident(&statm).unwrap();
        let held = vec![1_u8; 64 << 20];
        let after = resident(&statm).unwrap();
        assert!(after >= before + (32 << 20), "{before}, {after} with {} bytes", held.len());
    }
}

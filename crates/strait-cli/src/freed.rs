//! Decides which pages the allocator uses, and when it returns freed memory to the system.
//!
//! The system counts freed memory as used by the process, but no reservation counts it. If the allocator returned it at
//! once, ordinary joins would spend much of their time on page faults. So under a limit, the allocator returns freed
//! memory after a second. Once the process uses more than 3/4 of its limit, the allocator returns freed memory after
//! 10 ms. Once the process would clearly exceed its limit, the allocator returns freed memory at once. Without a limit,
//! it keeps all freed memory.
//!
//! The allocator asks for no huge pages. They take memory that no reservation counts: the system provides 2 MiB where the
//! process uses 4 KiB, and every thread allocates in places of its own. With 16 threads that was 130 to 340 MB, for at
//! most 6 % of the time (benchmarks/notes.md). The join's own large buffers keep huge pages, because they fill them. So do
//! the tables of `strait bench`.

use std::ffi::{c_int, c_long, c_void};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

/// How often the process checks its own size, in microseconds. A request of `LARGE` bytes checks at once.
const LOOK_US: u64 = 1000;

const LARGE: u64 = 4 << 20;

/// The memory of a process that no reservation counts, such as its code.
const BESIDES: u64 = 16 << 20;

/// The process is far from its limit.
const FAR: u8 = 0;
/// The process uses more than three quarters of its limit.
const NEAR: u8 = 1;
/// The process would use clearly more than its limit.
const BEYOND: u8 = 2;

/// The page size: `/proc/self/statm` counts in pages.
const PAGE: u64 = 4096;

/// Returns freed memory to the system when the process comes near its limit.
#[derive(Debug)]
pub(crate) struct Freed {
    limit: u64,
    /// `/proc/self/statm`.
    size: Option<File>,
    start: Instant,
    /// When the process last checked its size, in microseconds since `start`.
    looked: AtomicU64,
    /// How soon the allocator returns memory: [`FAR`], [`NEAR`] or [`BEYOND`].
    stage: AtomicU8,
}

impl Freed {
    pub(crate) fn new(limit: u64) -> Freed {
        let size = File::open("/proc/self/statm").ok();
        let freed = Freed {
            limit,
            start: Instant::now(),
            looked: AtomicU64::new(0),
            stage: AtomicU8::new(FAR),
            size,
        };
        return_after(DELAY_MS);
        freed.look(0);
        freed
    }

    /// Makes the allocator return free memory if the process would come near its limit with `more` bytes.
    pub(crate) fn keep_small(&self, more: u64) {
        if self.stage.load(Ordering::Relaxed) == BEYOND {
            return;
        }
        let now = self.start.elapsed().as_micros() as u64;
        if more >= LARGE || now >= self.looked.load(Ordering::Relaxed) + LOOK_US {
            self.looked.store(now, Ordering::Relaxed);
            self.look(more);
        }
    }

    fn look(&self, more: u64) {
        // If the size is unknown, the allocator must not keep memory.
        let held = self.size.as_ref().and_then(resident).unwrap_or(u64::MAX);
        let comes_to = held.saturating_add(more);
        let (stage, delay) =
            match comes_to > self.limit.saturating_add(self.limit / 16).saturating_add(BESIDES) {
                true => (BEYOND, 0),
                false if comes_to > self.limit - self.limit / 4 => (NEAR, NEAR_MS),
                false => return,
            };
        if self.stage.fetch_max(stage, Ordering::Relaxed) < stage {
            return_freed(delay);
            // Another thread may have found the next stage in between.
            if delay > 0 && self.stage.load(Ordering::Relaxed) == BEYOND {
                return_freed(0);
            }
        }
    }
}

/// Returns the resident memory of the process, in bytes.
fn resident(statm: &File) -> Option<u64> {
    let mut text = [0; 128];
    let length = statm.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    text.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(PAGE)
}

unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
    fn mi_collect(force: bool);
}

/// `mi_option_purge_delay` in mimalloc.h of version 3.
const PURGE_DELAY: c_int = 15;

/// The delay of an allocator that returns no memory.
const NEVER: c_long = -1;

/// The delay under a limit that is not near, in milliseconds.
const DELAY_MS: c_long = 1000;

/// The delay near the limit, in milliseconds. Most memory that is freed is used again within this time. Without a delay,
/// a join that spilled under 300 MB spent a third of its time on page faults (benchmarks/notes.md).
const NEAR_MS: c_long = 10;

/// `mi_option_allow_thp` in mimalloc.h of version 3.
const ALLOW_THP: c_int = 43;

/// Makes the allocator use only small pages from now on. Called at most once, when the process starts.
pub(crate) fn without_huge_pages() {
    // SAFETY: mimalloc is linked, because it is the allocator of this program. Options may be set at any
    // time. The allocator reads this one when it requests more memory from the system.
    unsafe { mi_option_set(ALLOW_THP, 0) };
    // The system may still turn the allocator's existing memory into huge pages, unless it is told not to.
    let Some((start, end)) = heap() else { return };
    // SAFETY: the range is mapped: it belongs to the allocator, which keeps it until the process ends. The
    // advice changes no content.
    let advised =
        unsafe { libc::madvise(start as *mut c_void, end - start, libc::MADV_NOHUGEPAGE) };
    if advised != 0 {
        log::debug!("huge pages stay as they are: {}", std::io::Error::last_os_error());
    }
}

/// Returns the address range of the mapping that small allocations come from.
fn heap() -> Option<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let inside = maps.as_ptr() as usize;
    maps.lines().filter_map(addresses).find(|&(start, end)| start <= inside && inside < end)
}

/// Returns the address range in a line of `/proc/self/maps`.
fn addresses(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

/// Makes the allocator keep what is freed from now on, until there is a limit. [`return_freed`] cannot return this
/// memory later. Called once, when the process starts.
pub(crate) fn keep_freed() {
    return_after(NEVER);
}

/// Makes the allocator return what is freed from now on after `delay` milliseconds.
fn return_after(delay: c_long) {
    // SAFETY: mimalloc is linked, because it is the allocator of this program. Options may be set at any time.
    unsafe { mi_option_set(PURGE_DELAY, delay) };
}

/// Makes the allocator return all free memory now, and from now on after `delay` milliseconds.
fn return_freed(delay: c_long) {
    // SAFETY: mimalloc is linked, because it is the allocator of this program. Both functions may be
    // called at any time. The first one sets an option. The second one returns only freed memory.
    unsafe {
        mi_option_set(PURGE_DELAY, delay);
        mi_collect(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_has_no_huge_pages() {
        without_huge_pages();
        let (start, end) = heap().unwrap();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mapping = smaps.lines().skip_while(|line| addresses(line) != Some((start, end)));
        let mut flags = mapping.filter_map(|line| line.strip_prefix("VmFlags:"));
        // "hg" stands for MADV_HUGEPAGE.
        assert!(!flags.next().unwrap().split_whitespace().any(|flag| flag == "hg"));
    }

    #[test]
    fn the_size_of_the_process_is_known() {
        let statm = File::open("/proc/self/statm").unwrap();
        // Other tests of this process free memory at the same time, so one try may fail. The memory is mapped
        // anew each time, because the allocator would give out memory that is in use already.
        const BYTES: usize = 64 << 20;
        let grows = || {
            let before = resident(&statm).unwrap();
            let (access, kind) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new mapping at any address, which only this test uses and unmaps.
            let after = unsafe {
                let start = libc::mmap(std::ptr::null_mut(), BYTES, access, kind, -1, 0);
                assert_ne!(start, libc::MAP_FAILED);
                start.cast::<u8>().write_bytes(1, BYTES);
                let after = resident(&statm).unwrap();
                assert_eq!(libc::munmap(start, BYTES), 0);
                after
            };
            after >= before + BYTES as u64 / 2
        };
        assert!((0..100).any(|_| grows()));
    }
}

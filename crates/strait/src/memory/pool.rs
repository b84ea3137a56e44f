//! Mappings that were given back, kept for the next buffer.
//!
//! Fresh memory costs a page fault, and the zeroing of the page, before it can be written: as much
//! as writing it once more, and several times that where a hypervisor has to find it first
//! (`benchmarks/notes.md`). So a process that joins again and again keeps what it had, up to an
//! eighth of the machine's memory. Joins with a memory limit neither use nor leave idle memory.

use crate::schedule::lock;
use std::ptr::NonNull;
use std::sync::Mutex;

const HUGE_PAGE: usize = 2 << 20;

/// A mapping of our own: `bytes` usable bytes from a huge-page boundary on.
pub(crate) struct Mapping {
    start: *mut libc::c_void,
    mapped: usize,
    data: NonNull<u8>,
    bytes: usize,
    /// Nothing has been written to it yet.
    pub(super) fresh: bool,
}

// SAFETY: a mapping is owned memory; any thread may use or unmap it.
unsafe impl Send for Mapping {}

static IDLE: Mutex<Vec<Mapping>> = Mutex::new(Vec::new());

impl Mapping {
    pub(crate) fn data(&self) -> NonNull<u8> {
        self.data
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Maps `bytes` on huge pages, where the system has them.
    pub(crate) fn new(bytes: usize) -> Option<Mapping> {
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
        Some(Mapping { start, mapped, data: NonNull::new(data)?, bytes, fresh: true })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this extent in `new`, and nobody refers to it any more.
        unsafe {
            libc::munmap(self.start, self.mapped);
        }
    }
}

/// A mapping of at least `bytes`: an idle one that is not much larger, or a new one. Those that are
/// for use again are whole huge pages.
pub(super) fn take(bytes: usize, reuse: bool) -> Option<Mapping> {
    let bytes = if reuse { bytes.checked_next_multiple_of(HUGE_PAGE)? } else { bytes };
    if reuse {
        let mut idle = lock(&IDLE);
        let fits = |m: &&Mapping| (bytes..=bytes.saturating_mul(2)).contains(&m.bytes);
        let best = idle.iter().filter(fits).map(|m| m.bytes).min();
        let at = best.and_then(|best| idle.iter().position(|m| m.bytes == best));
        if let Some(at) = at {
            return Some(idle.swap_remove(at));
        }
    }
    Mapping::new(bytes)
}

/// Keeps a mapping for the next buffer, unless there is enough idle already: then the oldest go.
pub(super) fn give_back(mut mapping: Mapping) {
    let most = most_idle();
    mapping.fresh = false;
    let mut idle = lock(&IDLE);
    idle.push(mapping);
    while idle.iter().map(|m| m.bytes).sum::<usize>() > most {
        idle.remove(0);
    }
}

/// Gives all idle memory back to the system.
///
/// Joins without a memory limit keep the memory of their tables for the next join in the process,
/// up to an eighth of the machine's; joins on a GPU keep the host memory they copy through.
pub fn release_memory() {
    let idle = std::mem::take(&mut *lock(&IDLE));
    drop(idle);
    lock(&RELEASE).iter().for_each(|release| release());
}

/// Functions that give other idle memory back, of pools above this layer.
static RELEASE: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Has [`release_memory`] call a function, too.
pub(crate) fn on_release(release: fn()) {
    lock(&RELEASE).push(release);
}

fn most_idle() -> usize {
    static MOST: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *MOST.get_or_init(|| (crate::machine::Machine::detect().memory / 8) as usize)
}

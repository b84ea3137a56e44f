//! A pool of memory mappings that buffers returned, for the next buffers.
//!
//! Before fresh memory can be written, each page costs a page fault, and the system fills it with zeros. That
//! takes as long as writing the page, and several times as long if a hypervisor has to provide the page first
//! (`benchmarks/notes.md`). So a process that joins again and again keeps its mappings, up to an eighth of
//! the machine's memory. Joins with a memory limit neither use nor keep idle memory.

use crate::schedule::lock;
use std::ptr::NonNull;
use std::sync::Mutex;

const HUGE_PAGE: usize = 2 << 20;

/// A memory mapping with `bytes` usable bytes, which start at a huge-page boundary.
pub(crate) struct Mapping {
    start: *mut libc::c_void,
    mapped: usize,
    data: NonNull<u8>,
    bytes: usize,
    /// Whether nothing has been written to it yet.
    pub(super) fresh: bool,
}

// SAFETY: a mapping is owned memory, and any thread may use or unmap it.
unsafe impl Send for Mapping {}

static IDLE: Mutex<Vec<Mapping>> = Mutex::new(Vec::new());

impl Mapping {
    pub(crate) fn data(&self) -> NonNull<u8> {
        self.data
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Maps `bytes` on huge pages, if the system has them.
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
        // SAFETY: this is advice about our own mapping. If the system refuses it, only speed is lost.
        unsafe {
            libc::madvise(data.cast(), bytes, libc::MADV_HUGEPAGE);
        }
        Some(Mapping { start, mapped, data: NonNull::new(data)?, bytes, fresh: true })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this extent in `new`, and nothing refers to it any more.
        unsafe {
            libc::munmap(self.start, self.mapped);
        }
    }
}

/// Returns a mapping of at least `bytes`. With `reuse`, it may be an idle mapping of at most twice the size,
/// and a new one consists of whole huge pages, so that later buffers can use it.
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

/// Keeps a mapping for the next buffer. If too much memory is idle, the oldest mappings are unmapped.
pub(super) fn give_back(mut mapping: Mapping) {
    let most = most_idle();
    mapping.fresh = false;
    let mut idle = lock(&IDLE);
    idle.push(mapping);
    while idle.iter().map(|m| m.bytes).sum::<usize>() > most {
        idle.remove(0);
    }
}

/// Returns all idle memory to the operating system.
///
/// Joins without a memory limit keep the memory of their tables for the next join in the process, up to an
/// eighth of the machine's memory. Joins on a GPU also keep their staging buffers in host memory.
pub fn release_memory() {
    let idle = std::mem::take(&mut *lock(&IDLE));
    drop(idle);
    lock(&RELEASE).iter().for_each(|release| release());
}

/// Functions that release the idle memory of pools in higher layers.
static RELEASE: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Registers a function that [`release_memory`] also calls.
pub(crate) fn on_release(release: fn()) {
    lock(&RELEASE).push(release);
}

fn most_idle() -> usize {
    static MOST: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *MOST.get_or_init(|| (crate::machine::Machine::detect().memory / 8) as usize)
}

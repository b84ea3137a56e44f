//! Host memory that the GPU copies from and to at the link's full speed.
//!
//! If the driver allocates such memory, it takes half a second per GiB. It takes a twelfth of that time to
//! map memory on huge pages, touch it on all cores, and then register it. Memory that is kept for the next
//! join costs no time at all. At most a quarter of the machine's memory is kept.

use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::context::Context;
use super::pages::{self, Pages};
use crate::device::{HostView, Pinned};
use crate::error::{Error, Result};
use crate::memory::Mapping;
use crate::schedule::lock;

const HUGE_PAGE: usize = 2 << 20;
/// The rounding step of small sizes.
const SMALL_STEP: usize = 64 << 10;
/// From this size on, several threads touch the pages.
const TOUCHED_TOGETHER: usize = 32 << 20;
/// More threads do not make touching faster.
const MAX_THREADS: usize = 16;

/// Regions that nobody uses.
type Idle = Mutex<Vec<Region>>;

static IDLE: Idle = Mutex::new(Vec::new());

/// A mapping, pinned if there is a driver.
struct Region {
    /// Its pages, while they are pinned. Tests pin none.
    pages: Option<Pages>,
    /// Not dropped while the pages are pinned.
    mapping: ManuallyDrop<Mapping>,
}

// SAFETY: the region is only moved; its memory is accessed through `Pinned`.
unsafe impl Sync for Region {}

/// Returns its region to the idle ones when dropped.
struct Lent {
    region: Option<Region>,
    /// `None` if the region must not be kept.
    home: Option<&'static Idle>,
}

/// Returns memory of at least `bytes` bytes, with any content, registered with the context.
pub(super) fn take(bytes: usize, what: &str, context: &Arc<Context>) -> Result<Arc<Pinned>> {
    take_from(&IDLE, bytes, what, Some(context))
}

/// The same, but the memory returns to the system when dropped. Uses idle memory if there is some, because
/// that is already allocated.
pub(super) fn take_once(bytes: usize, what: &str, context: &Arc<Context>) -> Result<Arc<Pinned>> {
    take_to(&IDLE, None, (bytes, what), Some(context))
}

fn take_from(
    home: &'static Idle,
    bytes: usize,
    what: &str,
    context: Option<&Arc<Context>>,
) -> Result<Arc<Pinned>> {
    take_to(home, Some(home), (bytes, what), context)
}

/// Takes an idle region, or creates one. When dropped, it goes to `to`, or to the system if `to` is `None`.
fn take_to(
    home: &'static Idle,
    to: Option<&'static Idle>,
    (bytes, what): (usize, &str),
    context: Option<&Arc<Context>>,
) -> Result<Arc<Pinned>> {
    let refused = || Error::OutOfMemory { what: what.to_string(), needed: bytes as u64 };
    let size = region_size(bytes).ok_or_else(refused)?;
    let region = match idle(home, size) {
        Some(region) => region,
        None => Region::new(size, what, context)?,
    };
    let start = region.mapping.data().as_ptr();
    let owner = Lent { region: Some(region), home: to };
    Ok(Arc::new(Pinned { start, len: bytes, _owner: Box::new(owner) }))
}

/// Releases all idle pinned memory to the system.
pub(crate) fn release() {
    let idle = std::mem::take(&mut *locked(&IDLE));
    drop(idle);
}

fn locked(idle: &'static Idle) -> MutexGuard<'static, Vec<Region>> {
    lock(idle)
}

/// Returns the size of the region for `bytes` bytes, or `None` on overflow.
pub(super) fn region_size(bytes: usize) -> Option<usize> {
    let step = if bytes < HUGE_PAGE { SMALL_STEP } else { HUGE_PAGE };
    bytes.max(1).checked_next_multiple_of(step)
}

/// Takes the smallest idle region that is large enough, but at most twice as large.
fn idle(home: &'static Idle, size: usize) -> Option<Region> {
    let mut idle = locked(home);
    let fits =
        |(_, region): &(usize, &Region)| (size..=size.saturating_mul(2)).contains(&region.bytes());
    let (at, _) = idle.iter().enumerate().filter(fits).min_by_key(|(_, region)| region.bytes())?;
    Some(idle.swap_remove(at))
}

pub(super) fn most_idle() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| (crate::machine::Machine::detect().memory / 4) as usize)
}

impl Region {
    /// Maps `bytes` bytes, touches every page, and pins them if there is a driver.
    fn new(bytes: usize, what: &str, context: Option<&Arc<Context>>) -> Result<Region> {
        let refused = || Error::OutOfMemory { what: what.to_string(), needed: bytes as u64 };
        let mapping = Mapping::new(bytes).ok_or_else(refused)?;
        touch(&mapping);
        let memory = HostView { start: mapping.data().as_ptr(), bytes: bytes as u64 };
        // SAFETY: the region keeps the mapping until the pages have been released.
        let pages = context.map(|context| unsafe { pages::hold(context, memory, what) });
        Ok(Region { pages: pages.transpose()?, mapping: ManuallyDrop::new(mapping) })
    }

    fn bytes(&self) -> usize {
        self.mapping.bytes()
    }
}

/// Writes to every page, so that the page exists before the driver pins it.
fn touch(mapping: &Mapping) {
    let (start, bytes) = (mapping.data().as_ptr() as usize, mapping.bytes());
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = if bytes < TOUCHED_TOGETHER { 1 } else { cores.min(MAX_THREADS) };
    let share = bytes.div_ceil(threads).next_multiple_of(HUGE_PAGE);
    let parts = (0..bytes).step_by(share).map(|at| (start + at, share.min(bytes - at)));
    std::thread::scope(|scope| {
        for (from, length) in parts {
            let touch = move || touch_pages(from as *mut u8, length);
            // If no thread can be started, this thread touches the pages.
            if threads == 1 || std::thread::Builder::new().spawn_scoped(scope, touch).is_err() {
                touch_pages(from as *mut u8, length);
            }
        }
    });
}

/// Writes one byte to every page of the smallest size.
fn touch_pages(start: *mut u8, bytes: usize) {
    for at in (0..bytes).step_by(4 << 10) {
        // SAFETY: inside the mapping that the caller owns, and nobody reads it yet.
        unsafe { start.add(at).write_volatile(0) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // If the driver did not unpin the memory, it must stay mapped.
        if self.pages.take().is_none_or(Pages::release) {
            // SAFETY: dropped only here, and nobody refers to it any more.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(home) = self.home else { return };
        let mut idle = locked(home);
        idle.extend(self.region.take());
        // The oldest are dropped first. They are dropped after the lock, because unpinning takes time.
        let mut surplus = Vec::new();
        while idle.iter().map(Region::bytes).sum::<usize>() > most_idle() {
            surplus.push(idle.remove(0));
        }
        drop(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_steps() {
        assert_eq!(region_size(0), Some(SMALL_STEP));
        assert_eq!(region_size(SMALL_STEP + 1), Some(2 * SMALL_STEP));
        assert_eq!(region_size(HUGE_PAGE + 1), Some(2 * HUGE_PAGE));
        assert_eq!(region_size(usize::MAX), None);
    }

    #[test]
    fn regions_are_kept() {
        static HOME: Idle = Mutex::new(Vec::new());
        let take = |bytes| take_from(&HOME, bytes, "a test", None);
        let bytes = TOUCHED_TOGETHER + 12345;
        let first = take(bytes).unwrap();
        assert_eq!((first.len, first.start as usize % HUGE_PAGE), (bytes, 0));
        // SAFETY: nothing else uses the memory.
        unsafe { first.bytes_mut() }.fill(7);
        let start = first.start;
        drop(first);
        let again = take(bytes - HUGE_PAGE).unwrap();
        assert_eq!(again.start, start);
        let other = take(bytes).unwrap();
        assert_ne!(other.start, start);
        let small = take(1).unwrap();
        assert_eq!(small.len, 1);
        drop((again, other, small));
        assert_eq!(locked(&HOME).len(), 3);
        assert!(matches!(take(usize::MAX), Err(Error::OutOfMemory { .. })));
        let once = take_to(&HOME, None, (1, "a test"), None).unwrap();
        assert_eq!(locked(&HOME).len(), 2, "idle memory is used");
        drop(once);
        assert_eq!(locked(&HOME).len(), 2, "but not kept again");
    }
}

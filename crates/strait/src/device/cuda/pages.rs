//! Which pages of host memory are pinned? Each page is registered with the driver once, for any number of
//! users.
//!
//! The driver pins whole pages, and refuses a page that is already registered. But two chunks of a column
//! that are pinned at the same time may share a page. So a page that a chunk covers only partly is
//! registered separately, and its users are counted. Pages that it covers completely are registered
//! together:
//!
//! ```text
//!   pages     │   0   │   1   │   2   │   3   │   4   │   5   │
//!   first     │   ▒▒▒▒│▒▒▒▒▒▒▒│▒▒▒▒▒▒▒│▒▒▒    │       │       │   registers 0, 1 to 2, 3
//!   second    │       │       │       │   ▒▒▒▒│▒▒▒▒▒▒▒│▒▒▒▒▒▒▒│   counts 3, registers 4 to 5
//! ```
//!
//! If the first chunk registered all its pages together, all of them would stay pinned while the second
//! needs page 3. By then, the owner of the first chunk may have returned pages 1 and 2 to the system. The
//! memory that is mapped there next would count as pinned, but the GPU would still read the old pages. A
//! shared page cannot go away while somebody owns a byte on it.
//!
//! A copy is [cut](super::pieces) at the boundaries of registrations. A chunk that starts and ends at page
//! boundaries has only one registration.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use cudarc::driver::sys::{self, CUresult};

use super::context::Context;
use super::error::failure;
use crate::device::{HostView, Pinned};
use crate::error::{Error, Result};
use crate::schedule::lock;

/// Who pins pages: the driver, or a test.
pub(super) trait Registrar: Clone + Send + Sync + 'static {
    /// Pins whole pages, for every GPU of the process.
    fn register(&self, start: usize, bytes: usize, what: &str) -> Result<()>;
    /// Undoes the `register` call for this address. Returns false if that fails.
    fn unregister(&self, start: usize) -> bool;
}

impl Registrar for Arc<Context> {
    fn register(&self, start: usize, bytes: usize, what: &str) -> Result<()> {
        let _bound = self.bind()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the caller that asks for the pages keeps them mapped until they are unregistered.
        match unsafe { sys::cuMemHostRegister_v2(start as *mut libc::c_void, bytes, flags) } {
            CUresult::CUDA_SUCCESS => Ok(()),
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                Err(Error::OutOfMemory { what: what.to_string(), needed: bytes as u64 })
            }
            // An unknown part of the process pinned it, and may unpin it at any time.
            CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED => Err(Error::unsupported(
                format!(
                    "{what} cannot be pinned: another part of this process has pinned some of it"
                ),
                "use the transfer method staged-copy, which copies from any memory",
            )),
            CUresult::CUDA_ERROR_INVALID_VALUE
            | CUresult::CUDA_ERROR_NOT_PERMITTED
            | CUresult::CUDA_ERROR_NOT_SUPPORTED
            | CUresult::CUDA_ERROR_OPERATING_SYSTEM => Err(Error::unsupported(
                format!(
                    "the system does not allow {what} to be pinned; for example, a file that is mapped read-only cannot be pinned"
                ),
                "use the transfer method staged-copy, which copies from any memory",
            )),
            code => Err(failure(code, "pinning host memory")),
        }
    }

    fn unregister(&self, start: usize) -> bool {
        let Ok(_bound) = self.bind() else { return false };
        // SAFETY: registered once by `register`; the caller that asked for it has no copy in progress.
        let code = unsafe { sys::cuMemHostUnregister(start as *mut libc::c_void) };
        code == CUresult::CUDA_SUCCESS
    }
}

/// Registrations, by the address of their first page. No two overlap.
pub(super) struct Registry<R>(Mutex<BTreeMap<usize, Registration<R>>>);

struct Registration<R> {
    end: usize,
    /// The number of [`Pages`] that need it.
    users: usize,
    by: R,
}

static REGISTRY: Registry<Arc<Context>> = Registry::new();

/// Pins the pages of some memory until the returned value is dropped.
///
/// # Safety
/// The memory must stay allocated for as long.
pub(super) unsafe fn hold(context: &Arc<Context>, memory: HostView, what: &str) -> Result<Pages> {
    REGISTRY.hold(context, memory, what)
}

/// Pins memory that somebody else owns: see [`HostAccess::pin`](crate::device::HostAccess::pin).
///
/// # Safety
/// The memory must stay allocated until the returned value is dropped.
pub(super) unsafe fn pin(context: &Arc<Context>, memory: HostView) -> Result<Arc<Pinned>> {
    // SAFETY: guaranteed by the caller.
    let pages = unsafe { hold(context, memory, "a table's memory") }?;
    let (start, len) = (memory.start.cast_mut(), memory.bytes as usize);
    Ok(Arc::new(Pinned { start, len, _owner: Box::new(pages) }))
}

/// Returns the boundaries of registrations in pinned memory, as offsets from byte `at`.
pub(super) fn cuts(pinned: &Pinned, at: usize) -> Vec<u64> {
    // Pinned memory of this crate is one registration.
    let Some(pages) = pinned._owner.downcast_ref::<Pages>() else { return Vec::new() };
    let from = pinned.start as usize + at;
    pages.starts.iter().filter_map(|start| start.checked_sub(from)).map(|cut| cut as u64).collect()
}

/// The same for memory at an address, for the pins of all owners.
pub(super) fn cuts_at(address: usize, bytes: u64) -> Vec<u64> {
    REGISTRY.cuts_at(address, bytes)
}

impl<R> Registry<R> {
    const fn new() -> Self {
        Registry(Mutex::new(BTreeMap::new()))
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<usize, Registration<R>>> {
        lock(&self.0)
    }

    fn cuts_at(&self, address: usize, bytes: u64) -> Vec<u64> {
        let end = address.saturating_add(bytes as usize);
        let registered = self.locked();
        let before = registered.range(..address).next_back();
        let inside = registered.range(address..end);
        let edges = before.into_iter().chain(inside).flat_map(|(&start, r)| [start, r.end]);
        edges.filter_map(|edge| edge.checked_sub(address)).map(|cut| cut as u64).collect()
    }
}

impl<R: Registrar> Registry<R> {
    fn hold(&'static self, by: &R, memory: HostView, what: &str) -> Result<Pages<R>> {
        let refused = || Error::OutOfMemory { what: what.to_string(), needed: memory.bytes };
        let bytes = usize::try_from(memory.bytes).map_err(|_| refused())?;
        let parts = parts(memory.start as usize, bytes, page()).ok_or_else(refused)?;
        let mut pages = Pages { home: self, starts: Vec::new() };
        // Created after `pages`: if a part fails, this lock is released before `pages` takes it again.
        let mut registered = self.locked();
        for Range { start: mut at, end } in parts {
            while at < end {
                let before = registered.range_mut(..=at).next_back();
                if let Some((&start, registration)) = before.filter(|(_, r)| r.end > at) {
                    registration.users += 1;
                    pages.starts.push(start);
                    at = registration.end;
                    continue;
                }
                let next = registered.range(at..end).next().map_or(end, |(&next, _)| next);
                by.register(at, next - at, what)?;
                registered.insert(at, Registration { end: next, users: 1, by: by.clone() });
                pages.starts.push(at);
                at = next;
            }
        }
        drop(registered);
        Ok(pages)
    }
}

/// Splits memory into its first page if it is partial, its whole pages, and its last page if it is partial.
/// Returns `None` if the addresses overflow.
fn parts(start: usize, bytes: usize, page: usize) -> Option<[Range<usize>; 3]> {
    let end = start.checked_add(bytes)?;
    if bytes == 0 {
        return Some([0..0, 0..0, 0..0]);
    }
    let (from, to) = (start / page * page, end.checked_next_multiple_of(page)?);
    let first = start.checked_next_multiple_of(page)?;
    let last = (end / page * page).max(first);
    Some([from..first, first..last, last..to])
}

/// Returns the bytes of the smallest page.
fn page() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    // SAFETY: only returns a number.
    *PAGE.get_or_init(|| match unsafe { libc::sysconf(libc::_SC_PAGESIZE) } {
        size if size > 0 => size as usize,
        _ => 4 << 10,
    })
}

/// Pages that stay pinned while this lives.
pub(super) struct Pages<R: Registrar = Arc<Context>> {
    home: &'static Registry<R>,
    /// Their registrations, in order. A registration occurs once per count.
    starts: Vec<usize>,
}

impl<R: Registrar> Pages<R> {
    /// Unpins the pages. Returns false if the driver failed to.
    pub(super) fn release(mut self) -> bool {
        self.let_go()
    }

    fn let_go(&mut self) -> bool {
        let starts = std::mem::take(&mut self.starts);
        if starts.is_empty() {
            return true;
        }
        let mut registered = self.home.locked();
        let mut done = true;
        for start in starts {
            let Some(registration) = registered.get_mut(&start) else { continue };
            registration.users -= 1;
            if registration.users == 0
                && let Some(gone) = registered.remove(&start)
            {
                // Unregistered under the lock, so that the next user finds the page free.
                done &= gone.by.unregister(start);
            }
        }
        done
    }
}

impl<R: Registrar> Drop for Pages<R> {
    fn drop(&mut self) {
        if !self.let_go() {
            log::debug!("the driver keeps host memory pinned that is not used any more");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver that refuses pages that are already registered, and the page at `refused`.
    #[derive(Clone, Default)]
    struct Driver(Arc<Mutex<Given>>);

    #[derive(Default)]
    struct Given {
        ranges: BTreeMap<usize, usize>,
        refused: Option<usize>,
    }

    impl Driver {
        /// Returns the registered ranges, in pages.
        fn has(&self) -> Vec<(usize, usize)> {
            let page = page();
            self.0.lock().unwrap().ranges.iter().map(|(&a, &b)| (a / page, b / page)).collect()
        }
    }

    impl Registrar for Driver {
        fn register(&self, start: usize, bytes: usize, what: &str) -> Result<()> {
            let mut given = self.0.lock().unwrap();
            assert!(bytes > 0 && start.is_multiple_of(page()) && bytes.is_multiple_of(page()));
            let end = start + bytes;
            assert!(!given.ranges.iter().any(|(&a, &b)| a < end && start < b), "registered twice");
            if given.refused.is_some_and(|page| (start..end).contains(&page)) {
                return Err(Error::unsupported(what, "pin less"));
            }
            given.ranges.insert(start, end);
            Ok(())
        }

        fn unregister(&self, start: usize) -> bool {
            self.0.lock().unwrap().ranges.remove(&start).is_some()
        }
    }

    fn registry() -> &'static Registry<Driver> {
        // `Pages` needs a static registry. It is kept here, so that a leak sanitizer does not report it.
        static KEPT: Mutex<Vec<&'static Registry<Driver>>> = Mutex::new(Vec::new());
        let registry = Box::leak(Box::new(Registry::new()));
        KEPT.lock().unwrap().push(registry);
        registry
    }

    /// Returns memory between two addresses, both in quarters of a page.
    fn view(from: usize, to: usize) -> HostView {
        let quarter = page() / 4;
        HostView { start: (from * quarter) as *const u8, bytes: ((to - from) * quarter) as u64 }
    }

    #[test]
    fn neighbours_share_a_page_in_whatever_order_they_go() {
        for first_goes_first in [true, false] {
            let (home, driver) = (registry(), Driver::default());
            let first = home.hold(&driver, view(41, 54), "a").unwrap();
            assert_eq!(driver.has(), [(10, 11), (11, 13), (13, 14)]);
            let second = home.hold(&driver, view(54, 64), "b").unwrap();
            assert_eq!(driver.has(), [(10, 11), (11, 13), (13, 14), (14, 16)]);
            if first_goes_first {
                drop(first);
                assert_eq!(driver.has(), [(13, 14), (14, 16)]);
                assert!(second.release());
            } else {
                assert!(second.release());
                assert_eq!(driver.has(), [(10, 11), (11, 13), (13, 14)]);
                drop(first);
            }
            assert_eq!(driver.has(), []);
            assert!(home.locked().is_empty());
        }
    }

    #[test]
    fn memory_that_is_pinned_twice_is_registered_once() {
        let (home, driver) = (registry(), Driver::default());
        let parts = [view(0, 16), view(0, 16), view(6, 10), view(10, 30), view(2, 40), view(8, 8)];
        let held: Vec<_> = parts.map(|view| home.hold(&driver, view, "a").unwrap()).into();
        assert_eq!(driver.has(), [(0, 4), (4, 7), (7, 8), (8, 10)]);
        for pages in held {
            assert!(pages.release());
        }
        assert_eq!(driver.has(), []);
    }

    #[test]
    fn a_refusal_undoes_what_was_pinned() {
        let (home, driver) = (registry(), Driver::default());
        let kept = home.hold(&driver, view(0, 5), "a").unwrap();
        driver.0.lock().unwrap().refused = Some(4 * page());
        let refused = home.hold(&driver, view(4, 18), "a table").map(|_| ());
        assert!(refused.unwrap_err().to_string().contains("a table"));
        assert_eq!(driver.has(), [(0, 1), (1, 2)]);
        drop(kept);
        assert_eq!(driver.has(), []);
        let beyond = HostView { start: 8 as *const u8, bytes: u64::MAX };
        assert!(matches!(home.hold(&driver, beyond, "all"), Err(Error::OutOfMemory { .. })));
    }

    #[test]
    fn copies_are_cut_between_registrations() {
        let (home, driver) = (registry(), Driver::default());
        let quarter = page() / 4;
        let pages = home.hold(&driver, view(41, 54), "a").unwrap();
        assert_eq!(pages.starts, [40, 44, 52].map(|at| at * quarter));
        let cuts = |from: usize, to: usize| {
            let found = super::super::pieces::Pieces::of(((to - from) * quarter) as u64)
                .cut(home.cuts_at(from * quarter, ((to - from) * quarter) as u64));
            found.list().map(|(at, _)| at as usize / quarter + from).collect::<Vec<_>>()
        };
        assert_eq!(cuts(41, 54), [41, 44, 52]);
        assert_eq!(cuts(30, 60), [30, 40, 44, 52, 56]);
        assert_eq!(cuts(45, 51), [45]);
        assert_eq!(cuts(56, 60), [56]);
        drop(pages);
        assert_eq!(cuts(30, 60), [30]);
    }

    #[test]
    fn parts_are_whole_pages_between_shared_ones() {
        let of = |start, bytes| parts(start, bytes, 10).unwrap();
        assert_eq!(of(20, 30), [20..20, 20..50, 50..50]);
        assert_eq!(of(23, 4), [20..30, 30..30, 30..30]);
        assert_eq!(of(20, 4), [20..20, 20..20, 20..30]);
        assert_eq!(of(25, 5), [20..30, 30..30, 30..30]);
        assert_eq!(of(25, 10), [20..30, 30..30, 30..40]);
        assert_eq!(of(25, 30), [20..30, 30..50, 50..60]);
        assert_eq!(parts(25, usize::MAX, 10), None);
    }
}

//! How does a device reach host memory? It copies pinned memory fast, and other memory slowly. Stages can also
//! reach host memory themselves, at addresses of the device.

use std::any::Any;
use std::sync::Arc;

use super::{Memory, Stream, View};
use crate::error::Result;
use crate::memory::Plain;

/// The part of a [`Device`](super::Device) that allocates, pins and maps host memory.
pub(crate) trait HostAccess: Send + Sync {
    /// Allocates pinned host memory with any content.
    fn pinned(&self, bytes: usize, what: &str) -> Result<Arc<Pinned>>;
    /// The same, but the memory returns to the system when dropped: for joins with a memory limit.
    fn pinned_once(&self, bytes: usize, what: &str) -> Result<Arc<Pinned>> {
        self.pinned(bytes, what)
    }
    /// Returns the host memory that `bytes` bytes of [pinned](HostAccess::pinned) memory take.
    fn pinned_size(&self, bytes: usize) -> u64 {
        bytes as u64
    }
    /// Copies from host memory, pinned or not. If it is not pinned, the call may take as long as the copy.
    ///
    /// # Safety
    /// The memory must stay allocated and unchanged until the stream has been synchronised, or until a later
    /// event of the stream has been waited for.
    unsafe fn copy_from(&self, stream: Stream, from: HostView, to: View) -> Result<()>;
    /// Pins memory that somebody else owns, until the returned value is dropped. All pages that it touches
    /// are pinned completely.
    ///
    /// # Safety
    /// The memory must stay allocated for as long as it is pinned.
    unsafe fn pin(&self, memory: HostView) -> Result<Arc<Pinned>>;
    /// Returns addresses at which stages reach pinned memory over the link. They do not count against the
    /// budget.
    fn mapped(&self, pinned: &Arc<Pinned>) -> Result<Memory>;
    /// Returns addresses at which stages reach memory that is not pinned. Fails with
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device cannot do that.
    ///
    /// # Safety
    /// The memory must stay allocated, and nobody else may write to it, until the returned value is dropped.
    unsafe fn coherent(&self, memory: HostView) -> Result<Memory>;
    /// Allocates managed memory with any content. All of it counts against the budget, because the device may
    /// come to hold all of it. It is never more than the device has free.
    fn managed(&self, bytes: u64, what: &str) -> Result<Arc<Managed>>;
    /// Moves managed memory to the device, before stages use it.
    fn prefetch(&self, stream: Stream, managed: &Arc<Managed>) -> Result<()>;
    /// Allocates one range of addresses over device memory and host memory, with any content, aligned like
    /// other memory. The first `on_device` bytes, rounded up to whole pages, lie in device memory and count
    /// against the budget.
    fn range(&self, bytes: u64, on_device: u64, what: &str) -> Result<Memory>;
}

/// Pinned host memory: copies from and to it run at full speed. When dropped, it is kept for the next join.
pub(crate) struct Pinned {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
    /// Gives the memory back when dropped.
    pub(crate) _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: it owns its memory. Callers must prevent concurrent writes.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Returns the bytes.
    ///
    /// # Safety
    /// Nothing may write to the bytes while the slice lives: no copy from the device may be in progress.
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the memory has this length; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Returns the bytes, to be written.
    ///
    /// # Safety
    /// Nothing else may read or write the bytes while the slice lives: no copy may be in progress.
    #[expect(clippy::mut_from_ref, reason = "copies share the buffer; the caller keeps them apart")]
    pub(crate) unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: the memory has this length; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// Bytes of host memory, pinned or not. The user of the view must keep the memory alive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostView {
    pub(crate) start: *const u8,
    pub(crate) bytes: u64,
}

// SAFETY: callers that read the bytes must prevent concurrent writes.
unsafe impl Send for HostView {}
// SAFETY: as above.
unsafe impl Sync for HostView {}

impl HostView {
    /// Returns the bytes of some values.
    pub(crate) fn of<T: Plain>(values: &[T]) -> HostView {
        HostView { start: values.as_ptr().cast(), bytes: size_of_val(values) as u64 }
    }

    /// Returns `bytes` bytes starting at byte `at`, or fewer if the view ends before.
    pub(crate) fn part(self, at: u64, bytes: u64) -> HostView {
        let at = at.min(self.bytes);
        HostView { start: self.start.wrapping_add(at as usize), bytes: bytes.min(self.bytes - at) }
    }
}

/// Managed memory: host and device reach it at the same address, and each page moves to where it is used. It
/// is given back when dropped.
pub(crate) struct Managed {
    /// The host's address. Copies must not use it.
    pub(crate) start: *mut u8,
    pub(crate) view: View,
    /// Gives the memory back when dropped.
    pub(crate) _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: it owns its memory. Callers must prevent concurrent writes.
unsafe impl Send for Managed {}
// SAFETY: as above.
unsafe impl Sync for Managed {}

//! `staged-copy`: all workers copy a chunk into a pinned buffer, from where the copy engine takes it.

use std::ops::Range;
use std::sync::Arc;

use super::{Carry, Filling, HostColumn, Landed, PIECE, SLOTS};
use crate::algorithm::gpu::Session;
use crate::device::{HostView, Pinned, View};
use crate::error::Result;

pub(super) struct Staged {
    column: HostColumn,
    buffers: Vec<Arc<Pinned>>,
    landed: Vec<Landed>,
}

impl Staged {
    pub(super) fn new(session: &Session<'_>, column: &HostColumn, bytes: u64) -> Result<Self> {
        let buffer = |_| session.device.pinned(bytes.max(1) as usize, "staging");
        let buffers = (0..SLOTS).map(buffer).collect::<Result<_>>()?;
        Ok(Staged { column: column.clone(), buffers, landed: Landed::ring(session, bytes)? })
    }
}

impl Carry for Staged {
    fn fill(&mut self, slot: usize, bytes: Range<u64>) -> Result<Option<Filling<'_>>> {
        let to = Target(self.buffers[slot].start);
        // SAFETY: the copy out of the buffer has been waited for, and it is as long as a chunk.
        Ok(Some(unsafe { copied(self.column.part(&bytes), to) }))
    }

    fn send(&mut self, session: &Session<'_>, slot: usize, bytes: Range<u64>) -> Result<()> {
        let to = self.landed[slot].take(&bytes);
        session.copy_in(&self.buffers[slot], 0, to)
    }

    fn arrive(&mut self, _session: &Session<'_>, slot: usize) -> Result<View> {
        Ok(self.landed[slot].view())
    }
}

/// Memory that workers write to at places of their own.
#[derive(Clone, Copy)]
pub(super) struct Target(pub(super) *mut u8);

// SAFETY: workers write to places of their own.
unsafe impl Sync for Target {}

/// The work of copying some host memory, piece by piece.
///
/// # Safety
/// The target is as long, and nobody else uses it until the work is done.
pub(super) unsafe fn copied<'a>(from: HostView, to: Target) -> Filling<'a> {
    let tasks = (from.bytes as usize).div_ceil(PIECE);
    let work = move |task: usize| {
        let to = to;
        let part = from.part((task * PIECE) as u64, PIECE as u64);
        // SAFETY: pieces are inside both memories and do not overlap; promised by the caller.
        unsafe {
            let to = to.0.add(task * PIECE);
            std::ptr::copy_nonoverlapping(part.start, to, part.bytes as usize);
        }
        Ok(())
    };
    Filling { tasks, work: Box::new(work) }
}

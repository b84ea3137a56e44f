//! `unified-prefetch` and `unified-migration`: workers copy a chunk into managed memory. Its pages move to
//! the device before the stages run (prefetch), or one by one when a stage reads them (migration).
//!
//! Managed memory consists only of a ring of a few chunks, so the device never has to evict pages. (In 001, the
//! tables themselves lie in managed memory, and no thread copies them.)

use std::ops::Range;
use std::sync::Arc;

use super::{ColumnTransfer, Filling, HostColumn, SLOTS, Target};
use crate::device::Session;
use crate::device::{HostView, Managed, View};
use crate::error::Result;

/// Bytes that one worker copies at a time.
const PIECE: usize = 1 << 20;

pub(super) struct Unified {
    column: HostColumn,
    slots: Vec<(Arc<Managed>, u64)>,
    prefetch: bool,
}

impl Unified {
    pub(super) fn new(
        session: &Session<'_>,
        column: &HostColumn,
        bytes: u64,
        prefetch: bool,
    ) -> Result<Self> {
        let slot = |_| Ok((session.managed(bytes.max(1), "a ring of chunks")?, 0));
        let slots = (0..SLOTS).map(slot).collect::<Result<_>>()?;
        Ok(Unified { column: column.clone(), slots, prefetch })
    }
}

impl ColumnTransfer for Unified {
    fn fill(&mut self, slot: usize, bytes: Range<u64>) -> Result<Option<Filling<'_>>> {
        let (managed, len) = &mut self.slots[slot];
        *len = bytes.end - bytes.start;
        // SAFETY: the stages that read the memory are done, and it is as long as a chunk.
        Ok(Some(unsafe { copied(self.column.part(&bytes)?, Target(managed.start)) }))
    }

    fn send(&mut self, session: &Session<'_>, slot: usize, bytes: Range<u64>) -> Result<()> {
        session.crosses_in(bytes.end - bytes.start);
        match self.prefetch {
            true => session.device.prefetch(session.copies, &self.slots[slot].0),
            false => Ok(()),
        }
    }

    fn arrive(&mut self, _session: &Session<'_>, slot: usize) -> Result<View> {
        let (managed, len) = &self.slots[slot];
        Ok(managed.view.part(0, *len))
    }

    fn shares(&self) -> bool {
        true
    }
}

/// Returns the work of copying some host memory, piece by piece.
///
/// # Safety
/// `to` must be as long as `from`, and nobody else may use it until the work is done.
unsafe fn copied<'a>(from: HostView, to: Target) -> Filling<'a> {
    let tasks = (from.bytes as usize).div_ceil(PIECE);
    let work = move |task: usize| {
        let to = to;
        let part = from.part((task * PIECE) as u64, PIECE as u64);
        // SAFETY: pieces are inside both memories and do not overlap; the caller guarantees the rest.
        unsafe {
            let to = to.0.add(task * PIECE);
            std::ptr::copy_nonoverlapping(part.start, to, part.bytes as usize);
        }
        Ok(())
    };
    Filling { tasks, work: Box::new(work) }
}

//! `dynamic-pinning`: each chunk is pinned, copied by the copy engine, and unpinned. No memory is
//! copied twice, but pinning takes about as long as copying.

use std::ops::Range;
use std::sync::Arc;

use super::{Carry, HostColumn, Landed, SLOTS};
use crate::device::Session;
use crate::device::{Pinned, View};
use crate::error::Result;

pub(super) struct Dynamic {
    column: HostColumn,
    /// What is pinned for each slot, until its next chunk.
    pinned: Vec<Option<Arc<Pinned>>>,
    landed: Vec<Landed>,
}

impl Dynamic {
    pub(super) fn new(session: &Session<'_>, column: &HostColumn, bytes: u64) -> Result<Self> {
        let pinned = (0..SLOTS).map(|_| None).collect();
        Ok(Dynamic { column: column.clone(), pinned, landed: Landed::ring(session, bytes)? })
    }
}

impl Carry for Dynamic {
    fn send(&mut self, session: &Session<'_>, slot: usize, bytes: Range<u64>) -> Result<()> {
        // The pipeline has waited for the slot's last copy.
        self.pinned[slot] = None;
        let to = self.landed[slot].take(&bytes);
        let part = self.column.part(&bytes)?;
        // SAFETY: who made the column keeps its memory for longer than the pipeline lives.
        let pinned = unsafe { session.device.pin(part) }?;
        session.copy_in(&pinned, 0, to)?;
        self.pinned[slot] = Some(pinned);
        Ok(())
    }

    fn arrive(&mut self, _session: &Session<'_>, slot: usize) -> Result<View> {
        Ok(self.landed[slot].view())
    }
}

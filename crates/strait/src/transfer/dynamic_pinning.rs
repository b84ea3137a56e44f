//! `dynamic-pinning`: pins each chunk, lets the copy engine copy it, and unpins it. No byte is copied twice,
//! but pinning takes about as long as copying.

use std::ops::Range;
use std::sync::Arc;

use super::{ColumnTransfer, HostColumn, Landed, SLOTS};
use crate::device::Session;
use crate::device::{Pinned, View};
use crate::error::Result;

pub(super) struct Dynamic {
    column: HostColumn,
    /// The pinned memory of each slot, until the slot's next chunk.
    pinned: Vec<Option<Arc<Pinned>>>,
    landed: Vec<Landed>,
}

impl Dynamic {
    pub(super) fn new(session: &Session<'_>, column: &HostColumn, bytes: u64) -> Result<Self> {
        let pinned = (0..SLOTS).map(|_| None).collect();
        Ok(Dynamic { column: column.clone(), pinned, landed: Landed::ring(session, bytes)? })
    }
}

impl ColumnTransfer for Dynamic {
    fn send(&mut self, session: &Session<'_>, slot: usize, bytes: Range<u64>) -> Result<()> {
        // The pipeline has waited for the slot's previous copy.
        self.pinned[slot] = None;
        let to = self.landed[slot].take(&bytes);
        let part = self.column.part(&bytes)?;
        // SAFETY: the creator of the column keeps its memory alive longer than the pipeline.
        let pinned = unsafe { session.device.pin(part) }?;
        session.copy_in(&pinned, 0, to)?;
        self.pinned[slot] = Some(pinned);
        Ok(())
    }

    fn arrive(&mut self, _session: &Session<'_>, slot: usize) -> Result<View> {
        Ok(self.landed[slot].view())
    }
}

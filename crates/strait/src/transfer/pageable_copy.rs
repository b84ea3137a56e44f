//! `pageable-copy`: the driver copies directly from the column's memory. If the memory is not pinned, a
//! single thread copies it through small buffers of the driver.

use std::ops::Range;

use super::{ColumnTransfer, HostColumn, Landed};
use crate::device::Session;
use crate::device::View;
use crate::error::Result;

pub(super) struct Pageable {
    column: HostColumn,
    landed: Vec<Landed>,
}

impl Pageable {
    pub(super) fn new(session: &Session<'_>, column: &HostColumn, bytes: u64) -> Result<Self> {
        Ok(Pageable { column: column.clone(), landed: Landed::ring(session, bytes)? })
    }
}

impl ColumnTransfer for Pageable {
    fn send(&mut self, session: &Session<'_>, slot: usize, bytes: Range<u64>) -> Result<()> {
        let to = self.landed[slot].take(&bytes);
        session.crosses_in(to.bytes);
        // SAFETY: the creator of the column keeps its memory alive, and the pipeline waits for its copies.
        unsafe { session.device.copy_from(session.copies, self.column.part(&bytes)?, to) }
    }

    fn arrive(&mut self, _session: &Session<'_>, slot: usize) -> Result<View> {
        Ok(self.landed[slot].view())
    }
}

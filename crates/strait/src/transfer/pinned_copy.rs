//! `pinned-copy`: the copy engine reads pinned memory. A column that is not pinned is pinned once, as a
//! whole.

use std::ops::Range;
use std::sync::Arc;

use super::{ColumnTransfer, HostColumn, Landed};
use crate::device::Session;
use crate::device::{Pinned, View};
use crate::error::Result;

pub(super) struct FromPinned {
    pinned: Arc<Pinned>,
    /// The offset of the column in the pinned memory.
    at: usize,
    landed: Vec<Landed>,
}

impl FromPinned {
    pub(super) fn new(session: &Session<'_>, column: &HostColumn, bytes: u64) -> Result<Self> {
        let (pinned, at) = column.pin(session)?;
        Ok(FromPinned { pinned, at, landed: Landed::ring(session, bytes)? })
    }
}

impl ColumnTransfer for FromPinned {
    fn send(&mut self, session: &Session<'_>, slot: usize, bytes: Range<u64>) -> Result<()> {
        let to = self.landed[slot].take(&bytes);
        let at = self.at + bytes.start as usize;
        session.copy_in(&self.pinned, at, to)
    }

    fn arrive(&mut self, _session: &Session<'_>, slot: usize) -> Result<View> {
        Ok(self.landed[slot].view())
    }
}

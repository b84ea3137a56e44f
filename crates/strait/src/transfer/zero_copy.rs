//! `zero-copy`: stages read pinned host memory over the link. A column that is not pinned is pinned once, as
//! a whole.

use std::ops::Range;
use std::sync::Arc;

use super::{ColumnTransfer, HostColumn, SLOTS};
use crate::device::Session;
use crate::device::{Memory, Pinned, View};
use crate::error::Result;

pub(super) struct Mapped {
    memory: Memory,
    /// Keeps the memory pinned while it is mapped.
    _pinned: Arc<Pinned>,
    at: u64,
    chunks: [Range<u64>; SLOTS],
}

impl Mapped {
    pub(super) fn new(session: &Session<'_>, column: &HostColumn) -> Result<Self> {
        let (pinned, at) = column.pin(session)?;
        let memory = session.device.mapped(&pinned)?;
        Ok(Mapped { memory, _pinned: pinned, at: at as u64, chunks: Default::default() })
    }
}

impl ColumnTransfer for Mapped {
    fn send(&mut self, session: &Session<'_>, slot: usize, bytes: Range<u64>) -> Result<()> {
        session.crosses_in(bytes.end - bytes.start);
        self.chunks[slot] = bytes;
        Ok(())
    }

    fn arrive(&mut self, _session: &Session<'_>, slot: usize) -> Result<View> {
        let Range { start, end } = self.chunks[slot].clone();
        Ok(self.memory.view.part(self.at + start, end - start))
    }
}

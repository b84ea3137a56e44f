//! `coherence`: stages read host memory over the link, pinned or not, if the machine's GPU supports it.

use std::ops::Range;

use super::{ColumnTransfer, HostColumn, SLOTS};
use crate::device::Session;
use crate::device::{Memory, View};
use crate::error::Result;

pub(super) struct Coherent {
    memory: Memory,
    chunks: [Range<u64>; SLOTS],
}

impl Coherent {
    pub(super) fn new(session: &Session<'_>, column: &HostColumn) -> Result<Self> {
        // SAFETY: the creator of the column keeps its memory alive longer than the pipeline.
        let memory = unsafe { session.device.coherent(column.whole()?) }?;
        Ok(Coherent { memory, chunks: Default::default() })
    }
}

impl ColumnTransfer for Coherent {
    fn send(&mut self, session: &Session<'_>, slot: usize, bytes: Range<u64>) -> Result<()> {
        session.crosses_in(bytes.end - bytes.start);
        self.chunks[slot] = bytes;
        Ok(())
    }

    fn arrive(&mut self, _session: &Session<'_>, slot: usize) -> Result<View> {
        let Range { start, end } = self.chunks[slot].clone();
        Ok(self.memory.view.part(start, end - start))
    }
}

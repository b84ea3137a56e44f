//! `staged-copy`: all workers copy a chunk through [short pinned buffers](super::desk), from where the
//! copy engine takes it.

use std::ops::Range;
use std::sync::Arc;

use super::desk::Desk;
use super::{Carry, Filling, HostColumn, Landed};
use crate::algorithm::gpu::Session;
use crate::device::View;
use crate::error::Result;

pub(super) struct Staged<'a> {
    column: HostColumn,
    desk: Arc<Desk<'a>>,
    landed: Vec<Landed>,
}

impl<'a> Staged<'a> {
    pub(super) fn new(
        session: &Session<'_>,
        desk: Arc<Desk<'a>>,
        column: &HostColumn,
        bytes: u64,
    ) -> Result<Self> {
        Ok(Staged { column: column.clone(), desk, landed: Landed::ring(session, bytes)? })
    }
}

impl Carry for Staged<'_> {
    fn fill(&mut self, slot: usize, bytes: Range<u64>) -> Result<Option<Filling<'_>>> {
        let to = self.landed[slot].take(&bytes);
        let from = self.column.part(&bytes);
        let desk = &self.desk;
        let pieces = desk.cut(from.bytes, 1);
        let tasks = pieces.len();
        let work = move |task: usize| {
            let Range { start, end } = pieces[task];
            // Whole, so that what may be shared is what is captured.
            let part = { &from }.part(start, end - start);
            desk.send(to.part(start, part.bytes), |buffer| {
                let bytes = part.bytes as usize;
                // SAFETY: the column's memory, kept by who made it, and a buffer as long as the piece that
                // nobody else uses now.
                unsafe { std::ptr::copy_nonoverlapping(part.start, buffer, bytes) };
                bytes
            })
        };
        Ok(Some(Filling { tasks, work: Box::new(work) }))
    }

    fn send(&mut self, session: &Session<'_>, _slot: usize, bytes: Range<u64>) -> Result<()> {
        session.crosses_in(bytes.end - bytes.start);
        Ok(())
    }

    fn arrive(&mut self, _session: &Session<'_>, slot: usize) -> Result<View> {
        Ok(self.landed[slot].view())
    }
}

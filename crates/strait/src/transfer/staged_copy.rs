//! `staged-copy`: all workers copy a chunk into [short pinned buffers](super::staging), and the copy engine
//! copies the buffers to the device.

use std::ops::Range;
use std::sync::Arc;

use super::staging::StagingPool;
use super::{ColumnTransfer, Filling, HostColumn, Landed};
use crate::device::Session;
use crate::device::View;
use crate::error::{Error, Result};

pub(super) struct Staged<'a> {
    column: HostColumn,
    staging: Arc<StagingPool<'a>>,
    landed: Vec<Landed>,
}

impl<'a> Staged<'a> {
    pub(super) fn new(
        session: &Session<'_>,
        staging: Arc<StagingPool<'a>>,
        column: &HostColumn,
        bytes: u64,
    ) -> Result<Self> {
        if column.plus() != 0 {
            let what = "values cross as they lie, and these are short of something";
            return Err(Error::internal(what));
        }
        Ok(Staged { column: column.clone(), staging, landed: Landed::ring(session, bytes)? })
    }
}

impl ColumnTransfer for Staged<'_> {
    fn fill(&mut self, slot: usize, bytes: Range<u64>) -> Result<Option<Filling<'_>>> {
        let to = self.landed[slot].take(&bytes);
        let (column, staging) = (&self.column, &self.staging);
        let pieces = staging.cut(bytes.end - bytes.start, 1);
        let tasks = pieces.len();
        let work = move |task: usize| {
            let Range { start, end } = pieces[task];
            staging.send(to.part(start, end - start), |buffer| {
                let part = bytes.start + start..bytes.start + end;
                // SAFETY: the creator of the column keeps its memory alive. The buffer is as long as the
                // piece, and nobody else uses it now.
                unsafe { column.copy(part, buffer) }?;
                Ok((end - start) as usize)
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

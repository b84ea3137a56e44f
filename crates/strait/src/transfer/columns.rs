//! Transfers columns chunk by chunk, each column with the chosen method.

use std::ops::Range;
use std::sync::Arc;

use super::staging::StagingPool;
use super::{
    ColumnTransfer, Filling, HostColumn, HostSide, SLOTS, Sent, SlotFeed, TransferContext,
    coherence, dynamic_pinning, packed, pageable_copy, pinned_copy, staged_copy, unified,
    zero_copy,
};
use crate::device::DeviceSide;
use crate::device::Session;
use crate::error::Result;
use crate::gpu_options::Transfer;
use crate::schedule::Workers;

/// See the [module](self).
pub(super) struct ColumnFeed<'a> {
    keys: Box<dyn ColumnTransfer + 'a>,
    values: Option<Box<dyn ColumnTransfer + 'a>>,
    rows: u64,
    chunk_rows: u64,
    /// The next row to send.
    at: u64,
    /// The rows of each slot.
    chunks: [Range<u64>; SLOTS],
}

impl<'a> ColumnFeed<'a> {
    pub(super) fn new(
        link: &TransferContext<'a>,
        side: &HostSide,
        chunk_rows: u64,
    ) -> Result<ColumnFeed<'a>> {
        let chunk_rows = chunk_rows.min(side.rows).max(1);
        link.session.record_work(|work| work.transferred(link.transfer));
        let mut transfers = ColumnTransfers { link, chunk_rows, staging: None };
        let keys = transfers.transfer(&side.keys, true)?;
        let values = match &side.values {
            Some(column) => Some(transfers.transfer(column, false)?),
            None => None,
        };
        let chunks = Default::default();
        Ok(ColumnFeed { keys, values, rows: side.rows, chunk_rows, at: 0, chunks })
    }
}

impl SlotFeed for ColumnFeed<'_> {
    fn send(&mut self, session: &Session<'_>, workers: &Workers, slot: usize) -> Result<Sent> {
        let rows = self.at..(self.at + self.chunk_rows).min(self.rows);
        if rows.is_empty() {
            return Ok(Sent::Nothing);
        }
        let word = session.word.bytes();
        let bytes = rows.start * word..rows.end * word;
        // Both columns at once, so that threads synchronise only once per chunk.
        let keys = self.keys.fill(slot, bytes.clone())?;
        let values = match &mut self.values {
            Some(values) => values.fill(slot, bytes.clone())?,
            None => None,
        };
        let tasks = |of: &Option<Filling<'_>>| of.as_ref().map_or(0, |of| of.tasks);
        let of_keys = tasks(&keys);
        let all = of_keys + tasks(&values);
        if all > 0 {
            workers.each(all, |task, _| match (&keys, &values) {
                (Some(keys), _) if task < of_keys => (keys.work)(task),
                (_, Some(values)) => (values.work)(task - of_keys),
                _ => Ok(()),
            })?;
        }
        drop((keys, values));
        self.keys.send(session, slot, bytes.clone())?;
        if let Some(values) = &mut self.values {
            values.send(session, slot, bytes)?;
        }
        self.at = rows.end;
        self.chunks[slot] = rows;
        Ok(Sent::Chunk)
    }

    fn arrive(&mut self, session: &Session<'_>, slot: usize) -> Result<DeviceSide> {
        let keys = self.keys.arrive(session, slot)?;
        let values = match &mut self.values {
            Some(values) => Some(values.arrive(session, slot)?),
            None => None,
        };
        let Range { start, end } = self.chunks[slot];
        Ok(DeviceSide { keys, values, tuples: None, rows: end - start, first: start })
    }

    fn shares(&self) -> bool {
        self.keys.shares() || self.values.as_ref().is_some_and(|values| values.shares())
    }
}

/// Creates the transfers of the columns for one method.
struct ColumnTransfers<'c, 'a> {
    link: &'c TransferContext<'a>,
    chunk_rows: u64,
    /// The staging pool that staged columns share.
    staging: Option<Arc<StagingPool<'a>>>,
}

impl<'a> ColumnTransfers<'_, 'a> {
    fn transfer(&mut self, column: &HostColumn, key: bool) -> Result<Box<dyn ColumnTransfer + 'a>> {
        let session = self.link.session;
        let bytes = self.chunk_rows * session.word.bytes();
        Ok(match self.link.transfer {
            Transfer::PageableCopy => {
                Box::new(pageable_copy::Pageable::new(session, column, bytes)?)
            }
            Transfer::StagedCopy | Transfer::Auto if key => {
                let threads = self.link.workers.threads();
                let staging = self.staging(bytes)?;
                Box::new(packed::Packed::new(
                    session,
                    staging,
                    column,
                    self.chunk_rows,
                    threads as u64,
                )?)
            }
            Transfer::StagedCopy | Transfer::Auto => {
                Box::new(staged_copy::Staged::new(session, self.staging(bytes)?, column, bytes)?)
            }
            Transfer::DynamicPinning => {
                Box::new(dynamic_pinning::Dynamic::new(session, column, bytes)?)
            }
            Transfer::PinnedCopy => Box::new(pinned_copy::FromPinned::new(session, column, bytes)?),
            Transfer::UnifiedPrefetch => {
                Box::new(unified::Unified::new(session, column, bytes, true)?)
            }
            Transfer::UnifiedMigration => {
                Box::new(unified::Unified::new(session, column, bytes, false)?)
            }
            Transfer::ZeroCopy => Box::new(zero_copy::Mapped::new(session, column)?),
            Transfer::Coherence => Box::new(coherence::Coherent::new(session, column)?),
        })
    }

    fn staging(&mut self, bytes: u64) -> Result<Arc<StagingPool<'a>>> {
        let TransferContext { session, workers, .. } = self.link;
        let staging = match self.staging.take() {
            Some(staging) => staging,
            None => {
                Arc::new(StagingPool::new(session, workers, bytes, packed::unit(session.word))?)
            }
        };
        Ok(Arc::clone(self.staging.insert(staging)))
    }
}

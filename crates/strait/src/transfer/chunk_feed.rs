//! Stages the key words of chunks that are read while they are joined.

use super::packed::Packed;
use super::staging::StagingPool;
use super::{ColumnTransfer, Incoming, Read, SLOTS, Sent, SlotFeed, TransferContext, packed};
use crate::device::DeviceSide;
use crate::device::Session;
use crate::error::Result;
use crate::gpu_options::Transfer;
use crate::schedule::Workers;
use std::sync::Arc;

/// See the [module](self).
pub(super) struct ChunkFeed<'a> {
    from: &'a Incoming<'a>,
    keys: Packed<'a>,
    chunk_rows: u64,
    /// The rows of each slot.
    rows: [u64; SLOTS],
}

impl<'a> ChunkFeed<'a> {
    pub(super) fn new(
        link: &TransferContext<'a>,
        from: &'a Incoming<'a>,
        chunk_rows: u64,
    ) -> Result<ChunkFeed<'a>> {
        let TransferContext { session, workers, .. } = *link;
        // A side that is read while it is joined is always staged.
        session.record_work(|work| work.transferred(Transfer::StagedCopy));
        let bytes = chunk_rows * session.word.bytes();
        let staging = StagingPool::new(session, workers, bytes, packed::unit(session.word))?;
        let threads = workers.threads() as u64;
        let keys = Packed::of_chunks(session, Arc::new(staging), chunk_rows, threads)?;
        from.rewind();
        Ok(ChunkFeed { from, keys, chunk_rows, rows: [0; SLOTS] })
    }
}

impl SlotFeed for ChunkFeed<'_> {
    fn send(&mut self, session: &Session<'_>, workers: &Workers, slot: usize) -> Result<Sent> {
        let (keys, rows) = match self.from.next(self.chunk_rows)? {
            Read::Chunk { keys, rows } => (keys, rows),
            Read::Later => return Ok(Sent::Later),
            Read::End => return Ok(Sent::Nothing),
        };
        self.rows[slot] = rows;
        self.keys.load(keys);
        let bytes = 0..rows * session.word.bytes();
        if let Some(filling) = self.keys.fill(slot, bytes.clone())? {
            workers.each(filling.tasks, |task, _| (filling.work)(task))?;
        }
        self.keys.send(session, slot, bytes)?;
        Ok(Sent::Chunk)
    }

    fn arrive(&mut self, session: &Session<'_>, slot: usize) -> Result<DeviceSide> {
        let keys = self.keys.arrive(session, slot)?;
        Ok(DeviceSide { keys, rows: self.rows[slot], ..DeviceSide::default() })
    }
}

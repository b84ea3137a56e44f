//! Transfers a side to the device through a ring of slots, which are filled ahead of the stages that read
//! them.
//!
//! ```text
//!   slot 0   ══ stages read chunk 4 ══▶ done                 wait, fill, send chunk 8
//!   slot 1   ──── chunk 5 crosses ────▶ sent ══ stages … ══▶
//!   slot 2   ···· chunk 6 is filled ··▶ ──── crosses ──────▶
//!   slot 3   free                       ···· chunk 7 is filled ··▶
//! ```
//!
//! Nothing polls. Stages wait for an event of the copies. Copies wait for an event of the stages that used
//! the slot before. The host waits only before it writes to memory that is still being copied.

use super::chunk_feed::ChunkFeed;
use super::columns::ColumnFeed;
use super::runs::{Produce, RunFeed};
use super::{HostSide, Incoming, SLOTS, Sent, SlotFeed, TransferContext};
use crate::device::DeviceSide;
use crate::device::Event;
use crate::device::Session;
use crate::error::{Error, Result};
use crate::gpu_options::Transfer;
use crate::schedule::Workers;

/// A chunk of a side that has arrived.
pub(crate) struct DeviceChunk {
    pub(crate) side: DeviceSide,
    slot: usize,
}

/// The events of a slot.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// After this event, the chunk has crossed.
    sent: Option<Event>,
    /// After this event, stages no longer read the chunk.
    done: Option<Event>,
}

/// See the [module](self).
pub(crate) struct Pipeline<'a> {
    session: &'a Session<'a>,
    workers: &'a Workers,
    feed: Box<dyn SlotFeed + 'a>,
    slots: [Slot; SLOTS],
    /// The numbers of chunks sent, handed out, and done with.
    sent: usize,
    lent: usize,
    done: usize,
    /// Whether the last chunk was sent.
    ended: bool,
}

impl<'a> Pipeline<'a> {
    /// Prepares to transfer a side's columns, `chunk_rows` rows at a time.
    pub(crate) fn new(
        link: &'a TransferContext<'a>,
        side: &HostSide,
        chunk_rows: u64,
    ) -> Result<Pipeline<'a>> {
        let feed = ColumnFeed::new(link, side, chunk_rows)?;
        Ok(Pipeline::of(link, Box::new(feed)))
    }

    /// Prepares to transfer the key words of a probe side, `chunk_rows` rows at a time.
    pub(crate) fn of_probe(
        link: &'a TransferContext<'a>,
        side: &'a Incoming<'a>,
        chunk_rows: u64,
    ) -> Result<Pipeline<'a>> {
        match side.streams() {
            true => {
                let feed = ChunkFeed::new(link, side, chunk_rows)?;
                Ok(Pipeline::of(link, Box::new(feed)))
            }
            false => Pipeline::new(link, side.held()?, chunk_rows),
        }
    }

    /// Prepares to transfer runs of tuples as `produce` returns them.
    pub(crate) fn of_runs(
        link: &'a TransferContext<'a>,
        produce: Produce<'a>,
        chunk_rows: u64,
    ) -> Result<Pipeline<'a>> {
        link.session.record_work(|work| work.transferred(Transfer::PinnedCopy));
        let feed = RunFeed::new(link.session, produce, chunk_rows)?;
        Ok(Pipeline::of(link, Box::new(feed)))
    }

    fn of(link: &'a TransferContext<'a>, feed: Box<dyn SlotFeed + 'a>) -> Pipeline<'a> {
        Pipeline {
            session: link.session,
            workers: link.workers,
            feed,
            slots: [Slot::default(); SLOTS],
            sent: 0,
            lent: 0,
            done: 0,
            ended: false,
        }
    }

    /// Fills and sends chunks until no slot is free, or the side has no next chunk yet.
    pub(crate) fn ahead(&mut self) -> Result<()> {
        while !self.ended && self.sent - self.done < SLOTS {
            self.workers.check()?;
            if self.send()? == Sent::Later {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Returns whether the last chunk was sent.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Returns the next chunk, for stages that are enqueued from now on, or `None` after the last. The
    /// caller must pass each chunk to [`done`](Pipeline::done) before it asks for the next. If the side is
    /// read while it is joined, `None` may also mean that the results of earlier chunks must be taken first;
    /// [`ended`](Pipeline::ended) tells.
    pub(crate) fn next(&mut self) -> Result<Option<DeviceChunk>> {
        if self.lent != self.done {
            return Err(Error::internal("a chunk was asked for before the last was done"));
        }
        if self.lent == self.sent {
            self.ahead()?;
        }
        if self.lent == self.sent {
            return Ok(None);
        }
        let slot = self.lent % SLOTS;
        if let Some(sent) = self.slots[slot].sent {
            self.session.device.wait(self.session.compute, sent)?;
        }
        let side = self.feed.arrive(self.session, slot)?;
        self.session.record_work(|work| work.chunk_rows = work.chunk_rows.max(side.rows));
        self.lent += 1;
        Ok(Some(DeviceChunk { side, slot }))
    }

    /// Records that no stage enqueued later reads the chunk. Its slot becomes free after the stages so far.
    pub(crate) fn done(&mut self, chunk: DeviceChunk) -> Result<()> {
        let done = self.session.device.record(self.session.compute)?;
        self.session.passed(done);
        self.slots[chunk.slot].done = Some(done);
        self.done += 1;
        Ok(())
    }

    /// Fills and sends one chunk.
    fn send(&mut self) -> Result<Sent> {
        let device = self.session.device;
        let number = self.sent % SLOTS;
        let slot = &mut self.slots[number];
        if let Some(sent) = slot.sent.take() {
            device.wait_for(sent)?;
        }
        if let Some(done) = slot.done.take() {
            match self.feed.shares() {
                true => device.wait_for(done)?,
                false => device.wait(self.session.copies, done)?,
            }
        }
        let sent = self.feed.send(self.session, self.workers, number)?;
        match sent {
            Sent::Chunk => {
                self.slots[number].sent = Some(device.record(self.session.copies)?);
                self.sent += 1;
            }
            Sent::Later => {}
            Sent::Nothing => self.ended = true,
        }
        Ok(sent)
    }
}

impl Drop for Pipeline<'_> {
    fn drop(&mut self) {
        self.session.finish_before_drop([self.session.copies, self.session.compute]);
    }
}

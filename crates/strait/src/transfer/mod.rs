//! How do rows cross from host memory to a device? There is one file per method (001, table 1), and one
//! pipeline that all methods share.
//!
//! | method | the host | the copy engine | stages read | file |
//! | --- | --- | --- | --- | --- |
//! | `pageable-copy` | | copies, through the driver's own buffers | device memory | [`pageable_copy`] |
//! | `staged-copy` | copies into [short pinned buffers](staging); keys are [`packed`] | copies | device memory | [`staged_copy`] |
//! | `dynamic-pinning` | pins and unpins chunk by chunk | copies | device memory | [`dynamic_pinning`] |
//! | `pinned-copy` | pins once, if not pinned yet | copies | device memory | [`pinned_copy`] |
//! | `unified-prefetch` | copies into managed memory | moves its pages | managed memory | [`unified`] |
//! | `unified-migration` | copies into managed memory | | managed memory, page by page | [`unified`] |
//! | `zero-copy` | pins once, if not pinned yet | | host memory | [`zero_copy`] |
//! | `coherence` | | | host memory | [`coherence`] |
//!
//! ```text
//!  columns ─► chunks ─► a ring of slots ─► chunk at addresses of the device ─► stages
//!                           ▲ filled and copied ahead of the stages │
//!                           └──────── free once the stages are done ┘
//! ```
//!
//! In 001, the unified methods store the whole table in managed memory. Here, the tables are Arrow buffers that
//! Strait did not allocate, so rows are copied into a ring of managed memory first. That copy costs time.
//!
//! In the other direction, [`Drain`] copies blocks of rows to the host while the device produces the next
//! ones.

mod chunk_feed;
mod coherence;
mod columns;
mod drain;
mod dynamic_pinning;
mod host;
mod incoming;
mod packed;
mod pageable_copy;
mod pinned_copy;
mod pipeline;
mod runs;
mod staged_copy;
mod staging;
mod unified;
mod zero_copy;

#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::device::DeviceSide;
use crate::device::Session;
use crate::device::{Memory, View};
use crate::error::Result;
use crate::gpu_options::Transfer;
use crate::schedule::Workers;

pub(crate) use drain::{Arrived, BlockColumn, Drain};
pub(crate) use host::{HostColumn, HostSide};
pub(crate) use incoming::{ChunkSource, Incoming, Read};
pub(crate) use pipeline::Pipeline;
pub(crate) use runs::{Place, Produce, Run};

/// Slots per ring: stages read one, two are being copied or have arrived, and one is being filled.
pub(crate) const SLOTS: usize = 4;
/// Under a memory limit, the rows of a chunk that is read while it is joined take at most 1/16 of the memory that is
/// left, and so do their keys.
pub(crate) const STREAMED_SHARE: u64 = 16;

/// The session, the workers and the method that a transfer uses.
#[derive(Clone, Copy)]
pub(crate) struct TransferContext<'a> {
    pub(crate) session: &'a Session<'a>,
    pub(crate) workers: &'a Workers,
    /// The method, as the plan says. [`Transfer::Auto`] stages, like [`Transfer::StagedCopy`].
    pub(crate) transfer: Transfer,
    /// The most rows per chunk, as the plan says. Chunks are shorter if memory does not suffice for so many.
    pub(crate) most_rows: u64,
}

impl<'a> TransferContext<'a> {
    /// Returns the same with other chunks.
    pub(crate) fn with_chunks_of(&self, most_rows: u64) -> TransferContext<'a> {
        TransferContext { most_rows, ..*self }
    }

    /// Returns the rows per chunk. The ring, and `extra` more bytes per row, may together take `share` bytes
    /// of device memory.
    pub(crate) fn chunk_rows(&self, side: &HostSide, extra: u64, share: u64) -> u64 {
        let row_bytes = self.ring_bytes(side) + extra;
        let fit = share.checked_div(row_bytes).unwrap_or(u64::MAX);
        fit.min(self.most_rows).min(side.rows).max(1)
    }

    /// Returns the rows per chunk of a probe side, like [`chunk_rows`](TransferContext::chunk_rows).
    pub(crate) fn probe_rows(&self, side: &Incoming<'_>, extra: u64, share: u64) -> Result<u64> {
        if !side.streams() {
            return Ok(self.chunk_rows(side.held()?, extra, share));
        }
        let word = self.session.word.bytes();
        // The ring has one column of packed keys, and the keys of one chunk are unpacked.
        let row_bytes = (SLOTS as u64 + 1) * word + extra;
        // Under a limit, a chunk takes a small share of the memory that is left. If that share is too small
        // for one piece per worker, the chunk is made still shorter.
        const SHARE: u64 = STREAMED_SHARE;
        let workers = self.workers.threads() as u64;
        let whole =
            self.session.portion(SHARE, self.most_rows.saturating_mul(word) as usize)? as u64;
        let bytes = match workers * packed::unit(self.session.word) <= whole {
            true => whole,
            false => self.session.portion(SHARE * workers, whole as usize)? as u64,
        };
        Ok((share / row_bytes).min(bytes / word).max(1))
    }

    /// Returns the rows per chunk of tuples. The ring, and `extra` more bytes per row, may together take
    /// `share` bytes of device memory.
    pub(crate) fn chunk_of_tuples(&self, extra: u64, share: u64) -> u64 {
        let tuple = self.session.word.tuple();
        let fit = share / (SLOTS as u64 * tuple + extra);
        fit.min(self.most_rows).max(1)
    }

    /// Returns the device memory that a ring takes per row of a chunk.
    pub(crate) fn ring_bytes(&self, side: &HostSide) -> u64 {
        let word = self.session.word.bytes();
        let slots = SLOTS as u64;
        match self.transfer {
            // Every slot holds packed keys. The keys of the chunk in use are unpacked into extra memory.
            Transfer::StagedCopy | Transfer::Auto => slots * word * side.columns() + word,
            Transfer::ZeroCopy | Transfer::Coherence => 0,
            _ => slots * word * side.columns(),
        }
    }
}

/// Brings rows to the device through the slots of a [`Pipeline`].
trait SlotFeed {
    /// Fills and sends the next chunk through a free slot.
    fn send(&mut self, session: &Session<'_>, workers: &Workers, slot: usize) -> Result<Sent>;

    /// Returns the chunk of a slot, which has arrived, for stages that are enqueued from now on.
    fn arrive(&mut self, session: &Session<'_>, slot: usize) -> Result<DeviceSide>;

    /// Whether the host writes directly to the memory that stages read.
    fn shares(&self) -> bool {
        false
    }
}

/// What a [`SlotFeed`] sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Chunk,
    /// Nothing yet: an earlier chunk has to be joined first.
    Later,
    /// Nothing: there are no more chunks.
    Nothing,
}

/// Brings one column to the device, chunk by chunk. Copies are enqueued on the session's stream for copies.
trait ColumnTransfer {
    /// Returns the work that workers must do before a chunk can be sent, if any. The slot is free.
    fn fill(&mut self, _slot: usize, _bytes: Range<u64>) -> Result<Option<Filling<'_>>> {
        Ok(None)
    }

    /// Sends a chunk that was filled, or the part of it that was not sent yet.
    fn send(&mut self, session: &Session<'_>, slot: usize, bytes: Range<u64>) -> Result<()>;

    /// Returns where stages find the chunk, which has arrived. May enqueue work on the stream of stages.
    fn arrive(&mut self, session: &Session<'_>, slot: usize) -> Result<View>;

    /// Whether the host writes directly to the memory that stages read.
    fn shares(&self) -> bool {
        false
    }
}

/// Work that must be done before a chunk can be sent, or that sends it. Any worker may run any task.
struct Filling<'a> {
    tasks: usize,
    work: Box<dyn Fn(usize) -> Result<()> + Sync + 'a>,
}

/// Memory that several workers write to, each in its own part.
#[derive(Clone, Copy)]
struct Target(*mut u8);

// SAFETY: workers write to separate parts.
unsafe impl Sync for Target {}

/// A slot's device memory, for methods whose chunks lie in one piece.
struct Landed {
    memory: Memory,
    bytes: u64,
}

impl Landed {
    /// Allocates device memory for each slot.
    fn ring(session: &Session<'_>, bytes: u64) -> Result<Vec<Landed>> {
        let slot = |_| {
            let memory = session.device.allocate(bytes.max(1), "a ring of chunks")?;
            Ok(Landed { memory, bytes: 0 })
        };
        (0..SLOTS).map(slot).collect()
    }

    /// Returns the part that a chunk of these bytes takes.
    fn take(&mut self, bytes: &Range<u64>) -> View {
        self.bytes = bytes.end - bytes.start;
        self.view()
    }

    fn view(&self) -> View {
        self.memory.view.part(0, self.bytes)
    }
}

/// Copies a whole side to the device. Stages that are enqueued afterwards may use it.
pub(crate) fn load(link: &TransferContext<'_>, side: &HostSide) -> Result<DeviceSide> {
    let session = link.session;
    let bytes = side.rows * session.word.bytes();
    let keys = session.allocate(bytes, "the keys")?;
    let values = match side.values {
        Some(_) => Some(session.allocate(bytes, "the values")?),
        None => None,
    };
    let chunk_rows = link.chunk_rows(side, 0, session.left() / 4);
    let mut pipeline = Pipeline::new(link, side, chunk_rows)?;
    while let Some(chunk) = pipeline.next()? {
        let to = |whole: View, part: View, at: u64| {
            let target = whole.part(at * session.word.bytes(), part.bytes);
            session.device.copy_between(session.compute, part, target)
        };
        to(keys, chunk.side.keys, chunk.side.first)?;
        if let (Some(whole), Some(part)) = (values, chunk.side.values) {
            to(whole, part, chunk.side.first)?;
        }
        pipeline.done(chunk)?;
        pipeline.ahead()?;
    }
    session.mark("copy to device")?;
    Ok(DeviceSide { keys, values, rows: side.rows, ..DeviceSide::default() })
}

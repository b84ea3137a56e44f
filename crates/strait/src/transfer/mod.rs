//! How do rows cross from host memory to a device? One file a method (001, table 1), and the pipeline
//! that all of them share.
//!
//! | method | the host | the copy engine | stages read | file |
//! | --- | --- | --- | --- | --- |
//! | `pageable-copy` | | copies, through the driver's own buffers | device memory | [`pageable_copy`] |
//! | `staged-copy` | copies into [short pinned buffers](staging); keys are [`packed`] | copies | device memory | [`staged_copy`] |
//! | `dynamic-pinning` | pins and unpins chunk by chunk | copies | device memory | [`dynamic_pinning`] |
//! | `pinned-copy` | pins once, where it is not pinned | copies | device memory | [`pinned_copy`] |
//! | `unified-prefetch` | copies into managed memory | moves its pages | managed memory | [`unified`] |
//! | `unified-migration` | likewise | | managed memory, page by page | [`unified`] |
//! | `zero-copy` | pins once, where it is not pinned | | host memory | [`zero_copy`] |
//! | `coherence` | | | host memory | [`coherence`] |
//!
//! ```text
//!  columns ─► chunks ─► a ring of slots ─► chunk at addresses of the device ─► stages
//!                           ▲ filled and copied ahead of the stages │
//!                           └──────── free once the stages are done ┘
//! ```
//!
//! The other way, [`Drain`] takes blocks of rows to the host while the next ones are made.

mod coherence;
mod columns;
mod drain;
mod dynamic_pinning;
mod host;
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

use crate::device::Session;
use crate::device::Side;
use crate::device::{Memory, Stage, View, abi};
use crate::error::Result;
use crate::gpu_options::Transfer;
use crate::schedule::Workers;

pub(crate) use drain::Drain;
pub(crate) use host::{HostColumn, HostSide};
pub(crate) use pipeline::Pipeline;
pub(crate) use runs::{Place, Produce, Run};

/// Slots of a ring: one is read by stages, two are under way or have arrived, one is being filled.
pub(crate) const SLOTS: usize = 4;
/// Bytes of a chunk of one column: long enough for the link and for launching kernels, short enough to
/// overlap.
const CHUNK_BYTES: u64 = 128 << 20;
/// Bytes of a chunk of all columns that workers stage: they go round it together, and the last ones
/// wait for nobody else if it is long.
const STAGED_BYTES: u64 = 512 << 20;

/// Who carries rows over the link, and how.
#[derive(Clone, Copy)]
pub(crate) struct TransferContext<'a> {
    pub(crate) session: &'a Session<'a>,
    pub(crate) workers: &'a Workers,
    pub(crate) transfer: Transfer,
    /// Rows of a chunk, at most; what suits the link where there is no other reason.
    pub(crate) most_rows: Option<u64>,
}

impl TransferContext<'_> {
    /// The method for a side.
    pub(crate) fn method(&self, side: &HostSide) -> Transfer {
        match (self.transfer, side.pinned()) {
            (Transfer::Auto, true) => Transfer::PinnedCopy,
            (Transfer::Auto, false) => Transfer::StagedCopy,
            (asked, _) => asked,
        }
    }

    /// The method for a side that is read while a kernel writes over the link. Its writes leave the copy
    /// engine a third of the link, but its own reads four fifths: so pinned columns are read where they
    /// lie, as in 000.
    pub(crate) fn method_beside_writes(&self, side: &HostSide) -> Transfer {
        match (self.transfer, self.method(side)) {
            (Transfer::Auto, Transfer::PinnedCopy) => Transfer::ZeroCopy,
            (_, method) => method,
        }
    }

    /// Rows of a chunk, where a row of a ring and of what belongs to it may take `share` bytes of
    /// the device's memory in all.
    pub(crate) fn chunk_rows(&self, side: &HostSide, extra: u64, share: u64) -> u64 {
        let a_row = self.ring_bytes(side) + extra;
        let fit = share.checked_div(a_row).unwrap_or(u64::MAX);
        let word = self.session.word.bytes();
        let wish = match self.method(side) {
            Transfer::StagedCopy => STAGED_BYTES / (word * side.columns()),
            _ => CHUNK_BYTES / word,
        };
        fit.min(self.most_rows.unwrap_or(wish)).min(side.rows).max(1)
    }

    /// Rows of a chunk of tuples, where those of a ring and of what belongs to it may take `share`
    /// bytes of the device's memory in all.
    pub(crate) fn chunk_of_tuples(&self, extra: u64, share: u64) -> u64 {
        let tuple = self.session.word.tuple();
        let fit = share / (SLOTS as u64 * tuple + extra);
        fit.min(self.most_rows.unwrap_or(CHUNK_BYTES / tuple)).max(1)
    }

    /// Device memory that a ring takes for each row of a chunk.
    pub(crate) fn ring_bytes(&self, side: &HostSide) -> u64 {
        let word = self.session.word.bytes();
        let slots = SLOTS as u64;
        match self.method(side) {
            // Keys lie there packed, and those in use unpacked.
            Transfer::StagedCopy => slots * word * side.columns() + word,
            Transfer::ZeroCopy | Transfer::Coherence => 0,
            _ => slots * word * side.columns(),
        }
    }
}

/// Brings rows to the device through the slots of a [`Pipeline`].
trait Feed {
    /// Fills and sends the next chunk through a slot that is free; false after the last.
    fn send(&mut self, session: &Session<'_>, workers: &Workers, slot: usize) -> Result<bool>;

    /// A slot's chunk, which has arrived: for stages enqueued from here on.
    fn arrive(&mut self, session: &Session<'_>, slot: usize) -> Result<Side>;

    /// Whether the host writes to the memory that stages read.
    fn shares(&self) -> bool {
        false
    }
}

/// Brings one column to the device, chunk by chunk. What crosses is enqueued on the session's stream
/// for copies.
trait Carry {
    /// What workers do before a chunk can be sent, if anything. The slot is free.
    fn fill(&mut self, _slot: usize, _bytes: Range<u64>) -> Result<Option<Filling<'_>>> {
        Ok(None)
    }

    /// Sends a chunk that was filled, or what is left of it to be sent.
    fn send(&mut self, session: &Session<'_>, slot: usize, bytes: Range<u64>) -> Result<()>;

    /// Where stages find the chunk, which has arrived by then: enqueued on the stream of stages.
    fn arrive(&mut self, session: &Session<'_>, slot: usize) -> Result<View>;

    /// Whether the host writes to the memory that stages read.
    fn shares(&self) -> bool {
        false
    }
}

/// Work that is done before a chunk can be sent, or that sends it: so many tasks, by any worker.
struct Filling<'a> {
    tasks: usize,
    work: Box<dyn Fn(usize) -> Result<()> + Sync + 'a>,
}

/// Memory that workers write to at places of their own.
#[derive(Clone, Copy)]
struct Target(*mut u8);

// SAFETY: workers write to places of their own.
unsafe impl Sync for Target {}

/// Where a slot's chunk lies, when it lies in one piece.
struct Landed {
    memory: Memory,
    bytes: u64,
}

impl Landed {
    /// Device memory for each slot.
    fn ring(session: &Session<'_>, bytes: u64) -> Result<Vec<Landed>> {
        let slot = |_| {
            let memory = session.device.allocate(bytes.max(1), "a ring of chunks")?;
            Ok(Landed { memory, bytes: 0 })
        };
        (0..SLOTS).map(slot).collect()
    }

    /// The part that a chunk of so many bytes takes.
    fn take(&mut self, bytes: &Range<u64>) -> View {
        self.bytes = bytes.end - bytes.start;
        self.view()
    }

    fn view(&self) -> View {
        self.memory.view.part(0, self.bytes)
    }
}

/// Copies a whole side to the device, and returns when it can be used.
pub(crate) fn load(crossing: &TransferContext<'_>, side: &HostSide) -> Result<Side> {
    let session = crossing.session;
    let bytes = side.rows * session.word.bytes();
    let keys = session.allocate(bytes, "the keys")?;
    let values = match side.values {
        Some(_) => Some(session.allocate(bytes, "the values")?),
        None => None,
    };
    let chunk_rows = crossing.chunk_rows(side, 0, session.left() / 4);
    let mut pipeline = Pipeline::new(crossing, side, chunk_rows)?;
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
    Ok(Side { keys, values, rows: side.rows, ..Side::default() })
}

/// Brings a side's keys to the device, and has a stage read them: what a method takes by itself.
pub(crate) fn survey(crossing: &TransferContext<'_>, side: &HostSide) -> Result<()> {
    let session = crossing.session;
    let found = session.zeroed(4 * 8, "the range of the keys")?;
    let chunk_rows = crossing.chunk_rows(side, 0, session.left() / 2);
    let mut pipeline = Pipeline::new(crossing, side, chunk_rows)?;
    while let Some(chunk) = pipeline.next()? {
        let Side { keys, rows, .. } = chunk.side;
        let survey = abi::Survey { keys: keys.address, rows, found: found.address };
        session.run(Stage::Survey(survey))?;
        pipeline.done(chunk)?;
        pipeline.ahead()?;
    }
    Ok(())
}

//! Reads the probe side while the device joins it, chunk by chunk.
//!
//! ```text
//!  reader ─► chunk ─► key words ─► device ─► … ─► matches of the chunk ─► rows
//!               └── waits in host memory until its matches have been written ──┘
//! ```
//!
//! Positions that come back are relative to their chunk, because the number of rows is not known in advance.
//! Until the matches of the first chunk have come back, all chunks are kept: if the device fails before, the
//! CPU joins them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::datatypes::ArrowNativeType;

use super::keys::Keys;
use crate::algorithm::read_to_end;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::input::{BufferedSource, Chunk, ChunkLimits};
use crate::key::KeyPlan;
use crate::matches::{Matcher, Unit};
use crate::materialise::Columns;
use crate::memory::{Plain, Refused};
use crate::options::Side;
use crate::output::SharedSink;
use crate::partition::{RowId, key_words};
use crate::transfer::{ChunkSource, HostSide, Read, streamed_chunk};
use crate::word::KeyWord;
use crate::word::Width;

/// A chunk of the probe side, or all of it, with what its matches need.
pub(super) struct ProbeChunk {
    pub(super) chunk: Chunk,
    pub(super) keys: Keys,
    pub(super) unit: Unit,
    /// Counts the chunks in memory.
    _alive: Arc<()>,
}

/// A probe side that a device joins, and the chunks of it that were read. It outlives the attempt to join on
/// the device.
pub(super) struct Probe {
    source: BufferedSource,
    chunks: RefCell<InProgress>,
}

/// The chunks that were read and not completely joined.
#[derive(Default)]
struct InProgress {
    /// The chunks whose matches the device has not found yet, in their order.
    waiting: VecDeque<Arc<ProbeChunk>>,
    /// The chunks before those, until the matches of the first chunk have been written.
    kept: Vec<Arc<ProbeChunk>>,
    /// Whether the matches of the first chunk have been written.
    came_back: bool,
    /// The whole side, if it is held.
    whole: Option<Arc<ProbeChunk>>,
    /// Whether the reader failed.
    failed: bool,
}

impl Probe {
    pub(super) fn new(source: BufferedSource) -> Probe {
        Probe { source, chunks: RefCell::default() }
    }

    /// Returns the chunk whose matches the device finds now: the first that waits, or the whole side.
    pub(super) fn current(&self) -> Result<Arc<ProbeChunk>> {
        let chunks = self.chunks.borrow();
        let current = chunks.whole.as_ref().or(chunks.waiting.front());
        current.cloned().ok_or_else(|| Error::internal("no chunk is being joined"))
    }

    /// Returns the whole side, if it is held.
    pub(super) fn whole(&self) -> Option<Arc<ProbeChunk>> {
        self.chunks.borrow().whole.clone()
    }

    /// Records that the device has found all matches of the current chunk. Returns that chunk.
    pub(super) fn found(&self) -> Result<Arc<ProbeChunk>> {
        let current = self.current()?;
        let mut chunks = self.chunks.borrow_mut();
        chunks.waiting.pop_front();
        if !chunks.came_back {
            chunks.kept.push(Arc::clone(&current));
        }
        Ok(current)
    }

    /// Records that all rows of a chunk have been written.
    pub(super) fn written(&self) {
        let mut chunks = self.chunks.borrow_mut();
        chunks.came_back = true;
        chunks.kept.clear();
    }

    /// Ends the attempt. Returns the side with the rows that were not joined, and whether another plan can
    /// join it: it can unless the reader failed or rows are gone.
    pub(super) fn end(self) -> (BufferedSource, bool) {
        let (source, chunks) = (self.source, self.chunks.into_inner());
        source.put_back(chunks.kept.iter().chain(&chunks.waiting).map(|chunk| &chunk.chunk));
        (source, !chunks.failed && !chunks.came_back)
    }
}

/// Reads the chunks of a probe side, and prepares them. See the [module](self).
pub(super) struct ProbeReader<'a, K> {
    pub(super) cx: &'a Context<'a>,
    pub(super) keys: &'a KeyPlan,
    pub(super) matcher: &'a Matcher<'a>,
    pub(super) sink: &'a SharedSink<'a>,
    pub(super) side: Side,
    pub(super) probe: &'a Probe,
    pub(super) word: Width,
    /// Whether key columns may be staged from where they lie.
    pub(super) in_place: bool,
    /// The memory that must stay free while the whole side is read.
    pub(super) needed: u64,
    /// The memory that must stay free for output when a chunk is read ahead.
    pub(super) spare: u64,
    /// One reference per chunk in memory, besides this one.
    pub(super) alive: Arc<()>,
    pub(super) key_word: PhantomData<K>,
}

impl<K: KeyWord + RowId + Plain + ArrowNativeType> ProbeReader<'_, K> {
    /// Reads and prepares a chunk. Returns `None` at the end of the side.
    fn read(&self, most_rows: u64, spare: u64) -> Result<Option<ProbeChunk>> {
        let bytes = match self.cx.budget.limit() {
            Some(_) => {
                (self.cx.budget.left() / streamed_chunk::SHARE).clamp(1, streamed_chunk::BYTES)
            }
            None => streamed_chunk::BYTES,
        };
        let limits = ChunkLimits {
            rows: most_rows,
            bytes,
            spare,
            free: self.spare,
            one_batch: self.sink.prompt,
        };
        let source = &self.probe.source;
        let read = source.chunk(limits, &self.cx.workers);
        let Some(chunk) = read.inspect_err(|error| self.note(error))? else {
            return Ok(None);
        };
        let columns = Columns::of_chunk(&chunk.rows, chunk.first_row);
        match self.prepare(&chunk, columns) {
            Ok((keys, unit)) => {
                Ok(Some(ProbeChunk { chunk, keys, unit, _alive: Arc::clone(&self.alive) }))
            }
            Err(error) => {
                source.put_back(std::iter::once(&chunk));
                Err(error)
            }
        }
    }

    /// Computes the key words of a chunk, unless they can be staged from where they lie.
    fn prepare(&self, chunk: &Chunk, columns: Columns) -> Result<(Keys, Unit)> {
        let (cx, side, rows) = (self.cx, self.side, &chunk.rows);
        let in_place = match self.in_place {
            true => Keys::in_place::<K>(cx, self.keys, side, rows, None)?,
            false => None,
        };
        let keys = match in_place {
            Some(keys) => keys,
            None => Keys::of(cx, key_words::<K>(cx, self.keys, side, rows)?, self.word, None)?,
        };
        let unit = self.matcher.unit(side, columns, rows.batches(), self.matcher.roles.probe)?;
        Ok((keys, unit))
    }

    /// Records an error of the reader. If memory was refused, the reader can still continue.
    fn note(&self, error: &Error) {
        let refused = matches!(error, Error::MemoryLimit { .. });
        self.probe.chunks.borrow_mut().failed |= !refused;
    }

    /// Puts the chunks back that the device has not joined.
    fn put_back(&self) {
        let waiting = std::mem::take(&mut self.probe.chunks.borrow_mut().waiting);
        self.probe.source.put_back(waiting.iter().map(|chunk| &chunk.chunk));
    }
}

impl<K: KeyWord + RowId + Plain + ArrowNativeType> ChunkSource for ProbeReader<'_, K> {
    fn next(&self, most_rows: u64) -> Result<Read> {
        let others = Arc::strong_count(&self.alive) > 1;
        if others && self.sink.prompt {
            return Ok(Read::Later);
        }
        let SharedSink { flow, budget, cancelled, .. } = self.sink;
        if !budget.unlimited() && budget.left() < self.spare {
            // The reader may take memory of the same budget, and fails if it is refused. So it is asked after
            // other chunks have ended, or after the consumer has taken the output.
            if others {
                return Ok(Read::Later);
            }
            flow.drained(budget, cancelled)?;
        }
        let refused = |error: &Error| matches!(error, Error::MemoryLimit { .. });
        let spare = if others { self.spare } else { 0 };
        let read = match self.cx.watch.time("read probe side", || self.read(most_rows, spare)) {
            Err(error) if refused(&error) && others => return Ok(Read::Later),
            Err(error) if refused(&error) && !self.cx.budget.unlimited() => {
                let _active = flow.active(budget);
                flow.patiently((budget, Refused::Fails), cancelled, || self.read(most_rows, 0))?
            }
            read => read?,
        };
        let Some(chunk) = read else { return Ok(Read::End) };
        let (keys, rows) = (chunk.keys.side().keys, chunk.keys.rows);
        self.probe.chunks.borrow_mut().waiting.push_back(Arc::new(chunk));
        Ok(Read::Chunk { keys, rows })
    }

    fn rewind(&self) {
        self.put_back();
    }

    fn hold(&self) -> Result<HostSide> {
        self.put_back();
        let cx = self.cx;
        let read = read_to_end(cx, &self.probe.source, self.needed);
        let rows = read.inspect_err(|error| self.note(error))?;
        if self.word == Width::W32 && rows.rows() > u64::from(u32::MAX) {
            return Err(Error::TooManyRows { rows: rows.rows(), most: u64::from(u32::MAX) });
        }
        let gathered = self.sink.plan.gathered(self.side);
        let columns = Columns::of_relation(cx, &rows, &gathered)?;
        let chunk = Chunk { rows, first_row: 0 };
        let (keys, unit) = cx.watch.time("key words", || self.prepare(&chunk, columns))?;
        let side = keys.side();
        let whole = ProbeChunk { chunk, keys, unit, _alive: Arc::clone(&self.alive) };
        self.probe.chunks.borrow_mut().whole = Some(Arc::new(whole));
        Ok(side)
    }
}

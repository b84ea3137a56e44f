//! Reads the probe side while the device joins it, chunk by chunk.
//!
//! ```text
//!  reader ─► chunk ─► key words ─► device ─► … ─► matches of the chunk ─► rows
//!               └── waits in host memory until its matches have been written ──┘
//! ```
//!
//! Positions that come back are relative to their chunk, because the number of rows is not known in advance.
//! A chunk is kept until all its rows have been written. If the device fails before that, the CPU joins the
//! chunk and the rest of the side.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
use crate::output::{OutputPoint, SharedSink};
use crate::partition::{RowId, key_words};
use crate::plan::KeySource;
use crate::table::Flags;
use crate::transfer::{ChunkSource, HostSide, Read};
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
    /// The chunks before those, whose rows have not been written yet.
    found: VecDeque<Arc<ProbeChunk>>,
    /// The output after the last chunk whose rows have been written. `None` before the first.
    written: Option<Written>,
    /// The total that the device has counted so far, and the total at the end of the last finished chunk.
    counted: (u64, u64),
    /// Whether the device has returned the flags of all build rows, if it sets them.
    flags_returned: bool,
    /// The flags of the build rows, after the device failed.
    matched: Option<Flags>,
    /// The whole side, if it is held.
    whole: Option<Arc<ProbeChunk>>,
    /// Whether the reader failed.
    failed: bool,
}

/// The state of the output at the start of the join, or at the end of a chunk. At this point, the output has all rows
/// of this chunk and of the chunks before it, and no others.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) output: OutputPoint,
    pub(crate) candidates: u64,
}

impl Written {
    pub(crate) fn now(sink: &SharedSink<'_>, candidates: &AtomicU64) -> Written {
        Written { output: sink.point(), candidates: candidates.load(Ordering::Relaxed) }
    }
}

/// The rows of a probe side that the device has not joined, after it failed.
pub(crate) enum Rest {
    /// All rows of the side.
    All,
    /// The rows after those whose output has been written.
    After {
        written: Written,
        /// The flags of the build rows that have a match so far, if they are known.
        matched: Option<Flags>,
    },
    /// Nobody can join the rest: the reader failed.
    Lost,
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
        chunks.found.push_back(Arc::clone(&current));
        Ok(current)
    }

    /// Records the number of rows that the device has counted so far.
    pub(super) fn counted(&self, rows: u64) {
        self.chunks.borrow_mut().counted.0 = rows;
    }

    /// Returns the rows that the device has counted since the last call.
    pub(super) fn newly_counted(&self) -> u64 {
        let mut chunks = self.chunks.borrow_mut();
        let (all, before) = chunks.counted;
        chunks.counted.1 = all;
        all.saturating_sub(before)
    }

    /// Records whether the device has returned the flags of all build rows.
    pub(super) fn flags_returned(&self, all: bool) {
        self.chunks.borrow_mut().flags_returned = all;
    }

    /// Keeps the flags of the build rows after the device failed. `by_device` says whether the device sets
    /// them. Then they are complete only if it has returned them.
    pub(super) fn keep_flags(&self, matched: Option<Flags>, by_device: bool) {
        let mut chunks = self.chunks.borrow_mut();
        chunks.matched = matched.filter(|_| !by_device || chunks.flags_returned);
    }

    /// Records that all rows of the first chunk that was [found](Probe::found) have been written.
    pub(super) fn written(&self, written: Written) {
        let mut chunks = self.chunks.borrow_mut();
        chunks.found.pop_front();
        chunks.written = Some(written);
    }

    /// Returns whether all rows of a chunk have been written.
    pub(super) fn some_written(&self) -> bool {
        self.chunks.borrow().written.is_some()
    }

    /// Ends the attempt. Returns the side with the rows that were not joined, and says which these are.
    pub(super) fn end(self) -> (BufferedSource, Rest) {
        let (source, chunks) = (self.source, self.chunks.into_inner());
        source.put_back(chunks.found.iter().chain(&chunks.waiting).map(|chunk| &chunk.chunk));
        let rest = match chunks.written {
            _ if chunks.failed => Rest::Lost,
            Some(written) => Rest::After { written, matched: chunks.matched },
            None => Rest::All,
        };
        (source, rest)
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
    /// Where key words come from, by the plan. [`KeySource::of_chunk`] decides for each chunk.
    pub(super) key_source: KeySource,
    /// The maximum bytes of a chunk's rows, as the plan says at the start of the stream.
    pub(super) chunk_bytes: u64,
    /// The memory that must stay free while the whole side is read.
    pub(super) needed: u64,
    /// The memory that must stay free for output when a chunk is read ahead.
    pub(super) spare: u64,
    /// One reference per chunk in memory, besides this one.
    pub(super) alive: Arc<()>,
    pub(super) key_word: PhantomData<K>,
}

impl<K: KeyWord + RowId + Plain + ArrowNativeType> ProbeReader<'_, K> {
    /// Reads and prepares a chunk. Returns `None` at the end of the side. Sets `rows` to the rows of the
    /// chunk, also if there is no memory to prepare them.
    fn read(&self, most_rows: u64, spare: u64, rows: &Cell<u64>) -> Result<Option<ProbeChunk>> {
        rows.set(0);
        let limits = ChunkLimits {
            rows: most_rows,
            bytes: self.chunk_bytes,
            held: u64::MAX,
            spare,
            free: self.spare,
            one_batch: self.sink.prompt,
        };
        let source = &self.probe.source;
        let read = source.chunk(limits, &self.cx.workers);
        let Some(chunk) = read.inspect_err(|error| self.note(error))? else {
            return Ok(None);
        };
        rows.set(chunk.rows.rows());
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

    /// Reads and prepares a chunk while memory is scarce and no other chunk is in memory. Waits for memory that
    /// may still come free. If there is none, takes half of the rows.
    fn read_less(&self, mut most_rows: u64) -> Result<Option<ProbeChunk>> {
        let SharedSink { flow, budget, cancelled, .. } = self.sink;
        let _active = flow.active(budget);
        let rows = Cell::new(0);
        loop {
            let read = || self.read(most_rows, 0, &rows);
            match flow.patiently((budget, Refused::Fails), cancelled, read) {
                Err(Error::MemoryLimit { .. }) if rows.get() > 1 => most_rows = rows.get() / 2,
                read => return read,
            }
        }
    }

    /// Prepares the key words of a chunk, and its columns. If memory is refused, the join may try again with fewer rows.
    fn prepare(&self, chunk: &Chunk, columns: Columns) -> Result<(Keys, Unit)> {
        let cx = &Context { workers: self.cx.workers.attempt(), ..self.cx.clone() };
        let (side, rows) = (self.side, &chunk.rows);
        let has_nulls = self.keys.nulls_in_column(side, rows.batches())? == Some(true);
        let keys = match self.key_source.of_chunk(has_nulls) {
            KeySource::Column => Keys::in_place::<K>(cx, self.keys, side, rows, None)?,
            _ => Keys::of(cx, key_words::<K>(cx, self.keys, side, rows)?, self.word, None)?,
        };
        let unit = self.matcher.unit(side, columns, rows.batches(), self.matcher.flags().probe)?;
        Ok((keys, unit))
    }

    /// Records that the reader failed. Does not record errors after which the CPU can continue with the reader, for
    /// example that memory for its rows was refused.
    fn note(&self, error: &Error) {
        self.probe.chunks.borrow_mut().failed |= !error.cpu_may_help();
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
        let read = || self.read(most_rows, spare, &Cell::new(0));
        let read = match self.cx.watch.time("read probe side", read) {
            Err(error) if refused(&error) && others => return Ok(Read::Later),
            Err(error) if refused(&error) && !budget.unlimited() => self.read_less(most_rows)?,
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
        let gathered = self.sink.output_plan.gathered(self.side);
        let columns = Columns::of_relation(cx, &rows, &gathered)?;
        let chunk = Chunk { rows, first_row: 0 };
        let (keys, unit) = cx.watch.time("key words", || self.prepare(&chunk, columns))?;
        let side = keys.side();
        let whole = ProbeChunk { chunk, keys, unit, _alive: Arc::clone(&self.alive) };
        self.probe.chunks.borrow_mut().whole = Some(Arc::new(whole));
        Ok(side)
    }
}

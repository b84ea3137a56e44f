//! Receives the matches from the device and turns them into rows.
//!
//! Workers resolve the matches of one block while the device finds those of the next.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::util::bit_chunk_iterator::UnalignedBitChunk;
use arrow::util::bit_iterator::BitIndexIterator;

use super::super::wanted::{InOrderBlock, OutputBlock, Receiver, Which};
use super::chunk::{Probe, ProbeChunk, Written};
use crate::algorithm::emit_all_by_flag;
use crate::context::Context;
use crate::device::{Event, Session, View};
use crate::error::{Error, Result};
use crate::matches::{Matcher, Unit};
use crate::memory::Buffer;
use crate::output::{Emitter, SharedSink};
use crate::plan::order_pays;
use crate::table::Flags;
use crate::table::Pairs;
use crate::transfer::{Arrived, BlockColumn, Drain};

/// Receives results from the device: pairs, results in order, counts and flags.
pub(super) struct ResultReceiver<'a> {
    pub(super) resolver: Resolver<'a>,
    pub(super) probe: &'a Probe,
    pub(super) drain: Drain<BlockTag>,
    /// Whether results in order take fewer bytes than pairs, judged by the last chunk or block.
    pub(super) order_pays: Cell<bool>,
}

/// The chunk that a block belongs to, and what the block contains. It travels with the block.
#[derive(Clone)]
pub(super) struct BlockTag {
    chunk: Arc<ProbeChunk>,
    content: Content,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    /// Positions or inlined values of build rows, and positions of probe rows.
    Pairs,
    /// One bit per probe row, which says whether the row has a match, and the build row of each match; or only the
    /// bits. The first probe row has this position.
    InOrder(u64),
    /// The number of rows that the device has counted so far.
    Counted,
    /// Nothing: all matches of the chunk have arrived.
    End,
}

impl ResultReceiver<'_> {
    /// Resolves the matches that are still being copied.
    pub(super) fn finish(&mut self, session: &Session<'_>) -> Result<()> {
        let (resolver, probe, order_pays) = (&self.resolver, self.probe, &self.order_pays);
        let take = Taking { resolver, probe, order_pays };
        self.drain.take_all(session, &mut |arrived| take.take(arrived))
    }

    fn send(
        &mut self,
        session: &Session<'_>,
        columns: &[BlockColumn],
        rows: u64,
        content: Content,
    ) -> Result<Option<Event>> {
        let sent = BlockTag { chunk: self.probe.current()?, content };
        let (resolver, probe, order_pays) = (&self.resolver, self.probe, &self.order_pays);
        let take = Taking { resolver, probe, order_pays };
        self.drain.send(session, columns, rows, sent, &mut |arrived| take.take(arrived))
    }

    fn word(&self, view: View) -> BlockColumn {
        BlockColumn { view, bits: 8 * self.resolver.size as u64 }
    }
}

impl Receiver for ResultReceiver<'_> {
    fn block(&mut self, session: &Session<'_>, block: OutputBlock) -> Result<Option<Event>> {
        let columns = [self.word(block.build), self.word(block.probe)];
        self.send(session, &columns, block.rows, Content::Pairs)
    }

    fn in_order(&mut self, session: &Session<'_>, block: InOrderBlock) -> Result<Option<Event>> {
        let found = BlockColumn { view: block.found, bits: 1 };
        let content = Content::InOrder(block.first);
        match block.build {
            Some(build) => {
                let columns = [found, self.word(build)];
                self.send(session, &columns, block.rows, content)
            }
            None => self.send(session, &[found], block.rows, content),
        }
    }

    fn counted(&mut self, session: &Session<'_>, rows: View) -> Result<Option<Event>> {
        if self.probe.whole().is_some() {
            // If the device fails, a held side is counted again from its start.
            return Ok(None);
        }
        let rows = BlockColumn { view: rows, bits: 64 };
        self.send(session, &[rows], 1, Content::Counted)
    }

    fn most_rows_match(&self) -> bool {
        self.order_pays.get()
    }

    fn flags(&mut self, which: Which, first: u64, flags: &[u8]) -> Result<()> {
        let set = |to: &Flags, row_of: Option<&Buffer<u64>>| {
            let matched = (first..).zip(flags).filter(|(_, byte)| **byte != 0);
            matched.for_each(|(at, _)| to.set(row_of.map_or(at, |row_of| row_of[at as usize])));
        };
        match which {
            Which::Build => {
                if let Some(to) = &self.resolver.build.flags {
                    set(to, self.resolver.build_row_of);
                }
                // Flags come in the order of the rows.
                let end = first + flags.len() as u64;
                self.probe.flags_returned(end == self.resolver.build_keys);
            }
            Which::Probe => {
                let chunk = self.probe.current()?;
                if let Some(to) = &chunk.unit.flags {
                    set(to, chunk.keys.row_of.as_ref());
                }
            }
        }
        Ok(())
    }

    fn end_chunk(&mut self) -> Result<()> {
        let chunk = self.probe.found()?;
        // Flags that were returned earlier do not include the matches of this chunk.
        self.probe.flags_returned(self.resolver.build_keys == 0);
        self.drain.mark(BlockTag { chunk, content: Content::End });
        Ok(())
    }

    fn meanwhile(&mut self, session: &Session<'_>) -> Result<()> {
        self.finish(session)
    }

    fn more_follows(&self) -> bool {
        false
    }
}

/// Takes blocks that have arrived.
struct Taking<'r, 'a> {
    resolver: &'r Resolver<'a>,
    probe: &'r Probe,
    order_pays: &'r Cell<bool>,
}

impl Taking<'_, '_> {
    fn take(&self, arrived: Arrived<'_, BlockTag>) -> Result<()> {
        let resolver = self.resolver;
        resolver.cx.workers.check()?;
        let BlockTag { chunk, content } = arrived.tag;
        match *content {
            Content::Pairs => resolver.resolve_pairs(chunk, arrived.rows, arrived.columns),
            Content::InOrder(first) => {
                let (first, rows) = (first + arrived.first, arrived.rows);
                resolver.resolve_in_order(chunk, first, rows, arrived.columns)?;
                if self.probe.whole().is_some() {
                    // A held side is one chunk, and no end mark follows it. So `order_pays` is updated after
                    // each block.
                    let matched = resolver.matched.swap(0, Ordering::Relaxed);
                    self.order_pays.set(order_pays(matched, rows as u64));
                }
                Ok(())
            }
            Content::Counted => {
                self.probe.counted(arrived.columns.first().map_or(0, |rows| word_of::<8>(rows)));
                Ok(())
            }
            Content::End => {
                let matched = resolver.matched.swap(0, Ordering::Relaxed);
                self.order_pays.set(order_pays(matched, chunk.keys.rows));
                resolver.count(self.probe.newly_counted())?;
                resolver.end(chunk)?;
                self.probe.written(Written::now(resolver.sink, resolver.matcher.candidates));
                Ok(())
            }
        }
    }
}

/// Resolves matches.
pub(super) struct Resolver<'a> {
    pub(super) cx: &'a Context<'a>,
    pub(super) matcher: &'a Matcher<'a>,
    pub(super) build: &'a Unit,
    pub(super) build_row_of: Option<&'a Buffer<u64>>,
    /// The number of build rows that the device has.
    pub(super) build_keys: u64,
    pub(super) sink: &'a SharedSink<'a>,
    pub(super) cap: usize,
    /// Bytes per position, or per inlined value.
    pub(super) size: usize,
    /// Whether inlined values stand in place of the positions of build rows.
    pub(super) inlined: bool,
    /// The number of matches of the current chunk that were resolved.
    pub(super) matched: AtomicU64,
}

impl Resolver<'_> {
    /// Resolves pairs. The columns are the positions or inlined values of the build rows, and the positions
    /// of the probe rows.
    fn resolve_pairs(&self, chunk: &ProbeChunk, rows: usize, columns: &[&[u8]]) -> Result<()> {
        let &[build, probe] = columns else {
            return Err(Error::internal("pairs have two columns"));
        };
        let row_of = chunk.keys.row_of.as_ref();
        self.matched.fetch_add(rows as u64, Ordering::Relaxed);
        let tasks = rows.div_ceil(self.cap);
        self.cx.workers.for_rows(rows).each(tasks, |task, worker| {
            let range = task * self.cap..((task + 1) * self.cap).min(rows);
            let bytes = range.start * self.size..range.end * self.size;
            let mut pairs = Pairs::default();
            self.words(&build[bytes.clone()], &mut pairs.build);
            self.words(&probe[bytes], &mut pairs.probe);
            if let Some(row_of) = row_of {
                pairs.probe.iter_mut().for_each(|at| *at = row_of[*at as usize]);
            }
            let mut emitter = Emitter::new(self.sink, worker);
            self.resolve(&chunk.unit, &mut pairs, &mut emitter)?;
            emitter.finish()
        })
    }

    /// Resolves matches in the order of the probe rows, which start at position `first`. The columns are one
    /// bit per probe row, and the positions or inlined values of the build rows, if they are wanted.
    fn resolve_in_order(
        &self,
        chunk: &ProbeChunk,
        first: u64,
        rows: usize,
        columns: &[&[u8]],
    ) -> Result<()> {
        let Some(&found) = columns.first() else {
            return Err(Error::internal("a block in order has bits"));
        };
        let tasks = self.tasks(chunk, first, rows);
        self.cx.workers.for_rows(rows).each(tasks.len(), |task, worker| {
            let mut emitter = Emitter::new(self.sink, worker);
            let mut pairs = Pairs::default();
            let mut matched = 0;
            for piece in &tasks[task] {
                let (at, len) =
                    ((piece.start - first) as usize, (piece.end - piece.start) as usize);
                let bits = Bits { bytes: found, at, len };
                match columns.get(1) {
                    Some(build) => {
                        let build = &build[at * self.size..(at + len) * self.size];
                        self.pairs_of(chunk, piece.start, &bits, build, &mut pairs);
                        matched += pairs.len();
                        self.resolve(&chunk.unit, &mut pairs, &mut emitter)?;
                    }
                    None => self.flag(chunk, piece.start, &bits),
                }
            }
            self.matched.fetch_add(matched as u64, Ordering::Relaxed);
            emitter.finish()
        })
    }

    /// Returns the work of each task: consecutive positions, cut where a batch of the probe side ends. So the
    /// columns of a run can be slices.
    fn tasks(&self, chunk: &ProbeChunk, first: u64, rows: usize) -> Vec<Vec<Range<u64>>> {
        let (cap, end) = (self.cap as u64, first + rows as u64);
        let starts = match chunk.keys.row_of {
            // Rows that cannot match have no position, so a position does not tell the batch of its row.
            Some(_) => &[][..],
            None => chunk.chunk.rows.places().starts(),
        };
        let mut next = starts.partition_point(|&start| start <= first);
        let (mut tasks, mut task, mut of_task) = (Vec::new(), Vec::new(), 0);
        let mut at = first;
        while at < end {
            let batch_end = starts.get(next).copied().unwrap_or(end).min(end);
            let to = batch_end.min(at + cap - of_task);
            if to > at {
                task.push(at..to);
                of_task += to - at;
                at = to;
            }
            if at == batch_end {
                next += 1;
            }
            // If a task is at least half full at the end of a batch, it ends there. So the next task starts
            // at the start of a batch.
            if of_task >= cap || (at == batch_end && of_task >= cap / 2) {
                tasks.push(std::mem::take(&mut task));
                of_task = 0;
            }
        }
        if !task.is_empty() {
            tasks.push(task);
        }
        tasks
    }

    /// Collects the matches of consecutive positions, which start at `first`.
    fn pairs_of(
        &self,
        chunk: &ProbeChunk,
        first: u64,
        bits: &Bits<'_>,
        build: &[u8],
        pairs: &mut Pairs<u64>,
    ) {
        let row_of = chunk.keys.row_of.as_ref();
        if row_of.is_none() && bits.all() {
            self.words(build, &mut pairs.build);
            pairs.run = Some(first);
            return;
        }
        for i in bits.ones() {
            let at = first + i as u64;
            let probe = row_of.map_or(at, |row_of| row_of[at as usize]);
            pairs.push(self.word_at(build, i), probe);
        }
    }

    /// Flags the rows of consecutive positions, which start at `first`, whose bit is set.
    fn flag(&self, chunk: &ProbeChunk, first: u64, bits: &Bits<'_>) {
        let Some(flags) = &chunk.unit.flags else { return };
        let row_of = chunk.keys.row_of.as_ref();
        for i in bits.ones() {
            let at = first + i as u64;
            flags.set(row_of.map_or(at, |row_of| row_of[at as usize]));
        }
    }

    /// Verifies pairs, and writes the matches among them.
    fn resolve(
        &self,
        probe: &Unit,
        pairs: &mut Pairs<u64>,
        emitter: &mut Emitter<'_>,
    ) -> Result<()> {
        if self.inlined {
            return self.matcher.resolve_inlined(self.build, probe, pairs, emitter);
        }
        if let Some(row_of) = self.build_row_of {
            pairs.build.iter_mut().for_each(|at| *at = row_of[*at as usize]);
        }
        self.matcher.resolve(self.build, probe, pairs, emitter)
    }

    /// Adds rows that the device has counted to the output.
    pub(super) fn count(&self, rows: u64) -> Result<()> {
        self.matcher.candidates.fetch_add(rows, Ordering::Relaxed);
        let mut emitter = Emitter::new(self.sink, 0);
        emitter.count(rows);
        emitter.finish()
    }

    /// Writes the rows of a chunk that the join type returns by their flag. All matches were resolved before.
    pub(super) fn end(&self, chunk: &ProbeChunk) -> Result<()> {
        let with = (&self.cx.workers, self.cap);
        emit_all_by_flag(with, self.matcher, &chunk.unit, self.matcher.roles.probe, self.sink)?;
        self.cx.counters.done.fetch_add(chunk.chunk.rows.rows(), Ordering::Relaxed);
        Ok(())
    }

    /// Appends words to `to`.
    fn words(&self, bytes: &[u8], to: &mut Vec<u64>) {
        match self.size {
            4 => to.extend(bytes.chunks_exact(4).map(word_of::<4>)),
            _ => to.extend(bytes.chunks_exact(8).map(word_of::<8>)),
        }
    }

    fn word_at(&self, bytes: &[u8], i: usize) -> u64 {
        match self.size {
            4 => word_of::<4>(&bytes[4 * i..4 * i + 4]),
            _ => word_of::<8>(&bytes[8 * i..8 * i + 8]),
        }
    }
}

/// Some consecutive bits, the lowest bit of a byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    len: usize,
}

impl Bits<'_> {
    fn all(&self) -> bool {
        UnalignedBitChunk::new(self.bytes, self.at, self.len).count_ones() == self.len
    }

    /// Returns the numbers of the bits that are set.
    fn ones(&self) -> impl Iterator<Item = usize> {
        BitIndexIterator::new(self.bytes, self.at, self.len)
    }
}

/// Reads a little-endian number of `N` bytes.
fn word_of<const N: usize>(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..N].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

//! The rows of Parquet files, for many workers at the same time.
//!
//! A worker opens a row group, decodes one batch, and leaves the open decoder to the worker that calls next.
//! So there are at most as many decoders as calls at the same time. When no row group is left, the worker
//! divides the one with the most rows left: the decoder of the second half skips the pages of the first.
//!
//! ```text
//!  row groups   0: ████████ decoded   1: ████░░░░│▓▓░░ two workers   2: ████▓░░░ a worker
//! ```

use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use strait::Error;

use super::parquet::{Chunks, Footer, ParquetReader};
use crate::memory::Memory;
use crate::panics::caught;

/// Under a memory limit, the decoders of a table may take one part in this many of it.
const DECODERS_SHARE: u64 = 8;

/// A call that waits for another one checks this often whether the join was cancelled.
const WAKES: Duration = Duration::from_millis(10);

/// A Parquet file.
pub(super) struct ParquetFile<'a> {
    pub(super) path: &'a Path,
    pub(super) footer: &'a Footer,
}

/// The rows of a row group that are to be read: those from `next` to `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// The index of the table's file.
    pub(super) file: usize,
    pub(super) group: usize,
    next: u64,
    end: u64,
}

/// All rows that are to be read.
pub(super) struct RowGroups {
    state: Mutex<State>,
    /// Notified when a call ends.
    changed: Condvar,
    /// The wanted columns, in the order of the files.
    columns: Vec<usize>,
    memory: Memory,
}

struct State {
    /// The parts that no decoder reads. The next one is last.
    waiting: Vec<Part>,
    open: Vec<Open>,
    /// The largest number of open parts, and the largest value that it may have. A refusal of memory
    /// decreases both.
    most: usize,
    ceiling: usize,
    opened: u64,
}

/// A part that a decoder reads.
struct Open {
    id: u64,
    part: Part,
    /// The number of rows per batch.
    batch: u64,
    /// Whether another decoder can read the second half.
    is_divisible: bool,
    /// Whether a call decodes a batch.
    is_busy: bool,
    /// The decoder, unless a call uses it. The first call creates it.
    reader: Option<ParquetReader>,
}

/// A batch that a call decodes.
struct Task {
    id: u64,
    /// The file, the row group, and the rows of the batch.
    rows: Part,
    reader: Option<ParquetReader>,
}

/// A failure, and the part that could not be read.
pub(super) type Failure = (Part, ArrowError);

impl RowGroups {
    /// Prepares to read the given columns on up to `threads` threads.
    pub(super) fn new(
        groups: impl Iterator<Item = (usize, usize, u64)>,
        columns: &[usize],
        threads: usize,
        memory: &Memory,
    ) -> RowGroups {
        let part = |(file, group, end)| Part { file, group, next: 0, end };
        let mut waiting: Vec<Part> = groups.map(part).filter(|part| part.end > 0).collect();
        waiting.reverse();
        // Under a limit, the first batch shows how much memory a decoder needs.
        let most = if memory.limit().is_some() { 1 } else { threads };
        let state = State { waiting, open: Vec::new(), most, ceiling: threads, opened: 0 };
        RowGroups {
            state: Mutex::new(state),
            changed: Condvar::new(),
            columns: columns.to_vec(),
            memory: memory.clone(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decodes a batch, and returns it with the index of its file. Returns `None` if there are no more.
    pub(super) fn next<'f>(
        &self,
        file: impl Fn(usize) -> Option<ParquetFile<'f>>,
        cancelled: impl Fn() -> bool,
    ) -> Result<Option<(usize, RecordBatch)>, Failure> {
        while let Some(mut task) = self.take(&file, &cancelled) {
            let Some(ParquetFile { path, footer }) = file(task.rows.file) else { break };
            let wanted = usize::try_from(task.rows.end - task.rows.next).unwrap_or(usize::MAX);
            let mut decode = || {
                let reader = match &mut task.reader {
                    Some(reader) => reader,
                    closed => {
                        let chunks = Chunks::new(path, footer, task.rows.group, &self.columns);
                        closed.insert(chunks.read(task.rows.next, &self.memory)?)
                    }
                };
                reader.read(wanted)
            };
            let batch = caught(&mut decode).unwrap_or_else(|why| {
                task.reader = None;
                Err(ArrowError::ParquetError(why))
            });
            let rows = task.rows;
            match batch {
                Ok(None) => self.end(task.id),
                Ok(Some(batch)) => {
                    self.put_back(task);
                    return Ok(Some((rows.file, batch)));
                }
                Err(error) => match Error::from_arrow(error) {
                    refused @ Error::MemoryLimit { .. } => {
                        if !self.postpone(task) {
                            return Err((rows, refused.into()));
                        }
                    }
                    error => {
                        self.end(task.id);
                        return Err((rows, error.into()));
                    }
                },
            }
        }
        Ok(None)
    }

    /// Chooses the rows that a call decodes. Returns `None` if all rows are taken, or if the join was
    /// cancelled.
    fn take<'f>(
        &self,
        file: impl Fn(usize) -> Option<ParquetFile<'f>>,
        cancelled: impl Fn() -> bool,
    ) -> Option<Task> {
        let mut state = self.state();
        loop {
            if cancelled() {
                return None;
            }
            if let Some(open) = state.open.iter_mut().find(|open| !open.is_busy) {
                return Some(open.task());
            }
            if state.open.len() < state.most
                && let Some(part) = state.waiting.pop().or_else(|| state.divide())
            {
                let ParquetFile { path, footer } = file(part.file)?;
                let chunks = Chunks::new(path, footer, part.group, &self.columns);
                let (batch, is_divisible) = (chunks.batch_rows(&self.memory), chunks.can_skip());
                let (id, batch) = (state.opened, batch.max(1) as u64);
                state.opened += 1;
                let (is_busy, reader) = (false, None);
                state.open.push(Open { id, part, batch, is_divisible, is_busy, reader });
                continue;
            }
            // A call that is refused memory leaves its rows to other calls.
            let is_final = self.memory.limit().is_none() || state.open.is_empty();
            let is_taken = |open: &Open| open.part.next >= open.part.end;
            if is_final && state.waiting.is_empty() && state.open.iter().all(is_taken) {
                return None;
            }
            let waited = self.changed.wait_timeout(state, WAKES);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Leaves the decoder to the next call.
    fn put_back(&self, task: Task) {
        let mut state = self.state();
        if let (Some(limit), Some(reader)) = (self.memory.limit(), &task.reader) {
            let most = limit / DECODERS_SHARE / reader.most_memory().max(1);
            state.most = usize::try_from(most).unwrap_or(usize::MAX).min(state.ceiling).max(1);
        }
        let Some(at) = state.open.iter().position(|open| open.id == task.id) else { return };
        let open = &mut state.open[at];
        (open.is_busy, open.reader) = (false, task.reader);
        let ended = (open.part.next >= open.part.end).then(|| state.open.swap_remove(at));
        drop(state);
        self.changed.notify_all();
        drop(ended);
    }

    /// Ends a part.
    fn end(&self, id: u64) {
        self.state().open.retain(|open| open.id != id);
        self.changed.notify_all();
    }

    /// Leaves the rows of a call that was refused memory to later calls. Closes the decoders that no call
    /// uses. Returns whether there was one, so that the caller can try again.
    fn postpone(&self, task: Task) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        let (idle, busy) =
            std::mem::take(&mut state.open).into_iter().partition(|open| !open.is_busy);
        let idle: Vec<Open> = idle;
        state.open = busy;
        state.waiting.extend(idle.iter().map(|open| open.part));
        state.ceiling = state.ceiling.min(state.open.len().saturating_sub(1)).max(1);
        state.most = state.most.min(state.ceiling);
        if let Some(at) = state.open.iter().position(|open| open.id == task.id) {
            let open = &mut state.open[at];
            open.part.next = task.rows.next;
            match task.reader.filter(|reader| !reader.is_broken()) {
                Some(reader) => (open.is_busy, open.reader) = (false, Some(reader)),
                None => {
                    let part = open.part;
                    state.open.swap_remove(at);
                    state.waiting.push(part);
                }
            }
        }
        self.changed.notify_all();
        // A decoder that has not read anything yet holds no memory.
        idle.iter().any(|open| open.reader.is_some())
    }
}

impl Open {
    /// Hands the next batch to a call.
    fn task(&mut self) -> Task {
        self.is_busy = true;
        let end = self.part.next.saturating_add(self.batch).min(self.part.end);
        let rows = Part { end, ..self.part };
        self.part.next = end;
        Task { id: self.id, rows, reader: self.reader.take() }
    }
}

impl State {
    /// Takes the second half of the open part with the most rows left. A batch is not divided.
    fn divide(&mut self) -> Option<Part> {
        let left = |open: &&mut Open| open.part.end - open.part.next;
        let open = self.open.iter_mut().filter(|open| open.is_divisible).max_by_key(left)?;
        let batches = left(&open).div_ceil(open.batch);
        let kept = (batches / 2).saturating_mul(open.batch);
        let part = Part { next: open.part.next.saturating_add(kept), ..open.part };
        open.part.end = part.next;
        (part.next < part.end).then_some(part)
    }
}

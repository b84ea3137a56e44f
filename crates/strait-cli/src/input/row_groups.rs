//! The rows of Parquet files, for many workers at the same time.
//!
//! A worker opens a row group, decodes one batch, and leaves the open decoder to the worker that calls next.
//! So there are at most as many decoders as calls at the same time. When no row group is left, the worker
//! divides the one with the most rows left: the decoder of the second half skips the pages of the first.
//!
//! ```text
//!  row groups   0: ████████ decoded   1: ████░░░░│▓▓░░ two workers   2: ████▓░░░ a worker
//! ```
//!
//! If the join offers a key filter, a worker first decodes only the keys of some rows, a *window*: see [`late`]. If
//! many rows of the window may match, all columns of these rows are decoded as above, without windows, and so are
//! many rows after them. Then a worker tries a window again. After each try that fails, about twice as many rows are
//! decoded without windows.

mod late;

use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use strait::Error;

use super::ahead::Ahead;
use super::parquet::{Chunks, Footer, ParquetReader};
use crate::memory::Memory;
use crate::panics::caught;
pub(super) use late::Keys;

/// The decoders of a table may take at most 1/N of a memory limit, where N is this number.
const DECODERS_SHARE: u64 = 8;

/// The most batches that one decoder reads without windows, before a worker may try a window again.
const WHOLE: u64 = 64;

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
    pub(super) next: u64,
    pub(super) end: u64,
    /// Whether all columns are decoded at once, because many of the rows may match.
    is_whole: bool,
}

/// The rows that a call returns.
pub(super) struct ReadRows {
    /// The index of their file.
    pub(super) file: usize,
    /// `None` if all rows were left out.
    pub(super) batch: Option<RecordBatch>,
    /// The number of rows that were left out, because they cannot match.
    pub(super) left_out: u64,
}

/// All rows that are to be read.
pub(super) struct RowGroups {
    state: Mutex<State>,
    /// Notified when a call ends.
    changed: Condvar,
    /// The wanted columns, in the order of the files.
    columns: Vec<usize>,
    memory: Memory,
    ahead: Ahead,
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
    /// The number of calls that decode a window.
    windows: usize,
    /// The number of decoders that are still opened before a worker tries a window again, and the number that was set
    /// after the last try.
    pause: u32,
    last_pause: u32,
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

/// What a call does next.
enum Step<'k> {
    Decode(Task),
    Window(Part, &'k Keys<'k>),
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
        let part = |(file, group, end)| Part { file, group, next: 0, end, is_whole: false };
        let mut waiting: Vec<Part> = groups.map(part).filter(|part| part.end > 0).collect();
        waiting.reverse();
        // Under a limit, the first batch shows how much memory a decoder needs.
        let most = if memory.limit().is_some() { 1 } else { threads };
        let state = State {
            waiting,
            open: Vec::new(),
            most,
            ceiling: threads,
            opened: 0,
            windows: 0,
            pause: 0,
            last_pause: 0,
        };
        RowGroups {
            state: Mutex::new(state),
            changed: Condvar::new(),
            columns: columns.to_vec(),
            memory: memory.clone(),
            ahead: Ahead::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decodes a batch. Returns `None` if there are no more. With `keys`, rows that cannot match may be left out.
    pub(super) fn next<'f>(
        &self,
        file: impl Fn(usize) -> Option<ParquetFile<'f>>,
        keys: Option<&Keys<'_>>,
        cancelled: impl Fn() -> bool,
    ) -> Result<Option<ReadRows>, Failure> {
        while let Some(step) = self.take(&file, keys, &cancelled) {
            let mut task = match step {
                Step::Decode(task) => task,
                Step::Window(part, keys) => match self.window(part, &file, keys, &cancelled)? {
                    Some(read) => return Ok(Some(read)),
                    None => continue,
                },
            };
            let Some(ParquetFile { path, footer }) = file(task.rows.file) else { break };
            let wanted = usize::try_from(task.rows.end - task.rows.next).unwrap_or(usize::MAX);
            let mut decode = || {
                let reader = match &mut task.reader {
                    Some(reader) => reader,
                    closed => {
                        let chunks = Chunks::new(path, footer, task.rows.group, &self.columns);
                        let begun = self.ahead.take((task.rows.file, task.rows.group));
                        closed.insert(chunks.read(begun, task.rows.next, &self.memory)?)
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
                    let batch = Some(batch);
                    return Ok(Some(ReadRows { file: rows.file, batch, left_out: 0 }));
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
    fn take<'f, 'k>(
        &self,
        file: impl Fn(usize) -> Option<ParquetFile<'f>>,
        keys: Option<&'k Keys<'k>>,
        cancelled: impl Fn() -> bool,
    ) -> Option<Step<'k>> {
        let mut state = self.state();
        loop {
            if cancelled() {
                return None;
            }
            if let Some(open) = state.open.iter_mut().find(|open| !open.is_busy) {
                return Some(Step::Decode(open.task()));
            }
            if state.open.len() + state.windows < state.most
                && let Some(mut part) = state.waiting.pop().or_else(|| state.divide())
            {
                let ParquetFile { path, footer } = file(part.file)?;
                let chunks = Chunks::new(path, footer, part.group, &self.columns);
                let (batch, is_divisible) = (chunks.batch_rows(&self.memory), chunks.can_skip());
                let batch = batch.max(1) as u64;
                if let Some(keys) = keys
                    && !part.is_whole
                {
                    if state.pause == 0 {
                        state.windows += 1;
                        return Some(Step::Window(part, keys));
                    }
                    state.pause -= 1;
                    let rest = part.split_off(WHOLE.saturating_mul(batch));
                    state.waiting.extend(rest);
                }
                let id = state.opened;
                state.opened += 1;
                let (is_busy, reader) = (false, None);
                state.open.push(Open { id, part, batch, is_divisible, is_busy, reader });
                self.fetch_ahead(&state.waiting, &file);
                continue;
            }
            // A call that is refused memory leaves its rows to other calls.
            let is_final = self.memory.limit().is_none() || state.open.is_empty();
            let is_taken = |open: &Open| open.part.next >= open.part.end;
            let is_final = is_final && state.windows == 0;
            if is_final && state.waiting.is_empty() && state.open.iter().all(is_taken) {
                return None;
            }
            let waited = self.changed.wait_timeout(state, WAKES);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Begins to fetch the row groups that are opened next, if they are in objects.
    fn fetch_ahead<'f>(&self, waiting: &[Part], file: impl Fn(usize) -> Option<ParquetFile<'f>>) {
        let next = waiting.iter().rev().map(|part| (part.file, part.group));
        self.ahead.begin(next, |(index, group)| {
            let ParquetFile { path, footer } = file(index)?;
            Chunks::new(path, footer, group, &self.columns).begin(&self.memory)
        });
    }

    /// Leaves the decoder to the next call.
    fn put_back(&self, task: Task) {
        let mut state = self.state();
        if let Some(reader) = &task.reader {
            state.learn(&self.memory, reader);
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

impl Part {
    /// Keeps the first `rows` rows, and returns the others, if there are any.
    fn split_off(&mut self, rows: u64) -> Option<Part> {
        let at = self.next.saturating_add(rows);
        let rest = (at < self.end).then_some(Part { next: at, ..*self });
        self.end = self.end.min(at);
        rest
    }
}

impl State {
    /// Derives the number of decoders from the memory that one of them has needed.
    fn learn(&mut self, memory: &Memory, reader: &ParquetReader) {
        if let Some(limit) = memory.limit() {
            let most = limit / DECODERS_SHARE / reader.most_memory().max(1);
            self.most = usize::try_from(most).unwrap_or(usize::MAX).min(self.ceiling).max(1);
        }
    }

    /// Takes the second half of the open part with the most rows left. A batch is not divided.
    fn divide(&mut self) -> Option<Part> {
        let left = |open: &&mut Open| open.part.end - open.part.next;
        let open = self.open.iter_mut().filter(|open| open.is_divisible).max_by_key(left)?;
        let batches = left(&open).div_ceil(open.batch);
        let kept = (batches / 2).saturating_mul(open.batch);
        let part = Part { next: open.part.next.saturating_add(kept), is_whole: true, ..open.part };
        open.part.end = part.next;
        (part.next < part.end).then_some(part)
    }
}

//! Decodes the key columns of many rows first, and then the other columns only of the rows that may match.
//!
//! ```text
//!  keys      ████████████████████████████   a window of rows; the filter says which may match
//!  wanted    ·····██···········█·······██   runs of rows; rows between close runs are wanted, too
//!  columns        ██           █       ██   one batch
//! ```
//!
//! A window ends when its wanted rows fill a batch. If too many rows of a window may match, it is faster to decode all
//! columns at once. In this case, the decoded keys are dropped, and all columns of these rows are decoded.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use strait::Error;

use super::{Failure, ParquetFile, Part, ReadRows, RowGroups, State, WHOLE};
use crate::input::parquet::{Chunks, ParquetReader};
use crate::input::wanted::Wanted;
use crate::memory::Memory;
use crate::panics::caught;

/// A window is used only if at most 1/N of its rows may match, where N is this number.
const FEW: u64 = 4;

/// The most batches in a window whose keys are decoded first, and the same under a memory limit. A window has one
/// batch of wanted rows, but its decoder may reserve the memory of all pages that it touches.
const WINDOW: u64 = 16;
const LIMITED_WINDOW: u64 = 4;

/// A window has at least this many batches, unless a part has fewer.
const LEAST_WINDOW: u64 = 2;

/// The most decoders that are opened one after the other between two tries.
const MOST_WHOLE: u32 = 15;

/// The purpose of the memory, for error messages.
const WHAT: &str = "the keys of rows that may match";

/// Returns which rows of a batch may match. The batch has the key columns that are stored in the files. The first
/// argument is the index of the file.
type MayMatch<'a> = &'a dyn Fn(usize, &RecordBatch) -> Result<BooleanBuffer, ArrowError>;

/// The filter over the keys of a table, and the key columns that are stored in its files.
pub(in crate::input) struct Keys<'a> {
    pub(in crate::input) columns: &'a [usize],
    pub(in crate::input) may_match: MayMatch<'a>,
}

impl RowGroups {
    /// Decodes the wanted rows of a window at the start of a part, and leaves the other rows to later calls.
    /// Returns `None` if all rows of the part are left to later calls.
    pub(super) fn window<'f>(
        &self,
        mut part: Part,
        file: impl Fn(usize) -> Option<ParquetFile<'f>>,
        keys: &Keys<'_>,
        cancelled: impl Fn() -> bool,
    ) -> Result<Option<ReadRows>, Failure> {
        let Some(ParquetFile { path, footer }) = file(part.file) else {
            self.end_window([]);
            return Ok(None);
        };
        let chunks = |columns| Chunks::new(path, footer, part.group, columns);
        let (all, keyed) = (chunks(&self.columns), chunks(keys.columns));
        let batch = all.batch_rows(&self.memory).max(1) as u64;
        let mut rest = part.split_off(self.window_rows(&part, batch));
        let window = Window { part, keys: keyed, all, memory: &self.memory };
        // Other workers need not wait for this window.
        let goes_on = || self.leave(rest.take());
        let decode = || self.matching_rows(&window, keys.may_match, goes_on, &cancelled);
        let decoded = caught(decode).unwrap_or_else(|why| Err(ArrowError::ParquetError(why)));
        match decoded.map_err(Error::from_arrow) {
            Ok(Some((end, read))) => {
                self.state().last_pause = 0;
                part.next = end;
                self.end_window(rest.into_iter().chain([part]));
                Ok(Some(read))
            }
            // All columns at once may need less memory, because a batch has fewer pages then.
            Ok(None) | Err(Error::MemoryLimit { .. }) => {
                self.state().pause_longer();
                // A decoder should read many rows, because it takes time to open it.
                part.end = rest.map_or(part.end, |rest| rest.end);
                let rest = part.split_off(WHOLE.saturating_mul(batch));
                part.is_whole = true;
                self.end_window(rest.into_iter().chain([part]));
                Ok(None)
            }
            Err(error) => {
                self.end_window([]);
                Err((part, error.into()))
            }
        }
    }

    /// Decodes the rows of a window that may match. Also returns the row after the window. Returns `None` if the
    /// window should be decoded whole.
    fn matching_rows(
        &self,
        window: &Window<'_>,
        may_match: MayMatch<'_>,
        goes_on: impl FnOnce(),
        cancelled: impl Fn() -> bool,
    ) -> Result<Option<(u64, ReadRows)>, ArrowError> {
        let Some(Matching { end, wanted }) = window.scan(may_match, goes_on, cancelled)? else {
            return Ok(None);
        };
        let Part { file, next, .. } = window.part;
        let left_out = end - next - wanted.rows();
        if wanted.rows() == 0 {
            return Ok(Some((end, ReadRows { file, batch: None, left_out })));
        }
        let Some((batch, reader)) = window.decode(wanted)? else { return Ok(None) };
        self.state().learn(&self.memory, &reader);
        Ok(Some((end, ReadRows { file, batch: Some(batch), left_out })))
    }

    /// Returns the most rows of a window at the start of a part. All workers should get some.
    fn window_rows(&self, part: &Part, batch: u64) -> u64 {
        let state = self.state();
        let waiting = state.waiting.iter().map(|part| part.end - part.next);
        let left = waiting.fold(part.end - part.next, u64::saturating_add);
        let most = if self.memory.limit().is_some() { LIMITED_WINDOW } else { WINDOW };
        let share = left.div_ceil(state.ceiling.max(1) as u64).div_ceil(batch);
        share.clamp(LEAST_WINDOW, most).saturating_mul(batch)
    }

    /// Leaves a part to other calls.
    fn leave(&self, part: Option<Part>) {
        self.state().waiting.extend(part);
        self.changed.notify_all();
    }

    /// Ends a window. Leaves the given parts to later calls. The next call takes the last one of them.
    fn end_window(&self, parts: impl IntoIterator<Item = Part>) {
        let mut state = self.state();
        state.windows -= 1;
        state.waiting.extend(parts.into_iter().filter(|part| part.next < part.end));
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    /// Decodes rows whole for a while, after a window had too many rows that may match.
    fn pause_longer(&mut self) {
        self.last_pause = (2 * self.last_pause + 1).min(MOST_WHOLE);
        self.pause = self.last_pause;
    }
}

/// A window, and how it is decoded.
struct Window<'a> {
    /// The rows that the window may have.
    part: Part,
    /// The key columns, and all columns.
    keys: Chunks<'a>,
    all: Chunks<'a>,
    memory: &'a Memory,
}

/// The rows of a window that may match.
struct Matching {
    /// The row after the window.
    end: u64,
    wanted: Wanted,
}

impl Window<'_> {
    /// Decodes the keys of the window. Returns `None` if many of its rows may match, or if memory does not
    /// suffice. Calls `goes_on` once the first rows show that few of them match.
    fn scan(
        &self,
        may_match: MayMatch<'_>,
        goes_on: impl FnOnce(),
        cancelled: impl Fn() -> bool,
    ) -> Result<Option<Matching>, ArrowError> {
        let mut goes_on = Some(goes_on);
        let (start, end) = (self.part.next, self.part.end);
        let (most, step) = (self.all.batch_rows(self.memory), self.keys.batch_rows(self.memory));
        let bytes = Wanted::most_memory(end - start);
        let Ok(_reserved) = self.memory.reserve(bytes, WHAT) else { return Ok(None) };
        let mut reader = self.keys.read(None, start, self.memory)?;
        let (mut at, mut wanted) = (start, Wanted::default());
        while at < end {
            if cancelled() {
                return Err(Error::Cancelled.into());
            }
            let rows = (step as u64).min(end - at);
            let Some(keys) = reader.read(rows as usize)? else { break };
            // The reader returns the memory of the batch to the budget.
            let bytes = keys.columns().iter().map(|column| column.get_buffer_memory_size() as u64);
            let Ok(_reserved) = self.memory.reserve(bytes.sum(), WHAT) else { return Ok(None) };
            wanted.add(at, &may_match(self.part.file, &keys)?);
            at += keys.num_rows() as u64;
            if wanted.rows().saturating_mul(FEW) > at - start {
                return Ok(None);
            }
            if let Some(goes_on) = goes_on.take() {
                goes_on();
            }
            if let Some(cut) = wanted.truncate(most as u64) {
                at = cut;
                break;
            }
        }
        Ok((at > start).then_some(Matching { end: at, wanted }))
    }

    /// Decodes all columns of the wanted rows. Returns `None` if memory does not suffice, or if the file has no
    /// such rows. The reader is returned for the memory that it has needed.
    fn decode(&self, wanted: Wanted) -> Result<Option<(RecordBatch, ParquetReader)>, ArrowError> {
        let rows = wanted.rows() as usize;
        let bytes = Wanted::most_memory(self.part.end - self.part.next);
        let Ok(_reserved) = self.memory.reserve(bytes, WHAT) else { return Ok(None) };
        let mut reader = self.all.read_wanted(wanted, self.memory)?;
        let Some(batch) = reader.read(rows)? else { return Ok(None) };
        Ok(Some((without_pages(&batch)?, reader)))
    }
}

/// Copies values that refer to pages. A few values would hold the memory of many pages.
fn without_pages(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let copied = |column: &ArrayRef| -> ArrayRef {
        match column.data_type() {
            DataType::Utf8View => Arc::new(column.as_string_view().gc()),
            DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
            _ => ArrayRef::clone(column),
        }
    };
    RecordBatch::try_new(batch.schema(), batch.columns().iter().map(copied).collect())
}

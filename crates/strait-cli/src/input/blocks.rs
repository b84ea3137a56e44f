//! The rows of text files, for many workers at the same time.
//!
//! One worker at a time reads text of a file, and cuts it after a whole record. Then it parses this block,
//! while another worker reads the next one. Several files are read at the same time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, FieldRef};
use arrow::error::ArrowError;
use strait::Error;

use super::block::{Block, BlockReader, TextParser};
use super::cast::cast_batch;
use super::columns::Columns;
use super::format::Format;
use super::reader::is_told;
use super::table::Files;
use super::text::open;
use super::{csv, json};
use crate::failure::Told;
use crate::memory::Memory;
use crate::panics::caught;
use crate::store;

/// Memory per value that is cast.
const CAST: u64 = 80;

/// A call that waits for another one checks this often whether the join was cancelled.
const WAKES: Duration = Duration::from_millis(10);

/// All rows that are to be read.
pub(super) struct Blocks {
    state: Mutex<State>,
    /// Notified when there is a file or a block for another call, and at the end.
    changed: Condvar,
    /// The wanted columns, in the order of the files, and their types after casts.
    columns: Vec<usize>,
    fields: Vec<FieldRef>,
    /// The largest number of open files.
    most: usize,
    memory: Memory,
}

#[derive(Default)]
struct State {
    /// Open files that no call reads.
    idle: Vec<TextFile>,
    /// The next file to open.
    next: usize,
    /// Blocks with records that were not parsed yet.
    waiting: Vec<Task>,
    /// The number of calls that open or read a file, and of those that parse a block.
    reading: usize,
    parsing: usize,
}

/// The next step of a call.
enum Step {
    Open(usize),
    Read(TextFile),
    Parse(Task),
}

impl Blocks {
    /// Prepares to read the given columns on up to `threads` threads.
    pub(super) fn new(columns: &Columns, threads: usize, memory: &Memory) -> Blocks {
        // The decompressors of several files would take much of a small limit.
        let most = if memory.limit().is_some() { 1 } else { threads.max(1) };
        let (state, changed) = Default::default();
        let (columns, fields) = (columns.stored().to_vec(), columns.stored_fields().to_vec());
        Blocks { state, changed, columns, fields, most, memory: memory.clone() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parses a batch, and returns it with the index of its file. Returns `None` if there are no more.
    pub(super) fn next(
        &self,
        files: &Files,
        cancelled: impl Fn() -> bool,
    ) -> Result<Option<(usize, RecordBatch)>, ArrowError> {
        while let Some(step) = self.take(files.files.len(), &cancelled) {
            let task = match step {
                Step::Open(index) => {
                    self.open(files, index)?;
                    continue;
                }
                Step::Read(file) => self.read(files, file)?,
                Step::Parse(task) => Some(task),
            };
            let Some(task) = task else { continue };
            let index = task.index;
            if let Some(batch) = self.parse(files, task)? {
                return Ok(Some((index, batch)));
            }
        }
        Ok(None)
    }

    /// Chooses what a call does next. Returns `None` if there are no more rows, or if the join was cancelled.
    fn take(&self, files: usize, cancelled: impl Fn() -> bool) -> Option<Step> {
        let mut state = self.state();
        while !cancelled() {
            if let Some(task) = state.waiting.pop() {
                state.parsing += 1;
                return Some(Step::Parse(task));
            }
            if let Some(file) = state.idle.pop() {
                state.reading += 1;
                return Some(Step::Read(file));
            }
            if state.next < files && state.reading < self.most {
                (state.next, state.reading) = (state.next + 1, state.reading + 1);
                return Some(Step::Open(state.next - 1));
            }
            // A call may leave a file or a block to other calls.
            if state.reading + state.parsing == 0 {
                return None;
            }
            let waited = self.changed.wait_timeout(state, WAKES);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    fn open(&self, files: &Files, index: usize) -> Result<(), ArrowError> {
        let opened = TextFile::open(files, index, &self.columns, &self.memory);
        let mut state = self.state();
        state.reading -= 1;
        self.changed.notify_all();
        match opened {
            Ok(file) => state.idle.push(file),
            Err(error) => {
                // If memory was refused, another call opens it. There is one open file at a time then.
                state.next = state.next.min(index);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads a block, and leaves the file to other calls. Returns `None` at the end of the file.
    fn read(&self, files: &Files, mut file: TextFile) -> Result<Option<Task>, ArrowError> {
        let (index, parser) = (file.index, Arc::clone(&file.parser));
        let read = caught(|| file.next(&self.memory));
        let read = read.unwrap_or_else(|why| Err(ArrowError::ParseError(why)));
        let mut state = self.state();
        state.reading -= 1;
        if !matches!(read, Ok(None)) {
            state.idle.push(file);
        }
        state.parsing += usize::from(matches!(read, Ok(Some(_))));
        drop(state);
        self.changed.notify_all();
        read.map_err(|error| explained(files, index, error, |error| parser.explain(error, None)))
    }

    /// Parses some records of a block, and leaves the other records to other calls.
    fn parse(&self, files: &Files, mut task: Task) -> Result<Option<RecordBatch>, ArrowError> {
        let Task { index, parser, block } = &mut task;
        let parsed = self.cast_rows(files, *index, &**parser, block).map_err(|error| {
            explained(files, *index, error, |error| parser.explain(error, Some(block)))
        });
        let mut state = self.state();
        state.parsing -= 1;
        if !task.block.is_done() {
            state.waiting.push(task);
        }
        drop(state);
        self.changed.notify_all();
        parsed
    }
}

impl Blocks {
    /// Parses some records of a block, and casts their values.
    fn cast_rows(
        &self,
        files: &Files,
        index: usize,
        parser: &dyn TextParser,
        block: &mut Block,
    ) -> Result<Option<RecordBatch>, ArrowError> {
        let types = self.columns.iter().map(|&column| files.stored.field(column).data_type());
        let is_cast = |(from, field): &(&DataType, &FieldRef)| *from != field.data_type();
        let casts = types.zip(&self.fields).filter(is_cast).count() as u64;
        // The memory is reserved before records are taken from the block.
        let most = CAST * casts * (block.lines + 1) + 2 * block.text.len() as u64;
        let what = parser.what();
        let _casting = self.memory.reserve(if casts > 0 { most } else { 0 }, what)?;
        let Some(batch) = parser.parse(block, &self.memory)? else { return Ok(None) };
        let before = block.rows;
        block.rows += batch.num_rows() as u64;
        let path = files.files[index].found.path.display();
        let place =
            |row: usize| format!("{path}, line {}", parser.line(block, before + row as u64));
        let cast = cast_batch(batch, &self.fields);
        cast.map(Some).map_err(|error| error.at(|wrong| place(wrong.row)))
    }
}

/// A file that is read block by block.
struct TextFile {
    /// Its index in the table.
    index: usize,
    parser: Arc<dyn TextParser>,
    reader: BlockReader,
}

/// Some records of a file that were not parsed yet.
struct Task {
    /// The index of the file in the table.
    index: usize,
    parser: Arc<dyn TextParser>,
    block: Block,
}

impl TextFile {
    fn open(
        files: &Files,
        index: usize,
        columns: &[usize],
        memory: &Memory,
    ) -> Result<TextFile, ArrowError> {
        let file = &files.files[index];
        let path = &*file.found.path;
        let squeeze = match file.found.format {
            Format::Csv(text) => text.squeeze,
            Format::Json(squeeze) => squeeze,
            _ => return Err(Told(format!("{} is not read as text", path.display())).into()),
        };
        log::trace!("reading {}", path.display());
        let bytes = open(path, squeeze, memory)?;
        let told = |error: anyhow::Error| Told(format!("{error:#}"));
        let parser: Arc<dyn TextParser> = match file.found.format {
            Format::Csv(text) => {
                let facts = csv::CsvFile { path, text, schema: &files.stored, record: file.record };
                Arc::new(csv::Parser::new(&facts, &files.csv, columns, memory).map_err(told)?)
            }
            _ => Arc::new(json::Parser::new(path, &files.stored, columns, memory).map_err(told)?),
        };
        let reader = BlockReader::new(bytes, memory, parser.what())?;
        Ok(TextFile { index, parser, reader })
    }

    /// Returns the next records; `None` at the end of the file. If memory is refused, it can be called again.
    fn next(&mut self, memory: &Memory) -> Result<Option<Task>, ArrowError> {
        let block = self.reader.next(&*self.parser, memory)?;
        let parser = || Arc::clone(&self.parser);
        Ok(block.map(|block| Task { index: self.index, parser: parser(), block }))
    }
}

/// Explains an error in a file. A refused reservation stays one, because the join may try again.
fn explained(
    files: &Files,
    index: usize,
    error: ArrowError,
    explain: impl Fn(&ArrowError) -> String,
) -> ArrowError {
    match Error::from_arrow(error) {
        Error::Arrow { source, .. } if !is_told(&source) => {
            let fault = store::fault(&files.files[index].found.path);
            fault.unwrap_or_else(|| Told(explain(&source))).into()
        }
        told_or_refused => files.explained(index, None, told_or_refused.into()),
    }
}

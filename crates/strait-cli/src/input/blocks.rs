//! The rows of text files, for many workers at the same time.
//!
//! A worker reads text of a file, cuts it after a whole record, and parses this block. Many workers read pieces of a
//! plain file at the same time. Only one worker at a time reads a stream: a compressed file, an object of a store, or
//! any file under a memory limit, because pieces that wait for their turn take memory. Several files are read at the
//! same time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, FieldRef};
use arrow::error::ArrowError;
use strait::Error;

use super::block::{Block, BlockReader, TextParser};
use super::cast::cast_batch;
use super::columns::Columns;
use super::format::{Format, Squeeze};
use super::pieces::{Pieces, Spare};
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
    /// The number of workers, and the largest number of open streams.
    threads: usize,
    most: usize,
    memory: Memory,
}

#[derive(Default)]
struct State {
    /// Streams that no call reads.
    streams: Vec<(Origin, BlockReader)>,
    /// Files that have pieces which no call has read.
    pieces: Vec<(Origin, Arc<Pieces>)>,
    /// The next file to open.
    next: usize,
    /// Blocks with records that were not parsed yet.
    waiting: Vec<Task>,
    /// Memory for pieces of files.
    spare: Vec<Spare>,
    /// The number of calls that open or read a file, and of those that parse a block.
    reading: usize,
    parsing: usize,
}

/// An open file.
#[derive(Clone)]
struct Origin {
    /// Its index in the table.
    index: usize,
    parser: Arc<dyn TextParser>,
}

/// Some records of a file that were not parsed yet.
struct Task {
    origin: Origin,
    block: Block,
}

/// The next step of a call.
enum Step {
    Open(usize),
    Read(Origin, BlockReader),
    ReadPiece(Origin, Arc<Pieces>, u64),
    Parse(Task),
}

impl State {
    /// Chooses a file that a call reads from.
    fn read(&mut self) -> Option<Step> {
        for at in 0..self.pieces.len() {
            let pieces = Arc::clone(&self.pieces[at].1);
            if let Some(number) = pieces.claim() {
                let origin = match pieces.is_claimed() {
                    true => self.pieces.remove(at).0,
                    false => self.pieces[at].0.clone(),
                };
                return Some(Step::ReadPiece(origin, pieces, number));
            }
        }
        self.streams.pop().map(|(origin, reader)| Step::Read(origin, reader))
    }
}

impl Blocks {
    /// Prepares to read the given columns on up to `threads` threads.
    pub(super) fn new(columns: &Columns, threads: usize, memory: &Memory) -> Blocks {
        // The decompressors of several files would take much of a small limit.
        let most = if memory.limit().is_some() { 1 } else { threads.max(1) };
        let (state, changed) = Default::default();
        let (columns, fields) = (columns.stored().to_vec(), columns.stored_fields().to_vec());
        Blocks { state, changed, columns, fields, threads, most, memory: memory.clone() }
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
                Step::Read(origin, reader) => self.read(files, origin, reader)?,
                Step::ReadPiece(origin, pieces, number) => {
                    self.read_piece(files, origin, &pieces, number)?
                }
                Step::Parse(task) => Some(task),
            };
            let Some(task) = task else { continue };
            let index = task.origin.index;
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
            if let Some(step) = state.read() {
                state.reading += 1;
                return Some(step);
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
        let opened = self.opened(files, index);
        let mut state = self.state();
        state.reading -= 1;
        self.changed.notify_all();
        match opened {
            Ok((origin, Opened::Stream(reader))) => state.streams.push((origin, reader)),
            Ok((origin, Opened::Pieces(pieces))) => state.pieces.push((origin, Arc::new(pieces))),
            Err(error) => {
                // If memory was refused, another call opens it. There is one open file at a time then.
                state.next = state.next.min(index);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads a block of a stream, and leaves the stream to other calls. Returns `None` at its end.
    fn read(
        &self,
        files: &Files,
        origin: Origin,
        mut reader: BlockReader,
    ) -> Result<Option<Task>, ArrowError> {
        let read = caught(|| reader.next(&*origin.parser, &self.memory));
        let read = read.unwrap_or_else(|why| Err(ArrowError::ParseError(why)));
        let mut state = self.state();
        if !matches!(read, Ok(None)) {
            state.streams.push((origin.clone(), reader));
        }
        self.end_read(state, files, origin, read.map(|block| block.into_iter().collect()))
    }

    /// Reads a piece of a file. Returns `None` if the pieces before it were not read yet.
    fn read_piece(
        &self,
        files: &Files,
        origin: Origin,
        pieces: &Pieces,
        number: u64,
    ) -> Result<Option<Task>, ArrowError> {
        let spare = self.state().spare.pop();
        let read = caught(|| pieces.read(number, &*origin.parser, &self.memory, spare));
        let read = read.unwrap_or_else(|why| Err(ArrowError::ParseError(why)));
        self.end_read(self.state(), files, origin, read)
    }

    /// Notes the end of a call that has read. Returns its first block, and leaves the others to other calls.
    fn end_read(
        &self,
        mut state: MutexGuard<'_, State>,
        files: &Files,
        origin: Origin,
        read: Result<Vec<Block>, ArrowError>,
    ) -> Result<Option<Task>, ArrowError> {
        state.reading -= 1;
        let read = read.map(|blocks| {
            let mut blocks = blocks.into_iter();
            let first = blocks.next();
            // The last one that waits is parsed first.
            state.waiting.extend(blocks.rev().map(|block| Task { origin: origin.clone(), block }));
            first
        });
        state.parsing += usize::from(matches!(read, Ok(Some(_))));
        drop(state);
        self.changed.notify_all();
        match read {
            Ok(block) => Ok(block.map(|block| Task { origin, block })),
            Err(error) => {
                let explain = |error: &ArrowError| origin.parser.explain(error, None);
                Err(explained(files, origin.index, error, explain))
            }
        }
    }

    /// Parses some records of a block, and leaves the other records to other calls.
    fn parse(&self, files: &Files, mut task: Task) -> Result<Option<RecordBatch>, ArrowError> {
        let Task { origin: Origin { index, parser }, block } = &mut task;
        let parsed = self.cast_rows(files, *index, &**parser, block).map_err(|error| {
            explained(files, *index, error, |error| parser.explain(error, Some(block)))
        });
        let mut state = self.state();
        state.parsing -= 1;
        if task.block.is_done() {
            state.spare.extend(Spare::of(task.block));
        } else {
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

/// How a file is read.
enum Opened {
    Stream(BlockReader),
    Pieces(Pieces),
}

impl Blocks {
    fn opened(&self, files: &Files, index: usize) -> Result<(Origin, Opened), ArrowError> {
        let (file, memory, columns) = (&files.files[index], &self.memory, &self.columns);
        let path = &*file.found.path;
        let squeeze = match file.found.format {
            Format::Csv(text) => text.squeeze,
            Format::Json(squeeze) => squeeze,
            _ => return Err(Told(format!("{} is not read as text", path.display())).into()),
        };
        log::trace!("reading {}", path.display());
        let told = |error: anyhow::Error| Told(format!("{error:#}"));
        let parser: Arc<dyn TextParser> = match file.found.format {
            Format::Csv(text) => {
                let facts = csv::CsvFile { path, text, schema: &files.stored, record: file.record };
                Arc::new(csv::Parser::new(&facts, &files.csv, columns, memory).map_err(told)?)
            }
            _ => Arc::new(json::Parser::new(path, &files.stored, columns, memory).map_err(told)?),
        };
        let is_plain = squeeze == Squeeze::None && store::object(path).is_none();
        let pieces = if is_plain && memory.limit().is_none() {
            Pieces::open(path, parser.length(), self.threads)?
        } else {
            None
        };
        let opened = match pieces {
            Some(pieces) => Opened::Pieces(pieces),
            None => {
                let bytes = open(path, squeeze, memory)?;
                Opened::Stream(BlockReader::new(bytes, memory, parser.what())?)
            }
        };
        Ok((Origin { index, parser }, opened))
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

//! The rows of CSV files, for many workers at the same time.
//!
//! One worker at a time reads text of a file, and cuts it after a whole record. Then it parses this block,
//! while another worker reads the next one. Several files are read at the same time.

use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use strait::{Error, MemoryReservation};

use super::csv::{Block, CsvFile, Parser, explain};
use super::format::Format;
use super::records::whole_records;
use super::table::Files;
use super::text::{MAX_RECORD, Opened, open};
use crate::failure::Told;
use crate::memory::Memory;
use crate::panics::caught;

/// A call that waits for another one checks this often whether the join was cancelled.
const WAKES: Duration = Duration::from_millis(10);

/// All rows that are to be read.
pub(super) struct Blocks {
    state: Mutex<State>,
    /// Notified when there is a file or a block for another call, and at the end.
    changed: Condvar,
    /// The wanted columns, in the order of the files.
    columns: Vec<usize>,
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
    /// Blocks with records that were not parsed yet, and the index of their file.
    waiting: Vec<(usize, Block)>,
    /// The number of calls that open or read a file, and of those that parse a block.
    reading: usize,
    parsing: usize,
}

/// The next step of a call.
enum Step {
    Open(usize),
    Read(TextFile),
    Parse(usize, Block),
}

impl Blocks {
    /// Prepares to read the given columns on up to `threads` threads.
    pub(super) fn new(columns: &[usize], threads: usize, memory: &Memory) -> Blocks {
        // The decompressors of several files would take much of a small limit.
        let most = if memory.limit().is_some() { 1 } else { threads.max(1) };
        let (state, changed) = Default::default();
        Blocks { state, changed, columns: columns.to_vec(), most, memory: memory.clone() }
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
            let block = match step {
                Step::Open(index) => {
                    self.open(files, index)?;
                    continue;
                }
                Step::Read(file) => self.read(files, file)?,
                Step::Parse(index, block) => Some((index, block)),
            };
            let Some((index, block)) = block else { continue };
            if let Some(batch) = self.parse(files, index, block)? {
                return Ok(Some((index, batch)));
            }
        }
        Ok(None)
    }

    /// Chooses what a call does next. Returns `None` if there are no more rows, or if the join was cancelled.
    fn take(&self, files: usize, cancelled: impl Fn() -> bool) -> Option<Step> {
        let mut state = self.state();
        while !cancelled() {
            if let Some((index, block)) = state.waiting.pop() {
                state.parsing += 1;
                return Some(Step::Parse(index, block));
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
    fn read(
        &self,
        files: &Files,
        mut file: TextFile,
    ) -> Result<Option<(usize, Block)>, ArrowError> {
        let index = file.index;
        let read = caught(|| file.block(&self.memory));
        let read = read.unwrap_or_else(|why| Err(ArrowError::CsvError(why)));
        let mut state = self.state();
        state.reading -= 1;
        if !matches!(read, Ok(None)) {
            state.idle.push(file);
        }
        state.parsing += usize::from(matches!(read, Ok(Some(_))));
        drop(state);
        self.changed.notify_all();
        let read = read.map_err(|error| explained(files, index, error, |line| line))?;
        Ok(read.map(|block| (index, block)))
    }

    /// Parses some records of a block, and leaves the other records to other calls.
    fn parse(
        &self,
        files: &Files,
        index: usize,
        mut block: Block,
    ) -> Result<Option<RecordBatch>, ArrowError> {
        let parsed = block.parse(&self.memory);
        let parsed =
            parsed.map_err(|error| explained(files, index, error, |record| block.line(record)));
        let mut state = self.state();
        state.parsing -= 1;
        if !block.is_done() {
            state.waiting.push((index, block));
        }
        drop(state);
        self.changed.notify_all();
        parsed
    }
}

/// Explains an error in a file. A refused reservation stays one, because the join may try again.
fn explained(
    files: &Files,
    index: usize,
    error: ArrowError,
    line: impl Fn(u64) -> u64,
) -> ArrowError {
    match Error::from_arrow(error) {
        Error::Arrow { source, .. } => {
            let path = &files.files[index].found.path;
            Told(explain(path, Some(&files.stored), &files.csv, &source, line)).into()
        }
        refused => files.explained(index, None, refused.into()),
    }
}

/// A file that is read block by block.
struct TextFile {
    /// Its index in the table.
    index: usize,
    parser: Arc<Parser>,
    bytes: Opened,
    has_ended: bool,
    /// Text that was read and is in no block. It begins with a record.
    text: Vec<u8>,
    /// The memory of the text.
    reservation: MemoryReservation,
    /// The number of lines in the blocks so far.
    lines: u64,
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
        let Format::Csv(text) = file.found.format else {
            return Err(Told(format!("{} is not read as text", path.display())).into());
        };
        log::trace!("reading {}", path.display());
        let bytes = open(path, text.squeeze, memory)?;
        let facts = CsvFile { path, text, schema: &files.stored, record: file.record };
        let parser = Parser::new(&facts, &files.csv, columns, memory);
        let parser = parser.map_err(|error| Told(format!("{error:#}")))?;
        let reservation = memory.reserve(0, &parser.what)?;
        let (parser, text) = (Arc::new(parser), Vec::new());
        Ok(TextFile { index, parser, bytes, has_ended: false, text, reservation, lines: 0 })
    }

    /// Returns the next records; `None` at the end of the file. If memory is refused, it can be called again.
    fn block(&mut self, memory: &Memory) -> Result<Option<Block>, ArrowError> {
        let what = &self.parser.what;
        let mut length = self.text.len().max(self.parser.block as usize);
        let (end, lines) = loop {
            memory.resize(&mut self.reservation, length as u64, what)?;
            fill(&mut self.bytes, &mut self.text, length, &mut self.has_ended)?;
            match whole_records(&self.text, self.parser.delimiter) {
                // The last record needs no line end.
                found if self.has_ended => break (self.text.len(), found.map_or(0, |f| f.1)),
                Some(found) => break found,
                None => {}
            }
            if length as u64 > MAX_RECORD {
                let why = "a record is longer than 2 GiB; is a quote missing?";
                return Err(io::Error::other(why).into());
            }
            length *= 2;
        };
        if end == 0 {
            return Ok(None);
        }
        let rest = &self.text[end..];
        let for_rest = memory.reserve(rest.len() as u64, what)?;
        let rest = rest.to_vec();
        let mut text = std::mem::replace(&mut self.text, rest);
        text.truncate(end);
        let held = (text, std::mem::replace(&mut self.reservation, for_rest));
        let before = self.lines;
        self.lines += lines;
        Ok(Some(Block::new(&self.parser, held, lines, before)))
    }
}

/// Reads until the text has the given length, or until the file ends.
fn fill(
    bytes: &mut impl Read,
    text: &mut Vec<u8>,
    length: usize,
    has_ended: &mut bool,
) -> io::Result<()> {
    let mut filled = text.len();
    text.reserve_exact(length - filled);
    text.resize(length, 0);
    let read = loop {
        if filled == length || *has_ended {
            break Ok(());
        }
        match bytes.read(&mut text[filled..]) {
            Ok(0) => *has_ended = true,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
    };
    text.truncate(filled);
    read
}

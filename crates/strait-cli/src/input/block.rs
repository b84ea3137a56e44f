//! Blocks of text: whole records of a file, and the memory that they take.

use std::io::{self, Read};
use std::ops::{Deref, Range};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use strait::MemoryReservation;

use super::text::{MAX_RECORD, Opened};
use crate::memory::Memory;

/// How the text of a file is cut into blocks.
pub(super) trait Records {
    /// The purpose of the memory, for error messages.
    fn what(&self) -> &str;

    /// The usual length of a block. A block is longer if a record is.
    fn length(&self) -> u64;

    /// Finds the last complete record of a text. Returns the position after it, and the number of line ends
    /// before that position. The text must begin with a record.
    fn whole(&self, text: &[u8]) -> Option<(usize, u64)>;

    /// The message about a record that is longer than a text column can be.
    fn too_long(&self) -> &'static str;
}

/// Parses the blocks of a file. Many workers may call it.
pub(super) trait TextParser: Records + Send + Sync {
    /// Parses the next records of a block. If memory is refused, it can be called again.
    fn parse(&self, block: &mut Block, memory: &Memory) -> Result<Option<RecordBatch>, ArrowError>;

    /// Returns the line number in the file of row number `row` of a block. The first row of the block is row 0.
    fn line(&self, block: &Block, row: u64) -> u64;

    /// Says what is wrong with the file, and with which line if the error is in a block.
    fn explain(&self, error: &ArrowError, block: Option<&Block>) -> String;
}

/// The text of a block.
pub(super) struct BlockText {
    bytes: Vec<u8>,
    /// The part of the bytes that is the text.
    range: Range<usize>,
    /// Whether the bytes are a piece of the file, which has the usual length. The next piece can use its memory.
    is_piece: bool,
}

impl BlockText {
    /// The text in a part of a piece.
    pub(super) fn part(bytes: Vec<u8>, range: Range<usize>) -> BlockText {
        BlockText { bytes, range, is_piece: true }
    }

    /// Returns all bytes, if they are a piece of the file.
    pub(super) fn into_piece(self) -> Option<Vec<u8>> {
        self.is_piece.then_some(self.bytes)
    }
}

impl From<Vec<u8>> for BlockText {
    fn from(bytes: Vec<u8>) -> BlockText {
        BlockText { range: 0..bytes.len(), bytes, is_piece: false }
    }
}

impl Deref for BlockText {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

/// Whole records of a file.
pub(super) struct Block {
    pub(super) text: BlockText,
    /// The number of lines of the block, and the number of lines before the block in the file.
    pub(super) lines: u64,
    pub(super) lines_before: u64,
    /// Whether no record comes before the block. Empty lines are no records.
    pub(super) is_first: bool,
    /// Whether the text is known to be UTF-8.
    pub(super) is_checked: bool,
    /// The number of bytes and of rows that were parsed.
    pub(super) at: usize,
    pub(super) rows: u64,
    /// The memory of the text, and of its parser while that runs.
    pub(super) reservation: MemoryReservation,
}

impl Block {
    /// A block whose records were not parsed yet. Readers then call [`follow`](Block::follow).
    pub(super) fn new(
        text: BlockText,
        lines: u64,
        lines_before: u64,
        reservation: MemoryReservation,
    ) -> Block {
        let is_first = lines_before == 0;
        Block {
            text,
            lines,
            lines_before,
            is_first,
            is_checked: false,
            at: 0,
            rows: 0,
            reservation,
        }
    }

    /// Sets `is_first`. `has_begun` says whether a record comes before this block, and is updated for the next block.
    pub(super) fn follow(&mut self, has_begun: &mut bool) {
        self.is_first = !*has_begun;
        *has_begun = *has_begun || self.text.iter().any(|byte| !matches!(byte, b'\n' | b'\r'));
    }

    /// Returns whether all records were parsed.
    pub(super) fn is_done(&self) -> bool {
        self.is_checked && self.at >= self.text.len()
    }
}

/// Reads a file block by block, from its start to its end.
pub(super) struct BlockReader {
    bytes: Opened,
    has_ended: bool,
    /// Text that was read and is in no block. It begins with a record.
    text: Vec<u8>,
    /// The memory of the text.
    reservation: MemoryReservation,
    /// The number of lines in the blocks so far, and whether these blocks have a record.
    lines: u64,
    has_begun: bool,
}

impl BlockReader {
    pub(super) fn new(bytes: Opened, memory: &Memory, what: &str) -> strait::Result<BlockReader> {
        let reservation = memory.reserve(0, what)?;
        let (text, has_ended, lines, has_begun) = (Vec::new(), false, 0, false);
        Ok(BlockReader { bytes, has_ended, text, reservation, lines, has_begun })
    }

    /// Returns the next records; `None` at the end of the file. If memory is refused, it can be called again.
    pub(super) fn next(
        &mut self,
        records: &dyn Records,
        memory: &Memory,
    ) -> Result<Option<Block>, ArrowError> {
        let what = records.what();
        let mut length = self.text.len().max(records.length() as usize);
        let (end, lines) = loop {
            memory.resize(&mut self.reservation, length as u64, what)?;
            fill(&mut self.bytes, &mut self.text, length, &mut self.has_ended)?;
            match records.whole(&self.text) {
                // The last record needs no line end.
                found if self.has_ended => break (self.text.len(), found.map_or(0, |f| f.1)),
                Some(found) => break found,
                None => {}
            }
            if length as u64 > MAX_RECORD {
                return Err(io::Error::other(records.too_long()).into());
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
        let reservation = std::mem::replace(&mut self.reservation, for_rest);
        let lines_before = self.lines;
        self.lines += lines;
        let mut block = Block::new(text.into(), lines, lines_before, reservation);
        block.follow(&mut self.has_begun);
        Ok(Some(block))
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

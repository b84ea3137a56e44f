//! A text file on disk that many workers read at the same time.
//!
//! The file is divided into pieces of equal length. A worker reads a piece and looks for its records, without a
//! lock. It does not know where the first of them begins: the record before it ends in this piece, and a line end
//! may be in quotes. So it assumes that the first line end of the piece ends a record. Then the pieces are cut
//! into blocks, in the order of the file and under a lock. Only the text up to the first line end is scanned
//! there:
//!
//! ```text
//! piece 6         piece 7            piece 8
//! …,a,b⏎c,"d",e⏎f,│g,h⏎i,j,k⏎l,m,n⏎o,│p,q⏎…
//!                ▲     ▲            ▲
//!                at    first        last
//! ```
//!
//! `at` is the end of the block before. Piece 7 was scanned from `first` to its end, and `last` was found. If the
//! text from `at` to `first` is whole records, the assumption holds: the block goes from `at` to `last`. Otherwise
//! all text from `at` on is scanned under the lock, and more text is read if a record is longer than a piece.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use arrow::error::ArrowError;
use memchr::memchr;
use strait::MemoryReservation;

use super::block::{Block, BlockText, Records};
use super::text::{BYTE_ORDER_MARK, MAX_RECORD};
use crate::failure::Told;
use crate::memory::Memory;

/// A piece is read with some bytes before it, one part in this many of its length. The record that ends in the
/// piece mostly begins there.
const BEFORE: u64 = 16;

/// A file, and how much of it was read.
pub(super) struct Pieces {
    file: File,
    /// The number of bytes when the file was opened. Bytes that are appended later are not read.
    size: u64,
    /// The length of a piece.
    length: u64,
    /// The most pieces that are read and not cut.
    most: u64,
    /// The next piece to read, and the next piece to cut.
    next: AtomicU64,
    turn: AtomicU64,
    cutting: Mutex<Cutting>,
}

/// What is known where the last block ends.
#[derive(Default)]
struct Cutting {
    /// The position of that end in the file, the number of lines before it, and whether a record is before it.
    at: u64,
    lines: u64,
    has_begun: bool,
    /// Pieces that were read before their turn, by number.
    waiting: BTreeMap<u64, Piece>,
}

/// Text of the file.
struct Piece {
    /// Its positions in the file. It may begin before the piece.
    start: u64,
    end: u64,
    bytes: Vec<u8>,
    /// Whether the file ends here.
    is_last: bool,
    found: Option<Found>,
    reservation: MemoryReservation,
}

/// The records in a piece, under the assumption that its first line end ends a record. All positions are in its
/// bytes.
struct Found {
    /// The end of the first line.
    first: usize,
    /// The end of the last record, and the number of line ends between.
    last: usize,
    lines: u64,
}

/// Memory of a block that was parsed. The next piece uses it again.
pub(super) struct Spare {
    bytes: Vec<u8>,
    reservation: MemoryReservation,
}

impl Pieces {
    /// Opens a file that is to be read in pieces of the given length by up to `threads` workers. Returns `None` if
    /// the file must be read as a stream, because the system does not tell its length. The error names the file.
    pub(super) fn open(path: &Path, length: u64, threads: usize) -> Result<Option<Pieces>, Told> {
        let told = |error| Told(format!("cannot read {}: {error}", path.display()));
        // A pipe must not be opened twice.
        if !path.metadata().map_err(told)?.is_file() {
            return Ok(None);
        }
        let file = File::open(path).map_err(told)?;
        let size = file.metadata().map_err(told)?.len();
        let mut start = [0; BYTE_ORDER_MARK.len()];
        let read = read_at(&file, &mut start, 0).map_err(told)?;
        let at = if start[..read] == BYTE_ORDER_MARK { read as u64 } else { 0 };
        Ok((size > 0).then(|| Pieces {
            file,
            size,
            length: length.max(1),
            most: 2 * threads.max(1) as u64,
            next: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            cutting: Mutex::new(Cutting { at, ..Cutting::default() }),
        }))
    }

    /// Returns the number of a piece that the caller must [`read`](Pieces::read). Returns `None` if there are no
    /// more, or if too many wait for their turn.
    pub(super) fn claim(&self) -> Option<u64> {
        let turn = self.turn.load(Ordering::Relaxed);
        let next = |next| (!self.ends_before(next) && next < turn + self.most).then_some(next + 1);
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    /// Returns whether all pieces were claimed.
    pub(super) fn is_claimed(&self) -> bool {
        self.ends_before(self.next.load(Ordering::Relaxed))
    }

    fn ends_before(&self, piece: u64) -> bool {
        piece.saturating_mul(self.length) >= self.size
    }

    /// Reads a piece. Returns the blocks that can be cut now, in the order of the file.
    pub(super) fn read(
        &self,
        number: u64,
        records: &dyn Records,
        memory: &Memory,
        spare: Option<Spare>,
    ) -> Result<Vec<Block>, ArrowError> {
        let piece = self.piece(number, records, memory, spare)?;
        let mut cutting = self.cutting.lock().unwrap_or_else(PoisonError::into_inner);
        cutting.waiting.insert(number, piece);
        let mut blocks = Vec::new();
        let mut turn = self.turn.load(Ordering::Relaxed);
        while let Some(piece) = cutting.waiting.remove(&turn) {
            if let Some(mut block) = self.cut(&mut cutting, piece, records, memory)? {
                block.follow(&mut cutting.has_begun);
                blocks.push(block);
            }
            turn += 1;
            self.turn.store(turn, Ordering::Relaxed);
        }
        Ok(blocks)
    }

    /// Reads a piece, and looks for its records.
    fn piece(
        &self,
        number: u64,
        records: &dyn Records,
        memory: &Memory,
        spare: Option<Spare>,
    ) -> Result<Piece, ArrowError> {
        let from = number * self.length;
        let start = from.saturating_sub(self.length / BEFORE);
        let wanted = self.size.min(from.saturating_add(self.length)) - start;
        let Spare { mut bytes, mut reservation } = match spare {
            Some(spare) => spare,
            None => Spare { bytes: Vec::new(), reservation: memory.reserve(0, records.what())? },
        };
        let needed = wanted.max(bytes.capacity() as u64);
        memory.resize(&mut reservation, needed, records.what())?;
        bytes.reserve_exact((wanted as usize).saturating_sub(bytes.len()));
        // Memory that was used before is not cleared again.
        bytes.resize(wanted as usize, 0);
        let read = read_at(&self.file, &mut bytes, start)?;
        bytes.truncate(read);
        let end = start + read as u64;
        let found = bytes.get((from - start) as usize..).and_then(|own| memchr(b'\n', own));
        let found = found.map(|line_end| {
            let first = (from - start) as usize + line_end + 1;
            let (records, lines) = records.whole(&bytes[first..]).unwrap_or_default();
            Found { first, last: first + records, lines }
        });
        if (read as u64) < wanted {
            return Err(shorter());
        }
        let is_last = end >= self.size;
        Ok(Piece { start, end, bytes, is_last, found, reservation })
    }

    /// Makes a block of the records that end in a piece. Returns `None` if there are none.
    fn cut(
        &self,
        cutting: &mut Cutting,
        piece: Piece,
        records: &dyn Records,
        memory: &Memory,
    ) -> Result<Option<Block>, ArrowError> {
        let Cutting { at, lines, .. } = cutting;
        if piece.end <= *at {
            return Ok(None);
        }
        let lines_before = *lines;
        let Some(begin) = at.checked_sub(piece.start) else {
            // The record is longer than the bytes that were read before the piece.
            let mut block = self.long(*at..piece.end, records, memory)?;
            (*at, *lines) = (*at + block.text.len() as u64, lines_before + block.lines);
            block.lines_before = lines_before;
            return Ok(Some(block));
        };
        let begin = begin as usize;
        let checked =
            piece.found.as_ref().and_then(|found| found.from(begin, &piece.bytes, records));
        let whole =
            || records.whole(&piece.bytes[begin..]).map(|(end, lines)| (begin + end, lines));
        let (end, found) = match checked.or_else(whole) {
            // The last record of a file needs no line end.
            found if piece.is_last => (piece.bytes.len(), found.map_or(0, |found| found.1)),
            Some(found) => found,
            // The record ends in a later piece.
            None => return Ok(None),
        };
        (*at, *lines) = (piece.start + end as u64, lines_before + found);
        let text = BlockText::part(piece.bytes, begin..end);
        Ok(Some(Block::new(text, found, lines_before, piece.reservation)))
    }

    /// Reads a range of the file, and more of it until a record has ended. Returns a block of whole records. The number
    /// of lines before it is not known here.
    fn long(
        &self,
        Range { start, end }: Range<u64>,
        records: &dyn Records,
        memory: &Memory,
    ) -> Result<Block, ArrowError> {
        let mut reservation = memory.reserve(0, records.what())?;
        let (mut text, mut length) = (Vec::new(), end - start);
        loop {
            memory.resize(&mut reservation, length, records.what())?;
            let before = text.len();
            text.reserve_exact(length as usize - before);
            text.resize(length as usize, 0);
            let read = read_at(&self.file, &mut text[before..], start + before as u64)?;
            text.truncate(before + read);
            if (text.len() as u64) < length {
                return Err(shorter());
            }
            let is_last = start + length >= self.size;
            let (end, lines) = match records.whole(&text) {
                found if is_last => (text.len(), found.map_or(0, |found| found.1)),
                Some(found) => found,
                None if length > MAX_RECORD => {
                    return Err(io::Error::other(records.too_long()).into());
                }
                None => {
                    length = (2 * length).min(self.size - start);
                    continue;
                }
            };
            text.truncate(end);
            return Ok(Block::new(text.into(), lines, 0, reservation));
        }
    }
}

impl Found {
    /// Returns the end of the last record and the number of line ends before it, if a record begins at `begin`.
    /// Returns `None` if the first line end does not end a record then.
    fn from(&self, begin: usize, bytes: &[u8], records: &dyn Records) -> Option<(usize, u64)> {
        let (end, lines) = records.whole(bytes.get(begin..self.first)?)?;
        (begin + end == self.first).then_some((self.last, lines + self.lines))
    }
}

impl Spare {
    /// Takes the memory of a block, if it was read in a piece.
    pub(super) fn of(block: Block) -> Option<Spare> {
        Some(Spare { bytes: block.text.into_piece()?, reservation: block.reservation })
    }
}

/// The error about a file that had more bytes when it was opened. Rows would be lost, and the last one could be cut.
fn shorter() -> ArrowError {
    io::Error::other("it became shorter while it was read").into()
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

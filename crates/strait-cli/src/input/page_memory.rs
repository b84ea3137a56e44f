//! The memory that the decoder of a Parquet file holds: one page and one dictionary per column, and the
//! values of the batch that is being decoded.

use std::sync::{Mutex, MutexGuard, PoisonError};

use parquet::errors::{ParquetError, Result};
use strait::MemoryReservation;

use crate::memory::{Memory, Refusal};

/// If memory is not limited, a bound of this many bytes on a page's values needs no closer examination.
const ENOUGH: u64 = 4 << 20;

/// The memory accounts of one reader. One thread decodes its columns, one after another.
pub(super) struct PageMemory {
    memory: Memory,
    refusal: Refusal,
    /// The purpose of the memory, for error messages.
    what: String,
    /// The most rows in a batch.
    rows: u64,
    books: Mutex<Books>,
}

struct Books {
    reservation: MemoryReservation,
    /// The part of the reservation that the current batch has not needed yet.
    ahead: u64,
    /// The most memory that the current batch has needed so far, with the pages of earlier batches.
    most: u64,
    /// The most memory that a batch has needed besides the pages that were kept after it.
    usual: u64,
    columns: Vec<Column>,
}

/// What is known about the batches of a reader.
pub(super) struct BatchShape {
    /// The number of columns of the file.
    pub(super) columns: usize,
    /// The most rows in a batch.
    pub(super) rows: usize,
    /// The memory that is reserved before the first batch, because decoders allocate it at once.
    pub(super) expected: u64,
}

/// The memory of a column.
#[derive(Clone, Default)]
struct Column {
    page: u64,
    dictionary: u64,
    /// The part of `dictionary` that is freed once the dictionary is decoded: its page.
    dictionary_page: u64,
    /// The most memory that one batch needs to decode the rest of the current page.
    values: u64,
    /// The rows of the current page that no batch has taken yet.
    left: u64,
    /// The rows of the current batch for which pages were reserved.
    taken: u64,
    /// Whether a row may have several values. The number of rows of a page is then unknown.
    is_repeated: bool,
}

/// The memory that decoding a page needs.
pub(super) struct Needs<F> {
    /// The memory of the page, while it is the current one.
    pub(super) page: u64,
    /// The number of values, and the most that one batch takes of them.
    pub(super) count: u64,
    pub(super) most: u64,
    /// The fixed memory per value.
    pub(super) fixed: u64,
    /// Whether a row may have several values.
    pub(super) is_repeated: bool,
    /// Returns the most bytes of this many consecutive values, in addition to the fixed memory.
    pub(super) bytes: F,
}

impl<F: Fn(u64) -> u64> Needs<F> {
    fn of(&self, values: u64) -> u64 {
        // A growing buffer may be twice as large as its content.
        let bytes = (self.bytes)(values).saturating_mul(2);
        values.saturating_mul(self.fixed).saturating_add(bytes)
    }
}

impl PageMemory {
    pub(super) fn new(
        memory: &Memory,
        refusal: &Refusal,
        what: String,
        batch: BatchShape,
    ) -> strait::Result<PageMemory> {
        let books = Books {
            reservation: memory.reserve(0, &what)?,
            ahead: 0,
            most: 0,
            usual: batch.expected,
            columns: vec![Column::default(); batch.columns],
        };
        Ok(PageMemory {
            memory: memory.clone(),
            refusal: refusal.clone(),
            what,
            rows: batch.rows as u64,
            books: Mutex::new(books),
        })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the reservation.
    fn reserve(&self, books: &mut Books, more: u64) -> Result<()> {
        let all = books.reservation.bytes().saturating_add(more);
        self.memory
            .resize(&mut books.reservation, all, &self.what)
            .map_err(|error| ParquetError::General(self.refusal.note(error)))
    }

    /// Reserves memory that the current batch needs, unless it was reserved ahead.
    fn grow(&self, books: &mut Books, more: u64) -> Result<()> {
        let ahead = books.ahead.min(more);
        self.reserve(books, more - ahead)?;
        books.ahead -= ahead;
        books.most = books.most.max(books.reservation.bytes() - books.ahead);
        Ok(())
    }

    /// Reserves the memory that the current pages need in the next batch, and as much for further pages as
    /// earlier batches have needed. If this fails, nothing has changed, and the batch can be tried again. If
    /// memory is refused in the middle of a batch, the decoder has lost some rows.
    pub(super) fn begin_batch(&self) -> Result<()> {
        let books = &mut *self.books();
        let values = books.columns.iter().map(|column| column.values);
        let values = values.fold(0, u64::saturating_add);
        let ahead = values.max(books.usual);
        self.reserve(books, ahead)?;
        books.ahead = ahead;
        for column in &mut books.columns {
            column.taken = column.left.min(self.rows);
            column.left -= column.taken;
            if column.left == 0 && !column.is_repeated {
                column.values = 0;
            }
        }
        self.grow(books, values)
    }

    /// Returns the most memory that decoding a batch has needed.
    pub(super) fn most(&self) -> u64 {
        let books = self.books();
        books.reservation.bytes().saturating_add(books.usual)
    }

    /// Returns the reservation of the decoded batch, because the caller that takes the batch reserves it
    /// again. Pages and dictionaries stay reserved.
    pub(super) fn end_batch(&self) {
        let books = &mut *self.books();
        let kept = books.columns.iter().map(|column| column.page + column.dictionary).sum::<u64>();
        let held = books.reservation.bytes();
        books.reservation.shrink(held.saturating_sub(kept));
        books.usual = books.usual.max(books.most.saturating_sub(kept));
        (books.ahead, books.most) = (0, kept);
    }

    /// Forgets the pages of the column's last chunk. If the values of the batch are copies, these pages are
    /// freed now. Otherwise the batch may still refer to them.
    pub(super) fn begin_chunk(&self, column: usize, are_copies: bool) {
        let books = &mut *self.books();
        let Some(column) = books.columns.get_mut(column) else { return };
        if are_copies {
            books.reservation.shrink(column.page + column.dictionary);
        }
        *column = Column { taken: column.taken, ..Column::default() };
    }

    /// The most rows in a batch.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// A bound of this many bytes on a page's values needs no closer examination.
    pub(super) fn enough(&self) -> u64 {
        self.memory.limit().map_or(ENOUGH, |limit| (limit / 512).min(ENOUGH))
    }

    /// Reserves more memory for a page: for its compressed and decompressed bytes, or for data that its
    /// decoder keeps.
    pub(super) fn admit_page(&self, bytes: u64) -> Result<()> {
        self.grow(&mut self.books(), bytes)
    }

    /// Returns the reservation for the compressed bytes of a page.
    pub(super) fn decompressed(&self, bytes: u64) {
        self.books().reservation.shrink(bytes);
    }

    /// Returns the reservation for the page of a dictionary. The decoder has copied the values, or keeps the
    /// page instead of a copy.
    pub(super) fn dictionary_decoded(&self, column: usize) {
        let books = &mut *self.books();
        let Some(column) = books.columns.get_mut(column) else { return };
        let page = std::mem::take(&mut column.dictionary_page);
        column.dictionary -= page;
        books.reservation.shrink(page);
    }

    /// Reserves the memory that a dictionary needs in addition to its page of `bytes`.
    pub(super) fn admit_dictionary(&self, column: usize, bytes: u64, beside: u64) -> Result<()> {
        let books = &mut *self.books();
        let Some(column) = books.columns.get_mut(column) else { return Ok(()) };
        column.dictionary = bytes.saturating_add(beside);
        column.dictionary_page = bytes;
        self.grow(books, beside)
    }

    /// Reserves the memory that decoding a page needs in the current batch, and records the memory that it
    /// needs in a later one.
    pub(super) fn admit_values<F: Fn(u64) -> u64>(
        &self,
        column: usize,
        needs: &Needs<F>,
    ) -> Result<()> {
        let books = &mut *self.books();
        let Some(column) = books.columns.get_mut(column) else { return Ok(()) };
        column.page = needs.page;
        column.is_repeated = needs.is_repeated;
        let now = if needs.is_repeated {
            column.values = needs.of(needs.most);
            column.values
        } else {
            // A batch has at most its maximum number of rows, however many pages they come from.
            let taken = needs.count.min(self.rows.saturating_sub(column.taken));
            column.taken += taken;
            column.left = needs.count - taken;
            let later = column.left.min(self.rows).min(needs.most);
            column.values = if later > 0 { needs.of(later) } else { 0 };
            if taken > 0 { needs.of(taken) } else { 0 }
        };
        self.grow(books, now)
    }
}

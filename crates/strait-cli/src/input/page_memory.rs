//! What the decoder of a Parquet file holds: a page and a dictionary per column, and the values of
//! the batch that is being decoded.

use std::sync::{Mutex, MutexGuard, PoisonError};

use parquet::errors::{ParquetError, Result};
use strait::MemoryReservation;

use crate::memory::{Memory, Refusal};

const WHAT: &str = "decoding Parquet pages";

/// A bound on the bytes of a page's values that is not worth a closer look, if nothing limits memory.
const ENOUGH: u64 = 4 << 20;

/// The books of one reader. Its columns are decoded one after another by the same thread.
pub(super) struct PageMemory {
    memory: Memory,
    refusal: Refusal,
    /// Rows in a batch, at most.
    rows: u64,
    books: Mutex<Books>,
}

struct Books {
    reservation: MemoryReservation,
    columns: Vec<Column>,
}

/// What a column holds.
#[derive(Clone, Default)]
struct Column {
    page: u64,
    dictionary: u64,
    /// The part of `dictionary` that goes once the dictionary is decoded: its page.
    dictionary_page: u64,
    /// What decoding the rest of the current page takes in one batch, at most.
    values: u64,
    /// Rows of the current page that no batch has taken yet.
    left: u64,
    /// Rows of the current batch that pages were reserved for.
    taken: u64,
    /// Whether a row may have several values: how many rows a page has is not known then.
    is_repeated: bool,
}

/// What decoding a page takes.
pub(super) struct Needs<F> {
    /// The memory of the page, while it is the current one.
    pub(super) page: u64,
    /// How many values it has, and the most that a batch takes of them.
    pub(super) count: u64,
    pub(super) most: u64,
    /// What each value takes at least.
    pub(super) fixed: u64,
    /// Whether a row may have several values.
    pub(super) is_repeated: bool,
    /// The bytes of so many consecutive values, at most, beside what each takes.
    pub(super) bytes: F,
}

impl<F: Fn(u64) -> u64> Needs<F> {
    fn of(&self, values: u64) -> u64 {
        // A buffer that grows may be twice as large as what is in it.
        let bytes = (self.bytes)(values).saturating_mul(2);
        values.saturating_mul(self.fixed).saturating_add(bytes)
    }
}

impl PageMemory {
    pub(super) fn new(
        memory: &Memory,
        refusal: &Refusal,
        columns: usize,
        rows: usize,
    ) -> strait::Result<PageMemory> {
        let books = Books {
            reservation: memory.reserve(0, WHAT)?,
            columns: vec![Column::default(); columns],
        };
        Ok(PageMemory {
            memory: memory.clone(),
            refusal: refusal.clone(),
            rows: rows as u64,
            books: Mutex::new(books),
        })
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grow(&self, books: &mut Books, more: u64) -> Result<()> {
        let all = books.reservation.bytes().saturating_add(more);
        self.memory
            .resize(&mut books.reservation, all, WHAT)
            .map_err(|error| ParquetError::General(self.refusal.note(error)))
    }

    /// Reserves what the current pages decode to in the next batch.
    pub(super) fn begin_batch(&self) -> Result<()> {
        let books = &mut *self.books();
        let mut values = 0u64;
        for column in &mut books.columns {
            column.taken = column.left.min(self.rows);
            column.left -= column.taken;
            values = values.saturating_add(column.values);
            if column.left == 0 && !column.is_repeated {
                column.values = 0;
            }
        }
        self.grow(books, values)
    }

    /// Gives back the reservation of the decoded batch: the caller that takes the batch reserves it
    /// again. Pages and dictionaries stay reserved.
    pub(super) fn end_batch(&self) {
        let books = &mut *self.books();
        let kept = books.columns.iter().map(|column| column.page + column.dictionary).sum::<u64>();
        let held = books.reservation.bytes();
        books.reservation.shrink(held.saturating_sub(kept));
    }

    /// Forgets the pages of the column's last chunk. If the values of the batch are copies, these
    /// pages are freed now. Otherwise the batch may still refer to them.
    pub(super) fn begin_chunk(&self, column: usize, are_copies: bool) {
        let books = &mut *self.books();
        let Some(column) = books.columns.get_mut(column) else { return };
        if are_copies {
            books.reservation.shrink(column.page + column.dictionary);
        }
        *column = Column { taken: column.taken, ..Column::default() };
    }

    /// Rows in a batch, at most.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// A bound on the bytes of a page's values that is not worth a closer look.
    pub(super) fn enough(&self) -> u64 {
        self.memory.limit().map_or(ENOUGH, |limit| (limit / 512).min(ENOUGH))
    }

    /// Reserves more for a page: what it is itself, compressed and decompressed, or what its decoder
    /// keeps.
    pub(super) fn admit_page(&self, bytes: u64) -> Result<()> {
        self.grow(&mut self.books(), bytes)
    }

    /// Gives back what was reserved for the compressed bytes of a page.
    pub(super) fn decompressed(&self, bytes: u64) {
        self.books().reservation.shrink(bytes);
    }

    /// Gives back what was reserved for the page of a dictionary. The decoder has made a copy of the
    /// values, or keeps the page in place of one.
    pub(super) fn dictionary_decoded(&self, column: usize) {
        let books = &mut *self.books();
        let Some(column) = books.columns.get_mut(column) else { return };
        let page = std::mem::take(&mut column.dictionary_page);
        column.dictionary -= page;
        books.reservation.shrink(page);
    }

    /// Reserves what a dictionary takes beside its page of `bytes`.
    pub(super) fn admit_dictionary(&self, column: usize, bytes: u64, beside: u64) -> Result<()> {
        let books = &mut *self.books();
        let Some(column) = books.columns.get_mut(column) else { return Ok(()) };
        column.dictionary = bytes.saturating_add(beside);
        column.dictionary_page = bytes;
        self.grow(books, beside)
    }

    /// Reserves what decoding a page takes in the current batch, and notes what it takes in one
    /// that follows.
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
            // A batch has no more rows than it wants, however many pages they come from.
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

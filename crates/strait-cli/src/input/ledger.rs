//! What the decoder of a Parquet file holds: a page and a dictionary per column, and the values of
//! the batch that is being decoded.

use std::sync::{Mutex, MutexGuard, PoisonError};

use parquet::errors::{ParquetError, Result};
use strait::MemoryReservation;

use crate::memory::{Memory, Refusal};

const WHAT: &str = "decoding Parquet pages";

/// The books of one reader. Its columns are decoded one after another by the same thread.
pub(super) struct Ledger {
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
    /// The longest value in the dictionary.
    longest: u64,
    /// What decoding the rest of the current page takes in one batch, at most.
    values: u64,
}

/// How many bytes the values of a page decode to.
pub(super) enum Values {
    /// Each is a value of the dictionary.
    InDictionary,
    /// So many in all, beside what each value takes itself.
    Bytes(u64),
}

impl Ledger {
    pub(super) fn new(
        memory: &Memory,
        refusal: &Refusal,
        columns: usize,
        rows: usize,
    ) -> strait::Result<Ledger> {
        let books = Books {
            reservation: memory.reserve(0, WHAT)?,
            columns: vec![Column::default(); columns],
        };
        Ok(Ledger {
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
        let values = books.columns.iter().map(|column| column.values).sum();
        self.grow(books, values)
    }

    /// Keeps only the pages and dictionaries reserved. Whoever takes the batch reserves it.
    pub(super) fn end_batch(&self) {
        let books = &mut *self.books();
        let kept = books.columns.iter().map(|column| column.page + column.dictionary).sum::<u64>();
        let held = books.reservation.bytes();
        books.reservation.shrink(held.saturating_sub(kept));
    }

    /// Forgets the pages of the column's last chunk.
    pub(super) fn begin_chunk(&self, column: usize) {
        if let Some(column) = self.books().columns.get_mut(column) {
            *column = Column::default();
        }
    }

    /// Reserves a page, compressed and decompressed.
    pub(super) fn admit_page(&self, compressed: u64, uncompressed: u64) -> Result<()> {
        self.grow(&mut self.books(), compressed.saturating_add(uncompressed))
    }

    /// Notes a dictionary of `bytes`: the decoder holds a copy of it.
    pub(super) fn keep_dictionary(&self, column: usize, bytes: u64, (memory, longest): (u64, u64)) {
        if let Some(column) = self.books().columns.get_mut(column) {
            column.dictionary = bytes + memory;
            column.longest = longest;
        }
    }

    /// Reserves what the values of a page of `bytes` decode to: how many values there are, what
    /// each takes at least, and whether a row may have several.
    pub(super) fn admit_values(
        &self,
        column: usize,
        bytes: u64,
        (count, fixed, repeated): (u32, u64, bool),
        values: Values,
    ) -> Result<()> {
        let books = &mut *self.books();
        let Some(column) = books.columns.get_mut(column) else { return Ok(()) };
        let count = u64::from(count);
        let count = if repeated { count } else { count.min(self.rows) };
        // A buffer that grows may be twice as large as what is in it.
        let variable = match values {
            Values::InDictionary => count.saturating_mul(2 * column.longest),
            Values::Bytes(bytes) => bytes.saturating_mul(2),
        };
        column.page = bytes;
        column.values = count.saturating_mul(fixed).saturating_add(variable);
        let needed = column.values;
        self.grow(books, needed)
    }
}

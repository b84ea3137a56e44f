//! Calls a source, and checks and counts its batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use arrow::error::ArrowError;

use super::key_filter::{CheckedFilter, KeyFilter, KeyLookup};
use super::reader::ReaderSource;
use super::source::{Input, Kind, Morsel, Source, SourceContext};
use crate::error::{CallerCode, Error, Result};
use crate::memory::{Budget, Resting};
use crate::options::Side;
use crate::progress::Counters;
use crate::reading::ReadingThread;
use crate::schedule::catch_panic;

/// The most rows that a source may say it left out of one morsel. No table has so many.
const MAX_LEFT_OUT: u64 = 1 << 48;

/// What the join needs of the batches of a source.
pub(crate) struct Expected {
    /// The schema of the batches after the projection.
    pub(crate) schema: SchemaRef,
    /// The columns that the join needs, if the source has more.
    pub(crate) columns: Option<Vec<usize>>,
    /// Whether the output has the row numbers of this side.
    pub(crate) row_numbers: bool,
    /// Whether the rows are added to the number of rows read. Rows that are read back from disk are not added again.
    pub(crate) counted: bool,
}

/// A source, and everything that is needed to call it. Any number of workers may call [`pull`](Feed::pull).
pub(crate) struct Feed {
    pub(super) side: Side,
    /// `None` after it was closed.
    source: Option<Box<dyn Source>>,
    /// Whether the source is called by many workers at the same time. A reader is not.
    pub(super) concurrent: bool,
    pub(super) expected: Expected,
    pub(super) budget: Arc<Budget>,
    cancelled: Arc<AtomicBool>,
    /// Whether the source has failed. It is not called again then.
    failed: AtomicBool,
    counters: Arc<Counters>,
}

impl Feed {
    pub(crate) fn new(
        (side, input): (Side, Input),
        expected: Expected,
        reading: &Arc<ReadingThread>,
        budget: &Arc<Budget>,
        (cancelled, counters): (&Arc<AtomicBool>, &Arc<Counters>),
    ) -> Feed {
        let (source, concurrent): (Box<dyn Source>, _) = match input.0 {
            Kind::Reader(reader) => (Box::new(ReaderSource::new(side, reader, reading)), false),
            Kind::Source(source) => (source, true),
        };
        Feed {
            side,
            source: Some(source),
            concurrent,
            expected,
            budget: Arc::clone(budget),
            cancelled: Arc::clone(cancelled),
            failed: AtomicBool::new(false),
            counters: Arc::clone(counters),
        }
    }

    /// Returns the next morsel of the source, checked and counted; `None` at the end. It has a row number if
    /// the output needs one. The worker counts as idle while it waits, if it is `resting`. The source may
    /// leave out rows that cannot match according to `keys`.
    pub(super) fn pull(
        &self,
        resting: Option<&Resting<'_>>,
        keys: Option<&dyn KeyFilter>,
    ) -> Result<Option<Morsel>> {
        let idle = resting.and_then(Resting::idle);
        let called = self.call(keys);
        drop(idle);
        let may_leave_out = keys.is_some();
        let checked = |morsel: Morsel| self.check(morsel, may_leave_out);
        let pulled = called.and_then(|morsel| morsel.map(checked).transpose());
        pulled.inspect_err(|error| {
            // If memory was refused, the caller may wait for it and call again.
            let refused = matches!(error, Error::MemoryLimit { .. });
            self.failed.fetch_or(!refused, Ordering::Relaxed);
        })
    }

    /// Calls the source.
    fn call(&self, key_filter: Option<&dyn KeyFilter>) -> Result<Option<Morsel>> {
        let Some(source) = &self.source else { return Ok(None) };
        if self.failed.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        let (budget, cancelled) = (&self.budget, [&*self.cancelled, &self.failed]);
        let context = SourceContext { budget, cancelled, key_filter };
        match catch_panic(|| source.next(&context)) {
            // A source that sees the cancellation may return anything.
            Ok(_) if context.cancelled() => Err(Error::Cancelled),
            Ok(morsel) => morsel.map_err(|error| match Error::arrow(self.doing())(error) {
                // The caller may wait for memory and call again.
                refused @ Error::MemoryLimit { .. } => refused,
                error => error.by_caller(self.doing()),
            }),
            Err(message) => {
                let code = match self.side {
                    Side::Left => CallerCode::LeftReader,
                    Side::Right => CallerCode::RightReader,
                };
                Err(Error::CallerPanicked { code, message })
            }
        }
    }

    /// Returns the filter for this source, unless the output has the numbers of its rows, or it is a reader.
    pub(super) fn key_filter<'a>(&self, lookup: &'a dyn KeyLookup) -> Option<CheckedFilter<'a>> {
        if self.expected.row_numbers || !self.concurrent {
            return None;
        }
        let fields = self.expected.schema.fields();
        let key = |&needed: &usize| {
            let index = match &self.expected.columns {
                Some(columns) => *columns.get(needed)?,
                None => needed,
            };
            Some((index, Arc::clone(fields.get(needed)?)))
        };
        let keys: Option<Vec<_>> = lookup.columns().iter().map(key).collect();
        Some(CheckedFilter::new(self.side, keys?, lookup))
    }

    /// Projects, checks and counts a morsel.
    fn check(&self, morsel: Morsel, may_leave_out: bool) -> Result<Morsel> {
        let Morsel { mut batch, first_row, left_out } = morsel;
        if left_out > 0 && !may_leave_out {
            let what = format!("its source left out {left_out} rows without a key filter");
            return Err(self.invalid(what));
        }
        // The report adds up the rows of both sides.
        if left_out > MAX_LEFT_OUT {
            return Err(self.invalid(format!("its source says that it left out {left_out} rows")));
        }
        if let Some(columns) = &self.expected.columns {
            let projected = batch.project(columns);
            batch = projected.map_err(|error| Error::arrow(self.doing())(error))?;
        }
        check_columns(self.side, self.expected.schema.fields(), batch.columns())?;
        // Some of Arrow's kernels return such batches.
        if let Some(short) = batch.columns().iter().find(|c| c.len() != batch.num_rows()) {
            let (rows, len, is) = (batch.num_rows(), short.len(), short.data_type());
            return Err(self.invalid(format!(
                "its source returned a batch of {rows} rows with a column of {len} rows, of type {is}"
            )));
        }
        let rows = batch.num_rows() as u64;
        let first_row = match (self.expected.row_numbers, first_row) {
            (false, _) => None,
            (true, Some(first)) if first.checked_add(rows).is_some() => Some(first),
            (true, first) => {
                let what = "its source promises row numbers, and returned a morsel";
                let which = first.map_or("without one".to_string(), |n| format!("at row {n}"));
                return Err(self.invalid(format!("{what} {which}")));
            }
        };
        if !self.expected.counted {
            return Ok(Morsel { batch, first_row, left_out });
        }
        let counter = match self.side {
            Side::Left => &self.counters.left_rows,
            Side::Right => &self.counters.right_rows,
        };
        counter.fetch_add(rows.saturating_add(left_out), Ordering::Relaxed);
        if left_out > 0 {
            // The join does not see these rows. They count as done, so that the progress reaches the total.
            self.counters.done.fetch_add(left_out, Ordering::Relaxed);
            self.counters.skipped_rows.fetch_add(left_out, Ordering::Relaxed);
        }
        Ok(Morsel { batch, first_row, left_out })
    }

    fn doing(&self) -> String {
        format!("reading the {} table", self.side.name())
    }

    /// Returns the error of a source that breaks its contract.
    pub(super) fn invalid(&self, what: String) -> Error {
        Error::arrow(self.doing())(ArrowError::InvalidArgumentError(what))
    }
}

impl Feed {
    /// Drops the source. It is not called again.
    pub(super) fn close(&mut self) {
        let source = self.source.take();
        if let Err(message) = catch_panic(|| drop(source)) {
            log::warn!("dropping the source of the {} table panicked: {message}", self.side.name());
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.close();
    }
}

/// Checks the columns of a side against their fields in the bound schema.
pub(super) fn check_columns(side: Side, fields: &[FieldRef], columns: &[ArrayRef]) -> Result<()> {
    let changed = |detail| Error::SchemaChanged { side: side.name(), detail };
    if fields.len() != columns.len() {
        return Err(changed(format!("{} columns, not {}", columns.len(), fields.len())));
    }
    for (field, column) in fields.iter().zip(columns) {
        if field.data_type() != column.data_type() {
            let (name, was, is) = (field.name(), field.data_type(), column.data_type());
            return Err(changed(format!("column \"{name}\" is {is}, not {was}")));
        }
        // The key plan relies on these columns having no nulls. A null there would lose matches.
        let nulls = if field.is_nullable() { 0 } else { nulls_of(column) };
        if nulls > 0 {
            let name = field.name();
            return Err(changed(format!(
                "column \"{name}\" is declared non-nullable and has {nulls} null(s); declare it nullable"
            )));
        }
    }
    Ok(())
}

/// Returns the number of null rows. It includes nulls in dictionary values, in values of runs, and in null
/// and union arrays.
fn nulls_of(column: &dyn Array) -> usize {
    use DataType::{Dictionary, Null, RunEndEncoded, Union};
    match column.data_type() {
        Null | Dictionary(..) | RunEndEncoded(..) | Union(..) => column.logical_null_count(),
        _ => column.null_count(),
    }
}

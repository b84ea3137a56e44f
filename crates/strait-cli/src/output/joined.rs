//! The sink of a join: its workers write their rows at the same time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use arrow::error::ArrowError;
use strait::ReservedBatch;

use super::sink::Sink;
use crate::failure::Told;
use crate::memory::{Memory, Taking};

/// Writes the rows of a join to a [`Sink`], up to a limit.
pub(crate) struct JoinedRows<'a> {
    sink: &'a Sink,
    limit: u64,
    /// The number of rows that workers have begun to write.
    rows: AtomicU64,
    /// The first failure of the sink. The join would wrap it in its own words.
    failure: Mutex<Option<anyhow::Error>>,
    taking: Taking,
}

impl<'a> JoinedRows<'a> {
    pub(crate) fn new(sink: &'a Sink, limit: Option<u64>, memory: &Memory) -> JoinedRows<'a> {
        JoinedRows {
            sink,
            limit: limit.unwrap_or(u64::MAX),
            rows: AtomicU64::new(0),
            failure: Mutex::default(),
            taking: memory.taking(),
        }
    }

    /// Returns the number of rows that were written, or the first failure of the sink.
    pub(crate) fn finish(self) -> anyhow::Result<u64> {
        match self.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(failure) => Err(failure),
            None => Ok(self.rows.into_inner()),
        }
    }

    /// Returns whether all rows up to the limit were written. Then the join ends with an error.
    pub(crate) fn reached_limit(&self) -> bool {
        self.rows.load(Ordering::Relaxed) >= self.limit
    }

    /// Takes up to `rows` rows of those that are left up to the limit.
    fn take(&self, rows: u64) -> u64 {
        let add = |before: u64| Some(before.saturating_add(rows).min(self.limit));
        let before = self.rows.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let before = before.unwrap_or_else(|before| before);
        rows.min(self.limit - before)
    }

    fn write(&self, reserved: ReservedBatch) -> anyhow::Result<()> {
        let (batch, ordered) = (reserved.batch(), reserved.is_ordered());
        let rows = self.take(batch.num_rows() as u64) as usize;
        if rows == 0 {
            return Ok(());
        }
        let batch = batch.slice(0, rows);
        // The reservation lives until the rows are encoded. Without a memory limit, it may end earlier, when the rows
        // are put aside.
        if ordered { self.sink.write_in_order(batch) } else { self.sink.write(&batch) }
    }

    /// Keeps the failure if it is the first one. Returns an error that ends the join.
    fn ended(&self, written: anyhow::Result<()>) -> Result<(), ArrowError> {
        let why = match written {
            Ok(()) if !self.reached_limit() => return Ok(()),
            Ok(()) => "the output has all rows up to --limit",
            Err(error) => {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
                "the output could not be written"
            }
        };
        Err(Told(why.to_string()).into())
    }
}

impl strait::Sink for JoinedRows<'_> {
    fn push(&self, _worker: usize, batch: ReservedBatch) -> Result<(), ArrowError> {
        self.ended(self.taking.writing(|| self.write(batch)))
    }

    fn turn_passed(&self, _worker: usize) -> Result<(), ArrowError> {
        let encoded = self.taking.writing(|| self.sink.encode_ordered());
        self.ended(encoded)
    }
}

//! Brings the output of a join to its streams.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::{filter_record_batch, is_not_null};
use arrow::error::ArrowError;
use datafusion::common::Result;
use strait::{Error, ReservedBatch, Sink};

use super::{RunState, lock};
use crate::translate::Translated;

/// A queue from the threads of a join to the streams of its output.
///
/// Each batch goes to the stream that asks first. A stream that is no longer polled does not stop the other streams:
/// it holds no lock and no batch, and each new batch wakes all streams.
pub(super) struct OutputQueue {
    state: Mutex<Waiting>,
    taken: Condvar,
    /// The most batches that wait.
    most: usize,
}

#[derive(Default)]
struct Waiting {
    batches: VecDeque<RecordBatch>,
    streams: Vec<Waker>,
    /// The join has ended.
    ended: bool,
    /// No stream is left.
    abandoned: bool,
}

impl OutputQueue {
    pub(super) fn new(most: usize) -> Arc<OutputQueue> {
        Arc::new(OutputQueue { state: Mutex::default(), taken: Condvar::new(), most })
    }

    /// Adds a batch. Waits while the queue is full. Returns false if no stream is left.
    fn push(&self, batch: RecordBatch) -> bool {
        let mut state = lock(&self.state);
        while state.batches.len() >= self.most && !state.abandoned {
            state = self.taken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.abandoned {
            return false;
        }
        state.batches.push_back(batch);
        let streams = std::mem::take(&mut state.streams);
        drop(state);
        streams.into_iter().for_each(Waker::wake);
        true
    }

    /// Records the end of the join.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        let streams = std::mem::take(&mut state.streams);
        drop(state);
        streams.into_iter().for_each(Waker::wake);
    }

    /// Records that no stream is left. Drops the batches.
    pub(super) fn abandon(&self) {
        let mut state = lock(&self.state);
        state.abandoned = true;
        let batches = std::mem::take(&mut state.batches);
        drop(state);
        drop(batches);
        self.taken.notify_all();
    }

    /// Takes a batch; `None` at the end.
    pub(super) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<RecordBatch>> {
        let mut state = lock(&self.state);
        if let Some(batch) = state.batches.pop_front() {
            drop(state);
            self.taken.notify_one();
            return Poll::Ready(Some(batch));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        if !state.streams.iter().any(|stream| stream.will_wake(context.waker())) {
            state.streams.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// Sends the batches of a join to the streams of its output.
pub(super) struct OutputSink {
    pub(super) queue: Arc<OutputQueue>,
    pub(super) translated: Arc<Translated>,
    /// Present in null-aware anti joins.
    pub(super) facts: Option<Arc<NullFacts>>,
    pub(super) state: Arc<RunState>,
}

impl Sink for OutputSink {
    fn push(&self, _: usize, batch: ReservedBatch) -> Result<(), ArrowError> {
        let batch = self.finished(&batch.into_batch()).map_err(|error| {
            let told = ArrowError::ComputeError(error.to_string());
            self.state.fail(error);
            told
        })?;
        if batch.num_rows() == 0 {
            return Ok(());
        }
        match self.queue.push(batch) {
            true => Ok(()),
            false => Err(Error::Cancelled.into()),
        }
    }
}

impl OutputSink {
    fn finished(&self, joined: &RecordBatch) -> Result<RecordBatch> {
        let output = &self.translated.output;
        match (&self.facts, self.translated.key_in_output) {
            (Some(facts), Some(key)) => output.of_batch(&facts.left(joined, key)?),
            _ => output.of_batch(joined),
        }
    }
}

/// What a null-aware anti join (`NOT IN`) must know about the rows of its right input.
///
/// The join returns left rows without a match only after it has read the whole right input. So the facts are complete
/// before the first output batch uses them.
#[derive(Default)]
pub(super) struct NullFacts {
    rows: AtomicU64,
    has_null: AtomicBool,
}

impl NullFacts {
    pub(super) fn see(&self, keys: &[ArrayRef], rows: usize) {
        self.rows.fetch_add(rows as u64, Ordering::SeqCst);
        if keys.iter().any(|key| key.logical_null_count() > 0) {
            self.has_null.store(true, Ordering::SeqCst);
        }
    }

    /// Returns the rows that stay in the output. `x NOT IN (…)` is not true in two cases: a value of the list is null,
    /// or `x` is null and the list is not empty. `key` is the number of the key column.
    fn left(&self, joined: &RecordBatch, key: usize) -> Result<RecordBatch> {
        if self.has_null.load(Ordering::SeqCst) {
            return Ok(joined.slice(0, 0));
        }
        if self.rows.load(Ordering::SeqCst) == 0 {
            return Ok(joined.clone());
        }
        Ok(filter_record_batch(joined, &is_not_null(joined.column(key))?)?)
    }
}

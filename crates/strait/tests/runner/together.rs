//! Sources and sinks that many workers call at the same time.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchReader};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use strait::{KeyFilter, Morsel, ReservedBatch, Sink, Source, SourceContext};

use super::check::{Failure, ensure};
use super::readers::{Fed, Feed, Gate, Taking};

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// A source of the batches of a reader. It misbehaves as the reader does. In most of its batches, it leaves out
/// rows that cannot match.
pub(crate) struct FedTogether {
    schema: SchemaRef,
    feed: Feed,
    gate: Arc<Gate>,
    numbered: bool,
    calls: AtomicUsize,
    /// The reader, and the number of rows that it has returned.
    fed: Mutex<(Fed, u64)>,
}

impl FedTogether {
    pub(crate) fn new(fed: Fed, numbered: bool) -> FedTogether {
        let (schema, feed, gate) = (fed.schema(), fed.feed, Arc::clone(&fed.gate));
        let (calls, fed) = (AtomicUsize::new(0), Mutex::new((fed, 0)));
        FedTogether { schema, feed, gate, numbered, calls, fed }
    }
}

impl Source for FedTogether {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn has_row_numbers(&self) -> bool {
        self.numbered
    }

    fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if let Feed::Blocks(after) = self.feed
            && call >= after
        {
            self.gate.wait_until(|| context.cancelled());
            return Ok(None);
        }
        let (batch, first_row) = {
            let mut fed = locked(&self.fed);
            let Some(batch) = fed.0.next() else { return Ok(None) };
            let (batch, first_row) = (batch?, fed.1);
            fed.1 += batch.num_rows() as u64;
            (batch, first_row)
        };
        // Batches overtake each other.
        if call.is_multiple_of(3) {
            std::thread::yield_now();
        }
        Ok(Some(match self.numbered {
            true => Morsel::numbered(batch, first_row),
            false => match context.key_filter() {
                Some(keys) => without_some(batch, first_row, keys)?,
                None => Morsel::new(batch),
            },
        }))
    }
}

/// Leaves out none, some or all of the rows of a batch that cannot match. The number of the first row decides.
fn without_some(
    batch: RecordBatch,
    first_row: u64,
    keys: &dyn KeyFilter,
) -> Result<Morsel, ArrowError> {
    let way = first_row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62;
    if way == 0 {
        return Ok(Morsel::new(batch));
    }
    let columns: Vec<_> = keys.columns().iter().map(|&i| batch.column(i).clone()).collect();
    let may_match = keys.may_match(&columns)?;
    let kept = may_match.iter().enumerate().map(|(row, bit)| bit || (way == 1 && row % 2 == 0));
    let kept = BooleanArray::from(kept.collect::<Vec<bool>>());
    let rest = filter_record_batch(&batch, &kept)?;
    // Arrow's kernel makes arrays of length zero if values have no bytes.
    let is_whole = |column: &ArrayRef| {
        column.len() == rest.num_rows() && column.to_data().validate_full().is_ok()
    };
    if !rest.columns().iter().all(is_whole) {
        return Ok(Morsel::new(batch));
    }
    let left_out = batch.num_rows() - rest.num_rows();
    Ok(Morsel::new(rest).leaving_out(left_out as u64))
}

/// The error of a sink that has taken enough batches.
pub(crate) const SINK_FULL: &str = "the sink takes no more batches";

/// A sink that collects batches.
pub(crate) struct Collected {
    threads: usize,
    taking: Taking,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    batches: Vec<RecordBatch>,
    /// The workers that are inside `push`.
    pushing: HashSet<usize>,
    finished: usize,
    broken: Option<Failure>,
}

impl Collected {
    /// Creates a sink for this many workers. It is slow, or fails after some batches, as `taking` says.
    pub(crate) fn new(threads: usize, taking: Taking) -> Collected {
        Collected { threads, taking, state: Mutex::default() }
    }

    /// Returns the batches, in the order in which they came.
    pub(crate) fn batches(self, succeeded: bool) -> Result<Vec<RecordBatch>, Failure> {
        let state = self.state.into_inner().unwrap_or_else(|e| e.into_inner());
        let ends = usize::from(succeeded);
        ensure!(state.finished == ends, "the sink was finished {} times", state.finished);
        state.broken.map_or(Ok(state.batches), Err)
    }
}

impl Sink for Collected {
    fn push(&self, worker: usize, batch: ReservedBatch) -> Result<(), ArrowError> {
        let number = {
            let mut state = locked(&self.state);
            if !state.pushing.insert(worker) || worker >= self.threads || state.finished > 0 {
                state.broken = Some(format!("worker {worker} must not push now"));
            }
            state.batches.len()
        };
        self.taking.pause(number);
        let mut state = locked(&self.state);
        state.pushing.remove(&worker);
        if self.taking == Taking::DropAfter(number) {
            return Err(ArrowError::ComputeError(SINK_FULL.to_string()));
        }
        state.batches.push(batch.into_batch());
        Ok(())
    }

    fn finish(&self) -> Result<(), ArrowError> {
        locked(&self.state).finished += 1;
        Ok(())
    }
}

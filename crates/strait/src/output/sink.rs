//! The destination of the output, which all workers share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;

use super::{CurrentPlan, Output, Turn};
use crate::error::{CallerCode, Error, Result};
use crate::memory::{Budget, Flow, Hold, Ledger, Queued, Reservation, frame};
use crate::progress::Counters;
use crate::schedule::{catch_panic, lock};

/// The purpose that is named if memory for output is refused.
pub(super) const OUTPUT: &str = "a batch of output";

/// A table that the workers of a join write at the same time.
///
/// [`Join::run_into`](crate::Join::run_into) runs a join whose output goes into a sink. The workers call
/// [`push`](Sink::push) on their own threads, so a sink that encodes files encodes on all of them.
///
/// # Contract
///
/// - `push` may block: then the join waits. The batches that the sink holds count in the memory budget of the
///   join until the sink drops them, or takes them out with [`ReservedBatch::into_batch`]. A join under a
///   memory limit may wait for this memory. So a sink that keeps batches for long must take them out.
/// - An error of `push` ends the join. So does a panic. Other workers may still push after that.
/// - A sink that needs memory of the join's [`MemoryBudget`](crate::MemoryBudget) should reserve it before
///   the join starts. If the budget refuses it in `push`, the join fails.
/// - The sort-merge join on the CPU pushes its batches in the order of the keys, one after the other. Such a
///   batch [is ordered](ReservedBatch::is_ordered). While one worker pushes, the others wait for their turn,
///   so a sink that encodes in `push` encodes on one thread only. A sink can keep the batches in `push`, and
///   encode them in [`turn_passed`](Sink::turn_passed). All other joins push at the same time, in any order.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::Mutex;
/// use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator};
/// use arrow::error::ArrowError;
/// use strait::{Join, ReservedBatch, Sink};
///
/// /// Collects the batches of each worker.
/// struct Collected(Vec<Mutex<Vec<RecordBatch>>>);
///
/// impl Sink for Collected {
///     fn push(&self, worker: usize, batch: ReservedBatch) -> Result<(), ArrowError> {
///         // No other thread has the number of this worker, so nobody waits for this lock.
///         self.0[worker].lock().expect("no panic").push(batch.into_batch());
///         Ok(())
///     }
/// }
///
/// let table = |keys: Vec<i64>| {
///     let batch = RecordBatch::try_from_iter([("k", Arc::new(Int64Array::from(keys)) as _)]);
///     batch.map(|batch| RecordBatchIterator::new([Ok(batch.clone())], batch.schema()))
/// };
/// let threads = 4;
/// let sink = Collected((0..threads).map(|_| Mutex::default()).collect());
/// let join = Join::inner().on("k").threads(threads);
/// let report = join.run_into(table(vec![1, 2, 3])?, table(vec![3, 1, 3])?, &sink)?;
/// assert_eq!(report.output_rows, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Sink: Send + Sync {
    /// Takes a batch of the output. Workers call it at the same time, each with its own number. The numbers
    /// are smaller than the number of [threads](crate::Join::threads) of the join. Two calls with the same
    /// number never overlap.
    fn push(&self, worker: usize, batch: ReservedBatch) -> Result<(), ArrowError>;

    /// Runs work that needs no turn. If the output is ordered, each worker calls it after it has passed its
    /// turn to the next worker, which may push meanwhile. Does nothing by default.
    fn turn_passed(&self, worker: usize) -> Result<(), ArrowError> {
        let _ = worker;
        Ok(())
    }

    /// Takes the end of the output. The join calls it once, after the last `push`, if it did not fail.
    fn finish(&self) -> Result<(), ArrowError> {
        Ok(())
    }
}

/// A finished batch of a join and its memory reservation. A [`Sink`] gets it.
///
/// ```
/// use arrow::error::ArrowError;
/// use strait::{ReservedBatch, Sink};
///
/// /// Prints the number of rows. The memory is released when `batch` is dropped.
/// struct Printed;
///
/// impl Sink for Printed {
///     fn push(&self, worker: usize, batch: ReservedBatch) -> Result<(), ArrowError> {
///         println!("worker {worker}: {} rows", batch.batch().num_rows());
///         Ok(())
///     }
/// }
/// ```
#[derive(Debug)]
pub struct ReservedBatch {
    /// Counts the batch while it is on its way to the consumer. It comes first, because it must be dropped
    /// before the reservations.
    queued: Option<Queued>,
    batch: RecordBatch,
    /// The reservation for the buffers that were allocated for this batch.
    reserved: Reservation,
    /// The reservations for the input buffers that the batch refers to, if memory is limited.
    pub(super) hold: Hold,
    /// Whether the batch belongs to an ordered output.
    pub(super) ordered: bool,
}

impl ReservedBatch {
    /// Returns the batch.
    pub fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// Returns whether the batches of the output are in the order of the keys. Then each batch comes after
    /// the batches that were pushed before it.
    pub fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// Takes the batch out. From now on it does not count in the memory budget of the join.
    pub fn into_batch(self) -> RecordBatch {
        let ReservedBatch { queued, batch, reserved, hold, ordered: _ } = self;
        drop(queued);
        drop((reserved, hold));
        batch
    }
}

/// The sink of a join that only counts.
pub(crate) struct NoRows;

impl Sink for NoRows {
    fn push(&self, _: usize, _: ReservedBatch) -> Result<(), ArrowError> {
        Err(Error::internal("a join that counts has made rows").into())
    }
}

/// The destination of all workers' rows.
pub(crate) struct SharedSink<'a> {
    pub(crate) output_plan: CurrentPlan<'a>,
    pub(crate) sink: &'a dyn Sink,
    pub(crate) budget: &'a Arc<Budget>,
    /// The reservations for the input buffers, if memory is limited.
    pub(crate) ledger: Option<&'a Ledger>,
    pub(crate) flow: &'a Arc<Flow>,
    pub(crate) cancelled: &'a AtomicBool,
    pub(crate) counters: &'a Counters,
    pub(crate) batch_size: usize,
    /// The number of workers that make output.
    pub(crate) workers: u64,
    /// Whether rows are sent before more input is read.
    pub(crate) prompt: bool,
    /// For ordered output: the segment that may send next.
    pub(crate) turn: Turn,
    /// Whether all rows have the same key now. Then the rows of an ordered output may come in any order.
    pub(crate) one_key: AtomicBool,
    /// Held while such rows are pushed, because the batches of an ordered output are pushed one after the other.
    pub(crate) pushing: Mutex<()>,
    /// The sums so far.
    pub(crate) sums: Mutex<Vec<i128>>,
}

/// The output at one point of a join: its number of rows, and the sums of its columns.
#[derive(Debug, Clone)]
pub(crate) struct OutputPoint {
    rows: u64,
    sums: Vec<i128>,
}

impl SharedSink<'_> {
    /// Returns the current point of the output. No worker may have an emitter.
    pub(crate) fn point(&self) -> OutputPoint {
        OutputPoint { rows: self.counters.found(), sums: lock(&self.sums).clone() }
    }

    /// Goes back to an earlier point, so that the join can produce the later output again. Returns false if
    /// that is not possible, because rows were sent since then. (Counts and sums are only reported at the
    /// end.)
    pub(crate) fn go_back(&self, to: &OutputPoint) -> bool {
        if self.output_plan.output != Output::Count && self.counters.found() != to.rows {
            return false;
        }
        self.counters.find_again(to.rows);
        lock(&self.sums).clone_from(&to.sums);
        true
    }

    /// Makes a [`ReservedBatch`] of a batch, and adjusts its reservation to the bytes that the batch really
    /// takes. Raises `bytes` to this number, so that another attempt reserves enough before it gathers.
    pub(super) fn parcel(
        &self,
        batch: RecordBatch,
        mut reserved: Reservation,
        bytes: &mut u64,
    ) -> Result<ReservedBatch> {
        let Some(ledger) = self.ledger else {
            let hold = Hold::new();
            return Ok(ReservedBatch { queued: None, batch, reserved, hold, ordered: false });
        };
        let referred = ledger.refer(&batch);
        let takes = referred.own + frame(&batch);
        if takes > reserved.bytes() {
            *bytes = takes.max(*bytes);
            reserved.grow(takes - reserved.bytes(), OUTPUT)?;
        } else {
            reserved.shrink(reserved.bytes() - takes);
        }
        Ok(ReservedBatch { queued: None, batch, reserved, hold: referred.hold, ordered: false })
    }

    /// Gives a batch to the sink.
    pub(super) fn push(&self, worker: usize, mut batch: ReservedBatch) -> Result<()> {
        batch.queued = Some(self.flow.sending());
        if !self.one_key.load(Ordering::Relaxed) {
            return called(|| self.sink.push(worker, batch));
        }
        batch.ordered = true;
        {
            let _pushing = lock(&self.pushing);
            called(|| self.sink.push(worker, batch))?;
        }
        self.turn_passed(worker)
    }

    /// Tells the sink that a worker has passed its turn.
    pub(super) fn turn_passed(&self, worker: usize) -> Result<()> {
        called(|| self.sink.turn_passed(worker))
    }

    /// Tells the sink that the output is complete.
    pub(crate) fn finish(&self) -> Result<()> {
        called(|| self.sink.finish())
    }
}

/// Calls the caller's sink. Turns a panic into an error.
fn called(call: impl FnOnce() -> Result<(), ArrowError>) -> Result<()> {
    match catch_panic(call) {
        Ok(done) => done.map_err(Error::of_caller("writing the output")),
        Err(message) => Err(Error::CallerPanicked { code: CallerCode::Sink, message }),
    }
}

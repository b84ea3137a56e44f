//! The reader of a join's output. Batches come from a short queue; the report is available after the last
//! one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use crate::error::{Error, Result};
use crate::memory::{Budget, Flow};
use crate::output::{ReservedBatch, Sink};
use crate::progress::Counters;
use crate::report::Report;
use crate::schedule::lock;

/// The state that the conductor thread and the reader share.
pub(crate) struct Running {
    pub(crate) budget: Arc<Budget>,
    pub(crate) flow: Arc<Flow>,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) report: Mutex<Option<Report>>,
}

impl Running {
    pub(crate) fn new(budget: Arc<Budget>, cancelled: Arc<AtomicBool>) -> Arc<Running> {
        let (flow, counters) = Default::default();
        Arc::new(Running { budget, flow, cancelled, counters, report: Mutex::default() })
    }
}

/// The sink behind a [`JoinReader`]: a short queue.
pub(crate) struct Queue(pub(crate) SyncSender<Result<ReservedBatch>>);

impl Sink for Queue {
    fn push(&self, _: usize, batch: ReservedBatch) -> Result<(), ArrowError> {
        // If the reader is gone, there is no reason to continue.
        self.0.send(Ok(batch)).map_err(|_| Error::Cancelled.into())
    }
}

/// The output of a running join, batch by batch.
///
/// It is an iterator and a [`RecordBatchReader`]. An error of the join is an [`ArrowError`] that wraps an
/// [`Error`]; [`Error::from_arrow`] returns the inner error. Dropping the reader cancels the join, and waits
/// until its threads have ended.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use strait::Join;
///
/// let mut reader = Join::inner().on("id").run(ids(vec![1, 2]), ids(vec![2]))?;
/// let rows: usize = reader.by_ref().map(|batch| batch.map_or(0, |batch| batch.num_rows())).sum();
/// let report = reader.report().expect("the join has finished");
/// assert_eq!(report.output_rows, rows as u64);
/// # Ok::<(), strait::Error>(())
/// ```
pub struct JoinReader {
    pub(crate) schema: SchemaRef,
    pub(crate) receiver: Option<Receiver<Result<ReservedBatch>>>,
    pub(crate) conductor: Option<JoinHandle<()>>,
    pub(crate) shared: Arc<Running>,
}

impl JoinReader {
    /// Returns the report of the join. It is available at the latest when the iterator has returned `None`. A
    /// join that failed has no report.
    pub fn report(&self) -> Option<Report> {
        lock(&self.shared.report).clone()
    }

    fn stop(&mut self) {
        self.receiver = None;
        if let Some(conductor) = self.conductor.take() {
            // The conductor's panics were caught and sent as errors.
            drop(conductor.join());
        }
    }
}

impl Iterator for JoinReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let receiver = self.receiver.as_ref()?;
        self.shared.flow.awaiting(&self.shared.budget);
        let received = receiver.recv();
        self.shared.flow.received();
        match received {
            // From here on the batch belongs to the consumer, and its reservation ends.
            Ok(Ok(batch)) => Some(Ok(batch.into_batch())),
            Ok(Err(error)) => {
                self.stop();
                Some(Err(error.into()))
            }
            // All senders are dropped, so the conductor has finished.
            Err(_) => {
                self.stop();
                None
            }
        }
    }
}

impl RecordBatchReader for JoinReader {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

impl Drop for JoinReader {
    fn drop(&mut self) {
        self.shared.cancelled.store(true, Ordering::Relaxed);
        self.stop();
    }
}

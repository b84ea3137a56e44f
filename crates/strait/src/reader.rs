//! The reader of a join's output. Batches come from a short queue; the report is available after the last
//! one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use crate::error::{Error, Result};
use crate::memory::{Budget, Flow};
use crate::output::{Aggregate, ReservedBatch};
use crate::progress::Counters;
use crate::report::Report;
use crate::schedule::lock;

/// The state that the conductor thread and the reader share.
pub(crate) struct Running {
    pub(crate) budget: Arc<Budget>,
    pub(crate) flow: Flow,
    pub(crate) cancelled: Arc<AtomicBool>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) report: Mutex<Option<Report>>,
    pub(crate) sums: Mutex<Vec<i128>>,
}

impl Running {
    pub(crate) fn new(budget: Arc<Budget>) -> Arc<Running> {
        let (flow, cancelled, counters) = Default::default();
        let (report, sums) = Default::default();
        Arc::new(Running { budget, flow, cancelled, counters, report, sums })
    }
}

/// The output of a running join, batch by batch.
///
/// It is an iterator and a [`RecordBatchReader`]. An error of the join is an [`ArrowError`] that wraps an
/// [`Error`]; [`Error::from_arrow`] returns the inner error. Dropping the reader cancels the join, and waits
/// until its threads have ended.
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

    /// Runs a join that only counts to its end, and returns the number of rows.
    pub(crate) fn counted(mut self) -> Result<(u64, Report)> {
        if let Some(batch) = self.next() {
            batch.map_err(Error::from_arrow)?;
        }
        let report = self.report().ok_or_else(|| Error::internal("the join left no report"))?;
        Ok((report.output_rows, report))
    }

    /// Runs a join that only aggregates to its end, and returns its sums.
    pub(crate) fn aggregated(self) -> Result<(Aggregate, Report)> {
        let shared = Arc::clone(&self.shared);
        let (rows, report) = self.counted()?;
        let sums = std::mem::take(&mut *lock(&shared.sums));
        Ok((Aggregate { rows, sums }, report))
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
        self.shared.flow.taken();
        match received {
            // From here on the batch belongs to the consumer, and its reservation ends.
            Ok(Ok(parcel)) => Some(Ok(parcel.batch)),
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

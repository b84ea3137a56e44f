//! The destination of the output, which all workers share.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;

use super::{Output, OutputPlan, Turn};
use crate::error::Result;
use crate::memory::{Budget, Flow, Hold, Ledger, Reservation, frame};
use crate::progress::Counters;
use crate::schedule::lock;

/// The purpose that is named if memory for output is refused.
pub(super) const OUTPUT: &str = "a batch of output";

/// A finished batch and its memory reservation, which ends when the consumer takes the batch.
pub(crate) struct ReservedBatch {
    pub(crate) batch: RecordBatch,
    /// The reservation for the buffers that were allocated for this batch.
    _reserved: Reservation,
    /// The reservations for the input buffers that the batch refers to, if memory is limited.
    pub(super) hold: Hold,
}

/// The destination of all workers' rows.
pub(crate) struct SharedSink<'a> {
    pub(crate) plan: &'a OutputPlan,
    pub(crate) sender: SyncSender<Result<ReservedBatch>>,
    pub(crate) budget: &'a Arc<Budget>,
    /// The reservations for the input buffers, if memory is limited.
    pub(crate) ledger: Option<&'a Ledger>,
    pub(crate) flow: &'a Flow,
    pub(crate) cancelled: &'a AtomicBool,
    pub(crate) counters: &'a Counters,
    pub(crate) batch_size: usize,
    /// The number of workers that make output.
    pub(crate) workers: u64,
    /// Whether rows are sent before more input is read.
    pub(crate) prompt: bool,
    /// For ordered output: the segment that may send next.
    pub(crate) turn: Turn,
    /// The sums so far.
    pub(crate) sums: Mutex<Vec<i128>>,
}

impl SharedSink<'_> {
    /// Returns whether the consumer has seen nothing of the output yet: no rows have been sent. Counts are
    /// only reported at the end.
    pub(crate) fn untouched(&self) -> bool {
        self.plan.output == Output::Count || self.counters.found() == 0
    }

    /// Resets the counts, so that the join can restart. Nothing may have been sent.
    pub(crate) fn reset(&self) {
        self.counters.find_again();
        lock(&self.sums).fill(0);
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
            return Ok(ReservedBatch { batch, _reserved: reserved, hold: Hold::new() });
        };
        let referred = ledger.refer(&batch);
        let takes = referred.own + frame(&batch);
        if takes > reserved.bytes() {
            *bytes = takes.max(*bytes);
            reserved.grow(takes - reserved.bytes(), OUTPUT)?;
        } else {
            reserved.shrink(reserved.bytes() - takes);
        }
        Ok(ReservedBatch { batch, _reserved: reserved, hold: referred.hold })
    }
}

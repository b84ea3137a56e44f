//! The probe side on its way to the partitions in memory. Rows of the other partitions are diverted to disk.
//!
//! ```text
//!  probe side ──► chunk ──► partitions ──┬── build partition in memory ──► morsel of the join in memory
//!                                        └── build partition on disk ────► file of the probe partition
//! ```

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::partitions::{Partitions, Work};
use crate::error::{Error, Result};
use crate::input::{BufferedSource, ChunkLimits, Morsel, Source, SourceContext};
use crate::memory::{Budget, Reservation};
use crate::options::Side;
use crate::schedule::lock;
use crate::spill::SpilledSource;

/// A call that waits for another one checks for cancellation this often.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The rows of the probe side whose build partition is in memory. Each call also writes the rows of other partitions.
pub(super) struct Diverted {
    side: Side,
    partitions: Arc<Partitions>,
    /// For each partition, whether its build partition is on disk.
    on_disk: Vec<bool>,
    /// The rest of the probe side.
    rest: BufferedSource,
    room: Arc<Room>,
    state: Mutex<State>,
    /// Signalled when a call ends.
    changed: Condvar,
}

/// Memory for partitioning the probe side. It is reserved before the join in memory starts, so that the join cannot
/// take it.
pub(super) struct Room {
    budget: Arc<Budget>,
    /// The memory of the join.
    whole: Arc<Budget>,
    _reserved: Reservation,
}

impl Room {
    /// Reserves `bytes`. If memory is not limited, the room is not limited either.
    pub(super) fn new(budget: &Arc<Budget>, bytes: Option<u64>) -> Result<Arc<Room>> {
        let what = "partitioning the probe side";
        let _reserved = budget.reserve(bytes.unwrap_or(0), what)?;
        let (budget, whole) = (Budget::new(bytes), Arc::clone(budget));
        Ok(Arc::new(Room { budget, whole, _reserved }))
    }

    /// Returns the error with the limit of the join. The caller does not know the limit of the room.
    fn of_join(&self, error: Error) -> Error {
        match error {
            Error::MemoryLimit { what, needed, .. } => {
                self.whole.refuse(needed, self.whole.used(), &what)
            }
            other => other,
        }
    }
}

struct State {
    /// Files of rows that were written before it was known which build partitions stay in memory.
    again: Vec<Arc<SpilledSource>>,
    /// Chunks whose rows were not all written or returned, because memory was refused.
    waiting: Vec<Work>,
    /// The number of calls that have a chunk.
    busy: usize,
    /// The error of the first call that failed, unless memory was refused.
    failure: Option<Error>,
}

impl Diverted {
    pub(super) fn new(
        partitions: &Arc<Partitions>,
        build_side: Side,
        rest: BufferedSource,
        (again, room): (Vec<Arc<SpilledSource>>, &Arc<Room>),
    ) -> Diverted {
        let on_disk = partitions.on_disk(build_side);
        let state = Mutex::new(State { again, waiting: Vec::new(), busy: 0, failure: None });
        let (side, partitions) = (build_side.other(), Arc::clone(partitions));
        let room = Arc::clone(room);
        Diverted { side, partitions, on_disk, rest, room, state, changed: Condvar::new() }
    }

    /// Returns rows whose build partition is in memory, or `None` at the end. The batch may be empty.
    fn pull(&self, context: &SourceContext<'_>) -> Result<Option<RecordBatch>> {
        if let Some(batch) = self.read_again(context)? {
            return Ok(Some(batch));
        }
        let Some(mut work) = self.take_work(context)? else { return Ok(None) };
        let budget = &self.room.budget;
        let kept = self.partitions.divide(&mut work, budget, |partition| !self.on_disk[partition]);
        let kept = kept.and_then(|()| self.partitions.take_kept(&mut work, budget));
        let kept = kept.map_err(|error| self.room.of_join(error));
        let mut state = lock(&self.state);
        state.busy -= 1;
        if !matches!(kept, Ok(None)) {
            // Some rows may be left.
            state.waiting.push(work);
        }
        drop(state);
        self.changed.notify_all();
        let empty = || RecordBatch::new_empty(self.schema());
        Ok(Some(kept?.unwrap_or_else(empty)))
    }

    /// Returns rows that were written earlier; `None` if there are no more.
    fn read_again(&self, context: &SourceContext<'_>) -> Result<Option<RecordBatch>> {
        loop {
            let Some(source) = lock(&self.state).again.last().map(Arc::clone) else {
                return Ok(None);
            };
            match source.next(context).map_err(Error::arrow("reading rows from disk"))? {
                Some(morsel) => return Ok(Some(morsel.into_batch())),
                None => lock(&self.state).again.retain(|other| !Arc::ptr_eq(other, &source)),
            }
        }
    }

    /// Takes a chunk that waits, or the next one of the probe side. Returns `None` at the end: no chunk is left, and no
    /// other call has one that it may put back.
    fn take_work(&self, context: &SourceContext<'_>) -> Result<Option<Work>> {
        loop {
            if context.cancelled() {
                return Err(Error::Cancelled);
            }
            let mut state = lock(&self.state);
            state.busy += 1;
            if let Some(work) = state.waiting.pop() {
                return Ok(Some(work));
            }
            drop(state);
            let chunk = self.rest.chunk_of_worker(self.limits());
            if let Ok(Some(chunk)) = chunk {
                return Ok(Some(Work::new(self.side, chunk.rows)));
            }
            let mut state = lock(&self.state);
            state.busy -= 1;
            let is_end = state.busy == 0 && state.waiting.is_empty();
            if let Err(error) = chunk {
                return Err(self.failed(state, error, context));
            }
            if is_end {
                self.partitions.probe_ended.store(true, Ordering::Relaxed);
                return Ok(None);
            }
            // Another call may put its chunk back.
            drop(self.changed.wait_timeout(state, LOOK_AGAIN));
        }
    }

    /// Returns the error of a call that failed. After one call of the probe side has failed, the others are only told
    /// that they are cancelled. They return the error of that call, because it has the reason.
    fn failed(
        &self,
        mut state: MutexGuard<'_, State>,
        error: Error,
        context: &SourceContext<'_>,
    ) -> Error {
        match &error {
            Error::MemoryLimit { .. } => {}
            Error::Cancelled => {
                while state.failure.is_none() && state.busy > 0 && !context.cancelled() {
                    let waited = self.changed.wait_timeout(state, LOOK_AGAIN);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
            reason => {
                state.failure.get_or_insert(reason.clone());
            }
        }
        let reason = state.failure.clone().filter(|_| matches!(error, Error::Cancelled));
        drop(state);
        self.changed.notify_all();
        reason.unwrap_or(error)
    }

    fn limits(&self) -> ChunkLimits {
        let rules = &self.partitions.rules;
        let (rows, bytes) = (rules.chunk_rows(), rules.chunk_bytes());
        ChunkLimits { rows, bytes, spare: 0, free: 0, one_batch: false }
    }
}

impl Source for Diverted {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.partitions.schemas[self.side as usize])
    }

    fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        Ok(self.pull(context)?.map(Morsel::new))
    }
}

//! The source of probe rows for the join in memory. It writes the probe rows of the other partitions to disk.
//!
//! ```text
//!  probe side ──► chunk ──► partitions ──┬── build partition in memory ──► morsel of the join in memory
//!                                        └── build partition on disk ────► file of the probe partition
//! ```
//!
//! A row that has no match according to the keys of the build side is not written to disk. If the join type returns it,
//! it goes to the join in memory, which finds no match for it and returns it at once.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::partitions::{Partitions, Phase, Work};
use crate::error::{Error, Result};
use crate::input::{BufferedSource, Morsel, Source, SourceContext};
use crate::memory::{Budget, Reservation};
use crate::options::Side;
use crate::schedule::lock;
use crate::spill::SpilledSource;

/// A call that waits for another call checks for cancellation at this interval.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A source of the probe rows whose build partition is in memory. Each call also writes other probe rows to disk.
pub(super) struct Diverted {
    side: Side,
    partitions: Arc<Partitions>,
    /// For each partition, whether its build partition is on disk.
    on_disk: Vec<bool>,
    /// The rest of the probe side.
    rest: BufferedSource,
    /// Whether the rows of `rest` are counted. They were counted before if a join in memory was refused memory.
    counts: bool,
    room: Arc<Room>,
    state: Mutex<State>,
    /// Signalled when a call ends.
    changed: Condvar,
}

/// Memory for partitioning the probe side. It is reserved before the join in memory starts, so that the join cannot
/// take it.
pub(super) struct Room {
    budget: Arc<Budget>,
    /// The budget of the whole join. The bytes of `budget` are reserved in it.
    whole: Arc<Budget>,
    _reserved: Reservation,
    /// Memory that is kept free for the reader of the probe side, and the number of calls that are reading. The memory
    /// is reserved only while no call reads.
    reading: Mutex<(Reservation, usize)>,
    reading_bytes: u64,
}

impl Room {
    /// Reserves `bytes` for partitioning. Also reserves `reading_bytes` for reading a batch, if that much memory is
    /// free. If memory is not limited, the room is not limited either.
    pub(super) fn new(
        budget: &Arc<Budget>,
        bytes: Option<u64>,
        reading_bytes: u64,
    ) -> Result<Arc<Room>> {
        let what = "partitioning the probe side";
        let _reserved = budget.reserve(bytes.unwrap_or(0), what)?;
        let reading = budget.reserve(reading_bytes, what).or_else(|_| budget.reserve(0, what))?;
        let reading = Mutex::new((reading, 0));
        let (budget, whole) = (Budget::new(bytes), Arc::clone(budget));
        Ok(Arc::new(Room { budget, whole, _reserved, reading, reading_bytes }))
    }

    /// Releases the memory that is kept for reading, calls `read`, and reserves the memory again if it is still free.
    /// Several workers share this memory.
    fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        {
            let (kept, calls) = &mut *lock(&self.reading);
            *calls += 1;
            let bytes = kept.bytes();
            kept.shrink(bytes);
        }
        let result = read();
        let (kept, calls) = &mut *lock(&self.reading);
        *calls -= 1;
        // While another call reads, its reader needs the memory.
        if *calls == 0 && kept.grow(self.reading_bytes, "reading the probe side").is_err() {
            log::trace!("no memory is kept for reading the probe side");
        }
        result
    }
}

struct State {
    /// Probe rows on disk whose build partition is in memory. They were written before the join chose the build
    /// partitions that stay in memory.
    again: Vec<Arc<SpilledSource>>,
    /// Chunks that may have rows left: rows for the join in memory, or rows that were not written because memory was
    /// refused.
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
        (rest, counts): (BufferedSource, bool),
        (again, room): (Vec<Arc<SpilledSource>>, &Arc<Room>),
    ) -> Diverted {
        let on_disk = partitions.on_disk(build_side);
        let state = Mutex::new(State { again, waiting: Vec::new(), busy: 0, failure: None });
        let (side, partitions) = (build_side.other(), Arc::clone(partitions));
        let room = Arc::clone(room);
        let changed = Condvar::new();
        Diverted { side, partitions, on_disk, rest, counts, room, state, changed }
    }

    /// Returns rows whose build partition is in memory, or `None` at the end. The batch may be empty.
    fn pull(&self, context: &SourceContext<'_>) -> Result<Option<RecordBatch>> {
        if let Some(batch) = self.read_again(context)? {
            return Ok(Some(batch));
        }
        let Some(mut work) = self.take_work(context)? else { return Ok(None) };
        let phase = Phase::Probing { on_disk: &self.on_disk, counts: self.counts };
        let mut divided = |budget: &Arc<Budget>| {
            self.partitions.divide(&mut work, budget, phase)?;
            self.partitions.take_kept(&mut work, budget)
        };
        // Even a few rows can need more memory than the room has. Then memory is reserved in the budget of the join.
        let kept = match divided(&self.room.budget) {
            Err(Error::MemoryLimit { .. }) => divided(&self.room.whole),
            kept => kept,
        };
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

    /// Takes a waiting chunk, or reads the next chunk of the probe side. Returns `None` at the end. At the end, no
    /// chunk is left, and no other call has a chunk that it may put back.
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
            let limits = self.partitions.rules.chunk_limits();
            let chunk = self.room.read(|| self.rest.chunk_of_worker(limits));
            if let Ok(Some(chunk)) = chunk {
                return Ok(Some(Work::new(self.side, chunk)));
            }
            let mut state = lock(&self.state);
            state.busy -= 1;
            // Another call may have left rows in the source after this call found none.
            let is_end = state.busy == 0 && state.waiting.is_empty() && !self.rest.has_waiting();
            let may_go_on = state.busy == 0 && !is_end;
            if let Err(error) = chunk {
                return Err(self.failed(state, error, context));
            }
            if is_end {
                self.partitions.probe_ended.store(true, Ordering::Relaxed);
                return Ok(None);
            }
            if may_go_on {
                continue;
            }
            // Another call may put its chunk back.
            drop(self.changed.wait_timeout(state, LOOK_AGAIN));
        }
    }

    /// Returns the error of a call that failed. If the probe side returns an error to one call, the other calls get
    /// only [`Error::Cancelled`]. They return the error of the first call instead, because it names the cause.
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
}

impl Source for Diverted {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.partitions.schemas[self.side as usize])
    }

    fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        Ok(self.pull(context)?.map(Morsel::new))
    }
}

//! Brings the batches of input streams to the threads of a join.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_plan::SendableRecordBatchStream;
use futures_util::{FutureExt, StreamExt};
use strait::{Error, Morsel, Side, Source, SourceContext};
use tokio::sync::Semaphore;

use super::bounds::BuildSide;
use super::output::NullFacts;
use super::{Bounds, RunState, lock};
use crate::translate::Translated;

/// How long a thread waits for a batch before it checks again whether the join was cancelled.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// This many batches of a stream go to the threads one by one, so that the first rows of the output come early.
const EAGER: usize = 4;

/// After about this many batches, the task lets other tasks of its thread run.
const YIELD_AFTER: usize = 64;

/// A queue from the tasks that poll the streams of one input to the threads of the join.
///
/// A task polls its stream only after it has got a permit for the next batch. There are no permits before a thread asks
/// for the first batch. So no task reads the probe side while the build side is read, and the dynamic filter is
/// complete before the scans of the probe side start.
pub(super) struct Handoff {
    state: Mutex<State>,
    arrived: Condvar,
    room: Semaphore,
    /// The number of permits.
    permits: usize,
    /// The most batches that a task collects before it puts them into the queue.
    at_once: usize,
    run: Arc<RunState>,
}

struct State {
    batches: VecDeque<RecordBatch>,
    /// The streams that have not ended.
    streams: usize,
    /// Whether the tasks have got their permits.
    opened: bool,
    failed: bool,
}

impl Handoff {
    pub(super) fn new(
        streams: usize,
        (waiting, at_once): (usize, usize),
        run: &Arc<RunState>,
    ) -> Arc<Handoff> {
        let state = State { batches: VecDeque::new(), streams, opened: false, failed: false };
        Arc::new(Handoff {
            state: Mutex::new(state),
            arrived: Condvar::new(),
            room: Semaphore::new(0),
            // There are more permits, for the batches that each task collects. So several streams can usually be polled
            // although the queue is full: some streams make progress only while another stream is polled.
            permits: streams * at_once + waiting,
            at_once,
            run: Arc::clone(run),
        })
    }

    /// Makes all waiting threads look again.
    pub(super) fn wake(&self) {
        drop(lock(&self.state));
        self.arrived.notify_all();
    }

    /// Puts batches into the queue, and wakes as many threads.
    fn push(&self, batches: &mut Vec<RecordBatch>) {
        let pushed = batches.len();
        if pushed > 0 {
            lock(&self.state).batches.extend(batches.drain(..));
            (0..pushed).for_each(|_| self.arrived.notify_one());
        }
    }

    fn fail(&self, error: DataFusionError) {
        self.run.fail(error);
        lock(&self.state).failed = true;
        self.arrived.notify_all();
    }

    /// Waits for the next batch and returns it. Returns `None` at the end of the input.
    fn take(&self, cancelled: impl Fn() -> bool) -> Result<Option<RecordBatch>, Error> {
        let mut state = lock(&self.state);
        if !state.opened {
            state.opened = true;
            self.room.add_permits(self.permits);
        }
        loop {
            if state.failed || self.run.cancelled() || cancelled() {
                return Err(Error::Cancelled);
            }
            if let Some(batch) = state.batches.pop_front() {
                drop(state);
                self.room.add_permits(1);
                return Ok(Some(batch));
            }
            if state.streams == 0 {
                return Ok(None);
            }
            let waited = self.arrived.wait_timeout(state, LOOK_AGAIN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The collectors that look at the rows of an input before the join gets them.
pub(super) struct Observers {
    pub(super) bounds: Option<Arc<Bounds>>,
    pub(super) facts: Option<Arc<NullFacts>>,
}

impl Observers {
    fn see(&self, translated: &Translated, side: Side, batch: &RecordBatch) -> Result<()> {
        if self.bounds.is_none() && self.facts.is_none() {
            return Ok(());
        }
        let keys = translated.sides[side as usize].keys.iter();
        let keys = keys.map(|key| key.evaluate(batch)?.into_array(batch.num_rows()));
        let keys = keys.collect::<Result<Vec<_>>>()?;
        if let Some(bounds) = &self.bounds {
            bounds.see(&keys)?;
        }
        if let Some(facts) = &self.facts {
            facts.see(&keys, batch.num_rows());
        }
        Ok(())
    }
}

/// Polls a stream and puts its batches into the queue.
///
/// To wake a thread takes longer than to decode a short batch. So after the first batches, the task collects a few
/// batches before it wakes the threads, as long as the stream has batches ready.
pub(super) async fn forward(
    mut stream: SendableRecordBatchStream,
    translated: Arc<Translated>,
    side: Side,
    queue: Arc<Handoff>,
    observers: Observers,
) {
    let mut ended = Ended { queue: &queue, done: false };
    let columns = &translated.sides[side as usize];
    let (mut collected, mut pushed) = (Vec::new(), 0usize);
    loop {
        // A stream that is always ready must not keep its thread of the runtime.
        if pushed % YIELD_AFTER == YIELD_AFTER - 1 && collected.is_empty() {
            tokio::task::yield_now().await;
            pushed += 1;
        }
        let permit = match queue.room.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                queue.push(&mut collected);
                let Ok(permit) = queue.room.acquire().await else { break };
                permit
            }
        };
        let next = match collected.is_empty() {
            true => None,
            false => stream.next().now_or_never(),
        };
        let next = match next {
            Some(next) => next,
            None => {
                queue.push(&mut collected);
                stream.next().await
            }
        };
        let batch = match next {
            Some(Ok(batch)) => batch,
            Some(Err(error)) => {
                queue.fail(error);
                break;
            }
            None => break,
        };
        if batch.num_rows() == 0 {
            continue;
        }
        match observers.see(&translated, side, &batch).and_then(|()| columns.of_batch(&batch)) {
            Ok(batch) => {
                collected.push(batch);
                pushed += 1;
                if pushed <= EAGER || collected.len() >= queue.at_once {
                    queue.push(&mut collected);
                }
            }
            Err(error) => {
                queue.fail(error);
                break;
            }
        }
        // The thread that takes the batch adds a permit.
        permit.forget();
    }
    queue.push(&mut collected);
    // The stream may hold memory of the pool. Release it before the end is recorded.
    drop(stream);
    ended.done = true;
}

/// Records the end of a stream, also if polling it panics.
struct Ended<'a> {
    queue: &'a Handoff,
    done: bool,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if !self.done && !self.queue.run.cancelled() {
            let why = "an input of a join panicked, or its task was stopped";
            self.queue.fail(DataFusionError::Execution(why.to_string()));
        }
        lock(&self.queue.state).streams -= 1;
        self.queue.arrived.notify_all();
    }
}

/// An input of the join.
pub(super) struct QueuedSource {
    pub(super) schema: SchemaRef,
    pub(super) queue: Arc<Handoff>,
    pub(super) side: Side,
    /// Present in joins with a dynamic filter. The build side tells when it has ended, and the probe side waits for the
    /// filter.
    pub(super) build_side: Option<Arc<BuildSide>>,
    /// Whether a thread has seen the end.
    pub(super) ended: AtomicBool,
}

impl Source for QueuedSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        let cancelled = || context.cancelled();
        if let (Side::Right, Some(build_side)) = (self.side, &self.build_side) {
            build_side.wait_for_others(|| self.queue.run.cancelled() || cancelled());
        }
        let batch = self.queue.take(cancelled)?;
        if batch.is_none() && !self.ended.swap(true, Ordering::SeqCst) && self.side == Side::Left {
            self.build_side.iter().for_each(|build_side| build_side.was_read());
        }
        Ok(batch.map(Morsel::new))
    }
}

//! The data that the streams of one execution of a join share.
//!
//! DataFusion asks for the partitions of an operator one by one, and often from different tasks. The first request of
//! a query begins an execution, and the request for the last partition completes it. Until then, the operator itself
//! keeps the shared data, because a stream may have ended before another task asks for the next partition.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, Weak};

use arrow::array::RecordBatch;
use datafusion::common::utils::memory::RecordBatchMemoryCounter;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};

use crate::run::{Bounds, JoinMemory, Run, lock};

/// The executions of a join for which some partitions were not asked for yet.
#[derive(Default)]
pub(crate) struct Executions(Mutex<Vec<Execution>>);

struct Execution {
    /// The query. All partitions of one execution have the same context.
    context: Weak<TaskContext>,
    /// The partitions that were asked for.
    executed: Vec<usize>,
    shared: Arc<Shared>,
}

/// What the streams of one execution share.
pub(crate) struct Shared {
    pub(crate) memory: Arc<JoinMemory>,
    /// The dynamic filter.
    pub(crate) bounds: Option<Arc<Bounds>>,
    /// The run, if there is one for all partitions, or why it could not start.
    run: Mutex<Option<Result<Arc<Run>, Arc<DataFusionError>>>>,
    /// What is known about the rows of the left and of the right input of one run.
    pub(crate) statistics: [strait::Statistics; 2],
    /// The rows of the left input, if it is read once for all partitions.
    left: Mutex<Option<LeftRows>>,
}

/// The rows of the left input. Every stream that waits for them also drives the reading. So no stream depends on
/// another.
type LeftRows =
    futures_util::future::Shared<BoxFuture<'static, Result<Arc<Held>, Arc<DataFusionError>>>>;

/// Batches, and the reservation of their memory.
struct Held {
    batches: Vec<RecordBatch>,
    _memory: MemoryReservation,
}

impl Executions {
    /// Returns the data that the streams of an execution share, for a stream of this partition. The first request of
    /// an execution calls `begin`.
    pub(crate) fn of(
        &self,
        partition: usize,
        partitions: usize,
        context: &Arc<TaskContext>,
        begin: impl FnOnce() -> Result<Shared>,
    ) -> Result<Arc<Shared>> {
        let mut executions = lock(&self.0);
        let lacks = |execution: &Execution| !execution.executed.contains(&partition);
        let is_this = |execution: &Execution| {
            std::ptr::eq(execution.context.as_ptr(), Arc::as_ptr(context)) && lacks(execution)
        };
        // Take the newest execution: perhaps nobody asks for the other partitions of an older execution. Some programs
        // make a context per partition.
        let at = executions.iter().rposition(is_this);
        let at = match at.or_else(|| executions.iter().rposition(lacks)) {
            Some(at) => at,
            None => {
                // Remove the executions of queries that ended early.
                executions.retain(|execution| execution.context.strong_count() > 0);
                let (context, shared) = (Arc::downgrade(context), Arc::new(begin()?));
                executions.push(Execution { context, executed: Vec::new(), shared });
                executions.len() - 1
            }
        };
        executions[at].executed.push(partition);
        let shared = Arc::clone(&executions[at].shared);
        if executions[at].executed.len() == partitions {
            executions.remove(at);
        }
        Ok(shared)
    }
}

impl Shared {
    pub(crate) fn new(
        memory: Arc<JoinMemory>,
        bounds: Option<Arc<Bounds>>,
        statistics: [strait::Statistics; 2],
    ) -> Shared {
        Shared { memory, bounds, run: Mutex::default(), statistics, left: Mutex::default() }
    }

    /// Returns the run of all partitions. The first stream that asks starts it.
    pub(crate) fn run(&self, start: impl FnOnce() -> Result<Arc<Run>>) -> Result<Arc<Run>> {
        let mut run = lock(&self.run);
        let run = run.get_or_insert_with(|| start().map_err(Arc::new));
        run.clone().map_err(DataFusionError::Shared)
    }

    /// Returns the rows of the left input. It is read once, and its rows are kept for the other partitions.
    pub(crate) async fn left_rows(
        &self,
        left: &Arc<dyn ExecutionPlan>,
        context: &Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let rows = {
            let mut rows = lock(&self.left);
            let read = || {
                // If a panic were not caught here, the other streams would wait for ever.
                let read = AssertUnwindSafe(read(Arc::clone(left), Arc::clone(context)));
                read.catch_unwind()
                    .map(|read| read.unwrap_or_else(|_| Err(panicked())))
                    .boxed()
                    .shared()
            };
            rows.get_or_insert_with(read).clone()
        };
        let held = rows.await.map_err(DataFusionError::Shared)?;
        // The stream keeps the rows, and so also the reservation of their memory.
        let batches = (0..held.batches.len()).map(move |at| Ok(held.batches[at].clone()));
        let batches = futures_util::stream::iter(batches);
        Ok(Box::pin(RecordBatchStreamAdapter::new(left.schema(), batches)))
    }
}

fn panicked() -> Arc<DataFusionError> {
    Arc::new(DataFusionError::Execution("the left input of a join panicked".to_string()))
}

/// Reads the left input.
async fn read(
    left: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
) -> Result<Arc<Held>, Arc<DataFusionError>> {
    let memory = MemoryConsumer::new("StraitJoin left rows").register(context.memory_pool());
    let mut stream = left.execute(0, context).map_err(Arc::new)?;
    let mut batches = Vec::new();
    // Batches may be slices of one large batch.
    let mut counter = RecordBatchMemoryCounter::new();
    while let Some(batch) = stream.next().await {
        let batch = batch.map_err(Arc::new)?;
        memory.try_grow(counter.count_batch(&batch)).map_err(Arc::new)?;
        batches.push(batch);
    }
    Ok(Arc::new(Held { batches, _memory: memory }))
}

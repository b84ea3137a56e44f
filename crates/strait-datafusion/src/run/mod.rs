//! Runs a join: streams of DataFusion in, streams of DataFusion out.
//!
//! ```text
//!  input streams ──► tasks of the runtime ──► Handoff ──► threads of the join ──► OutputSink ──► output streams
//! ```
//!
//! The tasks poll the input streams on the runtime. The join runs on threads of its own, so it never blocks a thread of
//! the runtime. Both directions have short queues: a task waits while the queue of its input is full, and a thread of the
//! join waits while the queue of the output is full.

mod bounds;
pub(crate) mod disk;
mod input;
mod memory;
mod metrics;
mod output;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::error::ArrowError;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::disk_manager::DiskManager;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::joins::utils::JoinFilter;
use strait::{CancelToken, Filter, Input, Join, MemoryBudget, Side, SpillCompression, Statistics};
use tokio::runtime::Handle;

pub(crate) use self::bounds::Bounds;
use self::disk::DiskStore;
use self::input::{Handoff, QueuedSource, forward};
pub(crate) use self::memory::JoinMemory;
pub(crate) use self::metrics::JoinMetrics;
use self::output::{NullFacts, OutputQueue, OutputSink};
use crate::options::Settings;
use crate::translate::{Translated, failed};

/// The most batches that wait in a queue, per thread of the join.
const WAITING_PER_THREAD: usize = 2;
/// The most batches that a task collects before it wakes threads, if memory is not limited.
const AT_ONCE: usize = 4;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything that a run needs.
pub(crate) struct Parts {
    pub(crate) translated: Arc<Translated>,
    pub(crate) settings: Settings,
    /// The partitions of both inputs.
    pub(crate) streams: [Vec<SendableRecordBatchStream>; 2],
    pub(crate) statistics: [Statistics; 2],
    pub(crate) threads: usize,
    pub(crate) batch_size: usize,
    pub(crate) budget: Arc<MemoryBudget>,
    /// Where the join writes rows that do not fit its memory.
    pub(crate) disk: Option<Arc<DiskManager>>,
    pub(crate) spill_compression: SpillCompression,
    pub(crate) bounds: Option<Arc<Bounds>>,
    /// Whether the join is a null-aware anti join.
    pub(crate) null_aware: bool,
    pub(crate) metrics: JoinMetrics,
}

/// The state that the tasks, the threads and the streams of a run share.
pub(crate) struct RunState {
    cancelled: CancelToken,
    failure: Mutex<Option<Arc<DataFusionError>>>,
}

impl RunState {
    fn new() -> Arc<RunState> {
        Arc::new(RunState { cancelled: CancelToken::new(), failure: Mutex::default() })
    }

    fn cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    /// Records why the run failed, unless something failed before.
    fn fail(&self, error: DataFusionError) {
        lock(&self.failure).get_or_insert_with(|| Arc::new(error));
    }

    fn failure(&self) -> Option<DataFusionError> {
        lock(&self.failure).clone().map(DataFusionError::Shared)
    }
}

/// A running join. Dropping it cancels the join.
pub(crate) struct Run {
    state: Arc<RunState>,
    output: Arc<OutputQueue>,
    inputs: [Arc<Handoff>; 2],
    /// The tasks that poll the inputs. Dropping them stops them.
    _tasks: Vec<SpawnedTask<()>>,
}

impl Run {
    /// Starts a join. It must be called on the runtime.
    pub(crate) fn start(parts: Parts) -> Result<Arc<Run>> {
        let Parts { translated, settings, streams, statistics, threads, batch_size, .. } = parts;
        let Parts { budget, disk, spill_compression, bounds, null_aware, metrics, .. } = parts;
        let state = RunState::new();
        let waiting = WAITING_PER_THREAD * threads;
        // The batches in a queue are not reserved.
        let at_once = if budget.limit().is_some() { 1 } else { AT_ONCE };
        let facts = null_aware.then(|| Arc::new(NullFacts::default()));
        let mut tasks = Vec::new();
        let inputs = {
            let mut queued =
                [Side::Left, Side::Right].into_iter().zip(streams).map(|(side, streams)| {
                    let queue = Handoff::new(streams.len(), (waiting, at_once), &state);
                    for stream in streams {
                        let observers = input::Observers {
                            bounds: bounds.clone().filter(|_| side == Side::Left),
                            facts: facts.clone().filter(|_| side == Side::Right),
                        };
                        let task = forward(
                            stream,
                            Arc::clone(&translated),
                            side,
                            Arc::clone(&queue),
                            observers,
                        );
                        tasks.push(SpawnedTask::spawn(task));
                    }
                    queue
                });
            let mut next = || queued.next().unwrap_or_else(|| Handoff::new(0, (0, 1), &state));
            [next(), next()]
        };
        let output = OutputQueue::new(waiting);
        let mut join = translated
            .join()
            .threads(threads)
            .batch_size(batch_size)
            .device(settings.device)
            .algorithm(settings.algorithm)
            .statistics(Side::Left, statistics[0])
            .statistics(Side::Right, statistics[1])
            .memory_budget(&budget)
            .cancelled_by(&state.cancelled);
        if let Some(bytes) = settings.gpu_memory {
            join = join.gpu_memory(bytes);
        }
        if let Some(disk) = disk {
            let store = DiskStore { disk, runtime: Handle::current() };
            join = join.spill(Arc::new(store)).spill_compression(spill_compression);
        }
        if let Some(filter) = &translated.filter {
            join = join.filter(residual(filter, &state)?);
        }
        let build_side = bounds.as_ref().map(Bounds::begin);
        let source = |side: Side| QueuedSource {
            schema: Arc::clone(&translated.sides[side as usize].schema),
            queue: Arc::clone(&inputs[side as usize]),
            side,
            build_side: build_side.clone(),
            ended: AtomicBool::new(false),
        };
        let (left, right) = (source(Side::Left), source(Side::Right));
        // Only the sources keep it: it ends with the join.
        drop(build_side);
        let sink = OutputSink {
            queue: Arc::clone(&output),
            translated: Arc::clone(&translated),
            facts,
            state: Arc::clone(&state),
        };
        let (of_thread, queue) = (Arc::clone(&state), Arc::clone(&output));
        let run = move || {
            let ran =
                catch_unwind(AssertUnwindSafe(|| conduct(&join, [left, right], &sink, &metrics)));
            match ran {
                Ok(Ok(())) => {}
                Ok(Err(error)) => of_thread.fail(error),
                Err(_) => of_thread
                    .fail(DataFusionError::Internal("a join of Strait panicked".to_string())),
            }
            // The streams must see the end of the output only after the failure was recorded.
            drop((sink, join));
            queue.end();
        };
        let started = std::thread::Builder::new().name("strait-sql".to_string()).spawn(run);
        started.map_err(DataFusionError::IoError)?;
        Ok(Arc::new(Run { state, output, inputs, _tasks: tasks }))
    }

    /// Returns the next batch of the output; `None` at the end. Several streams may call it.
    pub(crate) async fn next(&self) -> Option<Result<RecordBatch>> {
        let batch = poll_fn(|context| self.output.poll_next(context)).await;
        match batch {
            Some(batch) => Some(Ok(batch)),
            None => self.state.failure().map(Err),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.state.cancelled.cancel();
        self.inputs.iter().for_each(|input| input.wake());
        self.output.abandon();
    }
}

fn conduct(
    join: &Join,
    [left, right]: [QueuedSource; 2],
    sink: &OutputSink,
    metrics: &JoinMetrics,
) -> Result<()> {
    let report = join.run_into(Input::source(left), Input::source(right), sink).map_err(failed)?;
    metrics.record(&report);
    Ok(())
}

/// Returns a residual filter as Strait calls it.
fn residual(filter: &JoinFilter, state: &Arc<RunState>) -> Result<Filter> {
    let columns = Translated::filter_columns(filter)?;
    let (filter, state) = (filter.clone(), Arc::clone(state));
    Ok(Filter::new(columns, move |pairs: &RecordBatch| {
        holds(&filter, pairs).map_err(|error| {
            let told = ArrowError::ComputeError(error.to_string());
            // The streams return the error itself.
            state.fail(error);
            told
        })
    }))
}

/// Returns for which pairs of rows a filter is true.
fn holds(filter: &JoinFilter, pairs: &RecordBatch) -> Result<BooleanArray> {
    let rows = arrow::array::RecordBatchOptions::new().with_row_count(Some(pairs.num_rows()));
    let (schema, columns) = (Arc::clone(filter.schema()), pairs.columns().to_vec());
    let pairs = RecordBatch::try_new_with_options(schema, columns, &rows)?;
    let holds = filter.expression().evaluate(&pairs)?.into_array(pairs.num_rows())?;
    let booleans = holds.as_boolean_opt().cloned();
    booleans.ok_or_else(|| {
        DataFusionError::Internal(format!("a join filter has type {}", holds.data_type()))
    })
}

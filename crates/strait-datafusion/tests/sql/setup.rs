//! A join over scripted inputs in each mode, and facts about what is left of it.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures_util::StreamExt;
use strait_datafusion::StraitJoinExec;
use tokio::runtime::Handle;

use crate::session::{self, PATIENCE, eventually, operators};
use crate::streams::{Scripted, Watched};

pub(crate) const PARTITIONS: usize = 4;
pub(crate) const MODES: [Mode; 3] = [Mode::Shared, Mode::Partitioned, Mode::CollectLeft];

/// The modes of a join, as `EXPLAIN` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Partitioned,
    CollectLeft,
}

impl Mode {
    /// Returns a query whose join has this mode. An operator above needs the partitions, or does not.
    fn query(self) -> &'static str {
        match self {
            Mode::Shared => "SELECT l.k, l.v, r.v FROM l JOIN r ON l.k = r.k",
            Mode::Partitioned => {
                "SELECT l.k, count(*), sum(l.v), sum(r.v) FROM l JOIN r ON l.k = r.k GROUP BY l.k"
            }
            Mode::CollectLeft => {
                "SELECT r.k, count(*), sum(l.v), sum(r.v) FROM l JOIN r ON l.k = r.k GROUP BY r.k"
            }
        }
    }
}

/// A join over scripted inputs.
pub(crate) struct Setup {
    pub(crate) ctx: SessionContext,
    pub(crate) stock: SessionContext,
    pool: Arc<Watched<GreedyMemoryPool>>,
    /// The streams of the inputs that are not dropped.
    alive: Arc<AtomicUsize>,
    mode: Mode,
}

impl Setup {
    pub(crate) fn new(mode: Mode, [left, right]: [Scripted; 2], alive: &Arc<AtomicUsize>) -> Setup {
        let pool = Watched::new(GreedyMemoryPool::new(1 << 30));
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool) as _);
        let runtime = runtime.build_arc().expect("a runtime");
        let mut config =
            SessionConfig::new().with_target_partitions(PARTITIONS).with_batch_size(64);
        config.options_mut().optimizer.repartition_joins = mode != Mode::CollectLeft;
        let ctx = session::with_strait(config.clone(), runtime, session::options());
        let stock = session::stock(config, Arc::default());
        let left = left.table(mode == Mode::Partitioned);
        let right = right.table(mode != Mode::Shared);
        for ctx in [&ctx, &stock] {
            ctx.register_table("l", Arc::clone(&left) as _).expect("the name is new");
            ctx.register_table("r", Arc::clone(&right) as _).expect("the name is new");
        }
        Setup { ctx, stock, pool, alive: Arc::clone(alive), mode }
    }

    /// Returns a setup whose inputs end as usual.
    pub(crate) fn plain(mode: Mode) -> Setup {
        let alive = Arc::default();
        Setup::new(mode, inputs(&alive), &alive)
    }

    /// Returns the join alone, without the operators above.
    pub(crate) async fn join(&self) -> Arc<dyn ExecutionPlan> {
        let plan = session::plan(&self.ctx, self.mode.query()).await.expect("a plan");
        let all = operators(&plan);
        let join = all.iter().find(|operator| operator.is::<StraitJoinExec>()).expect("a join");
        let shown = displayable(join.as_ref()).one_line().to_string();
        assert!(shown.contains(&format!("mode={:?}", self.mode)), "another mode: {shown}");
        assert_eq!(join.output_partitioning().partition_count(), PARTITIONS);
        Arc::clone(join)
    }

    /// Executes all partitions.
    pub(crate) fn streams(&self, join: &Arc<dyn ExecutionPlan>) -> Vec<SendableRecordBatchStream> {
        let context = self.ctx.task_ctx();
        (0..PARTITIONS).map(|partition| stream(join, partition, &context)).collect()
    }

    /// Returns the rows that DataFusion's join returns, per partition.
    pub(crate) async fn expected(&self) -> Vec<Vec<RecordBatch>> {
        let plan = session::plan(&self.stock, self.mode.query()).await.expect("a plan");
        let all = operators(&plan);
        let join = all.iter().find(|operator| operator.is::<HashJoinExec>()).expect("a join");
        let context = self.stock.task_ctx();
        let all = datafusion::physical_plan::collect_partitioned(Arc::clone(join), context);
        all.await.expect("DataFusion joins")
    }

    /// Waits until nothing of a join is left.
    pub(crate) async fn ended(&self, about: &str) {
        eventually(&format!("{about}: the threads end"), || self.pool.consumers() == 0).await;
        assert_eq!(self.pool.reserved(), 0, "{about}: reserved bytes");
        let alive = || self.alive.load(Ordering::SeqCst);
        eventually(&format!("{about}: the inputs are dropped"), || alive() == 0).await;
        let tasks = || Handle::current().metrics().num_alive_tasks();
        eventually(&format!("{about}: the tasks end"), || tasks() == 0).await;
    }
}

/// Executes a partition. All partitions of one execution have the same context.
pub(crate) fn stream(
    join: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: &Arc<TaskContext>,
) -> SendableRecordBatchStream {
    join.execute(partition, Arc::clone(context)).expect("a stream")
}

/// Returns inputs with more rows than the queues of a join hold.
pub(crate) fn inputs(alive: &Arc<AtomicUsize>) -> [Scripted; 2] {
    [
        Scripted::new(PARTITIONS, 200, 100, 40, alive),
        Scripted::new(PARTITIONS, 1500, 120, 60, alive),
    ]
}

/// Runs a test on a runtime with several threads, within a bounded time.
pub(crate) fn bounded(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(3 * PATIENCE, test).await.expect("the test hangs");
    });
    runtime.shutdown_timeout(PATIENCE);
}

/// Runs a test for each mode and each case, within a bounded time. The test gets the mode, the case, and a text that
/// names both.
pub(crate) fn in_all_modes<T: Copy + Debug>(
    cases: impl IntoIterator<Item = T> + Clone,
    test: impl AsyncFn(Mode, T, &str),
) {
    bounded(async {
        for mode in MODES {
            for case in cases.clone() {
                test(mode, case, &format!("{mode:?}, case {case:?}")).await;
            }
        }
    });
}

pub(crate) async fn drain(stream: &mut SendableRecordBatchStream) -> Result<Vec<RecordBatch>> {
    let mut batches = Vec::new();
    while let Some(batch) = stream.next().await {
        batches.push(batch?);
    }
    Ok(batches)
}

/// Drains a stream that must not fail or hang.
pub(crate) async fn drained(
    stream: &mut SendableRecordBatchStream,
    about: &str,
) -> Vec<RecordBatch> {
    let all = tokio::time::timeout(PATIENCE, drain(stream)).await;
    let all = all.unwrap_or_else(|_| panic!("{about}: a stream hangs"));
    all.unwrap_or_else(|error| panic!("{about}: {error}"))
}

//! Dropped streams, failing inputs, and outputs that are polled in any order.
//!
//! Each test waits until the threads and the tasks of its joins have ended, and until their memory is released.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use fastrand::Rng;
use futures_util::{FutureExt, StreamExt};
use strait_datafusion::StraitJoinExec;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::rows::assert_same;
use crate::session::{self, PATIENCE, eventually, operators};
use crate::streams::{Scripted, Step, Watched};

const PARTITIONS: usize = 4;
const MODES: [Mode; 3] = [Mode::Shared, Mode::Partitioned, Mode::CollectLeft];

/// The modes of a join, as `EXPLAIN` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
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
struct Setup {
    ctx: SessionContext,
    stock: SessionContext,
    pool: Arc<Watched<GreedyMemoryPool>>,
    /// The streams of the inputs that are not dropped.
    alive: Arc<AtomicUsize>,
    mode: Mode,
}

impl Setup {
    fn new(mode: Mode, [left, right]: [Scripted; 2], alive: &Arc<AtomicUsize>) -> Setup {
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
    fn plain(mode: Mode) -> Setup {
        let alive = Arc::default();
        Setup::new(mode, inputs(&alive), &alive)
    }

    /// Returns the join alone, without the operators above.
    async fn join(&self) -> Arc<dyn ExecutionPlan> {
        let plan = session::plan(&self.ctx, self.mode.query()).await.expect("a plan");
        let all = operators(&plan);
        let join = all.iter().find(|operator| operator.is::<StraitJoinExec>()).expect("a join");
        let shown = displayable(join.as_ref()).one_line().to_string();
        assert!(shown.contains(&format!("mode={:?}", self.mode)), "another mode: {shown}");
        assert_eq!(join.output_partitioning().partition_count(), PARTITIONS);
        Arc::clone(join)
    }

    /// Executes all partitions.
    fn streams(&self, join: &Arc<dyn ExecutionPlan>) -> Vec<SendableRecordBatchStream> {
        let context = self.ctx.task_ctx();
        (0..PARTITIONS).map(|partition| stream(join, partition, &context)).collect()
    }

    /// Returns the rows that DataFusion's join returns, per partition.
    async fn expected(&self) -> Vec<Vec<RecordBatch>> {
        let plan = session::plan(&self.stock, self.mode.query()).await.expect("a plan");
        let all = operators(&plan);
        let join = all.iter().find(|operator| operator.is::<HashJoinExec>()).expect("a join");
        let context = self.stock.task_ctx();
        let all = datafusion::physical_plan::collect_partitioned(Arc::clone(join), context);
        all.await.expect("DataFusion joins")
    }

    /// Waits until nothing of a join is left.
    async fn ended(&self, about: &str) {
        eventually(&format!("{about}: the threads end"), || self.pool.consumers() == 0).await;
        assert_eq!(self.pool.reserved(), 0, "{about}: reserved bytes");
        let alive = || self.alive.load(Ordering::SeqCst);
        eventually(&format!("{about}: the inputs are dropped"), || alive() == 0).await;
        let tasks = || Handle::current().metrics().num_alive_tasks();
        eventually(&format!("{about}: the tasks end"), || tasks() == 0).await;
    }
}

/// Executes a partition. All partitions of one execution have the same context.
fn stream(
    join: &Arc<dyn ExecutionPlan>,
    partition: usize,
    context: &Arc<TaskContext>,
) -> SendableRecordBatchStream {
    join.execute(partition, Arc::clone(context)).expect("a stream")
}

/// Returns inputs with more rows than the queues of a join hold.
fn inputs(alive: &Arc<AtomicUsize>) -> [Scripted; 2] {
    [
        Scripted::new(PARTITIONS, 200, 100, 40, alive),
        Scripted::new(PARTITIONS, 1500, 120, 60, alive),
    ]
}

/// Runs a test on a runtime with several threads, within a bounded time.
fn bounded(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(3 * PATIENCE, test).await.expect("the test hangs");
    });
    runtime.shutdown_timeout(PATIENCE);
}

async fn drain(stream: &mut SendableRecordBatchStream) -> Result<Vec<RecordBatch>> {
    let mut batches = Vec::new();
    while let Some(batch) = stream.next().await {
        batches.push(batch?);
    }
    Ok(batches)
}

/// Drains a stream that must not fail or hang.
async fn drained(stream: &mut SendableRecordBatchStream, about: &str) -> Vec<RecordBatch> {
    let all = tokio::time::timeout(PATIENCE, drain(stream)).await;
    let all = all.unwrap_or_else(|_| panic!("{about}: a stream hangs"));
    all.unwrap_or_else(|error| panic!("{about}: {error}"))
}

#[test]
fn streams_may_be_dropped_at_any_point() {
    bounded(async {
        for mode in MODES {
            for seed in 0..25 {
                let about = format!("{mode:?}, seed {seed}");
                let mut rng = Rng::with_seed(seed);
                let setup = Setup::plain(mode);
                let join = setup.join().await;
                let mut streams = setup.streams(&join);
                for _ in 0..rng.usize(..40) {
                    let chosen = rng.usize(..streams.len());
                    if rng.bool() {
                        // A stream that is polled once may stay in the middle of waiting.
                        if let Some(Some(Err(error))) = streams[chosen].next().now_or_never() {
                            panic!("{about}: {error}");
                        }
                        tokio::task::yield_now().await;
                    } else if let Ok(Some(Err(error))) =
                        tokio::time::timeout(PATIENCE, streams[chosen].next()).await
                    {
                        panic!("{about}: {error}");
                    }
                    if rng.u8(..20) == 0 && streams.len() > 1 {
                        drop(streams.swap_remove(rng.usize(..streams.len())));
                    }
                }
                rng.shuffle(&mut streams);
                drop(streams);
                setup.ended(&about).await;
            }
        }
    });
}

#[test]
fn a_partition_alone_ends_when_it_is_dropped() {
    bounded(async {
        for mode in MODES {
            for batches in 0..3 {
                let about = format!("{mode:?}, {batches} batches");
                let setup = Setup::plain(mode);
                // The other partitions are never executed.
                let join = setup.join().await;
                let mut stream = stream(&join, 2, &setup.ctx.task_ctx());
                drop(stream.next().now_or_never());
                for _ in 0..batches {
                    let next = tokio::time::timeout(PATIENCE, stream.next()).await;
                    next.expect("the stream hangs").expect("more rows").expect("no error");
                }
                // Until the plan is dropped, somebody may still ask for the other partitions.
                drop((stream, join));
                setup.ended(&about).await;
            }
        }
    });
}

#[test]
fn blocked_inputs_do_not_keep_a_dropped_join() {
    bounded(async {
        for mode in MODES {
            for blocked in [[true, false], [false, true], [true, true]] {
                for polled in [0, 1, 3] {
                    let about = format!("{mode:?}, blocked {blocked:?}, polled {polled} times");
                    let alive = Arc::default();
                    let mut sides = inputs(&alive);
                    for (side, blocked) in sides.iter_mut().zip(blocked) {
                        let at = side.partitions[1].len() / 2;
                        let never = Arc::new(Semaphore::new(0));
                        if blocked {
                            side.partitions[1].insert(at, Step::Wait(never));
                        }
                    }
                    let setup = Setup::new(mode, sides, &alive);
                    let mut streams = setup.streams(&setup.join().await);
                    for _ in 0..polled {
                        for stream in &mut streams {
                            drop(stream.next().now_or_never());
                            tokio::task::yield_now().await;
                        }
                    }
                    if polled > 0 {
                        let begun = || alive.load(Ordering::SeqCst) > 0;
                        eventually(&format!("{about}: the inputs are polled"), begun).await;
                    }
                    drop(streams);
                    setup.ended(&about).await;
                }
            }
        }
    });
}

#[test]
fn inputs_that_wait_lose_no_rows() {
    bounded(async {
        for mode in MODES {
            let expected = Setup::plain(mode).expected().await.concat();
            let (alive, gate) = (Arc::default(), Arc::new(Semaphore::new(0)));
            let mut sides = inputs(&alive);
            for side in &mut sides {
                for steps in &mut side.partitions {
                    for at in [steps.len(), steps.len() / 2, 0] {
                        steps.insert(at, Step::Wait(Arc::clone(&gate)));
                    }
                }
            }
            let setup = Setup::new(mode, sides, &alive);
            let streams = setup.streams(&setup.join().await);
            let tasks = streams.into_iter().map(|mut stream| {
                datafusion::common::runtime::SpawnedTask::spawn(
                    async move { drain(&mut stream).await },
                )
            });
            let tasks: Vec<_> = tasks.collect();
            eventually("an input is polled", || alive.load(Ordering::SeqCst) > 0).await;
            gate.add_permits(1);
            let mut found = Vec::new();
            for task in tasks {
                found.extend(task.join().await.expect("no panic").expect("no error"));
            }
            assert_same(&expected, &found, &format!("{mode:?}"));
            setup.ended(&format!("{mode:?}")).await;
        }
    });
}

/// An error that a test can find again.
#[derive(Debug, PartialEq, Eq)]
struct Mine(u64);

impl fmt::Display for Mine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an error of an input: {}", self.0)
    }
}

impl std::error::Error for Mine {}

/// Executes a join with a changed step, and returns what the streams have returned.
async fn ends_with(
    mode: Mode,
    side: usize,
    step: Step,
    rng: &mut Rng,
    about: &str,
) -> Vec<Result<Vec<RecordBatch>>> {
    let alive = Arc::default();
    let mut sides = inputs(&alive);
    let steps = &mut sides[side].partitions[rng.usize(..PARTITIONS)];
    steps.insert(rng.usize(..=steps.len()), step);
    let setup = Setup::new(mode, sides, &alive);
    let streams = setup.streams(&setup.join().await);
    let tasks =
        streams.into_iter().map(|mut stream| tokio::spawn(async move { drain(&mut stream).await }));
    let tasks: Vec<_> = tasks.collect();
    let mut ends = Vec::new();
    for task in tasks {
        let end = tokio::time::timeout(PATIENCE, task).await;
        let end = end.unwrap_or_else(|_| panic!("{about}: a stream hangs"));
        ends.push(end.unwrap_or_else(|error| Err(DataFusionError::ExecutionJoin(Box::new(error)))));
    }
    setup.ended(about).await;
    ends
}

#[test]
fn errors_of_inputs_keep_their_type() {
    bounded(async {
        for mode in MODES {
            for side in [0, 1] {
                for seed in 0..8 {
                    let about = format!("{mode:?}, side {side}, seed {seed}");
                    let mut rng = Rng::with_seed(seed);
                    let fail = move || match seed % 3 {
                        0 => DataFusionError::External(Box::new(Mine(seed))),
                        1 => DataFusionError::ResourcesExhausted(format!("no more of {seed}")),
                        _ => DataFusionError::Execution(format!("it went wrong: {seed}")),
                    };
                    let step = Step::Fail(Arc::new(fail));
                    let ends = ends_with(mode, side, step, &mut rng, &about).await;
                    let errors: Vec<_> = ends.into_iter().filter_map(Result::err).collect();
                    assert!(!errors.is_empty(), "{about}: no stream has failed");
                    if mode == Mode::Shared {
                        assert_eq!(errors.len(), PARTITIONS, "{about}: a stream ended as usual");
                    }
                    for error in &errors {
                        assert_is(error.find_root(), seed, &about);
                    }
                }
            }
        }
    });
}

fn assert_is(root: &DataFusionError, seed: u64, about: &str) {
    match root {
        DataFusionError::External(mine) => {
            assert_eq!(mine.downcast_ref(), Some(&Mine(seed)), "{about}: {mine}");
        }
        DataFusionError::ResourcesExhausted(text) => {
            assert_eq!(*text, format!("no more of {seed}"), "{about}");
        }
        DataFusionError::Execution(text) => {
            assert_eq!(*text, format!("it went wrong: {seed}"), "{about}");
        }
        other => panic!("{about}: another error: {other}"),
    }
}

#[test]
fn inputs_that_panic_fail_the_query() {
    bounded(async {
        for mode in MODES {
            for side in [0, 1] {
                for seed in 0..4 {
                    let about = format!("{mode:?}, side {side}, seed {seed}");
                    let mut rng = Rng::with_seed(seed);
                    let ends = ends_with(mode, side, Step::Panic, &mut rng, &about).await;
                    let errors: Vec<_> = ends.into_iter().filter_map(Result::err).collect();
                    assert!(!errors.is_empty(), "{about}: no stream has failed");
                    let told = errors.iter().any(|error| error.to_string().contains("panic"));
                    assert!(told, "{about}: {errors:?}");
                }
            }
        }
    });
}

#[test]
fn an_error_in_a_filter_or_a_key_fails_the_query() {
    bounded(async {
        let queries = [
            "SELECT * FROM l JOIN r ON l.k = r.k AND l.v / (r.v - 40) < 5",
            "SELECT * FROM l JOIN r ON 10 / (l.k - 3) = r.k",
            "SELECT * FROM l JOIN r ON l.k = 10 / (r.k - 3)",
            "SELECT * FROM l LEFT JOIN r ON l.k = r.k AND l.v / (r.v - 40) < 5",
        ];
        for sql in queries {
            let setup = Setup::plain(Mode::Shared);
            let error = session::run(&setup.ctx, sql).await.expect_err("it divides by zero");
            assert!(error.to_string().contains("Divide by zero"), "{sql}: {error}");
            assert!(session::run(&setup.stock, sql).await.is_err(), "{sql}");
            setup.ended(sql).await;
        }
    });
}

#[test]
fn a_dropped_partition_does_not_disturb_the_others() {
    bounded(async {
        for mode in MODES {
            for seed in 0..12 {
                let about = format!("{mode:?}, seed {seed}");
                let mut rng = Rng::with_seed(seed);
                let setup = Setup::plain(mode);
                let expected = setup.expected().await;
                let mut streams = setup.streams(&setup.join().await);
                let dropped = rng.usize(..PARTITIONS);
                let mut taken = Vec::new();
                for _ in 0..rng.usize(..6) {
                    match rng.bool() {
                        // It waits, and it is dropped while it waits.
                        true => {
                            let now = streams[dropped].next().now_or_never().flatten();
                            taken.extend(now.transpose().expect("no error"));
                        }
                        false => {
                            let next = tokio::time::timeout(PATIENCE, streams[dropped].next());
                            let next = next.await.expect("the stream hangs");
                            taken.extend(next.transpose().expect("no error"));
                        }
                    }
                }
                drop(streams.remove(dropped));
                let mut others = Vec::new();
                for stream in &mut streams {
                    others.extend(drained(stream, &about).await);
                }
                let expected = match mode {
                    Mode::Shared => {
                        others.extend(taken);
                        expected.concat()
                    }
                    _ => {
                        let rest = expected.into_iter().enumerate();
                        let rest = rest.filter(|(number, _)| *number != dropped);
                        rest.flat_map(|(_, batches)| batches).collect()
                    }
                };
                assert_same(&expected, &others, &about);
                drop(streams);
                setup.ended(&about).await;
            }
        }
    });
}

#[test]
fn a_stream_that_is_no_longer_polled_does_not_block_the_others() {
    bounded(async {
        for mode in MODES {
            for waiting in 0..PARTITIONS {
                let about = format!("{mode:?}, partition {waiting} waits");
                let setup = Setup::plain(mode);
                let expected = setup.expected().await.concat();
                let mut streams = setup.streams(&setup.join().await);
                // One stream is polled a few times, and then not any more until the others have ended.
                let mut found = Vec::new();
                for _ in 0..3 {
                    let now = streams[waiting].next().now_or_never().flatten();
                    found.extend(now.transpose().expect("no error"));
                    tokio::task::yield_now().await;
                }
                for (number, stream) in streams.iter_mut().enumerate() {
                    if number != waiting {
                        found.extend(drained(stream, &about).await);
                    }
                }
                found.extend(drained(&mut streams[waiting], &about).await);
                assert_same(&expected, &found, &about);
                drop(streams);
                setup.ended(&about).await;
            }
        }
    });
}

#[test]
fn streams_may_be_polled_in_any_order() {
    bounded(async {
        for mode in MODES {
            for seed in 0..12 {
                let about = format!("{mode:?}, seed {seed}");
                let mut rng = Rng::with_seed(seed);
                let setup = Setup::plain(mode);
                let expected = setup.expected().await.concat();
                let mut streams = setup.streams(&setup.join().await);
                rng.shuffle(&mut streams);
                let mut found = Vec::new();
                while !streams.is_empty() {
                    // The lowest are favoured, so that some streams are polled late.
                    let chosen = rng.usize(..streams.len()).min(rng.usize(..streams.len()));
                    let next = tokio::time::timeout(PATIENCE, streams[chosen].next()).await;
                    match next.unwrap_or_else(|_| panic!("{about}: a stream hangs")) {
                        Some(batch) => found.push(batch.expect("no error")),
                        None => drop(streams.swap_remove(chosen)),
                    }
                }
                assert_same(&expected, &found, &about);
                setup.ended(&about).await;
            }
        }
    });
}

#[test]
fn partitions_may_be_executed_one_after_the_other() {
    bounded(async {
        for mode in MODES {
            for reversed in [false, true] {
                let about = format!("{mode:?}, reversed {reversed}");
                let setup = Setup::plain(mode);
                let expected = setup.expected().await.concat();
                let join = setup.join().await;
                let mut order: Vec<_> = (0..PARTITIONS).collect();
                if reversed {
                    order.reverse();
                }
                let mut found = Vec::new();
                let context = setup.ctx.task_ctx();
                for partition in order {
                    // The stream is dropped before the next partition is executed.
                    let mut stream = stream(&join, partition, &context);
                    found.extend(drained(&mut stream, &about).await);
                }
                assert_same(&expected, &found, &about);
                drop(join);
                setup.ended(&about).await;
            }
        }
    });
}

#[test]
fn a_plan_may_be_executed_again() {
    bounded(async {
        for mode in MODES {
            for first in 0..=PARTITIONS {
                let about = format!("{mode:?}, {first} partitions at first");
                let setup = Setup::plain(mode);
                let expected = setup.expected().await.concat();
                let mut join = setup.join().await;
                let context = setup.ctx.task_ctx();
                for partition in 0..first {
                    let mut stream = stream(&join, partition, &context);
                    let next = tokio::time::timeout(PATIENCE, stream.next()).await;
                    next.expect("the stream hangs").transpose().expect("no error");
                }
                join = reset_plan_states(join).expect("the state is reset");
                for _ in 0..2 {
                    let mut found = Vec::new();
                    for mut stream in setup.streams(&join) {
                        found.extend(drained(&mut stream, &about).await);
                    }
                    assert_same(&expected, &found, &about);
                    // Without this, an operator below may refuse to be executed twice.
                    join = reset_plan_states(join).expect("the state is reset");
                }
                drop(join);
                setup.ended(&about).await;
            }
        }
    });
}

#[test]
fn a_shared_join_may_be_executed_again_without_a_reset() {
    bounded(async {
        let setup = Setup::plain(Mode::Shared);
        let expected = setup.expected().await.concat();
        let join = setup.join().await;
        // At the same time.
        let [mut first, mut second] = [setup.streams(&join), setup.streams(&join)];
        let mut found = [Vec::new(), Vec::new()];
        for (first, second) in first.iter_mut().zip(&mut second) {
            found[0].extend(drained(first, "the first").await);
            found[1].extend(drained(second, "the second").await);
        }
        found.iter().for_each(|found| assert_same(&expected, found, "at the same time"));
        // One after the other, in another order.
        for _ in 0..2 {
            let context = setup.ctx.task_ctx();
            let streams = (0..PARTITIONS).rev();
            let mut streams: Vec<_> =
                streams.map(|partition| stream(&join, partition, &context)).collect();
            let mut found = Vec::new();
            for stream in &mut streams {
                found.extend(drained(stream, "again").await);
            }
            assert_same(&expected, &found, "one after the other");
        }
        drop((first, second));
        setup.ended("executed again").await;
    });
}

#[test]
fn a_limit_ends_inputs_that_never_end() {
    bounded(async {
        for mode in MODES {
            let alive = Arc::default();
            let [left, mut right] = inputs(&alive);
            for steps in &mut right.partitions {
                steps.push(Step::Wait(Arc::new(Semaphore::new(0))));
            }
            let setup = Setup::new(mode, [left, right], &alive);
            let sql = "SELECT l.k, l.v, r.v FROM l JOIN r ON l.k = r.k LIMIT 5";
            let found = session::run(&setup.ctx, sql).await.expect("no error");
            assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), 5, "{mode:?}");
            setup.ended(&format!("{mode:?}")).await;
        }
    });
}

#[test]
fn a_runtime_may_end_before_its_joins() {
    for mode in MODES {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (alive, never) = (Arc::default(), Arc::new(Semaphore::new(0)));
        let mut sides = inputs(&alive);
        sides[1].partitions[2].insert(3, Step::Wait(never));
        let setup = runtime.block_on(async {
            let setup = Setup::new(mode, sides, &alive);
            for mut stream in setup.streams(&setup.join().await) {
                tokio::spawn(async move { drain(&mut stream).await });
            }
            eventually("the inputs are polled", || alive.load(Ordering::SeqCst) > 0).await;
            setup
        });
        drop(runtime);
        let after = tokio::runtime::Builder::new_current_thread().enable_all().build();
        after.expect("a runtime").block_on(setup.ended(&format!("{mode:?}")));
    }
}

#[test]
fn joins_run_on_a_runtime_with_one_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        for mode in MODES {
            let setup = Setup::plain(mode);
            let expected = setup.expected().await.concat();
            let mut found = Vec::new();
            for stream in &mut setup.streams(&setup.join().await) {
                found.extend(drained(stream, &format!("{mode:?}")).await);
            }
            assert_same(&expected, &found, &format!("{mode:?}"));
            setup.ended(&format!("{mode:?}")).await;
        }
    });
}

/// Some programs execute each partition with a context of its own.
#[test]
fn a_context_per_partition() {
    bounded(async {
        for mode in MODES {
            let setup = Setup::plain(mode);
            let join = setup.join().await;
            let expected = rows_of(setup.streams(&join)).await;
            let join = setup.join().await;
            let streams = (0..PARTITIONS).map(|at| stream(&join, at, &setup.ctx.task_ctx()));
            let found = rows_of(streams.collect()).await;
            assert_eq!(found, expected, "{mode:?}");
        }
    });
}

async fn rows_of(streams: Vec<SendableRecordBatchStream>) -> usize {
    let mut rows = 0;
    for mut stream in streams {
        while let Some(batch) = stream.next().await {
            rows += batch.expect("no error").num_rows();
        }
    }
    rows
}

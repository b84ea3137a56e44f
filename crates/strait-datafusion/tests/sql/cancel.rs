//! Joins that end early: dropped streams, failing inputs, limits, and a runtime that ends.
//!
//! Each test waits until the threads and the tasks of its joins have ended, and until their memory is released.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use fastrand::Rng;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::Semaphore;

use crate::session::{self, PATIENCE, eventually};
use crate::setup::{MODES, Mode, PARTITIONS, Setup, bounded, drain, in_all_modes, inputs, stream};
use crate::streams::Step;

#[test]
fn streams_may_be_dropped_at_any_point() {
    in_all_modes(0..25, async |mode, seed, about| {
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
        setup.ended(about).await;
    });
}

#[test]
fn a_partition_alone_ends_when_it_is_dropped() {
    in_all_modes(0..3, async |mode, batches, about| {
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
        setup.ended(about).await;
    });
}

#[test]
fn blocked_inputs_do_not_keep_a_dropped_join() {
    let sides = [[true, false], [false, true], [true, true]];
    let cases = sides.into_iter().flat_map(|blocked| [0, 1, 3].map(|polled| (blocked, polled)));
    in_all_modes(cases, async |mode, (blocked, polled), about| {
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
        setup.ended(about).await;
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

/// Returns the sides of a join, each with some seeds.
fn sides_and_seeds(seeds: u64) -> impl Iterator<Item = (usize, u64)> + Clone {
    [0, 1].into_iter().flat_map(move |side| (0..seeds).map(move |seed| (side, seed)))
}

#[test]
fn errors_of_inputs_keep_their_type() {
    in_all_modes(sides_and_seeds(8), async |mode, (side, seed), about| {
        let mut rng = Rng::with_seed(seed);
        let fail = move || match seed % 3 {
            0 => DataFusionError::External(Box::new(Mine(seed))),
            1 => DataFusionError::ResourcesExhausted(format!("no more of {seed}")),
            _ => DataFusionError::Execution(format!("it went wrong: {seed}")),
        };
        let step = Step::Fail(Arc::new(fail));
        let ends = ends_with(mode, side, step, &mut rng, about).await;
        let errors: Vec<_> = ends.into_iter().filter_map(Result::err).collect();
        assert!(!errors.is_empty(), "{about}: no stream has failed");
        if mode == Mode::Shared {
            assert_eq!(errors.len(), PARTITIONS, "{about}: a stream ended as usual");
        }
        for error in &errors {
            assert_is(error.find_root(), seed, about);
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
    in_all_modes(sides_and_seeds(4), async |mode, (side, seed), about| {
        let mut rng = Rng::with_seed(seed);
        let ends = ends_with(mode, side, Step::Panic, &mut rng, about).await;
        let errors: Vec<_> = ends.into_iter().filter_map(Result::err).collect();
        assert!(!errors.is_empty(), "{about}: no stream has failed");
        let told = errors.iter().any(|error| error.to_string().contains("panic"));
        assert!(told, "{about}: {errors:?}");
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
fn a_limit_ends_inputs_that_never_end() {
    in_all_modes([()], async |mode, (), about| {
        let alive = Arc::default();
        let [left, mut right] = inputs(&alive);
        for steps in &mut right.partitions {
            steps.push(Step::Wait(Arc::new(Semaphore::new(0))));
        }
        let setup = Setup::new(mode, [left, right], &alive);
        let sql = "SELECT l.k, l.v, r.v FROM l JOIN r ON l.k = r.k LIMIT 5";
        let found = session::run(&setup.ctx, sql).await.expect("no error");
        assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), 5, "{about}");
        setup.ended(about).await;
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

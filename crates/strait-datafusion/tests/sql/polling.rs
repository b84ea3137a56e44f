//! Outputs that are executed and polled in any order, and plans that are executed again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use fastrand::Rng;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::Semaphore;

use crate::rows::assert_same;
use crate::session::{PATIENCE, eventually};
use crate::setup::{
    MODES, Mode, PARTITIONS, Setup, bounded, drain, drained, in_all_modes, inputs, stream,
};
use crate::streams::Step;

#[test]
fn inputs_that_wait_lose_no_rows() {
    in_all_modes([()], async |mode, (), about| {
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
            datafusion::common::runtime::SpawnedTask::spawn(async move { drain(&mut stream).await })
        });
        let tasks: Vec<_> = tasks.collect();
        eventually("an input is polled", || alive.load(Ordering::SeqCst) > 0).await;
        gate.add_permits(1);
        let mut found = Vec::new();
        for task in tasks {
            found.extend(task.join().await.expect("no panic").expect("no error"));
        }
        assert_same(&expected, &found, about);
        setup.ended(about).await;
    });
}

#[test]
fn a_dropped_partition_does_not_disturb_the_others() {
    in_all_modes(0..12, async |mode, seed, about| {
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
            others.extend(drained(stream, about).await);
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
        assert_same(&expected, &others, about);
        drop(streams);
        setup.ended(about).await;
    });
}

#[test]
fn a_stream_that_is_no_longer_polled_does_not_block_the_others() {
    in_all_modes(0..PARTITIONS, async |mode, waiting, about| {
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
                found.extend(drained(stream, about).await);
            }
        }
        found.extend(drained(&mut streams[waiting], about).await);
        assert_same(&expected, &found, about);
        drop(streams);
        setup.ended(about).await;
    });
}

#[test]
fn streams_may_be_polled_in_any_order() {
    in_all_modes(0..12, async |mode, seed, about| {
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
        assert_same(&expected, &found, about);
        setup.ended(about).await;
    });
}

#[test]
fn partitions_may_be_executed_one_after_the_other() {
    in_all_modes([false, true], async |mode, reversed, about| {
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
            found.extend(drained(&mut stream, about).await);
        }
        assert_same(&expected, &found, about);
        drop(join);
        setup.ended(about).await;
    });
}

#[test]
fn a_plan_may_be_executed_again() {
    in_all_modes(0..=PARTITIONS, async |mode, first, about| {
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
                found.extend(drained(&mut stream, about).await);
            }
            assert_same(&expected, &found, about);
            // Without this, an operator below may refuse to be executed twice.
            join = reset_plan_states(join).expect("the state is reset");
        }
        drop(join);
        setup.ended(about).await;
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
    in_all_modes([()], async |mode, (), about| {
        let setup = Setup::plain(mode);
        let join = setup.join().await;
        let expected = rows_of(setup.streams(&join)).await;
        let join = setup.join().await;
        let streams = (0..PARTITIONS).map(|at| stream(&join, at, &setup.ctx.task_ctx()));
        let found = rows_of(streams.collect()).await;
        assert_eq!(found, expected, "{about}");
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

//! Sinks that many workers write at the same time.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use arrow::error::ArrowError;
use strait::{Algorithm, Error, Input, Join, MemoryBudget, Processor, ReservedBatch, Side, Sink};

use super::sources::Batches;
use super::{NAMED, keyed, whole};

/// Collects batches, and checks the contract of the join.
#[derive(Default)]
struct Collected {
    batches: Mutex<Vec<RecordBatch>>,
    busy: Mutex<HashSet<usize>>,
    finished: AtomicUsize,
    pause: Duration,
    fails_after: Option<usize>,
    panics: bool,
}

impl Collected {
    fn rows(&self) -> usize {
        self.batches.lock().expect("not poisoned").iter().map(RecordBatch::num_rows).sum()
    }
}

impl Sink for Collected {
    fn push(&self, worker: usize, batch: ReservedBatch) -> Result<(), ArrowError> {
        assert_eq!(self.finished.load(Ordering::SeqCst), 0, "a batch after the end");
        assert!(self.busy.lock().expect("not poisoned").insert(worker), "two workers {worker}");
        std::thread::sleep(self.pause);
        assert!(batch.batch().num_rows() > 0);
        let pushed = {
            let mut batches = self.batches.lock().expect("not poisoned");
            batches.push(batch.into_batch());
            batches.len()
        };
        self.busy.lock().expect("not poisoned").remove(&worker);
        match self.fails_after {
            Some(most) if pushed > most && self.panics => panic!("the disk is full"),
            Some(most) if pushed > most => Err(ArrowError::IoError(
                "the disk is full".to_string(),
                std::io::ErrorKind::Other.into(),
            )),
            _ => Ok(()),
        }
    }

    fn finish(&self) -> Result<(), ArrowError> {
        self.finished.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn tables() -> (RecordBatch, RecordBatch) {
    (keyed(0..2000), keyed((0..30_000).map(|i| i * 7 % 3000)))
}

#[test]
fn a_sink_gets_all_rows_and_then_the_end() {
    let (left, right) = tables();
    for algorithm in NAMED {
        for threads in [1, 2, 4] {
            let join = Join::inner().on("k").algorithm(algorithm).threads(threads).batch_size(100);
            let sink = Collected::default();
            let source = Input::source(Batches::of(&right, 1000));
            let report = join.run_into(whole(&left), source, &sink).expect("succeeds");
            assert_eq!((sink.rows(), report.output_rows), (20_000, 20_000), "{algorithm}");
            assert_eq!(sink.finished.load(Ordering::SeqCst), 1);
            if algorithm == Algorithm::SortMerge {
                let batches = sink.batches.into_inner().expect("not poisoned");
                let keys =
                    batches.iter().flat_map(|b| b.column(0).as_primitive::<Int64Type>().values());
                assert!(keys.is_sorted(), "batches come in the order of the keys");
            }
        }
    }
}

/// Two workers are inside `push` at the same time.
#[test]
fn workers_push_at_the_same_time() {
    #[derive(Default)]
    struct Together(Mutex<usize>, Condvar);
    impl Sink for Together {
        fn push(&self, _: usize, _: ReservedBatch) -> Result<(), ArrowError> {
            let mut inside = self.0.lock().expect("not poisoned");
            *inside += 1;
            self.1.notify_all();
            let patience = Duration::from_secs(30);
            let alone = |inside: &mut usize| *inside < 2;
            let waited = self.1.wait_timeout_while(inside, patience, alone).expect("not poisoned");
            match waited.1.timed_out() {
                true => Err(ArrowError::ComputeError("only one worker pushes".to_string())),
                false => Ok(()),
            }
        }
    }
    let (left, right) = (keyed(0..2000), keyed((0..300_000).map(|i| i % 3000)));
    for algorithm in [Algorithm::NoPartition, Algorithm::Radix] {
        let join = Join::inner().on("k").algorithm(algorithm).threads(2).device(Processor::Cpu);
        let source = Input::source(Batches::of(&right, 10_000));
        join.run_into(whole(&left), source, &Together::default()).expect("both push");
    }
}

/// A worker that has passed its turn works while the next one pushes. Only ordered output has turns.
#[test]
fn a_worker_that_has_passed_its_turn_does_not_delay_the_next() {
    #[derive(Default)]
    struct Turns {
        pushed: Mutex<usize>,
        changed: Condvar,
        passed: AtomicUsize,
        ordered: AtomicUsize,
    }
    impl Sink for Turns {
        fn push(&self, _: usize, batch: ReservedBatch) -> Result<(), ArrowError> {
            self.ordered.fetch_add(usize::from(batch.is_ordered()), Ordering::SeqCst);
            *self.pushed.lock().expect("not poisoned") += 1;
            self.changed.notify_all();
            Ok(())
        }

        fn turn_passed(&self, _: usize) -> Result<(), ArrowError> {
            if self.passed.fetch_add(1, Ordering::SeqCst) > 0 {
                return Ok(());
            }
            let pushed = self.pushed.lock().expect("not poisoned");
            let before = *pushed;
            let patience = Duration::from_secs(30);
            let same = |pushed: &mut usize| *pushed == before;
            let waited = self.changed.wait_timeout_while(pushed, patience, same);
            match waited.expect("not poisoned").1.timed_out() {
                true => Err(ArrowError::ComputeError("nobody else pushes".to_string())),
                false => Ok(()),
            }
        }
    }
    // Enough rows for several segments.
    let (left, right) = (keyed(0..300_000), keyed(0..300_000));
    for algorithm in [Algorithm::SortMerge, Algorithm::Radix] {
        let join = Join::inner().on("k").algorithm(algorithm).threads(2).device(Processor::Cpu);
        let sink = Turns::default();
        join.run_into(whole(&left), whole(&right), &sink).expect("succeeds");
        let (pushed, passed) =
            (sink.pushed.into_inner().expect("not poisoned"), sink.passed.into_inner());
        let ordered = sink.ordered.into_inner();
        match algorithm {
            Algorithm::SortMerge => assert!(ordered == pushed && passed > 2, "{ordered}, {passed}"),
            _ => assert_eq!((ordered, passed), (0, 0)),
        }
    }
}

#[test]
fn a_sink_that_fails_or_panics_fails_the_join() {
    let (left, right) = tables();
    for algorithm in NAMED {
        for panics in [false, true] {
            let join = Join::inner().on("k").algorithm(algorithm).threads(3).batch_size(100);
            let sink = Collected { fails_after: Some(5), panics, ..Collected::default() };
            let error = join.run_into(whole(&left), whole(&right), &sink).expect_err("no room");
            assert!(error.to_string().contains("the disk is full"), "{algorithm}: {error}");
            assert_eq!(sink.finished.load(Ordering::SeqCst), 0, "{algorithm}");
        }
    }
}

/// A sink whose own memory is refused fails the join. The join must not take the error for its own, and write
/// the same rows again in smaller batches, because the batch that the sink refused would be lost.
#[test]
fn a_sink_that_is_refused_memory_fails_the_join() {
    struct Refused {
        fails: usize,
        calls: AtomicUsize,
    }
    impl Sink for Refused {
        fn push(&self, _: usize, _: ReservedBatch) -> Result<(), ArrowError> {
            if self.calls.fetch_add(1, Ordering::SeqCst) == self.fails {
                MemoryBudget::new(Some(1)).reserve(100, "the sink's own buffer")?;
            }
            Ok(())
        }
    }
    let (left, right) = tables();
    for limit in [300_000, 400_000, 600_000] {
        for fails in 0..40 {
            let join = Join::inner().on("k").algorithm(Algorithm::NoPartition).threads(1);
            let join = join.batch_size(500).build_side(Side::Left).device(Processor::Cpu);
            let join = join.memory_budget(&MemoryBudget::new(Some(limit)));
            let sink = Refused { fails, calls: AtomicUsize::new(0) };
            let source = Input::source(Batches::of(&right, 1000));
            match join.run_into(whole(&left), source, &sink) {
                Ok(_) => assert!(sink.calls.into_inner() <= fails, "limit {limit}, push {fails}"),
                Err(error) if sink.calls.into_inner() > fails => {
                    assert!(error.to_string().contains("the sink's own buffer"), "{error}");
                }
                Err(error) => assert!(matches!(error, Error::MemoryLimit { .. }), "{error}"),
            }
        }
    }
}

/// A slow sink does not change whether a limit suffices.
#[test]
fn a_limit_suffices_with_a_slow_sink() {
    let (left, right) = tables();
    for algorithm in NAMED {
        for threads in [1, 4] {
            let join = Join::inner().on("k").algorithm(algorithm).threads(threads).batch_size(500);
            let join = join.build_side(Side::Left).device(Processor::Cpu);
            let run = |limit, pause| {
                let budget = MemoryBudget::new(Some(limit));
                let sink =
                    Collected { pause: Duration::from_micros(pause), ..Collected::default() };
                let join = join.clone().memory_budget(&budget);
                let source = Input::source(Batches::of(&right, 1000));
                let done = join.run_into(whole(&left), source, &sink);
                assert_eq!(budget.used(), 0, "{algorithm}");
                done.map(|report| (sink.rows(), report.peak_memory))
            };
            let (rows, _) = run(4 << 20, 0).expect("a fast sink");
            assert_eq!(rows, 20_000);
            let (rows, peak) = run(4 << 20, 500).expect("a slow sink");
            assert!(rows == 20_000 && peak <= 4 << 20, "{algorithm}");
            assert!(matches!(run(40_000, 0), Err(Error::MemoryLimit { .. })), "{algorithm}");
        }
    }
}

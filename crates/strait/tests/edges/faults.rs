//! Faults in the caller's code: readers and filters that fail or panic, and a reader that is dropped early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arrow::array::{BooleanArray, RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use strait::{Algorithm, CallerCode, Error, Filter, Join, JoinType, Side};

use super::{batches, drained, keyed, whole};

/// What a [`Trapped`] reader does after its good batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trap {
    Error,
    Panic,
    Endless,
}

/// A reader with some good batches and then a trap. It records when it is dropped.
struct Trapped {
    batch: RecordBatch,
    good: usize,
    trap: Trap,
    read: Arc<AtomicUsize>,
    dropped: Arc<AtomicBool>,
}

impl Trapped {
    fn new(good: usize, trap: Trap) -> Trapped {
        let (read, dropped) = Default::default();
        Trapped { batch: keyed(0..100), good, trap, read, dropped }
    }
}

impl Iterator for Trapped {
    type Item = Result<RecordBatch, ArrowError>;
    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read.fetch_add(1, Ordering::Relaxed);
        if read < self.good || self.trap == Trap::Endless {
            return Some(Ok(keyed(0..100)));
        }
        match self.trap {
            Trap::Panic => panic!("the reader trips over its own feet"),
            _ => Some(Err(ArrowError::ParseError("line 17 has no comma".to_string()))),
        }
    }
}

impl RecordBatchReader for Trapped {
    fn schema(&self) -> SchemaRef {
        self.batch.schema()
    }
}

impl Drop for Trapped {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

fn failure(
    join: &Join,
    left: impl RecordBatchReader + Send + 'static,
    right: impl RecordBatchReader + Send + 'static,
) -> Error {
    let outcome = join.run(left, right).and_then(drained);
    outcome.expect_err("the join fails")
}

#[test]
fn a_reader_that_fails_fails_the_join() {
    for algorithm in Algorithm::ANYWHERE {
        for side in [Side::Left, Side::Right] {
            for (trap, said) in [(Trap::Error, "line 17"), (Trap::Panic, "own feet")] {
                let join = Join::inner().on("k").algorithm(algorithm).threads(2);
                let bad = Trapped::new(3, trap);
                let dropped = Arc::clone(&bad.dropped);
                let good = keyed(0..1000);
                let error = match side {
                    Side::Left => failure(&join, bad, whole(&good)),
                    Side::Right => failure(&join, whole(&good), bad),
                };
                let text = error.to_string();
                assert!(text.contains(said), "{algorithm} {trap:?}: {text}");
                assert!(dropped.load(Ordering::Relaxed), "the failed reader is dropped");
            }
        }
    }
}

#[test]
fn a_reader_that_fails_fails_the_count() {
    for algorithm in Algorithm::ANYWHERE {
        let join = Join::inner().on("k").algorithm(algorithm);
        let good = keyed(0..10);
        let error = join.count(whole(&good), Trapped::new(2, Trap::Error)).err().unwrap();
        assert!(error.to_string().contains("line 17"), "{error}");
    }
}

#[test]
fn a_failed_join_yields_its_error_once_and_has_no_report() {
    let join = Join::inner().on("k").threads(2);
    let mut reader = join.run(whole(&keyed(0..10)), Trapped::new(1, Trap::Error)).unwrap();
    let failed = reader.by_ref().filter(Result::is_err).count();
    assert_eq!(failed, 1);
    assert!(reader.next().is_none());
    assert!(reader.report().is_none(), "half a join has no report");
}

#[test]
fn dropping_the_reader_ends_the_join_and_drops_its_inputs() {
    for algorithm in Algorithm::ANYWHERE {
        for taken in [0, 1] {
            // No-partition streams the endless side. The other algorithms collect it, and must be stopped.
            let streams = algorithm == Algorithm::NoPartition;
            let join = Join::inner()
                .on("k")
                .algorithm(algorithm)
                .threads(2)
                .build_side(Side::Left)
                .memory_limit(64 << 20);
            let endless = Trapped::new(0, Trap::Endless);
            let (read, dropped) = (Arc::clone(&endless.read), Arc::clone(&endless.dropped));
            let mut reader = join.run(whole(&keyed(0..50)), endless).unwrap();
            for _ in 0..taken {
                let first = reader.next().expect("a batch or an error");
                assert!(first.is_ok() || !streams, "{algorithm}: {first:?}");
            }
            drop(reader);
            // A reader that is inside `next` is dropped when `next` returns.
            let start = std::time::Instant::now();
            while !dropped.load(Ordering::Relaxed) {
                let waited = start.elapsed().as_secs();
                assert!(waited < 30, "{algorithm}: an input outlives its join");
                std::thread::yield_now();
            }
            let after = read.load(Ordering::Relaxed);
            std::thread::yield_now();
            assert_eq!(read.load(Ordering::Relaxed), after, "{algorithm}: still reading");
        }
    }
}

fn filtered(
    predicate: impl Fn(&RecordBatch) -> Result<BooleanArray, ArrowError> + Send + Sync + 'static,
) -> Vec<Error> {
    let predicate = Arc::new(predicate);
    let (left, right) = (keyed(0..500), keyed((0..500).map(|i| i % 100)));
    let mut errors = Vec::new();
    for algorithm in Algorithm::ANYWHERE {
        for join_type in JoinType::ALL {
            let predicate = Arc::clone(&predicate);
            let columns = [(Side::Left, "p"), (Side::Right, "p")];
            let filter = Filter::new(columns, move |batch: &RecordBatch| predicate(batch));
            let join = Join::new(join_type).on("k").algorithm(algorithm).threads(2).filter(filter);
            errors.push(failure(&join, whole(&left), whole(&right)));
        }
    }
    errors
}

#[test]
fn a_filter_that_errs_fails_the_join() {
    for error in filtered(|_| Err(ArrowError::DivideByZero)) {
        let text = error.to_string();
        assert!(text.contains("filter") && text.to_lowercase().contains("divide"), "{text}");
    }
}

#[test]
fn a_filter_that_panics_fails_the_join() {
    for error in filtered(|_| panic!("the filter is torn")) {
        assert!(error.to_string().contains("the filter is torn"), "{error}");
    }
}

#[test]
fn a_filter_of_the_wrong_length_fails_the_join() {
    for error in filtered(|batch| Ok(vec![true; batch.num_rows() + 1].into())) {
        let text = error.to_string();
        assert!(text.contains("filter") && text.contains("one boolean per row"), "{text}");
    }
}

#[test]
fn a_filter_of_no_columns_knows_the_rows() {
    let (left, right) = (keyed([1, 2, 2]), keyed([2, 2, 3]));
    for keep in [true, false] {
        let filter = Filter::new(Vec::<(Side, String)>::new(), move |batch: &RecordBatch| {
            Ok(vec![keep; batch.num_rows()].into())
        });
        let join = Join::inner().on("k").filter(filter);
        assert_eq!(super::count(&join, &left, &right), if keep { 4 } else { 0 });
    }
}

/// The payload of a panic that panics when it is dropped.
struct Evil;

impl Drop for Evil {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("an evil drop");
        }
    }
}

/// A panic whose payload panics in turn is an error like any other: no row is lost, and nothing hangs.
#[test]
fn a_panic_whose_payload_panics_ends_the_join() {
    for threads in [1, 2, 4] {
        let calls = AtomicUsize::new(0);
        let filter = Filter::new([(Side::Left, "k")], move |batch: &RecordBatch| {
            if calls.fetch_add(1, Ordering::SeqCst) == 3 {
                std::panic::panic_any(Evil);
            }
            Ok(vec![true; batch.num_rows()].into())
        });
        let join = Join::inner().on("k").build_side(Side::Left).threads(threads).filter(filter);
        let batch = keyed(0..1000);
        let many = batches(batch.schema(), vec![batch.clone(); 100]);
        let error = join.count(whole(&batch), many).expect_err("the filter panicked");
        assert!(matches!(error, Error::CallerPanicked { code: CallerCode::Filter, .. }), "{error}");
    }
    let batch = keyed(0..10);
    let evil = std::iter::from_fn(|| -> Option<Result<RecordBatch, ArrowError>> {
        std::panic::panic_any(Evil)
    });
    let reader = RecordBatchIterator::new(evil, batch.schema());
    let join = Join::inner().on("k").build_side(Side::Left);
    let error = join.count(whole(&batch), reader).expect_err("the reader panicked");
    assert!(
        matches!(error, Error::CallerPanicked { code: CallerCode::RightReader, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("the reader of the right table panicked"), "{error}");
}

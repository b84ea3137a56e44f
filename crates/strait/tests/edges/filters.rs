//! Residual filters over columns that are too large for one batch. The filter sees the candidates in pieces,
//! and the join returns the same rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use strait::{Error, Filter, Join, JoinType, Side};

use crate::{NAMED, batches, drained, whole};

const ROWS: i64 = 2000;
const LONG: usize = 100 << 10;
const LIMIT: u64 = 32 << 20;

/// One row with a long text.
fn long_text(len: usize) -> RecordBatch {
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![7]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(len)]));
    RecordBatch::try_from_iter([("k", keys), ("text", texts)]).expect("two columns")
}

/// Rows that all have the key of the long text.
fn numbers() -> RecordBatch {
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![7; ROWS as usize]));
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    RecordBatch::try_from_iter([("k", keys), ("n", numbers)]).expect("two columns")
}

/// Records the calls of a filter.
#[derive(Default)]
struct Asked {
    calls: AtomicUsize,
    rows: AtomicUsize,
    largest: AtomicUsize,
}

/// Passes even numbers whose text has the expected length. Records its calls.
fn even(asked: &Arc<Asked>, text: usize) -> Filter {
    let asked = Arc::clone(asked);
    Filter::new([(Side::Left, "text"), (Side::Right, "n")], move |batch| {
        asked.calls.fetch_add(1, Ordering::Relaxed);
        asked.rows.fetch_add(batch.num_rows(), Ordering::Relaxed);
        let texts = batch.column(0).as_string::<i32>();
        asked.largest.fetch_max(texts.value_data().len(), Ordering::Relaxed);
        let numbers = batch.column(1).as_primitive::<Int64Type>();
        let pass = |i: usize| texts.value(i).len() == text && numbers.value(i) % 2 == 0;
        Ok((0..batch.num_rows()).map(|i| Some(pass(i))).collect::<BooleanArray>())
    })
}

#[test]
fn a_filter_over_long_text_is_asked_in_pieces() {
    for algorithm in NAMED {
        for join_type in [JoinType::Inner, JoinType::RightSemi, JoinType::RightAnti] {
            let asked = Arc::new(Asked::default());
            let join = Join::new(join_type).on("k").select(["n"]).algorithm(algorithm);
            let join = join.filter(even(&asked, LONG)).memory_limit(LIMIT).threads(2);
            let reader = join.run(whole(&long_text(LONG)), whole(&numbers())).expect("starts");
            let (found, report) = drained(reader).expect("the join succeeds");
            let mut numbers: Vec<i64> = Vec::new();
            for batch in &found {
                numbers.extend(batch.column(0).as_primitive::<Int64Type>().values());
            }
            numbers.sort_unstable();
            let odd = i64::from(join_type == JoinType::RightAnti);
            let what = format!("{algorithm} {join_type}");
            assert!(numbers.into_iter().eq((odd..ROWS).step_by(2)), "{what}");
            assert_eq!(asked.rows.load(Ordering::Relaxed), ROWS as usize, "{what}");
            assert!(asked.calls.load(Ordering::Relaxed) > 1, "{what}");
            let largest = asked.largest.load(Ordering::Relaxed) as u64;
            assert!(largest <= LIMIT, "{what}: a batch of {largest} bytes");
            assert!(report.peak_memory <= LIMIT, "{what}: {}", report.peak_memory);
        }
    }
}

#[test]
fn one_candidate_that_does_not_fit_is_an_error() {
    for algorithm in NAMED {
        let asked = Arc::new(Asked::default());
        let join = Join::inner().on("k").select(["n"]).algorithm(algorithm).batch_size(64);
        let join = join.threads(1).build_side(Side::Left).filter(even(&asked, 3 << 20));
        // Two batches: the rows of a single batch could be sliced, which takes no memory.
        let text = long_text(3 << 20);
        let left = batches(text.schema(), vec![text, long_text(1)]);
        let outcome = join.memory_limit(5 << 20).run(left, whole(&numbers())).and_then(drained);
        let error = outcome.expect_err("two texts of 3 MiB do not fit 5 MiB");
        let Error::MemoryLimit { what, .. } = &error else { panic!("{algorithm}: {error}") };
        assert!(what.contains("filter"), "{algorithm}: {what}");
    }
}

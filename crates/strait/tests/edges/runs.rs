//! Two optimisations: runs of probe rows that all match once, whose rows are not written one by one, and hash
//! tables that are laid out again after many probes. The output is the same as that of a sort-merge join,
//! wherever the first row without a match is.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use strait::testing::TestOverrides;
use strait::{Algorithm, Filter, Join, JoinType, Side};

use crate::inlined::{cut, sorted_rows};
use crate::{batches, drained};

const KEYS: i64 = 60;
/// Several blocks of probe rows, in batches that end inside a block.
const ROWS: usize = 9000;
const BATCH: usize = 5001;

fn spread(i: i64) -> i64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)
}

fn column(values: impl Iterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(Int64Array::from_iter(values))
}

fn table(keys: ArrayRef, name: &str) -> RecordBatch {
    let rows = column((0..keys.len() as i64).map(|i| Some(i * 3)));
    RecordBatch::try_from_iter_with_nullable([("k", keys, true), (name, rows, false)])
        .expect("columns of one length")
}

/// Every row has a key of the build side, except one with another key and one with a null key.
fn probe_keys(other: Option<usize>, none: Option<usize>) -> ArrayRef {
    column((0..ROWS).map(|i| match i {
        _ if none == Some(i) => None,
        _ if other == Some(i) => Some(1),
        _ => Some(spread(i as i64 * 7 % KEYS + 1)),
    }))
}

fn build_keys() -> ArrayRef {
    column((1..=KEYS).map(|i| Some(spread(i))))
}

fn rows(join: &Join, left: &RecordBatch, right: &RecordBatch) -> Vec<String> {
    // Slices of longer arrays, with any offset.
    let reader = |batch: &RecordBatch| batches(batch.schema(), cut(batch, BATCH));
    let reader = join.run(reader(left), reader(right)).expect("the join starts");
    sorted_rows(&drained(reader).expect("the join succeeds").0)
}

fn check(join: &Join, left: &RecordBatch, right: &RecordBatch, what: &str) {
    let join = join.clone().on("k").build_side(Side::Left).threads(1);
    let expected = rows(&join.clone().algorithm(Algorithm::SortMerge), left, right);
    let join = join.algorithm(Algorithm::NoPartition);
    let tiny = TestOverrides { tiny_partitions: true, ..TestOverrides::default() };
    for (batch_size, force) in [(32 * 1024, tiny), (1000, TestOverrides::default())] {
        let found = rows(&join.clone().batch_size(batch_size).test_overrides(force), left, right);
        assert!(found == expected, "{what}, batches of {batch_size}");
    }
}

#[test]
fn a_run_ends_anywhere() {
    let left = table(build_keys(), "v");
    for at in [None, Some(0), Some(31), Some(32), Some(4095), Some(4096), Some(ROWS - 1)] {
        for keys in [probe_keys(at, None), probe_keys(None, at)] {
            let right = table(keys, "row");
            check(&Join::inner(), &left, &right, &format!("{at:?}"));
        }
    }
}

#[test]
fn every_type_of_join_takes_runs() {
    let left = table(build_keys(), "v");
    for join_type in JoinType::ALL {
        for at in [None, Some(4500)] {
            let right = table(probe_keys(at, at.map(|at| at + 20)), "row");
            check(&Join::new(join_type), &left, &right, &format!("{join_type:?}, {at:?}"));
        }
    }
}

#[test]
fn filters_and_selections_take_runs() {
    let left = table(build_keys(), "v");
    let right = table(probe_keys(None, None), "row");
    for (what, least) in [("all rows pass", 0), ("some pass", 9), ("none passes", i64::MAX)] {
        let filter = Filter::new([(Side::Left, "v"), (Side::Right, "row")], move |batch| {
            let [v, row] = [0, 1].map(|i| batch.column(i).as_primitive::<Int64Type>());
            let pass = |i: usize| v.value(i) + row.value(i) % 11 >= least;
            Ok((0..batch.num_rows()).map(|i| Some(pass(i))).collect::<BooleanArray>())
        });
        for join_type in [JoinType::Inner, JoinType::Right, JoinType::RightAnti] {
            let join = Join::new(join_type).filter(filter.clone());
            check(&join, &left, &right, &format!("{join_type:?}, {what}"));
        }
    }
    for columns in [&["v"][..], &["row"], &["k"], &["row", "v", "k"]] {
        let join = Join::inner().select(columns.iter().copied());
        check(&join, &left, &right, &format!("{columns:?}"));
    }
}

#[test]
fn verified_keys_take_runs() {
    let text = |keys: &ArrayRef| -> ArrayRef {
        let keys = keys.as_primitive::<Int64Type>().iter();
        Arc::new(keys.map(|key| key.map(|key| format!("key {key}"))).collect::<StringArray>())
    };
    let left = table(text(&build_keys()), "v");
    for at in [None, Some(4096)] {
        let right = table(text(&probe_keys(at, None)), "row");
        check(&Join::inner(), &left, &right, &format!("{at:?}"));
        check(&Join::new(JoinType::Right), &left, &right, &format!("right, {at:?}"));
    }
}

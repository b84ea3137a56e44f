//! Keys that were chosen to collide, and seeds under which they do.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use strait::testing::TestOverrides;
use strait::{Algorithm, Join, JoinType, Report};
use strait_testkit::chosen;

use super::{count, ints, keyed, whole};

/// Int64 keys that a known mixer maps to one place.
fn one_place(rows: u64) -> RecordBatch {
    keyed((0..rows).map(|i| (chosen::wide(i) ^ 1 << 63) as i64))
}

/// Same as [`one_place`], with 32 bits.
fn one_narrow_place(rows: u32) -> RecordBatch {
    let keys = (0..rows).map(|i| (chosen::narrow(i) ^ 1 << 31) as i32);
    let keys: ArrayRef = Arc::new(Int32Array::from_iter_values(keys));
    RecordBatch::try_from_iter([("k", keys)]).expect("one column")
}

/// Pairs of Int64 keys that have the same value under a known hash.
fn one_hash(rows: u64) -> RecordBatch {
    let column = |c: usize| (0..rows).map(|i| Some(chosen::pair(i)[c])).collect();
    ints([("k", column(0)), ("l", column(1))])
}

fn run(join: &Join, table: &RecordBatch) -> (u64, Report) {
    join.count(whole(table), whole(table)).expect("the join succeeds")
}

/// A search in a hash table that exceeds its bound would cause a new seed. No search does.
#[test]
fn chosen_keys_are_spread() {
    const ROWS: u64 = 100_000;
    for (name, table) in [("wide", one_place(ROWS)), ("narrow", one_narrow_place(ROWS as u32))] {
        for algorithm in Algorithm::ANYWHERE {
            let join = Join::inner().on("k").algorithm(algorithm).threads(2);
            let (rows, report) = run(&join, &table);
            assert_eq!((rows, report.seeds_tried), (ROWS, 1), "{name}, {algorithm}");
        }
    }
}

/// Pairs of columns that have the same value under the known hash have different hashes here.
#[test]
fn chosen_pairs_have_hashes_of_their_own() {
    const ROWS: u64 = 20_000;
    let table = one_hash(ROWS);
    for algorithm in Algorithm::ANYWHERE {
        let join = Join::inner().on("k").on("l").algorithm(algorithm).threads(2);
        let (rows, report) = run(&join, &table);
        assert_eq!((rows, report.candidates, report.seeds_tried), (ROWS, ROWS, 1), "{algorithm}");
    }
}

/// If the keys collide under the seed, the join restarts with another one, and the output is the same. If all
/// seeds are bad, the join continues nevertheless.
#[test]
fn a_join_begins_again_with_another_seed() {
    const ROWS: u64 = 500;
    let strings: Vec<String> = (0..ROWS).map(|i| format!("key {i}")).collect();
    let strings: ArrayRef = Arc::new(StringArray::from(strings));
    let strings = RecordBatch::try_from_iter([("k", strings)]).expect("one column");
    let tables = [
        ("wide", one_place(ROWS)),
        ("narrow", one_narrow_place(ROWS as u32)),
        ("pairs", one_hash(ROWS)),
        ("strings", strings),
    ];
    for (name, table) in &tables {
        for algorithm in [Algorithm::NoPartition, Algorithm::Radix] {
            for (bad_seeds, tried) in [(0, 1), (1, 2), (3, 4), (9, 4)] {
                for simulated in [None, Some(u64::from(bad_seeds))] {
                    let force = TestOverrides {
                        bad_seeds,
                        simulated,
                        seed: Some(5),
                        ..TestOverrides::default()
                    };
                    let join =
                        Join::inner().on("k").algorithm(algorithm).threads(2).test_overrides(force);
                    let join = if *name == "pairs" { join.on("l") } else { join };
                    let (rows, report) = run(&join, table);
                    let what = format!("{name}, {algorithm}, {bad_seeds}, {simulated:?}");
                    assert_eq!((rows, report.seeds_tried), (ROWS, tried), "{what}");
                    assert_eq!(report.seed, 5, "{what}");
                }
            }
        }
    }
}

/// Different keys with the same hash are found when the table is built, if the sample did not show them.
#[test]
fn different_keys_with_one_hash_are_found_in_the_table() {
    const ROWS: u64 = 3000;
    let strings = |key: &dyn Fn(u64) -> u64| {
        let keys: Vec<String> = (0..ROWS).map(|i| format!("key {}", key(i))).collect();
        let keys: ArrayRef = Arc::new(StringArray::from(keys));
        RecordBatch::try_from_iter([("k", keys)]).expect("one column")
    };
    let unlike = strings(&|i| i);
    let pairs = strings(&|i| i / 2);
    let alike = strings(&|_| 7);
    let join = Join::inner().on("k").algorithm(Algorithm::NoPartition).threads(2);
    for (table, bad_seeds, rows, tried) in [
        (&unlike, 0, ROWS, 1),
        (&unlike, 1, ROWS, 2),
        (&unlike, 2, ROWS, 3),
        (&pairs, 1, 2 * ROWS, 2),
        (&alike, 1, ROWS * ROWS, 1),
    ] {
        let force = TestOverrides { bad_seeds, no_sample: true, ..TestOverrides::default() };
        let (found, report) = run(&join.clone().test_overrides(force), table);
        assert_eq!((found, report.seeds_tried), (rows, tried), "{bad_seeds} bad seeds");
        assert_eq!(report.candidates, rows, "{bad_seeds} bad seeds");
    }
}

/// The radix join cannot restart. It sorts the keys of a crowded partition instead.
#[test]
fn crowded_partitions_are_joined_all_the_same() {
    const ROWS: u64 = 60_000;
    let twice = keyed((0..ROWS).map(|i| (chosen::wide(i % 9000) ^ 1 << 63) as i64));
    let other = keyed((0..ROWS).map(|i| (chosen::wide(i + ROWS / 2) ^ 1 << 63) as i64));
    let (wide, narrow) = (one_place(ROWS), one_narrow_place(ROWS as u32));
    for (what, left, right) in [
        ("wide", &wide, &wide),
        ("narrow", &narrow, &narrow),
        ("equal keys", &twice, &wide),
        ("other keys", &wide, &other),
    ] {
        for join_type in [JoinType::Inner, JoinType::Full, JoinType::LeftAnti, JoinType::RightSemi]
        {
            let join = Join::new(join_type).on("k").threads(2).build_side(strait::Side::Left);
            let expected = count(&join.clone().algorithm(Algorithm::SortMerge), left, right);
            for tiny_partitions in [false, true] {
                let force = TestOverrides {
                    bad_seeds: 1,
                    no_sample: true,
                    tiny_partitions,
                    ..TestOverrides::default()
                };
                let join = join.clone().algorithm(Algorithm::Radix).test_overrides(force);
                let (rows, report) =
                    join.count(whole(left), whole(right)).expect("the join succeeds");
                let what = format!("{what}, {join_type}, {tiny_partitions}");
                assert_eq!((rows, report.seeds_tried), (expected, 1), "{what}");
            }
        }
    }
}

/// Before the join restarts, it has neither written rows nor consumed rows of the probe side.
#[test]
fn beginning_again_loses_no_rows() {
    let (left, right) = (one_place(4000), one_place(3000));
    for join_type in JoinType::ALL {
        let join = Join::new(join_type).on("k").algorithm(Algorithm::NoPartition).threads(2);
        let rows = count(&join, &left, &right);
        let force = TestOverrides { bad_seeds: 2, ..TestOverrides::default() };
        assert_eq!(count(&join.test_overrides(force), &left, &right), rows, "{join_type}");
    }
}

#[test]
fn the_report_prints_the_seed() {
    let table = keyed(0..10);
    let seed = Some(0xabc_def0_1234);
    let join =
        Join::inner().on("k").test_overrides(TestOverrides { seed, ..TestOverrides::default() });
    let (_, report) = run(&join, &table);
    assert_eq!(Some(report.seed), seed);
    assert!(report.to_string().contains("0xabcdef01234"), "{report}");
    let drawn = || run(&Join::inner().on("k"), &table).1.seed;
    assert_ne!(drawn(), drawn());
}

/// Frequent keys do not cause a new seed.
#[test]
fn equal_keys_are_not_taken_for_chosen_ones() {
    let heavy = keyed((0..50_000).map(|i| if i % 4 == 0 { i } else { i % 3 }));
    let light = keyed(0..50_000);
    let text = |table: &RecordBatch| {
        let keys = table.column(0).as_any().downcast_ref::<Int64Array>().expect("Int64");
        let keys = keys.values().iter().map(|key| key.to_string());
        let keys: ArrayRef = Arc::new(StringArray::from_iter_values(keys));
        RecordBatch::try_from_iter([("k", keys)]).expect("one column")
    };
    for (build, probe) in [(&heavy, &light), (&text(&heavy), &text(&light))] {
        for algorithm in [Algorithm::NoPartition, Algorithm::Radix] {
            let join = Join::inner().on("k").algorithm(algorithm).build_side(strait::Side::Left);
            let (_, report) = join.count(whole(build), whole(probe)).expect("the join succeeds");
            assert_eq!(report.seeds_tried, 1, "{algorithm}");
        }
    }
}

//! Keys that are hard on hash tables and partitions: all equal, all null, all alike.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, DictionaryArray, Int8Array, Int32Array, RecordBatch, StringArray, UnionArray,
};
use arrow::datatypes::{DataType, Field, Int8Type, UnionFields};
use strait::testing::TestOverrides;
use strait::{Algorithm, Join, JoinType, NullEquality, Side};

use super::{batches, count, ints, keyed, whole};

#[test]
fn all_keys_equal() {
    let (left, right) = (keyed(vec![7; 3000]), keyed(vec![7; 3000]));
    for algorithm in Algorithm::ANYWHERE {
        for threads in [1, 2] {
            let join = Join::inner().on("k").algorithm(algorithm).threads(threads);
            assert_eq!(count(&join, &left, &right), 9_000_000, "{algorithm}");
            let semi = Join::new(JoinType::LeftSemi).on("k").algorithm(algorithm).threads(threads);
            assert_eq!(count(&semi, &left, &right), 3000, "{algorithm}");
        }
    }
}

#[test]
fn all_keys_null() {
    let nulls = ints([("k", vec![None; 300])]);
    for algorithm in Algorithm::ANYWHERE {
        let inner = Join::inner().on("k").algorithm(algorithm);
        assert_eq!(count(&inner, &nulls, &nulls), 0, "{algorithm}");
        let full = Join::new(JoinType::Full).on("k").algorithm(algorithm);
        assert_eq!(count(&full, &nulls, &nulls), 600, "{algorithm}");
        let equal = inner.null_equality(NullEquality::Equal);
        assert_eq!(count(&equal, &nulls, &nulls), 90_000, "{algorithm}");
        let anti = Join::new(JoinType::RightAnti).on("k").algorithm(algorithm);
        assert_eq!(count(&anti, &nulls, &nulls), 300, "{algorithm}");
    }
}

/// Keys with patterns that a weak hash maps to few slots or partitions.
fn adversarial() -> Vec<(&'static str, Vec<i64>)> {
    let n = 4096;
    let stride = |shift: u32| (0..n).map(|i: i64| i.wrapping_shl(shift)).collect::<Vec<i64>>();
    let ends = [0, -1, i64::MIN, i64::MAX, 1, -2, i64::MIN + 1, i64::MAX - 1];
    vec![
        ("equal low 32 bits", (0..n).map(|i| (i << 32) | 0x5555_5555).collect()),
        ("equal high 32 bits", (0..n).map(|i| (0x7777_7777 << 32) | i).collect()),
        ("multiples of 2^12", stride(12)),
        ("multiples of 2^20", stride(20)),
        ("multiples of 2^48", stride(48)),
        ("single bits", (0..64).map(|i| 1_i64 << i).collect()),
        ("complements", (0..n).map(|i| !i).collect()),
        ("ends of the range", ends.to_vec()),
        (
            "multiples of a golden ratio",
            (0..n).map(|i| i.wrapping_mul(-7046029254386353131)).collect(),
        ),
    ]
}

#[test]
fn adversarial_keys_each_meet_themselves_alone() {
    for (pattern, keys) in adversarial() {
        let table = keyed(keys.iter().copied());
        let absent = keyed(keys.iter().map(|k| k.wrapping_add(3)));
        let present: std::collections::HashSet<i64> = keys.iter().copied().collect();
        let hits = keys.iter().filter(|k| present.contains(&k.wrapping_add(3))).count() as u64;
        let distinct = present.len();
        assert_eq!(distinct, keys.len(), "{pattern}: the test's keys are distinct");
        for algorithm in Algorithm::ANYWHERE {
            for tiny_partitions in [false, true] {
                let force = TestOverrides { tiny_partitions, ..TestOverrides::default() };
                let join =
                    Join::inner().on("k").algorithm(algorithm).threads(2).test_overrides(force);
                let rows = count(&join, &table, &table);
                assert_eq!(rows, keys.len() as u64, "{pattern}, {algorithm}");
                assert_eq!(count(&join, &table, &absent), hits, "{pattern} shifted, {algorithm}");
            }
        }
    }
}

#[test]
fn zero_and_all_ones_are_keys_like_any_other() {
    let ends = ints([("k", vec![Some(0), Some(-1), None, Some(0), Some(-1), Some(-1)])]);
    for algorithm in Algorithm::ANYWHERE {
        let join = Join::inner().on("k").algorithm(algorithm);
        assert_eq!(count(&join, &ends, &ends), 4 + 9, "{algorithm}");
        let equal = join.null_equality(NullEquality::Equal);
        assert_eq!(count(&equal, &ends, &ends), 4 + 9 + 1, "{algorithm}");
    }
}

#[test]
fn one_heavy_key_among_many() {
    let heavy =
        |every: i64| keyed((0..20_000).map(move |i| if i % every == 0 { 3 } else { i * 10 }));
    let (left, right) = (heavy(100), heavy(50));
    for algorithm in Algorithm::ANYWHERE {
        let join = Join::inner().on("k").algorithm(algorithm).threads(2);
        // 200 × 400 pairs of the heavy key, and the keys that both sides kept.
        let light = (0..20_000).filter(|i| i % 100 != 0 && i % 50 != 0).count() as u64;
        assert_eq!(count(&join, &left, &right), 200 * 400 + light, "{algorithm}");
    }
}

#[test]
fn the_report_names_the_algorithm_that_ran() {
    for algorithm in super::NAMED {
        let join = Join::inner().on("k").algorithm(algorithm);
        let (rows, report) = join.count(whole(&keyed([1, 2])), whole(&keyed([2, 3]))).unwrap();
        assert_eq!((rows, report.plan.algorithm), (1, algorithm));
        let text = report.to_string();
        assert!(text.contains(algorithm.name()), "{text}");
    }
}

/// Matching rows of an inner join have equal keys. So both key columns of the output are slices of the probe side,
/// also if their names differ, and no key of the build side is gathered.
#[test]
fn keys_of_an_inner_join_are_slices_of_the_probe_side() {
    let text = |n: i64| format!("a key that is too long for a view {n}");
    let table = |name: &str, keys: Vec<i64>| {
        let column: ArrayRef = Arc::new(StringArray::from_iter_values(keys.into_iter().map(text)));
        RecordBatch::try_from_iter([(name, column)]).expect("one column")
    };
    let build = table("a", (0..50).rev().collect());
    let probe = table("b", (0..1000).map(|n| n % 50).collect());
    let join = Join::inner().on_pair("a", "b").build_side(Side::Left);
    let joined = join.algorithm(Algorithm::NoPartition).run(whole(&build), whole(&probe));
    let mut rows = 0;
    for batch in joined.expect("starts") {
        let batch = batch.expect("joins");
        rows += batch.num_rows();
        assert_eq!(batch.column(0), batch.column(1));
        for column in batch.columns() {
            let strings = column.as_string::<i32>();
            assert_eq!(
                strings.values().as_ptr(),
                probe.column(0).as_string::<i32>().values().as_ptr()
            );
        }
    }
    assert_eq!(rows, 1000);
}

/// A table with one key column.
fn of_keys(name: &str, column: ArrayRef) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([(name, column, true)]).expect("one column")
}

/// The batches of the probe side have dictionaries of their own. A key column of the build side keeps its one
/// dictionary, so that its rows can be written to a file that allows no other.
#[test]
fn a_key_column_keeps_its_own_dictionary() {
    let dictionary = |keys: Vec<i8>, values: [&str; 2]| -> ArrayRef {
        let values: ArrayRef = Arc::new(StringArray::from(values.to_vec()));
        Arc::new(DictionaryArray::new(Int8Array::from(keys), values))
    };
    let build = of_keys("a", dictionary(vec![0, 1], ["x", "y"]));
    let probe: Vec<_> = [["x", "y"], ["y", "x"], ["z", "x"]]
        .map(|values| of_keys("b", dictionary((0..100).map(|i| i % 2).collect(), values)))
        .to_vec();
    let join = Join::inner().on_pair("a", "b").select(["a"]).build_side(Side::Left).batch_size(100);
    let probe = batches(probe[0].schema(), probe);
    let joined = join.algorithm(Algorithm::NoPartition).run(whole(&build), probe).expect("starts");
    let (mut rows, own) = (0, build.column(0).as_dictionary::<Int8Type>().values().clone());
    for batch in joined {
        let batch = batch.expect("joins");
        rows += batch.num_rows();
        let values = batch.column(0).as_dictionary::<Int8Type>().values();
        assert_eq!(
            values.as_string::<i32>().values().as_ptr(),
            own.as_string::<i32>().values().as_ptr()
        );
    }
    assert_eq!(rows, 250);
}

/// Nulls of different union members are equal keys, but different values.
#[test]
fn a_null_of_a_union_keeps_its_member() {
    let members = [("number", DataType::Int32), ("text", DataType::Utf8)];
    let members = members.map(|(name, data_type)| Arc::new(Field::new(name, data_type, true)));
    let members: UnionFields = (0i8..).zip(members).collect();
    let union = |member: i8| -> ArrayRef {
        let children: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(vec![None])),
            Arc::new(StringArray::from(vec![None::<&str>])),
        ];
        let union = UnionArray::try_new(members.clone(), vec![member].into(), None, children);
        Arc::new(union.expect("one null"))
    };
    for (right_name, columns) in [("b", vec![0, 1]), ("a", vec![0])] {
        let (left, right) = (of_keys("a", union(0)), of_keys(right_name, union(1)));
        for build in [Side::Left, Side::Right] {
            let join = Join::inner().on_pair("a", right_name).build_side(build);
            let join = join.null_equality(NullEquality::Equal).algorithm(Algorithm::NoPartition);
            let mut joined = join.run(whole(&left), whole(&right)).expect("starts");
            let batch = joined.next().expect("one row").expect("joins");
            let member = |column: &ArrayRef| {
                column.as_any().downcast_ref::<UnionArray>().expect("a union").type_id(0)
            };
            let found: Vec<i8> = batch.columns().iter().map(member).collect();
            assert_eq!(found, columns, "{right_name}, built on the {build:?} side");
        }
    }
}

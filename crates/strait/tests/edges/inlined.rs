//! Inlined payload (narrow build columns that are stored with the key), and short keys that are verified in
//! records. The output must be correct, and the same as with row ids.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Date32Array, Float32Array, Int8Array, Int16Array, Int32Array,
    Int64Array, RecordBatch, StringArray, UInt16Array, UInt64Array,
};
use arrow::datatypes::Int64Type;
use strait::testing::TestOverrides;
use strait::{Algorithm, GpuOptions, Histogram, Join, JoinType, Partitioner, Side};

use crate::{batches, drained, whole};

const ROWS: i64 = 3000;

/// The keys of a build side: dense, with gaps, sparse, and repeated many times.
fn kinds_of_keys() -> [Vec<i64>; 4] {
    let spread = |i: i64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
    [
        (0..ROWS).map(|i| (i * 7) % ROWS - 5).collect(),
        (0..ROWS).map(|i| i * 3).collect(),
        (0..ROWS).map(spread).collect(),
        (0..ROWS).map(|i| spread(i % 400 + i % 3 / 2)).collect(),
    ]
}

/// Columns of all narrow widths, without nulls.
fn narrow(rows: i64) -> Vec<(&'static str, ArrayRef)> {
    vec![
        ("tiny", Arc::new(Int8Array::from_iter_values((0..rows).map(|i| i as i8))) as _),
        ("short", Arc::new(Int16Array::from_iter_values((0..rows).map(|i| -(i as i16)))) as _),
        ("float", Arc::new(Float32Array::from_iter_values((0..rows).map(|i| i as f32 / 3.0))) as _),
        ("unsigned", Arc::new(UInt16Array::from_iter_values((0..rows).map(|i| i as u16))) as _),
        (
            "int",
            Arc::new(Int32Array::from_iter_values((0..rows).map(|i| i32::MIN + i as i32))) as _,
        ),
        ("date", Arc::new(Date32Array::from_iter_values((0..rows).map(|i| i as i32))) as _),
        ("long", Arc::new(Int64Array::from_iter_values((0..rows).map(|i| i64::MIN + i))) as _),
        (
            "most",
            Arc::new(UInt64Array::from_iter_values((0..rows).map(|i| u64::MAX - i as u64))) as _,
        ),
    ]
}

fn build_side(keys: &[i64], columns: &[&str]) -> RecordBatch {
    let mut all = vec![("k", Arc::new(Int64Array::from(keys.to_vec())) as ArrayRef)];
    all.extend(narrow(keys.len() as i64).into_iter().filter(|(name, _)| columns.contains(name)));
    RecordBatch::try_from_iter(all).expect("columns of one length")
}

/// Rows that match, rows that do not, and rows with a null key.
fn probe_side(keys: &[i64]) -> RecordBatch {
    let key = |i: usize| match i % 5 {
        0 => None,
        1 => Some(keys[i % keys.len()].wrapping_add(1 << 40)),
        _ => Some(keys[i * 13 % keys.len()]),
    };
    let keys: ArrayRef = Arc::new(Int64Array::from_iter((0..5000).map(key)));
    let rows: ArrayRef = Arc::new(Int64Array::from_iter_values(0..5000));
    RecordBatch::try_from_iter_with_nullable([("k", keys, true), ("row", rows, false)])
        .expect("columns of one length")
}

/// Cuts a batch into slices, so that a column has many chunks.
pub(crate) fn cut(batch: &RecordBatch, rows: usize) -> Vec<RecordBatch> {
    let starts = (0..batch.num_rows()).step_by(rows);
    starts.map(|at| batch.slice(at, rows.min(batch.num_rows() - at))).collect()
}

/// Returns all rows as text, sorted.
pub(crate) fn sorted_rows(found: &[RecordBatch]) -> Vec<String> {
    let text = |column: &ArrayRef, row| {
        arrow::util::display::array_value_to_string(column, row).expect("a value")
    };
    let row = |batch: &RecordBatch, row: usize| {
        let columns = batch.columns().iter();
        columns.map(|column| text(column, row)).collect::<Vec<_>>().join("|")
    };
    let rows = found.iter().flat_map(|b| (0..b.num_rows()).map(move |i| row(b, i)));
    let mut rows: Vec<String> = rows.collect();
    rows.sort_unstable();
    rows
}

fn forced(row_ids: bool, tiny: bool) -> TestOverrides {
    TestOverrides { row_ids, tiny_partitions: tiny, tiny_chunks: tiny, ..TestOverrides::default() }
}

#[test]
fn inlined_columns_equal_gathered_columns() {
    let sets: [&[&str]; 6] = [
        &["long"],
        &["most"],
        &["int"],
        &["tiny", "short", "int"],
        &["float", "unsigned", "tiny"],
        &["date", "float"],
    ];
    for keys in kinds_of_keys() {
        let right = probe_side(&keys);
        for (columns, tiny) in sets.iter().zip([false, true].iter().cycle()) {
            let left = build_side(&keys, columns);
            // Columns of a build side that is preserved cannot be inlined. The probe side can be preserved.
            for join_type in [JoinType::Inner, JoinType::Right, JoinType::Left] {
                let rows = |row_ids| {
                    let join = Join::new(join_type).on("k").build_side(Side::Left);
                    let join = join.test_overrides(forced(row_ids, *tiny));
                    let left = batches(left.schema(), cut(&left, 700));
                    let reader = join.run(left, whole(&right)).expect("the join starts");
                    let (found, report) = drained(reader).expect("the join succeeds");
                    let gathers = report.stages.iter().any(|s| s.name == "flatten build columns");
                    assert_eq!(gathers, row_ids || join_type == JoinType::Left);
                    sorted_rows(&found)
                };
                let (expected, found) = (rows(true), rows(false));
                assert!(expected == found, "{join_type:?} of {columns:?}, tiny {tiny}");
                assert!(!expected.is_empty());
            }
        }
    }
}

/// The same table, with 32-bit keys or with some null keys if asked for.
fn with_other_keys(batch: &RecordBatch, narrow: bool, nulls: bool) -> RecordBatch {
    let keys = batch.column(0).as_primitive::<Int64Type>();
    let kept = |i: usize| keys.is_valid(i) && !(nulls && i % 11 == 3);
    let kept = (0..keys.len()).map(|i| kept(i).then(|| keys.value(i)));
    let keys: ArrayRef = match narrow {
        true => Arc::new(kept.map(|key| key.map(|key| key as i32)).collect::<Int32Array>()),
        false => Arc::new(kept.collect::<Int64Array>()),
    };
    let names = batch.schema();
    let names = names.fields().iter().map(|field| field.name().clone());
    let columns = std::iter::once(keys).chain(batch.columns()[1..].iter().cloned());
    let columns = names.zip(columns).map(|(name, column)| (name, column, true));
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

/// On a device, inlined columns cross with the keys, and come back in place of row positions.
#[test]
fn a_device_is_given_narrow_columns() {
    let sets = [&["long"][..], &["int"], &["tiny", "short"]];
    let histograms = [Histogram::None, Histogram::Cpu, Histogram::Gpu];
    let mut case = 0usize;
    for (seed, keys) in kinds_of_keys().iter().enumerate() {
        for algorithm in Algorithm::ON_GPU.into_iter().skip(1) {
            case += 1;
            let (columns, histogram) = (sets[case % 3], histograms[case / 3 % 3]);
            // A column that is wider than the key word is not inlined.
            let narrow = seed < 2 && columns != ["long"];
            let build = with_other_keys(&build_side(keys, columns), narrow, case.is_multiple_of(2));
            let probe = with_other_keys(&probe_side(keys), narrow, false);
            let (side, preserving) = match case % 4 < 2 {
                true => (Side::Left, JoinType::Right),
                false => (Side::Right, JoinType::Left),
            };
            for join_type in [JoinType::Inner, preserving] {
                let join = |row_ids, tiny| {
                    let force =
                        TestOverrides { simulated: Some(seed as u64), ..forced(row_ids, tiny) };
                    let join = Join::new(join_type).on("k").build_side(side).algorithm(algorithm);
                    let join = match algorithm {
                        Algorithm::Triton => join.gpu_options(
                            GpuOptions::new()
                                .partitioner(Partitioner::Hierarchical)
                                .histogram(histogram),
                        ),
                        _ => join,
                    };
                    join.test_overrides(force)
                };
                let tables = || {
                    let build = batches(build.schema(), cut(&build, 700));
                    let probe = batches(probe.schema(), cut(&probe, 5000));
                    if side == Side::Left { (build, probe) } else { (probe, build) }
                };
                let rows = |row_ids, tiny| {
                    let (left, right) = tables();
                    let reader = join(row_ids, tiny).run(left, right).expect("the join starts");
                    let (found, report) = drained(reader).expect("the join succeeds");
                    (sorted_rows(&found), report.crossed.to_gpu)
                };
                let what = format!("{algorithm:?}, {join_type:?} of {columns:?}, {narrow}");
                let ((expected, less), (found, more)) = (rows(true, false), rows(false, false));
                assert!(expected == found && !found.is_empty(), "{what}");
                assert!(expected == rows(false, true).0, "{what}, tiny");
                // If the CPU makes the tuples, row numbers cross in place of inlined columns, so the number
                // of bytes is the same.
                match algorithm {
                    Algorithm::CpuPartitioned => assert_eq!(more, less, "{what}"),
                    _ => assert!(more > less, "{what}: {more} and {less} bytes"),
                }
                let sums: Vec<_> = columns.iter().map(|&column| (side, column)).collect();
                let summed = |row_ids| {
                    let (left, right) = tables();
                    let sums = join(row_ids, false).aggregate(&sums, left, right);
                    sums.expect("the join succeeds").0
                };
                assert_eq!(summed(true), summed(false), "{what}");
            }
        }
    }
}

#[test]
fn sums_are_those_of_the_rows() {
    let columns = ["tiny", "short", "unsigned"];
    for keys in kinds_of_keys() {
        for columns in [&["long"][..], &["most"], &["int"], &columns, &["long", "most", "int"]] {
            let (left, right) = (build_side(&keys, columns), probe_side(&keys));
            let sums: Vec<_> = columns.iter().map(|&name| (Side::Left, name)).collect();
            let sums: Vec<_> = sums.into_iter().chain([(Side::Right, "row")]).collect();
            let mut expected = vec![0i128; sums.len()];
            let mut rows = 0;
            let probe = right.column(0).as_primitive::<Int64Type>();
            for (i, key) in probe.iter().enumerate() {
                for j in (0..keys.len()).filter(|&j| Some(keys[j]) == key) {
                    rows += 1;
                    for (sum, column) in expected.iter_mut().zip(1..left.num_columns()) {
                        *sum += value(left.column(column), j);
                    }
                    expected[sums.len() - 1] += i as i128;
                }
            }
            // The columns of a set are in the order of `narrow`.
            let order: Vec<usize> = sums[..columns.len()]
                .iter()
                .map(|(_, name)| left.schema().index_of(name).expect("a column") - 1)
                .collect();
            let expected: Vec<i128> =
                order.iter().map(|&i| expected[i]).chain([expected[sums.len() - 1]]).collect();
            for (row_ids, tiny) in [(false, false), (true, false), (false, true)] {
                let join = Join::inner().on("k").build_side(Side::Left);
                let join = join.test_overrides(forced(row_ids, tiny));
                let left = batches(left.schema(), cut(&left, 700));
                let joined = join.aggregate(&sums, left, whole(&right));
                let (found, _) = joined.expect("the join succeeds");
                assert_eq!((found.rows, &found.sums), (rows, &expected), "{columns:?}");
            }
        }
    }
}

/// Returns an integer of any type.
fn value(array: &ArrayRef, row: usize) -> i128 {
    let text = arrow::util::display::array_value_to_string(array, row).expect("an integer");
    text.parse().expect("an integer")
}

#[test]
fn strings_of_any_length_are_verified() {
    // Prefixes of each other, and keys of the same length that differ in one byte.
    let text = "The sea is calm tonight. The tide is full";
    for longest in [0, 1, 3, 7, 8, 15, 16, 30, 31, 32, 40] {
        let mut keys: Vec<String> = (0..=longest).map(|len| text[..len].to_string()).collect();
        keys.extend((0..longest).map(|i| format!("{}_{}", &text[..i], &text[i + 1..longest])));
        let rows = keys.len();
        let array: ArrayRef = Arc::new(StringArray::from(keys));
        let row: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
        let table = RecordBatch::try_from_iter([("k", array), ("row", row)]).expect("two columns");
        for (collide, tiny_chunks) in [(false, false), (true, false), (true, true)] {
            let force = TestOverrides { collide, tiny_chunks, ..TestOverrides::default() };
            let join = Join::inner().on("k").test_overrides(force);
            let left = batches(table.schema(), cut(&table, 4));
            let reader = join.run(left, whole(&table)).expect("the join starts");
            let (found, _) = drained(reader).expect("the join succeeds");
            let mut matched = 0;
            for batch in &found {
                matched += batch.num_rows();
                let rows = |i: usize| batch.column(i).as_primitive::<Int64Type>().values().to_vec();
                assert_eq!(rows(1), rows(2), "strings of up to {longest} bytes");
            }
            assert_eq!(matched, rows, "strings of up to {longest} bytes");
        }
    }
}

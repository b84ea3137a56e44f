//! Float keys: both zeros are equal, all NaNs are equal, and output columns keep their bits.

use std::sync::Arc;

use arrow::array::types::{Float16Type, Float32Type, Float64Type};
use arrow::array::*;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields, UnionFields};
use strait::testing::TestOverrides;
use strait::{Algorithm, FloatEquality, Join, JoinType, Side};

use super::{count, drained, whole};

/// A NaN with its sign set and an unusual payload.
const ODD_NAN: f64 = f64::from_bits(0xfff8_0400_0000_0000);

/// Two zeros, two NaNs, two infinities, a subnormal number and an ordinary one.
const FLOATS: [f64; 8] =
    [0.0, -0.0, f64::NAN, ODD_NAN, f64::INFINITY, f64::NEG_INFINITY, 6.0e-8, 1.5];

/// The number of equal pairs of [`FLOATS`] with itself: four of zeros, four of NaNs, and one for each other
/// value.
const NUMERIC_PAIRS: u64 = 4 + 4 + 4;

fn floats(data_type: &DataType) -> ArrayRef {
    cast(&Float64Array::from(FLOATS.to_vec()), data_type).expect("as the test makes it")
}

fn table(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).expect("as the test makes it")
}

/// Every algorithm, with and without hashed keys, on the CPU and on a simulated device.
fn ways() -> impl Iterator<Item = (Algorithm, TestOverrides)> {
    Algorithm::ANYWHERE.into_iter().flat_map(|algorithm| {
        [(false, None), (true, None), (false, Some(1))].map(|(collide, simulated)| {
            (algorithm, TestOverrides { collide, simulated, ..TestOverrides::default() })
        })
    })
}

/// Checks the number of pairs of a self-join over the named columns in every way. Under the total order, each
/// row matches only itself.
fn check(what: &str, keys: &[&str], batch: &RecordBatch, pairs: u64) {
    let expected =
        [(FloatEquality::Numeric, pairs), (FloatEquality::Total, batch.num_rows() as u64)];
    for (algorithm, force) in ways() {
        for (equality, pairs) in expected {
            let mut join =
                Join::inner().algorithm(algorithm).test_overrides(force).float_equality(equality);
            for &key in keys {
                join = join.on(key);
            }
            let way = format!("{what}, {algorithm}, {equality}, {force:?}");
            assert_eq!(count(&join, batch, batch), pairs, "{way}");
        }
    }
}

#[test]
fn zeros_are_equal_and_so_are_nans() {
    for data_type in [DataType::Float16, DataType::Float32, DataType::Float64] {
        let batch = table(vec![("k", floats(&data_type)), ("l", floats(&data_type))]);
        check(&format!("{data_type}"), &["k"], &batch, NUMERIC_PAIRS);
        // Two columns of 16 or 32 bits are packed into a word. Two columns of 64 bits are hashed.
        check(&format!("two {data_type}"), &["k", "l"], &batch, NUMERIC_PAIRS);
    }
}

#[test]
fn floats_of_different_types_and_integers_meet() {
    let (narrow, wide) = (floats(&DataType::Float32), floats(&DataType::Float64));
    let numbers = |values: Vec<i16>| Arc::new(Int16Array::from(values)) as ArrayRef;
    for (algorithm, force) in ways() {
        let join = Join::inner().on("k").algorithm(algorithm).test_overrides(force);
        let rows = |left: &ArrayRef, right: &ArrayRef| {
            count(&join, &table(vec![("k", left.clone())]), &table(vec![("k", right.clone())]))
        };
        // 6.0e-8 is a different number in 32 bits.
        assert_eq!(rows(&narrow, &wide), NUMERIC_PAIRS - 1, "{algorithm}");
        // Zero matches both zeros; one matches nothing.
        assert_eq!(rows(&numbers(vec![0, 1]), &narrow), 2, "{algorithm}");
        assert_eq!(rows(&wide, &numbers(vec![1, 0])), 2, "{algorithm}");
    }
}

#[test]
fn encodings_do_not_matter() {
    let values = floats(&DataType::Float64);
    let keys = Int8Array::from_iter_values(0..FLOATS.len() as i8);
    let dictionary: ArrayRef = Arc::new(DictionaryArray::new(keys, values.clone()));
    check("dictionary", &["k"], &table(vec![("k", dictionary)]), NUMERIC_PAIRS);
    let ends = Int32Array::from_iter_values(1..=FLOATS.len() as i32);
    let runs: ArrayRef = Arc::new(RunArray::try_new(&ends, &values).unwrap());
    check("runs", &["k"], &table(vec![("k", runs)]), NUMERIC_PAIRS);
}

/// Arrays of every nested kind, with one float of [`FLOATS`] in each row.
fn nested() -> Vec<(&'static str, ArrayRef)> {
    let rows = FLOATS.len();
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let values = floats(&DataType::Float64);
    let offsets = || arrow::buffer::OffsetBuffer::from_lengths(vec![1; rows]);
    let fields = Fields::from(vec![Field::new("x", DataType::Float64, true)]);
    let structs: ArrayRef = Arc::new(StructArray::new(fields, vec![values.clone()], None));
    let lists: ArrayRef =
        Arc::new(ListArray::new(item(DataType::Float64), offsets(), values.clone(), None));
    let deep: ArrayRef = Arc::new(ListArray::new(
        item(structs.data_type().clone()),
        offsets(),
        structs.clone(),
        None,
    ));
    let reversed = Float64Array::from(FLOATS.iter().rev().copied().collect::<Vec<_>>());
    let reversed: ArrayRef = Arc::new(reversed);
    let backwards = (0..rows as i32).rev().collect::<Vec<_>>().into();
    let views = ListViewArray::new(
        item(DataType::Float64),
        backwards,
        vec![1; rows].into(),
        reversed,
        None,
    );
    let halves = floats(&DataType::Float16);
    let fixed = FixedSizeListArray::new(item(DataType::Float16), 1, halves, None);
    let entries = Fields::from(vec![
        Field::new("keys", DataType::Int32, false),
        Field::new("values", DataType::Float32, true),
    ]);
    let ones: ArrayRef = Arc::new(Int32Array::from(vec![1; rows]));
    let entries = StructArray::new(entries, vec![ones, floats(&DataType::Float32)], None);
    let entry = Arc::new(Field::new("entries", entries.data_type().clone(), false));
    let map = MapArray::new(entry, offsets(), entries, None, false);
    let members =
        [Field::new("i", DataType::Int32, true), Field::new("f", DataType::Float64, true)];
    let members = UnionFields::try_new([3, 5], members).expect("as the test makes it");
    let children: Vec<ArrayRef> = vec![Arc::new(Int32Array::from(vec![7; rows])), values.clone()];
    let tags = || vec![5; rows].into();
    let sparse = UnionArray::try_new(members.clone(), tags(), None, children.clone())
        .expect("as the test makes it");
    let places = Some((0..rows as i32).collect::<Vec<_>>().into());
    let dense =
        UnionArray::try_new(members, tags(), places, children).expect("as the test makes it");
    let indices = || Int16Array::from_iter_values(0..rows as i16);
    let inner: ArrayRef = Arc::new(DictionaryArray::new(indices(), values.clone()));
    let of_dictionary: ArrayRef =
        Arc::new(ListArray::new(item(inner.data_type().clone()), offsets(), inner, None));
    let of_structs: ArrayRef = Arc::new(DictionaryArray::new(indices(), structs.clone()));
    let ends = Int32Array::from_iter_values(1..=rows as i32);
    let runs: ArrayRef = Arc::new(RunArray::try_new(&ends, &values).expect("as the test makes it"));
    let of_runs = Fields::from(vec![Field::new("r", runs.data_type().clone(), true)]);
    let of_runs: ArrayRef = Arc::new(StructArray::new(of_runs, vec![runs], None));
    vec![
        ("struct", structs),
        ("list", lists),
        ("list of structs", deep),
        ("list view", Arc::new(views)),
        ("fixed-size list", Arc::new(fixed)),
        ("map", Arc::new(map)),
        ("sparse union", Arc::new(sparse)),
        ("dense union", Arc::new(dense)),
        ("list of a dictionary", of_dictionary),
        ("dictionary of structs", of_structs),
        ("struct of runs", of_runs),
    ]
}

#[test]
fn floats_inside_nested_keys_are_equal_alike() {
    for (what, array) in nested() {
        check(what, &["k"], &table(vec![("k", array.clone())]), NUMERIC_PAIRS);
        // A slice: the second zero, both NaNs and the first infinity.
        let slice = array.slice(1, 4);
        check(&format!("slice of {what}"), &["k"], &table(vec![("k", slice)]), 1 + 4 + 1);
    }
}

#[test]
fn sort_merge_puts_nan_after_infinity_and_before_nulls() {
    let values = [Some(f64::NAN), Some(1.0), None, Some(-0.0), Some(ODD_NAN), Some(f64::INFINITY)];
    let values: Vec<_> = values.into_iter().chain([Some(0.0), Some(f64::NEG_INFINITY)]).collect();
    let left = table(vec![("k", Arc::new(Float64Array::from(values.clone())) as _)]);
    // A key of two 64-bit columns is ranked. A key of one is sorted by its word.
    let second: ArrayRef = Arc::new(Int64Array::from(vec![1; values.len()]));
    let wide = table(vec![("k", left.column(0).clone()), ("l", second)]);
    for (batch, keys) in [(&left, &["k"][..]), (&wide, &["k", "l"])] {
        let mut join = Join::new(JoinType::Left).algorithm(Algorithm::SortMerge);
        for &key in keys {
            join = join.on(key);
        }
        let output = join.select(["k"]).run(whole(batch), whole(batch)).unwrap();
        let (batches, _) = drained(output).unwrap();
        let sorted: Vec<Option<f64>> = (batches.iter())
            .flat_map(|b| b.column(0).as_primitive::<Float64Type>().iter().collect::<Vec<_>>())
            .collect();
        let place = |v: &Option<f64>| match v {
            Some(v) if v.is_nan() => 4,
            Some(f64::INFINITY) => 3,
            Some(v) if *v == 0.0 => 1,
            Some(v) if *v > 0.0 => 2,
            Some(_) => 0,
            None => 5,
        };
        let places: Vec<_> = sorted.iter().map(place).collect();
        assert_eq!(places, [0, 1, 1, 1, 1, 2, 3, 4, 4, 4, 4, 5], "{sorted:?}");
    }
}

/// Returns the bits of the values in a merged key column, and the payload of each row.
fn merged(join: &Join, left: &RecordBatch, right: &RecordBatch) -> Vec<(u64, i64)> {
    let (batches, _) = drained(join.run(whole(left), whole(right)).expect("as the test makes it"))
        .expect("as the test makes it");
    let mut rows = Vec::new();
    for batch in batches {
        let key = batch.column_by_name("k").expect("as the test makes it");
        let bits: Vec<u64> = match key.data_type() {
            DataType::Float16 => key
                .as_primitive::<Float16Type>()
                .values()
                .iter()
                .map(|v| v.to_bits().into())
                .collect(),
            DataType::Float32 => key
                .as_primitive::<Float32Type>()
                .values()
                .iter()
                .map(|v| v.to_bits().into())
                .collect(),
            _ => key.as_primitive::<Float64Type>().values().iter().map(|v| v.to_bits()).collect(),
        };
        let payload = batch
            .column_by_name("p")
            .expect("as the test makes it")
            .as_primitive::<arrow::datatypes::Int64Type>();
        rows.extend(bits.into_iter().zip(payload.values().iter().copied()));
    }
    rows.sort_unstable();
    rows
}

#[test]
fn a_merged_key_shows_the_left_value_whatever_the_plan() {
    for data_type in [DataType::Float16, DataType::Float32, DataType::Float64] {
        let side = |values: Vec<f64>, payload: Option<&str>| {
            let rows = values.len() as i64;
            let keys = cast(&Float64Array::from(values), &data_type).unwrap();
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
            let mut columns = vec![("k", keys)];
            columns.extend(payload.map(|name| (name, numbers)));
            table(columns)
        };
        // The right side has the payload and unique keys, so its payload can be inlined.
        let left = side(vec![-0.0, 0.0, ODD_NAN, f64::NAN, -0.0], None);
        let right = side(vec![0.0, f64::NAN, 2.0], Some("p"));
        let bits = |batch: &RecordBatch, row: usize| -> u64 {
            let one = cast(&batch.column(0).slice(row, 1), &data_type).unwrap();
            match &data_type {
                DataType::Float16 => one.as_primitive::<Float16Type>().value(0).to_bits().into(),
                DataType::Float32 => one.as_primitive::<Float32Type>().value(0).to_bits().into(),
                _ => one.as_primitive::<Float64Type>().value(0).to_bits(),
            }
        };
        let mut of_left: Vec<(u64, i64)> =
            [(0, 0), (1, 0), (2, 1), (3, 1), (4, 0)].map(|(row, p)| (bits(&left, row), p)).into();
        of_left.sort_unstable();
        let mut of_right: Vec<(u64, i64)> = [(0, 0), (0, 0), (1, 1), (1, 1), (0, 0), (2, 2)]
            .map(|(row, p)| (bits(&right, row), p))
            .into();
        of_right.sort_unstable();
        let mut of_full = of_left.clone();
        of_full.push((bits(&right, 2), 2));
        of_full.sort_unstable();
        for (algorithm, force) in ways() {
            for build_side in [Side::Left, Side::Right] {
                for row_ids in [false, true] {
                    let join = |join_type| {
                        let force = TestOverrides { row_ids, ..force };
                        let join = Join::new(join_type).on("k").algorithm(algorithm);
                        join.build_side(build_side).test_overrides(force)
                    };
                    let way = format!("{data_type}, {algorithm}, {build_side:?}, {force:?}");
                    let rows = merged(&join(JoinType::Inner), &left, &right);
                    assert_eq!(rows, of_left, "inner, {way}");
                    // The sides are swapped: the left row now has the payload.
                    let rows = merged(&join(JoinType::Left), &left, &right);
                    assert_eq!(rows, of_left, "left, {way}");
                    let rows = merged(&join(JoinType::Right), &left, &right);
                    assert_eq!(rows, of_right, "right, {way}");
                    let rows = merged(&join(JoinType::Full), &left, &right);
                    assert_eq!(rows, of_full, "full, {way}");
                }
            }
        }
    }
}

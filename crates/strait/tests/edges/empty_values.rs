//! Columns whose values take no bytes: `FixedSizeBinary(0)` and `FixedSizeList(_, 0)`. Such values are empty
//! or null. The length of such a column cannot be computed from its bytes or its elements.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, DictionaryArray, FixedSizeBinaryArray, FixedSizeListArray, Int8Array,
    Int64Array, RecordBatch, StructArray,
};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int64Type};
use strait::{JoinType, NullEquality, Side};

use super::{Join, NAMED, batches, drained};

fn nulls(rows: usize, with_nulls: bool) -> Option<NullBuffer> {
    with_nulls.then(|| (0..rows).map(|row| row % 3 != 0).collect())
}

fn binaries(rows: usize, with_nulls: bool) -> ArrayRef {
    let nulls = nulls(rows, with_nulls);
    let array = FixedSizeBinaryArray::try_new_with_len(0, Buffer::default(), nulls, rows);
    Arc::new(array.expect("no bytes"))
}

fn lists(rows: usize, with_nulls: bool) -> ArrayRef {
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let items = arrow::array::new_empty_array(&DataType::Int32);
    let nulls = nulls(rows, with_nulls);
    let array = FixedSizeListArray::try_new_with_length(item, 0, items, nulls, rows);
    Arc::new(array.expect("no elements"))
}

/// Both types, alone, in structs and in dictionaries.
fn columns(rows: usize, with_nulls: bool) -> Vec<(String, ArrayRef)> {
    let mut columns = Vec::new();
    for (name, make) in [("binary", binaries as fn(usize, bool) -> ArrayRef), ("list", lists)] {
        let plain = make(rows, with_nulls);
        let field = Arc::new(Field::new("f", plain.data_type().clone(), true));
        let structs: ArrayRef = Arc::new(StructArray::from(vec![(field, Arc::clone(&plain))]));
        let keys = Int8Array::from_iter((0..rows).map(|row| Some((row % 2) as i8)));
        let dictionary = DictionaryArray::new(keys, make(4, with_nulls));
        columns.push((name.to_string(), plain));
        columns.push((format!("{name}_struct"), structs));
        columns.push((format!("{name}_dictionary"), Arc::new(dictionary)));
    }
    columns
}

fn table(prefix: &str, keys: impl Iterator<Item = i64>, with_nulls: bool) -> RecordBatch {
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(keys));
    let rows = keys.len();
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
    let mut all = vec![("k".to_string(), keys), (format!("{prefix}row"), numbers)];
    all.extend(columns(rows, with_nulls).into_iter().map(|(n, c)| (format!("{prefix}{n}"), c)));
    RecordBatch::try_from_iter_with_nullable(all.into_iter().map(|(n, c)| (n, c, true)))
        .expect("columns of one length")
}

fn cut(batch: &RecordBatch, parts: usize) -> Vec<RecordBatch> {
    let len = batch.num_rows().div_ceil(parts);
    let starts = (0..batch.num_rows()).step_by(len);
    starts.map(|at| batch.slice(at, len.min(batch.num_rows() - at))).collect()
}

/// Checks that each output row has the same nulls as the input row whose number it has.
fn check(output: &RecordBatch, input: &RecordBatch, prefix: &str, what: &str) {
    let Some(numbers) = output.column_by_name(&format!("{prefix}row")) else { return };
    let numbers = numbers.as_primitive::<Int64Type>();
    for (field, column) in input.schema().fields().iter().zip(input.columns()).skip(2) {
        let found = output.column_by_name(field.name()).expect("a column of this name");
        let (found, column) = [found, column].map(|c| c.logical_nulls()).into();
        for (row, number) in numbers.iter().enumerate() {
            let is_null = |nulls: &Option<NullBuffer>, at: usize| {
                nulls.as_ref().is_some_and(|nulls| nulls.is_null(at))
            };
            let expected = number.is_none_or(|number| is_null(&column, number as usize));
            assert_eq!(is_null(&found, row), expected, "{what}: {} in row {row}", field.name());
        }
    }
}

#[test]
fn payload_without_bytes_is_gathered() {
    for with_nulls in [false, true] {
        let left = table("l_", (0..40).map(|i| i % 25), with_nulls);
        let right = table("r_", (0..60).map(|i| i % 45 + 5), with_nulls);
        for join_type in JoinType::ALL {
            for (algorithm, parts) in NAMED.iter().flat_map(|&a| [(a, 1), (a, 4)]) {
                let what = format!("{join_type}, {algorithm}, {parts} batches, nulls {with_nulls}");
                let join = Join::new(join_type).on("k").algorithm(algorithm).batch_size(7);
                let [l, r] = [&left, &right].map(|t| batches(t.schema(), cut(t, parts)));
                let (found, _) = drained(join.run(l, r).expect(&what)).expect(&what);
                assert!(!found.is_empty(), "{what}");
                for batch in &found {
                    check(batch, &left, "l_", &what);
                    check(batch, &right, "r_", &what);
                }
                concat_batches(&found[0].schema(), &found).expect(&what);
            }
        }
    }
}

#[test]
fn keys_without_bytes_are_equal_unless_null() {
    for with_nulls in [false, true] {
        let (left, right) = (table("l_", 0..12, with_nulls), table("r_", 0..9, with_nulls));
        for name in ["binary", "list", "binary_struct", "list_struct", "binary_dictionary"] {
            let count = |t: &RecordBatch, prefix: &str| {
                let column = t.column_by_name(&format!("{prefix}{name}")).expect("a column");
                let inside = column.as_struct_opt().map(|structs| structs.column(0));
                let column = inside.unwrap_or(column);
                let nulls = column.logical_nulls().map_or(0, |nulls| nulls.null_count()) as u64;
                (column.len() as u64 - nulls, nulls)
            };
            let ((l, l_nulls), (r, r_nulls)) = (count(&left, "l_"), count(&right, "r_"));
            let with_nulls_equal = l * r + l_nulls * r_nulls;
            // A null inside a struct is an ordinary value.
            let inside = name.ends_with("struct");
            for (equality, expected) in [
                (NullEquality::NeverEqual, if inside { with_nulls_equal } else { l * r }),
                (NullEquality::Equal, with_nulls_equal),
            ] {
                for (algorithm, parts) in NAMED.iter().flat_map(|&a| [(a, 1), (a, 3)]) {
                    let what = format!("{name}, {algorithm}, {parts}, {equality:?}, {with_nulls}");
                    let join = Join::inner().on_pair(format!("l_{name}"), format!("r_{name}"));
                    let join = join.algorithm(algorithm).null_equality(equality);
                    let join = join.build_side(Side::Left);
                    let [l, r] = [&left, &right].map(|t| batches(t.schema(), cut(t, parts)));
                    assert_eq!(join.count(l, r).expect(&what).0, expected, "{what}");
                }
            }
        }
    }
}

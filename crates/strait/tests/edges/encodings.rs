//! Dictionaries, runs and nested values in many batches. No dictionary key, run end or offset overflows, and
//! every row keeps its value and its type.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, DictionaryArray, FixedSizeBinaryArray,
    FixedSizeListArray, Int64Array, ListArray, MapArray, PrimitiveArray, RecordBatch, RunArray,
    StringArray, StringViewArray, StructArray, UnionArray,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowDictionaryKeyType, ArrowNativeType, DataType, Field, Fields, Int8Type, Int16Type,
    Int32Type, Int64Type, RunEndIndexType, UInt8Type, UnionFields,
};
use arrow::util::display::array_value_to_string;
use strait::{Algorithm, Join, JoinType, Side};

use crate::{batches, drained};

/// The number of distinct values in the dictionary of one batch.
const VALUES: usize = 10;

/// What the dictionaries of a side share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// All batches have the same array of values.
    Pointer,
    /// Each batch has its own array of equal values.
    Content,
    /// No value is in two batches.
    Nothing,
}

/// Types of dictionary values.
const KINDS: [&str; 7] = ["utf8", "view", "fixed", "boolean", "int", "struct", "list"];

/// `VALUES` values of a kind, made from the integers starting at `first`.
fn values(kind: &str, first: usize) -> ArrayRef {
    let numbers = || first..first + VALUES;
    let texts = || numbers().map(|i| format!("a value with the number {i}"));
    let ints = || numbers().map(|i| i as i64);
    match kind {
        "utf8" => Arc::new(StringArray::from_iter_values(texts())),
        "view" => Arc::new(StringViewArray::from_iter_values(texts())),
        "fixed" => {
            let bytes = numbers().map(|i| (i as u32).to_be_bytes());
            Arc::new(FixedSizeBinaryArray::try_from_iter(bytes).expect("four bytes each"))
        }
        "boolean" => Arc::new(BooleanArray::from_iter(numbers().map(|i| Some(i % 2 == 0)))),
        "int" => Arc::new(Int64Array::from_iter_values(ints())),
        "struct" => {
            let columns: Vec<ArrayRef> = vec![
                Arc::new(Int64Array::from_iter_values(ints())),
                Arc::new(StringArray::from_iter_values(texts())),
            ];
            let fields = ["a", "b"].iter().zip(&columns);
            let fields = fields.map(|(name, c)| Field::new(*name, c.data_type().clone(), true));
            Arc::new(StructArray::new(fields.collect(), columns, None))
        }
        _ => {
            let lists = ints().map(|i| Some(vec![Some(i), None, Some(i + 1)]));
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))
        }
    }
}

/// Dictionary arrays of `rows` rows. Every seventh row is null.
fn dictionaries<K: ArrowDictionaryKeyType>(
    kind: &str,
    sharing: Sharing,
    chunks: usize,
    rows: usize,
) -> Vec<ArrayRef> {
    let shared = values(kind, 0);
    let chunk = |chunk: usize| -> ArrayRef {
        let values = match sharing {
            Sharing::Pointer => Arc::clone(&shared),
            Sharing::Content => values(kind, 0),
            Sharing::Nothing => values(kind, chunk * VALUES),
        };
        let key = |i: usize| (i % 7 != 6).then(|| K::Native::usize_as((i * 3 + chunk) % VALUES));
        let keys = PrimitiveArray::<K>::from_iter((0..rows).map(key));
        Arc::new(DictionaryArray::<K>::try_new(keys, values).expect("keys inside the dictionary"))
    };
    (0..chunks).map(chunk).collect()
}

/// Batches with keys counted from zero, and one payload array per batch.
fn numbered(payload: &[ArrayRef]) -> Vec<RecordBatch> {
    let mut first = 0;
    let batch = |payload: &ArrayRef| {
        let keys = first..first + payload.len() as i64;
        first = keys.end;
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(keys));
        RecordBatch::try_from_iter_with_nullable([
            ("k", keys, false),
            ("p", Arc::clone(payload), true),
        ])
        .expect("columns of one length")
    };
    payload.iter().map(batch).collect()
}

/// A batch of `rows` keys in scattered order, for a side of `of` rows. Every fifth key has no match.
fn asking(rows: usize, of: usize) -> RecordBatch {
    let key = |i: usize| if i % 5 == 4 { -1 } else { (i * 7919 % of) as i64 };
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(key)));
    RecordBatch::try_from_iter([("k", keys)]).expect("one column")
}

/// Joins `payload` as a build side with scattered keys. Checks each value, and the type.
fn check_payload(what: &str, join: &Join, payload: &[ArrayRef], rows: usize) {
    let build = numbered(payload);
    let of = payload.iter().map(|p| p.len()).sum();
    let text = |a: &ArrayRef, i| array_value_to_string(a, i).expect("a value as text");
    let expected: Vec<String> =
        payload.iter().flat_map(|p| (0..p.len()).map(move |i| text(p, i))).collect();
    let probe = asking(rows, of);
    let left = batches(build[0].schema(), build.clone());
    let right = batches(probe.schema(), vec![probe]);
    let reader = join.clone().on("k").build_side(Side::Left).run(left, right).expect(what);
    let (found, report) = drained(reader).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut seen = 0;
    for batch in &found {
        let keys = batch.column(0).as_primitive::<Int64Type>();
        let payload = batch.column(1);
        assert_eq!(payload.data_type(), build[0].column(1).data_type(), "{what}");
        payload.to_data().validate_full().unwrap_or_else(|error| panic!("{what}: {error}"));
        for i in 0..batch.num_rows() {
            let expected = match usize::try_from(keys.value(i)) {
                Ok(key) => expected[key].as_str(),
                // A union has no nulls of its own. Its first member is null instead.
                Err(_) if matches!(payload.data_type(), DataType::Union(..)) => "{d=}",
                Err(_) => "",
            };
            assert_eq!(text(payload, i), expected, "{what}, key {}", keys.value(i));
        }
        seen += batch.num_rows();
    }
    assert_eq!(seen as u64, report.output_rows, "{what}");
    assert!(seen >= rows * 4 / 5 - 1, "{what}: {seen} rows");
}

/// Joins that gather payload, with and without absent rows.
fn joins() -> [Join; 3] {
    [
        Join::inner().algorithm(Algorithm::NoPartition),
        Join::new(JoinType::Right).algorithm(Algorithm::NoPartition),
        Join::new(JoinType::Right).algorithm(Algorithm::SortMerge),
    ]
}

fn check_dictionaries<K: ArrowDictionaryKeyType>() {
    for kind in KINDS {
        for sharing in [Sharing::Pointer, Sharing::Content, Sharing::Nothing] {
            for (chunks, rows) in [(20, 30), (500, 3)] {
                let payload = dictionaries::<K>(kind, sharing, chunks, rows);
                let what = format!("{} of {kind}, {sharing:?}, {chunks}", K::DATA_TYPE);
                check_payload(&what, &joins()[chunks % 3], &payload, 1200);
                check_payload(&what, &joins()[0], &payload, 1200);
            }
        }
    }
}

#[test]
fn dictionaries_of_8_bits_in_many_batches() {
    check_dictionaries::<Int8Type>();
    check_dictionaries::<UInt8Type>();
}

#[test]
fn dictionaries_of_16_bits_in_many_batches() {
    check_dictionaries::<Int16Type>();
}

/// Wraps each dictionary in a `List`, `Map`, `FixedSizeList`, `Struct`, run array or union.
fn around(name: &str, inner: &ArrayRef) -> ArrayRef {
    let item = Arc::new(Field::new("item", inner.data_type().clone(), true));
    let pairs = || OffsetBuffer::from_lengths(std::iter::repeat_n(2, inner.len() / 2));
    match name {
        "struct" => {
            let fields = Fields::from(vec![Field::new("d", inner.data_type().clone(), true)]);
            Arc::new(StructArray::new(fields, vec![Arc::clone(inner)], None))
        }
        "list" => Arc::new(ListArray::new(item, pairs(), Arc::clone(inner), None)),
        "fixed-size list" => {
            Arc::new(FixedSizeListArray::new(item, 2, inner.slice(0, inner.len() / 2 * 2), None))
        }
        "map" => {
            let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..inner.len() as i64));
            let fields = Fields::from(vec![
                Field::new("keys", DataType::Int64, false),
                Field::new("values", inner.data_type().clone(), true),
            ]);
            let entries = StructArray::new(fields.clone(), vec![keys, Arc::clone(inner)], None);
            let field = Arc::new(Field::new("entries", DataType::Struct(fields), false));
            Arc::new(MapArray::new(field, pairs(), entries, None, false))
        }
        "run" => runs_over::<Int16Type>(inner, 2),
        _ => {
            let ints: ArrayRef = Arc::new(Int64Array::from_iter_values(0..inner.len() as i64));
            let fields = [
                (0, Field::new("d", inner.data_type().clone(), true)),
                (1, Field::new("i", DataType::Int64, true)),
            ];
            let fields: UnionFields =
                fields.into_iter().map(|(id, field)| (id, Arc::new(field))).collect();
            let tags: ScalarBuffer<i8> = (0..inner.len()).map(|i| i8::from(i % 3 == 0)).collect();
            let union = UnionArray::try_new(fields, tags, None, vec![Arc::clone(inner), ints]);
            Arc::new(union.expect("children of one length"))
        }
    }
}

/// A run array with `each` rows per value.
fn runs_over<R: RunEndIndexType>(values: &ArrayRef, each: usize) -> ArrayRef {
    let ends = (1..=values.len()).map(|i| R::Native::usize_as(i * each));
    let ends = PrimitiveArray::<R>::from_iter_values(ends);
    Arc::new(RunArray::<R>::try_new(&ends, values).expect("one end per value"))
}

#[test]
fn dictionaries_inside_nested_values() {
    for name in ["struct", "list", "fixed-size list", "map", "run", "union"] {
        for kind in ["view", "fixed", "utf8"] {
            for sharing in [Sharing::Pointer, Sharing::Content, Sharing::Nothing] {
                let inner = dictionaries::<Int8Type>(kind, sharing, 60, 20);
                let payload: Vec<ArrayRef> = inner.iter().map(|d| around(name, d)).collect();
                let what = format!("{name} of dictionaries of {kind}, {sharing:?}");
                for join in joins() {
                    check_payload(&what, &join, &payload, 700);
                }
            }
        }
    }
}

/// One row may use as many values as a dictionary key can count. The dictionaries of such rows cannot be
/// merged.
#[test]
fn a_list_that_fills_its_dictionary() {
    let chunk = |chunk: usize| -> ArrayRef {
        let texts = (0..128).map(|i| format!("value {i} of chunk {chunk}"));
        let values: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
        let keys = PrimitiveArray::<Int8Type>::from_iter_values(0..=127);
        let inner: ArrayRef = Arc::new(DictionaryArray::new(keys, values));
        let item = Arc::new(Field::new("item", inner.data_type().clone(), true));
        Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([128]), inner, None))
    };
    let payload: Vec<ArrayRef> = (0..9).map(chunk).collect();
    for join in joins() {
        check_payload("lists of 128 values", &join, &payload, 40);
    }
}

fn check_runs<R: RunEndIndexType>() {
    let texts = |first: usize| -> ArrayRef {
        let text = |i: usize| (!i.is_multiple_of(9)).then(|| format!("run {}", first + i));
        Arc::new(StringArray::from_iter((0..5000).map(text)))
    };
    let whole: Vec<ArrayRef> = (0..3).map(|i| runs_over::<R>(&texts(i * 5000), 6)).collect();
    let sliced: Vec<ArrayRef> = whole.iter().map(|run| run.slice(1003, 20_001)).collect();
    for join in joins() {
        let what = format!("run ends of {}", R::DATA_TYPE);
        check_payload(&what, &join, &whole, 40_000);
        check_payload(&what, &join, &whole[..1], 40_000);
        check_payload(&format!("sliced {what}"), &join, &sliced, 40_000);
        check_payload(&format!("sliced {what}"), &join, &sliced[..1], 40_000);
    }
}

#[test]
fn runs_are_cut_where_their_ends_run_out() {
    check_runs::<Int16Type>();
    check_runs::<Int32Type>();
    check_runs::<Int64Type>();
}

/// All rows of one side are absent: there are more nulls than an `Int16` run end can count.
#[test]
fn absent_runs_are_cut_too() {
    let nothing = [runs_over::<Int16Type>(&values("utf8", 0), 1).slice(0, 1)];
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(1000..51_000));
    let probe = RecordBatch::try_from_iter([("k", keys)]).expect("one column");
    for algorithm in [Algorithm::NoPartition, Algorithm::Radix, Algorithm::SortMerge] {
        let join = Join::new(JoinType::Right).on("k").algorithm(algorithm).batch_size(50_000);
        let build = numbered(&nothing);
        let left = batches(build[0].schema(), build);
        let reader = join.run(left, batches(probe.schema(), vec![probe.clone()])).expect("starts");
        let (found, _) = drained(reader).expect("the join succeeds");
        let rows: usize = found.iter().map(RecordBatch::num_rows).sum();
        assert_eq!(rows, 50_000, "{algorithm}");
        for batch in &found {
            assert_eq!(batch.column(1).logical_null_count(), batch.num_rows(), "{algorithm}");
        }
    }
}

fn check_full_join<K: ArrowDictionaryKeyType>(distinct: usize, view: bool) {
    let side = |first: usize| {
        let texts = (first..first + distinct).map(|i| format!("the key with number {i:06}"));
        let values: ArrayRef = match view {
            true => Arc::new(StringViewArray::from_iter_values(texts)),
            false => Arc::new(StringArray::from_iter_values(texts)),
        };
        let keys = (0..distinct).map(K::Native::usize_as);
        let keys = PrimitiveArray::<K>::from_iter_values(keys);
        let column: ArrayRef = Arc::new(DictionaryArray::<K>::try_new(keys, values).expect("keys"));
        RecordBatch::try_from_iter_with_nullable([("k", column, true)]).expect("one column")
    };
    // Half of the keys occur on both sides.
    let (left, right) = (side(0), side(distinct / 2));
    for algorithm in [Algorithm::SortMerge, Algorithm::NoPartition] {
        let join = Join::new(JoinType::Full).on("k").algorithm(algorithm);
        let sides = [&left, &right].map(|side| batches(side.schema(), vec![side.clone()]));
        let [left_reader, right_reader] = sides;
        let reader = join.run(left_reader, right_reader).expect("the join starts");
        let (found, _) = drained(reader).expect("the join succeeds");
        let mut texts = Vec::new();
        for batch in &found {
            assert_eq!(batch.column(0).data_type(), left.column(0).data_type());
            batch.column(0).to_data().validate_full().expect("a valid dictionary");
            let text = |i| array_value_to_string(batch.column(0), i).expect("a key");
            texts.extend((0..batch.num_rows()).map(text));
        }
        if algorithm != Algorithm::SortMerge {
            texts.sort_unstable();
        }
        let expected = (0..distinct / 2 + distinct).map(|i| format!("the key with number {i:06}"));
        assert!(texts.iter().cloned().eq(expected), "{algorithm}, {}", K::DATA_TYPE);
    }
}

#[test]
fn full_joins_on_dictionaries() {
    for view in [false, true] {
        check_full_join::<Int8Type>(120, view);
        check_full_join::<UInt8Type>(250, view);
        check_full_join::<Int16Type>(30_000, view);
        check_full_join::<Int32Type>(3000, view);
    }
}

//! Compares every key type with plain Rust values. Words, verification and ranks must agree with them: in one
//! chunk and in many, with nulls equal and never equal, with and without collisions.

use std::cmp::Ordering;
use std::slice::from_ref;
use std::sync::Arc;

use arrow::array::*;
use arrow::compute::cast;
use arrow::datatypes::*;

use super::*;
use crate::options::FloatEquality;

/// A value of a key column, as the oracle compares it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Number(i128),
    Bytes(Vec<u8>),
    List(Vec<Option<i128>>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value::Number(value.into())
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Value::Bytes(value.into())
    }
}

/// One key column: the array and its values.
#[derive(Clone)]
struct Key(ArrayRef, Vec<Option<Value>>);

fn key<V: Into<Value>>(array: impl Array + 'static, values: Vec<Option<V>>) -> Key {
    assert_eq!(array.len(), values.len());
    Key(Arc::new(array), values.into_iter().map(|v| v.map(Into::into)).collect())
}

fn keys(array: ArrayRef, values: &[Option<i64>]) -> Key {
    assert_eq!(array.len(), values.len());
    Key(array, values.iter().map(|v| v.map(Into::into)).collect())
}

/// Null sorts last.
fn order(a: &[Option<Value>], b: &[Option<Value>]) -> Ordering {
    let columns = a.iter().zip(b).map(|(a, b)| match (a, b) {
        (Some(a), Some(b)) => a.cmp(b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    });
    columns.fold(Ordering::Equal, Ordering::then)
}

struct Table {
    schema: Schema,
    batch: RecordBatch,
    rows: Vec<Vec<Option<Value>>>,
}

fn table(columns: &[Key]) -> Table {
    let field = |(i, key): (usize, &Key)| {
        let nullable = key.1.iter().any(Option::is_none);
        Field::new(format!("c{i}"), key.0.data_type().clone(), nullable)
    };
    let schema = Schema::new(columns.iter().enumerate().map(field).collect::<Vec<_>>());
    let arrays = columns.iter().map(|key| key.0.clone()).collect();
    let batch = RecordBatch::try_new(Arc::new(schema.clone()), arrays).unwrap();
    let row = |i: usize| columns.iter().map(|key| key.1[i].clone()).collect();
    Table { schema, rows: (0..batch.num_rows()).map(row).collect(), batch }
}

fn one_worker() -> Workers {
    Workers::new(1, Arc::default())
}

fn chunks(batch: &RecordBatch, size: usize) -> Vec<RecordBatch> {
    let rows = batch.num_rows();
    (0..rows).step_by(size).map(|at| batch.slice(at, size.min(rows - at))).collect()
}

fn words_of(plan: &KeyPlan, side: Side, batch: &RecordBatch) -> (Vec<u64>, Vec<bool>) {
    let mut wide = Vec::new();
    let valid = match plan.width() {
        Width::W64 => plan.words(side, batch, &mut wide).unwrap(),
        Width::W32 => {
            let mut narrow = vec![7u32; 3];
            let valid = plan.words(side, batch, &mut narrow).unwrap();
            wide = narrow.iter().map(|&word| word.into()).collect();
            valid
        }
    };
    assert_eq!(wide.len(), batch.num_rows());
    let valid: Vec<bool> = match valid {
        Some(valid) => valid.iter().collect(),
        None => vec![true; wide.len()],
    };
    (wide, valid)
}

/// Checks both sides against the oracle. Returns the plan for which nulls are never equal.
fn check(left: &[Key], right: &[Key]) -> KeyPlan {
    check_floats(left, right, FloatEquality::default())
}

fn check_floats(left: &[Key], right: &[Key], floats: FloatEquality) -> KeyPlan {
    let plan = |left: &Table, right: &Table, pairs: &[(usize, usize)], nulls, collide| {
        let equality = Equality { nulls, floats };
        KeyPlan::new(&left.schema, &right.schema, pairs, equality, collide).unwrap()
    };
    let (left, right) = (table(left), table(right));
    let pairs: Vec<_> = (0..left.schema.fields().len()).map(|i| (i, i)).collect();
    for equality in [NullEquality::Equal, NullEquality::NeverEqual] {
        for collide in [false, true] {
            let plan = plan(&left, &right, &pairs, equality, collide);
            for size in [1000, 3] {
                check_plan(&plan, &left, &right, size);
            }
        }
    }
    plan(&left, &right, &pairs, NullEquality::NeverEqual, false)
}

fn check_plan(plan: &KeyPlan, left: &Table, right: &Table, size: usize) {
    let what = format!("{} {:?}", plan.encoding(), plan.null_equality);
    let (l_chunks, r_chunks) = (chunks(&left.batch, size), chunks(&right.batch, size));
    let words = |side, chunks: &[RecordBatch]| {
        let parts: Vec<_> = chunks.iter().map(|chunk| words_of(plan, side, chunk)).collect();
        let words: Vec<u64> = parts.iter().flat_map(|p| p.0.clone()).collect();
        (words, parts.iter().flat_map(|p| p.1.clone()).collect::<Vec<bool>>())
    };
    let (l_words, l_valid) = words(Side::Left, &l_chunks);
    let (r_words, r_valid) = words(Side::Right, &r_chunks);
    let budget = Budget::new(None);
    let (l_values, r_values) = (
        plan.values(Side::Left, &l_chunks, (&one_worker(), &budget)).unwrap(),
        plan.values(Side::Right, &r_chunks, (&one_worker(), &budget)).unwrap(),
    );
    let (l_ranks, r_ranks) = plan
        .ranks(&l_chunks, &r_chunks, (&Workers::new(2, Arc::default()), &Budget::new(None)))
        .unwrap();
    let ranked_valid = |ranked: &Ranked, i| ranked.valid.as_ref().is_none_or(|v| v.is_valid(i));
    let at = |i: usize| Location { batch: (i / size) as u32, row: (i % size) as u32 };
    for (i, a) in left.rows.iter().enumerate() {
        for (j, b) in right.rows.iter().enumerate() {
            let order = order(a, b);
            let no_null = a.iter().chain(b).all(Option::is_some);
            let matches = order.is_eq() && (no_null || plan.null_equality == NullEquality::Equal);
            let context = format!("{what}: left {i} {a:?}, right {j} {b:?}");
            let both_valid = l_valid[i] && r_valid[j];
            if plan.exact() {
                assert_eq!(both_valid && l_words[i] == r_words[j], matches, "words, {context}");
                if both_valid {
                    assert_eq!(l_words[i].cmp(&r_words[j]), order, "order of words, {context}");
                }
                let bits = plan.significant_bits();
                assert!(bits == 64 || l_words[i] >> bits == 0, "bits, {context}");
            } else if matches {
                assert!(both_valid && l_words[i] == r_words[j], "hashes, {context}");
            }
            let mut keep = [true, true];
            plan.equal(&l_values, &[at(i); 2], &r_values, &[at(j); 2], &mut keep).unwrap();
            assert_eq!(keep, [matches; 2], "verification, {context}");
            plan.equal(&r_values, &[at(j); 2], &l_values, &[at(i); 2], &mut keep).unwrap();
            assert_eq!(keep, [matches; 2], "verification the other way, {context}");
            let ranks_valid = ranked_valid(&l_ranks, i) && ranked_valid(&r_ranks, j);
            let ranks = l_ranks.words[i].cmp(&r_ranks.words[j]);
            assert_eq!(ranks_valid && ranks.is_eq(), matches, "ranks, {context}");
            if ranks_valid {
                assert_eq!(ranks, order, "order of ranks, {context}");
            }
        }
    }
}

const NUMBERS: [Option<i64>; 8] =
    [Some(3), None, Some(0), Some(100), Some(3), Some(7), None, Some(1)];

/// Returns the numbers as any type that Arrow casts integers to.
fn numbers(data_type: &DataType) -> Key {
    let array = Int64Array::from(NUMBERS.to_vec());
    keys(cast(&array, data_type).unwrap(), &NUMBERS)
}

#[test]
fn integers_of_every_pair_of_types() {
    use DataType::*;
    let types = [Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];
    for left in &types {
        for right in &types {
            let plan = check(&[numbers(left)], &[numbers(right)]);
            assert_eq!(
                plan.exact(),
                matches!(plan.encoding().form, KeyForm::Direct | KeyForm::Packed)
            );
        }
    }
}

/// Reads a column's values, without the first, as words of `K`. Returns whether value plus bias equals the
/// word; `None` if the words have to be computed.
fn unbiased_values<K: KeyWord + ArrowNativeType>(
    types: [&DataType; 2],
    nulls: bool,
) -> Option<bool> {
    let array = |data_type: &DataType| {
        let numbers = [Some(1), Some(-3), (!nulls).then_some(0), Some(100), Some(7)];
        let numbers = Int64Array::from(numbers.map(|n| n.map(|n: i64| n.rem_euclid(128))).to_vec());
        cast(&numbers, data_type).unwrap()
    };
    let batch = |data_type| {
        let batch = RecordBatch::try_from_iter([("k", array(data_type))]).unwrap();
        batch.slice(1, 4)
    };
    let [left, right] = types.map(batch);
    let equality = NullEquality::NeverEqual;
    let plan = KeyPlan::new(&left.schema(), &right.schema(), &[(0, 0)], equality, false).unwrap();
    let (values, bias) = plan.unbiased_values::<K>(Side::Left, from_ref(&left)).unwrap()?;
    assert!(plan.in_column(Side::Left).is_some());
    assert_eq!(plan.nulls_in_column(Side::Left, from_ref(&left)).unwrap(), Some(false));
    let mut words = Vec::<K>::new();
    plan.words(Side::Left, &left, &mut words).unwrap();
    let mask = u64::MAX >> (64 - K::BITS);
    let made = values[0].iter().map(|value| value.to_u64().wrapping_add(bias) & mask);
    Some(values.len() == 1 && made.eq(words.iter().map(|word| word.to_u64())))
}

#[test]
fn words_are_found_in_columns_as_wide_as_they_are() {
    use DataType::*;
    let micros = Timestamp(TimeUnit::Microsecond, None);
    for wide in [Int64, UInt64, Date64, micros.clone(), Time64(TimeUnit::Nanosecond)] {
        assert_eq!(unbiased_values::<u64>([&wide, &wide], false), Some(true), "{wide}");
        assert_eq!(unbiased_values::<u64>([&wide, &wide], true), None, "{wide} with a null");
    }
    for narrow in [Int32, UInt32, Date32] {
        assert_eq!(unbiased_values::<u32>([&narrow, &narrow], false), Some(true), "{narrow}");
        assert_eq!(unbiased_values::<u32>([&narrow, &narrow], true), None, "{narrow} with a null");
    }
    // One side has a narrower type or another unit, or is no integer.
    assert_eq!(unbiased_values::<u64>([&Int64, &Int32], false), Some(true));
    assert_eq!(unbiased_values::<u64>([&Int32, &Int64], false), None);
    let seconds = Timestamp(TimeUnit::Second, None);
    assert_eq!(unbiased_values::<u64>([&seconds, &micros], false), None);
    assert_eq!(unbiased_values::<u32>([&Int16, &Int16], false), None);
    assert_eq!(unbiased_values::<u64>([&Float64, &Float64], false), None);
}

#[test]
fn integers_at_their_limits() {
    let signed = [Some(i64::MIN), Some(-1), Some(0), Some(i64::MAX), None, Some(255)];
    let left = keys(Arc::new(Int64Array::from(signed.to_vec())), &signed);
    let plan = check(from_ref(&left), from_ref(&left));
    assert!(plan.exact() && plan.dense_candidate());
    assert_eq!(
        (plan.width(), plan.encoding().to_string().as_str()),
        (Width::W64, "Int64, direct in 64 bits")
    );
    let unsigned = vec![Some(u64::MAX), Some(0), Some(i64::MAX as u64), Some(1 << 63)];
    let values = unsigned.iter().map(|v| v.map(|v| Value::Number(v.into()))).collect();
    let right = Key(Arc::new(UInt64Array::from(unsigned)), values);
    check(from_ref(&right), from_ref(&right));
    assert!(!check(from_ref(&left), &[right]).exact());
    let narrow = [Some(-128), Some(-1), Some(127), Some(0), None];
    let narrow = keys(
        Arc::new(Int8Array::from(vec![Some(-128), Some(-1), Some(127), Some(0), None])),
        &narrow,
    );
    assert_eq!(check(from_ref(&narrow), from_ref(&narrow)).significant_bits(), 8);
    check(&[left], from_ref(&narrow));
    check(&[narrow], &[numbers(&DataType::UInt8)]);
}

const FLOATS: [f64; 11] = [
    -0.0,
    0.0,
    f64::NAN,
    -f64::NAN,
    f64::from_bits(0xfff9 << 48),
    f64::INFINITY,
    f64::NEG_INFINITY,
    -1.5,
    1.5,
    100.0,
    // Subnormal in 16 bits.
    5.960464477539063e-8,
];

/// Returns a number that sorts by the total order of floats.
fn total_order(v: f64) -> i64 {
    let bits = v.to_bits() as i64;
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

/// Returns a number that sorts like floats, with NaN as the largest.
fn numeric_order(v: f64) -> i64 {
    match v {
        v if v.is_nan() => i64::MAX,
        0.0 => 0,
        v => total_order(v),
    }
}

#[test]
fn floats_as_numbers_and_as_arrow_compares_them() {
    floats_of_every_pair_of_types(FloatEquality::Numeric, numeric_order);
    floats_of_every_pair_of_types(FloatEquality::Total, total_order);
}

fn floats_of_every_pair_of_types(equality: FloatEquality, order: fn(f64) -> i64) {
    let values: Vec<Option<i64>> = FLOATS.iter().map(|&v| Some(order(v))).collect();
    let wide = keys(Arc::new(Float64Array::from(FLOATS.to_vec())), &values);
    let check = |left: &[Key], right: &[Key]| check_floats(left, right, equality);
    let types = [DataType::Float16, DataType::Float32, DataType::Float64];
    for left in &types {
        for right in &types {
            let [left, right] =
                [left, right].map(|t| Key(cast(&wide.0, t).unwrap(), wide.1.clone()));
            assert!(check(from_ref(&left), from_ref(&right)).exact());
            // Several columns: packed in a word, or hashed.
            check(&[left.clone(), left.clone()], &[left.clone(), right.clone()]);
            // In a dictionary, and in a struct.
            let behind = |key: &Key| {
                let index = Int8Array::from_iter_values(0..key.1.len() as i8);
                let array = DictionaryArray::new(index, key.0.clone());
                Key(Arc::new(array), key.1.clone())
            };
            check(&[behind(&left)], &[right]);
            let inside = |name: &str| {
                let field = Field::new(name, left.0.data_type().clone(), true);
                let array = StructArray::new(vec![field].into(), vec![left.0.clone()], None);
                Key(Arc::new(array), left.1.clone())
            };
            check(&[inside("a")], &[inside("b")]);
        }
    }
    use DataType::*;
    for (integer, float) in
        [(Int8, Float16), (Int16, Float32), (UInt16, Float32), (Int32, Float32), (UInt32, Float64)]
    {
        check(&[numbers(&integer)], &[numbers(&float)]);
    }
}

#[test]
fn decimals_of_every_width_and_scale() {
    use DataType::*;
    let types = [
        Decimal32(9, 2),
        Decimal64(18, 2),
        Decimal64(10, 0),
        Decimal128(38, 2),
        Decimal128(20, 5),
        Decimal256(50, 2),
        Decimal256(60, 20),
        Int64,
        UInt8,
        UInt64,
    ];
    for left in &types {
        for right in &types {
            check(&[numbers(left)], &[numbers(right)]);
        }
    }
    let large = Decimal128Array::from(vec![i128::MAX, i128::MIN, -1, 0])
        .with_precision_and_scale(38, 0)
        .unwrap();
    let values = [i128::MAX, i128::MIN, -1, 0].map(|v| Some(Value::Number(v))).to_vec();
    let large = Key(Arc::new(large), values);
    check(from_ref(&large), from_ref(&large));
    check(&[large], &[numbers(&Decimal256(76, 30))]);
}

#[test]
fn times_of_every_unit() {
    use DataType::*;
    use TimeUnit::*;
    let days = Int32Array::from(vec![Some(-1), None, Some(0), Some(20_000)]);
    let values = vec![Some(-1i64), None, Some(0), Some(20_000)];
    let day: ArrayRef = cast(&days, &Date32).unwrap();
    let wide = cast(&day, &Date64).unwrap();
    let [day, wide] = [day, wide].map(|array| keys(array, &values));
    assert_eq!(check(from_ref(&day), from_ref(&day)).width(), Width::W32);
    assert!(check(from_ref(&day), from_ref(&wide)).exact());
    check(from_ref(&wide), from_ref(&wide));
    let seconds = cast(&day.0, &Timestamp(Second, None)).unwrap();
    for unit in [Second, Millisecond, Microsecond, Nanosecond] {
        let finer = keys(cast(&seconds, &Timestamp(unit, None)).unwrap(), &values);
        check(&[keys(seconds.clone(), &values)], &[finer]);
    }
    // A time that cannot be represented in nanoseconds can still be compared with one in nanoseconds.
    let far =
        keys(Arc::new(TimestampSecondArray::from(vec![i64::MAX, 1])), &[Some(i64::MAX), Some(1)]);
    let near = keys(Arc::new(TimestampNanosecondArray::from(vec![1_000_000_000])), &[Some(1)]);
    check(&[far], &[near]);
    let time = |unit: DataType| {
        let seconds = cast(&Int32Array::from(vec![0, 59, 86_399]), &Time32(Second)).unwrap();
        keys(cast(&seconds, &unit).unwrap(), &[Some(0), Some(59), Some(86_399)])
    };
    let types = [Time32(Second), Time32(Millisecond), Time64(Microsecond), Time64(Nanosecond)];
    for left in &types {
        for right in &types {
            check(&[time(left.clone())], &[time(right.clone())]);
        }
    }
    let long = keys(Arc::new(DurationSecondArray::from(vec![-2, 5])), &[Some(-2), Some(5)]);
    let short =
        keys(Arc::new(DurationMillisecondArray::from(vec![5000, 5001])), &[Some(5), Some(6)]);
    check(from_ref(&long), from_ref(&long));
    check(&[long], &[short]);
}

#[test]
fn intervals() {
    let months = [Some(-1), None, Some(12)];
    let array = IntervalYearMonthArray::from(vec![Some(-1), None, Some(12)]);
    let months = keys(Arc::new(array), &months);
    check(from_ref(&months), from_ref(&months));
    let day_time = [(-1, 5), (0, -7), (0, 0), (0, 7), (3, i32::MIN)];
    let array = IntervalDayTimeArray::from_iter_values(
        day_time.map(|(days, milliseconds)| IntervalDayTime { days, milliseconds }),
    );
    let rank: Vec<_> = (0..5).map(Some).collect();
    let day_time = keys(Arc::new(array), &rank);
    let plan = check(from_ref(&day_time), from_ref(&day_time));
    assert!(plan.exact() && !plan.dense_candidate());
    let parts = [(-1, 9, 9), (0, -1, 5), (0, 0, -1), (0, 0, i64::MAX), (1, i32::MIN, 0)];
    let array = IntervalMonthDayNanoArray::from_iter_values(
        parts.map(|(months, days, nanoseconds)| IntervalMonthDayNano { months, days, nanoseconds }),
    );
    let nanos = keys(Arc::new(array), &rank);
    check(from_ref(&nanos), from_ref(&nanos));
}

const WORDS: [Option<&str>; 9] = [
    Some("a string longer than a view holds"),
    None,
    Some(""),
    Some("a"),
    Some("a\0"),
    Some("exactly12byt"),
    Some("exactly12byte"),
    Some("a"),
    Some("a string longer than a view is"),
];

fn text(data_type: &DataType) -> Key {
    let array: ArrayRef = Arc::new(StringArray::from(WORDS.to_vec()));
    key(make_array(cast(&array, data_type).unwrap().to_data()), WORDS.to_vec())
}

fn dictionary(index: DataType, values: DataType) -> DataType {
    DataType::Dictionary(Box::new(index), Box::new(values))
}

#[test]
fn strings_of_every_representation() {
    use DataType::*;
    let types = [
        Utf8,
        LargeUtf8,
        Utf8View,
        dictionary(Int8, Utf8),
        dictionary(UInt64, Utf8View),
        dictionary(Int32, LargeUtf8),
    ];
    for left in &types {
        for right in &types {
            let plan = check(&[text(left)], &[text(right)]);
            assert!(!plan.exact());
        }
    }
    let plan = check(&[text(&Utf8)], &[text(&Utf8)]);
    assert_eq!(plan.encoding().to_string(), "Utf8 hashed to 64 bits, matches verified");
    for left in [Binary, LargeBinary, BinaryView, dictionary(Int16, Binary)] {
        for right in [Binary, BinaryView] {
            check(&[text(&left)], &[text(&right)]);
        }
    }
}

#[test]
fn bytes_of_fixed_size() {
    let fixed = |rows: [&'static str; 3]| {
        let array = FixedSizeBinaryArray::try_from_iter(rows.iter().map(|r| r.as_bytes())).unwrap();
        key(array, rows.map(Some).to_vec())
    };
    let (four, nine) =
        (fixed(["abcd", "abce", "\x7fbcd"]), fixed(["123456789", "012345678", "123456789"]));
    let plan = check(from_ref(&four), from_ref(&four));
    assert_eq!((plan.exact(), plan.width()), (true, Width::W32));
    assert!(!check(from_ref(&nine), from_ref(&nine)).exact());
    check(from_ref(&four), &[nine]);
    let view =
        key(BinaryViewArray::from_iter_values(["abcd", "abc"]), vec![Some("abcd"), Some("abc")]);
    check(&[four], &[view]);
}

#[test]
fn booleans_and_nulls() {
    let values = [Some(1), None, Some(0)];
    let flags = keys(Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])), &values);
    assert_eq!(check(from_ref(&flags), from_ref(&flags)).significant_bits(), 1);
    let nulls = keys(Arc::new(NullArray::new(4)), &[None; 4]);
    check(from_ref(&nulls), from_ref(&nulls));
    check(from_ref(&nulls), from_ref(&flags));
    check(from_ref(&nulls), &[text(&DataType::Utf8View)]);
    check(
        &[
            nulls.clone(),
            keys(Arc::new(Int64Array::from(vec![1, 2, 3, 4])), &[1, 2, 3, 4].map(Some)),
        ],
        &[nulls, keys(Arc::new(Int64Array::from(vec![4, 3, 2, 2])), &[4, 3, 2, 2].map(Some))],
    );
}

#[test]
fn dictionaries_and_runs() {
    // Nulls among the keys and among the values, a repeated value, and an invalid key under a null.
    let values: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), None, Some(100), Some(7)]));
    let index = Int8Array::new(
        vec![0, 1, 2, 3, -77, 0].into(),
        Some(vec![true, true, true, true, false, true].into()),
    );
    let array = DictionaryArray::try_new(index, values.clone()).unwrap();
    let said = [Some(7), None, Some(100), Some(7), None, Some(7)];
    let numbers_dictionary = keys(Arc::new(array), &said);
    check(from_ref(&numbers_dictionary), from_ref(&numbers_dictionary));
    check(from_ref(&numbers_dictionary), &[numbers(&DataType::Int16)]);
    check(from_ref(&numbers_dictionary), &[numbers(&DataType::UInt64)]);
    let runs = RunArray::try_new(&Int32Array::from(vec![2, 3, 6, 9]), values.as_ref()).unwrap();
    let said: Vec<_> =
        [0, 0, 1, 2, 2, 2, 3, 3, 3].map(|i: usize| [Some(7), None, Some(100), Some(7)][i]).into();
    let runs = keys(Arc::new(runs), &said);
    check(from_ref(&runs), &[numbers_dictionary]);
    let sliced = keys(runs.0.slice(1, 6), &said[1..7]);
    check(&[sliced], &[runs]);
    let empty: ArrayRef = Arc::new(StringArray::from(Vec::<&str>::new()));
    let array = DictionaryArray::try_new(Int8Array::from(vec![None, None]), empty).unwrap();
    check(&[key::<&str>(array, vec![None, None])], &[text(&DataType::Utf8)]);
    // The dictionary has many more values than there are rows.
    let many: ArrayRef = Arc::new(StringArray::from_iter_values((0..500).map(|i| format!("v{i}"))));
    let array = DictionaryArray::try_new(Int16Array::from(vec![499, 3]), many.clone()).unwrap();
    check(&[key(array, vec![Some("v499"), Some("v3")])], &[text(&DataType::Utf8)]);
}

#[test]
fn nested_types_through_rows() {
    let lists = vec![
        Some(vec![Some(1), Some(2)]),
        None,
        Some(vec![]),
        Some(vec![Some(1), None]),
        Some(vec![Some(1), Some(2)]),
        Some(vec![Some(-1)]),
    ];
    // In the order of the row format, nulls last.
    let value = |list: &Vec<Option<i32>>| {
        Value::List(list.iter().map(|v| Some(v.map_or(i128::MAX, i128::from))).collect())
    };
    let values: Vec<Option<Value>> = lists.iter().map(|l| l.as_ref().map(value)).collect();
    let small: ArrayRef =
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists.clone()));
    let large: ArrayRef = Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(lists));
    let [small, large] = [small, large].map(|array| Key(array, values.clone()));
    check(from_ref(&small), from_ref(&small));
    check(from_ref(&small), &[large]);
    check(&[keys(Arc::new(NullArray::new(2)), &[None; 2])], from_ref(&small));
    let field = |name: &str| Arc::new(Field::new(name, DataType::Int64, true));
    let structs = |name: &str| {
        let child: ArrayRef = Arc::new(Int64Array::from(vec![4, 5, 5, 1]));
        let valid = Some(vec![true, true, false, true].into());
        let array = StructArray::new(vec![field(name)].into(), vec![child], valid);
        keys(Arc::new(array), &[Some(4), Some(5), None, Some(1)])
    };
    check(&[structs("a")], &[structs("b")]);
}

#[test]
fn several_columns_are_packed_or_hashed() {
    use DataType::*;
    let plan = check(&[numbers(&Int32), numbers(&Int16)], &[numbers(&Int32), numbers(&Int8)]);
    assert_eq!((plan.width(), plan.significant_bits()), (Width::W64, 48));
    assert_eq!(plan.encoding().to_string(), "Int32 + Int16 with Int8 packed in 64 bits");
    assert!(!plan.dense_candidate());
    let reversed = {
        let back = NUMBERS.iter().rev().copied().collect::<Vec<_>>();
        keys(Arc::new(Int64Array::from(back.clone())), &back)
    };
    let plan = check(&[numbers(&Int64), reversed.clone()], &[numbers(&Int64), reversed.clone()]);
    assert!(!plan.exact());
    check(&[reversed.clone(), numbers(&Decimal128(38, 2))], &[numbers(&Int64), numbers(&Int32)]);
    let words = WORDS[..8].to_vec();
    let words = key(StringViewArray::from(words.clone()), words);
    check(&[words.clone(), reversed.clone()], &[words.clone(), numbers(&Int64)]);
    check(
        &[numbers(&UInt8), words.clone(), numbers(&Float32)],
        &[reversed, words, numbers(&Float16)],
    );
}

#[test]
fn the_worked_example() {
    let key = |numbers: Vec<i16>, flags: Vec<bool>, last: Vec<Option<i8>>| {
        let schema = Schema::new(vec![
            Field::new("a", DataType::Int16, false),
            Field::new("b", DataType::Boolean, false),
            Field::new("c", DataType::Int8, true),
        ]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int16Array::from(numbers)),
            Arc::new(BooleanArray::from(flags)),
            Arc::new(Int8Array::from(last)),
        ];
        RecordBatch::try_new(Arc::new(schema), columns).unwrap()
    };
    let batch = key(vec![1, -1, 1], vec![true, false, true], vec![Some(-1), Some(5), None]);
    let (schema, pairs) = (batch.schema(), [(0, 0), (1, 1), (2, 2)]);
    let plan = KeyPlan::new(&schema, &schema, &pairs, NullEquality::Equal, false).unwrap();
    assert_eq!((plan.width(), plan.significant_bits()), (Width::W32, 26));
    let mut words: Vec<u32> = Vec::new();
    assert!(plan.words(Side::Left, &batch, &mut words).unwrap().is_none());
    let expected = [
        0b10_0000_0000_0000_0110_0111_1111,
        0b01_1111_1111_1111_1100_1000_0101,
        0b10_0000_0000_0000_0111_0000_0000,
    ];
    assert_eq!(words, expected);
}

#[test]
fn nulls_the_schema_does_not_tell_of_match_nothing() {
    let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int32, false)]));
    let array: ArrayRef = Arc::new(Int32Array::from(vec![Some(0), None]));
    // SAFETY: the lengths agree. The array only violates the field's nullability, which is the purpose of
    // this test.
    let batch = unsafe { RecordBatch::new_unchecked(schema.clone(), vec![array], 2) };
    for equality in [NullEquality::Equal, NullEquality::NeverEqual] {
        let plan = KeyPlan::new(&schema, &schema, &[(0, 0)], equality, false).unwrap();
        let valid = plan.words(Side::Left, &batch, &mut Vec::<u32>::new()).unwrap().unwrap();
        assert_eq!(valid.iter().collect::<Vec<_>>(), [true, false]);
    }
}

#[test]
fn empty_batches_and_no_batches() {
    let batch = RecordBatch::new_empty(Arc::new(table(&[text(&DataType::Utf8)]).schema));
    let schema = batch.schema();
    let plan = KeyPlan::new(&schema, &schema, &[(0, 0)], NullEquality::Equal, false).unwrap();
    assert!(plan.words(Side::Right, &batch, &mut vec![1u64]).unwrap().is_none());
    let values = plan.values(Side::Left, &[], (&one_worker(), &Budget::new(None))).unwrap();
    plan.equal(&values, &[], &values, &[], &mut []).unwrap();
    let (left, right) =
        plan.ranks(&[], &[batch], (&Workers::new(1, Arc::default()), &Budget::new(None))).unwrap();
    assert!(left.words.is_empty() && right.words.is_empty() && right.valid.is_none());
}

#[test]
fn what_is_refused_says_why() {
    let schema = |t| Schema::new(vec![Field::new("it", t, true)]);
    let plan = |l, r, keys: &[(usize, usize)]| {
        KeyPlan::new(&schema(l), &schema(r), keys, NullEquality::NeverEqual, false).map(|_| ())
    };
    use DataType::*;
    assert!(matches!(plan(Int8, Int8, &[]), Err(Error::NoKeys)));
    assert!(matches!(plan(Int8, Int8, &[(0, 3)]), Err(Error::Internal { .. })));
    let error = plan(Int64, Float64, &[(0, 0)]).unwrap_err().to_string();
    assert!(error.contains("\"it\" (Int64)") && error.contains("(Float64)"), "{error}");
    let error = plan(Struct(Fields::empty()), Struct(Fields::empty()), &[(0, 0)]).unwrap_err();
    assert!(error.to_string().contains("without fields"), "{error}");
    let wide = schema(Int64);
    let batch = RecordBatch::new_empty(Arc::new(schema(Utf8)));
    let plan = KeyPlan::new(&wide, &wide, &[(0, 0)], NullEquality::Equal, true).unwrap();
    let error = plan.words(Side::Left, &batch, &mut Vec::<u64>::new()).unwrap_err();
    assert!(error.to_string().contains("should be Int64 and is Utf8"), "{error}");
}

#[test]
fn values_take_memory_only_where_they_are_converted() {
    let bytes = |left: &Key, right: &Key| {
        let (left, right) = (table(from_ref(left)), table(from_ref(right)));
        let plan = KeyPlan::new(&left.schema, &right.schema, &[(0, 0)], NullEquality::Equal, true);
        let budget = Budget::new(None);
        let _values =
            plan.unwrap().values(Side::Left, &[left.batch], (&one_worker(), &budget)).unwrap();
        budget.used() as usize
    };
    use DataType::*;
    for t in [Int32, Int64, Float64, Decimal128(38, 0), Decimal256(76, 0)] {
        assert_eq!(bytes(&numbers(&t), &numbers(&t)), 0, "{t}");
    }
    for t in [Utf8, LargeUtf8, Utf8View, Binary] {
        assert_eq!(bytes(&text(&t), &text(&t)), 0, "{t}");
    }
    assert_eq!(bytes(&numbers(&Int32), &numbers(&Int64)), 8 * NUMBERS.len());
    // Except if a float has to be converted to numeric form.
    let floats = keys(Arc::new(Float64Array::from(vec![1.0, -0.0])), &[Some(1), Some(0)]);
    assert_eq!(bytes(&floats, &floats), 8 * 2);
    assert!(bytes(&text(&dictionary(Int8, Utf8)), &text(&Utf8)) >= 4 * WORDS.len());
}

/// Returns structs of a number and a text, more than one slice has.
fn many_structs(rows: usize) -> Table {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
    let texts = (0..rows).map(|i| (i % 5 != 0).then(|| format!("text {}", i * 7 % 1000)));
    let texts: ArrayRef = Arc::new(texts.collect::<StringArray>());
    let fields = [Field::new("n", DataType::Int64, true), Field::new("t", DataType::Utf8, true)];
    let fields = fields.map(Arc::new);
    let [n, t] = fields;
    let array = StructArray::from(vec![(n, numbers), (t, texts)]);
    let values = (0..rows as i64).map(Some).collect::<Vec<_>>();
    table(&[keys(Arc::new(array), &values)])
}

#[test]
fn nested_keys_are_the_same_in_slices() {
    const ROWS: usize = 40_000;
    let table = many_structs(ROWS);
    let schema = &table.schema;
    let plan = KeyPlan::new(schema, schema, &[(0, 0)], NullEquality::Equal, false).unwrap();
    let with = (&one_worker(), &Budget::new(None));
    let whole = plan.values(Side::Left, from_ref(&table.batch), with).unwrap();
    let cut = plan.values(Side::Right, &chunks(&table.batch, 1000), with).unwrap();
    let at = |row: usize| Location { batch: 0, row: row as u32 };
    let cut_at = |row: usize| Location { batch: (row / 1000) as u32, row: (row % 1000) as u32 };
    let rows: Vec<Location> = (0..ROWS).map(at).collect();
    let same_rows: Vec<Location> = (0..ROWS).map(cut_at).collect();
    let next_rows: Vec<Location> = (0..ROWS).map(|row| cut_at((row + 1) % ROWS)).collect();
    let mut keep = vec![true; ROWS];
    plan.equal(&whole, &rows, &cut, &same_rows, &mut keep).unwrap();
    assert!(keep.iter().all(|&keep| keep));
    plan.equal(&whole, &rows, &cut, &next_rows, &mut keep).unwrap();
    assert!(keep.iter().all(|&keep| !keep));
    let (words, _) = words_of(&plan, Side::Left, &table.batch);
    let (tail, _) = words_of(&plan, Side::Right, &table.batch.slice(30_000, 10_000));
    assert_eq!(words[30_000..], tail);
    let batches = from_ref(&table.batch);
    let (left, right) = plan.ranks(batches, batches, with).unwrap();
    assert_eq!(left.words, (0..ROWS as u64).collect::<Vec<_>>());
    assert_eq!(left.words, right.words);
}

/// The reservation that fails is for one slice, not for a whole batch.
#[test]
fn nested_keys_are_reserved_slice_by_slice() {
    const ROWS: usize = 200_000;
    let table = many_structs(ROWS);
    let schema = &table.schema;
    let plan = KeyPlan::new(schema, schema, &[(0, 0)], NullEquality::Equal, false).unwrap();
    let (workers, batches) = (one_worker(), from_ref(&table.batch));
    let free = Budget::new(None);
    let values = plan.values(Side::Left, batches, (&workers, &free)).unwrap();
    let all = free.used();
    drop(values);
    let budget = Budget::new(Some(all / 3));
    match plan.values(Side::Left, batches, (&workers, &budget)).err() {
        Some(Error::MemoryLimit { needed, used, .. }) => {
            assert!(needed < all / 8 && used > all / 8, "{needed} more than {used} of {all}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_conversion_ends_when_the_join_is_cancelled() {
    let table = many_structs(40_000);
    let schema = &table.schema;
    let plan = KeyPlan::new(schema, schema, &[(0, 0)], NullEquality::Equal, false).unwrap();
    let workers = Workers::new(1, Arc::new(std::sync::atomic::AtomicBool::new(true)));
    let with = (&workers, &Budget::new(None));
    let error = plan.values(Side::Left, from_ref(&table.batch), with).err();
    assert!(matches!(error, Some(Error::Cancelled)), "{error:?}");
    let plan = plan.within(&workers, &Budget::new(None));
    let error = plan.words(Side::Left, &table.batch, &mut Vec::<u64>::new()).err();
    assert!(matches!(error, Some(Error::Cancelled)), "{error:?}");
}

/// Hashing and comparing check for cancellation between long strings, here views of one string.
#[test]
fn hashing_and_comparing_end_when_the_join_is_cancelled() {
    const LONG: u32 = 1 << 20;
    let mut views = arrow::array::StringViewBuilder::new();
    let block = views.append_block(vec![b'x'; LONG as usize].into());
    for _ in 0..16 {
        views.try_append_view(block, 0, LONG).unwrap();
    }
    let views: ArrayRef = Arc::new(views.finish());
    let batch = RecordBatch::try_from_iter([("k", views)]).unwrap();
    let schema = batch.schema();
    let plan = KeyPlan::new(&schema, &schema, &[(0, 0)], NullEquality::Equal, false).unwrap();
    let budget = Budget::new(None);
    let values = plan.values(Side::Left, from_ref(&batch), (&one_worker(), &budget)).unwrap();
    let rows: Vec<_> = (0..16).map(|row| Location { batch: 0, row }).collect();
    for cancelled in [false, true] {
        let workers = Workers::new(1, Arc::new(std::sync::atomic::AtomicBool::new(cancelled)));
        let plan = plan.within(&workers, &budget);
        let mut keep = vec![true; rows.len()];
        let hashed = plan.words(Side::Left, &batch, &mut Vec::<u64>::new()).map(|_| ());
        for outcome in [hashed, plan.equal(&values, &rows, &values, &rows, &mut keep)] {
            assert_eq!(matches!(outcome, Err(Error::Cancelled)), cancelled, "{outcome:?}");
        }
    }
}

#[test]
fn plans_are_shared_among_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<KeyPlan>();
    shared::<KeyValues>();
    shared::<Ranked>();
}

//! Converts arrays to values. Reads any Arrow array by hand, cell by cell.

use arrow::array::types::*;
use arrow::array::{Array, AsArray, OffsetSizeTrait, RunArray};
use arrow::datatypes::{ArrowPrimitiveType, DataType, IntervalUnit, TimeUnit, i256};

use crate::value::{Comparison, Value, float_order, nanoseconds};

/// Returns the cells of an array, for comparison with an array of the same type.
pub fn decode_alone(array: &dyn Array) -> Vec<Value> {
    decode(array, &Comparison::alone(array.data_type()))
}

/// Returns the cells of an array, for the given comparison rules.
///
/// # Panics
/// Panics on invalid arrays: a test that makes one has failed.
pub fn decode(array: &dyn Array, comparison: &Comparison) -> Vec<Value> {
    use DataType::*;
    let time = nanoseconds(array.data_type()).unwrap_or(1);
    let float = |own_bits: i64, widened: f64| match comparison.as_float || comparison.numeric {
        true => comparison.float(widened),
        false => Value::Float(own_bits),
    };
    match array.data_type() {
        Null => vec![Value::Null; array.len()],
        Boolean => array.as_boolean().iter().map(|v| v.map_or(Value::Null, Value::Bool)).collect(),
        Int8 => each::<Int8Type>(array, |v| comparison.integer(v.into())),
        Int16 => each::<Int16Type>(array, |v| comparison.integer(v.into())),
        Int32 => each::<Int32Type>(array, |v| comparison.integer(v.into())),
        Int64 => each::<Int64Type>(array, |v| comparison.integer(v.into())),
        UInt8 => each::<UInt8Type>(array, |v| comparison.integer(v.into())),
        UInt16 => each::<UInt16Type>(array, |v| comparison.integer(v.into())),
        UInt32 => each::<UInt32Type>(array, |v| comparison.integer(v.into())),
        UInt64 => each::<UInt64Type>(array, |v| comparison.integer(v.into())),
        Float16 => each::<Float16Type>(array, |v| {
            float(float_order(i64::from(v.to_bits() as i16)), v.to_f64())
        }),
        Float32 => each::<Float32Type>(array, |v| {
            float(float_order(i64::from(v.to_bits() as i32)), f64::from(v))
        }),
        Float64 => each::<Float64Type>(array, |v| float(float_order(v.to_bits() as i64), v)),
        Decimal32(_, s) => each::<Decimal32Type>(array, |v| comparison.decimal(wide(v.into()), *s)),
        Decimal64(_, s) => each::<Decimal64Type>(array, |v| comparison.decimal(wide(v.into()), *s)),
        Decimal128(_, s) => each::<Decimal128Type>(array, |v| comparison.decimal(wide(v), *s)),
        Decimal256(_, s) => each::<Decimal256Type>(array, |v| comparison.decimal(v, *s)),
        Date32 => scaled::<Date32Type>(array, time),
        Date64 => scaled::<Date64Type>(array, time),
        Time32(TimeUnit::Second) => scaled::<Time32SecondType>(array, time),
        Time32(_) => scaled::<Time32MillisecondType>(array, time),
        Time64(TimeUnit::Microsecond) => scaled::<Time64MicrosecondType>(array, time),
        Time64(_) => scaled::<Time64NanosecondType>(array, time),
        Timestamp(TimeUnit::Second, _) => scaled::<TimestampSecondType>(array, time),
        Timestamp(TimeUnit::Millisecond, _) => scaled::<TimestampMillisecondType>(array, time),
        Timestamp(TimeUnit::Microsecond, _) => scaled::<TimestampMicrosecondType>(array, time),
        Timestamp(TimeUnit::Nanosecond, _) => scaled::<TimestampNanosecondType>(array, time),
        Duration(TimeUnit::Second) => scaled::<DurationSecondType>(array, time),
        Duration(TimeUnit::Millisecond) => scaled::<DurationMillisecondType>(array, time),
        Duration(TimeUnit::Microsecond) => scaled::<DurationMicrosecondType>(array, time),
        Duration(TimeUnit::Nanosecond) => scaled::<DurationNanosecondType>(array, time),
        Interval(IntervalUnit::YearMonth) => scaled::<IntervalYearMonthType>(array, 1),
        Interval(IntervalUnit::DayTime) => {
            each::<IntervalDayTimeType>(array, |v| parts([v.days.into(), v.milliseconds.into()]))
        }
        Interval(IntervalUnit::MonthDayNano) => each::<IntervalMonthDayNanoType>(array, |v| {
            parts([v.months.into(), v.days.into(), v.nanoseconds.into()])
        }),
        Utf8 => bytes(array.as_string::<i32>().iter()),
        LargeUtf8 => bytes(array.as_string::<i64>().iter()),
        Utf8View => bytes(array.as_string_view().iter()),
        Binary => bytes(array.as_binary::<i32>().iter()),
        LargeBinary => bytes(array.as_binary::<i64>().iter()),
        BinaryView => bytes(array.as_binary_view().iter()),
        FixedSizeBinary(_) => bytes(array.as_fixed_size_binary().iter()),
        _ => decode_nested(array, comparison),
    }
}

fn decode_nested(array: &dyn Array, comparison: &Comparison) -> Vec<Value> {
    use DataType::*;
    match array.data_type() {
        Dictionary(_, _) => {
            let dictionary = array.as_any_dictionary();
            let values = decode(dictionary.values(), comparison);
            let at = |key: Value| match key {
                Value::Int(index) => values[index as usize].clone(),
                _ => Value::Null,
            };
            decode_alone(dictionary.keys()).into_iter().map(at).collect()
        }
        RunEndEncoded(ends, _) => match ends.data_type() {
            Int16 => decode_runs(array.as_run::<Int16Type>(), comparison),
            Int32 => decode_runs(array.as_run::<Int32Type>(), comparison),
            _ => decode_runs(array.as_run::<Int64Type>(), comparison),
        },
        List(_) => decode_list(array, comparison, array.as_list::<i32>().value_offsets()),
        LargeList(_) => decode_list(array, comparison, array.as_list::<i64>().value_offsets()),
        Map(_, _) => decode_list(array, comparison, array.as_map().value_offsets()),
        ListView(_) => {
            let list = array.as_list_view::<i32>();
            let range = |i| (list.value_offset(i), list.value_size(i));
            decode_ranges(array, comparison, list.values(), range)
        }
        LargeListView(_) => {
            let list = array.as_list_view::<i64>();
            let range = |i| (list.value_offset(i), list.value_size(i));
            decode_ranges(array, comparison, list.values(), range)
        }
        FixedSizeList(_, size) => {
            let list = array.as_fixed_size_list();
            decode_ranges(array, comparison, list.values(), |i| (list.value_offset(i), *size))
        }
        Struct(_) => {
            let columns: Vec<_> =
                array.as_struct().columns().iter().map(|c| decode_inside(c, comparison)).collect();
            let row = |i: usize| Value::Tuple(columns.iter().map(|c| c[i].clone()).collect());
            (0..array.len()).map(|i| if array.is_null(i) { Value::Null } else { row(i) }).collect()
        }
        Union(fields, _) => {
            let union = array.as_union();
            let children: Vec<_> = fields
                .iter()
                .map(|(id, _)| (id, decode_inside(union.child(id), comparison)))
                .collect();
            let member = |i| {
                let tag = union.type_id(i);
                let child = children.iter().find(|(id, _)| *id == tag).expect("a known type id");
                Value::Tagged(tag, Box::new(child.1[union.value_offset(i)].clone()))
            };
            (0..array.len()).map(member).collect()
        }
        other => panic!("the testkit cannot read {other}"),
    }
}

/// Returns the cells of an array that is nested in another.
fn decode_inside(array: &dyn Array, outer: &Comparison) -> Vec<Value> {
    decode(array, &outer.inside(array.data_type()))
}

fn decode_runs<R: RunEndIndexType>(array: &RunArray<R>, comparison: &Comparison) -> Vec<Value> {
    let values = decode(array.values(), comparison);
    (0..array.len()).map(|i| values[array.get_physical_index(i)].clone()).collect()
}

fn decode_list<O: OffsetSizeTrait>(
    array: &dyn Array,
    comparison: &Comparison,
    offsets: &[O],
) -> Vec<Value> {
    let child: &dyn Array = match array.data_type() {
        DataType::Map(_, _) => array.as_map().entries(),
        DataType::List(_) => array.as_list::<i32>().values(),
        _ => array.as_list::<i64>().values(),
    };
    decode_ranges(array, comparison, child, |i| (offsets[i], offsets[i + 1] - offsets[i]))
}

fn decode_ranges<O: OffsetSizeTrait>(
    array: &dyn Array,
    comparison: &Comparison,
    child: &dyn Array,
    range: impl Fn(usize) -> (O, O),
) -> Vec<Value> {
    let values = decode_inside(child, comparison);
    let list = |i| {
        let (offset, size) = range(i);
        Value::List(values[offset.as_usize()..][..size.as_usize()].to_vec())
    };
    (0..array.len()).map(|i| if array.is_null(i) { Value::Null } else { list(i) }).collect()
}

fn each<T: ArrowPrimitiveType>(array: &dyn Array, of: impl Fn(T::Native) -> Value) -> Vec<Value> {
    array.as_primitive::<T>().iter().map(|v| v.map_or(Value::Null, &of)).collect()
}

fn scaled<T: ArrowPrimitiveType<Native: Into<i128>>>(array: &dyn Array, unit: i128) -> Vec<Value> {
    each::<T>(array, |v| Value::Int(v.into() * unit))
}

fn bytes<T: AsRef<[u8]>>(cells: impl Iterator<Item = Option<T>>) -> Vec<Value> {
    cells.map(|v| v.map_or(Value::Null, |v| Value::Bytes(v.as_ref().to_vec()))).collect()
}

fn parts<const N: usize>(parts: [i128; N]) -> Value {
    Value::Tuple(parts.map(Value::Int).to_vec())
}

fn wide(v: i128) -> i256 {
    i256::from_i128(v)
}

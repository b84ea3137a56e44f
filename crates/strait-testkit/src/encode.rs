//! Converts values to arrays, as awkwardly as the format allows: values under nulls, dictionaries with
//! unused, repeated and null entries, list views that run backwards, runs that are split in two.

use std::sync::Arc;

use arrow::array::types::*;
use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit, TimeUnit, UnionMode, i256};

use crate::random::Rng;
use crate::sharing::distinct;
use crate::value::{Comparison, Value, float_order, leaf, nanoseconds, power_of_ten};

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// Returns whether a column of this type can hold the value.
pub fn fits(data_type: &DataType, comparison: &Comparison, value: &Value) -> bool {
    let data_type = leaf(data_type);
    match (data_type, value) {
        (_, Value::Null) => true,
        (DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View, Value::Bytes(bytes)) => {
            std::str::from_utf8(bytes).is_ok()
        }
        (DataType::FixedSizeBinary(size), Value::Bytes(bytes)) => bytes.len() == *size as usize,
        (DataType::Float32, Value::Float(_)) if comparison.as_float => {
            let v = widened(value);
            f64::from(v as f32).to_bits() == v.to_bits()
        }
        (DataType::Float16, Value::Float(_)) if comparison.as_float => {
            let v = widened(value);
            Half::from_f64(v).to_f64().to_bits() == v.to_bits()
        }
        (t, _) if t.is_decimal() => decimal(t, comparison, value).is_some(),
        (t, _) if t.is_integer() || nanoseconds(t).is_some() => {
            integer(t, comparison, value).is_some()
        }
        _ => true,
    }
}

/// Makes an array of the values. The caller must pass only values that fit the type.
pub fn encode(
    rng: &mut Rng,
    data_type: &DataType,
    comparison: &Comparison,
    values: &[Value],
) -> ArrayRef {
    use DataType::*;
    let mut column = Column { rng, data_type, comparison, values };
    match data_type {
        Null => Arc::new(NullArray::new(values.len())),
        Boolean => Arc::new(BooleanArray::from_iter(values.iter().map(|v| match v {
            Value::Bool(v) => Some(*v),
            _ => None,
        }))),
        Int8 => column.integers::<Int8Type>(),
        Int16 => column.integers::<Int16Type>(),
        Int32 => column.integers::<Int32Type>(),
        Int64 => column.integers::<Int64Type>(),
        UInt8 => column.integers::<UInt8Type>(),
        UInt16 => column.integers::<UInt16Type>(),
        UInt32 => column.integers::<UInt32Type>(),
        UInt64 => column.integers::<UInt64Type>(),
        Float16 if comparison.as_float => {
            column.primitives::<Float16Type>(|v| Half::from_f64(widened(v)))
        }
        Float16 => column.primitives::<Float16Type>(|v| Half::from_bits(own_bits(v) as u16)),
        Float32 if comparison.as_float => column.primitives::<Float32Type>(|v| widened(v) as f32),
        Float32 => column.primitives::<Float32Type>(|v| f32::from_bits(own_bits(v) as u32)),
        Float64 => column.primitives::<Float64Type>(widened),
        Decimal32(_, _) => column.decimals::<Decimal32Type>(|v| v.as_i128() as i32),
        Decimal64(_, _) => column.decimals::<Decimal64Type>(|v| v.as_i128() as i64),
        Decimal128(_, _) => column.decimals::<Decimal128Type>(|v| v.as_i128()),
        Decimal256(_, _) => column.decimals::<Decimal256Type>(|v| v),
        Date32 => column.integers::<Date32Type>(),
        Date64 => column.integers::<Date64Type>(),
        Time32(TimeUnit::Second) => column.integers::<Time32SecondType>(),
        Time32(_) => column.integers::<Time32MillisecondType>(),
        Time64(TimeUnit::Microsecond) => column.integers::<Time64MicrosecondType>(),
        Time64(_) => column.integers::<Time64NanosecondType>(),
        Timestamp(TimeUnit::Second, _) => column.integers::<TimestampSecondType>(),
        Timestamp(TimeUnit::Millisecond, _) => column.integers::<TimestampMillisecondType>(),
        Timestamp(TimeUnit::Microsecond, _) => column.integers::<TimestampMicrosecondType>(),
        Timestamp(TimeUnit::Nanosecond, _) => column.integers::<TimestampNanosecondType>(),
        Duration(TimeUnit::Second) => column.integers::<DurationSecondType>(),
        Duration(TimeUnit::Millisecond) => column.integers::<DurationMillisecondType>(),
        Duration(TimeUnit::Microsecond) => column.integers::<DurationMicrosecondType>(),
        Duration(TimeUnit::Nanosecond) => column.integers::<DurationNanosecondType>(),
        Interval(IntervalUnit::YearMonth) => column.integers::<IntervalYearMonthType>(),
        Interval(IntervalUnit::DayTime) => column.primitives::<IntervalDayTimeType>(|v| {
            IntervalDayTime::new(part(v, 0) as i32, part(v, 1) as i32)
        }),
        Interval(IntervalUnit::MonthDayNano) => {
            column.primitives::<IntervalMonthDayNanoType>(|v| {
                IntervalMonthDayNano::new(part(v, 0) as i32, part(v, 1) as i32, part(v, 2) as i64)
            })
        }
        Utf8 => Arc::new(StringArray::from_iter(strings(values))),
        LargeUtf8 => Arc::new(LargeStringArray::from_iter(strings(values))),
        Utf8View => Arc::new(StringViewArray::from_iter(strings(values))),
        Binary => Arc::new(BinaryArray::from_iter(binaries(values))),
        LargeBinary => Arc::new(LargeBinaryArray::from_iter(binaries(values))),
        BinaryView => Arc::new(BinaryViewArray::from_iter(binaries(values))),
        FixedSizeBinary(size) => {
            let cells = binaries(values);
            Arc::new(
                FixedSizeBinaryArray::try_from_sparse_iter_with_size(cells, *size)
                    .expect("bytes of the right length"),
            )
        }
        _ => column.nested(),
    }
}

/// The value of a row without a value: null. For a type without nulls of its own, it is the null of its first
/// member.
pub fn blank(data_type: &DataType) -> Value {
    match data_type {
        DataType::Union(fields, _) => {
            let (tag, field) = fields.iter().next().expect("a union has members");
            Value::Tagged(tag, Box::new(blank(field.data_type())))
        }
        _ => Value::Null,
    }
}

struct Column<'a> {
    rng: &'a mut Rng,
    data_type: &'a DataType,
    comparison: &'a Comparison,
    values: &'a [Value],
}

impl Column<'_> {
    fn nulls(&self) -> Option<NullBuffer> {
        let valid: Vec<bool> = self.values.iter().map(|v| !v.is_null()).collect();
        valid.contains(&false).then(|| NullBuffer::from(valid))
    }

    /// Null cells hold a copy of another cell's value. Code that ignores the null then finds a match.
    fn primitives<T: ArrowPrimitiveType>(&mut self, of: impl Fn(&Value) -> T::Native) -> ArrayRef {
        let present: Vec<_> = self.values.iter().filter(|v| !v.is_null()).map(&of).collect();
        let mut cell = |v: &Value| match v {
            Value::Null if present.is_empty() => T::Native::default(),
            Value::Null => *self.rng.pick(&present),
            v => of(v),
        };
        let cells: Vec<T::Native> = self.values.iter().map(&mut cell).collect();
        let array = PrimitiveArray::<T>::new(ScalarBuffer::from(cells), self.nulls());
        Arc::new(array.with_data_type(self.data_type.clone()))
    }

    fn integers<T: ArrowPrimitiveType<Native: TryFrom<i128>>>(&mut self) -> ArrayRef {
        let (data_type, comparison) = (self.data_type, self.comparison);
        self.primitives::<T>(|v| {
            let raw = integer(data_type, comparison, v);
            raw.and_then(|raw| raw.try_into().ok()).expect("a number in the type's range")
        })
    }

    fn decimals<T: ArrowPrimitiveType>(&mut self, of: impl Fn(i256) -> T::Native) -> ArrayRef {
        let (data_type, comparison) = (self.data_type, self.comparison);
        self.primitives::<T>(|v| {
            of(decimal(data_type, comparison, v).expect("a decimal in the type's range"))
        })
    }

    fn nested(&mut self) -> ArrayRef {
        use DataType::*;
        match self.data_type {
            Dictionary(index, values) => self.dictionary(index, values),
            RunEndEncoded(ends, values) => self.runs(ends.data_type(), values.data_type()),
            List(field) => {
                let (offsets, child) = self.lists(field);
                Arc::new(ListArray::new(field.clone(), offsets, child, self.nulls()))
            }
            LargeList(field) => {
                let (offsets, child) = self.lists(field);
                let offsets = offsets.iter().map(|&o| i64::from(o)).collect::<Vec<_>>();
                let offsets = OffsetBuffer::new(offsets.into());
                Arc::new(LargeListArray::new(field.clone(), offsets, child, self.nulls()))
            }
            Map(field, sorted) => {
                let (offsets, child) = self.lists(field);
                let entries = child.as_struct().clone();
                Arc::new(MapArray::new(field.clone(), offsets, entries, self.nulls(), *sorted))
            }
            ListView(field) => {
                let (offsets, sizes, child) = self.views(field);
                let (offsets, sizes) = (offsets.into(), sizes.into());
                Arc::new(ListViewArray::new(field.clone(), offsets, sizes, child, self.nulls()))
            }
            LargeListView(field) => {
                let (offsets, sizes, child) = self.views(field);
                let offsets = offsets.into_iter().map(i64::from).collect::<Vec<_>>().into();
                let sizes = sizes.into_iter().map(i64::from).collect::<Vec<_>>().into();
                Arc::new(LargeListViewArray::new(
                    field.clone(),
                    offsets,
                    sizes,
                    child,
                    self.nulls(),
                ))
            }
            FixedSizeList(field, size) => {
                let missing = vec![blank(field.data_type()); *size as usize];
                let rows = self.values.iter().map(|v| items(v).unwrap_or(&missing));
                let cells: Vec<Value> = rows.flatten().cloned().collect();
                let child = self.child(field.data_type(), &cells);
                let (length, nulls) = (self.values.len(), self.nulls());
                let list = FixedSizeListArray::try_new_with_length(
                    field.clone(),
                    *size,
                    child,
                    nulls,
                    length,
                );
                Arc::new(list.expect("lists of the right length"))
            }
            Struct(fields) => {
                let mut child = |(i, field): (usize, &FieldRef)| {
                    let cells: Vec<Value> = (self.values.iter())
                        .map(|v| items(v).map_or(blank(field.data_type()), |v| v[i].clone()))
                        .collect();
                    encode(
                        self.rng,
                        field.data_type(),
                        &Comparison::alone(field.data_type()),
                        &cells,
                    )
                };
                let children = fields.iter().enumerate().map(&mut child).collect();
                let (length, nulls) = (self.values.len(), self.nulls());
                let array =
                    StructArray::try_new_with_length(fields.clone(), children, nulls, length);
                Arc::new(array.expect("columns of one length"))
            }
            Union(fields, mode) => self.union(fields, *mode),
            other => panic!("the testkit cannot make {other}"),
        }
    }

    fn child(&mut self, data_type: &DataType, values: &[Value]) -> ArrayRef {
        encode(self.rng, data_type, &Comparison::alone(data_type), values)
    }

    /// Offsets of lists that are stored one after another. A null list may still have items.
    fn lists(&mut self, field: &Field) -> (OffsetBuffer<i32>, ArrayRef) {
        let is_map = matches!(self.data_type, DataType::Map(_, _));
        let (mut offsets, mut cells) = (vec![0], Vec::new());
        for value in self.values {
            match items(value) {
                Some(items) => cells.extend_from_slice(items),
                None if !is_map && self.rng.chance(1, 2) => cells.push(blank(field.data_type())),
                None => {}
            }
            offsets.push(cells.len() as i32);
        }
        (OffsetBuffer::new(offsets.into()), self.child(field.data_type(), &cells))
    }

    /// Offsets and sizes of lists that are stored from the last to the first.
    fn views(&mut self, field: &Field) -> (Vec<i32>, Vec<i32>, ArrayRef) {
        let mut cells = Vec::new();
        let mut ranges: Vec<(i32, i32)> = Vec::new();
        for value in self.values.iter().rev() {
            let items = items(value).unwrap_or_default();
            ranges.push((cells.len() as i32, items.len() as i32));
            cells.extend_from_slice(items);
        }
        let (offsets, sizes) = ranges.into_iter().rev().unzip();
        (offsets, sizes, self.child(field.data_type(), &cells))
    }

    /// Entries in random order. Some are repeated or unused, and one may be null.
    fn dictionary(&mut self, index: &DataType, value_type: &DataType) -> ArrayRef {
        let mut entries: Vec<Value> = distinct(self.values).into_iter().cloned().collect();
        let nulls_by_entry = self.rng.chance(1, 2);
        if !nulls_by_entry {
            entries.retain(|v| !v.is_null());
        }
        for _ in 0..self.rng.below(3).min(entries.len()) {
            let repeated = self.rng.pick(&entries).clone();
            entries.push(repeated);
        }
        self.rng.shuffle(&mut entries);
        let mut places = std::collections::HashMap::<&Value, Vec<usize>>::new();
        for (place, entry) in entries.iter().enumerate() {
            places.entry(entry).or_default().push(place);
        }
        let keys: Vec<Value> = (self.values.iter())
            .map(|v| match places.get(v) {
                Some(places) if !(v.is_null() && self.rng.chance(1, 2)) => {
                    Value::Int(*self.rng.pick(places) as i128)
                }
                _ => Value::Null,
            })
            .collect();
        let keys = self.child(index, &keys);
        let values = encode(self.rng, value_type, self.comparison, &entries);
        dictionary_array(index, &keys, values)
    }

    /// Equal neighbours share a run, but some runs are split in two.
    fn runs(&mut self, ends: &DataType, value_type: &DataType) -> ArrayRef {
        let (mut run_ends, mut cells) = (Vec::new(), Vec::<Value>::new());
        for (i, value) in self.values.iter().enumerate() {
            if cells.last() == Some(value) && !self.rng.chance(1, 8) {
                run_ends.pop();
            } else {
                cells.push(value.clone());
            }
            run_ends.push(Value::Int(i as i128 + 1));
        }
        let values = encode(self.rng, value_type, self.comparison, &cells);
        let run_ends = self.child(ends, &run_ends);
        match ends {
            DataType::Int16 => run_array::<Int16Type>(&run_ends, &values),
            DataType::Int32 => run_array::<Int32Type>(&run_ends, &values),
            _ => run_array::<Int64Type>(&run_ends, &values),
        }
    }

    fn union(&mut self, fields: &arrow::datatypes::UnionFields, mode: UnionMode) -> ArrayRef {
        let member = |v: &Value| match v {
            Value::Tagged(tag, value) => (*tag, value.as_ref().clone()),
            other => panic!("{other} is no member of a union"),
        };
        let rows: Vec<(i8, Value)> = self.values.iter().map(member).collect();
        let tags: Vec<i8> = rows.iter().map(|(tag, _)| *tag).collect();
        let mut offsets = vec![0; rows.len()];
        let mut children = Vec::new();
        for (tag, field) in fields.iter() {
            let mut cells = Vec::new();
            for (i, (row_tag, value)) in rows.iter().enumerate() {
                if *row_tag == tag {
                    offsets[i] = cells.len() as i32;
                    cells.push(value.clone());
                } else if mode == UnionMode::Sparse {
                    cells.push(blank(field.data_type()));
                }
            }
            children.push(self.child(field.data_type(), &cells));
        }
        let offsets = (mode == UnionMode::Dense).then(|| offsets.into());
        let union = UnionArray::try_new(fields.clone(), tags.into(), offsets, children);
        Arc::new(union.expect("members of the right type"))
    }
}

/// Makes a dictionary array from keys and values.
pub(crate) fn dictionary_array(index: &DataType, keys: &ArrayRef, values: ArrayRef) -> ArrayRef {
    macro_rules! dictionary {
        ($($index:ident => $type:ty),*) => {
            match index {
                $(DataType::$index => Arc::new(DictionaryArray::<$type>::new(
                    keys.as_primitive::<$type>().clone(), values)) as ArrayRef,)*
                other => panic!("{other} is no dictionary index"),
            }
        };
    }
    dictionary!(Int8 => Int8Type, Int16 => Int16Type, Int32 => Int32Type, Int64 => Int64Type,
        UInt8 => UInt8Type, UInt16 => UInt16Type, UInt32 => UInt32Type, UInt64 => UInt64Type)
}

fn run_array<R: RunEndIndexType>(ends: &ArrayRef, values: &ArrayRef) -> ArrayRef {
    Arc::new(RunArray::<R>::try_new(ends.as_primitive(), values).expect("ends that rise"))
}

fn items(value: &Value) -> Option<&[Value]> {
    match value {
        Value::List(items) | Value::Tuple(items) => Some(items),
        _ => None,
    }
}

fn strings(values: &[Value]) -> impl Iterator<Item = Option<&str>> + Clone {
    binaries(values).map(|b| b.map(|b| std::str::from_utf8(b).expect("a string")))
}

fn binaries(values: &[Value]) -> impl Iterator<Item = Option<&[u8]>> + Clone {
    values.iter().map(|v| match v {
        Value::Bytes(bytes) => Some(bytes.as_slice()),
        _ => None,
    })
}

fn part(value: &Value, i: usize) -> i128 {
    match items(value).map(|items| &items[i]) {
        Some(Value::Int(part)) => *part,
        other => panic!("{other:?} is no part of an interval"),
    }
}

fn own_bits(value: &Value) -> i64 {
    match value {
        Value::Float(order) => float_order(*order),
        other => panic!("{other} is no float"),
    }
}

fn widened(value: &Value) -> f64 {
    f64::from_bits(own_bits(value) as u64)
}

/// Returns the number that an integer or temporal column stores for the value, if the value fits.
fn integer(data_type: &DataType, comparison: &Comparison, value: &Value) -> Option<i128> {
    let raw = match value {
        Value::Int(v) => {
            let unit = nanoseconds(data_type).unwrap_or(1);
            (v % unit == 0).then_some(v / unit)?
        }
        Value::Decimal(v) => {
            let unit = power_of_ten(comparison.scale?);
            (v.wrapping_rem(unit) == i256::ZERO).then(|| v.wrapping_div(unit).to_i128())??
        }
        Value::Float(_) => {
            let v = widened(value);
            let raw = v as i128;
            (v.to_bits() == (raw as f64).to_bits()).then_some(raw)?
        }
        _ => return None,
    };
    let (min, max) = range(data_type);
    (min..=max).contains(&raw).then_some(raw)
}

/// The smallest and largest number that a column of an integer or temporal type stores.
pub fn range(data_type: &DataType) -> (i128, i128) {
    use DataType::*;
    match data_type {
        Int8 => (i8::MIN.into(), i8::MAX.into()),
        Int16 => (i16::MIN.into(), i16::MAX.into()),
        UInt8 => (0, u8::MAX.into()),
        UInt16 => (0, u16::MAX.into()),
        UInt32 => (0, u32::MAX.into()),
        UInt64 => (0, u64::MAX.into()),
        Int32 | Date32 | Time32(_) | Interval(IntervalUnit::YearMonth) => {
            (i32::MIN.into(), i32::MAX.into())
        }
        _ => (i64::MIN.into(), i64::MAX.into()),
    }
}

/// Returns the number that a decimal column stores for the value, if the value fits.
fn decimal(data_type: &DataType, comparison: &Comparison, value: &Value) -> Option<i256> {
    let (precision, scale) = match data_type {
        DataType::Decimal32(p, s)
        | DataType::Decimal64(p, s)
        | DataType::Decimal128(p, s)
        | DataType::Decimal256(p, s) => (*p, *s),
        _ => return None,
    };
    let Value::Decimal(v) = value else { return None };
    let unit = power_of_ten(comparison.scale? - scale);
    let raw = v.wrapping_div(unit);
    let bound = power_of_ten(precision as i8);
    let inside = raw < bound && raw > bound.wrapping_neg();
    (inside && v.wrapping_rem(unit) == i256::ZERO).then_some(raw)
}

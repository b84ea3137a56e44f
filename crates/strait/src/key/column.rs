//! Reads a key column of one batch, whatever its encoding.
//!
//! An array is *peeled* first: dictionaries and runs become an index into plain values. Then the plain values
//! are read in the common form of the pair, as a stream of 64-bit values. The stream goes into a [`Sink`]:
//! the packer, the hasher, or a buffer. The match on types is outside every loop.

use arrow::array::{
    Array, ArrayRef, AsArray, MutableArrayData, RunArray, UInt32Array, make_array, new_null_array,
};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::compute::take;
use arrow::datatypes::{
    ArrowNativeType, DataType, Float16Type, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type, IntervalDayTime, IntervalMonthDayNano, IntervalUnit, RunEndIndexType, i256,
};
use arrow::error::ArrowError;

use super::common_form::Form;
use super::float::Float;
use crate::error::{Error, Result};
use crate::options::FloatEquality;

use super::nested::anywhere;

/// Consumes the values of a column, one per row.
pub(super) trait Sink {
    fn take(self, values: impl Iterator<Item = u64>);
}

/// A column without its encoding.
pub(super) struct Peeled {
    /// The values, neither dictionary nor run-end encoded.
    pub(super) values: ArrayRef,
    /// The value of each row; `None` if row `i` has value `i`. Always in bounds.
    pub(super) index: Option<Vec<u32>>,
    /// The rows that are null, because the index or the value is null; `None` if there are none.
    pub(super) nulls: Option<NullBuffer>,
}

impl Peeled {
    /// Removes the encoding of an array. With `compact`, only the used values are gathered if there are more values
    /// than rows, as in a slice of a large dictionary. Time grows with the rows of the array, not with its values. This
    /// matters because a long array is read in many slices that share their values. Each nested value is gathered
    /// once, even if many rows have it. So the gathered values are never larger than all values. Values of types that
    /// are slow to gather ([`can_gather`]) are kept in full.
    pub(super) fn new(array: &ArrayRef, compact: bool) -> Result<Peeled> {
        let (mut values, mut nulls) = (array.clone(), None);
        let mut index: Option<Vec<u32>> = None;
        while let Some((inner, step)) = peel_once(values.as_ref(), index.as_deref())? {
            nulls = either(nulls, values.nulls().cloned(), index.as_deref());
            (values, index) = (inner, Some(step));
        }
        if index.is_some() && values.is_empty() {
            values = new_null_array(values.data_type(), 1);
        }
        let compact = compact && can_gather(values.data_type());
        if let Some(rows) = index.take_if(|index| compact && values.len() > index.len()) {
            let positions = match values.data_type().primitive_width() {
                Some(_) => rows,
                None => {
                    let (used, renumbered) = distinct(&rows);
                    index = Some(renumbered);
                    used
                }
            };
            values = gather(&values, positions)
                .map_err(Error::arrow("cannot take a key column's values from its dictionary"))?;
        }
        // The nulls of a union have to be computed, so this comes after the values were gathered.
        nulls = either(nulls, values.logical_nulls(), index.as_deref());
        Ok(Peeled { values, index, nulls: nulls.filter(|nulls| nulls.null_count() > 0) })
    }

    /// Replaces values of type null by nulls of another type, so that they can be read as that type.
    pub(super) fn standing_in(mut self, data_type: &DataType) -> Peeled {
        if self.values.data_type() == &DataType::Null && data_type != &DataType::Null {
            // One null for all rows, unless there is already an index into several.
            let rows = self.values.len();
            match self.index {
                Some(_) => self.values = new_null_array(data_type, rows),
                None => {
                    self.values = new_null_array(data_type, 1);
                    self.index = Some(vec![0; rows]);
                }
            }
        }
        self
    }
}

/// Returns the rows that are null in `outer`, or whose value is null. Row `i` has value `index[i]`, or value `i`
/// without an index.
fn either(
    outer: Option<NullBuffer>,
    of_values: Option<NullBuffer>,
    index: Option<&[u32]>,
) -> Option<NullBuffer> {
    let of_values = of_values.filter(|nulls| nulls.null_count() > 0);
    let of_rows = match (of_values, index) {
        (Some(nulls), Some(index)) => {
            let is_valid = |i: usize| index.get(i).is_some_and(|&i| nulls.is_valid(i as usize));
            Some(NullBuffer::new(BooleanBuffer::collect_bool(index.len(), is_valid)))
        }
        (nulls, _) => nulls,
    };
    NullBuffer::union(outer.as_ref(), of_rows.as_ref())
}

/// Returns whether the time of [`gather`] grows only with the number of gathered values. It does not if runs are copied
/// with `MutableArrayData`, which searches all runs for each value. `gather` uses it for types with empty values, and
/// Arrow's `take` uses it for the elements of lists and maps.
fn can_gather(data_type: &DataType) -> bool {
    fn has_runs(data_type: &DataType) -> bool {
        anywhere(data_type, |t| matches!(t, DataType::RunEndEncoded(..)))
    }
    let is_list = |t: &DataType| {
        matches!(t, DataType::List(_) | DataType::LargeList(_) | DataType::Map(..)) && has_runs(t)
    };
    let empty = has_empty_values(data_type) && has_runs(data_type);
    !empty && !anywhere(data_type, is_list)
}

/// Returns the distinct positions in ascending order, and for each row the number of its position among them.
fn distinct(positions: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut used = positions.to_vec();
    used.sort_unstable();
    used.dedup();
    let number = |&position: &u32| used.partition_point(|&other| other < position) as u32;
    let renumbered = positions.iter().map(number).collect();
    (used, renumbered)
}

/// Returns the values at some positions.
fn gather(values: &ArrayRef, index: Vec<u32>) -> std::result::Result<ArrayRef, ArrowError> {
    if !has_empty_values(values.data_type()) {
        return take(values, &UInt32Array::from(index), None);
    }
    // `take` computes the number of values from their bytes, so it loses empty values. `MutableArrayData` is
    // slower, and counts the values that it copies.
    let data = values.to_data();
    let mut gathered = MutableArrayData::new(vec![&data], false, index.len());
    for at in index {
        gathered.try_extend(0, at as usize, at as usize + 1)?;
    }
    Ok(make_array(gathered.freeze()))
}

/// Returns whether a type has values of zero bytes, possibly nested.
fn has_empty_values(data_type: &DataType) -> bool {
    let is_empty =
        |t: &DataType| matches!(t, DataType::FixedSizeBinary(0) | DataType::FixedSizeList(_, 0));
    anywhere(data_type, is_empty)
}

fn at(index: &[u32], i: u32) -> u32 {
    index.get(i as usize).copied().unwrap_or(0)
}

/// Returns the values of a dictionary or of runs, and for each of the `rows` the index of its value. `None` means all
/// rows of the array.
fn peel_once(array: &dyn Array, rows: Option<&[u32]>) -> Result<Option<(ArrayRef, Vec<u32>)>> {
    let (values, index) = match array.data_type() {
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let len = dictionary.values().len();
            (dictionary.values().clone(), dictionary_index(dictionary.keys(), len, rows))
        }
        DataType::RunEndEncoded(ends, _) => match ends.data_type() {
            DataType::Int16 => runs::<Int16Type>(array, rows),
            DataType::Int32 => runs::<Int32Type>(array, rows),
            _ => runs::<Int64Type>(array, rows),
        },
        _ => return Ok(None),
    };
    if u32::try_from(values.len()).is_err() {
        return Err(Error::key_values(
            format!("a key column's dictionary has {} values; the most is 2^32 - 1", values.len()),
            "cast the column to its values' type",
        ));
    }
    Ok(Some((values, index)))
}

fn dictionary_index(keys: &dyn Array, len: usize, rows: Option<&[u32]>) -> Vec<u32> {
    // The key of a null may be anything, so it is forced into bounds.
    fn bounded<T: ArrowNativeType>(keys: &dyn Array, len: usize, rows: Option<&[u32]>) -> Vec<u32> {
        let inside = |key: &T| if key.as_usize() < len { key.as_usize() as u32 } else { 0 };
        let keys = native::<T>(keys);
        match rows {
            None => keys.iter().map(inside).collect(),
            Some(rows) => {
                rows.iter().map(|&row| keys.get(row as usize).map_or(0, inside)).collect()
            }
        }
    }
    match keys.data_type() {
        DataType::Int8 => bounded::<i8>(keys, len, rows),
        DataType::Int16 => bounded::<i16>(keys, len, rows),
        DataType::Int32 => bounded::<i32>(keys, len, rows),
        DataType::Int64 => bounded::<i64>(keys, len, rows),
        DataType::UInt8 => bounded::<u8>(keys, len, rows),
        DataType::UInt16 => bounded::<u16>(keys, len, rows),
        DataType::UInt32 => bounded::<u32>(keys, len, rows),
        _ => bounded::<u64>(keys, len, rows),
    }
}

fn runs<R: RunEndIndexType>(array: &dyn Array, rows: Option<&[u32]>) -> (ArrayRef, Vec<u32>) {
    let array = array.as_run::<R>();
    match rows {
        // Only a few rows of this array are needed, so the run of each of them is searched.
        Some(rows) if rows.len() < array.len() => {
            let run = |&row: &u32| array.get_physical_index(row as usize) as u32;
            (array.values().clone(), rows.iter().map(run).collect())
        }
        Some(rows) => {
            let (values, index) = all_runs(array);
            (values, rows.iter().map(|&row| at(&index, row)).collect())
        }
        None => all_runs(array),
    }
}

/// Returns the values of the runs in this array, and the run of each row.
fn all_runs<R: RunEndIndexType>(array: &RunArray<R>) -> (ArrayRef, Vec<u32>) {
    if array.is_empty() {
        return (array.values().slice(0, 0), Vec::new());
    }
    let (offset, end) = (array.offset(), array.offset() + array.len());
    let mut index = Vec::with_capacity(array.len());
    // The array may be one of many slices, each of which has all runs. Take only the runs of this slice, because
    // the values may be encoded, too.
    let (first, last) = (array.get_start_physical_index(), array.get_end_physical_index());
    let ends = array.run_ends().values().iter().take(last + 1).skip(first);
    for (run, run_end) in ends.enumerate() {
        let reached = run_end.as_usize().clamp(offset, end) - offset;
        if reached > index.len() {
            index.resize(reached, run as u32);
        }
    }
    index.resize(array.len(), 0);
    (array.values().slice(first, last + 1 - first), index)
}

/// Returns the values of a primitive array as `T`, which must have the array's width and alignment.
pub(super) fn native<T: ArrowNativeType>(array: &dyn Array) -> ScalarBuffer<T> {
    let data = array.to_data();
    match data.buffers().first() {
        Some(buffer) => ScalarBuffer::new(buffer.clone(), data.offset(), data.len()),
        None => ScalarBuffer::from(Vec::new()),
    }
}

/// How the values of one side are converted to their common form.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conversion {
    pub(super) form: Form,
    /// The factor that integers are multiplied by.
    pub(super) factor: i256,
    pub(super) floats: FloatEquality,
}

/// Reads plain values in a form of at most 64 bits: integers sign-extended, floats by their bits (in numeric
/// form if requested), short byte strings as a big-endian number, booleans as 0 and 1.
pub(super) fn read<S: Sink>(array: &dyn Array, conversion: Conversion, sink: S) -> Result<()> {
    use DataType::*;
    let Conversion { form, factor, floats } = conversion;
    macro_rules! each {
        ($native:ty, $convert:expr) => {
            sink.take(native::<$native>(array).iter().map($convert))
        };
    }
    macro_rules! floats {
        ($from:ty, $to:ty, $convert:expr) => {{
            let values = array.as_primitive::<$from>().values().iter().map($convert);
            match floats {
                FloatEquality::Numeric => sink.take(values.map(|v| <$to>::numeric(v).into())),
                FloatEquality::Total => sink.take(values.map(|v| v.to_bits().into())),
            }
        }};
    }
    let scaled = factor != i256::ONE;
    match (form, array.data_type()) {
        (Form::Null, _) => sink.take(std::iter::repeat_n(0, array.len())),
        (Form::Float(64), Float64) => floats!(Float64Type, Float64Type, |&v| v),
        (Form::Float(64), Float32) => floats!(Float32Type, Float64Type, |&v| f64::from(v)),
        (Form::Float(64), Float16) => floats!(Float16Type, Float64Type, |v| v.to_f64()),
        (Form::Float(64), Int8) => each!(i8, |&v| f64::from(v).to_bits()),
        (Form::Float(64), Int16) => each!(i16, |&v| f64::from(v).to_bits()),
        (Form::Float(64), Int32) => each!(i32, |&v| f64::from(v).to_bits()),
        (Form::Float(64), UInt8) => each!(u8, |&v| f64::from(v).to_bits()),
        (Form::Float(64), UInt16) => each!(u16, |&v| f64::from(v).to_bits()),
        (Form::Float(64), UInt32) => each!(u32, |&v| f64::from(v).to_bits()),
        (Form::Float(32), Float32) => floats!(Float32Type, Float32Type, |&v| v),
        (Form::Float(32), Float16) => floats!(Float16Type, Float32Type, |v| v.to_f32()),
        (Form::Float(32), Int8) => each!(i8, |&v| f32::from(v).to_bits().into()),
        (Form::Float(32), Int16) => each!(i16, |&v| f32::from(v).to_bits().into()),
        (Form::Float(32), UInt8) => each!(u8, |&v| f32::from(v).to_bits().into()),
        (Form::Float(32), UInt16) => each!(u16, |&v| f32::from(v).to_bits().into()),
        (Form::Float(16), Float16) => floats!(Float16Type, Float16Type, |&v| v),
        (Form::Unsigned(_), Boolean) => {
            sink.take(array.as_boolean().values().iter().map(u64::from))
        }
        (Form::Unsigned(_), FixedSizeBinary(_)) => {
            let values = array.as_fixed_size_binary();
            let number = |bytes: &[u8]| bytes.iter().fold(0, |n, &b| n << 8 | u64::from(b));
            sink.take((0..values.len()).map(|row| number(values.value(row))))
        }
        (Form::Unsigned(_), Interval(IntervalUnit::DayTime)) => each!(IntervalDayTime, |v| {
            u64::from(v.days as u32 ^ 1 << 31) << 32 | u64::from(v.milliseconds as u32 ^ 1 << 31)
        }),
        (Form::Signed(64), Date32 | Time32(_)) if scaled => {
            let factor = factor.to_i128().unwrap_or(1) as i64;
            each!(i32, |&v| i64::from(v).wrapping_mul(factor) as u64)
        }
        (Form::Signed(_) | Form::Unsigned(_), UInt8) => each!(u8, |&v| v.into()),
        (Form::Signed(_) | Form::Unsigned(_), UInt16) => each!(u16, |&v| v.into()),
        (Form::Signed(_) | Form::Unsigned(_), UInt32) => each!(u32, |&v| v.into()),
        (Form::Unsigned(_), UInt64) => each!(u64, |&v| v),
        (Form::Signed(_), Int8) => each!(i8, |&v| v as i64 as u64),
        (Form::Signed(_), Int16) => each!(i16, |&v| v as i64 as u64),
        (Form::Signed(_), other) => match other.primitive_width() {
            Some(4) => each!(i32, |&v| v as i64 as u64),
            Some(8) => each!(i64, |&v| v as u64),
            _ => return Err(unreadable(other, form)),
        },
        (form, other) => return Err(unreadable(other, form)),
    }
    Ok(())
}

/// Reads plain values as 128-bit integers, scaled.
pub(super) fn read_wide(array: &dyn Array, factor: i256) -> Result<ScalarBuffer<i128>> {
    use DataType::*;
    let data_type = array.data_type();
    if let (Decimal128(..), true) = (data_type, factor == i256::ONE) {
        return Ok(native::<i128>(array));
    }
    if let Interval(IntervalUnit::MonthDayNano) = data_type {
        // In the order of the fields, in which Arrow sorts them.
        let number = |v: &IntervalMonthDayNano| {
            i128::from(v.months) << 96
                | i128::from(v.days as u32 ^ 1 << 31) << 64
                | i128::from(v.nanoseconds as u64 ^ 1 << 63)
        };
        return Ok(native::<IntervalMonthDayNano>(array).iter().map(number).collect());
    }
    let factor = factor.to_i128().ok_or_else(|| unreadable(data_type, Form::Wide))?;
    let scale = |value: i128, row: usize| match value.checked_mul(factor) {
        Some(scaled) => Ok(scaled),
        // The value of a null does not matter.
        None if array.is_null(row) => Ok(0),
        None => Err(too_large(data_type, value)),
    };
    macro_rules! each {
        ($native:ty) => {{
            let values = native::<$native>(array);
            values.iter().enumerate().map(|(row, &v)| scale(i128::from(v), row)).collect()
        }};
    }
    let values: Result<Vec<i128>> = match data_type {
        UInt8 => each!(u8),
        UInt16 => each!(u16),
        UInt32 => each!(u32),
        UInt64 => each!(u64),
        Int8 => each!(i8),
        Int16 => each!(i16),
        other => match other.primitive_width() {
            Some(4) => each!(i32),
            Some(8) => each!(i64),
            Some(16) => each!(i128),
            _ => Err(unreadable(other, Form::Wide)),
        },
    };
    Ok(values?.into())
}

/// Reads plain values as 256-bit integers, scaled.
pub(super) fn read_wider(array: &dyn Array, factor: i256) -> Result<ScalarBuffer<i256>> {
    if !matches!(array.data_type(), DataType::Decimal256(..)) {
        let values = read_wide(array, i256::ONE)?;
        let scaled: Result<Vec<i256>> = (values.iter().map(|&v| i256::from_i128(v)).enumerate())
            .map(|(row, v)| scale_wider(array, factor, row, v))
            .collect();
        return Ok(scaled?.into());
    }
    let values = native::<i256>(array);
    if factor == i256::ONE {
        return Ok(values);
    }
    let scaled: Result<Vec<i256>> =
        values.iter().enumerate().map(|(row, &v)| scale_wider(array, factor, row, v)).collect();
    Ok(scaled?.into())
}

fn scale_wider(array: &dyn Array, factor: i256, row: usize, value: i256) -> Result<i256> {
    match value.checked_mul(factor) {
        Some(scaled) => Ok(scaled),
        None if array.is_null(row) => Ok(i256::ZERO),
        None => Err(too_large(array.data_type(), value)),
    }
}

fn unreadable(data_type: &DataType, form: Form) -> Error {
    Error::internal(format!("a key column of type {data_type} cannot be read as {form:?}"))
}

fn too_large(data_type: &DataType, value: impl std::fmt::Display) -> Error {
    Error::key_values(
        format!(
            "a key column of type {data_type} holds the unscaled value {value}, more digits than its type allows"
        ),
        "cast the column to a wider decimal first",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        DictionaryArray, FixedSizeBinaryArray, FixedSizeListArray, Int32Array, Int64Array,
        ListArray, StructArray, new_empty_array,
    };
    use arrow::buffer::{Buffer, OffsetBuffer};
    use arrow::datatypes::Field;

    use super::*;

    const VALUES: usize = 1000;
    const ROWS: usize = 10;

    fn field(name: &str, array: &ArrayRef) -> Arc<Field> {
        Arc::new(Field::new(name, array.data_type().clone(), true))
    }

    /// A dictionary whose rows refer to its values in another order, and every fifth row to a null key.
    fn dictionary(values: ArrayRef) -> ArrayRef {
        let key = |i: usize| (i % 5 != 4).then_some((i * 7 % values.len()) as i32);
        let keys = Int32Array::from_iter((0..values.len()).map(key));
        Arc::new(DictionaryArray::new(keys, values))
    }

    /// Runs of two rows each.
    fn runs(values: ArrayRef) -> ArrayRef {
        let ends = Int32Array::from_iter_values((1..=values.len() as i32).map(|run| 2 * run));
        Arc::new(RunArray::<Int32Type>::try_new(&ends, &values).expect("ascending ends"))
    }

    fn numbers() -> ArrayRef {
        Arc::new(Int64Array::from_iter((0..VALUES as i64).map(|i| (i % 11 != 3).then_some(i))))
    }

    fn third_is_null() -> Option<NullBuffer> {
        Some((0..VALUES).map(|i| i % 3 != 0).collect())
    }

    fn empty_binaries() -> ArrayRef {
        let nulls = third_is_null();
        let array = FixedSizeBinaryArray::try_new_with_len(0, Buffer::default(), nulls, VALUES);
        Arc::new(array.expect("no bytes"))
    }

    fn empty_lists() -> ArrayRef {
        let (item, items) = (DataType::Int32, new_empty_array(&DataType::Int32));
        let item = Arc::new(Field::new("item", item, true));
        let nulls = third_is_null();
        let array = FixedSizeListArray::try_new_with_length(item, 0, items, nulls, VALUES);
        Arc::new(array.expect("no elements"))
    }

    /// Values that have no bytes, alone and inside other values.
    fn with_empty_values() -> Vec<ArrayRef> {
        let (binaries, lists) = (empty_binaries(), empty_lists());
        let columns = [("n", numbers()), ("b", Arc::clone(&binaries)), ("l", Arc::clone(&lists))];
        let columns = columns.map(|(name, array)| (field(name, &array), array));
        let structs: ArrayRef = Arc::new(StructArray::from(columns.to_vec()));
        let one = OffsetBuffer::from_lengths(vec![1; VALUES]);
        let item = field("item", &structs);
        let nested: ArrayRef = Arc::new(ListArray::new(item, one, Arc::clone(&structs), None));
        vec![binaries, lists, structs, nested]
    }

    /// Checks that a slice has the same values and nulls as these rows of the whole array.
    fn check(array: &ArrayRef, first: usize, compact: bool) -> Peeled {
        let what = format!("{} from {first}", array.data_type());
        let whole = Peeled::new(array, false).expect(&what);
        let slice = Peeled::new(&array.slice(first, ROWS), compact).expect(&what);
        let nulls = array.slice(first, ROWS).logical_nulls().filter(|n| n.null_count() > 0);
        assert_eq!(slice.nulls, nulls, "{what}");
        let value = |of: &Peeled, row: usize| {
            let at = of.index.as_ref().map_or(row, |index| index[row] as usize);
            of.values.slice(at, 1)
        };
        for row in (0..ROWS).filter(|&row| nulls.as_ref().is_none_or(|n| n.is_valid(row))) {
            assert_eq!(&value(&slice, row), &value(&whole, first + row), "{what}, row {row}");
        }
        slice
    }

    #[test]
    fn a_slice_of_a_dictionary_takes_only_the_values_of_its_rows() {
        for values in with_empty_values().into_iter().chain([numbers()]) {
            for first in [0, 333, VALUES - ROWS] {
                let slice = check(&dictionary(Arc::clone(&values)), first, true);
                assert!(slice.values.len() <= ROWS, "{}", values.data_type());
            }
        }
    }

    /// Otherwise, few rows could need more memory than all values, and more than offsets can address.
    #[test]
    fn a_long_value_is_taken_once() {
        let lengths = std::iter::once(100_000).chain(vec![0; VALUES - 1]);
        let items: ArrayRef = Arc::new(Int32Array::from_iter_values(0..100_000));
        let item = field("item", &items);
        let lists: ArrayRef =
            Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), items, None));
        let columns = [("l", Arc::clone(&lists)), ("b", empty_binaries())];
        let columns = columns.map(|(name, array)| (field(name, &array), array));
        let structs: ArrayRef = Arc::new(StructArray::from(columns.to_vec()));
        for values in [lists, structs] {
            let keys = Int32Array::from(vec![0; ROWS]);
            let rows: ArrayRef = Arc::new(DictionaryArray::new(keys, values));
            let slice = check(&rows, 0, true);
            assert_eq!((slice.values.len(), slice.index), (1, Some(vec![0; ROWS])));
        }
    }

    #[test]
    fn a_slice_of_nested_encodings_takes_only_the_values_of_its_rows() {
        let dictionaries = dictionary(dictionary(numbers()));
        for array in [
            runs(numbers()),
            runs(dictionary(numbers())),
            dictionary(runs(numbers())),
            dictionary(runs(dictionary(numbers()))),
            runs(dictionaries),
        ] {
            for first in [0, 333, VALUES - ROWS] {
                let what = format!("{} from {first}", array.data_type());
                let slice = check(&array, first, true);
                assert!(slice.values.len() <= ROWS, "{what}: {} values", slice.values.len());
                check(&array, first, false);
                // Each step reads as many values as there are rows, not all runs.
                let mut step: (ArrayRef, Option<Vec<u32>>) = (array.slice(first, ROWS), None);
                while let Some(next) = peel_once(&step.0, step.1.as_deref()).expect(&what) {
                    assert_eq!(next.1.len(), ROWS, "{what}: {}", step.0.data_type());
                    step = (next.0, Some(next.1));
                }
            }
        }
        let (of_slice, _) =
            peel_once(&runs(numbers()).slice(333, ROWS), None).expect("runs").expect("an encoding");
        assert_eq!(of_slice.len(), ROWS / 2 + 1);
    }

    #[test]
    fn values_with_both_runs_and_empty_values_keep_their_index() {
        let half: ArrayRef = runs(numbers().slice(0, VALUES / 2));
        let columns = [("r", half), ("b", empty_binaries())];
        let columns = columns.map(|(name, array)| (field(name, &array), array));
        let array = dictionary(Arc::new(StructArray::from(columns.to_vec())));
        assert!(check(&array, 333, true).index.is_some());
    }

    /// Arrow gathers the runs inside lists in quadratic time, so values with such lists are not gathered.
    #[test]
    fn runs_inside_lists_are_not_gathered() {
        let of = |array: &ArrayRef| Arc::new(Field::new("item", array.data_type().clone(), true));
        let list = |array: &ArrayRef| DataType::List(of(array));
        assert!(can_gather(&list(&numbers())));
        assert!(can_gather(runs(numbers()).data_type()));
        assert!(!can_gather(&list(&runs(numbers()))));
        let inside = Field::new("l", list(&runs(numbers())), true);
        assert!(!can_gather(&DataType::Struct(vec![inside].into())));
    }
}

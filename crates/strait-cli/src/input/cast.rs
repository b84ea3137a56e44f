//! Casts columns to the types that `--cast` gives them. A value that cannot be cast is an error, never a null.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, StringArray};
use arrow::compute::kernels::cmp::neq;
use arrow::compute::{CastOptions, can_cast_types, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Float32Type, Float64Type, Schema};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::arguments::{UTC, type_name};
use crate::failure::{Told, one_line};
use crate::output::printable;
use crate::panics::caught;

/// The bytes per row that a cast needs: the new value, and a second copy of it, because the cast is checked. Text is
/// counted separately.
const VALUE: u64 = 80;

/// The bytes per row that a cast from a number or a time to text needs. The buffer of the text is copied when it grows.
const PRINTED: u64 = 300;

/// Returns whether some values of one type can be cast to the other type.
pub(super) fn is_possible(from: &DataType, to: &DataType) -> bool {
    can_cast_types(peeled(from), &castable(to))
}

/// A value that cannot be cast.
#[derive(Debug)]
pub(super) struct Uncastable {
    pub(super) row: usize,
    column: String,
    value: String,
    to: DataType,
}

impl Uncastable {
    /// Says where the value is. `place` is the name of a file, and perhaps a line.
    pub(super) fn told(&self, place: &str) -> Told {
        let Uncastable { column, value, to, .. } = self;
        Told(format!(
            "{place}: column \"{column}\" has \"{value}\", which cannot be cast to {}; correct the value, or \
             --cast the column to another type",
            shown(to)
        ))
    }
}

/// Returns the name of a type, as `--cast` takes it if possible.
pub(super) fn shown(data_type: &DataType) -> String {
    type_name(data_type).unwrap_or_else(|| data_type.to_string())
}

/// Casts those columns of a batch that have another type than the `fields`.
pub(super) fn cast_batch(
    batch: RecordBatch,
    fields: &[FieldRef],
) -> Result<RecordBatch, CastError> {
    if !needs_cast(&batch, fields) {
        return Ok(batch);
    }
    let column = |(array, field): (&ArrayRef, &FieldRef)| -> Result<ArrayRef, Uncastable> {
        let to = field.data_type();
        match array.data_type() == to {
            true => Ok(Arc::clone(array)),
            false => cast_array(array, to).ok_or_else(|| {
                let row = first_failure(array, to);
                Uncastable {
                    row,
                    column: field.name().clone(),
                    value: value(array, row),
                    to: to.clone(),
                }
            }),
        }
    };
    let columns = batch.columns().iter().zip(fields).map(column).collect::<Result<_, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
}

/// Why a batch could not be cast.
#[derive(Debug)]
pub(super) enum CastError {
    Value(Uncastable),
    Arrow(ArrowError),
}

impl From<Uncastable> for CastError {
    fn from(value: Uncastable) -> CastError {
        CastError::Value(value)
    }
}

impl From<ArrowError> for CastError {
    fn from(error: ArrowError) -> CastError {
        CastError::Arrow(error)
    }
}

impl CastError {
    /// Says where the value is, if a value is the cause.
    pub(super) fn at(self, place: impl FnOnce(&Uncastable) -> String) -> ArrowError {
        match self {
            CastError::Value(value) => value.told(&place(&value)).into(),
            CastError::Arrow(error) => error,
        }
    }
}

fn needs_cast(batch: &RecordBatch, fields: &[FieldRef]) -> bool {
    batch.columns().iter().zip(fields).any(|(array, field)| array.data_type() != field.data_type())
}

/// Returns an upper estimate of the memory that [`cast_batch`] takes.
pub(super) fn memory(batch: &RecordBatch, fields: &[FieldRef]) -> u64 {
    let columns = batch.columns().iter().zip(fields);
    let cast = columns.filter(|(array, field)| array.data_type() != field.data_type());
    cast.map(|(array, field)| {
        let rows = array.len() as u64;
        let is_printed = matches!(field.data_type(), DataType::Utf8 | DataType::Binary);
        let text = 2 * text_bytes(array);
        text + rows * if is_printed && text == 0 { PRINTED } else { VALUE }
    })
    .sum()
}

/// Returns the bytes of all texts or binary values in the rows of a column.
fn text_bytes(array: &ArrayRef) -> u64 {
    let between = |offsets: &[i32]| match offsets {
        [first, .., last] => (last - first) as u64,
        _ => 0,
    };
    let wide = |offsets: &[i64]| match offsets {
        [first, .., last] => (last - first) as u64,
        _ => 0,
    };
    match array.data_type() {
        DataType::Utf8 => between(array.as_string::<i32>().value_offsets()),
        DataType::Binary => between(array.as_binary::<i32>().value_offsets()),
        DataType::LargeUtf8 => wide(array.as_string::<i64>().value_offsets()),
        DataType::LargeBinary => wide(array.as_binary::<i64>().value_offsets()),
        DataType::Utf8View => array.as_string_view().lengths().map(u64::from).sum(),
        DataType::BinaryView => array.as_binary_view().lengths().map(u64::from).sum(),
        DataType::FixedSizeBinary(bytes) => array.len() as u64 * (*bytes).max(0) as u64,
        DataType::Dictionary(..) => array.as_any_dictionary_opt().map_or(0, |dictionary| {
            let values = dictionary.values();
            if values.is_empty() {
                return 0;
            }
            let length = |i: usize| text_bytes(&values.slice(i, 1));
            let lengths: Vec<u64> = (0..values.len()).map(length).collect();
            dictionary.normalized_keys().into_iter().map(|key| lengths[key]).sum()
        }),
        _ => 0,
    }
}

/// Casts a column. Returns `None` if a value cannot be cast.
pub(super) fn cast_array(array: &ArrayRef, to: &DataType) -> Option<ArrayRef> {
    // A dictionary may have values that no row has.
    let plain = match peeled(array.data_type()) {
        same if same == array.data_type() => Arc::clone(array),
        values => by_arrow(array, values)?,
    };
    // Arrow knows time zones as offsets only. The values are in UTC.
    let plain = printable(&plain).ok()?;
    let target = castable(to);
    let mut result = by_arrow(&plain, &target);
    if result.is_none() && to.is_integer() && plain.data_type().is_string() {
        result = by_arrow(&without_fractions(&plain)?, &target);
    }
    let result = result?;
    let keeps =
        result.logical_null_count() == plain.logical_null_count() && is_exact(&plain, &result)?;
    if !keeps {
        return None;
    }
    if target == *to {
        return Some(result);
    }
    // Only the name of the time zone differs.
    let data = result.to_data().into_builder().data_type(to.clone()).build().ok()?;
    Some(arrow::array::make_array(data))
}

fn by_arrow(array: &ArrayRef, to: &DataType) -> Option<ArrayRef> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    caught(|| cast_with_options(array, to, &options)).ok()?.ok()
}

/// Returns the type that Arrow casts to. It knows time zones as offsets only.
fn castable(to: &DataType) -> DataType {
    match to {
        DataType::Timestamp(unit, Some(zone)) if **zone == *UTC => {
            DataType::Timestamp(*unit, Some("+00:00".into()))
        }
        other => other.clone(),
    }
}

/// Returns the type without the dictionaries and runs around it.
fn peeled(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => peeled(values),
        DataType::RunEndEncoded(_, values) => peeled(values.data_type()),
        other => other,
    }
}

/// Removes fractions that are zero, such as `.0`. Some programs store integers with missing values as floats, and
/// write `7.0` for 7.
fn without_fractions(array: &ArrayRef) -> Option<ArrayRef> {
    let text = by_arrow(array, &DataType::Utf8)?;
    let whole = |value: &str| -> String {
        match value.split_once('.') {
            Some((whole, fraction)) if fraction.bytes().all(|digit| digit == b'0') => whole.into(),
            _ => value.into(),
        }
    };
    let values = text.as_string::<i32>().iter().map(|value| value.map(whole));
    Some(Arc::new(values.collect::<StringArray>()))
}

/// Returns whether the cast changed no value too much. A number with a fraction must not become an integer, and a
/// finite number must not become infinite. Casts to dates, times and decimals may round or drop digits, also from
/// text: the user chose the type.
fn is_exact(array: &ArrayRef, result: &ArrayRef) -> Option<bool> {
    use DataType::{Date32, Date64, Float32, Float64, Timestamp};
    let (from, to) = (array.data_type(), result.data_type());
    Some(match (from, to) {
        (Float32, to) if to.is_integer() => {
            array.as_primitive::<Float32Type>().iter().flatten().all(|value| value.fract() == 0.0)
        }
        (Float64, to) if to.is_integer() => {
            array.as_primitive::<Float64Type>().iter().flatten().all(|value| value.fract() == 0.0)
        }
        (from, to) if from.is_decimal() && to.is_integer() => returns(array, result)?,
        (Date32 | Date64, Timestamp(..)) => returns(array, result)?,
        (_, Float32) if !matches!(from, Float32) => {
            let infinite =
                |row: usize| result.as_primitive::<Float32Type>().value(row).is_infinite();
            (0..array.len())
                .all(|row| result.is_null(row) || !infinite(row) || is_infinite(array, row))
        }
        (from, Float64) if from.is_string() => {
            let infinite =
                |row: usize| result.as_primitive::<Float64Type>().value(row).is_infinite();
            (0..array.len())
                .all(|row| result.is_null(row) || !infinite(row) || is_infinite(array, row))
        }
        _ => true,
    })
}

/// Returns whether a value is infinite itself: it has no digit.
fn is_infinite(array: &ArrayRef, row: usize) -> bool {
    !value(array, row).contains(|c: char| c.is_ascii_digit())
}

/// Returns whether a cast back returns the same values.
fn returns(array: &ArrayRef, result: &ArrayRef) -> Option<bool> {
    let back = by_arrow(result, array.data_type())?;
    Some(neq(&back, array).ok()?.true_count() == 0)
}

/// Returns the first row that cannot be cast. The column must have one.
fn first_failure(array: &ArrayRef, to: &DataType) -> usize {
    // The rows before `good` can be cast, and one of those from `good` to `bad` cannot.
    let (mut good, mut bad) = (0, array.len());
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        match cast_array(&array.slice(good, middle - good), to) {
            Some(_) => good = middle,
            None => bad = middle,
        }
    }
    good
}

/// Returns the text of a value, for messages.
fn value(array: &ArrayRef, row: usize) -> String {
    let formatter = ArrayFormatter::try_new(array, &FormatOptions::default());
    let text = formatter.and_then(|formatter| formatter.value(row).try_to_string());
    text.map_or_else(|_| format!("a value in row {row}"), |text| one_line(&text))
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        Date32Array, Decimal128Array, DictionaryArray, Float64Array, Int32Array, Int64Array,
    };
    use arrow::datatypes::{Field, TimeUnit};

    use super::*;

    fn texts(values: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(values))
    }

    fn cast_to(array: ArrayRef, to: DataType) -> Result<Vec<String>, (usize, String)> {
        let from = RecordBatch::try_from_iter([("c", array)]).unwrap();
        let field = Arc::new(Field::new("c", to, true));
        match cast_batch(from, &[field]) {
            Ok(batch) => Ok((0..batch.num_rows()).map(|row| value(batch.column(0), row)).collect()),
            Err(CastError::Value(wrong)) => Err((wrong.row, wrong.value)),
            Err(CastError::Arrow(error)) => panic!("{error}"),
        }
    }

    fn wrong(row: usize, value: &str) -> Result<Vec<String>, (usize, String)> {
        Err((row, value.to_string()))
    }

    fn right(values: &[&str]) -> Result<Vec<String>, (usize, String)> {
        Ok(values.iter().map(|value| value.to_string()).collect())
    }

    #[test]
    fn texts_become_numbers_or_an_error() {
        use DataType::{Boolean, Decimal128, Float32, Float64, Int8, Int64, UInt8};
        assert_eq!(cast_to(texts(&["1", "-2", "+3"]), Int64), right(&["1", "-2", "3"]));
        assert_eq!(cast_to(texts(&["1", "2.0", "3.00"]), Int64), right(&["1", "2", "3"]));
        assert_eq!(cast_to(texts(&["1", "2", "x", "y"]), Int64), wrong(2, "x"));
        assert_eq!(cast_to(texts(&["2.0", "2.5"]), Int64), wrong(1, "2.5"));
        assert_eq!(cast_to(texts(&[""]), Int64), wrong(0, ""));
        assert_eq!(cast_to(texts(&["127", "128"]), Int8), wrong(1, "128"));
        assert_eq!(cast_to(texts(&["0", "-1"]), UInt8), wrong(1, "-1"));
        assert_eq!(cast_to(texts(&["1.5", "inf"]), Float64), right(&["1.5", "inf"]));
        assert_eq!(cast_to(texts(&["1.5", "1e400"]), Float64), wrong(1, "1e400"));
        assert_eq!(cast_to(texts(&["1.5", "1e40"]), Float32), wrong(1, "1e40"));
        assert_eq!(cast_to(texts(&["true", "maybe"]), Boolean), wrong(1, "maybe"));
        assert_eq!(cast_to(texts(&["1.239", "-7"]), Decimal128(5, 2)), right(&["1.24", "-7.00"]));
        for bad in ["", "-", ".", "1x", "12345.67", "1.2.3"] {
            assert_eq!(cast_to(texts(&["1", bad]), Decimal128(5, 2)), wrong(1, bad));
        }
    }

    #[test]
    fn numbers_do_not_lose_their_fractions() {
        use DataType::{Float32, Int8, Int64, Utf8};
        let floats = |values: &[f64]| Arc::new(Float64Array::from(values.to_vec())) as ArrayRef;
        assert_eq!(cast_to(floats(&[1.0, -0.0]), Int64), right(&["1", "0"]));
        assert_eq!(cast_to(floats(&[1.0, 2.9]), Int64), wrong(1, "2.9"));
        assert_eq!(cast_to(floats(&[f64::NAN]), Int64), wrong(0, "NaN"));
        assert_eq!(cast_to(floats(&[1e300]), Int64), wrong(0, "1e300"));
        assert_eq!(cast_to(floats(&[1e300]), Float32), wrong(0, "1e300"));
        assert_eq!(cast_to(floats(&[1.5, f64::INFINITY]), Float32), right(&["1.5", "inf"]));
        let decimals =
            Decimal128Array::from(vec![200, 250]).with_data_type(DataType::Decimal128(9, 2));
        assert_eq!(cast_to(Arc::new(decimals), Int64), wrong(1, "2.50"));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(5), None, Some(300)]));
        assert_eq!(cast_to(Arc::clone(&numbers), Utf8), right(&["5", "", "300"]));
        assert_eq!(cast_to(numbers, Int8), wrong(2, "300"));
    }

    #[test]
    fn times() {
        use DataType::{Date32, Timestamp};
        let nanoseconds = Timestamp(TimeUnit::Nanosecond, None);
        let utc = Timestamp(TimeUnit::Second, Some(UTC.into()));
        assert_eq!(cast_to(texts(&["2024-02-29"]), Date32), right(&["2024-02-29"]));
        assert_eq!(cast_to(texts(&["2024-02-30"]), Date32), wrong(0, "2024-02-30"));
        assert_eq!(cast_to(texts(&["2024-01-01T10:00:00", "noon"]), utc.clone()), wrong(1, "noon"));
        let fine = texts(&["2024-02-29T12:00:00.5", "2024-02-28T23:00:00-05:00"]);
        assert_eq!(cast_to(Arc::clone(&fine), Date32), right(&["2024-02-29", "2024-02-29"]));
        let seconds = right(&["2024-02-29T12:00:00", "2024-02-29T04:00:00"]);
        assert_eq!(cast_to(fine, Timestamp(TimeUnit::Second, None)), seconds);
        let array = cast_array(&texts(&["2024-01-01T10:00:00+02:00"]), &utc).unwrap();
        assert_eq!(array.data_type(), &utc);
        let days: ArrayRef = Arc::new(Date32Array::from(vec![0, i32::MAX]));
        assert_eq!(cast_to(days, nanoseconds).unwrap_err().0, 1);
    }

    /// Values of a dictionary that no row has do not matter.
    #[test]
    fn dictionaries_are_cast_by_their_rows() {
        let values = texts(&["7", "x", "8"]);
        let keys = |keys: &[i32]| Int32Array::from(keys.to_vec());
        let used: ArrayRef = Arc::new(DictionaryArray::new(keys(&[0, 2, 0]), Arc::clone(&values)));
        assert_eq!(cast_to(used, DataType::Int64), right(&["7", "8", "7"]));
        let bad: ArrayRef = Arc::new(DictionaryArray::new(keys(&[0, 1]), values));
        assert_eq!(cast_to(bad, DataType::Int64), wrong(1, "x"));
    }

    /// A column takes no more memory than expected.
    #[test]
    fn memory_is_estimated_from_above() {
        let numbers: ArrayRef =
            Arc::new(Int64Array::from_iter_values((0..10_000).map(|i| i << 40)));
        let texts = || (0..10_000).map(|i| format!("{i}.{}", "0".repeat(i % 30)));
        let keys = Int32Array::from_iter_values((0..10_000).map(|i| i % 100));
        let values = StringArray::from_iter_values(texts().take(100));
        let columns: [(ArrayRef, DataType); 4] = [
            (Arc::clone(&numbers), DataType::Utf8),
            (numbers, DataType::Decimal256(60, 10)),
            (Arc::new(StringArray::from_iter_values(texts())), DataType::Int64),
            (Arc::new(DictionaryArray::new(keys, Arc::new(values))), DataType::Utf8),
        ];
        for (array, to) in columns {
            let batch = RecordBatch::try_from_iter([("c", array)]).unwrap();
            let fields = [Arc::new(Field::new("c", to.clone(), true))];
            let expected = memory(&batch, &fields);
            let (cast, held) = crate::counted::most_held(|| cast_batch(batch, &fields));
            assert!(cast.is_ok() && held <= expected + (1 << 12), "{to}: {held}, {expected}");
        }
    }
}

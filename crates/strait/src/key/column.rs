//! Reads a key column of one batch, whatever its encoding.
//!
//! An array is *peeled* first: dictionaries and runs become an index into plain values. Then the plain values
//! are read in the common form of the pair, as a stream of 64-bit values. The stream goes into a [`Sink`]:
//! the packer, the hasher, or a buffer. The match on types is outside every loop.

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array, new_null_array};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::compute::take;
use arrow::datatypes::{
    ArrowNativeType, DataType, Float16Type, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type, IntervalDayTime, IntervalMonthDayNano, IntervalUnit, RunEndIndexType, i256,
};

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
    pub(super) fn new(array: &ArrayRef) -> Result<Peeled> {
        let nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        let mut values = array.clone();
        let mut index: Option<Vec<u32>> = None;
        while let Some((inner, step)) = peel_once(values.as_ref())? {
            index = Some(match index {
                None => step,
                Some(outer) => outer.iter().map(|&i| at(&step, i)).collect(),
            });
            values = inner;
        }
        if index.is_some() && values.is_empty() {
            values = new_null_array(values.data_type(), 1);
        }
        Ok(Peeled { values, index, nulls })
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

    /// Removes the index if there are more values than rows, as in a slice of a large dictionary.
    pub(super) fn compacted(mut self) -> Result<Peeled> {
        if has_empty_values(self.values.data_type()) {
            // Arrow's `take` would lose the number of such values.
            return Ok(self);
        }
        if let Some(index) = self.index.take_if(|index| self.values.len() > index.len()) {
            self.values = take(&self.values, &UInt32Array::from(index), None)
                .map_err(Error::arrow("cannot take a key column's values from its dictionary"))?;
        }
        Ok(self)
    }
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

/// Returns the values of a dictionary or of runs, and the index of each row's value.
fn peel_once(array: &dyn Array) -> Result<Option<(ArrayRef, Vec<u32>)>> {
    let (values, index) = match array.data_type() {
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let len = dictionary.values().len();
            (dictionary.values().clone(), dictionary_index(dictionary.keys(), len))
        }
        DataType::RunEndEncoded(ends, _) => match ends.data_type() {
            DataType::Int16 => runs::<Int16Type>(array),
            DataType::Int32 => runs::<Int32Type>(array),
            _ => runs::<Int64Type>(array),
        },
        _ => return Ok(None),
    };
    if u32::try_from(values.len()).is_err() {
        return Err(Error::key_values(
            format!("a key column's dictionary has {} values, and the most is 2^32", values.len()),
            "cast the column to its values' type",
        ));
    }
    Ok(Some((values, index)))
}

fn dictionary_index(keys: &dyn Array, len: usize) -> Vec<u32> {
    // The key of a null may be anything, so it is forced into bounds.
    fn bounded<T: ArrowNativeType>(keys: &dyn Array, len: usize) -> Vec<u32> {
        let inside = |key: usize| if key < len { key as u32 } else { 0 };
        native::<T>(keys).iter().map(|key| inside(key.as_usize())).collect()
    }
    match keys.data_type() {
        DataType::Int8 => bounded::<i8>(keys, len),
        DataType::Int16 => bounded::<i16>(keys, len),
        DataType::Int32 => bounded::<i32>(keys, len),
        DataType::Int64 => bounded::<i64>(keys, len),
        DataType::UInt8 => bounded::<u8>(keys, len),
        DataType::UInt16 => bounded::<u16>(keys, len),
        DataType::UInt32 => bounded::<u32>(keys, len),
        _ => bounded::<u64>(keys, len),
    }
}

fn runs<R: RunEndIndexType>(array: &dyn Array) -> (ArrayRef, Vec<u32>) {
    let array = array.as_run::<R>();
    let (offset, end) = (array.offset(), array.offset() + array.len());
    let mut index = Vec::with_capacity(array.len());
    // The array may be one of many slices, each of which has all run ends. Start at the first run of this
    // slice.
    let first = if array.is_empty() { 0 } else { array.get_start_physical_index() };
    for (run, run_end) in array.run_ends().values().iter().enumerate().skip(first) {
        if index.len() == array.len() {
            break;
        }
        let reached = run_end.as_usize().clamp(offset, end) - offset;
        if reached > index.len() {
            index.resize(reached, run as u32);
        }
    }
    index.resize(array.len(), 0);
    (array.values().clone(), index)
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

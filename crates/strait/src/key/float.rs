//! The equality of floats.
//!
//! Under [`FloatEquality::Numeric`](crate::FloatEquality), every float is first converted to its *numeric
//! form*: 0.0 for both zeros, and one positive NaN for all NaNs. Equal floats then have equal bits, and the
//! total order of the bits puts NaN after infinity. Words, hashes, verification and ranks see only numeric
//! forms. Output columns keep their original bits.

use std::sync::Arc;

use arrow::array::types::{Float16Type, Float32Type, Float64Type};
use arrow::array::{
    Array, ArrayData, ArrayRef, ArrowPrimitiveType, AsArray, FixedSizeListArray, GenericListArray,
    GenericListViewArray, MapArray, OffsetSizeTrait, PrimitiveArray, StructArray, make_array,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Int16Type, Int32Type, Int64Type, RunEndIndexType};
use arrow::error::ArrowError;

use super::nested::anywhere;

/// A float type, whose values have a numeric form.
pub(super) trait Float: ArrowPrimitiveType {
    type Bits: Into<u64> + PartialEq;

    /// Returns the bits of a float's numeric form.
    ///
    /// It has no branch. The test for zero works on integers, so that the result does not depend on how the
    /// floating-point unit of the calling thread treats subnormal numbers.
    fn numeric(value: Self::Native) -> Self::Bits;
    fn to_bits(value: Self::Native) -> Self::Bits;
    fn from_bits(bits: Self::Bits) -> Self::Native;
}

macro_rules! float {
    ($float:ty, $bits:ty, $nan:literal) => {
        impl Float for $float {
            type Bits = $bits;

            #[inline(always)]
            fn numeric(value: Self::Native) -> $bits {
                let bits = value.to_bits();
                let number = if bits << 1 == 0 { 0 } else { bits };
                if value.is_nan() { $nan } else { number }
            }

            #[inline(always)]
            fn to_bits(value: Self::Native) -> $bits {
                value.to_bits()
            }

            #[inline(always)]
            fn from_bits(bits: $bits) -> Self::Native {
                Self::Native::from_bits(bits)
            }
        }
    };
}

float!(Float16Type, u16, 0x7e00);
float!(Float32Type, u32, 0x7fc0_0000);
float!(Float64Type, u64, 0x7ff8_0000_0000_0000);

/// Returns whether a type is a float, or contains floats.
pub(crate) fn has_floats(data_type: &DataType) -> bool {
    anywhere(data_type, DataType::is_floating)
}

/// Returns whether all floats of an array are in numeric form, including values under nulls. It does not look
/// into nested arrays.
pub(super) fn all_numeric(array: &dyn Array) -> bool {
    fn all<T: Float>(array: &dyn Array) -> bool {
        let same = |value: T::Native| T::to_bits(value) == T::numeric(value);
        // The loop has no early exit, so that it is vectorised.
        array.as_primitive::<T>().values().iter().fold(true, |all, &value| all & same(value))
    }
    match array.data_type() {
        DataType::Float16 => all::<Float16Type>(array),
        DataType::Float32 => all::<Float32Type>(array),
        DataType::Float64 => all::<Float64Type>(array),
        _ => true,
    }
}

/// Returns the array with all its floats in numeric form, at any depth. For a slice, only the values of its rows are
/// copied. The values of a dictionary or of a dense union are copied in full, as in the conversion to row format.
pub(super) fn numeric_floats(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let data_type = array.data_type();
    if !has_floats(data_type) {
        return Ok(Arc::clone(array));
    }
    Ok(match data_type {
        DataType::Float16 | DataType::Float32 | DataType::Float64 if all_numeric(array) => {
            Arc::clone(array)
        }
        DataType::Float16 => leaves::<Float16Type>(array),
        DataType::Float32 => leaves::<Float32Type>(array),
        DataType::Float64 => leaves::<Float64Type>(array),
        DataType::Struct(fields) => {
            let array = array.as_struct();
            let columns = array.columns().iter().map(numeric_floats).collect::<Result<_, _>>()?;
            let (nulls, len) = (array.nulls().cloned(), array.len());
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, len)?)
        }
        DataType::List(_) => list::<i32>(array)?,
        DataType::LargeList(_) => list::<i64>(array)?,
        DataType::ListView(_) => list_view::<i32>(array)?,
        DataType::LargeListView(_) => list_view::<i64>(array)?,
        DataType::FixedSizeList(field, size) => {
            let array = array.as_fixed_size_list();
            let values = numeric_floats(array.values())?;
            let (nulls, len) = (array.nulls().cloned(), array.len());
            let field = Arc::clone(field);
            Arc::new(FixedSizeListArray::try_new_with_length(field, *size, values, nulls, len)?)
        }
        DataType::Map(field, ordered) => {
            let array = array.as_map();
            let (offsets, start, len) = rebased(array.offsets());
            let entries: ArrayRef = Arc::new(array.entries().slice(start, len));
            let entries = numeric_floats(&entries)?.as_struct().clone();
            let (field, nulls) = (Arc::clone(field), array.nulls().cloned());
            Arc::new(MapArray::try_new(field, offsets, entries, nulls, *ordered)?)
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            dictionary.with_values(numeric_floats(dictionary.values())?)
        }
        DataType::RunEndEncoded(ends, _) => match ends.data_type() {
            DataType::Int16 => runs::<Int16Type>(array)?,
            DataType::Int32 => runs::<Int32Type>(array)?,
            _ => runs::<Int64Type>(array)?,
        },
        // Unions: the children keep their lengths, so all other buffers stay the same.
        _ => {
            let data = array.to_data();
            let child = |child| Ok(numeric_floats(&make_array(child))?.to_data());
            let children = data.child_data().iter().cloned().map(child);
            let children = children.collect::<Result<Vec<_>, ArrowError>>()?;
            make_array(data.into_builder().child_data(children).build()?)
        }
    })
}

fn leaves<T: Float>(array: &ArrayRef) -> ArrayRef {
    let numeric = |value| T::from_bits(T::numeric(value));
    let floats: PrimitiveArray<T> = array.as_primitive::<T>().unary(numeric);
    Arc::new(floats)
}

/// Keeps only the runs of a slice. The array keeps its type, with the names of its fields.
fn runs<R: RunEndIndexType>(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let runs = array.as_run::<R>();
    let ends = PrimitiveArray::<R>::from_iter_values(runs.run_ends().sliced_values());
    let values = numeric_floats(&runs.values_slice())?;
    let data = ArrayData::builder(array.data_type().clone()).len(array.len());
    Ok(make_array(data.child_data(vec![ends.to_data(), values.to_data()]).build()?))
}

fn list<O: OffsetSizeTrait>(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let array = array.as_list::<O>();
    let (offsets, start, len) = rebased(array.offsets());
    let values = numeric_floats(&array.values().slice(start, len))?;
    let (field, nulls) = (Arc::clone(field_of(array.data_type())?), array.nulls().cloned());
    Ok(Arc::new(GenericListArray::<O>::try_new(field, offsets, values, nulls)?))
}

/// Returns offsets that start at zero, and the start and length of the values that they refer to.
fn rebased<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>) -> (OffsetBuffer<O>, usize, usize) {
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    let from_zero: ScalarBuffer<O> = offsets.iter().map(|&offset| offset - first).collect();
    (OffsetBuffer::new(from_zero), first.as_usize(), (last - first).as_usize())
}

fn list_view<O: OffsetSizeTrait>(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let array = array.as_list_view::<O>();
    let filled = || array.offsets().iter().zip(array.sizes()).filter(|(_, s)| **s > O::zero());
    let start = filled().map(|(&offset, _)| offset).min().unwrap_or(O::zero());
    let end = filled().map(|(&offset, &size)| offset + size).max().unwrap_or(O::zero());
    let values = array.values().slice(start.as_usize(), (end - start).as_usize());
    // An empty list may have any offset.
    let moved = |(&offset, &size): (&O, &O)| if size > O::zero() { offset - start } else { size };
    let offsets = array.offsets().iter().zip(array.sizes()).map(moved).collect();
    let (field, nulls) = (Arc::clone(field_of(array.data_type())?), array.nulls().cloned());
    let (values, sizes) = (numeric_floats(&values)?, array.sizes().clone());
    Ok(Arc::new(GenericListViewArray::<O>::try_new(field, offsets, sizes, values, nulls)?))
}

fn field_of(data_type: &DataType) -> Result<&arrow::datatypes::FieldRef, ArrowError> {
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field) => Ok(field),
        other => Err(ArrowError::InvalidArgumentError(format!("{other} is no list"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Float64Array, Int32Array, ListArray, RunArray};
    use arrow::datatypes::Field;

    /// A slice of a run array keeps its own runs only, and its type.
    #[test]
    fn slices_of_runs_copy_their_own_runs() {
        let ends = Int32Array::from_iter_values((1..=1000).map(|run| 3 * run));
        let values = Float64Array::from_iter_values((0..1000).map(|run| -f64::from(run % 2)));
        let all = RunArray::<Int32Type>::try_new(&ends, &values).expect("ascending ends");
        let all: ArrayRef = Arc::new(all);
        for (start, len) in [(0, 3000), (4, 7), (2997, 3), (5, 0), (3, 1)] {
            let slice = all.slice(start, len);
            let numeric = numeric_floats(&slice).expect("runs");
            assert_eq!((numeric.len(), numeric.data_type()), (len, all.data_type()));
            let runs = numeric.as_run::<Int32Type>();
            assert!(runs.values().len() <= len.div_ceil(3) + 1, "{start} {len}");
            let floats = runs.values().as_primitive::<Float64Type>();
            for row in 0..len {
                let value = floats.value(runs.get_physical_index(row));
                let expected = -((((start + row) / 3) % 2) as f64);
                assert_eq!(value, expected, "{start} {len} {row}");
                assert!(value != 0.0 || value.is_sign_positive());
            }
        }
    }

    #[test]
    fn numeric_forms_of_every_width() {
        fn check<T: Float<Bits: Copy>>(nan: u64, [zeros, nans, others]: [&[T::Bits]; 3]) {
            let form = |&bits: &T::Bits| -> u64 { T::numeric(T::from_bits(bits)).into() };
            assert!(zeros.iter().all(|zero| form(zero) == 0), "{nan:x}");
            assert!(nans.iter().all(|odd| form(odd) == nan), "{nan:x}");
            assert!(others.iter().all(|&same| form(&same) == same.into()), "{nan:x}");
        }
        // The others are infinity, the smallest subnormal number and one, with both signs.
        let nans = [0x7e00, 0xfe00, 0x7c01, 0xfc01, 0xffff];
        let others = [0x7c00, 0xfc00, 1, 0x8001, 0x3c00, 0xbc00];
        check::<Float16Type>(0x7e00, [&[0, 0x8000], &nans, &others]);
        let nans = [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xffff_ffff];
        let others = [0x7f80_0000, 0xff80_0000, 1, 0x8000_0001, 0x3f80_0000, 0xbf80_0000];
        check::<Float32Type>(0x7fc0_0000, [&[0, 1 << 31], &nans, &others]);
        let nans = [0x7ff8 << 48, 0xfff8 << 48, (0x7ff0 << 48) + 1, u64::MAX];
        let others = [f64::INFINITY, f64::NEG_INFINITY, 5e-324, -5e-324, 1.0, -1.0];
        check::<Float64Type>(0x7ff8 << 48, [&[0, 1 << 63], &nans, &others.map(f64::to_bits)]);
    }

    #[test]
    fn arrays_in_numeric_form_are_not_copied() {
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.0, 1.0, f64::INFINITY]));
        assert!(Arc::ptr_eq(&numeric_floats(&floats).unwrap(), &floats));
        assert!(all_numeric(&floats));
        let odd: ArrayRef = Arc::new(Float64Array::from(vec![Some(-0.0), None, Some(-f64::NAN)]));
        assert!(!all_numeric(&odd));
        let form = numeric_floats(&odd).unwrap();
        assert!(all_numeric(&form) && form.is_null(1));
    }

    #[test]
    fn only_the_rows_of_a_slice_are_converted() {
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![-0.0; 100]));
        let field = Arc::new(Field::new("item", DataType::Float64, true));
        let lists = ListArray::new(field, OffsetBuffer::from_lengths(vec![2; 50]), floats, None);
        let slice: ArrayRef = Arc::new(lists.slice(10, 3));
        let form = numeric_floats(&slice).unwrap();
        let form = form.as_list::<i32>();
        assert_eq!((form.len(), form.values().len()), (3, 6));
        assert!(all_numeric(form.values()));
    }
}

//! When are two floats equal?
//!
//! Under [`FloatEquality::Numeric`](crate::FloatEquality), every float is first brought into its
//! *numeric form*: 0.0 for both zeros, and one positive NaN for all NaNs. Equal floats then have
//! equal bits, and the total order of the bits puts NaN after infinity. Words, hashes, verification
//! and ranks see numeric forms only. Output columns keep the bits they came with.

use std::sync::Arc;

use arrow::array::types::{Float16Type, Float32Type, Float64Type};
use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, FixedSizeListArray, GenericListArray,
    GenericListViewArray, MapArray, OffsetSizeTrait, PrimitiveArray, StructArray, make_array,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

/// The numeric form of a float of `BITS` bits.
///
/// Works on integers: there is no branch, and the result does not depend on how the calling
/// thread's floating-point unit treats subnormal numbers.
#[inline(always)]
pub(super) fn numeric<const BITS: u32>(bits: u64) -> u64 {
    let (infinity, nan) = match BITS {
        16 => (0x7c00, 0x7e00),
        32 => (0x7f80_0000, 0x7fc0_0000),
        _ => (0x7ff0 << 48, 0x7ff8 << 48),
    };
    let magnitude = bits & !(1 << (BITS - 1));
    let number = if magnitude == 0 { 0 } else { bits };
    if magnitude > infinity { nan } else { number }
}

/// Whether a type is a float, or has floats inside.
pub(crate) fn has_floats(data_type: &DataType) -> bool {
    match data_type {
        DataType::Struct(fields) => fields.iter().any(|f| has_floats(f.data_type())),
        DataType::Union(fields, _) => fields.iter().any(|(_, f)| has_floats(f.data_type())),
        DataType::List(f)
        | DataType::LargeList(f)
        | DataType::ListView(f)
        | DataType::LargeListView(f)
        | DataType::FixedSizeList(f, _)
        | DataType::Map(f, _)
        | DataType::RunEndEncoded(_, f) => has_floats(f.data_type()),
        DataType::Dictionary(_, values) => has_floats(values),
        other => other.is_floating(),
    }
}

/// Whether the floats of an array, not of those nested in it, all are in numeric form. Values under
/// nulls count, too.
pub(super) fn all_numeric(array: &dyn Array) -> bool {
    fn all<T: ArrowPrimitiveType>(array: &dyn Array, same: impl Fn(T::Native) -> bool) -> bool {
        // Without a way out of the loop, so that it is vectorised.
        array.as_primitive::<T>().values().iter().fold(true, |all, &value| all & same(value))
    }
    let same = |bits: u64, numeric: u64| bits == numeric;
    match array.data_type() {
        DataType::Float16 => all::<Float16Type>(array, |v| {
            same(v.to_bits().into(), numeric::<16>(v.to_bits().into()))
        }),
        DataType::Float32 => all::<Float32Type>(array, |v| {
            same(v.to_bits().into(), numeric::<32>(v.to_bits().into()))
        }),
        DataType::Float64 => {
            all::<Float64Type>(array, |v| same(v.to_bits(), numeric::<64>(v.to_bits())))
        }
        _ => true,
    }
}

/// The array with all its floats, however deep, in numeric form. Takes time and memory for the
/// rows of a slice only, as the conversion to rows does.
pub(super) fn numeric_floats(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    type Half = <Float16Type as ArrowPrimitiveType>::Native;
    let data_type = array.data_type();
    if !has_floats(data_type) {
        return Ok(Arc::clone(array));
    }
    Ok(match data_type {
        DataType::Float16 | DataType::Float32 | DataType::Float64 if all_numeric(array) => {
            Arc::clone(array)
        }
        DataType::Float16 => leaves::<Float16Type>(array, |v| {
            Half::from_bits(numeric::<16>(v.to_bits().into()) as u16)
        }),
        DataType::Float32 => leaves::<Float32Type>(array, |v| {
            f32::from_bits(numeric::<32>(v.to_bits().into()) as u32)
        }),
        DataType::Float64 => {
            leaves::<Float64Type>(array, |v| f64::from_bits(numeric::<64>(v.to_bits())))
        }
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
        // Runs and unions: the children keep their lengths, so all else stays as it is.
        _ => {
            let data = array.to_data();
            let child = |child| Ok(numeric_floats(&make_array(child))?.to_data());
            let children = data.child_data().iter().cloned().map(child);
            let children = children.collect::<Result<Vec<_>, ArrowError>>()?;
            make_array(data.into_builder().child_data(children).build()?)
        }
    })
}

fn leaves<T: ArrowPrimitiveType>(
    array: &ArrayRef,
    of: impl Fn(T::Native) -> T::Native,
) -> ArrayRef {
    let floats: PrimitiveArray<T> = array.as_primitive::<T>().unary(of);
    Arc::new(floats)
}

fn list<O: OffsetSizeTrait>(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let array = array.as_list::<O>();
    let (offsets, start, len) = rebased(array.offsets());
    let values = numeric_floats(&array.values().slice(start, len))?;
    let (field, nulls) = (Arc::clone(field_of(array.data_type())?), array.nulls().cloned());
    Ok(Arc::new(GenericListArray::<O>::try_new(field, offsets, values, nulls)?))
}

/// Offsets that begin with zero, and which of the values they are offsets into.
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
    // An empty list may begin anywhere.
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
    use arrow::array::{Float64Array, ListArray};
    use arrow::datatypes::Field;

    #[test]
    fn numeric_forms_of_every_width() {
        fn check<const BITS: u32>(zero: u64, nan: u64, nans: &[u64], others: &[u64]) {
            assert_eq!((numeric::<BITS>(0), numeric::<BITS>(zero)), (0, 0));
            assert!(nans.iter().all(|&bits| numeric::<BITS>(bits) == nan), "{BITS} bits");
            assert!(others.iter().all(|&bits| numeric::<BITS>(bits) == bits), "{BITS} bits");
        }
        // Both signs of: infinity, the least subnormal number, one.
        let others = [0x7c00, 0xfc00, 1, 0x8001, 0x3c00, 0xbc00];
        check::<16>(0x8000, 0x7e00, &[0x7e00, 0xfe00, 0x7c01, 0xfc01, 0xffff], &others);
        let nans = [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xffff_ffff];
        let others = [0x7f80_0000, 0xff80_0000, 1, 0x8000_0001, 0x3f80_0000, 0xbf80_0000];
        check::<32>(0x8000_0000, 0x7fc0_0000, &nans, &others);
        let nans = [0x7ff8 << 48, 0xfff8 << 48, (0x7ff0 << 48) + 1, u64::MAX];
        let others = [f64::INFINITY, f64::NEG_INFINITY, 5e-324, -5e-324, 1.0, -1.0];
        check::<64>(1 << 63, 0x7ff8 << 48, &nans, &others.map(f64::to_bits));
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

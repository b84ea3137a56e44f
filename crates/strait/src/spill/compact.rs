//! Removes the parts of arrays that no row uses, so that these parts are not written.
//!
//! The result has the same type and the same values, and no array inside it has an offset. Removing the offsets is also
//! necessary for correctness: the IPC writer of Arrow 59 ignores the offsets of unions inside lists, and writes an
//! invalid run end for an empty slice of runs.
//!
//! | array | what is removed |
//! | --- | --- |
//! | views | data buffers, if their rows use fewer bytes than they have |
//! | dictionary | values that no row uses, if they are about a quarter of all values or more |
//! | list, map, fixed-size list | values before the first and after the last row |
//! | list view, dense union | values that no row uses, if Arrow's `take` supports their type |
//! | runs | runs before the first and after the last row |

use std::sync::Arc;

use arrow::array::types::{ByteViewType, Int16Type, Int32Type, Int64Type};
use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanArray, DictionaryArray, FixedSizeListArray,
    GenericByteViewArray, GenericListArray, GenericListViewArray, MapArray, OffsetSizeTrait,
    PrimitiveArray, StructArray, UInt64Array, UnionArray, downcast_dictionary_array, make_array,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::compute::{filter, take};
use arrow::datatypes::{
    ArrowDictionaryKeyType, ArrowNativeType, DataType, FieldRef, RunEndIndexType,
};
use arrow::error::ArrowError;

use super::stored::child_types;

type Result<T> = std::result::Result<T, ArrowError>;

/// Returns the same values without the parts that no row uses.
pub(super) fn compact(array: &ArrayRef) -> Result<ArrayRef> {
    use DataType::*;
    Ok(match array.data_type() {
        Utf8View => views(array.as_string_view()),
        BinaryView => views(array.as_binary_view()),
        Dictionary(_, _) => dictionary(array)?,
        Struct(_) => Arc::new(structure(array.as_struct())?),
        List(field) => list(field, array.as_list::<i32>())?,
        LargeList(field) => list(field, array.as_list::<i64>())?,
        Map(field, sorted) => map(field, *sorted, array.as_map())?,
        ListView(field) => list_view(field, array.as_list_view::<i32>())?,
        LargeListView(field) => list_view(field, array.as_list_view::<i64>())?,
        FixedSizeList(field, size) => fixed_size_list(field, *size, array.as_fixed_size_list())?,
        Union(_, _) => union(array.as_union())?,
        RunEndEncoded(ends, _) => match ends.data_type() {
            Int16 => runs::<Int16Type>(array)?,
            Int32 => runs::<Int32Type>(array)?,
            _ => runs::<Int64Type>(array)?,
        },
        _ => Arc::clone(array),
    })
}

fn views<T: ByteViewType>(array: &GenericByteViewArray<T>) -> ArrayRef {
    let held: usize = array.data_buffers().iter().map(|buffer| buffer.len()).sum();
    // Rows may share bytes, so together they may use more bytes than the buffers have. Then a copy would be larger.
    match held > array.total_buffer_bytes_used() {
        true => Arc::new(array.gc()),
        false => Arc::new(array.clone()),
    }
}

fn dictionary(array: &ArrayRef) -> Result<ArrayRef> {
    let values = array.as_any_dictionary().values();
    let fewer = match !values.is_empty() && can_be_taken(values.data_type()) {
        true => downcast_dictionary_array!(
            array => used_values(array)?,
            _ => Arc::clone(array),
        ),
        false => Arc::clone(array),
    };
    let fewer = fewer.as_any_dictionary();
    Ok(fewer.with_values(compact(fewer.values())?))
}

/// Returns the dictionary without the values that no row uses, if they are many.
fn used_values<K: ArrowDictionaryKeyType>(array: &DictionaryArray<K>) -> Result<ArrayRef> {
    let used = array.occupancy();
    if used.count_set_bits() * 4 > array.values().len() * 3 {
        return Ok(Arc::new(array.clone()));
    }
    let mut keys = vec![K::Native::usize_as(0); array.values().len()];
    used.set_indices().enumerate().for_each(|(new, old)| keys[old] = K::Native::usize_as(new));
    // The key of a null row may be any number.
    let key = |old: K::Native| keys.get(old.as_usize()).copied().unwrap_or_default();
    let keys: PrimitiveArray<K> = array.keys().unary(key);
    let values = filter(array.values(), &BooleanArray::new(used, None))?;
    Ok(Arc::new(DictionaryArray::try_new(keys, values)?))
}

fn structure(array: &StructArray) -> Result<StructArray> {
    let columns = array.columns().iter().map(compact).collect::<Result<Vec<_>>>()?;
    let (fields, nulls) = (array.fields().clone(), array.nulls().cloned());
    StructArray::try_new_with_length(fields, columns, nulls, array.len())
}

/// Returns offsets that start at 0, and the range of the values that they refer to.
fn rebase<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>) -> (OffsetBuffer<O>, usize, usize) {
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    let offsets = match first.as_usize() {
        0 => offsets.clone(),
        _ => OffsetBuffer::new(offsets.iter().map(|&offset| offset - first).collect()),
    };
    (offsets, first.as_usize(), (last - first).as_usize())
}

fn list<O: OffsetSizeTrait>(field: &FieldRef, array: &GenericListArray<O>) -> Result<ArrayRef> {
    let (offsets, start, length) = rebase(array.offsets());
    let values = compact(&array.values().slice(start, length))?;
    let nulls = array.nulls().cloned();
    Ok(Arc::new(GenericListArray::try_new(Arc::clone(field), offsets, values, nulls)?))
}

fn map(field: &FieldRef, sorted: bool, array: &MapArray) -> Result<ArrayRef> {
    let (offsets, start, length) = rebase(array.offsets());
    let entries = structure(&array.entries().slice(start, length))?;
    let nulls = array.nulls().cloned();
    Ok(Arc::new(MapArray::try_new(Arc::clone(field), offsets, entries, nulls, sorted)?))
}

fn fixed_size_list(field: &FieldRef, size: i32, array: &FixedSizeListArray) -> Result<ArrayRef> {
    let (values, nulls) = (compact(array.values())?, array.nulls().cloned());
    let field = Arc::clone(field);
    let list = FixedSizeListArray::try_new_with_length(field, size, values, nulls, array.len())?;
    Ok(Arc::new(list))
}

fn list_view<O: OffsetSizeTrait>(
    field: &FieldRef,
    array: &GenericListViewArray<O>,
) -> Result<ArrayRef> {
    // Ranges may overlap, be in any order, and have gaps. A null row may have any range, so it gets an empty one.
    let range = |row| match array.is_valid(row) {
        true => (array.value_offset(row).as_usize(), array.value_size(row).as_usize()),
        false => (0, 0),
    };
    let ranges: Vec<(usize, usize)> = (0..array.len()).map(range).collect();
    let filled = || ranges.iter().filter(|&&(_, size)| size > 0);
    let used: usize = filled().map(|&(_, size)| size).sum();
    let mut offsets: Vec<usize> = ranges.iter().map(|&(start, _)| start).collect();
    let values = if used < array.values().len() && can_be_taken(field.data_type()) {
        let indices = ranges.iter().flat_map(|&(start, size)| start as u64..(start + size) as u64);
        let values = take(array.values(), &UInt64Array::from_iter_values(indices), None)?;
        let mut end = 0;
        for (offset, &(_, size)) in offsets.iter_mut().zip(&ranges) {
            *offset = end;
            end += size;
        }
        values
    } else {
        let start = filled().map(|&(start, _)| start).min().unwrap_or(0);
        let end = filled().map(|&(start, size)| start + size).max().unwrap_or(0);
        // Empty rows may have an offset outside of the values that are left.
        offsets
            .iter_mut()
            .for_each(|offset| *offset = offset.saturating_sub(start).min(end - start));
        array.values().slice(start, end - start)
    };
    let offsets: ScalarBuffer<O> = offsets.into_iter().map(O::usize_as).collect();
    let sizes: ScalarBuffer<O> = ranges.iter().map(|&(_, size)| O::usize_as(size)).collect();
    let (field, nulls) = (Arc::clone(field), array.nulls().cloned());
    let values = compact(&values)?;
    Ok(Arc::new(GenericListViewArray::try_new(field, offsets, sizes, values, nulls)?))
}

fn union(array: &UnionArray) -> Result<ArrayRef> {
    let (fields, type_ids, offsets, mut children) = array.clone().into_parts();
    let mut offsets = offsets.map(|offsets| offsets.to_vec());
    if let Some(offsets) = &mut offsets {
        for ((type_id, field), child) in fields.iter().zip(&mut children) {
            let rows: Vec<usize> =
                (0..type_ids.len()).filter(|&r| type_ids[r] == type_id).collect();
            if rows.len() < child.len() && can_be_taken(field.data_type()) {
                let used = rows.iter().map(|&row| offsets[row] as u64);
                *child = take(child, &UInt64Array::from_iter_values(used), None)?;
                rows.iter().zip(0..).for_each(|(&row, offset)| offsets[row] = offset);
            }
        }
    }
    let children = children.iter().map(compact).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(UnionArray::try_new(fields, type_ids, offsets.map(ScalarBuffer::from), children)?))
}

fn runs<R: RunEndIndexType>(array: &ArrayRef) -> Result<ArrayRef> {
    let Some(runs) = array.as_run_opt::<R>() else {
        return Err(ArrowError::SchemaError(format!(
            "{} is not run-end encoded",
            array.data_type()
        )));
    };
    let ends = PrimitiveArray::<R>::from_iter_values(runs.run_ends().sliced_values());
    // `RunArray::try_new` would replace the names of the fields.
    let data = ArrayData::builder(array.data_type().clone())
        .len(array.len())
        .add_child_data(ends.to_data())
        .add_child_data(compact(&runs.values_slice())?.to_data());
    Ok(make_array(data.build()?))
}

/// Returns whether unused values of this type can be removed with Arrow's `take` and `filter`. These functions rename
/// the fields of runs, so values are not removed from runs. Unions and values without bytes are rare, so values are not
/// removed from them either.
fn can_be_taken(data_type: &DataType) -> bool {
    use DataType::*;
    match data_type {
        RunEndEncoded(_, _) | Union(_, _) | FixedSizeBinary(0) | FixedSizeList(_, 0) => false,
        Struct(fields) if fields.is_empty() => false,
        other => child_types(other).into_iter().all(can_be_taken),
    }
}

//! Splits long key columns into slices, so that conversions can check for cancellation in between.
//!
//! A slice has some thousand rows. Most arrays can be sliced at no cost. Some nested arrays cannot: a slice
//! of a dense union has all values of its members, so each slice would convert all of them. Such arrays are
//! split into fewer slices, or not at all.

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, make_array};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{ArrowNativeType, DataType, UnionMode};

use crate::error::Result;

/// A function that is called between two slices, and after each part of nested values in row format. It gets the number
/// of bytes that the values take in addition. If it returns an error, the conversion ends.
pub(super) type Between<'a> = &'a mut dyn FnMut(usize) -> Result<()>;

/// The number of rows per slice, unless slices share values.
pub(super) const ROWS: usize = 1 << SHIFT;
const SHIFT: u32 = 14;

/// Returns the slices of an array, with `rows` rows each.
pub(super) fn of(array: &ArrayRef, rows: usize) -> impl Iterator<Item = ArrayRef> {
    let starts = (0..array.len()).step_by(rows);
    starts.map(move |at| match array.len() <= rows {
        true => ArrayRef::clone(array),
        false => array.slice(at, rows.min(array.len() - at)),
    })
}

/// Returns the slices of nested values.
pub(super) fn of_nested(values: &ArrayRef) -> impl Iterator<Item = ArrayRef> {
    of(values, 1 << shift(values))
}

/// Reads values slice by slice.
pub(super) fn read<T: ArrowNativeType>(
    array: &ArrayRef,
    between: Between<'_>,
    read: impl Fn(&ArrayRef) -> Result<ScalarBuffer<T>>,
) -> Result<ScalarBuffer<T>> {
    if array.len() <= ROWS {
        return read(array);
    }
    let mut values = Vec::with_capacity(array.len());
    for slice in of(array, ROWS) {
        between(0)?;
        values.extend_from_slice(&read(&slice)?);
    }
    Ok(values.into())
}

/// Returns the binary logarithm of the number of rows per slice, for nested values.
pub(super) fn shift(array: &ArrayRef) -> u32 {
    // A slice has at least eight times as many rows as there are shared values, so converting these again
    // costs little.
    let rows = shared(array.as_ref()).saturating_mul(8).max(1);
    rows.ilog2().saturating_add(1).clamp(SHIFT, usize::BITS - 2)
}

/// Returns the number of values that every slice of an array converts to row format, whatever its rows are. Runs count
/// in full, although a slice converts only its own runs.
fn shared(array: &dyn Array) -> usize {
    match array.data_type() {
        DataType::Dictionary(..) => array.as_any_dictionary().values().len(),
        DataType::RunEndEncoded(..) => {
            let children = array.to_data().child_data().to_vec();
            children.into_iter().map(|c| c.len() + shared(make_array(c).as_ref())).sum()
        }
        DataType::Struct(_) => {
            array.as_struct().columns().iter().map(|column| shared(column.as_ref())).sum()
        }
        DataType::Union(fields, mode) => {
            let union = array.as_union();
            let children = fields.iter().map(|(id, _)| union.child(id).as_ref());
            match mode {
                UnionMode::Sparse => children.map(shared).sum(),
                UnionMode::Dense => children.map(|child| child.len() + shared(child)).sum(),
            }
        }
        DataType::List(_) => shared(array.as_list::<i32>().values().as_ref()),
        DataType::LargeList(_) => shared(array.as_list::<i64>().values().as_ref()),
        DataType::FixedSizeList(..) => shared(array.as_fixed_size_list().values().as_ref()),
        DataType::Map(..) => shared(array.as_map().entries()),
        DataType::ListView(_) => shared_by_views::<i32>(array),
        DataType::LargeListView(_) => shared_by_views::<i64>(array),
        _ => 0,
    }
}

/// A slice of views takes all elements from its first to its last. These are few if the views are in the
/// order of their rows.
fn shared_by_views<O: OffsetSizeTrait>(array: &dyn Array) -> usize {
    let views = array.as_list_view::<O>();
    let inside = shared(views.values().as_ref());
    match views.offsets().is_sorted() {
        true => inside,
        false => views.values().len() + inside,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{DictionaryArray, Int32Array, Int64Array, ListViewArray, StructArray};
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn slices_cover_an_array() {
        for len in [0, 1, 7, 8, 9, 64] {
            let array: ArrayRef = Arc::new(Int64Array::from_iter_values(0..len));
            let all: Vec<i64> = of(&array, 8)
                .flat_map(|slice| {
                    let slice = slice.as_primitive::<arrow::datatypes::Int64Type>();
                    slice.values().to_vec()
                })
                .collect();
            assert_eq!(all, (0..len).collect::<Vec<i64>>());
        }
    }

    #[test]
    fn slices_are_longer_where_they_share_values() {
        let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..100_000));
        let in_struct = |array: ArrayRef| -> ArrayRef {
            let field = Arc::new(Field::new("f", array.data_type().clone(), true));
            Arc::new(StructArray::from(vec![(field, array)]))
        };
        assert_eq!(shift(&in_struct(Arc::clone(&numbers))), SHIFT);
        let keys = Int32Array::from_iter_values((0..100_000).map(|i| i % 7));
        let dictionary = DictionaryArray::new(keys, Arc::clone(&numbers));
        assert_eq!(1 << shift(&in_struct(Arc::new(dictionary))), 1 << 20);
        let views = |offsets: Vec<i32>| -> ArrayRef {
            let item = Arc::new(Field::new("item", DataType::Int32, true));
            let sizes = vec![1; offsets.len()].into();
            let offsets = offsets.into();
            Arc::new(ListViewArray::new(item, offsets, sizes, Arc::clone(&numbers), None))
        };
        assert_eq!(shift(&views((0..100_000).collect())), SHIFT);
        assert_eq!(1 << shift(&views((0..100_000).rev().collect())), 1 << 20);
    }
}

//! Gathers lists, fixed-size lists, list views and maps.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, GenericListViewArray, MapArray,
    OffsetSizeTrait,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, FieldRef};
use arrow::error::ArrowError;

use crate::materialise::rows::{self, Selection, validity};

/// Gathers the selected rows of arrays of a list type.
pub(super) fn gather(
    data_type: &DataType,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    match data_type {
        DataType::List(field) => lists::<i32>(field, chunks, rows),
        DataType::LargeList(field) => lists::<i64>(field, chunks, rows),
        DataType::Map(field, sorted) => maps(field, *sorted, chunks, rows),
        DataType::FixedSizeList(field, size) => fixed_size(field, *size, chunks, rows),
        DataType::ListView(field) => views::<i32>(field, chunks, rows),
        DataType::LargeListView(field) => views::<i64>(field, chunks, rows),
        other => Err(ArrowError::NotYetImplemented(format!("gathering values of type {other}"))),
    }
}

fn lists<O: OffsetSizeTrait>(
    field: &FieldRef,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    let lists: Vec<&GenericListArray<O>> = chunks.iter().map(|chunk| chunk.as_list()).collect();
    let offsets: Vec<&[O]> = lists.iter().map(|list| list.value_offsets()).collect();
    let children: Vec<_> = lists.iter().map(|list| list.values().as_ref()).collect();
    let out = new_offsets(&offsets, rows)?;
    let values = rows::gather(field.data_type(), &children, &elements(&offsets, rows))?;
    let nulls = validity(chunks, rows);
    Ok(Arc::new(GenericListArray::<O>::try_new(Arc::clone(field), out, values, nulls)?))
}

fn maps(
    field: &FieldRef,
    sorted: bool,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    let offsets: Vec<&[i32]> = chunks.iter().map(|chunk| chunk.as_map().value_offsets()).collect();
    let children: Vec<_> =
        chunks.iter().map(|chunk| chunk.as_map().entries() as &dyn Array).collect();
    let out = new_offsets(&offsets, rows)?;
    let entries = rows::gather(field.data_type(), &children, &elements(&offsets, rows))?;
    let no_struct = || ArrowError::InvalidArgumentError("a map without entries".to_string());
    let entries = entries.as_struct_opt().ok_or_else(no_struct)?.clone();
    let nulls = validity(chunks, rows);
    Ok(Arc::new(MapArray::try_new(Arc::clone(field), out, entries, nulls, sorted)?))
}

/// Returns the elements of lists with the given offsets.
pub(super) fn elements<O: OffsetSizeTrait>(offsets: &[&[O]], rows: &Selection) -> Selection {
    rows.children(|chunk, first, len| {
        let start = offsets[chunk][first].as_usize();
        (start, offsets[chunk][first + len].as_usize() - start)
    })
}

/// Returns the offsets of the gathered lists.
fn new_offsets<O: OffsetSizeTrait>(
    offsets: &[&[O]],
    rows: &Selection,
) -> Result<OffsetBuffer<O>, ArrowError> {
    let mut out = Vec::with_capacity(rows.len + 1);
    let mut end = 0;
    out.push(O::zero());
    for (chunk, row) in rows.rows() {
        if let Some(offsets) = offsets.get(chunk) {
            end += (offsets[row + 1] - offsets[row]).as_usize();
        }
        out.push(O::from_usize(end).ok_or(ArrowError::OffsetOverflowError(end))?);
    }
    Ok(OffsetBuffer::new(out.into()))
}

fn fixed_size(
    field: &FieldRef,
    size: i32,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    let children: Vec<_> =
        chunks.iter().map(|chunk| chunk.as_fixed_size_list().values().as_ref()).collect();
    let values = rows::gather(field.data_type(), &children, &fixed_elements(size, rows)?)?;
    let (field, nulls) = (Arc::clone(field), validity(chunks, rows));
    let list = FixedSizeListArray::try_new_with_length(field, size, values, nulls, rows.len)?;
    Ok(Arc::new(list))
}

/// Returns the elements of lists of `size` elements each. Absent lists have absent elements.
pub(super) fn fixed_elements(size: i32, rows: &Selection) -> Result<Selection, ArrowError> {
    let negative = |_| ArrowError::InvalidArgumentError(format!("lists of {size} elements"));
    let size = usize::try_from(size).map_err(negative)?;
    let mut elements = Selection::of_stretches(rows.absent);
    for (chunk, first, len) in rows.stretches() {
        elements.push(chunk, first * size, len * size);
    }
    Ok(elements)
}

fn views<O: OffsetSizeTrait>(
    field: &FieldRef,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<ArrayRef, ArrowError> {
    let views: Vec<&GenericListViewArray<O>> =
        chunks.iter().map(|chunk| chunk.as_list_view()).collect();
    let viewed = Viewed::new(&views, rows);
    let mut offsets = Vec::with_capacity(rows.len);
    let mut sizes = Vec::with_capacity(rows.len);
    let mut at = viewed.starts.clone();
    for (chunk, row) in rows.rows() {
        let view = views.get(chunk).filter(|view| view.is_valid(row));
        let Some(view) = view else {
            offsets.push(O::zero());
            sizes.push(O::zero());
            continue;
        };
        let size = view.value_size(row);
        let offset = match viewed.whole[chunk] {
            true => viewed.starts[chunk] + view.value_offset(row).as_usize(),
            false => {
                at[chunk] += size.as_usize();
                at[chunk] - size.as_usize()
            }
        };
        offsets.push(O::from_usize(offset).ok_or(ArrowError::OffsetOverflowError(offset))?);
        sizes.push(size);
    }
    let values = match views.as_slice() {
        [only] if viewed.whole[0] => Arc::clone(only.values()),
        _ => {
            let children: Vec<_> = views.iter().map(|view| view.values().as_ref()).collect();
            rows::gather(field.data_type(), &children, &viewed.elements(&views, rows))?
        }
    };
    let (offsets, sizes) = (ScalarBuffer::from(offsets), ScalarBuffer::from(sizes));
    let (field, nulls) = (Arc::clone(field), validity(chunks, rows));
    Ok(Arc::new(GenericListViewArray::<O>::try_new(field, offsets, sizes, values, nulls)?))
}

/// How the elements of list views are gathered, chunk by chunk.
///
/// Views may overlap. If the views of a chunk have more elements than the chunk itself, the whole chunk is
/// copied once. So the result is never larger than the chunks. A single chunk is not copied at all.
pub(super) struct Viewed {
    /// Which chunks are taken as a whole.
    pub(super) whole: Vec<bool>,
    /// The start of each chunk's elements in the result.
    starts: Vec<usize>,
}

impl Viewed {
    pub(super) fn new<O: OffsetSizeTrait>(
        views: &[&GenericListViewArray<O>],
        rows: &Selection,
    ) -> Self {
        let mut sizes = vec![0usize; views.len()];
        for (chunk, row) in rows.rows() {
            if let Some(view) = views.get(chunk).filter(|view| view.is_valid(row)) {
                sizes[chunk] = sizes[chunk].saturating_add(view.value_size(row).as_usize());
            }
        }
        let is_whole = |(view, &size): (&&GenericListViewArray<O>, &usize)| {
            views.len() == 1 || size > view.values().len()
        };
        let whole: Vec<bool> = views.iter().zip(&sizes).map(is_whole).collect();
        let mut starts = Vec::with_capacity(views.len());
        let mut start = 0;
        for (chunk, view) in views.iter().enumerate() {
            starts.push(start);
            start += if whole[chunk] { view.values().len() } else { sizes[chunk] };
        }
        Viewed { whole, starts }
    }

    /// Returns the elements, chunk by chunk.
    pub(super) fn elements<O: OffsetSizeTrait>(
        &self,
        views: &[&GenericListViewArray<O>],
        rows: &Selection,
    ) -> Selection {
        let mut of_chunk: Vec<Vec<usize>> = vec![Vec::new(); views.len()];
        for (chunk, row) in rows.rows() {
            if views.get(chunk).is_some_and(|view| view.is_valid(row)) && !self.whole[chunk] {
                of_chunk[chunk].push(row);
            }
        }
        let mut elements = Selection::of_stretches(rows.absent);
        for (chunk, view) in views.iter().enumerate() {
            if self.whole[chunk] {
                elements.push(chunk, 0, view.values().len());
            }
            for &row in &of_chunk[chunk] {
                let first = view.value_offset(row).as_usize();
                elements.push(chunk, first, view.value_size(row).as_usize());
            }
        }
        elements
    }
}

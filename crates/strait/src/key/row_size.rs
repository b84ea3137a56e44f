//! Computes how many bytes nested values take in Arrow's row format, before they are converted.
//!
//! The row format writes every value out. Views, dictionaries, runs and list views can share values, so a batch of some
//! hundred kilobytes may take gigabytes in row format. Under a memory limit, an array is therefore converted in
//! [parts].
//!
//! All results are upper bounds. They follow the encoding that the crate `arrow-row` documents.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, RunArray};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowNativeType, BinaryType, ByteArrayType, DataType, Int16Type, Int32Type, Int64Type,
    LargeBinaryType, LargeUtf8Type, RunEndIndexType, UnionMode, Utf8Type,
};

use super::column::native;
use super::float;
use super::nested::anywhere;

/// A part ends when the upper bound of its bytes in row format reaches this number. If the [shared
/// values](shared_bytes) have more bytes, it ends when the upper bound reaches their number of bytes.
const PART: usize = 256 << 10;

/// The most parts that [`parts`] returns in one call. This limits the memory for the list of parts.
const PARTS: usize = 1024;

/// The bytes per row besides its values: the offset of the row.
const OFFSET: usize = size_of::<usize>();

/// The number of flat elements per sum in [`Sums`].
const STEP: usize = 32;

/// The sizes of an array's rows in row format.
enum Size {
    /// All rows have the same size.
    Fixed(usize),
    /// The size of the given row.
    Varying(Box<dyn Fn(usize) -> usize>),
}

impl Size {
    fn of_row(&self, row: usize) -> usize {
        match self {
            Size::Fixed(bytes) => *bytes,
            Size::Varying(of_row) => of_row(row),
        }
    }

    fn of_rows(&self, rows: Range<usize>) -> usize {
        match self {
            Size::Fixed(bytes) => bytes.saturating_mul(rows.len()),
            Size::Varying(of_row) => rows.map(of_row).fold(0, usize::saturating_add),
        }
    }
}

/// A range of rows that is converted at once.
pub(super) struct Part {
    pub(super) rows: Range<usize>,
    /// The bytes of these rows in row format, offsets included.
    pub(super) bytes: usize,
}

/// Splits the rows of an array from row `begin` on into parts. Returns at most [`PARTS`] of them. If rows are left, the
/// caller must call this again with the first row that is left. It takes up to [`sizing_bytes`] of memory while it
/// runs.
///
/// Each part converts the [shared values](shared_bytes) again. To keep this cheap, each part except the last one has at
/// least as many bytes as these values, by the upper bound.
pub(super) fn parts(array: &dyn Array, mut begin: usize) -> Vec<Part> {
    let least = PART.max(shared_bytes(array));
    let (size, len) = (sizes(array), array.len());
    let next = || {
        let (first, mut bytes) = (begin, 0usize);
        while begin < len && bytes < least {
            bytes = bytes.saturating_add(size.of_row(begin)).saturating_add(OFFSET);
            begin += 1;
        }
        (first < begin).then_some(Part { rows: first..begin, bytes })
    };
    std::iter::from_fn(next).take(PARTS).collect()
}

/// Returns the bytes in row format of the values that every slice of an array converts, whatever its rows are.
fn shared_bytes(array: &dyn Array) -> usize {
    let is_shared = match array.data_type() {
        DataType::Dictionary(..) | DataType::Union(_, UnionMode::Dense) => true,
        // A slice of views converts all elements from its first to its last. These are few if the views are in order.
        DataType::ListView(_) => !array.as_list_view::<i32>().offsets().is_sorted(),
        DataType::LargeListView(_) => !array.as_list_view::<i64>().offsets().is_sorted(),
        _ => false,
    };
    let bytes = if is_shared { converted } else { shared_bytes };
    sum(inside(array).iter().map(|values| bytes(values.as_ref())))
}

/// Returns the bytes of all rows of an array in row format, and the bytes that their conversion takes besides.
fn converted(array: &dyn Array) -> usize {
    let offsets = array.len().saturating_mul(OFFSET);
    let rows = sizes(array).of_rows(0..array.len());
    rows.saturating_add(offsets).saturating_add(inner_bytes(array))
}

/// Returns the bytes that `arrow-row` takes in addition to its result. `arrow-row` converts the values inside an array
/// before the array itself. The [copy of floats](float_bytes) does not count. The computation takes up to
/// [`sizing_bytes`] of memory.
pub(super) fn inner_bytes(array: &dyn Array) -> usize {
    sum(inside(array).iter().map(|values| converted(values.as_ref())))
}

/// Returns the bytes that `float::numeric_floats` allocates for an array: its floats, if one of them is not in numeric
/// form, and the offsets and run ends around them.
pub(super) fn float_bytes(array: &dyn Array) -> usize {
    let data_type = array.data_type();
    if !float::has_floats(data_type) {
        return 0;
    }
    if let Some(width) = data_type.primitive_width() {
        return if float::all_numeric(array) { 0 } else { array.len().saturating_mul(width) };
    }
    let inside = inside(array);
    let entries = match data_type {
        DataType::List(_) | DataType::LargeList(_) | DataType::Map(..) => array.len() + 1,
        DataType::ListView(_) | DataType::LargeListView(_) => array.len(),
        DataType::RunEndEncoded(..) => inside.first().map_or(0, |values| values.len()),
        _ => 0,
    };
    let floats = sum(inside.iter().map(|values| float_bytes(values.as_ref())));
    entries.saturating_mul(size_of::<i64>()).saturating_add(floats)
}

/// Returns the most bytes that [`parts`] and [`inner_bytes`] take for an array while they run. This is less than
/// the array's elements take in row format.
///
/// Rows can share elements, and elements can share elements in turn. Without memory, the size of an element would be
/// computed again for each reference to it. The time would grow exponentially with the depth of the type.
pub(super) fn sizing_bytes(array: &dyn Array) -> usize {
    let sums = |values: &dyn Array| match array.data_type() {
        DataType::ListView(_) | DataType::LargeListView(_) => Sums::count(values),
        DataType::Dictionary(..)
        | DataType::RunEndEncoded(..)
        | DataType::Union(_, UnionMode::Dense)
            if has_lists(values) =>
        {
            values.len()
        }
        _ => 0,
    };
    let bytes = |values: &ArrayRef| {
        let own = sums(values.as_ref()).saturating_mul(size_of::<usize>());
        own.saturating_add(sizing_bytes(values.as_ref()))
    };
    sum(inside(array).iter().map(bytes))
}

fn sum(bytes: impl Iterator<Item = usize>) -> usize {
    bytes.fold(0, usize::saturating_add)
}

/// Returns the arrays inside an array. They have only the values that a conversion of the array reads.
fn inside(array: &dyn Array) -> Vec<ArrayRef> {
    match array.data_type() {
        DataType::Struct(_) => array.as_struct().columns().to_vec(),
        DataType::Dictionary(..) => vec![Arc::clone(array.as_any_dictionary().values())],
        DataType::RunEndEncoded(ends, _) => vec![match ends.data_type() {
            DataType::Int16 => array.as_run::<Int16Type>().values_slice(),
            DataType::Int32 => array.as_run::<Int32Type>().values_slice(),
            _ => array.as_run::<Int64Type>().values_slice(),
        }],
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let elements = between(list.value_offsets());
            vec![list.values().slice(elements.start, elements.len())]
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            let elements = between(list.value_offsets());
            vec![list.values().slice(elements.start, elements.len())]
        }
        DataType::Map(..) => {
            let map = array.as_map();
            let entries = between(map.value_offsets());
            map.entries().slice(entries.start, entries.len()).columns().to_vec()
        }
        DataType::FixedSizeList(..) => vec![Arc::clone(array.as_fixed_size_list().values())],
        DataType::ListView(_) => {
            let elements = viewed::<i32>(array);
            vec![array.as_list_view::<i32>().values().slice(elements.start, elements.len())]
        }
        DataType::LargeListView(_) => {
            let elements = viewed::<i64>(array);
            vec![array.as_list_view::<i64>().values().slice(elements.start, elements.len())]
        }
        DataType::Union(fields, _) => {
            let union = array.as_union();
            fields.iter().map(|(id, _)| Arc::clone(union.child(id))).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the elements from the first to the last offset.
fn between<O: OffsetSizeTrait>(offsets: &[O]) -> Range<usize> {
    let first = offsets.first().map_or(0, |offset| offset.as_usize());
    first..offsets.last().map_or(first, |offset| offset.as_usize())
}

/// Returns the elements of list views from the first to the last that any view needs.
fn viewed<O: OffsetSizeTrait>(array: &dyn Array) -> Range<usize> {
    let views = array.as_list_view::<O>();
    let ranges = || {
        let ranges = views.offsets().iter().zip(views.sizes().iter());
        let ranges = ranges.map(|(at, len)| (at.as_usize(), at.as_usize() + len.as_usize()));
        ranges.filter(|(first, end)| first < end)
    };
    let first = ranges().map(|(first, _)| first).min().unwrap_or(0);
    first..ranges().map(|(_, end)| end).max().unwrap_or(first)
}

/// Returns the sizes of an array's rows. The size of a row is computed in constant time, except that the size of a list
/// takes time per element.
fn sizes(array: &dyn Array) -> Size {
    let data_type = array.data_type();
    if let Some(bytes) = fixed(data_type) {
        return Size::Fixed(bytes);
    }
    match data_type {
        DataType::Utf8 => text::<Utf8Type>(array),
        DataType::LargeUtf8 => text::<LargeUtf8Type>(array),
        DataType::Binary => text::<BinaryType>(array),
        DataType::LargeBinary => text::<LargeBinaryType>(array),
        DataType::Utf8View => views(array, array.as_string_view().views()),
        DataType::BinaryView => views(array, array.as_binary_view().views()),
        DataType::Struct(_) => {
            let (nulls, null) = (array.nulls().cloned(), null_size(data_type));
            let columns = array.as_struct().columns();
            let columns: Vec<_> = columns.iter().map(|column| sizes(column.as_ref())).collect();
            varying(move |row| {
                let values = columns.iter().map(|size| size.of_row(row));
                let values = values.fold(1, usize::saturating_add);
                // The values under a null are converted, too. They count, so that a part with many of them stays short.
                if is_null(&nulls, row) { values.max(null) } else { values }
            })
        }
        DataType::Dictionary(keys, _) => match keys.as_ref() {
            DataType::Int8 => dictionary::<i8>(array),
            DataType::Int16 => dictionary::<i16>(array),
            DataType::Int32 => dictionary::<i32>(array),
            DataType::Int64 => dictionary::<i64>(array),
            DataType::UInt8 => dictionary::<u8>(array),
            DataType::UInt16 => dictionary::<u16>(array),
            DataType::UInt32 => dictionary::<u32>(array),
            _ => dictionary::<u64>(array),
        },
        DataType::RunEndEncoded(ends, _) => match ends.data_type() {
            DataType::Int16 => runs(array.as_run::<Int16Type>()),
            DataType::Int32 => runs(array.as_run::<Int32Type>()),
            _ => runs(array.as_run::<Int64Type>()),
        },
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            list_of(array, list.values().as_ref(), list.offsets().inner())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            list_of(array, list.values().as_ref(), list.offsets().inner())
        }
        DataType::Map(..) => {
            let map = array.as_map();
            list_of(array, map.entries(), map.offsets().inner())
        }
        DataType::ListView(_) => list_views::<i32>(array),
        DataType::LargeListView(_) => list_views::<i64>(array),
        DataType::FixedSizeList(_, len) => {
            let (len, nulls) = (len.as_usize(), array.nulls().cloned());
            let elements = sizes(array.as_fixed_size_list().values().as_ref());
            varying(move |row| match is_null(&nulls, row) {
                true => 1,
                false => elements.of_rows(row * len..(row + 1) * len).saturating_add(1),
            })
        }
        DataType::Union(fields, mode) => {
            let union = array.as_union().clone();
            let is_dense = *mode == UnionMode::Dense;
            let size = if is_dense { repeated } else { sizes };
            let mut members: Vec<Option<Size>> = (0..128).map(|_| None).collect();
            for (id, _) in fields.iter() {
                members[id as usize & 127] = Some(size(union.child(id).as_ref()));
            }
            varying(move |row| {
                let at = if is_dense { union.value_offset(row) } else { row };
                let member = &members[union.type_id(row) as usize & 127];
                member.as_ref().map_or(1, |size| size.of_row(at).saturating_add(1))
            })
        }
        // Other types have a fixed size.
        _ => Size::Fixed(1),
    }
}

/// Returns the sizes of rows that other rows may refer to many times. If the array contains lists, all sizes are
/// computed once and stored.
fn repeated(array: &dyn Array) -> Size {
    let size = sizes(array);
    if !has_lists(array) {
        return size;
    }
    let all: Vec<usize> = (0..array.len()).map(|row| size.of_row(row)).collect();
    varying(move |row| all[row])
}

/// Returns whether an array contains lists. Then the size of a row can take more than constant time.
fn has_lists(array: &dyn Array) -> bool {
    anywhere(array.data_type(), |inside| inside.is_list() || matches!(inside, DataType::Map(..)))
}

fn varying(of_row: impl Fn(usize) -> usize + 'static) -> Size {
    Size::Varying(Box::new(of_row))
}

fn is_null(nulls: &Option<NullBuffer>, row: usize) -> bool {
    nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
}

/// Returns the size of every row of a type, if all have the same.
fn fixed(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Null | DataType::Boolean => Some(2),
        DataType::FixedSizeBinary(bytes) => Some(1 + bytes.as_usize()),
        DataType::Struct(fields) => {
            let mut sizes = fields.iter().map(|field| fixed(field.data_type()));
            sizes.try_fold(1, |sum, size| Some(sum + size?))
        }
        flat => flat.primitive_width().map(|bytes| 1 + bytes),
    }
}

/// Returns the size of a null of a type.
fn null_size(data_type: &DataType) -> usize {
    match data_type {
        DataType::Struct(fields) => {
            1 + fields.iter().map(|field| null_size(field.data_type())).sum::<usize>()
        }
        DataType::Dictionary(_, values) => null_size(values),
        DataType::RunEndEncoded(_, values) => padded(null_size(values.data_type())),
        DataType::Union(fields, _) => {
            1 + fields.iter().map(|(_, field)| null_size(field.data_type())).max().unwrap_or(0)
        }
        other => fixed(other).unwrap_or(1),
    }
}

/// Returns the size of a byte string. Its first 32 bytes are written in blocks of 8 bytes, the rest in blocks of 32
/// bytes. Each block takes one more byte, and so does the whole string.
fn padded(len: usize) -> usize {
    match len {
        0..=32 => 1 + len.div_ceil(8) * 9,
        _ => len.div_ceil(32).saturating_mul(33).saturating_add(4),
    }
}

fn text<T: ByteArrayType>(array: &dyn Array) -> Size {
    let (offsets, nulls) = (array.as_bytes::<T>().offsets().clone(), array.nulls().cloned());
    varying(move |row| match is_null(&nulls, row) {
        true => 1,
        false => padded((offsets[row + 1] - offsets[row]).as_usize()),
    })
}

fn views(array: &dyn Array, views: &ScalarBuffer<u128>) -> Size {
    let (nulls, views) = (array.nulls().cloned(), views.clone());
    // The low 32 bits of a view are its length.
    varying(move |row| if is_null(&nulls, row) { 1 } else { padded(views[row] as u32 as usize) })
}

fn dictionary<K: ArrowNativeType>(array: &dyn Array) -> Size {
    let dictionary = array.as_any_dictionary();
    let (keys, nulls) = (native::<K>(dictionary.keys()), array.nulls().cloned());
    let values = dictionary.values();
    let (size, len) = (repeated(values.as_ref()), values.len());
    let null = null_size(values.data_type());
    varying(move |row| match keys[row].as_usize() {
        // The key of a null may be anything.
        key if key < len && !is_null(&nulls, row) => size.of_row(key),
        _ => null,
    })
}

fn runs<R: RunEndIndexType>(array: &RunArray<R>) -> Size {
    let first = if array.is_empty() { 0 } else { array.get_start_physical_index() };
    let (size, ends) = (repeated(array.values_slice().as_ref()), array.run_ends().clone());
    varying(move |row| padded(size.of_row(ends.get_physical_index(row) - first)))
}

/// Returns the size of the elements `first..end` of a list. Each is written as a byte string.
fn elements(size: &Size, first: usize, end: usize) -> usize {
    match size {
        Size::Fixed(bytes) => padded(*bytes).saturating_mul(end - first).saturating_add(1),
        Size::Varying(of_row) => {
            (first..end).fold(1, |sum: usize, at| sum.saturating_add(padded(of_row(at))))
        }
    }
}

fn list_of<O: OffsetSizeTrait>(
    array: &dyn Array,
    values: &dyn Array,
    offsets: &ScalarBuffer<O>,
) -> Size {
    let range = between(offsets);
    let size = sizes(values.slice(range.start, range.len()).as_ref());
    let (nulls, offsets) = (array.nulls().cloned(), offsets.clone());
    let at = move |offset: O| offset.as_usize() - range.start;
    varying(move |row| match is_null(&nulls, row) {
        true => 1,
        false => elements(&size, at(offsets[row]), at(offsets[row + 1])),
    })
}

fn list_views<O: OffsetSizeTrait>(array: &dyn Array) -> Size {
    let lists = array.as_list_view::<O>();
    let range = viewed::<O>(array);
    let sums = Sums::new(lists.values().slice(range.start, range.len()).as_ref());
    let (offsets, lens) = (lists.offsets().clone(), lists.sizes().clone());
    let nulls = array.nulls().cloned();
    varying(move |row| match (is_null(&nulls, row), lens[row].as_usize()) {
        // An empty list may have any offset.
        (true, _) | (false, 0) => 1,
        (false, len) => {
            let first = offsets[row].as_usize() - range.start;
            sums.elements(first, first + len)
        }
    })
}

/// Running totals of the sizes of list elements. With them, the size of any range is computed in constant time.
///
/// There is one sum per [`STEP`] elements if the size of an element takes constant time. Otherwise there is one sum per
/// element.
struct Sums {
    size: Size,
    step: usize,
    /// Entry `i` is the size of the elements before `i * step`.
    sums: Vec<usize>,
}

impl Sums {
    fn new(elements: &dyn Array) -> Sums {
        let size = sizes(elements);
        let step = if has_lists(elements) { 1 } else { STEP };
        let mut sums = Vec::with_capacity(Sums::count(elements));
        if let Size::Varying(of_row) = &size {
            let mut sum = 0usize;
            for at in 0..elements.len() {
                if at % step == 0 {
                    sums.push(sum);
                }
                sum = sum.saturating_add(padded(of_row(at)));
            }
            sums.push(sum);
        }
        Sums { size, step, sums }
    }

    /// Returns the number of sums for these elements.
    fn count(elements: &dyn Array) -> usize {
        match (fixed(elements.data_type()), has_lists(elements)) {
            (Some(_), _) => 0,
            (None, true) => elements.len() + 1,
            (None, false) => elements.len().div_ceil(STEP) + 1,
        }
    }

    /// Returns the same as [`elements`], in constant time.
    fn elements(&self, first: usize, end: usize) -> usize {
        let Size::Varying(of_row) = &self.size else { return elements(&self.size, first, end) };
        let before = |end: usize| {
            let at = end / self.step;
            let rest = (at * self.step..end).map(|at| padded(of_row(at)));
            rest.fold(self.sums[at], usize::saturating_add)
        };
        match before(end) {
            // The sum has overflowed. The largest number is still an upper bound.
            usize::MAX => usize::MAX,
            sum => sum - before(first) + 1,
        }
    }
}

#[cfg(test)]
mod tests;

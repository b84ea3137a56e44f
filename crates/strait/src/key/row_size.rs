//! Computes how many bytes nested values take in Arrow's row format, before they are converted.
//!
//! The row format writes every value out. Views, dictionaries, runs and list views can share values, so a batch of some
//! hundred kilobytes may take gigabytes in row format. Under a memory limit, an array is therefore converted in
//! [parts].
//!
//! All results are upper bounds. They follow the encoding that the crate `arrow-row` documents.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, RunArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    ArrowNativeType, BinaryType, ByteArrayType, DataType, Int16Type, Int32Type, Int64Type,
    LargeBinaryType, LargeUtf8Type, RunEndIndexType, UnionMode, Utf8Type,
};

use super::column::native;

/// A part ends when the upper bound of its bytes in row format reaches this number, or the shared bytes.
const PART: usize = 256 << 10;

/// The bytes per row besides its values: the offset of the row.
const OFFSET: usize = size_of::<usize>();

/// The sizes of an array's rows in row format.
enum Size<'a> {
    /// All rows have the same size.
    Fixed(usize),
    /// The size of the given row.
    Varying(Box<dyn Fn(usize) -> usize + 'a>),
}

impl Size<'_> {
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

/// Splits the rows of an array into parts. Each part converts the [shared values](shared_bytes) again. To keep this
/// cheap, each part except the last one has at least as many bytes as these values, by the upper bound.
pub(super) fn parts(array: &ArrayRef) -> impl Iterator<Item = Part> {
    let least = PART.max(shared_bytes(array.as_ref()));
    let (size, len, mut begin) = (sizes(array.as_ref()), array.len(), 0);
    std::iter::from_fn(move || {
        let (first, mut bytes) = (begin, 0usize);
        while begin < len && bytes < least {
            bytes = bytes.saturating_add(size.of_row(begin)).saturating_add(OFFSET);
            begin += 1;
        }
        (first < begin).then_some(Part { rows: first..begin, bytes })
    })
}

/// Returns the bytes in row format of the values that every slice of an array converts, whatever its rows are.
fn shared_bytes(array: &dyn Array) -> usize {
    match array.data_type() {
        DataType::Struct(_) => {
            let columns = array.as_struct().columns().iter();
            columns.map(|column| shared_bytes(column.as_ref())).fold(0, usize::saturating_add)
        }
        DataType::Dictionary(..) => converted(array.as_any_dictionary().values().as_ref()),
        DataType::RunEndEncoded(ends, _) => match ends.data_type() {
            DataType::Int16 => shared_bytes(array.as_run::<Int16Type>().values().as_ref()),
            DataType::Int32 => shared_bytes(array.as_run::<Int32Type>().values().as_ref()),
            _ => shared_bytes(array.as_run::<Int64Type>().values().as_ref()),
        },
        DataType::List(_) => shared_bytes(array.as_list::<i32>().values().as_ref()),
        DataType::LargeList(_) => shared_bytes(array.as_list::<i64>().values().as_ref()),
        DataType::Map(..) => shared_bytes(array.as_map().entries()),
        DataType::FixedSizeList(..) => shared_bytes(array.as_fixed_size_list().values().as_ref()),
        DataType::ListView(_) => shared_by_views::<i32>(array),
        DataType::LargeListView(_) => shared_by_views::<i64>(array),
        DataType::Union(fields, mode) => {
            let union = array.as_union();
            let children = fields.iter().map(|(id, _)| union.child(id).as_ref());
            match mode {
                UnionMode::Sparse => children.map(shared_bytes).fold(0, usize::saturating_add),
                UnionMode::Dense => children.map(converted).fold(0, usize::saturating_add),
            }
        }
        _ => 0,
    }
}

/// A slice of views converts all elements from its first to its last. These are few if the views are in order.
fn shared_by_views<O: OffsetSizeTrait>(array: &dyn Array) -> usize {
    let views = array.as_list_view::<O>();
    match views.offsets().is_sorted() {
        true => shared_bytes(views.values().as_ref()),
        false => converted(viewed::<O>(array).as_ref()),
    }
}

/// Returns the bytes of all rows of an array in row format, and the bytes that their conversion takes besides.
fn converted(array: &dyn Array) -> usize {
    let offsets = array.len().saturating_mul(OFFSET);
    let rows = sizes(array).of_rows(0..array.len());
    rows.saturating_add(offsets).saturating_add(inner_bytes(array))
}

/// Returns the bytes that `arrow-row` takes in addition to its result. It first converts the values inside an array to
/// row format, and the values inside these before them. The copy by `float::numeric_floats` does not count.
pub(super) fn inner_bytes(array: &dyn Array) -> usize {
    let all = |children: &mut dyn Iterator<Item = &ArrayRef>| {
        children.map(|child| converted(child.as_ref())).fold(0, usize::saturating_add)
    };
    match array.data_type() {
        DataType::Struct(_) => all(&mut array.as_struct().columns().iter()),
        DataType::Dictionary(..) => converted(array.as_any_dictionary().values().as_ref()),
        DataType::RunEndEncoded(ends, _) => match ends.data_type() {
            DataType::Int16 => converted(array.as_run::<Int16Type>().values_slice().as_ref()),
            DataType::Int32 => converted(array.as_run::<Int32Type>().values_slice().as_ref()),
            _ => converted(array.as_run::<Int64Type>().values_slice().as_ref()),
        },
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            converted(between(list.values(), list.value_offsets()).as_ref())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            converted(between(list.values(), list.value_offsets()).as_ref())
        }
        DataType::Map(..) => {
            let map = array.as_map();
            let entries: ArrayRef = std::sync::Arc::new(map.entries().clone());
            inner_bytes(between(&entries, map.value_offsets()).as_ref())
        }
        DataType::FixedSizeList(..) => converted(array.as_fixed_size_list().values().as_ref()),
        DataType::ListView(_) => converted(viewed::<i32>(array).as_ref()),
        DataType::LargeListView(_) => converted(viewed::<i64>(array).as_ref()),
        DataType::Union(fields, _) => {
            let union = array.as_union();
            all(&mut fields.iter().map(|(id, _)| union.child(id)))
        }
        _ => 0,
    }
}

/// Returns the elements from the first to the last offset.
fn between<O: OffsetSizeTrait>(values: &ArrayRef, offsets: &[O]) -> ArrayRef {
    let first = offsets.first().map_or(0, |offset| offset.as_usize());
    let end = offsets.last().map_or(0, |offset| offset.as_usize());
    values.slice(first, end - first)
}

/// Returns the elements of list views from the first to the last that any view needs.
fn viewed<O: OffsetSizeTrait>(array: &dyn Array) -> ArrayRef {
    let views = array.as_list_view::<O>();
    let ranges = || {
        let ranges = views.offsets().iter().zip(views.sizes().iter());
        let ranges = ranges.map(|(at, len)| (at.as_usize(), at.as_usize() + len.as_usize()));
        ranges.filter(|(first, end)| first < end)
    };
    let first = ranges().map(|(first, _)| first).min().unwrap_or(0);
    let end = ranges().map(|(_, end)| end).max().unwrap_or(first);
    views.values().slice(first, end.max(first) - first)
}

/// Returns the sizes of an array's rows.
fn sizes(array: &dyn Array) -> Size<'_> {
    let data_type = array.data_type();
    if let Some(bytes) = fixed(data_type) {
        return Size::Fixed(bytes);
    }
    match data_type {
        DataType::Utf8 => text::<Utf8Type>(array),
        DataType::LargeUtf8 => text::<LargeUtf8Type>(array),
        DataType::Binary => text::<BinaryType>(array),
        DataType::LargeBinary => text::<LargeBinaryType>(array),
        DataType::Utf8View => views(array.nulls(), array.as_string_view().views()),
        DataType::BinaryView => views(array.nulls(), array.as_binary_view().views()),
        DataType::Struct(_) => {
            let (nulls, null) = (array.nulls(), null_size(data_type));
            let columns = array.as_struct().columns();
            let columns: Vec<_> = columns.iter().map(|column| sizes(column.as_ref())).collect();
            varying(move |row| {
                let values = columns.iter().map(|size| size.of_row(row));
                let values = values.fold(1, usize::saturating_add);
                // The values under a null are converted, too. They count, so that a part with many of them stays short.
                if is_null(nulls, row) { values.max(null) } else { values }
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
            list_of(array.nulls(), sizes(list.values().as_ref()), list.value_offsets())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            list_of(array.nulls(), sizes(list.values().as_ref()), list.value_offsets())
        }
        DataType::Map(..) => {
            let map = array.as_map();
            list_of(array.nulls(), sizes(map.entries()), map.value_offsets())
        }
        DataType::ListView(_) => list_views::<i32>(array),
        DataType::LargeListView(_) => list_views::<i64>(array),
        DataType::FixedSizeList(_, len) => {
            let (len, nulls) = (len.as_usize(), array.nulls());
            let elements = sizes(array.as_fixed_size_list().values().as_ref());
            varying(move |row| match is_null(nulls, row) {
                true => 1,
                false => elements.of_rows(row * len..(row + 1) * len).saturating_add(1),
            })
        }
        DataType::Union(fields, mode) => {
            let union = array.as_union();
            let mut members: Vec<Option<Size<'_>>> = (0..128).map(|_| None).collect();
            for (id, _) in fields.iter() {
                members[id as usize & 127] = Some(sizes(union.child(id).as_ref()));
            }
            let is_dense = *mode == UnionMode::Dense;
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

fn varying<'a>(of_row: impl Fn(usize) -> usize + 'a) -> Size<'a> {
    Size::Varying(Box::new(of_row))
}

fn is_null(nulls: Option<&NullBuffer>, row: usize) -> bool {
    nulls.is_some_and(|nulls| nulls.is_null(row))
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

fn text<T: ByteArrayType>(array: &dyn Array) -> Size<'_> {
    let (offsets, nulls) = (array.as_bytes::<T>().value_offsets(), array.nulls());
    varying(move |row| match is_null(nulls, row) {
        true => 1,
        false => padded((offsets[row + 1] - offsets[row]).as_usize()),
    })
}

fn views<'a>(nulls: Option<&'a NullBuffer>, views: &'a [u128]) -> Size<'a> {
    // The low 32 bits of a view are its length.
    varying(move |row| if is_null(nulls, row) { 1 } else { padded(views[row] as u32 as usize) })
}

fn dictionary<K: ArrowNativeType>(array: &dyn Array) -> Size<'_> {
    let dictionary = array.as_any_dictionary();
    let (keys, nulls) = (native::<K>(dictionary.keys()), array.nulls());
    let values = dictionary.values();
    let (size, len, null) = (sizes(values.as_ref()), values.len(), null_size(values.data_type()));
    varying(move |row| match keys[row].as_usize() {
        // The key of a null may be anything.
        key if key < len && !is_null(nulls, row) => size.of_row(key),
        _ => null,
    })
}

fn runs<R: RunEndIndexType>(array: &RunArray<R>) -> Size<'_> {
    let values = sizes(array.values().as_ref());
    varying(move |row| padded(values.of_row(array.get_physical_index(row))))
}

/// Returns the size of the elements `first..end` of a list. Each is written as a byte string.
fn elements(size: &Size<'_>, first: usize, end: usize) -> usize {
    match size {
        Size::Fixed(bytes) => padded(*bytes).saturating_mul(end - first).saturating_add(1),
        Size::Varying(of_row) => {
            (first..end).fold(1, |sum: usize, at| sum.saturating_add(padded(of_row(at))))
        }
    }
}

fn list_of<'a, O: OffsetSizeTrait>(
    nulls: Option<&'a NullBuffer>,
    size: Size<'a>,
    offsets: &'a [O],
) -> Size<'a> {
    varying(move |row| match is_null(nulls, row) {
        true => 1,
        false => elements(&size, offsets[row].as_usize(), offsets[row + 1].as_usize()),
    })
}

fn list_views<O: OffsetSizeTrait>(array: &dyn Array) -> Size<'_> {
    let lists = array.as_list_view::<O>();
    let (size, nulls) = (sizes(lists.values().as_ref()), array.nulls());
    let (offsets, lens) = (lists.value_offsets(), lists.value_sizes());
    varying(move |row| match (is_null(nulls, row), offsets[row].as_usize()) {
        (true, _) => 1,
        (false, first) => elements(&size, first, first + lens[row].as_usize()),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int32Array, StringViewBuilder, StructArray};
    use arrow::buffer::Buffer;
    use arrow::datatypes::Field;
    use arrow_row::{RowConverter, SortField};
    use strait_testkit::domain::{Domain, Style};
    use strait_testkit::encode::{blank, encode};
    use strait_testkit::{Comparison, Rng, Value, kinds};

    use super::*;
    use crate::key::pair::unsupported;

    fn in_row_format(array: &ArrayRef) -> Option<arrow_row::Rows> {
        let field = SortField::new(array.data_type().clone());
        if unsupported(array.data_type()).is_some() {
            return None;
        }
        let converter = RowConverter::new(vec![field]).ok()?;
        converter.convert_columns(std::slice::from_ref(array)).ok()
    }

    /// Returns 200 values of a type, nulls among them.
    fn array(random: &mut Rng, data_type: &DataType) -> ArrayRef {
        let comparison = Comparison::alone(data_type);
        let domain = Domain::new(random, data_type, comparison, Style::Mixed);
        let mut value = |i: usize| match random.chance(1, 8) {
            true => blank(data_type),
            false => domain.draw(random, i % 9),
        };
        let values: Vec<Value> = (0..200).map(&mut value).collect();
        encode(random, data_type, &comparison, &values)
    }

    /// Returns structs of the values. Half of the structs are null, and the row format does not write their values.
    fn in_null_structs(array: &ArrayRef) -> ArrayRef {
        let field = Arc::new(Field::new("x", array.data_type().clone(), true));
        let nulls = NullBuffer::from_iter((0..array.len()).map(|row| row % 2 == 0));
        Arc::new(StructArray::new(vec![field].into(), vec![ArrayRef::clone(array)], Some(nulls)))
    }

    /// The sizes are those of the row format, or a little larger, for all types, also of slices.
    #[test]
    fn sizes_bound_the_row_format() {
        let mut random = Rng::new(11);
        let (mut types, mut real, mut bound) = (0, 0, 0);
        for data_type in kinds::payloads() {
            let whole = array(&mut random, &data_type);
            let masked = in_null_structs(&whole);
            for (array, is_masked) in [
                (whole.slice(0, 200), false),
                (whole.slice(37, 101), false),
                (whole.slice(200, 0), false),
                (masked.slice(0, 200), true),
                (masked.slice(41, 90), true),
            ] {
                let Some(rows) = in_row_format(&array) else { continue };
                types += 1;
                let size = sizes(array.as_ref());
                for (at, row) in rows.iter().enumerate() {
                    let (is, most) = (row.data().len(), size.of_row(at));
                    assert!(is <= most, "{data_type}: row {at} has {is} bytes, more than {most}");
                    // Nulls may hide values that count.
                    if !matches!(data_type, DataType::Struct(_)) && !is_masked {
                        (real, bound) = (real + is, bound + most);
                    }
                }
                let parts: Vec<_> = parts(&array).collect();
                let covered: Vec<_> = parts.iter().flat_map(|part| part.rows.clone()).collect();
                assert_eq!(covered, (0..array.len()).collect::<Vec<_>>());
                let bytes: usize = parts.iter().map(|part| part.bytes).sum();
                assert!(rows.size() <= bytes + 256, "{data_type}");
            }
        }
        assert!(types > 50 && real > 10_000, "{types} types, {real} bytes");
        assert!(bound < real + real / 10, "{bound} bytes instead of {real}");
    }

    /// Views that share a long string take its bytes once per row.
    #[test]
    fn shared_values_count_for_each_row() {
        let text = Buffer::from(vec![b'x'; 1 << 16]);
        let mut views = StringViewBuilder::new();
        let block = views.append_block(text);
        for _ in 0..100 {
            views.try_append_view(block, 0, 1 << 16).expect("inside the block");
        }
        let views: ArrayRef = Arc::new(views.finish());
        let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..100));
        let field =
            |name, array: &ArrayRef| Arc::new(Field::new(name, array.data_type().clone(), true));
        let key: ArrayRef = Arc::new(StructArray::from(vec![
            (field("t", &views), views),
            (field("n", &numbers), numbers),
        ]));
        let parts: Vec<_> = parts(&key).collect();
        assert!(parts.iter().all(|part| part.rows.len() <= 4 && part.bytes < 2 * PART));
        assert!(parts.iter().map(|part| part.bytes).sum::<usize>() > 100 << 16);
        assert!(inner_bytes(key.as_ref()) > 100 << 16);
    }
}

//! Computes the memory that gathering rows takes, from the rows themselves.
//!
//! The results are upper bounds. Memory that the result shares with its source is not counted: the data
//! buffers of views, and the values of a dictionary that all chunks share.

use arrow::array::{Array, AsArray, DictionaryArray, OffsetSizeTrait};
use arrow::datatypes::{
    ArrowDictionaryKeyType, ArrowNativeType, ByteArrayType, DataType, Int8Type, Int16Type,
    Int32Type, Int64Type, RunEndIndexType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
    UnionMode,
};
use arrow::datatypes::{BinaryType, LargeBinaryType, LargeUtf8Type, Utf8Type};
use arrow::error::ArrowError;

use crate::materialise::dictionary::{as_dictionaries, for_keys, numbered};
use crate::materialise::rows::{Selection, as_unions, members, type_ids};
use crate::materialise::{lists, runs};

/// The bytes of an array besides its values: the array itself, and the padding of its buffers.
const FRAME: u64 = 256;

/// Returns the bytes that gathering the rows takes.
pub(super) fn of_rows(data_type: &DataType, chunks: &[&dyn Array], rows: &Selection) -> u64 {
    // If rows cannot be counted, they cannot be gathered either. Gathering will report the error.
    counted(data_type, chunks, rows).unwrap_or(0)
}

/// Returns the bytes of `len` rows of one chunk, if they do not depend on which rows.
pub(super) fn of_any(data_type: &DataType, len: usize) -> Option<u64> {
    let width = match data_type {
        DataType::Dictionary(keys, _) => keys.primitive_width()? as u64,
        DataType::Utf8View | DataType::BinaryView => 16,
        DataType::FixedSizeBinary(width) => u64::from(width.unsigned_abs()),
        DataType::Boolean => 1,
        _ => return None,
    };
    Some(FRAME + (width + 1) * len as u64)
}

/// Returns the bytes that gathering all rows of the chunks takes.
pub(super) fn whole(data_type: &DataType, chunks: &[&dyn Array]) -> u64 {
    of_rows(data_type, chunks, &Selection::whole(chunks))
}

/// Returns an upper bound for the bytes of the rows after a cast to any common key type: without dictionaries
/// and views, and with the widest integers and offsets.
pub(super) fn plain(data_type: &DataType, chunks: &[&dyn Array], rows: &Selection) -> u64 {
    let views = |len: &dyn Fn(usize, usize) -> u64| -> u64 {
        rows.rows().filter(|row| row.0 != rows.absent).map(|(chunk, row)| len(chunk, row)).sum()
    };
    let wide = FRAME + 17 * rows.len as u64;
    wide + match data_type {
        DataType::Dictionary(keys, values) => {
            for_keys!(keys.as_ref(), plain_dictionary(values, chunks, rows))
        }
        DataType::Utf8View => {
            let arrays: Vec<_> = chunks.iter().map(|chunk| chunk.as_string_view()).collect();
            views(&|chunk, row| u64::from(arrays[chunk].views()[row] as u32))
        }
        DataType::BinaryView => {
            let arrays: Vec<_> = chunks.iter().map(|chunk| chunk.as_binary_view()).collect();
            views(&|chunk, row| u64::from(arrays[chunk].views()[row] as u32))
        }
        other => of_rows(other, chunks, rows),
    }
}

fn plain_dictionary<K: ArrowDictionaryKeyType>(
    value_type: &DataType,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> u64 {
    let dictionaries = as_dictionaries::<K>(chunks);
    let values: Vec<_> = dictionaries.iter().map(|d| d.values().as_ref()).collect();
    plain(value_type, &values, &used(&dictionaries, rows))
}

/// Returns the dictionary values of the rows, row by row.
fn used<K: ArrowDictionaryKeyType>(
    dictionaries: &[&DictionaryArray<K>],
    rows: &Selection,
) -> Selection {
    let mut used = Selection::of_chunks(dictionaries.len());
    for (chunk, row) in rows.rows() {
        if let Some(key) = dictionaries.get(chunk).and_then(|dictionary| dictionary.key(row)) {
            used.push(chunk, key, 1);
        }
    }
    used
}

fn counted(
    data_type: &DataType,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<u64, ArrowError> {
    let len = rows.len as u64;
    let inner = match data_type {
        DataType::Dictionary(keys, values) => {
            for_keys!(keys.as_ref(), dictionary(values, chunks, rows))
        }
        DataType::RunEndEncoded(ends, values) => match ends.data_type() {
            DataType::Int16 => run_ends::<Int16Type>(values.data_type(), chunks, rows)?,
            DataType::Int32 => run_ends::<Int32Type>(values.data_type(), chunks, rows)?,
            _ => run_ends::<Int64Type>(values.data_type(), chunks, rows)?,
        },
        DataType::Struct(fields) => {
            let column = |i: usize| {
                let columns: Vec<_> =
                    chunks.iter().map(|c| c.as_struct().column(i).as_ref()).collect();
                counted(fields[i].data_type(), &columns, rows)
            };
            (0..fields.len()).map(column).sum::<Result<u64, _>>()?
        }
        DataType::Union(..) => union(data_type, chunks, rows)?,
        DataType::List(field) => {
            let lists: Vec<_> = chunks.iter().map(|chunk| chunk.as_list::<i32>()).collect();
            let offsets: Vec<_> = lists.iter().map(|list| list.value_offsets()).collect();
            let values: Vec<_> = lists.iter().map(|list| list.values().as_ref()).collect();
            elements(field.data_type(), &offsets, &values, rows)?
        }
        DataType::LargeList(field) => {
            let lists: Vec<_> = chunks.iter().map(|chunk| chunk.as_list::<i64>()).collect();
            let offsets: Vec<_> = lists.iter().map(|list| list.value_offsets()).collect();
            let values: Vec<_> = lists.iter().map(|list| list.values().as_ref()).collect();
            elements(field.data_type(), &offsets, &values, rows)?
        }
        DataType::Map(field, _) => {
            let maps: Vec<_> = chunks.iter().map(|chunk| chunk.as_map()).collect();
            let offsets: Vec<_> = maps.iter().map(|map| map.value_offsets()).collect();
            let values: Vec<_> = maps.iter().map(|map| map.entries() as &dyn Array).collect();
            elements(field.data_type(), &offsets, &values, rows)?
        }
        DataType::FixedSizeList(field, size) => {
            let values: Vec<_> =
                chunks.iter().map(|c| c.as_fixed_size_list().values().as_ref()).collect();
            let elements = lists::fixed_elements(*size, rows)?;
            elements.bytes() + counted(field.data_type(), &values, &elements)?
        }
        DataType::ListView(field) => views::<i32>(field.data_type(), chunks, rows)?,
        DataType::LargeListView(field) => views::<i64>(field.data_type(), chunks, rows)?,
        DataType::Utf8 | DataType::Binary => {
            4 * (len + 1) + text(data_type, chunks, rows).unwrap_or(0) as u64
        }
        DataType::LargeUtf8 | DataType::LargeBinary => {
            8 * (len + 1) + text(data_type, chunks, rows).unwrap_or(0) as u64
        }
        DataType::Utf8View | DataType::BinaryView => {
            // The views, and a handle per data buffer.
            let buffers = |chunk: &&dyn Array| match chunk.as_string_view_opt() {
                Some(texts) => texts.data_buffers().len(),
                None => chunk.as_binary_view_opt().map_or(0, |bytes| bytes.data_buffers().len()),
            };
            16 * len + 64 * chunks.iter().map(buffers).sum::<usize>() as u64
        }
        DataType::FixedSizeBinary(width) => u64::from(width.unsigned_abs()) * len,
        DataType::Boolean => len / 8 + 1,
        flat => flat.primitive_width().unwrap_or(0) as u64 * len,
    };
    Ok(FRAME + len / 8 + inner)
}

/// Returns the bytes of the rows' texts; `None` for types other than texts with offsets.
pub(super) fn text(data_type: &DataType, chunks: &[&dyn Array], rows: &Selection) -> Option<usize> {
    fn typed<T: ByteArrayType>(chunks: &[&dyn Array], rows: &Selection) -> usize {
        let offsets: Vec<_> = chunks.iter().map(|c| c.as_bytes::<T>().value_offsets()).collect();
        let present = rows.stretches().filter(|stretch| stretch.0 != rows.absent);
        let bytes = present.map(|(chunk, first, len)| {
            (offsets[chunk][first + len] - offsets[chunk][first]).as_usize()
        });
        bytes.sum()
    }
    Some(match data_type {
        DataType::Utf8 => typed::<Utf8Type>(chunks, rows),
        DataType::LargeUtf8 => typed::<LargeUtf8Type>(chunks, rows),
        DataType::Binary => typed::<BinaryType>(chunks, rows),
        DataType::LargeBinary => typed::<LargeBinaryType>(chunks, rows),
        _ => return None,
    })
}

/// Returns the bytes of the keys, and of the values if dictionaries must be merged.
pub(super) fn dictionary<K: ArrowDictionaryKeyType>(
    value_type: &DataType,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> u64 {
    let keys = (rows.len * K::Native::get_byte_width()) as u64;
    let dictionaries = as_dictionaries::<K>(chunks);
    let numbers = numbered(&dictionaries);
    if numbers.iter().all(|&number| number == 0) {
        return keys;
    }
    // At most all values of all dictionaries, and at most one value per row.
    let mut all = Selection::of_stretches(chunks.len());
    let mut next = 0;
    for (i, &number) in numbers.iter().enumerate() {
        if number == next {
            all.push(i, 0, dictionaries[i].values().len());
            next += 1;
        }
    }
    let values: Vec<_> = dictionaries.iter().map(|d| d.values().as_ref()).collect();
    let of_all = of_rows(value_type, &values, &all);
    let of_used = if all.len > rows.len {
        let used = used(&dictionaries, rows);
        of_rows(value_type, &values, &used) + used.bytes()
    } else {
        u64::MAX
    };
    // The hash tables and vectors that find equal values.
    let scratch = 96 * all.len.min(rows.len) as u64 + 4 * all.len.min(4 * rows.len) as u64;
    // Other values are gathered and encoded before they are compared. The encoding makes them longer.
    let copies = if text_like(value_type) { 1 } else { 6 };
    keys + scratch + copies * of_all.min(of_used)
}

fn text_like(data_type: &DataType) -> bool {
    use DataType::*;
    matches!(
        data_type,
        Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView | FixedSizeBinary(_)
    )
}

fn run_ends<R: RunEndIndexType>(
    value_type: &DataType,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<u64, ArrowError> {
    let runs = runs::as_runs::<R>(chunks);
    let (ends, selected) = runs::selected(&runs, rows);
    let values: Vec<_> = runs.iter().map(|run| run.values().as_ref()).collect();
    let scratch = (ends.capacity() * size_of::<usize>()) as u64 + selected.bytes();
    let own = (ends.len() * R::Native::get_byte_width()) as u64;
    Ok(own + scratch + counted(value_type, &values, &selected)?)
}

/// Returns the bytes of the offsets and elements of lists.
fn elements<O: OffsetSizeTrait>(
    value_type: &DataType,
    offsets: &[&[O]],
    values: &[&dyn Array],
    rows: &Selection,
) -> Result<u64, ArrowError> {
    let own = ((rows.len + 1) * size_of::<O>()) as u64;
    let elements = lists::elements(offsets, rows);
    Ok(own + elements.bytes() + counted(value_type, values, &elements)?)
}

fn views<O: OffsetSizeTrait>(
    value_type: &DataType,
    chunks: &[&dyn Array],
    rows: &Selection,
) -> Result<u64, ArrowError> {
    let own = (rows.len * 2 * size_of::<O>()) as u64;
    let views: Vec<_> = chunks.iter().map(|chunk| chunk.as_list_view::<O>()).collect();
    if views.len() <= 1 {
        return Ok(own);
    }
    let elements = lists::Viewed::new(&views, rows).elements(&views, rows);
    let values: Vec<_> = views.iter().map(|view| view.values().as_ref()).collect();
    let scratch = elements.bytes() + (rows.len * size_of::<usize>()) as u64;
    Ok(own + scratch + counted(value_type, &values, &elements)?)
}

fn union(data_type: &DataType, chunks: &[&dyn Array], rows: &Selection) -> Result<u64, ArrowError> {
    let DataType::Union(fields, mode) = data_type else { return Ok(0) };
    let unions = as_unions(chunks)?;
    let child = |id: i8, data_type: &DataType, rows: &Selection| {
        let children: Vec<_> = unions.iter().map(|union| union.child(id).as_ref()).collect();
        counted(data_type, &children, rows)
    };
    if *mode == UnionMode::Sparse {
        let children = fields.iter().map(|(id, field)| child(id, field.data_type(), rows));
        return Ok(rows.len as u64 + children.sum::<Result<u64, _>>()?);
    }
    let ids = type_ids(fields, &unions, rows)?;
    let (_, members) = members(fields, &unions, &ids, rows)?;
    let children = members.iter().zip(fields.iter()).map(|((id, rows), (_, field))| {
        Ok::<u64, ArrowError>(rows.bytes() + child(*id, field.data_type(), rows)?)
    });
    Ok(5 * rows.len as u64 + children.sum::<Result<u64, _>>()?)
}

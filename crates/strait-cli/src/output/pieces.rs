//! Counts the bytes of rows, and cuts batches into pieces of limited size. A dictionary row counts the bytes
//! of its value.

use std::sync::Arc;

use arrow::array::{
    AnyDictionaryArray, Array, ArrayRef, AsArray, OffsetSizeTrait, RecordBatch, RecordBatchOptions,
};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

/// The rows of a batch in pieces. Each piece takes at most `most` bytes without dictionaries, or has only one
/// row.
pub(super) struct Pieces<'a> {
    batch: &'a RecordBatch,
    most: u64,
    /// The bytes that each row takes in addition to its values.
    per_row: u64,
    start: usize,
    /// The most rows of the next piece. It avoids measuring all rows for every piece.
    guess: usize,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(batch: &'a RecordBatch, most: u64) -> Self {
        Pieces { batch, most, per_row: 0, start: 0, guess: batch.num_rows() }
    }

    /// Counts this many bytes for each row in addition to its values.
    pub(super) fn with_bytes_per_row(self, per_row: u64) -> Self {
        Pieces { per_row, ..self }
    }
}

impl Iterator for Pieces<'_> {
    /// The rows, and their size in bytes.
    type Item = (RecordBatch, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let left = self.batch.num_rows() - self.start;
        if left == 0 {
            return None;
        }
        let mut rows = left.min(self.guess.max(1));
        loop {
            let piece = self.batch.slice(self.start, rows);
            let bytes = plain_bytes(&piece) + self.per_row * rows as u64;
            if bytes <= self.most || rows == 1 {
                self.start += rows;
                self.guess = 2 * rows;
                return Some((piece, bytes));
            }
            rows = rows.div_ceil(2);
        }
    }
}

/// Copies view columns that refer to much more data than their rows need. For every piece of a batch, an
/// Arrow writer would write all data that the batch's views refer to.
pub(super) fn compacted(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    if !batch.schema().fields().iter().any(|field| is_view(field.data_type())) {
        return Ok(batch);
    }
    let (schema, columns, rows) = batch.into_parts();
    let columns = columns.into_iter().map(compact).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, columns, &options)
}

pub(super) fn is_view(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8View | DataType::BinaryView)
}

fn compact(array: ArrayRef) -> ArrayRef {
    let much = |buffers: &[Buffer]| {
        let held: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        held > 2 * array_bytes(&array)
    };
    if let Some(views) = array.as_string_view_opt() {
        return if much(views.data_buffers()) { Arc::new(views.gc()) } else { array };
    }
    if let Some(views) = array.as_binary_view_opt() {
        return if much(views.data_buffers()) { Arc::new(views.gc()) } else { array };
    }
    array
}

/// Returns the bytes of a batch's rows without dictionaries.
pub(super) fn plain_bytes(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(array_bytes).sum()
}

/// Returns the bytes of an array [without dictionaries](super::unpack). Only its own rows count, and each
/// dictionary row counts the bytes of its value.
pub(super) fn array_bytes(array: &ArrayRef) -> u64 {
    let rows = array.len() as u64;
    match array.data_type() {
        DataType::Dictionary(..) => match array.as_any_dictionary_opt() {
            Some(dictionary) => rows.div_ceil(8) + values_bytes(dictionary),
            None => 0,
        },
        DataType::Utf8View => viewed_bytes(array.as_string_view().views()),
        DataType::BinaryView => viewed_bytes(array.as_binary_view().views()),
        DataType::Struct(_) => {
            rows.div_ceil(8) + array.as_struct().columns().iter().map(array_bytes).sum::<u64>()
        }
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            list_bytes(list.value_offsets(), list.values())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            list_bytes(list.value_offsets(), list.values())
        }
        DataType::Map(..) => {
            let map = array.as_map();
            let entries: ArrayRef = Arc::new(map.entries().clone());
            list_bytes(map.value_offsets(), &entries)
        }
        DataType::FixedSizeList(..) => {
            rows.div_ceil(8) + array_bytes(array.as_fixed_size_list().values())
        }
        _ => {
            let exact = array.to_data().get_slice_memory_size();
            exact.unwrap_or_else(|_| array.get_array_memory_size()) as u64
        }
    }
}

fn list_bytes<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef) -> u64 {
    let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else { return 0 };
    let rows = values.slice(first.as_usize(), last.as_usize() - first.as_usize());
    size_of_val(offsets) as u64 + (offsets.len() as u64).div_ceil(8) + array_bytes(&rows)
}

/// Views of values up to this many bytes contain the value itself.
const INLINE: u32 = 12;

fn viewed_bytes(views: &[u128]) -> u64 {
    // The length is in the lowest 32 bits.
    let lengths = views.iter().map(|&view| view as u32);
    let elsewhere = lengths.filter(|&length| length > INLINE).map(u64::from).sum::<u64>();
    size_of_val(views) as u64 + elsewhere
}

/// Returns the total bytes of the values of a dictionary's rows.
fn values_bytes(dictionary: &dyn AnyDictionaryArray) -> u64 {
    let values = dictionary.values();
    if values.is_empty() {
        return 0;
    }
    if let Some(width) = values.data_type().primitive_width() {
        return (dictionary.keys().len() * width) as u64;
    }
    let keys = dictionary.normalized_keys();
    let nulls = dictionary.keys().nulls();
    let valid = keys.into_iter().enumerate();
    let valid = valid.filter(|&(row, _)| nulls.is_none_or(|nulls| nulls.is_valid(row)));
    let one: &dyn Fn(usize) -> u64 = match values.data_type() {
        DataType::Utf8 => &|key| length(values.as_string::<i32>().value_offsets(), key),
        DataType::LargeUtf8 => &|key| length(values.as_string::<i64>().value_offsets(), key),
        DataType::Binary => &|key| length(values.as_binary::<i32>().value_offsets(), key),
        DataType::LargeBinary => &|key| length(values.as_binary::<i64>().value_offsets(), key),
        _ => &|key| array_bytes(&values.slice(key, 1)),
    };
    valid.map(|(_, key)| one(key)).sum()
}

/// Returns the bytes of a string, including its offset.
fn length<O: OffsetSizeTrait>(offsets: &[O], row: usize) -> u64 {
    (offsets[row + 1].as_usize() - offsets[row].as_usize() + size_of::<O>()) as u64
}

#[cfg(test)]
mod tests {
    use super::super::unpack::tests::{dictionary, nested, strings};
    use super::*;
    use arrow::array::{DictionaryArray, StringArray};
    use arrow::datatypes::Int32Type;

    #[test]
    fn a_dictionary_counts_as_its_values() {
        let value = "x".repeat(1000);
        let words: DictionaryArray<Int32Type> =
            (0..100).map(|i| (i % 10 > 0).then_some(value.as_str())).collect();
        let packed = nested(&dictionary());
        let batch = RecordBatch::try_from_iter([("d", Arc::new(words) as ArrayRef)]).unwrap();
        assert!((90_000..92_000).contains(&plain_bytes(&batch)), "{}", plain_bytes(&batch));
        let piece = batch.slice(0, 10);
        assert!((9_000..9_200).contains(&plain_bytes(&piece)), "{}", plain_bytes(&piece));
        let strings = nested(&strings());
        let (counted, exact) = (plain_bytes(&packed), plain_bytes(&strings));
        assert!(counted.abs_diff(exact) < 50, "{counted}, {exact}");
    }

    #[test]
    fn views_count_as_their_values() {
        let text = "y".repeat(100);
        let views: ArrayRef = Arc::new(arrow::array::StringViewArray::from(vec![&text[..]; 50]));
        let batch = RecordBatch::try_from_iter([("v", views)]).unwrap();
        let piece = batch.slice(10, 20);
        assert_eq!(plain_bytes(&piece), 20 * 116);
        let compacted = compacted(batch.slice(10, 1)).unwrap();
        assert_eq!(compacted, batch.slice(10, 1));
        let buffers = compacted.column(0).as_string_view().data_buffers();
        assert_eq!(buffers.iter().map(Buffer::len).sum::<usize>(), 100);
    }

    #[test]
    fn pieces_hold_all_rows_and_fit() {
        let lengths = [1000, 10, 10, 10, 10, 10, 10, 2000, 10, 10];
        let words = lengths.iter().map(|&length| "z".repeat(length));
        let words: ArrayRef = Arc::new(StringArray::from_iter_values(words));
        let batch = RecordBatch::try_from_iter([("w", words)]).unwrap();
        let pieces: Vec<_> = Pieces::new(&batch, 100).collect();
        assert!(pieces.iter().all(|(piece, bytes)| piece.num_rows() == 1 || *bytes <= 100));
        let pieces: Vec<_> = pieces.into_iter().map(|(piece, _)| piece).collect();
        assert_eq!(arrow::compute::concat_batches(&batch.schema(), &pieces).unwrap(), batch);
        assert!(pieces.len() < lengths.len(), "short values share a piece");
    }
}

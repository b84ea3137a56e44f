//! Estimates the decoded size of a Parquet file's columns from its footer.

use arrow::datatypes::DataType;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::{Encoding, Type};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};

/// The assumed length of a text, if the footer gives no length at all.
const TEXT: u64 = 32;

/// Returns the number of rows in row groups of the file, and the estimated bytes of the given columns in
/// memory.
pub(super) fn size(
    metadata: &ArrowReaderMetadata,
    groups: &[usize],
    columns: &[usize],
) -> (u64, u64) {
    let schema = metadata.parquet_schema();
    let mut size = (0, 0);
    for group in groups.iter().map(|&group| metadata.metadata().row_group(group)) {
        size.0 = u64::saturating_add(size.0, group.num_rows().max(0) as u64);
        for (leaf, column) in group.columns().iter().enumerate() {
            let root = schema.get_column_root_idx(leaf);
            if !columns.contains(&root) {
                continue;
            }
            let field = metadata.schema().fields().get(root);
            let bytes = match field.map(|field| field.data_type()) {
                // The values stay in a dictionary in memory too.
                Some(DataType::Dictionary(..)) => encoded_bytes(column).max(keys_bytes(column)),
                _ => decoded_bytes(column),
            };
            size.1 = u64::saturating_add(size.1, bytes);
        }
    }
    size
}

/// Returns the number of rows of a row group. A damaged footer may claim fewer rows than values. A column
/// that is not repeated has one value per row.
pub(super) fn group_rows(group: &RowGroupMetaData) -> u64 {
    let most = |flat: bool| {
        let columns = group.columns().iter();
        let columns = columns.filter(|column| !flat || column.column_descr().max_rep_level() == 0);
        columns.map(|column| column.num_values()).max().unwrap_or(0)
    };
    let rows = match group.num_rows().max(most(true)) {
        ..=0 => most(false),
        rows => rows,
    };
    rows.max(0) as u64
}

/// Estimates the bytes of a column chunk in memory. Values that repeat take much less space in the file.
pub(super) fn decoded_bytes(column: &ColumnChunkMetaData) -> u64 {
    let values = column.num_values().max(0) as u64;
    let decoded = match column.column_descr().physical_type() {
        Type::BOOLEAN => values / 8,
        Type::INT32 | Type::FLOAT => values.saturating_mul(4),
        Type::INT64 | Type::DOUBLE | Type::INT96 => values.saturating_mul(8),
        Type::FIXED_LEN_BYTE_ARRAY => {
            values.saturating_mul(column.column_descr().type_length().max(0) as u64)
        }
        Type::BYTE_ARRAY => keys_bytes(column).saturating_add(text_bytes(column)),
    };
    encoded_bytes(column).max(decoded)
}

/// The bytes of a column chunk's pages after decompression.
fn encoded_bytes(column: &ColumnChunkMetaData) -> u64 {
    column.uncompressed_size().max(0) as u64
}

/// The bytes of an offset, or of a dictionary's key, for each value.
fn keys_bytes(column: &ColumnChunkMetaData) -> u64 {
    (column.num_values().max(0) as u64).saturating_mul(4)
}

/// Estimates the bytes of all texts in a chunk. Returns 0 if the encoded bytes are a good estimate.
fn text_bytes(column: &ColumnChunkMetaData) -> u64 {
    if let Some(bytes) = column.unencoded_byte_array_data_bytes() {
        return bytes.max(0) as u64;
    }
    let repeats = |encoding: Encoding| {
        use Encoding::{DELTA_BYTE_ARRAY, PLAIN_DICTIONARY, RLE_DICTIONARY};
        matches!(encoding, DELTA_BYTE_ARRAY | PLAIN_DICTIONARY | RLE_DICTIONARY)
    };
    if !column.encodings().any(repeats) {
        return 0;
    }
    let statistics = column.statistics();
    let nulls = statistics.and_then(|known| known.null_count_opt()).unwrap_or(0);
    let values = (column.num_values().max(0) as u64).saturating_sub(nulls);
    // The smallest and the largest text are the only ones whose lengths are known. Footers may have their
    // beginnings only.
    let ends = statistics.and_then(|known| known.min_bytes_opt().zip(known.max_bytes_opt()));
    let length = ends.map_or(TEXT, |(least, most)| (least.len() + most.len()) as u64 / 2);
    values.saturating_mul(length)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        Array, ArrayRef, DictionaryArray, Int64Array, ListArray, RecordBatch, StringArray,
    };
    use arrow::datatypes::Int32Type;
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ArrowReaderOptions;
    use parquet::file::metadata::ParquetMetaData;

    use super::*;

    const ROWS: u64 = 10_000;

    /// Ten different texts of 50 bytes.
    fn texts() -> impl Iterator<Item = String> {
        (0..ROWS).map(|i| format!("{:050}", i % 10))
    }

    /// The metadata of a file with one column.
    fn written(column: impl Array + 'static) -> ParquetMetaData {
        let batch = RecordBatch::try_from_iter([("a", Arc::new(column) as ArrayRef)]).unwrap();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap()
    }

    /// The estimate for a file with one column. `edit` changes the metadata of its chunk.
    fn estimated(
        column: impl Array + 'static,
        edit: impl Fn(ColumnChunkMetaData) -> ColumnChunkMetaData,
    ) -> u64 {
        let metadata = written(column);
        let group = metadata.row_group(0).clone();
        let columns = group.columns().iter().cloned().map(edit).collect();
        let group = group.into_builder().set_column_metadata(columns).build().unwrap();
        let metadata = metadata.into_builder().set_row_groups(vec![group]).build();
        let metadata = ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new());
        let metadata = metadata.unwrap();
        let groups: Vec<usize> = (0..metadata.metadata().num_row_groups()).collect();
        let (rows, bytes) = size(&metadata, &groups, &[0]);
        assert_eq!(rows, ROWS);
        bytes
    }

    #[test]
    fn repeated_values_count_as_often_as_they_occur() {
        let text = || StringArray::from_iter_values(texts());
        assert_eq!(estimated(text(), |chunk| chunk), 54 * ROWS);
        // Without a size in the footer, the smallest and the largest text give the length.
        let unsized_chunk = |chunk: ColumnChunkMetaData| {
            chunk.into_builder().set_unencoded_byte_array_data_bytes(None).build().unwrap()
        };
        assert_eq!(estimated(text(), unsized_chunk), 54 * ROWS);
        let bare = |chunk| unsized_chunk(chunk).into_builder().clear_statistics().build().unwrap();
        assert_eq!(estimated(text(), bare), (4 + TEXT) * ROWS);
        let numbers = Int64Array::from_iter_values((0..ROWS as i64).map(|i| i % 3));
        assert_eq!(estimated(numbers, |chunk| chunk), 8 * ROWS);
    }

    #[test]
    fn a_column_of_dictionaries_stays_small() {
        let texts: Vec<String> = texts().collect();
        let column: DictionaryArray<Int32Type> = texts.iter().map(String::as_str).collect();
        assert_eq!(estimated(column, |chunk| chunk), 4 * ROWS);
    }

    #[test]
    fn a_footer_that_denies_its_rows_is_not_believed() {
        let group = |column: &dyn Fn() -> ParquetMetaData, rows| {
            let group = column().row_group(0).clone().into_builder();
            group_rows(&group.set_num_rows(rows).build().unwrap())
        };
        let flat = || written(StringArray::from_iter_values(texts()));
        assert_eq!([group(&flat, 0), group(&flat, 1), group(&flat, ROWS as i64)], [ROWS; 3]);
        let one = || Some([Some(1), Some(2)]);
        let lists: ListArray =
            ListArray::from_iter_primitive::<Int32Type, _, _>((0..5).map(|_| one()));
        let lists = || written(lists.clone());
        assert_eq!([group(&lists, 5), group(&lists, 0)], [5, 10]);
    }
}

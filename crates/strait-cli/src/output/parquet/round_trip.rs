//! Writes columns that are encoded here into Parquet files, and reads them again. For tests.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Compression as Codec;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use parquet::schema::types::ColumnDescPtr;

use super::chunk::OwnChunk;
use super::codec::PageCodec;

pub(super) fn codecs() -> [Codec; 3] {
    let zstd = Codec::ZSTD(parquet::basic::ZstdLevel::default());
    [Codec::UNCOMPRESSED, Codec::SNAPPY, zstd]
}

/// Writes a file with one row group and one column, whose chunk `encode` makes. Returns the values that Arrow
/// reads, and the metadata with the page indexes.
pub(super) fn read_back(
    (data_type, nullable): (&DataType, bool),
    codec: Codec,
    encode: impl FnOnce(ColumnDescPtr, &mut PageCodec) -> OwnChunk,
) -> (ArrayRef, Arc<ParquetMetaData>) {
    let schema = Arc::new(Schema::new(vec![Field::new("c", data_type.clone(), nullable)]));
    let (mut writer, _) = ArrowWriter::try_new(Vec::new(), Arc::clone(&schema), None)
        .and_then(ArrowWriter::into_serialized_writer)
        .unwrap();
    let descr = writer.schema_descr().column(0);
    let chunk = encode(descr, &mut PageCodec::new(codec).unwrap());
    let mut group = writer.next_row_group().unwrap();
    group.append_column(&chunk.bytes, chunk.close).unwrap();
    group.close().unwrap();
    let file = Bytes::from(writer.into_inner().unwrap());
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Required);
    let metadata = ArrowReaderMetadata::load(&file, options).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata.clone());
    let batches: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
    let rows = concat_batches(&schema, &batches).unwrap();
    (Arc::clone(rows.column(0)), Arc::clone(metadata.metadata()))
}

/// Cuts an array into two slices, of which one may be empty.
pub(super) fn halves(array: &ArrayRef) -> [ArrayRef; 2] {
    let half = array.len() / 2;
    [array.slice(0, half), array.slice(half, array.len() - half)]
}

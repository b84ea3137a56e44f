//! The valid files from which cases are made. They are small, and together have every type and encoding.

use std::io::{Read, Write};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    FixedSizeBinaryArray, FixedSizeListArray, Float64Array, Int32Array, Int64Array,
    LargeStringArray, ListArray, MapArray, NullArray, RecordBatch, RunArray, StringArray,
    StringViewArray, StructArray, TimestampMicrosecondArray, UInt8Array, UnionArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Int8Type, Int32Type, UnionFields};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterVersion};

/// Rows per file.
pub(super) const ROWS: u64 = 60;

/// Rows per batch. Every file has two batches.
const BATCH: usize = 30;

fn nulls() -> NullBuffer {
    (0..BATCH).map(|i| i % 7 != 3).collect::<Vec<_>>().into()
}

fn words() -> Vec<String> {
    (0..BATCH).map(|i| "strait and sea ".repeat(i % 4) + &i.to_string()).collect()
}

fn flat() -> Vec<(&'static str, ArrayRef)> {
    let number = 0..BATCH as i32;
    let keys = number.clone().map(|i| i % 5);
    let long = number.clone().map(i64::from);
    vec![
        ("key", Arc::new(Int64Array::from_iter_values(long.clone()))),
        ("small", Arc::new(UInt8Array::from_iter_values(number.clone().map(|i| i as u8)))),
        ("some", Arc::new(Int32Array::new(keys.collect::<Vec<_>>().into(), Some(nulls())))),
        (
            "float",
            Arc::new(Float64Array::from_iter_values(number.clone().map(|i| f64::from(i) / 3.0))),
        ),
        ("flag", Arc::new(BooleanArray::from_iter(number.clone().map(|i| Some(i % 3 == 0))))),
        ("date", Arc::new(Date32Array::from_iter_values(number.clone()))),
        (
            "time",
            Arc::new(
                TimestampMicrosecondArray::from_iter_values(long.clone()).with_timezone("+00:00"),
            ),
        ),
        (
            "price",
            Arc::new(
                Decimal128Array::from_iter_values(long.clone().map(i128::from))
                    .with_precision_and_scale(12, 2)
                    .unwrap(),
            ),
        ),
        ("word", Arc::new(StringArray::from_iter_values(words()))),
        ("large", Arc::new(LargeStringArray::from_iter_values(words()))),
        (
            "fixed",
            Arc::new(FixedSizeBinaryArray::try_from_iter(number.map(i32::to_be_bytes)).unwrap()),
        ),
    ]
}

fn nested() -> Vec<(&'static str, ArrayRef)> {
    let ints: ArrayRef = Arc::new(Int32Array::from_iter_values(0..2 * BATCH as i32));
    let ends = (0..=BATCH as i32).map(|i| i * 2).collect::<Vec<_>>();
    let offsets = OffsetBuffer::new(ends.into());
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let word = Arc::new(Field::new("word", DataType::Utf8, true));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(words()));
    let entries = StructArray::new(
        vec![
            Field::new("keys", DataType::Int32, false),
            Field::new("values", DataType::Int32, true),
        ]
        .into(),
        vec![ints.clone(), ints.clone()],
        None,
    );
    let entry = Arc::new(Field::new("entries", entries.data_type().clone(), false));
    let lists = ListArray::new(item.clone(), offsets.clone(), ints.clone(), Some(nulls()));
    let list = Arc::new(Field::new("list", lists.data_type().clone(), true));
    vec![
        ("list", Arc::new(lists.clone())),
        (
            "struct",
            Arc::new(StructArray::new(
                vec![word, list].into(),
                vec![texts, Arc::new(lists)],
                Some(nulls()),
            )),
        ),
        ("map", Arc::new(MapArray::new(entry, offsets, entries, None, false))),
        ("pair", Arc::new(FixedSizeListArray::new(item, 2, ints, None))),
    ]
}

/// Types that Parquet does not support.
fn arrow_only() -> Vec<(&'static str, ArrayRef)> {
    let runs = Int32Array::from(vec![10, BATCH as i32]);
    let values = StringArray::from(vec!["one", "two"]);
    let fields = UnionFields::try_new(
        [0, 1],
        [Field::new("n", DataType::Int32, true), Field::new("w", DataType::Utf8, true)],
    );
    let union = UnionArray::try_new(
        fields.unwrap(),
        (0..BATCH).map(|i| (i % 2) as i8).collect::<Vec<_>>().into(),
        None,
        vec![
            Arc::new(Int32Array::from_iter_values(0..BATCH as i32)),
            Arc::new(StringArray::from_iter_values(words())),
        ],
    );
    vec![
        ("runs", Arc::new(RunArray::<Int32Type>::try_new(&runs, &values).unwrap())),
        ("union", Arc::new(union.unwrap())),
        ("nothing", Arc::new(NullArray::new(BATCH))),
    ]
}

fn views() -> Vec<(&'static str, ArrayRef)> {
    let dictionary: DictionaryArray<Int8Type> =
        (0..BATCH).map(|i| ["red", "green", "blue"][i % 3]).collect();
    vec![
        ("view", Arc::new(StringViewArray::from_iter_values(words()))),
        ("bytes", Arc::new(BinaryViewArray::from_iter_values(words()))),
        ("dictionary", Arc::new(dictionary)),
    ]
}

fn batch(columns: &[Vec<(&'static str, ArrayRef)>]) -> RecordBatch {
    RecordBatch::try_from_iter(columns.iter().flatten().cloned()).unwrap()
}

fn parquet(batch: &RecordBatch, properties: WriterProperties) -> Vec<u8> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    for _ in 0..2 {
        writer.write(batch).unwrap();
        writer.flush().unwrap();
    }
    writer.into_inner().unwrap()
}

fn parquet_files() -> Vec<(String, Vec<u8>)> {
    let codecs = [
        ("none", Compression::UNCOMPRESSED),
        ("snappy", Compression::SNAPPY),
        ("gzip", Compression::GZIP(Default::default())),
        ("zstd", Compression::ZSTD(Default::default())),
        ("lz4", Compression::LZ4_RAW),
    ];
    let mut files = Vec::new();
    for (name, codec) in codecs {
        let properties =
            || WriterProperties::builder().set_compression(codec).set_offset_index_disabled(true);
        let both = [flat(), views()];
        files.push((format!("flat-{name}.parquet"), parquet(&batch(&both), properties().build())));
        let second = properties().set_writer_version(WriterVersion::PARQUET_2_0);
        files
            .push((format!("nested-{name}.parquet"), parquet(&batch(&[nested()]), second.build())));
    }
    let plain = || {
        WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_writer_version(WriterVersion::PARQUET_2_0)
    };
    // The encodings of version 2: deltas of numbers and of text.
    files.push(("deltas.parquet".into(), parquet(&batch(&[flat()]), plain().build())));
    let lengths = plain()
        .set_column_encoding("word".into(), Encoding::DELTA_LENGTH_BYTE_ARRAY)
        .set_column_encoding("float".into(), Encoding::BYTE_STREAM_SPLIT);
    files.push(("lengths.parquet".into(), parquet(&batch(&[flat()]), lengths.build())));
    files
}

fn ipc_files() -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    let batches =
        [("flat", batch(&[flat()])), ("nested", batch(&[nested(), arrow_only(), views()]))];
    for (name, batch) in &batches {
        let codecs = [
            ("none", None),
            ("zstd", Some(CompressionType::ZSTD)),
            ("lz4", Some(CompressionType::LZ4_FRAME)),
        ];
        for (codec, compression) in codecs {
            let options = || IpcWriteOptions::default().try_with_compression(compression).unwrap();
            let schema = batch.schema();
            let mut file =
                FileWriter::try_new_with_options(Vec::new(), &schema, options()).unwrap();
            let mut stream =
                StreamWriter::try_new_with_options(Vec::new(), &schema, options()).unwrap();
            for _ in 0..2 {
                file.write(batch).unwrap();
                stream.write(batch).unwrap();
            }
            files.push((format!("{name}-{codec}.arrow"), file.into_inner().unwrap()));
            files.push((format!("{name}-{codec}.arrows"), stream.into_inner().unwrap()));
        }
    }
    files
}

fn csv_files() -> Vec<(String, Vec<u8>)> {
    let mut text = String::from("key,word,price,day,time,\"a \"\"name\"\"\"\n");
    for i in 0..ROWS {
        let word =
            ["plain", "\"quoted, with comma\"", "\"two\nlines\"", "é€😀", ""][i as usize % 5];
        text += &format!(
            "{i},{word},{}.5,2024-02-{:02},2024-01-01T10:00:{i:02},x\n",
            i * 3,
            1 + i % 28
        );
    }
    ["text.csv", "text.csv.gz", "text.csv.zst"]
        .map(|name| (name.to_string(), squeezed(name, text.as_bytes())))
        .into()
}

fn json_files() -> Vec<(String, Vec<u8>)> {
    let mut text = String::new();
    for i in 0..ROWS {
        let word = ["\"plain\"", "\"a \\\"quote\\\"\"", "\"\\u00e9\\n\"", "\"é€😀\"", "null"]
            [i as usize % 5];
        let missing = if i % 3 == 0 { "" } else { ",\"price\":2.5e1" };
        text += &format!(
            "{{\"key\":{i},\"word\":{word}{missing},\"list\":[{i},null],\"object\":{{\"is\":true}}}}\n"
        );
    }
    ["text.jsonl", "text.jsonl.gz", "text.jsonl.zst"]
        .map(|name| (name.to_string(), squeezed(name, text.as_bytes())))
        .into()
}

/// Makes all files of the corpus.
pub(super) fn made() -> Vec<(String, Vec<u8>)> {
    [parquet_files(), ipc_files(), csv_files(), json_files()].concat()
}

pub(super) fn is_squeezed(name: &str) -> bool {
    name.ends_with(".gz") || name.ends_with(".zst")
}

pub(super) fn squeezed(name: &str, text: &[u8]) -> Vec<u8> {
    if name.ends_with(".gz") {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text).unwrap();
        return gzip.finish().unwrap();
    }
    if name.ends_with(".zst") { zstd::encode_all(text, 1).unwrap() } else { text.to_vec() }
}

pub(super) fn unsqueezed(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    match name.ends_with(".gz") {
        true => drop(flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut text).unwrap()),
        false => text = zstd::decode_all(bytes).unwrap(),
    }
    text
}

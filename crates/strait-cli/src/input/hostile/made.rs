//! Files that each attack the reader in one way.

use std::fs;
use std::io::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::writer::StreamWriter;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

use super::checked;

/// Writes a file and reads it. Returns the error message.
#[track_caller]
fn refused(name: &str, bytes: impl AsRef<[u8]>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    checked(&path).unwrap_err()
}

#[track_caller]
fn refused_with(name: &str, bytes: impl AsRef<[u8]>, part: &str) {
    let message = refused(name, bytes);
    assert!(message.contains(part), "no \"{part}\" in: {message}");
}

fn gzip(write: impl FnOnce(&mut dyn Write)) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    write(&mut gzip);
    gzip.finish().unwrap()
}

/// Writes a field of 300 MB, in the rows from which types are inferred.
fn long_field(out: &mut dyn Write) {
    out.write_all(b"a,b\n1,").unwrap();
    (0..300).for_each(|_| out.write_all(&[b'x'; 1 << 20]).unwrap());
    out.write_all(b"\n").unwrap();
}

#[test]
fn a_long_csv_field_is_held_to_the_limit() {
    let limit = "the memory limit of 16.0 MiB is too small";
    refused_with("bomb.csv.gz", gzip(long_field), limit);
    let mut zstd = zstd::Encoder::new(Vec::new(), 1).unwrap();
    long_field(&mut zstd);
    refused_with("bomb.csv.zst", zstd.finish().unwrap(), limit);
    // The same after the sample, which has 100,000 rows.
    let late = gzip(|out| {
        out.write_all(b"a,b\n").unwrap();
        (0..100_001).for_each(|_| out.write_all(b"1,2\n").unwrap());
        out.write_all(b"1,").unwrap();
        (0..300).for_each(|_| out.write_all(&[b'7'; 1 << 20]).unwrap());
    });
    refused_with("late.csv.gz", late, limit);
    // A quote that is never closed makes the rest of the file one field.
    let open = gzip(|out| {
        out.write_all(b"a,b\n1,\"").unwrap();
        (0..300).for_each(|_| out.write_all(&b"1,2\n".repeat(1 << 18)).unwrap());
    });
    refused_with("open.csv.gz", open, limit);
}

#[test]
fn long_json_lines_are_held_to_the_limit() {
    let limit = "the memory limit of 16.0 MiB is too small";
    let long = |out: &mut dyn Write| {
        out.write_all(b"{\"a\":\"").unwrap();
        (0..300).for_each(|_| out.write_all(&[b'x'; 1 << 20]).unwrap());
        out.write_all(b"\"}\n").unwrap();
    };
    refused_with("bomb.jsonl.gz", gzip(long), limit);
    let late = gzip(|out| {
        (0..100_001).for_each(|_| out.write_all(b"{\"a\":\"1\"}\n").unwrap());
        long(out);
    });
    refused_with("late.jsonl.gz", late, limit);
    // Short numbers take much more memory than their text.
    let numbers = gzip(|out| {
        out.write_all(b"{\"a\":[").unwrap();
        (0..50).for_each(|_| out.write_all(&b"1,".repeat(1 << 19)).unwrap());
        out.write_all(b"1]}\n").unwrap();
    });
    refused_with("numbers.jsonl.gz", numbers, limit);
}

/// Every line has other fields.
#[test]
fn json_of_very_many_columns() {
    let lines = |fields: usize| -> String {
        let line = |i: usize| {
            let fields: Vec<String> = (0..100).map(|j| format!("\"f{i}_{j}\":1")).collect();
            format!("{{{}}}\n", fields.join(","))
        };
        (0..fields / 100).map(line).collect()
    };
    refused_with("wide.jsonl", lines(100_000), "the memory limit of 16.0 MiB is too small");
    let names = "{\"".to_string() + &"x".repeat(1 << 20);
    let long: String = (0..20).map(|i| format!("{names}{i}\":1}}\n")).collect();
    refused_with("names.jsonl", long, "the memory limit of 16.0 MiB is too small");
    let deep = format!("{{\"a\":{}{}}}\n", "[".repeat(100), "]".repeat(100));
    refused_with("deep.jsonl", deep, "more than 64 levels deep");
}

#[test]
fn csv_of_very_many_columns() {
    let header = "a,".repeat(200_000) + "a\n";
    let row = "1,".repeat(200_000) + "1\n";
    refused_with("wide.csv", header + &row, "wide.csv");
    // Few enough columns for a file, but too many for batches of the usual size.
    let names: Vec<String> = (0..9_000).map(|i| format!("c{i}")).collect();
    let rows = (names.join(",") + "\n") + &(vec!["1"; 9_000].join(",") + "\n").repeat(3);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.csv");
    fs::write(&path, rows).unwrap();
    assert_eq!(checked(&path), Ok(3));
}

#[test]
fn a_character_that_a_delimiter_cuts() {
    refused_with("cut.csv", b"a,b\nx,y\n\xc3,\xa9\n", "UTF-8");
}

#[test]
fn a_zstandard_window_larger_than_the_limit() {
    // A frame that asks for 128 MiB of history, and then ends.
    refused("window.csv.zst", [0x28, 0xb5, 0x2f, 0xfd, 0, 17 << 3, 1, 0, 0]);
}

/// A Parquet file of one row, with the given footer.
fn with_footer(footer: &[u8]) -> Vec<u8> {
    let length = (footer.len() as u32).to_le_bytes();
    [b"PAR1", footer, &length, b"PAR1"].concat()
}

/// The start of a footer: its version, and a schema with this many elements.
fn schema_of(elements: u64) -> Vec<u8> {
    let mut bytes = vec![0x15, 0x02, 0x19, 0xfc];
    let mut left = elements;
    while left >= 0x80 {
        bytes.push(left as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
    bytes
}

#[test]
fn a_parquet_schema_too_deep_for_the_stack() {
    let mut footer = schema_of(300_001);
    for _ in 0..300_000 {
        // Required, named "a", with one child.
        footer.extend([0x35, 0x00, 0x18, 0x01, b'a', 0x15, 0x02, 0x00]);
    }
    footer.extend([0x15, 0x02, 0x25, 0x00, 0x18, 0x01, b'a', 0x00]);
    footer.extend([0x16, 0x00, 0x19, 0x0c, 0x00]);
    refused_with("deep.parquet", with_footer(&footer), "nested more than 192 levels");
}

#[test]
fn a_parquet_group_with_a_billion_children() {
    let mut footer = schema_of(2);
    footer.extend([0x48, 0x01, b'a', 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0x00]);
    footer.extend([0x15, 0x02, 0x25, 0x00, 0x18, 0x01, b'a', 0x00]);
    footer.extend([0x16, 0x00, 0x19, 0x0c, 0x00]);
    refused_with("wide.parquet", with_footer(&footer), "damaged");
}

fn parquet(columns: Vec<(&str, ArrayRef)>, codec: Compression) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties = WriterProperties::builder().set_compression(codec).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn one_long_text_that_a_million_rows_refer_to() {
    let text = "x".repeat(500_000);
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..3_000).map(|_| &text)));
    let bytes = parquet(vec![("t", texts)], Compression::ZSTD(Default::default()));
    assert!(bytes.len() < 100_000, "{}", bytes.len());
    refused_with("bomb.parquet", bytes, "the memory limit of 16.0 MiB is too small");
}

#[test]
fn a_gzip_page_that_decompresses_to_more_than_it_says() {
    let zeros: ArrayRef = Arc::new(Int64Array::from(vec![0; 8]));
    let page = gzip(|out| (0..300).for_each(|_| out.write_all(&[0; 1 << 20]).unwrap()));
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_compression(Compression::GZIP(Default::default()))
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
        .build();
    let batch = RecordBatch::try_from_iter([("n", zeros)]).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let whole = writer.into_inner().unwrap();
    // The page follows its header directly. The sizes in the footer are now too small, and the reader may
    // report this first.
    let at = whole.windows(3).position(|bytes| bytes == [0x1f, 0x8b, 8]).unwrap();
    let message = refused("bomb.parquet", [&whole[..at], &page, &whole[at..]].concat());
    assert!(message.contains("bomb.parquet"), "{message}");
}

/// An Arrow stream whose first schema message has its length fields changed.
#[test]
fn arrow_lengths_that_lie() {
    let batch =
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef)]);
    let batch = batch.unwrap();
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    let whole = writer.into_inner().unwrap();
    for length in [i32::MAX, 1 << 30, -2, 1 << 24] {
        let mut bytes = whole.clone();
        bytes[4..8].copy_from_slice(&length.to_le_bytes());
        refused("lie.arrows", bytes);
    }
    // Changes every aligned word in turn, so that each length in the metadata is changed once.
    for at in (8..whole.len() - 8).step_by(4) {
        for number in [i64::MAX, 1 << 40, -1, 1 << 31] {
            let mut bytes = whole.clone();
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("lie.arrows");
            fs::write(&path, bytes).unwrap();
            let _ = checked(&path);
        }
    }
}

#[test]
fn an_arrow_schema_that_is_too_deep() {
    let mut data_type = DataType::Int8;
    for _ in 0..70 {
        data_type = DataType::new_list(data_type, true);
    }
    let schema = Schema::new(vec![Field::new("a", data_type, true)]);
    let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
    writer.finish().unwrap();
    refused_with("deep.arrows", writer.into_inner().unwrap(), "deep.arrows");
}

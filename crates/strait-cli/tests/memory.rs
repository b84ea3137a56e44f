//! Checks that the command keeps its `--memory` limit, measured from outside: the real binary runs under a
//! limit, and the kernel reports its peak memory.

// A test fails by panicking, also in the functions that it calls.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    Array, ArrayRef, DictionaryArray, Int64Array, ListArray, RecordBatch, StringArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Int32Type};
use arrow::ipc::writer::FileWriter;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};

/// The memory of the process that is not reserved: its code, stacks, and memory that the allocator keeps. An
/// unoptimised binary has 44 MiB of it before it reads anything.
const CONSTANT: u64 = 62 << 20;

const MIB: u64 = 1 << 20;

/// Returns the peak memory of the child. The kernel keeps the peak, so the last value before the end counts.
fn peak(child: &mut Child) -> u64 {
    let path = format!("/proc/{}/status", child.id());
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(&path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        if let Some(kib) = line.and_then(|line| line.trim().strip_suffix(" kB")) {
            most = most.max(kib.parse::<u64>().unwrap() * 1024);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    most
}

/// Runs a join under a limit, and checks that its memory stays within the limit. Returns whether the join
/// succeeded. If it failed, the message must name the limit.
fn within(folder: &Path, join: &str, limit: u64) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.args(join.split_whitespace()).arg("--memory").arg(limit.to_string());
    let mut child = command.spawn().unwrap();
    let most = peak(&mut child);
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        most <= limit + limit / 10 + CONSTANT,
        "{join}: {limit} allowed, {most} held: {message}"
    );
    assert!(
        output.status.success() || message.contains("the memory limit of"),
        "{join}, {limit}: {message}"
    );
    output.status.success()
}

fn parquet(path: &Path, batches: &[RecordBatch]) {
    let file = fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batches[0].schema(), None).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.close().unwrap();
}

fn arrow(path: &Path, batches: &[RecordBatch]) {
    let file = fs::File::create(path).unwrap();
    let mut writer = FileWriter::try_new(file, &batches[0].schema()).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
}

fn keys(rows: std::ops::Range<i64>) -> (&'static str, ArrayRef) {
    ("k", Arc::new(Int64Array::from_iter_values(rows)))
}

/// Batches with a key, and the columns that `payload` makes for the rows.
fn table(
    batches: i64,
    rows: i64,
    payload: impl Fn(std::ops::Range<i64>) -> Vec<(String, ArrayRef)>,
) -> Vec<RecordBatch> {
    let batch = |i: i64| {
        let range = i * rows..(i + 1) * rows;
        let payload = payload(range.clone());
        let payload = payload.iter().map(|(name, column)| (name.as_str(), column.clone()));
        RecordBatch::try_from_iter(std::iter::once(keys(range)).chain(payload)).unwrap()
    };
    (0..batches).map(batch).collect()
}

fn small(folder: &Path) {
    parquet(&folder.join("small.parquet"), &table(1, 20_000, |_| vec![]));
}

#[test]
fn parquet_of_many_columns() {
    let folder = tempfile::tempdir().unwrap();
    let column = |range: std::ops::Range<i64>, i: i64| -> (String, ArrayRef) {
        (format!("c{i}"), Arc::new(Int64Array::from_iter_values(range.map(|k| k * i % 1009))))
    };
    let batches = table(4, 30_000, |range| (0..60).map(|i| column(range.clone(), i)).collect());
    parquet(&folder.path().join("wide.parquet"), &batches);
    parquet(&folder.path().join("all.parquet"), &table(1, 120_000, |_| vec![]));
    let join = "join all.parquet wide.parquet --on k -o out.parquet --overwrite";
    within(folder.path(), join, 64 * MIB);
    within(folder.path(), join, 128 * MIB);
    assert!(within(folder.path(), join, 512 * MIB));
}

#[test]
fn a_compressed_csv_bomb() {
    let folder = tempfile::tempdir().unwrap();
    small(folder.path());
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"k,t\n1,").unwrap();
    (0..300).for_each(|_| gzip.write_all(&[b'x'; 1 << 20]).unwrap());
    fs::write(folder.path().join("bomb.csv.gz"), gzip.finish().unwrap()).unwrap();
    let join = "join small.parquet bomb.csv.gz --on k -o out.parquet --overwrite";
    for limit in [16, 64, 256] {
        assert!(!within(folder.path(), join, limit * MIB));
    }
}

#[test]
fn json_lines_and_casts() {
    let folder = tempfile::tempdir().unwrap();
    small(folder.path());
    let line = |k: i64| {
        let list = vec![k.to_string(); (k % 40) as usize].join(",");
        format!("{{\"k\":{k},\"t\":\"{}\",\"l\":[{list}]}}\n", "x".repeat((k % 100) as usize))
    };
    let lines: String = (0..100_000).map(line).collect();
    fs::write(folder.path().join("lines.jsonl"), lines).unwrap();
    let texts = table(10, 20_000, |range| {
        let text = StringArray::from_iter_values(range.map(|k| format!("{k:020}")));
        vec![("t".to_string(), Arc::new(text) as ArrayRef)]
    });
    parquet(&folder.path().join("texts.parquet"), &texts);
    for (join, cast) in [
        ("join small.parquet lines.jsonl --on k", "--cast right.k=text --cast left.k=text"),
        ("join small.parquet texts.parquet --on k=t", "--cast t=int64"),
    ] {
        for limit in [16, 32, 64] {
            within(folder.path(), &format!("{join} {cast} -o out.arrow --overwrite"), limit * MIB);
        }
        let join = format!("{join} {cast} -o out.arrow --overwrite");
        assert!(within(folder.path(), &join, 256 * MIB));
    }
}

#[test]
fn wide_strings_in_parquet_and_arrow() {
    let folder = tempfile::tempdir().unwrap();
    small(folder.path());
    let text = |k: i64| format!("{k}-").repeat(300);
    let batches = table(10, 2_000, |range| {
        vec![(
            "t".to_string(),
            Arc::new(StringArray::from_iter_values(range.map(text))) as ArrayRef,
        )]
    });
    parquet(&folder.path().join("text.parquet"), &batches);
    arrow(&folder.path().join("text.arrow"), &batches);
    for input in ["text.parquet", "text.arrow"] {
        for out in ["out.parquet", "out.arrow", "out.csv"] {
            let join = format!("join small.parquet {input} --on k -o {out} --overwrite");
            within(folder.path(), &join, 64 * MIB);
        }
        let join = format!("join small.parquet {input} --on k -o out.parquet --overwrite");
        assert!(within(folder.path(), &join, 256 * MIB));
    }
}

#[test]
fn dictionaries() {
    let folder = tempfile::tempdir().unwrap();
    small(folder.path());
    let batches = table(20, 1_000, |range| {
        let words: DictionaryArray<Int32Type> = range
            .map(|k| format!("{:0200}", k % 50))
            .collect::<Vec<_>>()
            .iter()
            .map(String::as_str)
            .collect();
        vec![("d".to_string(), Arc::new(words) as ArrayRef)]
    });
    parquet(&folder.path().join("words.parquet"), &batches);
    for out in ["out.parquet", "out.arrow", "out.arrows"] {
        let join = format!("join small.parquet words.parquet --on k -o {out} --overwrite");
        within(folder.path(), &join, 64 * MIB);
        assert!(within(folder.path(), &join, 512 * MIB));
    }
}

/// Joins `values` with the small table, with and without a limit.
fn joins(values: ArrayRef, properties: WriterProperties, limit: u64) {
    let folder = tempfile::tempdir().unwrap();
    small(folder.path());
    let columns = [keys(0..values.len() as i64), ("v", values)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = fs::File::create(folder.path().join("values.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let join = "join values.parquet small.parquet --on k -o out.arrow --overwrite";
    assert!(within(folder.path(), join, limit), "refused under {limit}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    let output = command.current_dir(folder.path()).args(join.split(' ')).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && message.contains("20,000 rows"), "{message}");
}

/// One long text among short ones.
fn texts(rows: usize) -> StringArray {
    let long = "x".repeat(900_000);
    let text = |i| if i == 5 { long.as_str() } else { ["N/A", "short", ""][i % 3] };
    StringArray::from_iter_values((0..rows).map(text))
}

/// Writer settings for as few pages as possible.
fn large_pages() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_data_page_row_count_limit(usize::MAX)
        .set_dictionary_page_size_limit(16 << 20)
}

#[test]
fn a_long_text_among_short_ones() {
    joins(Arc::new(texts(100_000)), WriterProperties::default(), 64 * MIB);
    joins(Arc::new(texts(100_000)), large_pages().build(), 64 * MIB);
}

#[test]
fn a_long_text_in_one_of_many_lists() {
    let offsets = OffsetBuffer::from_lengths(vec![10; 30_000]);
    let field = Arc::new(Field::new("item", DataType::Utf8, true));
    let lists = ListArray::new(field, offsets, Arc::new(texts(300_000)), None);
    joins(Arc::new(lists), large_pages().build(), 128 * MIB);
}

#[test]
fn lists_of_one_number() {
    let offsets = OffsetBuffer::from_lengths(vec![400; 20_000]);
    let field = Arc::new(Field::new("item", DataType::Int64, true));
    let zeros = Arc::new(Int64Array::from(vec![0; 8_000_000]));
    let lists = ListArray::new(field, offsets, zeros, None);
    joins(Arc::new(lists), large_pages().build(), 128 * MIB);
}

/// The dictionary has 39 MB of text. Decoding needs the page, compressed and decompressed, and a copy.
#[test]
fn a_large_dictionary() {
    let text = |i: usize| format!("{:0100}-{:020}", i % 300_000, (i % 300_000) * 7919);
    let values = StringArray::from_iter_values((0..610_000).map(text));
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY] {
        let properties = large_pages().set_dictionary_page_size_limit(256 << 20);
        let properties = properties.set_compression(compression);
        joins(Arc::new(values.clone()), properties.clone().build(), 128 * MIB);
        // A batch has rows of two dictionaries, but only one dictionary is held at a time.
        let two = properties.set_max_row_group_row_count(Some(305_000)).build();
        joins(Arc::new(values.clone()), two, 128 * MIB);
    }
}

#[test]
fn texts_that_begin_like_the_ones_before() {
    let text = "y".repeat(3_000);
    let texts = StringArray::from_iter_values((0..50_000).map(|_| &text));
    let properties =
        large_pages().set_dictionary_enabled(false).set_encoding(Encoding::DELTA_BYTE_ARRAY);
    // Only the text column can have this encoding.
    let properties = properties.set_column_encoding("k".into(), Encoding::PLAIN);
    joins(Arc::new(texts), properties.build(), 128 * MIB);
}

/// The value of a row has far more bytes than the row itself.
#[test]
fn dictionaries_of_long_values() {
    let folder = tempfile::tempdir().unwrap();
    small(folder.path());
    let batches = table(1, 15_000, |range| {
        let values: Vec<String> = (0..100).map(|i| format!("{i:03}").repeat(3_500)).collect();
        let keys = arrow::array::Int32Array::from_iter_values(range.map(|k| (k % 100) as i32));
        let words = DictionaryArray::new(keys, Arc::new(StringArray::from(values)));
        vec![("d".to_string(), Arc::new(words) as ArrayRef)]
    });
    arrow(&folder.path().join("words.arrow"), &batches);
    for out in ["out.parquet", "out.parquet --compression none", "out.arrow"] {
        let join = format!("join small.parquet words.arrow --on k -o {out} --overwrite");
        assert!(within(folder.path(), &join, 64 * MIB), "{out}");
    }
}

/// Views share their values. A piece of the output must not contain all of them again.
#[test]
fn views_of_shared_values() {
    let folder = tempfile::tempdir().unwrap();
    small(folder.path());
    let text = "x".repeat(100_000);
    let batches = table(1, 2_000, |range| {
        let text = range.map(|k| text[(k % 1000) as usize..][..1_000].to_string());
        let views = arrow::array::StringViewArray::from_iter_values(text);
        vec![("t".to_string(), Arc::new(views) as ArrayRef)]
    });
    arrow(&folder.path().join("views.arrow"), &batches);
    for out in ["out.parquet", "out.arrow", "out.arrows"] {
        let join = format!("join small.parquet views.arrow --on k -o {out} --overwrite");
        assert!(within(folder.path(), &join, 16 * MIB), "{out}");
        assert!(fs::metadata(folder.path().join(out)).unwrap().len() < 8 * MIB, "{out}");
    }
}

#[test]
fn columns_that_hold_little() {
    let folder = tempfile::tempdir().unwrap();
    small(folder.path());
    let column = |range: std::ops::Range<i64>, i: i64| -> (String, ArrayRef) {
        (format!("c{i}"), Arc::new(Int64Array::from_iter_values(range.map(|_| i))))
    };
    let batches = table(1, 200, |range| (0..2000).map(|i| column(range.clone(), i)).collect());
    parquet(&folder.path().join("wide.parquet"), &batches);
    let join = "join wide.parquet small.parquet --on k -o out.parquet --overwrite";
    assert!(within(folder.path(), join, 256 * MIB));
}

/// Many columns of several types. The writer holds many small pieces of them.
#[test]
fn orders_and_their_items() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.current_dir(folder.path()).stderr(Stdio::null());
    command.args("generate tpch --scale 0.1 --out . --tables orders,lineitem".split(' '));
    assert!(command.status().unwrap().success());
    let join = "join orders.parquet lineitem.parquet --on o_orderkey=l_orderkey --overwrite";
    for out in ["out.parquet", "out.parquet --compression snappy", "out.arrow"] {
        for limit in [96, 128] {
            assert!(within(folder.path(), &format!("{join} -o {out}"), limit * MIB), "{limit}");
        }
    }
}

#[test]
fn texts_from_parquet_to_parquet() {
    let folder = tempfile::tempdir().unwrap();
    let rows = table(10, 30_000, |range| {
        let text = |k: i64| format!("value {:060}", k * 7919);
        let column: ArrayRef = Arc::new(StringArray::from_iter_values(range.map(text)));
        vec![("t".to_string(), Arc::clone(&column)), ("u".to_string(), column)]
    });
    parquet(&folder.path().join("a.parquet"), &rows);
    parquet(&folder.path().join("keys.parquet"), &table(1, 300_000, |_| vec![]));
    for join in ["join keys.parquet a.parquet", "join a.parquet a.parquet"] {
        for limit in [32, 64] {
            let join = format!("{join} --on k -o out.parquet --overwrite");
            within(folder.path(), &join, limit * MIB);
        }
    }
    let join = "join keys.parquet a.parquet --on k -o out.parquet --overwrite";
    assert!(within(folder.path(), join, 64 * MIB));
}

/// A sort-merge join that spills writes sorted runs, and keeps the limit.
#[test]
fn sorted_runs() {
    let folder = tempfile::tempdir().unwrap();
    let rows = table(20, 30_000, |range| {
        let text = |k: i64| format!("value {:060}", k * 7919 % 600_000);
        vec![("t".to_string(), Arc::new(StringArray::from_iter_values(range.map(text))) as _)]
    });
    parquet(&folder.path().join("a.parquet"), &rows);
    for key in ["k", "t"] {
        for (out, limit) in [("out.parquet", 64), ("out.csv", 32)] {
            let join = format!("join a.parquet a.parquet --on {key} -o {out} --overwrite");
            let join = format!("{join} --algorithm sort-merge --threads 2");
            assert!(within(folder.path(), &join, limit * MIB), "{join}: {limit} MiB");
        }
    }
}

/// Runs a join under a limit, and then under the limits that its errors advise. Returns the number of runs.
fn runs_until_it_fits(folder: &Path, join: &str, limit: &str) -> usize {
    let mut tried = vec![limit.to_string()];
    loop {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
        command.current_dir(folder).args(join.split(' ')).arg("--memory");
        let output = command.arg(tried.last().unwrap());
        let output = match join.contains(" -o ") {
            true => output.arg("--overwrite").output().unwrap(),
            false => output.output().unwrap(),
        };
        if output.status.success() {
            return tried.len();
        }
        let message = String::from_utf8(output.stderr).unwrap();
        let advice = message.split("try --memory ").nth(1).unwrap_or_else(|| panic!("{message}"));
        let advice = advice.split([',', ';', '\n']).next().unwrap();
        assert!(tried.len() < 3, "{join}: {tried:?} did not suffice: {message}");
        tried.push(advice.to_string());
    }
}

/// A join under a limit that is too small advises a larger one. Following the advice twice must suffice.
#[test]
fn advice_leads_to_a_limit_that_suffices() {
    let folder = tempfile::tempdir().unwrap();
    let column = |range: std::ops::Range<i64>, i: i64| -> (String, ArrayRef) {
        (format!("c{i}"), Arc::new(Int64Array::from_iter_values(range.map(|k| k * i % 1009))))
    };
    let wide = table(4, 20_000, |range| (0..60).map(|i| column(range.clone(), i)).collect());
    parquet(&folder.path().join("wide.parquet"), &wide);
    let texts = table(10, 20_000, |range| {
        let text = |k: i64| format!("the text of key {:030}", k * 7919 % 200_000);
        vec![("t".to_string(), Arc::new(StringArray::from_iter_values(range.map(text))) as _)]
    });
    parquet(&folder.path().join("texts.parquet"), &texts);
    parquet(&folder.path().join("long.parquet"), &table(30, 100_000, |_| vec![]));
    arrow(&folder.path().join("wide.arrow"), &wide);
    arrow(&folder.path().join("texts.arrow"), &texts);
    let lines = |i: i64| format!("{i},the text of key {:030},{}\n", i * 7919 % 200_000, i % 1009);
    let lines: String = (0..400_000).map(lines).collect();
    fs::write(folder.path().join("lines.csv"), format!("k,t,n\n{lines}")).unwrap();
    let text_join = "join texts.parquet texts.parquet --on t";
    for (join, limit) in [
        ("join wide.parquet wide.parquet --on k -o out.parquet --no-spill", "16MiB"),
        ("join wide.parquet wide.parquet --on k -o out.parquet --threads 8 --no-spill", "16MiB"),
        (&format!("{text_join} -o out.parquet --no-spill"), "16MiB"),
        (&format!("{text_join} -o out.csv --no-spill"), "16MiB"),
        (&format!("{text_join} --algorithm sort-merge -o out.parquet --no-spill"), "24MiB"),
        (
            "join wide.parquet wide.parquet --on k --algorithm sort-merge -o out.arrow --no-spill",
            "16MiB",
        ),
        (&format!("{text_join} --count --no-spill"), "1KiB"),
        // These files do not tell their rows.
        ("join wide.arrow wide.arrow --on k -o out.parquet --no-spill", "8MiB"),
        ("join wide.arrow wide.arrow --on k --count --no-spill", "1MiB"),
        ("join texts.arrow texts.arrow --on t -o out.csv --no-spill", "8MiB"),
        ("join lines.csv lines.csv --on k -o out.parquet --no-spill", "8MiB"),
        ("join lines.csv lines.csv --on t --algorithm sort-merge -o out.arrow --no-spill", "8MiB"),
        (
            "join long.parquet long.parquet --on k --algorithm sort-merge --count --no-spill",
            "24MiB",
        ),
    ] {
        let runs = runs_until_it_fits(folder.path(), join, limit);
        assert!(runs > 1, "{join}: {limit} is not too small");
        // A join that spills may fit the first limit.
        if let Some(spilling) = join.strip_suffix(" --no-spill") {
            runs_until_it_fits(folder.path(), spilling, limit);
        }
    }
}

/// Returns the number of page faults of a join, as far as seen before its end.
fn faults(folder: &Path, more: &str) -> u64 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let join = format!("join a.parquet a.parquet --on k -o out.parquet --overwrite {more}");
    let mut child = command.args(join.split_whitespace()).spawn().unwrap();
    let path = format!("/proc/{}/stat", child.id());
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        let stat = fs::read_to_string(&path).unwrap_or_default();
        // The process name is in parentheses. After it come the state and six numbers, and then this one.
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
        let count = fields.and_then(|fields| fields.split_whitespace().nth(7)?.parse().ok());
        most = most.max(count.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(child.wait().unwrap().success());
    most
}

/// While the limit is far away, the allocator reuses freed memory.
#[test]
fn a_distant_limit_costs_no_page_faults() {
    let folder = tempfile::tempdir().unwrap();
    let rows = table(20, 30_000, |range| {
        let text = |k: i64| format!("value {:060}", k * 7919);
        vec![(
            "t".to_string(),
            Arc::new(StringArray::from_iter_values(range.map(text))) as ArrayRef,
        )]
    });
    parquet(&folder.path().join("a.parquet"), &rows);
    let (free, limited) = (faults(folder.path(), ""), faults(folder.path(), "--memory 2GiB"));
    assert!(limited < 2 * free + 5_000, "{free} faults without a limit, {limited} with one");
}

#[test]
fn output_that_is_read_slowly() {
    let folder = tempfile::tempdir().unwrap();
    let rows = table(8, 30_000, |range| {
        let text = |k: i64| format!("value {k:040}");
        vec![(
            "t".to_string(),
            Arc::new(StringArray::from_iter_values(range.map(text))) as ArrayRef,
        )]
    });
    parquet(&folder.path().join("a.parquet"), &rows);
    let limit = 64 * MIB;
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    command.args("join a.parquet a.parquet --on k -o - --memory".split(' ')).arg(limit.to_string());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let slow = std::thread::spawn(move || {
        let mut buffer = vec![0; 256 << 10];
        while stdout.read(&mut buffer).unwrap() > 0 {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let most = peak(&mut child);
    slow.join().unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(most <= limit + limit / 10 + CONSTANT, "{most} held: {message}");
    assert!(output.status.success() || message.contains("the memory limit of"), "{message}");
}

//! Parquet files of which only the rows that may match are decoded whole.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Array, Int64Array, ListArray, RecordBatch, StringArray, StringViewArray,
    StructArray,
};
use arrow::datatypes::{DataType, Field, Int64Type};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{WriterProperties, WriterVersion};

use crate::sandbox::{Sandbox, sorted};

/// More than a few batches.
const ROWS: i64 = 200_000;

/// The types of joins whose output has no unmatched row of the right table, and the others.
const LATE: [&str; 5] = ["inner", "left", "left-semi", "right-semi", "left-anti"];
const WHOLE: [&str; 4] = ["right", "full", "right-anti", "right-mark"];

/// How a Parquet file is written.
#[derive(Clone, Copy)]
struct Written {
    group: usize,
    dictionary: bool,
    version: WriterVersion,
}

const WAYS: [Written; 3] = [
    Written { group: 30_000, dictionary: true, version: WriterVersion::PARQUET_1_0 },
    Written { group: 200_000, dictionary: false, version: WriterVersion::PARQUET_1_0 },
    Written { group: 70_000, dictionary: true, version: WriterVersion::PARQUET_2_0 },
];

fn parquet(batch: &RecordBatch, way: Written) -> Vec<u8> {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(way.group))
        .set_data_page_row_count_limit(5_000)
        .set_dictionary_enabled(way.dictionary)
        .set_writer_version(way.version)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    // Pages end only between batches.
    for at in (0..batch.num_rows()).step_by(1_000) {
        writer.write(&batch.slice(at, 1_000.min(batch.num_rows() - at))).unwrap();
    }
    writer.into_inner().unwrap()
}

/// A key that is in the small table for one in about 1,000 rows, in runs of up to three, and sometimes null. The
/// keys of the small table span all keys, so no row group is left out by its statistics.
fn key(row: i64) -> Option<i64> {
    (row % 11 != 3).then_some(row / 3 * 7919 % (ROWS / 3))
}

fn small() -> RecordBatch {
    let keys = (0..70).map(|i| Some(i * 950)).chain([None]);
    let keys: ArrayRef = Arc::new(keys.collect::<Int64Array>());
    let names = (0..71).map(|i| format!("small {i}"));
    let names: ArrayRef = Arc::new(StringArray::from_iter_values(names));
    RecordBatch::try_from_iter([("k", keys), ("name", names)]).unwrap()
}

/// The key, and payload that CSV can express.
fn large() -> RecordBatch {
    let keys: ArrayRef = Arc::new((0..ROWS).map(key).collect::<Int64Array>());
    let text = |row: i64| (row % 5 != 0).then(|| format!("text {} of {row}", row % 97));
    let texts: ArrayRef = Arc::new((0..ROWS).map(text).collect::<StringArray>());
    let few: ArrayRef = Arc::new(
        (0..ROWS)
            .map(|row| Some(["red", "green", "blue"][row as usize % 3]))
            .collect::<StringArray>(),
    );
    let number = |row: i64| (row % 4 != 1).then_some(row as f64 / 8.0);
    let numbers: ArrayRef = Arc::new((0..ROWS).map(number).collect::<Float64Array>());
    RecordBatch::try_from_iter_with_nullable([
        ("text", texts, true),
        ("k", keys, true),
        ("few", few, true),
        ("number", numbers, true),
    ])
    .unwrap()
}

fn csv(batch: &RecordBatch) -> Vec<u8> {
    let mut text = Vec::new();
    arrow::csv::Writer::new(&mut text).write(batch).unwrap();
    text
}

/// Joins `small.parquet` with the given table. Returns the sorted rows.
fn joined(sandbox: &Sandbox, large: &str, more: &str) -> Vec<String> {
    let run = format!(
        "join small.parquet {large} --on k --algorithm no-partition --device cpu {more} \
         -o out.csv --overwrite"
    );
    sandbox.strait(&run).ok();
    sorted(&sandbox.read("out.csv")).into_iter().map(str::to_string).collect()
}

/// Returns the number of rows that were left out before decoding.
fn left_out(sandbox: &Sandbox, large: &str, more: &str) -> u64 {
    let run = format!(
        "join small.parquet {large} --on k --algorithm no-partition --device cpu {more} \
         --explain-analyze -o out.arrow --overwrite"
    );
    let report = sandbox.strait(&run).ok();
    let line = report.lines().find(|line| line.contains("rows left out"));
    let number = line.and_then(|line| line.split_whitespace().nth(3));
    number.map_or(0, |number| number.parse().unwrap())
}

#[test]
fn late_columns_are_the_same_as_those_from_csv() {
    let sandbox = Sandbox::new();
    sandbox.parquet("small.parquet", &small());
    let table = large();
    sandbox.write("large.csv", csv(&table));
    for (number, way) in WAYS.into_iter().enumerate() {
        sandbox.write(&format!("large{number}.parquet"), parquet(&table, way));
    }
    for join_type in LATE.into_iter().chain(WHOLE) {
        let more = format!("--type {join_type}");
        let expected = joined(&sandbox, "large.csv", &more);
        assert!(expected.len() > 1, "{join_type} has no rows");
        for number in 0..WAYS.len() {
            let large = format!("large{number}.parquet");
            assert!(joined(&sandbox, &large, &more) == expected, "{join_type} {large}");
        }
    }
    // Nulls match nulls: one in eleven rows.
    let expected = joined(&sandbox, "large.csv", "--nulls-equal");
    assert!(expected.len() > 10_000);
    assert!(joined(&sandbox, "large1.parquet", "--nulls-equal") == expected);
    for join_type in LATE {
        let more = format!("--type {join_type} --threads 3");
        let rows = left_out(&sandbox, "large1.parquet", &more);
        // A join that needs only the keys saves nothing.
        let expected =
            if ["inner", "left", "right-semi"].contains(&join_type) { 100_000 } else { 0 };
        assert!((expected..ROWS as u64).contains(&rows), "{join_type}: {rows}");
        assert_eq!(rows > 0, expected > 0, "{join_type}: {rows}");
    }
    for join_type in WHOLE {
        assert_eq!(left_out(&sandbox, "large1.parquet", &format!("--type {join_type}")), 0);
    }
}

#[test]
fn late_columns_need_no_more_memory_than_there_is() {
    let sandbox = Sandbox::new();
    sandbox.parquet("small.parquet", &small());
    let table = large();
    for (number, way) in WAYS.into_iter().enumerate() {
        sandbox.write(&format!("large{number}.parquet"), parquet(&table, way));
    }
    let expected = joined(&sandbox, "large0.parquet", "");
    for memory in ["16MiB", "24MiB", "64MiB", "1GiB"] {
        for number in 0..WAYS.len() {
            for threads in [1, 4] {
                let more = format!("--memory {memory} --threads {threads}");
                let rows = joined(&sandbox, &format!("large{number}.parquet"), &more);
                assert!(rows == expected, "large{number}.parquet {more}");
            }
        }
    }
    assert!(left_out(&sandbox, "large0.parquet", "--memory 1GiB") > 100_000);
}

/// Lists, structs and views, compared with the join that decodes everything.
#[test]
fn late_columns_may_be_nested() {
    let sandbox = Sandbox::new();
    sandbox.parquet("small.parquet", &small());
    let keys: ArrayRef = Arc::new((0..ROWS).map(key).collect::<Int64Array>());
    let list =
        |row: i64| (row % 6 != 0).then(|| (0..row % 4).map(move |i| (i != 2).then_some(row + i)));
    let lists: ArrayRef =
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>((0..ROWS).map(list)));
    let views: ArrayRef =
        Arc::new(StringViewArray::from_iter((0..ROWS).map(|row| {
            (row % 9 != 0).then(|| format!("a text of more than twelve bytes, {row}"))
        })));
    let inner: ArrayRef =
        Arc::new((0..ROWS).map(|row| (row % 2 == 0).then_some(row)).collect::<Int64Array>());
    let field = Arc::new(Field::new("inner", DataType::Int64, true));
    let structs: ArrayRef = Arc::new(StructArray::from(vec![(field, inner)]));
    let columns = [("k", keys), ("lists", lists), ("views", views), ("structs", structs)];
    let columns = columns.map(|(name, column)| (name, column, true));
    let table = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let run = |large: &str, more: &str| {
        let run = format!(
            "join small.parquet {large} --on k --device cpu {more} -o out.jsonl --overwrite"
        );
        sandbox.strait(&run).ok();
        let mut rows: Vec<_> = sandbox.read("out.jsonl").lines().map(str::to_string).collect();
        rows.sort_unstable();
        rows
    };
    for (number, way) in WAYS.into_iter().enumerate() {
        let large = format!("large{number}.parquet");
        sandbox.write(&large, parquet(&table, way));
        // The radix join reads the table before it knows the keys.
        let expected = run(&large, "--algorithm radix");
        for more in ["", " --memory 64MiB"] {
            let rows = run(&large, &format!("--algorithm no-partition{more}"));
            assert!(rows.len() > 100 && rows == expected, "{large}{more}");
        }
        assert!(left_out(&sandbox, &large, "") > 100_000);
    }
}

/// If all rows match, all columns are decoded at once, also after rows that do not match.
#[test]
fn rows_that_match_are_decoded_at_once() {
    let sandbox = Sandbox::new();
    sandbox.parquet("small.parquet", &small());
    // The first half matches, and the second does not, apart from one row.
    let key = |row: i64| {
        if row < ROWS / 2 { row % 70 * 950 } else { 1 + i64::from(row == ROWS - 7) * 949 }
    };
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..ROWS).map(key)));
    let rows: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    let table = RecordBatch::try_from_iter([("k", keys), ("n", rows)]).unwrap();
    let way = Written { group: 10_000, ..WAYS[0] };
    sandbox.write("large.parquet", parquet(&table, way));
    sandbox.write("large.csv", csv(&table));
    let expected = joined(&sandbox, "large.csv", "");
    assert_eq!(expected.len() as i64, ROWS / 2 + 2);
    assert!(joined(&sandbox, "large.parquet", "") == expected);
    let rows = left_out(&sandbox, "large.parquet", "--threads 1");
    assert!((1..=ROWS as u64 / 2 - 1).contains(&rows), "{rows}");
}

/// Keys in folder names are the same for all rows of a file.
#[test]
fn keys_of_folders_are_looked_up_with_those_of_files() {
    let sandbox = Sandbox::new();
    let years: ArrayRef = Arc::new(Int64Array::from(vec![2023, 2024, 2025]));
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![500, 950, 1_900]));
    let small = RecordBatch::try_from_iter([("year", years), ("k", keys)]).unwrap();
    sandbox.parquet("small.parquet", &small);
    for year in [2024, 2025] {
        sandbox.write(&format!("large/year={year}/a.parquet"), parquet(&large(), WAYS[0]));
    }
    let join = |algorithm: &str| {
        let run = format!(
            "join small.parquet large --on year --on k --device cpu --algorithm {algorithm} \
             -o out.csv --overwrite --explain-analyze"
        );
        let report = sandbox.strait(&run).ok();
        let text = sandbox.read("out.csv");
        (sorted(&text).join("\n"), report)
    };
    let (expected, _) = join("radix");
    assert!(expected.lines().count() > 3, "{expected}");
    let (rows, report) = join("no-partition");
    assert_eq!(rows, expected);
    assert!(report.contains("rows left out"), "{report}");
}

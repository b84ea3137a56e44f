//! Files that many workers read at the same time, and row groups that are not read.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Date32Array, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch,
    StringArray, UInt64Array,
};
use arrow::datatypes::Int64Type;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};

use crate::sandbox::{Sandbox, sorted};

const ALL_TYPES: [&str; 10] = [
    "inner",
    "left",
    "right",
    "full",
    "left-semi",
    "right-semi",
    "left-anti",
    "right-anti",
    "left-mark",
    "right-mark",
];

/// The bytes of a Parquet file with row groups of this many rows.
fn parquet(batch: &RecordBatch, group: usize, edit: impl Fn(Properties) -> Properties) -> Vec<u8> {
    let properties = edit(WriterProperties::builder().set_max_row_group_row_count(Some(group)));
    let mut writer =
        ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

type Properties = WriterPropertiesBuilder;

/// A table with a key and a number for each row. `None` is a null.
fn keyed(keys: ArrayRef) -> RecordBatch {
    let rows = Int64Array::from_iter_values(0..keys.len() as i64);
    RecordBatch::try_from_iter([("k", keys), ("n", Arc::new(rows) as ArrayRef)]).unwrap()
}

/// Writes a table with statistics, and again without.
fn twice(sandbox: &Sandbox, name: &str, table: &RecordBatch) {
    let none = |p: Properties| p.set_statistics_enabled(EnabledStatistics::None);
    sandbox.write(&format!("{name}.parquet"), parquet(table, 10, |p| p));
    sandbox.write(&format!("{name}-unknown.parquet"), parquet(table, 10, none));
}

/// Joins the tables with and without statistics, and compares the rows. Returns the plan.
fn compared(sandbox: &Sandbox, more: &str) -> String {
    let join = |suffix: &str| {
        let files = format!("left{suffix}.parquet right{suffix}.parquet");
        let run = format!("join {files} --on k {more} -o out.csv --overwrite");
        sandbox.strait(&run).ok();
        let rows = sandbox.read("out.csv");
        sorted(&rows).join("\n")
    };
    assert_eq!(join(""), join("-unknown"), "{more}");
    sandbox.strait(&format!("join left.parquet right.parquet --on k {more} --explain")).ok()
}

/// Returns those lines of a plan that say how many row groups are not read.
fn left_out(plan: &str) -> Vec<&str> {
    plan.lines().filter(|line| line.contains("left out")).collect()
}

#[test]
fn row_groups_without_a_match_are_left_out() {
    let sandbox = Sandbox::new();
    // Each side has a row group of nulls and one with some nulls.
    let key = |row: i64| if row % 100 < 12 { None } else { Some(row) };
    let left: Int64Array = (0..100).map(key).collect();
    let right: Int64Array = (45..185).map(key).collect();
    twice(&sandbox, "left", &keyed(Arc::new(left)));
    twice(&sandbox, "right", &keyed(Arc::new(right)));
    for join_type in ALL_TYPES {
        let plan = compared(&sandbox, &format!("--type {join_type}"));
        let expected: &[&str] = match join_type {
            "inner" | "left-semi" | "right-semi" => &["left.parquet: 3 of 10", "right.parquet: 8"],
            "left" | "left-anti" | "left-mark" => &["right.parquet: 8 of 14"],
            "right" | "right-anti" | "right-mark" => &["left.parquet: 3 of 10"],
            _ => &[],
        };
        let lines = left_out(&plan);
        assert_eq!(lines.len(), expected.len(), "{join_type}: {plan}");
        assert!(lines.iter().zip(expected).all(|(line, start)| line.starts_with(start)), "{plan}");
        // Nulls match, so a row group is left out only if it has none.
        let plan = compared(&sandbox, &format!("--type {join_type} --nulls-equal"));
        let expected = match join_type {
            "full" => 0,
            "inner" | "left-semi" | "right-semi" => 2,
            _ => 1,
        };
        assert_eq!(left_out(&plan).len(), expected, "{join_type}: {plan}");
    }
    let run = sandbox.strait("join left.parquet right.parquet --on k --count --explain-analyze");
    assert!(run.stderr.contains("left.parquet: 3 of 10 row groups left out"), "{}", run.stderr);
    assert!(run.stderr.contains("70"), "{}", run.stderr);
}

#[test]
fn keys_of_other_types_are_compared_with_the_ranges() {
    type Make = fn(std::ops::Range<i32>) -> ArrayRef;
    // Footers have the first 64 bytes.
    let text: Make = |rows| {
        let key = |i| format!("{i:03}{}", "x".repeat(100));
        Arc::new(StringArray::from_iter_values(rows.map(key)))
    };
    let int: Make = |rows| Arc::new(Int32Array::from_iter_values(rows));
    let date: Make = |rows| Arc::new(Date32Array::from_iter_values(rows));
    // Some of them would be negative if they were signed.
    let unsigned: Make = |rows| {
        let key = |i| u64::MAX / 2 - 50 + i as u64;
        Arc::new(UInt64Array::from_iter_values(rows.map(key)))
    };
    let float: Make = |rows| {
        let key = |i| if i % 10 == 3 { f64::NAN } else { f64::from(i) };
        Arc::new(Float64Array::from_iter_values(rows.map(key)))
    };
    let cases = [(text, 2), (int, 2), (date, 2), (unsigned, 2), (float, 0)];
    for (case, (make, expected)) in cases.into_iter().enumerate() {
        let sandbox = Sandbox::new();
        twice(&sandbox, "left", &keyed(make(0..70)));
        twice(&sandbox, "right", &keyed(make(45..120)));
        let plan = compared(&sandbox, "");
        assert_eq!(left_out(&plan).len(), expected, "case {case}: {plan}");
    }
    // Integers of two types have one order.
    let sandbox = Sandbox::new();
    twice(&sandbox, "left", &keyed(int(-20..50)));
    let right = Int64Array::from_iter_values(45..120);
    twice(&sandbox, "right", &keyed(Arc::new(right)));
    assert_eq!(left_out(&compared(&sandbox, "")).len(), 2);
    // Nothing is left of both tables.
    let sandbox = Sandbox::new();
    twice(&sandbox, "left", &keyed(int(0..20)));
    twice(&sandbox, "right", &keyed(int(50..70)));
    for join_type in ALL_TYPES {
        compared(&sandbox, &format!("--type {join_type}"));
    }
}

/// A row group that several workers divide.
#[test]
fn one_row_group_for_many_workers() {
    let sandbox = Sandbox::new();
    let rows = 300_000;
    let key: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(|i| i * 7 % rows)));
    let text = (0..rows).map(|i| (i % 5 > 0).then(|| format!("row {}", i % 1000)));
    let text: ArrayRef = Arc::new(text.collect::<StringArray>());
    let flat = [("k", key.clone()), ("t", text)];
    let list = (0..rows).map(|i| Some((0..i % 3).map(Some)));
    let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(list));
    let flat = RecordBatch::try_from_iter(flat).unwrap();
    let nested = RecordBatch::try_from_iter([("k", key), ("l", list)]).unwrap();
    sandbox.write("flat.parquet", parquet(&flat, rows as usize, |p| p));
    sandbox.write("nested.parquet", parquet(&nested, rows as usize, |p| p));
    let mut expected: Option<Vec<String>> = None;
    for more in ["--threads 1", "--threads 4", "--threads 4 --memory 48MiB"] {
        let run = format!("join flat.parquet flat.parquet --on k -o out.csv --overwrite {more}");
        sandbox.strait(&run).ok();
        let text = sandbox.read("out.csv");
        let found: Vec<String> = sorted(&text).into_iter().map(str::to_string).collect();
        assert_eq!(found.len() as i64, rows + 1, "{more}");
        assert!(expected.get_or_insert_with(|| found.clone()) == &found, "{more}");
        let run = "join flat.parquet nested.parquet --on k -o out.parquet --overwrite";
        let run = sandbox.strait(&format!("{run} --explain-analyze {more}"));
        assert!(run.stderr.contains("wrote 300,000 rows"), "{}", run.stderr);
    }
}

/// CSV text of many blocks with quoted line ends. Its keys are the numbers below `rows`.
fn csv(rows: usize) -> String {
    let mut text = String::from("k,t,u,v\n");
    for k in 0..rows {
        match k % 7 {
            0 => writeln!(text, "{k},\"a,\n\"\"{k}\"\"\n\",{},", k * 3),
            1 => writeln!(text, "{k},,\"\",x\"y"),
            2 => writeln!(text, "{k},\"{}\",,\r", "long ".repeat(k % 50)),
            _ => writeln!(text, "{k},plain text {k},{},v{k}", k % 10),
        }
        .unwrap();
    }
    text
}

#[test]
fn csv_blocks_for_many_workers() {
    let sandbox = Sandbox::new();
    let rows = 120_000;
    let text = csv(rows);
    assert!(text.len() > 4 << 20);
    sandbox.write("c.csv", &text);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    sandbox.write("c.csv.gz", gzip.finish().unwrap());
    for part in 0..5 {
        sandbox.write(&format!("parts/{part}.csv"), csv(rows / 10));
    }
    sandbox
        .write("keys.csv", (0..rows).fold("k\n".to_string(), |text, k| text + &format!("{k}\n")));
    let mut expected: Option<String> = None;
    for file in ["c.csv", "c.csv.gz"] {
        for more in ["--threads 1", "--threads 4", "--threads 3 --memory 24MiB"] {
            let join = format!("join keys.csv {file} --on k {more} --sample 1000");
            assert_eq!(sandbox.strait(&format!("{join} --count")).ok(), format!("{rows}\n"));
            let join = format!("{join} --algorithm sort-merge -o out.csv --overwrite");
            sandbox.strait(&join).ok();
            let found = sandbox.read("out.csv");
            assert!(expected.get_or_insert_with(|| found.clone()) == &found, "{file} {more}");
            sandbox.strait(&format!("{join} --select k,v")).ok();
            assert_eq!(sandbox.read("out.csv").lines().count(), rows + 1, "{file} {more}");
        }
    }
    let run = "join keys.csv parts --on k --count --threads 4";
    assert_eq!(sandbox.strait(run).ok(), format!("{}\n", rows / 2));
}

/// An error in any block names the line of the file.
#[test]
fn csv_errors_name_their_line() {
    let sandbox = Sandbox::with_people();
    let good = csv(50_000);
    let line = good.lines().count() + 1;
    let cases = [
        ("oops,t,u,v\n", "column \"k\" has \"oops\""),
        ("7,t,u\n", "3 field(s) where 4 are expected"),
        ("7,t,u,v,w\n", "where 4 are expected"),
    ];
    for (bad, message) in cases {
        sandbox.write("bad.csv", format!("{good}{bad}{}", csv(20_000)));
        for more in ["", "--select name", "--threads 1 --memory 64MiB"] {
            let join = format!("join people.csv bad.csv --on city=k --sample 100 {more}");
            sandbox.strait(&join).fails(&[&format!("bad.csv, line {line}: "), message]);
        }
    }
    let mut bytes = good.clone().into_bytes();
    bytes.extend(b"7,\xff,u,v\n");
    sandbox.write("bad.csv", bytes);
    let join = "join people.csv bad.csv --on city=k --sample 100";
    sandbox.strait(join).fails(&[&format!("bad.csv, line {line}, field 2"), "not UTF-8"]);
}

/// An empty line is no row, however long the lines are, and whoever parses them.
#[test]
fn empty_lines_of_one_column_are_no_rows() {
    let sandbox = Sandbox::new();
    for value in ["1", "1000000", "a long text that is not a number"] {
        let line = format!("{value}\n");
        let text = format!("\nk\n{line}\n{line}\r\n{line}\n");
        sandbox.write("one.csv", &text);
        sandbox.write("crlf.csv", text.replace('\n', "\r\n").replace("\r\r", "\r"));
        for name in ["one.csv", "crlf.csv"] {
            let join = format!("join {name} {name} --on k --type left-semi --nulls-equal --count");
            assert_eq!(sandbox.strait(&join).ok(), "3\n", "{value} in {name}");
        }
    }
}

/// A block of text ends between a carriage return and its line feed.
#[test]
fn a_line_end_of_two_bytes_may_be_cut() {
    let sandbox = Sandbox::new();
    for less in 0..4 {
        let long = "x".repeat((1 << 20) - less);
        let rest = "yyyyyyyyyyyyyyyyyyyy\r\n".repeat(3);
        sandbox.write("cut.csv", format!("k\r\n{long}\r\n{rest}"));
        let run = sandbox.strait("join cut.csv cut.csv --on k --type left-semi --count");
        assert_eq!(run.ok(), "4\n", "{less}");
    }
}

/// A header may come after more empty lines than a block of text has.
#[test]
fn a_header_after_many_empty_lines() {
    let sandbox = Sandbox::new();
    for line_end in ["\n", "\r\n"] {
        let empty = line_end.repeat((1 << 20) + 7);
        for row in ["1,2", "1,x"] {
            sandbox.write("late.csv", format!("{empty}k,v{line_end}{row}{line_end}"));
            for more in ["", "--memory 32MiB", "--threads 3"] {
                let join = format!("join late.csv late.csv --on k=k --count {more}");
                assert_eq!(sandbox.strait(&join).ok(), "1\n", "{row} {more}");
            }
        }
        sandbox.write("bad.csv", format!("{empty}k,v{line_end}1,2{line_end}1,x{line_end}"));
        let line = format!("bad.csv, line {}: ", (1 << 20) + 10);
        sandbox.strait("join bad.csv bad.csv --on k --sample 1").fails(&[&line, "\"x\""]);
    }
}

/// A time with more digits than the sample suggests is an error. It never loses digits, because it would match other
/// times then.
#[test]
fn csv_times_are_not_shortened() {
    let sandbox = Sandbox::new();
    let noon = "2024-02-29 12:00:00";
    let cases = [
        ("2024-02-29", noon.to_string(), "Date32"),
        ("2024-02-29", "2024-02-28T23:00:00-05:00".to_string(), "Date32"),
        (noon, format!("{noon}.5"), "Timestamp(s)"),
        (noon, format!("{noon}.1234567891"), "Timestamp(s)"),
        ("2024-02-29 12:00:00.123", format!("{noon}.1234"), "Timestamp(ms)"),
        ("2024-02-29 12:00:00.123456", format!("{noon}.1234567"), "Timestamp(µs)"),
        ("2024-02-29 12:00:00.123456789", format!("{noon}.1234567891"), "Timestamp(ns)"),
    ];
    for (first, later, data_type) in cases {
        sandbox.write("q.csv", format!("t\n{first}\n"));
        // Arrow parses blocks with booleans or with empty lines.
        for (more, line) in [(",1,\n", 3), (",true,\n", 3), (",1,\n\n", 4)] {
            sandbox.write("s.csv", format!("t,b,c\n{first}{more}{later}{more}"));
            for limit in ["", "--memory 64MiB"] {
                let join = format!("join s.csv q.csv --on t --sample 1 --count {limit}");
                let place = format!("s.csv, line {line}: column \"t\" has \"{later}\"");
                let why = format!("not of type {data_type} as the first 1 row suggested");
                sandbox.strait(&join).fails(&[&place, &why, "--sample all", "--cast t=text"]);
            }
        }
    }
    sandbox.write("s.csv", format!("t\n{noon}\n{noon}.5\n2024-02-29\n2024-02-29T11:00:00-01:00\n"));
    sandbox.write("q.csv", format!("t\n{noon}\n"));
    assert_eq!(sandbox.strait("join s.csv q.csv --on t --count").ok(), "2\n");
    // A leap second is not the second before it.
    sandbox.write("s.csv", "t\n2016-12-31 23:59:60\n");
    sandbox.write("q.csv", "t\n2016-12-31 23:59:59\n");
    assert_eq!(sandbox.strait("join s.csv q.csv --on t --count").ok(), "0\n");
}

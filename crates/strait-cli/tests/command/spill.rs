//! Joins that do not fit their memory limit write rows to temporary files.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::ipc::writer::FileWriter;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::sandbox::{Sandbox, sorted};

/// The number of rows of each table. A table has some 10 MB.
const ROWS: i64 = 120_000;

/// The join of the tables of [`large`].
const JOIN: &str = "join a.parquet b.parquet --on k --threads 2 --device cpu";

/// Returns a table with long keys that start at `first`, in no order. Some keys are null, and some occur twice.
fn table(first: i64, payload: &str) -> RecordBatch {
    let number = |row: i64| row * 7919 % ROWS;
    let key = |row: i64| first + number(row) - number(row) % 100 / 99;
    let key = |row: i64| (row % 1000 != 7).then(|| format!("{:060}", key(row)));
    let keys: StringArray = (0..ROWS).map(key).collect();
    let rows = Int64Array::from_iter_values(0..ROWS);
    let columns = [("k", Arc::new(keys) as ArrayRef, true), (payload, Arc::new(rows) as _, false)];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// Two tables with half of their keys in common, and an empty folder for temporary files.
fn large() -> Sandbox {
    let sandbox = Sandbox::new();
    for (name, batch) in [("a.parquet", table(0, "p")), ("b.parquet", table(ROWS / 2, "q"))] {
        // A decoder needs memory for the pages of a row group.
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(10_000));
        let mut bytes = Vec::new();
        let writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties.build()));
        let mut writer = writer.unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        assert!(bytes.len() > 7 << 20, "{}", bytes.len());
        sandbox.write(name, bytes);
    }
    std::fs::create_dir(sandbox.path("temp")).unwrap();
    sandbox
}

/// Checks that the folder for temporary files is empty.
#[track_caller]
fn leaves_nothing(sandbox: &Sandbox) {
    let left: Vec<_> = std::fs::read_dir(sandbox.path("temp")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_limit_does_not_change_the_rows() {
    let sandbox = large();
    std::fs::create_dir(sandbox.path("temp2")).unwrap();
    for join_type in ["inner", "left", "full", "left-anti"] {
        let join = format!("{JOIN} --type {join_type} --overwrite --explain-analyze");
        let report = sandbox.strait(&format!("{join} -o all.csv")).ok();
        assert!(!report.contains("written to disk"), "{report}");
        let limits = "--memory 16MiB --temp-dir temp --temp-dir temp2 --disk 1GiB";
        let report = sandbox.strait(&format!("{join} {limits} -o limited.csv")).ok();
        assert!(report.contains("written to disk"), "{report}");
        let (all, limited) = (sandbox.read("all.csv"), sandbox.read("limited.csv"));
        assert!(all.lines().count() > 1000, "{join_type}");
        assert!(sorted(&all) == sorted(&limited), "{join_type}");
    }
    leaves_nothing(&sandbox);
}

/// The join needs only the keys of an Arrow file, but each batch in memory has all columns.
#[test]
fn batches_with_columns_that_are_not_needed() {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("temp")).unwrap();
    for name in ["a.arrow", "b.arrow"] {
        let batch = |from: i64| {
            let keys = Int64Array::from_iter_values(from..from + 16);
            let texts = StringArray::from_iter_values((0..16).map(|_| "x".repeat(50_000)));
            let columns = [("k", Arc::new(keys) as ArrayRef), ("t", Arc::new(texts) as _)];
            RecordBatch::try_from_iter(columns).unwrap()
        };
        let mut bytes = Vec::new();
        let mut writer = FileWriter::try_new(&mut bytes, &batch(0).schema()).unwrap();
        (0..400).step_by(16).for_each(|from| writer.write(&batch(from)).unwrap());
        writer.finish().unwrap();
        drop(writer);
        sandbox.write(name, bytes);
    }
    for algorithm in ["auto", "spill"] {
        let join = "join a.arrow b.arrow --on k --memory 16MiB --count --temp-dir temp --threads 2";
        let count = sandbox.strait(&format!("{join} --algorithm {algorithm}")).ok();
        assert_eq!(count, "400\n");
    }
    leaves_nothing(&sandbox);
}

/// The system's folder for temporary files is the default.
#[test]
fn without_a_folder_the_default_is_used() {
    let sandbox = large();
    let expected = sandbox.strait(&format!("{JOIN} --count")).ok();
    let run = |folder: &str| {
        let mut command = sandbox.command();
        command.args(JOIN.split(' ')).args(["--count", "--memory", "16MiB"]);
        crate::sandbox::outcome(command.env("TMPDIR", sandbox.path(folder)))
    };
    assert_eq!(run("temp").ok(), expected);
    leaves_nothing(&sandbox);
    run("nowhere").fails(&["nowhere", "create the folder", "(--temp-dir)"]);
    // A join that fits does not need the folder.
    let small = "join a.parquet a.parquet --on p --memory 1GiB --count";
    let mut command = sandbox.command();
    command.args(small.split(' ')).env("TMPDIR", sandbox.path("nowhere"));
    crate::sandbox::outcome(&mut command).ok();
}

#[test]
fn a_join_that_may_not_spill_fails() {
    let sandbox = large();
    let limited = format!("{JOIN} --memory 16MiB -o out.parquet");
    let limit = "the memory limit of 16.0 MiB is too small";
    sandbox.strait(&format!("{limited} --no-spill")).fails(&[limit, "leave out --no-spill"]);
    let sorts = format!("{limited} --no-spill --algorithm sort-merge");
    sandbox.strait(&sorts).fails(&[limit, "leave out --no-spill"]);
    assert!(!sandbox.path("out.parquet").exists());
}

/// A sort-merge join writes sorted runs. Its output has the same order as without a limit.
#[test]
fn the_output_of_sort_merge_stays_sorted() {
    let sandbox = large();
    let run = format!("{JOIN} --algorithm sort-merge --type left");
    sandbox.strait(&format!("{run} -o a.csv")).ok();
    let limited = format!("{run} --memory 16MiB --temp-dir temp --explain-analyze -o b.csv");
    let report = sandbox.strait(&limited).ok();
    assert!(report.contains("written to disk") && report.contains("key ranges"), "{report}");
    let keys = |name: &str| {
        let text = sandbox.read(name);
        let key = |line: &str| line.split(',').next().unwrap_or("").to_string();
        text.lines().map(key).collect::<Vec<_>>()
    };
    let (a, b) = (keys("a.csv"), keys("b.csv"));
    assert!(a.len() > ROWS as usize && a == b, "{} and {} rows", a.len(), b.len());
    assert_eq!(sorted(&sandbox.read("a.csv")), sorted(&sandbox.read("b.csv")));
    leaves_nothing(&sandbox);
}

#[test]
fn the_limit_on_disk_is_kept() {
    let sandbox = large();
    let run = format!("{JOIN} --memory 16MiB --temp-dir temp --disk 1MiB -o out.parquet");
    sandbox.strait(&run).fails(&["temp: the limit of 1.0 MiB on disk is too small", "(--disk)"]);
    assert!(!sandbox.path("out.parquet").exists());
    leaves_nothing(&sandbox);
}

#[test]
fn spilling_can_be_asked_for() {
    let sandbox = Sandbox::with_people();
    std::fs::create_dir(sandbox.path("temp")).unwrap();
    let run = "join people.csv cities.csv --on city=id --type full";
    sandbox.strait(&format!("{run} -o a.csv")).ok();
    let spill = "--algorithm spill --temp-dir temp --explain-analyze -o b.csv";
    let report = sandbox.strait(&format!("{run} {spill}")).ok();
    assert!(report.contains("written to disk"), "{report}");
    assert_eq!(sorted(&sandbox.read("a.csv")), sorted(&sandbox.read("b.csv")));
    leaves_nothing(&sandbox);
}

/// A folder that cannot be used is refused before any input is read: the input of these runs does not exist.
#[test]
fn folders_are_checked_first() {
    let sandbox = Sandbox::with_people();
    let run = |more: &str| sandbox.strait(&format!("join no.csv cities.csv --on id {more}"));
    let limited = |folder: &str| run(&format!("--memory 1GiB --temp-dir {folder}"));
    limited("nowhere").fails(&["--temp-dir nowhere does not exist; create the folder"]);
    limited("people.csv").fails(&["--temp-dir people.csv is not a folder"]);
    limited("people.csv/temp").fails(&["--temp-dir people.csv/temp cannot be used"]);
    // Nobody can create files there.
    #[cfg(target_os = "linux")]
    limited("/proc").fails(&["in --temp-dir /proc", "make the folder writable"]);
    run("--memory 1GiB --temp-dir . --temp-dir nowhere").fails(&["nowhere does not exist"]);
    run("--algorithm spill --temp-dir nowhere").fails(&["nowhere does not exist"]);
    run("--memory 1GiB --temp-dir .").fails(&["no.csv"]);
}

/// Compressed rows are fewer bytes, and the report says how many.
#[test]
fn spilled_rows_can_be_compressed() {
    let sandbox = large();
    let run = format!("{JOIN} --algorithm spill --temp-dir temp --overwrite --explain-analyze");
    sandbox.strait(&format!("{run} -o none.csv")).ok();
    for codec in ["none", "lz4", "zstd"] {
        let run = format!("{run} --memory 64MiB --spill-compression {codec} -o {codec}.csv");
        let report = sandbox.strait(&run).ok();
        assert!(report.contains("written to disk"), "{report}");
        assert_eq!(report.contains("before compression"), codec != "none", "{report}");
        assert!(
            sorted(&sandbox.read("none.csv")) == sorted(&sandbox.read(&format!("{codec}.csv")))
        );
    }
    leaves_nothing(&sandbox);
}

#[test]
fn flags_without_effect_are_refused() {
    let sandbox = Sandbox::with_people();
    let cases: [(&str, &[&str]); 10] = [
        ("--temp-dir .", &["--temp-dir has no effect without --memory", "--algorithm spill"]),
        ("--disk 1GiB", &["--disk has no effect without --memory"]),
        ("--algorithm sort-merge --disk 1GiB", &["--disk has no effect without --memory"]),
        ("--memory 1GiB --no-spill --disk 1GiB", &["--no-spill", "--disk"]),
        ("--memory 1GiB --no-spill --temp-dir .", &["--no-spill", "--temp-dir"]),
        ("--no-spill --algorithm spill", &["--no-spill contradicts --algorithm spill"]),
        ("--memory 1GiB --disk 0", &["more than zero"]),
        ("--spill-compression lz4", &["--spill-compression has no effect without --memory"]),
        (
            "--memory 1GiB --no-spill --spill-compression lz4",
            &["--no-spill", "--spill-compression"],
        ),
        ("--memory 1GiB --spill-compression snappy", &["none, lz4, zstd"]),
    ];
    for (more, parts) in cases {
        let run = format!("join people.csv cities.csv --on city=id {more}");
        sandbox.strait(&run).refused(parts);
    }
}

#[test]
fn explain_says_where_rows_may_go() {
    let sandbox = Sandbox::with_people();
    std::fs::create_dir(sandbox.path("temp")).unwrap();
    for (more, line) in [
        ("--memory 1GiB --temp-dir temp", "if the join does not fit 1.0 GiB, it writes rows to"),
        ("--memory 1GiB --temp-dir temp", "temporary files in temp\n"),
        ("--memory 1GiB --temp-dir temp --temp-dir .", "temporary files in temp, .\n"),
        ("--memory 1GiB --temp-dir temp --disk 5GiB", "in temp, at most 5.0 GiB at once\n"),
        ("--algorithm spill --temp-dir temp", "both tables go to temporary files in temp\n"),
        ("--memory 1GiB --no-spill", "spilling: none, because of --no-spill"),
        ("--memory 1GiB --algorithm sort-merge --temp-dir temp", "temporary files in temp\n"),
    ] {
        let run = format!("join people.csv cities.csv --on city=id --explain {more}");
        let plan = sandbox.strait(&run).ok();
        assert!(plan.contains(line), "{more}: {plan}");
    }
    let plan = sandbox.strait("join people.csv cities.csv --on city=id --explain").ok();
    assert!(!plan.contains("spill"), "{plan}");
}

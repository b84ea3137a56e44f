//! `--cast`: columns get other types before the join.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::properties::WriterProperties;

use crate::sandbox::{Sandbox, batch, sorted, stream_of};

/// Cities whose ids are text.
fn cities() -> RecordBatch {
    let ids: ArrayRef = Arc::new(StringArray::from(vec!["1", "02", "3"]));
    let titles: ArrayRef = Arc::new(StringArray::from(vec!["Oslo", "Rome", "Kiel"]));
    RecordBatch::try_from_iter([("id", ids), ("title", titles)]).unwrap()
}

/// A sandbox with people, and with cities in every format.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("c.parquet", &cities());
    sandbox.ipc_file("c.arrow", &cities());
    sandbox.ipc_stream("c.arrows", &cities());
    sandbox.write("c.csv", "id,title\n1,Oslo\n02,Rome\n\"3\",Kiel\nx,\n");
    sandbox.write(
        "c.jsonl",
        "{\"id\":\"1\",\"title\":\"Oslo\"}\n{\"id\":\"02\",\"title\":\"Rome\"}\n",
    );
    sandbox
}

/// Returns the types of a Parquet file.
fn types(sandbox: &Sandbox, name: &str) -> Vec<String> {
    let file = std::fs::File::open(sandbox.path(name)).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    reader.schema().fields().iter().map(|field| field.data_type().to_string()).collect()
}

#[test]
fn text_keys_meet_integers() {
    let sandbox = sandbox();
    sandbox.write("c.csv", "id,title\n1,Oslo\n02,Rome\n\"3\",Kiel\n");
    let expected = ["name,city,id,title", "Ada,1,1,Oslo", "Bob,2,2,Rome"];
    for cities in ["c.parquet", "c.arrow", "c.arrows", "c.csv", "c.jsonl"] {
        for more in ["", "--memory 32MiB", "--threads 3"] {
            let join = format!("join people.csv {cities} --on city=id --cast id=BIGINT {more}");
            sandbox.strait(&format!("{join} -o out.csv --overwrite")).ok();
            assert_eq!(sorted(&sandbox.read("out.csv")), expected, "{cities} {more}");
        }
    }
    let join = "join people.csv - --on city=id --cast id=bigint --count";
    assert_eq!(sandbox.strait_with_stdin(join, &stream_of(&cities())).ok(), "2\n");
}

/// The digits of text files are kept if a column becomes text.
#[test]
fn numbers_become_the_text_of_the_file() {
    let sandbox = sandbox();
    sandbox.write("n.csv", "id,v\n1,1.50\n02,2\n");
    sandbox.write("n.jsonl", "{\"id\":1,\"v\":1.50}\n{\"id\":2,\"v\":true}\n");
    let run = "join n.csv c.parquet --on id --cast id=text --cast v=varchar -o out.csv";
    sandbox.strait(run).ok();
    assert_eq!(sorted(&sandbox.read("out.csv")), ["id,v,title", "02,2,Rome", "1,1.50,Oslo"]);
    let run = "join n.jsonl c.parquet --on id --cast id=text --cast v=text -o out.csv --overwrite";
    sandbox.strait(run).ok();
    assert_eq!(sorted(&sandbox.read("out.csv")), ["id,v,title", "1,1.50,Oslo"]);
    // Later lines may have values of any type.
    let late = format!("{}{{\"id\":\"x\"}}\n", "{\"id\":1}\n".repeat(10));
    sandbox.write("late.jsonl", late);
    let run = "join late.jsonl c.parquet --on id --cast id=text --sample 1 --count";
    assert_eq!(sandbox.strait(run).ok(), "10\n");
}

#[test]
fn columns_that_are_no_keys() {
    let sandbox = Sandbox::with_people();
    sandbox
        .write("t.csv", "id,a,b,c,d,e\n1,7.0,true,2024-01-02,1.25,2024-01-02T03:04:05\n2,,,,,\n");
    let casts = "--cast a=int32 --cast b=bool --cast c=timestamp(ms) --cast d=decimal(9,2) \
                 --cast e=timestamp(us,UTC) --cast title=binary";
    let run =
        format!("join t.csv cities.csv --on id {casts} --select a,b,c,d,e,title -o out.parquet");
    sandbox.strait(&run).ok();
    let expected = [
        "Int32",
        "Boolean",
        "Timestamp(ms)",
        "Decimal128(9, 2)",
        "Timestamp(µs, \"UTC\")",
        "Binary",
    ];
    assert_eq!(types(&sandbox, "out.parquet"), expected);
    // A column that is not read is not cast.
    let run = "join t.csv cities.csv --on id --cast e=date --cast title=int8 --select id --count";
    let run = sandbox.strait(&run.replace("--select id ", ""));
    assert_eq!(run.ok(), "2\n");
    let run = "join t.csv cities.csv --on id --cast title=int8 --select id,a -o out.csv";
    sandbox.strait(run).ok();
}

#[test]
fn a_value_that_cannot_be_cast_is_named() {
    let sandbox = sandbox();
    let join = |file: &str, cast: &str, more: &str| {
        sandbox.strait(&format!("join {file} cities.csv --on id --cast {cast} {more} -o out.csv"))
    };
    let wrong = "column \"id\" has \"x\", which cannot be cast to int64";
    join("c.csv", "left.id=int64", "").fails(&["c.csv, line 5: ", wrong]);
    let rows: String = (0..200_000).map(|i| format!("{i},t\n")).collect();
    sandbox.write("long.csv", format!("id,t\n{rows}x,t\n{rows}"));
    for more in ["", "--threads 3 --memory 64MiB"] {
        join("long.csv", "left.id=int64", more).fails(&["long.csv, line 200002: ", wrong]);
    }
    sandbox.write("c.jsonl", "{\"id\":1}\n\n{\"id\":\"2\"}\n{\"id\":\"x\"}\n{\"id\":3}\n");
    join("c.jsonl", "left.id=int64", "").fails(&["c.jsonl, line 4: ", wrong]);
    let bad: ArrayRef = Arc::new(StringArray::from(vec![Some("1"), None, Some("x")]));
    let bad = RecordBatch::try_from_iter([("id", bad)]).unwrap();
    sandbox.parquet("bad.parquet", &bad);
    sandbox.ipc_file("bad.arrow", &bad);
    join("bad.parquet", "left.id=int64", "").fails(&["bad.parquet: ", wrong]);
    join("bad.arrow", "left.id=int64", "").fails(&["bad.arrow: ", wrong]);
    let stdin =
        sandbox.strait_with_stdin("join - cities.csv --on id --cast id=int64", &stream_of(&bad));
    stdin.fails(&["stdin: ", wrong]);
    // Out of range, and a fraction.
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 300]));
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![2.0, 2.9]));
    let numbers = RecordBatch::try_from_iter([("id", numbers), ("f", floats)]).unwrap();
    sandbox.parquet("n.parquet", &numbers);
    join("n.parquet", "left.id=int8", "").fails(&["\"id\" has \"300\"", "cannot be cast to int8"]);
    join("n.parquet", "f=int64", "").fails(&["\"f\" has \"2.9\"", "cannot be cast to int64"]);
    sandbox.write("n.csv", "id,f\n1,1\n2,1e3\n");
    join("n.csv", "f=int64", "").fails(&["n.csv, line 3", "\"f\" has \"1e3\""]);
    assert!(!sandbox.path("out.csv").exists());
}

#[test]
fn columns_are_found_by_their_names() {
    let sandbox = sandbox();
    sandbox.parquet("a.parquet", &batch(("id", &[1, 2]), ("title", &["x", "y"])));
    let join = |casts: &str| {
        sandbox
            .strait(&format!("join a.parquet c.parquet --on id {casts} -o out.parquet --overwrite"))
    };
    // A column of both tables is cast in both.
    join("--cast id=int32").ok();
    assert_eq!(types(&sandbox, "out.parquet"), ["Int32", "Utf8", "Utf8"]);
    join("--cast right.id=int64 --cast left.title=binary").ok();
    assert_eq!(types(&sandbox, "out.parquet"), ["Int64", "Binary", "Utf8"]);
    join("--cast id_right=int64 --cast title_right=binary").ok();
    assert_eq!(types(&sandbox, "out.parquet"), ["Int64", "Utf8", "Binary"]);
    join("--cast idd=int64").fails(&["--cast idd: neither table", "did you mean \"id\"?"]);
    join("--cast left.idd=int64")
        .fails(&["left table has no column \"idd\"", "did you mean \"id\"?"]);
    join("--cast right.zzzzzz=int64").fails(&["the columns are id, title"]);
    join("--cast id=int64 --cast left.id=text").fails(&["cast twice"]);
    join("--cast id=number").refused(&["is not a type", "int64", "decimal(DIGITS,SCALE)"]);
    join("--cast id").refused(&["COLUMN=TYPE"]);
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(1)])]);
    let list = RecordBatch::try_from_iter([("l", Arc::new(list) as ArrayRef)]).unwrap();
    sandbox.parquet("list.parquet", &list);
    let run = sandbox.strait("join list.parquet c.parquet --on l=id --cast l=int64");
    run.fails(&["list.parquet: column \"l\" has type List", "cannot be cast to int64"]);
}

#[test]
fn folder_columns() {
    let sandbox = Sandbox::with_people();
    sandbox.write("t/city=01/a.csv", "x\n5\n6\n");
    sandbox.write("t/city=2/a.csv", "x\n7\n");
    sandbox.write("t/city=__HIVE_DEFAULT_PARTITION__/a.csv", "x\n8\n");
    sandbox.write("keys.csv", "k,t\n01,a\n1,b\n2,c\n");
    let run = "join t keys.csv --on city=k --cast city=text --cast k=text -o out.csv";
    sandbox.strait(run).ok();
    assert_eq!(
        sorted(&sandbox.read("out.csv")),
        ["x,city,k,t", "5,01,01,a", "6,01,01,a", "7,2,2,c"]
    );
    let run =
        "join t people.csv --on city --cast left.city=int16 --select x,name -o out.csv --overwrite";
    sandbox.strait(run).ok();
    assert_eq!(sorted(&sandbox.read("out.csv")), ["x,name", "5,Ada", "6,Ada", "7,Bob"]);
    sandbox.write("t/city=300/a.csv", "x\n7\n");
    let run = "join t people.csv --on city --cast left.city=int8";
    sandbox.strait(run).fails(&["city=300", "\"city\" has \"300\"", "cannot be cast to int8"]);
}

/// The text "05" is not in the range from "1" to "9", but the number is.
#[test]
fn statistics_of_a_cast_key_are_not_used() {
    let sandbox = Sandbox::new();
    let text = |width: usize| -> ArrayRef {
        Arc::new(StringArray::from_iter_values((1..10).map(|i| format!("{i:0width$}"))))
    };
    let write = |name: &str, keys: ArrayRef| {
        let table = RecordBatch::try_from_iter([("k", keys)]).unwrap();
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(10)).build();
        let mut writer =
            ArrowWriter::try_new(Vec::new(), table.schema(), Some(properties)).unwrap();
        writer.write(&table).unwrap();
        sandbox.write(name, writer.into_inner().unwrap());
    };
    write("short.parquet", text(1));
    write("long.parquet", text(2));
    write("int.parquet", Arc::new(Int64Array::from_iter_values(5..15)));
    let count = |run: &str| sandbox.strait(&format!("join {run} --on k --count")).ok();
    assert_eq!(count("short.parquet long.parquet --cast k=int64"), "9\n");
    assert_eq!(count("long.parquet short.parquet --cast k=int64"), "9\n");
    assert_eq!(count("long.parquet int.parquet --cast left.k=int64"), "5\n");
    assert_eq!(count("int.parquet short.parquet --cast left.k=text"), "5\n");
    let run = "join short.parquet long.parquet --on k --explain";
    let plan = sandbox.strait(&format!("{run} --cast k=int64")).ok();
    assert!(plan.contains("short.parquet: column \"k\" is cast from Utf8 to Int64"), "{plan}");
    assert!(
        plan.contains("long.parquet: column \"k\" is cast") && !plan.contains("left out"),
        "{plan}"
    );
    // Without a cast, the ranges are used.
    let plan = sandbox.strait(run).ok();
    assert!(plan.contains("left out") && !plan.contains("cast"), "{plan}");
}

/// The message about keys that cannot be compared shows a cast that works.
#[test]
fn a_cast_is_suggested() {
    let sandbox = sandbox();
    let run = "join people.csv c.parquet --on city=id --count";
    sandbox.strait(run).fails(&["cannot compare", "--cast id=int64"]);
    assert_eq!(sandbox.strait(&format!("{run} --cast id=int64")).ok(), "2\n");
    let run = "join cities.csv c.parquet --on id --count";
    sandbox.strait(run).fails(&["--cast right.id=int64"]);
    assert_eq!(sandbox.strait(&format!("{run} --cast right.id=int64")).ok(), "3\n");
}

/// Casts of many batches, under a limit that refuses memory now and then.
#[test]
fn no_row_is_lost_under_a_limit() {
    let sandbox = Sandbox::new();
    let rows: Vec<i64> = (0..200_000).collect();
    let texts: Vec<String> = rows.iter().map(|i| format!("{:030}", i % 1000)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    sandbox.parquet("a.parquet", &batch(("k", &rows), ("t", &texts)));
    let keys: String = rows.iter().map(|i| format!("{i}\n")).collect();
    sandbox.write("b.csv", format!("k\n{keys}"));
    for memory in ["16MiB", "24MiB", "48MiB", "512MiB"] {
        let run = format!(
            "join b.csv a.parquet --on k --cast k=text --cast t=int64 --threads 4 --memory {memory} --type \
             right-semi --select k,t -o out.csv --overwrite"
        );
        let run = sandbox.strait(&run);
        if memory != "512MiB" && run.status == Some(1) {
            run.fails(&["memory limit"]);
            continue;
        }
        run.ok();
        assert_eq!(sandbox.read("out.csv").lines().count(), rows.len() + 1, "{memory}");
    }
}

//! JSON lines as input and as output.

use std::io::{Read, Write};

use crate::sandbox::{Sandbox, batch, sorted};

const PEOPLE: &str = r#"{"name": "Ada", "city": 1}
{"name": "Bob", "city": 2}

{"name": "Cid"}
{"city": 9, "name": "Dan"}
"#;

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::with_people();
    sandbox.write("people.jsonl", PEOPLE);
    sandbox
}

fn gzip(text: &str) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn plain_and_compressed() {
    let sandbox = sandbox();
    sandbox.write("people.ndjson", format!("\u{feff}{}", PEOPLE.replace('\n', "\r\n")));
    sandbox.write("people.jsonl.gz", gzip(PEOPLE));
    sandbox.write("people.ndjson.zst", zstd::encode_all(PEOPLE.as_bytes(), 0).unwrap());
    let expected = ["name,city,id,title", "Ada,1,1,Oslo", "Bob,2,2,Rome", "Cid,,,", "Dan,9,,"];
    for people in ["people.jsonl", "people.ndjson", "people.jsonl.gz", "people.ndjson.zst"] {
        for memory in ["", "--memory 64MiB"] {
            let join = format!("join {people} cities.csv --type left --on city=id {memory}");
            sandbox.strait(&format!("{join} -o out.csv --overwrite")).ok();
            assert_eq!(sorted(&sandbox.read("out.csv")), expected, "{people}");
        }
    }
}

#[test]
fn rows_become_lines() {
    let sandbox = sandbox();
    let join = "join people.jsonl cities.csv --type left --on city=id -o";
    sandbox.strait(&format!("{join} out.jsonl")).ok();
    sandbox.strait(&format!("{join} out.ndjson --memory 64MiB")).ok();
    let lines = r#"{"name":"Ada","city":1,"id":1,"title":"Oslo"}
{"name":"Bob","city":2,"id":2,"title":"Rome"}
{"name":"Cid","city":null,"id":null,"title":null}
{"name":"Dan","city":9,"id":null,"title":null}"#;
    let sorted_lines = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_string).collect();
        lines.sort();
        lines
    };
    for name in ["out.jsonl", "out.ndjson"] {
        assert_eq!(sorted_lines(&sandbox.read(name)), sorted_lines(lines), "{name}");
    }
    // What the command writes, it reads again.
    for ending in ["jsonl.gz", "jsonl.zst", "ndjson.gz", "ndjson.zst"] {
        sandbox.strait(&format!("{join} out.{ending}")).ok();
        let again = format!("join out.{ending} cities.csv --on id --count");
        assert_eq!(sandbox.strait(&again).ok(), "2\n", "{ending}");
    }
}

/// A file without bytes is no gzip file, and no zstd file either.
#[test]
fn compressed_files_without_rows_are_valid() {
    let sandbox = Sandbox::new();
    sandbox.write("a.csv", "id\n1\n");
    sandbox.write("b.csv", "id\n2\n");
    sandbox.strait("join a.csv b.csv --on id -o out.jsonl.gz").ok();
    let mut text = String::new();
    let bytes = std::fs::read(sandbox.path("out.jsonl.gz")).unwrap();
    flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
    sandbox.strait("join a.csv b.csv --on id -o out.jsonl.zst").ok();
    let bytes = std::fs::read(sandbox.path("out.jsonl.zst")).unwrap();
    assert!(!bytes.is_empty() && zstd::decode_all(&bytes[..]).unwrap().is_empty());
    assert_eq!(text, "");
}

#[test]
fn nested_values_go_through() {
    let sandbox = Sandbox::new();
    let row = |i: i64| {
        let s = "é\\\"\\n".repeat(usize::try_from(i % 3).unwrap());
        format!("{{\"k\":{i},\"o\":{{\"s\":\"{s}\",\"l\":[{i},null]}},\"e\":[]}}\n")
    };
    let lines: String = (0..5000).map(row).collect();
    sandbox.write("a.jsonl", &lines);
    let keys: Vec<i64> = (0..5000).collect();
    let titles: Vec<&str> = keys.iter().map(|_| "x").collect();
    sandbox.parquet("b.parquet", &batch(("k", &keys), ("t", &titles)));
    for memory in ["", "--memory 32MiB"] {
        let join = format!("join a.jsonl b.parquet --on k --select k,o,e {memory} --overwrite -o");
        sandbox.strait(&format!("{join} out.jsonl")).ok();
        let mut back: Vec<String> = sandbox.read("out.jsonl").lines().map(str::to_string).collect();
        back.sort();
        let mut expected: Vec<String> = lines.lines().map(str::to_string).collect();
        expected.sort();
        assert_eq!(back, expected);
        sandbox.strait(&format!("{join} out.parquet")).ok();
        let again = format!("join out.parquet b.parquet --on k --count {memory}");
        assert_eq!(sandbox.strait(&again).ok(), "5000\n");
        sandbox.strait(&format!("{join} out.csv")).fails(&["CSV cannot hold column \"o\""]);
    }
}

#[test]
fn files_may_have_different_fields() {
    let sandbox = Sandbox::with_people();
    sandbox.write("t/a.jsonl", "{\"id\":1,\"x\":1}\n");
    sandbox.write("t/b.jsonl", "{\"y\":true,\"id\":2,\"x\":0.5}\n");
    sandbox.strait("join t cities.csv --on id -o out.csv").ok();
    let expected = ["id,x,y,title", "1,1.0,,Oslo", "2,0.5,true,Rome"];
    assert_eq!(sorted(&sandbox.read("out.csv")), expected);
    sandbox.write("t/c.jsonl", "{\"id\":[2]}\n");
    let run = sandbox.strait("join t cities.csv --on id -o out.csv --overwrite");
    run.fails(&["files of one table differ", "column \"id\" is Int64", "c.jsonl"]);
}

#[test]
fn folders_give_columns_without_any_field() {
    let sandbox = Sandbox::with_people();
    sandbox.write("t/id=1/a.jsonl", "{\"x\":1}\n\n{\"x\":2}\n");
    sandbox.write("t/id=3/a.jsonl", "{\"x\":3}\n");
    let run = sandbox.strait("join t cities.csv --on id --count");
    assert_eq!(run.ok(), "3\n");
}

#[test]
fn errors_name_the_line() {
    let sandbox = Sandbox::with_people();
    let good = "{\"id\":1,\"x\":5}\n";
    let cases = [
        ("{\"id\":1", "line 3: the line ends within a JSON object"),
        ("{\"id\":1\n,\"x\":2}", "line 3: the line ends within a JSON object"),
        ("{\"id\":1}{\"id\":2}", "line 3: trailing characters"),
        ("{\"id\":1,\"x\":\"five\"}", "line 3: "),
        ("{\"id\":1,\"x\":[5]}", "line 3: "),
        ("[1]", "line 3: a JSON array"),
        ("7", "line 3: not a JSON object"),
        ("{\"id\":1,\"x\":\"\u{0}\"}", "line 3: "),
    ];
    for (bad, message) in cases {
        sandbox.write("bad.jsonl", format!("{good}\n{bad}\n{good}"));
        // With a sample of one line, the reader finds the line. Otherwise, the types are inferred from it.
        for sample in ["1", "all"] {
            let join = "join bad.jsonl cities.csv --on id --select x -o out.csv --sample";
            let run = sandbox.strait(&format!("{join} {sample}"));
            let is_text = bad.contains("five") && sample == "all";
            if is_text {
                run.ok();
                std::fs::remove_file(sandbox.path("out.csv")).unwrap();
            } else {
                run.fails(&["bad.jsonl", message]);
            }
            assert!(!sandbox.path("out.csv").exists());
        }
    }
    sandbox.write("bad.jsonl", b"{\"id\":1,\"x\":\"\xff\"}\n");
    sandbox.strait("join bad.jsonl cities.csv --on id").fails(&["bad.jsonl, line 1"]);
    sandbox.write("cut.jsonl.gz", &gzip(&good.repeat(1000))[..60]);
    sandbox.strait("join cut.jsonl.gz cities.csv --on id").fails(&["cut.jsonl.gz"]);
    sandbox.write("array.json", "[{\"id\":1}]\n");
    sandbox.strait("join array.json cities.csv --on id").fails(&["array.json", "jq"]);
}

/// Lines of several blocks, some of them blank. Their keys are the numbers below `rows`.
fn lines(rows: usize) -> String {
    let mut text = String::new();
    for k in 0..rows {
        let line = match k % 5 {
            0 => format!("{{\"k\": {k}, \"t\": \"{}\"}}\n\n", "x".repeat(k % 200)),
            1 => format!("{{\"t\": null, \"l\": [{k}, null], \"k\": {k}}}\r\n"),
            2 => format!("{{\"k\":{k},\"o\":{{\"a\":\"\\u00e9\",\"b\":{k}}}}}\n"),
            _ => format!("{{\"k\":{k},\"f\":{}.5}}\n", k % 10),
        };
        text += &line;
    }
    text
}

/// Several workers parse a file. Every line counts once, and errors name the line of the file.
#[test]
fn blocks_for_many_workers() {
    let sandbox = Sandbox::with_people();
    let rows = 80_000;
    let text = lines(rows);
    assert!(text.len() > 5 << 19);
    sandbox.write("a.jsonl", &text);
    sandbox.write("a.jsonl.gz", gzip(&text));
    for part in 0..5 {
        sandbox.write(&format!("parts/{part}.jsonl"), lines(rows / 10));
    }
    let keys: String = (0..rows).map(|k| format!("{k}\n")).collect();
    sandbox.write("keys.csv", format!("k\n{keys}"));
    let mut expected: Option<String> = None;
    for file in ["a.jsonl", "a.jsonl.gz"] {
        for more in ["--threads 1", "--threads 4", "--threads 3 --memory 24MiB"] {
            let join = format!("join keys.csv {file} --on k {more} --sample 1000");
            assert_eq!(sandbox.strait(&format!("{join} --count")).ok(), format!("{rows}\n"));
            let join = format!("{join} --algorithm sort-merge -o out.jsonl --overwrite");
            sandbox.strait(&join).ok();
            let found = sandbox.read("out.jsonl");
            assert_eq!(found.lines().count(), rows);
            assert!(expected.get_or_insert_with(|| found.clone()) == &found, "{file} {more}");
        }
    }
    let run = "join keys.csv parts --on k --count --threads 4";
    assert_eq!(sandbox.strait(run).ok(), format!("{}\n", rows / 2));
    let line = text.matches('\n').count() + 1;
    for (bad, message) in [("{\"k\":1.5}", "column \"k\" is of type Int64"), ("{", "ends within")] {
        sandbox.write("bad.jsonl", format!("{text}{bad}\n{}", lines(rows / 2)));
        for more in ["", "--threads 1 --memory 32MiB"] {
            let run = format!("join cities.csv bad.jsonl --on id=k --sample 1000 --count {more}");
            sandbox.strait(&run).fails(&[&format!("bad.jsonl, line {line}: "), message]);
        }
    }
}

/// After the sample, Arrow's parser would make 2.9 the integer 2, and accept lines that are not JSON.
#[test]
fn lines_after_the_sample_are_checked() {
    let sandbox = Sandbox::with_people();
    let join = "join late.jsonl cities.csv --on id --count --sample 1";
    for (late, message) in [
        ("{\"id\":2.7}", "line 2: column \"id\" is of type Int64"),
        ("{\"id\":\"2\"}", "this value is of type Utf8"),
        ("{\"id\":2,\"l\":[1.5]}", "column \"l\" is of type Int64"),
        ("{\"id\":2,\"o\":{\"x\":1.5}}", "column \"o.x\" is of type Int64"),
        ("{\"id\":02}", "line 2: invalid number"),
        ("{\"id\":2,}", "line 2: trailing comma"),
        ("{\"id\":2}{\"id\":3}\n{\"id\":\n4}", "line 2: trailing characters"),
    ] {
        sandbox.write("late.jsonl", format!("{{\"id\":1,\"l\":[1],\"o\":{{\"x\":1}}}}\n{late}\n"));
        sandbox.strait(join).fails(&["late.jsonl", message]);
    }
    // A new field is left out, with a warning.
    sandbox.write("late.jsonl", "{\"id\":1}\n{\"id\":2,\"new\":5}\n");
    let run = sandbox.strait(join);
    assert!(run.stderr.contains("line 2: field \"new\" was not in the first lines"), "{run:?}");
    assert_eq!(run.ok(), "2\n");
}

#[test]
fn times_are_written_or_are_an_error() {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Date32Array, Int64Array, RecordBatch, TimestampMicrosecondArray};

    let sandbox = Sandbox::with_people();
    let times = |day: i32| {
        let id: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let at: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![0]).with_timezone("UTC"));
        let day: ArrayRef = Arc::new(Date32Array::from(vec![day]));
        RecordBatch::try_from_iter([("id", id), ("at", at), ("day", day)]).unwrap()
    };
    sandbox.parquet("t.parquet", &times(1));
    let join = "join t.parquet cities.csv --on id --select id,at,day --overwrite -o out.jsonl";
    sandbox.strait(join).ok();
    let line = "{\"id\":1,\"at\":\"1970-01-01T00:00:00Z\",\"day\":\"1970-01-02\"}\n";
    assert_eq!(sandbox.read("out.jsonl"), line);
    sandbox.parquet("t.parquet", &times(i32::MAX));
    sandbox.strait(join).fails(&["JSON cannot hold a value of column \"day\""]);
    assert_eq!(sandbox.read("out.jsonl"), line);
}

/// A compressed line of 300 MB passes any small limit.
#[test]
fn a_long_line_does_not_pass_the_limit() {
    let sandbox = Sandbox::with_people();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"{\"id\":1,\"x\":\"").unwrap();
    for _ in 0..300 {
        gzip.write_all(&vec![b'a'; 1 << 20]).unwrap();
    }
    gzip.write_all(b"\"}\n").unwrap();
    sandbox.write("bomb.jsonl.gz", gzip.finish().unwrap());
    let run = sandbox.strait("join bomb.jsonl.gz cities.csv --on id --memory 32MiB");
    run.fails(&["bomb.jsonl.gz", "memory"]);
}

/// A negative zero is an integer, so it does not make large integers of its column floats, which would be rounded.
#[test]
fn a_negative_zero_is_an_integer() {
    let sandbox = Sandbox::new();
    sandbox.write("a.jsonl", "{\"k\":-0}\n{\"k\":9007199254740993}\n{\"k\":-0.0}\n");
    sandbox.write("b.jsonl", "{\"k\":0}\n{\"k\":9007199254740992}\n");
    assert_eq!(sandbox.strait("join a.jsonl b.jsonl --on k --count").ok(), "2\n");
    // The same after the sample, and beside floats.
    assert_eq!(sandbox.strait("join b.jsonl a.jsonl --on k --count --sample 1").ok(), "2\n");
    sandbox.write("c.jsonl", "{\"k\":0.5}\n{\"k\":-0}\n{\"k\":-0.0}\n");
    assert_eq!(sandbox.strait("join c.jsonl c.jsonl --on k --count").ok(), "5\n");
}

//! Objects are read as files are: single ones, folders and globs, in all formats.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};

use super::fake::Fake;
use super::strait;
use crate::sandbox::{CITIES, PEOPLE, Sandbox, batch, sorted};

const JOINED: [&str; 3] = ["name,city,id,title", "Ada,1,1,Oslo", "Bob,2,2,Rome"];

fn cities() -> RecordBatch {
    batch(("id", &[1, 2, 3]), ("title", &["Oslo", "Rome", "Kiel"]))
}

#[test]
fn every_format_is_read_from_every_store() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("cities.parquet", &cities());
    sandbox.ipc_file("cities.arrow", &cities());
    sandbox.ipc_stream("cities.arrows", &cities());
    sandbox.write("cities.jsonl", "{\"id\":1,\"title\":\"Oslo\"}\n{\"id\":2,\"title\":\"Rome\"}\n");
    sandbox.write("cities.csv.zst", zstd::encode_all(CITIES.as_bytes(), 1).unwrap());
    let fake = Fake::new();
    for name in sandbox.names() {
        fake.put(&format!("b/in/{name}"), std::fs::read(sandbox.path(&name)).unwrap());
    }
    let endings = ["csv", "csv.zst", "parquet", "arrow", "arrows", "jsonl"];
    for ending in endings {
        let web = fake.url(&format!("b/in/cities.{ending}?sig=x"));
        let urls =
            [format!("s3://b/in/cities.{ending}"), format!("gs://b/in/cities.{ending}"), web];
        for url in urls {
            let run = strait(
                &sandbox,
                &fake,
                &format!("join people.csv {url} --on city=id -o out.csv --overwrite"),
            );
            run.ok();
            assert_eq!(sorted(&sandbox.read("out.csv")), JOINED, "{url}");
        }
    }
}

#[test]
fn folders_and_globs_take_their_objects() {
    let (sandbox, fake) = (Sandbox::with_people(), Fake::new());
    fake.put("b/in/year=2023/a.csv", "id,title\n1,Oslo\n");
    fake.put("b/in/year=2024/b c.csv", "id,title\n2,Rome\n");
    fake.put("b/in/_tmp/c.csv", "id,title\n9,Bonn\n");
    fake.put("b/in/README", "text");
    fake.put("b/in/year=2024/", "");
    fake.put("b/inner/d.csv", "id,title\n9,Bonn\n");
    let both = ["name,city,id,title,year", "Ada,1,1,Oslo,2023", "Bob,2,2,Rome,2024"];
    for (url, expected) in [
        ("s3://b/in/", &both[..]),
        ("gs://b/in/", &both[..]),
        ("s3://b/in/year=*/*.csv", &both[..]),
        ("s3://b/in/year=*", &both[..]),
        ("s3://b/in/year=2024/*.csv", &["name,city,id,title", "Bob,2,2,Rome"][..]),
    ] {
        strait(
            &sandbox,
            &fake,
            &format!("join people.csv {url} --on city=id -o out.csv --overwrite"),
        )
        .ok();
        assert_eq!(sorted(&sandbox.read("out.csv")), expected, "{url}");
    }
    let run = strait(&sandbox, &fake, "join people.csv s3://b/in/*.parquet --on city=id");
    run.fails(&["s3://b/in/*.parquet holds no tables", ".parquet, .csv"]);
}

/// A format that the name does not tell is told by the first bytes.
#[test]
fn objects_without_an_ending() {
    let (sandbox, fake) = (Sandbox::with_people(), Fake::new());
    sandbox.parquet("cities.parquet", &cities());
    fake.put("b/cities", std::fs::read(sandbox.path("cities.parquet")).unwrap());
    strait(&sandbox, &fake, "join people.csv s3://b/cities --on city=id -o out.csv").ok();
    assert_eq!(sorted(&sandbox.read("out.csv")), JOINED);
    fake.put("b/mystery", PEOPLE);
    let run = strait(&sandbox, &fake, "join people.csv s3://b/mystery --on city=id");
    run.fails(&["cannot tell the format of s3://b/mystery"]);
}

/// Two row groups, and a column of 8 MiB that no join needs.
fn wide() -> Vec<u8> {
    let rows = 20_000;
    let text = (0..rows).map(|i: i64| {
        let mut random = fastrand::Rng::with_seed(i as u64);
        (0..400).map(|_| random.alphanumeric()).collect::<String>()
    });
    let table = RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef),
        ("wide", Arc::new(StringArray::from_iter_values(text)) as ArrayRef),
        ("next", Arc::new(Int64Array::from_iter_values(1..=rows)) as ArrayRef),
    ]);
    let table = table.unwrap();
    let mut bytes = Vec::new();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(&mut bytes, table.schema(), None).unwrap();
    writer.write(&table.slice(0, 15_000)).unwrap();
    writer.flush().unwrap();
    writer.write(&table.slice(15_000, 5_000)).unwrap();
    writer.close().unwrap();
    bytes
}

#[test]
fn only_the_needed_columns_are_fetched() {
    let (sandbox, fake) = (Sandbox::new(), Fake::new());
    let bytes = wide();
    assert!(bytes.len() > 6 << 20, "{}", bytes.len());
    fake.put("b/wide.parquet", &bytes);
    let join = "join s3://b/wide.parquet s3://b/wide.parquet --on next=id";
    assert_eq!(strait(&sandbox, &fake, &format!("{join} --count")).ok(), "19999\n");
    assert!(fake.served() < 1 << 20, "{} bytes were sent", fake.served());
    // With all columns, under a memory limit, and on one thread.
    for options in ["", "--memory 64MiB", "--threads 1"] {
        let run = strait(&sandbox, &fake, &format!("{join} {options} -o out.parquet --overwrite"));
        assert!(run.stderr.contains("wrote 19,999 rows"), "{options}: {}", run.stderr);
    }
}

#[test]
fn long_text_is_read_in_pieces() {
    let (sandbox, fake) = (Sandbox::new(), Fake::new());
    let rows: String = (0..400_000).map(|i| format!("{i},{}\n", "some text ".repeat(3))).collect();
    fake.put("b/long.csv", format!("id,text\n{rows}"));
    let join = "join s3://b/long.csv s3://b/long.csv --on id --count";
    for options in ["", "--memory 256MiB"] {
        assert_eq!(strait(&sandbox, &fake, &format!("{join} {options}")).ok(), "400000\n");
    }
    let longest =
        fake.requests().into_iter().filter_map(|request| request.range).map(|(a, b)| b - a);
    assert!(longest.max() < Some(4 << 20));
}

//! Every format and source of input tables.

use std::io::Write;

use parquet::file::reader::{FileReader, SerializedFileReader};

use crate::sandbox::{
    PEOPLE, Sandbox, batch, read_ipc_file, read_ipc_stream, read_parquet, sorted, stream_of,
};

const EXPECTED: [&str; 3] = ["name,city,id,title", "Ada,1,1,Oslo", "Bob,2,2,Rome"];

/// Joins people with the given cities, and returns the CSV.
fn joined(sandbox: &Sandbox, cities: &str, more: &str) -> String {
    let run = format!("join people.csv {cities} -o out.csv --overwrite {more}");
    sandbox.strait(&run).ok();
    sandbox.read("out.csv")
}

fn cities() -> arrow::array::RecordBatch {
    batch(("id", &[1, 2, 3]), ("title", &["Oslo", "Rome", "Kiel"]))
}

#[test]
fn parquet_and_arrow_files() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("c.parquet", &cities());
    sandbox.ipc_file("c.arrow", &cities());
    sandbox.ipc_file("c.feather", &cities());
    sandbox.ipc_stream("c.arrows", &cities());
    // The content decides, not the Arrow format that the ending suggests.
    sandbox.ipc_stream("stream.ipc", &cities());
    sandbox.parquet("no_ending", &cities());
    for name in ["c.parquet", "c.arrow", "c.feather", "c.arrows", "stream.ipc", "no_ending"] {
        assert_eq!(sorted(&joined(&sandbox, name, "--on city=id")), EXPECTED, "{name}");
    }
}

#[test]
fn csv_compressed_or_not() {
    let sandbox = Sandbox::with_people();
    let text = "id,title\n1,Oslo\n2,Rome\n3,Kiel\n";
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    sandbox.write("c.csv.gz", gzip.finish().unwrap());
    sandbox.write("c.csv.zst", zstd::encode_all(text.as_bytes(), 0).unwrap());
    sandbox.write("c.tsv", text.replace(',', "\t"));
    sandbox.write("bom.csv", format!("\u{feff}{text}"));
    sandbox.write("crlf.csv", text.replace('\n', "\r\n"));
    for name in ["cities.csv", "c.csv.gz", "c.csv.zst", "c.tsv", "bom.csv", "crlf.csv"] {
        assert_eq!(sorted(&joined(&sandbox, name, "--on city=id")), EXPECTED, "{name}");
    }
}

#[test]
fn csv_options() {
    let sandbox = Sandbox::new();
    sandbox.write("a.csv", "1;NA;x\n2;5;NA\n");
    sandbox.write("b.csv", "1;9;\n2;8;z\n");
    let options = "--csv-delimiter ; --csv-no-header --csv-null NA";
    let run = format!("join a.csv b.csv --on column_1 {options} -o out.csv");
    sandbox.strait(&run).ok();
    let expected =
        ["column_1,column_2,column_3,column_2_right,column_3_right", "1,,x,9,", "2,5,,8,z"];
    assert_eq!(sorted(&sandbox.read("out.csv")), expected);
}

#[test]
fn csv_types_are_inferred() {
    let sandbox = Sandbox::new();
    sandbox.write("a.csv", "i,f,d,t,b,s,e\n1,1.5,2024-02-29,2024-01-01T10:00:00,true,x,\n");
    let run = "join a.csv a.csv --on i --select i,f,d,t,b,s,e --type left -o out.parquet";
    sandbox.strait(run).ok();
    let file = std::fs::File::open(sandbox.path("out.parquet")).unwrap();
    let reader =
        parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let types: Vec<_> =
        reader.schema().fields().iter().map(|f| f.data_type().to_string()).collect();
    assert_eq!(types, ["Int64", "Float64", "Date32", "Timestamp(ms)", "Boolean", "Utf8", "Utf8"]);
}

#[test]
fn csv_types_of_several_files_meet() {
    let sandbox = Sandbox::with_people();
    sandbox.write("c/1.csv", "id,title,note\n1,Oslo,\n");
    sandbox.write("c/2.csv", "id,title,note\n2,7,3\n");
    sandbox.write("c/3.csv", "id,title,note\n9,8,2.5\n");
    let expected = ["name,city,id,title,note", "Ada,1,1,Oslo,", "Bob,2,2,7,3.0", "Dan,9,9,8,2.5"];
    assert_eq!(sorted(&joined(&sandbox, "c", "--on city=id")), expected);
}

#[test]
fn a_folder_and_a_glob() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("c/one.parquet", &batch(("id", &[1]), ("title", &["Oslo"])));
    sandbox.parquet("c/deep/two.parquet", &batch(("id", &[2, 3]), ("title", &["Rome", "Kiel"])));
    sandbox.write("c/_SUCCESS", "");
    sandbox.write("c/.two.parquet.crc", "x");
    sandbox.write("c/_metadata/x.parquet", "not read");
    sandbox.write("c/README.md", "not a table");
    for input in ["c", "c/", "c/**/*.parquet", "c/*"] {
        assert_eq!(sorted(&joined(&sandbox, input, "--on city=id")), EXPECTED, "{input}");
    }
    let one = joined(&sandbox, "c/o*.parquet", "--on city=id");
    assert_eq!(sorted(&one), ["name,city,id,title", "Ada,1,1,Oslo"]);
}

#[test]
fn hive_folders_become_columns() {
    let sandbox = Sandbox::new();
    let part = |id: i64, title: &str| batch(("id", &[id]), ("title", &[title]));
    sandbox.parquet("c/year=2023/day=2023-12-31/land=S%C3%BCd%2FOst/a.parquet", &part(1, "Oslo"));
    sandbox.parquet("c/year=2024/day=2024-01-01/land=x/a.parquet", &part(2, "Rome"));
    let null = "c/year=__HIVE_DEFAULT_PARTITION__/day=2024-01-02/land=y/a.parquet";
    sandbox.parquet(null, &part(3, "Kiel"));
    sandbox.write("people.csv", PEOPLE);
    let expected = [
        "name,city,id,title,year,day,land",
        "Ada,1,1,Oslo,2023,2023-12-31,Süd/Ost",
        "Bob,2,2,Rome,2024,2024-01-01,x",
    ];
    assert_eq!(sorted(&joined(&sandbox, "c", "--on city=id")), expected);
    assert_eq!(sorted(&joined(&sandbox, "c/year=*/**/*.parquet", "--on city=id")), expected);
    // The column of a folder can be the key, and the only column that is read.
    sandbox.write("years.csv", "year,word\n2024,now\n2023,then\n");
    assert_eq!(sandbox.strait("join years.csv c --on year --count").ok(), "2\n");
    let types = sandbox.strait("join years.csv c --on year --select word,day,title").ok();
    assert!(types.contains("2024-01-01"), "{types}");
}

#[test]
fn hive_folders_of_csv_and_arrow() {
    let sandbox = Sandbox::with_people();
    sandbox.write("c/k=a/x.csv", "id,title\n1,Oslo\n");
    sandbox.write("c/k=b/x.csv", "id,title\n2,Rome\n");
    sandbox.ipc_file("d/k=a/x.arrow", &batch(("id", &[1]), ("title", &["Oslo"])));
    sandbox.ipc_file("d/k=b/x.arrow", &batch(("id", &[2]), ("title", &["Rome"])));
    for folder in ["c", "d"] {
        let expected = ["name,city,id,title,k", "Ada,1,1,Oslo,a", "Bob,2,2,Rome,b"];
        assert_eq!(sorted(&joined(&sandbox, folder, "--on city=id")), expected);
        // Counting these rows needs no stored column.
        sandbox.write("keys.csv", "k\na\nb\nb\n");
        let count = sandbox.strait(&format!("join keys.csv {folder} --on k --count")).ok();
        assert_eq!(count, "3\n", "{folder}");
    }
}

#[test]
fn a_column_in_the_file_goes_before_its_folder() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("c/id=7/a.parquet", &cities());
    assert_eq!(sorted(&joined(&sandbox, "c", "--on city=id")), EXPECTED);
}

#[test]
fn stdin_is_an_ipc_stream() {
    let sandbox = Sandbox::with_people();
    let run = "join people.csv - --on city=id -o out.csv";
    sandbox.strait_with_stdin(run, &stream_of(&cities())).ok();
    assert_eq!(sorted(&sandbox.read("out.csv")), EXPECTED);
}

#[test]
fn joins_pipe_into_joins() {
    let sandbox = Sandbox::with_people();
    sandbox.write("land.csv", "title,land\nOslo,Norway\nRome,Italy\n");
    let script = "$strait join people.csv cities.csv --on city=id -o - \
                  | $strait join - land.csv --on title --select name,land -o out.csv";
    sandbox.shell(script).ok();
    assert_eq!(sorted(&sandbox.read("out.csv")), ["name,land", "Ada,Norway", "Bob,Italy"]);
}

#[test]
fn many_row_groups_in_many_files() {
    let sandbox = Sandbox::new();
    let properties = || {
        let builder = parquet::file::properties::WriterProperties::builder();
        Some(builder.set_max_row_group_row_count(Some(100)).build())
    };
    let mut expected: Vec<String> = Vec::new();
    for file in 0..5i64 {
        let ids: Vec<i64> = (0..1000).map(|i| file * 1000 + i).collect();
        let texts: Vec<String> = ids.iter().map(|id| format!("t{id}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let batch = batch(("id", &ids), ("title", &texts));
        let mut bytes = Vec::new();
        let writer = parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), properties());
        let mut writer = writer.unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        sandbox.write(&format!("c/part={file}/x.parquet"), bytes);
        expected.extend(ids.iter().map(|id| format!("{id},t{id},{file}")));
    }
    expected.sort_unstable();
    let ids: String = (0..5000).map(|id| format!("{id}\n")).collect();
    sandbox.write("ids.csv", format!("id\n{ids}"));
    // Under a limit, nothing is decoded ahead.
    for more in ["--threads 1", "--threads 3", "--threads 8", "--memory 1GiB"] {
        sandbox.strait(&format!("join ids.csv c --on id -o out.csv --overwrite {more}")).ok();
        let text = sandbox.read("out.csv");
        let lines = sorted(&text);
        assert_eq!(lines[0], "id,title,part");
        assert!(lines[1..] == expected, "{more}");
    }
    // Stopping early stops the decoders.
    let few = sandbox.strait("join c c --on part --select id --limit 3 --threads 3").ok();
    assert!(few.contains("3 rows"), "{few}");
}

#[test]
fn columns_that_are_not_needed_are_not_read() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("c.parquet", &cities());
    let mut bytes = std::fs::read(sandbox.path("c.parquet")).unwrap();
    // The pages of the second column come after those of the first.
    let place = {
        let file = std::fs::File::open(sandbox.path("c.parquet")).unwrap();
        let reader = SerializedFileReader::new(file).unwrap();
        reader.metadata().row_group(0).column(1).byte_range()
    };
    bytes[place.0 as usize..(place.0 + place.1) as usize].fill(0xff);
    sandbox.write("c.parquet", bytes);
    assert_eq!(sandbox.strait("join people.csv c.parquet --on city=id --count").ok(), "2\n");
    let run = sandbox.strait("join people.csv c.parquet --on city=id --select name,id");
    assert!(run.ok().contains("2 rows"));
    sandbox.strait("join people.csv c.parquet --on city=id").fails(&["cannot read c.parquet"]);

    sandbox.write("late.csv", "id,n\n1,5\n2,six\n");
    let run = "join people.csv late.csv --on city=id --sample 1";
    assert_eq!(sandbox.strait(&format!("{run} --count")).ok(), "2\n");
    sandbox.strait(run).fails(&["late.csv, line 3"]);
}

#[test]
fn dictionaries_that_differ_from_file_to_file() {
    use arrow::array::{ArrayRef, DictionaryArray, Int64Array, RecordBatch};
    use arrow::datatypes::Int32Type;
    let sandbox = Sandbox::new();
    sandbox.write("people.csv", PEOPLE);
    for (name, id, title) in [("1", 1, "Oslo"), ("2", 2, "Rome")] {
        let titles: DictionaryArray<Int32Type> = [title].into_iter().collect();
        let batch = RecordBatch::try_from_iter([
            ("id", std::sync::Arc::new(Int64Array::from(vec![id])) as ArrayRef),
            ("title", std::sync::Arc::new(titles)),
        ]);
        sandbox.ipc_file(&format!("c/{name}.arrow"), &batch.unwrap());
    }
    for out in ["o.arrow", "o.arrows", "o.parquet", "o.csv"] {
        sandbox.strait(&format!("join people.csv c --on city=id -o {out}")).ok();
    }
    assert_eq!(sorted(&read_ipc_file(&sandbox.path("o.arrow"))), EXPECTED);
    let stream = std::fs::read(sandbox.path("o.arrows")).unwrap();
    assert_eq!(sorted(&read_ipc_stream(&stream)), EXPECTED);
    assert_eq!(sorted(&read_parquet(&sandbox.path("o.parquet"))), EXPECTED);
    assert_eq!(sorted(&sandbox.read("o.csv")), EXPECTED);
    // Also as a key.
    sandbox.write("land.csv", "title,land\nOslo,Norway\nRome,Italy\n");
    assert_eq!(sandbox.strait("join c land.csv --on title --count").ok(), "2\n");
}

//! Every output format, and how output files appear.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMillisecondArray};

use crate::sandbox::{
    Sandbox, batch, read_ipc_file, read_ipc_stream, read_parquet, sorted, stream_of,
};

/// The join of `people.csv` and `cities.csv`.
pub(crate) const EXPECTED: [&str; 3] = ["name,city,id,title", "Ada,1,1,Oslo", "Bob,2,2,Rome"];

/// Writes the join of `people.csv` and `cities.csv`.
pub(crate) fn write(sandbox: &Sandbox, out: &str, more: &str) {
    sandbox.strait(&format!("join people.csv cities.csv --on city=id -o {out} {more}")).ok();
}

#[test]
fn csv_compressed_or_not() {
    let sandbox = Sandbox::with_people();
    for out in ["o.csv", "o.csv.gz", "o.csv.zst"] {
        write(&sandbox, out, "");
    }
    assert_eq!(sorted(&sandbox.read("o.csv")), EXPECTED);
    let mut text = String::new();
    let gzip = std::fs::read(sandbox.path("o.csv.gz")).unwrap();
    flate2::read::MultiGzDecoder::new(gzip.as_slice()).read_to_string(&mut text).unwrap();
    assert_eq!(sorted(&text), EXPECTED);
    let zstd = std::fs::read(sandbox.path("o.csv.zst")).unwrap();
    let text = String::from_utf8(zstd::decode_all(zstd.as_slice()).unwrap()).unwrap();
    assert_eq!(sorted(&text), EXPECTED);
}

#[test]
fn arrow_files_and_streams() {
    let sandbox = Sandbox::with_people();
    for out in ["o.arrow", "o.feather", "o.ipc"] {
        write(&sandbox, out, "--compression zstd");
        assert_eq!(sorted(&read_ipc_file(&sandbox.path(out))), EXPECTED, "{out}");
    }
    write(&sandbox, "o.arrows", "");
    let bytes = std::fs::read(sandbox.path("o.arrows")).unwrap();
    assert_eq!(sorted(&read_ipc_stream(&bytes)), EXPECTED);
    let run = sandbox.strait("join people.csv cities.csv --on city=id -o -");
    run.ok();
    assert_eq!(sorted(&read_ipc_stream(&run.stdout)), EXPECTED);
    assert_eq!(run.stderr, "");
}

#[test]
fn no_rows_still_make_a_file() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("none.parquet", &batch(("id", &[]), ("title", &[])));
    for out in ["p.parquet", "p.csv", "p.arrow"] {
        sandbox.strait(&format!("join people.csv none.parquet --on city=id -o {out}")).ok();
    }
    assert_eq!(read_parquet(&sandbox.path("p.parquet")), "name,city,id,title\n");
    assert_eq!(sandbox.read("p.csv"), "name,city,id,title\n");
    assert_eq!(read_ipc_file(&sandbox.path("p.arrow")), "name,city,id,title\n");
}

/// Two tables whose join has 1100 × 1100 rows: every pair of `p` and `q`.
pub(crate) fn pairs(sandbox: &Sandbox) {
    let rows: String = (0..1100).map(|i| format!("7,{i}\n")).collect();
    sandbox.write("a.csv", format!("k,p\n{rows}"));
    sandbox.write("b.csv", format!("k,q\n{rows}"));
}

/// Checks that every pair of `p` and `q` comes once.
pub(crate) fn check_pairs(rows: impl Iterator<Item = (i64, i64)>) {
    let mut seen = vec![false; 1100 * 1100];
    for (p, q) in rows {
        let pair = &mut seen[(p * 1100 + q) as usize];
        assert!(!*pair, "{p}, {q} came twice");
        *pair = true;
    }
    assert!(seen.into_iter().all(|pair| pair));
}

pub(crate) fn columns<'a>(batch: &'a RecordBatch, names: [&str; 2]) -> [&'a [i64]; 2] {
    names.map(|name| {
        let column = batch.column_by_name(name).unwrap();
        column.as_any().downcast_ref::<Int64Array>().unwrap().values().as_ref()
    })
}

/// Several threads encode the output of a sort-merge join. It must stay in the order of the keys.
#[test]
fn ordered_output_stays_in_order() {
    let sandbox = Sandbox::new();
    let rows: String =
        (0..300_000_i64).map(|i| format!("{},{i}\n", (i * 7919) % 300_007)).collect();
    sandbox.write("a.csv", format!("k,p\n{rows}9,\n"));
    sandbox.write("b.csv", format!("k,q\n{rows},5\n"));
    let join = "join a.csv b.csv --on k --algorithm sort-merge --type full --threads 3";
    let outputs = [
        "o.parquet --row-group-rows 10000",
        "o.csv",
        "o.csv.gz",
        "o.arrow",
        "o.arrow --compression zstd",
    ];
    for out in outputs {
        for more in ["", "--memory 256MiB"] {
            sandbox.strait(&format!("{join} --overwrite {more} -o {out}")).ok();
            let name = out.split(' ').next().unwrap();
            let text = match name {
                "o.parquet" => read_parquet(&sandbox.path(name)),
                "o.csv" => sandbox.read(name),
                "o.arrow" => read_ipc_file(&sandbox.path(name)),
                _ => gunzipped(&std::fs::read(sandbox.path(name)).unwrap()),
            };
            let keys: Vec<Option<i64>> = text
                .lines()
                .skip(1)
                .map(|line| line.split(',').next().unwrap().parse().ok())
                .collect();
            assert_eq!(keys.len(), 300_002, "{out} {more}");
            // Rows of the right table only, and rows without a key, come last.
            let known = keys.iter().position(Option::is_none).unwrap_or(keys.len());
            assert!(known >= 300_001, "{out} {more}: {known}");
            assert!(keys[..known].is_sorted(), "{out} {more}");
        }
    }
}

fn gunzipped(bytes: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(bytes).read_to_string(&mut text).unwrap();
    text
}

/// Threads format and compress blocks of text. The blocks together are one file.
#[test]
fn text_of_many_blocks() {
    let sandbox = Sandbox::new();
    pairs(&sandbox);
    for (out, separator) in
        [("o.csv", ','), ("o.tsv", '\t'), ("o.csv.gz", ','), ("o.tsv.zst", '\t')]
    {
        for more in ["", "--memory 64MiB"] {
            let join = format!("join a.csv b.csv --on k --threads 3 --overwrite {more} -o {out}");
            sandbox.strait(&join).ok();
            let bytes = std::fs::read(sandbox.path(out)).unwrap();
            let text = match out {
                "o.csv.gz" => gunzipped(&bytes),
                "o.tsv.zst" => {
                    String::from_utf8(zstd::decode_all(bytes.as_slice()).unwrap()).unwrap()
                }
                _ => String::from_utf8(bytes).unwrap(),
            };
            let (header, rows) = text.split_once('\n').unwrap();
            assert_eq!(header, ["k", "p", "q"].join(&separator.to_string()));
            check_pairs(rows.lines().map(|line| {
                let fields: Vec<i64> =
                    line.split(separator).map(|field| field.parse().unwrap()).collect();
                (fields[1], fields[2])
            }));
        }
    }
    // The command reads the compressed blocks that it writes.
    let counted = sandbox.strait("join o.csv.gz o.tsv.zst --on p,q --count").ok();
    assert_eq!(counted, "1210000\n");
}

/// Threads compress messages. The messages together are one file or stream.
#[test]
fn arrow_of_many_messages() {
    let sandbox = Sandbox::new();
    pairs(&sandbox);
    for more in ["", "--memory 64MiB"] {
        let join =
            format!("join a.csv b.csv --on k --threads 3 --compression zstd --overwrite {more}");
        sandbox.strait(&format!("{join} -o o.arrow")).ok();
        sandbox.strait(&format!("{join} -o o.arrows")).ok();
        let file = read_ipc_file(&sandbox.path("o.arrow"));
        let stream = read_ipc_stream(&std::fs::read(sandbox.path("o.arrows")).unwrap());
        let piped = sandbox.strait(&format!("{join} -o -").replace("--overwrite", ""));
        piped.ok();
        for text in [file, stream, read_ipc_stream(&piped.stdout)] {
            check_pairs(text.lines().skip(1).map(|line| {
                let fields: Vec<i64> =
                    line.split(',').map(|field| field.parse().unwrap()).collect();
                (fields[1], fields[2])
            }));
        }
    }
}

#[test]
fn a_limit_on_several_threads() {
    let sandbox = Sandbox::new();
    pairs(&sandbox);
    for limit in [0, 1, 99_999, 1_210_000, 2_000_000] {
        for algorithm in ["auto", "sort-merge"] {
            let join = format!("join a.csv b.csv --on k --threads 3 --algorithm {algorithm}");
            let run = sandbox.strait(&format!("{join} --limit {limit} -o out.csv --overwrite"));
            run.ok();
            let rows = sandbox.read("out.csv").lines().count() - 1;
            assert_eq!(rows, limit.min(1_210_000), "{algorithm}");
        }
    }
}

#[test]
fn an_existing_file_is_replaced_only_when_asked() {
    let sandbox = Sandbox::with_people();
    sandbox.write("out.csv", "mine");
    let run = "join people.csv cities.csv --on city=id -o out.csv";
    sandbox.strait(run).fails(&["out.csv exists already", "--overwrite"]);
    assert_eq!(sandbox.read("out.csv"), "mine");
    sandbox.strait(&format!("{run} --overwrite")).ok();
    assert_eq!(sorted(&sandbox.read("out.csv")), EXPECTED);
    // The inputs, even broken ones, are not read before this check.
    sandbox.write("broken.parquet", "x");
    let run = sandbox.strait("join broken.parquet cities.csv --on id -o out.csv");
    run.fails(&["out.csv exists already"]);
}

#[test]
fn files_get_ordinary_permissions_and_links_stay_links() {
    let sandbox = Sandbox::with_people();
    write(&sandbox, "out.csv", "");
    let mode =
        |name: &str| std::fs::metadata(sandbox.path(name)).unwrap().permissions().mode() & 0o777;
    sandbox.write("plain", "");
    assert_eq!(mode("out.csv"), mode("plain"));
    std::os::unix::fs::symlink("out.csv", sandbox.path("link.csv")).unwrap();
    write(&sandbox, "link.csv", "--overwrite --limit 1");
    assert!(std::fs::symlink_metadata(sandbox.path("link.csv")).unwrap().is_symlink());
    assert_eq!(sandbox.read("out.csv").lines().count(), 2);
}

#[test]
fn a_folder_or_a_missing_folder_is_no_output() {
    let sandbox = Sandbox::with_people();
    std::fs::create_dir(sandbox.path("dir.csv")).unwrap();
    let run =
        |out: &str| sandbox.strait(&format!("join people.csv cities.csv --on city=id -o {out}"));
    run("dir.csv").fails(&["dir.csv is a folder"]);
    run("no/where/out.csv").fails(&["there is no folder no/where"]);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let sandbox = Sandbox::new();
    let rows: String = (0..1000).map(|i| format!("7,{i}\n")).collect();
    sandbox.write("a.csv", format!("k,p\n{rows}"));
    for out in ["-o -", "--limit 200000", ""] {
        let script =
            format!("{{ $strait join a.csv a.csv --on k {out}; echo $? > status; }} | head -c 10");
        let run = sandbox.shell(&script);
        assert_eq!(run.stderr, "", "{out}");
        assert_eq!(sandbox.read("status"), "0\n", "{out}");
    }
}

#[test]
fn csv_refuses_nested_columns() {
    use arrow::array::{ArrayRef, Int64Array, ListArray};
    use arrow::datatypes::Int64Type;
    use std::sync::Arc;
    let sandbox = Sandbox::with_people();
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([Some([Some(1)])]);
    let batch = arrow::array::RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from(vec![1])) as ArrayRef),
        ("list", Arc::new(lists)),
    ]);
    sandbox.parquet("lists.parquet", &batch.unwrap());
    let run = "join people.csv lists.parquet --on city=id -o out.csv";
    sandbox.strait(run).fails(&["CSV cannot hold column \"list\"", "--select"]);
    sandbox.strait(&run.replace("out.csv", "out.parquet")).ok();
    assert!(!sandbox.path("out.csv").exists());
}

/// The files of a table with dictionaries inside a struct and inside a list.
fn nested_dictionaries(sandbox: &Sandbox) {
    use arrow::array::{
        ArrayRef, DictionaryArray, Int64Array, ListArray, RecordBatch, StructArray,
    };
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::{Field, Int32Type};
    use std::sync::Arc;
    for (name, id, title) in [("1", 1, "Oslo"), ("2", 2, "Rome")] {
        let titles: ArrayRef =
            Arc::new([title].into_iter().collect::<DictionaryArray<Int32Type>>());
        let field = Arc::new(Field::new("title", titles.data_type().clone(), true));
        let of_struct = StructArray::new(vec![field.clone()].into(), vec![titles.clone()], None);
        let of_list = ListArray::new(field, OffsetBuffer::new(vec![0, 1].into()), titles, None);
        let batch = RecordBatch::try_from_iter([
            ("id", Arc::new(Int64Array::from(vec![id])) as ArrayRef),
            ("in_struct", Arc::new(of_struct)),
            ("in_list", Arc::new(of_list)),
        ]);
        sandbox.ipc_file(&format!("c/{name}.arrow"), &batch.unwrap());
    }
}

#[test]
fn nested_dictionaries_in_every_format() {
    let sandbox = Sandbox::with_people();
    nested_dictionaries(&sandbox);
    sandbox.write("ids.csv", "id\n1\n2\n");
    for out in ["o.arrow", "o.arrows", "o.parquet"] {
        sandbox.strait(&format!("join ids.csv c --on id -o {out}")).ok();
        // The output is read again as an input.
        let shown = sandbox.strait(&format!("join people.csv {out} --on city=id")).ok();
        for part in ["Ada", "{title: Oslo}", "[Oslo]", "Bob", "{title: Rome}", "[Rome]", "2 rows"] {
            assert!(shown.contains(part), "{out}: no {part} in {shown}");
        }
    }
    let run = sandbox.strait("join ids.csv c --on id -o o.csv");
    run.fails(&["CSV cannot hold column \"in_struct\""]);
}

/// Names of time zones need a time zone database, which the command does not have.
#[test]
fn timestamps_of_named_zones_are_shown_in_utc() {
    let sandbox = Sandbox::new();
    sandbox.write("b.csv", "k,q\n1,x\n2,y\n");
    for zone in ["Europe/Berlin", "Nowhere/Land", "+02:00"] {
        let times = TimestampMillisecondArray::from(vec![Some(1_720_000_000_000), None]);
        let keys: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let columns = [("k", keys), ("t", Arc::new(times.with_timezone(zone)) as ArrayRef)];
        sandbox.ipc_file("a.arrow", &RecordBatch::try_from_iter(columns).unwrap());
        let time = match zone {
            "+02:00" => "2024-07-03T11:46:40+02:00",
            _ => "2024-07-03T09:46:40Z",
        };
        let shown = sandbox.strait("join a.arrow b.csv --on k").ok();
        assert!(shown.contains(time) && shown.contains("null"), "{zone}: {shown}");
        sandbox.strait("join a.arrow b.csv --on k -o out.csv --overwrite").ok();
        let text = sandbox.read("out.csv");
        assert!(text.starts_with("k,t,q\n") && text.contains(&format!("1,{time}")), "{text}");
    }
}

/// Another process creates the output while the join runs.
#[test]
fn the_second_of_two_writers_is_told_of_overwrite() {
    let sandbox = Sandbox::with_people();
    let stream = stream_of(&batch(("id", &[1]), ("p", &["x"])));
    // Without its end, the join waits for more of the stream.
    let (start, end) = stream.split_at(stream.len() - 8);
    sandbox.write("start", start);
    sandbox.write("end", end);
    // The output has no name, or a temporary one, when it has been opened.
    let opened = "ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q \"$PWD/.*\\(deleted\\|tmp\\)\"";
    let pipe = format!("cat start; for i in $(seq 2000); do {opened} && break; sleep .01; done");
    let run = sandbox.shell(&format!(
        "({pipe}; echo first > out.csv; cat end) | $strait join - cities.csv --on id -o out.csv"
    ));
    run.fails(&["another process wrote out.csv", "--overwrite"]);
    assert_eq!(sandbox.read("out.csv"), "first\n");
    assert!(!sandbox.names().iter().any(|name| name.ends_with(".tmp")), "{:?}", sandbox.names());
}

#[test]
fn long_names_are_written_and_replaced() {
    let sandbox = Sandbox::with_people();
    let name = format!("{}.csv", "n".repeat(250));
    for _ in 0..2 {
        let join = format!("join people.csv cities.csv --on city=id --overwrite -o {name}");
        sandbox.strait(&join).ok();
    }
    assert!(sandbox.read(&name).contains("Oslo"));
    assert_eq!(sandbox.names().len(), 3);
}

#[test]
#[cfg(unix)]
fn a_link_to_nothing_is_refused_before_the_join() {
    let sandbox = Sandbox::with_people();
    std::os::unix::fs::symlink("nowhere.csv", sandbox.path("link.csv")).unwrap();
    for more in ["", "--overwrite"] {
        let join = format!("join people.csv cities.csv --on city=id -o link.csv {more}");
        sandbox.strait(&join).fails(&["link.csv is a link to a file that does not exist"]);
    }
}

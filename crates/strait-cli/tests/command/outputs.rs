//! Every output format, and how output files appear.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMillisecondArray};

use crate::sandbox::{
    Sandbox, batch, read_ipc_file, read_ipc_stream, read_parquet, sorted, stream_of,
};

const EXPECTED: [&str; 3] = ["name,city,id,title", "Ada,1,1,Oslo", "Bob,2,2,Rome"];

fn write(sandbox: &Sandbox, out: &str, more: &str) {
    sandbox.strait(&format!("join people.csv cities.csv --on city=id -o {out} {more}")).ok();
}

#[test]
fn parquet_with_every_codec() {
    let sandbox = Sandbox::with_people();
    for codec in ["zstd", "snappy", "none"] {
        let out = format!("{codec}.parquet");
        write(&sandbox, &out, &format!("--compression {codec}"));
        assert_eq!(sorted(&read_parquet(&sandbox.path(&out))), EXPECTED, "{codec}");
    }
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
fn pairs(sandbox: &Sandbox) {
    let rows: String = (0..1100).map(|i| format!("7,{i}\n")).collect();
    sandbox.write("a.csv", format!("k,p\n{rows}"));
    sandbox.write("b.csv", format!("k,q\n{rows}"));
}

/// Checks that every pair of `p` and `q` comes once.
fn check_pairs(rows: impl Iterator<Item = (i64, i64)>) {
    let mut seen = vec![false; 1100 * 1100];
    for (p, q) in rows {
        let pair = &mut seen[(p * 1100 + q) as usize];
        assert!(!*pair, "{p}, {q} came twice");
        *pair = true;
    }
    assert!(seen.into_iter().all(|pair| pair));
}

fn columns<'a>(batch: &'a RecordBatch, names: [&str; 2]) -> [&'a [i64]; 2] {
    names.map(|name| {
        let column = batch.column_by_name(name).unwrap();
        column.as_any().downcast_ref::<Int64Array>().unwrap().values().as_ref()
    })
}

#[test]
fn many_rows_make_several_row_groups() {
    let sandbox = Sandbox::new();
    pairs(&sandbox);
    let groups = |name: &str| {
        let file = std::fs::File::open(sandbox.path(name)).unwrap();
        let reader =
            parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        let groups = reader.metadata().row_groups().iter().map(|group| group.num_rows());
        let groups: Vec<i64> = groups.collect();
        let batches: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
        check_pairs(batches.iter().flat_map(|batch| {
            let [p, q] = columns(batch, ["p", "q"]);
            p.iter().copied().zip(q.iter().copied())
        }));
        groups
    };
    sandbox.strait("join a.csv b.csv --on k -o default.parquet --threads 3").ok();
    assert!((5..=7).contains(&groups("default.parquet").len()));
    let join = "join a.csv b.csv --on k --threads 3 --row-group-rows 100000";
    for algorithm in ["auto", "sort-merge"] {
        let out = format!("{algorithm}.parquet");
        sandbox.strait(&format!("{join} --algorithm {algorithm} -o {out}")).ok();
        let rows = groups(&out);
        // Each of three threads ends with a group that is not full.
        assert!((13..=15).contains(&rows.len()), "{algorithm}: {rows:?}");
        assert!(rows.iter().all(|&rows| rows <= 100_000), "{algorithm}: {rows:?}");
    }
}

/// Under a memory limit, many threads share a few open row groups. With one per thread, row groups would be tiny,
/// and a Parquet file holds at most 32,767 of them.
#[test]
fn many_threads_under_a_limit_make_no_tiny_row_groups() {
    let sandbox = Sandbox::new();
    let text = |i: u64| -> String {
        let word = |n: u64| format!("{:016x}", (i * 100 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (0..30).map(word).collect()
    };
    let wide: String = (0..300).map(|i| format!("{},{}\n", i % 3, text(i))).collect();
    sandbox.write("wide.csv", format!("k,s\n{wide}"));
    let rows: String = (0..300).map(|i| format!("{},{i}\n", i % 3)).collect();
    sandbox.write("b.csv", format!("k,q\n{rows}"));
    let join =
        "join wide.csv b.csv --on k --device cpu --algorithm no-partition --compression none";
    sandbox.strait(&format!("{join} --memory 32MiB --threads 64 -o o.parquet")).ok();
    let file = std::fs::File::open(sandbox.path("o.parquet")).unwrap();
    let reader =
        parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    assert_eq!(reader.metadata().file_metadata().num_rows(), 30_000);
    let groups = reader.metadata().num_row_groups();
    assert!(groups <= 60, "{groups} row groups for 15 MB of rows");
}

#[test]
fn row_groups_are_for_parquet() {
    let sandbox = Sandbox::with_people();
    let join = "join people.csv cities.csv --on city=id";
    for wrong in ["0", "-1", "many", "1.5", "1073741825"] {
        let run = sandbox.strait(&format!("{join} -o out.parquet --row-group-rows={wrong}"));
        run.refused(&["--row-group-rows", "from 1 to 1073741824"]);
    }
    let run = sandbox.strait(&format!("{join} -o out.csv --row-group-rows 10"));
    run.refused(&["--row-group-rows is for Parquet output"]);
    let run = sandbox.strait(&format!("{join} --row-group-rows 10"));
    run.refused(&["--output"]);
    write(&sandbox, "out.parquet", "--row-group-rows 1");
    assert_eq!(sorted(&read_parquet(&sandbox.path("out.parquet"))), EXPECTED);
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

/// Parquet columns are encoded in several ways. The rows must not depend on it.
#[test]
fn columns_of_every_kind_in_parquet() {
    let sandbox = Sandbox::new();
    let row = |i: i64| {
        let word = ["", "air", "DELIVER IN PERSON", "rail", "x"][(i * 31 % 5) as usize];
        format!(
            "{i},{word},text number {},{},{}.5,{}\n",
            i * 7919 % 50_021,
            i / 4,
            i % 9,
            i * 48271 % 65_537
        )
    };
    let rows: String = (0..50_000).map(row).collect();
    sandbox.write("a.csv", format!("k,word,text,group,float,number\n{rows}"));
    let keys: String = (0..50_000).map(|i| format!("{i}\n")).collect();
    sandbox.write("b.csv", format!("k\n{keys}"));
    sandbox.strait("join a.csv b.csv --on k -o o.csv").ok();
    let expected = sandbox.read("o.csv");
    assert_eq!(expected.lines().count(), 50_001);
    for codec in ["none", "snappy", "zstd"] {
        for more in ["", "--row-group-rows 7000", "--memory 256MiB"] {
            let join = "join a.csv b.csv --on k --threads 3 --overwrite -o o.parquet";
            sandbox.strait(&format!("{join} --compression {codec} {more}")).ok();
            let text = read_parquet(&sandbox.path("o.parquet"));
            assert!(sorted(&text) == sorted(&expected), "{codec} {more}");
            // The command reads its own file, and skips nothing by its statistics.
            let counted =
                sandbox.strait("join o.parquet a.csv --on k,word,text,group,number --count").ok();
            let with_word = (0..50_000).filter(|i| i * 31 % 5 != 0).count();
            assert_eq!(counted, format!("{with_word}\n"), "{codec} {more}");
        }
    }
}

/// A sample of the first rows chooses the encodings. Later rows may be quite different.
#[test]
fn rows_that_the_sample_did_not_suggest() {
    let sandbox = Sandbox::new();
    let rows = 60_000_i64;
    let extreme = |i: i64| if i % 2 == 0 { i64::MIN + i } else { i64::MAX - i };
    let numbers = (0..rows).map(|i| if i < 40_000 { i / 4 } else { extreme(i) });
    let small = (0..rows).map(|i| if i < 40_000 { i as i32 / 4 } else { extreme(i) as i32 });
    let words = (0..rows).map(|i| match i {
        ..40_000 => Some(["air", "rail"][i as usize % 2].to_string()),
        _ if i % 3 == 0 => None,
        _ => Some(format!("not a word: {}", i.to_string().repeat(20))),
    });
    let columns: [(&str, ArrayRef); 4] = [
        ("k", Arc::new(Int64Array::from_iter_values(0..rows))),
        ("number", Arc::new(Int64Array::from_iter_values(numbers))),
        ("small", Arc::new(arrow::array::Int32Array::from_iter_values(small))),
        ("word", Arc::new(words.collect::<arrow::array::StringViewArray>())),
    ];
    sandbox.parquet("a.parquet", &RecordBatch::try_from_iter(columns).unwrap());
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    sandbox.parquet("b.parquet", &RecordBatch::try_from_iter([("k", keys)]).unwrap());
    let expected = read_parquet(&sandbox.path("a.parquet"));
    for codec in ["none", "snappy", "zstd"] {
        // One thread keeps the order of the rows, so that the sample has the first rows.
        let join = "join a.parquet b.parquet --on k --threads 1 --overwrite -o o.parquet";
        sandbox.strait(&format!("{join} --compression {codec}")).ok();
        let text = read_parquet(&sandbox.path("o.parquet"));
        assert!(sorted(&text) == sorted(&expected), "{codec}");
    }
}

/// The comments of orders are repeated in each of their items. Some are missing, empty or very long.
#[test]
fn repeated_comments_in_parquet() {
    let sandbox = Sandbox::new();
    let comments = (0..9_000_i64).map(|i| match i % 1000 {
        0 => None,
        1 => Some(String::new()),
        2 => Some(format!("{i} is long: {}", "x".repeat(20_000))),
        _ => Some(format!("the comment of order {i}, which is longer than a view")),
    });
    let orders: [(&str, ArrayRef); 3] = [
        ("k", Arc::new(Int64Array::from_iter_values(0..9_000))),
        (
            "price",
            Arc::new(Int64Array::from_iter((0..9_000).map(|i| (i % 7 > 0).then_some(i * 48271)))),
        ),
        ("comment", Arc::new(comments.collect::<arrow::array::StringViewArray>())),
    ];
    let items: [(&str, ArrayRef); 2] = [
        ("k", Arc::new(Int64Array::from_iter_values((0..36_010).map(|i| i / 4)))),
        ("item", Arc::new(Int64Array::from_iter_values(0..36_010))),
    ];
    sandbox.parquet("orders.parquet", &RecordBatch::try_from_iter(orders).unwrap());
    sandbox.parquet("items.parquet", &RecordBatch::try_from_iter(items).unwrap());
    // The last items have no order.
    let join = "join orders.parquet items.parquet --on k --type right --threads 2";
    sandbox.strait(&format!("{join} -o o.csv")).ok();
    let expected = sandbox.read("o.csv");
    assert_eq!(expected.lines().count(), 36_011);
    for codec in ["none", "snappy", "zstd"] {
        sandbox.strait(&format!("{join} -o o.parquet --overwrite --compression {codec}")).ok();
        // As CSV, an empty string is not a null.
        sandbox
            .strait(
                "join o.parquet items.parquet --on item --type left-semi -o again.csv --overwrite",
            )
            .ok();
        assert!(sorted(&sandbox.read("again.csv")) == sorted(&expected), "{codec}");
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

/// Parquet has no unit for seconds. Such times become milliseconds, at any depth, so that other programs see times.
#[test]
fn seconds_become_milliseconds_in_parquet() {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StructArray, TimestampSecondArray};
    use arrow::datatypes::{DataType, Field, TimeUnit};
    use parquet::basic::LogicalType;
    let sandbox = Sandbox::new();
    sandbox.write("t.csv", "id,t\n1,2024-03-24T19:00:00\n2,\n");
    let times = |values: Vec<Option<i64>>| -> ArrayRef {
        std::sync::Arc::new(TimestampSecondArray::from(values).with_timezone("+00:00"))
    };
    let nested = |times: ArrayRef| {
        let field = Field::new("at", times.data_type().clone(), true);
        let nested: ArrayRef = std::sync::Arc::new(StructArray::from(vec![(field.into(), times)]));
        let ids: ArrayRef = std::sync::Arc::new(Int64Array::from(vec![1, 2]));
        RecordBatch::try_from_iter([("id", ids), ("s", nested)]).unwrap()
    };
    sandbox.ipc_file("n.arrow", &nested(times(vec![Some(5), None])));
    sandbox.strait("join t.csv n.arrow --on id -o o.parquet").ok();
    let file = std::fs::File::open(sandbox.path("o.parquet")).unwrap();
    let reader =
        parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let leaves = reader.parquet_schema().columns().to_vec();
    let is_time =
        |i: usize| matches!(leaves[i].logical_type_ref(), Some(LogicalType::Timestamp { .. }));
    assert!(is_time(1) && is_time(2), "{leaves:?}");
    let millis = DataType::Timestamp(TimeUnit::Millisecond, None);
    assert_eq!(*reader.schema().field(1).data_type(), millis);
    let rows: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
    let text = arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string();
    assert!(text.contains("2024-03-24T19:00:00") && text.contains("1970-01-01T00:00:05"), "{text}");
    // A time that milliseconds cannot hold is an error.
    sandbox.ipc_file("n.arrow", &nested(times(vec![Some(i64::MAX / 2), None])));
    let run = sandbox.strait("join t.csv n.arrow --on id -o o.parquet --overwrite");
    run.fails(&["\"s\"", "milliseconds"]);
}

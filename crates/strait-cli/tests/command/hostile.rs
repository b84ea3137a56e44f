//! Extreme inputs, settings and disks.

use std::io::Write;

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Decimal128Array, DictionaryArray, Int8Array, Int64Array, RecordBatch,
    RecordBatchOptions, StructArray,
};
use arrow::datatypes::{DataType, Field, Schema};

use crate::sandbox::{Sandbox, batch, read_parquet, sorted, stream_of};

fn cities() -> RecordBatch {
    batch(("id", &[1, 2, 3]), ("title", &["Oslo", "Rome", "Kiel"]))
}

/// A batch of rows without columns.
fn without_columns() -> RecordBatch {
    let options = RecordBatchOptions::new().with_row_count(Some(3));
    RecordBatch::try_new_with_options(Schema::empty().into(), vec![], &options).unwrap()
}

#[test]
fn a_csv_field_of_300_mb_in_300_kb() {
    let sandbox = Sandbox::with_people();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(b"id,title\n1,").unwrap();
    (0..300).for_each(|_| gzip.write_all(&[b'x'; 1 << 20]).unwrap());
    sandbox.write("bomb.csv.gz", gzip.finish().unwrap());
    let run = "join people.csv bomb.csv.gz --on city=id -o out.csv --memory 16MiB";
    sandbox.strait(run).fails(&["bomb.csv.gz", "the memory limit of 16.0 MiB", "try --memory"]);
    assert_eq!(sandbox.names(), ["bomb.csv.gz", "cities.csv", "people.csv"]);
}

#[test]
fn every_cut_of_a_file_is_an_error_that_names_it() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("w.parquet", &cities());
    sandbox.ipc_file("w.arrow", &cities());
    sandbox.ipc_stream("w.arrows", &cities());
    for name in ["w.parquet", "w.arrow", "w.arrows"] {
        let whole = std::fs::read(sandbox.path(name)).unwrap();
        let cut = name.replace('w', "cut");
        for part in [10, 30, 50, 70, 90] {
            sandbox.write(&cut, &whole[..whole.len() * part / 100]);
            let run = sandbox.strait(&format!("join people.csv {cut} --on city=id"));
            run.fails(&[&cut, "get"]);
        }
    }
}

#[test]
fn a_decoder_that_panics_is_an_error_that_names_the_file() {
    let sandbox = Sandbox::with_people();
    sandbox.ipc_file("c.arrow", &cities());
    let whole = std::fs::read(sandbox.path("c.arrow")).unwrap();
    for at in (8..whole.len() - 8).step_by(4) {
        let mut bytes = whole.clone();
        bytes[at..at + 4].copy_from_slice(&[0xff; 4]);
        sandbox.write("c.arrow", bytes);
        let run = sandbox.strait("join people.csv c.arrow --on city=id --count");
        assert!(matches!(run.status, Some(0 | 1)), "{at}: {run:?}");
        if run.status == Some(1) {
            assert!(run.stderr.starts_with("error: "), "{at}: {}", run.stderr);
            assert_eq!(run.stderr.lines().count(), 1, "{at}: {}", run.stderr);
        }
    }
}

#[test]
fn tables_without_columns_or_rows() {
    let sandbox = Sandbox::with_people();
    sandbox.ipc_file("none.arrow", &without_columns());
    sandbox.ipc_stream("none.arrows", &without_columns());
    for name in ["none.arrow", "none.arrows"] {
        let run = sandbox.strait(&format!("join people.csv {name} --on city=id"));
        run.fails(&[name, "no column \"id\""]);
    }
    sandbox.ipc_file("empty.arrow", &cities().slice(0, 0));
    sandbox.write("empty.csv", "id,title\n");
    for name in ["empty.arrow", "empty.csv"] {
        let join = format!("join people.csv {name} --on city=id --csv-null x");
        if name == "empty.arrow" {
            assert_eq!(sandbox.strait(&format!("{join} --count")).ok(), "0\n");
        } else {
            // A column without values is text.
            sandbox.strait(&join).fails(&["\"city\" (Int64)", "\"id\" (Utf8)"]);
        }
    }
    for name in ["zero.csv", "zero.parquet", "zero.arrow", "zero.csv.gz", "zero.csv.zst"] {
        sandbox.write(name, "");
        sandbox.strait(&format!("join people.csv {name} --on city=id")).fails(&[name]);
    }
}

#[test]
fn a_folder_that_is_named_like_a_file() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("c.parquet/part.parquet", &cities());
    assert_eq!(sandbox.strait("join people.csv c.parquet --on city=id --count").ok(), "2\n");
    std::fs::create_dir(sandbox.path("empty.parquet")).unwrap();
    let run = sandbox.strait("join people.csv empty.parquet --on city=id");
    run.fails(&["folder empty.parquet holds no tables"]);
}

#[test]
fn columns_of_one_name() {
    let sandbox = Sandbox::with_people();
    sandbox.write("twice.csv", "id,id\n1,2\n");
    let run = sandbox.strait("join people.csv twice.csv --on city=id");
    run.fails(&["twice.csv", "2 columns named \"id\"", "rename"]);
    sandbox.write("twice.csv", "id,t,t\n1,x,y\n");
    assert_eq!(sandbox.strait("join people.csv twice.csv --on city=id --count").ok(), "1\n");
    // Both columns are written under the same name.
    sandbox.strait("join people.csv twice.csv --on city=id -o o.csv").ok();
    assert_eq!(sandbox.read("o.csv"), "name,city,id,t,t\nAda,1,1,x,y\n");
}

#[test]
fn numbers_out_of_range() {
    let sandbox = Sandbox::with_people();
    let join = "join people.csv cities.csv --on city=id";
    sandbox.strait(&format!("{join} --threads 0")).refused(&["at least one thread"]);
    sandbox.strait(&format!("{join} --threads 5000")).refused(&["from 1 to 4096"]);
    sandbox.strait(&format!("{join} --memory 0")).refused(&["more than zero"]);
    let most = u64::MAX;
    let shown = sandbox.strait(&format!("{join} --limit {most}")).ok();
    assert!(shown.contains("2 rows"), "{shown}");
    let shown = sandbox.strait(&format!("{join} --limit 0")).ok();
    assert!(shown.contains("0 rows"), "{shown}");
    sandbox.strait(&format!("{join} --threads 4096 --memory {most} -o o.parquet")).ok();
    let text = read_parquet(&sandbox.path("o.parquet"));
    assert_eq!(sorted(&text), ["name,city,id,title", "Ada,1,1,Oslo", "Bob,2,2,Rome"]);
}

/// With 4096 threads, a writer that starts threads for every chunk would start 65,536 threads here.
#[test]
fn many_threads_write_many_chunks() {
    let sandbox = Sandbox::new();
    let rows: String = (0..1030).map(|i| format!("7,{i}\n")).collect();
    sandbox.write("a.csv", format!("k,p\n{rows}"));
    sandbox.write("b.csv", format!("k,q\n{rows}"));
    let rows = |threads: usize| {
        let out = format!("{threads}.parquet");
        let join = format!("join a.csv b.csv --on k -o {out} --threads {threads}");
        sandbox.strait(&join).ok();
        let file = std::fs::File::open(sandbox.path(&out)).unwrap();
        let file = parquet::file::reader::SerializedFileReader::new(file).unwrap();
        use parquet::file::reader::FileReader;
        file.metadata().file_metadata().num_rows()
    };
    assert_eq!(rows(4096), 1030 * 1030);
    assert_eq!(rows(1), 1030 * 1030);
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let rows: String = (0..2000).map(|i| format!("7,value {i}\n")).collect();
    sandbox.write("a.csv", format!("k,p\n{rows}"));
    let before = sandbox.names();
    for more in ["", "--memory 256MiB", "--threads 64"] {
        for out in ["o.parquet", "o.arrow", "o.csv.zst"] {
            let run = sandbox.shell(&format!(
                "ulimit -f 16; trap '' XFSZ; exec $strait join a.csv a.csv --on k {more} -o {out}"
            ));
            run.fails(&[&format!("cannot write {out}"), "File too large"]);
        }
    }
    assert_eq!(sandbox.names(), before);
    let run = sandbox.shell("$strait join a.csv a.csv --on k -o - --memory 256MiB > /dev/full");
    run.fails(&["stdout", "No space left on device"]);
}

/// A file can hold decimals with more digits than their type has. They would be written as other values.
#[test]
fn decimals_beyond_their_digits() {
    let sandbox = Sandbox::with_people();
    let digits = DataType::Decimal128(18, 2);
    let values = Decimal128Array::from(vec![Some(5), None, Some(10_i128.pow(18) + 7)]);
    let decimals: ArrayRef = Arc::new(values.with_data_type(digits.clone()));
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let table = |column: ArrayRef| {
        RecordBatch::try_from_iter([("id", Arc::clone(&ids)), ("d", column)]).unwrap()
    };
    let fails = |name: &str, out: &str| {
        let run = sandbox.strait(&format!("join {name} cities.csv --on id {out}"));
        run.fails(&[name, "column \"d\"", "more digits than its type", "--cast"]);
    };
    sandbox.ipc_file("d.arrow", &table(Arc::clone(&decimals)));
    sandbox.parquet("d.parquet", &table(Arc::clone(&decimals)));
    for name in ["d.arrow", "d.parquet"] {
        for out in ["", "-o o.csv", "-o o.jsonl", "-o o.arrow", "-o o.parquet --memory 64MiB"] {
            fails(name, out);
        }
        let wide = format!("join {name} cities.csv --on id --cast d=decimal(38,2) -o o.csv");
        sandbox.strait(&format!("{wide} --select d --overwrite")).ok();
        assert!(
            sandbox.read("o.csv").contains("10000000000000000.07"),
            "{}",
            sandbox.read("o.csv")
        );
        std::fs::remove_file(sandbox.path("o.csv")).unwrap();
    }
    let stream = stream_of(&table(Arc::clone(&decimals)));
    let run = sandbox.strait_with_stdin("join - cities.csv --on id", &stream);
    run.fails(&["stdin", "column \"d\"", "more digits than its type"]);
    let field = Arc::new(Field::new("f", digits, true));
    let nested = StructArray::from(vec![(field, Arc::clone(&decimals))]);
    let keys = Int8Array::from(vec![0, 1, 2]);
    let dictionary = DictionaryArray::new(keys, decimals);
    for column in [Arc::new(nested) as ArrayRef, Arc::new(dictionary)] {
        sandbox.ipc_file("n.arrow", &table(column));
        fails("n.arrow", "-o o.parquet");
    }
}

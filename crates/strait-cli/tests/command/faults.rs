//! Bad input and faults. Each test checks the message.

use arrow::array::RecordBatch;
use parquet::basic::{BrotliLevel, Compression};
use parquet::file::metadata::{ParquetMetaDataReader, ParquetMetaDataWriter};

use crate::sandbox::{Sandbox, batch};

fn cities() -> RecordBatch {
    batch(("id", &[1, 2, 3]), ("title", &["Oslo", "Rome", "Kiel"]))
}

/// Enough rows that their product does not fit a small file.
fn many(sandbox: &Sandbox) {
    let rows: String = (0..2000).map(|i| format!("7,value {i}\n")).collect();
    sandbox.write("a.csv", format!("k,p\n{rows}"));
    sandbox.write("b.csv", format!("k,q\n{rows}"));
}

#[test]
fn missing_file() {
    let sandbox = Sandbox::with_people();
    let run = sandbox.strait("join peple.csv cities.csv --on city=id");
    run.fails(&["peple.csv does not exist", "did you mean people.csv?"]);
    sandbox.strait("join zzzzzz.csv cities.csv --on city=id").fails(&["zzzzzz.csv does not exist"]);
    sandbox
        .strait("join *.parquet cities.csv --on city=id")
        .fails(&["no table matches \"*.parquet\""]);
}

#[test]
fn folder_with_no_tables() {
    let sandbox = Sandbox::with_people();
    sandbox.write("empty/README", "nothing here");
    sandbox.write("empty/_hidden.csv", "a\n1\n");
    let run = sandbox.strait("join people.csv empty --on city=id");
    run.fails(&["folder empty holds no tables", ".parquet, .csv"]);
}

#[test]
fn a_format_that_cannot_be_told() {
    let sandbox = Sandbox::with_people();
    sandbox.write("mystery", "a,b\n1,2\n");
    let run = sandbox.strait("join people.csv mystery --on city=id");
    run.fails(&["cannot tell the format of mystery", ".parquet"]);
}

#[test]
fn a_pipe_is_no_file() {
    let sandbox = Sandbox::with_people();
    let run = sandbox.shell("mkfifo pipe.csv; $strait join people.csv pipe.csv --on city=id");
    run.fails(&["pipe.csv is neither a file nor a folder", "stdin"]);
}

#[test]
fn not_a_parquet_file() {
    let sandbox = Sandbox::with_people();
    for content in ["", "PAR", "id,title\n1,Oslo\n"] {
        sandbox.write("bad.parquet", content);
        let run = sandbox.strait("join people.csv bad.parquet --on city=id");
        run.fails(&["bad.parquet is not a Parquet file"]);
    }
}

#[test]
fn truncated_parquet_file() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("whole.parquet", &cities());
    let whole = std::fs::read(sandbox.path("whole.parquet")).unwrap();
    for length in [4, 11, whole.len() / 2, whole.len() - 1] {
        sandbox.write("cut.parquet", &whole[..length]);
        let run = sandbox.strait("join people.csv cut.parquet --on city=id -o out.csv");
        run.fails(&["cut.parquet is truncated", "get the file again"]);
        assert!(!sandbox.path("out.csv").exists());
    }
    // The middle is missing: the footer points to bytes that do not exist.
    let hole = [&whole[..8], &whole[whole.len() / 2..]].concat();
    sandbox.write("cut.parquet", hole);
    let run = sandbox.strait("join people.csv cut.parquet --on city=id");
    run.fails(&["cut.parquet", "get"]);
}

#[test]
fn damaged_parquet_pages() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("bad.parquet", &cities());
    let mut bytes = std::fs::read(sandbox.path("bad.parquet")).unwrap();
    bytes[4..60].fill(0xff);
    sandbox.write("bad.parquet", bytes);
    let run = sandbox.strait("join people.csv bad.parquet --on city=id -o out.csv");
    run.fails(&["cannot read bad.parquet, row group 0: ", "damaged"]);
    assert!(!sandbox.path("out.csv").exists());
}

#[test]
fn truncated_arrow_file() {
    let sandbox = Sandbox::with_people();
    sandbox.ipc_file("cut.arrow", &cities());
    let whole = std::fs::read(sandbox.path("cut.arrow")).unwrap();
    sandbox.write("cut.arrow", &whole[..whole.len() / 2]);
    let run = sandbox.strait("join people.csv cut.arrow --on city=id");
    run.fails(&["cut.arrow is truncated or damaged"]);
    sandbox.write("cut.arrow", "no arrow at all");
    let run = sandbox.strait("join people.csv cut.arrow --on city=id");
    run.fails(&["cut.arrow is not an Arrow IPC file"]);
}

#[test]
fn stdin_that_is_no_stream() {
    let sandbox = Sandbox::with_people();
    let run = sandbox.strait_with_stdin("join people.csv - --on city=id", b"id,title\n1,Oslo\n");
    run.fails(&["stdin is not an Arrow IPC stream"]);
}

#[test]
fn csv_row_with_too_few_fields() {
    let sandbox = Sandbox::with_people();
    sandbox.write("short.csv", "id,title\n1,Oslo\n2\n");
    let run = sandbox.strait("join people.csv short.csv --on city=id");
    run.fails(&["short.csv, line 3: 1 field(s) where 2 are expected", "--csv-delimiter"]);
    // The same, after the rows from which types were inferred.
    let run = sandbox.strait("join people.csv short.csv --on city=id --sample 1 -o out.csv");
    run.fails(&["short.csv, line 3: 1 field(s) where 2 are expected"]);
    assert!(!sandbox.path("out.csv").exists());
    sandbox.write("short.csv", "id,title\n1,Oslo\n2,Rome,3\n");
    // The old name of the option still works.
    let run = sandbox.strait("join people.csv short.csv --on city=id --csv-sample 1");
    run.fails(&["short.csv, line 3:", "where 2 are expected"]);
}

#[test]
fn csv_value_that_does_not_fit_what_the_sample_suggested() {
    let sandbox = Sandbox::with_people();
    sandbox.write("late.csv", "id,n\n1,5\n2,six\n");
    let run = sandbox.strait("join people.csv late.csv --on city=id --sample 1");
    run.fails(&["late.csv, line 3: column \"n\" has \"six\"", "Int64", "--sample all"]);
    run.fails(&["--cast n=text", "--csv-null six"]);
    sandbox.strait("join people.csv late.csv --on city=id --sample 1 --cast n=text").ok();
    sandbox.strait("join people.csv late.csv --on city=id --sample all").ok();
    sandbox.strait("join people.csv late.csv --on city=id --sample 1 --csv-null six").ok();
}

/// A larger sample is advised only if it would help.
#[test]
fn csv_value_that_looks_like_its_type() {
    let sandbox = Sandbox::with_people();
    sandbox.write("day.csv", "id,the day\n1,2024-01-01\n2,2024-13-01\n");
    sandbox.write("time.csv", "id,the day\n1,2024-01-01T00:00:00\n2,2024-13-01T00:00:00\n");
    sandbox.write("never.csv", "id,the day\n1,2024-01-01T00:00:00\n2,not yet\n");
    let join = |more: &str| sandbox.shell(&format!("$strait join people.csv {more} --on city=id"));
    for (file, value) in [("day.csv", "2024-13-01"), ("time.csv", "2024-13-01T00:00:00")] {
        for sample in ["", "--sample 1", "--sample all"] {
            let run = join(&format!("{file} {sample}"));
            let null = format!("--csv-null {value}");
            run.fails(&["line 3: column \"the day\"", "--cast 'the day'=text", &null]);
            assert!(!run.stderr.contains("--sample all"), "{}", run.stderr);
        }
        join(&format!("{file} --cast 'the day'=text")).ok();
        join(&format!("{file} --csv-null {value}")).ok();
    }
    let run = join("never.csv --sample 1");
    run.fails(&["--cast 'the day'=text", "--csv-null 'not yet'", "--sample all"]);
    join("never.csv --sample all").ok();
    join("never.csv --sample 1 --csv-null 'not yet'").ok();
}

#[test]
fn csv_that_is_empty_or_cut() {
    let sandbox = Sandbox::with_people();
    sandbox.write("empty.csv", "");
    let run = sandbox.strait("join people.csv empty.csv --on city=id");
    run.fails(&["empty.csv is empty"]);
    sandbox.write("cut.csv.gz", [0x1f, 0x8b, 8, 0, 0, 0]);
    sandbox.strait("join people.csv cut.csv.gz --on city=id").fails(&["cannot read cut.csv.gz"]);
}

#[test]
fn schema_that_differs_within_a_folder() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("c/1.parquet", &cities());
    sandbox.parquet("c/2.parquet", &batch(("id", &[1]), ("name", &["x"])));
    let run = sandbox.strait("join people.csv c --on city=id");
    run.fails(&["column \"title\" of c/1.parquet is missing in c/2.parquet"]);

    let text = RecordBatch::try_from_iter([
        ("id", cities().column(1).clone()),
        ("title", cities().column(1).clone()),
    ]);
    sandbox.parquet("c/2.parquet", &text.unwrap());
    let run = sandbox.strait("join people.csv c --on city=id");
    run.fails(&["column \"id\" is Int64 in c/1.parquet and Utf8 in c/2.parquet"]);

    sandbox.write("d/1.csv", "id,title\n1,Oslo\n");
    sandbox.write("d/2.csv", "id,title,more\n2,Rome,x\n");
    let run = sandbox.strait("join people.csv d --on city=id");
    run.fails(&["column \"more\" of d/2.csv is missing in d/1.csv"]);
}

#[test]
fn folders_that_do_not_belong_together() {
    let sandbox = Sandbox::with_people();
    sandbox.write("c/k=1/a.csv", "id\n1\n");
    sandbox.write("c/b.csv", "id\n2\n");
    let run = sandbox.strait("join people.csv c --on city=id");
    run.fails(&["the same key=value folders", "c/b.csv", "c/k=1/a.csv"]);
    sandbox.write("d/a.csv", "id\n1\n");
    sandbox.parquet("d/b.parquet", &cities());
    let run = sandbox.strait("join people.csv d --on city=id");
    run.fails(&["d holds both CSV (d/a.csv) and Parquet (d/b.parquet)"]);
}

#[test]
fn unknown_column_suggests_the_nearest() {
    let sandbox = Sandbox::with_people();
    let run = sandbox.strait("join people.csv cities.csv --on citty=id");
    run.fails(&["people.csv", "no column \"citty\"", "did you mean \"city\"?"]);
    let run = sandbox.strait("join people.csv cities.csv --on city=titel");
    run.fails(&["cities.csv", "no column \"titel\"", "did you mean \"title\"?"]);
    let run = sandbox.strait("join people.csv cities.csv --on city=id --select nme");
    run.fails(&["\"nme\"", "did you mean \"name\"?"]);
}

#[test]
fn type_mismatch() {
    let sandbox = Sandbox::with_people();
    let run = sandbox.strait("join people.csv cities.csv --on name=id -o out.csv");
    run.fails(&["\"name\" (Utf8)", "\"id\" (Int64)", "cast"]);
    assert!(!sandbox.path("out.csv").exists());
}

#[test]
fn disk_full_leaves_the_target_untouched() {
    let sandbox = Sandbox::new();
    many(&sandbox);
    sandbox.write("out.csv", "old");
    let before = sandbox.names();
    // With the limit on file sizes, writes fail as on a full disk.
    let limited = "ulimit -f 16; exec $strait join a.csv b.csv --on k --overwrite";
    let run = sandbox.shell(&format!("{limited} -o out.csv"));
    run.fails(&["cannot write out.csv", "File too large", "untouched", "another disk"]);
    assert_eq!(sandbox.read("out.csv"), "old");
    for out in ["o.parquet", "o.arrow", "o.csv.gz", "o.csv.zst", "o.arrows"] {
        let run = sandbox.shell(&format!("{limited} -o {out}"));
        run.fails(&[&format!("cannot write {out}"), "File too large"]);
    }
    assert_eq!(sandbox.names(), before);
}

#[test]
fn full_stdout() {
    let sandbox = Sandbox::with_people();
    for arguments in ["-o -", "--count", "", "--explain"] {
        let script =
            format!("$strait join people.csv cities.csv --on city=id {arguments} > /dev/full");
        sandbox.shell(&script).fails(&["stdout", "No space left on device"]);
    }
    for arguments in TEXTS {
        let run = sandbox.shell(&format!("$strait {arguments} > /dev/full"));
        run.fails(&["stdout", "No space left on device"]);
    }
}

/// Arguments with which the command only shows a text.
const TEXTS: [&str; 6] =
    ["--help", "-h", "help join", "join --help", "--version", "completions bash"];

/// A stdout that is closed, and ones that can only be read.
const CLOSED: [&str; 3] = [">&-", "1</dev/null", "1<people.csv"];

/// Rust's runtime opens `/dev/null` in place of a closed stdout, so writes would seem to succeed. It also ignores that
/// a descriptor cannot be written.
#[test]
fn closed_stdout() {
    let sandbox = Sandbox::with_people();
    for arguments in ["-o -", "--count", "", "--explain"] {
        let join = format!("$strait join people.csv cities.csv --on city=id {arguments}");
        for closed in CLOSED {
            let run = sandbox.shell(&format!("{join} {closed}"));
            run.fails(&["stdout is closed", "redirect it"]);
            // A plan or a number cannot be written to a file with -o.
            let has_rows = matches!(arguments, "-o -" | "");
            assert_eq!(run.stderr.contains("a file with -o"), has_rows, "{}", run.stderr);
        }
        sandbox.shell(&format!("{join} >/dev/null")).ok();
    }
    for arguments in TEXTS {
        for closed in CLOSED {
            let run = sandbox.shell(&format!("$strait {arguments} {closed}"));
            run.fails(&["stdout is closed", "redirect it"]);
            assert!(!run.stderr.contains("-o"), "{}", run.stderr);
        }
        assert_eq!(sandbox.shell(&format!("$strait {arguments} | true")).stderr, "");
    }
    // The inputs, even broken ones, are not read before this check.
    sandbox.write("broken.parquet", "x");
    let run = sandbox.shell("$strait join broken.parquet cities.csv --on id --count >&-");
    run.fails(&["stdout is closed"]);
    let join = "$strait join people.csv cities.csv --on city=id -o out.csv";
    for explain in ["--explain", "--explain-analyze"] {
        let run = sandbox.shell(&format!("{join} {explain} >&-"));
        run.fails(&["stdout is closed"]);
        assert!(!run.stderr.contains("-o"), "{}", run.stderr);
        assert!(!sandbox.path("out.csv").exists(), "{explain}");
    }
    sandbox.shell(&format!("{join} >&-")).ok();
}

/// The exit status does not depend on whether the message can be written.
#[test]
fn full_stderr() {
    let sandbox = Sandbox::with_people();
    let status = |run: &str| sandbox.shell(&format!("$strait {run} 2>/dev/full")).status;
    let join = "join people.csv cities.csv --on city=id";
    assert_eq!(status("join people.csv absent.csv --on city=id"), Some(1));
    assert_eq!(status("--version >&-"), Some(1));
    assert_eq!(status("join"), Some(2));
    assert_eq!(status(&format!("{join} --count -o x.csv")), Some(2));
    assert_eq!(status(&format!("{join} --type anti --mark-column")), Some(2));
    assert_eq!(status(&format!("{join} -v -o out.csv")), Some(0));
    // The report is lost, and it was asked for.
    assert_eq!(status(&format!("{join} --explain-analyze --count")), Some(1));
    assert_eq!(status(&format!("{join} --explain-analyze -o - >/dev/null")), Some(1));
}

#[test]
fn too_many_row_groups() {
    let sandbox = Sandbox::new();
    let ids: Vec<i64> = (0..40_000).collect();
    let titles = vec!["t"; ids.len()];
    sandbox.parquet("a.parquet", &batch(("id", &ids), ("title", &titles)));
    let join = |more: &str| {
        let join = "join a.parquet a.parquet --on id --select id -o out.parquet";
        sandbox.strait(&format!("{join} --row-group-rows {more}"))
    };
    // Before anything is written, if the number of rows is known.
    join("1 --type left").fails(&["at least --row-group-rows 2", "40,000 rows"]);
    join("1").fails(&[
        "cannot write out.parquet",
        "32,768 row groups",
        "a larger --row-group-rows",
    ]);
    assert_eq!(sandbox.names(), ["a.parquet"]);
    join("2 --type left").ok();
}

#[test]
fn output_onto_an_input() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("c/1.parquet", &cities());
    std::os::unix::fs::symlink("people.csv", sandbox.path("link.csv")).unwrap();
    let before = sandbox.read("people.csv");
    let run = |arguments: &str| {
        let run = format!("join {arguments} --on city=id --overwrite");
        sandbox.strait(&run).fails(&["is part of the input", "write to another place"]);
        sandbox.strait(&run.replace("--overwrite", "")).fails(&["is part of the input"]);
    };
    run("people.csv cities.csv -o people.csv");
    run("people.csv cities.csv -o ./cities.csv");
    run("people.csv cities.csv -o link.csv");
    run("people.csv c -o c/1.parquet");
    run("people.csv c -o c/new.parquet");
    run("people.csv c/*.parquet -o c/new.parquet");
    assert_eq!(sandbox.read("people.csv"), before);
    // A file next to the input is fine.
    sandbox.strait("join people.csv c/*.parquet --on city=id -o c/new.csv").ok();
}

#[test]
fn algorithms_of_a_gpu_need_one() {
    let sandbox = Sandbox::with_people();
    for algorithm in ["streamed-probe", "multi-pass", "cpu-partitioned", "triton"] {
        let join = format!("join people.csv cities.csv --on city=id --algorithm {algorithm}");
        let run = sandbox.strait(&format!("{join} --device cpu --count"));
        run.fails(&[&format!("{algorithm} runs on a GPU only"), "radix"]);
    }
}

#[test]
fn memory_limit_too_small() {
    let sandbox = Sandbox::new();
    many(&sandbox);
    let run = sandbox.strait("join a.csv b.csv --on k --memory 2KiB -o out.csv");
    run.fails(&["the memory limit of 2.0 KiB is too small", "try --memory 32MiB"]);
    assert_eq!(sandbox.names(), ["a.csv", "b.csv"]);
}

/// Such a file has the usual magic. Its footer is readable and names a cipher.
#[test]
fn an_encrypted_file_with_a_plaintext_footer() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("secret.parquet", &cities());
    let mut bytes = std::fs::read(sandbox.path("secret.parquet")).unwrap();
    let end = bytes.len() - 8;
    let length = u32::from_le_bytes(bytes[end..end + 4].try_into().unwrap());
    // Replaces the end of the footer: field 8, a union whose field 1 is an empty struct.
    let cipher = [0x1c, 0x1c, 0, 0, 0];
    bytes.truncate(end - 1);
    bytes.extend(cipher);
    bytes.extend((length - 1 + cipher.len() as u32).to_le_bytes());
    bytes.extend(b"PAR1");
    sandbox.write("secret.parquet", bytes);
    let run = sandbox.strait("join people.csv secret.parquet --on city=id");
    run.fails(&["secret.parquet is an encrypted Parquet file", "does not read", "decrypt it"]);
}

#[test]
fn a_codec_that_is_not_read() {
    let sandbox = Sandbox::with_people();
    sandbox.parquet("cities.parquet", &cities());
    let mut bytes = std::fs::read(sandbox.path("cities.parquet")).unwrap();
    let file = std::fs::File::open(sandbox.path("cities.parquet")).unwrap();
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();
    let brotli = Compression::BROTLI(BrotliLevel::default());
    let group = metadata.row_group(0).clone();
    let columns = group.columns().iter().cloned();
    let columns =
        columns.map(|column| column.into_builder().set_compression(brotli).build().unwrap());
    let columns = columns.collect();
    let group = group.into_builder().set_column_metadata(columns).build().unwrap();
    let metadata = metadata.into_builder().set_row_groups(vec![group]).build();
    // Another footer after the first one.
    ParquetMetaDataWriter::new(&mut bytes, &metadata).finish().unwrap();
    sandbox.write("cities.parquet", bytes);
    // The plan fails as the run does.
    for more in ["--threads 1", "--threads 2", "--explain"] {
        let run = sandbox.strait(&format!("join people.csv cities.parquet --on city=id {more}"));
        run.fails(&[
            "cities.parquet: column \"id\" is compressed with BROTLI,",
            "with zstd or snappy",
        ]);
        assert!(!run.stderr.contains("damaged"), "{}", run.stderr);
    }
}

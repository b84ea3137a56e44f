//! `strait bench`: answers, formats and messages with tiny tables. No test depends on speed.

// A test fails by panicking, also in the functions that it calls.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn strait(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.current_dir(folder).args(arguments.split_whitespace()).output().unwrap()
}

#[track_caller]
fn ok(folder: &Path, arguments: &str) -> String {
    let output = strait(folder, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn fails(folder: &Path, arguments: &str, status: i32, parts: &[&str]) {
    let output = strait(folder, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments}: {stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{arguments}: no \"{part}\" in {stderr}");
    }
}

/// Parses one JSON object per line.
fn figures(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_mode_and_algorithm_answers_as_known_in_advance() {
    let folder = tempfile::tempdir().unwrap();
    let shapes = [
        "--build 1000 --probe 5000",
        "--build 300_000 --probe 2^19 --keys dense --batch-rows 100_000",
        "--build 1003 --probe 5000 --duplicates 4 --selectivity 0.5 --payload-columns 3",
        "--build 1000 --probe 5000 --skew zipf:1.2 --key-bytes 4 --payload-bytes 4",
        "--build 1000 --probe 5000 --key-type string --payload-columns 2",
        "--build 1000 --probe 5000 --selectivity 0",
        "--build 0 --probe 10 --selectivity 0",
        "--build 10 --probe 0 --payload-columns 0",
    ];
    for shape in shapes {
        for mode in ["count", "aggregate", "pairs", "materialise"] {
            let run = format!(
                "bench join {shape} --mode {mode} --repeat 1 --format json \
                 --algorithm auto,no-partition,radix,sort-merge"
            );
            let figures = figures(&ok(folder.path(), &run));
            assert_eq!(figures.len(), 4, "{run}");
            for figures in figures {
                assert_eq!(figures["mode"], mode);
            }
        }
    }
}

#[test]
fn json_has_an_object_a_run_with_all_that_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let run = "bench join --build 2^12 --probe 2^14 --duplicates 4 --mode materialise --repeat 3 \
               --threads 1 --format json --algorithm radix";
    let figures = figures(&ok(folder.path(), run)).remove(0);
    assert_eq!(figures["algorithm"], "radix");
    assert_eq!(figures["ran"], "radix");
    assert_eq!(figures["build_rows"], 4096);
    assert_eq!(figures["probe_rows"], 16384);
    assert_eq!(figures["output_rows"], 65536);
    assert_eq!(figures["threads"], 1);
    assert_eq!(figures["repeat"], 3);
    let bytes = &figures["bytes"];
    assert_eq!(bytes["build"], 4096 * 16);
    assert_eq!(bytes["probe"], 16384 * 16);
    assert_eq!(bytes["output"], 65536 * 24);
    let seconds = &figures["seconds"];
    assert!(seconds["min"].as_f64().unwrap() <= seconds["median"].as_f64().unwrap());
    assert!(figures["tuples_per_second"].as_f64().unwrap() > 0.0);
    assert!(figures["peak_memory"].as_u64().unwrap() > 0);
    assert!(!figures["stages"].as_array().unwrap().is_empty());
    for name in ["cpu", "cores", "caches", "memory"] {
        assert!(!figures["machine"][name].is_null(), "{name}");
    }
}

#[test]
fn tables_and_csv_have_a_line_an_algorithm() {
    let folder = tempfile::tempdir().unwrap();
    let run = "bench join --build 100 --probe 1000 --repeat 2 --algorithm radix,sort-merge";
    let table = ok(folder.path(), run);
    for part in ["100 ⋈ 1,000 rows → 1,000", "M tuples/s", "\nradix ", "\nsort-merge "] {
        assert!(table.contains(part), "no \"{part}\" in {table}");
    }
    let csv = ok(folder.path(), &format!("{run} --format csv"));
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let header = reader.headers().unwrap().clone();
    let at = |name: &str| header.iter().position(|h| h == name).unwrap();
    let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 2);
    for (row, algorithm) in rows.iter().zip(["radix", "sort-merge"]) {
        assert_eq!(&row[at("algorithm")], algorithm);
        assert_eq!(&row[at("output_rows")], "1000");
        assert!(row[at("median_seconds")].parse::<f64>().unwrap() >= 0.0);
    }
}

#[test]
fn wrong_usage_is_told_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fails(here, "bench join", 2, &["--build"]);
    fails(here, "bench join --build 1 --probe 1 --mode rows", 2, &["aggregate", "materialise"]);
    fails(here, "bench join --build 1 --probe 1 --key-bytes 3", 2, &["write 4 or 8"]);
    fails(here, "bench join --build 2^99 --probe 1", 2, &["2^20"]);
    fails(here, "bench compare --engines sqlite", 2, &["duckdb", "datafusion"]);
    fails(here, "bench compare --workloads W9", 2, &["W1", "W5s", "W8"]);
    fails(here, "bench jobs --jobs five", 2, &["four", "anti-csv", "csv-gz"]);
    fails(here, "bench jobs --engines sqlite", 2, &["strait, duckdb, polars, datafusion"]);
    fails(here, "bench jobs --device tpu", 2, &["auto, cpu, gpu and gpu:N"]);
    fails(here, "bench scale --studies colour", 2, &["selectivity"]);
    let run = |flags: &str| format!("bench join --build 1 --probe 1 {flags}");
    fails(here, &run("--placement gpu"), 1, &["add --device gpu"]);
    fails(here, &run("--placement pinned"), 1, &["add --device gpu"]);
    fails(here, &run("--placement pinned --device cpu"), 1, &["add --device gpu"]);
    let hosted = |flags: &str| run(&format!("--device gpu --placement pageable {flags}"));
    fails(here, &hosted("--key-type string"), 1, &["integer keys"]);
    fails(here, &hosted("--payload-columns 2"), 1, &["--payload-columns 1"]);
    fails(here, &run("--transfer post"), 2, &["zero-copy", "staged-copy", "coherence"]);
    fails(here, &run("--table disk"), 2, &["gpu, host, hybrid"]);
    fails(here, &run("--histogram maybe"), 2, &["none, cpu, gpu"]);
    fails(here, &run("--cache some"), 2, &["512MiB"]);
    fails(here, &run("--partitioner sideways"), 2, &["look-back", "hierarchical", "dma"]);
    fails(here, &run("--algorithm quantum"), 2, &["streamed-probe", "multi-pass", "triton"]);
    fails(here, &run("--device tpu"), 2, &["auto, cpu, gpu and gpu:N"]);
    fails(here, "bench gpu --device cpu", 1, &["--device gpu or gpu:N"]);
    fails(here, "bench gpu --workloads W1", 2, &["hard", "2^27 x 2^27, 8 B"]);
    // Partitioners that write to host memory are not allowed here.
    fails(here, "bench gpu --partitioner dma", 2, &["look-back, bucket-pool, shared-histogram]"]);
    fails(here, "bench transfer --device cpu", 1, &["--device gpu or gpu:N"]);
    fails(here, "bench transfer --methods post", 2, &["pinned-copy"]);
    fails(here, "bench transfer --placement gpu", 2, &["pinned, pageable, both"]);
    fails(here, "bench beyond --device cpu", 1, &["--device gpu or gpu:N"]);
    fails(here, "bench beyond --workloads W1", 2, &["2^30 x 2^30, triton dma"]);
    fails(here, "bench beyond --study colour", 2, &["size, fanout"]);
    fails(here, "bench beyond --lines triton", 2, &["--study"]);
    fails(here, "bench beyond --study size --scale-down 2", 2, &["--scale-down"]);
    fails(here, "bench beyond --study fanout --lines triton", 2, &["another study", "dma"]);
    fails(here, "bench beyond --study size --lines dma", 2, &["another study", "triton"]);
    fails(here, "bench join --workload-dir .", 1, &["no expected.json"]);
    for command in ["", "join", "compare", "jobs", "digest", "scale", "gpu", "transfer", "beyond"] {
        let help = ok(here, &format!("bench {command} --help"));
        assert!(help.contains("Examples:\n"), "{command}");
    }
}

/// Without a GPU, commands that need one say why, before they make any table.
#[test]
fn without_a_gpu_it_says_so_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let commands = [
        "bench join --build 2^30 --probe 2^40 --device gpu --placement pinned",
        "bench join --build 2^30 --probe 2^40 --device gpu --placement pageable",
        "bench join --build 2^30 --probe 2^40 --device gpu --placement gpu",
        "bench transfer --rows 2^40",
        "bench beyond",
        "bench beyond --study size",
        "bench beyond --study fanout",
        "bench gpu",
    ];
    for arguments in commands {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
        command.current_dir(folder.path()).env("CUDA_VISIBLE_DEVICES", "");
        let output = command.args(arguments.split_whitespace()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {stderr}");
        assert!(stderr.contains("no GPU: "), "{arguments}: {stderr}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn nothing_crosses_a_link_on_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let run = "bench join --build 100 --probe 1000 --repeat 1 --device cpu --placement pageable";
    let figures = figures(&ok(folder.path(), &format!("{run} --format json"))).remove(0);
    assert_eq!(figures["bytes"]["to_gpu"], 0);
    assert_eq!(figures["bytes"]["from_gpu"], 0);
    let csv = ok(folder.path(), &format!("{run} --format csv"));
    assert!(csv.starts_with("algorithm,ran,") && csv.contains(",bytes_to_gpu,bytes_from_gpu,"));
    assert!(!ok(folder.path(), run).contains("to the GPU"));
}

#[test]
fn studies_leave_records_and_plots() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), "bench scale --largest 2^16 --repeat 1 --out s --studies size,ratio,threads");
    for study in ["size", "ratio", "threads"] {
        let svg = fs::read_to_string(folder.path().join(format!("s/{study}.svg"))).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("auto") && !svg.contains("NaN"), "{svg}");
    }
    let names = fs::read_dir(folder.path().join("s")).unwrap();
    assert_eq!(names.count(), 6);
}

/// A small comparison. Every engine must give the known answer for every workload, the record must have all
/// of them, and a different answer is an error. The first run installs the engines.
#[test]
fn engines_are_compared_on_the_same_answers() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let compare = "bench compare --scale-down 4096 --repeat 1";
    let table = ok(here, &format!("{compare} --workloads W1,W4,W8 --out r --keep kept"));
    for part in ["duckdb", "polars", "datafusion", "pyarrow", "strait", "ratio", "W1", "W4", "W8"] {
        assert!(table.contains(part), "no \"{part}\" in {table}");
    }
    let record = fs::read_dir(here.join("r")).unwrap().next().unwrap().unwrap().path();
    let mut reader = csv::Reader::from_path(record).unwrap();
    // Strait and four engines. DuckDB has two variants in one mode and three in the other.
    assert_eq!(reader.records().map(Result::unwrap).count(), 3 * (6 + 7));

    let w1 = here.join("kept/W1");
    ok(here, "bench join --workload-dir kept/W1 --repeat 1");
    let expected = fs::read_to_string(w1.join("expected.json")).unwrap();
    let mut wrong: Value = serde_json::from_str(&expected).unwrap();
    wrong["sums"][1] = Value::from(7);
    fs::write(w1.join("expected.json"), wrong.to_string()).unwrap();
    let join = "bench join --workload-dir kept/W1 --repeat 1";
    for mode in ["aggregate", "pairs", "materialise"] {
        fails(here, &format!("{join} --mode {mode}"), 1, &["wrong answer: payload column 2"]);
    }
    wrong["rows"] = Value::from(7);
    fs::write(w1.join("expected.json"), wrong.to_string()).unwrap();
    fails(here, &format!("{join} --mode count"), 1, &["wrong answer", "must be 7"]);
}

/// The cells of a record, line by line, each with the name of its column.
fn record(folder: &Path) -> Vec<std::collections::HashMap<String, String>> {
    let path = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let mut reader = csv::Reader::from_path(path).unwrap();
    reader.deserialize().map(Result::unwrap).collect()
}

/// All jobs by Strait alone, which needs no Python.
#[test]
fn jobs_run_without_other_engines() {
    let folder = tempfile::tempdir().unwrap();
    let run = "bench jobs --engines strait --scale 0.001 --repeat 1 --threads 2 --device cpu,auto --out r";
    let table = ok(folder.path(), run);
    let lines = record(&folder.path().join("r"));
    assert_eq!(lines.len(), 9 * 2);
    for line in &lines {
        assert_eq!((line["engine"].as_str(), line["checked"].as_str()), ("strait", "yes"));
        assert!(line["median_seconds"].parse::<f64>().unwrap() > 0.0, "{line:?}");
        assert!(line["cpu_seconds"].parse::<f64>().unwrap() > 0.0, "{line:?}");
        assert!(line["peak_resident"].parse::<u64>().unwrap() > 1 << 20, "{line:?}");
        assert!(table.contains(&format!("\n{} ", line["job"])), "{table}");
        let bytes = line["output_bytes"].parse::<u64>().unwrap();
        assert_eq!(bytes == 0, line["job"] == "count", "{line:?}");
        // At this scale, 1,500 orders have 6,005 line items. The next 150 orders have 640.
        let rows = match line["job"].as_str() {
            "left" => "6155",
            "anti-csv" => "640",
            _ => "6005",
        };
        assert_eq!(line["output_rows"], rows, "{line:?}");
    }
}

/// A script takes the place of Python. One engine writes the right rows, one of them changes a date, and one fails.
#[test]
fn jobs_name_the_engine_and_the_column_that_differ() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        r#"#!/bin/sh
# -I -B drive.py ENGINE.py VARIANT job JOB.json OUT THREADS
folder=$(dirname "$7")
{strait} join $folder/arrow/orders.arrow $folder/arrow/lineitem.arrow --on o_orderkey=l_orderkey \
  --select o_orderkey,o_orderdate,l_quantity,l_extendedprice -o $folder/rows.csv --overwrite || exit 1
case "$4" in
  *polars.py) sed -i '2s/,[0-9]*-/,1900-/' $folder/rows.csv;;
  *datafusion.py) echo "no such thing" >&2; exit 1;;
esac
gzip -c $folder/rows.csv > $8
echo '{{"version": "9", "seconds": 0.5, "cpu_seconds": 0.25, "count": null}}'
"#,
        strait = env!("CARGO_BIN_EXE_strait")
    );
    let python = folder.path().join("python");
    fs::write(&python, script).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let run =
        "bench jobs --jobs csv-gz --scale 0.001 --repeat 2 --device cpu --out r --python ./python";
    let expected = [
        "2 failures",
        "csv-gz, polars (streaming): column o_orderdate has other values",
        "csv-gz, datafusion (default): no such thing",
    ];
    fails(folder.path(), run, 1, &expected);
    let lines = record(&folder.path().join("r"));
    let engines: Vec<_> = lines.iter().map(|line| line["engine"].as_str()).collect();
    assert_eq!(engines, ["strait", "duckdb", "duckdb", "polars", "datafusion"]);
    assert_eq!(lines[1]["median_seconds"], "0.500000");
    assert_eq!(lines[1]["cpu_seconds"], "0.250000");
    assert!(lines[1]["process_seconds"].parse::<f64>().unwrap() > 0.0);
    assert!(lines[3]["error"].contains("o_orderdate"), "{lines:?}");
}

/// A digest depends on values, and not on the order of rows or on the format.
#[test]
fn a_digest_is_the_same_for_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    ok(here, "generate tpch --scale 0.001 --tables orders,lineitem --out t");
    let join = "join t/orders.parquet t/lineitem.parquet --on o_orderkey=l_orderkey";
    ok(here, &format!("{join} --threads 1 -o a.parquet"));
    ok(here, &format!("{join} --algorithm sort-merge -o b.arrow"));
    let digests = ["a.parquet", "b.arrow"].map(|file| ok(here, &format!("bench digest {file}")));
    assert_eq!(digests[0], digests[1]);
    let digest: Value = serde_json::from_str(&digests[0]).unwrap();
    assert_eq!(digest["rows"], 6005);
    assert_eq!(digest["columns"].as_array().unwrap().len(), 25);
    ok(here, &format!("{join} --type left-semi -o c.parquet"));
    assert_ne!(ok(here, "bench digest c.parquet"), ok(here, "bench digest t/lineitem.parquet"));
}

/// Two queries with and without Strait's joins, and a memory limit that makes one of them spill.
#[cfg(feature = "sql")]
#[test]
fn tpch() {
    let folder = tempfile::tempdir().unwrap();
    let table =
        ok(folder.path(), "bench tpch --scale 0.01 --queries 3,18 --repeat 2 --out records");
    assert!(table.contains("Strait answers 2 of 2"), "{table}");
    let record = fs::read_dir(folder.path().join("records")).unwrap().next().unwrap().unwrap();
    let record = fs::read_to_string(record.path()).unwrap();
    // A line of names, and a line per query and engine.
    assert_eq!(record.lines().count(), 5, "{record}");
    let line = |start: &str| {
        let line = table.lines().find(|line| line.starts_with(start)).unwrap();
        line.split_whitespace().collect::<Vec<_>>()
    };
    // Q3 has two joins, Q18 has three.
    assert_eq!((line("Q3 ")[4], line("Q18 ")[4]), ("2", "3"), "{table}");
    ok(folder.path(), "generate tpch --scale 0.01 --out data");
    let limited = "bench tpch --data data --queries 18 --repeat 1 --memory 20MiB --out records";
    assert!(ok(folder.path(), limited).contains("Strait answers 1 of 1"));
    fails(folder.path(), "bench tpch --queries 23", 2, &["23"]);
    fails(folder.path(), "bench tpch --data nowhere --queries 1", 1, &["nowhere"]);
}

#[cfg(not(feature = "sql"))]
#[test]
fn a_build_without_sql_says_how_to_get_it() {
    let folder = tempfile::tempdir().unwrap();
    fails(folder.path(), "bench tpch", 1, &["--features sql"]);
}

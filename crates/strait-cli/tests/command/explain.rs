//! `--explain` and `--explain-analyze`.

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};

use crate::sandbox::{Sandbox, batch, read_ipc_stream, sorted, stream_of};

fn parquet_pair() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.parquet("a.parquet", &batch(("id", &[1, 2]), ("p", &["x", "y"])));
    sandbox.parquet("b.parquet", &batch(("id", &[2, 3, 4]), ("q", &["u", "v", "w"])));
    sandbox
}

#[test]
fn explain_does_not_run() {
    let sandbox = parquet_pair();
    let run = sandbox.strait("join a.parquet b.parquet --on id --explain -o out.parquet");
    assert!(!run.ok().is_empty());
    assert!(!run.text().contains("what happened"), "{}", run.text());
    assert!(!sandbox.path("out.parquet").exists());
    let run = sandbox.strait("join a.parquet b.parquet --on idd --explain");
    run.fails(&["did you mean \"id\"?"]);
}

/// `--explain` shows the rule of an open decision. `--explain-analyze` shows the decision.
#[test]
fn open_decisions_are_explained_and_then_made() {
    let sandbox = parquet_pair();
    let numbers = |values: [Option<i64>; 2]| Arc::new(Int64Array::from(values.to_vec())) as _;
    let columns = [("id", numbers([Some(1), Some(2)]), true), ("v", numbers([Some(5); 2]), true)];
    let numbers = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    sandbox.parquet("a.parquet", &numbers);
    let ids: Vec<i64> = (0..100).collect();
    sandbox.parquet("b.parquet", &batch(("id", &ids), ("q", &["u"; 100])));
    let run = "join a.parquet b.parquet --on id --device cpu --select id,v";
    let plan = sandbox.strait(&format!("{run} --explain")).ok();
    for rule in ["v inlined if it has no nulls", "an array if the keys are dense", "streamed"] {
        assert!(plan.contains(rule), "{plan}");
    }
    let report = sandbox.strait(&format!("{run} --explain-analyze")).ok();
    for decision in ["v inlined, 8 B per row", "an array, because the keys are dense"] {
        assert!(report.contains(decision), "{report}");
    }
}

/// The predictions contain the work of reading and writing. So CSV costs more than Parquet, and output more than
/// a count.
#[test]
fn predictions_contain_reading_and_writing() {
    let sandbox = Sandbox::new();
    let ids: Vec<i64> = (0..200_000).collect();
    let rows = batch(("id", &ids), ("q", &vec!["some text"; ids.len()]));
    sandbox.parquet("a.parquet", &rows);
    let lines: String = ids.iter().map(|id| format!("{id},some text\n")).collect();
    sandbox.write("a.csv", format!("id,q\n{lines}"));
    let milliseconds = |arguments: &str| {
        let line = "join {} --on id --device cpu --threads 1 --explain";
        let plan = sandbox.strait(&line.replace("{}", arguments)).ok();
        let (_, after) = plan.split_once("predicted, with ").unwrap_or_else(|| panic!("{plan}"));
        let (seconds, _) = after.split_once(" s on the CPU").unwrap();
        (seconds.parse::<f64>().unwrap() * 1000.0).round() as u64
    };
    let count = milliseconds("a.parquet a.parquet --count");
    let parquet = milliseconds("a.parquet a.parquet -o out.parquet");
    let csv = milliseconds("a.csv a.parquet -o out.csv");
    assert!(0 < count && count < parquet && parquet < csv, "{count} {parquet} {csv}");
}

#[test]
fn explain_analyze_runs_and_reports() {
    let sandbox = parquet_pair();
    let run = "join a.parquet b.parquet --on id --explain-analyze";
    let report = sandbox.strait(run).ok();
    assert!(report.contains("what happened") && report.contains("output rows"), "{report}");
    let report = sandbox.strait(&format!("{run} -o out.csv")).ok();
    assert!(report.contains("throughput"), "{report}");
    assert_eq!(sorted(&sandbox.read("out.csv")), ["id,p,q", "2,y,u"]);
    // If stdout has the rows or the number, the report goes to stderr.
    let run_count = sandbox.strait(&format!("{run} --count"));
    assert_eq!(run_count.ok(), "1\n");
    assert!(run_count.stderr.contains("throughput"));
    let stream = sandbox.strait(&format!("{run} -o -"));
    stream.ok();
    assert_eq!(read_ipc_stream(&stream.stdout), "id,p,q\n2,y,u\n");
    assert!(stream.stderr.contains("throughput"));
}

/// The report says how busy the threads were with each step of the job.
#[test]
fn explain_analyze_says_how_busy_each_step_was() {
    let sandbox = Sandbox::new();
    let ids: Vec<i64> = (0..50_000).collect();
    let texts: Vec<String> = ids.iter().map(|id| format!("text {id}")).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    sandbox.parquet("a.parquet", &batch(("id", &ids), ("p", &texts)));
    sandbox.parquet("b.parquet", &batch(("id", &ids), ("q", &texts)));
    let run = "join a.parquet b.parquet --on id --explain-analyze --threads 2";
    let steps = |report: &str| -> Vec<String> {
        let table = report.split("how busy 2 threads were").nth(1).expect(report).to_string();
        let rows = table.lines().skip(1).map(|line| line.get(2..24).unwrap_or(line).trim());
        rows.map(str::to_string).collect()
    };
    let written = steps(&sandbox.strait(&format!("{run} -o out.parquet")).ok());
    for step in ["reading left", "reading right", "joining", "gathering", "encoding"] {
        assert!(written.iter().any(|shown| shown == step), "{step} is not in {written:?}");
    }
    let counted = steps(&sandbox.strait(&format!("{run} --count")).stderr);
    assert!(counted.iter().any(|shown| shown == "joining"), "{counted:?}");
    assert!(!counted.iter().any(|shown| shown == "encoding"), "{counted:?}");
}

/// With `--limit`, the table beside a stream is the build side, unless it is too large for the memory limit.
#[test]
fn the_build_side_beside_a_stream_is_explained() {
    let sandbox = parquet_pair();
    sandbox.write("b.csv", "id,q\n2,u\n");
    sandbox.write("large.csv", format!("id,q\n{}", "2,uuuuuuu\n".repeat(300_000)));
    let bytes = stream_of(&batch(("id", &[1, 2]), ("p", &["x", "y"])));
    let rules = [
        ("- b.csv --limit 1", "build side     right"),
        ("b.csv - --limit 1", "build side     left"),
        ("- b.parquet --limit 1", "build side     right"),
        ("b.parquet - --limit 1", "build side     left"),
        ("large.csv - --limit 1", "build side     left"),
        ("large.csv - --limit 1 --memory 8MiB", "the side that ends first"),
        ("b.parquet -", "the side that ends first"),
        ("a.parquet b.csv --limit 1", "the side that ends first"),
    ];
    for (run, rule) in rules {
        let run = format!("join {run} --on id --explain");
        let plan = sandbox.strait_with_stdin(&run, &bytes).ok();
        assert!(plan.contains(rule), "{run}: {plan}");
    }
}

#[test]
fn a_join_that_the_limit_stops_shows_its_plan() {
    let sandbox = parquet_pair();
    let run = "join a.parquet b.parquet --on id";
    let plan = sandbox.strait(&format!("{run} --explain")).ok();
    let stopped = sandbox.strait(&format!("{run} --explain-analyze --limit 1")).ok();
    assert!(stopped.starts_with(plan.lines().next().unwrap()), "{stopped}");
    assert!(stopped.contains("stopped by --limit"), "{stopped}");
    let whole = sandbox.strait(&format!("{run} --explain-analyze --limit 2")).ok();
    assert!(whole.contains("what happened") && !whole.contains("stopped"), "{whole}");
}

/// Every thread needs room for its rows. With more threads than that, most of them would wait for memory.
#[test]
fn a_memory_limit_bounds_the_threads() {
    let sandbox = parquet_pair();
    for (settings, threads) in [
        ("--threads 3 --memory 1GiB", 3),
        ("--threads 64 --memory 128MiB", 8),
        ("--threads 64 --memory 1MiB", 1),
        ("--threads 64", 64),
    ] {
        let plan =
            sandbox.strait(&format!("join a.parquet b.parquet --on id --explain {settings}")).ok();
        let line = plan.lines().find(|line| line.contains("threads  ")).expect(&plan);
        assert_eq!(line.split_whitespace().last(), Some(&*threads.to_string()), "{plan}");
    }
}

//! `--explain` and `--explain-analyze`.

use crate::sandbox::{Sandbox, batch, read_ipc_stream, sorted};

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

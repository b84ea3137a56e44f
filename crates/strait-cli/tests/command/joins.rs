//! The rows of a join, for each type and option.

use std::io::Write;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use arrow::ipc::writer::StreamWriter;

use crate::sandbox::{Sandbox, batch, sorted};

fn joined(sandbox: &Sandbox, arguments: &str) -> Vec<String> {
    let run = format!("join people.csv cities.csv -o out.csv --overwrite {arguments}");
    sandbox.strait(&run).ok();
    let text = sandbox.read("out.csv");
    sorted(&text).into_iter().map(str::to_string).collect()
}

#[test]
fn every_join_type() {
    let sandbox = Sandbox::with_people();
    let pairs = ["Ada,1,1,Oslo", "Bob,2,2,Rome"];
    let lonely = ["Cid,,,", "Dan,9,,"];
    let cases: [(&str, &str, Vec<&str>); 10] = [
        ("inner", "name,city,id,title", pairs.to_vec()),
        ("left", "name,city,id,title", [pairs, lonely].concat()),
        ("right", "name,city,id,title", [vec![",,3,Kiel"], pairs.to_vec()].concat()),
        ("full", "name,city,id,title", [&[",,3,Kiel"][..], &pairs, &lonely].concat()),
        ("left-semi", "name,city", vec!["Ada,1", "Bob,2"]),
        ("left-anti", "name,city", vec!["Cid,", "Dan,9"]),
        ("right-semi", "id,title", vec!["1,Oslo", "2,Rome"]),
        ("right-anti", "id,title", vec!["3,Kiel"]),
        (
            "left-mark",
            "name,city,mark",
            vec!["Ada,1,true", "Bob,2,true", "Cid,,false", "Dan,9,false"],
        ),
        ("right-mark", "id,title,mark", vec!["1,Oslo,true", "2,Rome,true", "3,Kiel,false"]),
    ];
    for (join_type, header, rows) in cases {
        let expected: Vec<&str> = std::iter::once(header).chain(rows).collect();
        for algorithm in ["auto", "no-partition", "radix", "sort-merge"] {
            let run = format!("--on city=id --type {join_type} --algorithm {algorithm}");
            assert_eq!(joined(&sandbox, &run), expected, "{run}");
            let count = sandbox.strait(&format!("join people.csv cities.csv {run} --count")).ok();
            assert_eq!(count, format!("{}\n", expected.len() - 1), "{run}");
        }
    }
}

#[test]
fn mark_column_has_the_name_asked_for() {
    let sandbox = Sandbox::with_people();
    let lines = joined(&sandbox, "--on city=id --type left-mark --mark-column known");
    assert_eq!(lines[0], "name,city,known");
}

#[test]
fn a_key_of_one_name_appears_once_unless_kept() {
    let sandbox = Sandbox::new();
    sandbox.write("people.csv", "id,x\n1,a\n2,b\n");
    sandbox.write("cities.csv", "id,x\n2,c\n3,d\n");
    let once = joined(&sandbox, "--on id --type full");
    assert_eq!(once, ["id,x,x_right", "1,a,", "2,b,c", "3,,d"]);
    let kept = joined(&sandbox, "--on id --type full --keep-keys --suffix .r");
    assert_eq!(kept, ["id,x,id.r,x.r", ",,3,d", "1,a,,", "2,b,2,c"]);
}

#[test]
fn select_picks_and_orders() {
    let sandbox = Sandbox::with_people();
    let lines = joined(&sandbox, "--on city=id --select title,name");
    assert_eq!(lines, ["title,name", "Oslo,Ada", "Rome,Bob"]);
    let lines = joined(&sandbox, "--on city=id --select title --select city");
    assert_eq!(lines, ["title,city", "Oslo,1", "Rome,2"]);
}

#[test]
fn several_keys_in_one_or_more_arguments() {
    let sandbox = Sandbox::new();
    sandbox.write("people.csv", "a,b,p\n1,x,10\n1,y,11\n2,x,12\n");
    sandbox.write("cities.csv", "a,c,q\n1,x,20\n2,x,21\n2,y,22\n");
    let expected = ["a,b,p,c,q", "1,x,10,x,20", "2,x,12,x,21"];
    assert_eq!(joined(&sandbox, "--on a,b=c"), expected);
    assert_eq!(joined(&sandbox, "--on a --on b=c"), expected);
}

#[test]
fn nulls_match_when_asked_to() {
    let sandbox = Sandbox::new();
    sandbox.write("people.csv", "k,p\n,1\nx,2\n");
    sandbox.write("cities.csv", "k,q\n,3\nx,4\n");
    assert_eq!(joined(&sandbox, "--on k"), ["k,p,q", "x,2,4"]);
    assert_eq!(joined(&sandbox, "--on k --nulls-equal"), ["k,p,q", ",1,3", "x,2,4"]);
}

#[test]
fn float_keys_are_equal_as_numbers_unless_asked_otherwise() {
    let sandbox = Sandbox::new();
    sandbox.write("people.csv", "k,p\n-0.0,1\nNaN,2\n1.5,3\n");
    sandbox.write("cities.csv", "k,q\n0.0,4\n1.5,5\nNaN,6\n");
    assert_eq!(joined(&sandbox, "--on k"), ["k,p,q", "-0.0,1,4", "1.5,3,5", "NaN,2,6"]);
    let total = joined(&sandbox, "--on k --float-equality total");
    assert_eq!(total, ["k,p,q", "1.5,3,5", "NaN,2,6"]);
    sandbox.strait("join people.csv cities.csv --on k --float-equality bits").refused(&["total"]);
}

#[test]
fn limit_stops_early() {
    let sandbox = Sandbox::new();
    let rows: String = (0..3000).map(|i| format!("7,{i}\n")).collect();
    sandbox.write("people.csv", format!("k,p\n{rows}"));
    sandbox.write("cities.csv", format!("k,q\n{rows}"));
    // There would be nine million rows without the limit.
    assert_eq!(joined(&sandbox, "--on k --limit 5").len(), 6);
    assert_eq!(joined(&sandbox, "--on k --limit 0").len(), 1);
    assert_eq!(joined(&sandbox, "--on k --limit 20000").len(), 20_001);
    let shown = sandbox.strait("join people.csv cities.csv --on k --limit 12").ok();
    assert!(shown.contains("12 rows (as limited), 3 columns"), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.starts_with("7 │")).count(), 12, "{shown}");
}

/// A pipe that delivers rows and then pauses must not delay rows that were already found.
#[test]
fn a_limit_that_is_reached_does_not_wait_for_a_pipe() {
    let sandbox = Sandbox::new();
    let keys: Vec<i64> = (0..1000).collect();
    let texts = vec!["x"; keys.len()];
    sandbox.ipc_file("larger.arrow", &batch(("id", &keys), ("b", &texts)));
    sandbox.ipc_file("smaller.arrow", &batch(("id", &[3]), ("b", &["y"])));
    // Larger than what is read ahead of a stream that pauses.
    let many: Vec<i64> = (0..1_500_000).collect();
    sandbox.ipc_file("large.arrow", &batch(("id", &many), ("b", &vec!["x"; many.len()])));
    sandbox.write("b.csv", "id,b\n3,z\n4,z\n");
    sandbox.parquet("b.parquet", &batch(("id", &keys), ("b", &texts)));
    let some = batch(("id", &[3, 3, 7]), ("a", &["p", "q", "r"]));
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::try_new(&mut bytes, &some.schema()).unwrap();
    writer.write(&some).unwrap();
    writer.write(&some).unwrap();
    drop(writer);
    let runs = [
        "join - larger.arrow --on id --limit 1",
        "join - large.arrow --on id --limit 2",
        "join large.arrow - --on id --limit 2 --memory 256MiB",
        "join larger.arrow - --on id --limit 6 --threads 2",
        "join - smaller.arrow --on id --limit 4 --memory 64MiB",
        "join - b.csv --on id --limit 3 -o out.csv",
        "join b.parquet - --on id --type right --limit 5 -o -",
    ];
    for run in runs {
        let mut command = sandbox.command();
        command.args(run.split_whitespace()).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(&bytes).unwrap();
        pipe.flush().unwrap();
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if start.elapsed() > Duration::from_secs(60) {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            sleep(Duration::from_millis(5));
        };
        // The pipe stays open until here.
        drop(pipe);
        assert!(status.is_some_and(|status| status.success()), "{run}: {status:?}");
    }
    // If the limit exceeds the number of rows, the join ends with its input.
    let shown = sandbox.strait_with_stdin("join - larger.arrow --on id --limit 50", &bytes).ok();
    assert!(shown.contains("6 rows, 3 columns"), "{shown}");
}

#[test]
fn preview_shows_ten_rows_and_the_count() {
    let sandbox = Sandbox::new();
    let rows: String = (0..1234).map(|i| format!("{i},v{i}\n")).collect();
    sandbox.write("a.csv", format!("k,p\n{rows}"));
    sandbox.write("b.csv", format!("k,q\n{rows}"));
    let run = sandbox.strait("join a.csv b.csv --on k");
    let shown = run.ok();
    assert!(shown.contains("first 10 of 1,234 rows, 3 columns"), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.contains("│ v")).count(), 10, "{shown}");
    // Stderr is no terminal, so there is no bar.
    assert_eq!(run.stderr, "");
}

#[test]
fn preview_of_a_wide_table_stays_narrow() {
    let sandbox = Sandbox::new();
    let header: Vec<String> = (0..60).map(|i| format!("column_number_{i}")).collect();
    let row: Vec<String> = (0..60).map(|i| format!("{}-{i}", "long".repeat(30))).collect();
    sandbox.write("a.csv", format!("k,{}\n1,{}\n", header.join(","), row.join(",")));
    sandbox.write("b.csv", "k,last\n1,end\n");
    let shown = sandbox.strait("join a.csv b.csv --on k").ok();
    assert!(shown.lines().all(|line| line.chars().count() <= 120), "{shown}");
    assert!(shown.contains("last") && shown.contains("not shown"), "{shown}");
}

#[test]
fn no_rows_at_all() {
    let sandbox = Sandbox::new();
    sandbox.write("people.csv", "id,p\n");
    sandbox.write("cities.csv", "id,q\n");
    assert_eq!(joined(&sandbox, "--on id --type full"), ["id,p,q"]);
    let shown = sandbox.strait("join people.csv cities.csv --on id").ok();
    assert!(shown.contains("0 rows, 3 columns"), "{shown}");
    assert_eq!(sandbox.strait("join people.csv cities.csv --on id --count").ok(), "0\n");
}

#[test]
fn threads_and_memory_are_taken() {
    let sandbox = Sandbox::with_people();
    let lines = joined(&sandbox, "--on city=id --threads 3 --memory 1GiB");
    assert_eq!(lines.len(), 3);
}

#[test]
fn verbose_says_what_is_read() {
    let sandbox = Sandbox::with_people();
    let run = sandbox.strait("join people.csv cities.csv --on city=id --count -v");
    assert_eq!(run.ok(), "2\n");
    assert!(run.stderr.contains("people.csv: types inferred from 4 row(s)"), "{}", run.stderr);
}

#[test]
fn progress_is_drawn_when_forced() {
    let sandbox = Sandbox::with_people();
    let run = sandbox.strait("join people.csv cities.csv --on city=id --count --progress always");
    assert_eq!(run.ok(), "2\n");
    assert!(run.stderr.contains("starting"), "{}", run.stderr);
    let run = sandbox.strait("join people.csv cities.csv --on city=id --count --progress never");
    assert_eq!(run.stderr, "");
}

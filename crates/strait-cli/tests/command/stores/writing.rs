//! Outputs in stores appear completely or not at all.

use std::process::Stdio;
use std::time::Duration;

use super::fake::{Fake, Fault, Request};
use super::strait;
use crate::sandbox::{Sandbox, sorted};

const JOIN: &str = "join people.csv cities.csv --on city=id";

/// Two tables whose join has more than 30 MiB of text.
fn large() -> Sandbox {
    let sandbox = Sandbox::new();
    let rows: String = (0..700).map(|i| format!("7,x{i:032}\n")).collect();
    sandbox.write("a.csv", format!("k,p\n{rows}"));
    sandbox.write("b.csv", format!("k,q\n{rows}"));
    sandbox
}

const LARGE: &str = "join a.csv b.csv --on k";

#[test]
fn small_outputs() {
    let (sandbox, fake) = (Sandbox::with_people(), Fake::new());
    for scheme in ["s3", "gs"] {
        let url = format!("{scheme}://{scheme}/out/joined.csv");
        let run = strait(&sandbox, &fake, &format!("{JOIN} -o {url}"));
        run.ok();
        assert!(run.stderr.contains(&format!("wrote 2 rows to {url}")), "{}", run.stderr);
        let written = fake.get(&format!("{scheme}/out/joined.csv")).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert_eq!(sorted(&written), ["name,city,id,title", "Ada,1,1,Oslo", "Bob,2,2,Rome"]);
    }
    // Without rows, a file of JSON lines is empty.
    strait(&sandbox, &fake, &format!("{JOIN} --limit 0 -o s3://b/empty.jsonl")).ok();
    assert_eq!(fake.get("b/empty.jsonl").as_deref(), Some(&b""[..]));
    assert_eq!(fake.uploads(), 0);
}

#[test]
fn outputs_in_many_parts() {
    let (sandbox, fake) = (large(), Fake::new());
    for options in ["", "--memory 256MiB"] {
        strait(&sandbox, &fake, &format!("{LARGE} {options} -o s3://b/out.csv --overwrite")).ok();
        let written = String::from_utf8(fake.get("b/out.csv").unwrap()).unwrap();
        assert_eq!(written.lines().count(), 490_001, "{options}");
    }
    let parts = fake.requests().into_iter().filter(|request| request.query.contains("partNumber"));
    assert!(parts.count() > 8);
    // What was written can be read.
    strait(&sandbox, &fake, &format!("{LARGE} -o s3://b/out.parquet")).ok();
    let count = "join s3://b/out.parquet s3://b/out.csv --on p,q --count";
    assert_eq!(strait(&sandbox, &fake, count).ok(), "490000\n");
}

#[test]
fn objects_are_replaced_only_if_asked() {
    let (sandbox, fake) = (Sandbox::with_people(), Fake::new());
    fake.put("b/out.csv", "old");
    strait(&sandbox, &fake, &format!("{JOIN} -o s3://b/out.csv"))
        .fails(&["s3://b/out.csv exists already", "--overwrite"]);
    assert_eq!(fake.get("b/out.csv").as_deref(), Some(&b"old"[..]));
    strait(&sandbox, &fake, &format!("{JOIN} -o s3://b/out.csv --overwrite")).ok();
    assert!(fake.get("b/out.csv").unwrap().starts_with(b"name,"));
    // An object that another process writes in the meantime is not replaced either.
    let race = Fake::failing(|request, earlier| {
        (request.method == "HEAD" && earlier < 2).then_some(Fault::Status(404))
    });
    race.put("b/out.csv", "old");
    strait(&sandbox, &race, &format!("{JOIN} -o s3://b/out.csv"))
        .fails(&["s3://b/out.csv was written by another process in the meantime"]);
    assert_eq!((race.get("b/out.csv").as_deref(), race.uploads()), (Some(&b"old"[..]), 0));
}

#[test]
fn the_output_is_no_input() {
    let (sandbox, fake) = (Sandbox::with_people(), Fake::new());
    fake.put("b/in/cities.csv", crate::sandbox::CITIES);
    for input in ["s3://b/in/", "s3://b/in/*.csv", "s3://b/in/cities.csv"] {
        let join = format!("join people.csv {input} --on city=id");
        strait(&sandbox, &fake, &format!("{join} --overwrite -o s3://b/in/cities.csv"))
            .fails(&["the output s3://b/in/cities.csv is part of the input", input]);
    }
}

#[test]
fn a_broken_upload_is_aborted() {
    for fault in [Fault::Status(500), Fault::Status(403), Fault::Cut] {
        let fake = Fake::failing(move |request, _| {
            request.query.contains("partNumber=3").then_some(fault)
        });
        fake.put("b/out.csv", "old");
        let run = strait(&large(), &fake, &format!("{LARGE} -o s3://b/out.csv --overwrite"));
        run.fails(&["cannot write s3://b/out.csv: ", "untouched"]);
        assert!(fake.requests().iter().any(|request| request.method == "DELETE"), "{fault:?}");
        assert_eq!(fake.get("b/out.csv").as_deref(), Some(&b"old"[..]), "{fault:?}");
    }
}

#[test]
fn an_upload_that_cannot_be_completed_is_aborted() {
    let fake = Fake::failing(|request, _| {
        let completes = request.method == "POST" && request.query.starts_with("uploadId");
        completes.then_some(Fault::Status(403))
    });
    let run = strait(&Sandbox::with_people(), &fake, &format!("{JOIN} -o s3://b/out.csv"));
    run.fails(&["cannot write s3://b/out.csv: access was denied"]);
    assert_eq!((fake.get("b/out.csv"), fake.uploads()), (None, 0));
}

/// The rows of the right table cannot be parsed, which shows when the upload has begun.
#[test]
fn a_failed_join_writes_no_object() {
    let (sandbox, fake) = (Sandbox::new(), Fake::new());
    sandbox.write("a.csv", "k,p\n1,2\n");
    sandbox.write("b.csv", format!("k,q\n{}1,x\n", "1,2\n".repeat(100)));
    let run = strait(&sandbox, &fake, "join a.csv b.csv --on k --csv-sample 10 -o s3://b/out.csv");
    run.fails(&["b.csv"]);
    assert_eq!((fake.get("b/out.csv"), fake.uploads()), (None, 0));
    assert!(fake.requests().iter().any(|request| request.method == "DELETE"));
}

/// Starts a join with an output that is too large to finish, and interrupts it when a request has come.
fn interrupted(fake: &Fake, request: fn(&Request) -> bool) -> Option<i32> {
    let sandbox = Sandbox::new();
    let rows: String = (0..100_000).map(|i| format!("7,{i}\n")).collect();
    sandbox.write("a.csv", format!("k,p\n{rows}"));
    sandbox.write("b.csv", format!("k,q\n{rows}"));
    let mut command = sandbox.command();
    fake.configure(&mut command);
    command.args(format!("{LARGE} -o s3://b/out.csv").split_whitespace()).stderr(Stdio::null());
    let mut run = command.spawn().unwrap();
    while !fake.requests().iter().any(request) {
        assert_eq!(run.try_wait().unwrap(), None, "the run ended too early");
        std::thread::sleep(Duration::from_millis(10));
    }
    let id = run.id().to_string();
    let signalled = std::process::Command::new("kill").args(["-INT", &id]).status();
    assert!(signalled.unwrap().success());
    run.wait().unwrap().code()
}

#[test]
fn an_interrupted_upload_is_aborted() {
    let fake = Fake::new();
    let status = interrupted(&fake, |request| request.query.contains("partNumber=2"));
    assert_eq!(status, Some(130));
    assert_eq!((fake.get("b/out.csv"), fake.uploads()), (None, 0));
}

/// The store creates the upload, but its answer takes two seconds.
#[test]
fn an_upload_is_aborted_while_it_begins() {
    let fake =
        Fake::failing(|request, _| request.query.starts_with("uploads").then_some(Fault::Slow));
    let status = interrupted(&fake, |request| request.query.starts_with("uploads"));
    assert_eq!((status, fake.uploads()), (Some(130), 0));
    assert!(fake.requests().iter().any(|request| request.method == "DELETE"));
}

#[test]
fn a_bucket_that_cannot_be_written() {
    let fake = Fake::failing(|request, _| (request.method != "HEAD").then_some(Fault::Status(403)));
    let run = strait(&Sandbox::with_people(), &fake, &format!("{JOIN} -o s3://b/out.csv"));
    run.fails(&["cannot write s3://b/out.csv: access was denied (403", "AWS_SECRET_ACCESS_KEY"]);
}

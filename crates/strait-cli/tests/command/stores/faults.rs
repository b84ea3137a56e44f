//! Stores that fail. Each test reads the message, and none gets a wrong answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::fake::{Fake, Fault, Request};
use super::strait;
use crate::sandbox::{CITIES, Sandbox, batch, outcome, sorted};

const JOIN: &str = "join people.csv s3://b/cities.csv --on city=id -o out.csv --overwrite";
const PARQUET: &str = "join people.csv s3://b/cities.parquet --on city=id -o out.csv --overwrite";

/// A server with a table in two formats that fails when bytes are asked for.
fn failing(fault: impl Fn(usize) -> Option<Fault> + Send + Sync + 'static) -> (Sandbox, Fake) {
    let reads = Arc::new(AtomicUsize::new(0));
    let fake = Fake::failing(move |request, _| {
        let is_read = request.method == "GET" && request.range.is_some();
        if is_read { fault(reads.fetch_add(1, Ordering::SeqCst)) } else { None }
    });
    let sandbox = Sandbox::with_people();
    sandbox.parquet("c.parquet", &batch(("id", &[1, 2, 3]), ("title", &["Oslo", "Rome", "Kiel"])));
    fake.put("b/cities.csv", CITIES);
    fake.put("b/cities.parquet", std::fs::read(sandbox.path("c.parquet")).unwrap());
    (sandbox, fake)
}

fn joined(sandbox: &Sandbox) {
    let expected = ["name,city,id,title", "Ada,1,1,Oslo", "Bob,2,2,Rome"];
    assert_eq!(sorted(&sandbox.read("out.csv")), expected);
}

#[test]
fn requests_that_fail_for_a_moment_are_repeated() {
    for fault in [Fault::Cut, Fault::Status(500), Fault::Status(503), Fault::Short] {
        for join in [JOIN, PARQUET] {
            let (sandbox, fake) = failing(move |read| (read % 2 == 0).then_some(fault));
            strait(&sandbox, &fake, join).ok();
            joined(&sandbox);
        }
    }
}

#[test]
fn a_store_that_keeps_failing_is_an_error() {
    for (fault, parts) in [
        (Fault::Cut, &["check the network"][..]),
        (Fault::Status(500), &["the server answered 500", "try again later"]),
        (Fault::Short, &["another range of bytes"]),
        (Fault::Whole, &["cannot send parts of a file", "download"]),
        (Fault::Changed, &["changed while it was read"]),
        (Fault::Status(403), &["access was denied (403", "AWS_ACCESS_KEY_ID"]),
        (Fault::Status(404), &["there is no such object"]),
    ] {
        for join in [JOIN, PARQUET] {
            let (sandbox, fake) = failing(move |_| Some(fault));
            let run = strait(&sandbox, &fake, join);
            run.fails(&[&["cannot read s3://b/cities."], parts].concat());
            assert!(!sandbox.path("out.csv").exists());
            assert!(fake.requests().len() < 16, "{:?}", fake.requests());
        }
    }
}

/// The first answers are those for the schema. The object changes when its rows are read.
#[test]
fn an_object_that_changes_later_is_an_error() {
    for join in [JOIN, PARQUET] {
        let (sandbox, fake) = failing(|read| (read > 0).then_some(Fault::Changed));
        strait(&sandbox, &fake, join).fails(&["changed while it was read"]);
        assert!(!sandbox.path("out.csv").exists());
    }
}

#[test]
fn a_silent_store_is_given_up() {
    let (sandbox, fake) = failing(|_| Some(Fault::Silent));
    let mut command = sandbox.command();
    fake.configure(&mut command);
    command.env("STRAIT_STORE_TIMEOUT", "1").args(JOIN.split_whitespace());
    outcome(&mut command).fails(&["cannot read s3://b/cities.csv: no answer within 1 s"]);
}

/// The answer takes longer than the timeout. But no pause within it does.
#[test]
fn a_slow_store_is_waited_for() {
    let (sandbox, fake) = failing(|_| Some(Fault::Slow));
    let mut command = sandbox.command();
    fake.configure(&mut command);
    command.env("STRAIT_STORE_TIMEOUT", "1").args(JOIN.split_whitespace());
    outcome(&mut command).ok();
    joined(&sandbox);
}

#[test]
fn nobody_listens() {
    let sandbox = Sandbox::with_people();
    let mut command = sandbox.command();
    Fake::new().configure(&mut command);
    // The port is that of a listener that is gone.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    command.env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}"));
    outcome(command.args(JOIN.split_whitespace())).fails(&[
        "cannot read s3://b/cities.csv: cannot talk to the store",
        "refused",
        "AWS_ENDPOINT_URL",
    ]);
    let url = format!("http://127.0.0.1:{port}/a.csv");
    let run = sandbox.strait(&format!("join people.csv {url} --on city=id"));
    run.fails(&[&format!("cannot read {url}: cannot talk to 127.0.0.1:{port}")]);
}

/// Settings that are missing or wrong are named before any request.
#[test]
fn settings_of_a_store() {
    let sandbox = Sandbox::with_people();
    let run = |url: &str, settings: &[(&str, &str)]| {
        let mut command = sandbox.command();
        super::configure(&mut command);
        command.args(["join", "people.csv", url, "--on", "city=id"]);
        outcome(command.envs(settings.iter().copied()))
    };
    run("az://c/a.csv", &[]).fails(&["cannot use az://c/a.csv", "AZURE_STORAGE_ACCOUNT_NAME"]);
    run("https://[h/a.csv?sig=secret", &[])
        .fails(&["cannot use https://[h/a.csv", "check the address"]);
    let settings = [("AWS_ENDPOINT_URL", "http://127.0.0.1:1"), ("AWS_ALLOW_HTTP", "false")];
    run("s3://b/a.csv", &settings).fails(&["cannot read s3://b/a.csv", "set AWS_ALLOW_HTTP=true"]);
}

#[test]
fn a_listing_that_makes_no_sense() {
    let sandbox = Sandbox::with_people();
    let fake = Fake::failing(|request, _| request.query.contains("list").then_some(Fault::Rubbish));
    let run = strait(&sandbox, &fake, "join people.csv s3://b/in/ --on city=id");
    run.fails(&["cannot list s3://b/in/: the request failed"]);
}

#[test]
fn missing_objects_and_buckets() {
    let (sandbox, fake) = (Sandbox::with_people(), Fake::new());
    let run = strait(&sandbox, &fake, "join people.csv s3://b/none.csv --on city=id");
    run.fails(&["cannot read s3://b/none.csv: there is no such object, or no such bucket"]);
    let url = fake.url("none.csv?sig=secret");
    let run = strait(&sandbox, &fake, &format!("join people.csv {url} --on city=id"));
    run.fails(&["the server has no such file", "check the address"]);
    assert!(!run.stderr.contains("sig="), "{}", run.stderr);
}

/// Neither errors nor the log show the signature of a web address.
#[test]
fn signatures_are_not_shown() {
    let sandbox = Sandbox::with_people();
    for fault in [Fault::Status(403), Fault::Status(500), Fault::Cut, Fault::Rubbish] {
        let fake =
            Fake::failing(move |request: &Request, _| (request.method == "GET").then_some(fault));
        fake.put("cities.csv", CITIES);
        let url = fake.url("cities.csv?sig=secret");
        let run = strait(&sandbox, &fake, &format!("-vv join people.csv {url} --on city=id"));
        assert_eq!(run.status, Some(1));
        assert!(!run.stderr.contains("secret"), "{}", run.stderr);
        let run =
            strait(&sandbox, &fake, &format!("join people.csv cities.csv --on city=id -o {url}"));
        run.refused(&["cannot be written"]);
        assert!(!run.stderr.contains("secret"), "{}", run.stderr);
    }
}

#[test]
fn urls_that_cannot_be_used() {
    let sandbox = Sandbox::with_people();
    for (arguments, part) in [
        ("join people.csv ftp://h/a.csv --on city=id", "does not know ftp://; use s3://"),
        ("join people.csv file:///a.csv --on city=id", "write the path alone"),
        ("join people.csv https://h/ --on city=id", "names a folder"),
        ("join people.csv s3:///a.csv --on city=id", "names no bucket"),
        ("join people.csv cities.csv --on city=id -o http://h/a.csv", "for input"),
        ("join people.csv cities.csv --on city=id -o s3://b/*.csv", "is a glob"),
    ] {
        sandbox.strait(arguments).refused(&[part]);
    }
}

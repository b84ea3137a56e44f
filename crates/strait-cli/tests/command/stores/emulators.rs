//! Other people's servers: moto for S3, and Azurite for Azure. `make test` installs them, and sets STRAIT_STORES to
//! their folder. Without this variable, these tests are skipped.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::configure;
use crate::sandbox::{Outcome, Sandbox, outcome, sorted};

/// A server process that ends with its test.
struct Server {
    process: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    /// Starts a server on a free port, and waits until it listens.
    fn start(mut command: Command, port_flag: &str) -> Server {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        command.args([port_flag, &port.to_string()]);
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Server { process, port };
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert_eq!(server.process.try_wait().unwrap(), None, "{command:?} ended");
            assert!(started.elapsed() < Duration::from_secs(60), "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }
}

fn installed() -> Option<PathBuf> {
    let folder = std::env::var_os("STRAIT_STORES").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: STRAIT_STORES is not set; `make test` sets it");
    }
    folder
}

/// moto. The first requests need no permission, and all later ones do if `denies` says so.
fn moto(folder: &std::path::Path, denies: bool) -> Server {
    let mut command = Command::new(folder.join("moto/bin/python"));
    command.args(["-m", "moto.server", "-H", "127.0.0.1"]);
    if denies {
        command.env("INITIAL_NO_AUTH_ACTION_COUNT", "2");
    }
    Server::start(command, "-p")
}

fn s3(sandbox: &Sandbox, server: &Server, arguments: &str) -> Outcome {
    let mut command = sandbox.command();
    configure(&mut command);
    command.env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", server.port));
    outcome(command.args(arguments.split_whitespace()))
}

/// Makes a bucket and an object. moto does not check signatures.
fn request(server: &Server, method: &str, path: &str, body: &str) {
    use std::io::{Read, Write};
    let mut connection = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let length = body.len();
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {length}\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=a/20240101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0\r\n\r\n{body}"
    );
    connection.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
}

/// Writes tables and reads them again: single objects, folders and globs, in one part and in many.
fn round_trip(sandbox: &Sandbox, root: &str, strait: impl Fn(&str) -> Outcome) {
    let rows: String = (0..400).map(|i| format!("7,x{i:032}\n")).collect();
    sandbox.write("a.csv", format!("k,p\n{rows}"));
    sandbox.write("b.csv", format!("k,q\n{rows}"));
    let people = "join people.csv cities.csv --on city=id";
    for name in ["y=1/x.parquet", "y=2/x.parquet"] {
        strait(&format!("{people} -o {root}/in/{name}")).ok();
    }
    strait(&format!("{people} -o {root}/in/y=1/x.parquet")).fails(&["exists already"]);
    for table in ["in/", "in/y=*/*.parquet"] {
        strait(&format!(
            "join people.csv {root}/{table} --on name --select name,title,y -o out.csv --overwrite"
        ))
        .ok();
        let expected = ["name,title,y", "Ada,Oslo,1", "Ada,Oslo,2", "Bob,Rome,1", "Bob,Rome,2"];
        assert_eq!(sorted(&sandbox.read("out.csv")), expected, "{table}");
    }
    for name in ["large.csv.gz", "large.csv", "large.parquet", "large.arrow"] {
        strait(&format!("join a.csv b.csv --on k -o {root}/{name}")).ok();
        let count = format!("join {root}/{name} b.csv --on q --count");
        assert_eq!(strait(&count).ok(), "160000\n", "{name}");
    }
    strait(&format!("join people.csv {root}/none.csv --on city=id"))
        .fails(&["there is no such object"]);
}

#[test]
fn s3_round_trip() {
    let Some(folder) = installed() else { return };
    let (server, sandbox) = (moto(&folder, false), Sandbox::with_people());
    request(&server, "PUT", "/bucket", "");
    round_trip(&sandbox, "s3://bucket", |arguments| s3(&sandbox, &server, arguments));
    let run = s3(&sandbox, &server, "join people.csv s3://nobody/a/ --on city=id");
    run.fails(&["cannot list s3://nobody/a/: there is no bucket nobody"]);
    let run = s3(&sandbox, &server, "join people.csv cities.csv --on city=id -o s3://nobody/a.csv");
    run.fails(&["cannot write s3://nobody/a.csv: there is no bucket nobody"]);
}

#[test]
fn s3_denies_access() {
    let Some(folder) = installed() else { return };
    let (server, sandbox) = (moto(&folder, true), Sandbox::with_people());
    request(&server, "PUT", "/bucket", "");
    request(&server, "PUT", "/bucket/cities.csv", crate::sandbox::CITIES);
    for arguments in [
        "join people.csv s3://bucket/cities.csv --on city=id",
        "join people.csv s3://bucket/ --on city=id",
        "join people.csv cities.csv --on city=id -o s3://bucket/out.csv",
    ] {
        let run = s3(&sandbox, &server, arguments);
        run.fails(&["access was denied (403", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"]);
        assert!(!run.stderr.contains("AKIDENTIFIER00"), "{}", run.stderr);
    }
}

#[test]
fn azure_round_trip() {
    let Some(folder) = installed() else { return };
    let mut command = Command::new("node");
    command.arg(folder.join("azurite/node_modules/azurite/dist/src/blob/main.js"));
    command.args(["--blobHost", "127.0.0.1", "--inMemoryPersistence", "--skipApiVersionCheck"]);
    command.args(["--silent", "--disableTelemetry"]);
    let (server, sandbox) = (Server::start(command, "--blobPort"), Sandbox::with_people());
    let azure = |arguments: &str| {
        let mut command = sandbox.command();
        configure(&mut command);
        command.env("AZURE_STORAGE_USE_EMULATOR", "true").env("AZURE_ALLOW_HTTP", "true");
        command.env("AZURITE_BLOB_STORAGE_URL", format!("http://127.0.0.1:{}", server.port));
        outcome(command.args(arguments.split_whitespace()))
    };
    make_container(&folder, &server);
    round_trip(&sandbox, "az://tables", azure);
    let run = azure("join people.csv az://nobody/a/ --on city=id");
    run.fails(&["cannot list az://nobody/a/: there is no container nobody"]);
    let run = azure("join people.csv abfs://tables/in/y=1/x.parquet --on name --count");
    assert_eq!(run.ok(), "2\n");
}

/// Makes the container `tables`, with the client that Azurite brings along. The account is the one that all
/// Azurite servers have.
fn make_container(folder: &std::path::Path, server: &Server) {
    let script = "
        const { BlobServiceClient } = require('@azure/storage-blob');
        const key = 'Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==';
        const url = `http://127.0.0.1:${process.argv[1]}/devstoreaccount1`;
        const text = `DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey=${key};BlobEndpoint=${url};`;
        BlobServiceClient.fromConnectionString(text).createContainer('tables').catch((e) => { console.error(e); process.exit(1); });";
    let mut command = Command::new("node");
    command.current_dir(folder.join("azurite")).args(["-e", script, &server.port.to_string()]);
    assert!(command.status().unwrap().success());
}

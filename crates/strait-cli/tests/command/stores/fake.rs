//! A web server and object store in the test's own process. It keeps objects in memory, records requests, and
//! fails as the test wants. It has the calls of S3 and of Google Cloud Storage that the command makes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::SECRET;

/// How a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Answers with this status.
    Status(u16),
    /// Closes the connection in the middle of the body.
    Cut,
    /// Answers with one byte less than asked for, and says so.
    Short,
    /// Answers with the bytes of another version.
    Changed,
    /// Answers with the whole object where a range was asked for.
    Whole,
    /// Answers with text that makes no sense.
    Rubbish,
    /// Does not answer.
    Silent,
    /// Sends the answer in five pieces, with a pause of half a second before each.
    Slow,
}

/// A request: its method, its path with the query, and the range that it asks for.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) range: Option<(usize, usize)>,
    body: Vec<u8>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    /// Uploads that were begun, and neither completed nor aborted.
    uploads: BTreeMap<String, BTreeMap<usize, Vec<u8>>>,
    requests: Vec<Request>,
    served: usize,
}

type Faults = Box<dyn Fn(&Request, usize) -> Option<Fault> + Send + Sync>;

/// The server. It ends with the process of the tests.
#[derive(Clone)]
pub(crate) struct Fake {
    port: u16,
    state: Arc<Mutex<State>>,
    faults: Arc<Faults>,
}

impl Fake {
    /// A server without faults.
    pub(crate) fn new() -> Fake {
        Fake::failing(|_, _| None)
    }

    /// A server that fails as the function says. Its second argument is the number of earlier requests.
    pub(crate) fn failing(
        faults: impl Fn(&Request, usize) -> Option<Fault> + Send + Sync + 'static,
    ) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let fake = Fake { port, state: Arc::default(), faults: Arc::new(Box::new(faults)) };
        let server = fake.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let server = server.clone();
                std::thread::spawn(move || server.serve(connection));
            }
        });
        fake
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Stores an object. Its name begins with the bucket.
    pub(crate) fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        self.state().objects.insert(format!("/{name}"), content.as_ref().to_vec());
    }

    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        self.state().objects.get(&format!("/{name}")).cloned()
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state().requests.clone()
    }

    /// The bytes of objects that were sent.
    pub(crate) fn served(&self) -> usize {
        self.state().served
    }

    /// The number of uploads that were begun, and neither completed nor aborted.
    pub(crate) fn uploads(&self) -> usize {
        self.state().uploads.len()
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}/{name}", self.port)
    }

    /// Sets the variables that lead a command here.
    pub(crate) fn configure(&self, command: &mut Command) {
        super::configure(command);
        let address = format!("http://127.0.0.1:{}", self.port);
        command.env("AWS_ENDPOINT_URL", &address);
        let key = format!(
            r#"{{"client_email": "a@b", "private_key": "{SECRET}", "private_key_id": "1", "disable_oauth": true, "gcs_base_url": "{address}"}}"#
        );
        command.env("GOOGLE_SERVICE_ACCOUNT_KEY", key);
    }

    fn serve(&self, connection: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(connection.try_clone().ok()?);
        while let Some(request) = parsed(&mut reader) {
            let earlier = {
                let mut state = self.state();
                state.requests.push(request.clone());
                state.requests.len() - 1
            };
            let fault = (self.faults)(&request, earlier);
            let answer = match fault {
                Some(Fault::Status(status)) => {
                    answer(status, "", b"<Error><Code>Refused</Code></Error>")
                }
                Some(Fault::Rubbish) => answer(200, "", b"<rubbish"),
                Some(Fault::Silent) => {
                    std::thread::sleep(Duration::from_secs(600));
                    return None;
                }
                fault => self.answered(&request, fault),
            };
            let length =
                if fault == Some(Fault::Cut) { answer.len() * 2 / 3 } else { answer.len() };
            if fault == Some(Fault::Slow) {
                let body = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
                let (head, body) = answer.split_at(body);
                for piece in std::iter::once(head).chain(body.chunks(body.len() / 4 + 1)) {
                    std::thread::sleep(Duration::from_millis(500));
                    (&connection).write_all(piece).ok()?;
                }
                continue;
            }
            (&connection).write_all(&answer[..length]).ok()?;
            if fault == Some(Fault::Cut) {
                return None;
            }
        }
        None
    }

    fn answered(&self, request: &Request, fault: Option<Fault>) -> Vec<u8> {
        let mut state = self.state();
        let (path, query) = (&request.path, &*request.query);
        let value = |name: &str| {
            query.split('&').filter_map(|pair| pair.split_once('=')).find(|(n, _)| *n == name)
        };
        match &*request.method {
            "POST" if query.starts_with("uploads") => {
                let id = format!("id{}", state.requests.len());
                state.uploads.insert(id.clone(), BTreeMap::new());
                let xml = format!(
                    "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                );
                answer(200, "", xml.as_bytes())
            }
            "PUT" if value("uploadId").is_some() => {
                let (id, part) = (value("uploadId").unwrap().1, value("partNumber").unwrap().1);
                let Some(upload) = state.uploads.get_mut(id) else { return answer(404, "", b"") };
                upload.insert(part.parse().unwrap(), request.body.clone());
                answer(200, "ETag: \"part\"\r\n", b"")
            }
            "POST" => {
                let id = value("uploadId").map_or("", |(_, id)| id);
                let Some(parts) = state.uploads.remove(id) else { return answer(404, "", b"") };
                state.objects.insert(path.clone(), parts.into_values().flatten().collect());
                let xml = b"<CompleteMultipartUploadResult><ETag>\"whole\"</ETag></CompleteMultipartUploadResult>";
                answer(200, "ETag: \"whole\"\r\n", xml)
            }
            "DELETE" => {
                state.uploads.remove(value("uploadId").map_or("", |(_, id)| id));
                answer(204, "", b"")
            }
            "PUT" => {
                state.objects.insert(path.clone(), request.body.clone());
                answer(200, "ETag: \"1\"\r\n", b"")
            }
            _ if query.contains("list-type=2") => {
                let prefix = value("prefix").map_or(String::new(), |(_, prefix)| decoded(prefix));
                listing(&state, path, &prefix)
            }
            _ => object(&mut state, request, fault),
        }
    }
}

fn object(state: &mut State, request: &Request, fault: Option<Fault>) -> Vec<u8> {
    let Some(content) = state.objects.get(&request.path).cloned() else {
        return answer(404, "", b"");
    };
    let tag = if fault == Some(Fault::Changed) { "2" } else { "1" };
    let mut headers = format!("ETag: \"{tag}\"\r\nAccept-Ranges: bytes\r\n");
    if request.method == "HEAD" {
        let length = content.len();
        headers += &format!("Content-Length: {length}\r\n");
        return head(200, &headers).into_bytes();
    }
    let Some((start, mut end)) = request.range.filter(|_| fault != Some(Fault::Whole)) else {
        return answer(200, &headers, &content);
    };
    end = (end + 1).min(content.len()) - usize::from(fault == Some(Fault::Short));
    headers += &format!("Content-Range: bytes {start}-{}/{}\r\n", end - 1, content.len());
    state.served += end - start;
    answer(206, &headers, &content[start..end])
}

fn listing(state: &State, bucket: &str, prefix: &str) -> Vec<u8> {
    let bucket = format!("{}/", bucket.trim_end_matches('/'));
    let keys = state.objects.iter().filter_map(|(name, content)| {
        let key = name.strip_prefix(&bucket)?;
        let xml = format!("<Contents><Key>{key}</Key><Size>{}</Size><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>\"1\"</ETag></Contents>", content.len());
        key.starts_with(prefix).then_some(xml)
    });
    let keys: String = keys.collect();
    let xml = format!(
        "<?xml version=\"1.0\"?><ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>{keys}</ListBucketResult>"
    );
    answer(200, "", xml.as_bytes())
}

fn head(status: u16, headers: &str) -> String {
    format!(
        "HTTP/1.1 {status} Answer\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n{headers}\r\n"
    )
}

fn answer(status: u16, headers: &str, body: &[u8]) -> Vec<u8> {
    // An answer without content has no length.
    let length =
        if status == 204 { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    [head(status, &format!("{headers}{length}")).as_bytes(), body].concat()
}

/// Reads a request. Returns `None` at the end of the connection.
fn parsed(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_string(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (path, query) = (decoded(path), query.to_string());
    let (mut range, mut length) = (None, 0);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().ok()?;
        }
        if name.eq_ignore_ascii_case("range") {
            let (start, end) = value.strip_prefix("bytes=")?.split_once('-')?;
            range = Some((start.parse().ok()?, end.parse().ok()?));
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path, query, range, body })
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next().unwrap(), rest.next().unwrap()];
            let digits = std::str::from_utf8(&digits).unwrap().to_string();
            bytes.push(u8::from_str_radix(&digits, 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}

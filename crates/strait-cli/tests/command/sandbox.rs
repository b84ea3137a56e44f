//! A folder in which a test runs the command, and the command's outcome.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchReader, StringArray};
use arrow::csv;
use arrow::ipc::reader::{FileReader, StreamReader};
use arrow::ipc::writer::{FileWriter, StreamWriter};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;

/// Four people. One has no city, and one has a city that is not listed.
pub(crate) const PEOPLE: &str = "name,city\nAda,1\nBob,2\nCid,\nDan,9\n";

/// Three cities. Nobody lives in the last.
pub(crate) const CITIES: &str = "id,title\n1,Oslo\n2,Rome\n3,Kiel\n";

/// A temporary folder in which the command runs.
pub(crate) struct Sandbox {
    folder: TempDir,
}

/// The outcome of a run of the command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        Sandbox { folder: tempfile::tempdir().unwrap() }
    }

    /// A sandbox with `people.csv` and `cities.csv`.
    pub(crate) fn with_people() -> Self {
        let sandbox = Sandbox::new();
        sandbox.write("people.csv", PEOPLE);
        sandbox.write("cities.csv", CITIES);
        sandbox
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file. Creates its folders.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        String::from_utf8(fs::read(self.path(name)).unwrap()).unwrap()
    }

    pub(crate) fn parquet(&self, name: &str, batch: &RecordBatch) {
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
        self.write(name, bytes);
    }

    pub(crate) fn ipc_file(&self, name: &str, batch: &RecordBatch) {
        let mut bytes = Vec::new();
        let mut writer = FileWriter::try_new(&mut bytes, &batch.schema()).unwrap();
        writer.write(batch).unwrap();
        writer.finish().unwrap();
        drop(writer);
        self.write(name, bytes);
    }

    pub(crate) fn ipc_stream(&self, name: &str, batch: &RecordBatch) {
        self.write(name, stream_of(batch));
    }

    /// Returns the names in the folder, including hidden ones, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The command, which will run in the folder.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Runs the command with arguments that are separated by spaces.
    pub(crate) fn strait(&self, arguments: &str) -> Outcome {
        outcome(self.command().args(arguments.split_whitespace()))
    }

    /// Runs the command with `input` on its stdin.
    pub(crate) fn strait_with_stdin(&self, arguments: &str, input: &[u8]) -> Outcome {
        let mut command = self.command();
        command.args(arguments.split_whitespace()).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The command may not read all of it.
        let _ = child.stdin.take().unwrap().write_all(input);
        let output = child.wait_with_output().unwrap();
        Outcome {
            status: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a line of shell script in the folder. `$strait` is the command.
    pub(crate) fn shell(&self, script: &str) -> Outcome {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).current_dir(self.folder.path());
        outcome(command.env("strait", env!("CARGO_BIN_EXE_strait")).stdin(Stdio::null()))
    }
}

pub(crate) fn outcome(command: &mut Command) -> Outcome {
    let output = command.output().unwrap();
    Outcome {
        status: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Outcome {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    /// Returns the stdout of a run. Panics if the run failed.
    #[track_caller]
    pub(crate) fn ok(&self) -> String {
        assert_eq!(self.status, Some(0), "{}", self.stderr);
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Checks that the run failed with status 1, and with one message that contains all `parts`.
    #[track_caller]
    pub(crate) fn fails(&self, parts: &[&str]) {
        assert_eq!(self.status, Some(1), "{self:?}");
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "no \"{part}\" in: {}", self.stderr);
        }
    }

    /// Checks that the run was rejected as wrong usage.
    #[track_caller]
    pub(crate) fn refused(&self, parts: &[&str]) {
        assert_eq!(self.status, Some(2), "{self:?}");
        for part in parts {
            assert!(self.stderr.contains(part), "no \"{part}\" in: {}", self.stderr);
        }
    }
}

/// Returns the header of CSV text and its rows, sorted, because joins promise no order.
pub(crate) fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines[1..].sort_unstable();
    lines
}

/// A batch with one column of numbers and one of text.
pub(crate) fn batch(numbers: (&str, &[i64]), texts: (&str, &[&str])) -> RecordBatch {
    RecordBatch::try_from_iter([
        (numbers.0, Arc::new(Int64Array::from(numbers.1.to_vec())) as ArrayRef),
        (texts.0, Arc::new(StringArray::from(texts.1.to_vec())) as ArrayRef),
    ])
    .unwrap()
}

/// Returns the bytes of an Arrow IPC stream.
pub(crate) fn stream_of(batch: &RecordBatch) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::try_new(&mut bytes, &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    bytes
}

pub(crate) fn read_parquet(path: &Path) -> String {
    let file = File::open(path).unwrap();
    as_csv(ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap())
}

pub(crate) fn read_ipc_file(path: &Path) -> String {
    as_csv(FileReader::try_new(File::open(path).unwrap(), None).unwrap())
}

pub(crate) fn read_ipc_stream(bytes: &[u8]) -> String {
    as_csv(StreamReader::try_new(bytes, None).unwrap())
}

fn as_csv(reader: impl RecordBatchReader) -> String {
    let mut text = Vec::new();
    let mut writer = csv::Writer::new(&mut text);
    writer.write(&RecordBatch::new_empty(reader.schema())).unwrap();
    for batch in reader {
        writer.write(&batch.unwrap()).unwrap();
    }
    drop(writer);
    String::from_utf8(text).unwrap()
}

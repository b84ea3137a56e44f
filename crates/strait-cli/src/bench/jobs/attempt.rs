//! One run of one engine, and the check of what it wrote.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;
use strait::Processor;

use super::contest::Entrant;
use super::digest::Digest;
use super::suite::{Job, Written};
use crate::arguments::Engine;
use crate::bench::engine::Drivers;
use crate::bench::environment::succeeded;
use crate::bench::process::{self, Finished};

/// How the jobs are run.
pub(super) struct Rules<'a> {
    /// The folder of the input files.
    pub(super) folder: &'a Path,
    pub(super) threads: usize,
    pub(super) repeat: u32,
    pub(super) check: bool,
    /// Runs the other engines, if there are any.
    pub(super) drivers: Option<&'a Drivers>,
    /// The engines that read back Strait's Parquet files.
    pub(super) readers: &'a [Engine],
}

/// The figures of one run.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// Without the import, for a peer.
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// The whole process.
    pub(super) process_seconds: f64,
    pub(super) process_cpu_seconds: f64,
    pub(super) peak: u64,
    /// The size of the output file.
    pub(super) bytes: u64,
    pub(super) version: String,
    count: Option<u64>,
}

impl Run {
    fn new(finished: &Finished, said: Said) -> Run {
        Run {
            seconds: said.seconds,
            cpu_seconds: said.cpu_seconds,
            process_seconds: finished.seconds,
            process_cpu_seconds: finished.cpu_seconds,
            peak: finished.peak,
            bytes: 0,
            version: said.version,
            count: said.count,
        }
    }
}

/// The answer of a job.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Count(u64),
    Rows(Digest),
}

impl Answer {
    fn check(&self, expected: &Answer) -> anyhow::Result<()> {
        match (self, expected) {
            (Answer::Rows(rows), Answer::Rows(expected)) => rows.check(expected),
            (answer, expected) if answer.rows() == expected.rows() => Ok(()),
            (answer, expected) => {
                bail!("it counted {} rows, and should count {}", answer.rows(), expected.rows())
            }
        }
    }

    pub(super) fn rows(&self) -> u64 {
        match self {
            Answer::Count(rows) => *rows,
            Answer::Rows(digest) => digest.rows,
        }
    }
}

/// One job, and the files of its runs.
pub(super) struct Attempt<'a> {
    job: &'static Job,
    rules: &'a Rules<'a>,
    out: PathBuf,
    /// The description that other engines read.
    description: PathBuf,
}

/// The output of `drive.py`.
#[derive(Deserialize)]
struct Said {
    version: String,
    seconds: f64,
    cpu_seconds: f64,
    count: Option<u64>,
}

impl<'a> Attempt<'a> {
    pub(super) fn new(job: &'static Job, rules: &'a Rules) -> anyhow::Result<Attempt<'a>> {
        let out = rules.folder.join(format!("out.{}", job.written.ending()));
        let description = rules.folder.join("job.json");
        std::fs::write(&description, job.described(rules.folder).to_string())
            .with_context(|| format!("cannot write {}", description.display()))?;
        Ok(Attempt { job, rules, out, description })
    }

    /// Runs an entrant once. Its output stays until the next run.
    pub(super) fn run(&self, entrant: Entrant) -> anyhow::Result<Run> {
        self.remove_output()?;
        let run = match entrant {
            Entrant::Strait(device) => self.strait(device)?,
            Entrant::Peer(engine, variant) => self.peer(engine, variant)?,
        };
        match self.job.written {
            Written::Count => Ok(run),
            _ => {
                let facts = std::fs::metadata(&self.out).context("it wrote no file")?;
                Ok(Run { bytes: facts.len(), count: None, ..run })
            }
        }
    }

    /// Runs the command itself, as a user would.
    fn strait(&self, device: Processor) -> anyhow::Result<Run> {
        let mut command = Command::new(process::this_command()?);
        command.args(self.job.arguments(self.rules.folder, &self.out));
        command.args(["--threads", &self.rules.threads.to_string()]);
        command.args(["--device", &device.to_string()]);
        let finished = process::run(&mut command, self.rules.folder)?;
        let count = std::str::from_utf8(&finished.stdout).ok().and_then(|t| t.trim().parse().ok());
        let version = env!("CARGO_PKG_VERSION").to_string();
        let (seconds, cpu_seconds) = (finished.seconds, finished.cpu_seconds);
        Ok(Run::new(&finished, Said { version, seconds, cpu_seconds, count }))
    }

    fn peer(&self, engine: Engine, variant: &str) -> anyhow::Result<Run> {
        let drivers = self.rules.drivers.context("there is no Python for other engines")?;
        let mut command = drivers.command(engine, variant);
        command.arg("job").arg(&self.description).arg(&self.out);
        command.arg(self.rules.threads.to_string());
        let finished = process::run(&mut command, self.rules.folder)?;
        let said = serde_json::from_slice(&finished.stdout)
            .context("it printed something else than figures")?;
        Ok(Run::new(&finished, said))
    }

    /// Compares the answer with the expected one. The first answer becomes the expected one.
    pub(super) fn check(&self, run: &Run, expected: &mut Option<Answer>) -> anyhow::Result<()> {
        let answer = match self.job.written {
            Written::Count => Answer::Count(run.count.context("it printed no count")?),
            _ => Answer::Rows(self.digest(None)?),
        };
        match expected {
            Some(expected) => answer.check(expected),
            None => {
                *expected = Some(answer);
                Ok(())
            }
        }
    }

    /// Lets other engines read a Parquet file of Strait, and compares their rows. Returns all errors.
    pub(super) fn read_back(&self, expected: Option<&Answer>) -> Vec<anyhow::Error> {
        let (Some(drivers), Some(expected)) = (self.rules.drivers, expected) else {
            return Vec::new();
        };
        let readers = self.rules.readers.iter().filter(|_| self.job.written.is_parquet());
        let read = |&reader: &Engine| {
            let rows = self.digest(Some(drivers.command(reader, "read")));
            let checked = rows.and_then(|rows| Answer::Rows(rows).check(expected));
            checked.with_context(|| format!("read back by {}", reader.name())).err()
        };
        readers.filter_map(read).collect()
    }

    /// Digests the output, in another process. A `reader` passes its rows on as an Arrow IPC stream. Without one,
    /// Strait reads the file.
    fn digest(&self, reader: Option<Command>) -> anyhow::Result<Digest> {
        let mut command = Command::new(process::this_command()?);
        command.args(["bench", "digest"]);
        let finished = match reader {
            None => process::run(command.arg(&self.out), self.rules.folder)?,
            Some(mut reader) => {
                reader.arg("read").arg(&self.out).stdin(Stdio::null()).stdout(Stdio::piped());
                let errors = self.rules.folder.join("reader");
                let file = std::fs::File::create(&errors)
                    .with_context(|| format!("cannot write {}", errors.display()))?;
                let mut child = reader.stderr(file).spawn().context("cannot start the reader")?;
                let rows = child.stdout.take().context("the reader has no output")?;
                let digested = process::run_with(command.arg("-"), rows.into(), self.rules.folder);
                // Closes our end of the pipe. Otherwise the reader would wait if the digest has failed.
                drop(command);
                let status = child.wait().context("cannot wait for the reader")?;
                let stderr = std::fs::read(&errors).unwrap_or_default();
                // The reader's own failure says more than the one of the process that got too few rows.
                let output = Output { status, stdout: Vec::new(), stderr };
                succeeded(&output)?;
                digested?
            }
        };
        serde_json::from_slice(&finished.stdout).context("cannot read the digest")
    }

    pub(super) fn remove_output(&self) -> anyhow::Result<()> {
        match std::fs::remove_file(&self.out) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.out.display()))
            }
            _ => Ok(()),
        }
    }
}

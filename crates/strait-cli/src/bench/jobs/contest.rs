//! One job, done by all engines in turns.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;
use strait::Processor;
use strait_bench::measure::median;

use super::digest::Digest;
use super::process::{self, Finished};
use super::suite::{Job, Written};
use crate::arguments::Engine;
use crate::bench::engine::Drivers;

/// An engine in one of its configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entrant {
    Strait(Processor),
    Peer(Engine, &'static str),
}

impl Entrant {
    pub(super) fn engine(self) -> &'static str {
        match self {
            Entrant::Strait(_) => "strait",
            Entrant::Peer(engine, _) => engine.name(),
        }
    }

    /// The configuration of a peer, or the processor of Strait.
    pub(super) fn variant(self) -> String {
        match self {
            Entrant::Strait(device) => device.to_string(),
            Entrant::Peer(_, variant) => variant.to_string(),
        }
    }

    /// Returns all entrants of a job. Strait is the first: the other engines' rows are compared with Strait's.
    pub(super) fn all(job: &Job, devices: &[Processor], peers: &[Engine]) -> Vec<Entrant> {
        let mut all: Vec<Entrant> = devices.iter().map(|&device| Entrant::Strait(device)).collect();
        for &peer in peers {
            let variants: &[&str] = match peer {
                // The order of rows does not matter if they are only counted.
                Engine::DuckDb if job.written == Written::Count => &["unordered"],
                Engine::DuckDb => &["unordered", "ordered"],
                Engine::Polars => &["streaming"],
                _ => &["default"],
            };
            all.extend(variants.iter().map(|variant| Entrant::Peer(peer, variant)));
        }
        all
    }
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
    version: String,
    count: Option<u64>,
}

/// The figures of an entrant: medians of its runs, and the highest peak.
#[derive(Debug, Clone)]
pub(super) struct Summary {
    pub(super) entrant: Entrant,
    pub(super) version: String,
    pub(super) seconds: f64,
    pub(super) min_seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) process_seconds: f64,
    pub(super) process_cpu_seconds: f64,
    pub(super) peak: u64,
    pub(super) bytes: u64,
}

impl Summary {
    fn of(entrant: Entrant, runs: &[Run]) -> Option<Summary> {
        let middle = |figure: fn(&Run) -> f64| {
            let mut figures: Vec<f64> = runs.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            median(&figures)
        };
        let last = runs.last()?;
        Some(Summary {
            entrant,
            version: last.version.clone(),
            seconds: middle(|run| run.seconds),
            min_seconds: runs.iter().map(|run| run.seconds).fold(f64::INFINITY, f64::min),
            cpu_seconds: middle(|run| run.cpu_seconds),
            process_seconds: middle(|run| run.process_seconds),
            process_cpu_seconds: middle(|run| run.process_cpu_seconds),
            peak: runs.iter().map(|run| run.peak).max().unwrap_or(0),
            bytes: last.bytes,
        })
    }
}

/// The answer of a job.
#[derive(Debug, Clone)]
enum Answer {
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

    fn rows(&self) -> u64 {
        match self {
            Answer::Count(rows) => *rows,
            Answer::Rows(digest) => digest.rows,
        }
    }
}

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

/// The result of a job.
pub(super) struct Contest {
    pub(super) job: &'static Job,
    pub(super) rows: Option<u64>,
    pub(super) summaries: Vec<Summary>,
    pub(super) failures: Vec<Failure>,
}

/// An entrant that failed or wrote wrong rows, or a file that another engine could not read back.
pub(super) struct Failure {
    pub(super) entrant: Entrant,
    /// The job, the entrant and the reason.
    pub(super) message: String,
}

impl Failure {
    fn new(job: &Job, entrant: Entrant, why: &anyhow::Error) -> Failure {
        let who = format!("{} ({})", entrant.engine(), entrant.variant());
        Failure { entrant, message: format!("{}, {who}: {why:#}", job.name) }
    }
}

impl Contest {
    /// Runs all entrants in turns. An entrant that fails once does not run again.
    pub(super) fn hold(
        job: &'static Job,
        entrants: &[Entrant],
        rules: &Rules,
    ) -> anyhow::Result<Contest> {
        let out = rules.folder.join(format!("out.{}", job.written.ending()));
        let description = rules.folder.join("job.json");
        std::fs::write(&description, job.described(rules.folder).to_string())
            .with_context(|| format!("cannot write {}", description.display()))?;
        let attempt = Attempt { job, rules, out, description };
        let mut expected: Option<Answer> = None;
        let mut failures = Vec::new();
        let mut runs: Vec<(Entrant, Option<Vec<Run>>)> =
            entrants.iter().map(|&entrant| (entrant, Some(Vec::new()))).collect();
        for round in 0..rules.repeat {
            for (entrant, done) in &mut runs {
                let Some(past) = done else { continue };
                let mut fail = |error| failures.push(Failure::new(job, *entrant, &error));
                let outcome = attempt.run(*entrant).and_then(|run| {
                    if round == 0 && rules.check {
                        let is_first = expected.is_none();
                        attempt.check(&run, &mut expected)?;
                        if is_first && matches!(entrant, Entrant::Strait(_)) {
                            attempt.read_back(expected.as_ref()).into_iter().for_each(&mut fail);
                        }
                    }
                    Ok(run)
                });
                match outcome {
                    Ok(run) => past.push(run),
                    Err(error) => {
                        fail(error);
                        *done = None;
                    }
                }
            }
        }
        attempt.remove_output()?;
        let summary = |(entrant, runs): (Entrant, Option<Vec<Run>>)| Summary::of(entrant, &runs?);
        let summaries = runs.into_iter().filter_map(summary).collect();
        Ok(Contest { job, rows: expected.map(|answer| answer.rows()), summaries, failures })
    }

    /// Strait on each of its processors.
    pub(super) fn strait(&self) -> impl Iterator<Item = &Summary> {
        self.summaries.iter().filter(|s| matches!(s.entrant, Entrant::Strait(_)))
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = &Summary> {
        self.summaries.iter().filter(|s| matches!(s.entrant, Entrant::Peer(..)))
    }

    /// The fastest peer.
    pub(super) fn best(&self) -> Option<&Summary> {
        self.peers().min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }

    /// The fastest variant of an engine.
    pub(super) fn best_of(&self, engine: Engine) -> Option<&Summary> {
        let variants = self.peers().filter(|peer| peer.entrant.engine() == engine.name());
        variants.min_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }
}

/// One job, and the files of its runs.
struct Attempt<'a> {
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

impl Attempt<'_> {
    fn run(&self, entrant: Entrant) -> anyhow::Result<Run> {
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
    fn check(&self, run: &Run, expected: &mut Option<Answer>) -> anyhow::Result<()> {
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
    fn read_back(&self, expected: Option<&Answer>) -> Vec<anyhow::Error> {
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
                let output = std::process::Output { status, stdout: Vec::new(), stderr };
                crate::bench::environment::succeeded(&output)?;
                digested?
            }
        };
        serde_json::from_slice(&finished.stdout).context("cannot read the digest")
    }

    fn remove_output(&self) -> anyhow::Result<()> {
        match std::fs::remove_file(&self.out) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", self.out.display()))
            }
            _ => Ok(()),
        }
    }
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

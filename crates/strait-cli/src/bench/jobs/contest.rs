//! One job, done by all engines in turns.

use strait::Processor;
use strait_bench::measure::median;

use super::attempt::{Answer, Attempt, Rules, Run};
use super::suite::{Job, Written};
use crate::arguments::Engine;

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
        let attempt = Attempt::new(job, rules)?;
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

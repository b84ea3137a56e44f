//! `strait bench jobs`: compares whole jobs with other engines. A job reads two tables from files, joins them and
//! writes a file, or counts.
//!
//! ```text
//!  suite (jobs) ─► inputs (files) ─► contest: a process per engine and run ─► table, record
//!                     place (in memory)          process (time, CPU time, peak)
//!                                                digest (equal values?)
//! ```

mod attempt;
mod contest;
mod digest;
mod inputs;
mod place;
mod suite;
mod table;

use std::process::Command;

use anyhow::{Context, bail};
use strait::Processor;

use super::engine::Drivers;
use super::environment;
use super::process;
use super::record::Record;
use crate::arguments::{Engine, JobsArguments};
use crate::digits::counted;
use crate::failure::say;
use crate::join::cores;
use crate::output::print;

use attempt::Rules;
use contest::{Contest, Entrant};
use inputs::Inputs;
use place::Place;
use suite::{JOBS, Job};
use table::{Bars, auto_ratio, ratio, table};

pub(super) use digest::run as digest;
pub(crate) use suite::names;

/// Runs the command.
pub(super) fn run(arguments: &JobsArguments) -> anyhow::Result<()> {
    let wanted =
        |job: &&Job| arguments.jobs.is_empty() || arguments.jobs.iter().any(|n| n == job.name);
    let jobs: Vec<&'static Job> = JOBS.iter().filter(wanted).collect();
    let threads = arguments.threads.unwrap_or_else(cores);
    let peers = arguments.peers();
    let place = Place::choose(inputs::room(&jobs, arguments.scale))?;
    let folder = place.folder.path();
    say(format_args!("files: {}", place.described()));
    let drivers = match peers.is_empty() {
        true => None,
        false => {
            let python = environment::python(&arguments.python)?;
            let all = [&peers[..], &[Engine::PyArrow]].concat();
            Some(Drivers::write(python, folder, &all)?)
        }
    };
    let devices = devices(arguments, &place)?;
    let mut readers = peers.clone();
    readers.retain(|engine| matches!(engine, Engine::DuckDb | Engine::Polars));
    readers.push(Engine::PyArrow);
    let rules = Rules {
        folder,
        threads,
        repeat: arguments.repeat,
        check: !arguments.no_check,
        drivers: drivers.as_ref(),
        readers: &readers,
    };
    let mut inputs = Inputs::new(folder, arguments.scale);
    let mut record = Record::new(&COLUMNS)?;
    let mut contests = Vec::new();
    for (at, &job) in jobs.iter().enumerate() {
        say(format_args!("{}: {}", job.name, job.about));
        inputs.prepare(&jobs[at..])?;
        let contest = Contest::hold(job, &Entrant::all(job, &devices, &peers), &rules)?;
        tell(&contest);
        add(&mut record, &contest, arguments, threads, &place)?;
        record.save(&arguments.out, "jobs")?;
        contests.push(contest);
    }
    let path = record.write(&arguments.out, "jobs")?;
    print(&table(&contests, &peers, &Bars::of(threads)))?;
    say(format_args!("record: {}", path.display()));
    let failures = contests.iter().flat_map(|contest| &contest.failures);
    let failures: Vec<&str> = failures.map(|failure| failure.message.as_str()).collect();
    if !failures.is_empty() {
        bail!("{}:\n{}", counted(failures.len() as u64, "failure"), failures.join("\n"));
    }
    Ok(())
}

/// Returns the processors on which Strait runs. Another process looks for GPUs, because the GPU's driver would make
/// this process large.
fn devices(arguments: &JobsArguments, place: &Place) -> anyhow::Result<Vec<Processor>> {
    if !arguments.device.is_empty() {
        return Ok(arguments.device.clone());
    }
    let mut command = Command::new(process::this_command()?);
    let listed = process::run(command.args(["devices", "--format", "json"]), place.folder.path())
        .context("cannot list the GPUs")?;
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout)?;
    let found = listed["gpus"].as_array().is_some_and(|gpus| !gpus.is_empty());
    Ok(match found {
        true => vec![Processor::Cpu, Processor::Gpu(0), Processor::Auto],
        false => vec![Processor::Auto],
    })
}

/// Reports one job.
fn tell(contest: &Contest) {
    for summary in &contest.summaries {
        let who = format!("{} ({})", summary.entrant.engine(), summary.entrant.variant());
        say(format_args!(
            "  {who:<22} {:>8.3} s  CPU {:>8.3} s  peak {:>10}  file {:>10}",
            summary.seconds,
            summary.cpu_seconds,
            strait::bytes(summary.peak),
            strait::bytes(summary.bytes)
        ));
    }
    contest.failures.iter().for_each(|failure| say(format_args!("  failed: {}", failure.message)));
}

/// The columns of the record, after the common ones.
const COLUMNS: [&str; 20] = [
    "job",
    "scale",
    "files_in",
    "engine",
    "variant",
    "version",
    "threads",
    "repeat",
    "checked",
    "output_rows",
    "median_seconds",
    "min_seconds",
    "cpu_seconds",
    "process_seconds",
    "process_cpu_seconds",
    "peak_resident",
    "output_bytes",
    "ratio_to_best_peer",
    "auto_to_better_device",
    "error",
];

/// Adds one line per entrant, and one per failure.
fn add(
    record: &mut Record,
    contest: &Contest,
    arguments: &JobsArguments,
    threads: usize,
    place: &Place,
) -> anyhow::Result<()> {
    let shown = |figure: Option<f64>| figure.map_or(String::new(), |f| format!("{f:.3}"));
    let common = [contest.job.name.to_string(), arguments.scale.to_string(), place.kind().into()];
    for summary in &contest.summaries {
        let is_auto = summary.entrant == Entrant::Strait(Processor::Auto);
        let cells = [
            summary.entrant.engine().to_string(),
            summary.entrant.variant(),
            summary.version.clone(),
            threads.to_string(),
            arguments.repeat.to_string(),
            if arguments.no_check { "no" } else { "yes" }.to_string(),
            contest.rows.map_or(String::new(), |rows| rows.to_string()),
            format!("{:.6}", summary.seconds),
            format!("{:.6}", summary.min_seconds),
            format!("{:.6}", summary.cpu_seconds),
            format!("{:.6}", summary.process_seconds),
            format!("{:.6}", summary.process_cpu_seconds),
            summary.peak.to_string(),
            summary.bytes.to_string(),
            shown(ratio(contest, summary)),
            shown(auto_ratio(contest).filter(|_| is_auto)),
            String::new(),
        ];
        record.add(common.iter().cloned().chain(cells))?;
    }
    for failure in &contest.failures {
        let who = [failure.entrant.engine().to_string(), failure.entrant.variant()];
        let empty = COLUMNS.len() - common.len() - who.len() - 1;
        let empty = std::iter::repeat_n(String::new(), empty);
        let message = [failure.message.clone()];
        record.add(common.iter().cloned().chain(who).chain(empty).chain(message))?;
    }
    Ok(())
}

//! `strait bench beyond`: the joins of the project's performance goals on tables in host memory that are too
//! large for the GPU's memory, and the CPU's joins of the same tables.
//!
//! ```text
//!  generate tables ─► the CPU's joins ─► copy to pinned memory ─► drop tables ─► a GPU's joins
//!                                     └─► copy to pageable memory ─┘ (if both are requested)
//! ```
//!
//! Tables are thus in memory at most twice, and only once while they are joined.
//!
//! A study varies one quantity instead, and writes a plot: [`size`] varies the size of both tables,
//! [`fanout`] the partitions of the Triton join's first pass.

mod fanout;
mod figures;
mod outcome;
mod size;
mod study;
mod suite;

use anyhow::bail;
use strait::{Algorithm, Machine};
use strait_bench::link::Card;
use strait_bench::measure::{Task, measure};
use strait_bench::runs::Often;
use strait_bench::workload::{Answer, Keys, Shape, Tables};
use strait_bench::{HostPlacement, HostTables, JoinRequest, ResultKind};

use super::load::{self, the_gpu};
use crate::arguments::{BeyondArguments, BeyondStudy};
use crate::digits::counted;
use crate::failure::say;
use crate::join::cores;
use crate::output::print;
use figures::Line;
use outcome::Outcome;
use suite::{Named, Place, SUITE};

pub(crate) use suite::names;

/// The default limit on the GPU memory of a join.
const GPU_MEMORY: u64 = 16 << 30;
/// A join that takes more than this many seconds runs only once.
const PATIENCE: f64 = 10.0;
/// The bytes per row: key and payload.
const ROW: u64 = 16;

/// Runs the command.
pub(super) fn run(arguments: &BeyondArguments) -> anyhow::Result<()> {
    let gpu = the_gpu(arguments.device, "these joins run on a GPU")?;
    let open = |setting: &Setting, placement, tables: &Tables| {
        load::in_host_memory(&gpu, Some(setting.gpu_memory), placement, setting.threads, tables)
    };
    let (text, failed) = match arguments.study {
        Some(BeyondStudy::Size) => size::run(arguments, Card::of(&gpu), &open),
        Some(BeyondStudy::Fanout) => fanout::run(arguments, Card::of(&gpu), &open),
        None => suite(arguments, &Card::of(&gpu), &open),
    }?;
    print(&text)?;
    match failed {
        0 => Ok(()),
        failed => bail!("{} failed; the lines above say why", counted(failed, "measurement")),
    }
}

/// The names that `--lines` accepts in a study.
pub(crate) fn line_names(study: BeyondStudy) -> Vec<&'static str> {
    match study {
        BeyondStudy::Size => size::names().collect(),
        BeyondStudy::Fanout => fanout::names().collect(),
    }
}

/// The text to print, and the number of measurements that failed.
type Shown = (String, u64);

/// Copies tables to their placement.
type Open<'a> = dyn Fn(&Setting, HostPlacement, &Tables) -> anyhow::Result<HostTables> + 'a;

/// Measures the requested workloads, and writes the record.
fn suite(arguments: &BeyondArguments, card: &Card, open: &Open<'_>) -> anyhow::Result<Shown> {
    let wanted: Vec<&Named> = SUITE.iter().filter(|named| arguments.wants(named.name)).collect();
    let setting = Setting::new(arguments, GPU_MEMORY);
    let (mut lines, mut failed) = (Vec::new(), 0);
    let mut record = figures::record()?;
    for group in wanted.chunk_by(|a, b| a.same_tables(b)) {
        let mut heard =
            |named: &'static Named, rows: [u64; 2], tried: anyhow::Result<Outcome>| match tried {
                Ok(outcome) => {
                    let line = Line { named, rows, outcome };
                    say(format_args!("{}", line.said()));
                    let added = figures::add(&mut record, card, &setting, &line);
                    let saved =
                        added.and_then(|()| record.save(&arguments.out, "beyond").map(drop));
                    if let Err(error) = saved {
                        say(format_args!("{error:#}"));
                        failed += 1;
                    }
                    lines.push(line);
                }
                Err(error) => {
                    say(format_args!("{}: {error:#}", named.name));
                    failed += 1;
                }
            };
        if let Err(error) = conduct(open, &setting, group, &mut heard) {
            let names: Vec<_> = group.iter().map(|named| named.name).collect();
            say(format_args!("{}: {error:#}", names.join("; ")));
            failed += 1;
        }
    }
    let path = record.write(&arguments.out, "beyond")?;
    say(format_args!("record: {}", path.display()));
    Ok((figures::shown(card, &setting, &lines), failed))
}

/// The settings that all measurements of a run share.
struct Setting {
    gpu_memory: u64,
    threads: usize,
    often: Often,
    scale_down: u64,
}

impl Setting {
    fn new(arguments: &BeyondArguments, gpu_memory: u64) -> Setting {
        Setting {
            gpu_memory: arguments.gpu_memory.unwrap_or(gpu_memory),
            threads: arguments.threads.unwrap_or_else(cores),
            often: Often { repeat: arguments.repeat, patience: PATIENCE },
            scale_down: arguments.scale_down,
        }
    }

    /// Measures the CPU's join of the tables, in aggregate mode.
    fn on_cpu(&self, tables: &Tables, algorithm: Algorithm) -> anyhow::Result<Outcome> {
        let (algorithm, repeat) = (Some(algorithm), self.often.repeat);
        let task = Task::on_cpu(ResultKind::Aggregate, algorithm, self.threads, repeat);
        Ok(Outcome::on_cpu(&measure(tables, &task)?, tables.expected.rows))
    }
}

/// Receives the outcome of a workload with this many rows.
type Hear<'a> = dyn FnMut(&'static Named, [u64; 2], anyhow::Result<Outcome>) + 'a;

/// Measures workloads over the same tables. If one fails, reports its error and continues with the others.
fn conduct(
    open: &Open<'_>,
    setting: &Setting,
    group: &[&'static Named],
    hear: &mut Hear<'_>,
) -> anyhow::Result<()> {
    let Some(first) = group.first() else { return Ok(()) };
    let shape = first.shape(setting.scale_down);
    enough_memory(&shape)?;
    let mut tables = Tables::generate_parts(shape, cores())?;
    let rows = [tables.build.rows(), tables.probe.rows()];
    let places: Vec<_> = group.chunk_by(|a, b| a.place == b.place).collect();
    for (i, same) in places.iter().enumerate() {
        let Place::Host(placement) = same[0].place else {
            for named in *same {
                hear(named, rows, setting.on_cpu(&tables, named.algorithm));
            }
            strait::release_memory();
            continue;
        };
        let loaded = open(setting, placement, &tables)?;
        if i + 1 == places.len() {
            // The joins need this memory.
            tables.build.batches = Vec::new();
            tables.probe.batches = Vec::new();
        }
        for named in *same {
            hear(named, rows, attempt(&loaded, &tables.expected, named, setting.often));
        }
        drop(loaded);
        strait::release_memory();
    }
    Ok(())
}

/// Runs the join of a workload. Releases the memory of the previous one first.
fn attempt(
    loaded: &HostTables,
    expected: &Answer,
    named: &Named,
    often: Often,
) -> anyhow::Result<Outcome> {
    strait::release_memory();
    let (algorithm, gpu_options) = (Some(named.algorithm), named.gpu_options());
    let how = JoinRequest { algorithm, gpu_options, result: named.result, hash_seed: None };
    Outcome::on_gpu(&loaded.runs(expected, &how, often)?, named.result)
}

/// Fails if the tables do not fit the memory twice.
fn enough_memory(shape: &Shape) -> anyhow::Result<()> {
    let needed = (shape.build + shape.probe) * ROW * 2;
    match Machine::free_memory() {
        Some(there) if there < needed => bail!(
            "the tables need {} of memory while they are copied, and {} are there; use --scale-down",
            strait::bytes(needed),
            strait::bytes(there)
        ),
        _ => Ok(()),
    }
}

/// Tables with keys and payloads of 8 bytes. Every probe row has one match.
fn shape([build, probe]: [u64; 2], keys: Keys) -> Shape {
    Shape::of_words(build, probe, keys, 42)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Parses a command line, for tables with a millionth of the rows.
    pub(super) fn arguments(out: &std::path::Path, flags: &[&str]) -> BeyondArguments {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            beyond: BeyondArguments,
        }
        let mut words = vec!["line", "--threads", "2", "--repeat", "1"];
        words.extend(flags);
        let mut arguments = Line::try_parse_from(words).expect("flags").beyond;
        arguments.out = out.to_path_buf();
        arguments
    }

    /// Tables in host memory, with a simulated device.
    pub(super) fn simulated(
        setting: &Setting,
        placement: HostPlacement,
        tables: &Tables,
    ) -> anyhow::Result<HostTables> {
        let batches = [tables.build.batches.as_slice(), tables.probe.batches.as_slice()];
        Ok(HostTables::simulate(9, setting.gpu_memory, placement, batches)?)
    }

    /// Returns the lines of the record in a folder, as maps from column name to value.
    pub(super) fn recorded(folder: &std::path::Path) -> Vec<HashMap<String, String>> {
        let files = std::fs::read_dir(folder).expect("a folder");
        let mut paths = files.map(|file| file.expect("a file").path());
        let path = paths.find(|path| path.extension().is_some_and(|e| e == "csv"));
        let mut reader = csv::Reader::from_path(path.expect("a record")).expect("a record");
        reader.deserialize().map(|line| line.expect("a line")).collect()
    }

    #[test]
    fn every_workload_answers_as_known_in_advance() {
        let folder = tempfile::tempdir().expect("a folder");
        let flags = ["--scale-down", "1048576", "--gpu-memory", "1MiB"];
        let arguments = arguments(folder.path(), &flags);
        let (text, failed) = suite(&arguments, &Card::simulated(), &simulated).expect("figures");
        assert_eq!(failed, 0);
        assert!(text.contains(" times as fast as 2^30 x 2^30, cpu radix"), "{text}");
        let lines = recorded(folder.path());
        for named in &SUITE {
            let line = lines.iter().find(|line| line["workload"] == named.name);
            let line = line.unwrap_or_else(|| panic!("no {}", named.name));
            let crossed: u64 = line["bytes_to_gpu"].parse().expect("bytes");
            assert_eq!(crossed > 0, named.place != Place::Cpu, "{}", named.name);
            assert_eq!(line["output_rows"], line["probe_rows"], "{}", named.name);
        }
    }

    #[test]
    fn a_join_that_fails_is_named_and_the_others_go_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let flags = ["--scale-down", "1048576", "--workloads", "2^28 x 2^28"];
        let arguments = arguments(folder.path(), &flags);
        let fails = |_: &Setting, _: HostPlacement, _: &Tables| bail!("no memory today");
        let (_, failed) = suite(&arguments, &Card::simulated(), &fails).expect("a record");
        assert_eq!(failed, 1);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }
}

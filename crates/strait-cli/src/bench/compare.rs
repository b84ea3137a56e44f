//! `strait bench compare`: compares other engines with Strait, on the same tables.

use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use strait_bench::workload::{Answer, Tables};

use super::aligned::aligned;
use super::engine::{Drivers, Outcome, Work, measure_strait};
use super::environment;
use super::record::Record;
use super::suite::{Named, SUITE};
use super::temporary::Temporary;
use crate::arguments::{CompareArguments, ComparedMode, Engine};
use crate::failure::say;
use crate::join::cores;
use crate::output::print;

/// Rows per batch of the tables.
const BATCH_ROWS: usize = 1 << 20;

/// Runs the command.
pub(super) fn run(arguments: &CompareArguments) -> anyhow::Result<()> {
    let engines = all_or(&arguments.engines);
    let modes = all_or(&arguments.modes);
    let chosen = |w: &&Named| {
        arguments.workloads.is_empty() || arguments.workloads.iter().any(|name| name == w.name)
    };
    let python = environment::python(&arguments.python)?;
    let temporary = Temporary::new()?;
    let drivers = Drivers::write(python, temporary.path(), &engines)?;
    let mut record = Record::new(&COLUMNS)?;
    let mut contests = Vec::new();
    for workload in SUITE.iter().filter(chosen) {
        say(format_args!("{}: {}", workload.name, workload.about));
        let kept = arguments.keep.as_ref().map(|keep| keep.join(workload.name));
        let folder = kept.clone().unwrap_or_else(|| temporary.path().join(workload.name));
        let prepared = prepare(workload, arguments.scale_down, &folder)?;
        for &mode in &modes {
            let work = Work {
                tables: &folder,
                mode,
                repeat: arguments.repeat,
                threads: arguments.threads,
            };
            let contest = Contest::hold(workload, &prepared, &work, &drivers, &engines)?;
            contest.record(&mut record, arguments)?;
            contests.push(contest);
        }
        if kept.is_none() {
            std::fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
    }
    let path = record.write(&arguments.out, "compare")?;
    print(&table(&contests, &engines))?;
    say(format_args!("record: {}", path.display()));
    Ok(())
}

fn all_or<T: ValueEnum + Copy>(chosen: &[T]) -> Vec<T> {
    if chosen.is_empty() { T::value_variants().to_vec() } else { chosen.to_vec() }
}

/// The sizes of a workload whose tables are in a folder.
struct Prepared {
    build_rows: u64,
    probe_rows: u64,
    expected: Answer,
}

fn prepare(workload: &Named, divisor: u64, folder: &Path) -> anyhow::Result<Prepared> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make folder {}", folder.display()))?;
    let tables = Tables::generate(workload.shape(divisor), BATCH_ROWS, cores())?;
    tables.write(folder)?;
    Ok(Prepared {
        build_rows: tables.build.rows(),
        probe_rows: tables.probe.rows(),
        expected: tables.expected,
    })
}

/// One workload in one mode.
struct Contest {
    workload: &'static str,
    mode: ComparedMode,
    build_rows: u64,
    probe_rows: u64,
    output_rows: u64,
    /// All variants of all engines.
    peers: Vec<Outcome>,
    strait: Outcome,
}

impl Contest {
    fn hold(
        workload: &'static Named,
        prepared: &Prepared,
        work: &Work,
        drivers: &Drivers,
        engines: &[Engine],
    ) -> anyhow::Result<Contest> {
        let said = |outcome: &Outcome| {
            let rows = prepared.build_rows + prepared.probe_rows;
            let rate = rows as f64 / outcome.seconds.median / 1e6;
            let who = format!("{} ({})", outcome.engine, outcome.variant);
            say(format_args!("  {:<11} {who:<24} {rate:>8.1} M tuples/s", work.mode.name()));
        };
        let failed = |engine: &str| format!("{engine}, {} of {}", work.mode.name(), workload.name);
        let mut peers = Vec::new();
        for &engine in engines {
            for variant in engine.variants(work.mode) {
                let outcome = drivers
                    .measure(engine, variant, work)
                    .with_context(|| failed(engine.name()))?;
                said(&outcome);
                peers.push(outcome);
            }
        }
        let strait = measure_strait(work).with_context(|| failed("strait"))?;
        said(&strait);
        Ok(Contest {
            workload: workload.name,
            mode: work.mode,
            build_rows: prepared.build_rows,
            probe_rows: prepared.probe_rows,
            output_rows: prepared.expected.rows,
            peers,
            strait,
        })
    }

    fn rate(&self, outcome: &Outcome) -> f64 {
        (self.build_rows + self.probe_rows) as f64 / outcome.seconds.median.max(1e-9) / 1e6
    }

    /// Returns the fastest variant of an engine.
    fn best_of(&self, engine: &str) -> Option<&Outcome> {
        let variants = self.peers.iter().filter(|peer| peer.engine == engine);
        variants.min_by(|a, b| a.seconds.median.total_cmp(&b.seconds.median))
    }

    fn best(&self) -> Option<&Outcome> {
        self.peers.iter().min_by(|a, b| a.seconds.median.total_cmp(&b.seconds.median))
    }

    fn record(&self, record: &mut Record, arguments: &CompareArguments) -> anyhow::Result<()> {
        let best = self.best().map(|best| best.seconds.median);
        for outcome in self.peers.iter().chain([&self.strait]) {
            let ratio = best.map_or(String::new(), |best| {
                format!("{:.3}", best / outcome.seconds.median.max(1e-9))
            });
            record.add([
                self.workload.to_string(),
                self.mode.name().to_string(),
                outcome.engine.to_string(),
                outcome.variant.clone(),
                outcome.version.clone(),
                arguments.threads.to_string(),
                arguments.repeat.to_string(),
                self.build_rows.to_string(),
                self.probe_rows.to_string(),
                self.output_rows.to_string(),
                format!("{:.6}", outcome.seconds.median),
                format!("{:.6}", outcome.seconds.min),
                format!("{:.3}", self.rate(outcome)),
                ratio,
                outcome.resident.loaded.to_string(),
                outcome.resident.peak.to_string(),
            ])?;
        }
        Ok(())
    }
}

/// The columns of the record, after the common ones.
const COLUMNS: [&str; 16] = [
    "workload",
    "mode",
    "engine",
    "variant",
    "version",
    "threads",
    "repeat",
    "build_rows",
    "probe_rows",
    "output_rows",
    "median_seconds",
    "min_seconds",
    "million_tuples_per_second",
    "ratio_to_best_peer",
    "loaded_resident",
    "peak_resident",
];

/// Formats all contests, one line each.
fn table(contests: &[Contest], engines: &[Engine]) -> String {
    let mut header = vec!["workload".to_string(), "mode".to_string()];
    header.extend(engines.iter().map(|engine| engine.name().to_string()));
    header
        .extend(["strait", "ratio", "best peer", "leanest peer", "strait's peak"].map(Into::into));
    let mut rows = vec![header];
    for contest in contests {
        let mut row = vec![contest.workload.to_string(), contest.mode.name().to_string()];
        row.extend(engines.iter().map(|engine| {
            let best = contest.best_of(engine.name());
            best.map_or(String::new(), |best| format!("{:.1}", contest.rate(best)))
        }));
        let strait = contest.rate(&contest.strait);
        let best = contest.best();
        let ratio = best.map_or(f64::NAN, |best| strait / contest.rate(best));
        let leanest = contest.peers.iter().map(|peer| peer.resident.peak).min().unwrap_or(0);
        row.extend([
            format!("{strait:.1}"),
            format!("{ratio:.2}"),
            best.map_or(String::new(), |best| best.engine.to_string()),
            strait::bytes(leanest),
            strait::bytes(contest.strait.resident.peak),
        ]);
        rows.push(row);
    }
    format!(
        "M tuples/s: rows of both tables by the median time. Peaks: resident memory of the process.\n\n{}",
        aligned(&rows, 2)
    )
}

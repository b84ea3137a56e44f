//! `strait bench spill`: the same join without a memory limit, and under smaller and smaller limits.
//!
//! ```text
//!  generate ─► build.parquet, probe.parquet ─► per limit and round: a process per engine ─► table, record, plot
//!                                                      time, peak, written bytes; equal rows?
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use serde_json::json;
use strait_bench::measure::median;
use strait_bench::plot::{Axis, Plot, Series};

use super::aligned::aligned;
use super::engine::Drivers;
use super::environment;
use super::process::{self, Finished};
use super::record::{Record, write_whole};
use super::temporary::Temporary;
use crate::arguments::{BenchSpillArguments, Engine, SpillEngine};
use crate::digits::counted;
use crate::failure::say;
use crate::join::cores;
use crate::output::print;

/// Runs the command.
pub(super) fn run(arguments: &BenchSpillArguments) -> anyhow::Result<()> {
    let parent = arguments.temp_dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = Temporary::within(&parent)?;
    say(format_args!("files: {}", folder.path().display()));
    let entrants = arguments.entrants();
    let drivers = match entrants.contains(&SpillEngine::DuckDb) {
        true => {
            let python = environment::python(&arguments.python)?;
            Some(Drivers::write(python, folder.path(), &[Engine::DuckDb])?)
        }
        false => None,
    };
    let threads = arguments.threads.unwrap_or_else(cores);
    let study = Study { arguments, folder: folder.path(), drivers, threads };
    study.generate()?;

    let mut record = Record::new(&COLUMNS)?;
    let (mut points, mut failures, mut expected) = (Vec::new(), Vec::new(), None);
    let limits = arguments.limits.iter().map(|&limit| Some(limit));
    for limit in std::iter::once(None).chain(limits) {
        let point = study.point(limit, &entrants, &mut expected, &mut failures)?;
        point.entries.iter().try_for_each(|entry| record.add(study.cells(limit, entry)))?;
        record.save(&arguments.out, "spill")?;
        points.push(point);
    }
    let path = record.write(&arguments.out, "spill")?;
    let image = path.with_extension("svg");
    write_whole(&image, plot(&points).svg().as_bytes())?;
    print(&table(&points))?;
    say(format_args!("record: {}, {}", path.display(), image.display()));
    if !failures.is_empty() {
        bail!("{}:\n{}", counted(failures.len() as u64, "failure"), failures.join("\n"));
    }
    Ok(())
}

/// The settings of the benchmark, its folder, and the drivers of other engines.
struct Study<'a> {
    arguments: &'a BenchSpillArguments,
    folder: &'a Path,
    drivers: Option<Drivers>,
    threads: usize,
}

/// All engines under one limit, or without one.
struct Point {
    limit: Option<u64>,
    entries: Vec<Entry>,
}

/// One engine under one limit: median times, the highest peak, and the bytes of the last run.
#[derive(Debug, Clone)]
struct Entry {
    engine: SpillEngine,
    seconds: f64,
    min_seconds: f64,
    cpu_seconds: f64,
    peak: u64,
    /// The bytes that were written besides the output.
    written: u64,
    output: u64,
}

/// One run.
struct Run {
    /// For DuckDB, without the start of Python and the imports.
    seconds: f64,
    finished: Finished,
    output: u64,
}

impl SpillEngine {
    fn name(self) -> &'static str {
        match self {
            SpillEngine::Strait => "strait",
            SpillEngine::DuckDb => "duckdb",
        }
    }
}

impl Study<'_> {
    fn generate(&self) -> anyhow::Result<()> {
        let rows = self.arguments.rows.to_string();
        let mut command = Command::new(process::this_command()?);
        command.args(["generate", "workload", "--build", &rows, "--probe", &rows]);
        command.args(["--keys", "sparse", "--payload-columns"]);
        command.arg(self.arguments.payload_columns.to_string()).arg("--out").arg(self.folder);
        process::run(&mut command, self.folder).context("cannot generate the tables")?;
        Ok(())
    }

    /// Runs all engines in turns. An engine that fails once does not run again under this limit.
    fn point(
        &self,
        limit: Option<u64>,
        entrants: &[SpillEngine],
        expected: &mut Option<Vec<u8>>,
        failures: &mut Vec<String>,
    ) -> anyhow::Result<Point> {
        let mut runs: Vec<(SpillEngine, Option<Vec<Run>>)> =
            entrants.iter().map(|&engine| (engine, Some(Vec::new()))).collect();
        for round in 0..self.arguments.repeat {
            for (engine, done) in &mut runs {
                let Some(past) = done else { continue };
                let outcome = self.once(*engine, limit).and_then(|run| {
                    if round == 0 {
                        self.check(expected)?;
                    }
                    Ok(run)
                });
                match outcome {
                    Ok(run) => past.push(run),
                    Err(why) => {
                        failures.push(format!("{}, {}: {why:#}", engine.name(), named(limit)));
                        *done = None;
                    }
                }
            }
        }
        let entries = runs.iter().filter_map(|(engine, runs)| Entry::of(*engine, runs.as_ref()?));
        let point = Point { limit, entries: entries.collect() };
        for entry in &point.entries {
            say(format_args!(
                "{:<10} {:<7} {:>8.3} s  CPU {:>8.3} s  peak {:>10}  temporary {:>10}",
                named(limit),
                entry.engine.name(),
                entry.seconds,
                entry.cpu_seconds,
                strait::bytes(entry.peak),
                strait::bytes(entry.written),
            ));
        }
        Ok(point)
    }

    fn output(&self) -> PathBuf {
        self.folder.join("joined.parquet")
    }

    /// Runs an engine once. Its output stays until the next run.
    fn once(&self, engine: SpillEngine, limit: Option<u64>) -> anyhow::Result<Run> {
        let out = self.output();
        match std::fs::remove_file(&out) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", out.display()));
            }
            _ => {}
        }
        let (seconds, finished) = match engine {
            SpillEngine::Strait => {
                let finished = process::run(&mut self.strait(limit)?, self.folder)?;
                (finished.seconds, finished)
            }
            SpillEngine::DuckDb => {
                let finished = process::run(&mut self.duckdb(limit)?, self.folder)?;
                let said: serde_json::Value = serde_json::from_slice(&finished.stdout)
                    .context("it printed something else than figures")?;
                let seconds = said["seconds"].as_f64().context("it printed no time")?;
                (seconds, finished)
            }
        };
        let output = std::fs::metadata(&out).context("it wrote no file")?.len();
        Ok(Run { seconds, finished, output })
    }

    /// Returns the command as a user would run it.
    fn strait(&self, limit: Option<u64>) -> anyhow::Result<Command> {
        let mut command = Command::new(process::this_command()?);
        let tables = ["build.parquet", "probe.parquet"].map(|name| self.folder.join(name));
        command.arg("join").args(tables).args(["--on", "key", "--progress", "never"]);
        command.args(["--device", "cpu", "--threads", &self.threads.to_string()]);
        command.arg("-o").arg(self.output());
        if let Some(limit) = limit {
            command.args(["--memory", &limit.to_string()]).arg("--temp-dir").arg(self.folder);
        }
        Ok(command)
    }

    fn duckdb(&self, limit: Option<u64>) -> anyhow::Result<Command> {
        let drivers = self.drivers.as_ref().context("there is no Python for other engines")?;
        let table = |name: &str| {
            let path = self.folder.join(format!("{name}.parquet"));
            json!({ "name": name, "key": "key", "path": path, "format": "parquet" })
        };
        let description = json!({
            "tables": [table("build"), table("probe")],
            "output": { "format": "parquet", "compression": "snappy" },
            "sql": "SELECT * FROM build JOIN probe USING (key)",
            "memory": limit,
            "temp": self.folder,
        });
        let file = self.folder.join("job.json");
        std::fs::write(&file, description.to_string())
            .with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = drivers.command(Engine::DuckDb, "unordered");
        command.arg("job").arg(file).arg(self.output()).arg(self.threads.to_string());
        Ok(command)
    }

    /// Compares the rows of the output with those of the first run.
    fn check(&self, expected: &mut Option<Vec<u8>>) -> anyhow::Result<()> {
        let mut command = Command::new(process::this_command()?);
        command.args(["bench", "digest"]).arg(self.output());
        let digest = process::run(&mut command, self.folder)?.stdout;
        if *expected.get_or_insert_with(|| digest.clone()) != digest {
            bail!("its rows differ from those of the first run");
        }
        Ok(())
    }

    /// Returns one line of the record.
    fn cells(&self, limit: Option<u64>, entry: &Entry) -> [String; 13] {
        [
            self.arguments.rows.to_string(),
            self.arguments.payload_columns.to_string(),
            limit.map_or(String::new(), |limit| limit.to_string()),
            entry.engine.name().to_string(),
            self.threads.to_string(),
            self.arguments.repeat.to_string(),
            format!("{:.6}", entry.seconds),
            format!("{:.6}", entry.min_seconds),
            format!("{:.6}", entry.cpu_seconds),
            entry.peak.to_string(),
            entry.written.to_string(),
            entry.output.to_string(),
            // The rows of the first round were compared. If they had differed, there would be no entry.
            "yes".to_string(),
        ]
    }
}

/// The columns of the record, after the common ones.
const COLUMNS: [&str; 13] = [
    "rows_per_table",
    "payload_columns",
    "limit",
    "engine",
    "threads",
    "repeat",
    "median_seconds",
    "min_seconds",
    "cpu_seconds",
    "peak_resident",
    "temporary_bytes",
    "output_bytes",
    "checked",
];

impl Entry {
    fn of(engine: SpillEngine, runs: &[Run]) -> Option<Entry> {
        let middle = |figure: &dyn Fn(&Run) -> f64| {
            let mut figures: Vec<f64> = runs.iter().map(figure).collect();
            figures.sort_by(f64::total_cmp);
            median(&figures)
        };
        let last = runs.last()?;
        Some(Entry {
            engine,
            seconds: middle(&|run| run.seconds),
            min_seconds: runs.iter().map(|run| run.seconds).fold(f64::INFINITY, f64::min),
            cpu_seconds: middle(&|run| run.finished.cpu_seconds),
            peak: runs.iter().map(|run| run.finished.peak).max().unwrap_or(0),
            written: last.finished.written.saturating_sub(last.output),
            output: last.output,
        })
    }
}

fn named(limit: Option<u64>) -> String {
    limit.map_or("no limit".to_string(), strait::bytes)
}

/// Returns the figures as a table.
fn table(points: &[Point]) -> String {
    let header = [
        "limit",
        "strait",
        "duckdb",
        "ratio",
        "to no limit",
        "peak",
        "to the limit",
        "duckdb peak",
        "temporary",
    ];
    let mut rows = vec![header.map(String::from).to_vec()];
    let of = |point: &Point, engine| point.entries.iter().find(|e| e.engine == engine).cloned();
    let unlimited = points.first().and_then(|point| of(point, SpillEngine::Strait));
    let or_dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_string());
    for point in points {
        let strait = of(point, SpillEngine::Strait);
        let duckdb = of(point, SpillEngine::DuckDb);
        let both = strait.as_ref().zip(duckdb.as_ref());
        let ends = strait.as_ref().zip(unlimited.as_ref());
        let seconds = |entry: Option<&Entry>| entry.map(|e| format!("{:.2}", e.seconds));
        let beside =
            |entry: &Entry| point.limit.map(|l| format!("{:.2}", entry.peak as f64 / l as f64));
        rows.push(vec![
            named(point.limit),
            or_dash(seconds(strait.as_ref())),
            or_dash(seconds(duckdb.as_ref())),
            or_dash(both.map(|(a, b)| format!("{:.2}", b.seconds / a.seconds.max(1e-9)))),
            or_dash(ends.map(|(a, all)| format!("{:.2}", a.seconds / all.seconds.max(1e-9)))),
            or_dash(strait.as_ref().map(|entry| strait::bytes(entry.peak))),
            or_dash(strait.as_ref().and_then(beside)),
            or_dash(duckdb.as_ref().map(|entry| strait::bytes(entry.peak))),
            or_dash(strait.as_ref().map(|entry| strait::bytes(entry.written))),
        ]);
    }
    format!(
        "Median seconds. Ratio: DuckDB's time divided by Strait's. To no limit: Strait's time divided by its time without \
         a limit.\nPeak: Strait's peak memory. To the limit: this peak divided by the limit. Temporary: the bytes that \
         Strait wrote besides its output.\n{}",
        aligned(&rows, 1)
    )
}

/// Returns a plot of time over limit. The time without a limit is a horizontal line.
fn plot(points: &[Point]) -> Plot {
    let mut limits: Vec<f64> = points.iter().filter_map(|p| p.limit).map(mebibytes).collect();
    limits.sort_by(f64::total_cmp);
    let series = [SpillEngine::Strait, SpillEngine::DuckDb].into_iter().flat_map(|engine| {
        let seconds = |point: &Point| {
            point.entries.iter().find(|entry| entry.engine == engine).map(|entry| entry.seconds)
        };
        let limited = points.iter().filter_map(|p| Some((mebibytes(p.limit?), seconds(p)?)));
        let mut limited: Vec<_> = limited.collect();
        limited.sort_by(|a, b| a.0.total_cmp(&b.0));
        let ends = [limits.first(), limits.last()].into_iter().flatten();
        let whole = points.first().filter(|p| p.limit.is_none()).and_then(seconds);
        let whole = ends.filter_map(|&limit| Some((limit, whole?))).collect();
        [
            Series { name: engine.name().to_string(), points: limited },
            Series { name: format!("{} without a limit", engine.name()), points: whole },
        ]
    });
    Plot {
        title: "A join under a memory limit, Parquet to Parquet",
        x: Axis::Log("memory limit in MiB"),
        y: "seconds",
        series: series.filter(|series| !series.points.is_empty()).collect(),
    }
}

fn mebibytes(bytes: u64) -> f64 {
    (bytes as f64 / (1 << 20) as f64).round()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(engine: SpillEngine, seconds: f64, peak: u64) -> Entry {
        let (min_seconds, cpu_seconds) = (seconds, seconds);
        Entry { engine, seconds, min_seconds, cpu_seconds, peak, written: 1 << 20, output: 1 }
    }

    fn points() -> Vec<Point> {
        let of = |limit, strait, duckdb: Option<f64>| {
            let mut entries = vec![entry(SpillEngine::Strait, strait, 300 << 20)];
            entries.extend(duckdb.map(|s| entry(SpillEngine::DuckDb, s, 500 << 20)));
            Point { limit, entries }
        };
        vec![
            of(None, 2.0, Some(4.0)),
            of(Some(1 << 30), 3.0, Some(4.5)),
            of(Some(300 << 20), 4.0, None),
        ]
    }

    #[test]
    fn the_table_has_all_ratios() {
        let text = table(&points());
        let line = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("no limit"), "no limit 2.00 4.00 2.00 1.00 300.0 MiB - 500.0 MiB 1.0 MiB");
        assert_eq!(line("1.0 GiB"), "1.0 GiB 3.00 4.50 1.50 1.50 300.0 MiB 0.29 500.0 MiB 1.0 MiB");
        assert_eq!(line("300.0 MiB"), "300.0 MiB 4.00 - - 2.00 300.0 MiB 1.00 - 1.0 MiB");
    }

    #[test]
    fn the_plot_shows_time_over_limit() {
        let plot = plot(&points());
        let names: Vec<_> = plot.series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["strait", "strait without a limit", "duckdb", "duckdb without a limit"]);
        assert_eq!(plot.series[0].points, [(300.0, 4.0), (1024.0, 3.0)]);
        assert_eq!(plot.series[1].points, [(300.0, 2.0), (1024.0, 2.0)]);
        assert_eq!(plot.series[2].points, [(1024.0, 4.5)]);
        assert!(plot.svg().contains("memory limit in MiB"));
    }
}

//! `strait bench scale`: measures how cost grows, and writes records and plots.

use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use strait::{Algorithm, Machine};
use strait_bench::ResultKind;
use strait_bench::measure::{Task, measure};
use strait_bench::plot::{Axis, Plot, Series};
use strait_bench::workload::{KeyType, Keys, Shape, Skew, Tables};

use super::record::{Record, write_whole};
use crate::arguments::{Choice, ScaleArguments, Study};
use crate::failure::say;
use crate::join::cores;
use crate::output::print;

/// Rows per input batch.
const BATCH_ROWS: usize = 1 << 20;

/// If throughput falls below this share of the previous point, there is a cliff.
const CLIFF: f64 = 0.75;

/// Runs the command.
pub(super) fn run(arguments: &ScaleArguments) -> anyhow::Result<()> {
    let folder = &arguments.out;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make folder {}", folder.display()))?;
    let chosen = &arguments.studies;
    for &study in Study::value_variants() {
        if chosen.is_empty() || chosen.contains(&study) {
            conduct(study, arguments, folder)?;
        }
    }
    Ok(())
}

/// One point of a study: its place on the axis, and the shape of its tables.
struct Point {
    x: f64,
    shape: Shape,
}

/// What is measured at every point.
#[derive(Clone)]
struct Line {
    name: String,
    result: ResultKind,
    algorithm: Choice,
    threads: usize,
}

fn conduct(study: Study, arguments: &ScaleArguments, folder: &Path) -> anyhow::Result<()> {
    let lines = study.lines();
    let mut record = Record::new(&COLUMNS)?;
    let mut series: Vec<Series> =
        lines.iter().map(|l| Series { name: l.name.clone(), points: Vec::new() }).collect();
    for point in study.points(arguments.largest) {
        if !fits(&point.shape) {
            let rows = point.shape.build.max(point.shape.probe);
            say(format_args!("{}: {rows} rows and more do not fit the memory", study.name()));
            break;
        }
        let tables = Tables::generate(point.shape.clone(), BATCH_ROWS, cores())?;
        for (line, series) in lines.iter().zip(&mut series) {
            let (result, algorithm, threads) = (line.result, line.algorithm, line.threads);
            let task = Task::on_cpu(result, algorithm.0, threads, arguments.repeat);
            let measured = measure(&tables, &task)?;
            let rows = point.shape.build + point.shape.probe;
            let rate = rows as f64 / measured.median().max(1e-9) / 1e6;
            say(format_args!("{} {}: {} {rate:.1} M tuples/s", study.name(), point.x, line.name));
            series.points.push((point.x, rate));
            record.add([
                study.name().to_string(),
                point.x.to_string(),
                result.name().to_string(),
                algorithm.to_string(),
                measured.ran.clone(),
                threads.to_string(),
                arguments.repeat.to_string(),
                tables.build.rows().to_string(),
                tables.probe.rows().to_string(),
                tables.expected.rows.to_string(),
                format!("{:.6}", measured.median()),
                format!("{:.6}", measured.min()),
                format!("{rate:.3}"),
                measured.peak_memory.to_string(),
            ])?;
        }
    }
    let cliffs = cliffs(&series);
    let path = record.write(folder, study.name())?;
    let image = folder.join(format!("{}.svg", study.name()));
    let plot = Plot { title: study.title(), x: study.axis(), y: "M tuples/s", series };
    write_whole(&image, plot.svg().as_bytes())?;
    print(&format!("{}\n{}\n{cliffs}", path.display(), image.display()))
}

/// Lists where the throughput of the planner's choice falls too fast.
fn cliffs(series: &[Series]) -> String {
    let own = series.iter().filter(|series| series.name.contains(Choice::AUTO.name()));
    let steps = own.flat_map(|series| series.points.windows(2).map(move |pair| (series, pair)));
    let steep = steps.filter(|(_, pair)| pair[1].1 < pair[0].1 * CLIFF);
    steep
        .map(|(series, pair)| {
            format!(
                "cliff: {} falls from {:.1} at {} to {:.1} at {}\n",
                series.name, pair[0].1, pair[0].0, pair[1].1, pair[1].0
            )
        })
        .collect()
}

/// Whether memory suffices for the tables, the join's own memory, and its output.
fn fits(shape: &Shape) -> bool {
    let row = 8 + 8 * u64::from(shape.payload_columns);
    let inputs = (shape.build + shape.probe) * row;
    // Twice the inputs while they are made; three times the inputs, and the output, while they are joined.
    let needed = inputs * 3 + shape.probe * row * 2;
    Machine::free_memory().is_none_or(|memory| needed < memory)
}

/// The columns of a record, after the common ones.
const COLUMNS: [&str; 14] = [
    "study",
    "x",
    "mode",
    "algorithm",
    "ran",
    "threads",
    "repeat",
    "build_rows",
    "probe_rows",
    "output_rows",
    "median_seconds",
    "min_seconds",
    "million_tuples_per_second",
    "peak_memory",
];

impl Study {
    fn name(self) -> &'static str {
        match self {
            Study::Size => "size",
            Study::Ratio => "ratio",
            Study::Skew => "skew",
            Study::Selectivity => "selectivity",
            Study::Payload => "payload",
            Study::Threads => "threads",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Study::Size => "Both tables grow, aggregated",
            Study::Ratio => "The probe table grows, aggregated",
            Study::Skew => "Some keys are met more often, aggregated",
            Study::Selectivity => "More probe rows match, aggregated",
            Study::Payload => "Rows grow wider, materialised",
            Study::Threads => "One thread and two",
        }
    }

    fn axis(self) -> Axis {
        match self {
            Study::Size | Study::Threads => Axis::Powers("rows of each table"),
            Study::Ratio => Axis::Log("probe rows per build row"),
            Study::Skew => Axis::Linear("Zipf exponent of the probe keys"),
            Study::Selectivity => Axis::Linear("probe rows that match, %"),
            Study::Payload => Axis::Log("payload columns of each table"),
        }
    }

    /// Returns the points, with tables of at most `largest` rows.
    fn points(self, largest: u64) -> Vec<Point> {
        let base = |build: u64, probe: u64| Shape {
            build: build.min(largest),
            probe: probe.min(largest),
            key_type: KeyType::Int64,
            keys: Keys::Sparse,
            skew: Skew::None,
            selectivity: 1.0,
            duplicates: 1,
            payload_bytes: 8,
            payload_columns: 1,
            seed: 42,
        };
        let sizes = (16..=27).map(|power| 1u64 << power).filter(|&rows| rows <= largest);
        match self {
            Study::Size | Study::Threads => {
                sizes.map(|rows| Point { x: rows as f64, shape: base(rows, rows) }).collect()
            }
            Study::Ratio => [1, 2, 4, 8, 16, 32, 64]
                .into_iter()
                .map(|n| {
                    let build = (1 << 20).min(largest / 64).max(1);
                    Point { x: n as f64, shape: base(build, build * n) }
                })
                .collect(),
            Study::Skew => (0..=6)
                .map(|quarter| {
                    let theta = f64::from(quarter) / 4.0;
                    let shape = Shape { skew: Skew::Zipf(theta), ..base(1 << 22, 1 << 24) };
                    Point { x: theta, shape }
                })
                .collect(),
            Study::Selectivity => [0, 1, 10, 25, 50, 75, 100]
                .into_iter()
                .map(|percent| {
                    let selectivity = f64::from(percent) / 100.0;
                    let shape = Shape { selectivity, ..base(1 << 22, 1 << 24) };
                    Point { x: f64::from(percent), shape }
                })
                .collect(),
            Study::Payload => [1u16, 2, 4, 8, 16]
                .into_iter()
                .map(|columns| {
                    let shape = Shape { payload_columns: columns, ..base(1 << 22, 1 << 22) };
                    Point { x: f64::from(columns), shape }
                })
                .collect(),
        }
    }

    fn lines(self) -> Vec<Line> {
        let line =
            |name: String, result, algorithm, threads| Line { name, result, algorithm, threads };
        let each = |result| {
            let named = Algorithm::ANYWHERE.map(|algorithm| Choice(Some(algorithm)));
            [Choice::AUTO]
                .into_iter()
                .chain(named)
                .map(|a| line(a.name().to_string(), result, a, 2))
                .collect()
        };
        match self {
            Study::Payload => each(ResultKind::Materialise),
            Study::Threads => [
                (ResultKind::Aggregate, 1),
                (ResultKind::Aggregate, 2),
                (ResultKind::Materialise, 1),
                (ResultKind::Materialise, 2),
            ]
            .into_iter()
            .map(|(result, threads)| {
                let plural = if threads == 1 { "" } else { "s" };
                let name = format!("auto, {}, {threads} thread{plural}", result.name());
                line(name, result, Choice::AUTO, threads)
            })
            .collect(),
            _ => each(ResultKind::Aggregate),
        }
    }
}

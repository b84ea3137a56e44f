//! `strait bench beyond --study size`: both tables grow from a quarter of what fits the GPU's memory to four
//! times that, and every algorithm joins them. Writes a record and a plot. A join whose throughput drops
//! suddenly (a cliff) shows it here.

use strait::{Algorithm, GpuOptions, TablePlace};
use strait_bench::link::Card;
use strait_bench::plot::{Axis, Plot, Series};
use strait_bench::workload::{Answer, Keys, Tables};
use strait_bench::{HostTables, JoinRequest, ResultKind};

use super::outcome::Outcome;
use super::study::Study;
use super::{Open, ROW, Shown, enough_memory, shape};
use crate::arguments::{BeyondArguments, Choice};
use crate::digits::grouped;
use crate::failure::say;
use crate::join::cores;

/// If throughput falls below this share of the previous point, there is a cliff.
const CLIFF: f64 = 0.8;

/// A line whose join took this many seconds is not measured with more rows.
const TOO_LONG: f64 = 6.0;

/// How a line of the plot joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Cpu(Algorithm),
    Gpu(Choice, TablePlace),
}

impl How {
    /// Whether the line ends, without a failure, once the build side does not fit the GPU's memory.
    fn ends(self) -> bool {
        let resident = [Algorithm::NoPartition, Algorithm::StreamedProbe].map(|a| Choice(Some(a)));
        matches!(self, How::Gpu(algorithm, TablePlace::Gpu) if resident.contains(&algorithm))
    }
}

/// A line of the plot.
struct Named {
    name: &'static str,
    how: How,
    /// Whether the line is measured only at powers of two, because it takes long.
    seldom: bool,
}

const fn gpu(name: &'static str, algorithm: Algorithm) -> Named {
    Named { name, how: How::Gpu(Choice(Some(algorithm)), TablePlace::Gpu), seldom: false }
}

const fn table(name: &'static str, place: TablePlace, seldom: bool) -> Named {
    Named { name, how: How::Gpu(Choice(Some(Algorithm::NoPartition)), place), seldom }
}

/// The CPU's line is first: it joins the Arrow tables, which are dropped afterwards.
static LINES: [Named; 9] = [
    Named { name: "cpu radix", how: How::Cpu(Algorithm::Radix), seldom: true },
    Named { name: "auto", how: How::Gpu(Choice::AUTO, TablePlace::Gpu), seldom: false },
    gpu("streamed-probe", Algorithm::StreamedProbe),
    gpu("multi-pass", Algorithm::MultiPass),
    gpu("cpu-partitioned", Algorithm::CpuPartitioned),
    gpu("triton", Algorithm::Triton),
    gpu("no-partition", Algorithm::NoPartition),
    table("no-partition, hybrid table", TablePlace::Hybrid, false),
    // The naive join: one access over the link per row.
    table("no-partition, host table", TablePlace::Host, true),
];

/// A line that is being measured.
struct Drawn {
    named: &'static Named,
    points: Vec<(f64, f64)>,
    /// The line ends after a join that takes more seconds than this.
    too_long: f64,
    /// Whether the line has ended, because GPU memory was too small or a join took too long.
    over: bool,
}

/// Runs the study.
pub(super) fn run(
    arguments: &BeyondArguments,
    card: Card,
    open: &Open<'_>,
) -> anyhow::Result<Shown> {
    draw(arguments, card, open, TOO_LONG)
}

/// Measures all lines, each until a join takes more than `too_long` seconds.
fn draw(
    arguments: &BeyondArguments,
    card: Card,
    open: &Open<'_>,
    too_long: f64,
) -> anyhow::Result<Shown> {
    let mut study = Study::begin("beyond-size", arguments, card, open, &COLUMNS)?;
    let wanted = LINES.iter().filter(|named| arguments.wants_line(named.name));
    let mut lines: Vec<Drawn> =
        wanted.map(|named| Drawn { named, points: Vec::new(), too_long, over: false }).collect();
    for rows in sizes(study.setting.gpu_memory) {
        if let Err(error) = enough_memory(&shape([rows, rows], Keys::Sparse)) {
            say(format_args!("{} rows and more are left out: {error:#}", grouped(rows)));
            break;
        }
        if let Err(error) = size(&mut study, rows, &mut lines) {
            say(format_args!("{} rows and more are left out: {error:#}", grouped(rows)));
            study.failed += 1;
            break;
        }
    }
    let series: Vec<Series> = lines
        .into_iter()
        .map(|line| Series { name: line.named.name.to_string(), points: line.points })
        .collect();
    let cliffs = cliffs(&series);
    let title = "Both tables grow beyond the GPU's memory, aggregated";
    let plot = Plot { title, x: Axis::Powers("rows of each table"), y: "G tuples/s", series };
    let (files, failed) = study.end(&plot)?;
    Ok((files + &cliffs, failed))
}

/// Returns the row counts of each table: from a quarter of the largest build side that fits to four times
/// that, in steps of √2. A build side fits if there is room for its tuples twice, because partitioning needs
/// a copy.
fn sizes(gpu_memory: u64) -> impl Iterator<Item = u64> {
    let fits = (gpu_memory / (2 * ROW)).max(16);
    let quarter = (1u64 << fits.ilog2()) / 4;
    (0..=8).map(move |step| (quarter as f64 * f64::powf(2.0, f64::from(step) / 2.0)).round() as u64)
}

/// Joins tables of this many rows in every line.
fn size(study: &mut Study<'_>, rows: u64, lines: &mut [Drawn]) -> anyhow::Result<()> {
    let mut tables = Tables::generate_parts(shape([rows, rows], Keys::Sparse), cores())?;
    let mut loaded = None;
    for line in lines.iter_mut() {
        if line.over || (line.named.seldom && !rows.is_power_of_two()) {
            continue;
        }
        let tried = match line.named.how {
            How::Cpu(algorithm) => study.setting.on_cpu(&tables, algorithm),
            How::Gpu(algorithm, table) => {
                let loaded = match &loaded {
                    Some(loaded) => loaded,
                    None => loaded.insert(study.load(&mut tables)?),
                };
                attempt(study, loaded, &tables.expected, algorithm, table)
            }
        };
        hear(study, line, rows, tried)?;
    }
    drop(loaded);
    strait::release_memory();
    Ok(())
}

fn attempt(
    study: &Study<'_>,
    loaded: &HostTables,
    expected: &Answer,
    algorithm: Choice,
    table: TablePlace,
) -> anyhow::Result<Outcome> {
    let gpu_options = GpuOptions::new().table(table);
    let result = ResultKind::Aggregate;
    let how = JoinRequest { algorithm: algorithm.0, gpu_options, result, hash_seed: None };
    let runs = loaded.runs(expected, &how, study.setting.often)?;
    Outcome::on_gpu(&runs, result)
}

/// Records a point, or why there is none.
fn hear(
    study: &mut Study<'_>,
    line: &mut Drawn,
    rows: u64,
    tried: anyhow::Result<Outcome>,
) -> anyhow::Result<()> {
    let name = line.named.name;
    match tried {
        Ok(outcome) => {
            let rate = outcome.rate([rows, rows]) / 1e9;
            let ran = &outcome.ran;
            say(format_args!("{} rows: {name}, {ran}: {rate:.3} G tuples/s", grouped(rows)));
            line.points.push((rows as f64, rate));
            line.over = outcome.seconds > line.too_long;
            if line.over {
                let limit = line.too_long;
                say(format_args!(
                    "{name} took more than {limit} s: it is not measured with more rows"
                ));
            }
            study.add(cells(study, line.named, rows, &outcome))
        }
        Err(error) => {
            let small = matches!(
                error.downcast_ref::<strait::Error>(),
                Some(strait::Error::DeviceMemory { .. })
            );
            say(format_args!("{} rows: {name}: {error:#}", grouped(rows)));
            line.over = small;
            study.failed += u64::from(!(small && line.named.how.ends()));
            Ok(())
        }
    }
}

fn cells(
    study: &Study<'_>,
    named: &Named,
    rows: u64,
    outcome: &Outcome,
) -> [String; COLUMNS.len()] {
    let Study { card, setting, .. } = study;
    let gpu = if matches!(named.how, How::Cpu(_)) { "" } else { &card.name };
    [
        gpu.to_string(),
        card.link.clone(),
        setting.gpu_memory.to_string(),
        named.name.to_string(),
        outcome.ran.clone(),
        setting.threads.to_string(),
        setting.often.repeat.to_string(),
        rows.to_string(),
        format!("{:.6}", outcome.seconds),
        format!("{:.0}", outcome.rate([rows, rows])),
        outcome.crossed[0].to_string(),
        outcome.crossed[1].to_string(),
        card.share(outcome.busier()),
        outcome.peak_memory.to_string(),
        outcome.stages(),
    ]
}

/// The columns of the record, after the common ones.
const COLUMNS: [&str; 15] = [
    "gpu",
    "link",
    "gpu_memory",
    "line",
    "ran",
    "threads",
    "repeat",
    "rows_of_each",
    "median_seconds",
    "tuples_per_second",
    "bytes_to_gpu",
    "bytes_from_gpu",
    "share_of_link",
    "memory_peak",
    "stages",
];

/// Lists where a line falls too fast.
fn cliffs(series: &[Series]) -> String {
    let steps = series.iter().flat_map(|line| line.points.windows(2).map(move |pair| (line, pair)));
    let steep = steps.filter(|(_, pair)| pair[1].1 < pair[0].1 * CLIFF);
    steep
        .map(|(line, pair)| {
            format!(
                "cliff: {} falls from {:.3} at {} rows to {:.3} at {}\n",
                line.name,
                pair[0].1,
                grouped(pair[0].0 as u64),
                pair[1].1,
                grouped(pair[1].0 as u64)
            )
        })
        .collect()
}

/// The names that `--lines` accepts.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    LINES.iter().map(|named| named.name)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{arguments, recorded, simulated};
    use super::*;

    #[test]
    fn every_line_is_drawn_and_recorded() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut flags = vec!["--study", "size", "--gpu-memory", "512KiB"];
        let wanted = || LINES.iter();
        wanted().for_each(|named| flags.extend(["--lines", named.name]));
        let arguments = arguments(folder.path(), &flags);
        // No line ends early, however slow the machine is.
        let drawn = draw(&arguments, Card::simulated(), &simulated, f64::INFINITY);
        let (_, failed) = drawn.expect("a study");
        assert_eq!(failed, 0);
        let lines = recorded(folder.path());
        for named in wanted() {
            let points = lines.iter().filter(|line| line["line"] == named.name).count();
            let all = if named.seldom { 5 } else { 9 };
            let well = if named.how.ends() { points <= all } else { points == all };
            assert!(well, "{}: {points} points", named.name);
        }
        let svg = std::fs::read_to_string(folder.path().join("beyond-size.svg")).expect("a plot");
        assert!(svg.contains("triton") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn sizes_go_from_a_quarter_to_four_times_what_fits() {
        let sizes: Vec<u64> = sizes(8 << 30).collect();
        assert_eq!(sizes.len(), 9);
        assert_eq!((sizes[0], sizes[4], sizes[8]), (1 << 26, 1 << 28, 1 << 30));
        for pair in sizes.windows(2) {
            let ratio = pair[1] as f64 / pair[0] as f64;
            assert!((ratio - std::f64::consts::SQRT_2).abs() < 1e-6, "{ratio}");
        }
    }

    #[test]
    fn a_fall_of_more_than_a_fifth_is_a_cliff() {
        let line = |points: &[f64]| Series {
            name: "triton".to_string(),
            points: points.iter().enumerate().map(|(x, &y)| (x as f64, y)).collect(),
        };
        assert_eq!(cliffs(&[line(&[2.0, 1.7, 1.4])]), "");
        assert!(cliffs(&[line(&[2.0, 1.5])]).contains("triton falls from 2.000"));
    }
}

//! `strait bench beyond --study fanout`: measures the first pass of the Triton join alone, from host memory
//! to host memory, for each number of partitions and each partitioner (000, figure 18a). Produces a table, a
//! record and a plot.
//!
//! ```text
//!  columns, pinned ─► GPU ─┬─► counted before: each partition is contiguous, anywhere in the target
//!                          └─► chunked: one run per chunk and partition, within a part of the target
//! ```

use anyhow::Context;
use strait::Partitioner;
use strait_bench::link::Card;
use strait_bench::measure::median;
use strait_bench::plot::{Axis, Plot, Series};
use strait_bench::runs::Often;
use strait_bench::workload::{Keys, Tables};
use strait_bench::{FirstPass, HostTables, MeasuredPass};

use super::super::aligned::aligned;
use super::study::Study;
use super::{Open, Shown, enough_memory, shape};
use crate::arguments::BeyondArguments;
use crate::digits::{counted, grouped};
use crate::failure::{self, say};
use crate::join::cores;

/// Rows of the table: 8 GiB.
const ROWS: u64 = 1 << 29;
/// The average number of rows with the same key. There are enough keys for partitions of even size.
const ROWS_PER_KEY: u64 = 16;
/// The largest number of partitions that kernels write to, as a power of two.
const MAX_BITS: u32 = 11;
/// The same if the copy engine writes. One pass in GPU memory makes at most this many partitions; more need
/// two passes.
const MAX_BITS_PER_PASS: u32 = 8;

/// A line of the plot.
struct Named {
    name: &'static str,
    partitioner: Partitioner,
    /// Whether the CPU counts before the clock starts, so that each partition is contiguous.
    counted: bool,
}

const fn line(name: &'static str, partitioner: Partitioner, counted: bool) -> Named {
    Named { name, partitioner, counted }
}

static LINES: [Named; 7] = [
    line("hierarchical", Partitioner::Hierarchical, true),
    line("shared", Partitioner::Shared, true),
    line("linear", Partitioner::Linear, true),
    line("standard", Partitioner::Standard, true),
    line("hierarchical, chunked", Partitioner::Hierarchical, false),
    line("shared, chunked", Partitioner::Shared, false),
    line("dma", Partitioner::Dma, false),
];

impl Named {
    /// The numbers of partitions that are measured, as powers of two.
    fn bits(&self) -> Vec<u32> {
        match self.partitioner {
            // Every tuple is one write over the link, which takes long.
            Partitioner::Standard => vec![1, 6, MAX_BITS],
            Partitioner::Dma => (1..=MAX_BITS_PER_PASS).collect(),
            _ => (1..=MAX_BITS).collect(),
        }
    }
}

/// A point of a line.
struct Point {
    named: &'static Named,
    bits: u32,
    /// The median of the timed runs.
    seconds: f64,
    /// The first run, in which host memory must still be pinned.
    cold: f64,
    /// The result of the median run.
    measured: MeasuredPass,
}

impl Point {
    fn partitions(&self) -> u64 {
        1 << self.bits
    }

    /// Bytes of tuples per second. This many bytes are read, and as many are written.
    fn rate(&self) -> f64 {
        self.measured.bytes as f64 / self.seconds.max(1e-12)
    }

    fn said(&self) -> String {
        format!(
            "{}: {}: {:.1} GB/s each way, {:.3} s",
            counted(self.partitions(), "partition"),
            self.named.name,
            self.rate() / 1e9,
            self.seconds
        )
    }
}

/// Runs the study.
pub(super) fn run(
    arguments: &BeyondArguments,
    card: Card,
    open: &Open<'_>,
) -> anyhow::Result<Shown> {
    let mut study = Study::begin("beyond-fanout", arguments, card, open, &COLUMNS)?;
    let rows = (ROWS / study.setting.scale_down).max(16);
    let shape = shape([(rows / ROWS_PER_KEY).max(16), rows], Keys::Sparse);
    enough_memory(&shape)?;
    let loaded = study.load(&mut Tables::generate_parts(shape, cores())?)?;
    let mut points = Vec::new();
    for named in LINES.iter().filter(|named| arguments.wants_line(named.name)) {
        // Releases the memory of the previous line.
        strait::release_memory();
        for bits in named.bits() {
            match attempt(&loaded, named, bits, study.setting.often) {
                Ok(point) => {
                    say(format_args!("{}", point.said()));
                    study.add(cells(&study, rows, &point))?;
                    points.push(point);
                }
                Err(error) => {
                    let partitions = counted(1 << bits, "partition");
                    say(format_args!("{partitions}: {}: {error:#}", named.name));
                    study.failed += 1;
                }
            }
        }
    }
    drop(loaded);
    strait::release_memory();
    let text = shown(&study, rows, &points);
    let (files, failed) = study.end(&plot(&points))?;
    Ok((format!("{text}\n{files}"), failed))
}

/// Runs the partitioning several times.
fn attempt(
    loaded: &HostTables,
    named: &'static Named,
    bits: u32,
    often: Often,
) -> anyhow::Result<Point> {
    let how = FirstPass { partitioner: named.partitioner, bits, counted: named.counted };
    let once = |_| loaded.partition(how).map_err(failure::of_join);
    let (cold, timed) = often.runs(|measured: &MeasuredPass| measured.seconds, once)?;
    let seconds: Vec<f64> = timed.iter().map(|measured| measured.seconds).collect();
    let measured = *timed.get(timed.len() / 2).context("no run was timed")?;
    Ok(Point { named, bits, seconds: median(&seconds), cold, measured })
}

/// Formats all figures, one line each.
fn shown(study: &Study<'_>, rows: u64, points: &[Point]) -> String {
    let header = ["line", "partitions", "s", "cold s", "GB/s each way", "of the link"];
    let mut table = vec![header.map(str::to_string).to_vec()];
    for point in points {
        table.push(vec![
            point.named.name.to_string(),
            grouped(point.partitions()),
            format!("{:.3}", point.seconds),
            format!("{:.3}", point.cold),
            format!("{:.1}", point.rate() / 1e9),
            study.card.percent(point.rate()),
        ]);
    }
    format!(
        "{} rows of 16 bytes, partitioned from host memory to host memory; {}; {} of GPU memory\n\
         Of the link: of what one way could carry in theory. Cold: the first run; of a line's \
         first point, the host memory is still to be pinned.\n\n{}",
        grouped(rows),
        study.card.named(),
        strait::bytes(study.setting.gpu_memory),
        aligned(&table, 1)
    )
}

fn plot(points: &[Point]) -> Plot {
    let series = points.chunk_by(|a, b| a.named.name == b.named.name).map(|line| Series {
        name: line[0].named.name.to_string(),
        points: line.iter().map(|p| (p.partitions() as f64, p.rate() / 1e9)).collect(),
    });
    Plot {
        title: "The first pass of the Triton join, from host memory to host memory",
        x: Axis::Log("partitions"),
        y: "GB/s each way",
        series: series.collect(),
    }
}

/// The columns of the record, after the common ones.
const COLUMNS: [&str; 18] = [
    "gpu",
    "link",
    "link_bytes_per_second_in_theory",
    "gpu_memory",
    "line",
    "partitioner",
    "counted_before",
    "threads",
    "repeat",
    "rows",
    "partitions",
    "median_seconds",
    "cold_seconds",
    "bytes_each_way",
    "bytes_each_way_per_second",
    "bytes_to_gpu",
    "bytes_from_gpu",
    "share_of_link",
];

fn cells(study: &Study<'_>, rows: u64, point: &Point) -> [String; COLUMNS.len()] {
    let Study { card, setting, .. } = study;
    let Point { named, measured, .. } = point;
    [
        card.name.clone(),
        card.link.clone(),
        card.peak(),
        setting.gpu_memory.to_string(),
        named.name.to_string(),
        named.partitioner.name().to_string(),
        named.counted.to_string(),
        setting.threads.to_string(),
        setting.often.repeat.to_string(),
        rows.to_string(),
        point.partitions().to_string(),
        format!("{:.6}", point.seconds),
        format!("{:.6}", point.cold),
        measured.bytes.to_string(),
        format!("{:.0}", point.rate()),
        measured.crossed[0].to_string(),
        measured.crossed[1].to_string(),
        card.share(point.rate()),
    ]
}

/// The names that `--lines` accepts.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    LINES.iter().map(|named| named.name)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{arguments, recorded, simulated};
    use super::*;

    const SMALL: [&str; 6] =
        ["--study", "fanout", "--scale-down", "131072", "--gpu-memory", "512KiB"];

    #[test]
    fn every_line_is_drawn_and_recorded() {
        let folder = tempfile::tempdir().expect("a folder");
        let arguments = arguments(folder.path(), &SMALL);
        let (text, failed) = run(&arguments, Card::simulated(), &simulated).expect("a study");
        assert_eq!(failed, 0);
        let lines = recorded(folder.path());
        for named in &LINES {
            let points: Vec<_> = lines.iter().filter(|line| line["line"] == named.name).collect();
            let partitions: Vec<_> = points.iter().map(|line| line["partitions"].clone()).collect();
            let wanted: Vec<_> = named.bits().iter().map(|bits| (1 << bits).to_string()).collect();
            assert_eq!(partitions, wanted, "{}", named.name);
            for point in points {
                assert_eq!(point["rows"], "4096");
                assert_eq!(point["bytes_each_way"], "65536");
                assert_eq!(point["bytes_to_gpu"], "65536", "{}", named.name);
                assert_eq!(point["bytes_from_gpu"], "65536", "{}", named.name);
            }
            assert!(text.contains(named.name), "{text}");
        }
        let path = folder.path().join("beyond-fanout.svg");
        let svg = std::fs::read_to_string(path).expect("a plot");
        assert!(svg.contains(">2048<") && svg.contains("shared, chunked"), "{svg}");
        assert!(!svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn a_point_that_fails_is_named_and_the_others_go_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut flags = SMALL.to_vec();
        // Too little for the buffers of many partitions.
        flags[5] = "24KiB";
        flags.extend(["--lines", "hierarchical", "--lines", "shared"]);
        let arguments = arguments(folder.path(), &flags);
        let (_, failed) = run(&arguments, Card::simulated(), &simulated).expect("a study");
        let lines = recorded(folder.path());
        assert!(failed > 0 && !lines.is_empty(), "{failed} failed, {} did not", lines.len());
        assert_eq!(failed as usize + lines.len(), 2 * MAX_BITS as usize);
    }
}

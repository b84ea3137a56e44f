//! The figures of one measurement, and their formats.

use serde::{Deserialize, Serialize};
use strait_bench::machine::{self, Machine};
use strait_bench::measure::{Measured, Task};
use strait_bench::workload::Tables;

use super::aligned::aligned;
use crate::arguments::Shown;
use crate::digits::{counted, grouped};

/// The figures of one join.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Figures {
    /// The requested algorithm.
    pub(super) algorithm: String,
    /// The algorithm that ran.
    pub(super) ran: String,
    /// The GPU it ran on, or `cpu`.
    pub(super) device: String,
    pub(super) mode: String,
    pub(super) build_rows: u64,
    pub(super) probe_rows: u64,
    pub(super) output_rows: u64,
    pub(super) threads: usize,
    pub(super) repeat: u32,
    pub(super) seconds: Seconds,
    /// Rows of both tables, divided by the median time.
    pub(super) tuples_per_second: f64,
    /// The stages of the median run.
    pub(super) stages: Vec<StageTime>,
    pub(super) bytes: Bytes,
    /// The most bytes that the join held at once, including inputs and unfinished output.
    pub(super) peak_memory: u64,
    pub(super) resident: Resident,
    pub(super) machine: Machine,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Seconds {
    pub(super) median: f64,
    pub(super) min: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StageTime {
    pub(super) name: String,
    pub(super) seconds: f64,
}

/// The bytes of each table's rows, and the bytes that crossed the link to a GPU and back.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Bytes {
    pub(super) build: u64,
    pub(super) probe: u64,
    pub(super) output: u64,
    pub(super) to_gpu: u64,
    pub(super) from_gpu: u64,
}

/// The resident memory of the process: with the tables loaded, and at its peak.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Resident {
    pub(super) loaded: u64,
    pub(super) peak: u64,
}

impl Figures {
    /// Summarises a measurement. `loaded` is the memory of the process before the first run.
    pub(super) fn new(tables: &Tables, task: &Task, measured: &Measured, loaded: u64) -> Figures {
        let (build_rows, probe_rows) = (tables.build.rows(), tables.probe.rows());
        Figures {
            algorithm: task.algorithm_name().to_string(),
            ran: measured.ran.clone(),
            device: measured.device.clone().unwrap_or_else(|| "cpu".to_string()),
            mode: task.result.name().to_string(),
            build_rows,
            probe_rows,
            output_rows: tables.expected.rows,
            threads: task.threads,
            repeat: task.repeat,
            seconds: Seconds { median: measured.median(), min: measured.min() },
            tuples_per_second: (build_rows + probe_rows) as f64 / measured.median().max(1e-9),
            stages: measured
                .stages
                .iter()
                .map(|(name, seconds)| StageTime { name: name.clone(), seconds: *seconds })
                .collect(),
            bytes: Bytes {
                build: tables.build.bytes(),
                probe: tables.probe.bytes(),
                output: measured.output_bytes,
                to_gpu: measured.crossed[0],
                from_gpu: measured.crossed[1],
            },
            peak_memory: measured.peak_memory,
            resident: Resident { loaded, peak: machine::resident().1 },
            machine: Machine::detect(),
        }
    }

    /// The names of [`cells`](Figures::cells).
    pub(super) const HEADER: [&str; 21] = [
        "algorithm",
        "ran",
        "device",
        "mode",
        "build_rows",
        "probe_rows",
        "output_rows",
        "threads",
        "repeat",
        "median_seconds",
        "min_seconds",
        "tuples_per_second",
        "build_bytes",
        "probe_bytes",
        "output_bytes",
        "bytes_to_gpu",
        "bytes_from_gpu",
        "peak_memory",
        "loaded_resident",
        "peak_resident",
        "cpu",
    ];

    /// A line of CSV.
    pub(super) fn cells(&self) -> [String; 21] {
        [
            self.algorithm.clone(),
            self.ran.clone(),
            self.device.clone(),
            self.mode.clone(),
            self.build_rows.to_string(),
            self.probe_rows.to_string(),
            self.output_rows.to_string(),
            self.threads.to_string(),
            self.repeat.to_string(),
            format!("{:.6}", self.seconds.median),
            format!("{:.6}", self.seconds.min),
            format!("{:.0}", self.tuples_per_second),
            self.bytes.build.to_string(),
            self.bytes.probe.to_string(),
            self.bytes.output.to_string(),
            self.bytes.to_gpu.to_string(),
            self.bytes.from_gpu.to_string(),
            self.peak_memory.to_string(),
            self.resident.loaded.to_string(),
            self.resident.peak.to_string(),
            self.machine.cpu.clone(),
        ]
    }
}

/// Formats all figures as requested.
pub(super) fn shown(figures: &[Figures], how: Shown) -> anyhow::Result<String> {
    match how {
        Shown::Table => Ok(table(figures)),
        Shown::Csv => {
            let mut writer = csv::Writer::from_writer(Vec::new());
            writer.write_record(Figures::HEADER)?;
            figures.iter().try_for_each(|figures| writer.write_record(figures.cells()))?;
            Ok(String::from_utf8(writer.into_inner()?)?)
        }
        Shown::Json => {
            let lines = figures.iter().map(serde_json::to_string);
            Ok(lines.map(|line| line.map(|line| line + "\n")).collect::<Result<_, _>>()?)
        }
    }
}

fn table(figures: &[Figures]) -> String {
    let Some(first) = figures.first() else { return String::new() };
    let machine = &first.machine;
    let mut text = format!(
        "{} ⋈ {} rows → {}, {}, {}, {}\n{}, {} cores, {}, {} of memory\n\n",
        grouped(first.build_rows),
        grouped(first.probe_rows),
        grouped(first.output_rows),
        first.mode,
        counted(first.threads as u64, "thread"),
        counted(first.repeat.into(), "run"),
        machine.cpu,
        machine.cores,
        machine.caches(),
        strait::bytes(machine.memory),
    );
    let crossed = figures.iter().any(|f| f.bytes.to_gpu > 0);
    let mut header =
        ["algorithm", "ran", "on", "median s", "min s", "M tuples/s", "join's peak"].to_vec();
    if crossed {
        header.extend(["to the GPU", "back"]);
    }
    let mut rows = vec![header.into_iter().map(str::to_string).collect::<Vec<_>>()];
    rows.extend(figures.iter().map(|f| {
        let mut row = vec![
            f.algorithm.clone(),
            f.ran.clone(),
            f.device.clone(),
            format!("{:.4}", f.seconds.median),
            format!("{:.4}", f.seconds.min),
            format!("{:.1}", f.tuples_per_second / 1e6),
            strait::bytes(f.peak_memory),
        ];
        if crossed {
            row.extend([f.bytes.to_gpu, f.bytes.from_gpu].map(strait::bytes));
        }
        row
    }));
    text.push_str(&aligned(&rows, 3));
    for figures in figures {
        let stages = figures.stages.iter().map(|s| format!("{} {:.4} s", s.name, s.seconds));
        let stages = stages.collect::<Vec<_>>().join(", ");
        text.push_str(&format!("\n{}: {stages}", figures.algorithm));
    }
    text + "\n"
}

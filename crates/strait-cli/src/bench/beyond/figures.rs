//! The figures of `strait bench beyond`, as a table and as a record.

use super::super::aligned::aligned;
use super::super::record::Record;
use super::Setting;
use super::outcome::Outcome;
use super::suite::{Named, Place};
use crate::digits::counted;
use strait_bench::link::Card;

/// The figures of one workload.
pub(super) struct Line {
    pub(super) named: &'static Named,
    pub(super) rows: [u64; 2],
    pub(super) outcome: Outcome,
}

impl Line {
    pub(super) fn said(&self) -> String {
        let outcome = &self.outcome;
        let [to, back] = outcome.link().map(|rate| rate / 1e9);
        format!(
            "{}: {:.3} s, {:.2} G tuples/s, {to:.1} GB/s to the GPU, {back:.1} back; {}",
            self.named.name,
            outcome.seconds,
            outcome.rate(self.rows) / 1e9,
            outcome.stages()
        )
    }
}

/// Formats all figures, one line each, with the stages below.
pub(super) fn shown(card: &Card, setting: &Setting, lines: &[Line]) -> String {
    let header = [
        "workload",
        "yields",
        "s",
        "cold s",
        "G tuples/s",
        "to the GPU",
        "GB/s",
        "back",
        "GB/s",
        "of the link",
        "peak",
    ];
    let mut rows = vec![header.map(str::to_string).to_vec()];
    for line in lines {
        let outcome = &line.outcome;
        let [to, back] = outcome.link().map(|rate| format!("{:.1}", rate / 1e9));
        let [bytes_to, bytes_back] = outcome.crossed.map(strait::bytes);
        rows.push(vec![
            line.named.name.to_string(),
            line.named.result(),
            format!("{:.3}", outcome.seconds),
            outcome.cold.map_or(String::new(), |cold| format!("{cold:.3}")),
            format!("{:.2}", outcome.rate(line.rows) / 1e9),
            bytes_to,
            to,
            bytes_back,
            back,
            card.percent(outcome.busier()),
            strait::bytes(outcome.peak_memory),
        ]);
    }
    let mut text = format!(
        "{}; {} of GPU memory, {}\n\"Of the link\": the traffic in the busier direction, as a share of what \
         one direction can carry in theory. \"Cold\": the first run, whose host memory is not pinned yet.\n\n{}",
        card.named(),
        strait::bytes(setting.gpu_memory),
        counted(setting.threads as u64, "thread"),
        aligned(&rows, 2)
    );
    for line in lines {
        text.push_str(&format!("\n{}: {}", line.named.name, line.outcome.stages()));
    }
    text + "\n" + &beside_cpu(lines)
}

/// Compares the fastest join of the same tables on the GPU with the CPU's join.
fn beside_cpu(lines: &[Line]) -> String {
    let Some(cpu) = lines.iter().find(|line| line.named.place == Place::Cpu) else {
        return String::new();
    };
    let same = |line: &&Line| {
        line.named.place != Place::Cpu
            && line.rows == cpu.rows
            && line.named.result == cpu.named.result
    };
    let best =
        lines.iter().filter(same).min_by(|a, b| a.outcome.seconds.total_cmp(&b.outcome.seconds));
    best.map_or(String::new(), |best| {
        let ratio = cpu.outcome.seconds / best.outcome.seconds.max(1e-12);
        format!("\n{} is {ratio:.2} times as fast as {}\n", best.named.name, cpu.named.name)
    })
}

/// The columns of the record, after the common ones.
const COLUMNS: [&str; 28] = [
    "gpu",
    "link",
    "link_bytes_per_second_in_theory",
    "gpu_memory",
    "workload",
    "algorithm",
    "partitioner",
    "histogram",
    "transfer",
    "placement",
    "yields",
    "threads",
    "repeat",
    "build_rows",
    "probe_rows",
    "output_rows",
    "median_seconds",
    "cold_seconds",
    "tuples_per_second",
    "bytes_to_gpu",
    "bytes_from_gpu",
    "bytes_to_gpu_per_second",
    "bytes_from_gpu_per_second",
    "share_of_link",
    "memory_peak",
    "stage",
    "stage_seconds",
    "stage_bytes",
];

/// A record of workloads, with one line per stage.
pub(super) fn record() -> anyhow::Result<Record> {
    Record::new(&COLUMNS)
}

/// Adds a workload to a record.
pub(super) fn add(
    record: &mut Record,
    card: &Card,
    setting: &Setting,
    line: &Line,
) -> anyhow::Result<()> {
    let (named, outcome) = (line.named, &line.outcome);
    let [to, back] = outcome.link();
    let cells = [
        card.name.clone(),
        card.link.clone(),
        card.peak(),
        setting.gpu_memory.to_string(),
        named.name.to_string(),
        named.algorithm.to_string(),
        named.partitioner.map_or(String::new(), |p| p.name().to_string()),
        named.histogram.name().to_string(),
        named.transfer.to_string(),
        named.placement().to_string(),
        named.result(),
        setting.threads.to_string(),
        setting.often.repeat.to_string(),
        line.rows[0].to_string(),
        line.rows[1].to_string(),
        outcome.output_rows.to_string(),
        format!("{:.6}", outcome.seconds),
        outcome.cold.map_or(String::new(), |cold| format!("{cold:.6}")),
        format!("{:.0}", outcome.rate(line.rows)),
        outcome.crossed[0].to_string(),
        outcome.crossed[1].to_string(),
        format!("{to:.0}"),
        format!("{back:.0}"),
        card.share(outcome.busier()),
        outcome.peak_memory.to_string(),
    ];
    for (stage, seconds, bytes) in &outcome.stages {
        let stage = [stage.clone(), format!("{seconds:.6}"), bytes.to_string()];
        record.add(cells.iter().cloned().chain(stage))?;
    }
    if outcome.stages.is_empty() {
        record.add(cells.into_iter().chain([const { String::new() }; 3]))?;
    }
    Ok(())
}

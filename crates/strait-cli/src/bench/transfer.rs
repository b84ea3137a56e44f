//! `strait bench transfer`: measures how fast each method moves rows to a GPU, and how fast a join is whose
//! tables cross with this method (001, figure 12).

use std::time::Duration;

use strait::{Algorithm, GpuOptions, Transfer};
use strait_bench::link::Card;
use strait_bench::measure::median;
use strait_bench::runs::Often;
use strait_bench::workload::{Answer, KeyType, Keys, Shape, Skew, Tables};
use strait_bench::{HostPlacement, HostTables, JoinRequest, ResultKind};

use super::aligned::aligned;
use super::load::{self, the_gpu};
use super::record::Record;
use crate::arguments::{Placements, TransferArguments};
use crate::digits::grouped;
use crate::failure::{self, say};
use crate::join::cores;
use crate::output::print;

/// A measured method.
struct Line {
    placement: HostPlacement,
    method: Transfer,
    /// The figures, or why this machine does not support the method.
    figures: Result<Figures, String>,
}

/// The figures of a method.
#[derive(Debug, Clone)]
struct Figures {
    /// The bytes of the keys that crossed, and the seconds that this took.
    bytes: u64,
    seconds: f64,
    /// The seconds of the join, and the bytes that crossed for it each way.
    join_seconds: f64,
    crossed: [u64; 2],
}

/// Runs the command.
pub(super) fn run(arguments: &TransferArguments) -> anyhow::Result<()> {
    let gpu = the_gpu(arguments.device, "rows cross to a GPU")?;
    let text = conduct(arguments, &Card::of(&gpu), &|placement, threads, tables| {
        load::in_host_memory(&gpu, arguments.gpu_memory, placement, threads, tables)
    })?;
    print(&text)
}

/// Copies tables to their placement, with this many threads.
type Open<'a> = dyn Fn(HostPlacement, usize, &Tables) -> anyhow::Result<HostTables> + 'a;

/// Measures as requested, and writes the record. Returns the text to print.
fn conduct(arguments: &TransferArguments, card: &Card, open: &Open<'_>) -> anyhow::Result<String> {
    let threads = arguments.threads.unwrap_or_else(cores);
    let tables = Tables::generate_parts(shape(arguments), cores())?;
    let rows = [tables.build.rows(), tables.probe.rows()];
    let mut lines = Vec::new();
    for placement in placements(arguments.placement) {
        let loaded = open(placement, threads, &tables)?;
        for &method in &methods(&arguments.methods) {
            let figures = measure(&loaded, &tables.expected, method, arguments.repeat)?;
            let line = Line { placement, method, figures };
            say(format_args!("{}", line.said(rows)));
            lines.push(line);
        }
        drop(loaded);
        // Releases the memory of one placement's joins before the next placement's tables are loaded.
        strait::release_memory();
    }
    let path =
        record(card, arguments, (threads, rows), &lines)?.write(&arguments.out, "transfer")?;
    say(format_args!("record: {}", path.display()));
    Ok(shown(card, &lines, rows))
}

/// Keys that cannot be packed, so that all methods send the same number of bytes.
fn shape(arguments: &TransferArguments) -> Shape {
    Shape {
        build: arguments.build.max(1),
        probe: arguments.rows.max(1),
        key_type: KeyType::Int64,
        keys: Keys::Sparse,
        skew: Skew::None,
        selectivity: 1.0,
        duplicates: 1,
        payload_bytes: 8,
        payload_columns: 1,
        seed: 42,
    }
}

fn placements(asked: Placements) -> Vec<HostPlacement> {
    match asked {
        Placements::Pinned => vec![HostPlacement::Pinned],
        Placements::Pageable => vec![HostPlacement::Pageable],
        Placements::Both => vec![HostPlacement::Pinned, HostPlacement::Pageable],
    }
}

fn methods(asked: &[Transfer]) -> Vec<Transfer> {
    match asked {
        [] => Transfer::ALL.into_iter().filter(|&method| method != Transfer::Auto).collect(),
        asked => asked.to_vec(),
    }
}

/// Measures one method. It is not a failure if the machine does not support it.
fn measure(
    loaded: &HostTables,
    expected: &Answer,
    method: Transfer,
    repeat: u32,
) -> anyhow::Result<Result<Figures, String>> {
    match attempt(loaded, expected, method, repeat) {
        Ok(figures) => Ok(Ok(figures)),
        Err(error) => match error.downcast_ref::<strait::Error>() {
            Some(unsupported @ strait::Error::Unsupported { .. }) => {
                Ok(Err(unsupported.to_string()))
            }
            _ => Err(error.context(method.to_string())),
        },
    }
}

fn attempt(
    loaded: &HostTables,
    expected: &Answer,
    method: Transfer,
    repeat: u32,
) -> anyhow::Result<Figures> {
    let mut bytes = 0;
    let mut seconds = Vec::new();
    for run in 0..=repeat {
        let (took, crossed) = loaded.transfer(method).map_err(failure::of_join)?;
        bytes = crossed;
        if run > 0 {
            seconds.push(took);
        }
    }
    seconds.sort_by(f64::total_cmp);
    let gpu_options = GpuOptions::new().transfer(method);
    let algorithm = Some(Algorithm::NoPartition);
    let result = ResultKind::Aggregate;
    let how = JoinRequest { algorithm, gpu_options, result, hash_seed: None };
    let runs = loaded.runs(expected, &how, Often::times(repeat))?;
    let (join_seconds, crossed) = (median(&runs.seconds()), runs.middle()?.crossed);
    Ok(Figures { bytes, seconds: median(&seconds), join_seconds, crossed })
}

impl Figures {
    /// Bytes per second.
    fn bandwidth(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-12)
    }

    /// Tuples per second.
    fn throughput(&self, rows: [u64; 2]) -> f64 {
        (rows[0] + rows[1]) as f64 / self.join_seconds.max(1e-12)
    }
}

impl Line {
    fn placement(&self) -> &'static str {
        placement_name(self.placement)
    }

    fn said(&self, rows: [u64; 2]) -> String {
        let figures = match &self.figures {
            Ok(figures) => format!(
                "{:.1} GB/s, {:.2} G tuples/s in {:?}",
                figures.bandwidth() / 1e9,
                figures.throughput(rows) / 1e9,
                Duration::from_secs_f64(figures.join_seconds)
            ),
            Err(why) => format!("not on this machine: {why}"),
        };
        format!("{}, {}: {figures}", self.placement(), self.method)
    }
}

pub(super) fn placement_name(placement: HostPlacement) -> &'static str {
    match placement {
        HostPlacement::Pinned => "pinned",
        HostPlacement::Pageable => "pageable",
    }
}

fn shown(card: &Card, lines: &[Line], rows: [u64; 2]) -> String {
    let header = ["from", "method", "GB/s", "of the link", "join, G tuples/s", "to the GPU", ""];
    let mut table = vec![header.map(str::to_string).to_vec()];
    let mut reasons = String::new();
    for line in lines {
        let (from, method) = (line.placement().to_string(), line.method.to_string());
        table.push(match &line.figures {
            Ok(figures) => vec![
                from,
                method,
                format!("{:.1}", figures.bandwidth() / 1e9),
                card.percent(figures.bandwidth()),
                format!("{:.2}", figures.throughput(rows) / 1e9),
                strait::bytes(figures.crossed[0]),
            ],
            Err(why) => {
                reasons.push_str(&format!("{from}, {method}: not on this machine: {why}\n"));
                vec![from, method, "–".to_string()]
            }
        });
    }
    format!(
        "{} ⋈ {} rows of 16 bytes in host memory; {}\n\n{}\n{reasons}",
        grouped(rows[0]),
        grouped(rows[1]),
        card.named(),
        aligned(&table, 2)
    )
}

/// The columns of the record, after the common ones.
const COLUMNS: [&str; 20] = [
    "gpu",
    "link",
    "link_bytes_per_second_in_theory",
    "placement",
    "method",
    "build_rows",
    "probe_rows",
    "threads",
    "repeat",
    "gpu_memory",
    "transfer_bytes",
    "transfer_median_seconds",
    "transfer_bytes_per_second",
    "share_of_link",
    "join_median_seconds",
    "join_tuples_per_second",
    "join_bytes_to_gpu",
    "join_bytes_from_gpu",
    "algorithm",
    "not_on_this_machine",
];

fn record(
    card: &Card,
    arguments: &TransferArguments,
    (threads, rows): (usize, [u64; 2]),
    lines: &[Line],
) -> anyhow::Result<Record> {
    let mut record = Record::new(&COLUMNS)?;
    for line in lines {
        let mut cells = vec![
            card.name.clone(),
            card.link.clone(),
            card.peak(),
            line.placement().to_string(),
            line.method.to_string(),
            rows[0].to_string(),
            rows[1].to_string(),
            threads.to_string(),
            arguments.repeat.to_string(),
            arguments.gpu_memory.map_or(String::new(), |bytes| bytes.to_string()),
        ];
        match &line.figures {
            Ok(figures) => cells.extend([
                figures.bytes.to_string(),
                format!("{:.7}", figures.seconds),
                format!("{:.0}", figures.bandwidth()),
                card.share(figures.bandwidth()),
                format!("{:.7}", figures.join_seconds),
                format!("{:.0}", figures.throughput(rows)),
                figures.crossed[0].to_string(),
                figures.crossed[1].to_string(),
                Algorithm::NoPartition.to_string(),
                String::new(),
            ]),
            Err(why) => {
                cells.extend(std::iter::repeat_n(String::new(), 8));
                cells.extend([Algorithm::NoPartition.to_string(), why.clone()]);
            }
        }
        record.add(cells)?;
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(out: &std::path::Path) -> TransferArguments {
        TransferArguments {
            rows: 3000,
            build: 50,
            methods: Vec::new(),
            placement: Placements::Both,
            device: strait::Processor::Gpu(0),
            gpu_memory: None,
            threads: Some(2),
            repeat: 1,
            out: out.to_path_buf(),
        }
    }

    fn simulated(
        placement: HostPlacement,
        _: usize,
        tables: &Tables,
    ) -> anyhow::Result<HostTables> {
        let batches = [tables.build.batches.as_slice(), tables.probe.batches.as_slice()];
        Ok(HostTables::simulate(7, 1 << 20, placement, batches)?)
    }

    #[test]
    fn every_method_brings_all_keys_and_the_right_answer() {
        let tables = Tables::generate_parts(shape(&arguments("".as_ref())), 2).expect("tables");
        for placement in placements(Placements::Both) {
            let loaded = simulated(placement, 2, &tables).expect("a device");
            for method in methods(&[]) {
                let figures = measure(&loaded, &tables.expected, method, 1).expect("an answer");
                let figures = figures.unwrap_or_else(|why| panic!("{method}: {why}"));
                assert_eq!(figures.bytes, 3000 * 8, "{method}");
                assert!(figures.crossed[0] > 3000 * 8, "{method}: {:?}", figures.crossed);
            }
        }
    }

    #[test]
    fn the_record_has_a_line_a_placement_and_method() {
        let folder = tempfile::tempdir().expect("a folder");
        conduct(&arguments(folder.path()), &Card::simulated(), &simulated).expect("figures");
        let record = std::fs::read_dir(folder.path()).expect("it").next().expect("a record");
        let mut reader = csv::Reader::from_path(record.expect("a file").path()).expect("a record");
        let lines: Vec<_> = reader.records().collect::<Result<_, _>>().expect("lines");
        assert_eq!(lines.len(), 16);
    }

    #[test]
    fn what_the_machine_cannot_do_is_shown_with_the_reason() {
        let figures = Err("its pages stay where they are".to_string());
        let (placement, method) = (HostPlacement::Pinned, Transfer::Coherence);
        let lines = [Line { placement, method, figures }];
        let text = shown(&Card::simulated(), &lines, [1, 1]);
        assert!(text.contains("coherence: not on this machine: its pages stay"), "{text}");
        let record = record(&Card::simulated(), &arguments("".as_ref()), (1, [1, 1]), &lines);
        assert!(record.is_ok());
    }
}

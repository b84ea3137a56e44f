//! `strait bench gpu`: the joins of the project's performance goals on tables in GPU memory, with the time
//! and the bandwidth of each stage, and joins of tables that are hard to join.

use std::sync::Arc;

use anyhow::Context;
use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use strait::gpu::Gpu;
use strait::{Algorithm, GpuOptions};
use strait_bench::measure::median;
use strait_bench::runs::Often;
use strait_bench::workload::{Hard, KeyType, Keys, Shape, Skew, Tables};
use strait_bench::{GpuTables, JoinRequest, MeasuredRun, ResultKind, SortedPairs};

use super::aligned::aligned;
use super::load::{self, the_gpu};
use super::record::Record;
use crate::arguments::{BenchGpuArguments, Choice};
use crate::failure::{self, say};
use crate::join::cores;
use crate::output::print;

const BATCH_ROWS: usize = 1 << 20;
/// The workload that is not a join.
const SORT: &str = "sort of 2^28 pairs";

/// A named workload: row counts as powers of two, the bytes of key and payload, and how to join.
struct Named {
    name: &'static str,
    bits: [u32; 2],
    bytes: u8,
    keys: Keys,
    skew: Skew,
    algorithm: Choice,
}

const fn named(
    name: &'static str,
    bits: [u32; 2],
    bytes: u8,
    keys: Keys,
    algorithm: Algorithm,
) -> Named {
    Named { name, bits, bytes, keys, skew: Skew::None, algorithm: Choice(Some(algorithm)) }
}

/// Workloads over the same tables are adjacent, so that these tables are made once.
const SUITE: [Named; 11] = [
    named("2^27 x 2^27, 8 B", [27, 27], 8, Keys::Sparse, Algorithm::Radix),
    named("2^27 x 2^27, 8 B, sort-merge", [27, 27], 8, Keys::Sparse, Algorithm::SortMerge),
    named("2^27 x 2^27, 8 B, no-partition", [27, 27], 8, Keys::Sparse, Algorithm::NoPartition),
    named("2^27 x 2^27, 8 B, dense", [27, 27], 8, Keys::Dense, Algorithm::Radix),
    named("2^27 x 2^27, 8 B, dense, sort-merge", [27, 27], 8, Keys::Dense, Algorithm::SortMerge),
    named(
        "2^27 x 2^27, 8 B, dense, no-partition",
        [27, 27],
        8,
        Keys::Dense,
        Algorithm::NoPartition,
    ),
    Named {
        skew: Skew::Zipf(1.0),
        ..named("2^27 x 2^27, 8 B, Zipf 1.0", [27, 27], 8, Keys::Sparse, Algorithm::Radix)
    },
    named("2^27 x 2^27, 4 B", [27, 27], 4, Keys::Sparse, Algorithm::Radix),
    named("2^25 x 2^28, 8 B", [25, 28], 8, Keys::Sparse, Algorithm::Radix),
    named("2^16 x 2^29, 8 B", [16, 29], 8, Keys::Sparse, Algorithm::NoPartition),
    // An array that stays in the L2 cache.
    Named {
        algorithm: Choice::AUTO,
        ..named("2^22 x 2^28, 8 B, dense", [22, 28], 8, Keys::Dense, Algorithm::Radix)
    },
];

/// The figures of one join.
struct Line {
    workload: String,
    algorithm: String,
    yields: String,
    rows: [u64; 3],
    seconds: f64,
    middle: MeasuredRun,
}

/// Runs the command.
pub(super) fn run(arguments: &BenchGpuArguments) -> anyhow::Result<()> {
    let gpu = &the_gpu(arguments.device, "these joins run in a GPU's memory")?;
    let mut lines = Vec::new();
    let mut read_rate = 0.0;
    let mut made: Option<(&Named, Tables, GpuTables)> = None;
    for named in SUITE.iter().filter(|named| arguments.wants(named.name)) {
        if !made.as_ref().is_some_and(|(other, ..)| other.same_tables(named)) {
            // The next tables need the memory of the previous ones.
            drop(made.take());
            let tables = Tables::generate(named.shape(arguments.scale_down), BATCH_ROWS, cores())?;
            let loaded = load::in_gpu_memory(gpu, arguments.gpu_memory, &tables)?;
            read_rate = f64::max(read_rate, loaded.read_rate().map_err(failure::of_join)?);
            made = Some((named, tables, loaded));
        }
        let Some((_, tables, loaded)) = &made else { continue };
        for result in [ResultKind::Materialise, ResultKind::Aggregate] {
            lines.push(measure(arguments, loaded, tables, named.name, (named.algorithm, result))?);
        }
    }
    drop(made);
    if arguments.wants(SORT) {
        lines.push(sort(gpu, arguments)?);
    }
    let mut uniform = [0.0; 3];
    if arguments.wants("hard") {
        uniform = hard(gpu, arguments, &mut lines)?;
    }
    print(&shown(&lines, read_rate, uniform))?;
    let path = record(gpu, &lines, read_rate, arguments)?.write(&arguments.out, "gpu")?;
    say(format_args!("record: {}", path.display()));
    Ok(())
}

const ALGORITHMS: [Algorithm; 3] = [Algorithm::Radix, Algorithm::NoPartition, Algorithm::SortMerge];

/// Joins uniform and hard tables with every algorithm. Returns for each algorithm the seconds per row of
/// input and output with uniform tables.
fn hard(
    gpu: &Gpu,
    arguments: &BenchGpuArguments,
    lines: &mut Vec<Line>,
) -> anyhow::Result<[f64; 3]> {
    let down = arguments.scale_down.ilog2();
    let plain = named("uniform 2^26", [26, 26], 8, Keys::Sparse, Algorithm::Radix);
    let mut uniform = [0.0; 3];
    let tables = Tables::generate(plain.shape(arguments.scale_down), BATCH_ROWS, cores())?;
    let loaded = load::in_gpu_memory(gpu, arguments.gpu_memory, &tables)?;
    for (algorithm, uniform) in ALGORITHMS.into_iter().zip(&mut uniform) {
        let how = (Choice(Some(algorithm)), ResultKind::Materialise);
        let line = measure(arguments, &loaded, &tables, "hard: uniform", how)?;
        *uniform = line.seconds_a_row();
        lines.push(line);
    }
    drop(loaded);
    for (name, hard, bits) in Hard::ALL {
        let tables = hard.tables(bits.saturating_sub(down).max(4))?;
        let loaded = load::in_gpu_memory(gpu, arguments.gpu_memory, &tables)?;
        for algorithm in ALGORITHMS {
            let name = format!("hard: {name}");
            let how = (Choice(Some(algorithm)), ResultKind::Materialise);
            lines.push(measure(arguments, &loaded, &tables, &name, how)?);
        }
    }
    Ok(uniform)
}

/// Sorts pairs by random 64-bit keys.
fn sort(gpu: &Gpu, arguments: &BenchGpuArguments) -> anyhow::Result<Line> {
    let rows = ((1u64 << 28) / arguments.scale_down).max(16);
    let key = |row: u64| row.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let scattered = |row: u64| {
        let x = key(row);
        ((x ^ (x >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ x) as i64
    };
    let keys: Int64Array = (0..rows).map(scattered).collect();
    let values: Int64Array = (0..rows as i64).collect();
    let columns: [(&str, ArrayRef); 2] = [("key", Arc::new(keys)), ("value", Arc::new(values))];
    let pairs = RecordBatch::try_from_iter(columns)?;
    let sorting = SortedPairs::load(gpu, arguments.gpu_memory, &pairs).map_err(failure::of_join)?;
    let mut runs = Vec::new();
    for run in 0..=arguments.repeat {
        let ran = sorting.run(run == 0).map_err(failure::of_join)?;
        if run > 0 {
            runs.push(ran);
        }
    }
    runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let seconds: Vec<f64> = runs.iter().map(|run| run.seconds).collect();
    let middle = runs.swap_remove(runs.len() / 2);
    let (algorithm, yields) = ("sort".to_string(), "columns".to_string());
    let seconds = median(&seconds);
    Ok(Line {
        workload: SORT.to_string(),
        algorithm,
        yields,
        rows: [rows, 0, rows],
        seconds,
        middle,
    })
}

fn measure(
    arguments: &BenchGpuArguments,
    loaded: &GpuTables,
    tables: &Tables,
    name: &str,
    (algorithm, result): (Choice, ResultKind),
) -> anyhow::Result<Line> {
    let gpu_options = GpuOptions::new().partitioner(arguments.partitioner);
    let hash_seed = arguments.hash_seed;
    let how = &JoinRequest { algorithm: algorithm.0, gpu_options, result, hash_seed };
    let often = Often::times(arguments.repeat);
    let runs = loaded.runs(&tables.expected, how, often).with_context(|| name.to_string())?;
    let (seconds, middle) = (runs.seconds(), runs.middle()?.clone());
    let rows = [tables.build.rows(), tables.probe.rows(), middle.rows];
    let (workload, algorithm) = (name.to_string(), algorithm.to_string());
    let yields = format!("{result:?}").to_lowercase();
    let line = Line { workload, algorithm, yields, rows, seconds: median(&seconds), middle };
    let (ms, rate) = (line.seconds * 1e3, line.rate() / 1e9);
    say(format_args!(
        "{name}: {algorithm}, {yields}: {ms:.3} ms, {rate:.1} G tuples/s",
        algorithm = line.algorithm,
        yields = line.yields
    ));
    Ok(line)
}

impl Named {
    fn same_tables(&self, other: &Named) -> bool {
        let of = |named: &Named| (named.bits, named.bytes, named.keys, named.skew);
        of(self) == of(other)
    }

    fn shape(&self, down: u64) -> Shape {
        let [build, probe] = self.bits.map(|bits| ((1u64 << bits) / down).max(16));
        Shape {
            build,
            probe,
            key_type: if self.bytes == 4 { KeyType::Int32 } else { KeyType::Int64 },
            keys: self.keys,
            skew: self.skew,
            selectivity: 1.0,
            duplicates: 1,
            payload_bytes: self.bytes,
            payload_columns: 1,
            seed: 42,
        }
    }
}

impl Line {
    fn rate(&self) -> f64 {
        (self.rows[0] + self.rows[1]) as f64 / self.seconds.max(1e-12)
    }

    fn seconds_a_row(&self) -> f64 {
        self.seconds / self.rows.iter().sum::<u64>().max(1) as f64
    }
}

fn shown(lines: &[Line], read_rate: f64, uniform: [f64; 3]) -> String {
    let header = ["workload", "algorithm", "yields", "ms", "G tuples/s", "time per row / uniform"];
    let mut rows = vec![header.map(str::to_string).to_vec()];
    for line in lines {
        let at = ALGORITHMS.iter().position(|a| a.name() == line.algorithm);
        let base = at.map_or(0.0, |at| uniform[at]);
        let ratio = match line.workload.starts_with("hard") && base > 0.0 {
            true => format!("{:.2}", line.seconds_a_row() / base),
            false => String::new(),
        };
        rows.push(vec![
            line.workload.clone(),
            line.algorithm.clone(),
            line.yields.clone(),
            format!("{:.3}", line.seconds * 1e3),
            format!("{:.1}", line.rate() / 1e9),
            ratio,
        ]);
    }
    let mut text = aligned(&rows, 3);
    text.push_str(&format!(
        "\nSequential reads reach {:.0} GB/s. Each stage reaches this share of it:\n",
        read_rate / 1e9
    ));
    for line in lines.iter().filter(|line| !line.workload.starts_with("hard")) {
        let stages = line.middle.stages.iter().filter(|stage| stage.bytes > 0).map(|stage| {
            let share = stage.bytes as f64 / stage.seconds.max(1e-12) / read_rate.max(1.0);
            format!("{} {:.3} ms {:.0} %", stage.stage, stage.seconds * 1e3, share * 100.0)
        });
        let stages = stages.collect::<Vec<_>>().join(", ");
        text.push_str(&format!("{}, {}: {stages}\n", line.workload, line.yields));
    }
    text
}

fn record(
    gpu: &Gpu,
    lines: &[Line],
    read_rate: f64,
    arguments: &BenchGpuArguments,
) -> anyhow::Result<Record> {
    let hash_seed = arguments.hash_seed.map_or(String::new(), |seed| seed.to_string());
    let mut record = Record::new(&[
        "gpu",
        "workload",
        "algorithm",
        "yields",
        "repeat",
        "hash_seed",
        "build_rows",
        "probe_rows",
        "output_rows",
        "median_seconds",
        "tuples_per_second",
        "gpu_memory_peak",
        "stage",
        "stage_seconds",
        "stage_bytes",
        "share_of_read_rate",
    ])?;
    for line in lines {
        for stage in &line.middle.stages {
            let share = stage.bytes as f64 / stage.seconds.max(1e-12) / read_rate.max(1.0);
            record.add([
                gpu.name.clone(),
                line.workload.clone(),
                line.algorithm.clone(),
                line.yields.clone(),
                arguments.repeat.to_string(),
                hash_seed.clone(),
                line.rows[0].to_string(),
                line.rows[1].to_string(),
                line.rows[2].to_string(),
                format!("{:.7}", line.seconds),
                format!("{:.0}", line.rate()),
                line.middle.peak_memory.to_string(),
                stage.stage.to_string(),
                format!("{:.7}", stage.seconds),
                stage.bytes.to_string(),
                if read_rate > 0.0 { format!("{share:.3}") } else { String::new() },
            ])?;
        }
    }
    Ok(record)
}

/// The names that `--workloads` accepts.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SUITE.iter().map(|named| named.name).chain([SORT, "hard"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let mut names: Vec<_> = names().collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SUITE.len() + 2);
    }
}

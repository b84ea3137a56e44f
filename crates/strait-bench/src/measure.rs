//! Runs a join several times, checks every answer, and measures the time.

use std::time::Instant;

use anyhow::Context;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Int32Type, Int64Type, UInt64Type};
use strait::{Algorithm, GpuOptions, Join, JoinReader, Processor, Report, Side, Statistics};

use crate::check::in_parallel;
use crate::runs::Runs;
use crate::workload::{Answer, Table, Tables, bytes};
use crate::{JoinRequest, ResultKind};

/// How a join runs, and how often.
#[derive(Debug, Clone)]
pub struct Task {
    /// What the join computes.
    pub result: ResultKind,
    /// The algorithm. `None` if the planner chooses.
    pub algorithm: Option<Algorithm>,
    /// The threads of a join.
    pub threads: usize,
    /// The number of timed runs.
    pub repeat: u32,
    /// The processor.
    pub device: Processor,
    /// The most GPU memory that the join may hold.
    pub gpu_memory: Option<u64>,
    /// The settings for a GPU.
    pub gpu_options: GpuOptions,
    /// Whether the planner knows the rows of both tables, as it does for files with a footer.
    pub statistics: bool,
}

impl Task {
    /// A task for the CPU.
    pub fn on_cpu(
        result: ResultKind,
        algorithm: Option<Algorithm>,
        threads: usize,
        repeat: u32,
    ) -> Task {
        let (device, gpu_options) = (Processor::Cpu, GpuOptions::new());
        let (gpu_memory, statistics) = (None, false);
        Task { result, algorithm, threads, repeat, device, gpu_memory, gpu_options, statistics }
    }

    /// Returns the inner join on the key that this task asks for.
    pub fn join(&self) -> Join {
        let join = Join::inner().on("key").algorithm(self.algorithm).threads(self.threads);
        let join = join.device(self.device).gpu_options(self.gpu_options);
        match self.gpu_memory {
            Some(bytes) => join.gpu_memory(bytes),
            None => join,
        }
    }

    /// Returns the join of tables in GPU memory or in host memory that this task asks for.
    pub fn request(&self) -> JoinRequest {
        let Task { algorithm, gpu_options, result, .. } = *self;
        JoinRequest { algorithm, gpu_options, result, hash_seed: None }
    }

    /// The name of the requested algorithm: `auto` if the planner chooses.
    pub fn algorithm_name(&self) -> &'static str {
        algorithm_name(self.algorithm)
    }
}

/// Returns the name of a requested algorithm: `auto` if the planner chooses.
pub(crate) fn algorithm_name(algorithm: Option<Algorithm>) -> &'static str {
    algorithm.map_or("auto", Algorithm::name)
}

/// The result of a measurement.
pub struct Measured {
    /// The seconds of every timed run, ascending.
    pub seconds: Vec<f64>,
    /// The algorithm that ran.
    pub ran: String,
    /// The GPU that joined. `None` for the CPU.
    pub device: Option<String>,
    /// The seconds of each stage in the median run.
    pub stages: Vec<(String, f64)>,
    /// The most memory that any run held, according to the join's own accounting.
    pub peak_memory: u64,
    /// The bytes of the output rows.
    pub output_bytes: u64,
    /// Bytes that crossed the link, to the GPU and back.
    pub crossed: [u64; 2],
}

impl Measured {
    /// The median of all timed runs, in seconds.
    pub fn median(&self) -> f64 {
        median(&self.seconds)
    }

    /// The fastest run, in seconds.
    pub fn min(&self) -> f64 {
        self.seconds.first().copied().unwrap_or(f64::NAN)
    }

    /// Summarises runs on a GPU of tables in GPU memory or in host memory.
    pub fn on_gpu(
        gpu_name: &str,
        tables: &Tables,
        result: ResultKind,
        runs: &Runs,
    ) -> anyhow::Result<Measured> {
        let middle = runs.middle()?;
        let columns = (tables.build.payloads().count() + tables.probe.payloads().count()) as u64;
        let word = word_bytes(tables);
        let output_bytes = match result {
            ResultKind::Count | ResultKind::Aggregate => 0,
            ResultKind::Pairs => 2 * word * middle.rows,
            ResultKind::Materialise => (1 + columns) * word * middle.rows,
        };
        let stages = middle.stages.iter().map(|time| (time.stage.to_string(), time.seconds));
        Ok(Measured {
            seconds: runs.seconds(),
            ran: algorithm_name(middle.algorithm).to_string(),
            device: Some(gpu_name.to_string()),
            stages: stages.collect(),
            peak_memory: runs.peak_memory(),
            output_bytes,
            crossed: middle.crossed,
        })
    }
}

/// Returns the median of ascending values.
pub fn median(ascending: &[f64]) -> f64 {
    let middle = ascending.len() / 2;
    match ascending {
        [] => f64::NAN,
        _ if ascending.len() % 2 == 1 => ascending[middle],
        _ => (ascending[middle - 1] + ascending[middle]) / 2.0,
    }
}

/// The result of a join, kept until the clock has stopped.
enum JoinResult {
    Rows(u64),
    Sums(Answer),
    Pairs(Vec<RecordBatch>),
    Batches(Vec<RecordBatch>),
}

/// Runs once to warm up, and then the timed runs. A wrong answer in any run is an error.
pub fn measure(tables: &Tables, task: &Task) -> anyhow::Result<Measured> {
    let mut runs = JoinRuns::default();
    for _ in 0..=task.repeat {
        runs.add(tables, task)?;
    }
    runs.measured()
}

/// Measures several tasks in turns: each runs once to warm up, then each runs once, and so on. If the machine
/// is slower for some time, all of them are.
pub fn measure_in_turns<const N: usize>(
    tables: &Tables,
    tasks: [&Task; N],
) -> anyhow::Result<[Measured; N]> {
    let mut all = [(); N].map(|()| JoinRuns::default());
    let rounds = tasks.iter().map(|task| task.repeat).max().unwrap_or(0);
    for round in 0..=rounds {
        for (runs, task) in all.iter_mut().zip(tasks).filter(|(_, task)| round <= task.repeat) {
            runs.add(tables, task)?;
        }
    }
    let measured = all.into_iter().map(JoinRuns::measured).collect::<anyhow::Result<Vec<_>>>()?;
    measured.try_into().map_err(|_| anyhow::anyhow!("a task was not measured"))
}

/// The runs of one task.
#[derive(Default)]
struct JoinRuns {
    warm: bool,
    /// The seconds and the report of every timed run.
    timed: Vec<(f64, Report)>,
    peak_memory: u64,
    output_bytes: u64,
}

impl JoinRuns {
    /// Runs the join once, and checks its answer. The first run is not timed.
    fn add(&mut self, tables: &Tables, task: &Task) -> anyhow::Result<()> {
        let started = Instant::now();
        let (yielded, report) = join(tables, task)?;
        let seconds = started.elapsed().as_secs_f64();
        check(tables, &yielded, task.threads)
            .with_context(|| format!("{} by {}", task.result.name(), task.algorithm_name()))?;
        self.peak_memory = self.peak_memory.max(report.peak_memory);
        self.output_bytes = match &yielded {
            JoinResult::Rows(_) | JoinResult::Sums(_) => 0,
            JoinResult::Pairs(batches) | JoinResult::Batches(batches) => bytes(batches),
        };
        if self.warm {
            self.timed.push((seconds, report));
        }
        self.warm = true;
        Ok(())
    }

    /// Summarises the timed runs.
    fn measured(mut self) -> anyhow::Result<Measured> {
        self.timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        let seconds = self.timed.iter().map(|run| run.0).collect();
        let report = &self.timed.get(self.timed.len() / 2).context("no run was timed")?.1;
        let stages = report.stages.iter().map(|s| (s.name.to_string(), s.time.as_secs_f64()));
        Ok(Measured {
            seconds,
            ran: report.plan.algorithm.to_string(),
            device: report.plan.device.gpu_name().map(str::to_string),
            stages: stages.collect(),
            peak_memory: self.peak_memory,
            output_bytes: self.output_bytes,
            crossed: [report.crossed.to_gpu, report.crossed.from_gpu],
        })
    }
}

fn join(tables: &Tables, task: &Task) -> anyhow::Result<(JoinResult, Report)> {
    let mut join = task.join();
    if task.statistics {
        for (side, table) in [(Side::Left, &tables.build), (Side::Right, &tables.probe)] {
            let statistics = Statistics::rows(table.rows()).with_bytes(table.bytes());
            join = join.statistics(side, statistics);
        }
    }
    let (build, probe) = (tables.build.reader(), tables.probe.reader());
    match task.result {
        ResultKind::Count => {
            let (rows, report) = join.count(build, probe)?;
            Ok((JoinResult::Rows(rows), report))
        }
        ResultKind::Aggregate => {
            let (answer, report) = aggregate(&join, tables)?;
            Ok((JoinResult::Sums(answer), report))
        }
        ResultKind::Pairs => {
            let (batches, report) = collect(join.pairs(build, probe)?)?;
            Ok((JoinResult::Pairs(batches), report))
        }
        ResultKind::Materialise => {
            let (batches, report) = collect(join.run(build, probe)?)?;
            Ok((JoinResult::Batches(batches), report))
        }
    }
}

/// The bytes of a word: 4 if all columns are 32 bits wide, else 8.
fn word_bytes(tables: &Tables) -> u64 {
    let fields = [&tables.build.schema, &tables.probe.schema].map(|schema| schema.fields());
    let narrow = fields.into_iter().flatten().all(|f| *f.data_type() == DataType::Int32);
    if narrow { 4 } else { 8 }
}

fn collect(mut reader: JoinReader) -> anyhow::Result<(Vec<RecordBatch>, Report)> {
    let batches = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
    Ok((batches, reader.report().context("the join ended without a report")?))
}

/// Returns the count and the sums of a join.
fn aggregate(join: &Join, tables: &Tables) -> anyhow::Result<(Answer, Report)> {
    let build = tables.build.payloads().map(|name| (Side::Left, name));
    let probe = tables.probe.payloads().map(|name| (Side::Right, name));
    let sums: Vec<_> = build.chain(probe).collect();
    let (aggregate, report) =
        join.aggregate(&sums, tables.build.reader(), tables.probe.reader())?;
    Ok((Answer { rows: aggregate.rows, sums: aggregate.sums }, report))
}

/// Compares the result with the expected answer, as far as the mode allows.
fn check(tables: &Tables, yielded: &JoinResult, threads: usize) -> anyhow::Result<()> {
    let expected = &tables.expected;
    match yielded {
        JoinResult::Rows(rows) => expected.check(&Answer { rows: *rows, sums: Vec::new() }),
        JoinResult::Sums(answer) => expected.check_all(answer),
        JoinResult::Pairs(pairs) => {
            let [build, probe] = [("left_row", &tables.build), ("right_row", &tables.probe)]
                .map(|(name, table)| sums_at(table, pairs, name));
            let rows = pairs.iter().map(|batch| batch.num_rows() as u64).sum();
            expected.check_all(&Answer { rows, sums: [build?, probe?].concat() })
        }
        JoinResult::Batches(batches) => {
            let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
            let names = tables.build.payloads().chain(tables.probe.payloads());
            let sum = |name: &str| -> anyhow::Result<i128> {
                let of_batch = |b: &RecordBatch| b.column_by_name(name).map(total);
                let totals = in_parallel(batches, threads, of_batch)?.into_iter();
                totals.sum::<Option<i128>>().with_context(|| format!("no column \"{name}\""))
            };
            let sums = names.map(sum).collect::<anyhow::Result<_>>()?;
            expected.check_all(&Answer { rows, sums })
        }
    }
}

/// Returns the sum of an integer column.
fn total(column: &ArrayRef) -> i128 {
    match column.data_type() {
        DataType::Int32 => values::<Int32Type>(column).iter().map(|&v| i128::from(v)).sum(),
        _ => values::<Int64Type>(column).iter().map(|&v| i128::from(v)).sum(),
    }
}

fn values<T: ArrowPrimitiveType>(column: &ArrayRef) -> &[T::Native] {
    column.as_primitive_opt::<T>().map_or(&[], |column| column.values())
}

/// Returns the sums of a table's payload columns over the rows whose positions are in column `name`.
fn sums_at(table: &Table, pairs: &[RecordBatch], name: &str) -> anyhow::Result<Vec<i128>> {
    let sum = |column: usize| -> anyhow::Result<i128> {
        let mut whole: Vec<i64> = Vec::with_capacity(table.rows() as usize);
        for batch in &table.batches {
            match batch.column(column).data_type() {
                DataType::Int32 => {
                    let values = values::<Int32Type>(batch.column(column));
                    whole.extend(values.iter().map(|&v| i64::from(v)));
                }
                _ => whole.extend(values::<Int64Type>(batch.column(column))),
            }
        }
        let mut sum = 0;
        for batch in pairs {
            let rows = batch.column_by_name(name).with_context(|| format!("no column {name}"))?;
            for &row in values::<UInt64Type>(rows) {
                let value = whole.get(row as usize).with_context(|| {
                    format!("wrong answer: {name} {row} of {} rows", whole.len())
                })?;
                sum += i128::from(*value);
            }
        }
        Ok(sum)
    };
    (1..table.schema.fields().len()).map(sum).collect()
}

//! Measures joins of tables in a GPU's memory, whose results stay there. Also has the code that other
//! placements share: finding the GPU, repeating runs, and checking every answer.

use anyhow::{Context, bail};
use arrow::datatypes::DataType;
use strait::Processor;
use strait::gpu::Gpu;
use strait_bench::{GpuTables, JoinRequest, MeasuredRun, ResultKind};

use super::measure::{Measured, Task};
use super::workload::{Answer, Tables};
use crate::arguments::{Choice, Mode};
use crate::failure;

/// Returns the requested GPU. If none was requested, the error says with `what` why one is needed.
pub(super) fn the_gpu(device: Processor, what: &str) -> anyhow::Result<Gpu> {
    let Processor::Gpu(number) = device else {
        bail!("{what}: --device gpu or gpu:N");
    };
    let gpus = Gpu::detect().map_err(failure::of_join)?;
    gpus.get(number).cloned().with_context(|| format!("there is no GPU {number}"))
}

/// How often a join is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Often {
    /// The number of timed runs, after one that is not timed.
    pub(super) repeat: u32,
    /// If the first run takes more seconds than this, it counts as timed, and there are no more runs.
    pub(super) patience: f64,
}

impl Often {
    pub(super) fn times(repeat: u32) -> Often {
        Often { repeat, patience: f64::INFINITY }
    }

    /// Calls `run(true)` once to warm up, and then `run(false)` for each timed run. Returns the seconds of
    /// the first run, and the timed runs, fastest first.
    pub(super) fn runs<T>(
        self,
        seconds: impl Fn(&T) -> f64,
        mut run: impl FnMut(bool) -> anyhow::Result<T>,
    ) -> anyhow::Result<(f64, Vec<T>)> {
        let warm = run(true)?;
        let first = seconds(&warm);
        let mut timed = match first > self.patience {
            true => vec![warm],
            false => (0..self.repeat).map(|_| run(false)).collect::<anyhow::Result<_>>()?,
        };
        timed.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        Ok((first, timed))
    }
}

/// The runs of a join.
pub(super) struct Runs {
    /// The seconds of the first run.
    pub(super) first: f64,
    /// The timed runs, fastest first.
    pub(super) timed: Vec<MeasuredRun>,
}

impl Runs {
    pub(super) fn seconds(&self) -> Vec<f64> {
        self.timed.iter().map(|run| run.seconds).collect()
    }

    pub(super) fn middle(&self) -> anyhow::Result<&MeasuredRun> {
        self.timed.get(self.timed.len() / 2).context("no run was timed")
    }

    pub(super) fn peak_memory(&self) -> u64 {
        self.timed.iter().map(|run| run.peak_memory).max().unwrap_or(0)
    }
}

/// Runs once to warm up, with `true`, and then the timed runs. The first run's rows are fetched and checked.
/// Of the timed runs, counts and sums are checked.
pub(super) fn repeated(
    expected: &Answer,
    often: Often,
    mut run: impl FnMut(bool) -> strait::Result<MeasuredRun>,
) -> anyhow::Result<Runs> {
    let once = |first: bool| -> anyhow::Result<MeasuredRun> {
        let ran = run(first).map_err(failure::of_join)?;
        check(expected, ran.rows, &ran.sums)?;
        Ok(ran)
    };
    let (first, timed) = often.runs(|ran: &MeasuredRun| ran.seconds, once)?;
    Ok(Runs { first, timed })
}

/// Runs a join of tables in GPU memory several times.
pub(super) fn runs(
    loaded: &GpuTables,
    expected: &Answer,
    request: &JoinRequest,
    often: Often,
) -> anyhow::Result<Runs> {
    repeated(expected, often, |check| loaded.run(request, check)).with_context(|| named(request))
}

/// Names a join in error messages.
pub(super) fn named(request: &JoinRequest) -> String {
    format!("{:?} by {}", request.result, Choice(request.algorithm))
}

/// Copies tables to a GPU.
pub(super) fn load(gpu: &Gpu, memory: Option<u64>, tables: &Tables) -> anyhow::Result<GpuTables> {
    GpuTables::load(gpu, memory, [&tables.build.batches, &tables.probe.batches])
        .map_err(failure::of_join)
}

/// Measures for `bench join --placement gpu`.
pub(super) fn on_gpu(
    gpu: &Gpu,
    loaded: &GpuTables,
    tables: &Tables,
    task: &Task,
) -> anyhow::Result<Measured> {
    let runs = runs(loaded, &tables.expected, &request(task), Often::times(task.repeat))?;
    measured(gpu, tables, task, &runs)
}

/// Returns the join of a task.
pub(super) fn request(task: &Task) -> JoinRequest {
    let result = match task.mode {
        Mode::Count => ResultKind::Count,
        Mode::Aggregate => ResultKind::Aggregate,
        Mode::Pairs => ResultKind::Pairs,
        Mode::Materialise => ResultKind::Materialise,
    };
    let (algorithm, gpu_options) = (task.algorithm.0, task.device.gpu_options());
    JoinRequest { algorithm, gpu_options, result }
}

/// Summarises runs on a GPU.
pub(super) fn measured(
    gpu: &Gpu,
    tables: &Tables,
    task: &Task,
    runs: &Runs,
) -> anyhow::Result<Measured> {
    let middle = runs.middle()?;
    let columns = (tables.build.payloads().count() + tables.probe.payloads().count()) as u64;
    let word = word_bytes(tables);
    let output_bytes = match task.mode {
        Mode::Count | Mode::Aggregate => 0,
        Mode::Pairs => 2 * word * middle.rows,
        Mode::Materialise => (1 + columns) * word * middle.rows,
    };
    Ok(Measured {
        seconds: runs.seconds(),
        ran: Choice(middle.algorithm).to_string(),
        device: Some(gpu.name.clone()),
        stages: middle.stages.iter().map(|time| (time.stage.to_string(), time.seconds)).collect(),
        peak_memory: runs.peak_memory(),
        output_bytes,
        crossed: middle.crossed,
    })
}

/// The bytes of a word: 4 if all columns are 32 bits wide, else 8.
fn word_bytes(tables: &Tables) -> u64 {
    let fields = [&tables.build.schema, &tables.probe.schema].map(|schema| schema.fields());
    let narrow = fields.into_iter().flatten().all(|f| *f.data_type() == DataType::Int32);
    if narrow { 4 } else { 8 }
}

/// Checks the answer of a GPU, whose sums are modulo 2^64.
fn check(expected: &Answer, rows: u64, sums: &[u64]) -> anyhow::Result<()> {
    let wrapped = expected.sums.iter().map(|&sum| i128::from(sum as u64)).collect();
    let expected = Answer { rows: expected.rows, sums: wrapped };
    expected.check(&Answer { rows, sums: sums.iter().map(|&sum| i128::from(sum)).collect() })
}

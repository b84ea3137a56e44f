//! Measures joins of tables that lie in a GPU's memory, with results left there.

use anyhow::{Context, bail};
use strait::resident::{Ran, Resident, Yield};
use strait::{Algorithm, Gpu, Partitioner, Processor};

use super::measure::{Measured, Task};
use super::workload::{Answer, Tables};
use crate::arguments::Mode;
use crate::failure;

/// How a join is run, and how often it is timed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Runs {
    pub(super) algorithm: Algorithm,
    pub(super) partitioner: Partitioner,
    pub(super) yields: Yield,
    pub(super) repeat: u32,
}

/// One run to warm up, whose rows are fetched and checked, then the timed ones, of which counts and
/// sums are checked. The fastest comes first.
pub(super) fn runs(resident: &Resident, tables: &Tables, how: Runs) -> anyhow::Result<Vec<Ran>> {
    let mut runs = Vec::new();
    for run in 0..=how.repeat {
        let ran = resident.run(how.algorithm, how.partitioner, how.yields, run == 0);
        let ran = ran.map_err(failure::of_join)?;
        check(&tables.expected, ran.rows, &ran.sums)
            .with_context(|| format!("{:?} by {}", how.yields, how.algorithm))?;
        if run > 0 {
            runs.push(ran);
        }
    }
    runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(runs)
}

/// Measures what `bench join --placement gpu` asks for.
pub(super) fn on_gpu(tables: &Tables, task: &Task) -> anyhow::Result<Measured> {
    let Processor::Gpu(number) = task.device.device else {
        bail!("tables in a GPU's memory are joined there: add --device gpu");
    };
    let gpus = Gpu::detect().map_err(failure::of_join)?;
    let gpu = gpus.get(number).with_context(|| format!("there is no GPU {number}"))?;
    let (build, probe) = (&tables.build.batches, &tables.probe.batches);
    let resident =
        Resident::load(gpu, task.device.gpu_memory, build, probe).map_err(failure::of_join)?;
    let yields = match task.mode {
        Mode::Count => Yield::Count,
        Mode::Aggregate => Yield::Aggregate,
        Mode::Pairs => Yield::Pairs,
        Mode::Materialise => Yield::Materialise,
    };
    let (algorithm, partitioner, repeat) = (task.algorithm, task.device.partitioner, task.repeat);
    let runs = runs(&resident, tables, Runs { algorithm, partitioner, yields, repeat })?;
    let middle = runs.get(runs.len() / 2).context("no run was timed")?;
    let columns = (tables.build.payloads().count() + tables.probe.payloads().count()) as u64;
    let width = if resident.narrow() { 4 } else { 8 };
    let output_bytes = match task.mode {
        Mode::Count | Mode::Aggregate => 0,
        Mode::Pairs => 2 * width * middle.rows,
        Mode::Materialise => (1 + columns) * width * middle.rows,
    };
    Ok(Measured {
        seconds: runs.iter().map(|run| run.seconds).collect(),
        ran: task.algorithm.to_string(),
        device: Some(gpu.name.clone()),
        stages: middle.stages.iter().map(|time| (time.stage.to_string(), time.seconds)).collect(),
        peak_memory: runs.iter().map(|run| run.peak_memory).max().unwrap_or(0),
        output_bytes,
    })
}

/// Sums on the GPU are modulo 2^64.
fn check(expected: &Answer, rows: u64, sums: &[u64]) -> anyhow::Result<()> {
    let wrapped = expected.sums.iter().map(|&sum| i128::from(sum as u64)).collect();
    let expected = Answer { rows: expected.rows, sums: wrapped };
    expected.check(&Answer { rows, sums: sums.iter().map(|&sum| i128::from(sum)).collect() })
}

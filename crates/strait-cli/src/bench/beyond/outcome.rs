//! What one join of `strait bench beyond` came to: time, bytes over the link, stages.

use crate::arguments::Choice;
use strait::resident::{Timed, Yield};

use super::super::measure::{Measured, median};
use super::super::on_gpu::Runs;

/// What a measured join came to.
pub(super) struct Outcome {
    /// The algorithm that ran.
    pub(super) ran: String,
    pub(super) output_rows: u64,
    /// The median of the timed runs.
    pub(super) seconds: f64,
    /// The first run, where the memory it goes through is still to be had; None where it was
    /// held up by checking rows.
    pub(super) cold: Option<f64>,
    pub(super) crossed: [u64; 2],
    /// Of the run in the middle: names, seconds, bytes.
    pub(super) stages: Vec<(String, f64, u64)>,
    /// GPU memory, or the join's own on the CPU.
    pub(super) peak_memory: u64,
}

impl Outcome {
    pub(super) fn on_gpu(runs: &Runs, yields: Yield) -> anyhow::Result<Outcome> {
        let middle = runs.middle()?;
        let checked = matches!(yields, Yield::Pairs | Yield::Materialise);
        let stage = |stage: &Timed| (stage.stage.to_string(), stage.seconds, stage.bytes);
        Ok(Outcome {
            ran: Choice(middle.algorithm).to_string(),
            output_rows: middle.rows,
            seconds: median(&runs.seconds()),
            cold: (!checked).then_some(runs.first),
            crossed: middle.crossed,
            stages: middle.stages.iter().map(stage).collect(),
            peak_memory: runs.peak_memory(),
        })
    }

    pub(super) fn on_cpu(measured: &Measured, output_rows: u64) -> Outcome {
        let stages = measured.stages.iter().map(|(name, seconds)| (name.clone(), *seconds, 0));
        Outcome {
            ran: measured.ran.clone(),
            output_rows,
            seconds: measured.median(),
            cold: None,
            crossed: [0; 2],
            stages: stages.collect(),
            peak_memory: measured.peak_memory,
        }
    }

    /// Tuples a second.
    pub(super) fn rate(&self, rows: [u64; 2]) -> f64 {
        (rows[0] + rows[1]) as f64 / self.seconds.max(1e-12)
    }

    /// Bytes a second over the link, to the GPU and back.
    pub(super) fn link(&self) -> [f64; 2] {
        self.crossed.map(|bytes| bytes as f64 / self.seconds.max(1e-12))
    }

    /// Bytes a second the busier way.
    pub(super) fn busier(&self) -> f64 {
        self.link().into_iter().fold(0.0, f64::max)
    }

    /// Stages in words.
    pub(super) fn stages(&self) -> String {
        let stages = self.stages.iter().map(|(name, seconds, _)| format!("{name} {seconds:.3} s"));
        stages.collect::<Vec<_>>().join(", ")
    }
}

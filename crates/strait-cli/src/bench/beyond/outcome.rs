//! The outcome of one join of `strait bench beyond`: time, bytes over the link, stages.

use crate::arguments::Choice;
use strait_bench::measure::{Measured, median};
use strait_bench::runs::Runs;
use strait_bench::{ResultKind, Timed};

/// The outcome of a measured join.
pub(super) struct Outcome {
    /// The algorithm that ran.
    pub(super) ran: String,
    pub(super) output_rows: u64,
    /// The median of the timed runs.
    pub(super) seconds: f64,
    /// The first run, in which memory must still be allocated. None if checking the rows slowed it down.
    pub(super) cold: Option<f64>,
    pub(super) crossed: [u64; 2],
    /// The stages of the median run: names, seconds, bytes.
    pub(super) stages: Vec<(String, f64, u64)>,
    /// The peak of GPU memory, or of the join's own memory on the CPU.
    pub(super) peak_memory: u64,
}

impl Outcome {
    pub(super) fn on_gpu(runs: &Runs, result: ResultKind) -> anyhow::Result<Outcome> {
        let middle = runs.middle()?;
        let checked = matches!(result, ResultKind::Pairs | ResultKind::Materialise);
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

    /// Tuples per second.
    pub(super) fn rate(&self, rows: [u64; 2]) -> f64 {
        (rows[0] + rows[1]) as f64 / self.seconds.max(1e-12)
    }

    /// Bytes per second over the link, to the GPU and back.
    pub(super) fn link(&self) -> [f64; 2] {
        self.crossed.map(|bytes| bytes as f64 / self.seconds.max(1e-12))
    }

    /// Bytes per second in the busier direction.
    pub(super) fn busier(&self) -> f64 {
        self.link().into_iter().fold(0.0, f64::max)
    }

    /// Formats the stages as text.
    pub(super) fn stages(&self) -> String {
        let stages = self.stages.iter().map(|(name, seconds, _)| format!("{name} {seconds:.3} s"));
        stages.collect::<Vec<_>>().join(", ")
    }
}

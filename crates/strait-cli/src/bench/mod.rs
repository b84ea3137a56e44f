//! `strait bench`: how fast joins are, beside other engines, and as tables grow.
//!
//! ```text
//!  shape ─► workload (tables, expected answer) ─► measure ─► figures ─► table, CSV, JSON
//!                  │ files                            ▲
//!                  └─► compare: an engine a process ──┘ scale: a series of shapes ─► plot
//! ```

mod aligned;
mod compare;
mod engine;
mod environment;
mod figures;
mod gpu;
mod hard;
mod join;
mod machine;
mod measure;
mod on_gpu;
mod plot;
mod record;
mod scale;
mod suite;
mod workload;

use crate::arguments::{Bench, BenchArguments};

pub(crate) use gpu::names as gpu_workload_names;
pub(crate) use suite::names as workload_names;

/// Runs the command.
pub(crate) fn run(arguments: &BenchArguments) -> anyhow::Result<()> {
    match &arguments.what {
        Bench::Join(arguments) => join::run(arguments),
        Bench::Compare(arguments) => compare::run(arguments),
        Bench::Scale(arguments) => scale::run(arguments),
        Bench::Gpu(arguments) => gpu::run(arguments),
    }
}

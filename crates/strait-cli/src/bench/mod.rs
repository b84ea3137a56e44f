//! `strait bench`: measures joins, compares them with other engines, and shows how their cost grows.
//!
//! ```text
//!  shape ─► workload (tables, expected answer) ─► measure ─► figures ─► table, CSV, JSON
//!                  │ files                            ▲
//!                  └─► compare: a process per engine ─┘ scale: a series of shapes ─► plot
//! ```
//!
//! `tpch` measures SQL queries in DataFusion sessions. [`jobs`] and [`limits`] measure whole jobs instead: processes that read files and write a file. [`process`] measures
//! them from outside.
//!
//! The crate `strait-bench` generates the tables, measures and checks. This module parses what to measure,
//! and prints and records the figures. On a GPU, [`load`] copies tables to GPU memory (`gpu`), or to host
//! memory that the GPU reads (`transfer`, `beyond`).

mod aligned;
mod auto;
mod beyond;
mod compare;
mod engine;
mod environment;
mod figures;
mod gpu;
mod jobs;
mod join;
mod limits;
mod load;
mod process;
mod record;
mod scale;
mod stream;
mod suite;
mod temporary;
#[cfg(feature = "sql")]
mod tpch;
mod transfer;

use crate::arguments::{Bench, BenchArguments};

pub(crate) use beyond::{line_names as beyond_line_names, names as beyond_workload_names};
pub(crate) use gpu::names as gpu_workload_names;
pub(crate) use jobs::names as job_names;
pub(crate) use suite::names as workload_names;

/// Runs the command.
pub(crate) fn run(arguments: &BenchArguments) -> anyhow::Result<()> {
    match &arguments.what {
        Bench::Join(arguments) => join::run(arguments),
        Bench::Compare(arguments) => compare::run(arguments),
        Bench::Jobs(arguments) => jobs::run(arguments),
        Bench::Digest(arguments) => jobs::digest(arguments),
        Bench::Scale(arguments) => scale::run(arguments),
        Bench::Gpu(arguments) => gpu::run(arguments),
        Bench::Transfer(arguments) => transfer::run(arguments),
        Bench::Beyond(arguments) => beyond::run(arguments),
        Bench::Auto(arguments) => auto::run(arguments),
        Bench::Stream(arguments) => stream::run(arguments),
        Bench::Spill(arguments) => limits::run(arguments),
        #[cfg(feature = "sql")]
        Bench::Tpch(arguments) => tpch::run(arguments),
        #[cfg(not(feature = "sql"))]
        Bench::Tpch(_) => anyhow::bail!(crate::arguments::WITHOUT_SQL),
    }
}

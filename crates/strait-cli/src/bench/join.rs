//! `strait bench join`: one workload, one mode, some algorithms.

use anyhow::bail;
use strait::Processor;

use super::figures::{Figures, shown};
use super::machine::resident;
use super::measure::{Task, measure};
use super::on_gpu::on_gpu;
use super::workload::Tables;
use crate::arguments::{BenchJoinArguments, Placement};
use crate::generate::Shape;
use crate::join::cores;
use crate::output::print;

/// Runs the command.
pub(super) fn run(arguments: &BenchJoinArguments) -> anyhow::Result<()> {
    let placement = check(arguments)?;
    let threads = arguments.threads.unwrap_or_else(cores);
    let tables = match &arguments.workload_dir {
        Some(folder) => Tables::read(folder)?,
        None => Tables::generate(shape(arguments), arguments.batch_rows, cores())?,
    };
    let loaded = resident().0;
    let mut figures = Vec::new();
    for &algorithm in &arguments.algorithm {
        let device = arguments.device.clone();
        let task =
            Task { mode: arguments.mode, algorithm, threads, repeat: arguments.repeat, device };
        log::info!("{} by {algorithm}, {} runs", task.mode.name(), task.repeat);
        let measured = match placement {
            Placement::Gpu => on_gpu(&tables, &task)?,
            _ => measure(&tables, &task)?,
        };
        figures.push(Figures::new(&tables, &task, &measured, loaded));
    }
    print(&shown(&figures, arguments.format)?)
}

/// Where the tables are to lie, if that can be had.
fn check(arguments: &BenchJoinArguments) -> anyhow::Result<Placement> {
    let placement = arguments.placement.placement.unwrap_or(Placement::Pageable);
    if let Some(method) = &arguments.placement.transfer {
        bail!(
            "there is no transfer method \"{method}\" yet: tables are staged; leave out --transfer"
        );
    }
    match (placement, arguments.device.device) {
        (Placement::Pinned, _) => {
            bail!("tables are not joined from pinned memory yet; use --placement pageable or gpu")
        }
        (Placement::Gpu, Processor::Cpu | Processor::Auto) => {
            bail!("--placement gpu keeps the tables in a GPU's memory: add --device gpu")
        }
        (placement, _) => Ok(placement),
    }
}

fn shape(arguments: &BenchJoinArguments) -> Shape {
    Shape {
        build: arguments.build.unwrap_or(0),
        probe: arguments.probe.unwrap_or(0),
        key_type: arguments.key_type(),
        keys: arguments.keys,
        skew: arguments.skew,
        selectivity: arguments.selectivity,
        duplicates: arguments.duplicates,
        payload_bytes: arguments.payload_bytes,
        payload_columns: arguments.payload_columns,
        seed: arguments.seed,
    }
}

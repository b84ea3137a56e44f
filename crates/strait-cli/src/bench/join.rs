//! `strait bench join`: one workload, one mode, some algorithms.

use anyhow::bail;

use super::figures::{Figures, shown};
use super::machine::resident;
use super::measure::{Task, measure};
use super::workload::Tables;
use crate::arguments::{BenchJoinArguments, Device, DeviceArguments};
use crate::generate::Shape;
use crate::join::cores;
use crate::output::print;

/// Runs the command.
pub(super) fn run(arguments: &BenchJoinArguments) -> anyhow::Result<()> {
    check(&arguments.device)?;
    let threads = arguments.threads.unwrap_or_else(cores);
    let tables = match &arguments.workload_dir {
        Some(folder) => Tables::read(folder)?,
        None => Tables::generate(shape(arguments), arguments.batch_rows, cores())?,
    };
    let loaded = resident().0;
    let mut figures = Vec::new();
    for &algorithm in &arguments.algorithm {
        let task = Task { mode: arguments.mode, algorithm, threads, repeat: arguments.repeat };
        log::info!("{} by {algorithm}, {} runs", task.mode.name(), task.repeat);
        let measured = measure(&tables, &task)?;
        figures.push(Figures::new(&tables, &task, &measured, loaded));
    }
    print(&shown(&figures, arguments.format)?)
}

/// Joins run on the CPU so far.
fn check(device: &DeviceArguments) -> anyhow::Result<()> {
    let asked = [
        ("--device gpu", device.device == Device::Gpu),
        ("--placement", device.placement.is_some()),
        ("--gpu-memory", device.gpu_memory.is_some()),
        ("--transfer", device.transfer.is_some()),
    ];
    match asked.iter().find(|(_, asked)| *asked) {
        Some((flag, _)) => {
            bail!("no GPU support in this build yet; leave out {flag} to measure the CPU")
        }
        None => Ok(()),
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

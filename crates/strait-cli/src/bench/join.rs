//! `strait bench join`: one workload, one mode, one or more algorithms.

use anyhow::bail;
use strait::Processor;
use strait::gpu::Gpu;
use strait_bench::GpuTables;
use strait_bench::machine::resident;
use strait_bench::measure::{Measured, Task, measure};
use strait_bench::runs::Often;
use strait_bench::workload::{KeyType, Shape, Tables};
use strait_bench::{HostPlacement, HostTables};

use super::figures::{Figures, shown};
use super::load::{self, the_gpu};
use crate::arguments::{BenchJoinArguments, Placement};
use crate::join::cores;
use crate::output::print;

/// The requested placement of the tables.
enum Place {
    /// In Arrow tables: the whole join is measured, including Arrow.
    Arrow,
    Gpu(Gpu),
    Host(Gpu, HostPlacement),
}

/// The tables after they were copied to their placement.
enum Placed {
    Arrow,
    Gpu(Gpu, Box<GpuTables>),
    Host(Gpu, Box<HostTables>),
}

/// Runs the command.
pub(super) fn run(arguments: &BenchJoinArguments) -> anyhow::Result<()> {
    let place = place(arguments)?;
    let threads = arguments.threads.unwrap_or_else(cores);
    let tables = match &arguments.workload_dir {
        Some(folder) => Tables::read(folder)?,
        None => Tables::generate(shape(arguments), arguments.batch_rows, cores())?,
    };
    let loaded = resident().0;
    let placed = place.load(arguments.device.gpu_memory, threads, &tables)?;
    let mut figures = Vec::new();
    for &algorithm in &arguments.algorithm {
        let device = &arguments.device;
        let task = Task {
            result: arguments.mode.result(),
            algorithm: algorithm.0,
            threads,
            repeat: arguments.repeat,
            device: device.device,
            gpu_memory: device.gpu_memory,
            gpu_options: device.gpu_options(),
            statistics: false,
        };
        log::info!("{} by {algorithm}, {} runs", task.result.name(), task.repeat);
        let measured = placed.measure(&tables, &task)?;
        figures.push(Figures::new(&tables, &task, &measured, loaded));
    }
    print(&shown(&figures, arguments.format)?)
}

/// Returns the requested placement, or an error if it is not available. Called before any table is made.
fn place(arguments: &BenchJoinArguments) -> anyhow::Result<Place> {
    let on_gpu = matches!(arguments.device.device, Processor::Gpu(_));
    let Some(placement) = arguments.placement else { return Ok(Place::Arrow) };
    let host = match placement {
        Placement::Gpu if !on_gpu => {
            bail!("--placement gpu keeps the tables in a GPU's memory: add --device gpu")
        }
        Placement::Pinned if !on_gpu => {
            bail!("--placement pinned keeps the tables in memory for a GPU: add --device gpu")
        }
        // The CPU joins Arrow tables, which are in pageable memory anyway.
        Placement::Pageable if !on_gpu => return Ok(Place::Arrow),
        Placement::Gpu => None,
        Placement::Pinned => Some(HostPlacement::Pinned),
        Placement::Pageable => Some(HostPlacement::Pageable),
    };
    if host.is_some() && arguments.workload_dir.is_none() {
        if arguments.key_type() == KeyType::String {
            bail!(
                "--placement pinned and pageable measure integer keys: --key-type int64 or int32"
            );
        }
        if arguments.payload_columns > 1 {
            bail!(
                "--placement pinned and pageable measure one payload column: --payload-columns 1"
            );
        }
    }
    let gpu = the_gpu(arguments.device.device, "--placement is for joins on a GPU")?;
    Ok(host.map_or(Place::Gpu(gpu.clone()), |placement| Place::Host(gpu, placement)))
}

impl Place {
    fn load(self, memory: Option<u64>, threads: usize, tables: &Tables) -> anyhow::Result<Placed> {
        Ok(match self {
            Place::Arrow => Placed::Arrow,
            Place::Gpu(gpu) => {
                let loaded = load::in_gpu_memory(&gpu, memory, tables)?;
                Placed::Gpu(gpu, Box::new(loaded))
            }
            Place::Host(gpu, placement) => {
                let loaded = load::in_host_memory(&gpu, memory, placement, threads, tables)?;
                Placed::Host(gpu, Box::new(loaded))
            }
        })
    }
}

impl Placed {
    fn measure(&self, tables: &Tables, task: &Task) -> anyhow::Result<Measured> {
        let often = Often::times(task.repeat);
        match self {
            Placed::Arrow => measure(tables, task),
            Placed::Gpu(gpu, loaded) => {
                let runs = loaded.runs(&tables.expected, &task.request(), often)?;
                Measured::on_gpu(&gpu.name, tables, task.result, &runs)
            }
            Placed::Host(gpu, loaded) => {
                let runs = loaded.runs(&tables.expected, &task.request(), often)?;
                Measured::on_gpu(&gpu.name, tables, task.result, &runs)
            }
        }
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

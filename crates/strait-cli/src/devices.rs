//! `strait devices`: lists the GPUs, and compiles their kernels.

use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::{Value, json};
use strait::gpu::{Architecture, Gpu, Nvrtc};

use crate::arguments::{DevicesArguments, ListFormat};
use crate::digits::counted;
use crate::failure::Told;
use crate::output::print;

/// Runs the command.
pub(crate) fn run(arguments: &DevicesArguments) -> anyhow::Result<()> {
    if arguments.compile {
        return compile(&arguments.arch);
    }
    // Neither a missing GPU nor a missing compiler is a failure: the user asked for this information.
    let (gpus, compiler) = (Gpu::detect(), Nvrtc::find());
    match arguments.format {
        ListFormat::Table => print(&table(&gpus, &compiler)),
        ListFormat::Json => print(&format!("{:#}\n", json(&gpus, &compiler))),
    }
}

fn table(gpus: &strait::Result<Vec<Gpu>>, compiler: &strait::Result<Nvrtc>) -> String {
    let mut rows: Vec<(String, String)> = Vec::new();
    match gpus {
        Ok(gpus) => gpus.iter().for_each(|gpu| rows.extend(properties(gpu))),
        Err(error) => rows.push(("GPU".into(), none(error))),
    }
    let compiler = match compiler {
        Ok(found) => {
            let path = found.path().map_or("unknown".into(), |path| path.display().to_string());
            format!("{}, {path}", version(found.version()))
        }
        Err(error) => error.to_string(),
    };
    rows.push(("NVRTC".into(), compiler));
    let cache = strait::gpu::kernel_cache();
    rows.push(("kernels".into(), cache.map_or("not kept".into(), |at| at.display().to_string())));
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

fn properties(gpu: &Gpu) -> Vec<(String, String)> {
    let free = match gpu.free_memory() {
        Ok(free) => format!("{} free", strait::bytes(free)),
        Err(error) => format!("free memory unknown: {error}"),
    };
    let driver = match &gpu.driver_release {
        Some(release) => format!("{release}, for CUDA {}", version(gpu.driver)),
        None => format!("for CUDA {}", version(gpu.driver)),
    };
    let link = gpu.link.map_or("unknown".to_string(), |link| link.to_string());
    let row = |name: &str, value: String| (format!("  {name}"), value);
    let can = |can: bool| if can { "yes" } else { "no" }.to_string();
    let mapped = match (gpu.virtual_memory, gpu.host_virtual_memory) {
        (true, true) => "GPU memory and host memory, in one range of addresses",
        (true, false) => "only GPU memory",
        (false, _) => "none",
    };
    vec![
        (format!("GPU {}", gpu.ordinal), gpu.name.clone()),
        row("architecture", gpu.architecture.to_string()),
        row("memory", format!("{}, {free}", strait::bytes(gpu.memory))),
        row("multiprocessors", gpu.processors.to_string()),
        row("l2 cache", strait::bytes(gpu.l2)),
        row("shared memory", format!("{} per block", strait::bytes(gpu.shared_memory))),
        row("link", format!("{link} at {}", gpu.bus)),
        row("driver", driver),
        row("pageable access", can(gpu.pageable_access)),
        row("managed access", can(gpu.managed_access)),
        row("mapped memory", mapped.to_string()),
    ]
}

fn json(gpus: &strait::Result<Vec<Gpu>>, compiler: &strait::Result<Nvrtc>) -> Value {
    let gpu = |gpu: &Gpu| {
        json!({
            "ordinal": gpu.ordinal,
            "name": gpu.name,
            "architecture": gpu.architecture.to_string(),
            "memory": gpu.memory,
            "free_memory": gpu.free_memory().ok(),
            "multiprocessors": gpu.processors,
            "l2": gpu.l2,
            "shared_memory": gpu.shared_memory,
            "bus": gpu.bus,
            "link_generation": gpu.link.map(|link| link.generation),
            "link_lanes": gpu.link.map(|link| link.lanes),
            "driver": gpu.driver_release,
            "driver_cuda": version(gpu.driver),
            "pageable_access": gpu.pageable_access,
            "managed_access": gpu.managed_access,
            "virtual_memory": gpu.virtual_memory,
            "host_virtual_memory": gpu.host_virtual_memory,
        })
    };
    let compiler = match compiler {
        Ok(found) => json!({ "version": version(found.version()), "path": found.path() }),
        Err(error) => json!({ "missing": error.to_string() }),
    };
    json!({
        "gpus": gpus.as_ref().map_or(Vec::new(), |gpus| gpus.iter().map(gpu).collect()),
        "no_gpu": gpus.as_ref().err().map(|error| error.to_string()),
        "nvrtc": compiler,
        "kernel_cache": strait::gpu::kernel_cache(),
    })
}

fn compile(named: &[Architecture]) -> anyhow::Result<()> {
    let architectures: BTreeSet<Architecture> = match named {
        [] => match Gpu::detect() {
            Ok(gpus) => gpus.iter().map(|gpu| gpu.architecture).collect(),
            Err(error) => {
                return Err(Told(format!(
                    "{error}; `--arch sm_90` compiles for a named architecture without one"
                ))
                .into());
            }
        },
        named => named.iter().copied().collect(),
    };
    for architecture in architectures {
        let (mut count, started, mut failed) = (0, Instant::now(), None);
        let each = &mut |kernel: &strait::gpu::CompiledKernel| {
            let line = format!(
                "{architecture}  {:<20}  {} B words  {:>10}  {:>7.3} s{}\n",
                kernel.module,
                kernel.word_bytes,
                strait::bytes(kernel.bytes),
                kernel.elapsed.as_secs_f64(),
                if kernel.kept { "  compiled before" } else { "" },
            );
            count += 1;
            failed = failed.take().or(print(&line).err());
        };
        strait::gpu::compile_kernels(architecture, each)?;
        // If stdout is closed, the kernels were compiled nevertheless.
        failed.map_or(Ok(()), Err)?;
        let (modules, seconds) = (counted(count, "module"), started.elapsed().as_secs_f64());
        print(&format!("{architecture}  {modules} in {seconds:.3} s\n"))?;
    }
    Ok(())
}

/// Returns only the reason: the row already says what it is about.
fn none(error: &strait::Error) -> String {
    match error {
        strait::Error::NoGpu { why } => format!("none: {why}; without a GPU, joins run on the CPU"),
        other => format!("none: {other}"),
    }
}

fn version((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

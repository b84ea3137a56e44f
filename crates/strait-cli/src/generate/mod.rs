//! `strait generate`: generates tables to test joins with.

mod parts;
mod tpch;
mod workload;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::arguments::{GenerateArguments, Target};
use crate::busy::Busy;
use crate::digits::counted;
use crate::join::cores;
use crate::memory::Memory;
use crate::output::{Aside, Destination, Sink, SinkOptions};

use parts::each_part;
pub(crate) use tpch::write as write_tpch;

/// Runs the command.
pub(crate) fn run(arguments: &GenerateArguments) -> anyhow::Result<()> {
    match &arguments.target {
        Target::Tpch(arguments) => tpch::run(arguments),
        Target::Workload(arguments) => workload::run(arguments),
    }
}

/// Creates the folder, and the folders in the names. Rejects existing files before any file is written.
fn prepare(folder: &Path, names: &[String], overwrite: bool) -> anyhow::Result<Vec<PathBuf>> {
    let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    let folders: BTreeSet<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
    for folder in folders {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make folder {}", folder.display()))?;
    }
    paths.iter().try_for_each(|path| Aside::check(path, overwrite))?;
    Ok(paths)
}

/// A table that is generated in independent parts.
struct Parts<F> {
    schema: SchemaRef,
    count: usize,
    /// Makes the batches of a part and sends them, until `send` returns false.
    make: F,
}

/// Makes the parts on `threads` threads, and writes them in order to one file.
fn write_parts<F>(
    path: &Path,
    parts: Parts<F>,
    overwrite: bool,
    threads: Option<usize>,
) -> anyhow::Result<u64>
where
    F: Fn(usize, &dyn Fn(RecordBatch) -> bool) -> anyhow::Result<()> + Sync,
{
    let started = Instant::now();
    let threads = threads.unwrap_or_else(cores);
    let destination: Destination =
        path.to_string_lossy().parse().map_err(|why: String| anyhow::anyhow!(why))?;
    let options = SinkOptions {
        overwrite,
        compression: None,
        threads,
        row_group_rows: None,
        memory: Memory::new(None),
        busy: Busy::default(),
    };
    let sink = Sink::open(&destination, options, &parts.schema)?;
    let rows = AtomicU64::new(0);
    each_part(parts.count, threads, |part| {
        let batches = RefCell::new(Vec::new());
        (parts.make)(part, &|batch: RecordBatch| {
            rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
            batches.borrow_mut().push(batch);
            true
        })?;
        sink.write_part(part as u64, &batches.into_inner())
    })?;
    sink.finish()?;
    let rows = rows.into_inner();
    let seconds = started.elapsed().as_secs_f64();
    log::debug!("{}: {} in {seconds:.2} s", path.display(), counted(rows, "row"));
    Ok(rows)
}

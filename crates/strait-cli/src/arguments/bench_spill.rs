//! The arguments of `strait bench spill`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::generate::rows;
use super::jobs::PythonArguments;
use super::join::threads;
use super::size;

/// Measures joins that do not fit their memory limit, beside DuckDB
///
/// Two generated Parquet files are joined into a third one: first without a limit, then under each limit. Every run is
/// a process of its own, and engines run in turns. All files lie in one temporary folder, which should be on a disk.
/// CPU time, peak memory and written bytes are measured from outside, and so is Strait's time. DuckDB's time does not
/// include its start. In the first round under each limit, the output rows are compared by value.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait bench spill
  strait bench spill --rows 2^22 --limits 200MiB,50MiB --repeat 1 --temp-dir /disk/tmp
  strait bench spill --engines strait --limits 300MB")]
pub(crate) struct BenchSpillArguments {
    /// The rows of each table
    #[arg(long, value_name = "N", default_value = "20_000_000", value_parser = rows)]
    pub(crate) rows: u64,

    /// How many Int64 columns each table has besides its key
    #[arg(long, value_name = "C", default_value = "3")]
    pub(crate) payload_columns: u16,

    /// The memory limits
    #[arg(
        long, value_name = "SIZES", value_delimiter = ',', value_parser = size::parse,
        default_value = "2GiB,1600MiB,1200MiB,800MiB,600MB,300MB,150MB"
    )]
    pub(crate) limits: Vec<u64>,

    /// Which engines [default: all]. Strait always runs; with `strait` alone, no Python is needed
    #[arg(long, value_enum, value_name = "ENGINES", value_delimiter = ',')]
    pub(crate) engines: Vec<SpillEngine>,

    /// How many threads each engine has [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    /// How many runs are timed; the median counts
    #[arg(long, value_name = "R", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,

    /// The folder for all files [default: the system's folder for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) temp_dir: Option<PathBuf>,

    /// The folder for the record and the plot; it is created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "benchmarks/record")]
    pub(crate) out: PathBuf,

    #[command(flatten)]
    pub(crate) python: PythonArguments,
}

/// An engine that can write rows to disk if a join does not fit its memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SpillEngine {
    Strait,
    #[value(name = "duckdb")]
    DuckDb,
}

impl BenchSpillArguments {
    /// Returns the engines that run, Strait first.
    pub(crate) fn entrants(&self) -> Vec<SpillEngine> {
        let chosen = |engine: &SpillEngine| {
            *engine == SpillEngine::Strait
                || self.engines.is_empty()
                || self.engines.contains(engine)
        };
        SpillEngine::value_variants().iter().copied().filter(chosen).collect()
    }
}

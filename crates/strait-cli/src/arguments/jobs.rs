//! The arguments of `strait bench jobs`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use strait::Processor;

use super::bench::Engine;
use super::device::processor;
use super::generate::scale;
use super::join::{Source, threads};

/// Compares whole jobs with other engines: files in, a file out
///
/// Every run of every engine is a process of its own, and engines run in turns. Files lie in memory, in a
/// temporary folder under /dev/shm if there is room. The clock of another engine starts after its import; Strait's
/// time includes the start of its process. The rows that each engine writes are read back in the first round and
/// compared by value. Other engines are Python packages. The first run installs them into a virtual environment in
/// the user's cache folder, unless --python names an interpreter that has them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait bench jobs
  strait bench jobs --scale 10 --threads 16 --jobs four,all-snappy,count
  strait bench jobs --engines duckdb --jobs anti-csv --repeat 1 --out /tmp/record
  strait bench jobs --engines strait --scale 0.1
  strait bench jobs --python ~/engines/bin/python --device cpu,gpu,auto")]
pub(crate) struct JobsArguments {
    /// The TPC-H scale factor: 1 is 1.5 million orders and 6 million line items
    #[arg(long, default_value = "1", value_parser = scale)]
    pub(crate) scale: f64,

    /// Which jobs [default: all nine]
    #[arg(long, value_name = "JOBS", value_delimiter = ',', value_parser = job())]
    pub(crate) jobs: Vec<String>,

    /// Which engines [default: all]. Strait always runs; with `strait` alone, no Python is needed
    #[arg(long, value_enum, value_name = "ENGINES", value_delimiter = ',')]
    pub(crate) engines: Vec<JobEngine>,

    /// The processors on which Strait runs, one row of the table each [default: cpu,gpu,auto if there is a GPU,
    /// otherwise auto]
    #[arg(long, value_name = "DEVICES", value_delimiter = ',', value_parser = processor)]
    pub(crate) device: Vec<Processor>,

    /// How many threads each engine has [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    /// How many runs are timed; the median counts
    #[arg(long, value_name = "R", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,

    /// Does not read back what the engines write
    #[arg(long)]
    pub(crate) no_check: bool,

    /// The folder for the record; it is created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "benchmarks/record")]
    pub(crate) out: PathBuf,

    #[command(flatten)]
    pub(crate) python: PythonArguments,
}

/// The Python interpreter of the other engines.
#[derive(Debug, Args)]
pub(crate) struct PythonArguments {
    /// A Python interpreter that has the engines; the environment variable STRAIT_PYTHON does the same [default: a
    /// virtual environment, which the first run installs]
    #[arg(long, value_name = "FILE")]
    pub(crate) python: Option<PathBuf>,
}

/// An engine that can run whole jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum JobEngine {
    Strait,
    #[value(name = "duckdb")]
    DuckDb,
    Polars,
    #[value(name = "datafusion")]
    DataFusion,
}

impl JobsArguments {
    /// The chosen engines other than Strait.
    pub(crate) fn peers(&self) -> Vec<Engine> {
        let all = [
            (JobEngine::DuckDb, Engine::DuckDb),
            (JobEngine::Polars, Engine::Polars),
            (JobEngine::DataFusion, Engine::DataFusion),
        ];
        let chosen = |engine| self.engines.is_empty() || self.engines.contains(&engine);
        all.into_iter().filter(|&(engine, _)| chosen(engine)).map(|(_, peer)| peer).collect()
    }
}

/// Prints a digest of a table's values, which does not depend on the order of rows
///
/// `strait bench jobs` runs this on the files that engines wrote. The digest is one JSON object.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait bench digest joined.parquet
  strait join a.parquet b.parquet --on id -o - | strait bench digest -")]
pub(crate) struct DigestArguments {
    /// The table: a file, a folder, a quoted glob, or - for an Arrow IPC stream on stdin
    pub(crate) table: Source,
}

fn job() -> PossibleValuesParser {
    PossibleValuesParser::new(crate::bench::job_names())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        jobs: JobsArguments,
    }

    fn read(flags: &str) -> Result<JobsArguments, String> {
        let words = std::iter::once("line").chain(flags.split_whitespace());
        Line::try_parse_from(words).map(|line| line.jobs).map_err(|error| error.to_string())
    }

    #[test]
    fn strait_alone_has_no_peers() {
        assert_eq!(read("").unwrap().peers().len(), 3);
        assert!(read("--engines strait").unwrap().peers().is_empty());
        let some = read("--engines datafusion,duckdb").unwrap().peers();
        assert_eq!(some, [Engine::DuckDb, Engine::DataFusion]);
    }

    #[test]
    fn devices_and_jobs_are_lists() {
        let jobs = read("--device cpu,gpu:1,auto --jobs count,four --repeat 5").unwrap();
        assert_eq!(jobs.device, [Processor::Cpu, Processor::Gpu(1), Processor::Auto]);
        assert_eq!((jobs.jobs.len(), jobs.repeat, jobs.scale), (2, 5, 1.0));
        assert!(read("--jobs five").unwrap_err().contains("all-zstd"));
        assert!(read("--engines pyarrow").unwrap_err().contains("datafusion"));
    }
}

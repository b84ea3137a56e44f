//! The arguments of `strait bench tpch`.

use std::path::PathBuf;

use clap::Args;

use super::join::threads;
use super::size;

/// Measures the 22 queries of TPC-H in `strait sql`, and in DataFusion without Strait
///
/// The tables are Parquet files: generated in a temporary folder, or those of --data. Both engines run in this process,
/// in turns, with the same number of threads and the same memory limit. Strait runs a query as `strait sql` does, and
/// DataFusion has its default settings. Each time includes planning. In the first round, the rows of both engines are
/// compared by value. This command needs a build with the feature `sql`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait bench tpch
  strait bench tpch --scale 10 --repeat 3 --temp-dir /disk/tmp
  strait bench tpch --queries 18,21 --memory 512MiB
  strait bench tpch --data tpch/sf1     # files of `strait generate tpch --scale 1 --out tpch/sf1`")]
// A build without SQL only parses them.
#[cfg_attr(not(feature = "sql"), allow(dead_code))]
pub(crate) struct BenchTpchArguments {
    /// The scale factor of the generated tables; 1 is about 1 GB of text
    #[arg(long, value_name = "F", default_value = "1", conflicts_with = "data")]
    pub(crate) scale: f64,

    /// A folder with the eight Parquet files, instead of generated ones
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// Which queries [default: all]
    #[arg(
        long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=22)
    )]
    pub(crate) queries: Vec<u8>,

    /// The memory limit of each session. Rows that do not fit go to temporary files [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) memory: Option<u64>,

    /// How many threads each engine has [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    /// The number of timed runs per query; the result is the median
    #[arg(long, value_name = "R", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,

    /// The folder for all files [default: the system's folder for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) temp_dir: Option<PathBuf>,

    /// The folder for the record; it is created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "benchmarks/record")]
    pub(crate) out: PathBuf,
}

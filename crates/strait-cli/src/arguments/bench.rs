//! The arguments of `strait bench`.

use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
use strait::{Partitioner, Processor};
use strait_bench::ResultKind;
use strait_bench::workload::{KeyType, Keys, Skew};

use super::bench_spill::BenchSpillArguments;
use super::bench_tpch::BenchTpchArguments;
use super::beyond::{BeyondArguments, TransferArguments};
use super::device::{Choice, DeviceArguments, algorithm_in_memory, partitioner_on_gpu, processor};
use super::generate::{key_type, keys, rows, share};
use super::jobs::{DigestArguments, JobsArguments, PythonArguments};
use super::join::threads;
use super::size;

/// Measures joins, compares them with other engines, and shows how their cost grows
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait bench join --build 2^22 --probe 2^24
  strait bench compare
  strait bench jobs
  strait bench scale --out benchmarks/scaling
  strait bench transfer
  strait bench beyond --gpu-memory 16GiB
  strait bench auto
  strait bench spill
  strait bench tpch")]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    pub(crate) what: Bench,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    Join(Box<BenchJoinArguments>),
    Compare(CompareArguments),
    Jobs(JobsArguments),
    #[command(hide = true)]
    Digest(DigestArguments),
    Scale(ScaleArguments),
    Gpu(BenchGpuArguments),
    Transfer(TransferArguments),
    Beyond(BeyondArguments),
    Auto(AutoArguments),
    Stream(StreamArguments),
    Spill(BenchSpillArguments),
    Tpch(BenchTpchArguments),
}

/// Measures the join of two generated tables in memory
///
/// Every result is compared with the count and the payload sums that follow from how the tables were
/// generated. A wrong answer is an error, and its time is not reported.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait bench join --build 2^22 --probe 2^24
  strait bench join --build 2^20 --probe 2^24 --keys dense --skew zipf:1.0 --mode materialise
  strait bench join --build 2^22 --probe 2^22 --algorithm no-partition,radix --format csv
  strait bench join --build 2^20 --probe 2^22 --key-type string --duplicates 4 --format json
  strait bench join --build 2^27 --probe 2^27 --device gpu --placement gpu --mode materialise
  strait bench join --build 2^27 --probe 2^30 --device gpu --placement pinned --gpu-memory 16GiB \\
    --algorithm streamed-probe,triton")]
pub(crate) struct BenchJoinArguments {
    /// Rows of the build table, as in 1000000 or 2^20
    #[arg(long, value_name = "N", value_parser = rows, required_unless_present = "workload_dir")]
    pub(crate) build: Option<u64>,

    /// Rows of the probe table
    #[arg(long, value_name = "N", value_parser = rows, required_unless_present = "workload_dir")]
    pub(crate) probe: Option<u64>,

    /// Joins the tables in a folder that `strait bench compare --keep` wrote, instead of new ones
    #[arg(long, value_name = "DIR", conflicts_with_all = ["build", "probe"])]
    pub(crate) workload_dir: Option<PathBuf>,

    /// The width of integer keys, in bytes [default: 8]
    #[arg(long, value_name = "4|8", value_parser = width, conflicts_with = "key_type")]
    key_bytes: Option<u8>,

    /// The type of the key column [default: int64]; strings have 17 bytes
    #[arg(long, value_parser = key_type())]
    key_type: Option<KeyType>,

    /// Whether the build keys fill a range, or are scattered over the positive half of the type
    #[arg(long, value_parser = keys(), default_value = "sparse")]
    pub(crate) keys: Keys,

    /// The distribution of probe keys: none = all keys equally often; zipf:THETA = a few keys very often
    #[arg(long, default_value = "none", value_name = "none|zipf:THETA")]
    pub(crate) skew: Skew,

    /// The share of probe rows that have a match
    #[arg(long, value_name = "F", default_value = "1", value_parser = share)]
    pub(crate) selectivity: f64,

    /// How many build rows have the same key
    #[arg(long, value_name = "K", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) duplicates: u64,

    /// The width of payload columns, in bytes
    #[arg(long, value_name = "4|8", default_value = "8", value_parser = width)]
    pub(crate) payload_bytes: u8,

    /// How many payload columns each table has
    #[arg(long, value_name = "C", default_value = "1", value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) payload_columns: u16,

    /// Rows per input batch
    #[arg(long, value_name = "N", default_value = "2^20", value_parser = batch_rows)]
    pub(crate) batch_rows: usize,

    /// What the join returns
    #[arg(long, value_enum, default_value = "aggregate")]
    pub(crate) mode: Mode,

    /// How to join. Several algorithms, separated by commas, run one after the other. streamed-probe,
    /// multi-pass, cpu-partitioned and triton run on a GPU
    #[arg(long, value_name = "A", default_value = "auto", value_delimiter = ',', value_parser = algorithm_in_memory())]
    pub(crate) algorithm: Vec<Choice>,

    /// How many threads work on the join [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    #[command(flatten)]
    pub(crate) device: DeviceArguments,

    /// Where the tables are before a join on a GPU. With this option, only the GPU join of the integer columns
    /// is timed. If the tables are in host memory, rows are copied back there. Without this option, the whole
    /// join of Arrow tables is timed
    #[arg(long, value_enum, value_name = "WHERE")]
    pub(crate) placement: Option<Placement>,

    /// How many runs are timed, after one run that is not timed
    #[arg(long, value_name = "R", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,

    /// The seed: another seed gives other rows
    #[arg(long, value_name = "S", default_value = "42")]
    pub(crate) seed: u64,

    /// The format of the figures
    #[arg(long, value_enum, default_value = "table")]
    pub(crate) format: Shown,
}

impl BenchJoinArguments {
    pub(crate) fn key_type(&self) -> KeyType {
        match (self.key_type, self.key_bytes) {
            (Some(key_type), _) => key_type,
            (None, Some(4)) => KeyType::Int32,
            _ => KeyType::Int64,
        }
    }
}

/// Where a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Placement {
    /// In the GPU's memory; results stay there too
    Gpu,
    /// In host memory that the GPU reads at full speed
    Pinned,
    /// In ordinary host memory
    Pageable,
}

/// What a measured join returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Count,
    Aggregate,
    Pairs,
    Materialise,
}

impl Mode {
    /// What the join computes in this mode.
    pub(crate) fn result(self) -> ResultKind {
        match self {
            Mode::Count => ResultKind::Count,
            Mode::Aggregate => ResultKind::Aggregate,
            Mode::Pairs => ResultKind::Pairs,
            Mode::Materialise => ResultKind::Materialise,
        }
    }
}

impl ValueEnum for Mode {
    fn value_variants<'a>() -> &'a [Self] {
        &[Mode::Count, Mode::Aggregate, Mode::Pairs, Mode::Materialise]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let value = PossibleValue::new(self.result().name());
        Some(match self {
            Mode::Count => value.help("The number of rows"),
            Mode::Aggregate => value.help("The number of rows and the sum of each payload column"),
            Mode::Pairs => value.help("The positions of the rows that match"),
            Mode::Materialise => value
                .help("The key and both tables' payloads as record batches")
                .alias("materialize"),
        })
    }
}

/// The format of the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shown {
    /// Aligned columns, for people
    Table,
    /// A header, and one line per run
    Csv,
    /// One object per run and line
    Json,
}

/// Compares Strait with other engines, on the same data
///
/// Each engine runs in its own process on the same Arrow files, which it loads before the clock starts.
/// Engines are Python packages. The first run installs them into a virtual environment in the user's cache
/// folder.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait bench compare
  strait bench compare --engines duckdb,polars --workloads W2,W2s
  strait bench compare --scale-down 64 --repeat 1 --out /tmp/record")]
pub(crate) struct CompareArguments {
    /// Which engines [default: all four]
    #[arg(long, value_enum, value_name = "ENGINES", value_delimiter = ',')]
    pub(crate) engines: Vec<Engine>,

    /// Which workloads [default: all ten]
    #[arg(long, value_name = "WORKLOADS", value_delimiter = ',', value_parser = workload())]
    pub(crate) workloads: Vec<String>,

    /// Which modes: aggregate, materialise [default: both]
    #[arg(long, value_enum, value_name = "MODES", value_delimiter = ',')]
    pub(crate) modes: Vec<ComparedMode>,

    /// How many runs are timed, after one run that is not timed
    #[arg(long, value_name = "R", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,

    /// How many threads each engine has
    #[arg(long, value_name = "N", default_value = "2", value_parser = threads)]
    pub(crate) threads: usize,

    /// Divides the rows of every table
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) scale_down: u64,

    /// The folder for the record; it is created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "benchmarks/record")]
    pub(crate) out: PathBuf,

    /// Keeps the tables of each workload in this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) python: PythonArguments,
}

/// An engine that Strait is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    #[value(name = "duckdb")]
    DuckDb,
    Polars,
    #[value(name = "datafusion")]
    DataFusion,
    #[value(name = "pyarrow")]
    PyArrow,
}

/// A mode in which every engine can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ComparedMode {
    Aggregate,
    #[value(alias = "materialize")]
    Materialise,
}

/// Measures how cost grows with size, ratio, skew, selectivity, payload and threads
///
/// Writes one CSV record and one SVG plot per study.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait bench scale --out benchmarks/scaling
  strait bench scale --studies size,skew --largest 2^24 --repeat 1 --out /tmp/scaling")]
pub(crate) struct ScaleArguments {
    /// Which studies [default: all six]
    #[arg(long, value_enum, value_name = "STUDIES", value_delimiter = ',')]
    pub(crate) studies: Vec<Study>,

    /// The largest number of rows of a table; less if there is not enough memory
    #[arg(long, value_name = "N", default_value = "2^27", value_parser = rows)]
    pub(crate) largest: u64,

    /// How many runs are timed, after one run that is not timed
    #[arg(long, value_name = "R", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,

    /// The folder for records and plots; it is created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "benchmarks/scaling")]
    pub(crate) out: PathBuf,
}

/// The quantity that a study varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Study {
    /// Both tables have the same size, from 2^16 rows
    Size,
    /// The probe table from 1 to 64 times the build table
    Ratio,
    /// Zipf exponents from 0 to 1.5 on the probe side
    Skew,
    /// The share of probe rows that match, from none to all
    Selectivity,
    /// From 1 to 16 payload columns per table
    Payload,
    /// One thread, and two threads
    Threads,
}

/// Compares the planner's choice with both processors
///
/// Joins Arrow tables on the CPU, on a GPU, and where the planner chooses, for many sizes of both tables. Shows
/// how far the planner's choice is from the faster of the two. The three run in turns. Every answer is checked.
/// Writes a dated record.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait bench auto
  strait bench auto --largest 2^24 --repeat 5")]
pub(crate) struct AutoArguments {
    /// The largest number of rows of the probe table; the build table has at most a quarter of them
    #[arg(long, value_name = "N", default_value = "2^28", value_parser = rows)]
    pub(crate) largest: u64,

    /// The GPU: gpu, or gpu:N
    #[arg(long, value_name = "DEVICE", default_value = "gpu", value_parser = processor)]
    pub(crate) device: Processor,

    /// How many runs are timed, after one run that is not timed. Joins of small tables are timed five times as often
    #[arg(long, value_name = "R", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,

    /// The folder for the record; it is created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "benchmarks/record")]
    pub(crate) out: PathBuf,
}

/// Measures the memory of a join from a reader of unknown length
///
/// Generates the probe table while the join reads it, and drops the joined rows at once. Shows the memory that
/// the process needs besides the build table.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait bench stream --build 2^24 --probe 2^28 --device gpu
  strait bench stream --build 2^20 --probe 2^26 --device cpu")]
pub(crate) struct StreamArguments {
    /// Rows of the build table, as in 1000000 or 2^20
    #[arg(long, value_name = "N", value_parser = rows)]
    pub(crate) build: u64,

    /// Rows of the probe table
    #[arg(long, value_name = "N", value_parser = rows)]
    pub(crate) probe: u64,

    /// Whether the build keys fill a range, or are scattered over the positive half of the type
    #[arg(long, value_parser = keys(), default_value = "sparse")]
    pub(crate) keys: Keys,

    /// Rows per batch of the probe table
    #[arg(long, value_name = "N", default_value = "2^16", value_parser = batch_rows)]
    pub(crate) batch_rows: usize,

    /// How to join
    #[arg(long, value_name = "A", default_value = "auto", value_parser = algorithm_in_memory())]
    pub(crate) algorithm: Choice,

    /// How many threads work on the join [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    #[command(flatten)]
    pub(crate) device: DeviceArguments,
}

/// Measures joins of tables in a GPU's memory, stage by stage
///
/// Runs the joins of the project's performance goals. Their results stay in GPU memory. Also joins tables whose keys
/// are hard (keys that share half of their bits, or one key in half of the rows), and compares them with tables of
/// uniform keys. Every answer is checked. Writes a dated record.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait bench gpu
  strait bench gpu --workloads '2^27 x 2^27, 8 B' --repeat 20
  strait bench gpu --workloads hard --scale-down 64
  strait bench gpu --workloads hard --hash-seed 3")]
pub(crate) struct BenchGpuArguments {
    /// Which workloads, one per flag [default: all]
    #[arg(long, value_name = "WORKLOAD", value_parser = gpu_workload())]
    pub(crate) workloads: Vec<String>,

    /// The GPU: gpu, or gpu:N
    #[arg(long, value_name = "DEVICE", default_value = "gpu", value_parser = processor)]
    pub(crate) device: Processor,

    /// The most GPU memory, including the tables [default: 90 % of the free memory]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) gpu_memory: Option<u64>,

    /// How radix joins partition their tables
    #[arg(long, value_name = "P", default_value = "look-back", value_parser = partitioner_on_gpu())]
    pub(crate) partitioner: Partitioner,

    /// The seed of the hash functions. It decides which keys share a bucket. The joined rows do not depend on it
    /// [default: the same seed in every run]
    #[arg(long, value_name = "S")]
    pub(crate) hash_seed: Option<u64>,

    /// How many runs are timed, after one run that is not timed
    #[arg(long, value_name = "R", default_value = "9", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,

    /// Divides the rows of every table
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) scale_down: u64,

    /// The folder for the record; it is created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "benchmarks/record")]
    pub(crate) out: PathBuf,
}

impl BenchGpuArguments {
    /// Whether the user asked for this workload.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.workloads.is_empty() || self.workloads.iter().any(|asked| asked == name)
    }
}

fn gpu_workload() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(crate::bench::gpu_workload_names())
}

fn workload() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(crate::bench::workload_names())
}

fn width(text: &str) -> Result<u8, String> {
    match text {
        "4" => Ok(4),
        "8" => Ok(8),
        _ => Err("write 4 or 8".to_string()),
    }
}

fn batch_rows(text: &str) -> Result<usize, String> {
    match rows(text)? {
        0 => Err("a batch has at least one row".to_string()),
        rows => usize::try_from(rows).map_err(|_| "that is too long a batch".to_string()),
    }
}

//! The arguments of `strait join`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use strait::{FloatEquality, JoinType};

use super::device::{Choice, DeviceArguments, algorithm};
use super::names::{self, KeyPairs, Names, Pair};
use super::size;
use super::spill::SpillArguments;
use super::types::{self, Cast};
use crate::join::cores;
use crate::output::{Compression, Destination, FileFormat};
use crate::store::Location;

/// The memory that a limit must have for each thread. With 12 threads under 128 MiB, a join took ten times as long as
/// with 8.
const MEMORY_PER_THREAD: u64 = 16 << 20;

const EXAMPLES: &str = "\
Examples:
  Look at the first rows of a join, and at how many there are:
    strait join orders.parquet lineitem.parquet --on o_orderkey=l_orderkey

  Keep every row of the left table, and write some columns to a Parquet file:
    strait join people.csv cities.csv --on city,country --type left --select name,mayor -o out.parquet

  Join text keys with numbers:
    strait join people.csv cities.parquet --on city=id --cast city=int64

  Folders (year=2024/ becomes a column), globs, pipes:
    strait join sales/ 'shops/*.csv.gz' --on shop -o - | strait join - regions.arrow --on region

  Object stores and web servers (if strait was built with them); AWS_*, GOOGLE_* and AZURE_* variables grant access:
    strait join 's3://bucket/events/*.parquet' https://host/users.csv --on user_id -o gs://bucket/out.parquet

  On a GPU, holding at most 8 GiB of its memory:
    strait join a.parquet b.parquet --on id --device gpu --gpu-memory 8GiB -o out.parquet
    strait join a.parquet b.parquet --on id --device gpu --algorithm triton --cache 4GiB --count

  With at most 4 GiB of memory; rows that do not fit go to temporary files on two disks:
    strait join a.parquet b.parquet --on id --memory 4GiB --temp-dir /disk1/tmp --temp-dir /disk2/tmp -o out.parquet

  Only count; only explain; run and explain what happened:
    strait join a.parquet b.parquet --on id --count
    strait join a.parquet b.parquet --on id --explain
    strait join a.parquet b.parquet --on id --explain-analyze -o out.parquet";

/// Joins two tables on equal keys
///
/// LEFT and RIGHT are each a file, a folder or a quoted glob of Parquet, CSV, JSON lines (text also
/// with .gz or .zst) or Arrow IPC files, or `-` for an Arrow IPC stream on stdin. Folders named key=value become columns.
/// A URL with `s3://`, `gs://`, `az://`, `abfs://` or `abfss://` is an object, a folder (if it ends in /) or a glob.
/// A URL with `http://` or `https://` is one file.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct JoinArguments {
    /// The left table: a file, a folder, a quoted glob, or -
    pub(crate) left: Source,

    /// The right table
    pub(crate) right: Source,

    /// The key columns: LEFT=RIGHT, or one name for both; several separated by commas
    #[arg(long, required = true, value_name = "KEYS", value_parser = names::pairs)]
    on: Vec<KeyPairs>,

    /// The join type: which rows the output has
    #[arg(long = "type", value_name = "TYPE", default_value = "inner", value_parser = join_type())]
    pub(crate) join_type: JoinType,

    /// Where to write: .parquet, .csv, .tsv, .jsonl, .ndjson (text also with .gz or .zst), .arrow, .feather,
    /// .ipc, .arrows, or - for an Arrow IPC stream on stdout. Without it, the first rows are shown
    ///
    /// Arrow files (.arrow, .feather, .ipc) have no dictionary columns: dictionary columns become plain
    /// columns, also in nested types. Streams (.arrows, -) keep dictionary columns. Parquet files keep them
    /// if Parquet can. In JSON, NaN and infinite numbers become null.
    #[arg(short, long, value_name = "OUT", conflicts_with = "count")]
    pub(crate) output: Option<Destination>,

    /// Replaces OUT if it exists
    #[arg(long, requires = "output")]
    pub(crate) overwrite: bool,

    /// How to compress the output: for Parquet zstd, snappy or none [default: zstd]; for Arrow zstd or none
    /// [default: none]
    #[arg(long, value_enum, value_name = "CODEC", requires = "output")]
    pub(crate) compression: Option<Compression>,

    /// The largest number of rows per row group of Parquet output [default: 262144; fewer if --memory is small]
    #[arg(
        long,
        value_name = "N",
        requires = "output",
        value_parser = row_group_rows
    )]
    pub(crate) row_group_rows: Option<usize>,

    /// Gives a column another type before the join, as in id=int64; may be repeated
    ///
    /// If both tables have the column, it is cast in both. left.COLUMN or right.COLUMN casts it in one table. The
    /// types are int8 to int64, uint8 to uint64, float32, float64, text, bool, date, timestamp(s|ms|us|ns),
    /// timestamp(UNIT,ZONE), decimal(DIGITS,SCALE) and binary, and SQL's names such as bigint, double and
    /// varchar. A value that cannot be cast is an error.
    #[arg(long = "cast", value_name = "COLUMN=TYPE", value_parser = types::cast)]
    pub(crate) casts: Vec<Cast>,

    /// The output columns, in this order, separated by commas
    #[arg(long, value_name = "COLUMNS", value_parser = names::names, conflicts_with = "count")]
    select: Vec<Names>,

    /// Prints only the number of rows
    #[arg(long)]
    pub(crate) count: bool,

    /// Null keys match each other
    #[arg(long)]
    pub(crate) nulls_equal: bool,

    /// Which float keys are equal: as numbers (0.0 equals -0.0, NaN equals NaN), or by the total order of
    /// their bits
    #[arg(
        long,
        value_name = "HOW",
        default_value = "numeric",
        value_parser = float_equality()
    )]
    pub(crate) float_equality: FloatEquality,

    /// Keeps both key columns if they have the same name
    #[arg(long)]
    pub(crate) keep_keys: bool,

    /// The suffix of a right column's name if the left table has a column of the same name
    #[arg(long, value_name = "S", default_value = "_right")]
    pub(crate) suffix: String,

    /// The name of the column that mark joins add
    #[arg(long, value_name = "NAME", default_value = "mark")]
    pub(crate) mark_column: String,

    /// Stops after N rows of output
    ///
    /// If one table comes from stdin, the join stops after N rows, and does not wait for the end of stdin. This works if
    /// the other table has at most 1 GiB and at most a quarter of --memory. The size of a Parquet table is the size of its
    /// needed columns in memory. The size of other tables is the size of their files. Radix and sort-merge joins always wait for the end of stdin. Some rows are known only at the end of
    /// stdin, for example rows of the other table that have no match. The join also waits for these rows.
    #[arg(long, value_name = "N", conflicts_with = "count")]
    pub(crate) limit: Option<u64>,

    #[command(flatten)]
    pub(crate) csv: CsvArguments,

    /// The algorithm. streamed-probe, multi-pass, cpu-partitioned and triton run only on a GPU. They can join tables
    /// that are larger than GPU memory. For streamed-probe, the smaller of the two tables must fit into GPU memory.
    /// spill partitions both tables to temporary files. With --memory, the other algorithms also use
    /// temporary files, but only for rows that do not fit, and sort-merge only if the join does not fit
    #[arg(long, value_name = "A", default_value = "auto", value_parser = algorithm())]
    pub(crate) algorithm: Choice,

    /// The number of threads of the join. With --memory, the join has at most one thread per 16 MiB of the limit
    /// [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    /// The most memory for reading, joining and writing together, as in 512MiB or 8GiB [default: no limit]. If the join
    /// does not fit, it writes rows to temporary files
    ///
    /// A join fails if the limit is too small for a single step. Examples are decoding the pages of a Parquet file, and
    /// joining a row whose value is larger than the limit.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) memory: Option<u64>,

    #[command(flatten)]
    pub(crate) spill: SpillArguments,

    #[command(flatten)]
    pub(crate) device: DeviceArguments,

    /// Prints the plan and does not run it
    #[arg(long, conflicts_with = "explain_analyze")]
    pub(crate) explain: bool,

    /// Runs the join, and prints the plan and a report of the run
    #[arg(long)]
    pub(crate) explain_analyze: bool,

    /// Whether to show a progress bar on stderr
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub(crate) progress: Show,
}

/// The form of CSV files.
#[derive(Debug, Clone, Args)]
pub(crate) struct CsvArguments {
    /// The character that separates the fields of CSV files [default: a comma; a tab in .tsv files]
    #[arg(long = "csv-delimiter", value_name = "C", value_parser = delimiter)]
    pub(crate) delimiter: Option<u8>,

    /// A text that means null in CSV files, in addition to the empty field; may be repeated
    #[arg(long = "csv-null", value_name = "S", allow_hyphen_values = true)]
    pub(crate) nulls: Vec<String>,

    /// CSV files have no header: columns are called column_1, column_2, …
    #[arg(long = "csv-no-header")]
    pub(crate) no_header: bool,

    /// How many rows of each CSV or JSON file are read to infer types: a number, or all
    #[arg(
        long = "sample",
        alias = "csv-sample",
        value_name = "ROWS",
        default_value = "100000",
        value_parser = sample
    )]
    pub(crate) sample: Sample,
}

impl Default for CsvArguments {
    fn default() -> Self {
        CsvArguments { delimiter: None, nulls: Vec::new(), no_header: false, sample: SAMPLE }
    }
}

/// The default number of rows from which types are inferred.
const SAMPLE: Sample = Sample(Some(100_000));

/// The number of rows from which types are inferred; all rows if None.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample(pub(crate) Option<usize>);

/// The source of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// An Arrow IPC stream.
    Stdin,
    /// A file, a folder or a glob.
    Path(PathBuf),
    /// An object, or several objects in a store.
    Object(Location),
}

impl FromStr for Source {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("a path cannot be empty".to_string()),
            "-" => Ok(Source::Stdin),
            text => Ok(match Location::parse(text) {
                Some(location) => Source::Object(location),
                None => Source::Path(PathBuf::from(text)),
            }),
        }
    }
}

/// When to show a progress bar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Show {
    /// If stderr is a terminal
    Auto,
    /// Even if stderr is not a terminal
    Always,
    /// Not at all
    Never,
}

impl JoinArguments {
    /// Checks rules that involve several arguments.
    pub(super) fn check(&self) -> Result<(), String> {
        // Not while arguments are parsed, because that error would quote the URL with its signature.
        for source in [&self.left, &self.right] {
            if let Source::Object(location) = source {
                location.check(false)?;
            }
        }
        if let Some(Destination::Object(location, _)) = &self.output {
            location.check(true)?;
        }
        self.spill.check(self.memory, self.algorithm.0)?;
        Ok(self.check_formats()?)
    }

    fn check_formats(&self) -> Result<(), &'static str> {
        if self.left == Source::Stdin && self.right == Source::Stdin {
            return Err("LEFT and RIGHT cannot both be -: there is only one stdin");
        }
        check_format(self.output.as_ref(), self.row_group_rows, self.compression)
    }

    /// The number of threads.
    pub(crate) fn threads(&self) -> usize {
        threads_within(self.threads, self.memory)
    }

    /// The pairs of key columns of every `--on`.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Pair> {
        self.on.iter().flat_map(|pairs| &pairs.0)
    }

    /// The names of every `--select`, if there was one.
    pub(crate) fn selected(&self) -> Option<Vec<String>> {
        let names = self.select.iter().flat_map(|names| names.0.iter().cloned());
        (!self.select.is_empty()).then(|| names.collect())
    }
}

/// Returns the number of threads. Under a memory limit, every thread needs room for the rows that it decodes and encodes.
/// With less room, most threads would wait for memory, and would read again what they had to drop.
pub(super) fn threads_within(threads: Option<usize>, memory: Option<u64>) -> usize {
    let threads = threads.unwrap_or_else(cores);
    let most = memory.map_or(u64::MAX, |limit| limit / MEMORY_PER_THREAD);
    threads.min(usize::try_from(most).unwrap_or(usize::MAX)).max(1)
}

/// Returns an error if the output format does not support a flag that was given.
pub(crate) fn check_format(
    output: Option<&Destination>,
    row_group_rows: Option<usize>,
    compression: Option<Compression>,
) -> Result<(), &'static str> {
    let format = match output {
        None => return Ok(()),
        Some(Destination::Stdout) => FileFormat::IpcStream,
        Some(Destination::File(_, format) | Destination::Object(_, format)) => *format,
    };
    if row_group_rows.is_some() && format != FileFormat::Parquet {
        return Err("--row-group-rows is for Parquet output; only .parquet files have row groups");
    }
    match (format, compression) {
        (FileFormat::Text(..), Some(_)) => {
            Err("--compression is for Parquet and Arrow; name text output .csv.gz or .csv.zst")
        }
        (FileFormat::IpcFile | FileFormat::IpcStream, Some(Compression::Snappy)) => {
            Err("Arrow output cannot be compressed with snappy; use --compression zstd or none")
        }
        _ => Ok(()),
    }
}

fn join_type() -> impl TypedValueParser<Value = JoinType> {
    let values = JoinType::ALL.map(|t| PossibleValue::new(t.name()));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<JoinType>())
}

fn float_equality() -> impl TypedValueParser<Value = FloatEquality> {
    let values = FloatEquality::ALL.map(|equality| PossibleValue::new(equality.name()));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<FloatEquality>())
}

pub(super) fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least one thread is needed".to_string()),
        Ok(threads) if threads <= 4096 => Ok(threads),
        _ => Err("write a number of threads from 1 to 4096".to_string()),
    }
}

pub(crate) fn row_group_rows(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rows) if (1..=1 << 30).contains(&rows) => Ok(rows),
        _ => Err("write a number of rows from 1 to 1073741824".to_string()),
    }
}

fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"\\t" => Ok(b'\t'),
        [b'"' | b'\n' | b'\r'] => Err("quotes and line ends cannot separate fields".to_string()),
        [byte] if byte.is_ascii() => Ok(*byte),
        _ => Err("a delimiter is one ASCII character, as in ; or | or \\t".to_string()),
    }
}

fn sample(text: &str) -> Result<Sample, String> {
    match text.parse() {
        _ if text == "all" => Ok(Sample(None)),
        Ok(0) | Err(_) => Err("write a number of rows, at least 1, or all".to_string()),
        Ok(rows) => Ok(Sample(Some(rows))),
    }
}

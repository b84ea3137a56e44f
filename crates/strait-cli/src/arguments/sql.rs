//! The arguments of `strait sql`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use strait::Processor;

use super::device::processor;
use super::join::{self, CsvArguments, Source};
use super::size;
use super::spill::SpillArguments;
use crate::output::{Compression, Destination};

/// The error of a build without the feature `sql`. It says how to get the feature.
pub(crate) const WITHOUT_SQL: &str = "this build of strait has no SQL, because DataFusion adds many minutes to the build; install it \
     with `cargo install --path crates/strait-cli --features sql`, or run it with \
     `cargo run --release --features sql -- sql …`";

const EXAMPLES: &str = "\
Examples:
  Join two files, and count:
    strait sql \"SELECT count(*) FROM 'orders.parquet' JOIN 'lineitem/*.parquet' ON o_orderkey = l_orderkey\"

  Give tables names, and write the result to a file:
    strait sql --table o=orders.parquet --table c=customers.csv.gz -o out.parquet \\
      \"SELECT name, sum(price) AS total FROM o JOIN c USING (customer) GROUP BY name ORDER BY total DESC\"

  Statements in a file, and on stdin; CSV on stdout:
    strait sql -f report.sql --format csv
    echo \"SELECT * FROM 'people.csv' WHERE city IS NULL\" | strait sql

  Pipes: the table '-' is an Arrow stream on stdin:
    strait join a.parquet b.parquet --on id -o - | strait sql \"SELECT day, count(*) FROM '-' GROUP BY day\"

  Several files from one script; COPY replaces a file only with OPTIONS (overwrite true):
    strait sql \"CREATE VIEW o AS SELECT * FROM 'orders/*.csv'; COPY o TO 'orders.parquet';
      COPY (SELECT day, count(*) AS n FROM o GROUP BY day) TO 'days.csv' OPTIONS (overwrite true)\"

  The plan; the plan with figures of the run:
    strait sql \"EXPLAIN SELECT * FROM 'a.parquet' JOIN 'b.csv' USING (id)\"
    strait sql \"EXPLAIN ANALYZE SELECT * FROM 'a.parquet' JOIN 'b.csv' USING (id)\"

  With at most 4 GiB of memory for joins, sorts and aggregates; rows that do not fit go to temporary files:
    strait sql --memory 4GiB --temp-dir /disk/tmp -f large.sql -o out.parquet

  A prompt; \\? lists its commands:
    strait sql --table orders=orders.parquet";

/// Runs SQL statements on files
///
/// DataFusion plans and runs the statements, and Strait does the joins. FROM takes a table of --table, or a path in
/// quotes: a file, a folder or a glob of Parquet, CSV, JSON lines (text also with .gz or .zst) or Arrow IPC files, or '-'
/// for an Arrow IPC stream on stdin. Folders named key=value become columns. A path needs a slash, a dot or a wildcard, as
/// in './folder'. URLs are as in `strait join`. Names of columns with capital letters need double quotes.
///
/// Without statements and without -f, statements come from stdin. If stdin is a terminal, there is a prompt.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
// A build without SQL only parses them.
#[cfg_attr(not(feature = "sql"), allow(dead_code))]
pub(crate) struct SqlArguments {
    /// The statements, separated by semicolons
    pub(crate) statements: Option<String>,

    /// Reads the statements from a file, or from stdin if FILE is -
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "statements")]
    pub(crate) file: Option<PathBuf>,

    /// Gives a table a name: a file, a folder, a glob or a URL; may be repeated
    #[arg(long = "table", value_name = "NAME=PATH", value_parser = named_table)]
    pub(crate) tables: Vec<NamedTable>,

    /// Where to write the rows of the last statement: .parquet, .csv, .tsv, .jsonl, .ndjson (text also with .gz or .zst),
    /// .arrow, .feather, .ipc, .arrows, or - for an Arrow IPC stream on stdout. Without it, the first rows of each statement
    /// are shown
    #[arg(short, long, value_name = "OUT", conflicts_with = "format")]
    pub(crate) output: Option<Destination>,

    /// Writes the rows of the last statement to stdout in this format
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<StdoutFormat>,

    /// Replaces OUT if it exists
    #[arg(long, requires = "output")]
    pub(crate) overwrite: bool,

    /// How to compress the output: for Parquet zstd, snappy or none [default: zstd]; for Arrow zstd or none
    /// [default: none]
    #[arg(long, value_enum, value_name = "CODEC", requires = "output")]
    pub(crate) compression: Option<Compression>,

    /// The largest number of rows per row group of Parquet output [default: 262144; fewer if --memory is small]
    #[arg(long, value_name = "N", requires = "output", value_parser = join::row_group_rows)]
    pub(crate) row_group_rows: Option<usize>,

    /// The most rows that are shown of each result [default: 40; 1000 in the prompt]
    #[arg(long, value_name = "N", conflicts_with_all = ["output", "format"])]
    pub(crate) rows: Option<usize>,

    #[command(flatten)]
    pub(crate) csv: CsvArguments,

    /// The number of threads. With --memory, there is at most one thread per 16 MiB of the limit
    /// [default: one per core]
    #[arg(long, value_name = "N", value_parser = join::threads)]
    pub(crate) threads: Option<usize>,

    /// The memory limit for rows in joins, sorts, aggregates and tables of CREATE TABLE, as in 512MiB or 8GiB
    /// [default: no limit]. Rows of operators that do not fit go to temporary files
    ///
    /// A quarter of the limit is for the output if there is an --output file or a COPY statement, and always in the
    /// prompt. Memory for reading is not counted: it is a few MiB per thread. A statement fails if the limit is too small for a single step.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) memory: Option<u64>,

    #[command(flatten)]
    pub(crate) spill: SpillArguments,

    /// The processor of joins: auto, cpu, gpu or gpu:N. auto uses a GPU for a join if Strait predicts that the
    /// join is faster there
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = processor)]
    pub(crate) device: Processor,

    /// The most GPU memory that a join may hold, as in 512MiB or 8GiB [default: 90 % of the free memory]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) gpu_memory: Option<u64>,

    /// Shows long results of the prompt without a pager
    #[arg(long)]
    pub(crate) no_pager: bool,
}

/// A table that has a name of its own.
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "sql"), allow(dead_code))]
pub(crate) struct NamedTable {
    pub(crate) name: String,
    pub(crate) source: Source,
}

/// The format of rows on stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StdoutFormat {
    /// A header, and one line per row
    Csv,
    /// The same, with tabs
    Tsv,
    /// One JSON object per row and line
    Jsonl,
    /// An Arrow IPC stream
    Arrow,
}

impl SqlArguments {
    /// Checks rules that involve several arguments.
    pub(super) fn check(&self) -> Result<(), String> {
        if cfg!(not(feature = "sql")) {
            return Err(WITHOUT_SQL.to_string());
        }
        for table in &self.tables {
            if let Source::Object(location) = &table.source {
                location.check(false)?;
            }
        }
        if let Some(Destination::Object(location, _)) = &self.output {
            location.check(true)?;
        }
        if self.spill.is_given() && self.memory.is_none() {
            return Err(
                "--temp-dir, --disk, --spill-compression and --no-spill have no effect without --memory; give --memory SIZE, or leave them out"
                    .to_string(),
            );
        }
        Ok(join::check_format(self.output.as_ref(), self.row_group_rows, self.compression)?)
    }

    /// The number of threads.
    #[cfg_attr(not(feature = "sql"), allow(dead_code))]
    pub(crate) fn threads(&self) -> usize {
        join::threads_within(self.threads, self.memory)
    }
}

/// Parses `NAME=PATH`.
fn named_table(text: &str) -> Result<NamedTable, String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok(NamedTable { name: name.to_string(), source: path.parse()? })
        }
        _ => Err("write NAME=PATH, as in orders=orders.parquet".to_string()),
    }
}

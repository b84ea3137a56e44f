//! The arguments of `strait generate`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use strait_bench::workload::{KeyType, Keys, Skew};

/// Generates tables to test joins with
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait generate tpch --scale 1 --out tpch --tables orders,lineitem
  strait generate workload --build 1000000 --probe 10000000 --out workload")]
pub(crate) struct GenerateArguments {
    #[command(subcommand)]
    pub(crate) target: Target,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Target {
    Tpch(TpchArguments),
    Workload(WorkloadArguments),
}

/// Generates the tables of the TPC-H benchmark, one file per table
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait generate tpch --scale 1 --out tpch
  strait generate tpch --scale 0.1 --out small --tables orders,lineitem --format csv
  strait generate tpch --scale 1 --out many --tables lineitem --files 100")]
pub(crate) struct TpchArguments {
    /// The scale factor: 1 is about a gigabyte of text, 6 million line items
    #[arg(long, default_value = "1", value_parser = scale)]
    pub(crate) scale: f64,

    /// The folder to write to; it is created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    /// Which tables [default: all eight]
    #[arg(long, value_enum, value_name = "TABLES", value_delimiter = ',')]
    pub(crate) tables: Vec<TpchTable>,

    /// The format of the files
    #[arg(long, value_enum, default_value = "parquet")]
    pub(crate) format: TableFormat,

    /// Writes each table as N files, into a folder with the table's name [default: one file]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) files: Option<u32>,

    /// Writes order keys as text, as in Order#000000042, in orders and in lineitem
    #[arg(long)]
    pub(crate) text_keys: bool,

    /// Replaces files that exist
    #[arg(long)]
    pub(crate) overwrite: bool,

    /// How many threads to use [default: one per core]
    #[arg(long, value_name = "N", value_parser = super::join::threads)]
    pub(crate) threads: Option<usize>,
}

/// A TPC-H table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TpchTable {
    Region,
    Nation,
    Supplier,
    Customer,
    Part,
    Partsupp,
    Orders,
    Lineitem,
}

/// The format of generated files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TableFormat {
    Parquet,
    Csv,
    Arrow,
}

/// Generates build.parquet and probe.parquet: two tables with the requested keys
///
/// Both tables have a column `key`. In the join on this column, the given share of the probe rows has a
/// match. The same arguments give the same rows on every machine.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait generate workload --build 1000000 --probe 10000000 --out workload
  strait generate workload --build 1000000 --probe 10000000 --skew zipf:1.05 --out skewed
  strait generate workload --build 1000000 --probe 1000000 --key-type string --keys sparse \\
    --selectivity 0.1 --duplicates 4 --payload-columns 3 --seed 7 --out strings
  strait join workload/build.parquet workload/probe.parquet --on key --count")]
pub(crate) struct WorkloadArguments {
    /// Rows of the build table
    #[arg(long, value_name = "N", value_parser = rows)]
    pub(crate) build: u64,

    /// Rows of the probe table
    #[arg(long, value_name = "N", value_parser = rows)]
    pub(crate) probe: u64,

    /// The type of the key column
    #[arg(long, value_parser = key_type(), default_value = "int64")]
    pub(crate) key_type: KeyType,

    /// Whether the build keys fill a range, or are scattered over the positive half of the type
    #[arg(long, value_parser = keys(), default_value = "dense")]
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

    /// How many Int64 columns each table has besides its key
    #[arg(long, value_name = "C", default_value = "1", value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) payload_columns: u16,

    /// The seed: another seed gives other rows
    #[arg(long, value_name = "S", default_value = "42")]
    pub(crate) seed: u64,

    /// The folder to write to; it is created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    /// Replaces files that exist
    #[arg(long)]
    pub(crate) overwrite: bool,

    /// How many threads to use [default: one per core]
    #[arg(long, value_name = "N", value_parser = super::join::threads)]
    pub(crate) threads: Option<usize>,
}

pub(super) fn key_type() -> impl TypedValueParser<Value = KeyType> {
    one_of(&KeyType::ALL, KeyType::name)
}

pub(super) fn keys() -> impl TypedValueParser<Value = Keys> {
    one_of(&Keys::ALL, Keys::name)
}

/// Parses one of several names.
fn one_of<T>(all: &'static [T], name: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.iter().map(|&one| name(one))).try_map(move |text| {
        let found = all.iter().copied().find(|&one| name(one) == text);
        found.ok_or_else(|| format!("\"{text}\" is unknown"))
    })
}

pub(super) fn scale(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(scale) if (0.001..=100_000.0).contains(&scale) => Ok(scale),
        _ => Err("write a number from 0.001 to 100000".to_string()),
    }
}

pub(super) fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("write a number from 0 to 1".to_string()),
    }
}

/// Parses a number of rows: digits, which underscores may group, or a power of two.
pub(super) fn rows(text: &str) -> Result<u64, String> {
    let rows = match text.strip_prefix("2^") {
        Some(power) => power.parse().ok().and_then(|power| 1u64.checked_shl(power)),
        None => text.replace('_', "").parse().ok(),
    };
    rows.filter(|&rows| rows <= 1 << 40)
        .ok_or_else(|| "write a number of rows, as in 1000000, 1_000_000 or 2^20".to_string())
}

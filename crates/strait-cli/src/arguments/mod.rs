//! The command line. Parsing only validates; nothing here opens a file.

mod bench;
mod bench_spill;
mod bench_tpch;
mod beyond;
mod device;
mod devices;
mod generate;
mod jobs;
mod join;
mod names;
mod size;
mod spill;
mod sql;
mod types;

use std::io::Write;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};

pub(crate) use bench::{
    AutoArguments, Bench, BenchArguments, BenchGpuArguments, BenchJoinArguments, CompareArguments,
    ComparedMode, Engine, Placement, ScaleArguments, Shown, StreamArguments, Study,
};
pub(crate) use bench_spill::{BenchSpillArguments, SpillEngine};
#[cfg(feature = "sql")]
pub(crate) use bench_tpch::BenchTpchArguments;
pub(crate) use beyond::{BeyondArguments, BeyondStudy, Placements, TransferArguments};
pub(crate) use device::{Choice, DeviceArguments};
pub(crate) use devices::{DevicesArguments, ListFormat};
pub(crate) use generate::{
    GenerateArguments, TableFormat, Target, TpchArguments, TpchTable, WorkloadArguments,
};
pub(crate) use jobs::{DigestArguments, JobsArguments, PythonArguments};
pub(crate) use join::{CsvArguments, JoinArguments, Show, Source};
#[cfg(feature = "sql")]
pub(crate) use join::{check_format, row_group_rows};
#[cfg(test)]
pub(crate) use size::parse as parse_size;
#[cfg(feature = "sql")]
pub(crate) use spill::SpillArguments;
pub(crate) use sql::SqlArguments;
#[cfg(not(feature = "sql"))]
pub(crate) use sql::WITHOUT_SQL;
#[cfg(feature = "sql")]
pub(crate) use sql::{NamedTable, StdoutFormat};
pub(crate) use types::{Cast, UTC, is_offset, name as type_name};

use crate::failure::say;
use crate::output::{Closed, check_stdout, failed_write};

const EXAMPLES: &str = "\
Examples:
  strait demo
  strait join orders.parquet customers.csv --on customer_id=id
  strait join left.parquet right.parquet --on id --type left -o joined.parquet
  strait sql \"SELECT * FROM 'left.parquet' JOIN 'right.csv' USING (id)\"
  strait generate tpch --scale 1 --out tpch
  strait bench join --build 2^22 --probe 2^24

`strait join --help` has more. Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted
(129 by SIGHUP, 143 by SIGTERM).";

/// Joins tables in Parquet, CSV, JSON lines and Arrow files.
#[derive(Debug, Parser)]
#[command(name = "strait", version, after_help = EXAMPLES, propagate_version = true)]
pub(crate) struct Cli {
    /// Reports on stderr what the command does; -vv reports more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses the command line. Wrong usage ends the process with status 2.
    pub(crate) fn read() -> Cli {
        let cli = Cli::try_parse().unwrap_or_else(|error| end(&error));
        if let Err((path, message)) = cli.command.check() {
            let mut command = Cli::command();
            command.build();
            let mut named = &command;
            for name in path {
                named = named.find_subcommand(name).unwrap_or(named);
            }
            named.clone().error(ErrorKind::ArgumentConflict, message).exit();
        }
        cli
    }
}

/// Shows a help text, the version, or what is wrong with the usage, and ends the process.
fn end(error: &clap::Error) -> ! {
    if error.use_stderr() {
        error.exit();
    }
    let shown = check_stdout("").and_then(|()| {
        let written = error.print().and_then(|()| std::io::stdout().flush());
        written.or_else(failed_write)
    });
    std::process::exit(match shown {
        Err(error) if !error.is::<Closed>() => {
            say(format_args!("error: {error:#}"));
            1
        }
        _ => error.exit_code(),
    })
}

impl Command {
    /// Checks rules that involve several arguments. Returns the command at fault, and the message.
    fn check(&self) -> Result<(), (&'static [&'static str], String)> {
        match self {
            Command::Join(join) => join.check().map_err(|message| (&["join"][..], message)),
            Command::Sql(sql) => sql.check().map_err(|message| (&["sql"][..], message)),
            Command::Bench(BenchArguments { what: Bench::Beyond(beyond) }) => {
                beyond.check().map_err(|message| (&["bench", "beyond"][..], message))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Join(Box<JoinArguments>),
    Sql(Box<SqlArguments>),
    Demo(DemoArguments),
    Devices(DevicesArguments),
    Generate(GenerateArguments),
    Bench(BenchArguments),
    /// Prints a completion script for a shell
    #[command(after_help = "\
Examples:
  strait completions bash > ~/.local/share/bash-completion/completions/strait
  strait completions zsh > ~/.zfunc/_strait
  strait completions fish > ~/.config/fish/completions/strait.fish")]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Prints the manual page, or writes one page per command into a folder
    #[command(after_help = "\
Examples:
  strait man | man -l -
  strait man --out ~/.local/share/man/man1")]
    Man {
        /// The folder to write the pages to; it is created if it does not exist
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

/// Generates two TPC-H tables in a temporary folder, joins them and shows the result
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait demo
  strait demo --scale 1
  strait demo --scale 0.5 --threads 1")]
pub(crate) struct DemoArguments {
    /// The TPC-H scale factor: 1 is 1.5 million orders and 6 million line items
    #[arg(long, default_value = "0.1", value_parser = generate::scale)]
    pub(crate) scale: f64,

    /// How many threads to use [default: one per core]
    #[arg(long, value_name = "N", value_parser = join::threads)]
    pub(crate) threads: Option<usize>,
}

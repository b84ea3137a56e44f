//! The command `strait`: parses its arguments, acts, and turns failures into messages and statuses.

mod arguments;
mod bench;
mod busy;
mod casts;
mod costs;
mod demo;
mod devices;
mod digits;
mod failure;
mod freed;
mod generate;
mod input;
mod interrupt;
mod join;
mod logger;
mod memory;
mod output;
mod panics;
mod progress;
mod shell;
mod spill;
mod sql;
mod store;

use std::process::ExitCode;

use arguments::{Cli, Command};

#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[cfg(test)]
mod counted;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: counted::Counted = counted::Counted;

fn main() -> ExitCode {
    let cli = Cli::read();
    // A benchmark fills large tables and keeps them, so its huge pages have no unused parts.
    if !matches!(cli.command, Command::Bench(_)) {
        freed::without_huge_pages();
    }
    freed::keep_freed();
    logger::install(cli.verbose);
    panics::install();
    if let Err(error) = interrupt::install() {
        log::warn!("temporary files will remain after an interrupt: {error:#}");
    }
    let result = match cli.command {
        Command::Join(arguments) => join::run(&arguments),
        Command::Sql(arguments) => sql::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Completions { shell } => shell::completions(shell),
        Command::Man { out } => shell::man(out.as_deref()),
    };
    failure::exit(result)
}

//! Runs the statements of the command line, of a file or of stdin.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, bail};
use datafusion::sql::parser::Statement;

use super::copy::Copy;
use super::results;
use super::session::{DIALECT, Kind, Query, Session, Settings, parse};
use super::target::{self, Target, check_names};
use crate::arguments::{SqlArguments, StdoutFormat};
use crate::digits::counted;
use crate::failure::say;
use crate::output::{Destination, FileFormat, Notation, Sink, Squeeze, check_stdout, print};

/// The most rows that are shown per result.
const SHOWN: usize = 40;

const NOTHING: &str =
    "the last statement returns no rows, so nothing can be written; end with a SELECT";

/// Runs the command.
pub(crate) fn run(arguments: &SqlArguments) -> anyhow::Result<()> {
    if is_prompt(arguments) {
        return super::prompt::run(arguments);
    }
    let text = text(arguments)?;
    check_output(arguments)?;
    let mut statements = parse(&text, DIALECT)?;
    let Some(last) = statements.pop() else {
        bail!(
            "there is no statement; write one, as in strait sql \"SELECT * FROM 'orders.parquet'\""
        )
    };
    // What is wrong with a later `COPY` is said before an earlier one writes a file.
    let mut copies = false;
    for statement in statements.iter().chain([&last]) {
        copies |= Copy::of(statement)?.is_some();
    }
    if is_written(arguments) && matches!(last, Statement::CopyTo(_)) {
        bail!("{NOTHING}")
    }
    let session = Session::new(&Settings::of(arguments, is_file(arguments) || copies))?;
    for statement in statements {
        if let Some(copy) = Copy::of(&statement)? {
            say(format_args!("{}", copy.run(&session)?));
            continue;
        }
        let query = session.plan(statement)?;
        match is_written(arguments) {
            // Only the last statement's rows are written, but all statements run.
            true => results::in_order(&session, &query, |_| Ok(()))?,
            false => print(&results::shown(&session, &query, rows(arguments))?)?,
        }
    }
    run_last(arguments, &session, last)
}

fn rows(arguments: &SqlArguments) -> usize {
    arguments.rows.unwrap_or(SHOWN)
}

/// Whether rows are written, not shown.
fn is_written(arguments: &SqlArguments) -> bool {
    arguments.output.is_some() || arguments.format.is_some()
}

/// Whether rows are encoded in blocks, which take memory.
fn is_file(arguments: &SqlArguments) -> bool {
    !matches!(arguments.output, None | Some(Destination::Stdout))
        || matches!(arguments.format, Some(StdoutFormat::Arrow))
}

fn is_prompt(arguments: &SqlArguments) -> bool {
    arguments.statements.is_none() && arguments.file.is_none() && io::stdin().is_terminal()
}

/// Returns the text of the statements.
fn text(arguments: &SqlArguments) -> anyhow::Result<String> {
    if let Some(statements) = &arguments.statements {
        return Ok(statements.clone());
    }
    match arguments.file.as_deref().filter(|path| *path != Path::new("-")) {
        Some(path) => {
            let name = path.display();
            fs::read_to_string(path).with_context(|| format!("cannot read statements from {name}"))
        }
        None => {
            let mut text = String::new();
            let read = io::stdin().lock().read_to_string(&mut text);
            read.context("cannot read statements from stdin")?;
            Ok(text)
        }
    }
}

/// Rejects an output that cannot be written, before anything is read.
fn check_output(arguments: &SqlArguments) -> anyhow::Result<()> {
    match Target::of(arguments) {
        Some(Target { to: Destination::Stdout, .. }) => check_binary(),
        Some(target) => target.check(),
        None if arguments.format == Some(StdoutFormat::Arrow) => check_binary(),
        None => check_stdout(", or write a file with -o"),
    }
}

fn check_binary() -> anyhow::Result<()> {
    if io::stdout().is_terminal() {
        bail!(
            "an Arrow IPC stream cannot be shown on a terminal; redirect stdout, or leave out -o and --format to see the first rows"
        )
    }
    check_stdout(", or write a file with -o")
}

fn run_last(arguments: &SqlArguments, session: &Session, last: Statement) -> anyhow::Result<()> {
    if let Some(copy) = Copy::of(&last)? {
        say(format_args!("{}", copy.run(session)?));
        return Ok(());
    }
    let query = session.plan(last)?;
    if !is_written(arguments) {
        return print(&results::shown(session, &query, rows(arguments))?);
    }
    if query.kind == Kind::Nothing {
        bail!("{NOTHING}")
    }
    let sink = match Target::of(arguments) {
        Some(target) => target.open(session, &query)?,
        None => stdout(arguments, session, &query)?,
    };
    let rows = results::write(session, query, sink)?;
    if let Some(file @ (Destination::File(..) | Destination::Object(..))) = &arguments.output {
        say(format_args!("wrote {} to {file}", counted(rows, "row")));
    }
    Ok(())
}

/// Opens stdout, for rows in the format of `--format`.
fn stdout(arguments: &SqlArguments, session: &Session, query: &Query) -> anyhow::Result<Sink> {
    let schema = query.plan.schema();
    check_names(&schema)?;
    let format = match arguments.format {
        Some(StdoutFormat::Csv) => FileFormat::Text(Notation::Delimited(b','), Squeeze::None),
        Some(StdoutFormat::Tsv) => FileFormat::Text(Notation::Delimited(b'\t'), Squeeze::None),
        Some(StdoutFormat::Jsonl) => FileFormat::Text(Notation::JsonLines, Squeeze::None),
        Some(StdoutFormat::Arrow) | None => FileFormat::IpcStream,
    };
    Sink::stdout(format, target::options(session), &schema)
}

//! Runs the statements of the command line, of a file or of stdin.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use datafusion::sql::parser::Statement;

use super::results;
use super::session::{Kind, Query, Session};
use crate::arguments::{SqlArguments, StdoutFormat};
use crate::busy::Busy;
use crate::digits::counted;
use crate::failure;
use crate::output::{
    Aside, Destination, FileFormat, Notation, Sink, SinkOptions, Squeeze, check_stdout, print,
    resolved,
};
use crate::store::Upload;

/// The most rows that are shown per result.
const SHOWN: usize = 40;

/// Runs the command.
pub(crate) fn run(arguments: &SqlArguments) -> anyhow::Result<()> {
    if is_prompt(arguments) {
        return super::prompt::run(arguments);
    }
    let text = text(arguments)?;
    check_output(arguments)?;
    let session = Session::new(arguments)?;
    let mut statements = session.parse(&text)?;
    let Some(last) = statements.pop() else {
        bail!(
            "there is no statement; write one, as in strait sql \"SELECT * FROM 'orders.parquet'\""
        )
    };
    for statement in statements {
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
    match &arguments.output {
        Some(Destination::File(path, _)) => Aside::check(path, arguments.overwrite),
        Some(Destination::Object(location, _)) => Upload::check(location, arguments.overwrite),
        Some(Destination::Stdout) => check_binary(),
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
    let query = session.plan(last)?;
    if !is_written(arguments) {
        return print(&results::shown(session, &query, rows(arguments))?);
    }
    if query.kind == Kind::Nothing {
        bail!("the last statement returns no rows, so nothing can be written; end with a SELECT")
    }
    let sink = sink(arguments, session, &query)?;
    let rows = results::write(session, query, sink)?;
    if let Some(file @ (Destination::File(..) | Destination::Object(..))) = &arguments.output {
        failure::say(format_args!("wrote {} to {file}", counted(rows, "row")));
    }
    Ok(())
}

/// Opens the output.
fn sink(arguments: &SqlArguments, session: &Session, query: &Query) -> anyhow::Result<Sink> {
    let options = SinkOptions {
        overwrite: arguments.overwrite,
        compression: arguments.compression,
        threads: session.threads,
        row_group_rows: arguments.row_group_rows,
        memory: session.memory_for_output(),
        busy: Busy::default(),
    };
    let schema = query.plan.schema();
    check_names(&schema)?;
    let Some(destination) = &arguments.output else {
        let format = match arguments.format {
            Some(StdoutFormat::Csv) => FileFormat::Text(Notation::Delimited(b','), Squeeze::None),
            Some(StdoutFormat::Tsv) => FileFormat::Text(Notation::Delimited(b'\t'), Squeeze::None),
            Some(StdoutFormat::Jsonl) => FileFormat::Text(Notation::JsonLines, Squeeze::None),
            Some(StdoutFormat::Arrow) | None => FileFormat::IpcStream,
        };
        return Sink::stdout(format, options, &schema);
    };
    match destination {
        Destination::File(path, _) => {
            let target = resolved(path)?;
            session.tables.check_output(&path.display(), |found| found.claims(&target))?;
        }
        Destination::Object(location, _) => {
            session.tables.check_output(location, |found| found.claims_object(location))?;
        }
        Destination::Stdout => {}
    }
    Sink::open(destination, options, &schema)
}

/// Rejects two output columns of one name. Readers of a file could not tell them apart.
fn check_names(schema: &arrow::datatypes::Schema) -> anyhow::Result<()> {
    let mut names: Vec<&str> = schema.fields().iter().map(|field| &**field.name()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(anyhow!(
            "the result has two columns \"{0}\"; give one of them another name, as in t.\"{0}\" AS other, or join with USING",
            pair[0]
        )),
    }
}

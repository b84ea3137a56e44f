//! The prompt: reads statements and commands, runs them, and shows their results.

mod complete;
mod history;
mod pager;
mod text;

use std::time::Instant;

use anyhow::{Context, bail};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};

use super::cancel::Cancelled;
use super::copy::Copy;
use super::results;
use super::session::{Kind, Session, Settings};
use crate::arguments::SqlArguments;
use crate::failure::{say, say_error};
use crate::interrupt;
use crate::output::{Closed, check_stdout, print};
use complete::{Completion, Names};
use text::{Command, command};

/// The most rows that are shown per result.
const SHOWN: usize = 1000;

/// The most statements that the history keeps.
const HISTORY: usize = 2000;

const PROMPT: &str = "strait> ";

const WELCOME: &str = "End a statement with a semicolon. \\? lists the commands of the prompt.\n";

const HELP: &str = "\
SELECT …;      runs a statement; it may have several lines
\\d             lists the tables
\\d NAME        shows the columns of a table; NAME may be a path
\\timing        turns the times after results on or off
\\?             shows this help
\\q             leaves, and so does Ctrl-D

FROM takes a table or a path in quotes: SELECT * FROM 'orders.parquet' JOIN 'people/*.csv' USING (id);
COPY (SELECT …) TO 'out.parquet' writes a file; OPTIONS (overwrite true) replaces it.
CREATE VIEW name AS SELECT … FROM 'path' gives a table a name. SET strait.device = 'cpu' changes a setting.
Ctrl-C cancels the running statement. Tab completes words, tables, columns and paths.
";

/// The prompt.
struct Prompt<'a> {
    arguments: &'a SqlArguments,
    session: Session,
    editor: Editor<Completion, FileHistory>,
    names: Names,
    /// Whether times are shown.
    timing: bool,
}

/// Whether the prompt goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Go,
    Leave,
}

/// Runs the prompt until the user leaves it.
pub(super) fn run(arguments: &SqlArguments) -> anyhow::Result<()> {
    if arguments.output.is_some() || arguments.format.is_some() {
        bail!(
            "-o and --format need a statement; write it after them, or name a file of statements with -f"
        )
    }
    check_stdout("")?;
    // A statement of the prompt may be `COPY`.
    let session = Session::new(&Settings::of(arguments, true))?;
    let cancel = session.cancel.clone();
    interrupt::replace(Some(Box::new(move || cancel.ask())));
    let names = Names::default();
    let config = Config::builder().max_history_size(HISTORY).context("an impossible history")?;
    let config = config
        .completion_type(CompletionType::List)
        .auto_add_history(true)
        .history_ignore_space(true)
        .build();
    let editor = interrupt::kept(|| Editor::with_config(config));
    let mut editor = editor.context("cannot use the terminal")?;
    editor.set_helper(Some(Completion::new(names.clone())));
    let history = history::file();
    if let Some(path) = &history {
        // The first prompt of a user has no history.
        let _ = editor.load_history(path);
    }
    let mut prompt = Prompt { arguments, session, editor, names, timing: true };
    let ended = prompt.read();
    if let Some(path) = &history
        && let Err(error) = prompt.editor.append_history(path)
    {
        log::warn!("the history cannot be kept in {}: {error}", path.display());
    }
    interrupt::replace(None);
    ended
}

impl Prompt<'_> {
    /// Reads and runs until the end.
    fn read(&mut self) -> anyhow::Result<()> {
        print(WELCOME)?;
        self.learn_names();
        loop {
            let text = match self.editor.readline(PROMPT) {
                Ok(text) => text,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => return Ok(()),
                Err(error) => return Err(error).context("cannot read from the terminal"),
            };
            self.session.cancel.reset();
            match self.run(&text) {
                Ok(Next::Go) => {}
                Ok(Next::Leave) => return Ok(()),
                Err(error) if error.is::<Closed>() => return Err(error),
                Err(error) if error.is::<Cancelled>() => say(format_args!("cancelled")),
                Err(error) => say_error(&error),
            }
        }
    }

    /// Runs a command of the prompt, or statements.
    fn run(&mut self, text: &str) -> anyhow::Result<Next> {
        match command(text) {
            Some(Command::Leave) => return Ok(Next::Leave),
            Some(Command::Help) => print(HELP)?,
            Some(Command::Timing) => {
                self.timing = !self.timing;
                print(if self.timing { "times are shown\n" } else { "times are not shown\n" })?;
            }
            Some(Command::Tables) => print(&self.tables())?,
            Some(Command::Columns(table)) => print(&self.columns(&table)?)?,
            Some(Command::Unknown(name)) => {
                bail!("there is no command {name}; \\? lists the commands")
            }
            None => self.statements(text)?,
        }
        Ok(Next::Go)
    }

    fn statements(&mut self, text: &str) -> anyhow::Result<()> {
        for statement in self.session.parse(text)? {
            let begun = Instant::now();
            if let Some(copy) = Copy::of(&statement)? {
                let mut done = format!("{}\n", copy.run(&self.session)?);
                done.push_str(&self.time(begun));
                print(&done)?;
                continue;
            }
            let query = self.session.plan(statement)?;
            let rows = self.arguments.rows.unwrap_or(SHOWN);
            let shown = results::shown(&self.session, &query, rows)?;
            let time = self.time(begun);
            let shown = match query.kind {
                Kind::Nothing => "done\n".to_string(),
                _ => shown,
            };
            if query.kind == Kind::Nothing {
                self.learn_names();
            }
            pager::show(&format!("{shown}{time}"), !self.arguments.no_pager)?;
        }
        Ok(())
    }

    /// Returns the time since a statement began, if times are shown.
    fn time(&self, begun: Instant) -> String {
        match self.timing {
            true => format!("{:.3} s\n", begun.elapsed().as_secs_f64()),
            false => String::new(),
        }
    }

    fn tables(&self) -> String {
        let names = self.session.table_names();
        match names.is_empty() {
            true => "there are no tables; FROM also takes paths in quotes\n".to_string(),
            false => names.iter().map(|name| format!("{name}\n")).collect(),
        }
    }

    fn columns(&self, table: &str) -> anyhow::Result<String> {
        let columns = self.session.columns(table)?;
        let width = columns.iter().map(|(name, _)| console::measure_text_width(name)).max();
        let width = width.unwrap_or(0);
        let line = |(name, data_type): &(String, String)| {
            let name = console::pad_str(name, width, console::Alignment::Left, None);
            format!("{name}  {data_type}\n")
        };
        Ok(columns.iter().map(line).collect())
    }

    /// Lets the completion know all tables and their columns.
    fn learn_names(&self) {
        let tables = self.session.table_names();
        let columns = tables.iter().filter_map(|table| self.session.columns(table).ok());
        let columns = columns.flatten().map(|(name, _)| name).collect();
        self.names.set(tables, columns);
    }
}

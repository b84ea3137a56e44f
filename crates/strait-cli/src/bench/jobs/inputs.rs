//! The input files of the jobs. The command's own generator makes them, in a process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::suite::Job;
use crate::arguments::TpchTable;
use crate::bench::process;

/// How many files [`Form::Files`] has.
const FILES: u32 = 100;

/// The table in a form that a job needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Input {
    pub(super) table: TpchTable,
    pub(super) form: Form,
}

/// The form of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// One Parquet file.
    Parquet,
    /// One Parquet file, for a scale that is a tenth larger. So one order in eleven has no line items at the usual
    /// scale.
    More,
    /// One CSV file, for a scale that is a tenth larger. So one line item in eleven has no order at the usual scale.
    Csv,
    /// One Parquet file, whose order keys are text. `strait generate tpch --text-keys` makes them from the integer
    /// keys, in the same way in both tables.
    Text,
    /// A folder of many Parquet files.
    Files,
    /// One Arrow IPC file.
    Arrow,
}

impl Form {
    /// The format, which is also the ending of the files.
    pub(super) fn format(self) -> &'static str {
        match self {
            Form::Csv => "csv",
            Form::Arrow => "arrow",
            Form::Parquet | Form::More | Form::Text | Form::Files => "parquet",
        }
    }

    /// The folder of the form.
    fn folder(self) -> &'static str {
        match self {
            Form::Parquet => "parquet",
            Form::More => "more",
            Form::Csv => "csv",
            Form::Text => "text",
            Form::Files => "files",
            Form::Arrow => "arrow",
        }
    }
}

impl Input {
    /// The name of the table.
    pub(super) fn name(self) -> &'static str {
        match self.table {
            TpchTable::Orders => "orders",
            _ => "lineitem",
        }
    }

    /// The key column.
    pub(super) fn key(self) -> &'static str {
        match self.table {
            TpchTable::Orders => "o_orderkey",
            _ => "l_orderkey",
        }
    }

    /// The path of the file, or of the folder with a slash at its end.
    pub(super) fn path(self, folder: &Path) -> String {
        let (form, table) = (folder.join(self.form.folder()), self.name());
        match self.form {
            Form::Files => format!("{}/", form.join(table).display()),
            form_of => form.join(format!("{table}.{}", form_of.format())).display().to_string(),
        }
    }

    /// The approximate bytes of the table, at scale 1.
    fn bytes(self) -> u64 {
        let orders = self.table == TpchTable::Orders;
        let mebibytes = match self.form {
            Form::Csv if orders => 190,
            Form::Csv => 810,
            Form::Arrow if orders => 260,
            Form::Arrow => 1300,
            _ if orders => 60,
            _ => 200,
        };
        mebibytes << 20
    }

    /// The arguments of the command that makes the table.
    fn arguments(self, scale: f64, folder: &Path) -> Vec<String> {
        let scale = match self.form {
            Form::More | Form::Csv => scale * 1.1,
            Form::Parquet | Form::Text | Form::Files | Form::Arrow => scale,
        };
        let mut all = ["generate", "tpch", "--tables", self.name()].map(String::from).to_vec();
        all.extend(["--format".into(), self.form.format().into(), "--scale".into()]);
        all.extend([scale.to_string(), "--out".into()]);
        all.push(folder.join(self.form.folder()).display().to_string());
        match self.form {
            Form::Text => all.push("--text-keys".into()),
            Form::Files => all.extend(["--files".into(), FILES.to_string()]),
            Form::Parquet | Form::More | Form::Csv | Form::Arrow => {}
        }
        all
    }
}

/// Returns the bytes that the largest of these jobs needs for its files.
pub(super) fn room(jobs: &[&Job], scale: f64) -> u64 {
    // A job's output exists beside the input files of the job, and of jobs that follow.
    let kept: u64 = [TpchTable::Orders, TpchTable::Lineitem]
        .map(|table| Input { table, form: Form::Parquet }.bytes())
        .iter()
        .sum();
    let needs =
        |job: &&Job| job.inputs().iter().map(|i| i.bytes()).sum::<u64>() + job.output_bytes();
    ((kept + jobs.iter().map(needs).max().unwrap_or(0)) as f64 * scale) as u64
}

/// The input files that exist.
pub(super) struct Inputs<'a> {
    folder: &'a Path,
    scale: f64,
    made: Vec<Input>,
}

impl<'a> Inputs<'a> {
    pub(super) fn new(folder: &'a Path, scale: f64) -> Self {
        Inputs { folder, scale, made: Vec::new() }
    }

    /// Makes the files of the first job that do not exist, and removes files that none of the jobs needs.
    pub(super) fn prepare(&mut self, jobs: &[&Job]) -> anyhow::Result<()> {
        let needed: Vec<Input> = jobs.iter().flat_map(|job| job.inputs()).collect();
        let (kept, unneeded) = self.made.iter().partition(|&input| needed.contains(input));
        self.made = kept;
        let unneeded: Vec<Input> = unneeded;
        for input in unneeded {
            let path = PathBuf::from(input.path(self.folder));
            let removed = if path.is_dir() {
                std::fs::remove_dir_all(&path)
            } else {
                std::fs::remove_file(&path)
            };
            removed.with_context(|| format!("cannot remove {}", path.display()))?;
        }
        for input in jobs.first().map(|job| job.inputs()).into_iter().flatten() {
            if !self.made.contains(&input) {
                self.make(input)?;
                self.made.push(input);
            }
        }
        Ok(())
    }

    fn make(&self, input: Input) -> anyhow::Result<()> {
        let mut command = Command::new(process::this_command()?);
        command.args(input.arguments(self.scale, self.folder));
        process::run(&mut command, self.folder)
            .with_context(|| format!("cannot generate {}", input.path(self.folder)))?;
        Ok(())
    }
}

//! Records: dated CSV files, one a machine and run.

use std::path::{Path, PathBuf};

use anyhow::Context;
use std::io::Write;

use super::machine::Machine;
use crate::output::Aside;

/// The columns that every record begins with: when, and on which machine.
const COMMON: [&str; 6] = ["date", "strait", "cpu", "cores", "caches", "memory"];

/// A record under way.
pub(super) struct Record {
    date: String,
    machine: Machine,
    writer: csv::Writer<Vec<u8>>,
}

impl Record {
    /// A record with these columns after the common ones.
    pub(super) fn new(columns: &[&str]) -> anyhow::Result<Record> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(COMMON.iter().chain(columns))?;
        let date = chrono::Utc::now().format("%Y-%m-%d").to_string();
        Ok(Record { date, machine: Machine::detect(), writer })
    }

    pub(super) fn add(&mut self, cells: impl IntoIterator<Item = String>) -> anyhow::Result<()> {
        let machine = &self.machine;
        let common = [
            self.date.clone(),
            env!("CARGO_PKG_VERSION").to_string(),
            machine.cpu.clone(),
            machine.cores.to_string(),
            machine.caches(),
            machine.memory.to_string(),
        ];
        Ok(self.writer.write_record(common.into_iter().chain(cells))?)
    }

    /// Writes the record into a folder, under a name that no other record has.
    pub(super) fn write(self, folder: &Path, what: &str) -> anyhow::Result<PathBuf> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make folder {}", folder.display()))?;
        let stem = format!("{}-{what}-{}", self.date, self.machine.slug());
        let text = self.writer.into_inner()?;
        let name = |n: u32| match n {
            1 => folder.join(format!("{stem}.csv")),
            n => folder.join(format!("{stem}-{n}.csv")),
        };
        let path = (1..).map(name).find(|path| !path.exists()).context("no name is left")?;
        write_whole(&path, &text)?;
        Ok(path)
    }
}

/// Writes a file that appears whole or not at all, and replaces one that is there.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let aside = Aside::begin(path, true)?;
    let written = aside.file()?.write_all(bytes).and_then(|()| aside.persist());
    written.with_context(|| format!("cannot write {}", path.display()))
}

//! Records: dated CSV files, one per machine and run.

use std::path::{Path, PathBuf};

use anyhow::Context;
use std::io::Write;
use strait_bench::machine::Machine;

use crate::output::Aside;

/// The columns that every record begins with: date, version and machine.
const COMMON: [&str; 6] = ["date", "strait", "cpu", "cores", "caches", "memory"];

/// A record that is being written.
pub(super) struct Record {
    date: String,
    machine: Machine,
    writer: csv::Writer<Vec<u8>>,
    /// The path of the file, once it was saved.
    path: Option<PathBuf>,
}

impl Record {
    /// A record with these columns after the common ones.
    pub(super) fn new(columns: &[&str]) -> anyhow::Result<Record> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(COMMON.iter().chain(columns))?;
        let date = chrono::Utc::now().format("%Y-%m-%d").to_string();
        Ok(Record { date, machine: Machine::detect(), writer, path: None })
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

    /// Writes the record so far into a folder, under a name that no other record has. Later calls use the
    /// same name. If a long measurement is interrupted, the figures so far are thus kept.
    pub(super) fn save(&mut self, folder: &Path, what: &str) -> anyhow::Result<&Path> {
        let path = match self.path.take() {
            Some(path) => path,
            None => self.fresh(folder, what)?,
        };
        let path = self.path.insert(path);
        self.writer.flush()?;
        write_whole(path, self.writer.get_ref())?;
        Ok(path)
    }

    /// Writes the record into a folder, and returns its path.
    pub(super) fn write(mut self, folder: &Path, what: &str) -> anyhow::Result<PathBuf> {
        self.save(folder, what).map(Path::to_path_buf)
    }

    /// Returns a path in a folder that no other record has.
    fn fresh(&self, folder: &Path, what: &str) -> anyhow::Result<PathBuf> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make folder {}", folder.display()))?;
        let stem = format!("{}-{what}-{}", self.date, self.machine.slug());
        let name = |n: u32| match n {
            1 => folder.join(format!("{stem}.csv")),
            n => folder.join(format!("{stem}-{n}.csv")),
        };
        (1..).map(name).find(|path| !path.exists()).context("no name is left")
    }
}

/// Writes a file atomically: it appears whole or not at all. Replaces an existing file.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let aside = Aside::begin(path, true)?;
    let written = aside.file()?.write_all(bytes).and_then(|()| aside.persist());
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_grows_in_one_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut record = Record::new(&["figure"]).expect("a record");
        let mut lines = Vec::new();
        for figure in ["1", "2", "3"] {
            record.add([figure.to_string()]).expect("a line");
            let path = record.save(folder.path(), "test").expect("a file").to_path_buf();
            let text = std::fs::read_to_string(&path).expect("its text");
            lines.push(text.lines().count());
            assert!(text.ends_with(&format!("{figure}\n")), "{text}");
        }
        assert_eq!(lines, [2, 3, 4]);
        let other = Record::new(&["figure"]).expect("a record");
        let other = other.write(folder.path(), "test").expect("a file");
        assert!(other.to_string_lossy().ends_with("-2.csv"), "{}", other.display());
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 2);
    }
}

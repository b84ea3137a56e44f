//! The tables of a workload, in memory or in a folder, and the expected answer. The answer follows from how
//! the tables are made: a build row's payload is a function of its key's number, so no join is needed.

mod hard;
mod random;
mod shape;

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use arrow::array::{Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::FileReader;
use arrow::ipc::writer::FileWriter;
use serde::{Deserialize, Serialize};

use crate::check::in_parallel;
use shape::payload;

pub use hard::Hard;
pub use random::Random;
pub use shape::{KeyType, Keys, Rows, Shape, Side, Skew, Workload};

/// The file name of the answer, next to `build.arrow` and `probe.arrow`.
pub const EXPECTED: &str = "expected.json";

/// Two tables, and the expected answer of their join.
pub struct Tables {
    /// The build table.
    pub build: Table,
    /// The probe table.
    pub probe: Table,
    /// The expected answer.
    pub expected: Answer,
}

/// A table in memory.
pub struct Table {
    /// The columns. The first one is the key.
    pub schema: SchemaRef,
    /// The rows.
    pub batches: Vec<RecordBatch>,
}

/// The number of rows of a join, and the sum of each payload column over these rows: first the build table's
/// columns, then the probe table's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The number of rows.
    pub rows: u64,
    /// The sum of each payload column.
    pub sums: Vec<i128>,
}

impl Answer {
    /// Returns an error if `found` differs.
    pub fn check(&self, found: &Answer) -> anyhow::Result<()> {
        ensure!(
            found.rows == self.rows,
            "wrong answer: {} rows, where there must be {}",
            found.rows,
            self.rows
        );
        for (i, (found, expected)) in found.sums.iter().zip(&self.sums).enumerate() {
            ensure!(
                found == expected,
                "wrong answer: payload column {} sums to {found}, where it must be {expected}",
                i + 1
            );
        }
        Ok(())
    }

    /// Same as [`check`](Answer::check), for an answer that has all sums.
    pub fn check_all(&self, found: &Answer) -> anyhow::Result<()> {
        ensure!(
            found.sums.len() == self.sums.len(),
            "wrong answer: {} payload sums, where there must be {}",
            found.sums.len(),
            self.sums.len()
        );
        self.check(found)
    }

    /// Adds the answer of further probe rows.
    pub(crate) fn add(&mut self, other: &Answer) {
        self.rows += other.rows;
        self.sums.resize(other.sums.len(), 0);
        self.sums.iter_mut().zip(&other.sums).for_each(|(sum, part)| *sum += part);
    }
}

impl Table {
    /// Returns a reader of the table. The reader shares the table's memory.
    pub fn reader(&self) -> impl RecordBatchReader + Send + 'static {
        let batches: Vec<_> = self.batches.iter().cloned().map(Ok).collect();
        RecordBatchIterator::new(batches, self.schema.clone())
    }

    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.batches.iter().map(|batch| batch.num_rows() as u64).sum()
    }

    /// The bytes of its rows.
    pub fn bytes(&self) -> u64 {
        bytes(&self.batches)
    }

    /// The names of the payload columns: all columns but the key.
    pub fn payloads(&self) -> impl Iterator<Item = &str> {
        self.schema.fields().iter().skip(1).map(|field| field.name().as_str())
    }

    /// Makes a table with one allocation per column, and slices it into batches.
    fn of_parts(schema: SchemaRef, parts: Vec<RecordBatch>, rows: usize) -> anyhow::Result<Table> {
        let whole = concat_batches(&schema, &parts).context("the table is too large for Arrow")?;
        drop(parts);
        let starts = (0..whole.num_rows()).step_by(rows);
        let batches = starts.map(|at| whole.slice(at, rows.min(whole.num_rows() - at))).collect();
        Ok(Table { schema, batches })
    }

    fn write(&self, path: &Path) -> anyhow::Result<()> {
        let write = || -> anyhow::Result<()> {
            let file = BufWriter::with_capacity(1 << 20, File::create(path)?);
            let mut writer = FileWriter::try_new(file, &self.schema)?;
            self.batches.iter().try_for_each(|batch| writer.write(batch))?;
            writer.finish()?;
            Ok(())
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    fn read(path: &Path) -> anyhow::Result<Table> {
        let read = || -> anyhow::Result<Table> {
            let file = BufReader::with_capacity(1 << 20, File::open(path)?);
            let reader = FileReader::try_new(file, None)?;
            let schema = reader.schema();
            Ok(Table { schema, batches: reader.collect::<Result<_, _>>()? })
        };
        read().with_context(|| format!("cannot read {}", path.display()))
    }
}

/// Returns the bytes of all rows of some batches.
pub fn bytes(batches: &[RecordBatch]) -> u64 {
    let columns = batches.iter().flat_map(|batch| batch.columns());
    // A slice counts only its own rows, not the memory that it shares.
    columns.map(|c| c.to_data().get_slice_memory_size().unwrap_or(0) as u64).sum()
}

impl Tables {
    /// Makes both tables, in batches of `batch` rows.
    pub fn generate(shape: Shape, batch: usize, threads: usize) -> anyhow::Result<Tables> {
        Tables::made(shape, threads, |schema, parts| Table::of_parts(schema, parts, batch))
    }

    /// Makes the same rows, and keeps the batches in which they are made. The rows are thus in memory only
    /// once.
    pub fn generate_parts(shape: Shape, threads: usize) -> anyhow::Result<Tables> {
        Tables::made(shape, threads, |schema, batches| Ok(Table { schema, batches }))
    }

    fn made(
        shape: Shape,
        threads: usize,
        whole: impl Fn(SchemaRef, Vec<RecordBatch>) -> anyhow::Result<Table>,
    ) -> anyhow::Result<Tables> {
        let workload = Workload::new(shape)?;
        let mut expected = Answer::default();
        let mut table = |side| -> anyhow::Result<Table> {
            let numbers: Vec<usize> = (0..workload.parts(side)).collect();
            let made = in_parallel(&numbers, threads, |&part| -> anyhow::Result<_> {
                let range = workload.part(side, part);
                let first = range.start;
                let rows = workload.batch(side, range, &mut workload.random(part))?;
                let answer = match side {
                    Side::Build => Answer::default(),
                    Side::Probe => answer(&workload, &rows.numbers, first),
                };
                Ok((rows.batch, answer))
            })?;
            let mut parts = Vec::with_capacity(made.len());
            for part in made {
                let (rows, answer) = part?;
                if side == Side::Probe {
                    expected.add(&answer);
                }
                parts.push(rows);
            }
            whole(workload.schema(side), parts)
        };
        let (build, probe) = (table(Side::Build)?, table(Side::Probe)?);
        expected.sums.resize(usize::from(workload.shape.payload_columns) * 2, 0);
        Ok(Tables { build, probe, expected })
    }

    /// Writes both tables and the answer into a folder that exists.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        self.build.write(&folder.join("build.arrow"))?;
        self.probe.write(&folder.join("probe.arrow"))?;
        let path = folder.join(EXPECTED);
        let text = serde_json::to_string(&self.expected)?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads the tables and the answer that [`write`](Tables::write) wrote.
    pub fn read(folder: &Path) -> anyhow::Result<Tables> {
        let path = folder.join(EXPECTED);
        if !path.exists() {
            bail!(
                "{} is no workload: it has no {EXPECTED}; `strait bench compare --keep DIR` makes some",
                folder.display()
            );
        }
        let read = || anyhow::Ok(serde_json::from_reader(BufReader::new(File::open(&path)?))?);
        let expected = read().with_context(|| format!("cannot read {}", path.display()))?;
        let build = Table::read(&folder.join("build.arrow"))?;
        let probe = Table::read(&folder.join("probe.arrow"))?;
        Ok(Tables { build, probe, expected })
    }
}

/// Returns what some probe rows contribute to the answer. The first of them is row `first`.
pub(crate) fn answer(workload: &Workload, numbers: &[u64], first: u64) -> Answer {
    let columns = workload.shape.payload_columns;
    let salts = |side| -> Vec<u64> { (0..columns).map(|c| workload.salt(side, c)).collect() };
    let (build, probe) = (salts(Side::Build), salts(Side::Probe));
    let mut rows = 0;
    let mut sums = vec![0i128; build.len() + probe.len()];
    for (&number, row) in numbers.iter().zip(first..) {
        let met = workload.met(number);
        let copies = met.clone().count() as u64;
        rows += copies;
        let (of_build, of_probe) = sums.split_at_mut(build.len());
        for (sum, &salt) in of_build.iter_mut().zip(&build) {
            *sum += met.clone().map(|place| i128::from(payload(salt, place))).sum::<i128>();
        }
        for (sum, &salt) in of_probe.iter_mut().zip(&probe) {
            *sum += i128::from(payload(salt, row)) * i128::from(copies);
        }
    }
    Answer { rows, sums }
}

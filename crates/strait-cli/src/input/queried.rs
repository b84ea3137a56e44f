//! Tables for SQL: the files of `strait join`, but no join reads them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, SchemaRef};
use arrow::error::ArrowError;

use super::format::Format;
use super::hive;
use super::reader::TableReader;
use super::source::TableSource;
use super::table::{InputTable, Reading, Rows};

/// The rows of a table. Many threads may read them.
pub(crate) struct SharedRows {
    rows: Shared,
    /// Whether a thread had an error. Then the other threads stop.
    failed: AtomicBool,
}

enum Shared {
    Source(Box<TableSource>),
    Reader(Mutex<Box<TableReader>>),
}

impl SharedRows {
    /// Returns the next batch, or `None` at the end. Each batch is returned once.
    pub(crate) fn next(&self) -> Result<Option<RecordBatch>, ArrowError> {
        if self.failed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let read = match &self.rows {
            Shared::Source(source) => source.read(|| self.failed.load(Ordering::Relaxed)),
            Shared::Reader(reader) => {
                reader.lock().unwrap_or_else(PoisonError::into_inner).next().transpose()
            }
        };
        if read.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        read
    }
}

/// The files of a Parquet table, for a reader other than Strait's own.
pub(crate) struct ParquetFiles {
    /// The columns in the files.
    pub(crate) stored: SchemaRef,
    /// The columns from the names of folders.
    pub(crate) folders: Vec<Field>,
    pub(crate) files: Vec<ParquetFile>,
}

/// A file of a Parquet table.
pub(crate) struct ParquetFile {
    /// A path, or the name of an object.
    pub(crate) path: PathBuf,
    /// For each folder column, an array with its one value.
    pub(crate) values: Vec<ArrayRef>,
}

impl InputTable {
    /// Returns the same table, to be read once more. `None` for a stream on stdin.
    pub(crate) fn again(&self) -> Option<InputTable> {
        let Rows::Files(files) = &self.rows else { return None };
        Some(InputTable {
            name: self.name.clone(),
            schema: self.schema.clone(),
            rows: Rows::Files(files.clone()),
            memory: self.memory.clone(),
        })
    }

    /// Reads exactly `columns`, in this order, on up to `threads` threads.
    pub(crate) fn shared(self, columns: &[usize], threads: usize) -> SharedRows {
        let rows = match self.reading(columns, threads) {
            Reading::Source(source) => Shared::Source(source),
            Reading::Reader(reader) => Shared::Reader(Mutex::new(reader)),
        };
        SharedRows { rows, failed: AtomicBool::new(false) }
    }

    /// Returns the files, if all are Parquet files.
    pub(crate) fn parquet_files(&self) -> Option<ParquetFiles> {
        let Rows::Files(table) = &self.rows else { return None };
        if table.files.iter().any(|file| file.found.format != Format::Parquet) {
            return None;
        }
        let stored = table.stored.fields().len();
        let folders: Vec<Field> =
            self.schema.fields()[stored..].iter().map(|field| field.as_ref().clone()).collect();
        let files = table.files.iter().map(|file| {
            let value = |field: &Field| {
                let partition = file.found.partitions.iter().find(|p| p.key == *field.name())?;
                Some(hive::column(partition, field.data_type(), 1))
            };
            let values = folders.iter().map(value).collect::<Option<Vec<_>>>()?;
            Some(ParquetFile { path: file.found.path.clone(), values })
        });
        let files = files.collect::<Option<Vec<_>>>()?;
        Some(ParquetFiles { stored: table.stored.clone(), folders, files })
    }
}

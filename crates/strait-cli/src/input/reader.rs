//! Reads the needed columns of a table, one file after another. A file is opened only when its rows are
//! needed. Parquet files may be decoded [`ahead`](super::ahead).

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, RecordBatchReader};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use strait::Error;

use super::ahead::{Ahead, Unit};
use super::format::Format;
use super::table::{Files, TableFile};
use super::{csv, hive, ipc, json, parquet};
use crate::failure::{Told, of_join, one_line};
use crate::memory::Memory;
use crate::panics::caught;

/// The columns of a table that are wanted, and their order.
pub(super) struct Columns {
    wanted: Vec<usize>,
    /// The schema of the wanted columns only.
    schema: SchemaRef,
}

impl Columns {
    pub(super) fn new(table: &Schema, wanted: &[usize]) -> Self {
        // Metadata is omitted, because it may differ between files.
        let fields = wanted.iter().map(|&i| table.fields()[i].clone());
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        Columns { wanted: wanted.to_vec(), schema }
    }
}

/// The reader that a join gets.
pub(crate) struct TableReader {
    columns: Columns,
    rows: Remaining,
    open: Option<Open>,
}

/// The source that is being read.
enum Open {
    /// A file, and its index.
    File(usize, Box<dyn RecordBatchReader + Send>),
    /// All files, on several threads.
    Ahead(Ahead),
}

/// The part of the table that was not read yet.
enum Remaining {
    /// Stdin is open from the start.
    Stdin,
    Files {
        files: Files,
        next: usize,
        /// The wanted columns that are stored in the files, in file order.
        stored: Vec<usize>,
        /// The number of threads that may decode ahead. One means that there are none.
        threads: usize,
        memory: Memory,
    },
}

impl TableReader {
    pub(super) fn stdin(reader: Box<dyn RecordBatchReader + Send>, columns: Columns) -> Self {
        TableReader { columns, rows: Remaining::Stdin, open: Some(Open::File(0, reader)) }
    }

    pub(super) fn files(files: Files, columns: Columns, threads: usize, memory: &Memory) -> Self {
        let held = files.stored.fields().len();
        let mut stored: Vec<usize> = columns.wanted.iter().copied().filter(|&i| i < held).collect();
        stored.sort_unstable();
        stored.dedup();
        let memory = memory.clone();
        let rows = Remaining::Files { files, next: 0, stored, threads, memory };
        TableReader { columns, rows, open: None }
    }

    /// Returns the next batch of the open source, or of the next file.
    fn advance(&mut self) -> Result<Option<RecordBatch>, Told> {
        loop {
            let next = match &mut self.open {
                Some(Open::File(index, reader)) => {
                    let batch = caught(|| reader.next());
                    let batch = batch.unwrap_or_else(|why| Some(Err(ArrowError::IpcError(why))));
                    batch.map(|batch| (*index, batch))
                }
                Some(Open::Ahead(ahead)) => ahead.next(),
                None => None,
            };
            match next {
                Some((_, Ok(batch))) if batch.num_rows() == 0 => {}
                Some((index, Ok(batch))) => return self.arranged(index, &batch).map(Some),
                Some((index, Err(error))) => {
                    // A source that failed is not read again.
                    self.open = None;
                    self.rows.end();
                    return Err(self.explain(index, error));
                }
                None => {
                    self.open = self.rows.open().map_err(|error| Told(format!("{error:#}")))?;
                    if self.open.is_none() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Arranges the columns of a file's batch in the wanted order.
    fn arranged(&self, index: usize, batch: &RecordBatch) -> Result<RecordBatch, Told> {
        let rows = batch.num_rows();
        let column = |(position, &wanted): (usize, &usize)| match &self.rows {
            Remaining::Stdin => Some(batch.column(wanted).clone()),
            Remaining::Files { files, stored, .. } => match stored.binary_search(&wanted) {
                Ok(at) => Some(batch.column(at).clone()),
                Err(_) => {
                    let field = self.columns.schema.field(position);
                    let partitions = &files.files[index].found.partitions;
                    let partition = partitions.iter().find(|p| p.key == *field.name())?;
                    Some(hive::column(partition, field.data_type(), rows))
                }
            },
        };
        let columns: Option<Vec<_>> = self.columns.wanted.iter().enumerate().map(column).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        columns
            .ok_or_else(|| ArrowError::SchemaError("a folder's column is missing".to_string()))
            .and_then(|columns| {
                RecordBatch::try_new_with_options(self.columns.schema.clone(), columns, &options)
            })
            .map_err(|error| self.explain(index, error))
    }

    fn explain(&self, index: usize, error: ArrowError) -> Told {
        let name = match &self.rows {
            Remaining::Stdin => "stdin".to_string(),
            Remaining::Files { files, .. } => files.files[index].found.path.display().to_string(),
        };
        // A refused reservation concerns the limit, not the file.
        let error = match Error::from_arrow(error) {
            Error::Arrow { source, .. } => source,
            refused => return Told(format!("cannot read {name}: {:#}", of_join(refused))),
        };
        if let ArrowError::ExternalError(inner) = error.as_ref()
            && let Some(Told(message)) = inner.downcast_ref()
        {
            return Told(message.clone());
        }
        let Remaining::Files { files, .. } = &self.rows else {
            let error = one_line(&error.to_string());
            return Told(format!("cannot read stdin: {error}; was its writer cut short?"));
        };
        let found = &files.files[index].found;
        Told(match found.format {
            Format::Csv(_) => csv::explain(&found.path, Some(&files.stored), &files.csv, &error),
            format => format!(
                "cannot read {name}: {}; the {} file may be damaged, so get it again",
                one_line(&error.to_string()),
                format.name()
            ),
        })
    }
}

impl Remaining {
    /// Opens the next file, or all files at once.
    fn open(&mut self) -> anyhow::Result<Option<Open>> {
        let Remaining::Files { files, next, stored, threads, memory } = self else {
            return Ok(None);
        };
        let Some(file) = files.files.get(*next) else { return Ok(None) };
        if *threads > 1
            && let Some(units) = row_groups(files)
        {
            *next = files.files.len();
            return Ok(Some(Open::Ahead(Ahead::start(units, stored, *threads, memory)?)));
        }
        log::trace!("reading {}", file.found.path.display());
        let reader = open(file, files, stored, memory)?;
        *next += 1;
        Ok(Some(Open::File(*next - 1, reader)))
    }

    /// Prevents any further file from being opened.
    fn end(&mut self) {
        if let Remaining::Files { files, next, .. } = self {
            *next = files.files.len();
        }
    }
}

/// Returns all row groups, if all files are Parquet files.
fn row_groups(files: &Files) -> Option<Vec<Unit>> {
    let mut units = Vec::new();
    for (index, file) in files.files.iter().enumerate() {
        let footer = file.footer.as_ref()?;
        units.extend((0..footer.metadata().num_row_groups()).map(|group| Unit {
            file: index,
            path: file.found.path.clone(),
            footer: footer.clone(),
            group,
        }));
    }
    Some(units)
}

fn open(
    file: &TableFile,
    files: &Files,
    stored: &[usize],
    memory: &Memory,
) -> anyhow::Result<Box<dyn RecordBatchReader + Send>> {
    let path = &file.found.path;
    match (file.found.format, &file.footer) {
        (Format::Parquet, Some(footer)) => parquet::read(path, footer, stored, None, memory),
        (Format::Parquet, None) => {
            parquet::read(path, &parquet::footer(path, memory)?, stored, None, memory)
        }
        (Format::Csv(text), _) => {
            let schema = files.stored.clone();
            let file = csv::CsvFile { path, text, schema, record: file.record };
            csv::read(&file, &files.csv, stored, memory)
        }
        (Format::Json(squeeze), _) => {
            let schema = files.stored.clone();
            json::read(&json::JsonFile { path, squeeze, schema }, stored, memory)
        }
        (Format::Ipc, _) => ipc::read(path, Some(stored), memory),
    }
}

impl Iterator for TableReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().map_err(ArrowError::from).transpose()
    }
}

impl RecordBatchReader for TableReader {
    fn schema(&self) -> SchemaRef {
        self.columns.schema.clone()
    }
}

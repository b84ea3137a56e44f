//! Reads the needed columns of a table, one file after another. A file is opened only when its rows are
//! needed.

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use strait::Error;

use super::columns::Columns;
use super::format::Format;
use super::ipc;
use super::table::{Files, TableFile};
use crate::failure::{Told, of_join, one_line};
use crate::memory::Memory;
use crate::panics::caught;
use crate::store;

type Batches = Box<dyn RecordBatchReader + Send>;

/// The reader that a join gets for streams, and for files that one thread reads.
pub(crate) struct TableReader {
    columns: Columns,
    rows: Remaining,
    memory: Memory,
}

/// The part of the table that was not read yet.
enum Remaining {
    Stdin(Option<Batches>),
    Files {
        files: Files,
        /// The file that is being read, and its index.
        open: Option<(usize, Batches)>,
        next: usize,
    },
}

impl TableReader {
    pub(super) fn stdin(reader: Batches, columns: Columns, memory: &Memory) -> Self {
        TableReader { columns, rows: Remaining::Stdin(Some(reader)), memory: memory.clone() }
    }

    pub(super) fn files(files: Files, columns: Columns, memory: &Memory) -> Self {
        let rows = Remaining::Files { files, open: None, next: 0 };
        TableReader { columns, rows, memory: memory.clone() }
    }

    /// Returns the next batch of the open source, or of the next file.
    fn advance(&mut self) -> Result<Option<RecordBatch>, Told> {
        let (columns, memory) = (&self.columns, &self.memory);
        match &mut self.rows {
            Remaining::Stdin(open) => loop {
                let Some(reader) = open else { return Ok(None) };
                let batch = next(reader)
                    .map(|batch| batch.and_then(|batch| columns.picked(&batch, memory)));
                match batch {
                    Some(Ok(batch)) if batch.num_rows() == 0 => {}
                    Some(Ok(batch)) => return Ok(Some(batch)),
                    ended => {
                        *open = None;
                        return ended.map_or(Ok(None), |batch| batch.map(Some)).map_err(of_stdin);
                    }
                }
            },
            Remaining::Files { files, open, next: at } => loop {
                let Some((index, reader)) = open else {
                    let Some(file) = files.files.get(*at) else { return Ok(None) };
                    log::trace!("reading {}", file.found.path.display());
                    let opened = open_file(file, columns.stored(), memory);
                    let told = |error| {
                        store::fault(&file.found.path).unwrap_or_else(|| Told(format!("{error:#}")))
                    };
                    *open = Some((*at, opened.map_err(told)?));
                    *at += 1;
                    continue;
                };
                let batch = next(reader);
                let arrange = |batch: RecordBatch| columns.arranged(files, *index, &batch, memory);
                match batch.map(|batch| batch.and_then(arrange)) {
                    Some(Ok(batch)) if batch.num_rows() == 0 => {}
                    Some(Ok(batch)) => return Ok(Some(batch)),
                    Some(Err(error)) => {
                        let told = files.told(*index, None, error);
                        // A source that failed is not read again.
                        (*open, *at) = (None, files.files.len());
                        return Err(told);
                    }
                    None => *open = None,
                }
            },
        }
    }
}

fn next(reader: &mut Batches) -> Option<Result<RecordBatch, ArrowError>> {
    caught(|| reader.next()).unwrap_or_else(|why| Some(Err(ArrowError::IpcError(why))))
}

fn of_stdin(error: ArrowError) -> Told {
    // A refused reservation concerns the limit, not the stream.
    match Error::from_arrow(error) {
        Error::Arrow { source, .. } => match told(&source) {
            Some(told) => told,
            None => {
                let error = one_line(&source.to_string());
                Told(format!("cannot read stdin: {error}; was its writer cut short?"))
            }
        },
        refused => Told(format!("cannot read stdin: {:#}", of_join(refused))),
    }
}

/// Returns the message of an error that needs no explanation.
fn told(error: &ArrowError) -> Option<Told> {
    match error {
        ArrowError::ExternalError(inner) => {
            inner.downcast_ref().map(|Told(message)| Told(message.clone()))
        }
        _ => None,
    }
}

/// Returns whether an error needs no explanation.
pub(super) fn is_told(error: &ArrowError) -> bool {
    told(error).is_some()
}

impl Files {
    /// Returns the message about an error in a file, and in one of its row groups if that is known.
    fn told(&self, index: usize, group: Option<usize>, error: ArrowError) -> Told {
        let found = &self.files[index].found;
        if let Some(fault) = store::fault(&found.path) {
            return fault;
        }
        let name = found.path.display();
        // A refused reservation concerns the limit, not the file.
        let error = match Error::from_arrow(error) {
            Error::Arrow { source, .. } => source,
            refused => return Told(format!("cannot read {name}: {:#}", of_join(refused))),
        };
        if let Some(told) = told(&error) {
            return told;
        }
        Told(format!(
            "cannot read {name}{}: {}; the {} file may be damaged, so get it again",
            group.map_or(String::new(), |group| format!(", row group {group}")),
            one_line(&error.to_string()),
            found.format.name()
        ))
    }

    /// Explains the error of a source. A refused reservation stays one, because the join may try again.
    pub(super) fn explained(
        &self,
        index: usize,
        group: Option<usize>,
        error: ArrowError,
    ) -> ArrowError {
        match Error::from_arrow(error) {
            refused @ Error::MemoryLimit { .. } => refused.into(),
            error => self.told(index, group, error.into()).into(),
        }
    }
}

fn open_file(file: &TableFile, stored: &[usize], memory: &Memory) -> anyhow::Result<Batches> {
    let path = &file.found.path;
    match file.found.format {
        Format::Ipc => ipc::read(path, Some(stored), memory),
        // A source reads these files.
        _ => anyhow::bail!("{} is not read by a reader", path.display()),
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
        self.columns.schema().clone()
    }
}

//! A table: its files and their common schema.

use std::sync::Arc;

use anyhow::{Context, bail};
use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use strait::{Input, Statistics};

use super::columns::Columns;
use super::find::{FoundFile, FoundFiles};
use super::format::Format;
use super::parquet::Footer;
use super::prune::{Bounds, KeyColumn};
use super::reader::TableReader;
use super::source::TableSource;
use super::{cast, csv, file, hive, ipc, json, parquet, sizes, work};
use crate::arguments::CsvArguments;
use crate::busy::{Step, Timed};
use crate::memory::Memory;
use crate::store;

/// The number of footers that are fetched from a store at the same time.
const FOOTERS: usize = 16;

/// A table to be read.
pub(crate) struct InputTable {
    /// The name that the user gave.
    pub(crate) name: String,
    pub(super) schema: SchemaRef,
    pub(super) rows: Rows,
    pub(super) memory: Memory,
}

/// The source of the rows.
pub(super) enum Rows {
    Stdin(Box<dyn RecordBatchReader + Send>),
    Files(Files),
}

/// Files with the same schema.
#[derive(Clone)]
pub(super) struct Files {
    pub(super) files: Vec<TableFile>,
    /// The columns in the files. The columns from folder names come after them.
    pub(super) stored: SchemaRef,
    pub(super) csv: CsvArguments,
}

/// A file, and the facts that are known about it.
#[derive(Clone)]
pub(super) struct TableFile {
    pub(super) found: FoundFile,
    pub(super) footer: Option<Footer>,
    /// The row groups of a Parquet file that are read.
    pub(super) groups: Vec<usize>,
    /// The average length of the records of a CSV file.
    pub(super) record: u64,
}

impl InputTable {
    /// Reads as much of the files as is needed for their schema.
    pub(crate) fn open(
        found: FoundFiles,
        csv: &CsvArguments,
        memory: &Memory,
    ) -> anyhow::Result<InputTable> {
        if found.is_stdin() {
            let reader = ipc::stdin(memory)?;
            let schema = reader.schema();
            let (rows, memory) = (Rows::Stdin(reader), memory.clone());
            return Ok(InputTable { name: found.name, schema, rows, memory });
        }
        let mut folders = hive::fields(&found.files)?;
        let mut files = Vec::with_capacity(found.files.len());
        let mut stored: Option<(Schema, String)> = None;
        for index in 0..found.files.len() {
            fetch_footers(&found.files[index..], memory);
            let file = found.files[index].clone();
            let path = file.path.clone();
            let (schema, file) = schema_of(file, csv, memory)
                .map_err(|error| store::fault(&path).map_or(error, Into::into))?;
            let shown = file.found.path.display().to_string();
            stored = Some(match stored {
                None => (schema, shown),
                Some((first, name)) => {
                    let merged = merged((&first, &name), (&schema, &shown), file.found.format)?;
                    (merged, name)
                }
            });
            files.push(file);
        }
        let (stored, _) = stored.context("a table has at least one file")?;
        let is_text = |file: &TableFile| file.found.format.is_text();
        let stored = if files.iter().any(is_text) { with_final_types(&stored) } else { stored };
        // If a file has a column itself, the folder's name is not used for it.
        folders.retain(|field| stored.index_of(field.name()).is_err());
        let fields: Vec<_> =
            stored.fields().iter().cloned().chain(folders.into_iter().map(Arc::new)).collect();
        let files = Files { files, stored: Arc::new(stored), csv: csv.clone() };
        let schema = Arc::new(Schema::new(fields));
        Ok(InputTable {
            name: found.name,
            schema,
            rows: Rows::Files(files),
            memory: memory.clone(),
        })
    }

    /// All columns of the table.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Gives a column another type. Returns a sentence about it.
    pub(crate) fn cast(&mut self, column: usize, to: &DataType) -> anyhow::Result<String> {
        let field = self.schema.field(column).clone();
        let (name, from) = (field.name(), field.data_type());
        let mut read_as = from.clone();
        if let Rows::Files(files) = &mut self.rows {
            let format = files.files.first().map(|file| file.found.format);
            match files.stored.fields().get(column) {
                Some(_) => {
                    read_as = format.map_or(read_as, |format| format.read_as(from));
                    files.stored = Arc::new(retyped(&files.stored, column, &read_as));
                }
                // The name of a folder is text.
                None => {
                    read_as = DataType::Utf8;
                    hive::check_cast(&files.files, name, to)?;
                }
            }
        }
        if !cast::is_possible(&read_as, to) {
            bail!(
                "{}: column \"{name}\" has type {from}, which cannot be cast to {}; --cast it to another type",
                self.name,
                cast::shown(to)
            );
        }
        self.schema = Arc::new(retyped(&self.schema, column, to));
        Ok(format!("{}: column \"{name}\" is cast from {from} to {to}\n", self.name))
    }

    /// Returns whether a stored column is cast. The statistics of its files do not hold then.
    fn is_cast(&self, stored: &Schema, column: usize) -> bool {
        self.schema.field(column).data_type() != stored.field(column).data_type()
    }

    /// The number of rows, if the files tell it.
    pub(crate) fn rows(&self) -> Option<u64> {
        self.statistics(&[], None).rows
    }

    /// Whether the table is a stream on stdin.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.rows, Rows::Stdin(_))
    }

    /// The total size of the files, if there are files and the system tells their sizes.
    pub(crate) fn file_bytes(&self) -> Option<u64> {
        let Rows::Files(files) = &self.rows else { return None };
        let length = |file: &TableFile| file::size(&file.found.path);
        files.files.iter().map(length).sum()
    }

    /// Returns the statistics that the files have: the size of the `columns` that the join needs, and the
    /// range of the key if it is one column.
    pub(crate) fn statistics(&self, columns: &[usize], key: Option<&str>) -> Statistics {
        let Rows::Files(files) = &self.rows else { return Statistics::unknown() };
        let Some(footers) = files.footers() else { return Statistics::unknown() };
        let sizes = footers.iter().map(|(footer, groups)| sizes::size(footer, groups, columns));
        let add = |a: (u64, u64), b: (u64, u64)| (a.0.saturating_add(b.0), a.1.saturating_add(b.1));
        let (rows, bytes) = sizes.fold((0, 0), add);
        let mut statistics = Statistics::rows(rows).with_bytes(bytes);
        let key = key.and_then(|key| files.stored.index_of(key).ok());
        if let Some(key) = key.filter(|&key| !self.is_cast(&files.stored, key)) {
            let ranges = footers.iter().filter(|(_, groups)| !groups.is_empty());
            let ranges = ranges.map(|(footer, groups)| parquet::range(footer, groups, key));
            let widest = |a: (i128, i128), b: (i128, i128)| (a.0.min(b.0), a.1.max(b.1));
            let ranges: Option<Vec<_>> = ranges.collect();
            statistics.key_range = ranges.and_then(|ranges| ranges.into_iter().reduce(widest));
        }
        statistics
    }

    /// Estimates the seconds that one core needs to read and decode the `columns`. Zero for a stream: its length is
    /// not known.
    pub(crate) fn read_seconds(&self, columns: &[usize]) -> f64 {
        match &self.rows {
            Rows::Stdin(_) => 0.0,
            Rows::Files(files) => work::seconds(files, columns),
        }
    }

    /// Returns bounds of all values of a column, if all files have them.
    pub(crate) fn bounds(&self, column: &str) -> Option<Bounds> {
        let Rows::Files(files) = &self.rows else { return None };
        let column = files.stored.index_of(column).ok()?;
        if self.is_cast(&files.stored, column) {
            return None;
        }
        let mut all: Option<Bounds> = None;
        for (footer, groups) in files.footers()? {
            let key = KeyColumn::new(footer, column)?;
            let groups = groups.iter().map(|&group| footer.metadata().row_group(group));
            for group in groups.filter(|group| group.num_rows() > 0 && !key.is_null(group)) {
                let bounds = key.bounds(group)?;
                all = Some(match all {
                    None => bounds,
                    Some(all) => all.merged(bounds)?,
                });
            }
        }
        all
    }

    /// Leaves out the row groups without any key that may match the other table, whose keys have the bounds
    /// `other`. With `nulls_match`, a null matches a null.
    pub(crate) fn prune(&mut self, column: &str, other: &Bounds, nulls_match: bool) {
        let Rows::Files(files) = &self.rows else { return };
        let Ok(column) = files.stored.index_of(column) else { return };
        if self.is_cast(&files.stored, column) {
            return;
        }
        let Rows::Files(files) = &mut self.rows else { return };
        for TableFile { footer, groups, .. } in &mut files.files {
            let Some(footer) = footer else { continue };
            let Some(key) = KeyColumn::new(footer, column) else { continue };
            groups.retain(|&group| {
                key.may_match(footer.metadata().row_group(group), other, nulls_match)
            });
        }
    }

    /// Returns the number of row groups that are left out, and the number of all row groups.
    pub(crate) fn pruned(&self) -> (usize, usize) {
        let Rows::Files(files) = &self.rows else { return (0, 0) };
        let all = |file: &TableFile| {
            file.footer.as_ref().map_or(0, |footer| footer.metadata().num_row_groups())
        };
        let (all, kept) = files
            .files
            .iter()
            .fold((0, 0), |(groups, kept), file| (groups + all(file), kept + file.groups.len()));
        (all - kept, all)
    }

    /// Rejects a table if its files say that the `columns` cannot be read.
    pub(crate) fn check(&self, columns: &[usize]) -> anyhow::Result<()> {
        let Rows::Files(files) = &self.rows else { return Ok(()) };
        for file in &files.files {
            if let Some(footer) = &file.footer {
                parquet::check(&file.found.path, footer, columns)?;
            }
        }
        Ok(())
    }

    /// Reads exactly `columns`, in this order. Up to `threads` workers of the join decode the files. The time for
    /// it is added to `busy`.
    pub(crate) fn input(self, columns: &[usize], threads: usize, busy: &Arc<Step>) -> Input {
        match self.reading(columns, threads) {
            Reading::Source(source) => Input::source(Timed::new(*source, busy)),
            Reading::Reader(reader) => Timed::new(*reader, busy).into(),
        }
    }

    pub(super) fn reading(self, columns: &[usize], threads: usize) -> Reading {
        match self.rows {
            Rows::Stdin(reader) => {
                let columns = Columns::new(&self.schema, columns, self.schema.fields().len());
                Reading::Reader(Box::new(TableReader::stdin(reader, columns, &self.memory)))
            }
            Rows::Files(files) => {
                let columns = Columns::new(&self.schema, columns, files.stored.fields().len());
                let all = |is: fn(Format) -> bool| files.files.iter().all(|f| is(f.found.format));
                let source = if all(|format| format == Format::Parquet) {
                    TableSource::parquet
                } else if all(Format::is_text) {
                    TableSource::text
                } else {
                    let reader = TableReader::files(files, columns, &self.memory);
                    return Reading::Reader(Box::new(reader));
                };
                Reading::Source(Box::new(source(files, columns, threads, &self.memory)))
            }
        }
    }

    /// Reads exactly `columns` on the calling thread, without a join.
    pub(crate) fn batches(
        self,
        columns: &[usize],
    ) -> Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send> {
        match self.reading(columns, 1) {
            Reading::Source(source) => {
                let mut failed = false;
                Box::new(std::iter::from_fn(move || {
                    let batch = if failed { Ok(None) } else { source.read(|| false) };
                    failed = batch.is_err();
                    batch.transpose()
                }))
            }
            Reading::Reader(reader) => reader,
        }
    }
}

impl Files {
    /// Returns the footers and the row groups that are read, if all files are Parquet files.
    fn footers(&self) -> Option<Vec<(&Footer, &[usize])>> {
        self.files.iter().map(|file| Some((file.footer.as_ref()?, &*file.groups))).collect()
    }
}

/// How a table is read.
pub(super) enum Reading {
    Source(Box<TableSource>),
    Reader(Box<TableReader>),
}

/// Begins to fetch the footers of the next objects at the same time. Otherwise, each request would wait for the one
/// before it.
fn fetch_footers(files: &[FoundFile], memory: &Memory) {
    // Under a memory limit, there may be no memory for them.
    let most = if memory.limit().is_some() { 1 } else { FOOTERS };
    for file in files.iter().take(most).filter(|file| file.format == Format::Parquet) {
        let Some(object) = store::object(&file.path) else { return };
        // If this fails, the request for the footer itself fails too.
        let _ = object.fetch_tail();
    }
}

fn schema_of(
    found: FoundFile,
    csv: &CsvArguments,
    memory: &Memory,
) -> anyhow::Result<(Schema, TableFile)> {
    let (mut footer, mut record) = (None, 0);
    let schema = match found.format {
        Format::Parquet => {
            let found = footer.insert(parquet::footer(&found.path, memory)?);
            found.schema().as_ref().clone()
        }
        Format::Csv(text) => {
            let (schema, average) = csv::infer(&found.path, text, csv, memory)?;
            record = average;
            schema
        }
        Format::Json(squeeze) => json::infer(&found.path, squeeze, csv.sample.0, memory)?,
        Format::Ipc => ipc::schema(&found.path, memory)?.as_ref().clone(),
    };
    let groups = footer.as_ref().map_or(0, |footer: &Footer| footer.metadata().num_row_groups());
    Ok((schema, TableFile { found, footer, groups: (0..groups).collect(), record }))
}

/// Returns the common schema of two files, or an error that names the differing column. The types of text files
/// may be merged into a wider type. The types of other files must be equal.
fn merged(
    (first, first_name): (&Schema, &str),
    (other, other_name): (&Schema, &str),
    format: Format,
) -> anyhow::Result<Schema> {
    let advice = "choose files with the same columns by a quoted glob, or write the files again with the same columns";
    let is_json = matches!(format, Format::Json(_));
    let mut fields = Vec::with_capacity(first.fields().len());
    for (i, field) in first.fields().iter().enumerate() {
        let name = field.name();
        let theirs = match is_json {
            true => other.field_with_name(name).ok(),
            false => other.fields().get(i).map(Arc::as_ref).filter(|field| field.name() == name),
        };
        let Some(theirs) = theirs else {
            match other.index_of(name) {
                // A field that is missing in JSON lines is null.
                Err(_) if is_json => {
                    fields.push(field.as_ref().clone());
                    continue;
                }
                Err(_) => bail!(
                    "files of one table differ: column \"{name}\" of {first_name} is missing in {other_name}; {advice}"
                ),
                Ok(j) => bail!(
                    "files of one table differ: column \"{name}\" is number {} in {first_name} and number {} in {other_name}; {advice}",
                    i + 1,
                    j + 1
                ),
            }
        };
        let (a, b) = (field.data_type(), theirs.data_type());
        let merged = match format {
            Format::Csv(_) => Some(csv::merge(a, b)),
            Format::Json(_) => json::merge(a, b),
            Format::Parquet | Format::Ipc => (a == b).then(|| a.clone()),
        };
        let Some(data_type) = merged else {
            bail!(
                "files of one table differ: column \"{name}\" is {a} in {first_name} and {b} in {other_name}; {advice}"
            )
        };
        let nullable = field.is_nullable() || theirs.is_nullable();
        fields.push(field.as_ref().clone().with_data_type(data_type).with_nullable(nullable));
    }
    if is_json {
        let is_new = |field: &&Arc<Field>| first.index_of(field.name()).is_err();
        fields.extend(other.fields().iter().filter(is_new).map(|field| field.as_ref().clone()));
    } else if let Some(extra) = other.fields().get(first.fields().len()) {
        bail!(
            "files of one table differ: column \"{}\" of {other_name} is missing in {first_name}; {advice}",
            extra.name()
        );
    }
    Ok(Schema::new(fields))
}

/// Returns the schema with another type of one column. Metadata of the field may describe its old type.
fn retyped(schema: &Schema, column: usize, to: &DataType) -> Schema {
    let field = |(i, field): (usize, &Arc<Field>)| match i == column {
        true if field.data_type() != to => {
            Arc::new(Field::new(field.name(), to.clone(), field.is_nullable()))
        }
        _ => Arc::clone(field),
    };
    let fields: Vec<_> = schema.fields().iter().enumerate().map(field).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

/// Makes columns of text files without any value text columns.
fn with_final_types(schema: &Schema) -> Schema {
    let field = |field: &Arc<Field>| {
        let data_type = json::final_type(&csv::final_type(field.data_type().clone()));
        Field::new(field.name(), data_type, field.is_nullable())
    };
    Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>())
}

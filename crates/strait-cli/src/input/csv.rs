//! CSV files: infers types from a sample of rows, and then reads all rows with these types.

use std::io::BufRead;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::{Decoder, Format as Layout};
use arrow::datatypes::{DataType, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use regex::Regex;
use strait::MemoryReservation;

use super::format::Text;
use super::schema;
use super::text::{Opened, Scanned, Utf8, open};
use crate::arguments::CsvArguments;
use crate::digits::counted;
use crate::failure::{of_join, one_line};
use crate::memory::{Memory, Refusal};
use crate::panics::caught;

/// Returns the names in the header, the types that the first rows suggest, and the average length of a
/// record. A column without a value in these rows has the null type, until [`merge`] or [`final_type`]
/// gives it another one.
pub(super) fn infer(
    path: &Path,
    text: Text,
    arguments: &CsvArguments,
    memory: &Memory,
) -> anyhow::Result<(Schema, u64)> {
    let refusal = Refusal::default();
    let refused = |error| of_join(error).context(format!("cannot read {}", path.display()));
    let delimiter = arguments.delimiter.unwrap_or(text.delimiter);
    let opened = open(path, text.squeeze, memory)?;
    let mut reader = Scanned::new(opened, delimiter, memory, &refusal).map_err(refused)?;
    let layout = layout(text, arguments)?;
    let inferred = caught(|| layout.infer_schema(&mut reader, arguments.sample.0));
    let inferred = inferred.unwrap_or_else(|why| Err(ArrowError::CsvError(why)));
    let (schema, rows) = inferred.map_err(|error| match refusal.take() {
        Some(error) => refused(error),
        None => anyhow!(explain(path, None, arguments, &error)),
    })?;
    if schema.fields().is_empty() {
        bail!("{} is empty: a CSV file needs at least a header", path.display());
    }
    schema::check(&schema).map_err(|why| anyhow!("cannot read {}: {why}", path.display()))?;
    log::debug!("{}: types inferred from {rows} row(s)", path.display());
    Ok((schema, reader.scan().average()))
}

/// Returns a type that can hold the values of both types.
pub(super) fn merge(a: &DataType, b: &DataType) -> DataType {
    use DataType::{Date32, Float64, Int64, Null, Timestamp, Utf8};
    match (a, b) {
        _ if a == b => a.clone(),
        (Null, other) | (other, Null) => other.clone(),
        (Int64, Float64) | (Float64, Int64) => Float64,
        (Date32, Timestamp(unit, _)) | (Timestamp(unit, _), Date32) => Timestamp(*unit, None),
        (Timestamp(one, _), Timestamp(other, _)) => Timestamp(finer(*one, *other), None),
        _ => Utf8,
    }
}

fn finer(a: TimeUnit, b: TimeUnit) -> TimeUnit {
    let order = [TimeUnit::Nanosecond, TimeUnit::Microsecond, TimeUnit::Millisecond];
    order.into_iter().find(|unit| a == *unit || b == *unit).unwrap_or(TimeUnit::Second)
}

/// Returns the final type of a column after all files were sampled: text if no file had a value.
pub(super) fn final_type(data_type: DataType) -> DataType {
    if data_type == DataType::Null { DataType::Utf8 } else { data_type }
}

/// The facts that are needed to read a CSV file.
pub(super) struct CsvFile<'a> {
    pub(super) path: &'a Path,
    pub(super) text: Text,
    /// All its columns.
    pub(super) schema: SchemaRef,
    /// The average length of its records.
    pub(super) record: u64,
}

/// The most fields in a batch. The parser allocates 16 bytes per field before it reads any.
const MAX_FIELDS: u64 = 4 << 20;

/// A batch may take one part in this many of a memory limit.
const BATCH_SHARE: u64 = 16;

/// Reads the given columns, in the order of the file.
pub(super) fn read(
    file: &CsvFile<'_>,
    arguments: &CsvArguments,
    columns: &[usize],
    memory: &Memory,
) -> anyhow::Result<Box<dyn RecordBatchReader + Send>> {
    let fields = file.schema.fields().len().max(1) as u64;
    let mut rows = (MAX_FIELDS / fields).min(strait::DEFAULT_BATCH_SIZE as u64);
    if let Some(limit) = memory.limit() {
        rows = rows.min(limit / BATCH_SHARE / (PARSED * file.record + FIELD * fields));
    }
    let rows = rows.max(1);
    let what = "parsing a CSV file";
    let base = FIELD * fields * rows;
    let reservation = memory
        .reserve(base, what)
        .map_err(|error| of_join(error).context(format!("cannot read {}", file.path.display())))?;
    let decoder = ReaderBuilder::new(file.schema.clone())
        .with_format(layout(file.text, arguments)?)
        .with_projection(columns.to_vec())
        .with_batch_size(rows as usize)
        .build_decoder();
    let schema = file.schema.project(columns)?.into();
    let bytes = open(file.path, file.text.squeeze, memory)?;
    let memory = memory.clone();
    Ok(Box::new(CsvReader {
        schema,
        decoder,
        bytes,
        utf8: Utf8::default(),
        memory,
        reservation,
        base,
        most: 0,
    }))
}

/// Memory per byte of text in a batch: the parser's buffer, which may be twice as large as the text
/// and is copied when it grows, and the arrays.
const PARSED: u64 = 4;

/// Memory per field in a batch: its place in the parser, and in an array.
const FIELD: u64 = 40;

/// Reads batches, and reserves the memory that the parser holds.
struct CsvReader {
    schema: SchemaRef,
    decoder: Decoder,
    bytes: Opened,
    utf8: Utf8,
    memory: Memory,
    reservation: MemoryReservation,
    /// The memory for the fields of a batch.
    base: u64,
    /// The longest text of a batch so far. The parser keeps a buffer of this size.
    most: u64,
}

impl CsvReader {
    fn advance(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        let mut text = 0;
        loop {
            let buffer = self.bytes.fill_buf()?;
            text += buffer.len() as u64;
            let needed = self.base + PARSED * text.max(self.most);
            self.memory.resize(&mut self.reservation, needed, "parsing a CSV file")?;
            let parsed = self.decoder.decode(buffer)?;
            self.utf8.feed(&buffer[..parsed]);
            text -= (buffer.len() - parsed) as u64;
            self.bytes.consume(parsed);
            if parsed == 0 || self.decoder.capacity() == 0 {
                break;
            }
        }
        self.most = self.most.max(text);
        let batch = self.decoder.flush()?;
        if !self.utf8.is_whole() {
            return Err(ArrowError::CsvError("a character that is not UTF-8".to_string()));
        }
        // The consumer of the batch reserves memory for it.
        let kept = self.base + 2 * self.most;
        self.memory.resize(&mut self.reservation, kept, "parsing a CSV file")?;
        Ok(batch)
    }
}

impl Iterator for CsvReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

impl RecordBatchReader for CsvReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

fn layout(text: Text, arguments: &CsvArguments) -> anyhow::Result<Layout> {
    let layout = Layout::default()
        .with_header(!arguments.no_header)
        .with_delimiter(arguments.delimiter.unwrap_or(text.delimiter));
    if arguments.nulls.is_empty() {
        return Ok(layout);
    }
    let nulls: Vec<String> = arguments.nulls.iter().map(|null| regex::escape(null)).collect();
    let nulls = Regex::new(&format!("^(?:|{})$", nulls.join("|"))).context("--csv-null")?;
    Ok(layout.with_null_regex(nulls))
}

/// Says which line of which file is invalid, and what to try.
pub(super) fn explain(
    path: &Path,
    schema: Option<&Schema>,
    arguments: &CsvArguments,
    error: &ArrowError,
) -> String {
    let shown = path.display();
    let text = error.to_string();
    if let Some([value, data_type, column, line]) = captures(BAD_VALUE, &text) {
        let value = one_line(value);
        let sampled = arguments.sample.0.map_or(String::new(), |rows| {
            format!(" as the first {} suggested", counted(rows as u64, "row"))
        });
        return format!(
            "{shown}, line {}: column {} has \"{value}\", which is not of type {data_type}{sampled}; \
             --csv-sample all infers types from every row, --csv-null {value} makes it null",
            after(line),
            name(schema, column)
        );
    }
    if let Some([column, line, why]) = captures(BAD_TIME, &text) {
        return format!(
            "{shown}, line {}: column {} does not hold a time as the first rows suggested ({why}); \
             --csv-sample all infers types from every row",
            after(line),
            name(schema, column)
        );
    }
    let fields = captures(FIELDS, &text).or_else(|| {
        captures(UNEQUAL, &text).map(|[expected, found, line]| [line, expected, found])
    });
    if let Some([line, expected, found]) = fields {
        return format!(
            "{shown}, line {line}: {found} field(s) where {expected} are expected; \
             correct the line, or give the right --csv-delimiter"
        );
    }
    if let Some([line, field]) = captures(UTF8, &text) {
        return format!(
            "{shown}, line {line}, field {field}: not UTF-8 text; convert the file first"
        );
    }
    if text.contains("not UTF-8") {
        return format!("{shown} has text that is not UTF-8; convert the file first");
    }
    format!("cannot read {shown}: {}; if the file is damaged, get it again", one_line(&text))
}

const BAD_VALUE: &str =
    "(?s)Error while parsing value '(.*)' as type '(.*?)' for column ([0-9]+) at line ([0-9]+)";
const BAD_TIME: &str = "(?s)Error parsing column ([0-9]+) at line ([0-9]+): (.*)";
const FIELDS: &str =
    "incorrect number of fields for line ([0-9]+), expected ([0-9]+) got ((?:more than )?[0-9]+)";
const UNEQUAL: &str = "Expected ([0-9]+) records, found ([0-9]+) records at line ([0-9]+)";
const UTF8: &str = "invalid UTF-8 data for line ([0-9]+) and field ([0-9]+)";

fn captures<'t, const N: usize>(pattern: &str, text: &'t str) -> Option<[&'t str; N]> {
    Some(Regex::new(pattern).ok()?.captures(text)?.extract().1)
}

/// Converts Arrow's line number, which counts rows from zero.
fn after(line: &str) -> String {
    line.parse::<u64>().map_or_else(|_| line.to_string(), |line| (line + 1).to_string())
}

fn name(schema: Option<&Schema>, column: &str) -> String {
    let index = column.parse::<usize>().ok();
    match index.and_then(|index| schema?.fields().get(index)) {
        Some(field) => format!("\"{}\"", field.name()),
        None => column.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_meet_in_one_that_holds_both() {
        let time = |unit| DataType::Timestamp(unit, None);
        assert_eq!(merge(&DataType::Int64, &DataType::Float64), DataType::Float64);
        assert_eq!(merge(&DataType::Null, &DataType::Date32), DataType::Date32);
        assert_eq!(merge(&DataType::Boolean, &DataType::Int64), DataType::Utf8);
        let second = time(TimeUnit::Second);
        assert_eq!(merge(&second, &DataType::Date32), second);
        assert_eq!(merge(&second, &time(TimeUnit::Microsecond)), time(TimeUnit::Microsecond));
        assert_eq!(final_type(DataType::Null), DataType::Utf8);
    }
}

//! CSV files: types inferred from a sample of rows, then all rows read with those types.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use arrow::array::RecordBatchReader;
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::Format as Layout;
use arrow::datatypes::{DataType, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use flate2::read::MultiGzDecoder;
use regex::Regex;

use super::format::{Squeeze, Text};
use crate::arguments::CsvArguments;
use crate::digits::counted;

/// The header's names and the types that the first rows suggest. A column with no value among them
/// has the null type, until [`merge`] or [`settle`] gives it another.
pub(super) fn infer(path: &Path, text: Text, arguments: &CsvArguments) -> anyhow::Result<Schema> {
    let reader = open(path, text)?;
    let layout = layout(text, arguments)?;
    let (schema, rows) = layout
        .infer_schema(reader, arguments.sample.0)
        .map_err(|error| anyhow!(explain(path, None, arguments, &error)))?;
    if schema.fields().is_empty() {
        bail!("{} is empty: a CSV file needs at least a header", path.display());
    }
    log::debug!("{}: types inferred from {rows} row(s)", path.display());
    Ok(schema)
}

/// The type that holds what either type holds.
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

/// The type of a column once all files were seen: text if none had a value.
pub(super) fn settle(data_type: DataType) -> DataType {
    if data_type == DataType::Null { DataType::Utf8 } else { data_type }
}

/// Reads the given columns, in the order of the file.
pub(super) fn read(
    path: &Path,
    text: Text,
    arguments: &CsvArguments,
    schema: SchemaRef,
    columns: &[usize],
) -> anyhow::Result<Box<dyn RecordBatchReader + Send>> {
    let reader = ReaderBuilder::new(schema)
        .with_format(layout(text, arguments)?)
        .with_projection(columns.to_vec())
        .with_batch_size(strait::DEFAULT_BATCH_SIZE)
        .build_buffered(BufReader::with_capacity(1 << 18, open(path, text)?))
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Box::new(reader))
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

/// Opens a file, decompresses it, and skips the byte order mark that some programs write.
fn open(path: &Path, text: Text) -> anyhow::Result<Box<dyn Read + Send>> {
    let context = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(context)?;
    let mut reader: Box<dyn BufRead + Send> = match text.squeeze {
        Squeeze::None => Box::new(BufReader::with_capacity(1 << 18, file)),
        Squeeze::Gzip => Box::new(BufReader::new(MultiGzDecoder::new(BufReader::new(file)))),
        Squeeze::Zstd => Box::new(BufReader::new(zstd::Decoder::new(file).with_context(context)?)),
    };
    let mut start = Vec::new();
    (&mut reader).take(3).read_to_end(&mut start).with_context(context)?;
    if start == b"\xef\xbb\xbf" {
        start.clear();
    }
    Ok(Box::new(io::Cursor::new(start).chain(reader)))
}

/// Says which line of which file does not fit, and what to try.
pub(super) fn explain(
    path: &Path,
    schema: Option<&Schema>,
    arguments: &CsvArguments,
    error: &ArrowError,
) -> String {
    let shown = path.display();
    let text = error.to_string();
    if let Some([value, data_type, column, line]) = captures(BAD_VALUE, &text) {
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
    format!("cannot read {shown}: {text}")
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

/// Arrow counts the lines of values from zero.
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
        assert_eq!(settle(DataType::Null), DataType::Utf8);
    }
}

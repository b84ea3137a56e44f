//! CSV files: infers types from a sample of rows, and then parses all rows with these types.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::{Decoder, Format as Layout};
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use regex::Regex;

use super::block::{Block, Records, TextParser};
use super::fields::Fields;
use super::format::Text;
use super::records::{CsvRecords, lines_before};
use super::sampled::{self, Sample, Sampled};
use super::text::{BYTE_ORDER_MARK, Scanned, Unmarked, open_now};
use super::{schema, times, values};
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
    let delimiter = arguments.delimiter.unwrap_or(text.delimiter);
    let layout = layout(text, arguments)?;
    let sample = Sample { path, squeeze: text.squeeze, delimiter, layout: &layout, arguments };
    let Sampled { schema, rows, record } =
        match caught(|| sampled::infer(&sample, memory)).unwrap_or_default() {
            Some(sampled) => sampled,
            None => infer_with_arrow(&sample, memory)?,
        };
    if schema.fields().is_empty() {
        bail!("{} is empty: a CSV file needs at least a header", path.display());
    }
    schema::check(&schema).map_err(|why| anyhow!("cannot read {}: {why}", path.display()))?;
    log::debug!("{}: types inferred from {rows} row(s)", path.display());
    Ok((schema, record))
}

/// Infers names and types. The errors name the file.
fn infer_with_arrow(sample: &Sample<'_>, memory: &Memory) -> anyhow::Result<Sampled> {
    let Sample { path, squeeze, delimiter, layout, arguments } = *sample;
    let refusal = Refusal::default();
    let refused = |error| of_join(error).context(format!("cannot read {}", path.display()));
    let opened = open_now(path, squeeze, memory)?;
    let mut reader = Scanned::new(opened, delimiter, memory, &refusal).map_err(refused)?;
    let inferred = caught(|| layout.infer_schema(Unmarked::new(&mut reader), arguments.sample.0));
    let inferred = inferred.unwrap_or_else(|why| Err(ArrowError::CsvError(why)));
    let (schema, rows) = inferred.map_err(|error| match refusal.take() {
        Some(error) => refused(error),
        None => anyhow!(explain(path, None, arguments, &error, |line| line)),
    })?;
    Ok(Sampled { schema, rows, record: reader.scan().average() })
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

/// Returns the finer of two units.
pub(super) fn finer(a: TimeUnit, b: TimeUnit) -> TimeUnit {
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
    pub(super) schema: &'a SchemaRef,
    /// The average length of its records.
    pub(super) record: u64,
}

/// The most fields in a batch. The parser allocates 16 bytes per field before it reads any.
const MAX_FIELDS: u64 = 4 << 20;

/// A batch may take at most 1/N of a memory limit, where N is this number.
const BATCH_SHARE: u64 = 16;

/// Memory per byte of text in a batch: the parser's buffer, which may be twice as large as the text and is
/// copied when it grows, and the arrays.
const PARSED: u64 = 4;

/// Memory per field in a batch: its place in the parser, and in an array.
const FIELD: u64 = 40;

/// The same if the values are parsed here. It includes the end of the field.
const SHORT_FIELD: u64 = 24;

/// If the fields take more than this many times the text, Arrow's parser parses it in several batches.
const MOST_FIELDS: u64 = 8;

/// The length of a block of text. The batch of a block fits the processor's cache, and parsing it takes much longer
/// than taking a lock.
const BLOCK: u64 = 1 << 20;

/// Parses blocks of a CSV file.
pub(super) struct Parser {
    path: PathBuf,
    arguments: CsvArguments,
    layout: Layout,
    records: CsvRecords,
    has_header: bool,
    /// All columns of the file, and the columns as Arrow's CSV decoder reads them. It reads dates and times as text,
    /// because it would [drop](times) the digits that the type cannot hold.
    schema: SchemaRef,
    decoder_schema: SchemaRef,
    /// The wanted columns, in the order of the file, and their schema.
    columns: Vec<usize>,
    wanted: SchemaRef,
    /// The most rows in a batch.
    rows: u64,
}

impl Parser {
    /// A parser of the given columns.
    pub(super) fn new(
        file: &CsvFile<'_>,
        arguments: &CsvArguments,
        columns: &[usize],
        memory: &Memory,
    ) -> anyhow::Result<Parser> {
        let fields = file.schema.fields().len().max(1) as u64;
        let mut rows = (MAX_FIELDS / fields).min(strait::DEFAULT_BATCH_SIZE as u64);
        let mut block = BLOCK;
        if let Some(limit) = memory.limit() {
            rows = rows.min(limit / BATCH_SHARE / (PARSED * file.record + FIELD * fields));
            block = (limit / BATCH_SHARE / (2 + MOST_FIELDS)).clamp(1 << 12, BLOCK);
        }
        let what = format!("parsing {}", file.path.display());
        let delimiter = arguments.delimiter.unwrap_or(file.text.delimiter);
        Ok(Parser {
            path: file.path.to_path_buf(),
            arguments: arguments.clone(),
            layout: layout(file.text, arguments)?,
            records: CsvRecords { delimiter, block, what },
            has_header: !arguments.no_header,
            schema: file.schema.clone(),
            decoder_schema: with_text_for_times(file.schema),
            columns: columns.to_vec(),
            wanted: file.schema.project(columns)?.into(),
            rows: rows.max(1),
        })
    }

    fn decoder(&self, has_header: bool, rows: u64) -> Decoder {
        let layout = self.layout.clone().with_header(has_header);
        let builder =
            ReaderBuilder::new(self.decoder_schema.clone()).with_projection(self.columns.clone());
        builder.with_format(layout).with_batch_size(rows as usize).build_decoder()
    }
}

impl Records for Parser {
    fn what(&self) -> &str {
        self.records.what()
    }

    fn length(&self) -> u64 {
        self.records.length()
    }

    fn whole(&self, text: &[u8]) -> Option<(usize, u64)> {
        self.records.whole(text)
    }

    fn too_long(&self) -> &'static str {
        self.records.too_long()
    }
}

impl TextParser for Parser {
    fn parse(&self, block: &mut Block, memory: &Memory) -> Result<Option<RecordBatch>, ArrowError> {
        let fields = self.schema.fields().len().max(1) as u64;
        let rows = self.rows.min(block.lines + 1);
        let text = block.text.len() as u64;
        let short_fields = SHORT_FIELD.saturating_mul(fields).saturating_mul(block.lines + 1);
        let is_short = short_fields <= MOST_FIELDS * text;
        let most = (PARSED * text + FIELD * fields * rows).max(if is_short {
            text + short_fields
        } else {
            0
        });
        memory.resize(&mut block.reservation, text + most, self.what())?;
        let parsed = caught(|| self.parsed(block, rows, is_short));
        let parsed = parsed.unwrap_or_else(|why| Err(ArrowError::CsvError(why)));
        // The consumer of the batch reserves memory for it.
        memory.resize(&mut block.reservation, text, self.what())?;
        parsed
    }

    fn line(&self, block: &Block, row: u64) -> u64 {
        self.record_line(block, row + 1 + u64::from(self.begins(block)))
    }

    fn explain(&self, error: &ArrowError, block: Option<&Block>) -> String {
        let line = |record| block.map_or(record, |block| self.record_line(block, record));
        explain(&self.path, Some(&self.schema), &self.arguments, error, line)
    }
}

impl Parser {
    fn parsed(
        &self,
        block: &mut Block,
        rows: u64,
        is_short: bool,
    ) -> Result<Option<RecordBatch>, ArrowError> {
        if !block.is_checked {
            // Arrow's parser concatenates the fields of a batch before it checks them. It would accept a
            // character that a delimiter cuts in two.
            if std::str::from_utf8(&block.text).is_err() {
                let error = ArrowError::CsvError("a character that is not UTF-8".to_string());
                return Err(self.first_error(block, rows).unwrap_or(error));
            }
            block.is_checked = true;
            if let Some(batch) = is_short.then(|| self.usual(block)).flatten() {
                block.at = block.text.len();
                return Ok((batch.num_rows() > 0).then_some(batch));
            }
        }
        let mut decoder = self.decoder(self.begins(block) && block.at == 0, rows);
        match self.decode(&mut decoder, &block.text, &mut block.at, 0) {
            Ok(batch) => Ok(batch),
            // Only an error of parsing the whole block has the right number of the record.
            Err(error) => Err(self.first_error(block, rows).unwrap_or(error)),
        }
    }

    /// Parses the whole block, if its text and its types are the usual ones. This is much faster than Arrow's
    /// parser.
    fn usual(&self, block: &Block) -> Option<RecordBatch> {
        let Parser { records, schema, columns, wanted, arguments, .. } = self;
        if !wanted.fields().iter().all(|field| values::is_known(field.data_type())) {
            return None;
        }
        let (all, lines) = (schema.fields().len(), usize::try_from(block.lines).ok()?);
        let fields = Fields::split(&block.text, records.delimiter, all, lines)?;
        let first = usize::from(self.begins(block));
        values::batch(&fields, (columns, wanted), first, &arguments.nulls)
    }

    /// Returns whether the first record of a block, if it has one, is the header.
    fn begins(&self, block: &Block) -> bool {
        self.has_header && block.is_first
    }

    /// Parses the whole block, and returns the first error.
    fn first_error(&self, block: &Block, rows: u64) -> Option<ArrowError> {
        let mut decoder = self.decoder(self.begins(block), rows);
        let (mut at, mut record) = (0, u64::from(self.begins(block)));
        while at < block.text.len() {
            match self.decode(&mut decoder, &block.text, &mut at, record) {
                Ok(batch) => record += batch.map_or(0, |batch| batch.num_rows() as u64),
                Err(error) => return Some(error),
            }
        }
        None
    }

    /// Decodes a batch of the text from a position on. Its first row is the given record of the block, counted from
    /// zero.
    fn decode(
        &self,
        decoder: &mut Decoder,
        text: &[u8],
        at: &mut usize,
        record: u64,
    ) -> Result<Option<RecordBatch>, ArrowError> {
        let batch = decode(decoder, text, at)?;
        batch.map(|batch| self.with_times(&batch, record)).transpose()
    }

    /// Parses the dates and times of a decoded batch.
    fn with_times(&self, batch: &RecordBatch, record: u64) -> Result<RecordBatch, ArrowError> {
        let fields = self.columns.iter().zip(self.wanted.fields());
        let column = |((&column, field), array): ((&usize, &FieldRef), &ArrayRef)| {
            let data_type = field.data_type();
            if !times::is_time(data_type) {
                return Ok(Arc::clone(array));
            }
            let texts = array.as_string::<i32>();
            times::array(texts.iter(), data_type).map_err(|row| {
                let (value, record) = (texts.value(row), record + row as u64);
                // The text is the same as that of Arrow's error. The regular expression `BAD_VALUE` parses both.
                ArrowError::ParseError(format!(
                    "Error while parsing value '{value}' as type '{data_type}' for column {column} at line {record}"
                ))
            })
        };
        let columns = fields.zip(batch.columns()).map(column).collect::<Result<_, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.wanted), columns, &options)
    }

    /// Returns the number of the line in the file that has a record of the block. The first record, which may
    /// be the header, has the number 1.
    fn record_line(&self, block: &Block, record: u64) -> u64 {
        block.lines_before + lines_before(&block.text, self.records.delimiter, record) + 1
    }
}

/// Returns the schema with text in place of dates and times.
fn with_text_for_times(schema: &Schema) -> SchemaRef {
    let field = |field: &FieldRef| match times::is_time(field.data_type()) {
        true => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8)),
        false => Arc::clone(field),
    };
    Arc::new(Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>()))
}

/// Decodes a batch of the text from a position on. Its dates and times are text.
fn decode(
    decoder: &mut Decoder,
    text: &[u8],
    at: &mut usize,
) -> Result<Option<RecordBatch>, ArrowError> {
    // A new decoder takes U+FEFF for a byte order mark if it gets all its bytes at once, and skips it. The mark of
    // the file was skipped before, so this one belongs to a value. Other text is not cut, because the decoder's
    // buffers would grow a second time.
    let is_marked = text[*at..].starts_with(&BYTE_ORDER_MARK);
    let mut end = if is_marked { *at + 1 } else { text.len() };
    loop {
        // An empty slice tells the decoder that the text has ended.
        let parsed = decoder.decode(&text[*at..end])?;
        *at += parsed;
        if parsed == 0 || decoder.capacity() == 0 {
            return decoder.flush();
        }
        end = text.len();
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

/// Says which line of which file is invalid, and what to try. `line` converts the number of a record.
fn explain(
    path: &Path,
    schema: Option<&Schema>,
    arguments: &CsvArguments,
    error: &ArrowError,
    line: impl Fn(u64) -> u64,
) -> String {
    let shown = path.display();
    let text = error.to_string();
    // Some of Arrow's messages count records from zero.
    let of_record = |record: &str, first: u64| {
        let number = record.parse::<u64>().map(|record| line(record.saturating_add(first)));
        number.map_or_else(|_| record.to_string(), |line| line.to_string())
    };
    if let Some([value, data_type, column, record]) = captures(BAD_VALUE, &text) {
        let value = one_line(value);
        let sampled = arguments.sample.0.map_or(String::new(), |rows| {
            format!(" as the first {} suggested", counted(rows as u64, "row"))
        });
        return format!(
            "{shown}, line {}: column {} has \"{value}\", which is not of type {data_type}{sampled}; {}",
            of_record(record, 1),
            name(schema, column),
            advice(schema, column, &value, arguments)
        );
    }
    let fields = captures(FIELDS, &text).or_else(|| {
        captures(UNEQUAL, &text).map(|[expected, found, record]| [record, expected, found])
    });
    if let Some([record, expected, found]) = fields {
        return format!(
            "{shown}, line {}: {found} field(s) where {expected} are expected; \
             correct the line, or give the right --csv-delimiter",
            of_record(record, 0)
        );
    }
    if let Some([record, field]) = captures(UTF8, &text) {
        return format!(
            "{shown}, line {}, field {field}: not UTF-8 text; convert the file first",
            of_record(record, 0)
        );
    }
    if text.contains("not UTF-8") {
        return format!("{shown} has text that is not UTF-8; convert the file first");
    }
    format!("cannot read {shown}: {}; if the file is damaged, get it again", one_line(&text))
}

/// Says what to try if a value does not fit the type of its column. A larger sample helps only if the value itself
/// suggests another type. It does not help for `2024-13-01`, which looks like a date: a larger sample would infer a date
/// again.
fn advice(schema: Option<&Schema>, column: &str, value: &str, arguments: &CsvArguments) -> String {
    let field = column.parse::<usize>().ok().and_then(|column| schema?.fields().get(column));
    let named = field.map_or_else(|| "COLUMN".to_string(), |field| quoted(field.name()));
    let mut advice = format!(
        "--cast {named}=text reads the column as text, --csv-null {} makes the value null",
        quoted(value)
    );
    let fits = |field: &FieldRef| sampled::fits(field.data_type(), value.as_bytes(), &[]);
    if arguments.sample.0.is_some() && !field.is_some_and(fits) {
        advice += ", --sample all infers types from every row";
    }
    advice
}

/// Quotes a text for a shell, if it has to be.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-.:/+%@,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_string(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

const BAD_VALUE: &str =
    "(?s)Error while parsing value '(.*)' as type '(.*?)' for column ([0-9]+) at line ([0-9]+)";
const FIELDS: &str =
    "incorrect number of fields for line ([0-9]+), expected ([0-9]+) got ((?:more than )?[0-9]+)";
const UNEQUAL: &str = "Expected ([0-9]+) records, found ([0-9]+) records at line ([0-9]+)";
const UTF8: &str = "invalid UTF-8 data for line ([0-9]+) and field ([0-9]+)";

fn captures<'t, const N: usize>(pattern: &str, text: &'t str) -> Option<[&'t str; N]> {
    Some(Regex::new(pattern).ok()?.captures(text)?.extract().1)
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
    use arrow::datatypes::Field;

    use super::*;
    use crate::input::format::Squeeze;

    /// A text that is parsed here gives the same rows as with Arrow's parser.
    #[test]
    fn usual_text_is_parsed_as_by_arrow() {
        let millis = DataType::Timestamp(TimeUnit::Millisecond, None);
        let types = [DataType::Int64, DataType::Utf8, DataType::Float64, DataType::Date32, millis];
        let fields =
            types.iter().enumerate().map(|(i, t)| Field::new(format!("c{i}"), t.clone(), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let memory = Memory::new(None);
        let text = Text { delimiter: b',', squeeze: Squeeze::None };
        let file = CsvFile { path: Path::new("t.csv"), text, schema: &schema, record: 20 };
        let arguments = CsvArguments { nulls: vec!["NA".to_string()], ..CsvArguments::default() };
        let parser = Parser::new(&file, &arguments, &[0, 1, 2, 3, 4], &memory).unwrap();
        let mut random = fastrand::Rng::with_seed(11);
        let choices: [&[&str]; 5] = [
            &["1", "-77", "", "\"5\"", "NA", "+3", "9223372036854775807", "000000000000000000012"],
            &["a", "", "\"\"", "\"q,\n\"\"r\"", "é", "x\"y", "NA", " NA"],
            &["1.5", "-0.0", "", "1e3", ".5", "5.", "NaN", "inf", "123456789012345678", "NA"],
            &["1970-01-01", "2024-02-29", "", "\"1999-12-31\"", "NA", "0001-01-01"],
            &["1970-01-01", "2024-02-29 12:00:00", "", "\"1999-12-31T12:00:00.5+01:00\"", "NA"],
        ];
        let mut usual = 0;
        for case in 0..2000 {
            let mut text = String::from("c0,c1,c2,c3,c4\n");
            for _ in 0..random.usize(..20) {
                let row = choices.map(|values| values[random.usize(..values.len())]);
                text += &row.join(if random.usize(..400) == 0 { ";" } else { "," });
                text += ["\n", "\n", "\n", "\r\n"][random.usize(..4)];
            }
            let text = text.into_bytes();
            let lines = text.iter().filter(|&&byte| byte == b'\n').count() as u64;
            let mut expected = Vec::new();
            let (mut decoder, mut at) = (parser.decoder(true, lines + 1), 0);
            let decoded = parser.decode(&mut decoder, &text, &mut at, 0);
            let decoded = decoded.map(|batch| expected.extend(batch));
            let reservation = memory.reserve(0, "a test").unwrap();
            let mut block = Block::new(text.into(), lines, 0, reservation);
            usual += u64::from(parser.usual(&block).is_some());
            let mut found = Vec::new();
            while !block.is_done() {
                match parser.parse(&mut block, &memory) {
                    Ok(batch) => found.extend(batch),
                    Err(_) => break,
                }
            }
            assert_eq!(block.is_done(), decoded.is_ok(), "case {case}");
            if decoded.is_ok() {
                // NaN is not equal to itself.
                assert_eq!(format!("{found:?}"), format!("{expected:?}"), "case {case}");
            }
        }
        assert!((1000..2000).contains(&usual), "{usual} of 2000");
    }

    /// U+FEFF at the start of a value is a part of it, also if a batch begins there.
    #[test]
    fn values_keep_what_looks_like_a_byte_order_mark() {
        let fields =
            [("a", DataType::Utf8), ("b", DataType::Boolean)].map(|(n, t)| Field::new(n, t, true));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let memory = Memory::new(None);
        let text = Text { delimiter: b',', squeeze: Squeeze::None };
        let file = CsvFile { path: Path::new("t.csv"), text, schema: &schema, record: 20 };
        // Arrow's parser parses columns of booleans. Without them, the block is parsed here.
        for columns in [&[0, 1][..], &[0]] {
            for rows in [1, 2, 100] {
                let arguments = CsvArguments { no_header: true, ..CsvArguments::default() };
                let mut parser = Parser::new(&file, &arguments, columns, &memory).unwrap();
                parser.rows = rows;
                let text = "\u{feff}x,true\n\u{feff}\u{feff},false\n\u{feff},\n".as_bytes();
                let reservation = memory.reserve(0, "a test").unwrap();
                let mut block = Block::new(text.to_vec().into(), 3, 7, reservation);
                let mut found = Vec::new();
                while !block.is_done() {
                    let Some(batch) = parser.parse(&mut block, &memory).unwrap() else { continue };
                    let column = arrow::array::AsArray::as_string::<i32>(batch.column(0)).clone();
                    found.extend(column.iter().map(|value| value.unwrap().to_string()));
                }
                assert_eq!(found, ["\u{feff}x", "\u{feff}\u{feff}", "\u{feff}"], "{rows} rows");
            }
        }
    }

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

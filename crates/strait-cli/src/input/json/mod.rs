//! JSON lines: one object per line. The fields of all objects are the columns of the table.
//!
//! Types are inferred from a sample of lines, and then all lines are read with these types. A field that is
//! missing in a line is null there.

mod infer;

use std::io::BufRead;
use std::path::Path;

use anyhow::anyhow;
use arrow::array::{RecordBatch, RecordBatchOptions, RecordBatchReader};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow_json::ReaderBuilder;
use arrow_json::reader::Decoder;
use serde::de::IgnoredAny;
use strait::MemoryReservation;

use super::format::Squeeze;
use super::text::{MAX_RECORD, Opened, open_now};
use crate::failure::{Told, of_join, one_line};
use crate::memory::Memory;
use crate::panics::caught;
use infer::Known;
pub(super) use infer::{final_type, infer, merge};

/// Lines are parsed in blocks of about this many bytes.
const BLOCK: u64 = 1 << 20;

/// Memory per byte of text in a block. A number takes at least two bytes of text, and the parser has up to 16
/// bytes for it, in a buffer that is copied when it grows.
const PARSED: u64 = 24;

/// A block may take one part in this many of a memory limit.
const BLOCK_SHARE: u64 = 16;

/// Memory per column: its decoder, and the buffers of its array.
const COLUMN: u64 = 1 << 10;

const WHAT: &str = "parsing JSON lines";

/// The facts that are needed to read a file of JSON lines.
pub(super) struct JsonFile<'a> {
    pub(super) path: &'a Path,
    pub(super) squeeze: Squeeze,
    /// All columns of the table.
    pub(super) schema: SchemaRef,
}

/// Reads the given columns.
pub(super) fn read(
    file: &JsonFile<'_>,
    columns: &[usize],
    memory: &Memory,
) -> anyhow::Result<Box<dyn RecordBatchReader + Send>> {
    let schema: SchemaRef = file.schema.project(columns)?.into();
    let name = file.path.display().to_string();
    let refused = |error| of_join(error).context(format!("cannot read {name}"));
    let block = memory.limit().map_or(BLOCK, |limit| limit / BLOCK_SHARE / PARSED).min(BLOCK);
    let base = COLUMN * schema.flattened_fields().len() as u64;
    let bytes = open_now(file.path, file.squeeze, memory)?;
    let lines = Lines::new(bytes, base, memory).map_err(refused)?;
    let known = Known::new(&file.schema);
    Ok(Box::new(JsonReader { name, schema, known, lines, block: block.max(1) }))
}

/// Reads whole lines, and reserves the memory to parse them.
struct Lines {
    bytes: Opened,
    memory: Memory,
    reservation: MemoryReservation,
    /// The memory that is needed whatever the length of the lines.
    base: u64,
    /// The number of lines that were read before `text`.
    before: u64,
    /// Whole lines. The last line of a file may have no line end.
    text: Vec<u8>,
}

impl Lines {
    fn new(bytes: Opened, base: u64, memory: &Memory) -> strait::Result<Lines> {
        let (reservation, memory) = (memory.reserve(base, WHAT)?, memory.clone());
        Ok(Lines { bytes, memory, reservation, base, before: 0, text: Vec::new() })
    }

    /// Reserves memory for lines of this length, in addition to what was reserved for longer ones.
    fn reserve(&mut self, length: u64) -> strait::Result<()> {
        let needed = (self.base + PARSED * length).max(self.reservation.bytes());
        self.memory.resize(&mut self.reservation, needed, WHAT)
    }

    /// Replaces `text` by the next lines: at least one, and no more after `most` bytes or `rows` lines. The
    /// text is empty at the end of the file.
    fn advance(&mut self, most: u64, rows: usize) -> Result<(), ArrowError> {
        self.before += lines(&self.text).count() as u64;
        self.text.clear();
        let mut ends = 0;
        loop {
            let buffer = self.bytes.fill_buf()?;
            if buffer.is_empty() {
                return Ok(());
            }
            let (mut taken, mut is_whole) = (buffer.len(), false);
            for end in memchr::memchr_iter(b'\n', buffer) {
                ends += 1;
                if ends >= rows || (self.text.len() + end) as u64 >= most {
                    (taken, is_whole) = (end + 1, true);
                    break;
                }
            }
            let length = (self.text.len() + taken) as u64;
            if length > most && length > MAX_RECORD {
                return Err(ArrowError::JsonError("a line is longer than 2 GiB".to_string()));
            }
            self.reserve(length)?;
            self.text.extend_from_slice(&self.bytes.fill_buf()?[..taken]);
            self.bytes.consume(taken);
            if is_whole {
                return Ok(());
            }
        }
    }

    /// Returns the lines that are not blank, with their numbers in the file, starting at one.
    fn numbered(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let numbered = (self.before + 1..).zip(lines(&self.text));
        numbered.filter(|(_, line)| !line.trim_ascii().is_empty())
    }
}

/// Returns the lines of a text, without their ends.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\n").unwrap_or(line))
}

/// Reads batches.
struct JsonReader {
    name: String,
    schema: SchemaRef,
    /// All columns of the table. Every line is checked against them.
    known: Known,
    lines: Lines,
    /// The bytes of a block of lines.
    block: u64,
}

impl JsonReader {
    fn advance(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        loop {
            self.lines.advance(self.block, strait::DEFAULT_BATCH_SIZE)?;
            if self.lines.text.is_empty() {
                return Ok(None);
            }
            let rows = self.lines.numbered().count();
            if rows == 0 {
                continue;
            }
            self.check()?;
            let parsed = caught(|| parsed(&self.schema, &self.lines.text, rows));
            let parsed = parsed.unwrap_or_else(|why| Err(ArrowError::JsonError(why)));
            return parsed.map(Some).map_err(|error| Told(self.explain(&error)).into());
        }
    }

    /// Checks that each line is one object, and that the types of the columns hold its values. Arrow's parser
    /// does not: it makes 2.9 an integer, for example.
    fn check(&mut self) -> Result<(), Told> {
        let (name, was_known) = (&self.name, self.known.unknown.is_none());
        for (number, line) in self.lines.numbered() {
            let wrong = |why| Told(format!("{name}, line {number}: {why}"));
            self.known.check(line).map_err(wrong)?;
            if let (true, Some(field)) = (was_known, &self.known.unknown) {
                log::warn!(
                    "{name}, line {number}: field \"{field}\" was not in the first lines, so it is left out; \
                     --csv-sample all finds all fields"
                );
                break;
            }
        }
        Ok(())
    }

    /// Says which line is wrong, and why.
    fn explain(&self, error: &ArrowError) -> String {
        let name = &self.name;
        for (number, line) in self.lines.numbered() {
            if let Err(why) = check(line) {
                return format!("{name}, line {number}: {why}");
            }
            if let Err(error) = parsed(&self.schema, line, 1) {
                let why = one_line(&json_message(&error));
                return format!(
                    "{name}, line {number}: {why}; types are inferred from the first lines, and \
                     --csv-sample all infers them from all lines"
                );
            }
        }
        format!("cannot read {name}: {}", one_line(&json_message(error)))
    }
}

/// Parses text with this number of objects, one in each line.
fn parsed(schema: &SchemaRef, text: &[u8], rows: usize) -> Result<RecordBatch, ArrowError> {
    if schema.fields().is_empty() {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        return RecordBatch::try_new_with_options(schema.clone(), Vec::new(), &options);
    }
    let mut decoder = decoder(schema, rows)?;
    let read = decoder.decode(text)?;
    let is_whole = read == text.len() && !decoder.has_partial_record();
    let batch = if is_whole { decoder.flush()? } else { None };
    batch
        .filter(|batch| batch.num_rows() == rows)
        .ok_or_else(|| ArrowError::JsonError("a line does not hold one object".to_string()))
}

fn decoder(schema: &SchemaRef, rows: usize) -> Result<Decoder, ArrowError> {
    ReaderBuilder::new(schema.clone())
        .with_batch_size(rows)
        .with_coerce_primitive(true)
        .build_decoder()
}

/// Checks that a line is one JSON object.
fn check(line: &[u8]) -> Result<(), String> {
    match line.trim_ascii_start().first() {
        Some(b'{') => {}
        Some(b'[') => return Err(ARRAY.to_string()),
        _ => return Err("not a JSON object".to_string()),
    }
    serde_json::from_slice::<IgnoredAny>(line).map(drop).map_err(|error| syntax(&error))
}

const ARRAY: &str = "a JSON array, but Strait reads JSON lines, which have one object per line; \
                     jq -c '.[]' converts arrays";

/// Returns serde's message with the column, but without the line: the parser gets one line at a time.
fn syntax(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let why = text.split(" at line 1 column").next().unwrap_or(&text);
    match error.is_eof() {
        true => "the line ends within a JSON object; each object must be in one line".to_string(),
        false => format!("{} (at byte {} of the line)", one_line(why), error.column()),
    }
}

/// Returns Arrow's message without its prefix.
fn json_message(error: &ArrowError) -> String {
    match error {
        ArrowError::JsonError(why) => why.clone(),
        other => other.to_string(),
    }
}

impl Iterator for JsonReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

impl RecordBatchReader for JsonReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

/// Returns an error about a file whose objects have no field.
fn no_columns(path: &Path) -> anyhow::Error {
    anyhow!("{} has no columns: it needs at least one JSON object with a field", path.display())
}

/// Checks the schema that was inferred.
fn checked(schema: Schema, path: &Path) -> anyhow::Result<Schema> {
    super::schema::check(&schema)
        .map_err(|why| anyhow!("cannot read {}: {why}", path.display()))?;
    match schema.fields().is_empty() {
        true => Err(no_columns(path)),
        false => Ok(schema),
    }
}

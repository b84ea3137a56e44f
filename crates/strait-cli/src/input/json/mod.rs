//! JSON lines: one object per line. The fields of all objects are the columns of the table.
//!
//! Types are inferred from a sample of lines, and then all lines are read with these types. A field that is
//! missing in a line is null there.

mod build;
mod infer;
mod scan;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;
use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::error::ArrowError;
use memchr::{memchr_iter, memrchr};
use serde::de::IgnoredAny;

use super::block::{Block, Records, TextParser};
use crate::failure::{Told, one_line};
use crate::memory::Memory;
use crate::panics::caught;
use build::{Object, Progress, Stop};
use infer::Known;
pub(super) use infer::{final_type, infer, merge};

/// Lines are parsed in blocks of about this many bytes.
const BLOCK: u64 = 1 << 20;

/// Memory per byte of text in a block. A number takes at least two bytes of text and up to 16 bytes in its
/// column, in a buffer that is copied when it grows.
const PARSED: u64 = 24;

/// Memory of a null in a column of the table; and of a null that stands for a missing field of an object in an array.
const NULL: u64 = 17;
const NESTED_NULL: u64 = 3 * NULL;

/// A block, and the nulls of a batch, may each take at most 1/N of a memory limit, where N is this number.
const BLOCK_SHARE: u64 = 16;

/// The most values in a batch, apart from those in arrays.
const MAX_FIELDS: u64 = 4 << 20;

/// Memory per column: its name, its type, and the buffers of its array.
const COLUMN: u64 = 1 << 10;

/// Cuts text after whole lines.
struct Lines {
    /// The length of a block.
    block: u64,
    /// The purpose of the memory.
    what: String,
}

impl Records for Lines {
    fn what(&self) -> &str {
        &self.what
    }

    fn length(&self) -> u64 {
        self.block
    }

    fn whole(&self, text: &[u8]) -> Option<(usize, u64)> {
        let end = memrchr(b'\n', text)? + 1;
        Some((end, memchr_iter(b'\n', &text[..end]).count() as u64))
    }

    fn too_long(&self) -> &'static str {
        "a line is longer than 2 GiB"
    }
}

/// Parses blocks of JSON lines.
pub(super) struct Parser {
    path: PathBuf,
    lines: Lines,
    /// All columns of the table. Every line is checked against them.
    schema: SchemaRef,
    /// The wanted columns, in the order of the table, and their schema.
    columns: Vec<usize>,
    wanted: SchemaRef,
    /// The number of all columns, with nested ones; and the number of columns that have a value for every row.
    all: u64,
    flat: u64,
    /// The most rows in a batch.
    rows: usize,
    /// Whether a line had a field that is not a column.
    has_unknown: AtomicBool,
}

impl Parser {
    /// A parser of the given columns.
    pub(super) fn new(
        path: &Path,
        schema: &SchemaRef,
        columns: &[usize],
        memory: &Memory,
    ) -> anyhow::Result<Parser> {
        let wanted: SchemaRef = schema.project(columns)?.into();
        let flat = wanted.fields().iter().map(|field| flat(field.data_type())).sum::<u64>().max(1);
        let (mut block, mut rows) = (BLOCK, MAX_FIELDS / flat);
        if let Some(limit) = memory.limit() {
            block = block.min(limit / BLOCK_SHARE / PARSED).max(1);
            rows = rows.min(limit / BLOCK_SHARE / (NULL * flat));
        }
        let what = format!("parsing {}", path.display());
        Ok(Parser {
            path: path.to_path_buf(),
            lines: Lines { block, what },
            schema: schema.clone(),
            columns: columns.to_vec(),
            wanted,
            all: schema.flattened_fields().len() as u64,
            flat,
            rows: rows.clamp(1, strait::DEFAULT_BATCH_SIZE as u64) as usize,
            has_unknown: AtomicBool::new(false),
        })
    }

    /// Parses lines. `first` is the line number of the first one. There is memory for `fills` nulls.
    fn parsed(&self, text: &str, first: u64, fills: u64) -> Result<Parsed, ArrowError> {
        let lines = memchr_iter(b'\n', text.as_bytes()).count() + 1;
        let keeps = |i: usize| self.columns.binary_search(&i).is_ok();
        let mut object = Object::new(self.schema.fields(), lines, keeps)?;
        let mut progress = Progress { fills, unknown: None };
        let mut rows = 0;
        for (number, line) in (first..).zip(text.split('\n')) {
            if line.trim_ascii().is_empty() {
                continue;
            }
            match object.line(line, rows, &mut progress) {
                Ok(()) => rows += 1,
                Err(Stop::Full) => return Ok(Parsed::Full),
                Err(Stop::Wrong) => return Err(self.wrong(number, line.as_bytes()).into()),
            }
            if let Some(field) = progress.unknown.take() {
                self.warn(number, &field);
            }
        }
        if rows == 0 {
            return Ok(Parsed::Rows(None));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let columns = object.finish()?;
        let batch = RecordBatch::try_new_with_options(self.wanted.clone(), columns, &options)?;
        Ok(Parsed::Rows(Some(batch)))
    }

    /// Warns of the first field of the file that is not a column.
    fn warn(&self, number: u64, field: &str) {
        if !self.has_unknown.swap(true, Ordering::Relaxed) {
            log::warn!(
                "{}, line {number}: field \"{field}\" was not in the first lines, so it is left out; \
                 --sample all finds all fields",
                self.path.display()
            );
        }
    }

    /// Says what is wrong with a line.
    fn wrong(&self, number: u64, line: &[u8]) -> Told {
        let why = Known::new(&self.schema).check(line).err();
        let why = why.unwrap_or_else(|| match std::str::from_utf8(line) {
            Ok(_) => "the line does not hold one object".to_string(),
            Err(_) => "not UTF-8 text; convert the file first".to_string(),
        });
        Told(format!("{}, line {number}: {why}", self.path.display()))
    }

    /// Checks that the text of a block is UTF-8.
    fn check(&self, block: &mut Block) -> Result<(), Told> {
        if let Err(error) = std::str::from_utf8(&block.text) {
            let (before, after) = block.text.split_at(error.valid_up_to());
            let start = memrchr(b'\n', before).map_or(0, |end| end + 1);
            let end = before.len() + memchr::memchr(b'\n', after).unwrap_or(after.len());
            let number = memchr_iter(b'\n', before).count() as u64 + 1;
            return Err(self.wrong(block.lines_before + number, &block.text[start..end]));
        }
        block.is_checked = true;
        Ok(())
    }
}

/// The outcome of parsing some lines.
enum Parsed {
    /// A batch; `None` if all lines are blank.
    Rows(Option<RecordBatch>),
    /// There is no memory for the nulls.
    Full,
}

impl Records for Parser {
    fn what(&self) -> &str {
        self.lines.what()
    }

    fn length(&self) -> u64 {
        self.lines.length()
    }

    fn whole(&self, text: &[u8]) -> Option<(usize, u64)> {
        self.lines.whole(text)
    }

    fn too_long(&self) -> &'static str {
        self.lines.too_long()
    }
}

impl TextParser for Parser {
    fn parse(&self, block: &mut Block, memory: &Memory) -> Result<Option<RecordBatch>, ArrowError> {
        if !block.is_checked {
            self.check(block)?;
        }
        let rest = &block.text[block.at..];
        let ends = memchr_iter(b'\n', rest).take(self.rows);
        let (lines, last) = ends.fold((0, None), |(lines, _), end| (lines + 1, Some(end)));
        // The last line of a file may have no line end.
        let end = last.filter(|_| lines == self.rows).map_or(rest.len(), |last| last + 1);
        let text = std::str::from_utf8(&rest[..end]).map_err(|_| not_checked())?;
        let first =
            block.lines_before + memchr_iter(b'\n', &block.text[..block.at]).count() as u64 + 1;
        let whole = block.text.len() as u64;
        let base = COLUMN * self.all + PARSED * end as u64;
        let nulls = self.flat * (lines as u64 + 1);
        let mut nested_nulls = end as u64 / 4;
        let parsed = loop {
            let most = base + NULL * nulls + NESTED_NULL * nested_nulls;
            memory.resize(&mut block.reservation, whole + most, self.what())?;
            let parsed = caught(|| self.parsed(text, first, nulls + nested_nulls));
            match parsed.unwrap_or_else(|why| Err(ArrowError::JsonError(why))) {
                Ok(Parsed::Full) => nested_nulls = nested_nulls.saturating_mul(4).max(1),
                Ok(Parsed::Rows(batch)) => break Ok(batch),
                Err(error) => break Err(error),
            }
        };
        block.at += end;
        // The consumer of the batch reserves memory for it.
        memory.resize(&mut block.reservation, whole, self.what())?;
        parsed
    }

    fn line(&self, block: &Block, row: u64) -> u64 {
        let numbered = (block.lines_before + 1..).zip(block.text.split(|&byte| byte == b'\n'));
        let mut numbered = numbered.filter(|(_, line)| !line.trim_ascii().is_empty());
        let found = usize::try_from(row).ok().and_then(|row| numbered.nth(row));
        found.map_or(block.lines_before + block.lines, |(number, _)| number)
    }

    fn explain(&self, error: &ArrowError, _: Option<&Block>) -> String {
        let why = match error {
            ArrowError::JsonError(why) => why.clone(),
            other => other.to_string(),
        };
        let (path, why) = (self.path.display(), one_line(&why));
        format!("cannot read {path}: {why}; if the file is damaged, get it again")
    }
}

fn not_checked() -> ArrowError {
    ArrowError::JsonError("the text is not UTF-8".to_string())
}

/// Returns the number of values that a column has for every row, also if its fields are missing.
fn flat(data_type: &DataType) -> u64 {
    match data_type {
        DataType::Struct(fields) => {
            1 + fields.iter().map(|field| flat(field.data_type())).sum::<u64>()
        }
        _ => 1,
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::Field;
    use arrow_json::ReaderBuilder;

    use super::*;

    fn block(text: &str, memory: &Memory) -> Block {
        let (text, lines) = (text.as_bytes().to_vec(), text.matches('\n').count() as u64);
        Block::new(text.into(), lines, 0, memory.reserve(0, "a test").unwrap())
    }

    /// Parses a text, and returns its batches.
    fn parsed(parser: &Parser, text: &str, memory: &Memory) -> Result<Vec<RecordBatch>, String> {
        let (mut block, mut batches) = (block(text, memory), Vec::new());
        while !block.is_done() {
            let batch = parser.parse(&mut block, memory).map_err(|error| error.to_string())?;
            batches.extend(batch);
        }
        Ok(batches)
    }

    fn schema() -> SchemaRef {
        use DataType::{Boolean, Decimal128, Float64, Int64, List, Struct, UInt64, Utf8};
        let field = |name: &str, data_type| Field::new(name, data_type, true);
        let list = |of| List(Arc::new(Field::new_list_field(of, true)));
        let inner = vec![field("x", Int64), field("y", list(Utf8))];
        Arc::new(Schema::new(vec![
            field("b", Boolean),
            field("i", Int64),
            field("u", UInt64),
            field("w", Decimal128(20, 0)),
            field("f", Float64),
            field("t", Utf8),
            field("l", list(list(Float64))),
            field("o", Struct(inner.clone().into())),
            field("s", list(Struct(inner.into()))),
        ]))
    }

    /// A random value that the type holds.
    fn value(data_type: &DataType, random: &mut fastrand::Rng) -> String {
        let pick = |values: &[&str], random: &mut fastrand::Rng| {
            values[random.usize(..values.len())].to_string()
        };
        if random.usize(..5) == 0 {
            return "null".to_string();
        }
        match data_type {
            DataType::Boolean => pick(&["true", "false"], random),
            DataType::Int64 => pick(&["0", "-7", "9223372036854775807", "123456789012"], random),
            DataType::UInt64 => pick(&["18446744073709551615", "5"], random),
            DataType::Decimal128(..) => pick(&["-9", "18446744073709551615"], random),
            DataType::Float64 => pick(&["0.1", "-1e300", "7", "1.7976931348623157e308"], random),
            DataType::Utf8 => {
                pick(&["\"\"", "\"a b\"", "\"\\n\\u00e9\\\"\"", "\"é\"", "1.50", "true"], random)
            }
            DataType::List(field) => {
                let values: Vec<String> =
                    (0..random.usize(..4)).map(|_| value(field.data_type(), random)).collect();
                format!("[{}]", values.join(" , "))
            }
            DataType::Struct(fields) => {
                let mut parts = Vec::new();
                for field in fields {
                    if random.usize(..4) > 0 {
                        parts.push(format!(
                            "\"{}\": {}",
                            field.name(),
                            value(field.data_type(), random)
                        ));
                    }
                }
                random.shuffle(&mut parts);
                format!("{{{}}}", parts.join(","))
            }
            other => panic!("{other}"),
        }
    }

    fn object(schema: &SchemaRef, random: &mut fastrand::Rng) -> String {
        loop {
            let object = value(&DataType::Struct(schema.fields().clone()), random);
            if object != "null" {
                return object;
            }
        }
    }

    /// The values are those of Arrow's parser, also if lines are parsed in several batches.
    #[test]
    fn values_are_those_of_arrow() {
        let (schema, mut random) = (schema(), fastrand::Rng::with_seed(17));
        for case in 0..400 {
            let lines: Vec<String> =
                (0..random.usize(1..40)).map(|_| object(&schema, &mut random)).collect();
            let text = lines.join(["\n", "\r\n", "\n\n"][case % 3]);
            let memory = Memory::new((case % 2 == 0).then_some(1 << 20));
            let columns: Vec<usize> = (0..9).filter(|_| case < 100 || random.bool()).collect();
            let mut parser = Parser::new(Path::new("t.jsonl"), &schema, &columns, &memory).unwrap();
            parser.rows = parser.rows.min(1 + case % 50);
            let found = parsed(&parser, &text, &memory).unwrap();
            if columns.is_empty() {
                assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), lines.len());
                continue;
            }
            let found = arrow::compute::concat_batches(&parser.wanted, &found).unwrap();
            let decoder = ReaderBuilder::new(parser.wanted.clone()).with_coerce_primitive(true);
            let mut decoder = decoder.build_decoder().unwrap();
            decoder.decode(text.as_bytes()).unwrap();
            assert_eq!(Some(found), decoder.flush().unwrap(), "case {case}: {text}");
        }
    }

    /// A line that does not fit the types is never accepted.
    #[test]
    fn what_does_not_fit_is_an_error() {
        let (schema, memory) = (schema(), Memory::new(None));
        let wrong = [
            ("{\"i\":2.9}", "column \"i\" is of type Int64"),
            ("{\"i\":9223372036854775808}", "this value is of type UInt64"),
            ("{\"u\":-1}", "column \"u\" is of type UInt64"),
            ("{\"w\":1.5}", "column \"w\" is of type Decimal128"),
            ("{\"f\":\"1\"}", "column \"f\" is of type Float64"),
            ("{\"f\":1e400}", "number out of range"),
            ("{\"b\":0}", "column \"b\" is of type Boolean"),
            ("{\"t\":[]}", "column \"t\" is an array here"),
            ("{\"t\":\"\\ud800\"}", "hex escape"),
            ("{\"l\":[1]}", "column \"l\" is a single value here"),
            ("{\"o\":{\"y\":[{}]}}", "column \"o.y\" is an object here"),
            ("{\"i\":1}x", "trailing characters"),
            ("{\"i\":1", "the line ends within a JSON object"),
            ("[]", "a JSON array"),
        ];
        for (line, message) in wrong {
            // A column that is not wanted is checked, too.
            for columns in [&[0, 1, 2, 3, 4, 5, 6, 7, 8][..], &[]] {
                let parser = Parser::new(Path::new("t.jsonl"), &schema, columns, &memory).unwrap();
                let error = parsed(&parser, &format!("{{}}\n{line}\n{{}}"), &memory).unwrap_err();
                assert!(error.contains("t.jsonl, line 2: "), "{error}");
                assert!(error.contains(message), "{line}: {error}");
            }
        }
    }

    #[test]
    fn the_last_of_two_fields_counts() {
        let memory = Memory::new(None);
        let parser = Parser::new(Path::new("t"), &schema(), &[1, 5, 7, 8], &memory).unwrap();
        let twice = "{\"i\":1,\"t\":\"long\",\"b\":true,\"b\":true,\"o\":{\"y\":[\"p\",\"q\"]},\
                     \"s\":[{\"x\":1},{}],\"i\":2,\"o\":{\"x\":3,\"x\":4},\"t\":\"z\",\"s\":[]}";
        let once = "{\"i\":2,\"t\":\"z\",\"o\":{\"x\":4},\"s\":[]}";
        let [twice, once] = [twice, once].map(|text| parsed(&parser, text, &memory).unwrap());
        assert_eq!(twice, once);
    }

    /// Objects in an array may have far more missing fields than text.
    #[test]
    fn missing_fields_do_not_pass_the_limit() {
        let fields: Vec<Field> =
            (0..500).map(|i| Field::new(format!("c{i}"), DataType::Int64, true)).collect();
        let list = Field::new_list_field(DataType::Struct(fields.into()), true);
        let list = Field::new("l", DataType::List(Arc::new(list)), true);
        let schema = Arc::new(Schema::new(vec![list]));
        let line = format!("{{\"l\":[{}]}}", vec!["{}"; 2000].join(","));
        let parse = |limit: u64| {
            let memory = Memory::new(Some(limit));
            let parser = Parser::new(Path::new("t"), &schema, &[0], &memory).unwrap();
            crate::counted::most_held(|| parsed(&parser, &line, &memory).map(|rows| rows.len()))
        };
        let (rows, held) = parse(16 << 20);
        assert!(rows.unwrap_err().contains("memory limit"));
        assert!(held < 18 << 20, "{held}");
        assert_eq!(parse(256 << 20).0, Ok(1));
    }
}

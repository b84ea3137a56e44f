//! Infers the types of CSV columns from the first rows, as Arrow does.
//!
//! Arrow compares every value with regular expressions, on one thread, before the join begins. Here, a value is
//! first compared with the type that the values before it suggest. Only if it does not fit, Arrow says which type
//! it has. Text that is not usual is left to Arrow.

use std::path::Path;

use arrow::csv::reader::Format as Layout;
use arrow::datatypes::{DataType, Field, Schema};
use memchr::{memchr, memchr_iter};

use super::block::{Block, BlockReader, Records};
use super::csv::merge;
use super::fields::Fields;
use super::format::Squeeze;
use super::records::CsvRecords;
use super::text::{Unmarked, open};
use super::values::{float, integer, unquoted};
use crate::arguments::CsvArguments;
use crate::memory::Memory;

/// The number of rows from which Arrow infers the first types.
const FIRST: usize = 100;

/// The most values that Arrow is asked about. Each of them takes as long as a hundred others.
const MOST_ASKED: usize = 1000;

/// Memory per byte of the header, and per column.
const NAME: u64 = 3;
const COLUMN: u64 = 256;

/// The length of a block of text, and its largest part of a memory limit.
const BLOCK: u64 = 1 << 20;
const BLOCK_SHARE: u64 = 64;

/// What the first rows of a file suggest.
#[derive(Debug, PartialEq)]
pub(super) struct Sampled {
    pub(super) schema: Schema,
    /// The number of rows that were read.
    pub(super) rows: usize,
    /// The average length of a record.
    pub(super) record: u64,
}

/// How a CSV file is to be read.
pub(super) struct Sample<'a> {
    pub(super) path: &'a Path,
    pub(super) squeeze: Squeeze,
    pub(super) delimiter: u8,
    pub(super) layout: &'a Layout,
    pub(super) arguments: &'a CsvArguments,
}

/// Infers names and types. A column without a value has the null type. Returns `None` if Arrow has to do it: because
/// the text is not usual, because there is an error that Arrow explains, or because memory was refused.
pub(super) fn infer(sample: &Sample<'_>, memory: &Memory) -> Option<Sampled> {
    let block = memory.limit().map_or(BLOCK, |limit| limit / BLOCK_SHARE).clamp(1 << 12, BLOCK);
    let what = format!("inferring the types of {}", sample.path.display());
    let cut = CsvRecords { delimiter: sample.delimiter, block, what };
    let opened = open(sample.path, sample.squeeze, memory).ok()?;
    let mut reader = BlockReader::new(opened, memory, &cut.what).ok()?;
    let most = sample.arguments.sample.0.unwrap_or(usize::MAX);
    let (mut found, mut bytes, mut records) = (None, 0, 0);
    let mut names = memory.reserve(0, &cut.what).ok()?;
    while let Some(block) = reader.next(&cut, memory).ok()? {
        let types = match &mut found {
            Some(types) => types,
            none => {
                memory.resize(&mut names, header_bytes(&cut, &block.text)?, &cut.what).ok()?;
                none.insert(Types::begin(sample, &block.text)?)
            }
        };
        let needed = 4 * types.columns.len() as u64 * (block.lines + 1);
        let _fields = memory.reserve(needed, &cut.what).ok()?;
        records += types.add(sample, &block, most)?;
        bytes += block.text.len() as u64;
        if types.rows >= most {
            break;
        }
    }
    let Types { columns, rows, .. } = found?;
    let fields = columns.into_iter().map(|(name, data_type)| Field::new(name, data_type, true));
    let schema = Schema::new(fields.collect::<Vec<_>>());
    Some(Sampled { schema, rows, record: bytes / records.max(1) + 1 })
}

/// Returns the memory for the names and types of all columns. Returns `None` if the first line is not a record.
fn header_bytes(cut: &CsvRecords, text: &[u8]) -> Option<u64> {
    let line = &text[..=memchr(b'\n', text)?];
    let is_record = cut.whole(line) == Some((line.len(), 1));
    let columns = memchr_iter(cut.delimiter, line).count() as u64 + 1;
    is_record.then_some(NAME * line.len() as u64 + COLUMN * columns)
}

/// The types of the columns so far.
struct Types {
    columns: Vec<(String, DataType)>,
    rows: usize,
    /// The number of values that Arrow was asked about.
    asked: usize,
}

impl Types {
    /// Infers names and first types from the first rows.
    fn begin(sample: &Sample<'_>, text: &[u8]) -> Option<Types> {
        let rows = sample.arguments.sample.0.map_or(FIRST, |most| most.min(FIRST));
        let (schema, _) = sample.layout.infer_schema(Unmarked::new(text), Some(rows)).ok()?;
        let columns = schema.fields().iter();
        let columns = columns.map(|field| (field.name().clone(), field.data_type().clone()));
        Some(Types { columns: columns.collect(), rows: 0, asked: 0 })
    }

    /// Adds the values of a block, until there are `most` rows. Returns the number of records in the block.
    fn add(&mut self, sample: &Sample<'_>, block: &Block, most: usize) -> Option<u64> {
        std::str::from_utf8(&block.text).ok()?;
        let lines = usize::try_from(block.lines).ok()?;
        let fields = Fields::split(&block.text, sample.delimiter, self.columns.len(), lines)?;
        let first = usize::from(block.lines_before == 0 && !sample.arguments.no_header);
        let rows = fields.records().saturating_sub(first).min(most - self.rows);
        for (i, (_, data_type)) in self.columns.iter_mut().enumerate() {
            for field in fields.column(i, first).take(rows) {
                if fits(data_type, field, &sample.arguments.nulls) {
                    continue;
                }
                self.asked += 1;
                if self.asked > MOST_ASKED {
                    return None;
                }
                *data_type = merge(data_type, &asked(sample, field)?);
            }
        }
        self.rows += rows;
        Some(fields.records() as u64)
    }
}

/// Returns whether the type holds the value of a field. May return false for a rare value that it holds.
fn fits(data_type: &DataType, field: &[u8], nulls: &[String]) -> bool {
    // Text holds all values.
    if *data_type == DataType::Utf8 {
        return true;
    }
    let value = unquoted(field);
    let is_null = || value.is_empty() || nulls.iter().any(|null| null.as_bytes() == &*value);
    let fits = match data_type {
        DataType::Int64 => integer(&value).is_some(),
        DataType::Float64 => float(&value).is_some(),
        DataType::Date32 => is_date(&value),
        DataType::Boolean => [&b"true"[..], b"false"].iter().any(|b| value.eq_ignore_ascii_case(b)),
        _ => false,
    };
    // A null may look like a number.
    fits || is_null()
}

fn is_date(value: &[u8]) -> bool {
    let is = |(i, byte): (usize, &u8)| {
        if i == 4 || i == 7 { *byte == b'-' } else { byte.is_ascii_digit() }
    };
    value.len() == 10 && value.iter().enumerate().all(is)
}

/// Returns the type that Arrow infers from one field.
fn asked(sample: &Sample<'_>, field: &[u8]) -> Option<DataType> {
    let layout = sample.layout.clone().with_header(false);
    let (schema, _) = layout.infer_schema(Unmarked::new(field), Some(1)).ok()?;
    match &**schema.fields() {
        [field] => Some(field.data_type().clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the schema and the rows that are found here and by Arrow.
    fn both(
        text: &[u8],
        arguments: &CsvArguments,
        limit: Option<u64>,
    ) -> [Option<(Schema, usize)>; 2] {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let layout = Layout::default().with_header(!arguments.no_header).with_delimiter(b',');
        let nulls = regex::Regex::new(&format!("^(?:|{})$", arguments.nulls.join("|"))).unwrap();
        let layout =
            if arguments.nulls.is_empty() { layout } else { layout.with_null_regex(nulls) };
        let (path, squeeze, delimiter) = (file.path(), Squeeze::None, b',');
        let sample = Sample { path, squeeze, delimiter, layout: &layout, arguments };
        let found = infer(&sample, &Memory::new(limit));
        let expected = layout.infer_schema(Unmarked::new(text), arguments.sample.0).ok();
        [found.map(|sampled| (sampled.schema, sampled.rows)), expected]
    }

    #[test]
    fn types_are_those_of_arrow() {
        let values: [&[&str]; 9] = [
            &["1", "-77", "", "\"5\"", "9223372036854775807", "NA"],
            &["1", "9223372036854775808", "12345678901234567"],
            &["1.5", "-0.0", "7", "1e3", ".5", "5.", "NaN", "inf", "-"],
            &["2024-02-29", "", "\"1999-12-31\"", "9999-99-99"],
            &["2024-02-29", "2024-02-29 12:00:00", "2024-02-29T12:00:00.5"],
            &["true", "FALSE", "", "tRue"],
            &["a", "", "x\"y", "é", "\"q,\n\"\"r\"", "NA"],
            &["", "NA"],
            &["1", "true", "2024-02-29", "0.5"],
        ];
        let mut random = fastrand::Rng::with_seed(23);
        let mut usual = 0;
        for case in 0..1500 {
            let columns: Vec<&[&str]> =
                (0..random.usize(1..6)).map(|_| values[random.usize(..9)]).collect();
            // Most columns have one kind of value for a long time.
            let changes = random.usize(..200);
            let mut text = String::new();
            for row in 0..random.usize(..300) {
                let most = if row < changes { 1 } else { usize::MAX };
                let row =
                    columns.iter().map(|values| values[random.usize(..values.len().min(most))]);
                text += &row.collect::<Vec<_>>().join(if random.usize(..9000) == 0 {
                    ";"
                } else {
                    ","
                });
                text += ["\n", "\n", "\r\n"][random.usize(..3)];
            }
            let mut arguments =
                CsvArguments { no_header: random.bool(), ..CsvArguments::default() };
            arguments.nulls.extend(random.bool().then(|| "NA".to_string()));
            arguments.sample.0 = [None, Some(1), Some(150)][random.usize(..3)];
            let limit = random.bool().then_some(1 << 20);
            let [found, expected] = both(text.as_bytes(), &arguments, limit);
            usual += usize::from(found.is_some());
            if found.is_some() {
                assert_eq!(found, expected, "case {case}: {text}");
            }
        }
        assert!((700..1500).contains(&usual), "{usual} of 1500");
    }

    #[test]
    fn unusual_text_is_left_to_arrow() {
        let arguments = CsvArguments::default();
        let left = |text: &[u8]| both(text, &arguments, None)[0].is_none();
        assert!(left(b""));
        assert!(left(b"a,b\n1\n"));
        assert!(left(b"a,b\n\n1,2\n"));
        assert!(left(b"a,b\n1,\xff\n"));
        assert!(left("2024-02-29 12:00:00\n".repeat(2000).as_bytes()));
        assert!(!left(b"a,b\n1,2\n"));
    }

    /// U+FEFF at the start of a value makes it text, also in the first value of a file without a header.
    #[test]
    fn what_looks_like_a_byte_order_mark_is_text() {
        let ones = "1\n".repeat(200);
        let arguments = CsvArguments { no_header: true, ..CsvArguments::default() };
        for text in [format!("{ones}\u{feff}2\n"), format!("\u{feff}\u{feff}1\n{ones}")] {
            let [found, _] = both(text.as_bytes(), &arguments, None);
            assert_eq!(*found.unwrap().0.field(0).data_type(), DataType::Utf8);
        }
    }
}

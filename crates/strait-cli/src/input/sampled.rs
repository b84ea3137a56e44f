//! Infers the types of CSV columns from the first rows, as Arrow does.
//!
//! Arrow compares every value with regular expressions, on one thread, before the join begins. Here, a value is
//! first compared with the type that the values before it suggest. Arrow infers the type of a value only if the value
//! does not fit that type. Files with unusual text are left to Arrow.

use std::path::Path;

use arrow::csv::reader::Format as Layout;
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use memchr::{memchr, memchr_iter};

use super::block::{Block, BlockReader, Records};
use super::csv::{finer, merge};
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
        let first = usize::from(block.is_first && !sample.arguments.no_header);
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

/// Returns whether the type can hold the value of a field. Then the value does not change the type. May return false
/// for a rare value that the type can hold, such as a value with digits that are not ASCII.
pub(super) fn fits(data_type: &DataType, field: &[u8], nulls: &[String]) -> bool {
    // Text holds all values.
    if *data_type == DataType::Utf8 {
        return true;
    }
    let value = unquoted(field);
    let is_null = || value.is_empty() || nulls.iter().any(|null| null.as_bytes() == &*value);
    let fits = match data_type {
        DataType::Int64 => is_integer(&value),
        DataType::Float64 => float(&value).is_some() || is_integer(&value) || is_float(&value),
        DataType::Date32 => is_date(&value),
        DataType::Timestamp(unit, _) => {
            is_date(&value) || time_unit(&value).is_some_and(|found| finer(found, *unit) == *unit)
        }
        DataType::Boolean => [&b"true"[..], b"false"].iter().any(|b| value.eq_ignore_ascii_case(b)),
        _ => false,
    };
    // A null may look like a number.
    fits || is_null()
}

/// Returns whether a value is an integer of 64 bits. For a longer integer, Arrow infers text.
fn is_integer(value: &[u8]) -> bool {
    integer(value).is_some() || {
        let digits = value.strip_prefix(b"-").unwrap_or(value);
        digits.iter().all(u8::is_ascii_digit)
            && str::from_utf8(value).is_ok_and(|value| value.parse::<i64>().is_ok())
    }
}

/// Returns whether a value is a float with a point, with an exponent or with both.
fn is_float(value: &[u8]) -> bool {
    if matches!(value, b"NaN" | b"nan" | b"inf" | b"-inf") {
        return true;
    }
    let (whole, rest) = digits(value.strip_prefix(b"-").unwrap_or(value));
    let (fraction, rest) = rest.strip_prefix(b".").map_or((0, rest), digits);
    let exponent = match rest {
        [b'e' | b'E', b'-' | b'+', exponent @ ..] | [b'e' | b'E', exponent @ ..] => exponent,
        // Without a point and an exponent, it would be an integer.
        _ => return rest.is_empty() && whole + fraction > 0 && value.contains(&b'.'),
    };
    whole + fraction > 0 && matches!(digits(exponent), (1.., []))
}

/// Returns the number of digits at the start of a text, and the rest of the text.
fn digits(text: &[u8]) -> (usize, &[u8]) {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (count, &text[count..])
}

fn is_date(value: &[u8]) -> bool {
    value.len() == 10 && has_shape(value, b"0000-00-00")
}

/// Returns whether a value begins with a shape, in which a zero stands for any digit.
fn has_shape(value: &[u8], shape: &[u8]) -> bool {
    let is = |(byte, shape): (&u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        shape => byte == shape,
    };
    value.len() >= shape.len() && value.iter().zip(shape).all(is)
}

/// Returns the unit that a time such as `2024-02-29 12:00:00.5` needs. Any text may follow, such as a time zone.
fn time_unit(value: &[u8]) -> Option<TimeUnit> {
    let is_time =
        has_shape(value, b"0000-00-00T00:00:00") || has_shape(value, b"0000-00-00 00:00:00");
    // Arrow has rules of its own for line ends, and for digits that are not ASCII.
    if !is_time || !value.is_ascii() || value.contains(&b'\n') {
        return None;
    }
    let rest = &value[b"0000-00-00T00:00:00".len()..];
    match rest.strip_prefix(b".").map(digits) {
        None if rest.first().is_none_or(|byte| !byte.is_ascii_digit()) => Some(TimeUnit::Second),
        Some((1..=3, _)) => Some(TimeUnit::Millisecond),
        Some((4..=6, _)) => Some(TimeUnit::Microsecond),
        Some((7..=9, _)) => Some(TimeUnit::Nanosecond),
        _ => None,
    }
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
        let values: [&[&str]; 11] = [
            &["1", "-77", "", "\"5\"", "9223372036854775807", "NA"],
            &["1", "9223372036854775808", "12345678901234567"],
            &["1.5", "-0.0", "7", "1e3", ".5", "5.", "NaN", "inf", "-"],
            &["2024-02-29", "", "\"1999-12-31\"", "9999-99-99"],
            &["2024-02-29", "2024-02-29 12:00:00", "2024-02-29T12:00:00.5"],
            &["true", "FALSE", "", "tRue"],
            &["a", "", "x\"y", "é", "\"q,\n\"\"r\"", "NA"],
            &["", "NA"],
            &["1", "true", "2024-02-29", "0.5"],
            &["0.1234567890123456", "1234567890123456789", "-1.7976931348623157e308"],
            &["2024-02-29 12:00:00", "2024-02-29T12:00:00Z", "2024-02-29 12:00:00.123456+01:00"],
        ];
        let mut random = fastrand::Rng::with_seed(23);
        let mut usual = 0;
        for case in 0..1500 {
            let columns: Vec<&[&str]> =
                (0..random.usize(1..6)).map(|_| values[random.usize(..values.len())]).collect();
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

    /// A value fits a type here if it does not change the type that Arrow infers.
    #[test]
    fn long_numbers_and_times_fit_as_in_arrow() {
        let arguments = CsvArguments::default();
        let layout = Layout::default().with_delimiter(b',');
        let (path, squeeze, delimiter) = (Path::new("t.csv"), Squeeze::None, b',');
        let sample = Sample { path, squeeze, delimiter, layout: &layout, arguments: &arguments };
        let units = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond];
        let times = units.into_iter().chain([TimeUnit::Nanosecond]);
        let mut types =
            vec![DataType::Int64, DataType::Float64, DataType::Date32, DataType::Boolean];
        types.extend(times.map(|unit| DataType::Timestamp(unit, None)));
        let mut random = fastrand::Rng::with_seed(29);
        let mut fitted = 0;
        for case in 0..20_000 {
            let mut value = random_value(case % 5, &mut random);
            // Most errors are small.
            if random.bool() && !value.is_empty() {
                let at = random.usize(..value.len());
                let byte = b"0123456789-+.eETZ: xn"[random.usize(..21)];
                match random.usize(..3) {
                    0 => drop(value.remove(at)),
                    1 => value[at] = byte,
                    _ => value.insert(at, byte),
                }
            }
            if value.is_empty() {
                continue;
            }
            let found = asked(&sample, &value).unwrap();
            for data_type in &types {
                let fits = fits(data_type, &value, &[]);
                let expected = merge(data_type, &found) == *data_type;
                let value = String::from_utf8_lossy(&value);
                assert_eq!(fits, expected, "{value} of type {found} in a column of {data_type}");
                fitted += usize::from(fits);
            }
        }
        assert!(fitted > 20_000, "{fitted}");
    }

    /// Returns a long integer, a long float, a float with an exponent, a date or a time.
    fn random_value(kind: usize, random: &mut fastrand::Rng) -> Vec<u8> {
        fn digits(most: usize, random: &mut fastrand::Rng) -> String {
            (0..random.usize(1..=most)).map(|_| random.digit(10)).collect()
        }
        let sign = ["", "-"][random.usize(..2)];
        let value = match kind {
            0 => format!("{sign}{}", digits(21, random)),
            1 => format!("{sign}{}.{}", digits(18, random), digits(18, random)),
            2 => {
                format!("{}.{}e{sign}{}", digits(3, random), digits(17, random), digits(3, random))
            }
            3 => "2024-02-29".to_string(),
            _ => {
                let between = ["T", " "][random.usize(..2)];
                let fraction = [String::new(), format!(".{}", digits(11, random))];
                let fraction = &fraction[random.usize(..2)];
                let zone = ["", "Z", "+01:00", " UTC"][random.usize(..4)];
                format!("2024-02-29{between}12:00:07{fraction}{zone}")
            }
        };
        value.into_bytes()
    }

    /// Arrow compares regular expressions with every value. So a whole file of such values must not be left to it.
    #[test]
    fn long_numbers_and_times_are_not_left_to_arrow() {
        let arguments = CsvArguments { no_header: true, ..CsvArguments::default() };
        for value in [
            "9223372036854775807",
            "0.12345678901234567",
            "1e-7",
            "2024-02-29 12:00:00",
            "2024-02-29T12:00:00.123456Z",
        ] {
            let [found, expected] =
                both(format!("{value}\n").repeat(2000).as_bytes(), &arguments, None);
            assert!(found.is_some(), "{value}");
            assert_eq!(found, expected, "{value}");
        }
    }

    #[test]
    fn unusual_text_is_left_to_arrow() {
        let arguments = CsvArguments::default();
        let left = |text: &[u8]| both(text, &arguments, None)[0].is_none();
        assert!(left(b""));
        assert!(left(b"a,b\n1\n"));
        assert!(left(b"a,b\n\n1,2\n"));
        assert!(left(b"a,b\n1,\xff\n"));
        assert!(left("true\nfal\u{17f}e\n".repeat(2000).as_bytes()));
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

//! Two tables with requested keys: how many there are, how they are distributed, and how often probe rows
//! have them. Rows are functions of the shape and of their position. Every part can therefore be made
//! independently, and the answer of a join is known without joining.

use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::bail;
use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::random::{Random, Shuffle, Zipf, mix, mix_within};

/// Rows per part. The rows depend on this value: another value generates other tables.
const PART_ROWS: u64 = 1 << 18;

/// The length of every string key.
const STRING_BYTES: usize = 17;

/// The random number stream for probe keys.
const PROBE_KEY: u64 = 2;

/// The description of two tables.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The rows of the build table.
    pub build: u64,
    /// The rows of the probe table.
    pub probe: u64,
    /// The type of the key column.
    pub key_type: KeyType,
    /// How the keys are distributed over their type.
    pub keys: Keys,
    /// How often probe rows have each key.
    pub skew: Skew,
    /// The share of probe rows that have a match.
    pub selectivity: f64,
    /// How many build rows have the same key.
    pub duplicates: u64,
    /// The bytes per payload value: 4 or 8.
    pub payload_bytes: u8,
    /// The payload columns of each table.
    pub payload_columns: u16,
    /// Another seed gives other rows.
    pub seed: u64,
}

impl Shape {
    /// Tables with keys and payloads of 8 bytes. Every build key is different, and every probe row has one match.
    pub fn of_words(build: u64, probe: u64, keys: Keys, seed: u64) -> Shape {
        Shape {
            build,
            probe,
            key_type: KeyType::Int64,
            keys,
            skew: Skew::None,
            selectivity: 1.0,
            duplicates: 1,
            payload_bytes: 8,
            payload_columns: 1,
            seed,
        }
    }
}

/// The type of a workload's key column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    /// Integers of 64 bits.
    Int64,
    /// Integers of 32 bits.
    Int32,
    /// Strings of equal length.
    String,
}

impl KeyType {
    /// All types.
    pub const ALL: [KeyType; 3] = [KeyType::Int64, KeyType::Int32, KeyType::String];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            KeyType::Int64 => "int64",
            KeyType::Int32 => "int32",
            KeyType::String => "string",
        }
    }
}

/// How a workload's keys are distributed over their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// They fill a range.
    Dense,
    /// They are scattered over the positive half of the type.
    Sparse,
}

impl Keys {
    /// Both distributions.
    pub const ALL: [Keys; 2] = [Keys::Dense, Keys::Sparse];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Keys::Dense => "dense",
            Keys::Sparse => "sparse",
        }
    }
}

/// How often probe rows have each key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Skew {
    /// All keys are equally frequent.
    None,
    /// Frequencies follow Zipf's law with this exponent.
    Zipf(f64),
}

impl FromStr for Skew {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Skew::None);
        }
        match text.strip_prefix("zipf:").map(str::parse) {
            Some(Ok(theta)) if (0.0..=10.0).contains(&theta) => Ok(Skew::Zipf(theta)),
            _ => Err("write none, or zipf:THETA with THETA from 0 to 10, as in zipf:0.9".into()),
        }
    }
}

/// One of the two tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The build table.
    Build,
    /// The probe table.
    Probe,
}

/// The generator of both tables.
///
/// Keys are numbered. Numbers below `distinct` are in the build table. Numbers from `distinct` to `2 *
/// distinct` are in no build row. A build row has a *place* among all build rows in order. The place
/// determines the row: its key is `place % distinct`, and it is copy `place / distinct` of that key.
pub struct Workload {
    /// The description of the tables.
    pub shape: Shape,
    distinct: u64,
    order: Shuffle,
    popularity: Shuffle,
    zipf: Option<Zipf>,
}

/// Some rows of a table.
pub struct Rows {
    /// The rows.
    pub batch: RecordBatch,
    /// The places of build rows, or the key numbers of probe rows.
    pub numbers: Vec<u64>,
}

impl Workload {
    /// Creates the generator. Returns an error if no tables can have this shape.
    pub fn new(shape: Shape) -> anyhow::Result<Self> {
        let distinct = shape.build.div_ceil(shape.duplicates.max(1));
        if shape.key_type == KeyType::Int32 && distinct > 1 << 30 {
            bail!(
                "an int32 key has too few values for {distinct} of them and as many others; use int64"
            );
        }
        if shape.build == 0 && shape.probe > 0 && shape.selectivity > 0.0 {
            bail!("no probe row finds a match in an empty build table; add --selectivity 0");
        }
        let zipf = match shape.skew {
            Skew::Zipf(theta) if distinct > 0 => Some(Zipf::new(distinct, theta)),
            _ => None,
        };
        let order = Shuffle::new(shape.build, mix(shape.seed));
        let popularity = Shuffle::new(distinct, mix(!shape.seed));
        Ok(Workload { shape, distinct, order, popularity, zipf })
    }

    /// The rows of a table.
    pub fn rows(&self, side: Side) -> u64 {
        match side {
            Side::Build => self.shape.build,
            Side::Probe => self.shape.probe,
        }
    }

    /// The number of parts of a table.
    pub fn parts(&self, side: Side) -> usize {
        self.rows(side).div_ceil(PART_ROWS) as usize
    }

    /// The rows of a part.
    pub fn part(&self, side: Side, part: usize) -> Range<u64> {
        let first = part as u64 * PART_ROWS;
        first..self.rows(side).min(first + PART_ROWS)
    }

    /// The generator of a part. The batches of the part use it one after the other.
    pub fn random(&self, part: usize) -> Random {
        Random::new(self.shape.seed, PROBE_KEY, part as u64)
    }

    /// The schema of a table.
    pub fn schema(&self, side: Side) -> SchemaRef {
        let key = match self.shape.key_type {
            KeyType::Int64 => DataType::Int64,
            KeyType::Int32 => DataType::Int32,
            KeyType::String => DataType::Utf8,
        };
        let payload = if self.shape.payload_bytes == 4 { DataType::Int32 } else { DataType::Int64 };
        let mut fields = vec![Field::new("key", key, false)];
        fields
            .extend(self.payload_names(side).map(|name| Field::new(name, payload.clone(), false)));
        Arc::new(Schema::new(fields))
    }

    fn payload_names(&self, side: Side) -> impl Iterator<Item = String> {
        let prefix = if side == Side::Build { "build" } else { "probe" };
        (1..=self.shape.payload_columns).map(move |i| format!("{prefix}_{i}"))
    }

    /// Makes some rows of one part.
    pub fn batch(&self, side: Side, rows: Range<u64>, random: &mut Random) -> anyhow::Result<Rows> {
        let first = rows.start;
        let numbers: Vec<u64> = match side {
            Side::Build => rows.map(|row| self.order.at(row)).collect(),
            Side::Probe => rows.map(|_| self.probe_number(random)).collect(),
        };
        let mut columns = vec![self.keys(side, &numbers)?];
        for column in 0..self.shape.payload_columns {
            let salt = self.salt(side, column);
            let values = numbers.iter().zip(first..).map(|(&number, row)| match side {
                Side::Build => payload(salt, number),
                Side::Probe => payload(salt, row),
            });
            columns.push(match self.shape.payload_bytes {
                4 => Arc::new(Int32Array::from_iter_values(values.map(|v| v as i32))) as ArrayRef,
                _ => Arc::new(Int64Array::from_iter_values(values)),
            });
        }
        Ok(Rows { batch: RecordBatch::try_new(self.schema(side), columns)?, numbers })
    }

    /// The places of the build rows that match a probe row with this key number.
    pub fn met(&self, number: u64) -> impl Iterator<Item = u64> + Clone {
        let there = if number < self.distinct { number..self.shape.build } else { 0..0 };
        there.step_by(self.distinct.max(1) as usize)
    }

    /// A salt that makes the payload of each column different.
    pub fn salt(&self, side: Side, column: u16) -> u64 {
        mix(self.shape.seed ^ mix(u64::from(column) * 2 + u64::from(side == Side::Build) + 1))
    }

    /// Draws the key number of a probe row.
    fn probe_number(&self, random: &mut Random) -> u64 {
        if random.unit() >= self.shape.selectivity {
            return self.distinct + random.below(self.distinct.max(1));
        }
        match &self.zipf {
            // Frequent keys are spread over all keys; they are not the smallest ones.
            Some(zipf) => self.popularity.at(zipf.sample(random)),
            None => random.below(self.distinct),
        }
    }

    /// Returns the values of numbered keys: the numbers themselves, or values that are scattered over the
    /// positive half of the type.
    fn keys(&self, side: Side, numbers: &[u64]) -> anyhow::Result<ArrayRef> {
        let sparse = self.shape.keys == Keys::Sparse;
        let distinct = self.distinct.max(1);
        let numbers = numbers.iter().map(|&n| if side == Side::Build { n % distinct } else { n });
        Ok(match self.shape.key_type {
            KeyType::Int64 => Arc::new(Int64Array::from_iter_values(
                numbers.map(|n| if sparse { mix_within(63, n) } else { n } as i64),
            )),
            KeyType::Int32 => Arc::new(Int32Array::from_iter_values(
                numbers.map(|n| if sparse { mix_within(31, n) } else { n } as i32),
            )),
            KeyType::String => Arc::new(strings(numbers, sparse)?),
        })
    }
}

/// Returns a payload of 31 bits, so that the sum over 2^32 rows fits the Int64 sum of every engine.
pub(super) fn payload(salt: u64, index: u64) -> i64 {
    (mix(salt ^ index) >> 33) as i64
}

/// Returns keys as text of equal length: `k` and sixteen digits. Dense keys are decimal, sparse ones
/// hexadecimal.
fn strings(numbers: impl Iterator<Item = u64>, sparse: bool) -> anyhow::Result<StringArray> {
    let base = if sparse { 16 } else { 10 };
    let mut bytes = Vec::new();
    for number in numbers {
        let mut rest = if sparse { mix(number) } else { number };
        let mut text = [b'k'; STRING_BYTES];
        for place in text[1..].iter_mut().rev() {
            *place = b"0123456789abcdef"[(rest % base) as usize];
            rest /= base;
        }
        bytes.extend_from_slice(&text);
    }
    let offsets: ScalarBuffer<i32> =
        (0..=bytes.len() / STRING_BYTES).map(|i| (i * STRING_BYTES) as i32).collect();
    Ok(StringArray::try_new(OffsetBuffer::new(offsets), bytes.into(), None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn shape(key_type: KeyType, keys: Keys) -> Shape {
        Shape {
            build: 1003,
            probe: 3000,
            key_type,
            keys,
            skew: Skew::Zipf(0.8),
            selectivity: 0.7,
            duplicates: 4,
            payload_bytes: 8,
            payload_columns: 1,
            seed: 3,
        }
    }

    #[test]
    fn a_key_has_the_copies_that_its_number_says() {
        for keys in [Keys::Dense, Keys::Sparse] {
            for key_type in [KeyType::Int32, KeyType::Int64, KeyType::String] {
                let workload = Workload::new(shape(key_type, keys)).unwrap();
                let rows = |side| {
                    let rows = workload.rows(side);
                    workload.batch(side, 0..rows, &mut workload.random(0)).unwrap()
                };
                let text = |rows: &Rows| -> Vec<String> {
                    let column = rows.batch.column(0);
                    let format = arrow::util::display::array_value_to_string;
                    (0..column.len()).map(|i| format(column, i).unwrap()).collect()
                };
                let (build, probe) = (rows(Side::Build), rows(Side::Probe));
                let mut copies: HashMap<String, usize> = HashMap::new();
                text(&build).into_iter().for_each(|key| *copies.entry(key).or_default() += 1);
                assert_eq!(copies.len(), 251);
                for (key, &number) in text(&probe).iter().zip(&probe.numbers) {
                    let found = copies.get(key).copied().unwrap_or(0);
                    assert_eq!(found, workload.met(number).count(), "{key}");
                }
            }
        }
    }
}

//! A digest of a table's values. It does not depend on the order of rows, nor on how a type is stored: strings and
//! dictionaries of strings, or decimals of different widths, have the same digest if their values are equal.
//!
//! The digest is a sum of hashes per row, so that threads can digest batches in any order. Three kinds of hashes
//! are summed: of each value; of each value together with the first value of its row, which is the key in our jobs;
//! and of all values of a row. The first two find the column that differs. The last finds values that were swapped
//! between rows of the same key.

use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex};

use anyhow::{Context, bail};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Date32Type, Decimal128Type, Float64Type, Int64Type, Schema};
use arrow::error::ArrowError;
use serde::{Deserialize, Serialize};

use crate::arguments::{CsvArguments, DigestArguments};
use crate::failure;
use crate::input::{InputTable, find};
use crate::join::cores;
use crate::memory::Memory;
use crate::output::print;

/// The digest of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Digest {
    pub(super) rows: u64,
    pub(super) columns: Vec<Column>,
    /// The sum of the hashes of whole rows.
    pub(super) whole: u64,
}

/// The digest of a column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) nulls: u64,
    /// The sum of the hashes of the values.
    pub(super) values: u64,
    /// The sum of the hashes of the values with their keys.
    pub(super) keyed: u64,
}

/// A kind of values. Values of different kinds are not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Integer,
    Decimal,
    Float,
    Text,
    Date,
}

impl Kind {
    fn of(data_type: &DataType) -> Option<Kind> {
        match data_type {
            DataType::Dictionary(_, values) => Kind::of(values),
            integer if integer.is_integer() => Some(Kind::Integer),
            DataType::Decimal32(..)
            | DataType::Decimal64(..)
            | DataType::Decimal128(..)
            | DataType::Decimal256(..) => Some(Kind::Decimal),
            DataType::Float32 | DataType::Float64 => Some(Kind::Float),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Some(Kind::Text),
            DataType::Date32 => Some(Kind::Date),
            _ => None,
        }
    }

    /// The type to which columns of this kind are converted before they are hashed.
    fn common(self) -> DataType {
        match self {
            Kind::Integer => DataType::Int64,
            Kind::Decimal => DataType::Decimal128(38, 6),
            Kind::Float => DataType::Float64,
            Kind::Text => DataType::Utf8View,
            Kind::Date => DataType::Date32,
        }
    }
}

/// Runs `strait bench digest`.
pub(in crate::bench) fn run(arguments: &DigestArguments) -> anyhow::Result<()> {
    let memory = Memory::new(None);
    let table = InputTable::open(find(&arguments.table)?, &CsvArguments::default(), &memory)?;
    let all: Vec<usize> = (0..table.schema().fields().len()).collect();
    let schema = Arc::clone(table.schema());
    let digest = Digest::of(&schema, table.batches(&all), cores())?;
    print(&format!("{}\n", serde_json::to_string(&digest)?))
}

impl Digest {
    /// Digests all rows, on `threads` threads.
    fn of(
        schema: &Schema,
        batches: impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send,
        threads: usize,
    ) -> anyhow::Result<Digest> {
        let mut empty = Digest::default();
        for field in schema.fields() {
            let Some(kind) = Kind::of(field.data_type()) else {
                bail!(
                    "column {}: cannot compare values of type {}",
                    field.name(),
                    field.data_type()
                )
            };
            let name = field.name().clone();
            empty.columns.push(Column { name, kind, nulls: 0, values: 0, keyed: 0 });
        }
        let batches = Mutex::new(batches);
        let next = || match batches.lock() {
            Ok(mut batches) => batches.next().transpose().map_err(failure::of_stream),
            Err(_) => bail!("a thread that reads the table has failed"),
        };
        let work = || {
            let mut digest = empty.clone();
            while let Some(batch) = next()? {
                digest.add(&batch)?;
            }
            Ok(digest)
        };
        let digests = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let join = |worker: std::thread::ScopedJoinHandle<'_, anyhow::Result<Digest>>| {
                worker.join().unwrap_or_else(|_| bail!("a thread has failed"))
            };
            workers.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
        })?;
        let mut sum = empty;
        digests.iter().for_each(|digest| sum.merge(digest));
        Ok(sum)
    }

    /// Adds the rows of a batch.
    fn add(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        let rows = batch.num_rows();
        let mut keys: Vec<u64> = Vec::new();
        let mut whole = vec![0; rows];
        for (column, array) in self.columns.iter_mut().zip(batch.columns()) {
            let hashes = hashes(array, column.kind)
                .with_context(|| format!("column {}: cannot compare its values", column.name))?;
            column.nulls += array.logical_null_count() as u64;
            if keys.is_empty() {
                keys.clone_from(&hashes);
            }
            for ((hash, key), whole) in hashes.iter().zip(&keys).zip(&mut whole) {
                column.values = column.values.wrapping_add(*hash);
                column.keyed = column.keyed.wrapping_add(mixed(*key, *hash));
                *whole = mixed(*whole, *hash);
            }
        }
        self.rows += rows as u64;
        self.whole = whole.into_iter().fold(self.whole, u64::wrapping_add);
        Ok(())
    }

    fn merge(&mut self, other: &Digest) {
        self.rows += other.rows;
        self.whole = self.whole.wrapping_add(other.whole);
        for (mine, theirs) in self.columns.iter_mut().zip(&other.columns) {
            mine.nulls += theirs.nulls;
            mine.values = mine.values.wrapping_add(theirs.values);
            mine.keyed = mine.keyed.wrapping_add(theirs.keyed);
        }
    }

    /// Says how this table differs from the one that is expected.
    pub(super) fn check(&self, expected: &Digest) -> anyhow::Result<()> {
        let names = |digest: &Digest| {
            digest.columns.iter().map(|column| column.name.clone()).collect::<Vec<_>>().join(", ")
        };
        if names(self) != names(expected) {
            bail!("the columns are {}, and should be {}", names(self), names(expected));
        }
        if self.rows != expected.rows {
            bail!("there are {} rows, and should be {}", self.rows, expected.rows);
        }
        for (mine, theirs) in self.columns.iter().zip(&expected.columns) {
            let name = &mine.name;
            if mine.kind != theirs.kind {
                bail!("column {name} has {:?} values, not {:?} values", mine.kind, theirs.kind);
            }
            if mine.nulls != theirs.nulls {
                bail!("column {name} has {} nulls, and should have {}", mine.nulls, theirs.nulls);
            }
            if mine.values != theirs.values {
                bail!("column {name} has other values");
            }
            if mine.keyed != theirs.keyed {
                bail!("column {name} has the right values, but beside other keys");
            }
        }
        if self.whole != expected.whole {
            bail!("each column has the right values, but rows combine them differently");
        }
        Ok(())
    }
}

/// Returns one hash per row.
fn hashes(array: &ArrayRef, kind: Kind) -> anyhow::Result<Vec<u64>> {
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let array = cast_with_options(array, &kind.common(), &strict)?;
    let hashes = match kind {
        Kind::Integer => each(array.as_primitive::<Int64Type>().iter(), |h, v| h.write_i64(v)),
        Kind::Decimal => {
            each(array.as_primitive::<Decimal128Type>().iter(), |h, v| h.write_i128(v))
        }
        Kind::Float => {
            each(array.as_primitive::<Float64Type>().iter(), |h, v| h.write_u64(v.to_bits()))
        }
        Kind::Text => each(array.as_string_view().iter(), |h, v| h.write(v.as_bytes())),
        Kind::Date => each(array.as_primitive::<Date32Type>().iter(), |h, v| h.write_i32(v)),
    };
    Ok(hashes)
}

fn each<T>(
    values: impl Iterator<Item = Option<T>>,
    write: impl Fn(&mut DefaultHasher, T),
) -> Vec<u64> {
    let hash = |value: Option<T>| {
        // Its keys are constants, so that all processes get the same hashes.
        let mut hasher = DefaultHasher::new();
        match value {
            Some(value) => write(&mut hasher, value),
            None => return 0x6e75_6c6c,
        }
        hasher.finish()
    };
    values.map(hash).collect()
}

/// Combines two hashes. The order matters.
fn mixed(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9e37_79b9_7f4a_7c15) * u128::from(b | 1);
    (product as u64 ^ (product >> 64) as u64).wrapping_add(b.rotate_left(32)).wrapping_add(a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{
        Date32Array, Decimal128Array, DictionaryArray, Float64Array, Int32Array, Int64Array,
        StringArray, StringViewArray,
    };
    use arrow::datatypes::Int32Type;

    fn digest(batches: &[RecordBatch]) -> Digest {
        let schema = batches[0].schema();
        let column = |field: &Arc<arrow::datatypes::Field>| Column {
            name: field.name().clone(),
            kind: Kind::of(field.data_type()).unwrap(),
            nulls: 0,
            values: 0,
            keyed: 0,
        };
        let columns = schema.fields().iter().map(column).collect();
        let mut digest = Digest { columns, ..Digest::default() };
        batches.iter().for_each(|batch| digest.add(batch).unwrap());
        digest
    }

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true)))
            .unwrap()
    }

    fn table(keys: &[i64], texts: &[Option<&str>], prices: &[i128]) -> RecordBatch {
        let prices =
            Decimal128Array::from(prices.to_vec()).with_precision_and_scale(15, 2).unwrap();
        batch(vec![
            ("key", Arc::new(Int64Array::from(keys.to_vec()))),
            ("text", Arc::new(StringViewArray::from(texts.to_vec()))),
            ("price", Arc::new(prices)),
        ])
    }

    fn message(found: &Digest, expected: &Digest) -> String {
        found.check(expected).unwrap_err().to_string()
    }

    #[test]
    fn the_order_of_rows_does_not_matter() {
        let one = digest(&[table(&[1, 1, 2], &[Some("a"), None, Some("b")], &[1, 2, 3])]);
        let parts = [table(&[2], &[Some("b")], &[3]), table(&[1, 1], &[None, Some("a")], &[2, 1])];
        let other = digest(&parts);
        other.check(&one).unwrap();
        assert_eq!((one.rows, one.columns[1].nulls), (3, 1));
        let mut sum = digest(&parts[..1]);
        sum.merge(&digest(&parts[1..]));
        assert_eq!(sum, one);
    }

    #[test]
    fn types_do_not_matter_but_values_do() {
        let wide: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let narrow: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
        let view: ArrayRef = Arc::new(StringViewArray::from(vec!["x", "a text that is long"]));
        let plain: ArrayRef = Arc::new(StringArray::from(vec!["x", "a text that is long"]));
        let words: DictionaryArray<Int32Type> = ["x", "a text that is long"].into_iter().collect();
        let cents = |p, s, v: Vec<i128>| -> ArrayRef {
            Arc::new(Decimal128Array::from(v).with_precision_and_scale(p, s).unwrap())
        };
        let expected =
            digest(&[batch(vec![("a", wide), ("b", view), ("c", cents(15, 2, vec![150, 25]))])]);
        for text in [plain, Arc::new(words) as ArrayRef] {
            let decimals = cents(38, 4, vec![15000, 2500]);
            let other = batch(vec![("a", narrow.clone()), ("b", text), ("c", decimals)]);
            digest(&[other]).check(&expected).unwrap();
        }
    }

    #[test]
    fn a_difference_names_its_column() {
        let right = digest(&[table(&[1, 1, 2], &[Some("a"), Some("b"), Some("c")], &[1, 2, 3])]);
        let of = |keys: &[i64], texts: &[Option<&str>], prices: &[i128]| {
            digest(&[table(keys, texts, prices)])
        };
        let abc = [Some("a"), Some("b"), Some("c")];
        assert!(message(&of(&[1, 1], &abc[..2], &[1, 2]), &right).contains("2 rows"));
        assert!(
            message(&of(&[1, 1, 2], &abc, &[1, 2, 4]), &right).contains("column price has other")
        );
        let null = of(&[1, 1, 2], &[Some("a"), None, Some("c")], &[1, 2, 3]);
        assert!(message(&null, &right).contains("column text has 1 nulls"));
        // Values of rows with different keys, and of rows with the same key, change places.
        let swapped = of(&[1, 1, 2], &[Some("a"), Some("c"), Some("b")], &[1, 2, 3]);
        assert!(message(&swapped, &right).contains("column text has the right values"));
        let within = of(&[1, 1, 2], &[Some("b"), Some("a"), Some("c")], &[1, 2, 3]);
        assert!(message(&within, &right).contains("combine them differently"));
        let floats = digest(&[batch(vec![
            ("key", Arc::new(Int64Array::from(vec![1, 1, 2])) as ArrayRef),
            ("text", Arc::new(StringArray::from(vec!["a", "b", "c"]))),
            ("price", Arc::new(Float64Array::from(vec![0.01, 0.02, 0.03]))),
        ])]);
        assert!(message(&floats, &right).contains("column price has Float values"));
        let days: ArrayRef = Arc::new(Date32Array::from(vec![1, 2, 3]));
        assert!(
            message(&digest(&[batch(vec![("day", days)])]), &right).contains("columns are day")
        );
    }
}

//! How do wide, long or many key columns become one word?
//!
//! By a hash of 64 bits over all of them; matches of words are then verified on the values. The
//! hash is one of the value in the form the pair meets in, so it does not matter whether a
//! string came in a view, behind offsets or from a dictionary. Dictionary values are hashed once.

//!
//! Secrets that follow from the join's [seed](super::seed) go into every step, so nobody can choose keys
//! that have one hash.

use arrow::buffer::NullBuffer;
use arrow::datatypes::ArrowNativeType;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};

use super::column::Sink;
use super::verify::{Bytes, BytesArray, slice};
use crate::word::{KeyWord, splitmix};

/// The secret numbers of the hash.
#[derive(Debug, Clone)]
pub(super) struct Secrets {
    bytes: RapidSecrets,
    /// What secrets of columns follow from.
    columns: u64,
    /// Whether all hashes are the same, for tests.
    bad: bool,
}

impl Secrets {
    /// Those of a seed.
    pub(super) fn new(seed: u64) -> Secrets {
        let mut state = seed;
        let bytes = RapidSecrets::seed(splitmix(&mut state));
        Secrets { bytes, columns: splitmix(&mut state), bad: false }
    }

    /// Secrets with which all keys have one hash, for tests.
    pub(super) fn bad() -> Secrets {
        Secrets { bad: true, ..Secrets::new(0) }
    }

    /// The hash of bytes. The compact variant: short strings are the rule, and their code has to stay
    /// in the loop.
    #[inline(always)]
    pub(super) fn bytes(&self, value: &[u8]) -> u64 {
        rapidhash_v3_micro_inline::<true, false>(value, &self.bytes)
    }

    /// The secrets of a key column. They are different for each, so the order of columns counts.
    pub(super) fn of_column(&self, number: usize) -> OfColumn<'_> {
        let mut state = self.columns.wrapping_add(number as u64);
        let mut next = || splitmix(&mut state);
        let (mask, factor, null) = (next(), next() | 1, next());
        let factor = if self.bad { 0 } else { factor };
        OfColumn { first: number == 0, mask, factor, null, secrets: self }
    }
}

/// How the values of one key column go into the hash.
#[derive(Clone, Copy)]
pub(super) struct OfColumn<'a> {
    /// Whether no column is before this one.
    first: bool,
    mask: u64,
    factor: u64,
    /// What stands for null.
    null: u64,
    secrets: &'a Secrets,
}

impl OfColumn<'_> {
    /// The hash of a value and the hash of the columns before: both halves of a product of 128 bits,
    /// as in wyhash and foldhash.
    #[inline(always)]
    fn combine(&self, before: u64, value: u64) -> u64 {
        let product = u128::from(before ^ value ^ self.mask) * u128::from(self.factor);
        product as u64 ^ (product >> 64) as u64
    }
}

/// Puts a column's hashes into the words, or combines them with those of the columns before.
pub(super) struct Hash<'a, K> {
    pub(super) of: OfColumn<'a>,
    /// The rows that hash as null; `None` where nulls match nothing and their hash is any.
    pub(super) nulls: Option<&'a NullBuffer>,
    pub(super) out: &'a mut Vec<K>,
}

impl<K: KeyWord> Sink for Hash<'_, K> {
    fn take(self, values: impl Iterator<Item = u64>) {
        self.values(values)
    }
}

impl<K: KeyWord> Hash<'_, K> {
    /// Takes values of 64 bits, or hashes of longer ones.
    pub(super) fn values(self, values: impl Iterator<Item = u64>) {
        match self.nulls {
            None => self.put(values),
            Some(nulls) => {
                let null = self.of.null;
                let value = |(value, valid)| if valid { value } else { null };
                self.put(values.zip(nulls.iter()).map(value))
            }
        }
    }

    fn put(self, values: impl Iterator<Item = u64>) {
        let of = self.of;
        if of.first {
            self.out.clear();
            self.out.extend(values.map(|value| K::from_u64(of.combine(0, value))));
        } else {
            for (word, value) in self.out.iter_mut().zip(values) {
                *word = K::from_u64(of.combine(word.to_u64(), value));
            }
        }
    }

    /// Takes strings of bytes.
    pub(super) fn bytes(self, column: &Bytes) {
        let len = column.array.len();
        let secrets = self.of.secrets;
        let bytes = |value: &[u8]| secrets.bytes(value);
        match &column.array {
            BytesArray::Small { offsets, values } if column.index.is_none() => {
                self.values(between(offsets, values).map(bytes))
            }
            BytesArray::Large { offsets, values } if column.index.is_none() => {
                self.values(between(offsets, values).map(bytes))
            }
            BytesArray::Small { offsets, values } => {
                self.indexed(column, len, |row| bytes(slice(offsets, values, row)))
            }
            BytesArray::Large { offsets, values } => {
                self.indexed(column, len, |row| bytes(slice(offsets, values, row)))
            }
            BytesArray::View(array) => self.indexed(column, len, |row| bytes(array.value(row))),
            BytesArray::Fixed(array) => self.indexed(column, len, |row| bytes(array.value(row))),
            BytesArray::Rows(rows) => self.indexed(column, len, |row| bytes(rows.get(row))),
        }
    }

    fn indexed(self, column: &Bytes, len: usize, hash: impl Fn(usize) -> u64) {
        match &column.index {
            None => self.values((0..len).map(hash)),
            Some(index) if index.len() < len => {
                self.values(index.iter().map(|&i| hash(i as usize)))
            }
            Some(index) => {
                let hashed: Vec<u64> = (0..len).map(hash).collect();
                self.values(index.iter().map(|&i| hashed[i as usize]))
            }
        }
    }
}

/// The strings between consecutive offsets.
fn between<'a, O: ArrowNativeType>(
    offsets: &'a [O],
    values: &'a [u8],
) -> impl Iterator<Item = &'a [u8]> {
    offsets.windows(2).map(|ends| &values[ends[0].as_usize()..ends[1].as_usize()])
}

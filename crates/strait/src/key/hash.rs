//! Hashes key columns that do not fit one word.
//!
//! The word is a 64-bit hash over all key columns. Matches of words are later verified on the values. Each
//! value is hashed in the common form of its pair, so a string has the same hash in a view, behind offsets or
//! in a dictionary. Each dictionary value is hashed once.
//!
//! Every step uses secrets that follow from the join's [seed](super::seed), so nobody can choose keys with
//! equal hashes.

use arrow::buffer::NullBuffer;
use arrow::datatypes::ArrowNativeType;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};

use super::column::Sink;
use super::verify::{Bytes, BytesArray};
use crate::error::Result;
use crate::schedule::Workers;
use crate::word::{KeyWord, splitmix};

/// The number of hashed bytes between two checks for cancellation, if strings are long.
const CHECK_EVERY: usize = 4 << 20;

/// Strings are long if they have more bytes than this on average.
const LONG: usize = 1 << 10;

/// The secret numbers of the hash function.
#[derive(Debug, Clone)]
pub(super) struct Secrets {
    bytes: RapidSecrets,
    /// The number that the secrets of columns follow from.
    columns: u64,
    /// Whether all hashes are equal, for tests.
    bad: bool,
}

impl Secrets {
    /// Creates the secrets of a seed.
    pub(super) fn new(seed: u64) -> Secrets {
        let mut state = seed;
        let bytes = RapidSecrets::seed(splitmix(&mut state));
        Secrets { bytes, columns: splitmix(&mut state), bad: false }
    }

    /// Creates secrets under which all keys have the same hash, for tests.
    pub(super) fn bad() -> Secrets {
        Secrets { bad: true, ..Secrets::new(0) }
    }

    /// Returns the hash of bytes. It uses the compact variant, because most strings are short, and its code
    /// has to be inlined into the loop.
    #[inline(always)]
    pub(super) fn bytes(&self, value: &[u8]) -> u64 {
        rapidhash_v3_micro_inline::<true, false>(value, &self.bytes)
    }

    /// Returns the secrets of a key column. Each column has its own, so the order of columns matters.
    pub(super) fn of_column(&self, number: usize) -> OfColumn<'_> {
        let mut state = self.columns.wrapping_add(number as u64);
        let mut next = || splitmix(&mut state);
        let (mask, factor, null) = (next(), next() | 1, next());
        let factor = if self.bad { 0 } else { factor };
        OfColumn { first: number == 0, mask, factor, null, secrets: self }
    }
}

/// How the values of one key column enter the hash.
#[derive(Clone, Copy)]
pub(super) struct OfColumn<'a> {
    /// Whether this is the first column.
    first: bool,
    mask: u64,
    factor: u64,
    /// The value that represents null.
    null: u64,
    secrets: &'a Secrets,
}

impl OfColumn<'_> {
    /// Combines a value with the hash of the columns before it: xors both halves of a 128-bit product, as
    /// wyhash and foldhash do.
    #[inline(always)]
    fn combine(&self, before: u64, value: u64) -> u64 {
        let product = u128::from(before ^ value ^ self.mask) * u128::from(self.factor);
        product as u64 ^ (product >> 64) as u64
    }
}

/// Writes a column's hashes to the words, or combines them with those of the columns before.
pub(super) struct Hash<'a, K> {
    pub(super) of: OfColumn<'a>,
    /// The validity of the rows, for hashing nulls; `None` if nulls match nothing, so that their hash does
    /// not matter.
    pub(super) nulls: Option<&'a NullBuffer>,
    pub(super) out: &'a mut Vec<K>,
}

impl<K: KeyWord> Sink for Hash<'_, K> {
    fn take(self, values: impl Iterator<Item = u64>) {
        self.values(values)
    }
}

impl<K: KeyWord> Hash<'_, K> {
    /// Takes 64-bit values, or hashes of longer values.
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

    /// Takes byte strings. Many rows can share one long string, so hashing long strings can take a long time. So if the
    /// strings are long, this checks for cancellation in between.
    pub(super) fn bytes(self, column: &Bytes, workers: &Workers) -> Result<()> {
        let (array, len) = (&column.array, column.array.len());
        let secrets = self.of.secrets;
        let bytes = |value: &[u8]| secrets.bytes(value);
        match &column.index {
            None if array.total_bytes() / LONG > len => {
                self.values(hashed(secrets, array, 0..len, workers)?.into_iter())
            }
            None => match array {
                BytesArray::Small { offsets, values } => {
                    self.values(between(offsets, values).map(bytes))
                }
                BytesArray::Large { offsets, values } => {
                    self.values(between(offsets, values).map(bytes))
                }
                BytesArray::View(array) => self.values((0..len).map(|i| bytes(array.value(i)))),
                BytesArray::Fixed(array) => self.values((0..len).map(|i| bytes(array.value(i)))),
                BytesArray::Rows(rows) => self.values((0..len).map(|i| bytes(rows.get(i)))),
            },
            Some(index) if index.len() < len => {
                let rows = index.iter().map(|&i| i as usize);
                self.values(hashed(secrets, array, rows, workers)?.into_iter())
            }
            Some(index) => {
                let hashed = hashed(secrets, array, 0..len, workers)?;
                self.values(index.iter().map(|&i| hashed[i as usize]))
            }
        }
        Ok(())
    }
}

/// Returns the hashes of some strings. Checks for cancellation in between.
fn hashed(
    secrets: &Secrets,
    array: &BytesArray,
    rows: impl ExactSizeIterator<Item = usize>,
    workers: &Workers,
) -> Result<Vec<u64>> {
    let mut hashes = Vec::with_capacity(rows.len());
    let mut since_check = 0;
    for row in rows {
        let value = array.get(row);
        since_check += value.len();
        if since_check > CHECK_EVERY {
            workers.check()?;
            since_check = 0;
        }
        hashes.push(secrets.bytes(value));
    }
    Ok(hashes)
}

/// Returns the strings between consecutive offsets.
fn between<'a, O: ArrowNativeType>(
    offsets: &'a [O],
    values: &'a [u8],
) -> impl Iterator<Item = &'a [u8]> {
    offsets.windows(2).map(|ends| &values[ends[0].as_usize()..ends[1].as_usize()])
}

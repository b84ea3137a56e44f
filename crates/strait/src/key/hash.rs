//! How do wide, long or many key columns become one word?
//!
//! By a hash of 64 bits over all of them; matches of words are then verified on the values. The
//! hash is one of the value in the form the pair meets in, so it does not matter whether a
//! string came in a view, behind offsets or from a dictionary. Dictionary values are hashed once.

use arrow::buffer::NullBuffer;
use arrow::datatypes::ArrowNativeType;
use rapidhash::v3::{DEFAULT_RAPID_SECRETS, RapidSecrets, rapidhash_v3_micro_inline};

use super::column::Sink;
use super::verify::{Bytes, BytesArray, slice};
use super::word::KeyWord;

/// The seed is fixed: a case that fails fails again.
static SECRETS: RapidSecrets = DEFAULT_RAPID_SECRETS;
const NULL: u64 = 0x9e37_79b9_7f4a_7c15;

/// The compact variant: short strings are the rule, and their code has to stay in the loop.
#[inline(always)]
pub(super) fn bytes(value: &[u8]) -> u64 {
    rapidhash_v3_micro_inline::<true, false>(value, &SECRETS)
}

/// Puts a column's hashes into the words, or combines them with those of the columns before.
pub(super) struct Hash<'a, K> {
    pub(super) first: bool,
    /// The rows that hash as null; `None` where nulls match nothing and their hash is any.
    pub(super) nulls: Option<&'a NullBuffer>,
    pub(super) out: &'a mut Vec<K>,
}

impl<K: KeyWord> Sink for Hash<'_, K> {
    fn take(self, values: impl Iterator<Item = u64>) {
        self.hashes(values.map(KeyWord::mix))
    }
}

impl<K: KeyWord> Hash<'_, K> {
    /// Takes values that are hashes already.
    pub(super) fn hashes(self, hashes: impl Iterator<Item = u64>) {
        match self.nulls {
            None => self.put(hashes),
            Some(nulls) => {
                let hash = |(hash, valid)| if valid { hash } else { NULL };
                self.put(hashes.zip(nulls.iter()).map(hash))
            }
        }
    }

    fn put(self, hashes: impl Iterator<Item = u64>) {
        if self.first {
            self.out.clear();
            self.out.extend(hashes.map(K::from_u64));
        } else {
            for (word, hash) in self.out.iter_mut().zip(hashes) {
                *word = K::from_u64(combine(word.to_u64(), hash));
            }
        }
    }

    /// Takes strings of bytes.
    pub(super) fn bytes(self, column: &Bytes) {
        let len = column.array.len();
        match &column.array {
            BytesArray::Small { offsets, values } if column.index.is_none() => {
                self.hashes(between(offsets, values).map(bytes))
            }
            BytesArray::Large { offsets, values } if column.index.is_none() => {
                self.hashes(between(offsets, values).map(bytes))
            }
            BytesArray::Small { offsets, values } => {
                self.indexed(column, len, |row| bytes(slice(offsets, values, row)))
            }
            BytesArray::Large { offsets, values } => {
                self.indexed(column, len, |row| bytes(slice(offsets, values, row)))
            }
            BytesArray::View(array) => self.indexed(column, len, |row| bytes(array.value(row))),
            BytesArray::Fixed(array) => self.indexed(column, len, |row| bytes(array.value(row))),
            BytesArray::Rows(rows) => self.indexed(column, len, |row| bytes(rows.row(row).data())),
        }
    }

    fn indexed(self, column: &Bytes, len: usize, hash: impl Fn(usize) -> u64) {
        match &column.index {
            None => self.hashes((0..len).map(hash)),
            Some(index) if index.len() < len => {
                self.hashes(index.iter().map(|&i| hash(i as usize)))
            }
            Some(index) => {
                let hashed: Vec<u64> = (0..len).map(hash).collect();
                self.hashes(index.iter().map(|&i| hashed[i as usize]))
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

/// Both are well mixed; the odd factor makes the order of columns count.
#[inline(always)]
fn combine(before: u64, hash: u64) -> u64 {
    before.wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(29) ^ hash
}

//! The dictionaries of column chunks of strings and of integers.
//!
//! Both have an open hash table of value numbers. A slot has the number of a value plus one, or zero:
//!
//! ```text
//!  slots    0  3  0  0  1  2  0  0
//!              │        │  └──────── value 1, whose slot was taken by value 0
//!              │        └─────────── value 0
//!              └──────────────────── value 2
//! ```
//!
//! The hash function is seeded at random. If a value is not among a number of slots, the dictionary is taken
//! for full. So no input makes lookups slow.

use std::hash::{BuildHasher, RandomState};

/// The most bytes of a dictionary of integers. Readers need all of it for any page.
const MOST_NUMBERS: usize = (1 << 20) / size_of::<i64>();

/// The most slots that a lookup visits.
const MOST_STEPS: usize = 512;

/// An open hash table of value numbers. At least half of its slots are empty.
struct Slots {
    slots: Vec<u32>,
    seed: u64,
    len: u32,
}

/// What a lookup finds.
enum Found {
    Value(u32),
    /// The value is new. This slot is empty.
    Empty(usize),
    Full,
}

impl Slots {
    fn new() -> Slots {
        Slots { slots: vec![0; 256], seed: RandomState::new().hash_one(0_u8), len: 0 }
    }

    #[inline]
    fn find(&self, hash: u32, is_equal: impl Fn(u32) -> bool) -> Found {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        for _ in 0..MOST_STEPS {
            match self.slots[slot].checked_sub(1) {
                None => return Found::Empty(slot),
                Some(value) if is_equal(value) => return Found::Value(value),
                Some(_) => slot = (slot + 1) & mask,
            }
        }
        Found::Full
    }

    /// Adds the next value to an empty slot. Returns its number.
    fn add(&mut self, slot: usize, hash: impl Fn(u32) -> u32) -> u32 {
        let value = self.len;
        self.len += 1;
        self.slots[slot] = self.len;
        if self.len as usize > self.slots.len() / 2 {
            let mut slots = vec![0; 4 * self.slots.len()];
            let mask = slots.len() - 1;
            for value in 0..self.len {
                let mut slot = hash(value) as usize & mask;
                while slots[slot] != 0 {
                    slot = (slot + 1) & mask;
                }
                slots[slot] = value + 1;
            }
            self.slots = slots;
        }
        value
    }
}

/// Multiplies to 128 bits and folds them, so that each bit of the result depends on all bits of both.
#[inline]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> u64::BITS) as u64
}

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The dictionary of a column chunk of strings.
pub(super) struct Words {
    /// The words as plain values.
    plain: Vec<u8>,
    words: Vec<Word>,
    slots: Slots,
    /// The most bytes of the plain values.
    most_bytes: usize,
}

struct Word {
    /// Its bytes in the plain values.
    start: u32,
    end: u32,
    /// The number of the page in which it was last used.
    page: u32,
    hash: u32,
}

impl Words {
    pub(super) fn new(most_bytes: usize) -> Words {
        let most_bytes = most_bytes.min(u32::MAX as usize);
        Words { plain: Vec::new(), words: Vec::new(), slots: Slots::new(), most_bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// The words as plain values.
    pub(super) fn plain(&self) -> &[u8] {
        &self.plain
    }

    /// Returns the index of a word, and whether the page uses it for the first time. Adds the word if it is
    /// new. Returns None if it is new and the dictionary is full.
    #[inline]
    pub(super) fn index(&mut self, value: &[u8], page: u32) -> Option<(u32, bool)> {
        let hash = hash(value, self.slots.seed);
        let found = self.slots.find(hash, |index| {
            let word = &self.words[index as usize];
            word.hash == hash && self.plain[word.start as usize..word.end as usize] == *value
        });
        let index = match found {
            Found::Value(index) => index,
            Found::Empty(slot) => self.add(value, hash, slot)?,
            Found::Full => return None,
        };
        let word = &mut self.words[index as usize];
        let first = word.page != page;
        word.page = page;
        Some((index, first))
    }

    fn add(&mut self, value: &[u8], hash: u32, slot: usize) -> Option<u32> {
        if self.plain.len() + 4 + value.len() > self.most_bytes {
            return None;
        }
        self.plain.extend_from_slice(&(value.len() as u32).to_le_bytes());
        let start = self.plain.len() as u32;
        self.plain.extend_from_slice(value);
        self.words.push(Word { start, end: self.plain.len() as u32, page: u32::MAX, hash });
        Some(self.slots.add(slot, |index| self.words[index as usize].hash))
    }
}

#[inline]
fn hash(value: &[u8], seed: u64) -> u32 {
    let (words, rest) = value.as_chunks::<8>();
    let mut hash = seed ^ value.len() as u64;
    for word in words {
        hash = folded(hash ^ u64::from_le_bytes(*word), ODD);
    }
    // The last eight bytes, of which some may be in the words above.
    let last = match value.last_chunk::<8>() {
        Some(last) => u64::from_le_bytes(*last),
        None => rest.iter().fold(0, |all, &byte| all << 8 | u64::from(byte)),
    };
    folded(hash ^ last, ODD ^ seed) as u32
}

/// The dictionary of a column chunk of integers.
pub(super) struct Numbers {
    values: Vec<i64>,
    slots: Slots,
}

impl Numbers {
    pub(super) fn memory_size(&self) -> usize {
        self.values.capacity() * size_of::<i64>() + self.slots.slots.capacity() * size_of::<u32>()
    }

    pub(super) fn new() -> Numbers {
        Numbers { values: Vec::new(), slots: Slots::new() }
    }

    pub(super) fn values(&self) -> &[i64] {
        &self.values
    }

    /// Returns the index of a value. Adds the value if it is new. Returns None if it is new and the dictionary
    /// is full.
    #[inline]
    pub(super) fn index(&mut self, value: i64) -> Option<u32> {
        let seed = self.slots.seed;
        let hash = |value: i64| folded(value as u64 ^ seed, ODD) as u32;
        match self.slots.find(hash(value), |index| self.values[index as usize] == value) {
            Found::Value(index) => Some(index),
            Found::Empty(slot) if self.values.len() < MOST_NUMBERS => {
                self.values.push(value);
                Some(self.slots.add(slot, |index| hash(self.values[index as usize])))
            }
            Found::Empty(_) | Found::Full => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_indices() {
        let mut words = Words::new(1 << 20);
        // Words that are equal but for a byte, at any place and of any length.
        let text = |i: usize| "abcdefghijklmnopqrstu"[..i % 21].to_string() + &i.to_string();
        for page in 0..2 {
            for i in 0..5000 {
                let expected = Some((i as u32, true));
                assert_eq!(words.index(text(i).as_bytes(), page), expected, "page {page}");
            }
            assert_eq!(words.index(text(7).as_bytes(), page), Some((7, false)));
        }
        assert_eq!(words.len(), 5000);
        assert_eq!(words.plain()[..5], [1, 0, 0, 0, b'0']);
    }

    #[test]
    fn a_dictionary_of_words_may_be_full() {
        let mut words = Words::new(16);
        assert_eq!(words.index(b"", 0), Some((0, true)));
        assert_eq!(words.index(b"eight by", 0), Some((1, true)));
        assert_eq!(words.index(b"x", 0), None);
        assert_eq!(words.index(b"eight by", 1), Some((1, true)));
    }

    #[test]
    fn numbers_keep_their_indices() {
        let mut numbers = Numbers::new();
        let value = |i: usize| (i as i64).wrapping_mul(1 << 44) ^ i as i64;
        for _ in 0..2 {
            for i in 0..MOST_NUMBERS {
                assert_eq!(numbers.index(value(i)), Some(i as u32));
            }
        }
        assert_eq!(numbers.values().len(), MOST_NUMBERS);
        assert_eq!(numbers.index(-1), None, "the dictionary is full");
    }
}

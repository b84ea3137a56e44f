//! A filter over the keys of the build side: a Bloom filter whose bits of one key are in one word.
//!
//! ```text
//!  mixed key word ──► hash ──► low bits: the word
//!                         └──► four times 6 bits: the bits in the word
//! ```
//!
//! The filter is filled while the build side is partitioned, so the number of keys is not known when it is made. It is
//! made as large as memory allows. When the build side has ended, it is [folded](BuildKeys::finish): the second half
//! is added to the first half, as long as few bits are set. This works because the low bits of the hash choose the
//! word. So keys are hashed once, and a filter over few keys takes little memory and fits a cache.
//!
//! With 8 to 16 bits per key, the filter lets 0.5 to 3 percent of the other keys pass. All bits of a key are in one
//! word, so a lookup touches one cache line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::memory::{Budget, Reservation};
use crate::plan::SpillRules;

/// The purpose of the memory of a filter.
const FILTERING: &str = "the filter over the keys of the build side";

/// A set of keys. A lookup may find a key that was not inserted. It always finds a key that was inserted.
pub(super) struct BuildKeys {
    /// Their number is a power of two.
    words: Vec<AtomicU64>,
    reserved: Reservation,
    /// The rows that were looked up, and those whose key was not found.
    asked: AtomicU64,
    rejected: AtomicU64,
}

impl BuildKeys {
    /// Creates an empty set of `words` words, a power of two.
    pub(super) fn new(words: usize, budget: &Arc<Budget>) -> Result<BuildKeys> {
        let bytes = words as u64 * size_of::<u64>() as u64;
        let reserved = budget.reserve(bytes, FILTERING)?;
        let mut zeros = Vec::new();
        let refused = |_| Error::OutOfMemory { what: FILTERING.to_string(), needed: bytes };
        zeros.try_reserve_exact(words).map_err(refused)?;
        zeros.resize_with(words, AtomicU64::default);
        let (asked, rejected) = Default::default();
        Ok(BuildKeys { words: zeros, reserved, asked, rejected })
    }

    /// Inserts a key. Many workers may call it at the same time.
    #[inline]
    pub(super) fn insert(&self, mixed: u64) {
        let (word, bits) = self.place(mixed);
        let word = &self.words[word];
        // Most keys of a side with repeated keys are there already. Reading is much cheaper than an atomic write.
        if word.load(Ordering::Relaxed) & bits != bits {
            word.fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// Returns whether a key may have been inserted. The insertions must have ended before.
    #[inline]
    pub(super) fn may_have(&self, mixed: u64) -> bool {
        let (word, bits) = self.place(mixed);
        self.words[word].load(Ordering::Relaxed) & bits == bits
    }

    /// Returns the number of the word of a key, and its bits in the word.
    #[inline]
    fn place(&self, mixed: u64) -> (usize, u64) {
        let hash = hash(mixed);
        let bit = |shift: u32| 1u64 << ((hash >> shift) & 63);
        let bits = bit(58) | bit(52) | bit(46) | bit(40);
        (hash as usize & (self.words.len() - 1), bits)
    }

    /// Folds the set to the size that its keys need. Returns `None` if it has so many keys that it would find almost
    /// every key.
    pub(super) fn finish(mut self, rules: &SpillRules) -> Option<BuildKeys> {
        let mut set = self.bits_set();
        while self.words.len() > 1 && rules.filter_folds(set, self.bits()) {
            let half = self.words.len() / 2;
            let (lower, upper) = self.words.split_at_mut(half);
            for (word, upper) in lower.iter_mut().zip(upper) {
                *word.get_mut() |= *upper.get_mut();
            }
            self.words.truncate(half);
            set = self.bits_set();
        }
        self.words.shrink_to_fit();
        let bytes = self.words.len() as u64 * size_of::<u64>() as u64;
        self.reserved.shrink(self.reserved.bytes().saturating_sub(bytes));
        (!rules.filter_is_full(set, self.bits())).then_some(self)
    }

    fn bits(&self) -> u64 {
        self.words.len() as u64 * u64::from(u64::BITS)
    }

    fn bits_set(&self) -> u64 {
        let ones = |word: &AtomicU64| u64::from(word.load(Ordering::Relaxed).count_ones());
        self.words.iter().map(ones).sum()
    }

    /// Records how many rows were looked up, and for how many of them no key was found. Returns whether the filter
    /// rejects enough rows to be asked again.
    pub(super) fn pays(&self, asked: u64, rejected: u64, rules: &SpillRules) -> bool {
        let add = |to: &AtomicU64, rows: u64| to.fetch_add(rows, Ordering::Relaxed) + rows;
        rules.filter_pays(add(&self.asked, asked), add(&self.rejected, rejected))
    }
}

/// Spreads a mixed key word over 64 bits. A mixed word of 32 bits has no other bits, and the partition of a row follows
/// from the top bits of the mixed word. So neither can choose the bits of the filter by itself.
#[inline]
fn hash(mixed: u64) -> u64 {
    let product = u128::from(mixed ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overrides::TestOverrides;

    fn rules() -> SpillRules {
        let overrides = TestOverrides::default();
        SpillRules { limit: None, threads: 1, level: 0, overrides, asked: false }
    }

    fn filled(words: usize, keys: u64, key: impl Fn(u64) -> u64) -> BuildKeys {
        let set = BuildKeys::new(words, &Budget::new(None)).expect("no limit");
        (0..keys).for_each(|number| set.insert(key(number)));
        set
    }

    /// Multiplication by an odd number is a simple mixer.
    fn mixed(number: u64) -> u64 {
        number.wrapping_mul(0xff51_afd7_ed55_8ccd)
    }

    #[test]
    fn every_inserted_key_is_found_and_few_others() {
        for (keys, narrow) in [(1000, false), (1000, true), (60_000, false), (60_000, true)] {
            let key = |number: u64| if narrow { mixed(number) >> 32 } else { mixed(number) };
            // 8 bits per key or more.
            let words = (keys as usize / 8).next_power_of_two();
            let set = filled(words, keys, key).finish(&rules()).expect("not full");
            assert!((0..keys).all(|number| set.may_have(key(number))));
            let others = keys..keys + 100_000;
            let wrong = others.filter(|&number| set.may_have(key(number))).count();
            assert!(wrong < 4000, "{keys} keys: {wrong} of 100000 others");
        }
    }

    #[test]
    fn a_set_of_few_keys_is_folded() {
        let budget = Budget::new(None);
        let set = BuildKeys::new(1 << 16, &budget).expect("no limit");
        (0..1000).for_each(|number| set.insert(mixed(number)));
        let set = set.finish(&rules()).expect("not full");
        assert!((0..1000).all(|number| set.may_have(mixed(number))));
        assert!((128..1024).contains(&set.words.len()), "{} words", set.words.len());
        assert_eq!(budget.used(), 8 * set.words.len() as u64);
        let wrong = (1000..101_000).filter(|&number| set.may_have(mixed(number))).count();
        assert!(wrong < 4000, "{wrong} of 100000 others");
        // No key at all.
        let empty = filled(1 << 10, 0, mixed).finish(&rules()).expect("not full");
        assert_eq!(empty.words.len(), 1);
        assert!(!(0..1000).any(|number| empty.may_have(mixed(number))));
    }

    #[test]
    fn a_set_of_too_many_keys_is_of_no_use() {
        assert!(filled(16, 10_000, mixed).finish(&rules()).is_none());
    }

    #[test]
    fn workers_insert_at_the_same_time() {
        let set = BuildKeys::new(1 << 8, &Budget::new(None)).expect("no limit");
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let set = &set;
                scope.spawn(move || {
                    (0..500).for_each(|number| set.insert(mixed(4 * number + worker)));
                });
            }
        });
        assert!((0..2000).all(|number| set.may_have(mixed(number))));
    }
}

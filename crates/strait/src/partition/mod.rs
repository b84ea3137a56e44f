//! Which rows can meet? Those whose key words share their top bits.
//!
//! [`key_words`] turns the key columns of a held side into words; [`partition`] sorts the tuples
//! (word, row id) by the top bits of the *placed* word, in one pass or several, so that rows with
//! equal keys come to lie in the same partition on both sides.
//!
//! A word is [placed](Placing) before its bits are used: mixed with the join's seed, so that no
//! pattern of keys makes partitions uneven; or, where the keys are nearly all integers of a range, moved to the top of
//! the word, so that partitions are ranges. Both lose nothing.
//!
//! With 2 bits, the placed words `0b10…, 0b00…, 0b11…, 0b10…` of rows 0 to 3 become
//! `tuples = [1 | | 0 3 | 2]` and `bounds = [0, 1, 1, 3, 4]`.

mod cpu;
pub(crate) mod gpu;
mod payload;
mod tuple;
mod words;

use std::ops::Range;

pub(crate) use cpu::{Load, Passes, count_column, partition, partition_columns};
pub(crate) use payload::{Payload, Values};
pub(crate) use tuple::{RowId, Tuple};
pub(crate) use words::{PIECE, Words, key_words};

use crate::memory::Buffer;
use crate::word::{KeyWord, Mixer};

/// How a word is placed before its top bits choose a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placing<K> {
    /// By the bijective mixer of the join.
    Mixed(Mixer<K>),
    /// By its distance from the smallest word, in the topmost bits: for dense keys.
    Ranged {
        /// The smallest word.
        min: K,
        /// How far the distance is shifted up: the leading zeros of the range.
        up: u32,
    },
}

impl<K: KeyWord> Placing<K> {
    /// The placed word.
    #[inline(always)]
    pub(crate) fn place(self, word: K) -> K {
        match self {
            Placing::Mixed(mixer) => word.mix(mixer),
            Placing::Ranged { min, up } => {
                K::from_u64(word.to_u64().wrapping_sub(min.to_u64()) << up)
            }
        }
    }
}

/// The partition of a placed word: its top `bits` bits.
#[inline(always)]
pub(crate) fn top_bits<K: KeyWord>(placed: K, bits: u32) -> usize {
    // Shifted twice, since a shift by the whole width is not defined.
    (placed.to_u64() >> (K::BITS - 1 - bits) >> 1) as usize
}

/// Tuples in partitions.
pub(crate) struct Partitions<K: KeyWord, I: RowId> {
    /// All tuples, partition after partition.
    pub(crate) tuples: Buffer<Tuple<K, I>>,
    /// Where each partition begins, and where the last ends.
    pub(crate) bounds: Vec<usize>,
}

impl<K: KeyWord, I: RowId> Partitions<K, I> {
    pub(crate) fn count(&self) -> usize {
        self.bounds.len() - 1
    }

    pub(crate) fn range(&self, partition: usize) -> Range<usize> {
        self.bounds[partition]..self.bounds[partition + 1]
    }

    pub(crate) fn tuples(&self, partition: usize) -> &[Tuple<K, I>] {
        &self.tuples[self.range(partition)]
    }
}

//! Partitions rows by the top bits of their key words, so that only rows of equal partitions can match.
//!
//! [`key_words`] converts the key columns of a held side into words. [`partition`] sorts the tuples (word,
//! row id) by the top bits of the *placed* word, in one or more passes. Rows with equal keys then have the
//! same partition number on both sides.
//!
//! A word is [placed](Placing) before its bits are used. Usually the join's mixer mixes it, so that no
//! pattern of keys makes partitions uneven. If the keys are integers of a dense range, their distance from
//! the smallest key is shifted to the top of the word, so that each partition is a range of keys. Both
//! placings are reversible.
//!
//! With 2 bits, the placed words `0b10…, 0b00…, 0b11…, 0b10…` of rows 0 to 3 give `tuples = [1 | | 0 3 | 2]`
//! (shown by row id) and `bounds = [0, 1, 1, 3, 4]`.

mod cpu;
pub(crate) mod gpu;
mod payload;
mod tuple;
mod words;

use std::ops::Range;

pub(crate) use cpu::{ColumnRows, Load, Passes, count_column, partition, partition_columns};
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
    /// By the distance from the smallest word, shifted to the top bits. For dense keys.
    Ranged {
        /// The smallest word.
        min: K,
        /// How far the distance is shifted up: the leading zeros of the largest distance.
        up: u32,
    },
}

impl<K: KeyWord> Placing<K> {
    /// Returns the placed word.
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

/// Returns the partition of a placed word: its top `bits` bits.
#[inline(always)]
pub(crate) fn top_bits<K: KeyWord>(placed: K, bits: u32) -> usize {
    // Two shifts, because a shift by the whole width is not allowed.
    (placed.to_u64() >> (K::BITS - 1 - bits) >> 1) as usize
}

/// Tuples, grouped by partition.
pub(crate) struct Partitions<K: KeyWord, I: RowId> {
    /// All tuples, partition after partition.
    pub(crate) tuples: Buffer<Tuple<K, I>>,
    /// The start of each partition, and the end of the last one.
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

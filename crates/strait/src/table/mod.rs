//! Tables: they map a key word to the values of the build side.
//!
//! Each key has one *value*: the id of its build row, or the inlined columns of that row, which then need not
//! be gathered. A key that repeats still takes one slot, so building takes linear time even if all keys are
//! equal. The slot's `many` bit is set then, and its value is the position of a group. A group is its length,
//! followed by its values.
//!
//! | key | slot in a hash bucket | dense cell |
//! | --- | --- | --- |
//! | absent | a key with another top bit | its `there` bit is clear |
//! | one value | the key, the value | the value |
//! | many values | the key, a position; `many` bit | a position; `many` bit |
//!
//! Rows 0, 1, 2 have the keys a, b, a: the value of b is 1. The value of a is position 0, with its `many` bit
//! set, and `groups` is `[2, 0, 2]`.
//!
//! A [`HashTable`] stores keys and values in buckets. A [`DenseTable`], for integers of a dense range, stores
//! only values, in cells. Both are [filled](fill) from partitions, one region per partition: one worker
//! builds each region in its cache, without locks. Probe keys are looked up [in batches](probe). A small hash
//! table with many probes gets a second layout, in which a search is one comparison ([perfect]). If the keys
//! of a partition crowd in a few buckets, they are [sorted] instead.

mod bits;
mod dense;
mod exists;
mod fill;
mod flags;
mod hash;
mod pairs;
mod perfect;
mod probe;
mod probe_keys;
mod sorted;

pub(crate) use dense::DenseTable;
pub(crate) use flags::Flags;
pub(crate) use hash::{HashTable, LocalTable, table_bytes};
pub(crate) use pairs::Pairs;
pub(crate) use probe::{Ask, Cursor};
pub(crate) use probe_keys::{MorselKeys, ProbeKeys};

use crate::partition::RowId;
use crate::word::KeyWord;

/// A finished table over the build side.
pub(crate) enum BuildTable<K: KeyWord, I: RowId> {
    Hash(HashTable<K, I>),
    Dense(DenseTable<K, I>),
}

impl<K: KeyWord, I: RowId> BuildTable<K, I> {
    /// Finds the pairs of probe keys from the cursor on, until `pairs` holds `ask.cap` pairs or the keys end.
    /// The keys must be placed for a hash table, and not placed for a dense table.
    pub(crate) fn probe<P: ProbeKeys<K>, B: RowId>(
        &self,
        keys: &P,
        ask: Ask<'_>,
        cursor: &mut Cursor,
        pairs: &mut Pairs<B>,
    ) {
        match self {
            BuildTable::Hash(table) => table.probe(keys, ask, cursor, pairs),
            BuildTable::Dense(table) => table.probe(keys, ask, cursor, pairs),
        }
    }

    /// Appends one bit per word to `bits`: whether a build row has the word. The words must be placed for a hash
    /// table, and not placed for a dense table. They may be any words. The bits begin at a new element.
    pub(crate) fn append_exists(&self, words: &[K], bits: &mut Vec<u64>) {
        match self {
            BuildTable::Hash(table) => table.append_exists(words, bits),
            BuildTable::Dense(table) => table.append_exists(words, bits),
        }
    }
}

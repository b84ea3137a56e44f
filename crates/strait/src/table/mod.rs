//! Given a key word, what does the build side have for it?
//!
//! A *value* a key: the id of the build row, or the narrow columns wanted of it, which then need
//! not be gathered. Keys that come more than once take one place all the same, so building is
//! linear even when all keys are equal: the place's `many` bit is set, and its value is the
//! position of a group, which begins with its length.
//!
//! | key | place in a hash bucket | dense cell |
//! | --- | --- | --- |
//! | not there | a key with another top bit | its `there` bit is clear |
//! | one value | the key, the value | the value |
//! | many values | the key, a position; `many` bit | a position; `many` bit |
//!
//! Rows 0, 1, 2 with keys a, b, a: the value of b is 1, that of a is 0 with its bit set, and
//! `groups` is `[2, 0, 2]`.
//!
//! Values lie in the buckets of a [`HashTable`] beside their keys or, for integers of a dense range,
//! alone in the cells of a [`DenseTable`]. Either is [filled](fill) from partitions, a region a
//! partition, so that each region is built in the cache by one worker and without locks; probe
//! keys are [walked](probe_batch) through it. A hash table of few keys that is walked through for long is laid
//! out once more, for searches of one comparison ([perfect]). Keys of a partition that crowd in a few
//! buckets are [sorted] instead.

mod bits;
mod dense;
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
pub(crate) use probe::{Ask, Cursor, Want};
pub(crate) use probe_keys::{MorselKeys, ProbeKeys};

use crate::partition::RowId;
use crate::word::KeyWord;

/// A finished table.
pub(crate) enum Table<K: KeyWord, I: RowId> {
    Hash(HashTable<K, I>),
    Dense(DenseTable<K, I>),
}

impl<K: KeyWord, I: RowId> Table<K, I> {
    /// Finds the pairs of probe keys from the cursor on, until `pairs` holds as many as asked for
    /// or the keys end. Keys are placed for a hash table, and as they are for a dense one.
    pub(crate) fn probe<P: ProbeKeys<K>, B: RowId>(
        &self,
        keys: &P,
        ask: Ask<'_>,
        cursor: &mut Cursor,
        pairs: &mut Pairs<B>,
    ) {
        match self {
            Table::Hash(table) => table.probe(keys, ask, cursor, pairs),
            Table::Dense(table) => table.probe(keys, ask, cursor, pairs),
        }
    }
}

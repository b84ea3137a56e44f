//! Given a key word, which build rows have it?
//!
//! A table answers with an *entry* a key, so duplicates take no slots and building is linear even
//! when all keys are equal:
//!
//! ```text
//!   entry               means
//!   0                   no such key
//!   TOP | row           one row, this one
//!   position + 1        several: groups[position] is how many, their rows follow
//! ```
//!
//! Rows 0, 1, 2 with keys a, b, a: the entry of b is `TOP | 1`, that of a is `1`, and `groups` is
//! `[2, 0, 2]`. While tuples are counted, the entry of a is the number of its rows, 2.
//!
//! Entries lie in [`HashTable`] slots beside their key, found by linear probing, or, for integers
//! of a dense range, alone in the cells of a [`DenseTable`]. Either is built from partitions, a
//! region a partition, so that each region is built in the cache by one worker and without locks.

mod cpu;
mod dense;
mod hash;

pub(crate) use cpu::{Ask, Cursor, MorselKeys, Pairs, ProbeKeys, Want};
pub(crate) use dense::DenseTable;
pub(crate) use hash::{HashTable, LocalTable, slots_for};

use crate::key::KeyWord;
use crate::partition::RowId;

/// A finished table.
pub(crate) enum Table<K: KeyWord, I: RowId> {
    Hash(HashTable<K, I>),
    Dense(DenseTable<K, I>),
}

impl<K: KeyWord, I: RowId> Table<K, I> {
    /// Finds the pairs of probe keys from the cursor on, until `pairs` holds as many as asked for or the
    /// keys end. Keys are placed for a hash table, and as they are for a dense one.
    pub(crate) fn probe<P: ProbeKeys<K>>(
        &self,
        keys: &P,
        ask: Ask<'_>,
        cursor: &mut Cursor,
        pairs: &mut Pairs,
    ) {
        match self {
            Table::Hash(table) => table.probe(keys, ask, cursor, pairs),
            Table::Dense(table) => table.probe(keys, ask, cursor, pairs),
        }
    }
}

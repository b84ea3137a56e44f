//! A table with sorted keys, for keys that crowd in a few buckets of a hash table.
//!
//! The seed of a join is secret, so nobody can choose keys that crowd, and it hardly happens by chance. If it
//! does, a search in the hash table may have to pass all other keys. The radix join cannot restart with
//! another seed, because it has already written rows. So it sorts the keys of such a partition. A search then
//! takes logarithmic time, whatever the keys are.

use crate::context::Context;
use crate::error::Result;
use crate::memory::Buffer;
use crate::partition::{RowId, Tuple};
use crate::table::bits::{self, words_for};
use crate::table::fill::{self, Entered, Region};
use crate::table::probe::{Groups, Lookup, ProbeResult};
use crate::word::KeyWord;

/// The keys of one partition in ascending order.
pub(super) struct SortedTable<K: KeyWord, I: RowId> {
    /// The distinct keys come first.
    keys: Buffer<K>,
    /// The number of distinct keys.
    distinct: usize,
    values: Buffer<I>,
    many: Buffer<u64>,
    groups: Buffer<I>,
}

/// The slots of sorted keys while they are filled.
struct Places<'a, K, I> {
    keys: &'a [K],
    values: &'a mut [I],
    taken: &'a mut [u64],
}

impl<K: KeyWord, I: RowId> Region<K, I> for Places<'_, K, I> {
    fn clear(&mut self) {
        self.taken.fill(0);
    }

    fn places(&self) -> usize {
        // One more than there are keys, so that the table never counts as full.
        self.keys.len() + 1
    }

    fn taken(&self, word: usize) -> u64 {
        self.taken[word]
    }

    fn enter<const MODERN: bool>(&mut self, key: K) -> (usize, bool) {
        let at = place(self.keys, key);
        let known = bits::get(self.taken, at);
        bits::set(self.taken, at);
        (at, known)
    }

    fn value(&mut self, at: usize) -> &mut I {
        &mut self.values[at]
    }
}

/// Returns the position of a key, or of the next greater key; the last position if there is none.
fn place<K: KeyWord>(keys: &[K], key: K) -> usize {
    keys.partition_point(|&other| other < key).min(keys.len().saturating_sub(1))
}

impl<K: KeyWord, I: RowId> SortedTable<K, I> {
    /// Builds a table of at least one tuple.
    pub(super) fn of(cx: &Context<'_>, tuples: &[Tuple<K, I>]) -> Result<Self> {
        let (what, equal) = ("a partition's sorted keys", "a partition's equal keys");
        let mut keys = Buffer::<K>::zeroed(tuples.len(), &cx.budget, what)?;
        keys.iter_mut().zip(tuples).for_each(|(key, tuple)| *key = tuple.key);
        keys.sort_unstable();
        let mut distinct = 1;
        for i in 1..keys.len() {
            if keys[i] != keys[distinct - 1] {
                keys[distinct] = keys[i];
                distinct += 1;
            }
        }
        let mut values = Buffer::<I>::zeroed(distinct, &cx.budget, what)?;
        let mut many = Buffer::<u64>::zeroed(words_for(distinct), &cx.budget, what)?;
        let mut taken = Buffer::<u64>::zeroed(words_for(distinct), &cx.budget, what)?;
        let mut places = Places { keys: &keys[..distinct], values: &mut values, taken: &mut taken };
        let need = match fill::enter(&mut places, &mut many, tuples) {
            Entered::Many(need) => need,
            // There is a slot for each key, and searches have no limit.
            Entered::Unique | Entered::Full | Entered::Lost => 0,
        };
        let mut groups = Buffer::<I>::zeroed(need, &cx.budget, equal)?;
        if need > 0 {
            fill::group(&mut places, &many, tuples, (&mut groups, 0));
        }
        Ok(SortedTable { keys, distinct, values, many, groups })
    }

    /// Returns the groups of the keys that have many values.
    pub(super) fn groups(&self) -> Groups<'_, I> {
        Groups { many: &self.many, values: &self.groups }
    }
}

impl<K: KeyWord, I: RowId> Lookup<K, I> for SortedTable<K, I> {
    fn far(&self) -> bool {
        false
    }

    fn locate(&self, key: K) -> usize {
        place(&self.keys[..self.distinct], key)
    }

    fn fetch(&self, _: usize) {}

    fn find<const MODERN: bool, const EXPECTED: bool>(
        &self,
        key: K,
        start: usize,
    ) -> ProbeResult<I> {
        ProbeResult { at: start, value: self.values[start], hit: self.keys[start] == key }
    }
}

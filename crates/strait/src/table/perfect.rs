//! Perfect hashing: a second layout for the unique keys of a small table, with one possible slot per key.
//!
//! A key's top bits choose a *pilot*, and the pilot sends the key to its slot. No two keys share a slot, so a
//! search is one comparison without a branch. The slots may be almost full. So a table whose buckets exceed
//! the second-level cache may fit the cache in this layout. Pilots are found one after the other, those with
//! most keys first. A pilot is the first number that sends all its keys to free slots (hash and displace;
//! Belazzougui, Botelho and Dietzfelbinger 2009).
//!
//! ```text
//!  keys a b c d; a, c and d have pilot 0, b has pilot 1; five slots
//!    pilot 0: 1 sends a, c, d to 3, 0, 3: no;  2 to 1, 4, 2: yes     slots  _ a d _ c
//!    pilot 1: 1 sends b to 4: taken;           2 to 0: yes           slots  b a d _ c
//! ```
//!
//! Finding pilots takes about ten times as long as filling buckets, so it is for tables with many probes. If
//! it fails (no pilot separates the keys, or memory is too small), that is no error: the buckets still exist.

use std::sync::Arc;

use crate::memory::{Budget, Buffer};
use crate::partition::{RowId, Tuple, top_bits};
use crate::processor::{on_this_processor, prefetch};
use crate::table::bits::{self, words_for};
use crate::table::probe::{Lookup, ProbeResult};
use crate::word::KeyWord;

/// The largest average number of keys per pilot. With more, pilots would take long to find. With fewer, there
/// would be too many pilots for the first-level cache.
const KEYS_PER_PILOT: usize = 4;
/// If a pilot has more keys than this, the search has no chance.
const MAX_KEYS_PER_PILOT: usize = 32;
/// Slots up to this size stay in the first-level cache, and need no prefetch.
const NEAREST: usize = 32 << 10;
/// The number of tries per key, on average, before the search is given up. For keys that nobody chose, three
/// suffice.
const TRIES_PER_KEY: usize = 64;

/// Returns the number of slots for `keys` keys: enough to find pilots quickly.
fn slots_for(keys: usize) -> usize {
    keys + keys / 3 + 1
}

/// Returns the number of bits that choose a pilot, for `keys` keys.
fn pilot_bits(keys: usize) -> u32 {
    (keys / KEYS_PER_PILOT).max(2).next_power_of_two().ilog2()
}

/// Returns the bytes of a table of `keys` keys.
pub(super) fn bytes_for<K: KeyWord, I: RowId>(keys: usize) -> usize {
    slots_for(keys) * size_of::<Tuple<K, I>>() + (size_of::<u16>() << pilot_bits(keys))
}

/// Slots, each with the only key that can be there.
pub(super) struct PerfectTable<K: KeyWord, I: RowId> {
    /// An empty slot has a key that belongs to another slot.
    slots: Buffer<Tuple<K, I>>,
    pilots: Buffer<u16>,
    bits: u32,
}

/// Returns the slot, out of `slots`, that a pilot sends a key to.
#[inline(always)]
fn slot<K: KeyWord>(key: K, pilot: u16, slots: usize) -> usize {
    // A product, not a sum, so that the distance between two keys depends on the pilot. The key is changed
    // first, because otherwise every pilot would send key 0 to the first slot.
    let low = key.to_u64() as u32 ^ 0x5851_f42d;
    let fraction = low.wrapping_mul(u32::from(pilot));
    ((u64::from(fraction) * slots as u64) >> 32) as usize
}

impl<K: KeyWord, I: RowId> PerfectTable<K, I> {
    /// Creates a table of unique keys. Returns `None` if there is no memory for it, or if no pilots are
    /// found.
    pub(super) fn of(tuples: &[Tuple<K, I>], budget: &Arc<Budget>) -> Option<Self> {
        let first = *tuples.first()?;
        let bits = pilot_bits(tuples.len());
        let what = "a perfect hash table";
        let mut sorted = Buffer::uninit(tuples.len(), budget, what).ok()?;
        let starts = by_pilot(tuples, bits, &mut sorted);
        let mut slots = Buffer::uninit(slots_for(tuples.len()), budget, what).ok()?;
        let mut pilots = Buffer::zeroed(1 << bits, budget, what).ok()?;
        slots.fill(first);
        let (sorted, starts) = (&sorted[..], &starts[..]);
        let (to, numbers) = (&mut slots[..], &mut pilots[..]);
        let all = on_this_processor!(place_all(sorted, starts, to, numbers) where
            [K: KeyWord, I: RowId]
            (sorted: &[Tuple<K, I>], starts: &[usize], to: &mut [Tuple<K, I>], numbers: &mut [u16])
            -> bool);
        all.then_some(PerfectTable { slots, pilots, bits })
    }
}

/// Sorts tuples by their pilot. Returns the start of each pilot's tuples, and the end.
fn by_pilot<K: KeyWord, I: RowId>(
    tuples: &[Tuple<K, I>],
    bits: u32,
    sorted: &mut [Tuple<K, I>],
) -> Vec<usize> {
    let mut ends = vec![0; (1 << bits) + 1];
    tuples.iter().for_each(|tuple| ends[top_bits(tuple.key, bits)] += 1);
    let mut end = 0;
    for count in &mut ends {
        end += *count;
        *count = end;
    }
    // In reverse order, so that each end moves down to the start.
    for tuple in tuples.iter().rev() {
        let end = &mut ends[top_bits(tuple.key, bits)];
        *end -= 1;
        sorted[*end] = *tuple;
    }
    ends
}

/// Finds all pilots, and puts all tuples into their slots. Returns false on failure.
#[inline(always)]
fn place_all<K: KeyWord, I: RowId>(
    sorted: &[Tuple<K, I>],
    starts: &[usize],
    slots: &mut [Tuple<K, I>],
    pilots: &mut [u16],
) -> bool {
    let of = |pilot: usize| &sorted[starts[pilot]..starts[pilot + 1]];
    let most = (0..pilots.len()).map(|pilot| of(pilot).len()).max().unwrap_or(0);
    if most > MAX_KEYS_PER_PILOT {
        return false;
    }
    let mut by_length = vec![Vec::new(); most + 1];
    (0..pilots.len()).for_each(|pilot| by_length[of(pilot).len()].push(pilot));
    let mut taken = vec![0u64; words_for(slots.len())];
    let mut tries = sorted.len() * TRIES_PER_KEY;
    for &pilot in by_length[1..].iter().rev().flatten() {
        let tuples = of(pilot);
        match find_pilot(tuples, slots.len(), &mut taken, &mut tries) {
            Some(number) => pilots[pilot] = number,
            None => return false,
        }
        tuples.iter().for_each(|&tuple| slots[slot(tuple.key, pilots[pilot], slots.len())] = tuple);
    }
    true
}

/// Finds a number that sends all tuples to free slots, and marks these slots as taken.
#[inline(always)]
fn find_pilot<K: KeyWord, I: RowId>(
    tuples: &[Tuple<K, I>],
    slots: usize,
    taken: &mut [u64],
    tries: &mut usize,
) -> Option<u16> {
    // All numbers except 0, in an order that looks random.
    let numbers = (1..=u16::MAX).map(|i| i.wrapping_mul(0x9e37));
    for number in numbers {
        *tries = tries.checked_sub(1)?;
        let at = |tuple: &Tuple<K, I>| slot(tuple.key, number, slots);
        let mut placed = 0;
        for tuple in tuples {
            if bits::get(taken, at(tuple)) {
                break;
            }
            bits::set(taken, at(tuple));
            placed += 1;
        }
        if placed == tuples.len() {
            return Some(number);
        }
        tuples[..placed].iter().for_each(|tuple| bits::clear(taken, at(tuple)));
    }
    None
}

impl<K: KeyWord, I: RowId> Lookup<K, I> for PerfectTable<K, I> {
    #[inline(always)]
    fn locate(&self, key: K) -> usize {
        let pilot = top_bits(key, self.bits);
        debug_assert!(pilot < self.pilots.len());
        // SAFETY: there are 2^`bits` pilots.
        let pilot = unsafe { *self.pilots.get_unchecked(pilot) };
        slot(key, pilot, self.slots.len())
    }

    #[inline(always)]
    fn fetch(&self, start: usize) {
        prefetch(self.slots.as_ptr().wrapping_add(start));
    }

    fn far(&self) -> bool {
        size_of_val(&self.slots[..]) > NEAREST
    }

    #[inline(always)]
    fn find<const MODERN: bool, const EXPECTED: bool>(&self, key: K, at: usize) -> ProbeResult<I> {
        debug_assert!(at < self.slots.len());
        // SAFETY: `locate` returns a fraction of all slots.
        let tuple = unsafe { self.slots.get_unchecked(at) };
        ProbeResult { at, value: tuple.row, hit: tuple.key == key }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::word::Mixer;

    fn table<K: KeyWord>(keys: &[K]) -> Option<PerfectTable<K, u32>> {
        let tuples: Vec<_> = (0u32..).zip(keys).map(|(row, &key)| Tuple { key, row }).collect();
        PerfectTable::of(&tuples, &Budget::new(None))
    }

    fn find<K: KeyWord>(table: &PerfectTable<K, u32>, key: K) -> Option<u32> {
        let found = table.find::<false, false>(key, table.locate(key));
        found.hit.then_some(found.value)
    }

    fn check<K: KeyWord>(words: impl Iterator<Item = u64>) {
        let words: Vec<K> = words.map(|word| K::from_u64(word).mix(Mixer::new(5))).collect();
        // Every second one is in the table.
        let keys: Vec<K> = words.iter().copied().step_by(2).collect();
        let table = table(&keys).expect("pilots are found");
        for (i, &word) in words.iter().enumerate() {
            let row = (i % 2 == 0).then_some(i as u32 / 2);
            assert_eq!(find(&table, word), row, "{word:?} of {}", keys.len());
        }
    }

    #[test]
    fn every_key_is_found_and_no_other() {
        for keys in [1, 2, 3, 7, 8, 9, 100, 5000, 60_000] {
            check::<u64>((0..keys).map(|i| i << 20));
            check::<u64>(0..keys);
            check::<u32>(0..keys);
        }
        // No key value is reserved, and none marks an empty slot.
        check::<u64>([0, u64::MAX, 1, 1 << 63].into_iter());
        let table = table(&[5u64 << 60, 0xdead_beef]).expect("pilots are found");
        for key in [0, 1, u64::MAX, 1 << 63, 4 << 60] {
            assert_eq!(find(&table, key), None);
        }
    }

    #[test]
    fn keys_that_no_pilot_tells_apart_are_given_up() {
        // The keys differ only in bits that `slot` does not use, so no pilot separates them.
        assert!(table(&[1u64 << 40, 2 << 40, 3 << 40]).is_none());
        assert!(table(&[7u64, 7]).is_none());
        // All of them have the same pilot.
        let crowd: Vec<u64> = (0..1000).map(|i| i * 0x9e37_79b9).collect();
        assert_eq!(crowd.iter().map(|key| key >> 56).collect::<HashSet<_>>().len(), 1);
        assert!(table(&crowd).is_none());
        assert!(table::<u64>(&[]).is_none());
    }

    #[test]
    fn too_little_memory_is_no_error() {
        let tuples: Vec<_> =
            (0..1000u32).map(|row| Tuple { key: row.mix(Mixer::new(5)), row }).collect();
        let bytes = bytes_for::<u32, u32>(tuples.len()) as u64;
        let budget = Budget::new(Some(bytes));
        assert!(PerfectTable::of(&tuples, &budget).is_none());
        assert_eq!(budget.left(), bytes);
        let budget = Budget::new(Some(2 * bytes));
        assert!(PerfectTable::of(&tuples, &budget).is_some());
    }
}

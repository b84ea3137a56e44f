//! Linear probing over slots of key and entry.
//!
//! A region of `n` slots begins at the partition's own place. The bits below the partition's
//! choose the slot in it (multiplied by `n`, so that `n` need not be a power of two), and a search
//! that reaches the region's end goes on at its beginning. Half of the slots stay empty.

use crate::algorithm::Context;
use crate::error::Result;
use crate::key::KeyWord;
use crate::memory::{Buffer, Shared};
use crate::partition::{Partitions, RowId, Tuple, top_bits};
use crate::table::cpu::{
    Ask, Cursor, Pairs, ProbeKeys, count_row, group_row, place_group, prefetch, walk,
};

/// A slot is a placed key word and its entry: a tuple with the entry in the row's place.
type Slot<K, I> = Tuple<K, I>;

/// Slots of a region with so many tuples: at least one stays empty, so every search ends.
pub(crate) fn slots_for(tuples: usize) -> usize {
    if tuples == 0 { 1 } else { tuples * 2 }
}

#[derive(Debug, Clone, Copy)]
struct Region {
    first: usize,
    slots: usize,
}

/// A hash table over the whole build side, one region a partition.
pub(crate) struct HashTable<K: KeyWord, I: RowId> {
    slots: Buffer<Slot<K, I>>,
    regions: Vec<Region>,
    bits: u32,
    groups: Buffer<I>,
}

impl<K: KeyWord, I: RowId> HashTable<K, I> {
    /// Builds from partitions by the top `bits` bits, all workers at once.
    pub(crate) fn build(
        cx: &Context<'_>,
        partitions: &Partitions<K, I>,
        bits: u32,
    ) -> Result<Self> {
        let mut first = 0;
        let regions: Vec<Region> = (0..partitions.count())
            .map(|p| {
                let slots = slots_for(partitions.range(p).len());
                first += slots;
                Region { first: first - slots, slots }
            })
            .collect();
        let mut slots = Buffer::zeroed(first, &cx.budget, "the hash table")?;
        let shared: Shared<'_, Slot<K, I>> = slots.shared();
        let mut needs = vec![0usize; regions.len()];
        let shared_needs = Shared::of(&mut needs);
        let workers = cx.workers.for_rows(partitions.tuples.len());
        workers.each(regions.len(), |p, _| {
            let region = regions[p];
            // SAFETY: regions do not overlap, and each is one task's.
            let slots = unsafe { shared.range(region.first..region.first + region.slots) };
            let need = count_tuples(slots, bits, partitions.tuples(p));
            // SAFETY: each task has its own place.
            unsafe { shared_needs.write(p, need) };
            Ok(())
        })?;
        let total: usize = needs.iter().sum();
        let mut groups = Buffer::zeroed(total, &cx.budget, "rows with equal keys")?;
        if total > 0 {
            let starts = crate::table::dense::running_starts(&needs);
            let shared_groups = groups.shared();
            workers.each(regions.len(), |p, _| {
                let (region, need) = (regions[p], needs[p]);
                if need == 0 {
                    return Ok(());
                }
                // SAFETY: regions and their parts of the groups do not overlap.
                let (slots, groups) = unsafe {
                    let slots = shared.range(region.first..region.first + region.slots);
                    (slots, shared_groups.range(starts[p]..starts[p] + need))
                };
                group_tuples(slots, bits, partitions.tuples(p), groups, starts[p]);
                Ok(())
            })?;
        }
        Ok(HashTable { slots, regions, bits, groups })
    }

    /// Finds the pairs of probe keys (placed) from the cursor on.
    pub(crate) fn probe<P: ProbeKeys<K>>(
        &self,
        keys: &P,
        ask: Ask<'_>,
        cursor: &mut Cursor,
        pairs: &mut Pairs,
    ) {
        let bits = self.bits;
        let (slots, regions) = (&self.slots[..], &self.regions[..]);
        let locate = |key: K| {
            let region = regions[top_bits(key, bits)];
            let at = region.first + home(key, bits, region.slots);
            prefetch(&slots[at]);
            at
        };
        let find = |key: K, mut at: usize| {
            let mut slot = slots[at];
            if slot.row == I::default() || slot.key == key {
                return slot.row;
            }
            let region = regions[top_bits(key, bits)];
            let end = region.first + region.slots;
            loop {
                at = if at + 1 == end { region.first } else { at + 1 };
                slot = slots[at];
                if slot.row == I::default() || slot.key == key {
                    return slot.row;
                }
            }
        };
        walk(keys, &self.groups, ask, (cursor, pairs), locate, find);
    }
}

/// A hash table over one partition at a time, whose memory is used again for the next.
pub(crate) struct LocalTable<K: KeyWord, I: RowId> {
    slots: Buffer<Slot<K, I>>,
    used: usize,
    bits: u32,
    groups: Buffer<I>,
}

impl<K: KeyWord, I: RowId> LocalTable<K, I> {
    /// Room for partitions of up to `tuples` tuples by the top `bits` bits.
    pub(crate) fn with_room(cx: &Context<'_>, tuples: usize, bits: u32) -> Result<Self> {
        let slots = Buffer::zeroed(slots_for(tuples), &cx.budget, "a partition's hash table")?;
        let groups = Buffer::zeroed(0, &cx.budget, "a partition's equal keys")?;
        Ok(LocalTable { slots, used: 0, bits, groups })
    }

    /// Forgets what was there and builds from one partition.
    pub(crate) fn build(&mut self, cx: &Context<'_>, tuples: &[Tuple<K, I>]) -> Result<()> {
        self.slots[..self.used].fill(Slot::default());
        self.used = slots_for(tuples.len());
        let slots = &mut self.slots[..self.used];
        let need = count_tuples(slots, self.bits, tuples);
        if need > 0 {
            if self.groups.len() < need {
                let what = "a partition's equal keys";
                // The old one goes first, so that both are never held together.
                self.groups = Buffer::zeroed(0, &cx.budget, what)?;
                self.groups = Buffer::zeroed(need, &cx.budget, what)?;
            }
            group_tuples(slots, self.bits, tuples, &mut self.groups[..need], 0);
        }
        Ok(())
    }

    /// Finds the pairs of probe keys (placed) of the same partition from the cursor on.
    pub(crate) fn probe<P: ProbeKeys<K>>(
        &self,
        keys: &P,
        ask: Ask<'_>,
        cursor: &mut Cursor,
        pairs: &mut Pairs,
    ) {
        let slots = &self.slots[..self.used];
        let locate = |key: K| home(key, self.bits, slots.len());
        let find = |key: K, mut at: usize| loop {
            let slot = slots[at];
            if slot.row == I::default() || slot.key == key {
                return slot.row;
            }
            at = if at + 1 == slots.len() { 0 } else { at + 1 };
        };
        walk(keys, &self.groups, ask, (cursor, pairs), locate, find);
    }
}

/// Where in a region the search for a key begins: its bits below the partition's, scaled.
#[inline(always)]
fn home<K: KeyWord>(key: K, bits: u32, slots: usize) -> usize {
    // The key at the top of 64 bits, without the partition's; shifted twice for bits = 64.
    let low = key.to_u64() << (64 - K::BITS) << bits;
    ((u128::from(low) * slots as u128) >> 64) as usize
}

/// The entry of a key, made if it is new.
#[inline(always)]
fn entry<K: KeyWord, I: RowId>(slots: &mut [Slot<K, I>], bits: u32, key: K) -> &mut I {
    let mut at = home(key, bits, slots.len());
    while slots[at].row != I::default() && slots[at].key != key {
        at = if at + 1 == slots.len() { 0 } else { at + 1 };
    }
    slots[at].key = key;
    &mut slots[at].row
}

/// Enters all tuples, counting; answers how many places their groups take.
fn count_tuples<K: KeyWord, I: RowId>(
    slots: &mut [Slot<K, I>],
    bits: u32,
    tuples: &[Tuple<K, I>],
) -> usize {
    tuples.iter().map(|t| count_row(entry(slots, bits, t.key), t.row)).sum()
}

/// Gives every key with several rows its group, and fills it.
fn group_tuples<K: KeyWord, I: RowId>(
    slots: &mut [Slot<K, I>],
    bits: u32,
    tuples: &[Tuple<K, I>],
    groups: &mut [I],
    base: usize,
) {
    let mut next = 0;
    for slot in slots.iter_mut() {
        place_group(&mut slot.row, groups, base, &mut next);
    }
    for tuple in tuples {
        group_row(*entry(slots, bits, tuple.key), tuple.row, groups, base);
    }
}

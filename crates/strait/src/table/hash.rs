//! Linear probing over slots of key and entry.
//!
//! A region of `n` slots begins at the partition's own place. The bits below the partition's
//! choose the home slot in it (multiplied by `n`, so that `n` need not be a power of two). A search
//! goes through the slots of the home's cache line first, and only then to the next line, at the
//! end of the region to its first: a line costs a hundred times what a slot in it does. With lines
//! of four slots and home 6, the order is 6, 7, 4, 5, then 10, 11, 8, 9. Half of the slots stay
//! empty.

use crate::algorithm::Context;
use crate::error::Result;
use crate::key::KeyWord;
use crate::memory::{Buffer, Shared};
use crate::partition::{Partitions, RowId, Tuple, top_bits};
use crate::table::cpu::{
    Ask, Cursor, Pairs, ProbeKeys, count_row, group_row, place_group, prefetch, running_starts,
    walk,
};

/// A slot is a placed key word and its entry: a tuple with the entry in the row's place.
type Slot<K, I> = Tuple<K, I>;

/// Slots in a cache line, if they are of the smallest size. Regions begin and end with lines.
const MOST_SLOTS_A_LINE: usize = 8;

/// Slots of a region with so many tuples: whole lines, of which at least one slot stays empty, so
/// every search ends.
pub(crate) fn slots_for(tuples: usize) -> usize {
    (tuples * 2).max(1).next_multiple_of(MOST_SLOTS_A_LINE)
}

/// The slots of a search in order.
struct Search {
    /// The first slot of the line, the home's place in it, and the step in the line.
    line: usize,
    home: usize,
    step: usize,
}

impl Search {
    #[inline(always)]
    fn new<S>(at: usize) -> Self {
        let mask = const { slots_a_line::<S>() } - 1;
        Search { line: at & !mask, home: at & mask, step: 0 }
    }

    /// The slot after the current one, in a region `first..end`.
    #[inline(always)]
    fn next<S>(&mut self, first: usize, end: usize) -> usize {
        let slots = const { slots_a_line::<S>() };
        self.step += 1;
        if self.step == slots {
            self.step = 0;
            self.line = if self.line + slots >= end { first } else { self.line + slots };
        }
        self.line + (self.home ^ self.step)
    }
}

const fn slots_a_line<S>() -> usize {
    64 / size_of::<S>()
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
        let mut slots = Buffer::stale(first, &cx.budget, "the hash table")?;
        let shared: Shared<'_, Slot<K, I>> = slots.shared();
        let mut needs = vec![0usize; regions.len()];
        let shared_needs = Shared::of(&mut needs);
        let workers = cx.workers.for_rows(partitions.tuples.len());
        workers.each(regions.len(), |p, _| {
            let region = regions[p];
            // SAFETY: regions do not overlap, and each is one task's.
            let slots = unsafe { shared.range(region.first..region.first + region.slots) };
            slots.fill(Slot::default());
            let need = count_tuples(slots, bits, partitions.tuples(p));
            // SAFETY: each task has its own place.
            unsafe { shared_needs.write(p, need) };
            Ok(())
        })?;
        let total: usize = needs.iter().sum();
        let mut groups = Buffer::stale(total, &cx.budget, "rows with equal keys")?;
        if total > 0 {
            let starts = running_starts(&needs);
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
        let find = |key: K, at: usize| {
            let mut slot = slots[at];
            if slot.row == I::default() || slot.key == key {
                return slot.row;
            }
            let region = regions[top_bits(key, bits)];
            let mut search = Search::new::<Slot<K, I>>(at);
            loop {
                slot = slots[search.next::<Slot<K, I>>(region.first, region.first + region.slots)];
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
        let find = |key: K, mut at: usize| {
            let mut search = Search::new::<Slot<K, I>>(at);
            loop {
                let slot = slots[at];
                if slot.row == I::default() || slot.key == key {
                    return slot.row;
                }
                at = search.next::<Slot<K, I>>(0, slots.len());
            }
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
    let mut search = Search::new::<Slot<K, I>>(at);
    while slots[at].row != I::default() && slots[at].key != key {
        at = search.next::<Slot<K, I>>(0, slots.len());
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

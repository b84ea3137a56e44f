//! Fills tables region by region. The code is the same for hash tables, dense tables and sorted tables.
//!
//! ```text
//!  enter: write each tuple's value to its key's slot; if a key repeats, go on with the next step
//!  count: start again; the slot of each key counts its tuples
//!  place: each key with many tuples gets a part of `groups`, and that position as its value
//!  group: write each tuple of such a key to its group, and the other tuples to their key's slot
//! ```
//!
//! Most build sides have unique keys, and finish after the first step. If keys repeat, the first step usually
//! finds that early. If all keys are unique, or all repeat, the branches are predictable.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Shared};
use crate::partition::{RowId, Tuple};
use crate::processor::on_this_processor;
use crate::table::bits;
use crate::word::KeyWord;

/// The slots of one region: slots of hash buckets, dense cells, or slots of sorted keys.
pub(super) trait Region<K, I> {
    /// Makes all slots empty.
    fn clear(&mut self);
    /// Returns the number of slots.
    fn places(&self) -> usize;
    /// Returns a bit mask of the slots that are taken, among the 64 slots of word `word`.
    fn taken(&self, word: usize) -> u64;
    /// Returns the slot of a key, and whether the key already had one. A new key takes a free slot, and may
    /// move other keys of its bucket. There must be a free slot, or the key must have one. MODERN may be true
    /// only if `processor::modern()` is.
    fn enter<const MODERN: bool>(&mut self, key: K) -> (usize, bool);
    /// Returns the value of a slot.
    fn value(&mut self, at: usize) -> &mut I;
    /// Returns whether a search exceeded the region's limit. After that, the slots that `enter` returned are
    /// not reliable.
    fn lost(&self) -> bool {
        false
    }
}

/// The result of entering a region's tuples.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Entered {
    /// All keys are unique.
    Unique,
    /// Some keys repeat. Their groups need this many positions.
    Many(usize),
    /// There are as many keys as slots. One slot must stay free, so the region is too small.
    Full,
    /// A search exceeded the region's limit.
    Lost,
}

/// Enters all tuples.
pub(super) fn enter<K: KeyWord, I: RowId>(
    region: &mut impl Region<K, I>,
    many: &mut [u64],
    tuples: &[Tuple<K, I>],
) -> Entered {
    #[cfg(vectors)]
    {
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
        fn modern<K: KeyWord, I: RowId>(
            region: &mut impl Region<K, I>,
            many: &mut [u64],
            tuples: &[Tuple<K, I>],
        ) -> Entered {
            enter_each::<true, _, _>(region, many, tuples)
        }
        if crate::processor::modern() {
            // SAFETY: checked in the condition.
            return unsafe { modern(region, many, tuples) };
        }
    }
    enter_each::<false, _, _>(region, many, tuples)
}

#[inline(always)]
fn enter_each<const MODERN: bool, K: KeyWord, I: RowId>(
    region: &mut impl Region<K, I>,
    many: &mut [u64],
    tuples: &[Tuple<K, I>],
) -> Entered {
    many.fill(0);
    region.clear();
    let places = region.places();
    let mut taken = 0;
    for tuple in tuples {
        let (at, known) = region.enter::<MODERN>(tuple.key);
        if known {
            return count::<MODERN, _, _>(region, many, tuples);
        }
        *region.value(at) = tuple.row;
        taken += 1;
        if taken == places {
            return Entered::Full;
        }
    }
    Entered::Unique
}

/// Counts the tuples of each key.
#[inline(always)]
fn count<const MODERN: bool, K: KeyWord, I: RowId>(
    region: &mut impl Region<K, I>,
    many: &mut [u64],
    tuples: &[Tuple<K, I>],
) -> Entered {
    // A search that exceeds the limit reports its key as known, which leads here.
    if region.lost() {
        return Entered::Lost;
    }
    region.clear();
    let places = region.places();
    let mut keys = 0;
    for tuple in tuples {
        let (at, known) = region.enter::<MODERN>(tuple.key);
        let value = region.value(at);
        *value = I::from_u64(if known { value.to_u64() + 1 } else { 1 });
        keys += usize::from(!known);
        if keys == places {
            return Entered::Full;
        }
    }
    if region.lost() {
        return Entered::Lost;
    }
    let mut singles = 0;
    for (i, word) in many.iter_mut().enumerate() {
        let mut left = region.taken(i);
        while left != 0 {
            let bit = left.trailing_zeros() as usize;
            left &= left - 1;
            let single = *region.value(i * 64 + bit) == I::from_u64(1);
            *word |= u64::from(!single) << bit;
            singles += usize::from(single);
        }
    }
    // One position per tuple of a repeated key, and one per group for its length.
    Entered::Many(tuples.len() - singles + keys - singles)
}

/// Gives each key with many tuples its group, and fills groups and slots. `groups` starts at position `base`
/// of all groups.
pub(super) fn group<K: KeyWord, I: RowId>(
    region: &mut impl Region<K, I>,
    many: &[u64],
    tuples: &[Tuple<K, I>],
    (groups, base): (&mut [I], usize),
) {
    #[inline(always)]
    fn each<K: KeyWord, I: RowId, R: Region<K, I>>(
        region: &mut R,
        many: &[u64],
        tuples: &[Tuple<K, I>],
        groups: (&mut [I], usize),
    ) {
        let (groups, base) = groups;
        // While the groups are filled, the slots of such keys hold the position of the next value.
        let mut next = 0;
        for at in bits::ones(many) {
            let value = region.value(at);
            let count = value.to_usize();
            *value = I::from_usize(base + next + 1);
            groups[next] = I::from_usize(count);
            next += count + 1;
        }
        for tuple in tuples {
            let (at, _) = region.enter::<false>(tuple.key);
            let value = region.value(at);
            if bits::get(many, at) {
                let to = value.to_usize();
                groups[to - base] = tuple.row;
                *value = I::from_usize(to + 1);
            } else {
                *value = tuple.row;
            }
        }
        let mut next = 0;
        for at in bits::ones(many) {
            *region.value(at) = I::from_usize(base + next);
            next += groups[next].to_usize() + 1;
        }
    }
    let groups = (groups, base);
    on_this_processor!(each(region, many, tuples, groups) where
        [K: KeyWord, I: RowId, R: Region<K, I>]
        (region: &mut R, many: &[u64], tuples: &[Tuple<K, I>], groups: (&mut [I], usize)))
}

/// Fills all regions from their tuples, on all workers. Returns the groups; `None` if a region has too few
/// slots. Fails with [`Error::BadSeed`] if a search exceeded its limit. `region(p)` returns region `p` and
/// the range of its words in `many`.
pub(super) fn fill_all<'t, K: KeyWord, I: RowId, R: Region<K, I>>(
    cx: &Context<'_>,
    (regions, tuples): (usize, impl Fn(usize) -> &'t [Tuple<K, I>] + Sync),
    many: Shared<'_, u64>,
    region: impl Fn(usize) -> (R, Range<usize>) + Sync,
) -> Result<Option<Buffer<I>>> {
    let mut needs = vec![0usize; regions];
    let shared_needs = Shared::of(&mut needs);
    let (full, lost) = (AtomicBool::new(false), AtomicBool::new(false));
    let rows = (0..regions).map(|p| tuples(p).len()).sum();
    let workers = cx.workers.for_rows(rows);
    workers.each(regions, |p, _| {
        if full.load(Ordering::Relaxed) || lost.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (mut region, words) = region(p);
        // SAFETY: regions do not overlap, and each is one task.
        let many = unsafe { many.range(words) };
        match enter(&mut region, many, tuples(p)) {
            Entered::Unique => {}
            // SAFETY: each task has its own element.
            Entered::Many(need) => unsafe { shared_needs.write(p, need) },
            Entered::Full => full.store(true, Ordering::Relaxed),
            // It is not an error of this worker, because that would end the join.
            Entered::Lost => lost.store(true, Ordering::Relaxed),
        }
        Ok(())
    })?;
    if lost.into_inner() {
        return Err(Error::BadSeed);
    }
    if full.into_inner() {
        return Ok(None);
    }
    let total: usize = needs.iter().sum();
    let mut groups = Buffer::uninit(total, &cx.budget, "rows with equal keys")?;
    if total > 0 {
        let mut at = 0;
        let starts: Vec<usize> = needs.iter().map(|need| (at, at += need).0).collect();
        let shared_groups = groups.shared();
        workers.each(regions, |p, _| {
            if needs[p] > 0 {
                let (mut region, words) = region(p);
                let range = starts[p]..starts[p] + needs[p];
                // SAFETY: regions and their parts of the groups do not overlap.
                let (many, groups) = unsafe { (many.range(words), shared_groups.range(range)) };
                group(&mut region, many, tuples(p), (groups, starts[p]));
            }
            Ok(())
        })?;
    }
    Ok(Some(groups))
}

//! Filling a table, region by region: what hash slots and dense cells have in common.
//!
//! ```text
//!  enter: every tuple's value in its key's place, until a key comes again: then from the start
//!  count: the value of a key is the number of its tuples
//!  place: every key with many gets its part of `groups`, and that position as its value
//!  group: every tuple of such a key goes there, the others in their key's place
//! ```
//!
//! Most build sides have unique keys, and are done after the first step. Those that have not show
//! it soon. No step has a branch that depends on the keys where they are all alike in that.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::memory::{Buffer, Shared};
use crate::partition::{RowId, Tuple};
use crate::processor::on_this_processor;
use crate::table::bits;
use crate::word::KeyWord;

/// The places of one region: slots that keys are sought in, or a cell a possible key.
pub(super) trait Region<K, I> {
    /// Makes all places empty.
    fn clear(&mut self);
    /// How many there are.
    fn places(&self) -> usize;
    /// Which of 64 places are taken, as bits.
    fn taken(&self, word: usize) -> u64;
    /// The place of a key, taken if it had none, and whether it had one. There is a free place, or
    /// the key has one. A key that is new may move others. MODERN only where the processor is.
    fn enter<const MODERN: bool>(&mut self, key: K) -> (usize, bool);
    /// What the place holds.
    fn value(&mut self, at: usize) -> &mut I;
    /// Whether a search passed the region's bound. From then on places of keys are not to be believed.
    fn lost(&self) -> bool {
        false
    }
}

/// What came of entering a region's tuples.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Entered {
    /// All keys are unique.
    Unique,
    /// Some come more than once: their groups take so many places.
    Many(usize),
    /// There are as many keys as places, of which one has to stay free.
    Full,
    /// A search passed the region's bound.
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
            // SAFETY: just asked.
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
    // A search that passed the bound says that its key is known, which has led here.
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
    // A place for each of their tuples, and one for each length.
    Entered::Many(tuples.len() - singles + keys - singles)
}

/// Gives every key with many tuples its group, and fills groups and places. `groups` begins at
/// position `base` of all groups.
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
        // While they are filled, the places of such keys say where the next of their rows goes.
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

/// Fills regions from the tuples of each, all workers at once; answers the groups, or None if a
/// region has too few places. Fails with [`Error::BadSeed`] if a search passed its bound. `region(p)` is one of them and the range of its words in `many`.
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
        // SAFETY: regions do not overlap, and each is one task's.
        let many = unsafe { many.range(words) };
        match enter(&mut region, many, tuples(p)) {
            Entered::Unique => {}
            // SAFETY: each task has its own place.
            Entered::Many(need) => unsafe { shared_needs.write(p, need) },
            Entered::Full => full.store(true, Ordering::Relaxed),
            // No error of this worker, which would end the join.
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

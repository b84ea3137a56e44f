//! Filling a table, region by region: what hash slots and dense cells have in common.
//!
//! ```text
//!  enter: every tuple; a key's second one makes it "many", from then on its value counts
//!  place: every key with many gets its part of `groups`, and that position as its value
//!  group: every tuple of such a key goes there
//! ```
//!
//! Most build sides have unique keys, and are done after the first step.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::algorithm::Context;
use crate::error::Result;
use crate::key::KeyWord;
use crate::memory::{Buffer, Shared};
use crate::partition::{RowId, Tuple};
use crate::table::bits;

/// The places of one region: slots that keys are sought in, or a cell a possible key.
pub(super) trait Region<K, I> {
    /// Makes all places empty.
    fn clear(&mut self);
    /// How many there are.
    fn places(&self) -> usize;
    /// The place of a key, taken if it had none, and whether it had one. There is a free place, or
    /// the key has one. MODERN only where the processor is.
    fn enter<const MODERN: bool>(&mut self, key: K) -> (usize, bool);
    /// What the place holds.
    fn value(&mut self, at: usize) -> &mut I;
}

/// Enters all tuples. Answers how many places in `groups` those take whose key came before; None if
/// there are as many keys as places, since one has to stay free.
pub(super) fn enter<K: KeyWord, I: RowId>(
    region: &mut impl Region<K, I>,
    many: &mut [u64],
    tuples: &[Tuple<K, I>],
) -> Option<usize> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
        fn modern<K: KeyWord, I: RowId>(
            region: &mut impl Region<K, I>,
            many: &mut [u64],
            tuples: &[Tuple<K, I>],
        ) -> Option<usize> {
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
) -> Option<usize> {
    region.clear();
    many.fill(0);
    let (mut need, mut free) = (0, region.places());
    for tuple in tuples {
        let (at, known) = region.enter::<MODERN>(tuple.key);
        let value = region.value(at);
        if !known {
            *value = tuple.row;
            free -= 1;
            if free == 0 {
                return None;
            }
        } else if !bits::get(many, at) {
            bits::set(many, at);
            *value = I::from_u64(2);
            need += 3;
        } else {
            *value = I::from_u64(value.to_u64() + 1);
            need += 1;
        }
    }
    Some(need)
}

/// Gives every key with many tuples its group, and fills it. `groups` begins at position `base` of
/// all groups.
pub(super) fn group<K: KeyWord, I: RowId>(
    region: &mut impl Region<K, I>,
    many: &[u64],
    tuples: &[Tuple<K, I>],
    groups: &mut [I],
    base: usize,
) {
    let mut next = 0;
    for at in bits::ones(many) {
        let value = region.value(at);
        let count = value.to_usize();
        *value = I::from_usize(base + next);
        groups[next] = I::default();
        next += count + 1;
    }
    for tuple in tuples {
        let (at, _) = region.enter::<false>(tuple.key);
        if bits::get(many, at) {
            let at = region.value(at).to_usize() - base;
            let len = groups[at].to_usize();
            groups[at + 1 + len] = tuple.row;
            groups[at] = I::from_usize(len + 1);
        }
    }
}

/// Fills regions from the tuples of each, all workers at once; answers the groups, or None if a
/// region has too few places. `region(p)` is one of them and the range of its words in `many`.
pub(super) fn fill_all<'t, K: KeyWord, I: RowId, R: Region<K, I>>(
    cx: &Context<'_>,
    (regions, tuples): (usize, impl Fn(usize) -> &'t [Tuple<K, I>] + Sync),
    many: Shared<'_, u64>,
    region: impl Fn(usize) -> (R, Range<usize>) + Sync,
) -> Result<Option<Buffer<I>>> {
    let mut needs = vec![0usize; regions];
    let shared_needs = Shared::of(&mut needs);
    let full = AtomicBool::new(false);
    let rows = (0..regions).map(|p| tuples(p).len()).sum();
    let workers = cx.workers.for_rows(rows);
    workers.each(regions, |p, _| {
        if full.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (mut region, words) = region(p);
        // SAFETY: regions do not overlap, and each is one task's.
        let many = unsafe { many.range(words) };
        match enter(&mut region, many, tuples(p)) {
            // SAFETY: each task has its own place.
            Some(need) => unsafe { shared_needs.write(p, need) },
            None => full.store(true, Ordering::Relaxed),
        }
        Ok(())
    })?;
    if full.into_inner() {
        return Ok(None);
    }
    let total: usize = needs.iter().sum();
    let mut groups = Buffer::stale(total, &cx.budget, "rows with equal keys")?;
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
                group(&mut region, many, tuples(p), groups, starts[p]);
            }
            Ok(())
        })?;
    }
    Ok(Some(groups))
}

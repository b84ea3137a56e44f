//! Probing: looks up batches of probe keys in a table.

use crate::options::Yields;
use crate::partition::RowId;
use crate::processor::prefetch;
use crate::table::Flags;
use crate::table::bits;
use crate::table::pairs::{Pairs, Writer};
use crate::table::probe_keys::ProbeKeys;
use crate::word::KeyWord;

/// What a probe has to find.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) yields: Yields,
    /// Only for [`Yields::Exists`]. With flags, the probe flags the build rows that match, and finds no pairs.
    /// Without flags, it finds one pair per probe row that has a match.
    pub(crate) flags: Option<&'a Flags>,
    /// The largest number of pairs at a time.
    pub(crate) cap: usize,
}

/// The position of a probe in its keys.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    /// The next probe key.
    pub(crate) next: usize,
    /// How many values of its group have been paired already.
    within: usize,
}

impl Cursor {
    /// Returns whether all keys have been looked up.
    pub(crate) fn ended<K>(&self, keys: &impl ProbeKeys<K>) -> bool {
        self.next >= keys.len()
    }
}

/// The groups of keys that have many values.
pub(super) struct Groups<'t, I> {
    /// One bit per slot of the table.
    pub(super) many: &'t [u64],
    pub(super) values: &'t [I],
}

impl<'t, I: RowId> Groups<'t, I> {
    /// Returns the values of the slot `at`, which holds `value`; `None` if that is its only value.
    #[inline(always)]
    fn of(&self, at: usize, value: I) -> Option<&'t [I]> {
        if !bits::get(self.many, at) {
            return None;
        }
        let at = value.to_usize();
        let len = self.values[at].to_usize();
        Some(&self.values[at + 1..at + 1 + len])
    }
}

/// The result of a search: whether the key exists, its slot, and the slot's value.
#[derive(Clone, Copy)]
pub(super) struct ProbeResult<I> {
    pub(super) at: usize,
    pub(super) value: I,
    pub(super) hit: bool,
}

/// A table, or a region of one, that keys are looked up in.
pub(super) trait Lookup<K, I> {
    /// Returns whether the table is so large that prefetching pays off.
    fn far(&self) -> bool;
    /// Returns where the search for a key starts.
    fn locate(&self, key: K) -> usize;
    /// Prefetches that position.
    fn fetch(&self, start: usize);
    /// Searches from there. MODERN may be true only if `processor::modern()` is. EXPECTED is for keys that
    /// probably exist.
    fn find<const MODERN: bool, const EXPECTED: bool>(
        &self,
        key: K,
        start: usize,
    ) -> ProbeResult<I>;
}

/// A table up to this size stays in the second-level cache of most processors. Then the loads of consecutive
/// searches overlap without prefetching.
pub(super) const NEAR: usize = 1 << 20;

/// The number of probe keys whose table lines are prefetched before the first of them is searched.
pub(super) const AHEAD: usize = 32;

/// Looks up the probe keys from the cursor on, until `pairs` holds `ask.cap` pairs or the keys end.
pub(super) fn probe_batch<K: KeyWord, I: RowId, B: RowId, P: ProbeKeys<K>>(
    keys: &P,
    table: &impl Lookup<K, I>,
    groups: Groups<'_, I>,
    ask: Ask<'_>,
    (cursor, pairs): (&mut Cursor, &mut Pairs<B>),
) {
    #[cfg(vectors)]
    {
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
        fn modern<K: KeyWord, I: RowId, B: RowId, P: ProbeKeys<K>>(
            keys: &P,
            table: &impl Lookup<K, I>,
            groups: Groups<'_, I>,
            ask: Ask<'_>,
            found: (&mut Cursor, &mut Pairs<B>),
        ) {
            probe_batch_on::<true, _, _, _, _>(keys, table, groups, ask, found);
        }
        if crate::processor::modern() {
            // SAFETY: checked in the condition.
            return unsafe { modern(keys, table, groups, ask, (cursor, pairs)) };
        }
    }
    probe_batch_on::<false, _, _, _, _>(keys, table, groups, ask, (cursor, pairs))
}

#[inline(always)]
fn probe_batch_on<const MODERN: bool, K: KeyWord, I: RowId, B: RowId, P: ProbeKeys<K>>(
    keys: &P,
    table: &impl Lookup<K, I>,
    groups: Groups<'_, I>,
    ask: Ask<'_>,
    (cursor, pairs): (&mut Cursor, &mut Pairs<B>),
) {
    let before = pairs.len();
    let unique = groups.values.is_empty();
    // The match on what is asked is outside the loops.
    match (ask.yields, ask.flags) {
        (Yields::Count, _) if unique => {
            pairs.counted += keys_found::<MODERN, _, _, _>(keys, cursor, table);
        }
        (Yields::Count, _) => {
            let mut counted = 0;
            each_found::<MODERN, _, _, _>(keys, cursor, table, &groups, |_, _, found| {
                counted += groups.of(found.at, found.value).map_or(1, <[I]>::len) as u64;
                true
            });
            pairs.counted += counted;
        }
        (Yields::Exists, Some(flags)) => {
            each_found::<MODERN, _, _, _>(keys, cursor, table, &groups, |_, _, found| {
                let many = if unique { None } else { groups.of(found.at, found.value) };
                match many {
                    None => flags.set(found.value.to_u64()),
                    // A group is flagged as a whole, so its first row tells whether all are flagged.
                    Some(rows) if flags.get(rows[0].to_u64()) => {}
                    Some(rows) => rows.iter().for_each(|row| flags.set(row.to_u64())),
                }
                true
            })
        }
        (Yields::Pairs | Yields::Exists, _) if unique => {
            let next = keys.in_order().then(|| keys.row(cursor.next));
            let mut out = Writer::new(pairs, ask.cap, next);
            each_one::<MODERN, _, _, _, _>(keys, cursor, table, &mut out);
        }
        (Yields::Exists, None) => {
            let mut out = Writer::new(pairs, ask.cap, None);
            each_found::<MODERN, _, _, _>(keys, cursor, table, &groups, |_, index, found| {
                let rows = groups.of(found.at, found.value);
                out.push(rows.map_or(found.value, |rows| rows[0]), keys.row(index));
                out.room() > 0
            });
        }
        (Yields::Pairs, _) => {
            let mut out = Writer::new(pairs, ask.cap, None);
            each_found::<MODERN, _, _, _>(keys, cursor, table, &groups, |within, index, found| {
                let probe = keys.row(index);
                let Some(rows) = groups.of(found.at, found.value) else {
                    out.push(found.value, probe);
                    return out.room() > 0;
                };
                let left = &rows[*within..];
                let taken = left.len().min(out.room());
                left[..taken].iter().for_each(|&row| out.push(row, probe));
                *within = if taken < left.len() { *within + taken } else { 0 };
                out.room() > 0
            });
        }
    }
    if pairs.run.is_none() {
        keys.to_rows(pairs.probe.get_mut(before..).unwrap_or_default());
    }
}

/// Computes where the searches of the first keys in `items` start, and prefetches these positions.
#[inline(always)]
fn look_ahead<K: KeyWord, I, P: ProbeKeys<K>>(
    items: &[P::Item],
    starts: &mut [usize; AHEAD],
    table: &impl Lookup<K, I>,
) {
    for (start, item) in starts.iter_mut().zip(items) {
        *start = table.locate(P::key(item));
        table.fetch(*start);
    }
}

/// Counts the keys that exist in a table of unique keys. Only the sum depends on the result of a search. So
/// later searches continue while one waits for memory.
#[inline(always)]
fn keys_found<const MODERN: bool, K: KeyWord, I: RowId, P: ProbeKeys<K>>(
    keys: &P,
    cursor: &mut Cursor,
    table: &impl Lookup<K, I>,
) -> u64 {
    let mut starts = [0usize; AHEAD];
    let mut found = 0;
    for items in keys.items()[cursor.next..].chunks(AHEAD) {
        look_ahead::<K, I, P>(items, &mut starts, table);
        for (item, &start) in items.iter().zip(&starts) {
            found += u64::from(table.find::<MODERN, false>(P::key(item), start).hit);
        }
    }
    cursor.next = keys.len();
    found
}

/// Pairs keys with a table of unique keys. For each block, it first writes the values as if all keys existed,
/// and then the rows of those that do. So no branch depends on single keys, only on whether all keys of a
/// block exist.
#[inline(always)]
fn each_one<const MODERN: bool, K: KeyWord, I: RowId, B: RowId, P: ProbeKeys<K>>(
    keys: &P,
    cursor: &mut Cursor,
    table: &impl Lookup<K, I>,
    out: &mut Writer<'_, B>,
) {
    let far = table.far();
    let all = keys.items();
    // One block is prefetched while the previous one is searched.
    let mut starts = [[0usize; AHEAD]; 2];
    let mut turn = 0;
    if far {
        look_ahead::<K, I, P>(&all[cursor.next..], &mut starts[turn], table);
    }
    // If all keys of a block exist, those of the next block probably do.
    let mut expected = true;
    while cursor.next < all.len() && out.room() > 0 {
        let ahead = AHEAD.min(all.len() - cursor.next).min(out.room());
        let (items, rest) = all[cursor.next..].split_at(ahead);
        // SAFETY: there is room for `ahead` values.
        let values = unsafe { out.spare(ahead) };
        let every = u64::MAX >> (u64::BITS as usize - ahead);
        let mut hits = every;
        if far {
            look_ahead::<K, I, P>(rest, &mut starts[1 - turn], table);
            let block = items.iter().zip(values).zip(&starts[turn]).enumerate();
            if expected {
                for (i, ((item, value), &start)) in block {
                    let found = table.find::<MODERN, true>(P::key(item), start);
                    value.write(B::from_u64(found.value.to_u64()));
                    if !found.hit {
                        hits &= !(1 << i);
                    }
                }
            } else {
                hits = 0;
                for (i, ((item, value), &start)) in block {
                    let found = table.find::<MODERN, false>(P::key(item), start);
                    value.write(B::from_u64(found.value.to_u64()));
                    hits |= u64::from(found.hit) << i;
                }
            }
            turn = 1 - turn;
        } else {
            hits = 0;
            for (i, (item, value)) in items.iter().zip(values).enumerate() {
                let key = P::key(item);
                let found = table.find::<MODERN, false>(key, table.locate(key));
                value.write(B::from_u64(found.value.to_u64()));
                hits |= u64::from(found.hit) << i;
            }
        }
        expected = hits == every;
        let row = |i: usize| keys.row(cursor.next + i);
        // SAFETY: `ahead` values were written.
        unsafe { out.keep(ahead, hits, row) };
        cursor.next += ahead;
    }
}

/// Calls `on_found(done, index, found)` for every key that exists, until it returns false. `done` is the number of
/// values of the group that were paired before. `on_found` updates it, and sets it to 0 at the end of the group. A key
/// whose group is not finished is passed to the next call again. Groups are prefetched, too.
#[inline(always)]
fn each_found<const MODERN: bool, K: KeyWord, I: RowId, P: ProbeKeys<K>>(
    keys: &P,
    cursor: &mut Cursor,
    table: &impl Lookup<K, I>,
    groups: &Groups<'_, I>,
    mut on_found: impl FnMut(&mut usize, usize, ProbeResult<I>) -> bool,
) {
    let mut starts = [0usize; AHEAD];
    let mut block = [ProbeResult { at: 0, value: I::default(), hit: false }; AHEAD];
    while cursor.next < keys.len() {
        let first = cursor.next;
        let ahead = AHEAD.min(keys.len() - first);
        let items = &keys.items()[first..first + ahead];
        look_ahead::<K, I, P>(items, &mut starts, table);
        for ((item, &start), found) in items.iter().zip(&starts).zip(&mut block) {
            *found = table.find::<MODERN, false>(P::key(item), start);
            // The value may be the position of a group. These two lines are its start, and probably its end.
            // A prefetch of a wrong address does no harm.
            let group = groups.values.as_ptr().wrapping_add(found.value.to_usize());
            prefetch(group);
            prefetch(group.wrapping_add(4));
        }
        for (i, &found) in block[..ahead].iter().enumerate() {
            let index = first + i;
            if found.hit {
                let go_on = on_found(&mut cursor.within, index, found);
                cursor.next = index + usize::from(cursor.within == 0);
                if !go_on {
                    return;
                }
            }
        }
        cursor.next = first + ahead;
    }
}

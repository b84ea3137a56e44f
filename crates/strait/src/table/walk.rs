//! Walking probe keys through a table.

use std::mem::MaybeUninit;

use crate::key::KeyWord;
use crate::matches::Flags;
use crate::partition::{RowId, Tuple};
use crate::processor::prefetch;
use crate::table::bits;

/// Candidate pairs: what the build side's tuple has (the id of its row, or what was carried of it)
/// and the probe row, side by side.
pub(crate) struct Pairs<B> {
    pub(crate) build: Vec<B>,
    pub(crate) probe: Vec<u64>,
    /// Pairs that were only counted.
    pub(crate) counted: u64,
    /// The probe rows follow one another without a gap.
    pub(crate) run: bool,
}

impl<B> Default for Pairs<B> {
    fn default() -> Self {
        Pairs { build: Vec::new(), probe: Vec::new(), counted: 0, run: false }
    }
}

impl<B> Pairs<B> {
    pub(crate) fn clear(&mut self) {
        self.build.clear();
        self.probe.clear();
        self.run = false;
    }

    pub(crate) fn len(&self) -> usize {
        self.build.len()
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, build: B, probe: u64) {
        self.build.push(build);
        self.probe.push(probe);
    }
}

/// What a probe has to find.
#[derive(Clone, Copy)]
pub(crate) enum Want<'a> {
    /// Every pair.
    All,
    /// One pair a probe row that has any: which rows of the probe side match?
    First,
    /// No pairs, but the flags of the build rows: which of them match?
    Flag(&'a Flags),
    /// No pairs, but their number.
    Count,
}

/// What a probe has to find, and how many pairs at a time.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) want: Want<'a>,
    pub(crate) cap: usize,
}

/// How far a walk over probe keys has come.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    /// The next probe key.
    pub(crate) next: usize,
    /// How many rows of its group have been paired already.
    within: usize,
}

impl Cursor {
    /// Whether all keys have been walked.
    pub(crate) fn ended<K>(&self, keys: &impl ProbeKeys<K>) -> bool {
        self.next >= keys.len()
    }
}

/// The keys of some probe rows.
pub(crate) trait ProbeKeys<K> {
    /// What a key comes in.
    type Item;
    /// All of them.
    fn items(&self) -> &[Self::Item];
    fn key(item: &Self::Item) -> K;
    /// The row of a key, or what [`to_rows`](ProbeKeys::to_rows) makes the row of.
    fn row(&self, index: usize) -> u64;
    /// Makes rows of what [`row`](ProbeKeys::row) answered.
    fn to_rows(&self, rows: &mut [u64]);
    /// Whether row ids follow one another as the keys do.
    fn in_order(&self) -> bool;
    fn len(&self) -> usize {
        self.items().len()
    }
}

impl<K: KeyWord, I: RowId> ProbeKeys<K> for &[Tuple<K, I>] {
    type Item = Tuple<K, I>;
    #[inline(always)]
    fn items(&self) -> &[Tuple<K, I>] {
        self
    }
    #[inline(always)]
    fn key(item: &Tuple<K, I>) -> K {
        item.key
    }
    #[inline(always)]
    fn row(&self, index: usize) -> u64 {
        self[index].row.to_u64()
    }
    fn to_rows(&self, _: &mut [u64]) {}
    fn in_order(&self) -> bool {
        false
    }
}

/// The words of some rows of a morsel that may match.
pub(crate) struct MorselKeys<'a, K> {
    pub(crate) words: &'a [K],
    /// The row of each word, where not all rows may match.
    pub(crate) rows: Option<&'a [u32]>,
    /// The row of the morsel that these begin with.
    pub(crate) first: usize,
}

impl<K: KeyWord> ProbeKeys<K> for MorselKeys<'_, K> {
    type Item = K;
    #[inline(always)]
    fn items(&self) -> &[K] {
        self.words
    }
    #[inline(always)]
    fn key(item: &K) -> K {
        *item
    }
    #[inline(always)]
    fn row(&self, index: usize) -> u64 {
        (self.first + index) as u64
    }
    fn to_rows(&self, numbered: &mut [u64]) {
        if let Some(rows) = self.rows {
            let first = self.first as u64;
            let row = |number: u64| first + u64::from(rows[(number - first) as usize]);
            numbered.iter_mut().for_each(|number| *number = row(*number));
        }
    }
    fn in_order(&self) -> bool {
        self.rows.is_none()
    }
}

/// The keys that have many values, and those.
pub(super) struct Groups<'t, I> {
    /// A bit a place of the table.
    pub(super) many: &'t [u64],
    pub(super) values: &'t [I],
}

impl<'t, I: RowId> Groups<'t, I> {
    /// The values of the place `at`, which holds `value`; None if it has just that one.
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

/// What a table has for a key: its place and what that holds, if there is one.
#[derive(Clone, Copy)]
pub(super) struct Found<I> {
    pub(super) at: usize,
    pub(super) value: I,
    pub(super) hit: bool,
}

/// A table, or a region of one, that keys are sought in.
pub(super) trait Lookup<K, I> {
    /// Whether the table is so large that memory is better asked for ahead.
    fn far(&self) -> bool;
    /// Where the search for a key begins.
    fn locate(&self, key: K) -> usize;
    /// Asks for the memory of that place.
    fn fetch(&self, start: usize);
    /// Searches from there. MODERN only where the processor is.
    fn find<const MODERN: bool>(&self, key: K, start: usize) -> Found<I>;
}

/// A table up to this size is near: it stays in the second-level cache of most processors, and the
/// loads of one search overlap with those of the next by themselves.
pub(super) const NEAR: usize = 1 << 20;

/// Probe keys whose table lines are fetched together before the first is read.
const AHEAD: usize = 32;

/// Walks the probe keys from the cursor on, until `pairs` holds as many as asked for or the keys
/// end.
pub(super) fn walk<K: KeyWord, I: RowId, B: RowId, P: ProbeKeys<K>>(
    keys: &P,
    table: &impl Lookup<K, I>,
    groups: Groups<'_, I>,
    ask: Ask<'_>,
    (cursor, pairs): (&mut Cursor, &mut Pairs<B>),
) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
        fn modern<K: KeyWord, I: RowId, B: RowId, P: ProbeKeys<K>>(
            keys: &P,
            table: &impl Lookup<K, I>,
            groups: Groups<'_, I>,
            ask: Ask<'_>,
            found: (&mut Cursor, &mut Pairs<B>),
        ) {
            walk_on::<true, _, _, _, _>(keys, table, groups, ask, found);
        }
        if crate::processor::modern() {
            // SAFETY: just asked.
            return unsafe { modern(keys, table, groups, ask, (cursor, pairs)) };
        }
    }
    walk_on::<false, _, _, _, _>(keys, table, groups, ask, (cursor, pairs))
}

#[inline(always)]
fn walk_on<const MODERN: bool, K: KeyWord, I: RowId, B: RowId, P: ProbeKeys<K>>(
    keys: &P,
    table: &impl Lookup<K, I>,
    groups: Groups<'_, I>,
    ask: Ask<'_>,
    (cursor, pairs): (&mut Cursor, &mut Pairs<B>),
) {
    let (first, before) = (cursor.next, pairs.len());
    let unique = groups.values.is_empty();
    // What is wanted is decided outside the loop.
    match ask.want {
        Want::Count if unique => {
            pairs.counted += keys_found::<MODERN, _, _, _>(keys, cursor, table);
        }
        Want::Count => {
            let mut counted = 0;
            each_found::<MODERN, _, _, _>(keys, cursor, table, &groups, |_, _, found| {
                counted += groups.of(found.at, found.value).map_or(1, <[I]>::len) as u64;
                true
            });
            pairs.counted += counted;
        }
        Want::Flag(flags) => {
            each_found::<MODERN, _, _, _>(keys, cursor, table, &groups, |_, _, found| {
                let many = if unique { None } else { groups.of(found.at, found.value) };
                match many {
                    None => flags.set(found.value.to_u64()),
                    // A group is flagged as a whole, so its first row tells of all.
                    Some(rows) if flags.get(rows[0].to_u64()) => {}
                    Some(rows) => rows.iter().for_each(|row| flags.set(row.to_u64())),
                }
                true
            })
        }
        Want::All | Want::First if unique => {
            let mut out = Writer::new(pairs, ask.cap);
            each_one::<MODERN, _, _, _, _>(keys, cursor, table, &mut out);
        }
        Want::First => {
            let mut out = Writer::new(pairs, ask.cap);
            each_found::<MODERN, _, _, _>(keys, cursor, table, &groups, |_, index, found| {
                let rows = groups.of(found.at, found.value);
                out.push(rows.map_or(found.value, |rows| rows[0]), keys.row(index));
                out.room() > 0
            });
        }
        Want::All => {
            let mut out = Writer::new(pairs, ask.cap);
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
    keys.to_rows(&mut pairs.probe[before..]);
    let all_once = unique && keys.in_order() && pairs.len() - before == cursor.next - first;
    let follows = match pairs.probe.get(before.wrapping_sub(1)..=before) {
        // The first pairs follow nothing.
        None => before == 0,
        Some(at) => pairs.run && at[0] + 1 == at[1],
    };
    pairs.run = all_once && follows;
}

/// Where the searches of some keys begin; their memory is asked for.
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

/// How many of the keys are in a table of unique ones. Nothing here depends on the outcome of a
/// search but the sum, so the next searches go on while one waits for memory.
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
            found += u64::from(table.find::<MODERN>(P::key(item), start).hit);
        }
    }
    cursor.next = keys.len();
    found
}

/// Pairs keys with a table of unique ones: a block's values first, as if all keys were there, then
/// the rows of those that are. So no branch depends on which they are, unless all are.
#[inline(always)]
fn each_one<const MODERN: bool, K: KeyWord, I: RowId, B: RowId, P: ProbeKeys<K>>(
    keys: &P,
    cursor: &mut Cursor,
    table: &impl Lookup<K, I>,
    out: &mut Writer<'_, B>,
) {
    let mut starts = [0usize; AHEAD];
    let far = table.far();
    while cursor.next < keys.len() && out.room() > 0 {
        let ahead = AHEAD.min(keys.len() - cursor.next).min(out.room());
        let items = &keys.items()[cursor.next..cursor.next + ahead];
        // SAFETY: there is room for `ahead` values.
        let values = unsafe { out.spare(ahead) };
        let mut hits = 0u64;
        if far {
            look_ahead::<K, I, P>(items, &mut starts, table);
            for (i, ((item, value), &start)) in items.iter().zip(values).zip(&starts).enumerate() {
                let found = table.find::<MODERN>(P::key(item), start);
                value.write(B::from_u64(found.value.to_u64()));
                hits |= u64::from(found.hit) << i;
            }
        } else {
            for (i, (item, value)) in items.iter().zip(values).enumerate() {
                let key = P::key(item);
                let found = table.find::<MODERN>(key, table.locate(key));
                value.write(B::from_u64(found.value.to_u64()));
                hits |= u64::from(found.hit) << i;
            }
        }
        let row = |i: usize| keys.row(cursor.next + i);
        // SAFETY: `ahead` values were written.
        unsafe { out.keep(ahead, hits, row) };
        cursor.next += ahead;
    }
}

/// Calls `on_found(rows of the group done, index, found)` for every key that is in the table,
/// until it answers false. It is called again for a key whose group it left unfinished. Groups, too,
/// are asked for ahead.
#[inline(always)]
fn each_found<const MODERN: bool, K: KeyWord, I: RowId, P: ProbeKeys<K>>(
    keys: &P,
    cursor: &mut Cursor,
    table: &impl Lookup<K, I>,
    groups: &Groups<'_, I>,
    mut on_found: impl FnMut(&mut usize, usize, Found<I>) -> bool,
) {
    let mut starts = [0usize; AHEAD];
    let mut block = [Found { at: 0, value: I::default(), hit: false }; AHEAD];
    while cursor.next < keys.len() {
        let first = cursor.next;
        let ahead = AHEAD.min(keys.len() - first);
        let items = &keys.items()[first..first + ahead];
        look_ahead::<K, I, P>(items, &mut starts, table);
        for ((item, &start), found) in items.iter().zip(&starts).zip(&mut block) {
            *found = table.find::<MODERN>(P::key(item), start);
            // A value may be the position of a group, of which this is the beginning and what most
            // likely is the end; asking for what is not there does no harm.
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

/// Appends pairs up to a cap, for which room was made before.
struct Writer<'p, B> {
    pairs: &'p mut Pairs<B>,
    build: *mut B,
    probe: *mut u64,
    len: usize,
    cap: usize,
}

impl<'p, B: RowId> Writer<'p, B> {
    fn new(pairs: &'p mut Pairs<B>, cap: usize) -> Self {
        let len = pairs.len();
        pairs.build.reserve(cap.saturating_sub(len));
        pairs.probe.reserve(cap.saturating_sub(len));
        let (build, probe) = (pairs.build.as_mut_ptr(), pairs.probe.as_mut_ptr());
        Writer { pairs, build, probe, len, cap }
    }

    #[inline(always)]
    fn room(&self) -> usize {
        self.cap.saturating_sub(self.len)
    }

    #[inline(always)]
    fn push<I: RowId>(&mut self, build: I, probe: u64) {
        assert!(self.len < self.cap);
        // SAFETY: both vectors have room for `cap` values, and were not touched since.
        unsafe {
            self.build.add(self.len).write(B::from_u64(build.to_u64()));
            self.probe.add(self.len).write(probe);
        }
        self.len += 1;
    }

    /// The places of the next `some` build values.
    ///
    /// # Safety
    /// There is room for so many.
    #[inline(always)]
    unsafe fn spare<'s>(&self, some: usize) -> &'s mut [MaybeUninit<B>] {
        debug_assert!(some <= self.room());
        // SAFETY: the vector has room for `cap` values, was not touched since, and lives as long as
        // this writer, which the caller uses these places with.
        unsafe { std::slice::from_raw_parts_mut(self.build.add(self.len).cast(), some) }
    }

    /// Of `some` build values that were written to the [`spare`](Writer::spare) places, keeps those
    /// whose bit is set in `hits`, and writes their rows.
    ///
    /// # Safety
    /// They were written.
    #[inline(always)]
    unsafe fn keep(&mut self, some: usize, hits: u64, row: impl Fn(usize) -> u64) {
        debug_assert!(some <= self.room() && some <= AHEAD);
        // SAFETY: there is room for `some` values in both vectors, and the kept ones are fewer.
        unsafe {
            let (build, probe) = (self.build.add(self.len), self.probe.add(self.len));
            if hits.count_ones() as usize == some {
                (0..some).for_each(|i| probe.add(i).write(row(i)));
                self.len += some;
                return;
            }
            let mut kept = 0;
            for i in 0..some {
                build.add(kept).write(build.add(i).read());
                probe.add(kept).write(row(i));
                kept += (hits >> i & 1) as usize;
            }
            self.len += kept;
        }
    }
}

impl<B> Drop for Writer<'_, B> {
    fn drop(&mut self) {
        // SAFETY: the first `len` values of both were written.
        unsafe {
            self.pairs.build.set_len(self.len);
            self.pairs.probe.set_len(self.len);
        }
    }
}

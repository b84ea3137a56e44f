//! Hash tables: buckets of four keys, searched from the key's home bucket on.
//!
//! A bucket is a cache line, or half of one where keys are narrow. Its keys are compared all at
//! once, without a branch on which of them it is, and it is filled from its first place on, so it
//! tells by itself whether a search may end: if its last place is empty, or if no key ever had to
//! leave it. The latter takes no memory: the last two keys of a full bucket rise if none had to, and
//! fall if one had. So few searches go on, successful or not: with nearly two places a key, about one
//! in twenty.
//!
//! No key is reserved for empty places. A region's keys share their top bits, so a key with another
//! top bit stands for emptiness. And since regions have one size, a key's top bits alone, as a
//! fraction of all buckets, lead to its home.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::memory::{Budget, Buffer, Plain, Shared};
use crate::partition::{Partitions, RowId, Tuple, top_bits};
use crate::processor::prefetch;
use crate::table::bits::words_for;
use crate::table::fill::{self, Entered, Region, fill_all};
use crate::table::pairs::Pairs;
use crate::table::perfect::{self, PerfectTable};
use crate::table::probe::{Ask, Cursor, Groups, Lookup, NEAR, ProbeResult, probe_batch};
use crate::table::probe_keys::ProbeKeys;
use crate::table::sorted::SortedTable;
use crate::word::KeyWord;

/// Keys of a bucket.
const KEYS: usize = 4;

/// Four keys, and the value or the position of the group of each.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Bucket<K, I> {
    keys: [K; KEYS],
    values: [I; KEYS],
}

// SAFETY: integers; padding behind them is never read as such.
unsafe impl<K: KeyWord, I: RowId> Plain for Bucket<K, I> {}

impl<K: KeyWord, I: RowId> Bucket<K, I> {
    /// Whether the last two keys fall: of a full bucket, that a key had to leave it.
    #[inline(always)]
    fn falls(&self) -> bool {
        self.keys[KEYS - 2] > self.keys[KEYS - 1]
    }

    #[inline(always)]
    fn swap_last(&mut self) {
        self.keys.swap(KEYS - 2, KEYS - 1);
        self.values.swap(KEYS - 2, KEYS - 1);
    }
}

/// Eighths of a place a key. More would take large tables over the memory that joins may hold.
const ROOM: usize = 15;
/// The same for tables of few keys, where memory does not count.
const MORE_ROOM: usize = 28;
const FEW_KEYS: usize = 1 << 18;

/// Buckets that a search while filling passes, at most, unless the seed does not suit the keys. At most
/// 53 in 100 places are taken, and the longest of 2^27 searches passes about a dozen.
const LONGEST: usize = 128;

/// The buckets of a region for so many keys, and at least one place that stays empty, so every
/// search ends. A multiple of 16, so that regions are whole words of bits.
fn buckets_for(keys: usize, room: usize) -> usize {
    (keys * room / 8 + 8).div_ceil(KEYS).next_multiple_of(64 / KEYS)
}

/// The bytes of a table over so many rows.
pub(crate) fn table_bytes(rows: usize, word_bytes: usize, value_bytes: usize) -> u64 {
    let bucket = (KEYS * (word_bytes + value_bytes)).next_multiple_of(32);
    (buckets_for(rows, ROOM) * bucket) as u64
}

/// The topmost 32 bits of a key after the first `skip`.
#[inline(always)]
fn fraction<K: KeyWord>(key: K, skip: u32) -> u64 {
    (key.to_u64() << (64 - K::BITS) << skip) >> 32
}

/// The home of a fraction among so many buckets.
#[inline(always)]
fn home(fraction: u64, buckets: usize) -> usize {
    ((fraction * buckets as u64) >> 32) as usize
}

/// The key that stands for emptiness where keys have this top bit.
fn emptiness<K: KeyWord>(top: usize) -> K {
    K::from_u64((top as u64 ^ 1) << (K::BITS - 1))
}

/// What the bucket at `at` has for a key; None if the search has to go on. With EXPECTED, a key that
/// is there is found sooner, at the price of a branch on whether it is.
#[inline(always)]
fn look<const MODERN: bool, const EXPECTED: bool, K: KeyWord, I: RowId>(
    buckets: &[Bucket<K, I>],
    at: usize,
    key: K,
) -> Option<ProbeResult<I>> {
    debug_assert!(at < buckets.len());
    // SAFETY: homes are fractions of the buckets, and searches go round within them.
    let bucket = unsafe { buckets.get_unchecked(at) };
    let keys = &bucket.keys;
    // SAFETY: MODERN says that the processor is.
    let same = if MODERN { unsafe { key.same_modern(keys) } } else { key.same(keys) };
    // The first, whatever it has, where there is no such key.
    let i = same.trailing_zeros() as usize % KEYS;
    let found = |hit| ProbeResult { at: at * KEYS + i, value: bucket.values[i], hit };
    if EXPECTED && same != 0 {
        return Some(found(true));
    }
    let last = keys[KEYS - 1].to_u64() ^ key.to_u64();
    let done = (last >> (K::BITS - 1)) as u32 | u32::from(keys[KEYS - 2] < keys[KEYS - 1]);
    let done = done << KEYS;
    // One branch for all, as numbers: on its own, each would be a coin's toss.
    if same | done == 0 { None } else { Some(found(same != 0)) }
}

/// The bucket that a search goes to after its home and `tried` more, in a region that begins at
/// `first`. The second is the home's neighbour: processors fetch lines in pairs.
#[inline(always)]
fn next_bucket(home: usize, tried: usize, first: usize, region: usize) -> usize {
    if tried == 0 {
        return first + ((home - first) ^ 1);
    }
    // Regions have an even number of buckets, and are never full: this ends before it comes round.
    first + (((home - first) & !1) + tried + 1) % region
}

/// Goes on with a search that found its home full of other keys. Apart from the loop, which rarely
/// needs it and so keeps its registers.
#[inline(never)]
fn search_on<K: KeyWord, I: RowId>(
    buckets: &[Bucket<K, I>],
    (first, region): (usize, usize),
    home: usize,
    key: K,
) -> ProbeResult<I> {
    let mut tried = 0;
    loop {
        let at = next_bucket(home, tried, first, region);
        if let Some(found) = look::<false, false, _, _>(buckets, at, key) {
            return found;
        }
        tried += 1;
    }
}

/// The buckets of one region while it is filled.
struct Buckets<'a, K, I> {
    buckets: &'a mut [Bucket<K, I>],
    empty: K,
    /// The buckets of all regions among which homes are found, and which of them is the first here.
    all: usize,
    first: usize,
    /// Bits of keys that do not count.
    skip: u32,
    /// Buckets that a search may pass, and whether one has passed more.
    longest: usize,
    lost: bool,
}

impl<K: KeyWord, I: RowId> Region<K, I> for Buckets<'_, K, I> {
    fn clear(&mut self) {
        self.buckets.fill(Bucket { keys: [self.empty; KEYS], values: [I::default(); KEYS] });
    }

    fn places(&self) -> usize {
        self.buckets.len() * KEYS
    }

    fn taken(&self, word: usize) -> u64 {
        let buckets = self.buckets[word * 64 / KEYS..(word + 1) * 64 / KEYS].iter().rev();
        buckets.fold(0, |bits, b| bits << KEYS | u64::from(self.empty.apart(&b.keys)))
    }

    #[inline(always)]
    fn enter<const MODERN: bool>(&mut self, key: K) -> (usize, bool) {
        let home = home(fraction(key, self.skip), self.all) - self.first;
        let (mut at, mut tried) = (home, 0);
        loop {
            let bucket = &mut self.buckets[at];
            let keys = &bucket.keys;
            // Either the key is there, or the first place whose top bit differs is empty.
            let (same, empty) = if MODERN {
                // SAFETY: MODERN says that the processor is.
                unsafe { (key.same_modern(keys), key.apart_modern(keys)) }
            } else {
                (key.same(keys), key.apart(keys))
            };
            if same | empty != 0 {
                let mut i = (same | empty).trailing_zeros() as usize % KEYS;
                bucket.keys[i] = key;
                if i == KEYS - 1 && same == 0 && bucket.falls() {
                    // Full from now on, and nobody had to leave.
                    bucket.swap_last();
                    i = KEYS - 2;
                }
                return (at * KEYS + i, same != 0);
            }
            if !bucket.falls() {
                bucket.swap_last();
            }
            if tried == self.longest {
                self.lost = true;
                return (at * KEYS, true);
            }
            at = next_bucket(home, tried, 0, self.buckets.len());
            tried += 1;
        }
    }

    fn lost(&self) -> bool {
        self.lost
    }

    #[inline(always)]
    fn value(&mut self, at: usize) -> &mut I {
        &mut self.buckets[at / KEYS].values[at % KEYS]
    }
}

/// A hash table over the whole build side, one region a partition.
pub(crate) struct HashTable<K: KeyWord, I: RowId> {
    buckets: Buffer<Bucket<K, I>>,
    /// Buckets of a region.
    region: usize,
    bits: u32,
    many: Buffer<u64>,
    groups: Buffer<I>,
    again: Option<Again<K, I>>,
}

/// The same keys once more, laid out for a table that is probed for long.
struct Again<K: KeyWord, I: RowId> {
    budget: Arc<Budget>,
    /// How many keys there are.
    keys: usize,
    /// The probe keys after which it pays to lay them out.
    long: usize,
    /// The probe keys so far.
    probed: AtomicUsize,
    /// Set by the worker who lays them out, to None if that cannot be.
    table: OnceLock<Option<PerfectTable<K, I>>>,
}

/// Probe keys a key after which the other layout is made. It takes as long as it saves in twelve or so.
const LONG: usize = 16;

impl<K: KeyWord, I: RowId> Again<K, I> {
    /// None unless the other layout is better: all keys unique, and in the second-level cache. With a
    /// memory limit, what it takes might be missing elsewhere.
    fn new(cx: &Context<'_>, keys: usize, unique: bool) -> Option<Self> {
        // Some of the cache is for what streams through it.
        let fits = perfect::bytes_for::<K, I>(keys) as u64 <= cx.machine.l2 / 4 * 3;
        let long = if cx.overrides.tiny_partitions { 1 } else { keys.saturating_mul(LONG) };
        (unique && fits && keys > 0 && cx.budget.unlimited()).then(|| Again {
            budget: Arc::clone(&cx.budget),
            keys,
            long,
            probed: AtomicUsize::new(0),
            table: OnceLock::new(),
        })
    }

    /// Counts probe keys. The other layout, once it is there; `make` makes it when its time has come,
    /// while all others go on without.
    fn after(
        &self,
        probed: usize,
        make: impl FnOnce() -> Option<PerfectTable<K, I>>,
    ) -> Option<&PerfectTable<K, I>> {
        if let Some(table) = self.table.get() {
            return table.as_ref();
        }
        let before = self.probed.fetch_add(probed, Ordering::Relaxed);
        if before < self.long && before + probed >= self.long {
            return self.table.get_or_init(make).as_ref();
        }
        None
    }
}

impl<K: KeyWord, I: RowId> HashTable<K, I> {
    /// Builds from partitions by the top `bits` bits, of which there is at least one, all workers
    /// at once. Fails with [`Error::BadSeed`] if the context bounds searches and one passes the bound,
    /// or if a region has far more keys than by chance.
    pub(crate) fn build(
        cx: &Context<'_>,
        partitions: &Partitions<K, I>,
        bits: u32,
    ) -> Result<Self> {
        // Keys are spread evenly but for chance, for which there is room enough; more tuples than
        // that are of equal keys.
        let average = (partitions.tuples.len() >> bits) + 32;
        let keys = partitions.tuples.len();
        if let Some(table) = Self::filled(cx, bits, average, |p| partitions.tuples(p))? {
            let again = Again::new(cx, keys, table.groups.is_empty());
            return Ok(HashTable { again, ..table });
        }
        if cx.bounded {
            return Err(Error::BadSeed);
        }
        // Or keys chosen to meet: then two regions, each with room for whatever comes.
        log::debug!("keys are spread unevenly over {} regions; building with 2", 1u64 << bits);
        let middle = partitions.bounds[partitions.count() / 2];
        let (lower, upper) = partitions.tuples.split_at(middle);
        let half = |p: usize| if p == 0 { lower } else { upper };
        let table = Self::filled(cx, 1, lower.len().max(upper.len()), half)?;
        table.ok_or_else(|| Error::Worker("a hash table was too small".to_string()))
    }

    /// A table with regions for `most` keys; None if one of them has more.
    fn filled<'t>(
        cx: &Context<'_>,
        bits: u32,
        most: usize,
        tuples: impl Fn(usize) -> &'t [Tuple<K, I>] + Sync,
    ) -> Result<Option<Self>> {
        let room = if most << bits < FEW_KEYS { MORE_ROOM } else { ROOM };
        let region = buckets_for(most, room);
        let all = region << bits;
        let mut buckets = Buffer::uninit(all, &cx.budget, "the hash table")?;
        let mut many = Buffer::uninit(words_for(all * KEYS), &cx.budget, "the hash table")?;
        let shared: Shared<'_, Bucket<K, I>> = buckets.shared();
        let longest = if cx.bounded { LONGEST } else { usize::MAX };
        let groups = fill_all(cx, (1 << bits, tuples), many.shared(), |p| {
            // SAFETY: regions do not overlap, and each is one task's.
            let buckets = unsafe { shared.range(p * region..(p + 1) * region) };
            let words = region * KEYS / 64;
            let (empty, first) = (emptiness(p >> (bits - 1)), p * region);
            let region = Buckets { buckets, empty, all, first, skip: 0, longest, lost: false };
            (region, p * words..(p + 1) * words)
        })?;
        Ok(groups.map(|groups| HashTable { buckets, region, bits, many, groups, again: None }))
    }

    /// Finds the pairs of probe keys (placed) from the cursor on.
    pub(crate) fn probe<P: ProbeKeys<K>, B: RowId>(
        &self,
        keys: &P,
        ask: Ask<'_>,
        cursor: &mut Cursor,
        pairs: &mut Pairs<B>,
    ) {
        let groups = Groups { many: &self.many, values: &self.groups };
        let left = keys.len() - cursor.next;
        match self.again.as_ref().and_then(|again| again.after(left, || self.perfect(again))) {
            Some(table) => probe_batch(keys, table, groups, ask, (cursor, pairs)),
            None => probe_batch(keys, self, groups, ask, (cursor, pairs)),
        }
    }

    /// Of each key with more than `step` values, calls `pair` with the first value and with every
    /// `step`th one.
    pub(crate) fn every(&self, step: usize, mut pair: impl FnMut(I, I)) {
        // Groups lie one behind the other. Each begins with its length.
        let mut at = 0;
        while at < self.groups.len() {
            let len = self.groups[at].to_usize();
            let group = &self.groups[at + 1..at + 1 + len];
            group.iter().skip(step).step_by(step).for_each(|&value| pair(group[0], value));
            at += 1 + len;
        }
    }

    /// All keys, which are unique, in the other layout.
    fn perfect(&self, again: &Again<K, I>) -> Option<PerfectTable<K, I>> {
        let bytes = (again.keys * size_of::<Tuple<K, I>>()) as u64;
        let _reserved = again.budget.reserve(bytes, "a perfect hash table").ok()?;
        let mut tuples = Vec::with_capacity(again.keys);
        for (at, bucket) in self.buckets.iter().enumerate() {
            let empty: K = emptiness((at / self.region) >> (self.bits - 1));
            let there = empty.apart(&bucket.keys);
            let places = (0..KEYS).filter(|i| there >> i & 1 != 0);
            tuples.extend(places.map(|i| Tuple { key: bucket.keys[i], row: bucket.values[i] }));
        }
        debug_assert_eq!(tuples.len(), again.keys);
        let table = PerfectTable::of(&tuples, &again.budget);
        log::debug!("perfect hashing of {} keys: {}", tuples.len(), table.is_some());
        table
    }
}

impl<K: KeyWord, I: RowId> Lookup<K, I> for HashTable<K, I> {
    #[inline(always)]
    fn locate(&self, key: K) -> usize {
        home(fraction(key, 0), self.buckets.len())
    }

    #[inline(always)]
    fn fetch(&self, start: usize) {
        prefetch(self.buckets.as_ptr().wrapping_add(start));
    }

    fn far(&self) -> bool {
        size_of_val(&self.buckets[..]) > NEAR
    }

    #[inline(always)]
    fn find<const MODERN: bool, const EXPECTED: bool>(
        &self,
        key: K,
        start: usize,
    ) -> ProbeResult<I> {
        match look::<MODERN, EXPECTED, _, _>(&self.buckets, start, key) {
            Some(found) => found,
            None => {
                let first = top_bits(key, self.bits) * self.region;
                search_on(&self.buckets, (first, self.region), start, key)
            }
        }
    }
}

/// A hash table over one partition at a time, whose memory is used again for the next.
pub(crate) struct LocalTable<K: KeyWord, I: RowId> {
    buckets: Buffer<Bucket<K, I>>,
    used: usize,
    bits: u32,
    many: Buffer<u64>,
    groups: Buffer<I>,
    /// As much of `groups` as the partition takes.
    grouped: usize,
    /// The partition's keys in order, where they crowd in the buckets.
    sorted: Option<SortedTable<K, I>>,
}

impl<K: KeyWord, I: RowId> LocalTable<K, I> {
    /// Room for partitions of up to `tuples` tuples by the top `bits` bits, at least one.
    pub(crate) fn with_room(cx: &Context<'_>, tuples: usize, bits: u32) -> Result<Self> {
        let what = "a partition's hash table";
        let buckets = Buffer::zeroed(buckets_for(tuples, ROOM), &cx.budget, what)?;
        let many = Buffer::zeroed(words_for(buckets.len() * KEYS), &cx.budget, what)?;
        let groups = Buffer::zeroed(0, &cx.budget, "a partition's equal keys")?;
        Ok(LocalTable { buckets, used: 0, bits, many, groups, grouped: 0, sorted: None })
    }

    /// Forgets what was there and builds from partition `p`.
    pub(crate) fn build(
        &mut self,
        cx: &Context<'_>,
        p: usize,
        tuples: &[Tuple<K, I>],
    ) -> Result<()> {
        self.sorted = None;
        self.used = buckets_for(tuples.len(), ROOM);
        let buckets = &mut self.buckets[..self.used];
        let empty = emptiness(p >> (self.bits - 1));
        let (all, first) = (self.used, 0);
        let (skip, longest) = (self.bits, LONGEST);
        let mut region = Buckets { buckets, empty, all, first, skip, longest, lost: false };
        let many = &mut self.many[..words_for(self.used * KEYS)];
        self.grouped = match fill::enter(&mut region, many, tuples) {
            Entered::Many(need) => need,
            // Full it is not: there is a place for each tuple, and one more.
            Entered::Unique | Entered::Full => 0,
            Entered::Lost => {
                log::debug!("{} keys crowd in one partition; sorting them", tuples.len());
                self.sorted = Some(SortedTable::of(cx, tuples)?);
                return Ok(());
            }
        };
        if self.grouped > 0 {
            if self.groups.len() < self.grouped {
                let what = "a partition's equal keys";
                // The old one goes first, so that both are never held together.
                self.groups = Buffer::zeroed(0, &cx.budget, what)?;
                self.groups = Buffer::zeroed(self.grouped, &cx.budget, what)?;
            }
            let groups = &mut self.groups[..self.grouped];
            fill::group(&mut region, many, tuples, (groups, 0));
        }
        Ok(())
    }

    /// Finds the pairs of probe keys (placed) of the same partition from the cursor on.
    pub(crate) fn probe<P: ProbeKeys<K>, B: RowId>(
        &self,
        keys: &P,
        ask: Ask<'_>,
        cursor: &mut Cursor,
        pairs: &mut Pairs<B>,
    ) {
        if let Some(sorted) = &self.sorted {
            return probe_batch(keys, sorted, sorted.groups(), ask, (cursor, pairs));
        }
        let groups = Groups { many: &self.many, values: &self.groups[..self.grouped] };
        probe_batch(keys, self, groups, ask, (cursor, pairs));
    }
}

impl<K: KeyWord, I: RowId> Lookup<K, I> for LocalTable<K, I> {
    #[inline(always)]
    fn locate(&self, key: K) -> usize {
        home(fraction(key, self.bits), self.used)
    }

    #[inline(always)]
    fn fetch(&self, start: usize) {
        prefetch(self.buckets.as_ptr().wrapping_add(start));
    }

    fn far(&self) -> bool {
        size_of_val(&self.buckets[..self.used]) > NEAR
    }

    #[inline(always)]
    fn find<const MODERN: bool, const EXPECTED: bool>(
        &self,
        key: K,
        start: usize,
    ) -> ProbeResult<I> {
        match look::<MODERN, EXPECTED, _, _>(&self.buckets, start, key) {
            Some(found) => found,
            None => search_on(&self.buckets, (0, self.used), start, key),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchIterator};

    use crate::key::Seed;
    use crate::overrides::TestOverrides;
    use crate::word::{KeyWord, Mixer};
    use crate::{Algorithm, Join};

    /// Keys that all belong to the first of 64 regions: none of them is large enough. Another seed
    /// spreads them; without one, there are two regions.
    #[test]
    fn keys_chosen_to_meet_are_found_all_the_same() {
        let key = |i: i64| i.wrapping_mul(0x9e37_79b9);
        let mixer: Mixer<u64> = Seed::bad().mixer();
        let word = |key: i64| (key as u64 ^ 1 << 63).mix(mixer);
        let keys = (0..).map(key).filter(|&key| word(key) >> 58 == 0).take(3000);
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(keys));
        let table = RecordBatch::try_from_iter([("k", keys)]).expect("one column");
        let reader = || RecordBatchIterator::new([Ok(table.clone())], table.schema());
        for algorithm in [Algorithm::NoPartition, Algorithm::Radix] {
            for bad_seeds in [1, u32::MAX] {
                let overrides =
                    TestOverrides { tiny_partitions: true, bad_seeds, ..TestOverrides::default() };
                let join = Join::inner().on("k").algorithm(algorithm).test_overrides(overrides);
                let (rows, _) = join.count(reader(), reader()).expect("the join succeeds");
                assert_eq!(rows, 3000, "{algorithm}");
            }
        }
    }
}

//! Hash tables with buckets of four keys. A search starts at the key's home bucket.
//!
//! A bucket is one cache line, or half of one if keys are narrow. A search compares all four keys of a bucket
//! at once, without a branch per key. Buckets are filled from their first slot on. So a bucket itself tells
//! whether a search ends there:
//!
//! - if its last slot is empty;
//! - if it is full, and no key ever had to go to another bucket (overflowed). The order of the last two keys
//!   encodes this without extra memory: ascending if none overflowed, descending if one did.
//!
//! So few searches go beyond the home bucket, whether they succeed or not: with almost two slots per key,
//! about one in twenty.
//!
//! No key value is reserved to mark empty slots. All keys of a region have the same top bit, so a key with the other top
//! bit marks an empty slot. All regions have the same size, so the top 32 bits of a key give its home bucket:
//! `top * buckets / 2^32`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::memory::{Budget, Buffer, Plain, Shared};
use crate::partition::{Partitions, RowId, Tuple, top_bits};
use crate::processor::prefetch;
use crate::table::bits::words_for;
use crate::table::exists::append_exists;
use crate::table::fill::{self, Entered, Region, fill_all};
use crate::table::pairs::Pairs;
use crate::table::perfect::{self, PerfectTable};
use crate::table::probe::{Ask, Cursor, Groups, Lookup, NEAR, ProbeResult, probe_batch};
use crate::table::probe_keys::ProbeKeys;
use crate::table::sorted::SortedTable;
use crate::word::KeyWord;

/// The number of keys per bucket.
const KEYS: usize = 4;

/// Four keys, and for each its value or the position of its group.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Bucket<K, I> {
    keys: [K; KEYS],
    values: [I; KEYS],
}

// SAFETY: integers; the padding behind them is never read.
unsafe impl<K: KeyWord, I: RowId> Plain for Bucket<K, I> {}

impl<K: KeyWord, I: RowId> Bucket<K, I> {
    /// Returns whether the last two keys are descending. In a full bucket, this means that a key overflowed.
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

/// The number of slots per key, in eighths. With more, large tables would exceed the memory that joins may
/// hold.
const ROOM: usize = 15;
/// The same for tables of few keys, whose memory does not matter.
const MORE_ROOM: usize = 28;
const FEW_KEYS: usize = 1 << 18;

/// The largest number of buckets that a search may pass while the table is filled. More means that the seed
/// does not suit the keys. At most 53 % of the slots are taken; the longest of 2^27 searches passes about a
/// dozen buckets.
const LONGEST: usize = 128;

/// Returns the number of buckets of a region for `keys` keys. At least one slot stays empty, so that every
/// search ends. It is a multiple of 16, so that the bitmap of a region has whole words.
fn buckets_for(keys: usize, room: usize) -> usize {
    (keys * room / 8 + 8).div_ceil(KEYS).next_multiple_of(64 / KEYS)
}

/// Returns the bytes of a table over `rows` rows.
pub(crate) fn table_bytes(rows: usize, word_bytes: usize, value_bytes: usize) -> u64 {
    let bucket = (KEYS * (word_bytes + value_bytes)).next_multiple_of(32);
    (buckets_for(rows, ROOM) * bucket) as u64
}

/// Returns the topmost 32 bits of a key after the first `skip` bits.
#[inline(always)]
fn fraction<K: KeyWord>(key: K, skip: u32) -> u64 {
    (key.to_u64() << (64 - K::BITS) << skip) >> 32
}

/// Returns the home bucket of a fraction.
#[inline(always)]
fn home(fraction: u64, buckets: usize) -> usize {
    ((fraction * buckets as u64) >> 32) as usize
}

/// Returns the key that marks empty slots in regions whose keys have the top bit `top`.
fn emptiness<K: KeyWord>(top: usize) -> K {
    K::from_u64((top as u64 ^ 1) << (K::BITS - 1))
}

/// Looks up a key in the bucket at `at`. Returns `None` if the search has to go on. With EXPECTED, a key that
/// exists is found sooner, but there is a branch on whether it does.
#[inline(always)]
fn look<const MODERN: bool, const EXPECTED: bool, K: KeyWord, I: RowId>(
    buckets: &[Bucket<K, I>],
    at: usize,
    key: K,
) -> Option<ProbeResult<I>> {
    debug_assert!(at < buckets.len());
    // SAFETY: home buckets are fractions of all buckets, and searches wrap around within them.
    let bucket = unsafe { buckets.get_unchecked(at) };
    let keys = &bucket.keys;
    // SAFETY: MODERN is true only if `processor::modern()` is.
    let same = if MODERN { unsafe { key.same_modern(keys) } } else { key.same(keys) };
    // If no key is equal, this is the first slot; its value is not used.
    let i = same.trailing_zeros() as usize % KEYS;
    let found = |hit| ProbeResult { at: at * KEYS + i, value: bucket.values[i], hit };
    if EXPECTED && same != 0 {
        return Some(found(true));
    }
    let last = keys[KEYS - 1].to_u64() ^ key.to_u64();
    let done = (last >> (K::BITS - 1)) as u32 | u32::from(keys[KEYS - 2] < keys[KEYS - 1]);
    let done = done << KEYS;
    // One branch on the combined bits. Separate branches would be unpredictable.
    if same | done == 0 { None } else { Some(found(same != 0)) }
}

/// Returns the bucket that a search goes to after its home and `tried` more buckets, in a region that starts
/// at bucket `first`. The second bucket is the neighbour of the home, because processors fetch cache lines in
/// pairs.
#[inline(always)]
fn next_bucket(home: usize, tried: usize, first: usize, region: usize) -> usize {
    if tried == 0 {
        return first + ((home - first) ^ 1);
    }
    // Regions have an even number of buckets and are never full, so the search ends before it wraps around.
    first + (((home - first) & !1) + tried + 1) % region
}

/// Continues a search whose home bucket has only other keys. It is a separate function because the hot loop
/// rarely needs it, and so the loop keeps its registers.
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
    /// The number of buckets of all regions, among which home buckets are computed, and the first bucket of
    /// this region.
    all: usize,
    first: usize,
    /// The number of leading key bits that do not count.
    skip: u32,
    /// The number of buckets that a search may pass, and whether a search passed more.
    longest: usize,
    lost: bool,
}

impl<K: KeyWord, I: RowId> Buckets<'_, K, I> {
    /// Enters a key into the bucket at `at`. Returns its slot, and whether it already had one; `None` if the
    /// bucket is full of other keys.
    #[inline(always)]
    fn enter_bucket<const MODERN: bool>(&mut self, at: usize, key: K) -> Option<(usize, bool)> {
        let bucket = &mut self.buckets[at];
        let keys = &bucket.keys;
        // Either the key is in the bucket, or the first slot with the other top bit is empty.
        let (same, empty) = if MODERN {
            // SAFETY: MODERN is true only if `processor::modern()` is.
            unsafe { (key.same_modern(keys), key.apart_modern(keys)) }
        } else {
            (key.same(keys), key.apart(keys))
        };
        if same | empty == 0 {
            return None;
        }
        let mut i = (same | empty).trailing_zeros() as usize % KEYS;
        bucket.keys[i] = key;
        if i == KEYS - 1 && same == 0 && bucket.falls() {
            // The bucket is full from now on, and no key has overflowed.
            bucket.swap_last();
            i = KEYS - 2;
        }
        Some((at * KEYS + i, same != 0))
    }

    /// Enters a key whose home bucket is full of other keys. It is a separate function because the hot loop
    /// rarely needs it, and so the loop keeps its registers.
    #[inline(never)]
    fn enter_elsewhere(&mut self, home: usize, key: K) -> (usize, bool) {
        let mut at = home;
        for tried in 0..self.longest {
            // A key overflows from this bucket. Searches see that by the order of its last two keys.
            if !self.buckets[at].falls() {
                self.buckets[at].swap_last();
            }
            at = next_bucket(home, tried, 0, self.buckets.len());
            if let Some(entered) = self.enter_bucket::<false>(at, key) {
                return entered;
            }
        }
        self.lost = true;
        (at * KEYS, true)
    }
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
        match self.enter_bucket::<MODERN>(home, key) {
            Some(entered) => entered,
            None => self.enter_elsewhere(home, key),
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

/// A hash table over the whole build side, with one region per partition.
pub(crate) struct HashTable<K: KeyWord, I: RowId> {
    buckets: Buffer<Bucket<K, I>>,
    /// The number of buckets per region.
    region: usize,
    bits: u32,
    many: Buffer<u64>,
    groups: Buffer<I>,
    again: Option<Again<K, I>>,
}

/// The second layout of the same keys, for a table with many probes.
struct Again<K: KeyWord, I: RowId> {
    budget: Arc<Budget>,
    /// The number of keys.
    keys: usize,
    /// The number of probe keys after which the second layout pays off.
    long: usize,
    /// The number of probe keys so far.
    probed: AtomicUsize,
    /// Set by the worker that creates the layout; to `None` if that is not possible.
    table: OnceLock<Option<PerfectTable<K, I>>>,
}

/// The number of probes per key and thread after which the second layout is created. One worker creates it.
/// This takes as long as about 20 probes per key. If as many probes follow as there were before, the other
/// workers are still busy when it is ready. With fewer, they would wait for that worker.
const LONG: usize = 16;

impl<K: KeyWord, I: RowId> Again<K, I> {
    /// Returns `None` unless the second layout is better: all keys are unique, and it fits the second-level
    /// cache. With a memory limit there is no second layout, because its memory might be missing elsewhere.
    fn new(cx: &Context<'_>, keys: usize, unique: bool) -> Option<Self> {
        // The data that streams through the cache needs some of it.
        let fits = perfect::bytes_for::<K, I>(keys) as u64 <= cx.machine.l2 / 4 * 3;
        let threads = cx.workers.threads().min(cx.machine.cores);
        let probes = keys.saturating_mul(LONG).saturating_mul(threads.max(1));
        let long = if cx.overrides.tiny_partitions { 1 } else { probes };
        (unique && fits && keys > 0 && cx.budget.unlimited()).then(|| Again {
            budget: Arc::clone(&cx.budget),
            keys,
            long,
            probed: AtomicUsize::new(0),
            table: OnceLock::new(),
        })
    }

    /// Counts probe keys, and returns the second layout if it exists. The worker that reaches the threshold
    /// creates it with `make`, while all others continue without it.
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
    /// Builds the table from partitions by the top `bits` bits, at least one, on all workers. If the context
    /// limits searches, it fails with [`Error::BadSeed`] when a search exceeds the limit, or when a region
    /// has far more keys than are likely by chance.
    pub(crate) fn build(
        cx: &Context<'_>,
        partitions: &Partitions<K, I>,
        bits: u32,
    ) -> Result<Self> {
        // Different keys are spread almost evenly, and the slots suffice for the random variation. If a partition has
        // more tuples than these slots, most of its tuples have equal keys.
        let average = (partitions.tuples.len() >> bits) + 32;
        let keys = partitions.tuples.len();
        if let Some(table) = Self::filled(cx, bits, average, |p| partitions.tuples(p))? {
            let again = Again::new(cx, keys, table.groups.is_empty());
            return Ok(HashTable { again, ..table });
        }
        if cx.bounded {
            return Err(Error::BadSeed);
        }
        // The keys may have been chosen to collide. Then build two regions, each with a slot for every tuple.
        log::debug!("keys are spread unevenly over {} regions; building with 2", 1u64 << bits);
        let middle = partitions.bounds[partitions.count() / 2];
        let (lower, upper) = partitions.tuples.split_at(middle);
        let half = |p: usize| if p == 0 { lower } else { upper };
        let table = Self::filled(cx, 1, lower.len().max(upper.len()), half)?;
        table.ok_or_else(|| Error::internal("a hash table was too small"))
    }

    /// Builds a table with regions for `most` keys each. Returns `None` if a region has more.
    fn filled<'t>(
        cx: &Context<'_>,
        bits: u32,
        most: usize,
        tuples: impl Fn(usize) -> &'t [Tuple<K, I>] + Sync,
    ) -> Result<Option<Self>> {
        // Under a memory limit, more slots must take only a small part of the free memory.
        let bytes = |room| ((buckets_for(most, room) << bits) * size_of::<Bucket<K, I>>()) as u64;
        let few = most << bits < FEW_KEYS && bytes(MORE_ROOM) <= cx.budget.left() / 8;
        let region = buckets_for(most, if few { MORE_ROOM } else { ROOM });
        let all = region << bits;
        let mut buckets = Buffer::uninit(all, &cx.budget, "the hash table")?;
        let mut many = Buffer::uninit(words_for(all * KEYS), &cx.budget, "the hash table")?;
        let shared: Shared<'_, Bucket<K, I>> = buckets.shared();
        let longest = if cx.bounded { LONGEST } else { usize::MAX };
        let groups = fill_all(cx, (1 << bits, tuples), many.shared(), |p| {
            // SAFETY: regions do not overlap, and each is one task.
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

    /// Appends one bit per word (placed) to `bits`: whether the table has it.
    pub(super) fn append_exists(&self, words: &[K], bits: &mut Vec<u64>) {
        // These lookups do not count as probes, because few of the rows come back as probe rows.
        match self.again.as_ref().and_then(|again| again.table.get()) {
            Some(Some(table)) => append_exists(table, words, bits),
            _ => append_exists(self, words, bits),
        }
    }

    /// For each key with more than `step` values, calls `pair` with its first value and every `step`th value.
    pub(crate) fn every(&self, step: usize, mut pair: impl FnMut(I, I)) {
        // Groups are stored one after the other. Each starts with its length.
        let mut at = 0;
        while at < self.groups.len() {
            let len = self.groups[at].to_usize();
            let group = &self.groups[at + 1..at + 1 + len];
            group.iter().skip(step).step_by(step).for_each(|&value| pair(group[0], value));
            at += 1 + len;
        }
    }

    /// Creates the second layout of all keys, which are unique.
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

/// A hash table over one partition at a time. The next partition uses the same memory.
pub(crate) struct LocalTable<K: KeyWord, I: RowId> {
    buckets: Buffer<Bucket<K, I>>,
    used: usize,
    bits: u32,
    many: Buffer<u64>,
    groups: Buffer<I>,
    /// The part of `groups` that the current partition uses.
    grouped: usize,
    /// The partition's keys in order, if they crowd in a few buckets.
    sorted: Option<SortedTable<K, I>>,
}

impl<K: KeyWord, I: RowId> LocalTable<K, I> {
    /// Allocates a table for partitions of up to `tuples` tuples, by the top `bits` bits, at least one.
    pub(crate) fn with_room(cx: &Context<'_>, tuples: usize, bits: u32) -> Result<Self> {
        let what = "a partition's hash table";
        let buckets = Buffer::zeroed(buckets_for(tuples, ROOM), &cx.budget, what)?;
        let many = Buffer::zeroed(words_for(buckets.len() * KEYS), &cx.budget, what)?;
        let groups = Buffer::zeroed(0, &cx.budget, "a partition's equal keys")?;
        Ok(LocalTable { buckets, used: 0, bits, many, groups, grouped: 0, sorted: None })
    }

    /// Clears the table and builds it from partition `p`.
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
            // The region is never full: it has a slot per tuple, and one more.
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
                // The old buffer is freed first, so that both are never held at once.
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

    /// All keys belong to the first of 64 regions, which is too small for them. Another seed spreads them. If
    /// no other seed does, the table has two regions.
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

//! Dense tables: integer keys of a dense range address their cell directly (perfect hashing in 001 §7.1).

use crate::context::Context;
use crate::error::Result;
use crate::memory::Buffer;
use crate::partition::{Partitions, RowId};
use crate::processor::prefetch;
use crate::table::bits::{self, words_for};
use crate::table::exists::append_exists;
use crate::table::fill::{Region, fill_all};
use crate::table::pairs::Pairs;
use crate::table::probe::{Ask, Cursor, Groups, Lookup, NEAR, ProbeResult, probe_batch};
use crate::table::probe_keys::ProbeKeys;
use crate::word::KeyWord;

/// An array with one cell per possible key.
pub(crate) struct DenseTable<K: KeyWord, I: RowId> {
    cells: Buffer<I>,
    /// One bit per cell: whether the key exists. `None` if every key of the range exists.
    there: Option<Buffer<u64>>,
    many: Buffer<u64>,
    groups: Buffer<I>,
    min: K,
}

/// The cells of one region while it is filled.
struct Cells<'a, I> {
    cells: &'a mut [I],
    there: &'a mut [u64],
    /// The first cell of the region, and how far the keys were shifted up.
    first: usize,
    up: u32,
}

impl<K: KeyWord, I: RowId> Region<K, I> for Cells<'_, I> {
    fn clear(&mut self) {
        self.there.fill(0);
    }

    fn places(&self) -> usize {
        // All cells may be taken: no search needs a free one.
        usize::MAX
    }

    fn taken(&self, word: usize) -> u64 {
        self.there[word]
    }

    #[inline(always)]
    fn enter<const MODERN: bool>(&mut self, key: K) -> (usize, bool) {
        let at = (key.to_u64() >> self.up) as usize - self.first;
        let known = bits::get(self.there, at);
        bits::set(self.there, at);
        (at, known)
    }

    #[inline(always)]
    fn value(&mut self, at: usize) -> &mut I {
        &mut self.cells[at]
    }
}

impl<K: KeyWord, I: RowId> DenseTable<K, I> {
    /// Builds the table from partitions by the top bits of ranged words. It has the cells `min..=max`. The
    /// words were shifted up by `up`. Each partition covers a multiple of 64 cells, or there is only one
    /// partition.
    pub(crate) fn build(
        cx: &Context<'_>,
        partitions: &Partitions<K, I>,
        (min, max): (K, K),
        up: u32,
    ) -> Result<Self> {
        let span = (max.to_u64() - min.to_u64()) as usize + 1;
        let what = "the dense table";
        let mut cells = Buffer::<I>::uninit(span, &cx.budget, what)?;
        let mut there = Buffer::<u64>::uninit(words_for(span), &cx.budget, what)?;
        let mut many = Buffer::<u64>::uninit(words_for(span), &cx.budget, what)?;
        // Partition p has the words whose distance from min is in p * width .. (p + 1) * width.
        let parts = partitions.count() as u128;
        let width = (1u128 << (K::BITS - up)).div_ceil(parts) as usize;
        let (shared, shared_there) = (cells.shared(), there.shared());
        let tuples = |p: usize| partitions.tuples(p);
        let groups = fill_all(cx, (partitions.count(), tuples), many.shared(), |p| {
            let range = (p * width).min(span)..((p + 1) * width).min(span);
            let words = words_for(range.start)..words_for(range.end);
            let first = range.start;
            // SAFETY: regions and their bits do not overlap, and each region is one task.
            let (cells, there) =
                unsafe { (shared.range(range), shared_there.range(words.clone())) };
            (Cells { cells, there, first, up }, words)
        })?;
        let groups = match groups {
            Some(groups) => groups,
            // Not reached: there is always a free cell.
            None => Buffer::uninit(0, &cx.budget, what)?,
        };
        let keys: usize = there.iter().map(|word| word.count_ones() as usize).sum();
        let there = (keys < span).then_some(there);
        Ok(DenseTable { cells, there, many, groups, min })
    }

    /// Appends one bit per word (not placed) to `bits`: whether the table has it.
    pub(super) fn append_exists(&self, words: &[K], bits: &mut Vec<u64>) {
        let full = Full { cells: &self.cells[..], min: self.min.to_u64() };
        match self.there.as_deref() {
            None => append_exists::<K, I, _>(&full, words, bits),
            Some(there) => append_exists::<K, I, _>(&Gaps { cells: full, there }, words, bits),
        }
    }

    /// Finds the pairs of probe keys (not placed) from the cursor on.
    pub(crate) fn probe<P: ProbeKeys<K>, B: RowId>(
        &self,
        keys: &P,
        ask: Ask<'_>,
        cursor: &mut Cursor,
        pairs: &mut Pairs<B>,
    ) {
        let groups = Groups { many: &self.many, values: &self.groups };
        let (cells, min) = (&self.cells[..], self.min.to_u64());
        // The check whether all cells are filled is outside the loop.
        match self.there.as_deref() {
            None => probe_batch(keys, &Full { cells, min }, groups, ask, (cursor, pairs)),
            Some(there) => {
                let gaps = Gaps { cells: Full { cells, min }, there };
                probe_batch(keys, &gaps, groups, ask, (cursor, pairs));
            }
        }
    }
}

/// Cells that are all filled.
struct Full<'t, I> {
    cells: &'t [I],
    min: u64,
}

impl<K: KeyWord, I: RowId> Lookup<K, I> for Full<'_, I> {
    #[inline(always)]
    fn locate(&self, key: K) -> usize {
        key.to_u64().wrapping_sub(self.min) as usize
    }

    #[inline(always)]
    fn fetch(&self, at: usize) {
        prefetch(self.cells.as_ptr().wrapping_add(at));
    }

    fn far(&self) -> bool {
        size_of_val(self.cells) > NEAR
    }

    #[inline(always)]
    fn find<const MODERN: bool, const EXPECTED: bool>(&self, _: K, at: usize) -> ProbeResult<I> {
        match self.cells.get(at) {
            Some(&value) => ProbeResult { at, value, hit: true },
            None => ProbeResult { at, value: I::default(), hit: false },
        }
    }
}

/// Cells of which some are empty.
struct Gaps<'t, I> {
    cells: Full<'t, I>,
    there: &'t [u64],
}

impl<K: KeyWord, I: RowId> Lookup<K, I> for Gaps<'_, I> {
    #[inline(always)]
    fn locate(&self, key: K) -> usize {
        self.cells.locate(key)
    }

    #[inline(always)]
    fn fetch(&self, at: usize) {
        Lookup::<K, I>::fetch(&self.cells, at);
    }

    fn far(&self) -> bool {
        Lookup::<K, I>::far(&self.cells)
    }

    #[inline(always)]
    fn find<const MODERN: bool, const EXPECTED: bool>(&self, key: K, at: usize) -> ProbeResult<I> {
        let found = Lookup::<K, I>::find::<MODERN, EXPECTED>(&self.cells, key, at);
        ProbeResult { hit: found.hit && bits::get(self.there, at), ..found }
    }
}

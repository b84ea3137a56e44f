//! The perfect array: integer keys of a dense range address their entry directly (001 §5).

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::algorithm::Context;
use crate::error::Result;
use crate::key::KeyWord;
use crate::memory::{Buffer, Shared};
use crate::partition::{Partitions, RowId, Words};
use crate::schedule::share;
use crate::table::cpu::{
    Ask, Cursor, Pairs, ProbeKeys, count_row, group_row, place_group, prefetch, running_starts,
    walk,
};

/// One cell a possible key.
pub(crate) struct DenseTable<K: KeyWord, I: RowId> {
    cells: Buffer<I>,
    groups: Buffer<I>,
    min: K,
}

impl<K: KeyWord, I: RowId> DenseTable<K, I> {
    /// Builds from partitions by the top `bits` bits of ranged words: cells `min..=max`, whose
    /// words were shifted up by `up`.
    pub(crate) fn build(
        cx: &Context<'_>,
        partitions: &Partitions<K, I>,
        (min, max): (K, K),
        up: u32,
    ) -> Result<Self> {
        let span = (max.to_u64() - min.to_u64()) as usize + 1;
        let mut cells = Buffer::<I>::stale(span, &cx.budget, "the dense table")?;
        let parts = partitions.count();
        // Partition p has the words whose distance from min lies in p * width ..+ width.
        let width = (1u128 << (K::BITS - up)).div_ceil(parts as u128) as usize;
        let region = |p: usize| (p * width).min(span)..((p + 1) * width).min(span);
        let cell = |key: K| (key.to_u64() >> up) as usize;
        let shared: Shared<'_, I> = cells.shared();
        let mut needs = vec![0usize; parts];
        let shared_needs = Shared::of(&mut needs);
        let workers = cx.workers.for_rows(partitions.tuples.len());
        workers.each(parts, |p, _| {
            let range = region(p);
            let first = range.start;
            // SAFETY: regions do not overlap, and each is one task's.
            let cells = unsafe { shared.range(range) };
            cells.fill(I::default());
            let tuples = partitions.tuples(p).iter();
            let need = tuples.map(|t| count_row(&mut cells[cell(t.key) - first], t.row)).sum();
            // SAFETY: each task has its own place.
            unsafe { shared_needs.write(p, need) };
            Ok(())
        })?;
        let total: usize = needs.iter().sum();
        let mut groups = Buffer::stale(total, &cx.budget, "rows with equal keys")?;
        if total > 0 {
            let starts = running_starts(&needs);
            let shared_groups = groups.shared();
            workers.each(parts, |p, _| {
                let range = region(p);
                let first = range.start;
                // SAFETY: regions and their parts of the groups do not overlap.
                let (cells, groups) = unsafe {
                    (shared.range(range), shared_groups.range(starts[p]..starts[p] + needs[p]))
                };
                let mut next = 0;
                for entry in cells.iter_mut() {
                    place_group(entry, groups, starts[p], &mut next);
                }
                for tuple in partitions.tuples(p) {
                    group_row(cells[cell(tuple.key) - first], tuple.row, groups, starts[p]);
                }
                Ok(())
            })?;
        }
        Ok(DenseTable { cells, groups, min })
    }

    /// Builds without partitioning, if no key comes twice: each row is stored in its key's cell,
    /// and as many cells are filled as there are rows. Else None, and nothing is lost but the time.
    pub(crate) fn scatter(
        cx: &Context<'_>,
        words: &Words<K>,
        (min, max): (K, K),
    ) -> Result<Option<Self>> {
        let span = (max.to_u64() - min.to_u64()) as usize + 1;
        if span < words.matchable {
            return Ok(None);
        }
        let mut cells = Buffer::<I>::stale(span, &cx.budget, "the dense table")?;
        let shared = cells.shared();
        let workers = cx.workers.for_rows(words.words.len().max(span));
        let threads = workers.threads();
        let part = |worker| share(span, threads, worker);
        workers.run(|worker| {
            // SAFETY: shares do not overlap.
            unsafe { shared.range(part(worker)) }.fill(I::default());
            Ok(())
        })?;
        workers.run(|worker| {
            for piece in words.share(threads, worker) {
                cx.workers.check()?;
                words.visit(piece, |row, word| {
                    let at = (word.to_u64() - min.to_u64()) as usize;
                    // SAFETY: all threads store atomically, and none reads.
                    unsafe { I::store(shared.cell(at), I::from_usize(row).with_top()) };
                });
            }
            Ok(())
        })?;
        let filled = AtomicUsize::new(0);
        workers.run(|worker| {
            // SAFETY: shares do not overlap.
            let cells = unsafe { shared.range(part(worker)) };
            let mine = cells.iter().filter(|&&cell| cell != I::default()).count();
            filled.fetch_add(mine, Ordering::Relaxed);
            Ok(())
        })?;
        let unique = filled.into_inner() == words.matchable;
        let groups = Buffer::stale(0, &cx.budget, "rows with equal keys")?;
        Ok(unique.then_some(DenseTable { cells, groups, min }))
    }

    /// Finds the pairs of probe keys (as they are, not placed) from the cursor on.
    pub(crate) fn probe<P: ProbeKeys<K>>(
        &self,
        keys: &P,
        ask: Ask<'_>,
        cursor: &mut Cursor,
        pairs: &mut Pairs,
    ) {
        let min = self.min.to_u64();
        let cells = &self.cells[..];
        let locate = |key: K| {
            let at = key.to_u64().wrapping_sub(min) as usize;
            if let Some(cell) = cells.get(at) {
                prefetch(cell);
            }
            at
        };
        let find = |_, at: usize| cells.get(at).copied().unwrap_or_default();
        walk(keys, &self.groups, ask, (cursor, pairs), locate, find);
    }
}

//! Radix partitioning on the CPU, with software write combining.
//!
//! Each worker owns a contiguous share of the input, and counts its tuples per partition. From the counts of
//! all workers, each worker gets its own output range in every partition. Then it scatters its tuples through
//! buffers of two cache lines per partition, with stores that bypass the cache (Balkesen et al.; 003 §IV-B).
//! Output ranges are in the order of workers, so a partition keeps the order of its rows.

use crate::context::Context;
use crate::error::{Error, Result};
use crate::input::Piece;
use crate::memory::{Buffer, Shared};
use crate::partition::words::Words;
use crate::partition::{Partitions, Payload, Placing, RowId, Tuple, top_bits};
use crate::processor::on_this_processor;
use crate::schedule::{Workers, share};
use crate::sort::WriteCombiner;
use crate::word::{KeyWord, Mixer};

/// The radix bits of each pass, from the top bits down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Passes(pub(crate) Vec<u32>);

impl Passes {
    /// Returns the bits of all passes together.
    pub(crate) fn bits(&self) -> u32 {
        self.0.iter().sum()
    }
}

/// The value that tuples get besides their key.
#[derive(Clone, Copy)]
pub(crate) enum Load<'a> {
    /// The row id.
    RowIds,
    /// The values of these inlined columns.
    Inlined(&'a dyn Payload),
}

/// Partitions the rows of a side that may match, by the top bits of their placed words.
pub(crate) fn partition<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    words: &Words<'_, K>,
    load: Load<'_>,
    placing: Placing<K>,
    passes: &Passes,
) -> Result<Partitions<K, I>> {
    // The match on the placing is outside the loops.
    let first = passes.0.first().copied().unwrap_or(0);
    let mut partitions = match placing {
        Placing::Mixed(mixer) => {
            first_pass(cx, (words, load), first, move |word: K| word.mix(mixer))?
        }
        Placing::Ranged { min, up } => {
            let place = move |word: K| Placing::Ranged { min, up }.place(word);
            first_pass(cx, (words, load), first, place)?
        }
    };
    let mut done = first;
    for &bits in passes.0.iter().skip(1) {
        partitions = next_pass(cx, partitions, done, bits)?;
        done += bits;
    }
    Ok(partitions)
}

impl Load<'_> {
    /// Returns the values of a piece's rows, in row order.
    fn of_piece<'a, I: RowId>(&'a self, piece: &Piece, scratch: &'a mut Vec<I>) -> &'a [I] {
        match self {
            Load::RowIds => {
                scratch.clear();
                let rows = piece.first_row..piece.first_row + piece.len;
                scratch.extend(rows.map(I::from_usize));
                scratch
            }
            Load::Inlined(columns) => I::payload(*columns, piece, scratch),
        }
    }
}

fn first_pass<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    (words, load): (&Words<'_, K>, Load<'_>),
    bits: u32,
    place: impl Fn(K) -> K + Copy + Sync,
) -> Result<Partitions<K, I>> {
    let fanout = 1usize << bits;
    let workers = cx.workers.for_rows(words.rows);
    let threads = workers.threads();
    let mut counts = counted(&workers, fanout, |worker, mine| {
        let mut scratch = Scratch::<K, I>::default();
        for piece in words.share(threads, worker) {
            if bits == 0 {
                // With a single counter, each increment would wait for the previous one.
                mine[0] += words.matchable_of(piece);
            } else {
                let (words, _) = scratch.rows(words, piece, &[])?;
                count(words, bits, &place, mine);
            }
        }
        Ok(())
    })?;
    let bounds = to_places(&mut counts, fanout, threads);
    let mut tuples = Buffer::uninit(words.matchable, &cx.budget, "partitioned tuples")?;
    let out = tuples.shared();
    workers.run(|worker| {
        let places = &counts[worker * fanout..(worker + 1) * fanout];
        let mut combiner = WriteCombiner::new(places);
        let (mut scratch, mut loaded) = (Scratch::<K, I>::default(), Vec::new());
        for piece in words.share(threads, worker) {
            cx.workers.check()?;
            let values = load.of_piece::<I>(&words.pieces[piece].0, &mut loaded);
            let rows = scratch.rows(words, piece, values)?;
            // SAFETY: by the counts, these output ranges belong to this worker alone.
            unsafe { scatter(rows, bits, &place, &mut combiner, &out) };
        }
        // SAFETY: as above.
        unsafe { combiner.flush(&out) };
        Ok(())
    })?;
    Ok(Partitions { tuples, bounds })
}

/// Counts the keys per partition, by the top bits of mixed keys.
pub(crate) fn count_column<K: KeyWord>(
    workers: &Workers,
    keys: &[K],
    mixer: Mixer<K>,
    bits: u32,
) -> Result<Vec<u64>> {
    let fanout = 1usize << bits;
    let workers = workers.for_rows(keys.len());
    let threads = workers.threads();
    let counts = counted(&workers, fanout, |worker, mine| {
        let place = |word: K| word.mix(mixer);
        count(&keys[share(keys.len(), threads, worker)], bits, &place, mine);
        Ok(())
    })?;
    let of = |partition: usize| counts.iter().skip(partition).step_by(fanout).sum::<usize>() as u64;
    Ok((0..fanout).map(of).collect())
}

/// Consecutive rows of a side, as columns in host memory.
#[derive(Clone, Copy)]
pub(crate) struct ColumnRows<'a, K> {
    pub(crate) keys: &'a [K],
    /// One value per row. Without values, the value of a row is its number in the side.
    pub(crate) values: Option<&'a [K]>,
    /// The number of the first row.
    pub(crate) first_row: u64,
}

/// Partitions rows into the memory `to`, by the top `bits` bits of their mixed keys. Returns the start of each
/// partition, and the end of the last one.
pub(crate) fn partition_columns<K: KeyWord + RowId>(
    workers: &Workers,
    columns: ColumnRows<'_, K>,
    mixer: Mixer<K>,
    bits: u32,
    to: &mut [Tuple<K, K>],
) -> Result<Vec<usize>> {
    /// The number of rows between two checks for cancellation.
    const PIECE: usize = 16 * 1024;
    let ColumnRows { keys, values, first_row } = columns;
    if to.len() != keys.len() || values.is_some_and(|values| values.len() != keys.len()) {
        return Err(Error::internal("columns and tuples differ in length"));
    }
    let fanout = 1usize << bits;
    let workers = workers.for_rows(keys.len());
    let threads = workers.threads();
    let pieces = |worker: usize| {
        let mine = share(keys.len(), threads, worker);
        mine.clone().step_by(PIECE).map(move |at| at..(at + PIECE).min(mine.end))
    };
    let place = |word: K| word.mix(mixer);
    let mut counts = counted(&workers, fanout, |worker, mine| {
        pieces(worker).for_each(|rows| count(&keys[rows], bits, &place, mine));
        Ok(())
    })?;
    let bounds = to_places(&mut counts, fanout, threads);
    let out = Shared::of(to);
    workers.run(|worker| {
        let places = &counts[worker * fanout..(worker + 1) * fanout];
        let mut combiner = WriteCombiner::new(places);
        let mut numbers = Vec::new();
        for rows in pieces(worker) {
            workers.check()?;
            let values = match values {
                Some(values) => &values[rows.clone()],
                None => {
                    numbers.clear();
                    let of = |row: usize| <K as RowId>::from_u64(first_row + row as u64);
                    numbers.extend(rows.clone().map(of));
                    &numbers
                }
            };
            // SAFETY: by the counts, these output ranges belong to this worker alone.
            unsafe { scatter((&keys[rows], values), bits, &place, &mut combiner, &out) };
        }
        // SAFETY: as above.
        unsafe { combiner.flush(&out) };
        Ok(())
    })?;
    Ok(bounds)
}

/// Buffers for the words of a piece, and for the words and values of its rows that may match, if not all may.
#[derive(Default)]
struct Scratch<K, I> {
    all: Vec<K>,
    words: Vec<K>,
    values: Vec<I>,
}

impl<K: KeyWord, I: RowId> Scratch<K, I> {
    /// Returns the words and values of a piece's rows that may match: in place if all may, otherwise
    /// compacted.
    fn rows<'a>(
        &'a mut self,
        words: &'a Words<'_, K>,
        piece: usize,
        values: &'a [I],
    ) -> Result<(&'a [K], &'a [I])> {
        let (all, valid) = words.of_piece(piece, &mut self.all)?;
        let Some(valid) = valid else { return Ok((all, values)) };
        self.words.clear();
        self.words.extend(valid.valid_indices().map(|i| all[i]));
        self.values.clear();
        self.values.extend(valid.valid_indices().filter_map(|i| values.get(i)).copied());
        Ok((&self.words, &self.values))
    }
}

/// Returns the counts of all workers, `fanout` numbers per worker. A worker counts in its own memory and
/// copies the counts at the end. If workers counted in the same cache lines, they would slow each other down.
fn counted(
    workers: &Workers,
    fanout: usize,
    count: impl Fn(usize, &mut [usize]) -> Result<()> + Sync,
) -> Result<Vec<usize>> {
    let mut counts = vec![0usize; workers.threads() * fanout];
    let shared = Shared::of(&mut counts);
    workers.run(|worker| {
        let mut mine = vec![0usize; fanout];
        count(worker, &mut mine)?;
        // SAFETY: each worker writes its own row.
        unsafe { shared.range(worker * fanout..(worker + 1) * fanout) }.copy_from_slice(&mine);
        Ok(())
    })?;
    Ok(counts)
}

/// The number of words that are placed before they are counted or scattered. In a loop of its own, the
/// placing uses vector instructions.
const AT_ONCE: usize = 256;

/// Counts the words per partition.
fn count<K: KeyWord>(words: &[K], bits: u32, place: &impl Fn(K) -> K, counts: &mut [usize]) {
    #[inline(always)]
    fn each<K: KeyWord, F: Fn(K) -> K>(words: &[K], bits: u32, place: &F, counts: &mut [usize]) {
        let mut digits = [0u32; AT_ONCE];
        for some in words.chunks(AT_ONCE) {
            for (digit, &word) in digits.iter_mut().zip(some) {
                *digit = top_bits(place(word), bits) as u32;
            }
            for &digit in &digits[..some.len()] {
                counts[digit as usize] += 1;
            }
        }
    }
    on_this_processor!(each(words, bits, place, counts) where
        [K: KeyWord, F: Fn(K) -> K](words: &[K], bits: u32, place: &F, counts: &mut [usize]))
}

/// Scatters words and their values to their partitions.
///
/// # Safety
/// As for [`WriteCombiner::push`].
unsafe fn scatter<K: KeyWord, I: RowId>(
    (words, values): (&[K], &[I]),
    bits: u32,
    place: &impl Fn(K) -> K,
    combiner: &mut WriteCombiner<Tuple<K, I>>,
    out: &Shared<'_, Tuple<K, I>>,
) {
    #[inline(always)]
    fn each<K: KeyWord, I: RowId, F: Fn(K) -> K>(
        (words, values): (&[K], &[I]),
        bits: u32,
        place: &F,
        combiner: &mut WriteCombiner<Tuple<K, I>>,
        out: &Shared<'_, Tuple<K, I>>,
    ) {
        let mut keys = [K::from_u64(0); AT_ONCE];
        for (words, values) in words.chunks(AT_ONCE).zip(values.chunks(AT_ONCE)) {
            for (key, &word) in keys.iter_mut().zip(words) {
                *key = place(word);
            }
            for (&key, &row) in keys[..words.len()].iter().zip(values) {
                // SAFETY: guaranteed by the caller.
                unsafe { combiner.push(top_bits(key, bits), Tuple { key, row }, out) };
            }
        }
    }
    let rows = (words, values);
    on_this_processor!(each(rows, bits, place, combiner, out) where
    [K: KeyWord, I: RowId, F: Fn(K) -> K]
    (
        rows: (&[K], &[I]), bits: u32, place: &F,
        combiner: &mut WriteCombiner<Tuple<K, I>>, out: &Shared<'_, Tuple<K, I>>,
    ))
}

/// Splits every partition by the next `bits` bits.
fn next_pass<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    coarse: Partitions<K, I>,
    done: u32,
    bits: u32,
) -> Result<Partitions<K, I>> {
    let fanout = 1usize << bits;
    let mut tuples = Buffer::uninit(coarse.tuples.len(), &cx.budget, "a second partitioning pass")?;
    let mut bounds = vec![0usize; coarse.count() * fanout + 1];
    let last = coarse.tuples.len();
    bounds[coarse.count() * fanout] = last;
    let out = tuples.shared();
    let starts = Shared::of(&mut bounds[..coarse.count() * fanout]);
    let digit = |key: K| top_bits(key, done + bits) & (fanout - 1);
    cx.workers.for_rows(last).each(coarse.count(), |partition, _| {
        let range = coarse.range(partition);
        // SAFETY: each partition is one task, and has its own row.
        let places = unsafe { starts.range(partition * fanout..(partition + 1) * fanout) };
        for tuple in &coarse.tuples[range.clone()] {
            places[digit(tuple.key)] += 1;
        }
        let mut at = range.start;
        for place in places.iter_mut() {
            at += std::mem::replace(place, at);
        }
        let mut combiner = WriteCombiner::new(places);
        for &tuple in &coarse.tuples[range] {
            // SAFETY: the counts give each digit its own output range inside this partition's range.
            unsafe { combiner.push(digit(tuple.key), tuple, &out) };
        }
        // SAFETY: as above.
        unsafe { combiner.flush(&out) };
        Ok(())
    })?;
    Ok(Partitions { tuples, bounds })
}

/// Turns counts (one row per worker) into output positions, by partition and then by worker. Returns the
/// start of each partition, and the end of the last one.
fn to_places(counts: &mut [usize], fanout: usize, threads: usize) -> Vec<usize> {
    let mut bounds = Vec::with_capacity(fanout + 1);
    let mut at = 0;
    for digit in 0..fanout {
        bounds.push(at);
        for worker in 0..threads {
            let count = &mut counts[worker * fanout + digit];
            at += std::mem::replace(count, at);
        }
    }
    bounds.push(at);
    bounds
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn columns_come_to_lie_in_their_partitions() {
        /// Aligned to 64 bytes, so that the combiner streams whole lines.
        #[repr(align(64))]
        struct Room([Tuple<u64, u64>; 50_000]);
        let keys: Vec<u64> = (0..50_000).map(|i| i * i).collect();
        for (threads, bits) in [(1, 0), (2, 3), (3, 8)] {
            let workers = Workers::new(threads, Arc::default());
            let mut room = Box::new(Room([Tuple::default(); 50_000]));
            let (mixer, to) = (Mixer::new(bits.into()), &mut room.0);
            let columns = ColumnRows { keys: &keys, values: None, first_row: 7 };
            let bounds = partition_columns(&workers, columns, mixer, bits, to).unwrap();
            assert_eq!(bounds.len(), (1 << bits) + 1);
            for (partition, bound) in bounds.windows(2).enumerate() {
                for tuple in &room.0[bound[0]..bound[1]] {
                    assert_eq!(top_bits(tuple.key, bits), partition);
                    assert_eq!(tuple.key, keys[tuple.row as usize - 7].mix(mixer));
                }
            }
            let mut rows: Vec<u64> = room.0.iter().map(|tuple| tuple.row).collect();
            rows.sort_unstable();
            assert!(rows.iter().copied().eq(7..50_007));
        }
        let workers = Workers::new(1, Arc::default());
        let columns = ColumnRows { keys: &keys, values: None, first_row: 0 };
        assert!(partition_columns(&workers, columns, Mixer::new(1), 1, &mut []).is_err());
    }
}

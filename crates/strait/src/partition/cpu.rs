//! Radix partitioning on the CPU, with software write combining.
//!
//! Each worker owns a contiguous share of the input. It counts its digits; the counts of all give
//! every worker its own place in every partition; then it scatters, a cache line a partition at a
//! time, with stores that bypass the cache (Balkesen et al.; 003 §IV-B). Since places are given in
//! the order of workers, a partition keeps the order of its rows.

use crate::algorithm::Context;
use crate::error::Result;
use crate::key::KeyWord;
use crate::memory::{Buffer, Shared};
use crate::partition::words::Words;
use crate::partition::{Partitions, Placing, RowId, Tuple, top_bits};
use crate::sort::WriteCombiner;

/// The radix bits of each pass, from the top bits down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Passes(pub(crate) Vec<u32>);

impl Passes {
    /// The bits of all passes together.
    pub(crate) fn bits(&self) -> u32 {
        self.0.iter().sum()
    }
}

/// Partitions the rows of a side that may match by the top bits of their placed words.
pub(crate) fn partition<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    words: &Words<K>,
    placing: Placing<K>,
    passes: &Passes,
) -> Result<Partitions<K, I>> {
    // The placing is decided outside the loops.
    let first = passes.0.first().copied().unwrap_or(0);
    let mut partitions = match placing {
        Placing::Mixed => first_pass(cx, words, first, |word: K| word.mix())?,
        ranged => first_pass(cx, words, first, move |word: K| ranged.place(word))?,
    };
    let mut done = first;
    for &bits in passes.0.iter().skip(1) {
        partitions = next_pass(cx, partitions, done, bits)?;
        done += bits;
    }
    Ok(partitions)
}

fn first_pass<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    words: &Words<K>,
    bits: u32,
    place: impl Fn(K) -> K + Copy + Sync,
) -> Result<Partitions<K, I>> {
    let fanout = 1usize << bits;
    let workers = cx.workers.for_rows(words.words.len());
    let threads = workers.threads();
    let mut counts = vec![0usize; threads * fanout];
    let shared = Shared::of(&mut counts);
    workers.run(|worker| {
        // SAFETY: each worker takes its own row.
        let mine = unsafe { shared.range(worker * fanout..(worker + 1) * fanout) };
        for piece in words.share(threads, worker) {
            if bits == 0 {
                // One counter would make each step wait for the one before.
                mine[0] += words.matchable_of(piece);
            } else {
                words.visit(piece, |_, word| mine[top_bits(place(word), bits)] += 1);
            }
        }
        Ok(())
    })?;
    let bounds = to_places(&mut counts, fanout, threads);
    let mut tuples = Buffer::stale(words.matchable, &cx.budget, "partitioned tuples")?;
    let out = tuples.shared();
    workers.run(|worker| {
        let places = &counts[worker * fanout..(worker + 1) * fanout];
        let mut combiner = WriteCombiner::new(places);
        for piece in words.share(threads, worker) {
            cx.workers.check()?;
            words.visit(piece, |row, word| {
                let key = place(word);
                let tuple = Tuple { key, row: I::from_usize(row) };
                // SAFETY: the counts gave this worker's digits these places alone.
                unsafe { combiner.push(top_bits(key, bits), tuple, &out) };
            });
        }
        // SAFETY: as above.
        unsafe { combiner.flush(&out) };
        Ok(())
    })?;
    Ok(Partitions { tuples, bounds })
}

/// Splits every partition by the next `bits` bits.
fn next_pass<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    coarse: Partitions<K, I>,
    done: u32,
    bits: u32,
) -> Result<Partitions<K, I>> {
    let fanout = 1usize << bits;
    let mut tuples = Buffer::stale(coarse.tuples.len(), &cx.budget, "a second partitioning pass")?;
    let mut bounds = vec![0usize; coarse.count() * fanout + 1];
    let last = coarse.tuples.len();
    bounds[coarse.count() * fanout] = last;
    let out = tuples.shared();
    let starts = Shared::of(&mut bounds[..coarse.count() * fanout]);
    let digit = |key: K| top_bits(key, done + bits) & (fanout - 1);
    cx.workers.for_rows(last).each(coarse.count(), |partition, _| {
        let range = coarse.range(partition);
        // SAFETY: each partition takes its own row.
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
            // SAFETY: the counts give each digit its own place inside this partition's range.
            unsafe { combiner.push(digit(tuple.key), tuple, &out) };
        }
        // SAFETY: as above.
        unsafe { combiner.flush(&out) };
        Ok(())
    })?;
    Ok(Partitions { tuples, bounds })
}

/// Turns counts (a row a worker) into places, partition after partition and worker after worker,
/// and answers where each partition begins.
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

//! Sorts a side by key, on all workers.
//!
//! There are two kinds of passes. In a *wide* pass, all workers together distribute the tuples to up to two
//! thousand buckets, by the leading digit of the key. Then each worker sorts one bucket after the other in
//! its cache ([`cached`](super::cached)). So tuples are moved through memory twice, however wide the key is.
//! A bucket that is too large for one worker first takes another wide pass.
//!
//! ```text
//! tuples ── wide pass ──► scratch  [ bucket 0 | bucket 1 | … ]   sorted in place
//!                                          │ too large
//!                         tuples   ◄─ wide pass ┘  [ 1.0 | 1.1 | … ] ── sorted into scratch
//! ```
//!
//! The digit is taken from the key's distance from the smallest key, with as many bits as the largest key
//! needs. So leading bits that all keys share cost nothing. The smallest and the largest key are those of a
//! sample. Keys outside this range (strays) go to two extra buckets, so that a few strays do not spoil the
//! digit. If there are many strays, the exact range is found first. In either case, a bucket inside the range
//! has fewer differing bits, and a stray bucket has at most a quarter of the tuples. So the wide passes end.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::cached::CachedSort;
use super::digit::{Digit, bounds};
use super::scatter::WriteCombiner;
use crate::error::Result;
use crate::memory::{Budget, Buffer, Shared};
use crate::partition::{RowId, Tuple};
use crate::schedule::{Workers, share};
use crate::word::KeyWord;

/// Up to this length, the standard library's sort needs no memory except the stack.
pub(super) const PLAIN: usize = 256;
/// Up to this length, one thread sorts within its second-level cache.
pub(super) const CACHED: usize = 1 << 15;
/// Output up to this size stays in the cache, so streaming stores would be slower.
const STREAMED_FROM: usize = 4 << 20;
/// The number of rows between two checks for cancellation.
const MORSEL: usize = 1 << 16;

/// Sorts by key. Tuples with equal keys keep their order.
///
/// Keys must be below 2^`bits`. Sorted input is returned unchanged. Scratch memory of the input's size is
/// reserved only if the input is neither sorted nor tiny. One of the two buffers is returned, the other is
/// freed. It uses a little more memory for speed if the budget has it.
pub(crate) fn sort<K: KeyWord, I: RowId>(
    mut tuples: Buffer<Tuple<K, I>>,
    bits: u32,
    workers: &Workers,
    budget: &Arc<Budget>,
) -> Result<Buffer<Tuple<K, I>>> {
    let len = tuples.len();
    if bits == 0 || is_sorted(&tuples, workers)? {
        return Ok(tuples);
    }
    if len <= PLAIN {
        tuples.sort_by_key(|t| t.key);
        return Ok(tuples);
    }
    let mut scratch = Buffer::uninit(len, budget, "sorting by key")?;
    if len <= CACHED {
        CachedSort::new().sort(&mut tuples, &mut scratch, false);
        return Ok(tuples);
    }
    let mut wide = WideSort {
        buffers: [tuples.shared(), scratch.shared()],
        workers: workers.for_rows(len),
        shared_from: (len / (4 * workers.threads())).clamp(CACHED, u32::MAX as usize),
        tasks: Vec::new(),
    };
    wide.pass(0..len, 0)?;
    wide.finish(budget)?;
    Ok(scratch)
}

/// Returns whether keys are in ascending order.
pub(crate) fn is_sorted<K: KeyWord, I: RowId>(
    tuples: &[Tuple<K, I>],
    workers: &Workers,
) -> Result<bool> {
    // Most unsorted inputs are found by their first tuples, without starting threads.
    let (start, rest) = (&tuples[..tuples.len().min(PLAIN)], tuples.len().saturating_sub(PLAIN));
    if rest == 0 || !start.is_sorted_by_key(|t| t.key) {
        return Ok(start.is_sorted_by_key(|t| t.key));
    }
    let workers = workers.for_rows(tuples.len());
    let sorted = AtomicBool::new(true);
    workers.run(|worker| {
        let mine = share(tuples.len(), workers.threads(), worker);
        for start in mine.clone().step_by(MORSEL) {
            // One tuple more than the morsel, so that every pair of neighbours is compared.
            let end = (start + MORSEL).min(mine.end).min(tuples.len() - 1) + 1;
            if !sorted.load(Ordering::Relaxed) {
                break;
            }
            workers.check()?;
            if !tuples[start..end].is_sorted_by_key(|t| t.key) {
                sorted.store(false, Ordering::Relaxed);
            }
        }
        Ok(())
    })?;
    Ok(sorted.into_inner())
}

/// A sort between two buffers. The result goes to the second buffer.
struct WideSort<'a, K, I> {
    buffers: [Shared<'a, Tuple<K, I>>; 2],
    workers: Workers,
    /// Buckets larger than this take another wide pass.
    shared_from: usize,
    tasks: Vec<Task>,
}

/// A bucket that one worker finishes.
struct Task {
    range: Range<usize>,
    /// The buffer that it is in.
    from: usize,
    /// Whether all its keys are equal.
    sorted: bool,
}

impl<K: KeyWord, I: RowId> WideSort<'_, K, I> {
    /// Distributes `range` of buffer `from` to buckets in the other buffer, and handles each bucket.
    fn pass(&mut self, range: Range<usize>, from: usize) -> Result<()> {
        // SAFETY: only this sort has access to the buffers, and no pass is running.
        let data: &[_] = unsafe { self.buffers[from].range(range.clone()) };
        let mut digit = Digit::sampled(data);
        let mut counts = self.count(data, digit)?;
        if strays(&counts, digit) > data.len() as u64 / 4 {
            digit = self.exact(data)?;
            counts = self.count(data, digit)?;
        }
        let ends = to_starts(&mut counts, digit.buckets(), range.start);
        self.scatter(data, digit, &counts, 1 - from)?;
        let mut start = range.start;
        for (bucket, end) in ends.into_iter().enumerate() {
            self.bucket(start..end, 1 - from, digit.is_one_key(bucket))?;
            start = end;
        }
        Ok(())
    }

    /// Handles a bucket in buffer `from`: with another wide pass, or as tasks for single workers.
    fn bucket(&mut self, range: Range<usize>, from: usize, sorted: bool) -> Result<()> {
        if range.is_empty() || (sorted && from == 1) {
            return Ok(());
        }
        if !sorted && range.len() > self.shared_from {
            return self.pass(range, from);
        }
        let step = if sorted { CACHED } else { range.len() };
        for start in range.clone().step_by(step) {
            let range = start..(start + step).min(range.end);
            self.tasks.push(Task { range, from, sorted });
        }
        Ok(())
    }

    /// Sorts all buckets into the second buffer.
    fn finish(&self, budget: &Arc<Budget>) -> Result<()> {
        let bench = |_| {
            // A small buffer that is used again and again stays in the cache. If the budget has no memory
            // left, the other large buffer is used, at the cost of memory traffic.
            let room = Buffer::uninit(CACHED, budget, "sorting by key").ok();
            Mutex::new((CachedSort::new(), room))
        };
        let benches: Vec<_> = (0..self.workers.threads()).map(bench).collect();
        self.workers.each(self.tasks.len(), |task, worker| {
            let Task { ref range, from, sorted } = self.tasks[task];
            // SAFETY: buckets are disjoint, and each is one task.
            let data = unsafe { self.buffers[from].range(range.clone()) };
            // SAFETY: as above; this part of the other buffer belongs to the same bucket.
            let other = unsafe { self.buffers[1 - from].range(range.clone()) };
            let (sorter, room) = &mut *benches[worker].lock().unwrap_or_else(|e| e.into_inner());
            let len = data.len();
            match room {
                _ if sorted => other.copy_from_slice(data),
                Some(room) if from == 1 && len <= CACHED => {
                    sorter.sort(data, &mut room[..len], false);
                }
                _ => sorter.sort(data, other, from == 0),
            }
            Ok(())
        })
    }

    /// Counts the tuples of each worker's share per bucket, one row per worker.
    fn count(&self, data: &[Tuple<K, I>], digit: Digit) -> Result<Vec<u64>> {
        let (threads, buckets) = (self.workers.threads(), digit.buckets());
        let mut counts = vec![0; threads * buckets];
        let rows = Shared::of(&mut counts);
        self.workers.run(|worker| {
            let mut mine = vec![0u64; buckets];
            for morsel in data[share(data.len(), threads, worker)].chunks(MORSEL) {
                self.workers.check()?;
                for tuple in morsel {
                    mine[digit.of(tuple.key.to_u64())] += 1;
                }
            }
            // SAFETY: each worker has its own row.
            let row = unsafe { rows.range(worker * buckets..(worker + 1) * buckets) };
            row.copy_from_slice(&mine);
            Ok(())
        })?;
        Ok(counts)
    }

    /// Writes each worker's share to its positions in `starts`.
    fn scatter(&self, data: &[Tuple<K, I>], digit: Digit, starts: &[u64], to: usize) -> Result<()> {
        let (threads, buckets) = (self.workers.threads(), digit.buckets());
        let out = self.buffers[to];
        let streamed = size_of_val(data) >= STREAMED_FROM;
        self.workers.run(|worker| {
            let mut starts: Vec<usize> =
                starts[worker * buckets..][..buckets].iter().map(|&s| s as usize).collect();
            let mut combiner = WriteCombiner::new(if streamed { &starts } else { &[] });
            for morsel in data[share(data.len(), threads, worker)].chunks(MORSEL) {
                self.workers.check()?;
                for tuple in morsel {
                    let bucket = digit.of(tuple.key.to_u64());
                    if streamed {
                        // SAFETY: the bucket was counted, and its positions were reserved for this worker.
                        unsafe { combiner.push(bucket, *tuple, &out) };
                    } else {
                        // SAFETY: as above.
                        unsafe { out.write(starts[bucket], *tuple) };
                        starts[bucket] += 1;
                    }
                }
            }
            // SAFETY: as above.
            unsafe { combiner.flush(&out) };
            Ok(())
        })
    }

    /// Returns the digit for the exact smallest and largest key.
    fn exact(&self, data: &[Tuple<K, I>]) -> Result<Digit> {
        let (least, greatest) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        self.workers.run(|worker| {
            let mine = &data[share(data.len(), self.workers.threads(), worker)];
            let (low, high) = bounds(mine.iter());
            least.fetch_min(low, Ordering::Relaxed);
            greatest.fetch_max(high, Ordering::Relaxed);
            Ok(())
        })?;
        Ok(Digit::new(least.into_inner(), greatest.into_inner(), data.len()))
    }
}

/// Returns the number of tuples outside the digit's range.
fn strays(counts: &[u64], digit: Digit) -> u64 {
    let buckets = digit.buckets();
    counts.chunks(buckets).map(|row| row[0] + row[buckets - 1]).sum()
}

/// Turns counts into the positions where each worker's tuples of a bucket start, from `start` on. They are
/// ordered by bucket and then by worker, so that equal keys keep their order. Returns the ends of the
/// buckets.
fn to_starts(counts: &mut [u64], buckets: usize, start: usize) -> Vec<usize> {
    let mut at = start as u64;
    let ends = (0..buckets).map(|bucket| {
        for row in counts.chunks_mut(buckets) {
            at += std::mem::replace(&mut row[bucket], at);
        }
        at as usize
    });
    ends.collect()
}

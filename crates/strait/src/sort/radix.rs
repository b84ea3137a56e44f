//! Sorting a side by key, on all workers.
//!
//! Two kinds of pass. A *wide* one, by all workers together, sends the tuples to up to two thousand
//! buckets by the leading digit of the key; then each worker sorts bucket after bucket in its cache
//! ([`cached`](super::cached)). So tuples cross memory twice, however wide the key. A bucket that
//! came out too large for one worker takes another wide pass first.
//!
//! ```text
//! tuples ── wide pass ──► scratch  [ bucket 0 | bucket 1 | … ]   sorted where they lie
//!                                          │ too large
//!                         tuples   ◄─ wide pass ┘  [ 1.0 | 1.1 | … ] ── sorted into scratch
//! ```
//!
//! The digit is that of the key's distance from the least, in as many bits as the greatest needs:
//! leading bits that all keys share cost nothing. Least and greatest are those of a sample. Keys
//! outside go to two buckets of their own, so that a few strays do not spoil the digit; if they are
//! not few, the exact bounds are found first. Either way a bucket of the range is narrower by the
//! digit's width and a bucket of strays has a quarter of the tuples at most, so wide passes end.

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

/// Up to here the standard library's sort needs no memory but the stack.
pub(super) const PLAIN: usize = 256;
/// Up to here one thread sorts within its second-level cache.
pub(super) const CACHED: usize = 1 << 15;
/// Destinations up to here stay in the cache, and storing past it would lose.
const STREAMED_FROM: usize = 4 << 20;
/// How many rows a worker looks at before it asks whether to go on.
const MORSEL: usize = 1 << 16;

/// Sorts by key; tuples of equal keys keep their order.
///
/// Keys are below 2^`bits`; which of those bits matter is found from the keys. Sorted input is
/// returned as it came. Scratch memory as large as the input is reserved only where the input is
/// neither sorted nor tiny; one of the two is returned and the other freed. A little more is used
/// for speed if the budget has it.
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

/// Whether keys never fall.
pub(crate) fn is_sorted<K: KeyWord, I: RowId>(
    tuples: &[Tuple<K, I>],
    workers: &Workers,
) -> Result<bool> {
    // Most unsorted inputs show it at once; no thread need start for them.
    let (start, rest) = (&tuples[..tuples.len().min(PLAIN)], tuples.len().saturating_sub(PLAIN));
    if rest == 0 || !start.is_sorted_by_key(|t| t.key) {
        return Ok(start.is_sorted_by_key(|t| t.key));
    }
    let workers = workers.for_rows(tuples.len());
    let sorted = AtomicBool::new(true);
    workers.run(|worker| {
        let mine = share(tuples.len(), workers.threads(), worker);
        for start in mine.clone().step_by(MORSEL) {
            // One more than the morsel, so that every neighbouring pair is looked at.
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

/// A sort under way between two buffers. The result goes to the second.
struct WideSort<'a, K, I> {
    buffers: [Shared<'a, Tuple<K, I>>; 2],
    workers: Workers,
    /// Buckets larger than this take another wide pass.
    shared_from: usize,
    tasks: Vec<Task>,
}

/// A bucket that one worker brings to its end.
struct Task {
    range: Range<usize>,
    /// The buffer it is in.
    from: usize,
    /// All of it is one key.
    sorted: bool,
}

impl<K: KeyWord, I: RowId> WideSort<'_, K, I> {
    /// Sends `range` of buffer `from` to buckets in the other, and sees to each of them.
    fn pass(&mut self, range: Range<usize>, from: usize) -> Result<()> {
        // SAFETY: only this sort has the buffers, and no pass is running.
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

    /// Sees to a bucket in buffer `from`.
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
            // A little memory used over and over stays in the cache. Where the budget has none
            // left, the other buffer does, at the cost of memory traffic.
            let room = Buffer::uninit(CACHED, budget, "sorting by key").ok();
            Mutex::new((CachedSort::new(), room))
        };
        let benches: Vec<_> = (0..self.workers.threads()).map(bench).collect();
        self.workers.each(self.tasks.len(), |task, worker| {
            let Task { ref range, from, sorted } = self.tasks[task];
            // SAFETY: buckets are disjoint, and each is one task.
            let data = unsafe { self.buffers[from].range(range.clone()) };
            // SAFETY: as above; the other buffer's part belongs to the same bucket.
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

    /// How many tuples of each worker's share go to each bucket: one row a worker.
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

    /// Writes each worker's share to where `starts` says its tuples go.
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
                        // SAFETY: a bucket that was counted, at places counted for this worker.
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

    /// The digit for the least and the greatest key there are.
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

/// How many tuples are outside the digit's range.
fn strays(counts: &[u64], digit: Digit) -> u64 {
    let buckets = digit.buckets();
    counts.chunks(buckets).map(|row| row[0] + row[buckets - 1]).sum()
}

/// Turns counts into the places where each worker's tuples of a bucket start, beginning at
/// `start`: bucket by bucket, workers in order, so that equal keys keep theirs. Returns the ends
/// of the buckets.
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

//! The sort-merge join (004 §3.3, 002 §3.3): sorts both sides by key, splits them by merge path, and merges
//! them.
//!
//! ```text
//!  build: words ─► sort ─┐   merge-path split     segment 0 ─► groups ─► matches ─► rows ─┐
//!                        ├─► at key boundaries ─► segment 1 ─► …                           ├─► in order
//!  probe: words ─► sort ─┘                        segment 2 ─► …                           ┘
//! ```
//!
//! Words sort in the same order as keys. Keys that do not fit a word are replaced by their ranks. Workers
//! take segments in order and send their rows in turn. So the output is sorted by key, including unmatched
//! rows. Rows with a null in their key come last.

use std::slice::Chunks;

use super::{Context, Job, for_widths, has_left, pair_cap, workers_with_scratch};
use crate::error::Result;
use crate::input::Relation;
use crate::matches::{FoundBy, Keep, KeyOrderWriter, Matcher, Unit};
use crate::memory::{Buffer, Reservation};
use crate::options::Side;
use crate::output::Emitter;
use crate::partition::{Load, Passes, Placing, RowId, Tuple, Words, key_words, partition};
use crate::progress::Stage;
use crate::sort::{groups, sort, split};
use crate::word::KeyWord;
use crate::word::Width;

/// Rows of both sides per segment, unless memory or the number of threads requires less.
const SEGMENT: usize = 128 * 1024;

pub(super) fn run(cx: &Context<'_>, mut job: Job<'_>) -> Result<()> {
    let probe = cx.watch.time("read probe side", || job.hold_probe(cx, job.spare))?;
    for_widths!(job.plan, join(cx, job, probe))
}

fn join<K: KeyWord, I: RowId>(cx: &Context<'_>, job: Job<'_>, probe: Relation) -> Result<()> {
    let build = job.build;
    cx.counters.enter(Stage::Partition, build.rows() + probe.rows());
    let [build_words, probe_words] = words::<K>(cx, &job, &probe)?;
    let (build_sorted, build_nulls, _build_nulls) = sorted::<K, I>(cx, build_words)?;
    let (probe_sorted, probe_nulls, _probe_nulls) = sorted::<K, I>(cx, probe_words)?;

    // The words are the keys or their ranks, so no match has to be verified.
    let matcher = job.matcher(cx, true, FoundBy::CpuMerge);
    let [build_unit, probe_unit] = job.held_units(cx, &matcher, &probe, None)?;
    let cap = pair_cap(cx, job.sink);
    let rows = build_sorted.len() + probe_sorted.len();
    let (workers, _scratch) = workers_with_scratch::<K>(cx, Some(rows as u64), 0, cap * 2)?;

    has_left(&cx.budget, job.spare / 2, "the rows of the output")?;
    // A join that spills runs this algorithm once per key range.
    job.sink.turn.restart();
    cx.counters.enter(Stage::Probe, rows as u64);
    let segment_rows = if cx.overrides.tiny_partitions { 8 } else { SEGMENT };
    let segments = split(&build_sorted, &probe_sorted, rows.div_ceil(segment_rows).max(1));
    let one = |index: usize, worker: usize| {
        let segment = &segments[index];
        let ends = job.sink.turn.ends_unless_kept();
        let mut emitter = Emitter::of_segment(job.sink, worker, index);
        let mut rows = KeyOrderWriter::new(&matcher, &build_unit, &probe_unit, cap, &mut emitter);
        for group in groups(&build_sorted, &probe_sorted, segment) {
            workers.check()?;
            rows.group(&build_sorted[group.a], &probe_sorted[group.b])?;
        }
        rows.finish()?;
        let done = (segment.a.len() + segment.b.len()) as u64;
        cx.counters.done.fetch_add(done, std::sync::atomic::Ordering::Relaxed);
        emitter.finish()?;
        ends.keep();
        Ok(())
    };
    cx.watch.time("merge", || workers.each(segments.len(), one))?;

    cx.counters.enter(Stage::Unmatched, 0);
    // These rows are the last segment of the ordered output.
    let mut emitter = Emitter::of_segment(job.sink, 0, segments.len());
    let [build_nulls, probe_nulls] = [&build_nulls, &probe_nulls].map(|rows| rows.chunks(cap));
    null_rows(&matcher, &build_unit, job.roles.build, build_nulls, &mut emitter)?;
    null_rows(&matcher, &probe_unit, job.roles.probe, probe_nulls, &mut emitter)?;
    emitter.finish()
}

/// Returns words of both sides that sort in the same order as the keys, build side first.
fn words<'a, K: KeyWord>(
    cx: &Context<'_>,
    job: &'a Job<'_>,
    probe: &'a Relation,
) -> Result<[Words<'a, K>; 2]> {
    let (side, build) = (job.build_side, job.build);
    if job.keys.exact() {
        return cx.watch.time("key words", || {
            let build = key_words(cx, job.keys, side, build)?;
            Ok([build, key_words(cx, job.keys, side.other(), probe)?])
        });
    }
    cx.watch.time("rank keys", || {
        let (left, right) = match side {
            Side::Left => (build, probe),
            Side::Right => (probe, build),
        };
        // Ranking holds the order of the keys, and the ranks.
        let rows = left.rows() + right.rows();
        let bytes = rows * 3 * size_of::<u64>() as u64;
        let _reserved = cx.budget.reserve(bytes, "ranking keys that do not fit a word")?;
        let (left_ranks, right_ranks) =
            job.keys.ranks(left.batches(), right.batches(), (&cx.workers, &cx.budget))?;
        let left = Words::of_ranks(cx, left, &left_ranks)?;
        let right = Words::of_ranks(cx, right, &right_ranks)?;
        Ok(if side == Side::Left { [left, right] } else { [right, left] })
    })
}

/// The tuples of a side sorted by key, its rows with a null key, and the reservation for those rows.
type Sorted<K, I> = (Buffer<Tuple<K, I>>, Vec<u64>, Reservation);

fn sorted<K: KeyWord, I: RowId>(cx: &Context<'_>, words: Words<'_, K>) -> Result<Sorted<K, I>> {
    let bits = words.range.map_or(0, |(_, max)| 64 - max.to_u64().leading_zeros());
    let as_they_are = Placing::Ranged { min: K::from_u64(0), up: 0 };
    let make = || partition::<K, I>(cx, &words, Load::RowIds, as_they_are, &Passes(Vec::new()));
    let tuples = cx.watch.time("make tuples", make)?;
    let null_bytes = (words.rows - words.matchable) * size_of::<u64>();
    let reserved = cx.budget.reserve(null_bytes as u64, "rows whose key has a null")?;
    let nulls = words.unmatchable();
    drop(words);
    let tuples = tuples.tuples;
    let sorted = cx.watch.time("sort", || sort(tuples, bits, &cx.workers, &cx.budget))?;
    Ok((sorted, nulls, reserved))
}

/// Writes rows that match nothing because their key has a null, chunk by chunk.
fn null_rows(
    matcher: &Matcher<'_>,
    unit: &Unit,
    keep: Keep,
    chunks: Chunks<'_, u64>,
    emitter: &mut Emitter<'_>,
) -> Result<()> {
    if matches!(keep, Keep::Nothing | Keep::Matched) {
        return Ok(());
    }
    for some in chunks {
        emitter.check()?;
        matcher.emit_alone(unit, some.to_vec(), keep == Keep::Marked, emitter)?;
    }
    Ok(())
}

//! The radix join (003, 004): partitions both sides in the same way until a build partition fits the cache.
//!
//! ```text
//!  build: words ─► partition ─┐
//!                             ├─► one table per partition, in the cache ─► matches ─► rows
//!  probe: words ─► partition ─┘
//! ```
//!
//! Each worker takes partitions. If a partition is so large (skew) that one worker would need longer than all
//! others, its table is built once and all workers share its probe tuples. (004 splits such partitions too.)

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{
    Context, Job, emit_all_by_flag, for_widths, pair_cap, spare_bytes, workers_with_scratch,
};
use crate::error::Result;
use crate::input::Relation;
use crate::matches::{FoundBy, Matcher, Unit};
use crate::memory::Refused;
use crate::output::{Emitter, SharedSink};
use crate::partition::{Load, Partitions, Passes, Placing, RowId, Tuple, key_words, partition};
use crate::progress::Stage;
use crate::schedule::Workers;
use crate::table::{Cursor, LocalTable, Pairs};
use crate::word::KeyWord;
use crate::word::Width;

/// Probe tuples of a large partition per task.
const SPLIT: usize = 64 * 1024;

pub(super) fn run(cx: &Context<'_>, mut job: Job<'_>) -> Result<()> {
    let probe = cx.watch.time("read probe side", || job.hold_probe(cx, 0))?;
    for_widths!(job.plan, join(cx, job, probe))
}

fn join<K: KeyWord, I: RowId>(cx: &Context<'_>, job: Job<'_>, probe: Relation) -> Result<()> {
    let (side, build) = (job.build_side, job.build);
    let passes = Passes(job.plan.details.radix_bits.clone());

    cx.counters.enter(Stage::Partition, build.rows() + probe.rows());
    let partitioned = |side, relation: &Relation| -> Result<Partitions<K, I>> {
        let words = cx.watch.time("key words", || key_words::<K>(cx, job.keys, side, relation))?;
        let placing = Placing::Mixed(job.keys.mixer());
        cx.watch.time("partition", || partition(cx, &words, Load::RowIds, placing, &passes))
    };
    let build_parts = partitioned(side, build)?;
    let probe_parts = partitioned(side.other(), &probe)?;

    let matcher = job.matcher(cx, job.keys.exact(), FoundBy::CpuLookup);
    let [build_unit, probe_unit] = job.held_units(cx, &matcher, &probe, None)?;
    let cap = pair_cap(cx, job.sink);
    let rows = build.rows() + probe.rows();
    let (workers, _scratch) = workers_with_scratch::<K>(cx, Some(rows), 0, cap)?;
    cx.counters.enter(Stage::Probe, probe_parts.tuples.len() as u64);
    let partitions = Joining {
        cx,
        workers,
        matcher: &matcher,
        build: &build_unit,
        probe: &probe_unit,
        sink: job.sink,
        cap,
        bits: passes.bits(),
    };
    cx.watch.time("join partitions", || partitions.run(&build_parts, &probe_parts))?;
    drop((build_parts, probe_parts));

    cx.counters.enter(Stage::Unmatched, build.rows() + probe.rows());
    cx.watch.time("unmatched rows", || {
        let with = (&partitions.workers, cap);
        emit_all_by_flag(with, &matcher, &probe_unit, job.roles.probe, job.sink)?;
        emit_all_by_flag(with, &matcher, &build_unit, job.roles.build, job.sink)
    })
}

/// Joins co-partitions.
struct Joining<'a> {
    cx: &'a Context<'a>,
    workers: Workers,
    matcher: &'a Matcher<'a>,
    build: &'a Unit,
    probe: &'a Unit,
    sink: &'a SharedSink<'a>,
    cap: usize,
    bits: u32,
}

impl Joining<'_> {
    fn run<K: KeyWord, I: RowId>(
        &self,
        build: &Partitions<K, I>,
        probe: &Partitions<K, I>,
    ) -> Result<()> {
        let threads = self.workers.threads();
        // A partition is large if one worker would still be busy with it when the others are done.
        let total = build.tuples.len() + probe.tuples.len();
        let large = (total / (4 * threads)).max(2 * SPLIT);
        let size = |p: usize| build.range(p).len() + probe.range(p).len();
        let (shared, own): (Vec<usize>, Vec<usize>) = (0..build.count())
            .filter(|&p| !build.range(p).is_empty() && !probe.range(p).is_empty())
            .partition(|&p| threads > 1 && size(p) > large);
        for p in shared {
            self.share(p, build.tuples(p), probe.tuples(p))?;
        }
        let most = own.iter().map(|&p| build.range(p).len()).max().unwrap_or(0);
        let next = AtomicUsize::new(0);
        let spare = spare_bytes(self.cx);
        self.workers.for_rows(total).run(|worker| {
            let mut emitter = Emitter::new(self.sink, worker);
            let (started, mut table) = emitter.start(spare, |spare, _| {
                let table = LocalTable::with_room(self.cx, most, self.bits)?;
                self.cx.budget.reserve(spare, "the output of several workers")?;
                Ok(table)
            })?;
            let mut pairs = Pairs::default();
            while let Some(&p) = own.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.workers.check()?;
                emitter.patiently(Refused::Fails, || table.build(self.cx, p, build.tuples(p)))?;
                self.pair(&table, probe.tuples(p), &mut pairs, &mut emitter)?;
            }
            // Another worker may wait for this memory while this worker counts as active.
            drop(table);
            drop(started);
            emitter.finish()
        })
    }

    /// Joins one partition on all workers: the table is built once, and the probe tuples are shared out.
    fn share<K: KeyWord, I: RowId>(
        &self,
        p: usize,
        build: &[Tuple<K, I>],
        probe: &[Tuple<K, I>],
    ) -> Result<()> {
        let mut emitter = Emitter::new(self.sink, 0);
        let mut table = emitter
            .patiently(Refused::Fails, || LocalTable::with_room(self.cx, build.len(), self.bits))?;
        emitter.patiently(Refused::Fails, || table.build(self.cx, p, build))?;
        // The workers have their own emitters. If this one stayed, it would count as one more worker.
        drop(emitter);
        self.workers.each(probe.len().div_ceil(SPLIT), |task, worker| {
            let range = task * SPLIT..((task + 1) * SPLIT).min(probe.len());
            let mut emitter = Emitter::new(self.sink, worker);
            self.pair(&table, &probe[range], &mut Pairs::default(), &mut emitter)?;
            emitter.finish()
        })
    }

    fn pair<K: KeyWord, I: RowId>(
        &self,
        table: &LocalTable<K, I>,
        probe: &[Tuple<K, I>],
        pairs: &mut Pairs<u64>,
        emitter: &mut Emitter<'_>,
    ) -> Result<()> {
        let ask = self.matcher.ask(self.build, self.cap);
        let mut cursor = Cursor::default();
        while !cursor.ended(&probe) {
            self.workers.check()?;
            table.probe(&probe, ask, &mut cursor, pairs);
            self.matcher.resolve(self.build, self.probe, pairs, emitter)?;
        }
        self.cx.counters.done.fetch_add(probe.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

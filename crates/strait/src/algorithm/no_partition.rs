//! The no-partitioning hash join (001 §5): one table over the build side, the probe side streamed.
//!
//! ```text
//!  build: words ─► partition ─► a region a partition, built in the cache ─► one table
//!  probe: morsel ─► words ─► lookups, prefetched in groups ─► matches ─► rows
//! ```
//!
//! The paper inserts into one table with atomics. We partition the build side first: regions are
//! then built in the cache and without atomics, and the probe side sees one table all the same.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::{Context, Job, for_widths, pair_cap, poisoned, reserve_scratch, sweep_all, wide_rows};
use crate::error::Result;
use crate::key::{KeyPlan, KeyWord, Width};
use crate::materialise::Columns;
use crate::output::Emitter;
use crate::partition::{Placing, RowId, Words, key_words, partition};
use crate::plan::{TableShape, table_shape};
use crate::progress::Stage;
use crate::table::{Ask, Cursor, DenseTable, HashTable, MorselKeys, Pairs, Table};

/// Probe rows a worker takes at a time.
const MORSEL: usize = 32 * 1024;

pub(super) fn run(cx: &Context<'_>, job: Job<'_>) -> Result<()> {
    let wide = wide_rows(cx, job.build.rows());
    for_widths!(job.keys.width(), wide, join(cx, job))
}

fn join<K: KeyWord, I: RowId>(cx: &Context<'_>, mut job: Job<'_>) -> Result<()> {
    let probe = job.stream_probe()?;
    let (keys_plan, roles, sink) = (job.keys, job.roles, job.sink);
    let matcher = job.matcher(cx, job.keys.exact());
    let (side, build) = (job.build_side, &job.build);

    cx.counters.enter(Stage::Partition, build.rows());
    let words = cx.watch.time("key words", || key_words::<K>(cx, job.keys, side, build))?;
    cx.counters.enter(Stage::Build, build.rows());
    let table = build_table::<K, I>(cx, &job, words)?;

    let gathered = job.sink.plan.gathered(side);
    let flatten = || Columns::of_relation(cx, build, &gathered);
    let build_columns = cx.watch.time("flatten build columns", flatten)?;
    let build_unit = matcher.unit(side, build_columns, build.batches(), job.roles.build)?;
    cx.counters.enter(Stage::Probe, probe.known_rows().unwrap_or(0));
    let cap = pair_cap(cx, job.sink);
    let _scratch = reserve_scratch::<K>(cx, MORSEL, cap)?;
    let probe = Mutex::new(probe);
    let ask = Ask { want: matcher.want(&build_unit), cap };
    let work = |_| {
        let mut emitter = Emitter::new(sink);
        let mut keys = MorselWords::<K>::default();
        let mut pairs = Pairs::default();
        loop {
            cx.workers.check()?;
            let Some(morsel) = probe.lock().map_err(poisoned)?.morsel(MORSEL)? else { break };
            keys.fill(keys_plan, &table, side.other(), &morsel.batch)?;
            let columns = Columns::of_batch(&morsel.batch, morsel.first_row);
            let batches = std::slice::from_ref(&morsel.batch);
            let unit = matcher.unit(side.other(), columns, batches, roles.probe)?;
            let morsel_keys = keys.view();
            let mut cursor = Cursor::default();
            while !cursor.ended(&morsel_keys) {
                cx.workers.check()?;
                table.probe(&morsel_keys, ask, &mut cursor, &mut pairs);
                matcher.settle(&build_unit, &unit, &mut pairs, &mut emitter)?;
            }
            matcher.sweep(&unit, roles.probe, 0..unit.rows, &mut emitter)?;
            cx.counters.done.fetch_add(unit.rows as u64, Ordering::Relaxed);
        }
        emitter.finish()
    };
    cx.watch.time("probe", || cx.workers.run(work))?;

    cx.counters.enter(Stage::Unmatched, build.rows());
    let sweep = || sweep_all(cx, &matcher, &build_unit, job.roles.build, job.sink);
    cx.watch.time("unmatched build rows", sweep)
}

/// Partitions the build side and fills the table from it. Words and tuples are gone afterwards.
fn build_table<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    job: &Job<'_>,
    words: Words<K>,
) -> Result<Table<K, I>> {
    let dense_candidate = job.keys.exact() && job.keys.dense_candidate();
    let range = words.range.filter(|_| dense_candidate).map(|(a, b)| (a.to_u64(), b.to_u64()));
    let slot = size_of::<crate::partition::Tuple<K, I>>();
    let shape = table_shape(words.matchable, range, slot, size_of::<I>(), cx.machine, cx.force);
    log::debug!("table: {shape:?}");
    match shape {
        TableShape::Hash { passes } => {
            let parts = cx.watch.time("partition build side", || {
                partition::<K, I>(cx, &words, Placing::Mixed, &passes)
            })?;
            drop(words);
            let build = || HashTable::build(cx, &parts, passes.bits());
            Ok(Table::Hash(cx.watch.time("build table", build)?))
        }
        TableShape::Dense { min, max, passes } => {
            let (min, max) = (K::from_u64(min), K::from_u64(max));
            let scatter = || DenseTable::scatter(cx, &words, (min, max));
            if let Some(table) = cx.watch.time("build table", scatter)? {
                return Ok(Table::Dense(table));
            }
            let zeros = (max.to_u64() - min.to_u64()).leading_zeros() - (64 - K::BITS);
            let up = zeros.min(K::BITS - 1);
            let placing = Placing::Ranged { min, up };
            let parts = cx
                .watch
                .time("partition build side", || partition::<K, I>(cx, &words, placing, &passes))?;
            drop(words);
            let build = || DenseTable::build(cx, &parts, (min, max), up);
            Ok(Table::Dense(cx.watch.time("build table", build)?))
        }
    }
}

/// The words of one morsel, placed as the table wants them.
#[derive(Default)]
struct MorselWords<K> {
    words: Vec<K>,
    /// The rows that may match, where not all may.
    rows: Option<Vec<u32>>,
}

impl<K: KeyWord> MorselWords<K> {
    fn fill<I: RowId>(
        &mut self,
        keys: &KeyPlan,
        table: &Table<K, I>,
        side: crate::join::Side,
        batch: &arrow::array::RecordBatch,
    ) -> Result<()> {
        let valid = keys.words(side, batch, &mut self.words)?;
        if let Table::Hash(_) = table {
            self.words.iter_mut().for_each(|word| *word = word.mix());
        }
        self.rows = valid.map(|valid| valid.valid_indices().map(|i| i as u32).collect());
        Ok(())
    }

    fn view(&self) -> MorselKeys<'_, K> {
        MorselKeys { words: &self.words, rows: self.rows.as_deref() }
    }
}

//! The no-partitioning hash join (001 §5): one table over the build side, the probe side streamed.
//!
//! ```text
//!  build: words ─► partition ─► one region per partition, built in the cache ─► one table
//!  probe: morsel ─► words ─► lookups, prefetched in groups ─► matches ─► rows
//! ```
//!
//! The paper inserts into one table with atomics. This implementation first partitions the build side. So
//! each region is built in the cache and without atomics. The probe side still sees one table.
//!
//! Tuples hold row ids. If the build columns of the output are narrow, they are inlined: tuples hold the
//! columns instead, and no build column has to be gathered.

use std::sync::atomic::Ordering;

use super::morsel_words::{BLOCK, MorselWords, TableLookup};
use super::{
    Context, Job, emit_all_by_flag, for_widths, has_left, pair_cap, spare_bytes,
    workers_with_scratch,
};
use crate::error::{Error, Result};
use crate::input::{BufferedSource, KeyFilter, ReservedMorsel};
use crate::key::KeyPlan;
use crate::matches::{FoundBy, Matcher, Unit};
use crate::materialise::Columns;
use crate::memory::{Refused, Started};
use crate::output::{Emitter, SharedSink};
use crate::partition::{Load, Passes, Placing, RowId, Words, key_words, partition};
use crate::plan::{Learned, LearnedWords, TableKind};
use crate::progress::Stage;
use crate::schedule::Workers;
use crate::table::{BuildTable, Cursor, DenseTable, HashTable, Pairs};
use crate::word::KeyWord;
use crate::word::Width;

/// Probe rows that a worker takes at a time.
const MORSEL: usize = 32 * 1024;

pub(super) fn run(cx: &Context<'_>, job: Job<'_>) -> Result<()> {
    for_widths!(job.plan, join(cx, job))
}

fn join<K: KeyWord, I: RowId>(cx: &Context<'_>, mut job: Job<'_>) -> Result<()> {
    let inlining = job.inlined_columns()?;
    let matcher = job.matcher(cx, job.keys.exact(), FoundBy::CpuLookup);
    let (side, build) = (job.build_side, job.build);

    cx.counters.enter(Stage::Partition, build.rows());
    let words = cx.watch.time("key words", || key_words::<K>(cx, job.keys, side, build))?;
    let range = words.range.map(|(min, max)| (min.to_u64(), max.to_u64()));
    let matchable = words.matchable as u64;
    let words_learned = Some(LearnedWords { matchable, range });
    job.plan.refine(Learned { words: words_learned, ..Learned::default() });
    cx.counters.enter(Stage::Build, build.rows());
    let load = inlining.as_ref().map_or(Load::RowIds, |columns| Load::Inlined(columns));
    let table = build_table::<K, I>(cx, &job, words, load)?;

    let inlined = inlining.is_some();
    let gathered = job.sink.output_plan.gathered(side);
    let flatten = || Columns::of_relation(cx, build, &gathered);
    let build_columns = match inlining {
        Some(columns) => columns,
        None => cx.watch.time("flatten build columns", flatten)?,
    };
    let mut build_unit =
        matcher.unit(side, build_columns, build.batches(), matcher.flags().build)?;
    if let (Some(flags), Some(matched)) = (&build_unit.flags, &*job.matched) {
        flags.add(matched);
    }
    cx.watch.time("flatten build keys", || build_unit.flatten_keys(cx))?;
    if let BuildTable::Hash(table) = &table
        && job.keys.hashed()
        && cx.bounded
    {
        one_key_per_hash(cx, &matcher, &build_unit, table)?;
    }
    has_left(&cx.budget, job.needed_to_probe, "reading the probe side")?;
    // From here on, the seed does not change any more.
    let probe = job.take_probe()?;
    let known_rows = probe.known_rows();
    cx.counters.enter(Stage::Probe, known_rows.unwrap_or(0));
    let cap = pair_cap(cx, job.sink);
    let (workers, _scratch) = workers_with_scratch::<K>(cx, known_rows, BLOCK, cap)?;
    let probing = Probing {
        cx,
        workers,
        keys: job.keys,
        matcher: &matcher,
        build: &build_unit,
        sink: job.sink,
        table: &table,
        probe,
        cap,
        spare: spare_bytes(cx),
        key_filter: job.plan.details.key_filter,
    };
    cx.watch.time("probe", || {
        // A tuple has a row id, or the inlined columns of the row.
        if inlined {
            probing
                .run::<I>(|unit, pairs, out| matcher.resolve_inlined(&build_unit, unit, pairs, out))
        } else {
            probing.run::<u64>(|unit, pairs, out| matcher.resolve(&build_unit, unit, pairs, out))
        }
    })?;

    cx.counters.enter(Stage::Unmatched, build.rows());
    let with = (&probing.workers, cap);
    let emit_by_flag = || emit_all_by_flag(with, &matcher, &build_unit, job.roles.build, job.sink);
    cx.watch.time("unmatched build rows", emit_by_flag)
}

/// The probing of a table by all workers.
struct Probing<'a, K: KeyWord, I: RowId> {
    cx: &'a Context<'a>,
    workers: Workers,
    keys: &'a KeyPlan,
    matcher: &'a Matcher<'a>,
    build: &'a Unit,
    sink: &'a SharedSink<'a>,
    table: &'a BuildTable<K, I>,
    probe: BufferedSource,
    cap: usize,
    /// Bytes that must stay free when a worker takes a morsel while other workers have one.
    spare: u64,
    /// Whether the source gets the table as a filter.
    key_filter: bool,
}

impl<K: KeyWord, I: RowId> Probing<'_, K, I> {
    /// Streams the probe side through the table, and calls `resolve` for the matches.
    fn run<B: RowId>(
        &self,
        resolve: impl Fn(&Unit, &mut Pairs<B>, &mut Emitter<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        let (workers, side, keep) =
            (&self.workers, self.build.side.other(), self.matcher.roles.probe);
        let ask = self.matcher.ask(self.build, self.cap);
        let lookup = TableLookup::new(self.keys, self.table, side);
        let filter = match self.key_filter {
            true => self.probe.key_filter(&lookup),
            false => None,
        };
        let filter = filter.as_ref().map(|filter| filter as &dyn KeyFilter);
        workers.run(|worker| {
            let mut emitter = Emitter::new(self.sink, worker);
            let mut keys = MorselWords::<K>::default();
            let mut pairs = Pairs::<B>::default();
            loop {
                workers.check()?;
                emitter.relieve()?;
                let Some((_started, morsel)) = self.next(&mut emitter, filter)? else { break };
                let batches = std::slice::from_ref(&morsel.batch);
                let unit = emitter.patiently(Refused::Fails, || {
                    let columns = Columns::of_batch(&morsel.batch, morsel.first_row);
                    self.matcher.unit(side, columns, batches, self.matcher.flags().probe)
                })?;
                for first in (0..unit.rows).step_by(BLOCK) {
                    let block = morsel.batch.slice(first, BLOCK.min(unit.rows - first));
                    emitter.patiently(Refused::Fails, || {
                        keys.fill(self.keys, self.table, side, &block)
                    })?;
                    let block_keys = keys.view(first);
                    let mut cursor = Cursor::default();
                    while !cursor.ended(&block_keys) {
                        workers.check()?;
                        self.table.probe(&block_keys, ask, &mut cursor, &mut pairs);
                        if pairs.len() >= self.cap {
                            resolve(&unit, &mut pairs, &mut emitter)?;
                        }
                    }
                }
                // The pairs refer to rows of this morsel, so they must be resolved before the next one.
                resolve(&unit, &mut pairs, &mut emitter)?;
                self.matcher.emit_by_flag(&unit, keep, (0..unit.rows, self.cap), &mut emitter)?;
                self.cx.counters.done.fetch_add(unit.rows as u64, Ordering::Relaxed);
            }
            emitter.finish()
        })
    }

    /// Takes the next rows of the probe side. Returns `None` at its end. The source may leave out rows that
    /// cannot match according to `filter`.
    fn next<'e>(
        &self,
        emitter: &mut Emitter<'e>,
        filter: Option<&dyn KeyFilter>,
    ) -> Result<Option<(Started<'e>, ReservedMorsel)>> {
        loop {
            // A concurrent source is called before the work starts, so that workers call it at the same time.
            let concurrent = self.probe.concurrent();
            let mut fetch = || {
                emitter.read(self.spare, |spare, resting| self.probe.fetch(spare, resting, filter))
            };
            if concurrent && !fetch()? {
                return Ok(None);
            }
            let (started, morsel) = emitter
                .start(self.spare, |spare, resting| self.probe.morsel(MORSEL, spare, resting))?;
            match morsel {
                Some(morsel) => return Ok(Some((started, morsel))),
                // Another worker took the rows.
                None if concurrent => {}
                None => return Ok(None),
            }
        }
    }
}

/// Partitions the build side and fills the table. Drops the words and tuples afterwards.
fn build_table<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    job: &Job<'_>,
    words: Words<'_, K>,
    load: Load<'_>,
) -> Result<BuildTable<K, I>> {
    let passes = Passes(job.plan.details.radix_bits.clone());
    let table = job.plan.details.table;
    log::debug!("table: {table:?}, {passes:?}");
    match table {
        Some(TableKind::Array { min, max }) => {
            let (min, max) = (K::from_u64(min), K::from_u64(max));
            let zeros = (max.to_u64() - min.to_u64()).leading_zeros() - (64 - K::BITS);
            let up = zeros.min(K::BITS - 1);
            let placing = Placing::Ranged { min, up };
            let parts = cx.watch.time("partition build side", || {
                partition::<K, I>(cx, &words, load, placing, &passes)
            })?;
            drop(words);
            let build = || DenseTable::build(cx, &parts, (min, max), up);
            Ok(BuildTable::Dense(cx.watch.time("build table", build)?))
        }
        Some(TableKind::Hash) => {
            let placing = Placing::Mixed(job.keys.mixer());
            let parts = cx.watch.time("partition build side", || {
                partition::<K, I>(cx, &words, load, placing, &passes)
            })?;
            drop(words);
            let build = || HashTable::build(cx, &parts, passes.bits());
            Ok(BuildTable::Hash(cx.watch.time("build table", build)?))
        }
        Some(TableKind::ArrayIfDense) | None => {
            Err(Error::internal(format!("the plan left the kind of table open: {table:?}")))
        }
    }
}

/// Fails with [`Error::BadSeed`] if many build rows have the same hash but different keys. Each probe row
/// with this hash would meet all of them, and most of these candidates would be rejected.
///
/// Compares the first row of each group with every 16th row. Between two compared rows, up to 15 rows with other keys can
/// stay unnoticed. The check is cheap: it looks only at groups of more than 16 rows. If the keys of such a group are
/// equal, each probe row with this key yields all these rows, which takes far longer.
fn one_key_per_hash<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    matcher: &Matcher<'_>,
    build: &Unit,
    table: &HashTable<K, I>,
) -> Result<()> {
    const EVERY: usize = 16;
    const AT_ONCE: usize = 16 * 1024;
    let mut rows: [Vec<u64>; 2] = Default::default();
    let mut outcome = Ok(());
    let compare = |rows: &mut [Vec<u64>; 2]| {
        let same = matcher.same_keys(build, &rows[0], &rows[1])?;
        rows.iter_mut().for_each(Vec::clear);
        cx.workers.check()?;
        if same { Ok(()) } else { Err(Error::BadSeed) }
    };
    table.every(EVERY, |first, other| {
        if outcome.is_err() {
            return;
        }
        rows[0].push(other.to_u64());
        rows[1].push(first.to_u64());
        if rows[0].len() == AT_ONCE {
            outcome = compare(&mut rows);
        }
    });
    outcome.and_then(|()| compare(&mut rows))
}

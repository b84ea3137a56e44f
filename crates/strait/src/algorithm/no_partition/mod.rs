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
//!
//! If the build rows fit the memory limit, but the table does not, the table is built in [parts].

mod parts;
mod probing;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use arrow::buffer::NullBuffer;

use self::parts::{Division, Later, LaterPart, Pass};
use self::probing::Probing;
use super::morsel_words::BLOCK;
use super::{
    Context, Job, emit_all_by_flag, for_widths, has_left, pair_cap, spare_bytes,
    workers_with_scratch,
};
use crate::error::{Error, Result};
use crate::input::{BufferedSource, Piece};
use crate::matches::{FoundBy, Keep, Matcher, Unit};
use crate::materialise::Columns;
use crate::memory::Reservation;
use crate::partition::{
    Load, Partitions, Passes, Placing, RowId, Tuple, Words, key_words, partition,
};
use crate::plan::{
    Divided, FreeForTable, Learned, LearnedWords, TableKind, TableMemory, part_of_buckets,
};
use crate::progress::Stage;
use crate::schedule::Workers;
use crate::table::{BuildTable, DenseTable, HashTable, table_bytes};
use crate::word::{KeyWord, Width};

pub(crate) use self::parts::Overflow;

/// Probe rows that a worker takes at a time.
const MORSEL: usize = 32 * 1024;

pub(super) fn run(cx: &Context<'_>, job: Job<'_>) -> Result<()> {
    for_widths!(job.plan, join(cx, job))
}

fn join<K: KeyWord, I: RowId>(cx: &Context<'_>, mut job: Job<'_>) -> Result<()> {
    let (keys, side, build) = (job.keys, job.build_side, job.build);
    // An attempt with another seed may have divided the build side.
    job.plan.undivide();
    cx.counters.enter(Stage::Partition, build.rows());
    let computed = || cx.watch.time("key words", || key_words::<K>(cx, keys, side, build));
    let words = computed()?;
    learn_words(&mut job, &words);
    let Some(overflow) = job.overflow else {
        return with_one_table::<K, I>(cx, &mut job, words);
    };
    let rows = words.matchable as u64;
    let fits = free_for_table(cx, &job, &words).fits(rows, table_memory::<K, I>(&job, rows));
    if !fits || cx.overrides.table_parts {
        return in_parts::<K, I>(cx, &mut job, words, overflow);
    }
    match with_one_table::<K, I>(cx, &mut job, words) {
        // The prediction was wrong.
        Err(Error::MemoryLimit { .. }) if job.probe.is_some() => {
            in_parts::<K, I>(cx, &mut job, computed()?, overflow)
        }
        done => done,
    }
}

/// Joins with one table over the whole build side.
fn with_one_table<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    job: &mut Job<'_>,
    words: Words<'_, K>,
) -> Result<()> {
    let inlining = job.inlined_columns()?;
    let matcher = job.matcher(cx, job.keys.exact(), FoundBy::CpuLookup);
    cx.counters.enter(Stage::Build, job.build.rows());
    let load = inlining.as_ref().map_or(Load::RowIds, |columns| Load::Inlined(columns));
    let tuples = partitioned::<K, I>(cx, job, &words, load)?;
    drop(words);
    let table = filled(cx, tuples)?;

    let inlined = inlining.is_some();
    let mut gathered = job.sink.output_plan.gathered(job.build_side);
    if cx.budget.left() < job.build.bytes().saturating_add(job.needed_to_probe) {
        // Copies of these columns are optional. The memory is needed more to read the probe side.
        gathered.clear();
    }
    let flatten = || Columns::of_relation(cx, job.build, &gathered);
    let columns = match inlining {
        Some(columns) => columns,
        None => cx.watch.time("flatten build columns", flatten)?,
    };
    let mut unit = build_unit(job, &matcher, columns)?;
    cx.watch.time("flatten build keys", || unit.flatten_keys(cx))?;
    if cx.bounded {
        one_key_per_hash(cx, &matcher, &unit, &table)?;
    }
    has_left(&cx.budget, job.needed_to_probe, "reading the probe side")?;
    let threads = Threads::new::<K>(cx, job)?;
    // From here on, the seed does not change any more.
    let probe = job.take_probe()?;
    let sides = Sides { matcher: &matcher, build: &unit, inlined, probe: &probe };
    probe_table(cx, job, &sides, (&table, None), &threads)?;
    emit_unmatched(cx, job, (&matcher, &unit), &threads)
}

/// Joins with tables over one part of the build side after the other.
fn in_parts<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    job: &mut Job<'_>,
    mut words: Words<'_, K>,
    overflow: Overflow<'_>,
) -> Result<()> {
    let inlining = job.inlined_columns()?;
    let inlined = inlining.is_some();
    let matcher = job.matcher(cx, job.keys.exact(), FoundBy::CpuLookup);
    let columns = match inlining {
        Some(columns) => columns,
        None => Columns::of_relation(cx, job.build, &[])?,
    };
    // The keys are not copied: the memory is needed more for the table.
    let unit = build_unit(job, &matcher, columns)?;
    let threads = Threads::new::<K>(cx, job)?;
    let load = if inlined { Load::Inlined(&unit.columns) } else { Load::RowIds };
    // One bit per row says whether the row belongs to the part.
    let _bits = cx.budget.reserve(job.build.rows() / 4, "the rows of a part of the build side")?;
    let (division, parts) = divided::<K, I>(cx, job, &words)?;
    let all = words.pieces.clone();
    let later: Vec<Later> = parts[1..].iter().cloned().map(Later::new).collect();
    let mut pass = Pass {
        division: &division,
        buckets: parts[0].clone(),
        later: &later,
        first: true,
        mixed: true,
        returns_unmatched: !matches!(job.roles.probe, Keep::Nothing | Keep::Matched),
        overflow,
        budget: &cx.budget,
    };
    let table = table_of_part::<K, I>(cx, job, (&mut words, &all), &pass, load)?;
    if cx.bounded {
        one_key_per_hash(cx, &matcher, &unit, &table)?;
    }
    has_left(&cx.budget, job.needed_to_probe, "reading the probe side")?;
    // From here on, the seed does not change any more.
    let cx = &Context { bounded: false, ..cx.clone() };
    overflow.totals.levels.fetch_max(1, Ordering::Relaxed);
    let probe = job.take_probe()?;
    let (probe_side, schema) = (probe.side(), probe.schema());
    let sides = Sides { matcher: &matcher, build: &unit, inlined, probe: &probe };
    probe_table(cx, job, &sides, (&table, Some(&pass)), &threads)?;
    drop((table, probe));

    (pass.first, pass.later) = (false, &[]);
    let mut waiting: VecDeque<LaterPart> = later.iter().filter_map(Later::part).collect();
    while let Some(part) = waiting.pop_front() {
        (pass.buckets, pass.mixed) = (part.buckets.clone(), part.mixed);
        overflow.joins.drain()?;
        let table = match table_of_part::<K, I>(cx, job, (&mut words, &all), &pass, load) {
            // Another user of the memory, such as a query, has taken some. Its rows are read twice then.
            Err(Error::MemoryLimit { .. }) if part.buckets.len() > 1 => {
                part.halves().into_iter().rev().for_each(|half| waiting.push_front(half));
                continue;
            }
            table => table?,
        };
        let probe = overflow.source(probe_side, &part.rows, &schema);
        let sides = Sides { matcher: &matcher, build: &unit, inlined, probe: &probe };
        probe_table(cx, job, &sides, (&table, Some(&pass)), &threads)?;
    }
    emit_unmatched(cx, job, (&matcher, &unit), &threads)
}

/// Divides the build side into parts, and tells the plan. Fails if the memory does not suffice for a few parts.
fn divided<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    job: &mut Job<'_>,
    words: &Words<'_, K>,
) -> Result<(Division<K>, Vec<Range<usize>>)> {
    let rows = words.matchable as u64;
    // Each part has a hash table, also if one table over all rows would be an array.
    let learn = |job: &mut Job<'_>, parts: usize| {
        let divided = Some(Divided { rows, parts: parts as u64 });
        job.plan.refine(Learned { divided, ..Learned::default() });
    };
    learn(job, 2);
    let memory = table_memory::<K, I>(job, rows);
    let mut fit = free_for_table(cx, job, words).rows_of_part(memory, cx.overrides);
    let division = Division::new(job.keys);
    let buckets = division.histogram(cx, words)?;
    if cx.overrides.table_parts {
        let most = buckets.iter().copied().max();
        fit = fit.min((rows / 3).max(most.unwrap_or(0)));
    }
    let Some(parts) = part_of_buckets(&buckets, fit) else {
        let needed = rows.saturating_mul(memory.building);
        return Err(cx.budget.refuse(needed, cx.budget.used(), "the hash table"));
    };
    log::info!("the table is built in {} parts of at most {fit} rows", parts.len());
    learn(job, parts.len());
    Ok((division, parts))
}

/// Builds the table over the part of the build side that belongs to a pass.
fn table_of_part<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    job: &mut Job<'_>,
    (words, all): (&mut Words<'_, K>, &[(Piece, Option<NullBuffer>)]),
    pass: &Pass<'_, K>,
    load: Load<'_>,
) -> Result<BuildTable<K, I>> {
    cx.counters.enter(Stage::Build, job.build.rows());
    let select = || words.select(cx, all, |word| pass.division.selects(&pass.buckets, word));
    cx.watch.time("select a part", select)?;
    learn_words(job, words);
    let tuples = partitioned::<K, I>(cx, job, words, load)?;
    filled(cx, tuples)
}

/// Tells the plan how many rows the table has, and the range of their key words.
fn learn_words<K: KeyWord>(job: &mut Job<'_>, words: &Words<'_, K>) {
    let range = words.range.map(|(min, max)| (min.to_u64(), max.to_u64()));
    let learned = Some(LearnedWords { matchable: words.matchable as u64, range });
    job.plan.refine(Learned { words: learned, ..Learned::default() });
}

/// Returns the memory that a table takes per build row, if it has `rows` rows.
fn table_memory<K: KeyWord, I: RowId>(job: &Job<'_>, rows: u64) -> TableMemory {
    let [word, value] = [size_of::<K>(), size_of::<I>()];
    let table = match job.plan.details.table {
        Some(TableKind::Array { min, max }) => {
            (max - min).saturating_add(1).saturating_mul(value as u64)
        }
        // Regions are larger than their rows need on average.
        _ => table_bytes(rows as usize, word, value) / 16 * 17,
    };
    // The values of keys that repeat are stored beside the table.
    let probing = table.div_ceil(rows.max(1)).saturating_add(value as u64);
    // Another pass over the tuples writes them to new memory.
    let passes = job.plan.details.radix_bits.len().clamp(1, 2);
    let building = probing.saturating_add((passes * size_of::<Tuple<K, I>>()) as u64);
    TableMemory { building, probing }
}

/// Returns the memory that is free for a table.
fn free_for_table<K: KeyWord>(
    cx: &Context<'_>,
    job: &Job<'_>,
    words: &Words<'_, K>,
) -> FreeForTable {
    let (left, to_probe) = (cx.budget.left(), job.needed_to_probe);
    FreeForTable { left, words: words.made_bytes(), to_probe }
}

/// Returns the build side as a unit. Its flags say which rows a device has matched before.
fn build_unit(job: &Job<'_>, matcher: &Matcher<'_>, columns: Columns) -> Result<Unit> {
    let (side, batches) = (job.build_side, job.build.batches());
    let unit = matcher.unit(side, columns, batches, matcher.flags().build)?;
    if let (Some(flags), Some(matched)) = (&unit.flags, &*job.matched) {
        flags.add(matched);
    }
    Ok(unit)
}

/// Both sides of a join that are probed with one table.
struct Sides<'a> {
    matcher: &'a Matcher<'a>,
    build: &'a Unit,
    /// Whether the table has inlined columns of the build side instead of row ids.
    inlined: bool,
    probe: &'a BufferedSource,
}

/// The threads that probe, with their memory besides tables and batches. The memory stays reserved until the last row
/// was written. So it does not depend on the speed of the consumer whether it suffices.
struct Threads {
    workers: Workers,
    /// The most candidate pairs per worker.
    cap: usize,
    _scratch: Reservation,
}

impl Threads {
    fn new<K: KeyWord>(cx: &Context<'_>, job: &Job<'_>) -> Result<Threads> {
        let (cap, rows) = (pair_cap(cx, job.sink), job.probe.as_ref());
        let rows = rows.and_then(BufferedSource::known_rows);
        let (workers, _scratch) = workers_with_scratch::<K>(cx, rows, BLOCK, cap)?;
        Ok(Threads { workers, cap, _scratch })
    }
}

/// Streams a probe side through a table.
fn probe_table<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    job: &Job<'_>,
    sides: &Sides<'_>,
    (table, pass): (&BuildTable<K, I>, Option<&Pass<'_, K>>),
    threads: &Threads,
) -> Result<()> {
    let Sides { matcher, build, inlined, probe } = *sides;
    cx.counters.enter(Stage::Probe, probe.known_rows().unwrap_or(0));
    let probing = Probing {
        cx,
        workers: threads.workers.clone(),
        keys: job.keys,
        matcher,
        build,
        sink: job.sink,
        table,
        probe,
        cap: threads.cap,
        spare: spare_bytes(cx),
        key_filter: job.plan.details.key_filter,
        pass,
    };
    cx.watch.time("probe", || {
        // A tuple has a row id, or the inlined columns of the row.
        if inlined {
            probing.run::<I>(|unit, pairs, out| matcher.resolve_inlined(build, unit, pairs, out))
        } else {
            probing.run::<u64>(|unit, pairs, out| matcher.resolve(build, unit, pairs, out))
        }
    })
}

/// Writes the build rows that the join type returns by their flag.
fn emit_unmatched(
    cx: &Context<'_>,
    job: &Job<'_>,
    (matcher, build): (&Matcher<'_>, &Unit),
    threads: &Threads,
) -> Result<()> {
    cx.counters.enter(Stage::Unmatched, build.rows as u64);
    let with = (&threads.workers, threads.cap);
    let emit = || emit_all_by_flag(with, matcher, build, job.roles.build, job.sink);
    cx.watch.time("unmatched build rows", emit)
}

/// Partitions the build rows that may match.
fn partitioned<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    job: &Job<'_>,
    words: &Words<'_, K>,
    load: Load<'_>,
) -> Result<Tuples<K, I>> {
    let passes = Passes(job.plan.details.radix_bits.clone());
    let table = job.plan.details.table;
    log::debug!("table: {table:?}, {passes:?}");
    let (place, placing) = match table {
        Some(TableKind::Array { min, max }) => {
            let (min, max) = (K::from_u64(min), K::from_u64(max));
            let zeros = (max.to_u64() - min.to_u64()).leading_zeros() - (64 - K::BITS);
            let up = zeros.min(K::BITS - 1);
            (Place::Array { min, max, up }, Placing::Ranged { min, up })
        }
        Some(TableKind::Hash) => {
            (Place::Hash { bits: passes.bits() }, Placing::Mixed(job.keys.mixer()))
        }
        Some(TableKind::ArrayIfDense) | None => {
            return Err(Error::internal(format!(
                "the plan left the kind of table open: {table:?}"
            )));
        }
    };
    let partitions = cx
        .watch
        .time("partition build side", || partition::<K, I>(cx, words, load, placing, &passes))?;
    Ok(Tuples { partitions, place })
}

/// Partitioned tuples, and the table that they are for.
struct Tuples<K: KeyWord, I: RowId> {
    partitions: Partitions<K, I>,
    place: Place<K>,
}

/// The shape of a table.
enum Place<K> {
    Array { min: K, max: K, up: u32 },
    Hash { bits: u32 },
}

/// Fills the table, and drops the tuples.
fn filled<K: KeyWord, I: RowId>(
    cx: &Context<'_>,
    tuples: Tuples<K, I>,
) -> Result<BuildTable<K, I>> {
    let Tuples { partitions, place } = tuples;
    cx.watch.time("build table", || {
        Ok(match place {
            Place::Array { min, max, up } => {
                BuildTable::Dense(DenseTable::build(cx, &partitions, (min, max), up)?)
            }
            Place::Hash { bits } => BuildTable::Hash(HashTable::build(cx, &partitions, bits)?),
        })
    })
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
    table: &BuildTable<K, I>,
) -> Result<()> {
    let BuildTable::Hash(table) = table else { return Ok(()) };
    if !matcher.keys.hashed() {
        return Ok(());
    }
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

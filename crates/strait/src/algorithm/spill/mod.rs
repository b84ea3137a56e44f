//! `spill`: the hybrid hash join. Partitions that do not fit memory go to disk.
//!
//! ```text
//!  build side ──► partitions ──┬── some stay in memory ──► a join in memory ◄──┐
//!                              └── the others go to disk                       │ rows of partitions in memory
//!  probe side ──► partitions ──────────────────────────────────────────────────┤
//!                              ┌── rows of the other partitions go to disk ◄───┘
//!                              ▼
//!  each pair of partitions on disk ──► a join of its own: in memory, or partitioned again, or in blocks
//! ```
//!
//! The partition of a row follows from its key. So every join type can be carried out partition by partition. Each
//! level has its own seed, so keys that share a partition on one level are spread over the partitions of the next
//! level. If one key has most of the rows, partitioning again does not help. Such a pair is joined [in
//! blocks](Spilling::join_in_blocks).
//!
//! This file calls the steps in order. [`Joins`] plans and runs the joins in memory, on the CPU or on a GPU.

mod build_keys;
mod diverted;
mod encoded;
mod partitions;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use arrow::datatypes::SchemaRef;

use self::build_keys::BuildKeys;
use self::diverted::{Diverted, Room};
pub(crate) use self::encoded::{BYTES_PER_BLOCK, encode_reserved, encode_rows};
pub(crate) use self::partitions::SpillTotals;
use self::partitions::{Partitions, Phase, Work};
use crate::build_side::{BuildSide, Step, Wishes, of_pair, smaller_first};
use crate::context::Context;
use crate::error::{Error, Result, bytes};
use crate::input::{BufferedSource, ChunkLimits, Input, Relation, next_step};
use crate::key::{KeyPlan, Seed};
use crate::matches::{Keep, Roles};
use crate::options::{JoinType, Side};
use crate::plan::{PairPlan, SpillRules, SpilledSize, Statistics};
use crate::schedule::{Workers, guarded, lock};
use crate::spill::{SpillTarget, SpilledRows};

/// Two tables that are joined: the inputs of the join, or a pair of spilled partitions.
pub(crate) struct Tables {
    /// The left and the right table. Each source has the batches that were already read.
    pub(crate) sources: [BufferedSource; 2],
    pub(crate) build_side: BuildSide,
    /// The statistics of the left and the right table.
    pub(crate) statistics: [Statistics; 2],
    pub(crate) join_type: JoinType,
    /// 0 for the inputs of the join, 1 for their partitions, and so on.
    pub(crate) level: u32,
    /// Whether the tables are first joined in memory. They spill if that fails.
    pub(crate) in_memory: bool,
}

/// The result of an attempt to join in memory.
pub(crate) enum Attempted<T> {
    Joined,
    /// Memory was refused, and no row was sent to the consumer. The value has all rows, so they can be joined again.
    TooLarge(T, Error),
}

/// Plans and runs the joins of a join that spills. Each join in memory has its own plan.
pub(crate) trait Joins: Sync {
    /// Joins two tables: in memory if they fit, otherwise by spilling.
    fn join(&self, tables: Tables) -> Result<()>;

    /// Joins a build side in memory with a probe side. `join_type` says which rows are returned.
    fn join_held(
        &self,
        build: (Side, &Relation),
        probe: BufferedSource,
        join_type: JoinType,
    ) -> Result<Attempted<BufferedSource>>;

    /// Returns a source of rows that the join has already counted as read. The source does not count them again.
    fn source(&self, side: Side, input: Input) -> BufferedSource;

    /// Returns the free memory before the next join. If little memory is free, first waits until the consumer has
    /// taken all finished rows. Without this wait, a slow consumer would make the next block of rows short. No worker
    /// may be active.
    fn free_memory(&self) -> Result<u64>;

    /// Waits until the consumer has taken all finished rows. After that, the free memory does not depend on the speed of
    /// the consumer. No worker may be active.
    fn drain(&self) -> Result<()>;

    /// Runs joins of rows that all have the same key, as a part of an ordered output. These joins stream their probe
    /// sides, and may send their rows in any order.
    fn within_key(&self, joins: &mut dyn FnMut() -> Result<()>) -> Result<()>;
}

/// A join that spills, on one level.
pub(crate) struct Spilling<'a> {
    pub(crate) cx: &'a Context<'a>,
    pub(crate) keys: &'a KeyPlan,
    pub(crate) schemas: &'a [SchemaRef; 2],
    pub(crate) target: &'a Arc<SpillTarget>,
    pub(crate) totals: &'a Arc<SpillTotals>,
    pub(crate) rules: SpillRules,
    pub(crate) joins: &'a dyn Joins,
    /// The number from which the seed of this level is derived.
    pub(crate) seed: u64,
}

impl Spilling<'_> {
    /// Joins two tables that do not fit memory.
    pub(crate) fn run(&self, tables: Tables) -> Result<()> {
        let Tables { sources, build_side, statistics, join_type, level, .. } = tables;
        log::info!("spilling to {}, level {level}", self.target.place());
        self.totals.levels.fetch_max(u64::from(level) + 1, Ordering::Relaxed);
        let partitions = Arc::new(self.partitions(&statistics, build_side, join_type));
        let watch = self.cx.watch;
        let side = watch
            .time("partition to disk", || self.partition(&sources, build_side, &partitions))?;
        let [left, right] = sources;
        let (build, probe) = if side == Side::Left { (left, right) } else { (right, left) };
        drop(build);
        partitions.end_build(side);
        self.join_resident(&partitions, side, probe, join_type)?;
        partitions.end_probe();
        self.join_spilled(&partitions, join_type)
    }

    fn partitions(
        &self,
        statistics: &[Statistics; 2],
        build_side: BuildSide,
        join_type: JoinType,
    ) -> Partitions {
        let known = build_side.side().and_then(|side| {
            let Statistics { rows, bytes, .. } = statistics[side as usize];
            bytes.map(|bytes| SpilledSize { rows: rows.unwrap_or(bytes / 16), bytes })
        });
        let number = self.seed.wrapping_add(u64::from(self.rules.level) << 32 | 0x5b1e);
        let keys = self.keys.reseeded(Seed::new(number)).within(&self.cx.workers, &self.cx.budget);
        let drops = [Side::Left, Side::Right]
            .map(|side| matches!(Roles::of(join_type, side).build, Keep::Nothing | Keep::Matched));
        Partitions::new(
            (keys, self.rules.bits(known)),
            self.keys_of(statistics, build_side),
            drops,
            self.schemas.clone(),
            self.target,
            (self.totals, self.rules),
        )
    }

    /// Returns an empty set for the keys of each side that may become the build side. There is none if memory is refused.
    fn keys_of(
        &self,
        statistics: &[Statistics; 2],
        build_side: BuildSide,
    ) -> [Option<BuildKeys>; 2] {
        let budget = &self.cx.budget;
        let (expected, free) = (build_side.side(), budget.left());
        [Side::Left, Side::Right].map(|side| {
            let Statistics { rows, bytes, .. } = statistics[side as usize];
            let rows = rows.or(bytes.map(|bytes| bytes / 16));
            let words = match expected.is_none_or(|expected| expected == side) {
                true => self.rules.filter_bytes(rows, free, expected.is_none()) / 8,
                false => 0,
            };
            let words = usize::try_from(words).ok().filter(|&words| words > 0)?;
            BuildKeys::new(words, budget).ok()
        })
    }

    /// Partitions the batches of both sides that were already read. Then reads more until the build side has ended.
    /// Returns the build side.
    fn partition(
        &self,
        sources: &[BufferedSource; 2],
        rule: BuildSide,
        partitions: &Partitions,
    ) -> Result<Side> {
        for side in [Side::Left, Side::Right] {
            let source = &sources[side as usize];
            self.partition_while(side, source, partitions, || source.has_waiting())?;
        }
        loop {
            self.cx.workers.check()?;
            match next_step(sources, rule) {
                now @ Step::Read(side) => {
                    let is_next = || next_step(sources, rule) == now;
                    self.partition_while(side, &sources[side as usize], partitions, is_next)?;
                }
                Step::Build(side) => {
                    self.partition_while(side, &sources[side as usize], partitions, || true)?;
                    return Ok(side);
                }
            }
        }
    }

    /// Partitions chunks of a side until `goes_on` returns false or the side ends.
    ///
    /// All workers do so at the same time. If one of them is refused memory although no partition is left in memory,
    /// the others may hold the memory that it needs. Then one worker finishes the chunks of all workers, and partitions
    /// one more chunk alone. So a join does not fail only because its workers held memory at the same time. If the
    /// limit is barely large enough, the join can still succeed or fail by chance, because timing decides which
    /// partition goes to disk first.
    fn partition_while(
        &self,
        side: Side,
        source: &BufferedSource,
        partitions: &Partitions,
        goes_on: impl Fn() -> bool + Sync,
    ) -> Result<()> {
        let (workers, budget, rules) = (&self.cx.workers, &self.cx.budget, self.rules);
        let chunks: Vec<Mutex<Option<Work>>> =
            (0..workers.threads()).map(|_| Mutex::default()).collect();
        // Returns false at the end.
        let step = |worker: usize| -> Result<bool> {
            workers.check()?;
            let mut chunk = lock(&chunks[worker]);
            if chunk.is_none() {
                if !goes_on() {
                    return Ok(false);
                }
                let taken = with_room(partitions, || {
                    partitions.free(budget, source.reading_bytes(rules.reading_bytes()))?;
                    source.chunk_of_worker(rules.chunk_limits())
                });
                *chunk = taken?.map(|taken| Work::new(side, taken));
            }
            let Some(work) = &mut *chunk else { return Ok(false) };
            with_room(partitions, || partitions.divide(work, budget, Phase::Building))?;
            *chunk = None;
            Ok(true)
        };
        let finish = || {
            for (worker, chunk) in chunks.iter().enumerate() {
                let is_left = lock(chunk).is_some();
                if is_left {
                    step(worker)?;
                }
            }
            Ok(())
        };
        loop {
            match together_or_alone(workers, step, finish) {
                Err(Error::MemoryLimit { .. }) if partitions.drop_keys() => {}
                done => return done,
            }
        }
    }

    /// Joins the build partitions that stay in memory with the probe side. Writes the other probe rows to disk.
    fn join_resident(
        &self,
        partitions: &Arc<Partitions>,
        side: Side,
        probe: BufferedSource,
        join_type: JoinType,
    ) -> Result<()> {
        let probe_side = side.other();
        partitions.spill_side(probe_side)?;
        let budget = &self.cx.budget;
        // The blocks are the build side of the join. Both the budget and `SpilledSize::fits` count their bytes. So
        // these bytes are added to the free bytes here, to count them only once.
        let free = |size: SpilledSize| match budget.limit() {
            Some(_) => budget.left().saturating_add(size.bytes),
            None => u64::MAX,
        };
        let fits = |size: SpilledSize| size.fits(free(size));
        let reading = probe.reading_bytes(self.rules.reading_bytes());
        partitions.free(budget, self.rules.room_bytes().unwrap_or(0).saturating_add(reading))?;
        let new_room = || Room::new(budget, self.rules.room_bytes(), reading);
        let room = match with_room(partitions, new_room) {
            Err(Error::MemoryLimit { .. }) if partitions.drop_keys() => new_room()?,
            room => room?,
        };
        while !fits(partitions.in_memory(side)) && partitions.spill_largest(Some(side))? {}
        let (stay, all) = (partitions.in_memory(side), partitions.size(side));
        log::info!(
            "{} of {} of the build side stay in memory",
            bytes(stay.bytes),
            bytes(all.bytes)
        );
        let mut probe = self.divert(partitions, side, (probe, true), &room)?;
        loop {
            let build = partitions.resident(side, self.cx.ledger.as_deref())?;
            // A probe row has no match if its build partition has no rows.
            let is_needed = build.rows() > 0 || join_type.returns_unmatched(probe_side);
            if !is_needed {
                return self.read_to_end(probe);
            }
            let joined = self.joins.join_held((side, &build), probe, join_type)?;
            drop(build);
            match joined {
                Attempted::Joined if partitions.probe_ended.load(Ordering::Relaxed) => {
                    return Ok(());
                }
                Attempted::Joined => {
                    return Err(Error::internal("a join in memory did not read its probe side"));
                }
                Attempted::TooLarge(rest, why) => {
                    log::info!("{why}; fewer rows stay in memory");
                    // If rows wait, the join in memory has held its probe side. Then rows without a match take memory.
                    let stop = || partitions.stop_joining_unmatched(probe_side);
                    let freed = rest.has_waiting() && stop()
                        || partitions.spill_largest(Some(side))?
                        || stop()
                        || partitions.drop_keys();
                    if !freed {
                        return Err(why);
                    }
                    probe = self.divert(partitions, side, (rest, false), &room)?;
                }
            }
        }
    }

    /// Returns a source of the probe rows whose build partition is in memory. Reading it writes the other rows to disk.
    /// `rest` says whether its rows are counted.
    fn divert(
        &self,
        partitions: &Arc<Partitions>,
        build_side: Side,
        rest: (BufferedSource, bool),
        room: &Arc<Room>,
    ) -> Result<BufferedSource> {
        let (probe_side, on_disk) = (build_side.other(), partitions.on_disk(build_side));
        partitions.open_files(probe_side, &on_disk)?;
        let in_memory = (0..on_disk.len()).filter(|&at| !on_disk[at]);
        let again = in_memory.filter_map(|at| partitions.take_file(probe_side, at));
        let schema = &self.schemas[probe_side as usize];
        let again = again.map(|rows| Arc::new(rows.source(Arc::clone(schema)))).collect();
        let diverted = Diverted::new(partitions, build_side, rest, (again, room));
        Ok(self.joins.source(probe_side, Input::source(diverted)))
    }

    /// Reads a probe side to its end. This writes its rows to disk. The rows that the source returns are not needed.
    fn read_to_end(&self, probe: BufferedSource) -> Result<()> {
        let (workers, limits) = (&self.cx.workers, self.rules.chunk_limits());
        let step = |_| {
            workers.check()?;
            Ok(probe.chunk_of_worker(limits)?.is_some())
        };
        together_or_alone(workers, step, || Ok(()))
    }

    /// Joins the pairs of partitions that are on disk, one after the other.
    fn join_spilled(&self, partitions: &Partitions, join_type: JoinType) -> Result<()> {
        let whole = smaller([partitions.size(Side::Left), partitions.size(Side::Right)]);
        for at in 0..partitions.count() {
            self.cx.workers.check()?;
            let [left, right] =
                [Side::Left, Side::Right].map(|side| partitions.take_file(side, at));
            let rows =
                |side: &Option<Arc<SpilledRows>>| side.as_ref().map_or(0, |side| side.rows());
            if !has_output(join_type, [rows(&left), rows(&right)]) {
                continue;
            }
            let or_empty = |rows: Option<Arc<SpilledRows>>| match rows {
                Some(rows) => Ok(rows),
                None => SpilledRows::create(self.target).map(Arc::new),
            };
            let pair = Pair { rows: [or_empty(left)?, or_empty(right)?], join_type };
            self.totals.pairs.fetch_add(1, Ordering::Relaxed);
            let free = self.joins.free_memory()?;
            let below = SpillRules { level: self.rules.level + 1, ..self.rules };
            match below.pair(pair.sizes(), whole, free) {
                PairPlan::InBlocks => self.join_in_blocks(&pair)?,
                PairPlan::InMemory(build) => self.joins.join(self.tables(&pair, Some(build)))?,
                PairPlan::Partitioned => self.joins.join(self.tables(&pair, None))?,
            }
        }
        Ok(())
    }

    /// Returns a pair as two tables of the next level. `fits` is the side that can be the build side of a join in
    /// memory, if there is one.
    fn tables(&self, pair: &Pair, fits: Option<Side>) -> Tables {
        let statistics =
            pair.sizes().map(|size| Statistics::rows(size.rows).with_bytes(size.bytes));
        let sources = [Side::Left, Side::Right].map(|side| self.source(pair, side));
        let wishes = Wishes { asked: fits, ..Wishes::default() };
        let build_side = BuildSide::choose(wishes, &statistics);
        let (join_type, level) = (pair.join_type, self.rules.level + 1);
        Tables { sources, build_side, statistics, join_type, level, in_memory: fits.is_some() }
    }

    fn source(&self, pair: &Pair, side: Side) -> BufferedSource {
        let rows = &pair.rows[side as usize];
        self.joins
            .source(side, Input::source(rows.source(Arc::clone(&self.schemas[side as usize]))))
    }

    /// Joins a pair that is not partitioned again: one key has most of its rows, or the last level is reached. One side
    /// is the build side, block by block. The other side is read once per block.
    ///
    /// All matches of a build row are found while its block is joined. So after the block, the join knows which build
    /// rows have a match. It does not know this for a row of the other side, because a later block may have the match.
    /// So a side can be read in blocks only if the result does not depend on whether a row of the other side has a
    /// match. For each join type except the full join, at least one side can be read in blocks. A full join is carried
    /// out as a left join, and then a right anti join, which returns the right rows that have no match.
    pub(crate) fn join_in_blocks(&self, pair: &Pair) -> Result<()> {
        self.totals.pairs_in_blocks.fetch_add(1, Ordering::Relaxed);
        let suits = |side: Side| Roles::of(pair.join_type, side).probe == Keep::Nothing;
        match of_pair(pair.sizes().map(|size| size.bytes), suits) {
            Some(side) => self.join_blocks_of(pair, side, pair.join_type),
            None => {
                self.join_blocks_of(pair, Side::Left, JoinType::Left)?;
                self.join_blocks_of(pair, Side::Right, JoinType::RightAnti)
            }
        }
    }

    /// Joins blocks of one side with the whole other side.
    fn join_blocks_of(&self, pair: &Pair, side: Side, join_type: JoinType) -> Result<()> {
        let build = self.source(pair, side);
        let mut rows =
            self.rules.block_rows(pair.sizes()[side as usize], self.joins.free_memory()?);
        loop {
            self.cx.workers.check()?;
            // Later rows may be wider than the average.
            let bytes = self.rules.block_bytes(self.joins.free_memory()?);
            let most =
                ChunkLimits { rows, bytes, held: bytes, spare: 0, free: 0, one_batch: false };
            let Some(block) = build.chunk_of_worker(most)? else { return Ok(()) };
            let probe = self.source(pair, side.other());
            match self.joins.join_held((side, &block.rows), probe, join_type)? {
                Attempted::Joined => {}
                Attempted::TooLarge(_, why) if block.rows.rows() <= 1 => return Err(why),
                Attempted::TooLarge(_, why) => {
                    log::info!("{why}; the next block is half as long");
                    rows = (block.rows.rows() / 2).max(1);
                    build.put_back([&block].into_iter());
                }
            }
        }
    }
}

/// Calls `step(worker)` on all workers until it returns false.
///
/// If a worker is refused memory, the others may hold the memory that it needs. Then all workers stop. The caller's
/// thread calls `finish`, and then `step` once. After that, all workers continue. If a worker fails for another reason,
/// the error ends the work, even if another worker was refused memory before.
fn together_or_alone(
    workers: &Workers,
    step: impl Fn(usize) -> Result<bool> + Sync,
    finish: impl Fn() -> Result<()>,
) -> Result<()> {
    loop {
        let (failure, stop) = (Mutex::new(None), AtomicBool::new(false));
        let together = workers.attempt().run(|worker| {
            while !stop.load(Ordering::Relaxed) {
                // A panic becomes an error here. Otherwise it would be treated like refused memory.
                let stepped = guarded(|| step(worker));
                if let Err(error) = &stepped {
                    stop.store(true, Ordering::Relaxed);
                    if !matches!(error, Error::MemoryLimit { .. } | Error::Cancelled) {
                        lock(&failure).get_or_insert_with(|| error.clone());
                    }
                }
                if !stepped? {
                    return Ok(());
                }
            }
            Ok(())
        });
        if let Some(failure) = lock(&failure).take() {
            return Err(failure);
        }
        match together {
            Ok(()) => {}
            Err(Error::MemoryLimit { .. }) => workers.check()?,
            Err(error) => return Err(error),
        }
        finish()?;
        // A worker may put the rest of a batch back into the source after the other workers have ended. This step
        // finds such rows.
        if !step(0)? {
            return Ok(());
        }
    }
}

/// Runs `attempt`. While memory is refused, moves partitions to disk and tries again.
fn with_room<T>(partitions: &Partitions, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match attempt() {
            Err(Error::MemoryLimit { .. }) if partitions.spill_largest(None)? => {}
            done => return done,
        }
    }
}

/// A pair of partitions on disk.
pub(crate) struct Pair {
    /// The left and the right partition.
    pub(crate) rows: [Arc<SpilledRows>; 2],
    pub(crate) join_type: JoinType,
}

impl Pair {
    fn sizes(&self) -> [SpilledSize; 2] {
        let size = |rows: &Arc<SpilledRows>| SpilledSize { rows: rows.rows(), bytes: rows.bytes() };
        [size(&self.rows[0]), size(&self.rows[1])]
    }
}

/// Returns whether the join may return a row of two parts of its tables that have these numbers of rows. If one part is
/// empty, the join can return only unmatched rows of the other part.
pub(crate) fn has_output(join_type: JoinType, rows: [u64; 2]) -> bool {
    let [left, right] = rows.map(|rows| rows > 0);
    let alone = |side: Side| join_type.returns_unmatched(side);
    match (left, right) {
        (true, true) => true,
        (true, false) => alone(Side::Left),
        (false, true) => alone(Side::Right),
        (false, false) => false,
    }
}

/// Returns the smaller size of two sides, in bytes.
fn smaller(sizes: [SpilledSize; 2]) -> SpilledSize {
    let [smaller, _] = smaller_first(sizes.map(|size| size.bytes));
    sizes[smaller as usize]
}

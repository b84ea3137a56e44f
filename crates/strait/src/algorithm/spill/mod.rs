//! `spill`: the hybrid hash join, one tier further. What does not fit memory goes to disk.
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
//! level has a seed of its own: keys that share a partition on one level are separated on the next one. If one key
//! has most of the rows, partitioning again is of no use. Such a pair is joined [in blocks](Spilling::join_in_blocks).
//!
//! This file only conducts. [`Joins`] plans and runs the joins in memory, on the CPU or on a GPU.

mod diverted;
mod partitions;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use arrow::datatypes::SchemaRef;

use self::diverted::{Diverted, Room};
pub(crate) use self::partitions::SpillTotals;
use self::partitions::{Partitions, Work};
use crate::build_side::{BuildSide, Step, Wishes};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::input::{BufferedSource, ChunkLimits, Input, Relation, next_step};
use crate::key::{KeyPlan, Seed};
use crate::matches::{Keep, Roles};
use crate::options::{JoinType, Side};
use crate::plan::{SpillRules, SpilledSize, Statistics};
use crate::schedule::lock;
use crate::spill::{SpillStore, SpilledRows};

/// Two tables that are joined: the inputs of the join, or a pair of spilled partitions.
pub(crate) struct Tables {
    /// The left and the right table, as far as they were read.
    pub(crate) sources: [BufferedSource; 2],
    pub(crate) build_side: BuildSide,
    /// The statistics of the left and the right table.
    pub(crate) statistics: [Statistics; 2],
    pub(crate) join_type: JoinType,
    /// 0 for the inputs of the join, 1 for their partitions, and so on.
    pub(crate) level: u32,
}

/// The result of an attempt to join in memory.
pub(crate) enum Attempted<T> {
    Joined,
    /// Memory was refused before any row was written. Nothing is lost.
    TooLarge(T, Error),
}

/// The joins in memory that a spilling join is made of. Each has a plan of its own.
pub(crate) trait Joins {
    /// Joins two tables in memory, or spills.
    fn join(&self, tables: Tables) -> Result<()>;

    /// Joins a build side in memory with a probe side. `join_type` tells which rows are returned.
    fn join_held(
        &self,
        build: (Side, &Relation),
        probe: BufferedSource,
        join_type: JoinType,
    ) -> Result<Attempted<BufferedSource>>;

    /// Returns a table that was counted when it was read for the first time.
    fn source(&self, side: Side, input: Input) -> BufferedSource;
}

/// A join that spills, on one level.
pub(crate) struct Spilling<'a> {
    pub(crate) cx: &'a Context<'a>,
    pub(crate) keys: &'a KeyPlan,
    pub(crate) schemas: &'a [SchemaRef; 2],
    pub(crate) store: &'a Arc<dyn SpillStore>,
    pub(crate) totals: &'a Arc<SpillTotals>,
    pub(crate) rules: SpillRules,
    pub(crate) joins: &'a dyn Joins,
    /// The number that the seeds of all levels follow from.
    pub(crate) seed: u64,
}

impl Spilling<'_> {
    /// Joins two tables that do not fit memory.
    pub(crate) fn run(&self, tables: Tables) -> Result<()> {
        let Tables { sources, build_side, statistics, join_type, level } = tables;
        log::info!("spilling to {}, level {level}", self.store.place());
        self.totals.levels.fetch_max(u64::from(level) + 1, Ordering::Relaxed);
        let partitions = Arc::new(self.partitions(&statistics, build_side, join_type));
        let watch = self.cx.watch;
        let side = watch
            .time("partition to disk", || self.partition(&sources, build_side, &partitions))?;
        let [left, right] = sources;
        let (build, probe) = if side == Side::Left { (left, right) } else { (right, left) };
        drop(build);
        self.join_resident(&partitions, side, probe, join_type)?;
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
            drops,
            self.schemas.clone(),
            self.store,
            (self.totals, self.rules),
        )
    }

    /// Partitions what was read of both sides. Then reads on, until a side has ended. Returns that side: it builds.
    fn partition(
        &self,
        sources: &[BufferedSource; 2],
        rule: BuildSide,
        partitions: &Partitions,
    ) -> Result<Side> {
        for side in [Side::Left, Side::Right] {
            let source = &sources[side as usize];
            while source.has_waiting() {
                self.partition_chunks(side, source, partitions)?;
            }
        }
        loop {
            self.cx.workers.check()?;
            match next_step(sources, rule) {
                Step::Read(side) => {
                    self.partition_chunks(side, &sources[side as usize], partitions)?;
                }
                Step::Build(side) => {
                    while self.partition_chunks(side, &sources[side as usize], partitions)? {}
                    return Ok(side);
                }
            }
        }
    }

    /// Partitions the next chunk per worker. Returns false at the end of the side.
    fn partition_chunks(
        &self,
        side: Side,
        source: &BufferedSource,
        partitions: &Partitions,
    ) -> Result<bool> {
        let rules = &self.rules;
        let most = ChunkLimits {
            rows: rules.chunk_rows(),
            bytes: rules.chunk_bytes(),
            spare: 0,
            free: 0,
            one_batch: false,
        };
        // If little memory is free, one worker at a time takes some. Then it does not depend on timing whether memory
        // suffices.
        let budget = &self.cx.budget;
        let is_scarce = budget.limit().is_some_and(|limit| budget.left() < limit / 4);
        let threads = if is_scarce { 1 } else { self.cx.workers.threads() };
        let mut chunks = Vec::new();
        while chunks.len() < threads {
            let taken = with_room(partitions, || source.chunk(most, &self.cx.workers));
            match taken? {
                Some(chunk) => chunks.push(Mutex::new(Some(Work::new(side, chunk.rows)))),
                None => break,
            }
        }
        self.cx.workers.at_most(threads).each(chunks.len(), |task, _| {
            let work = lock(&chunks[task]).take();
            let Some(mut work) = work else { return Ok(()) };
            with_room(partitions, || partitions.divide(&mut work, budget, |_| false))
        })?;
        Ok(!chunks.is_empty())
    }

    /// Joins the build partitions that stay in memory with the probe side. Writes the other probe rows.
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
        // The blocks count as used memory, and are the build side of the join at the same time.
        let free = |size: SpilledSize| match budget.limit() {
            Some(_) => budget.left().saturating_add(size.bytes),
            None => u64::MAX,
        };
        let fits = |size: SpilledSize| size.fits(free(size));
        let room = with_room(partitions, || Room::new(budget, self.rules.room_bytes()))?;
        while !fits(partitions.in_memory(side)) && partitions.spill_largest(Some(side))? {}
        let mut probe = self.divert(partitions, side, probe, &room)?;
        loop {
            let build = partitions.resident(side, self.cx.ledger.as_deref())?;
            // Rows of partitions without build rows have no match.
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
                    log::info!("{why}; fewer partitions stay in memory");
                    if !partitions.spill_largest(Some(side))? {
                        return Err(why);
                    }
                    probe = self.divert(partitions, side, rest, &room)?;
                }
            }
        }
    }

    /// Returns the probe rows whose build partition is in memory. Whoever reads them writes the other rows.
    fn divert(
        &self,
        partitions: &Arc<Partitions>,
        build_side: Side,
        rest: BufferedSource,
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

    /// Reads a probe side to its end, so that its rows are written.
    fn read_to_end(&self, probe: BufferedSource) -> Result<()> {
        let most = ChunkLimits {
            rows: u64::MAX,
            bytes: self.rules.chunk_bytes(),
            spare: 0,
            free: 0,
            one_batch: false,
        };
        while probe.chunk(most, &self.cx.workers)?.is_some() {
            self.cx.workers.check()?;
        }
        Ok(())
    }

    /// Joins the pairs of partitions that are on disk, one after the other.
    fn join_spilled(&self, partitions: &Partitions, join_type: JoinType) -> Result<()> {
        let whole = smaller([partitions.size(Side::Left), partitions.size(Side::Right)]);
        for at in 0..partitions.count() {
            self.cx.workers.check()?;
            let rows = |side| -> Result<Arc<SpilledRows>> {
                match partitions.take_file(side, at) {
                    Some(rows) => Ok(rows),
                    None => SpilledRows::create(self.store).map(Arc::new),
                }
            };
            if !partitions.has_files(at) {
                continue;
            }
            let pair = Pair { rows: [rows(Side::Left)?, rows(Side::Right)?], join_type };
            if !pair.has_output() {
                continue;
            }
            self.totals.pairs.fetch_add(1, Ordering::Relaxed);
            let part = smaller(pair.sizes());
            let free = self.cx.budget.limit().map_or(u64::MAX, |_| self.cx.budget.left());
            let below = SpillRules { level: self.rules.level + 1, ..self.rules };
            match below.in_blocks(part, whole, free) {
                true => self.join_in_blocks(&pair)?,
                false => self.joins.join(self.tables(&pair))?,
            }
        }
        Ok(())
    }

    /// Returns a pair as two tables of the next level.
    fn tables(&self, pair: &Pair) -> Tables {
        let statistics =
            pair.sizes().map(|size| Statistics::rows(size.rows).with_bytes(size.bytes));
        let sources = [Side::Left, Side::Right].map(|side| self.source(pair, side));
        let build_side = BuildSide::choose(Wishes::default(), &statistics);
        let (join_type, level) = (pair.join_type, self.rules.level + 1);
        Tables { sources, build_side, statistics, join_type, level }
    }

    fn source(&self, pair: &Pair, side: Side) -> BufferedSource {
        let rows = &pair.rows[side as usize];
        self.joins
            .source(side, Input::source(rows.source(Arc::clone(&self.schemas[side as usize]))))
    }

    /// Joins a pair whose sides are both too large for memory, although partitioning again is of no use. One side
    /// builds, block by block, and the other side is read once per block.
    ///
    /// All matches of a row in the current block are found before the next block. So the join type may return rows of
    /// the building side by their flag, but not of the other side. For each join type but the full join, one of the
    /// sides suits. A full join is a left join, followed by the right rows that have no match.
    fn join_in_blocks(&self, pair: &Pair) -> Result<()> {
        self.totals.pairs_in_blocks.fetch_add(1, Ordering::Relaxed);
        let suits = |&side: &Side| Roles::of(pair.join_type, side).probe == Keep::Nothing;
        let [left, right] = pair.sizes();
        let sides = if left.bytes <= right.bytes {
            [Side::Left, Side::Right]
        } else {
            [Side::Right, Side::Left]
        };
        match sides.into_iter().find(suits) {
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
        let mut rows = self.rules.block_rows(pair.sizes()[side as usize], self.cx.budget.left());
        loop {
            self.cx.workers.check()?;
            let most = ChunkLimits { rows, bytes: u64::MAX, spare: 0, free: 0, one_batch: false };
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
struct Pair {
    /// The left and the right partition.
    rows: [Arc<SpilledRows>; 2],
    join_type: JoinType,
}

impl Pair {
    fn sizes(&self) -> [SpilledSize; 2] {
        let size = |rows: &Arc<SpilledRows>| SpilledSize { rows: rows.rows(), bytes: rows.bytes() };
        [size(&self.rows[0]), size(&self.rows[1])]
    }

    /// Returns whether the join may return a row of this pair. If a side is empty, it returns rows of the other side
    /// only if they need no match.
    fn has_output(&self) -> bool {
        let [left, right] = self.sizes().map(|size| size.rows > 0);
        let alone = |side: Side| self.join_type.returns_unmatched(side);
        match (left, right) {
            (true, true) => true,
            (true, false) => alone(Side::Left),
            (false, true) => alone(Side::Right),
            (false, false) => false,
        }
    }
}

/// Returns the smaller size of two sides, in bytes.
fn smaller([left, right]: [SpilledSize; 2]) -> SpilledSize {
    if left.bytes <= right.bytes { left } else { right }
}

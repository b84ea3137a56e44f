//! The joins that one run consists of: one join in memory, or the joins of a join that spills.
//!
//! ```text
//!  Conductor::run ── fits memory ──────────► attempt: plan, then the conductor of the algorithm
//!        │                                        ▲
//!        └──── does not fit ──► algorithm/spill ──┤ partitions in memory, blocks
//!                   ▲                 │           │
//!                   └── pairs of partitions ──────┘
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::decide::Known;
use crate::algorithm::gpu::Written;
use crate::algorithm::sorted_runs::SortedRuns;
use crate::algorithm::spill::{Attempted, Joins, SpillTotals, Spilling, Tables};
use crate::algorithm::{self, GpuOutcome, Job, Overflow, Seeded, with_seeds};
use crate::bind::BoundJoin;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::input::{BufferedSource, Expected, Feed, Input, Relation, read_smaller_first};
use crate::key::Seed;
use crate::matches::Roles;
use crate::options::{Algorithm, JoinType, Side};
use crate::output::SharedSink;
use crate::plan::{Plan, Reason, SpillRules, Statistics, reading_bytes, spare_bytes};
use crate::progress::Stage;
use crate::reader::Running;
use crate::reading::ReadingThread;
use crate::report::Spilled;
use crate::schedule::lock;
use crate::spill::SpillTarget;

/// What the joins of one run share.
pub(super) struct Conductor<'a> {
    /// The join of the inputs.
    first: &'a BoundJoin,
    /// The join of rows that have spilled, once the join spills.
    spilling: OnceLock<BoundJoin>,
    cx: &'a Context<'a>,
    sink: &'a SharedSink<'a>,
    shared: &'a Running,
    reading: &'a Arc<ReadingThread>,
    candidates: AtomicU64,
    spilled: Arc<SpillTotals>,
    /// The seeds of all joins of this run are derived from this number. So the seed in the report repeats the run.
    seed: u64,
    ran: Mutex<Option<Ran>>,
    /// Whether the current joins are [within one key](Joins::within_key).
    within_key: AtomicBool,
}

/// The memory with which a join spills if it was asked to, and takes its memory from a pool.
const MEMORY_TO_SPILL: u64 = 64 << 20;

/// If a pool grants fewer bytes than this, a join that begins to spill waits for more.
const LITTLE_MEMORY: u64 = 2 << 20;
/// How often it waits at most, and how long each time.
const MAX_WAITS: usize = 20;
const WAIT: Duration = Duration::from_millis(10);

/// The plan that was carried out, and its seed. If the join spilled, this is the plan of the first join in memory, but
/// its algorithm is `spill`, and its reason says why the join spilled.
pub(super) struct Ran {
    pub(super) plan: Plan,
    pub(super) seeded: Seeded,
}

impl<'a> Conductor<'a> {
    pub(super) fn new(
        first: &'a BoundJoin,
        cx: &'a Context<'a>,
        sink: &'a SharedSink<'a>,
        (shared, reading): (&'a Running, &'a Arc<ReadingThread>),
    ) -> Conductor<'a> {
        let (candidates, spilled, ran, within_key) = Default::default();
        let spilling = OnceLock::new();
        let seed = first.join.overrides.seed.unwrap_or_else(Seed::random_number);
        Conductor {
            first,
            spilling,
            cx,
            sink,
            shared,
            reading,
            candidates,
            spilled,
            seed,
            ran,
            within_key,
        }
    }

    /// Returns the join that is carried out now.
    fn bound(&self) -> &BoundJoin {
        self.spilling.get().unwrap_or(self.first)
    }

    /// Returns the join of rows that have spilled. From now on, this is the join that is carried out.
    fn spill(&self) -> &BoundJoin {
        let spilling = self.spilling.get_or_init(|| self.first.of_spilled_rows());
        self.sink.output_plan.spill(&spilling.output);
        spilling
    }

    /// Returns an input of the join as a source.
    pub(super) fn input(&self, side: Side, input: Input) -> BufferedSource {
        let needed = self.first.columns(side);
        self.buffered(
            (side, input),
            |input| (needed.len() < input.schema().fields().len()).then(|| needed.to_vec()),
            true,
        )
    }

    fn buffered(
        &self,
        (side, input): (Side, Input),
        columns: impl FnOnce(&Input) -> Option<Vec<usize>>,
        counted: bool,
    ) -> BufferedSource {
        let expected = Expected {
            // The bound schema decides which columns are nullable. The input may announce another nullability, as
            // long as it delivers no null in a column that is declared non-nullable.
            schema: Arc::clone(&self.bound().schemas[side as usize]),
            columns: columns(&input),
            row_numbers: self.bound().wants_row_numbers(side),
            counted,
        };
        let running = (&self.shared.cancelled, &self.shared.counters);
        let feed = Feed::new((side, input), expected, self.reading, &self.cx.budget, running);
        BufferedSource::new(feed, self.cx.ledger.clone())
    }

    /// Returns what was spilled, and the number of candidate pairs.
    pub(super) fn totals(&self) -> (Spilled, u64) {
        (Spilled::from(&*self.spilled), self.candidates.load(Ordering::Relaxed))
    }

    /// Returns the plan that was carried out.
    pub(super) fn into_ran(self) -> Option<Ran> {
        self.ran.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Joins two tables in memory. Spills if they do not fit, or if the caller asked for it.
    pub(super) fn run(&self, tables: Tables) -> Result<()> {
        let tables = match tables.in_memory {
            false => tables,
            true => match self.join_in_memory(tables)? {
                Attempted::Joined => return Ok(()),
                Attempted::TooLarge(tables, why) => {
                    log::info!("{why}; spilling");
                    tables
                }
            },
        };
        let Some(store) = &self.first.join.spill else {
            return Err(Error::internal("a join spills without a place for its files"));
        };
        // The join first takes its memory, and then computes the rules from it. So nobody else can take this memory
        // while the join spills.
        let limit = self.memory_to_spill(tables.level)?;
        let bound = self.spill();
        let spilling = Spilling {
            cx: self.cx,
            keys: &bound.keys,
            schemas: &bound.schemas,
            target: &SpillTarget::new(store, self.first.join.spill_compression, &self.cx.budget),
            totals: &self.spilled,
            rules: SpillRules {
                limit,
                threads: self.cx.workers.threads(),
                level: tables.level,
                overrides: self.first.join.overrides,
                asked: self.asks_to_spill(),
            },
            joins: self,
            seed: self.seed,
        };
        self.cx.counters.enter(Stage::Partition, 0);
        let (side, join_type) = (tables.build_side.side(), tables.join_type);
        let sorts = self.first.join.algorithm == Some(Algorithm::SortMerge);
        match sorts {
            true => {
                SortedRuns::new(&spilling, join_type, self.first.filter.is_some()).run(tables)?
            }
            false => spilling.run(tables)?,
        }
        // If no join in memory ran to its end, there is no plan yet.
        let (statistics, join_type) = (&bound.join.statistics, bound.join.join_type);
        let known = || Known::new(self.cx.machine, side, statistics, join_type);
        let unjoined = || Ran {
            plan: bound.plan_on_cpu(&known()),
            seeded: Seeded { number: self.seed, tried: 1 },
        };
        let mut ran = lock(&self.ran);
        let plan = &mut ran.get_or_insert_with(unjoined).plan;
        plan.algorithm = if sorts { Algorithm::SortMerge } else { Algorithm::Spill };
        plan.reason = if self.asks_to_spill() { Reason::AskedFor } else { Reason::Spilled };
        Ok(())
    }

    /// Returns the memory with which the join spills. If a pool grants very little memory at level 0, waits a moment,
    /// so that others can return memory: with very little memory, the join would write thousands of files.
    fn memory_to_spill(&self, level: u32) -> Result<Option<u64>> {
        let mut limit = self.cx.budget.settle(MEMORY_TO_SPILL);
        let may_wait = level == 0 && self.cx.budget.has_pool();
        for _ in 0..MAX_WAITS {
            if limit.is_none_or(|limit| limit >= LITTLE_MEMORY) || !may_wait {
                break;
            }
            self.cx.workers.check()?;
            std::thread::sleep(WAIT);
            limit = self.cx.budget.settle(MEMORY_TO_SPILL);
        }
        Ok(limit)
    }

    /// Returns whether the caller asked for spilling.
    fn asks_to_spill(&self) -> bool {
        self.first.join.algorithm == Some(Algorithm::Spill)
    }

    /// Returns whether the join spills before it tries to join in memory.
    pub(super) fn spills_at_once(&self) -> bool {
        self.asks_to_spill() || self.first.join.overrides.spill_at_once && self.can_spill()
    }

    /// Returns whether the join may spill if memory is refused.
    fn may_spill(&self) -> bool {
        self.can_spill() && !self.cx.budget.unlimited()
    }

    /// Returns whether the join can spill. It needs a place for files.
    fn can_spill(&self) -> bool {
        self.first.join.spill.is_some()
    }

    /// Reads the build side and joins in memory.
    fn join_in_memory(&self, tables: Tables) -> Result<Attempted<Tables>> {
        let (cx, may_spill) = (self.cx, self.may_spill());
        // Usually, an error of a worker ends the whole join. If the join may spill, it must end only this attempt.
        let workers = if may_spill { cx.workers.attempt() } else { cx.workers.clone() };
        let spare = if may_spill { spare_bytes(cx.budget.limit()) } else { 0 };
        let Tables { mut sources, build_side, statistics, join_type, level, .. } = tables;
        let read = cx
            .watch
            .time("read build side", || read_smaller_first(&sources, build_side, &workers, spare));
        let again = |sources| Tables {
            sources,
            build_side,
            statistics,
            join_type,
            level,
            in_memory: false,
        };
        let (side, build) = match read {
            Ok(read) => read,
            Err(why @ Error::MemoryLimit { .. }) if may_spill => {
                cx.workers.check()?;
                return Ok(Attempted::TooLarge(again(sources), why));
            }
            Err(error) => return Err(error),
        };
        sources[side as usize].close();
        let [left, right] = sources;
        let (kept, probe) = if side == Side::Left { (left, right) } else { (right, left) };
        // The batches are needed again only if the join may spill.
        let kept = may_spill.then_some(kept);
        let joined = self.attempt((side, &build), probe, join_type, &statistics)?;
        Ok(match (joined, kept) {
            (Attempted::Joined, _) => Attempted::Joined,
            (Attempted::TooLarge(_, why), None) => return Err(why),
            (Attempted::TooLarge(probe, why), Some(kept)) => {
                let sources = if side == Side::Left { [kept, probe] } else { [probe, kept] };
                // The build side was read to its end. Its batches are partitioned first.
                Attempted::TooLarge(again(sources), why)
            }
        })
    }

    /// Plans a join of a build side in memory, and carries it out.
    fn attempt(
        &self,
        (build_side, build): (Side, &Relation),
        probe: BufferedSource,
        join_type: JoinType,
        statistics: &[Statistics; 2],
    ) -> Result<Attempted<BufferedSource>> {
        let (bound, may_spill) = (self.bound(), self.may_spill());
        let mut cx = self.cx.clone();
        if may_spill {
            cx.workers = self.cx.workers.attempt();
        }
        let mut known = Known::new(cx.machine, Some(build_side), statistics, join_type);
        known.build = known.build.counted(Some(build.rows()), Some(build.bytes()));
        let rows = probe.known_rows();
        known.probe = known.probe.counted(rows, rows.map(|_| probe.read_bytes()));
        known.learned = bound.learned(build_side, build);
        known.streams = self.within_key.load(Ordering::Relaxed);
        let (mut plan, mut device) = bound.decide(&known)?;
        log::info!("{plan}");
        let reads = build.rows() > 0 && rows.is_none();
        let needed_to_probe = match may_spill && reads {
            true => {
                let of_caller = reading_bytes(cx.budget.limit(), cx.workers.threads());
                probe.reading_bytes(of_caller)
            }
            false => 0,
        };
        let spare = if may_spill { spare_bytes(cx.budget.limit()) } else { 0 };
        let may_write = may_spill || cx.overrides.table_parts && self.can_spill();
        // A table in parts writes probe rows without their numbers.
        let numbered = [Side::Left, Side::Right].into_iter().any(|s| bound.wants_row_numbers(s));
        let may_divide = may_write && !numbered;
        let (store, compression) = (bound.join.spill.as_ref(), bound.join.spill_compression);
        let target = store.map(|store| SpillTarget::new(store, compression, &cx.budget));
        let of_join = |target| Overflow { target, totals: &self.spilled, joins: self };
        let overflow = target.as_ref().map(of_join);
        let start = Written::now(self.sink, &self.candidates);
        let (mut probe, mut matched, mut partly_joined) = (Some(probe), None, false);
        let seeded = with_seeds(self.seed, bound.join.overrides.bad_seeds, |seed, bounded| {
            let keys = &bound.keys.reseeded(seed).within(&cx.workers, &cx.budget);
            cx.bounded = bounded;
            plan.seed = Some(keys.seed().number());
            let mut job = Job {
                keys,
                filter: bound.filter.as_ref(),
                roles: Roles::of(join_type, build_side),
                build,
                build_side,
                probe: &mut probe,
                sink: self.sink,
                plan: &mut plan,
                candidates: &self.candidates,
                matched: &mut matched,
                partly_joined: &mut partly_joined,
                needed_to_probe,
                spare,
                overflow: overflow.filter(|_| may_divide),
            };
            if let Some(on) = &device {
                let may_use_cpu = bound.may_use_cpu();
                match algorithm::run_on(&cx, &mut job, &**on, may_use_cpu)? {
                    GpuOutcome::Joined => return Ok(()),
                    GpuOutcome::Failed(why) => {
                        known.probe = bound.probe_left(&known, job.probe.as_ref());
                        *job.plan = bound.without_device(&known, job.plan, &why.to_string());
                    }
                    GpuOutcome::FailedMidway(why) => {
                        known.probe = bound.probe_left(&known, job.probe.as_ref());
                        *job.plan = bound.without_device_midway(&known, job.plan, &why.to_string());
                    }
                }
                job.plan.seed = Some(keys.seed().number());
                log::info!("{}", job.plan);
            }
            device = None;
            algorithm::run(&cx, job)
        });
        drop(device);
        match (seeded, probe) {
            (Ok(seeded), _) => {
                lock(&self.ran).get_or_insert(Ran { plan, seeded });
                Ok(Attempted::Joined)
            }
            // No row was sent to the consumer, and the job still has all probe rows.
            (Err(why @ Error::MemoryLimit { .. }), Some(probe))
                if may_spill && !partly_joined && self.sink.go_back(&start.output) =>
            {
                self.cx.workers.check()?;
                self.candidates.store(start.candidates, Ordering::Relaxed);
                Ok(Attempted::TooLarge(probe, why))
            }
            (Err(error), _) => Err(error),
        }
    }
}

impl Joins for Conductor<'_> {
    fn free_memory(&self) -> Result<u64> {
        let budget = &self.cx.budget;
        let Some(limit) = budget.limit() else { return Ok(u64::MAX) };
        if budget.left() < limit / 3 {
            self.drain()?;
        }
        Ok(budget.left())
    }

    fn drain(&self) -> Result<()> {
        let budget = &self.cx.budget;
        match budget.unlimited() {
            true => Ok(()),
            false => self.sink.flow.drained(budget, self.sink.cancelled),
        }
    }

    fn join(&self, tables: Tables) -> Result<()> {
        self.run(tables)
    }

    fn join_held(
        &self,
        build: (Side, &Relation),
        probe: BufferedSource,
        join_type: JoinType,
    ) -> Result<Attempted<BufferedSource>> {
        self.attempt(build, probe, join_type, &[Statistics::unknown(); 2])
    }

    fn within_key(&self, joins: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.within_key.store(true, Ordering::Relaxed);
        // On a GPU, the output of `sort-merge` has no order.
        let ordered = self.first.device.is_none();
        self.sink.one_key.store(ordered, Ordering::Relaxed);
        let joined = joins();
        self.sink.one_key.store(false, Ordering::Relaxed);
        self.within_key.store(false, Ordering::Relaxed);
        joined
    }

    fn source(&self, side: Side, input: Input) -> BufferedSource {
        self.buffered((side, input), |_| None, false)
    }
}

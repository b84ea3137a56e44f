//! How is a join carried out? There is one file per algorithm. Its conductor calls the stages and contains no
//! inner loops.
//!
//! | file | probe side | output |
//! | --- | --- | --- |
//! | [`no_partition`] | streamed | in the order in which workers finish |
//! | [`radix`] | held | partition after partition |
//! | [`sort_merge`] | held | sorted by key |
//! | [`gpu`] | streamed if the build side stays on the GPU, otherwise held | in the order in which the GPU finds matches |
//!
//! A join that does not fit its memory limit is carried out by [`spill`], if the caller allows it. Otherwise it ends
//! with an error.

pub(crate) mod gpu;
mod morsel_words;
mod no_partition;
mod radix;
mod seeds;
mod sort_merge;
pub(crate) mod sorted_runs;
pub(crate) mod spill;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Result, bytes};
use crate::input::{BufferedSource, Relation};
use crate::key::KeyPlan;
use crate::matches::{BoundFilter, FoundBy, Keep, Matcher, Roles, Unit};
use crate::materialise::Columns;
use crate::memory::{Budget, Reservation};
use crate::options::Algorithm;
use crate::output::{Emitter, Output, SharedSink};
use crate::plan::{Inlining, Learned, Plan, Prediction, ProbeSide};
use crate::schedule::Workers;
use crate::table::Flags;
use crate::word::KeyWord;
use gpu::{Attempt, Rest, Written};

pub(crate) use no_partition::Overflow;
pub(crate) use seeds::{Seeded, with_seeds};

/// A join that is ready to run: the complete build side, and the probe side as far as it was read.
pub(crate) struct Job<'a> {
    pub(crate) keys: &'a KeyPlan,
    pub(crate) filter: Option<&'a BoundFilter>,
    pub(crate) roles: Roles,
    pub(crate) build: &'a Relation,
    pub(crate) build_side: crate::options::Side,
    /// The conductor takes the probe side when the seed is final. If the join starts again with another seed before
    /// that, the probe side is still here.
    pub(crate) probe: &'a mut Option<BufferedSource>,
    pub(crate) sink: &'a SharedSink<'a>,
    /// Conductors obey the plan, and refine it by the facts that they learn.
    pub(crate) plan: &'a mut Plan,
    pub(crate) candidates: &'a AtomicU64,
    /// The build rows that already have a match. They are known after a device has joined a part of the probe
    /// side, if the join type needs them.
    pub(crate) matched: &'a mut Option<Flags>,
    /// Whether `probe` no longer has all rows, because a device took some. Then the join must not start again from the
    /// first probe row.
    pub(crate) partly_joined: &'a mut bool,
    /// The memory that must be free before `no-partition` on the CPU starts to stream the probe side. After that, the
    /// join cannot start again, because this algorithm does not keep the probe rows. Other algorithms ignore this.
    pub(crate) needed_to_probe: u64,
    /// The memory that `sort-merge` on the CPU leaves free while it reads the probe side. Half of it must be free
    /// before it writes the first row, because after that, the join cannot start again. Other algorithms ignore this.
    pub(crate) spare: u64,
    /// Where `no-partition` on the CPU may write probe rows, if its table does not fit memory.
    pub(crate) overflow: Option<Overflow<'a>>,
}

impl<'a> Job<'a> {
    /// Takes the probe side, to stream it or to read it to its end.
    fn take_probe(&mut self) -> Result<BufferedSource> {
        self.probe.take().ok_or_else(|| Error::internal("the probe side was taken twice"))
    }

    /// Reads the probe side to its end and holds it. Each batch must leave `spare` bytes of memory free. The batches
    /// stay in the job, too: if memory is refused before any output row was sent, the join can start again.
    fn hold_probe(&mut self, cx: &Context<'_>, spare: u64) -> Result<Relation> {
        let mut source = self.take_probe()?;
        let filled = source.fill(&cx.workers, spare, || cx.workers.check());
        if filled.is_ok() {
            source.close();
        }
        let probe = source.waiting();
        *self.probe = Some(source);
        filled?;
        self.plan.refine(Learned { probe_rows: Some(probe.rows()), ..Learned::default() });
        Ok(probe)
    }

    /// Reads the probe side to its end. Its batches stay in the job, too.
    fn read_probe(&mut self, cx: &Context<'_>, needed: u64) -> Result<Relation> {
        let source = self.take_probe()?;
        let read = read_to_end(cx, &source, needed);
        *self.probe = Some(source);
        read
    }

    /// Returns the memory that must stay free while the join reads the probe side for a GPU, so that the CPU
    /// can join if the GPU fails. It is the predicted size of the CPU's table, but at least a quarter of the
    /// limit.
    fn needed_without_device(&self, cx: &Context<'_>) -> u64 {
        let Some(limit) = cx.budget.limit() else { return 0 };
        let of_cpu = |p: &&Prediction| !p.on_gpu && p.algorithm == Algorithm::NoPartition;
        let all = self.plan.predictions.iter().find(of_cpu).map_or(0, |p| p.bytes);
        all.saturating_sub(self.build.bytes()).max(limit / 4)
    }

    /// Returns the build side's columns with the payload inlined, if the plan inlines it.
    fn inlined_columns(&self) -> Result<Option<Columns>> {
        match &self.plan.details.inlining {
            Inlining::Inlined { .. } => {
                let gathered = self.sink.output_plan.gathered(self.build_side);
                Columns::inlining(self.build, &gathered).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns the build side as a unit. Its columns are inlined if `inlining` is given.
    fn build_unit(
        &self,
        cx: &Context<'_>,
        matcher: &Matcher<'_>,
        inlining: Option<Columns>,
    ) -> Result<Unit> {
        let (side, build) = (self.build_side, self.build);
        let columns = match inlining {
            Some(columns) => columns,
            None => Columns::of_relation(cx, build, &self.sink.output_plan.gathered(side))?,
        };
        matcher.unit(side, columns, build.batches(), matcher.flags().build)
    }

    /// Returns both sides as units, build side first, if both are held. The build unit has its columns
    /// inlined if `inlining` is given.
    fn held_units(
        &self,
        cx: &Context<'_>,
        matcher: &Matcher<'_>,
        probe: &Relation,
        inlining: Option<Columns>,
    ) -> Result<[Unit; 2]> {
        let build = self.build_unit(cx, matcher, inlining)?;
        let side = self.build_side.other();
        let columns = Columns::of_relation(cx, probe, &self.sink.output_plan.gathered(side))?;
        Ok([build, matcher.unit(side, columns, probe.batches(), matcher.flags().probe)?])
    }

    /// Returns the matcher of the candidates that are `found` in this way.
    fn matcher(&self, cx: &'a Context<'_>, exact: bool, found: FoundBy) -> Matcher<'a> {
        Matcher {
            roles: self.roles,
            keys: self.keys,
            exact,
            filter: self.filter,
            workers: &cx.workers,
            budget: &cx.budget,
            yields: self.plan.details.yields,
            found,
            candidates: self.candidates,
        }
    }
}

/// The result of a join on a device.
pub(crate) enum GpuOutcome {
    /// All rows were written. The plan of the job tells how.
    Joined,
    /// The device failed, and the CPU may join instead. All results of the device were discarded.
    Failed(Error),
    /// The device failed, and the CPU may join the rest, but only by an algorithm that streams the probe side.
    /// Either the output of a part of the probe side has been written, or the side is too long to be held.
    /// The job has the build rows that have a match so far.
    FailedMidway(Error),
}

/// Joins on a device. `cpu_may_join` says whether the CPU may join if the device fails. After such a failure, the job
/// still has the rows of its probe side that were not joined.
///
/// The CPU continues after the last chunk whose output is complete, or at the start if there is none. It
/// joins the rest of the probe side. There are two cases in which it cannot continue:
///
/// - Rows of an unfinished chunk have been sent. The join does not record which rows of the chunk these are.
///   (This can only happen if the results of a chunk come back in several blocks. Counts do not have this
///   problem, because they are reported at the end.)
/// - The join type returns build rows by their flag, only the device has the flags, and it is so broken that
///   it cannot return them.
pub(crate) fn run_on(
    cx: &Context<'_>,
    job: &mut Job<'_>,
    device: &dyn Device,
    cpu_may_join: bool,
) -> Result<GpuOutcome> {
    check_seed(cx, job)?;
    let needed = if cpu_may_join { job.needed_without_device(cx) } else { 0 };
    let start = Written::now(job.sink, job.candidates);
    let mut learned = Learned::default();
    learned.null_keys[0] = job.keys.nulls_in_column(job.build_side, job.build.batches())?;
    if let ProbeSide::Held(reason) = job.plan.details.probe_side {
        match job.read_probe(cx, needed) {
            Ok(probe) => {
                let probe_side = job.build_side.other();
                learned.null_keys[1] = job.keys.nulls_in_column(probe_side, probe.batches())?;
                learned.probe_rows = Some(probe.rows());
                learned.held = Some(reason);
            }
            // The CPU may be able to join without holding the probe side.
            Err(error) if cpu_may_join && error.cpu_may_help() => {
                return Ok(failed(cx, job, error));
            }
            Err(error) => return Err(error),
        }
    }
    learned.memory_left = cx.budget.limit().map(|_| cx.budget.left());
    job.plan.refine(learned);
    let probe = job.take_probe()?;
    // An error of a worker stops only this attempt; the CPU may still join.
    let attempt = Context { workers: cx.workers.attempt(), ..cx.clone() };
    let Attempt { joined, plan, probe, rest } = gpu::run(&attempt, job, probe, needed, device);
    *job.probe = Some(probe);
    *job.partly_joined |= !matches!(rest, Rest::All);
    device.check_released()?;
    if !cx.budget.unlimited() {
        // Under a limit, the memory in the device's pools counts too.
        crate::memory::release_memory();
    }
    let error = match joined {
        Ok(()) => {
            *job.plan = plan;
            return Ok(GpuOutcome::Joined);
        }
        Err(error) => error,
    };
    if !cpu_may_join || !error.cpu_may_help() {
        return Err(error);
    }
    cx.workers.check()?;
    // The report lists this plan, and the plans that were abandoned before it.
    *job.plan = plan;
    let go_back = |to: &Written| {
        job.candidates.store(to.candidates, Ordering::Relaxed);
        job.sink.go_back(&to.output)
    };
    match rest {
        Rest::Lost => Err(error),
        Rest::All if go_back(&start) => Ok(failed(cx, job, error)),
        Rest::After { matched: None, .. } if job.roles.build != Keep::Nothing => {
            Err(error.with_hint(FLAGS_ARE_LOST))
        }
        Rest::After { written, matched } if go_back(&written) => {
            *job.matched = matched;
            Ok(GpuOutcome::FailedMidway(error))
        }
        Rest::All | Rest::After { .. } => Err(error.with_hint(ROWS_WERE_SENT)),
    }
}

/// Returns the outcome after a device failed before the first row of output.
fn failed(cx: &Context<'_>, job: &Job<'_>, why: Error) -> GpuOutcome {
    let too_long = |probe: &BufferedSource| fits_machine(cx, probe).is_err();
    match job.probe.as_ref().is_some_and(too_long) {
        true => GpuOutcome::FailedMidway(why),
        false => GpuOutcome::Failed(why),
    }
}

const FLAGS_ARE_LOST: &str = "; the CPU cannot continue this join, because only the GPU knows which build rows \
     have a match; use the CPU (device cpu)";
const ROWS_WERE_SENT: &str = "; the CPU cannot continue this join, because some rows were already returned; \
     use the CPU (device cpu)";

/// Fails with [`Error::BadSeed`] if the keys need another seed. At that point the attempt has written no row,
/// and the job still has its probe side.
fn check_seed(cx: &Context<'_>, job: &Job<'_>) -> Result<()> {
    match !cx.bounded || seeds::suits(cx, job.keys, job.build_side, job.build)? {
        true => Ok(()),
        false => Err(Error::BadSeed),
    }
}

/// Reads a probe side to its end for a device, and returns all of it. `needed` bytes of memory must stay free.
/// The batches also stay in the source, so that the CPU can join them if the device fails.
fn read_to_end(cx: &Context<'_>, source: &BufferedSource, needed: u64) -> Result<Relation> {
    let check = || {
        cx.workers.check()?;
        has_left(&cx.budget, needed, "taking over on the CPU if the GPU fails")?;
        fits_machine(cx, source)
    };
    cx.watch.time("read probe side", || source.fill(&cx.workers, 0, check))?;
    Ok(source.waiting())
}

/// Returns an error if the budget has fewer than `needed` bytes left for `what`.
fn has_left(budget: &Budget, needed: u64, what: &str) -> Result<()> {
    match budget.limit() {
        Some(limit) if budget.left() < needed => Err(Error::MemoryLimit {
            what: what.to_string(),
            needed,
            used: budget.used(),
            limit,
            hint: String::new(),
        }),
        _ => Ok(()),
    }
}

/// Returns an error if so much of a probe side was read that holding the rest would exhaust the machine. A
/// probe side may be endless. Without a memory limit, only this check ends a join on a GPU that has to hold
/// it.
fn fits_machine(cx: &Context<'_>, source: &BufferedSource) -> Result<()> {
    let (most, held) = (cx.machine.memory / 4 * 3, source.read_bytes());
    if !cx.budget.unlimited() || most == 0 || held <= most {
        return Ok(());
    }
    let (held, memory) = (bytes(held), bytes(cx.machine.memory));
    let problem = format!(
        "this join on a GPU must keep the whole {} table in host memory; {held} were read so far, and this \
         process may use {memory}",
        source.side().name(),
    );
    let advice = "use the CPU (device cpu), which can stream it, or give the join more GPU memory";
    Err(Error::unsupported(problem, advice))
}

/// Runs the conductor that the plan names, on the CPU.
pub(crate) fn run(cx: &Context<'_>, job: Job<'_>) -> Result<()> {
    if job.plan.algorithm != Algorithm::SortMerge {
        check_seed(cx, &job)?;
    }
    match job.plan.algorithm {
        Algorithm::NoPartition => no_partition::run(cx, job),
        Algorithm::Radix => radix::run(cx, job),
        Algorithm::SortMerge => sort_merge::run(cx, job),
        Algorithm::StreamedProbe
        | Algorithm::MultiPass
        | Algorithm::CpuPartitioned
        | Algorithm::Triton => Err(Error::invalid_option(
            "algorithm",
            format!("{} runs on a GPU only", job.plan.algorithm),
            format!("{} run on the CPU and on a GPU", Algorithm::names_anywhere()),
        )),
        Algorithm::Spill => {
            Err(Error::internal("the plan of a join in memory names the algorithm spill"))
        }
    }
}

/// Calls the generic part of a conductor for the plan's widths of key words and values.
macro_rules! for_widths {
    ($plan:expr, $function:ident($($argument:expr),*)) => {
        match ($plan.details.word(), $plan.details.value()) {
            (Width::W32, Width::W32) => $function::<u32, u32>($($argument),*),
            (Width::W32, Width::W64) => $function::<u32, u64>($($argument),*),
            (Width::W64, Width::W32) => $function::<u64, u32>($($argument),*),
            (Width::W64, Width::W64) => $function::<u64, u64>($($argument),*),
        }
    };
}
use for_widths;

/// Returns the maximum number of candidate pairs per worker. A join that produces rows takes one output batch, but
/// at most `MAX_PAIRS`, because the user may choose any batch size. A join that counts takes fewer pairs: they fit
/// the cache, but are enough for the processor to detect sequential reads. Under a limit, the pairs of one worker
/// take at most an eighth of the free memory, but a limit never lowers the number below 256.
fn pair_cap(cx: &Context<'_>, sink: &SharedSink<'_>) -> usize {
    const MAX_PAIRS: usize = 1 << 18;
    const LEAST_PAIRS: u64 = 256;
    let fit = (cx.budget.left() / 8 / PAIR_BYTES).clamp(LEAST_PAIRS, MAX_PAIRS as u64);
    let most = match sink.output_plan.output {
        _ if cx.overrides.tiny_chunks => 3,
        Output::Count => 4096,
        Output::Rows | Output::Pairs => MAX_PAIRS,
    };
    most.min(sink.batch_size).min(fit as usize)
}

/// The bytes per candidate pair in a worker: both row ids twice, both locations, and the state of the pair.
const PAIR_BYTES: u64 = 64;

/// Returns the memory of one worker besides tables and batches: the words of a morsel, candidate pairs, and
/// the locations of their rows.
fn scratch_bytes<K: KeyWord>(morsel: usize, cap: usize) -> u64 {
    let words = morsel * (size_of::<K>() + size_of::<u32>());
    words as u64 + cap as u64 * PAIR_BYTES
}

const SCRATCH: &str = "the workers' own memory";

/// Returns the workers for a stage over `rows` rows (if known), and the reservation for their memory besides
/// tables and batches. Uses fewer workers than threads if there are few rows, or if the workers' memory would
/// take more than half of the free memory.
fn workers_with_scratch<K: KeyWord>(
    cx: &Context<'_>,
    rows: Option<u64>,
    morsel: usize,
    cap: usize,
) -> Result<(Workers, Reservation)> {
    /// The number of threads is not reduced below this, however few the rows are.
    const FEW: usize = 64;
    const ROWS_PER_THREAD: u64 = 16 * 1024;
    let worth = (rows.unwrap_or(0) / ROWS_PER_THREAD) as usize;
    let mut workers = cx.workers.at_most(worth.max(FEW).max(cx.machine.cores));
    let bytes = scratch_bytes::<K>(morsel, cap);
    loop {
        let threads = workers.threads() as u64;
        if threads == 1 {
            return Ok((workers, cx.budget.reserve(bytes, SCRATCH)?));
        }
        let all = bytes.saturating_mul(threads);
        if all <= cx.budget.left() / 2
            && let Ok(reserved) = cx.budget.reserve(all, SCRATCH)
        {
            return Ok((workers, reserved));
        }
        workers = workers.at_most(workers.threads() / 2);
    }
}

/// Returns the bytes that must stay free for the output of other workers when a worker starts work that holds
/// memory: half of the free memory. Must be called before there is output.
fn spare_bytes(cx: &Context<'_>) -> u64 {
    cx.budget.limit().map_or(0, |_| cx.budget.left() / 2)
}

/// Writes the rows of a held side that the join type selects by their flags, on all workers. Each worker
/// holds at most `cap` rows, in the memory of its candidate pairs.
fn emit_all_by_flag(
    (workers, cap): (&Workers, usize),
    matcher: &Matcher<'_>,
    unit: &Unit,
    keep: Keep,
    sink: &SharedSink<'_>,
) -> Result<()> {
    const ROWS_PER_TASK: usize = 256 * 1024;
    if keep == Keep::Nothing {
        return Ok(());
    }
    let tasks = unit.rows.div_ceil(ROWS_PER_TASK);
    workers.each(tasks, |task, worker| {
        let mut emitter = Emitter::new(sink, worker);
        let range: Range<usize> = task * ROWS_PER_TASK..((task + 1) * ROWS_PER_TASK).min(unit.rows);
        matcher.emit_by_flag(unit, keep, (range, cap), &mut emitter)?;
        emitter.finish()
    })
}

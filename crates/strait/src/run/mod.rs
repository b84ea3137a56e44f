//! Runs a bound join: sources in, batches out to a sink.
//!
//! ```text
//!  inputs ──► build side read ──► plan ──► conductor and its workers ──► sink
//! ```

pub(crate) mod candidate;
mod decide;
mod entry;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use self::decide::Known;
use crate::algorithm::{self, GpuOutcome, Job, with_seeds};
use crate::bind::BoundJoin;
use crate::context::Context;
use crate::error::Result;
use crate::input::{BufferedSource, Expected, Feed, Input, MAX_ROWS_PER_BATCH, read_smaller_first};
use crate::machine::Machine;
use crate::matches::Roles;
use crate::memory::Ledger;
use crate::options::Side;
use crate::output::{SharedSink, Sink, Turn};
use crate::progress::{Stage, Ticker};
use crate::reader::Running;
use crate::reading::ReadingThread;
use crate::report::Report;
use crate::schedule::{Workers, lock};
use crate::stopwatch::Stopwatch;

/// The largest number of threads that a join starts, even if the user asks for more.
const MAX_THREADS: usize = 4096;
/// The number of batches that are read at once if memory is not limited.
const READ_AHEAD: usize = 64;

/// The result of a join, besides its rows.
struct Conducted {
    report: Report,
    /// The sums of the columns that are added up.
    sums: Vec<i128>,
}

impl BoundJoin {
    /// Runs the whole join, on this thread and its workers.
    fn conduct(
        &self,
        [left, right]: [Input; 2],
        sink: &dyn Sink,
        shared: &Running,
    ) -> Result<Conducted> {
        let watch = Stopwatch::start();
        let budget = &shared.budget;
        let mut machine = Machine::detect();
        machine.memory = self.join.overrides.host_memory.unwrap_or(machine.memory);
        let threads = self.join.threads.min(MAX_THREADS);
        let workers = Workers::new(threads, Arc::clone(&shared.cancelled));
        let counters = &shared.counters;
        let ledger = (!budget.unlimited()).then(|| Arc::new(Ledger::new(budget)));
        // A reader that blocks after its first batch must not delay that batch.
        let ahead = if ledger.is_some() || self.join.prompt { 1 } else { READ_AHEAD };
        let reading = ReadingThread::new(ahead, &shared.cancelled);
        let source = |side: Side, input: Input| {
            let needed = self.columns(side);
            let expected = Expected {
                // The bound schema decides which columns are nullable. The input may announce another
                // nullability, as long as it delivers no null in a column that is declared non-nullable.
                schema: Arc::clone(&self.schemas[side as usize]),
                columns: (needed.len() < input.schema().fields().len()).then(|| needed.to_vec()),
                row_numbers: self.wants_row_numbers(side),
            };
            let running = (&shared.cancelled, counters);
            let feed = Feed::new((side, input), expected, &reading, budget, running);
            BufferedSource::new(feed, ledger.clone())
        };
        let (left, right) = (source(Side::Left, left), source(Side::Right, right));
        // This comes after the readers were handed to the reading thread. If it fails, the reading thread drops them.
        let _ticker = Ticker::start(self.join.progress.clone(), &shared.counters)?;
        let rule = self.build_side();
        let (build, probe) =
            watch.time("read build side", || read_smaller_first(left, right, rule, &workers))?;
        let build_side = probe.side().other();
        let mut known = Known::new(&machine, Some(build_side), &self.join.statistics);
        known.build = known.build.counted(Some(build.rows()), Some(build.bytes()));
        let rows = probe.known_rows();
        known.probe = known.probe.counted(rows, rows.map(|_| probe.read_bytes()));
        known.learned = self.learned(build_side, &build);
        let (plan, device) = self.decide(&known)?;
        log::info!("{plan}");

        let sink = SharedSink {
            output_plan: &self.output,
            sink,
            budget,
            ledger: ledger.as_deref(),
            flow: &shared.flow,
            cancelled: &shared.cancelled,
            counters,
            batch_size: self.join.batch_size.min(MAX_ROWS_PER_BATCH),
            workers: threads as u64,
            prompt: self.join.prompt,
            turn: Turn::default(),
            sums: Mutex::new(vec![0; self.output.sums.len()]),
        };
        let mut cx = Context {
            workers,
            budget: Arc::clone(budget),
            counters,
            watch: &watch,
            machine: &machine,
            overrides: self.join.overrides,
            ledger: ledger.clone(),
            bounded: true,
        };
        let candidates = AtomicU64::new(0);
        let mut probe = Some(probe);
        let (mut ran, mut device, mut matched) = (plan, device, None);
        let seeded = with_seeds(self.join.overrides, |seed, bounded| {
            let keys = &self.keys.reseeded(seed).within(&cx.workers, &cx.budget);
            cx.bounded = bounded;
            ran.seed = Some(keys.seed().number());
            let mut job = Job {
                keys,
                filter: self.filter.as_ref(),
                roles: Roles::of(self.join.join_type, build_side),
                build: &build,
                build_side,
                probe: &mut probe,
                sink: &sink,
                plan: &mut ran,
                candidates: &candidates,
                matched: &mut matched,
            };
            if let Some(on) = &device {
                match algorithm::run_on(&cx, &mut job, &**on, self.may_use_cpu())? {
                    GpuOutcome::Joined => return Ok(()),
                    GpuOutcome::Failed(why) => {
                        known.probe = self.probe_left(&known, job.probe.as_ref());
                        *job.plan = self.without_device(&known, job.plan, &why.to_string());
                    }
                    GpuOutcome::FailedMidway(why) => {
                        known.probe = self.probe_left(&known, job.probe.as_ref());
                        *job.plan = self.without_device_midway(&known, job.plan, &why.to_string());
                    }
                }
                job.plan.seed = Some(keys.seed().number());
                log::info!("{}", job.plan);
            }
            device = None;
            algorithm::run(&cx, job)
        })?;
        drop(device);
        sink.finish()?;
        let sums = std::mem::take(&mut *lock(&sink.sums));
        counters.enter(Stage::Done, 0);
        let seen = counters.snapshot();
        let report = Report {
            stages: watch.stages(),
            elapsed: watch.elapsed(),
            left_rows: seen.left_rows,
            right_rows: seen.right_rows,
            skipped_rows: counters.skipped_rows.load(Ordering::Relaxed),
            output_rows: counters.found(),
            candidates: candidates.into_inner(),
            gathering: counters.gathered(),
            peak_memory: budget.peak(),
            crossed: watch.crossed().into(),
            gpu: watch.gpu(),
            seed: seeded.number,
            seeds_tried: seeded.tried,
            plan: ran,
        };
        Ok(Conducted { report, sums })
    }
}

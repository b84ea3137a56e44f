//! Runs a bound join: sources in, batches out to a sink.
//!
//! ```text
//!  inputs ──► build side read ──► plan ──► conductor and its workers ──► sink
//! ```
//!
//! If the join does not fit its memory limit, it may spill. Then it consists of several joins in memory
//! ([`joins`]), which share everything that this file sets up.

pub(crate) mod candidate;
mod decide;
mod entry;
mod joins;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use self::joins::Conductor;
use crate::algorithm::spill::Tables;
use crate::bind::BoundJoin;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::input::{Input, MAX_ROWS_PER_BATCH};
use crate::machine::Machine;
use crate::memory::Ledger;
use crate::options::Side;
use crate::output::{CurrentPlan, SharedSink, Sink, Turn};
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
        let counters = &shared.counters;
        let ledger = (!budget.unlimited()).then(|| Arc::new(Ledger::new(budget)));
        // A reader that blocks after its first batch must not delay that batch.
        let ahead = if ledger.is_some() || self.join.prompt { 1 } else { READ_AHEAD };
        let reading = ReadingThread::new(ahead, &shared.cancelled);
        let sink = SharedSink {
            output_plan: CurrentPlan::new(&self.output),
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
            one_key: AtomicBool::new(false),
            pushing: Mutex::default(),
            sums: Mutex::new(vec![0; self.output.sums.len()]),
        };
        let cx = Context {
            workers: Workers::new(threads, Arc::clone(&shared.cancelled)),
            budget: Arc::clone(budget),
            counters,
            watch: &watch,
            machine: &machine,
            overrides: self.join.overrides,
            ledger: ledger.clone(),
            bounded: true,
        };
        let conductor = Conductor::new(self, &cx, &sink, (shared, &reading));
        let sources = [conductor.input(Side::Left, left), conductor.input(Side::Right, right)];
        // This comes after the readers were handed to the reading thread. If it fails, the reading thread drops them.
        let _ticker = Ticker::start(self.join.progress.clone(), &shared.counters)?;
        let in_memory = !conductor.spills_at_once();
        conductor.run(Tables {
            sources,
            build_side: self.build_side(),
            statistics: self.join.statistics,
            join_type: self.join.join_type,
            level: 0,
            in_memory,
        })?;
        sink.finish()?;
        let sums = std::mem::take(&mut *lock(&sink.sums));
        counters.enter(Stage::Done, 0);
        let (spilled, candidates) = conductor.totals();
        let ran = conductor.into_ran();
        let ran = ran.ok_or_else(|| Error::internal("a join ended without a plan"))?;
        let seen = counters.snapshot();
        let report = Report {
            stages: watch.stages(),
            elapsed: watch.elapsed(),
            left_rows: seen.left_rows,
            right_rows: seen.right_rows,
            skipped_rows: counters.skipped_rows.load(Ordering::Relaxed),
            output_rows: counters.found(),
            candidates,
            gathering: counters.gathered(),
            peak_memory: budget.peak(),
            spilled,
            crossed: watch.crossed().into(),
            gpu: watch.gpu(),
            seed: ran.seeded.number,
            seeds_tried: ran.seeded.tried,
            plan: ran.plan,
        };
        Ok(Conducted { report, sums })
    }
}

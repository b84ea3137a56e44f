//! Runs a bound join: readers in, batches out through a short queue.
//!
//! ```text
//!  readers ──► build side read ──► plan ──► conductor thread and its workers ──► queue ──► JoinReader
//! ```

pub(crate) mod candidate;
mod decide;

use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use arrow::array::{RecordBatchIterator, RecordBatchReader};
use arrow::datatypes::Schema;

use self::decide::Known;
use crate::algorithm::gpu::Escalated;
use crate::algorithm::{self, Job, OnDevice, with_seeds};
use crate::bind::BoundJoin;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::input::{BufferedSource, MAX_ROWS_PER_BATCH, Reader, read_smaller_first};
use crate::join::Join;
use crate::machine::Machine;
use crate::matches::Roles;
use crate::memory::{Budget, Ledger};
use crate::options::Side;
use crate::output::{Aggregate, Output, ReservedBatch, SharedSink, Turn};
use crate::progress::{Stage, Ticker};
use crate::reader::{JoinReader, Running};
use crate::reading::ReadingThread;
use crate::report::Report;
use crate::schedule::lock;
use crate::schedule::{Workers, guarded};
use crate::stopwatch::Stopwatch;

/// The largest number of threads that a join starts, even if the user asks for more.
const MAX_THREADS: usize = 4096;
/// The number of batches that are read at once if memory is not limited.
const READ_AHEAD: usize = 64;

impl Join {
    /// Joins two tables and returns a reader of the joined rows.
    ///
    /// The join runs on its own threads, and stays only a few batches ahead of the reader. Dropping the
    /// reader cancels the join: the drop waits until the workers have ended and the memory is released. It
    /// does not wait for an input that blocks. Such an input is dropped on its own thread when it returns.
    ///
    /// # Errors
    ///
    /// Fails like [`bind`](Join::bind), before any row is read. Later errors come from the reader.
    pub fn run<L, R>(&self, left: L, right: R) -> Result<JoinReader>
    where
        L: RecordBatchReader + Send + 'static,
        R: RecordBatchReader + Send + 'static,
    {
        self.start(Output::Rows, Box::new(left), Box::new(right))
    }

    /// Joins two tables and returns a reader of row numbers instead of rows.
    ///
    /// The columns are `left_row` and `right_row`, both `UInt64`. A join type that returns rows of only one
    /// side has only the column of that side.
    pub fn pairs<L, R>(&self, left: L, right: R) -> Result<JoinReader>
    where
        L: RecordBatchReader + Send + 'static,
        R: RecordBatchReader + Send + 'static,
    {
        self.start(Output::Pairs, Box::new(left), Box::new(right))
    }

    /// Joins two tables and returns the number of rows, without creating them. It blocks until the join has
    /// finished.
    pub fn count<L, R>(&self, left: L, right: R) -> Result<(u64, Report)>
    where
        L: RecordBatchReader + Send + 'static,
        R: RecordBatchReader + Send + 'static,
    {
        self.start(Output::Count, Box::new(left), Box::new(right))?.counted()
    }

    /// Joins two tables and returns the sums of integer columns over the joined rows, without creating them.
    pub fn aggregate<L, R>(
        &self,
        sums: &[(Side, &str)],
        left: L,
        right: R,
    ) -> Result<(Aggregate, Report)>
    where
        L: RecordBatchReader + Send + 'static,
        R: RecordBatchReader + Send + 'static,
    {
        let (left, right): (Reader, Reader) = (Box::new(left), Box::new(right));
        let schemas = [left.schema(), right.schema()];
        let bound = BoundJoin::new(self, Output::Count, sums, [&schemas[0], &schemas[1]])?;
        bound.start_projected(left, right)?.aggregated()
    }

    fn start(&self, output: Output, left: Reader, right: Reader) -> Result<JoinReader> {
        self.bind(output, &left.schema(), &right.schema())?.start_projected(left, right)
    }
}

/// Returns a reader of the columns at `indices`, in that order.
fn only(reader: Reader, indices: &[usize]) -> Reader {
    let schema = reader.schema();
    let projected = match schema.project(indices) {
        Ok(projected) if indices.len() < schema.fields().len() => Arc::new(projected),
        _ => return reader,
    };
    let indices = indices.to_vec();
    let batches = reader.map(move |batch| batch.and_then(|b| b.project(&indices)));
    Box::new(RecordBatchIterator::new(batches, projected))
}

impl BoundJoin {
    /// Runs the join over readers that yield exactly the needed [`columns`](BoundJoin::columns).
    pub fn run<L, R>(self, left: L, right: R) -> Result<JoinReader>
    where
        L: RecordBatchReader + Send + 'static,
        R: RecordBatchReader + Send + 'static,
    {
        self.start(Box::new(left), Box::new(right))
    }

    /// Runs the join and returns the number of rows. The readers must yield exactly the needed
    /// [`columns`](BoundJoin::columns).
    pub fn count<L, R>(self, left: L, right: R) -> Result<(u64, Report)>
    where
        L: RecordBatchReader + Send + 'static,
        R: RecordBatchReader + Send + 'static,
    {
        self.start(Box::new(left), Box::new(right))?.counted()
    }

    /// Runs the join over readers that may yield more columns than needed.
    fn start_projected(self, left: Reader, right: Reader) -> Result<JoinReader> {
        let left = only(left, self.columns(Side::Left));
        let right = only(right, self.columns(Side::Right));
        self.start(left, right)
    }

    fn start(self, left: Reader, right: Reader) -> Result<JoinReader> {
        for (side, reader) in [(Side::Left, &left), (Side::Right, &right)] {
            self.check(side, &reader.schema())?;
        }
        let budget = match &self.join.memory_budget {
            Some(shared) => Arc::clone(shared),
            None => Budget::new(self.join.memory_limit),
        };
        let shared = Running::new(budget);
        // Each worker can have one batch in the queue, and one more can wait. Without a memory limit the
        // queue is longer, so that workers do not have to stop while the consumer is busy with a batch.
        let threads = self.join.threads.min(MAX_THREADS);
        let waiting = if self.join.memory_limit.is_some() { 1 } else { 3 * threads };
        let (sender, receiver) = sync_channel(threads + waiting);
        let schema = self.schema();
        let conductor = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("strait-conductor".to_string()).spawn(move || {
                let failures = sender.clone();
                let done = guarded(|| self.conduct(left, right, sender, &shared));
                match done {
                    Ok(report) => *lock(&shared.report) = Some(report),
                    // The send fails if the reader is gone. Then nobody needs the error.
                    Err(error) => drop(failures.send(Err(error))),
                }
            })
        };
        let conductor = conductor.map_err(Error::thread)?;
        Ok(JoinReader { schema, receiver: Some(receiver), conductor: Some(conductor), shared })
    }

    fn check(&self, side: Side, schema: &Schema) -> Result<()> {
        let expected = &self.schemas[side as usize];
        let same = expected.fields().len() == schema.fields().len()
            && expected
                .fields()
                .iter()
                .zip(schema.fields())
                .all(|(e, s)| e.name() == s.name() && e.data_type() == s.data_type());
        if same {
            return Ok(());
        }
        let names = |schema: &Schema| {
            schema.fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>().join(", ")
        };
        let detail = format!("expected columns {}; found {}", names(expected), names(schema));
        Err(Error::SchemaChanged { side: side.name(), detail })
    }

    /// Gives the reader the bound schema, which decides which columns are nullable. The reader may announce
    /// another nullability, as long as it delivers no null in a column that the bound schema declares
    /// non-nullable.
    fn as_bound(&self, side: Side, reader: Reader) -> Reader {
        Box::new(RecordBatchIterator::new(reader, Arc::clone(&self.schemas[side as usize])))
    }

    /// Runs the whole join, on the conductor thread.
    fn conduct(
        &self,
        left: Reader,
        right: Reader,
        sender: SyncSender<Result<ReservedBatch>>,
        shared: &Running,
    ) -> Result<Report> {
        let watch = Stopwatch::start();
        let budget = &shared.budget;
        let machine = Machine::detect();
        let threads = self.join.threads.min(MAX_THREADS);
        let workers = Workers::new(threads, Arc::clone(&shared.cancelled));
        let counters = &shared.counters;
        let ledger = (!budget.unlimited()).then(|| Arc::new(Ledger::new(budget)));
        // A reader that blocks after its first batch must not delay that batch.
        let ahead = if ledger.is_some() || self.join.prompt { 1 } else { READ_AHEAD };
        let reading = ReadingThread::new(ahead, &shared.cancelled);
        let source = |side, reader| {
            let (reader, ledger) = (self.as_bound(side, reader), ledger.clone());
            BufferedSource::new(side, reader, Arc::clone(&reading), budget, ledger, counters)
        };
        let (left, right) = (source(Side::Left, left), source(Side::Right, right));
        // After the readers were handed to the reading thread: if this fails, they are dropped there.
        let _ticker = Ticker::start(self.join.progress.clone(), &shared.counters)?;
        let first = self.first();
        let (build, probe) = watch.time("read build side", || {
            read_smaller_first(left, right, first, || workers.check())
        })?;
        let build_side = probe.side().other();
        let mut known = Known::new(&machine, Some(build_side), &self.join.statistics);
        known.build = known.build.counted(Some(build.rows()), Some(build.bytes()));
        let rows = probe.known_rows();
        known.probe = known.probe.counted(rows, rows.map(|_| probe.waiting_bytes()));
        known.learned = self.learned(build_side, &build);
        let (plan, device) = self.decide(&known)?;
        log::info!("{plan}");

        let sink = SharedSink {
            plan: &self.output,
            sender,
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
            gpu_options: self.join.gpu_options,
            ledger: ledger.clone(),
            bounded: true,
        };
        let candidates = AtomicU64::new(0);
        let mut probe = Some(probe);
        let (mut ran, mut device) = (plan, device);
        let seeded = with_seeds(self.join.overrides, |seed, bounded| {
            let keys = &self.keys.reseeded(seed);
            cx.bounded = bounded;
            let roles = Roles::of(self.join.join_type, build_side);
            let (filter, sink) = (self.filter.as_ref(), &sink);
            let (build, candidates) = (&build, &candidates);
            ran.seed = Some(keys.seed().number());
            if let Some(on) = &device {
                let (probe, plan) = (&mut probe, &mut ran);
                let mut job =
                    Job { keys, filter, roles, build, build_side, probe, sink, plan, candidates };
                match algorithm::run_on(&cx, &mut job, &**on, self.goes_on())? {
                    OnDevice::Joined => return Ok(()),
                    OnDevice::Escalated(Escalated { to, why }) => {
                        ran = ran.escalated(to, &why.to_string());
                        return Ok(());
                    }
                    OnDevice::Failed(why) => {
                        known.probe = self.probe_left(&known, job.probe.as_ref());
                        ran = self.without_device(&known, &ran, &why.to_string());
                        ran.seed = Some(keys.seed().number());
                        log::info!("{ran}");
                    }
                }
            }
            device = None;
            let (probe, plan) = (&mut probe, &mut ran);
            let job = Job { keys, filter, roles, build, build_side, probe, sink, plan, candidates };
            algorithm::run(&cx, job)
        })?;
        drop(device);
        *lock(&shared.sums) = std::mem::take(&mut *lock(&sink.sums));
        counters.enter(Stage::Done, 0);
        let seen = counters.snapshot();
        Ok(Report {
            stages: watch.stages(),
            elapsed: watch.elapsed(),
            left_rows: seen.left_rows,
            right_rows: seen.right_rows,
            output_rows: counters.found(),
            candidates: candidates.into_inner(),
            peak_memory: budget.peak(),
            crossed: watch.crossed(),
            seed: seeded.number,
            seeds_tried: seeded.tried,
            plan: ran,
        })
    }
}

//! A join bound to two schemas: checked, planned, run.
//!
//! ```text
//!  Join ── bind(schemas) ──► BoundJoin ── run(readers) ──► JoinReader ── exhausted ──► Report
//!                               │                             ▲
//!                               └─ explain(statistics) ► Plan │ batches through a short queue
//!                                                  conductor thread and its workers
//! ```

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use arrow::array::{RecordBatchIterator, RecordBatchReader};
use arrow::datatypes::{Schema, SchemaRef};

use crate::algorithm::{self, Context, Job, with_seeds};
use crate::device::{self, Device, Prospect};
use crate::error::{Error, Result, bytes};
use crate::input::{MOST_ROWS_A_BATCH, Reader, Source, race};
use crate::join::{Join, Side};
use crate::key::{Equality, KeyPlan, Width};
use crate::matches::{Asked, BoundFilter, Roles};
use crate::memory::{Budget, Ledger};
use crate::metrics::{Report, Stopwatch};
use crate::output::{Aggregate, Origin, Output, OutputPlan, Parcel, Sink, Turn};
use crate::plan::{Machine, OnDevice, Plan, Request, Statistics, WordsLie, choose};
use crate::progress::{Stage, Ticker};
use crate::reader::{JoinReader, Running, lock};
use crate::reading::ReadingThread;
use crate::resolve;
use crate::schedule::{Workers, guarded};

/// The largest number of threads that a join starts, even if the user asks for more.
const MOST_THREADS: usize = 4096;
/// Batches that are read at once where memory is not limited.
const READ_AHEAD: usize = 64;

impl Join {
    /// Checks the join against the two tables' schemas.
    pub fn bind(&self, output: Output, left: &Schema, right: &Schema) -> Result<BoundJoin> {
        BoundJoin::new(self, output, &[], [left, right])
    }

    /// Joins two tables and yields rows.
    ///
    /// The reader is lazy in that a few batches wait in a queue at most. Dropping it cancels the join,
    /// and waits until its workers have ended and its memory was given back. It does not wait for an
    /// input that blocks: that reader is dropped on a thread of its own when it returns.
    pub fn run<L, R>(&self, left: L, right: R) -> Result<JoinReader>
    where
        L: RecordBatchReader + Send + 'static,
        R: RecordBatchReader + Send + 'static,
    {
        self.start(Output::Rows, Box::new(left), Box::new(right))
    }

    /// Joins two tables and yields positions of rows: `left_row` and `right_row`, as far as the
    /// join type has them.
    pub fn pairs<L, R>(&self, left: L, right: R) -> Result<JoinReader>
    where
        L: RecordBatchReader + Send + 'static,
        R: RecordBatchReader + Send + 'static,
    {
        self.start(Output::Pairs, Box::new(left), Box::new(right))
    }

    /// Joins two tables and counts the rows.
    pub fn count<L, R>(&self, left: L, right: R) -> Result<(u64, Report)>
    where
        L: RecordBatchReader + Send + 'static,
        R: RecordBatchReader + Send + 'static,
    {
        self.start(Output::Count, Box::new(left), Box::new(right))?.counted()
    }

    /// Joins two tables and adds up integer columns of either side over the joined rows, without
    /// making those.
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

/// A reader's columns at `indices`, in that order.
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

/// A join whose names have been found in two schemas.
pub struct BoundJoin {
    join: Join,
    /// The columns needed of each side.
    columns: [Vec<usize>; 2],
    schemas: [SchemaRef; 2],
    keys: KeyPlan,
    filter: Option<BoundFilter>,
    output: OutputPlan,
    /// The device that was asked for by name, if one was.
    device: Option<Arc<dyn Device>>,
}

impl BoundJoin {
    fn new(
        join: &Join,
        output: Output,
        sums: &[(Side, &str)],
        [left, right]: [&Schema; 2],
    ) -> Result<Self> {
        if join.threads == 0 || join.batch_size == 0 {
            let what = if join.threads == 0 { "number of threads" } else { "batch size" };
            return Err(Error::Setting(format!("the {what} is zero; it has to be at least 1")));
        }
        let found = join.keys.iter().map(|(l, r)| {
            Ok((resolve::column("left", left, l)?, resolve::column("right", right, r)?))
        });
        let keys = found.collect::<Result<Vec<_>>>()?;
        let mut plan = resolve::output(join, output, left, right, &keys)?;
        let schema = |side| if side == Side::Left { left } else { right };
        for &(side, name) in sums {
            let column = resolve::column(side.name(), schema(side), name)?;
            let data_type = schema(side).field(column).data_type();
            if !data_type.is_integer() {
                let side = side.name();
                return Err(Error::Setting(format!(
                    "column \"{name}\" of the {side} table is {data_type}; only integers are added up"
                )));
            }
            plan.sums.push((side, column));
        }
        let filter_columns = match &join.filter {
            Some(filter) => {
                let found = filter.columns.iter().map(|(side, name)| {
                    Ok((*side, resolve::column(side.name(), schema(*side), name)?))
                });
                found.collect::<Result<Vec<_>>>()?
            }
            None => Vec::new(),
        };
        let columns = needed(&keys, [&filter_columns, &plan.sums], &plan.origins);
        // From here on, columns are those of the readers.
        let at =
            |side: Side, column: usize| columns[side as usize].partition_point(|&c| c < column);
        for origin in &mut plan.origins {
            match origin {
                Origin::Column(side, column) => *column = at(*side, *column),
                Origin::Either { left, right } | Origin::Coalesced { left, right, .. } => {
                    (*left, *right) = (at(Side::Left, *left), at(Side::Right, *right));
                }
                Origin::RowId(_) | Origin::Mark => {}
            }
        }
        plan.sums.iter_mut().for_each(|(side, column)| *column = at(*side, *column));
        let keys: Vec<_> =
            keys.iter().map(|&(l, r)| (at(Side::Left, l), at(Side::Right, r))).collect();
        let project = |schema: &Schema, columns: &[usize]| {
            schema.project(columns).map(Arc::new).map_err(Error::arrow("choosing columns"))
        };
        let schemas = [project(left, &columns[0])?, project(right, &columns[1])?];
        let equality = Equality { nulls: join.null_equality, floats: join.float_equality };
        let keys = KeyPlan::new(&schemas[0], &schemas[1], &keys, equality, join.force.collide)?;
        let filter = join.filter.as_ref().map(|filter| {
            let columns: Vec<_> = filter_columns.iter().map(|&(s, c)| (s, at(s, c))).collect();
            let fields: Vec<_> =
                columns.iter().map(|&(s, c)| schemas[s as usize].field(c).clone()).collect();
            let schema = Arc::new(Schema::new(fields));
            BoundFilter { columns, schema, predicate: Arc::clone(&filter.predicate) }
        });
        let device = device::asked(join)?;
        Ok(BoundJoin { join: join.clone(), columns, schemas, keys, filter, output: plan, device })
    }

    /// The schema of the output.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.output.schema)
    }

    /// The columns of a side that the join needs, by their index in its schema, ascending. The
    /// readers given to [`run`](BoundJoin::run) have to yield just these.
    pub fn columns(&self, side: Side) -> &[usize] {
        &self.columns[side as usize]
    }

    /// What would be done with tables of this kind, and how long it would take.
    pub fn explain(&self, left: &Statistics, right: &Statistics) -> Plan {
        let side = self.join.build_side.or_else(|| smaller(left, right));
        let (build, probe) = match side {
            Some(Side::Right) => (right, left),
            _ => (left, right),
        };
        let machine = Machine::detect();
        let known = Known { machine: &machine, side, build: *build, probe: *probe };
        match self.prospects(&known) {
            (plan, Some(prospect)) => match prospect.check() {
                Ok(()) => plan,
                Err(why) => self.abandon(&known, &why.to_string()),
            },
            (plan, None) => plan,
        }
    }

    /// The plan by what is known without opening a device, and the device that it wants opened.
    fn prospects(&self, known: &Known<'_>) -> (Plan, Option<Prospect>) {
        if let Some(device) = &self.device {
            let budget = device.memory().budget;
            return (self.plan(known, Some((device.name(), budget))), None);
        }
        let prospect = device::prospect(&self.join);
        let of = |prospect: &Prospect| prospect.budget(&self.join);
        let plan = self.plan(known, prospect.as_ref().map(|p| (p.name(), of(p))));
        let wanted = prospect.filter(|_| plan.device.is_some());
        (plan, wanted)
    }

    /// The plan, and the device it needs, opened. A GPU that nobody asked for is opened only where the
    /// plan wants it. It is planned again by the memory that is free there.
    fn decide(&self, known: &Known<'_>) -> Result<(Plan, Option<Arc<dyn Device>>)> {
        let (plan, prospect) = self.prospects(known);
        let Some(prospect) = prospect else {
            let device = self.device.clone().filter(|_| plan.device.is_some());
            return Ok((plan, device));
        };
        let opened = prospect.open(&self.join).and_then(|device| {
            let free = device.available()?;
            Ok((device, free))
        });
        let (device, free) = match opened {
            Ok(opened) => opened,
            Err(why) if self.goes_on() => return Ok((self.abandon(known, &why.to_string()), None)),
            Err(why) => return Err(why),
        };
        let again = self.plan(known, Some((device.name(), free)));
        if again.device.is_some() {
            return Ok((again, Some(device)));
        }
        if !self.goes_on() {
            // What needs a GPU is tried there, and says what it lacks.
            return Ok((plan, Some(device)));
        }
        let why = format!("too little of its memory is free ({})", bytes(free));
        Ok((self.abandon(known, &why), None))
    }

    /// Whether the join goes on on the CPU where a GPU fails: that nobody asked for, nor something that
    /// only runs there.
    fn goes_on(&self) -> bool {
        self.device.is_none() && !self.join.algorithm.needs_gpu()
    }

    /// The plan for the CPU after a GPU failed.
    fn abandon(&self, known: &Known<'_>, why: &str) -> Plan {
        log::warn!("the GPU was abandoned: {why}; joining on the CPU");
        Plan { abandoned: Some(why.to_string()), ..self.plan(known, None) }
    }

    /// Plans for the CPU, and for a device of that name and so much memory if there is one.
    fn plan(&self, known: &Known<'_>, device: Option<(&str, u64)>) -> Plan {
        let Known { machine, side, build, probe } = *known;
        let word_bytes = if self.keys.width() == Width::W32 { 4 } else { 8 };
        let device = device.map(|(name, budget)| OnDevice {
            name: name.to_string(),
            budget,
            asked: self.device.is_some() || self.join.force.simulated.is_some(),
            back: self.back(side.unwrap_or(Side::Left)),
            row_bytes: word_bytes as u64,
            words: match self.keys.lies_in_columns() {
                Some(nullable) if self.join.on_gpu.transfer.stages() => {
                    WordsLie::InColumns { nullable }
                }
                _ => WordsLie::Nowhere,
            },
        });
        choose(Request {
            device,
            asked: self.join.algorithm,
            join_type: self.join.join_type,
            build_side: side,
            build,
            probe,
            threads: self.join.threads,
            limit: self.join.memory_limit,
            key: self.keys.describe(),
            exact: self.keys.exact(),
            word_bytes,
            carried_bytes: side.and_then(|side| self.carried_bytes(side)),
            machine,
        })
    }

    /// What would come back from a GPU.
    fn back(&self, build_side: Side) -> Asked {
        let all_match = self.keys.exact() && self.filter.is_none();
        let roles = Roles::of(self.join.join_type, build_side);
        roles.asks(all_match, self.output.count_only())
    }

    /// The bytes of a row of this side that are wanted of it, where it is the build side and they may
    /// travel with its key; that they do takes columns without nulls, too.
    fn carried_bytes(&self, side: Side) -> Option<usize> {
        let roles = Roles::of(self.join.join_type, side);
        let exact = self.keys.exact() && self.filter.is_none() && self.output.by_values(side);
        let schema = &self.schemas[side as usize];
        let width = |&column: &usize| schema.fields().get(column)?.data_type().primitive_width();
        let may = exact && roles.only_columns_of_build();
        let wanted: BTreeSet<usize> = self.output.gathered(side).into_iter().collect();
        may.then(|| wanted.iter().map(width).sum()).flatten()
    }

    /// Runs the join over readers that yield the needed [`columns`](BoundJoin::columns).
    pub fn run<L, R>(self, left: L, right: R) -> Result<JoinReader>
    where
        L: RecordBatchReader + Send + 'static,
        R: RecordBatchReader + Send + 'static,
    {
        self.start(Box::new(left), Box::new(right))
    }

    /// Runs the join for the number of its rows.
    pub fn count<L, R>(self, left: L, right: R) -> Result<(u64, Report)>
    where
        L: RecordBatchReader + Send + 'static,
        R: RecordBatchReader + Send + 'static,
    {
        self.start(Box::new(left), Box::new(right))?.counted()
    }

    /// Runs over readers that may yield more than the needed columns.
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
        // A batch a worker under way, and one waiting; more where memory does not count, so that
        // workers need not stop for a reader that is busy with the last one.
        let threads = self.join.threads.min(MOST_THREADS);
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
                    // Nobody may be left to hear it.
                    Err(error) => drop(failures.send(Err(error))),
                }
            })
        };
        let conductor = conductor
            .map_err(|error| Error::Worker(format!("could not start a thread: {error}")))?;
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

    /// The reader under the schema that the join was bound to, which decides what may be null. A reader
    /// that announces other nullability is welcome, as long as it delivers no null where the bound
    /// schema has none.
    fn as_bound(&self, side: Side, reader: Reader) -> Reader {
        Box::new(RecordBatchIterator::new(reader, Arc::clone(&self.schemas[side as usize])))
    }

    /// What is known of a probe side that was read for a device, and then not joined there.
    fn probe_left(&self, known: &Known<'_>, probe: Option<&Source>) -> Statistics {
        let rows = probe.and_then(Source::known_rows);
        let held = probe.map_or(0, Source::waiting_bytes);
        // What is not read to its end is longer than the limit lets it be held.
        let least = if rows.is_some() { 0 } else { self.join.memory_limit.unwrap_or(0) };
        Statistics { rows, bytes: Some(held.max(least)), ..known.probe }
    }

    /// The whole join, on the conductor's thread.
    fn conduct(
        &self,
        left: Reader,
        right: Reader,
        sender: SyncSender<Result<Parcel>>,
        shared: &Running,
    ) -> Result<Report> {
        let watch = Stopwatch::start();
        let budget = &shared.budget;
        let machine = Machine::detect();
        let threads = self.join.threads.min(MOST_THREADS);
        let workers = Workers::new(threads, Arc::clone(&shared.cancelled));
        let _ticker = Ticker::start(self.join.progress.clone(), &shared.counters)?;

        let counters = &shared.counters;
        // Without a limit, batches may be read ahead.
        let (ledger, ahead) = match budget.unlimited() {
            true => (None, READ_AHEAD),
            false => (Some(Arc::new(Ledger::new(budget))), 1),
        };
        let reading = ReadingThread::new(ahead, &shared.cancelled);
        let source = |side, reader| {
            let (reader, ledger) = (self.as_bound(side, reader), ledger.clone());
            Source::new(side, reader, Arc::clone(&reading), budget, ledger, counters)
        };
        let (left, right) = (source(Side::Left, left), source(Side::Right, right));
        let asked = self.join.build_side;
        let (build, probe) =
            watch.time("read build side", || race(left, right, asked, || workers.check()))?;
        let build_side = probe.side().other();
        let build_known = Statistics {
            rows: Some(build.rows()),
            bytes: Some(build.bytes()),
            ..Statistics::default()
        };
        let rows = probe.known_rows();
        let bytes = rows.map(|_| probe.waiting_bytes());
        let probe_known = Statistics { rows, bytes, ..Statistics::default() };
        let mut known = Known {
            machine: &machine,
            side: Some(build_side),
            build: build_known,
            probe: probe_known,
        };
        let (plan, device) = self.decide(&known)?;
        log::info!("{plan}");

        let sink = Sink {
            plan: &self.output,
            sender,
            budget,
            ledger: ledger.as_deref(),
            flow: &shared.flow,
            cancelled: &shared.cancelled,
            counters,
            batch_size: self.join.batch_size.min(MOST_ROWS_A_BATCH),
            turn: Turn::default(),
            sums: Mutex::new(vec![0; self.output.sums.len()]),
        };
        let mut cx = Context {
            workers,
            budget: Arc::clone(budget),
            counters,
            watch: &watch,
            machine: &machine,
            force: self.join.force,
            algorithm: self.join.algorithm,
            on_gpu: self.join.on_gpu,
            ledger: ledger.clone(),
            bounded: true,
        };
        let candidates = AtomicU64::new(0);
        let mut probe = Some(probe);
        let (mut ran, mut device) = (plan, device);
        let seeded = with_seeds(self.join.force, |seed, bounded| {
            let keys = &self.keys.reseeded(seed);
            cx.bounded = bounded;
            let roles = Roles::of(self.join.join_type, build_side);
            let (filter, sink) = (self.filter.as_ref(), &sink);
            let (build, candidates) = (&build, &candidates);
            if let Some(on) = &device {
                let (probe, plan) = (&mut probe, &ran);
                let mut job =
                    Job { keys, filter, roles, build, build_side, probe, sink, plan, candidates };
                match algorithm::run_on(&cx, &mut job, &**on, self.goes_on())? {
                    None => return Ok(()),
                    Some(why) => {
                        known.probe = self.probe_left(&known, job.probe.as_ref());
                        ran = self.abandon(&known, &why.to_string());
                        log::info!("{ran}");
                    }
                }
            }
            device = None;
            let (probe, plan) = (&mut probe, &ran);
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
            output_rows: seen.output_rows,
            candidates: candidates.into_inner(),
            peak_memory: budget.peak(),
            crossed: watch.crossed(),
            seed: seeded.number,
            seeds_tried: seeded.tried,
            plan: ran,
        })
    }
}

/// What a plan follows from, besides the join and the device.
struct Known<'a> {
    machine: &'a Machine,
    side: Option<Side>,
    build: Statistics,
    probe: Statistics,
}

/// The columns needed of each side, ascending.
fn needed(
    keys: &[(usize, usize)],
    named: [&[(Side, usize)]; 2],
    origins: &[Origin],
) -> [Vec<usize>; 2] {
    let mut left: BTreeSet<usize> = keys.iter().map(|&(l, _)| l).collect();
    let mut right: BTreeSet<usize> = keys.iter().map(|&(_, r)| r).collect();
    let mut add = |side: Side, column: usize| match side {
        Side::Left => left.insert(column),
        Side::Right => right.insert(column),
    };
    named.iter().copied().flatten().for_each(|&(side, column)| {
        add(side, column);
    });
    for origin in origins {
        match origin {
            Origin::Column(side, column) => {
                add(*side, *column);
            }
            Origin::Either { left, right } | Origin::Coalesced { left, right, .. } => {
                add(Side::Left, *left);
                add(Side::Right, *right);
            }
            Origin::RowId(_) | Origin::Mark => {}
        }
    }
    [left.into_iter().collect(), right.into_iter().collect()]
}

/// The side with fewer bytes, or rows where bytes are unknown.
fn smaller(left: &Statistics, right: &Statistics) -> Option<Side> {
    let (l, r) = match (left.bytes, right.bytes) {
        (Some(l), Some(r)) => (l, r),
        _ => (left.rows?, right.rows?),
    };
    Some(if l <= r { Side::Left } else { Side::Right })
}

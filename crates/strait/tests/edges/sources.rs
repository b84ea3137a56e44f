//! Sources that many workers call at the same time.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::{SchemaRef, UInt64Type};
use arrow::error::ArrowError;
use strait::testing::TestOverrides;
use strait::{
    Algorithm, Error, Input, Join, MemoryBudget, Morsel, Processor, Side, Source, SourceContext,
    Statistics,
};

use super::{NAMED, drained, keyed, whole};

/// Much longer than any of these tests takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Does something in the n-th call of [`Source::next`], before the call takes a batch.
type Before = Box<dyn Fn(usize, &SourceContext<'_>) -> Result<(), ArrowError> + Send + Sync>;

/// A source of some batches.
pub(super) struct Batches {
    batches: Vec<(u64, RecordBatch)>,
    schema: SchemaRef,
    calls: AtomicUsize,
    next: AtomicUsize,
    numbered: bool,
    before: Before,
}

impl Batches {
    /// Batches of at most `most` rows of a table, in any order.
    pub(super) fn of(table: &RecordBatch, most: usize) -> Batches {
        let rows = table.num_rows();
        let slice = |at: usize| (at as u64, table.slice(at, most.min(rows - at)));
        let mut batches: Vec<_> = (0..rows).step_by(most).map(slice).collect();
        batches.reverse();
        let (schema, before) = (table.schema(), Box::new(|_, _: &SourceContext<'_>| Ok(())));
        let (calls, next) = Default::default();
        Batches { batches, schema, calls, next, numbered: false, before }
    }

    fn before(
        mut self,
        before: impl Fn(usize, &SourceContext<'_>) -> Result<(), ArrowError> + Send + Sync + 'static,
    ) -> Batches {
        self.before = Box::new(before);
        self
    }

    fn numbered(mut self) -> Batches {
        self.numbered = true;
        self
    }
}

impl Source for Batches {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn statistics(&self) -> Statistics {
        Statistics::rows(self.batches.iter().map(|(_, batch)| batch.num_rows() as u64).sum())
    }

    fn has_row_numbers(&self) -> bool {
        self.numbered
    }

    fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        (self.before)(self.calls.fetch_add(1, Ordering::SeqCst), context)?;
        let call = self.next.fetch_add(1, Ordering::SeqCst);
        Ok(self.batches.get(call).map(|(first_row, batch)| match self.numbered {
            true => Morsel::numbered(batch.clone(), *first_row),
            false => Morsel::new(batch.clone()),
        }))
    }
}

/// Lets the first two calls return only when both are inside.
fn together() -> impl Fn(usize, &SourceContext<'_>) -> Result<(), ArrowError> + Send + Sync {
    let inside = (Mutex::new(0), Condvar::new());
    move |call, _| {
        if call >= 2 {
            return Ok(());
        }
        let mut callers = inside.0.lock().expect("not poisoned");
        *callers += 1;
        inside.1.notify_all();
        let alone = |callers: &mut usize| *callers < 2;
        let waited = inside.1.wait_timeout_while(callers, PATIENCE, alone).expect("not poisoned");
        match waited.1.timed_out() {
            true => Err(ArrowError::ComputeError("only one worker calls the source".to_string())),
            false => Ok(()),
        }
    }
}

#[test]
fn workers_call_a_source_at_the_same_time() {
    for algorithm in NAMED {
        for limit in [None, Some(1 << 30)] {
            for side in [Side::Left, Side::Right] {
                let (left, right) = (keyed(0..2000), keyed((0..3000).map(|i| i % 1000)));
                let source = |table: &RecordBatch, waits: bool| match waits {
                    true => Input::source(Batches::of(table, 100).before(together())),
                    false => Input::from(whole(table)),
                };
                let mut join = Join::inner().on("k").algorithm(algorithm).threads(2);
                join = join.build_side(Side::Left).device(Processor::Cpu);
                if let Some(limit) = limit {
                    join = join.memory_limit(limit);
                }
                let (left, right) =
                    (source(&left, side == Side::Left), source(&right, side == Side::Right));
                let counted = join.count(left, right);
                let what = format!("{algorithm}, {side:?}, {limit:?}");
                let (rows, report) = counted.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(
                    (rows, report.left_rows, report.right_rows),
                    (3000, 2000, 3000),
                    "{what}"
                );
            }
        }
    }
}

/// Both sides are read in turns, because nothing is known about a reader.
#[test]
fn a_source_and_a_reader_are_read_in_turns() {
    let (small, large) = (keyed(0..100), keyed((0..100_000).map(|i| i % 100)));
    for threads in [1, 3] {
        let join = Join::inner().on("k").threads(threads).device(Processor::Cpu);
        let small = || Input::source(Batches::of(&small, 10));
        let (rows, report) = join.count(small(), whole(&large)).expect("succeeds");
        assert_eq!((rows, report.plan.build_side), (100_000, Some(Side::Left)));
        let (rows, report) = join.count(whole(&large), small()).expect("succeeds");
        assert_eq!((rows, report.plan.build_side), (100_000, Some(Side::Right)));
    }
}

#[test]
fn a_source_that_fails_or_panics_fails_the_join() {
    for algorithm in NAMED {
        for (side, panics) in
            [(Side::Left, false), (Side::Left, true), (Side::Right, false), (Side::Right, true)]
        {
            let table = keyed(0..1000);
            let bad = Batches::of(&table, 10).before(move |call, _| match call {
                20 if panics => panic!("page 20 is damaged"),
                20 => Err(ArrowError::ParseError("page 20 is damaged".to_string())),
                _ => Ok(()),
            });
            let (bad, good) = (Input::source(bad), Input::source(Batches::of(&table, 10)));
            let (left, right) = if side == Side::Left { (bad, good) } else { (good, bad) };
            let join = Join::inner().on("k").algorithm(algorithm).threads(3);
            let error = join.build_side(Side::Left).count(left, right).expect_err("a bad page");
            let text = error.to_string();
            assert!(text.contains("page 20") && text.contains(side.name()), "{algorithm}: {text}");
        }
    }
}

/// A call that waits is told that the reader of the output was dropped, or that another call has failed.
#[test]
fn a_call_that_waits_is_told_of_the_end() {
    for (algorithm, fails) in NAMED.into_iter().flat_map(|a| [(a, false), (a, true)]) {
        let (waits, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let flags = (Arc::clone(&waits), Arc::clone(&told));
        let table = keyed(0..1000);
        let source = Batches::of(&table, 10).before(move |call, context| {
            let begun = Instant::now();
            while call == 5 && !context.cancelled() && begun.elapsed() < PATIENCE {
                flags.0.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
            flags.1.fetch_or(call == 5 && context.cancelled(), Ordering::SeqCst);
            match fails && call == 6 {
                true => Err(ArrowError::ParseError("page 6 is damaged".to_string())),
                false => Ok(()),
            }
        });
        let join = Join::inner().on("k").algorithm(algorithm).threads(2).build_side(Side::Left);
        let begun = Instant::now();
        let reader = join.run(whole(&table), Input::source(source)).expect("starts");
        if fails {
            let error = drained(reader).expect_err("a bad page").to_string();
            assert!(error.contains("page 6"), "{algorithm}: {error}");
        } else {
            while !waits.load(Ordering::SeqCst) && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(reader);
        }
        assert!(told.load(Ordering::SeqCst), "{algorithm}, fails: {fails}");
        assert!(begun.elapsed() < PATIENCE, "{algorithm}, fails: {fails}");
    }
}

/// Returns both columns of row numbers, sorted.
fn pairs(join: &Join, left: Input, right: Input) -> Result<Vec<(u64, u64)>, Error> {
    let (batches, _) = drained(join.pairs(left, right)?)?;
    let mut pairs = Vec::new();
    for batch in batches {
        let column = |i: usize| batch.column(i).as_primitive::<UInt64Type>().values().to_vec();
        pairs.extend(column(0).into_iter().zip(column(1)));
    }
    pairs.sort_unstable();
    Ok(pairs)
}

#[test]
fn row_numbers_are_those_of_the_source() {
    let (left, right) = (keyed(0..500), keyed((0..900).map(|i| i % 300)));
    let expected: Vec<_> = {
        let mut all: Vec<_> = (0..900u64).map(|row| (row % 300, row)).collect();
        all.sort_unstable();
        all
    };
    let on_device = TestOverrides { simulated: Some(7), ..TestOverrides::default() };
    let mut joins: Vec<Join> = NAMED.map(|a| Join::inner().algorithm(a)).into();
    joins.push(Join::inner().algorithm(Algorithm::NoPartition).test_overrides(on_device));
    joins.push(Join::inner().algorithm(Algorithm::Triton).test_overrides(on_device));
    for join in joins {
        for side in [Side::Left, Side::Right] {
            let join = join.clone().on("k").threads(3).build_side(side);
            let source = |table, most| Input::source(Batches::of(table, most).numbered());
            let found = pairs(&join, source(&left, 64), source(&right, 50)).expect("succeeds");
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn row_numbers_are_refused_if_the_source_has_none() {
    let table = keyed(0..10);
    let join = Join::inner().on("k");
    let error = pairs(&join, whole(&table).into(), Input::source(Batches::of(&table, 3)));
    let text = error.expect_err("no row numbers").to_string();
    assert!(text.contains("right table") && text.contains("has_row_numbers"), "{text}");
    // A number is missing.
    let mut gap = Batches::of(&table, 3).numbered();
    gap.batches.remove(1);
    let error = pairs(&join.build_side(Side::Left), Input::source(gap), whole(&table).into());
    let text = error.expect_err("a gap").to_string();
    assert!(text.contains("at row 9 instead of 6"), "{text}");
}

/// Under a limit, each call of a source takes memory for decoding. It returns the refusal, and is called again.
#[test]
fn a_source_that_is_refused_memory_is_called_again() {
    for (threads, pause) in [(1, 0), (4, 0), (4, 2)] {
        for algorithm in NAMED {
            let budget = MemoryBudget::new(Some(8 << 20));
            let table = keyed((0..20_000).map(|i| i % 10));
            let source = |table: &RecordBatch| {
                Input::source(Batches::of(table, 500).before(move |_, context| {
                    let page = context.budget().reserve(3 << 20, "a decoded page")?;
                    std::thread::sleep(Duration::from_micros(300));
                    drop(page);
                    Ok(())
                }))
            };
            let join = Join::inner().on("k").build_side(Side::Left).device(Processor::Cpu);
            let join = join.algorithm(algorithm).threads(threads).batch_size(1000);
            let join = join.memory_budget(&budget);
            let build = keyed(0..10);
            let mut rows = 0;
            for batch in join.run(source(&build), source(&table)).expect("starts") {
                let what = format!("{algorithm}, {threads} threads, a pause of {pause} ms");
                rows += batch.unwrap_or_else(|error| panic!("{what}: {error}")).num_rows();
                std::thread::sleep(Duration::from_millis(pause));
            }
            assert_eq!((rows, budget.used()), (20_000, 0));
        }
    }
}

/// A batch whose memory counts in `live` until the last reference is dropped.
fn counted_batch(rows: usize, live: &Arc<AtomicUsize>) -> RecordBatch {
    struct Counted(Vec<i64>, Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(8 * self.0.len(), Ordering::SeqCst);
        }
    }
    live.fetch_add(8 * rows, Ordering::SeqCst);
    let owner = Arc::new(Counted((0..rows as i64).map(|i| i % 100).collect(), Arc::clone(live)));
    let start = NonNull::new(owner.0.as_ptr().cast_mut().cast::<u8>()).expect("an address");
    // SAFETY: the vector has this many bytes, is not changed, and lives as long as the buffer.
    let buffer = unsafe { Buffer::from_custom_allocation(start, 8 * rows, owner) };
    let keys: ArrayRef = Arc::new(Int64Array::new(ScalarBuffer::new(buffer, 0, rows), None));
    RecordBatch::try_from_iter([("k", keys)]).expect("one column")
}

/// A source of batches that take memory from when they are read.
struct Allocating {
    batches: usize,
    /// The rows of the first batch, if it is shorter.
    first: Option<usize>,
    rows: usize,
    calls: AtomicUsize,
    /// The bytes of all batches that exist, the most that ever existed, and the calls at the same time.
    live: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
    inside: AtomicUsize,
    together: Arc<AtomicUsize>,
}

impl Source for Allocating {
    fn schema(&self) -> SchemaRef {
        counted_batch(0, &self.live).schema()
    }

    fn next(&self, _: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        if call >= self.batches {
            return Ok(None);
        }
        let rows = self.first.filter(|_| call == 0).unwrap_or(self.rows);
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.together.fetch_max(inside, Ordering::SeqCst);
        let batch = counted_batch(rows, &self.live);
        self.peak.fetch_max(self.live.load(Ordering::SeqCst), Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(Some(Morsel::new(batch)))
    }
}

/// Joins with such a source as the probe side, on 16 threads. Returns the most bytes of its batches that
/// existed at the same time, and the most calls at the same time.
fn allocating(limit: u64, batch_bytes: usize, force: TestOverrides) -> (u64, usize) {
    allocating_after(None, limit, batch_bytes, force)
}

/// Does the same with a first batch of other length.
fn allocating_after(
    first: Option<usize>,
    limit: u64,
    batch_bytes: usize,
    force: TestOverrides,
) -> (u64, usize) {
    let (peak, together, live) = <(Arc<AtomicUsize>, Arc<AtomicUsize>, _)>::default();
    let source = Allocating {
        batches: 80,
        first,
        rows: batch_bytes / 8,
        calls: AtomicUsize::new(0),
        live,
        peak: Arc::clone(&peak),
        inside: AtomicUsize::new(0),
        together: Arc::clone(&together),
    };
    let join = Join::inner().on("k").build_side(Side::Left).threads(16).memory_limit(limit);
    let join = join.algorithm(Algorithm::NoPartition).test_overrides(force);
    let join = if force.simulated.is_none() { join.device(Processor::Cpu) } else { join };
    let (rows, _) = join.count(whole(&keyed(0..50)), Input::source(source)).expect("fits");
    let per_batch = batch_bytes as u64 / 8;
    let all = 79 * per_batch + first.map_or(per_batch, |first| first as u64);
    assert_eq!(rows, all / 2, "every other row matches");
    (peak.load(Ordering::SeqCst) as u64, together.load(Ordering::SeqCst))
}

/// The memory of a batch is reserved before or right after it is read. So many workers do not read more batches
/// than the limit allows.
#[test]
fn batches_of_a_source_stay_within_the_limit() {
    const BATCH: usize = 1_000_000 / 8 / 100 * 800;
    for limit in [6u64 << 20, 12 << 20] {
        let (peak, _) = allocating(limit, BATCH, TestOverrides::default());
        // One worker may always read.
        let most = limit + 2 * BATCH as u64;
        assert!(peak <= most, "{peak} bytes of batches existed at once, under a limit of {limit}");
    }
}

/// Under a limit that leaves enough memory, all workers read the chunks of a device.
#[test]
fn workers_read_the_chunks_of_a_device_together() {
    let force = TestOverrides { simulated: Some(1), ..TestOverrides::default() };
    let (_, together) = allocating(256 << 20, 80_000, force);
    assert!(together > 1, "one worker reads");
    let (peak, _) = allocating(24 << 20, 800_000, force);
    assert!(peak <= (24 << 20) + 2 * 800_000, "{peak} bytes of batches existed at once");
}

/// The first batch is short, so it does not tell how long the next ones are. The workers that read at that time
/// get one long batch each, but then they stop.
#[test]
fn long_batches_after_a_short_one_are_not_read_again_and_again() {
    const BATCH: usize = 800_000;
    let force = TestOverrides { simulated: Some(1), ..TestOverrides::default() };
    let (peak, _) = allocating_after(Some(100), 3 << 20, BATCH, force);
    let most = (3 << 20) + 16 * BATCH as u64;
    assert!(peak <= most, "{peak} bytes of batches existed at once");
}

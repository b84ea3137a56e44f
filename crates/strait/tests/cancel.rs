//! A cancelled join ends soon, in every stage, and releases its memory.
//!
//! The time bounds are generous. Before it was fixed, each of these cases took many seconds or never ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use arrow::array::{
    ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader,
    StringArray, StringViewBuilder, StructArray,
};
use arrow::buffer::Buffer;
use arrow::datatypes::{Field, SchemaRef};
use arrow::error::ArrowError;
use strait::testing::TestOverrides;
use strait::{Algorithm, Error, Filter, Join, JoinType, MemoryBudget, Side, TempFolders};

/// How long dropping a reader may take here. The goal is 100 ms on an idle machine.
const SOON: Duration = Duration::from_secs(2);

/// Runs `work` and panics if it takes longer than a minute.
fn watched<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let worker = std::thread::spawn(move || sender.send(work()));
    match receiver.recv_timeout(Duration::from_secs(60)) {
        Ok(done) => done,
        Err(_) if worker.is_finished() => panic!("{what}: failed, see above"),
        Err(_) => panic!("{what}: still not done after a minute"),
    }
}

fn column(name: &str, values: impl Iterator<Item = i64>) -> (&str, ArrayRef) {
    (name, Arc::new(Int64Array::from_iter_values(values)))
}

fn table(rows: i64, key: impl Fn(i64) -> i64) -> RecordBatch {
    let columns = [column("k", (0..rows).map(key)), column("p", 0..rows)];
    RecordBatch::try_from_iter(columns).expect("two columns")
}

fn whole(batch: &RecordBatch) -> impl RecordBatchReader + Send + 'static {
    RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
}

/// Drops `reader` and returns how long that took.
fn time_of_drop<T>(reader: T) -> Duration {
    let start = Instant::now();
    drop(reader);
    start.elapsed()
}

/// A reader that yields some batches and then blocks until the other end of its channel is dropped.
struct Blocking {
    batch: RecordBatch,
    good: usize,
    until: Receiver<()>,
    entered: Arc<AtomicBool>,
    dropped: Arc<AtomicBool>,
}

impl Blocking {
    fn new(batch: &RecordBatch, good: usize) -> (Blocking, Sender<()>) {
        let (sender, until) = channel();
        let (entered, dropped) = Default::default();
        (Blocking { batch: batch.clone(), good, until, entered, dropped }, sender)
    }
}

impl Iterator for Blocking {
    type Item = Result<RecordBatch, ArrowError>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.good > 0 {
            self.good -= 1;
            return Some(Ok(self.batch.clone()));
        }
        self.entered.store(true, Ordering::Relaxed);
        // Returns an error when the sender is dropped.
        self.until.recv().err().and(None)
    }
}

impl RecordBatchReader for Blocking {
    fn schema(&self) -> SchemaRef {
        self.batch.schema()
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn prompt_rows_do_not_wait_for_an_input_that_blocks() {
    let (small, good) = (table(10, |i| i), table(1000, |i| i % 50));
    for batches in [1, 3] {
        let (blocking, release) = Blocking::new(&good, batches);
        let join = Join::inner().on("k").build_side(Side::Left).threads(3).prompt(true);
        let reader = join.run(whole(&small), blocking).expect("the join starts");
        let found = watched("the first rows", move || {
            let wanted = batches * 200;
            let mut found = 0;
            for batch in reader {
                found += batch.expect("a batch").num_rows();
                if found >= wanted {
                    break;
                }
            }
            found
        });
        assert_eq!(found, batches * 200);
        drop(release);
    }
}

#[test]
fn dropping_does_not_wait_for_an_input_that_blocks() {
    let good = table(1000, |i| i);
    for algorithm in Algorithm::ANYWHERE {
        for side in [Side::Left, Side::Right] {
            for batches in [0, 3] {
                let what = format!("{algorithm}, the {} side blocks", side.name());
                let (blocking, release) = Blocking::new(&good, batches);
                let (entered, dropped) = (blocking.entered.clone(), blocking.dropped.clone());
                let budget = MemoryBudget::new(Some(64 << 20));
                let join = Join::inner().on("k").algorithm(algorithm).threads(3);
                let join = join.memory_budget(&budget);
                let reader = match side {
                    Side::Left => join.run(blocking, whole(&good)),
                    Side::Right => join.run(whole(&good), blocking),
                };
                let reader = reader.expect("the join starts");
                eventually("the reader is asked", || entered.load(Ordering::Relaxed));
                let took = watched(&what, move || time_of_drop(reader));
                assert!(took < SOON, "{what}: {took:?}");
                assert_eq!(budget.used(), 0, "{what}: memory is still held");
                assert!(!dropped.load(Ordering::Relaxed), "{what}: it was blocked");
                drop(release);
                eventually("the reader goes at last", || dropped.load(Ordering::Relaxed));
            }
        }
    }
}

#[test]
fn a_cancelled_sort_merge_join_of_many_segments_ends() {
    let left = table(3000, |i| i % 1500);
    let right = table(2000, |i| i % 1000);
    for round in 0..200usize {
        let (left, right) = (left.clone(), right.clone());
        watched(&format!("round {round}"), move || {
            let force = TestOverrides { tiny_partitions: true, ..TestOverrides::default() };
            let join = Join::new(JoinType::ALL[round % JoinType::ALL.len()])
                .on("k")
                .algorithm(Algorithm::SortMerge)
                .threads(2 + round % 15)
                .batch_size(1 + round % 7)
                .test_overrides(force);
            let mut reader = join.run(whole(&left), whole(&right)).expect("the join starts");
            for _ in 0..round % 50 {
                if let Some(batch) = reader.next() {
                    batch.expect("no error");
                }
            }
            drop(reader);
        });
    }
}

/// A filter that rejects every pair.
fn nothing() -> Filter {
    Filter::new([(Side::Left, "p")], |batch: &RecordBatch| {
        Ok(BooleanArray::from(vec![false; batch.num_rows()]))
    })
}

#[test]
fn a_long_group_whose_pairs_are_all_rejected_can_be_left() {
    let same = table(40_000, |_| 7);
    for algorithm in Algorithm::ANYWHERE {
        for join_type in [JoinType::Inner, JoinType::LeftAnti] {
            let join = Join::new(join_type).on("k").algorithm(algorithm).threads(2);
            let reader = join.filter(nothing()).run(whole(&same), whole(&same));
            std::thread::sleep(Duration::from_millis(100));
            let what = format!("{algorithm} {join_type}");
            let took = watched(&what, move || time_of_drop(reader));
            assert!(took < SOON, "{what}: {took:?}");
        }
    }
}

#[test]
fn the_ranking_of_long_keys_can_be_left() {
    // These keys differ only at their end, so every comparison reads them completely.
    let rows = 1_500_000u64;
    let keys = (0..rows).map(|i| format!("{:0100}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let keys: ArrayRef = Arc::new(StringArray::from_iter_values(keys));
    let long = RecordBatch::try_from_iter([("k", keys)]).expect("one column");
    let short = long.slice(0, 10);
    for wait in [200, 1200] {
        let join = Join::inner().on("k").algorithm(Algorithm::SortMerge).threads(2);
        let reader = join.run(whole(&long), whole(&short)).expect("the join starts");
        std::thread::sleep(Duration::from_millis(wait));
        let took = watched("ranking", move || time_of_drop(reader));
        assert!(took < Duration::from_secs(3), "after {wait} ms: {took:?}");
    }
}

/// A reader of some batches whose `drop` takes five seconds.
struct SlowToDrop {
    batch: RecordBatch,
    left: usize,
    fails: bool,
    dropped: Arc<AtomicBool>,
}

impl Iterator for SlowToDrop {
    type Item = Result<RecordBatch, ArrowError>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            let error = || Err(ArrowError::ComputeError("the tape is torn".to_string()));
            return self.fails.then(error);
        }
        self.left -= 1;
        Some(Ok(self.batch.clone()))
    }
}

impl RecordBatchReader for SlowToDrop {
    fn schema(&self) -> SchemaRef {
        self.batch.schema()
    }
}

impl Drop for SlowToDrop {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_secs(5));
        self.dropped.store(true, Ordering::Relaxed);
    }
}

/// No join waits for the `drop` of an input: neither a join that is dropped, nor one that fails, nor one that
/// ends.
#[test]
fn no_join_waits_for_the_drop_of_its_inputs() {
    let batch = table(1000, |i| i);
    let mut gone = Vec::new();
    let mut slow = |left: usize, fails: bool| {
        let dropped = Arc::new(AtomicBool::new(false));
        gone.push(Arc::clone(&dropped));
        SlowToDrop { batch: batch.clone(), left, fails, dropped }
    };
    for algorithm in Algorithm::ANYWHERE {
        let join = Join::inner().on("k").algorithm(algorithm).threads(2);
        // The join is dropped while there is more to read.
        let start = Instant::now();
        let reader = join.run(slow(1_000_000, false), slow(1_000_000, false));
        std::thread::sleep(Duration::from_millis(30));
        drop(reader.expect("the join starts"));
        assert!(start.elapsed() < SOON, "{algorithm}, dropped: {:?}", start.elapsed());
        // Both inputs are read to the end.
        let start = Instant::now();
        let reader = join.run(slow(2, false), slow(3, false)).expect("the join starts");
        let rows: usize = reader.map(|batch| batch.expect("rows").num_rows()).sum();
        assert_eq!(rows, 6000, "{algorithm}");
        assert!(start.elapsed() < SOON, "{algorithm}, ended: {:?}", start.elapsed());
        // One input fails.
        let start = Instant::now();
        let mut reader = join.run(slow(2, false), slow(3, true)).expect("the join starts");
        let error = reader.find_map(Result::err).expect("an error").to_string();
        drop(reader);
        assert!(error.contains("the tape is torn"), "{algorithm}: {error}");
        assert!(start.elapsed() < SOON, "{algorithm}, failed: {:?}", start.elapsed());
    }
    eventually("all are dropped", || gone.iter().all(|dropped| dropped.load(Ordering::Relaxed)));
}

/// A table with one key column of nested structs, whose conversion to rows takes long.
fn nested(rows: i64, depth: usize) -> RecordBatch {
    let mut column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    for _ in 0..depth {
        let field = Arc::new(Field::new("f", column.data_type().clone(), true));
        column = Arc::new(StructArray::from(vec![(field, column)]));
    }
    RecordBatch::try_from_iter([("k", column)]).expect("one column")
}

#[test]
fn the_conversion_of_nested_keys_in_one_batch_can_be_left() {
    let long = nested(3_000_000, 20);
    let short = long.slice(0, 10);
    for algorithm in [Algorithm::NoPartition, Algorithm::SortMerge] {
        for wait in [400, 800, 1600, 2400] {
            let join = Join::inner().on("k").algorithm(algorithm).threads(2);
            let join = join.build_side(Side::Left);
            let reader = join.run(whole(&long), whole(&short)).expect("the join starts");
            std::thread::sleep(Duration::from_millis(wait));
            let took = watched("converting", move || time_of_drop(reader));
            assert!(took < Duration::from_secs(1), "{algorithm} after {wait} ms: {took:?}");
        }
    }
}

/// A table with one key column of views. All rows share one text of 4 MiB.
fn shared_text(rows: usize, is_nested: bool) -> RecordBatch {
    const LONG: u32 = 4 << 20;
    let mut texts = StringViewBuilder::new();
    let block = texts.append_block(Buffer::from(vec![b'x'; LONG as usize]));
    for _ in 0..rows {
        texts.try_append_view(block, 0, LONG).expect("inside the block");
    }
    let mut column: ArrayRef = Arc::new(texts.finish());
    if is_nested {
        let field = Arc::new(Field::new("f", column.data_type().clone(), true));
        column = Arc::new(StructArray::from(vec![(field, column)]));
    }
    RecordBatch::try_from_iter([("k", column)]).expect("one column")
}

/// Hashing these keys takes many seconds, because it reads the text once per row.
#[test]
fn the_hashing_of_long_keys_can_be_left() {
    for is_nested in [false, true] {
        let (many, one) = (shared_text(8192, is_nested), shared_text(1, is_nested));
        for (algorithm, side) in
            [(Algorithm::Radix, Side::Left), (Algorithm::NoPartition, Side::Right)]
        {
            let join = Join::inner().on("k").algorithm(algorithm).threads(2).build_side(side);
            let join = join.memory_limit(64 << 20);
            let reader = join.run(whole(&many), whole(&one)).expect("the join starts");
            std::thread::sleep(Duration::from_millis(300));
            let what = format!("{algorithm}, nested: {is_nested}");
            let took = watched(&what, move || time_of_drop(reader));
            assert!(took < Duration::from_secs(1), "{what}: {took:?}");
        }
    }
}

/// A sort-merge join that spills can be left while it sorts, merges and joins. It leaves no file.
#[test]
fn sorted_runs_can_be_left() {
    const ROWS: i64 = 300_000;
    let batch = table(ROWS, |row| row.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) >> 12);
    let parts = || {
        let slice = |at: i64| Ok(batch.slice(at as usize, 1000));
        // Each batch has its own memory.
        let copied = |part: Result<RecordBatch, ArrowError>| {
            let part = part?;
            arrow::compute::concat_batches(&part.schema(), [&part, &part.slice(0, 1)])
        };
        let parts: Vec<_> = (0..ROWS).step_by(1000).map(slice).map(copied).collect();
        RecordBatchIterator::new(parts, batch.schema())
    };
    for wait in [0, 10, 30, 60, 100, 200, 400, 800] {
        let store = Arc::new(TempFolders::new(vec![]));
        let join = Join::new(JoinType::Full).on("k").algorithm(Algorithm::SortMerge).threads(2);
        let join = join.memory_limit(2 << 20).spill(Arc::clone(&store) as _);
        let reader = join.run(parts(), parts()).expect("the join starts");
        std::thread::sleep(Duration::from_millis(wait));
        let what = format!("after {wait} ms");
        let took = watched(&what, move || time_of_drop(reader));
        assert!(took < SOON, "{what}: {took:?}");
        eventually(&what, || store.used() == 0);
    }
}

/// A reader that fails after some batches.
struct Failing {
    batch: RecordBatch,
    good: usize,
}

impl Iterator for Failing {
    type Item = Result<RecordBatch, ArrowError>;
    fn next(&mut self) -> Option<Self::Item> {
        assert!(self.good > 0, "the tape is torn");
        self.good -= 1;
        Some(Ok(self.batch.clone()))
    }
}

impl RecordBatchReader for Failing {
    fn schema(&self) -> SchemaRef {
        self.batch.schema()
    }
}

#[test]
fn the_message_of_a_reader_that_panics_is_what_the_caller_hears() {
    let batch = table(300, |i| i);
    for round in 0..100 {
        for algorithm in Algorithm::ANYWHERE {
            let failing = Failing { batch: batch.clone(), good: 1 + round % 9 };
            let join = Join::inner().on("k").algorithm(algorithm).threads(8).batch_size(50);
            let join = join.build_side(Side::Left);
            let said = watched("a torn tape", {
                let batch = batch.clone();
                move || {
                    let reader = join.run(whole(&batch), failing).expect("the join starts");
                    let failed = reader.filter_map(Result::err).next().expect("an error");
                    Error::from_arrow(failed).to_string()
                }
            });
            assert!(said.contains("the tape is torn"), "{algorithm}: {said}");
            assert!(said.contains("right"), "which table: {algorithm}: {said}");
        }
    }
}

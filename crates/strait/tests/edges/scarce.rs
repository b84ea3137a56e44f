//! Memory that is just enough: which memory is counted only once, which worker waits, and which error is
//! reported.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    ArrayRef, DictionaryArray, Int32Array, Int64Array, RecordBatch, RecordBatchIterator,
    RecordBatchReader, StringArray,
};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::Int32Type;
use arrow::error::ArrowError;
use strait::testing::TestOverrides;
use strait::{Algorithm, Error, Filter, Join, JoinReader, MemoryBudget, Processor, Side};

use super::drained;

fn keyed(keys: impl IntoIterator<Item = i64>) -> RecordBatch {
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(keys));
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..keys.len() as i64));
    RecordBatch::try_from_iter([("k", keys), ("p", numbers)]).expect("columns of one length")
}

fn table(batches: Vec<RecordBatch>) -> impl RecordBatchReader + Send + 'static {
    let schema = batches[0].schema();
    RecordBatchIterator::new(batches.into_iter().map(Ok), schema)
}

fn join(algorithm: Algorithm, limit: u64) -> Join {
    let join = Join::inner().on("k").build_side(Side::Left).device(Processor::Cpu);
    join.algorithm(algorithm).memory_limit(limit)
}

/// A reader that shares the budget may also be refused memory. The join waits and asks again. At the end, it
/// returns the reader's own error.
#[test]
fn a_reader_that_is_refused_memory_says_so() {
    let (build, probe) = (keyed(0..1000), keyed(0..1000));
    for threads in [1, 2] {
        let refused = MemoryBudget::new(Some(10)).reserve(100, "a decoded page");
        let refused: ArrowError = refused.expect_err("does not fit").into();
        let reader = RecordBatchIterator::new([Ok(probe.clone()), Err(refused)], probe.schema());
        let join = join(Algorithm::NoPartition, 1 << 30).threads(threads);
        let error = drained(join.run(table(vec![build.clone()]), reader).expect("starts"));
        let error = error.expect_err("the reader fails");
        assert!(matches!(&error, Error::MemoryLimit { what, .. } if what == "a decoded page"));
    }
}

/// Two workers have memory for one table. The second worker gets the memory when the first is done.
#[test]
fn workers_take_turns_where_memory_suffices_for_one() {
    let build = keyed((0..100_000).map(|_| 7));
    let probe = keyed((0..20_000).map(|i| if i % 1000 == 0 { 7 } else { i + 100 }));
    let run = |threads, limit| {
        let join = join(Algorithm::Radix, limit).threads(threads);
        join.count(table(vec![build.clone()]), table(vec![probe.clone()])).map(|(rows, _)| rows)
    };
    let (mut least, mut most) = (1u64 << 20, 256u64 << 20);
    while most - least > 64 << 10 {
        let middle = (least + most) / 2;
        if run(1, middle).is_ok() { most = middle } else { least = middle }
    }
    for _ in 0..10 {
        assert_eq!(run(2, most + (1 << 20)).expect("one table fits"), 2_000_000);
    }
}

/// The dictionary that all output batches share is counted once.
#[test]
fn a_merged_dictionary_is_counted_once() {
    let batch = |number: i64| {
        let keys = number * 1000..number * 1000 + 1000;
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(keys));
        let long = "z".repeat(400);
        let values = (0..1000).map(|i| format!("{number:05}-{i:05}-{long}"));
        let values: ArrayRef = Arc::new(StringArray::from_iter_values(values));
        let indices = Int32Array::from_iter_values(0..1000);
        let column: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(indices, values));
        RecordBatch::try_from_iter([("k", keys), ("d", column)]).expect("columns of one length")
    };
    let build: Vec<RecordBatch> = (0..20).map(batch).collect();
    let probe = keyed((0..20_000).map(|i| (i * 7919) % 20_000));
    for mebibytes in [22, 26, 34, 50] {
        for rows in [256, 4096] {
            let join = join(Algorithm::NoPartition, mebibytes << 20).threads(2).batch_size(rows);
            let output =
                join.run(table(build.clone()), table(vec![probe.clone()])).expect("starts");
            let (batches, _) = drained(output).expect("the dictionary fits twice");
            let found: usize = batches.iter().map(RecordBatch::num_rows).sum();
            assert_eq!(found, 20_000, "{mebibytes} MiB, batches of {rows}");
        }
    }
}

/// Slices that come over the C data interface have the same address and growing sizes.
#[test]
fn slices_of_one_allocation_are_counted_once() {
    const ROWS: usize = 1_000_000;
    const SLICES: usize = 100;
    let whole: Arc<Vec<i64>> = Arc::new((0..ROWS as i64).collect());
    let slice = |number: usize| {
        let rows = ROWS / SLICES;
        let start = NonNull::new(whole.as_ptr().cast_mut().cast::<u8>()).expect("an address");
        let bytes = (number + 1) * rows * size_of::<i64>();
        // SAFETY: the vector has this many bytes, and lives as long as the buffer.
        let buffer = unsafe { Buffer::from_custom_allocation(start, bytes, whole.clone()) };
        let values = ScalarBuffer::new(buffer, number * rows, rows);
        let keys: ArrayRef = Arc::new(Int64Array::new(values, None));
        RecordBatch::try_from_iter([("k", keys)]).expect("one column")
    };
    for forwards in [true, false] {
        let mut build: Vec<RecordBatch> = (0..SLICES).map(slice).collect();
        if !forwards {
            build.reverse();
        }
        let join = join(Algorithm::NoPartition, 64 << 20);
        let counted = join.count(table(build), table(vec![keyed(0..10)]));
        assert_eq!(counted.expect("8 MB of keys").0, 10);
    }
}

/// Keys of a range, and a text of this many bytes for each key.
fn with_text(keys: std::ops::Range<i64>, bytes: usize) -> RecordBatch {
    let long = "z".repeat(bytes);
    let texts = keys.clone().map(|key| format!("{key}{long}"));
    let text: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(keys));
    RecordBatch::try_from_iter([("k", keys), ("t", text)]).expect("columns of one length")
}

/// Returns the number of rows, if the memory limit suffices. The consumer pauses before its first batches.
fn rows_within_limit(output: JoinReader, pauses: usize) -> Option<usize> {
    let mut rows = 0;
    for (number, batch) in output.enumerate() {
        match batch.map_err(Error::from_arrow) {
            Ok(batch) => rows += batch.num_rows(),
            Err(Error::MemoryLimit { .. }) => return None,
            Err(error) => panic!("{error}"),
        }
        if number < pauses {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    Some(rows)
}

/// A join on a device allocates host memory while output is queued. Like the workers, it waits for a slow
/// consumer.
#[test]
fn joins_on_a_device_wait_for_a_slow_consumer() {
    let build = with_text(0..400, 300);
    let probe: Vec<RecordBatch> = (0..6).map(|_| with_text(0..400, 10)).collect();
    for algorithm in [Algorithm::StreamedProbe, Algorithm::MultiPass] {
        let (mut kept, mut refused) = (0, 0);
        for kibibytes in (160..340).step_by(4) {
            let force = TestOverrides {
                simulated: Some(1),
                seed: Some(1),
                tiny_partitions: true,
                ..TestOverrides::default()
            };
            let join =
                join(algorithm, kibibytes << 10).device(Processor::Gpu(0)).test_overrides(force);
            let join = join.threads(1).batch_size(100);
            let rows = |pauses| {
                let output = join.run(table(vec![build.clone()]), table(probe.clone()));
                rows_within_limit(output.expect("starts"), pauses)
            };
            let (fast, slow) = (rows(0), rows(12));
            assert_eq!(fast, slow, "{algorithm} within {kibibytes} KiB, read fast and slowly");
            assert!(fast.is_none_or(|rows| rows == 2400), "{fast:?}");
            *(if fast.is_some() { &mut kept } else { &mut refused }) += 1;
        }
        assert!(kept > 0 && refused > 0, "{algorithm}: {kept} kept, {refused} refused: no test");
    }
}

/// Every worker needs memory for a batch of input and then for its output. If all workers hold input, enough
/// memory must remain for the output of each of them.
#[test]
fn several_workers_need_no_more_memory_than_one() {
    const TEXT: usize = 300_000;
    let build = with_text(0..4, TEXT);
    let probe: Vec<RecordBatch> = (0..60).map(|i| with_text(i % 4..i % 4 + 1, TEXT)).collect();
    let rows = |threads, limit, pauses| {
        // The filter takes long enough that all workers hold input before one of them makes output.
        let filter = Filter::new([(Side::Left, "k")], |batch: &RecordBatch| {
            std::thread::sleep(Duration::from_millis(1));
            Ok(vec![true; batch.num_rows()].into())
        });
        let join = join(Algorithm::NoPartition, limit).threads(threads).batch_size(2);
        let join = join.filter(filter);
        let output = join.run(table(vec![build.clone()]), table(probe.clone()));
        rows_within_limit(output.expect("starts"), pauses)
    };
    let (mut least, mut most) = (1u64 << 20, 16u64 << 20);
    while most - least > 16 << 10 {
        let middle = (least + most) / 2;
        if rows(1, middle, 0).is_some() { most = middle } else { least = middle }
    }
    // Each thread needs some memory of its own.
    for extra in [200, 300, 400].map(|kibibytes| kibibytes << 10) {
        for pauses in [0, 20, 0, 20] {
            let found = rows(4, most + extra, pauses);
            assert_eq!(
                found,
                Some(60),
                "{extra} bytes more than one worker needs, {pauses} pauses"
            );
        }
    }
}

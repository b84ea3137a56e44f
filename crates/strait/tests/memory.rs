//! The memory limit is kept: an allocator counts the bytes that live while a join runs.
//!
//! Large buffers are mapped and pass by the allocator; those the join reports. A binary of its
//! own, and one test at a time, since the allocator counts for the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{
    ArrayRef, BooleanArray, DictionaryArray, Int16Array, Int64Array, ListArray, RecordBatch,
    RecordBatchIterator, RecordBatchReader, StringArray, StringViewArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Int16Type};
use arrow::error::ArrowError;
use strait::{Algorithm, Error, Filter, Join, JoinType, Side};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may live for a moment.
        grown(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What is not the join's: a batch in each reader's hands, one in the consumer's, threads, names.
const SLACK: usize = 4 << 20;

/// A table that is made while it is read: a key, a number and a string.
fn streamed(rows: i64, distinct: i64, text: usize) -> impl RecordBatchReader + Send + 'static {
    const BATCH: i64 = 4096;
    let batch = move |start: i64| -> Result<RecordBatch, ArrowError> {
        let ids = start..(start + BATCH).min(rows);
        let keys: ArrayRef =
            Arc::new(Int64Array::from_iter_values(ids.clone().map(|i| (i * 7919) % distinct)));
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(ids.clone()));
        let texts: ArrayRef =
            Arc::new(StringArray::from_iter_values(ids.map(|i| format!("{i:0text$}"))));
        RecordBatch::try_from_iter([("k", keys), ("number", numbers), ("text", texts)])
    };
    let schema = batch(0).expect("a batch").schema();
    RecordBatchIterator::new((0..rows).step_by(BATCH as usize).map(batch), schema)
}

/// Held by the test that measures.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs the join, dropping each batch as it comes: how many rows there were, and the reported
/// peak; or the error. With it, the most bytes that lived at once on top of those before.
fn measured(
    join: &Join,
    left: impl RecordBatchReader + Send + 'static,
    right: impl RecordBatchReader + Send + 'static,
) -> (Result<(u64, u64), Error>, usize) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let outcome = join.run(left, right);
    let outcome = outcome.and_then(|mut reader| {
        let mut total = 0;
        for batch in reader.by_ref() {
            total += batch.map_err(Error::from_arrow)?.num_rows() as u64;
        }
        Ok((total, reader.report().expect("a report").peak_memory))
    });
    (outcome, PEAK.load(Ordering::Relaxed).saturating_sub(before))
}

#[test]
fn the_limit_is_never_passed() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut kept, mut refused) = (0, 0);
    for algorithm in [Algorithm::NoPartition, Algorithm::Radix, Algorithm::SortMerge] {
        for (rows, text) in
            [((30_000, 90_000), 40), ((200_000, 150_000), 8), ((4000, 100_000), 300)]
        {
            for join_type in [JoinType::Inner, JoinType::Full] {
                let join =
                    Join::new(join_type).on("k").algorithm(algorithm).threads(2).batch_size(1024);
                let run = |join: &Join| {
                    let distinct = rows.0.min(rows.1);
                    let right = streamed(rows.1, distinct, text);
                    measured(join, streamed(rows.0, distinct, text), right)
                };
                let (free, _) = run(&join);
                let (expected, needed) = free.expect("there is memory without a limit");
                for limit in [needed * 2, needed, needed * 3 / 4, needed / 3] {
                    let (outcome, peak) = run(&join.clone().memory_limit(limit));
                    let what = format!("{algorithm} {join_type} {rows:?} within {limit}");
                    assert!(
                        peak <= limit as usize + SLACK,
                        "{what}: {peak} bytes lived at once, {needed} needed"
                    );
                    match outcome {
                        Ok((total, reported)) => {
                            kept += 1;
                            assert_eq!(total, expected, "{what}");
                            assert!(reported <= limit, "{what}: {reported} reported");
                        }
                        Err(Error::MemoryLimit { used, limit: told, .. }) => {
                            refused += 1;
                            assert!(used <= limit && told == limit, "{what}");
                            assert!(limit < needed * 2, "{what}: twice what is needed suffices");
                        }
                        Err(other) => panic!("{what}: {other}"),
                    }
                }
            }
        }
    }
    assert!(kept > 0 && refused > 0, "{kept} kept, {refused} refused: the limits were no test");
}

/// A batch of output is not as long as an average row says when one long value is in all its rows.
#[test]
fn one_long_value_in_many_rows() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const LONG: usize = 64 << 10;
    const LIMIT: usize = 16 << 20;
    let one_table = |keys: Vec<i64>, texts: Vec<String>| {
        let keys: ArrayRef = Arc::new(Int64Array::from(keys));
        let texts: ArrayRef = Arc::new(StringArray::from(texts));
        let batch =
            RecordBatch::try_from_iter([("k", keys), ("text", texts)]).expect("two columns");
        let schema = batch.schema();
        RecordBatchIterator::new([Ok(batch)], schema)
    };
    for algorithm in Algorithm::ANYWHERE {
        // 2000 short texts and a long one, which a thousand rows of the other side ask for.
        let mut texts = vec!["x".to_string(); 2000];
        texts.push("y".repeat(LONG));
        let left = one_table((0..2001).collect(), texts);
        let right = one_table(vec![2000; 1000], vec!["z".to_string(); 1000]);
        let join = Join::inner().on("k").algorithm(algorithm).threads(2);
        let (outcome, peak) = measured(&join.memory_limit(LIMIT as u64), left, right);
        // The batch in the consumer's hands is no longer the join's, and no longer than the limit.
        assert!(peak <= 2 * LIMIT + SLACK, "{algorithm}: {peak} bytes lived at once");
        match outcome {
            Ok((rows, reported)) => {
                assert_eq!(rows, 1000, "{algorithm}");
                assert!(reported <= LIMIT as u64, "{algorithm}: {reported} reported");
            }
            Err(error) => {
                assert!(matches!(error, Error::MemoryLimit { .. }), "{algorithm}: {error}")
            }
        }
    }
}

/// A reader of batches with the given columns.
fn reader_of(tables: Vec<(Vec<i64>, ArrayRef)>) -> impl RecordBatchReader + Send + 'static + use<> {
    let batch = |(keys, column): (Vec<i64>, ArrayRef)| {
        let keys: ArrayRef = Arc::new(Int64Array::from(keys));
        RecordBatch::try_from_iter_with_nullable([("k", keys, false), ("column", column, true)])
    };
    let batches: Vec<_> = tables.into_iter().map(batch).collect();
    let schema = batches[0].as_ref().expect("columns of one length").schema();
    RecordBatchIterator::new(batches, schema)
}

/// Numbers as a column.
fn numbers(rows: i64) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(0..rows))
}

/// A dictionary in each batch: neither the batches of output nor what makes them multiply them.
#[test]
fn a_dictionary_in_each_of_500_batches() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const LIMIT: usize = 64 << 20;
    const ROWS: i64 = 100;
    for algorithm in Algorithm::ANYWHERE {
        for distinct in [false, true] {
            let batch = |chunk: i64| {
                let first = if distinct { chunk * ROWS } else { 0 };
                let texts = (first..first + ROWS).map(|i| format!("a text of some length, {i:09}"));
                let values: ArrayRef = Arc::new(StringViewArray::from_iter_values(texts));
                let keys = Int16Array::from_iter_values((0..ROWS as i16).rev());
                let column = DictionaryArray::<Int16Type>::new(keys, values);
                let keys = (chunk * ROWS..(chunk + 1) * ROWS).collect();
                (keys, Arc::new(column) as ArrayRef)
            };
            let left = reader_of((0..500).map(batch).collect());
            let keys = (0..100_000).map(|i| i * 7919 % (500 * ROWS)).collect();
            let right = reader_of(vec![(keys, numbers(100_000))]);
            let join = Join::inner().on("k").algorithm(algorithm).threads(2).build_side(Side::Left);
            let (outcome, peak) = measured(&join.memory_limit(LIMIT as u64), left, right);
            let (rows, reported) = outcome.expect("64 MiB suffice for 6 MB");
            assert_eq!(rows, 100_000, "{algorithm}");
            assert!(reported <= LIMIT as u64, "{algorithm}: {reported} reported");
            assert!(peak <= LIMIT + SLACK, "{algorithm}, {distinct}: {peak} bytes lived at once");
        }
    }
}

/// A batch of output is reserved by the lists it has, not by an average one.
#[test]
fn one_long_list_in_many_rows() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const LONG: usize = 1 << 20;
    const LIMIT: usize = 32 << 20;
    for algorithm in Algorithm::ANYWHERE {
        // A thousand short lists and a long one, of 1 MiB, which a thousand rows ask for.
        let lens = std::iter::repeat_n(1, 1000).chain([LONG / 8]);
        let values: ArrayRef = numbers((1000 + LONG / 8) as i64);
        let item = Arc::new(Field::new("item", DataType::Int64, true));
        let lists = ListArray::new(item, OffsetBuffer::from_lengths(lens), values, None);
        let left = reader_of(vec![((0..1001).collect(), Arc::new(lists) as ArrayRef)]);
        let right = reader_of(vec![(vec![1000; 1000], numbers(1000))]);
        let join = Join::inner().on("k").algorithm(algorithm).threads(2).build_side(Side::Left);
        let (outcome, peak) = measured(&join.memory_limit(LIMIT as u64), left, right);
        assert!(peak <= 2 * LIMIT + SLACK, "{algorithm}: {peak} bytes lived at once");
        match outcome {
            Ok((rows, reported)) => {
                assert_eq!(rows, 1000, "{algorithm}");
                assert!(reported <= LIMIT as u64, "{algorithm}: {reported} reported");
            }
            Err(error) => {
                assert!(matches!(error, Error::MemoryLimit { .. }), "{algorithm}: {error}")
            }
        }
    }
}

/// The columns that a residual filter reads are within the limit too.
#[test]
fn a_filter_over_long_text() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const LIMIT: usize = 16 << 20;
    for algorithm in Algorithm::ANYWHERE {
        let text: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(64 << 10)]));
        let left = reader_of(vec![(vec![1], text)]);
        let right = reader_of(vec![(vec![1; 2000], numbers(2000))]);
        let filter = Filter::new([(Side::Left, "column")], |batch| {
            Ok(BooleanArray::from(vec![true; batch.num_rows()]))
        });
        let join = Join::new(JoinType::RightSemi).on("k").algorithm(algorithm).threads(2);
        let join = join.filter(filter).build_side(Side::Left).memory_limit(LIMIT as u64);
        let (outcome, peak) = measured(&join, left, right);
        let (rows, reported) = outcome.expect("halves of halves fit");
        assert_eq!(rows, 2000, "{algorithm}");
        assert!(reported <= LIMIT as u64, "{algorithm}: {reported} reported");
        assert!(peak <= LIMIT + SLACK, "{algorithm}: {peak} bytes lived at once");
    }
}

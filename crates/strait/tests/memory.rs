//! The memory limit is kept. A counting allocator measures the live bytes while a join runs.
//!
//! Large buffers are mapped and do not use the allocator; the join reports these. The allocator counts for
//! the whole process, so this is a separate binary that runs one test at a time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, FixedSizeBinaryArray, Float64Array, Int16Array,
    Int32Array, Int64Array, ListArray, RecordBatch, RecordBatchIterator, RecordBatchReader,
    StringArray, StringViewArray, StringViewBuilder, StructArray, UnionArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Int16Type, UnionFields};
use arrow::error::ArrowError;
use strait::{Algorithm, Error, Filter, Join, JoinType, Side, TempFolders};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call goes to the system allocator unchanged. Counting does not touch the allocated memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The old and the new block may both be live for a moment.
        grown(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory that does not belong to the join: the batches that the readers and the consumer hold, threads,
/// names.
const SLACK: usize = 4 << 20;

/// A table that is generated while it is read: a key, a number and a string.
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

/// The measuring test holds this lock.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs the join, and drops each batch as it comes. Returns the number of rows and the reported peak, or the
/// error. Also returns the largest number of live bytes in addition to those before the join.
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

/// A sort-merge join that spills keeps the limit while it sorts, merges and joins, for numbers and for texts.
#[test]
fn sorted_runs_keep_the_limit() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (rows, text, most) in
        [((100_000, 200_000), 8, 6), ((30_000, 40_000), 200, 6), ((20_000, 30_000), 600, 16)]
    {
        for key in ["k", "text"] {
            let join = Join::new(JoinType::Full).on(key).algorithm(Algorithm::SortMerge).threads(2);
            let run = |join: &Join| {
                let right = streamed(rows.1, rows.0, text);
                measured(join, streamed(rows.0, rows.0, text), right)
            };
            let (expected, _) = run(&join).0.expect("no limit");
            for limit in [most << 19, most << 20] {
                let store = Arc::new(TempFolders::new(vec![]));
                let (outcome, peak) = run(&join.clone().memory_limit(limit).spill(store));
                let what = format!("{rows:?} rows by {key} within {limit}");
                assert!(peak <= limit as usize + SLACK, "{what}: {peak} bytes lived at once");
                let (total, reported) = outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(total == expected && reported <= limit, "{what}: {total}, {reported}");
            }
        }
    }
}

/// If one long value is in all rows of an output batch, the batch is longer than the average row suggests.
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
        // 2000 short texts and one long text, which matches a thousand rows of the other side.
        let mut texts = vec!["x".to_string(); 2000];
        texts.push("y".repeat(LONG));
        let left = one_table((0..2001).collect(), texts);
        let right = one_table(vec![2000; 1000], vec!["z".to_string(); 1000]);
        let join = Join::inner().on("k").algorithm(algorithm).threads(2);
        let (outcome, peak) = measured(&join.memory_limit(LIMIT as u64), left, right);
        // The batch that the consumer holds no longer belongs to the join, and is no longer than the limit.
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

/// A column of numbers.
fn numbers(rows: i64) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(0..rows))
}

/// Each batch has its own dictionary. Neither the output batches nor the code that makes them multiply these
/// dictionaries.
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

/// The reservation for an output batch depends on the lists in it, not on an average list.
#[test]
fn one_long_list_in_many_rows() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const LONG: usize = 1 << 20;
    const LIMIT: usize = 32 << 20;
    for algorithm in Algorithm::ANYWHERE {
        // A thousand short lists and one long list of 1 MiB, which matches a thousand rows.
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

/// Returns structs of a text of 64 KiB, which all rows share, and a number.
fn shared_texts(numbers: ArrayRef) -> ArrayRef {
    const LONG: u32 = 64 << 10;
    let mut texts = StringViewBuilder::new();
    let block = texts.append_block(Buffer::from(vec![b'x'; LONG as usize]));
    for _ in 0..numbers.len() {
        texts.try_append_view(block, 0, LONG).expect("inside the block");
    }
    let fields = vec![
        Field::new("text", DataType::Utf8View, true),
        Field::new("number", DataType::Int64, true),
    ];
    let columns = vec![Arc::new(texts.finish()) as ArrayRef, numbers];
    Arc::new(StructArray::new(fields.into(), columns, None))
}

/// Returns null structs of a union. In row format, a null of its first member takes 64 KiB.
fn nulls_of_unions(rows: usize) -> ArrayRef {
    let wide: ArrayRef = Arc::new(FixedSizeBinaryArray::new_null(1 << 16, 0));
    let narrow: ArrayRef = Arc::new(BooleanArray::from(vec![true]));
    let fields = vec![
        Field::new("wide", wide.data_type().clone(), true),
        Field::new("narrow", DataType::Boolean, true),
    ];
    let fields = UnionFields::try_new(vec![0, 1], fields).expect("two members");
    let (ids, offsets) = (vec![1i8; rows].into(), vec![0i32; rows].into());
    let union = UnionArray::try_new(fields, ids, Some(offsets), vec![wide, narrow]);
    let union: ArrayRef = Arc::new(union.expect("every row has the narrow member"));
    let field = Field::new("u", union.data_type().clone(), true);
    let nulls: NullBuffer = (0..rows).map(|row| row == 0).collect();
    Arc::new(StructArray::new(vec![field].into(), vec![union], Some(nulls)))
}

/// The row format of nested keys repeats a value that rows share: here, 64 KiB per row. The join converts part by part. A
/// hundred rows fit the limit. More rows may be refused.
#[test]
fn nested_keys_that_share_long_values() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const LIMIT: usize = 48 << 20;
    let reader = |keys: ArrayRef| {
        let batch = RecordBatch::try_from_iter([("k", keys)]).expect("one column");
        let schema = batch.schema();
        RecordBatchIterator::new([Ok(batch)], schema)
    };
    let different = |rows: usize| shared_texts(numbers(rows as i64));
    let equal = |rows: usize| shared_texts(Arc::new(Int64Array::from(vec![7; rows])));
    let all: [&dyn Fn(usize) -> ArrayRef; 3] = [&different, &equal, &nulls_of_unions];
    for (kind, keys) in all.iter().enumerate() {
        for algorithm in Algorithm::ANYWHERE {
            for (rows, side) in [(100, Side::Right), (16_384, Side::Right), (65_536, Side::Left)] {
                let join = Join::inner().on("k").algorithm(algorithm).threads(2).build_side(side);
                let join = join.memory_limit(LIMIT as u64);
                let (outcome, peak) = measured(&join, reader(keys(rows)), reader(keys(3)));
                let what = format!("keys {kind}, {algorithm}, {rows} rows");
                assert!(peak <= LIMIT + SLACK, "{what}: {peak} bytes lived at once");
                match outcome {
                    Ok((found, _)) => {
                        assert_eq!(found, [3, 3 * rows as u64, 1][kind], "{what}");
                    }
                    Err(error) => {
                        assert!(matches!(error, Error::MemoryLimit { .. }), "{what}: {error}");
                        assert!(rows > 100, "{what}: {error}");
                    }
                }
            }
        }
    }
}

/// Eight workers convert keys of 16 MiB at the same time. The memory of one conversion is reserved until its rows are
/// hashed.
#[test]
fn long_nested_keys_on_many_threads() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const LONG: usize = 16 << 20;
    const LIMIT: usize = 72 << 20;
    let text = Buffer::from(vec![b'x'; LONG]);
    let key = |texts: StringViewArray| -> ArrayRef {
        let fields = vec![Field::new("text", DataType::Utf8View, true)];
        let columns = vec![Arc::new(texts) as ArrayRef];
        Arc::new(StructArray::new(fields.into(), columns, None))
    };
    let long = |_: usize| {
        let mut texts = StringViewBuilder::new();
        let block = texts.append_block(text.clone());
        for row in 0..16_384 {
            match row % 4096 {
                0 => texts.try_append_view(block, 0, LONG as u32).expect("inside the block"),
                _ => texts.append_value("b"),
            }
        }
        RecordBatch::try_from_iter([("k", key(texts.finish()))]).expect("one column")
    };
    let short = RecordBatch::try_from_iter([("k", key(StringViewArray::from(vec!["a"])))]);
    let short = short.expect("one column");
    for (algorithm, side) in [(Algorithm::Radix, Side::Right), (Algorithm::NoPartition, Side::Left)]
    {
        let batches: Vec<_> = (0..16).map(long).map(Ok).collect();
        let many = RecordBatchIterator::new(batches, short.schema());
        let few = RecordBatchIterator::new([Ok(short.clone())], short.schema());
        let join = Join::inner().on("k").algorithm(algorithm).threads(8).build_side(side);
        let (outcome, peak) = measured(&join.memory_limit(LIMIT as u64), many, few);
        // The text and the views of the batches are not in the peak.
        assert!(peak <= LIMIT - LONG + SLACK, "{algorithm}: {peak} bytes lived at once");
        if let Err(error) = outcome {
            assert!(matches!(error, Error::MemoryLimit { .. }), "{algorithm}: {error}");
        }
    }
}

/// One of four million floats in a dictionary is -0.0. So each conversion of nested keys first copies the floats.
#[test]
fn floats_in_the_dictionary_of_a_nested_key() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const LIMIT: usize = 110 << 20;
    let keys = |values: i32, rows: i32| {
        let floats = (0..values).map(|i| if i == 0 { -0.0 } else { f64::from(i) });
        let floats: ArrayRef = Arc::new(Float64Array::from_iter_values(floats));
        let keys = Int32Array::from_iter_values(0..rows);
        let column: ArrayRef = Arc::new(DictionaryArray::new(keys, floats));
        let field = Field::new("float", column.data_type().clone(), true);
        let key: ArrayRef = Arc::new(StructArray::new(vec![field].into(), vec![column], None));
        RecordBatch::try_from_iter([("k", key)])
    };
    for algorithm in Algorithm::ANYWHERE {
        let few = keys(10, 10).expect("one column");
        let schema = few.schema();
        // This batch is made while the join runs, so that it is in the peak.
        let many = (0..1).map(move |_| keys(4 << 20, 1000));
        let many = RecordBatchIterator::new(many, Arc::clone(&schema));
        let few = RecordBatchIterator::new([Ok(few)], schema);
        let join = Join::inner().on("k").algorithm(algorithm).threads(2).build_side(Side::Right);
        let (outcome, peak) = measured(&join.memory_limit(LIMIT as u64), many, few);
        assert!(peak <= LIMIT + SLACK, "{algorithm}: {peak} bytes lived at once");
        match outcome {
            Ok((rows, _)) => assert_eq!(rows, 10, "{algorithm}"),
            Err(error) => {
                assert!(matches!(error, Error::MemoryLimit { .. }), "{algorithm}: {error}")
            }
        }
    }
}

/// The columns that a residual filter reads also count towards the limit.
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

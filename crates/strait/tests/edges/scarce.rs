//! Memory that just suffices: what is counted once, who waits for whom, and whose error is told.

use std::ptr::NonNull;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, DictionaryArray, Int32Array, Int64Array, RecordBatch, RecordBatchIterator,
    RecordBatchReader, StringArray,
};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::Int32Type;
use arrow::error::ArrowError;
use strait::{Algorithm, Error, Join, MemoryBudget, Processor, Side};

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

/// A reader that shares a budget may be refused memory, too. The join waits and asks again, and the
/// reader's own error is the join's in the end.
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

/// Two workers and memory for the table of one: the second one gets it when the first is done.
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

/// The dictionary that all batches of output share is held once.
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

/// Slices that come over the C data interface have one address and sizes that grow.
#[test]
fn slices_of_one_allocation_are_counted_once() {
    const ROWS: usize = 1_000_000;
    const SLICES: usize = 100;
    let whole: Arc<Vec<i64>> = Arc::new((0..ROWS as i64).collect());
    let slice = |number: usize| {
        let rows = ROWS / SLICES;
        let start = NonNull::new(whole.as_ptr().cast_mut().cast::<u8>()).expect("an address");
        let bytes = (number + 1) * rows * size_of::<i64>();
        // SAFETY: the vector has so many bytes, and lives as long as the buffer.
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

//! Joins under a memory limit that wait: for a reader that blocks, for a slow consumer, for one another.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow::array::{StringArray, StringViewArray};
use arrow::error::ArrowError;
use strait::testing::TestOverrides;
use strait::{Algorithm, Join, MemoryBudget, Output, Processor, Side, Statistics};

use super::whole;

/// Keys `k`, and a text `t` of so many bytes per row.
fn with_text(keys: impl IntoIterator<Item = i64>, bytes: usize) -> RecordBatch {
    let keys: Vec<i64> = keys.into_iter().collect();
    let text = "z".repeat(bytes);
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(keys.iter().map(|_| &text)));
    let keys: ArrayRef = Arc::new(Int64Array::from(keys));
    RecordBatch::try_from_iter([("k", keys), ("t", texts)]).expect("columns of one length")
}

/// Returns a reader of one batch that then pauses until something is sent.
fn pausing(first: RecordBatch) -> (mpsc::Sender<()>, impl RecordBatchReader + Send) {
    let (seen, wait) = mpsc::channel::<()>();
    let (wait, schema) = (Mutex::new(wait), first.schema());
    let mut next = Some(first);
    let batches = std::iter::from_fn(move || {
        let batch = next.take();
        if batch.is_none() {
            let _ = wait.lock().expect("not poisoned").recv_timeout(Duration::from_secs(30));
        }
        batch.map(Ok)
    });
    (seen, RecordBatchIterator::new(batches, schema))
}

/// The second batch of the reader comes only after the consumer has seen rows of the first. Another worker that
/// waits for memory must not wait for the one that waits for the reader.
#[test]
fn prompt_rows_come_while_the_reader_blocks() {
    for threads in [1, 2, 4] {
        let (build, first) = (with_text(0..1, 20_000), with_text((0..1000).map(|_| 0), 0));
        let (seen, reader) = pausing(first);
        let join = Join::inner().on("k").build_side(Side::Left).device(Processor::Cpu);
        let join = join.algorithm(Algorithm::NoPartition).threads(threads).prompt(true);
        let begun = Instant::now();
        // The output of the first batch takes 20 MB.
        let mut out = join.memory_limit(10 << 20).run(whole(&build), reader).expect("starts");
        let rows = out.next().expect("there are rows").expect("they fit in pieces").num_rows();
        assert!(rows > 0 && begun.elapsed() < Duration::from_secs(20), "{threads} threads");
        seen.send(()).expect("the reader waits");
        drop(out);
    }
}

/// A table of 8 kB beside a stream that pauses after 80 bytes. If the statistics say so, the join builds on the
/// table, although the stream would be the next to read by its bytes.
#[test]
fn the_table_beside_a_stream_builds() {
    for (side, threads) in [(Side::Left, 1), (Side::Left, 3), (Side::Right, 2)] {
        let (table, first) = (super::keyed(0..1000), super::keyed(0..10));
        let (seen, reader) = pausing(first);
        let join = Join::inner().on("k").device(Processor::Cpu).threads(threads).prompt(true);
        let join = join
            .statistics(side, Statistics::unknown().with_bytes(8000))
            .statistics(side.other(), Statistics::unknown().with_stream(true));
        let schema = table.schema();
        let bound = join.bind(Output::Rows, &schema, &schema).expect("binds");
        assert_eq!(bound.explain().build_side, Some(side));
        let parts = (0..10).map(|i| Ok(table.slice(i * 100, 100))).collect::<Vec<_>>();
        let table = RecordBatchIterator::new(parts, schema);
        let begun = Instant::now();
        let out = match side {
            Side::Left => join.run(table, reader),
            Side::Right => join.run(reader, table),
        };
        let mut out = out.expect("starts");
        let rows = out.next().expect("there are rows").expect("succeeds").num_rows();
        assert!(rows > 0 && begun.elapsed() < Duration::from_secs(20), "{side:?}, {threads}");
        seen.send(()).expect("the stream waits");
        drop(out);
    }
}

/// One side returns a few rows and then batches without rows for ever, as an idle stream does. The join still reads
/// the other side to its end.
#[test]
fn batches_without_rows_do_not_keep_the_other_side_from_being_read() {
    for side in [Side::Left, Side::Right] {
        let (table, first) = (super::keyed(0..1000), super::keyed(0..10));
        let (schema, empty) = (first.schema(), first.slice(0, 0));
        let begun = Instant::now();
        let idle = std::iter::from_fn(move || {
            std::thread::sleep(Duration::from_millis(1));
            (begun.elapsed() < Duration::from_secs(60)).then(|| Ok(empty.clone()))
        });
        let stream = RecordBatchIterator::new(std::iter::once(Ok(first)).chain(idle), schema);
        let parts = (0..100).map(|i| Ok(table.slice(i * 10, 10))).collect::<Vec<_>>();
        let table = RecordBatchIterator::new(parts, table.schema());
        let join = Join::inner().on("k").device(Processor::Cpu).prompt(true);
        let out = match side {
            Side::Left => join.run(table, stream),
            Side::Right => join.run(stream, table),
        };
        let mut out = out.expect("starts");
        let rows = out.next().expect("there are rows").expect("succeeds").num_rows();
        assert!(rows > 0 && begun.elapsed() < Duration::from_secs(30), "{side:?}");
        drop(out);
    }
}

/// A reader reserves memory in the budget of the join while it reads, as decoders do. Output that the consumer
/// has not taken yet must not let it fail.
#[test]
fn a_reader_that_shares_the_budget_is_not_refused() {
    for (threads, pause) in [(1, 0), (1, 3), (8, 0), (8, 3)] {
        let budget = MemoryBudget::new(Some(16 << 20));
        let text = "z".repeat(100_000);
        let batch = move || {
            let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10));
            let texts = StringViewArray::from_iter_values((0..10).map(|_| &text));
            RecordBatch::try_from_iter([("k", keys), ("t", Arc::new(texts) as _)])
        };
        let schema = batch().expect("columns of one length").schema();
        let shared = Arc::clone(&budget);
        let batches = (0..100).map(move |_| {
            let page = shared.reserve(4 << 20, "a decoded page").map_err(ArrowError::from)?;
            std::thread::sleep(Duration::from_micros(200));
            drop(page);
            batch()
        });
        let join = Join::inner().on("k").build_side(Side::Left).device(Processor::Cpu);
        let join = join.algorithm(Algorithm::NoPartition).threads(threads).batch_size(10);
        let build = super::keyed(0..10);
        let reader = RecordBatchIterator::new(batches, schema);
        let mut rows = 0;
        for batch in join.memory_budget(&budget).run(whole(&build), reader).expect("starts") {
            let what = format!("{threads} threads, a pause of {pause} ms");
            rows += batch.unwrap_or_else(|error| panic!("{what}: {error}")).num_rows();
            std::thread::sleep(Duration::from_millis(pause));
        }
        assert_eq!(rows, 1000);
    }
}

/// More threads need no more memory on a device either: fewer of them work if memory is scarce.
#[test]
fn joins_on_a_device_fit_with_any_number_of_threads() {
    for limit in [2u64 << 20, 16 << 20] {
        for threads in [1, 2, 8, 9, 64, 256] {
            let overrides =
                TestOverrides { simulated: Some(1), seed: Some(1), ..TestOverrides::default() };
            let join = Join::inner().on("k").build_side(Side::Left).threads(threads);
            let join = join.algorithm(Algorithm::MultiPass).test_overrides(overrides);
            let (build, probe) = (with_text(0..400, 30), with_text(0..400, 10));
            let out = join.memory_limit(limit).run(whole(&build), whole(&probe)).expect("starts");
            let rows: Result<Vec<_>, _> = out.map(|batch| batch.map(|b| b.num_rows())).collect();
            let what = format!("{limit} bytes, {threads} threads");
            let rows: usize = rows.unwrap_or_else(|error| panic!("{what}: {error}")).iter().sum();
            assert_eq!(rows, 400, "{what}");
        }
    }
}

//! Readers that fail, block, or share the budget of the join, and consumers that are slow or leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{
    ArrayRef, Int64Array, RecordBatch, RecordBatchIterator, StringArray, StringViewArray,
};
use arrow::error::ArrowError;
use strait::testing::TestOverrides;
use strait::{Algorithm, Error, Join, JoinType, MemoryBudget, Output, Processor, Side};

use super::super::{drained, keyed, whole};
use super::{rows_of, tiny, with_text};

/// With memory for some limit, whether a join succeeds must not depend on the speed of the consumer.
#[test]
fn slow_consumers_change_no_outcome() {
    let probe: Vec<RecordBatch> = (0..12).map(|_| with_text(0..400, 30)).collect();
    let build = with_text(0..400, 300);
    let mut differ = Vec::new();
    let (mut kept, mut refused) = (0, 0);
    for prompt in [false, true] {
        for kib in (150..420).step_by(6) {
            let force =
                TestOverrides { simulated: Some(1), seed: Some(1), ..TestOverrides::default() };
            let join = Join::inner().on("k").build_side(Side::Left).test_overrides(force);
            let join = join.algorithm(Algorithm::NoPartition).memory_limit(kib << 10);
            let join = join.threads(1).batch_size(100).prompt(prompt);
            let rows = |pause| {
                rows_of(&join, Output::Rows, std::slice::from_ref(&build), &probe, pause)
                    .map(|r| r.len())
                    .ok()
            };
            let (fast, slow) = (rows(false), rows(true));
            assert!(fast.is_none_or(|rows| rows == 4800), "{fast:?}");
            *(if fast.is_some() { &mut kept } else { &mut refused }) += 1;
            if fast != slow {
                differ.push(format!("{kib} KiB, prompt {prompt}: {fast:?} fast, {slow:?} slowly"));
            }
        }
    }
    assert!(kept > 0 && refused > 0, "{kept} kept, {refused} refused: no test");
    assert!(differ.is_empty(), "{differ:#?}");
}

/// A reader that fails in the middle of a stream: its own error is reported, and nothing is joined twice.
#[test]
fn a_reader_that_fails_in_a_stream_is_reported() {
    for auto in [false, true] {
        for good in 0..12 {
            for panics in [false, true] {
                let batch = keyed(0..10);
                let mut number = 0;
                let schema = batch.schema();
                let reader = std::iter::from_fn(move || {
                    number += 1;
                    match number <= good {
                        true => Some(Ok(batch.clone())),
                        false if panics => panic!("line 17"),
                        false => Some(Err(ArrowError::ParseError("line 17".to_string()))),
                    }
                });
                let reader = RecordBatchIterator::new(reader, schema);
                let join = Join::inner().on("k").build_side(Side::Left).threads(2);
                let join = join.algorithm(Algorithm::NoPartition);
                let join = join.test_overrides(TestOverrides { auto, ..tiny(good) });
                let ran = join.run(whole(&keyed(0..5)), reader).unwrap();
                let error = drained(ran).expect_err("the reader fails").to_string();
                assert!(error.contains("line 17"), "{error}");
            }
        }
    }
}

/// When the reader fails, the results of earlier chunks that have come back become rows before the error.
#[test]
fn results_that_have_arrived_are_kept_when_the_reader_fails() {
    // Chunks have seven rows, and three chunks are read ahead of the one that is joined.
    const ROWS: u64 = 7;
    for good in 4..12 {
        let batch = keyed(0..ROWS as i64);
        let schema = batch.schema();
        let mut number = 0;
        let reader = std::iter::from_fn(move || {
            number += 1;
            match number <= good {
                true => Some(Ok(batch.clone())),
                false => Some(Err(ArrowError::ParseError("line 17".to_string()))),
            }
        });
        let join = Join::inner().on("k").build_side(Side::Left).threads(2);
        let join = join.algorithm(Algorithm::NoPartition).test_overrides(tiny(good));
        let right = RecordBatchIterator::new(reader, schema);
        let ran = join.run(whole(&keyed(0..ROWS as i64)), right).unwrap();
        let (mut rows, mut error) = (0, None);
        for batch in ran {
            match batch {
                Ok(batch) => rows += batch.num_rows() as u64,
                Err(failed) => error = Some(failed.to_string()),
            }
        }
        assert!(error.is_some_and(|error| error.contains("line 17")));
        assert!(rows >= ROWS * (good - 3), "{rows} rows of {good} chunks");
        assert_eq!(rows % ROWS, 0, "{rows} rows of {good} chunks");
    }
}

/// Dropping the output ends a streamed join within 100 ms, whatever it does.
#[test]
fn dropping_the_output_ends_a_stream() {
    for (what, limit) in [("free", u64::MAX), ("limited", 4 << 20)] {
        for algorithm in [Algorithm::NoPartition, Algorithm::StreamedProbe] {
            for blocks in [false, true] {
                for taken in [0, 1, 3] {
                    let batch = keyed((0..2000).map(|i| i % 50));
                    let (schema, mut number) = (batch.schema(), 0);
                    let reader = std::iter::from_fn(move || {
                        number += 1;
                        if blocks && number == 5 {
                            std::thread::sleep(Duration::from_secs(3));
                        }
                        Some(Ok(batch.clone()))
                    });
                    let join = Join::inner().on("k").build_side(Side::Left).threads(2);
                    let join = join.algorithm(algorithm).memory_limit(limit);
                    let force = TestOverrides { simulated: Some(1), ..TestOverrides::default() };
                    let join = join.test_overrides(force).prompt(true);
                    let build = keyed(0..50);
                    let mut out =
                        join.run(whole(&build), RecordBatchIterator::new(reader, schema)).unwrap();
                    for _ in 0..taken {
                        out.next().unwrap().unwrap();
                    }
                    std::thread::sleep(Duration::from_millis(50));
                    let begun = Instant::now();
                    drop(out);
                    let took = begun.elapsed();
                    assert!(
                        took < Duration::from_millis(100),
                        "{what} {algorithm} {blocks} {taken}: {took:?}"
                    );
                }
            }
        }
    }
}

/// With `prompt`, the rows of a batch come before the reader is asked for the next one, on a device too.
#[test]
fn prompt_rows_come_while_the_reader_of_a_stream_blocks() {
    for algorithm in [Algorithm::NoPartition, Algorithm::StreamedProbe, Algorithm::MultiPass] {
        for (join_type, limit) in
            [JoinType::Inner, JoinType::Right, JoinType::RightSemi, JoinType::Full]
                .into_iter()
                .flat_map(|t| [(t, None), (t, Some(2 << 20))])
        {
            for (rows, tiny_chunks) in [(1, false), (100, false), (100, true)] {
                for build in [keyed(0..50), keyed(0..0), keyed((0..50).map(|i| i % 25))] {
                    if build.num_rows() == 0
                        && matches!(join_type, JoinType::Inner | JoinType::RightSemi)
                    {
                        continue;
                    }
                    let (seen, wait) = std::sync::mpsc::channel::<()>();
                    let wait = std::sync::Mutex::new(wait);
                    let batch = keyed((0..rows).map(|i| i % 50));
                    let (schema, mut number) = (batch.schema(), 0);
                    let reader = std::iter::from_fn(move || {
                        number += 1;
                        if number > 1 {
                            let wait = wait.lock().unwrap();
                            let heard = wait.recv_timeout(Duration::from_secs(5));
                            assert!(heard.is_ok(), "asked for batch {number} too early");
                        }
                        (number <= 6).then(|| Ok(batch.clone()))
                    });
                    let force = TestOverrides {
                        simulated: Some(1),
                        tiny_chunks,
                        ..TestOverrides::default()
                    };
                    let join = Join::new(join_type).on("k").build_side(Side::Left).threads(2);
                    let join = join.algorithm(algorithm).prompt(true).test_overrides(force);
                    let budget = MemoryBudget::new(limit);
                    let join = join.memory_budget(&budget);
                    let what = format!("{algorithm} {join_type:?} {limit:?} {rows} {tiny_chunks}");
                    let out =
                        join.run(whole(&build), RecordBatchIterator::new(reader, schema)).unwrap();
                    for batch in out {
                        batch.unwrap_or_else(|error| panic!("{what}: {error}"));
                        let _ = seen.send(());
                    }
                }
            }
        }
    }
}

/// A reader reserves memory in the budget of the join while it reads, as decoders do. Chunks in flight, and output
/// that the consumer has not taken yet, must not let it fail. (On the CPU, `Flow::start` sees to that:
/// `a_reader_that_shares_the_budget_is_not_refused`.)
#[test]
fn a_reader_that_shares_the_budget_of_a_stream_is_not_refused() {
    let long = "z".repeat(100_000);
    let batch = |views: bool| {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10));
        let texts = (0..10).map(|_| &long);
        let texts: ArrayRef = match views {
            true => Arc::new(StringViewArray::from_iter_values(texts)),
            false => Arc::new(StringArray::from_iter_values(texts)),
        };
        RecordBatch::try_from_iter([("k", keys), ("t", texts)]).unwrap()
    };
    let run = |force: Option<TestOverrides>, views: bool, pause: u64| {
        let budget = MemoryBudget::new(Some(16 << 20));
        let (shared, schema) = (Arc::clone(&budget), batch(views).schema());
        // Every batch has its own memory.
        let made: Vec<RecordBatch> = (0..100).map(|_| batch(views)).collect();
        let reader = made.into_iter().map(move |batch| {
            let page = shared.reserve(4 << 20, "a decoded page").map_err(ArrowError::from)?;
            std::thread::sleep(Duration::from_micros(200));
            drop(page);
            Ok(batch)
        });
        let join = Join::inner().on("k").build_side(Side::Left).threads(1).batch_size(10);
        let join = join.algorithm(Algorithm::NoPartition).memory_budget(&budget);
        let join = match force {
            Some(force) => join.test_overrides(force),
            None => join.device(Processor::Cpu),
        };
        let mut rows = 0;
        for batch in
            join.run(whole(&keyed(0..10)), RecordBatchIterator::new(reader, schema)).unwrap()
        {
            rows += batch.map_err(Error::from_arrow)?.num_rows();
            std::thread::sleep(Duration::from_millis(pause));
        }
        Ok::<usize, Error>(rows)
    };
    let simulated = TestOverrides { simulated: Some(1), ..TestOverrides::default() };
    let mut failed = Vec::new();
    for pause in [0, 3] {
        for views in [false, true] {
            assert_eq!(run(None, views, pause).expect("the CPU waits"), 1000);
            for auto in [false, true] {
                match run(Some(TestOverrides { auto, ..simulated }), views, pause) {
                    Ok(rows) => assert_eq!(rows, 1000),
                    Err(error) => {
                        failed.push(format!("pause {pause}, views {views}, auto {auto}: {error}"))
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The same, if the memory is taken by output that a slow consumer has not taken yet.
#[test]
fn a_reader_that_shares_the_budget_of_a_stream_waits_for_the_consumer() {
    let build = with_text(0..10, 300_000);
    let run = |force: Option<TestOverrides>, prompt: bool, pause: u64| {
        let budget = MemoryBudget::new(Some(16 << 20));
        // In no order, so that output is copied.
        let batch = keyed((0..10).map(|i| i * 3 % 10));
        let (shared, schema) = (Arc::clone(&budget), batch.schema());
        let reader = (0..60).map(move |_| {
            let page = shared.reserve(5 << 20, "a decoded page").map_err(ArrowError::from)?;
            drop(page);
            Ok(batch.clone())
        });
        let join = Join::inner().on("k").build_side(Side::Left).threads(2).batch_size(10);
        let join = join.algorithm(Algorithm::NoPartition).memory_budget(&budget).prompt(prompt);
        let join = match force {
            Some(force) => join.test_overrides(force),
            None => join.device(Processor::Cpu),
        };
        let mut rows = 0;
        for batch in join.run(whole(&build), RecordBatchIterator::new(reader, schema)).unwrap() {
            rows += batch.map_err(Error::from_arrow)?.num_rows();
            std::thread::sleep(Duration::from_millis(pause));
        }
        Ok::<usize, Error>(rows)
    };
    let mut failed = Vec::new();
    for prompt in [false, true] {
        for pause in [0, 20] {
            assert_eq!(run(None, prompt, pause).expect("the CPU waits"), 600);
            for auto in [false, true] {
                let force = TestOverrides { tiny_chunks: !prompt, auto, ..tiny(1) };
                match run(Some(force), prompt, pause) {
                    Ok(rows) => assert_eq!(rows, 600),
                    Err(error) => {
                        failed.push(format!("pause {pause}, prompt {prompt}, auto {auto}: {error}"))
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The planner knows nothing about the length of this probe side, except that it is longer than the build side.
/// It may be endless. So it is streamed, and not held because a GPU would be a millisecond faster if it had four
/// times the rows of the build side.
#[test]
fn a_probe_side_of_unknown_length_is_streamed() {
    for output in [Output::Rows, Output::Pairs] {
        let force = TestOverrides { simulated: Some(1), auto: true, ..TestOverrides::default() };
        let join = Join::inner().on("k").prompt(true).threads(16).test_overrides(force);
        let read = Arc::new(AtomicUsize::new(0));
        let (counter, batch) = (Arc::clone(&read), keyed(0..100));
        let schema = batch.schema();
        let reader = std::iter::from_fn(move || {
            (counter.fetch_add(1, Ordering::Relaxed) < 1000).then(|| Ok(batch.clone()))
        });
        let reader = RecordBatchIterator::new(reader, schema);
        let mut out = match output {
            Output::Pairs => join.pairs(whole(&keyed(0..10)), reader),
            _ => join.run(whole(&keyed(0..10)), reader),
        }
        .unwrap();
        out.next().unwrap().unwrap();
        let read = read.load(Ordering::Relaxed);
        assert_eq!(out.by_ref().filter(Result::is_err).count(), 0);
        let algorithm = out.report().unwrap().plan.algorithm;
        assert!(read < 900, "{algorithm} read {read} of 1000 batches before its first row");
    }
}

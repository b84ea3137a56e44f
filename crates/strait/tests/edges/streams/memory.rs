//! The memory of a streamed probe side, and of one that has to be held.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{RecordBatch, RecordBatchIterator};
use strait::testing::{Fault, FaultKind, TestOverrides};
use strait::{Algorithm, Error, Join, JoinType, MemoryBudget, Output, Processor, Side};

use super::super::{keyed, whole};
use super::{rows_of, with_text};

/// Runs a join of a build side with a probe side of some short batches, a long one, and more short ones.
/// Returns whether the limit suffices.
fn with_a_long_batch(join: &Join, long: i64, limit: u64) -> Result<usize, Error> {
    let build = with_text(0..100, 20);
    let short = || with_text(0..100, 20);
    let mut probe: Vec<RecordBatch> = (0..20).map(|_| short()).collect();
    probe.push(with_text(0..long, 20));
    probe.extend((0..20).map(|_| short()));
    let join = join.clone().memory_limit(limit);
    rows_of(&join, Output::Rows, &[build], &probe, false).map(|rows| rows.len())
}

/// A long batch in the middle of a stream leaves little memory. The join takes it in short slices, and does not
/// fail where the CPU's join fits.
#[test]
fn a_long_batch_in_the_middle_is_joined_in_slices() {
    let mut failed = Vec::new();
    for join_type in [JoinType::Inner, JoinType::Right, JoinType::RightAnti] {
        for long in [3000i64, 20_000] {
            let join = Join::new(join_type).on("k").build_side(Side::Left).threads(1);
            let join = join.batch_size(128).algorithm(Algorithm::NoPartition);
            let cpu = join.clone().device(Processor::Cpu);
            // The least memory that suffices for the CPU, to 2 %.
            let (mut least, mut most) = (16u64 << 10, 64u64 << 20);
            while most - least > most / 50 {
                let middle = (least + most) / 2;
                if with_a_long_batch(&cpu, long, middle).is_ok() {
                    most = middle
                } else {
                    least = middle
                }
            }
            let expected = with_a_long_batch(&cpu, long, 64 << 20).unwrap();
            let gpu = |auto| {
                let force =
                    TestOverrides { simulated: Some(1), auto, seed: Some(1), ..Default::default() };
                join.clone().test_overrides(force)
            };
            for (name, join, percent) in [("auto", gpu(true), 110), ("gpu", gpu(false), 130)] {
                let limit = most / 100 * percent + (64 << 10);
                match with_a_long_batch(&join, long, limit) {
                    Ok(rows) => assert_eq!(rows, expected),
                    Err(error) => failed.push(format!(
                        "{join_type:?} {long} {name}: the CPU needs {most}, {limit} did not suffice: {error}"
                    )),
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// A reader without an end, which counts its batches.
fn endless(read: &Arc<AtomicUsize>) -> impl arrow::array::RecordBatchReader + Send + 'static {
    let (schema, read) = (keyed(0..1).schema(), Arc::clone(read));
    let reader = std::iter::from_fn(move || {
        read.fetch_add(1, Ordering::Relaxed);
        Some(Ok(keyed(0..1000)))
    });
    RecordBatchIterator::new(reader, schema)
}

/// The device has too little memory for the planned algorithm, and `multi-pass` needs the probe side several
/// times. But the probe side has no end. Without a memory limit, the join must not read until the machine has
/// no memory left.
#[test]
fn an_endless_probe_side_is_not_held() {
    const MEMORY: u64 = 32 << 20;
    let build = keyed(0..3000);
    let read = Arc::new(AtomicUsize::new(0));
    let run = |auto: bool, limit: Option<u64>| {
        read.store(0, Ordering::Relaxed);
        let force = TestOverrides {
            simulated: Some(1),
            tiny_partitions: true,
            auto,
            host_memory: Some(MEMORY),
            ..TestOverrides::default()
        };
        let join = Join::inner().on("k").build_side(Side::Left).threads(2);
        let algorithm = if auto { None } else { Some(Algorithm::MultiPass) };
        let join = join.algorithm(algorithm).test_overrides(force);
        let join = join.memory_budget(&MemoryBudget::new(limit));
        let mut out = join.run(whole(&build), endless(&read)).unwrap();
        out.next().unwrap().map_err(Error::from_arrow)
    };
    let error = run(false, None).expect_err("the probe side cannot be held").to_string();
    assert!(error.contains("right table") && error.contains("device cpu"), "{error}");
    let bytes = read.load(Ordering::Relaxed) as u64 * 16_000;
    assert!(bytes < 2 * MEMORY, "{bytes} bytes were read");
    let error = run(false, Some(MEMORY)).expect_err("the limit is hard");
    assert!(matches!(error, Error::MemoryLimit { .. }), "{error}");
}

/// Under `auto`, the CPU streams a probe side that cannot be held.
#[test]
fn the_cpu_streams_an_endless_probe_side_that_cannot_be_held() {
    let build = keyed(0..3000);
    for nth in 0..40 {
        let read = Arc::new(AtomicUsize::new(0));
        let force = TestOverrides {
            simulated: Some(1),
            auto: true,
            tiny_partitions: true,
            fault: Some(Fault { kind: FaultKind::Allocate, nth }),
            host_memory: Some(8 << 20),
            ..TestOverrides::default()
        };
        let join = Join::inner().on("k").build_side(Side::Left).threads(1).test_overrides(force);
        let mut out = join.run(whole(&build), endless(&read)).unwrap();
        for _ in 0..3 {
            out.next().expect("no end").unwrap_or_else(|error| panic!("{nth}: {error}"));
        }
    }
}

//! Device failures: the n-th operation of every kind fails on a simulated device.
//!
//! The simulated device checks that a join leaves nothing allocated, pinned or queued, and that no operation
//! uses freed memory. Either would be an error that no test here expects.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use strait::testing::{Fault, FaultKind, TestOverrides};
use strait::{
    Algorithm, CallerCode, Error, Filter, GpuOptions, Join, JoinType, MemoryBudget, Output,
    Partitioner, PlanDevice, ProbeSide, Processor, Reason, Report, Side, TablePlace, Transfer,
};

use super::{batches, ints, keyed, whole};

/// The number of successes in a row after which the test stops: no later operation exists that could fail. A
/// join may survive single failures, because it can go on without memory that it does not strictly need.
const ENOUGH: u32 = 6;

fn build() -> RecordBatch {
    let keys = [3, 1, 4, 1].map(Some).into_iter().chain([None]).collect::<Vec<_>>();
    let rows = (0..keys.len() as i64).map(Some).collect();
    ints([("k", keys), ("b", rows)])
}

fn probe() -> RecordBatch {
    let keys = [1, 7, 4, 1, 8].map(Some).into_iter().chain([None]).collect::<Vec<_>>();
    let rows = (0..keys.len() as i64).map(Some).collect();
    ints([("k", keys), ("p", rows)])
}

/// Returns the rows of some batches, sorted.
fn sorted(batches: &[RecordBatch]) -> Vec<Vec<Option<i64>>> {
    let mut rows = Vec::new();
    for batch in batches {
        let columns: Vec<_> =
            batch.columns().iter().map(|c| c.as_primitive::<Int64Type>()).collect();
        rows.extend((0..batch.num_rows()).map(|i| {
            let value = |c: &&arrow::array::Int64Array| c.is_valid(i).then(|| c.value(i));
            columns.iter().map(value).collect()
        }));
    }
    rows.sort();
    rows
}

/// The outcome of a join: its batches, and then its report or its error.
type Outcome = (Vec<RecordBatch>, Result<Report, Error>);

fn outcome(join: &Join) -> Outcome {
    let mut reader = match join.run(whole(&build()), whole(&probe())) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Err(error)),
    };
    let mut seen = Vec::new();
    for batch in reader.by_ref() {
        match batch {
            Ok(batch) => seen.push(batch),
            Err(error) => return (seen, Err(Error::from_arrow(error))),
        }
    }
    let report = reader.report().expect("a report after the last batch");
    (seen, Ok(report))
}

/// A plan that fails for lack of GPU memory continues as `multi-pass`. The report names both plans.
#[test]
fn the_report_says_what_escalated() {
    let mut escalated = 0;
    for nth in 0..16 {
        let fault = Some(Fault { kind: FaultKind::Allocate, nth });
        let force = TestOverrides { simulated: Some(nth), fault, ..TestOverrides::default() };
        let Ok(report) = outcome(&Join::inner().on("k").test_overrides(force)).1 else { continue };
        assert_eq!(report.output_rows, 5, "allocation {nth}");
        if let [abandoned] = &report.plan.abandoned[..] {
            assert_eq!(report.plan.algorithm, Algorithm::MultiPass, "{report}");
            assert_ne!(abandoned.algorithm, Algorithm::MultiPass);
            assert_eq!(abandoned.device.gpu_name(), Some("simulated"));
            assert!(report.to_string().contains(&abandoned.reason), "{report}");
            escalated += 1;
        }
    }
    assert!(escalated > 0, "no join escalated");
}

/// If `multi-pass` continues on the GPU and fails there, too, the CPU joins. The report lists both plans of the
/// GPU.
#[test]
fn the_report_lists_an_escalation_that_failed() {
    let mut listed = 0;
    let faults = (0..20).map(|nth| Some(Fault { kind: FaultKind::Copy, nth }));
    for fault in faults.chain([None]) {
        for step in 0..72 {
            let memory = (256 * (8 + step % 8) / 8) << (step / 8);
            let force =
                TestOverrides { simulated: Some(step), auto: true, fault, ..Default::default() };
            let join = Join::inner().on("k").gpu_memory(memory).test_overrides(force);
            let Ok(report) = outcome(&join).1 else { continue };
            assert_eq!(report.output_rows, 5, "{report}");
            if let [planned, escalation] = &report.plan.abandoned[..] {
                assert!(!report.plan.device.is_gpu(), "{report}");
                assert_ne!(planned.algorithm, Algorithm::MultiPass, "{report}");
                assert_eq!(escalation.algorithm, Algorithm::MultiPass, "{report}");
                for abandoned in [planned, escalation] {
                    assert_eq!(abandoned.device.gpu_name(), Some("simulated"), "{report}");
                    assert!(report.to_string().contains(&abandoned.reason), "{report}");
                }
                listed += 1;
            }
        }
    }
    assert!(listed > 0, "no escalation failed");
}

/// Whether the error comes from a device.
fn of_device(error: &Error) -> bool {
    matches!(
        error,
        Error::Cuda { .. }
            | Error::KernelCompile { .. }
            | Error::DeviceMemory { .. }
            | Error::OutOfMemory { .. }
    )
}

/// Lets the n-th operation of every kind fail, for every n, on a device that was requested and on one that
/// `auto` chose.
fn every_operation_fails(name: &str, algorithm: Algorithm, join: &Join, force: TestOverrides) {
    let join = &join.clone().algorithm(algorithm);
    let (expected, _) = outcome(
        &join.clone().device(Processor::Cpu).algorithm(None).gpu_options(GpuOptions::new()),
    );
    let expected = sorted(&expected);
    assert!(!expected.is_empty());
    for kind in FaultKind::ALL {
        let (mut nth, mut succeeded, mut failed) = (0, 0, 0);
        // A join may survive the lack of device memory by working in smaller parts.
        let least = if kind == FaultKind::Allocate { 40 } else { 0 };
        while succeeded < ENOUGH || nth < least {
            // With `auto`, a sort-merge join does not run on a GPU.
            let modes = if algorithm == Algorithm::SortMerge { 1 } else { 2 };
            for auto in [false, true].into_iter().take(modes) {
                let fault = Some(Fault { kind, nth });
                let simulated = Some(nth);
                let budget = MemoryBudget::new(None);
                let forced =
                    join.clone().test_overrides(TestOverrides { simulated, auto, fault, ..force });
                let (rows, ended) = outcome(&forced.memory_budget(&budget));
                let what = format!("{name}, {kind:?} {nth}, auto {auto}");
                assert_eq!(budget.used(), 0, "{what}: host memory is reserved no more");
                match ended {
                    Ok(report) => {
                        assert_eq!(sorted(&rows), expected, "{what}");
                        let abandoned = !report.plan.abandoned.is_empty();
                        assert_eq!(!report.plan.device.is_gpu(), abandoned, "{what}");
                        assert!(auto || !abandoned, "{what}");
                        succeeded = if abandoned { 0 } else { succeeded + u32::from(!auto) };
                    }
                    Err(error) => {
                        assert!(of_device(&error), "{what}: {error}");
                        // Rows that were returned cannot be taken back.
                        let may = !auto || !rows.is_empty() || algorithm.needs_gpu();
                        assert!(may, "{what}: {error}");
                        (succeeded, failed) = (0, failed + 1);
                    }
                }
            }
            nth += 1;
        }
        assert!(failed > 0 || kind == FaultKind::Allocate, "{name}: no {kind:?} failed");
    }
}

fn tiny() -> TestOverrides {
    TestOverrides { tiny_chunks: true, ..TestOverrides::default() }
}

#[test]
fn every_operation_fails_in_every_algorithm() {
    for algorithm in Algorithm::ON_GPU {
        // Chunks are as long as memory allows, and the simulated device fills all its memory with poison.
        // Little memory keeps the test fast.
        let join = Join::new(JoinType::Full).on("k").gpu_memory(1 << 20).build_side(Side::Left);
        let join = join.threads(1);
        every_operation_fails(algorithm.name(), algorithm, &join, TestOverrides::default());
    }
}

#[test]
fn every_operation_fails_in_every_way_to_cross() {
    for transfer in Transfer::ALL {
        let join = Join::new(JoinType::Left)
            .on("k")
            .gpu_options(GpuOptions::new().transfer(transfer))
            .build_side(Side::Left)
            .threads(2);
        every_operation_fails(transfer.name(), Algorithm::NoPartition, &join, tiny());
    }
}

#[test]
fn every_operation_fails_in_every_partitioner() {
    for partitioner in Partitioner::ALL {
        let algorithm = if partitioner.to_host() { Algorithm::Triton } else { Algorithm::Radix };
        let cache = partitioner.to_host().then_some(64);
        let join = Join::inner()
            .on("k")
            .gpu_options(GpuOptions::new().partitioner(partitioner).cache(cache))
            .build_side(Side::Left)
            .threads(1);
        every_operation_fails(partitioner.name(), algorithm, &join, tiny());
    }
    for table in TablePlace::ALL {
        let join = Join::inner().on("k").gpu_options(GpuOptions::new().table(table)).threads(1);
        every_operation_fails(
            table.name(),
            Algorithm::NoPartition,
            &join,
            TestOverrides::default(),
        );
    }
}

/// A count is returned only at the end. So the CPU can always continue, unless only the device has the flags of
/// build rows.
#[test]
fn a_count_goes_on_on_the_cpu_whatever_fails() {
    let (left, right) = (build(), probe());
    let count = |join: &Join| join.count(whole(&left), whole(&right));
    let lost = |error: &Error| error.to_string().contains("only the GPU knows which build rows");
    for join_type in [JoinType::Inner, JoinType::LeftAnti] {
        let join = Join::new(join_type).on("k").threads(1);
        let expected = count(&join.clone().device(Processor::Cpu)).unwrap().0;
        let mut on_cpu = 0;
        for kind in FaultKind::ALL {
            for nth in 0..60 {
                let fault = Some(Fault { kind, nth });
                let force = TestOverrides {
                    simulated: Some(nth),
                    auto: true,
                    fault,
                    ..TestOverrides::default()
                };
                match count(&join.clone().test_overrides(force)) {
                    Ok((rows, report)) => {
                        assert_eq!(
                            (rows, report.output_rows),
                            (expected, expected),
                            "{kind:?} {nth}"
                        );
                        on_cpu += usize::from(!report.plan.abandoned.is_empty());
                    }
                    Err(error) if join_type != JoinType::Inner && lost(&error) => {}
                    Err(error) => panic!("{kind:?} {nth}: {error}"),
                }
            }
        }
        assert!(on_cpu > 10, "the CPU joined {on_cpu} times");
        let sums = [(Side::Left, "b"), (Side::Right, "p")];
        let sums = if join_type == JoinType::Inner { &sums[..] } else { &sums[..1] };
        let sum = |join: &Join| join.aggregate(sums, whole(&left), whole(&right)).map(|sum| sum.0);
        let expected = sum(&join.clone().device(Processor::Cpu)).unwrap();
        for nth in 0..40 {
            let fault = Some(Fault { kind: FaultKind::Synchronize, nth });
            let force = TestOverrides {
                simulated: Some(nth),
                auto: true,
                fault,
                ..TestOverrides::default()
            };
            match sum(&join.clone().test_overrides(force)) {
                Ok(found) => assert_eq!(found, expected, "{nth}"),
                Err(error) if join_type != JoinType::Inner && lost(&error) => {}
                Err(error) => panic!("{nth}: {error}"),
            }
        }
    }
}

/// If a GPU fails in the middle of the probe side, the CPU gets the flags of the build rows. For a key that
/// occurs more than once, the CPU looks only at the flag of one row. So a GPU must flag all rows of a key, or
/// none of them.
#[test]
fn flags_that_come_over_from_a_gpu_cover_all_rows_of_a_key() {
    let build = keyed((0..60).map(|row| row % 20));
    let probe = keyed((0..120).map(|row| (row * 7) % 30));
    let parts = (0..24).map(|part| probe.slice(5 * part, 5)).collect::<Vec<_>>();
    let mut continued = 0;
    for join_type in [JoinType::LeftSemi, JoinType::LeftAnti, JoinType::Left, JoinType::Full] {
        let join = Join::new(join_type).on("k").build_side(Side::Left).threads(1);
        let count = |join: &Join| join.count(whole(&build), batches(probe.schema(), parts.clone()));
        let expected = count(&join.clone().device(Processor::Cpu)).unwrap().0;
        for kind in [FaultKind::Launch, FaultKind::Copy, FaultKind::Record] {
            for nth in 0..40 {
                let fault = Some(Fault { kind, nth });
                let force = TestOverrides { simulated: Some(nth), auto: true, fault, ..tiny() };
                match count(&join.clone().test_overrides(force)) {
                    Ok((rows, report)) => {
                        assert_eq!(rows, expected, "{join_type}, {kind:?} {nth}");
                        continued += usize::from(report.plan.reason == Reason::Continues);
                    }
                    Err(error) => assert!(of_device(&error), "{join_type}, {kind:?}: {error}"),
                }
            }
        }
    }
    assert!(continued > 10, "the CPU continued {continued} times");
}

#[test]
fn the_report_says_why_the_gpu_was_abandoned() {
    let auto =
        |fault| TestOverrides { simulated: Some(1), auto: true, fault, ..TestOverrides::default() };
    let fault = |kind, nth| Some(Fault { kind, nth });
    for (kind, said) in [
        (FaultKind::Open, "making a context"),
        (FaultKind::Compile, "does not compile"),
        (FaultKind::Allocate, "memory does not suffice"),
        (FaultKind::Synchronize, "running kernels"),
    ] {
        let join =
            Join::inner().on("k").algorithm(Algorithm::Radix).test_overrides(auto(fault(kind, 0)));
        let report = outcome(&join).1.unwrap();
        assert_eq!(
            (report.plan.device.gpu_name(), report.plan.algorithm),
            (None, Algorithm::Radix)
        );
        let text = report.to_string();
        assert!(text.contains("abandoned") && text.contains(said), "{text}");
    }
    // Nothing failed: the device was used, and the report lists no abandoned plan.
    let report = outcome(&Join::inner().on("k").test_overrides(auto(None))).1.unwrap();
    assert_eq!(report.plan.device.gpu_name(), Some("simulated"));
    assert_eq!(report.plan.abandoned, vec![]);
    // The device has too little memory.
    let join = Join::inner().on("k").gpu_memory(300).test_overrides(auto(None));
    let report = outcome(&join).1.unwrap();
    assert!(!report.plan.device.is_gpu(), "{report}");
}

/// An algorithm that needs a GPU does not continue without one.
#[test]
fn algorithms_of_gpus_fail_with_the_device() {
    let fault = Some(Fault { kind: FaultKind::Open, nth: 0 });
    let force = TestOverrides { simulated: Some(1), auto: true, fault, ..TestOverrides::default() };
    let error =
        outcome(&Join::inner().on("k").algorithm(Algorithm::Triton).test_overrides(force)).1;
    assert!(matches!(error, Err(Error::Cuda { .. })), "{error:?}");
}

/// The CPU does not take over when the caller's filter panics: the filter would only panic again.
#[test]
fn a_filter_that_panicked_is_not_called_again() {
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let filter = Filter::new([(Side::Left, "b")], move |_: &RecordBatch| {
        seen.fetch_add(1, Ordering::SeqCst);
        panic!("no");
    });
    let force = TestOverrides { simulated: Some(1), auto: true, ..TestOverrides::default() };
    let join = Join::inner().on("k").algorithm(Algorithm::Radix).threads(1).filter(filter);
    let error = outcome(&join.test_overrides(force)).1;
    let code = CallerCode::Filter;
    assert!(matches!(error, Err(Error::CallerPanicked { code: c, .. }) if c == code), "{error:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

/// `auto` does not run a sort-merge join on a device, so the promised order is kept.
#[test]
fn a_sort_merge_join_keeps_its_order_under_auto() {
    let keys = |seed: i64| keyed((0..400).map(move |i| (i * seed) % 101));
    let (left, right) = (keys(37), keys(59));
    let run = |auto: bool| {
        let force = TestOverrides { simulated: Some(3), auto, ..TestOverrides::default() };
        let join = Join::inner().on("k").algorithm(Algorithm::SortMerge).test_overrides(force);
        super::drained(join.run(whole(&left), whole(&right)).unwrap()).unwrap()
    };
    let (rows, report) = run(true);
    assert_eq!(report.plan.device, PlanDevice::Cpu);
    let keys: Vec<i64> = rows
        .iter()
        .flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec())
        .collect();
    assert!(keys.is_sorted());
    let (named, report) = run(false);
    assert_eq!(report.plan.device.gpu_name(), Some("simulated"));
    assert_eq!(sorted(&rows), sorted(&named));
}

/// A GPU that was requested is opened when the join is bound, before any input is read.
#[test]
fn a_device_that_was_asked_for_is_opened_when_the_join_is_bound() {
    let bind =
        |join: Join| join.bind(Output::Rows, &build().schema(), &probe().schema()).map(|_| ());
    let fault = Some(Fault { kind: FaultKind::Open, nth: 0 });
    let force = TestOverrides { simulated: Some(1), fault, ..TestOverrides::default() };
    let error = bind(Join::inner().on("k").test_overrides(force)).unwrap_err();
    assert!(matches!(error, Error::Cuda { .. }), "{error}");
    let error = bind(Join::inner().on("k").device(Processor::Gpu(1000))).unwrap_err();
    assert!(matches!(error, Error::NoGpu { .. } | Error::InvalidOption { .. }), "{error}");
    bind(Join::inner().on("k")).unwrap();
}

/// Staging buffers and results are reserved in the budget. With less and less memory, a join either returns
/// the right rows within its limit, or reports that the limit is too small.
#[test]
fn host_memory_of_a_device_join_is_within_the_limit() {
    let rows = |seed: i64| {
        let batch = keyed((0..3000).map(move |i| (i * seed) % 1500));
        batches(batch.schema(), (0..6).map(|i| batch.slice(i * 500, 500)).collect())
    };
    for algorithm in Algorithm::ON_GPU {
        let mut least = u64::MAX;
        for limit in (12..24).map(|bits| 1u64 << bits).rev() {
            for auto in [false, true] {
                let force =
                    TestOverrides { simulated: Some(limit), auto, ..TestOverrides::default() };
                let budget = MemoryBudget::new(Some(limit));
                let join = Join::new(JoinType::Full).on("k").algorithm(algorithm).threads(2);
                let join = join.test_overrides(force).memory_budget(&budget).batch_size(256);
                let ran = join.run(rows(7), rows(11)).and_then(super::drained);
                let what = format!("{algorithm}, {limit} bytes, auto {auto}");
                match ran {
                    Ok((batches, report)) => {
                        let count: usize = batches.iter().map(RecordBatch::num_rows).sum();
                        assert_eq!(count, 6000, "{what}");
                        assert!(report.peak_memory <= limit, "{what}: {}", report.peak_memory);
                        least = if auto { least } else { least.min(limit) };
                    }
                    Err(Error::MemoryLimit { .. }) => {}
                    Err(error) => panic!("{what}: {error}"),
                }
                assert_eq!(budget.used(), 0, "{what}");
            }
        }
        assert!(least <= 2 << 20, "{algorithm} needs {least}");
    }
}

/// A probe side that a limit does not allow to be held is streamed, on a device too.
#[test]
fn a_probe_side_that_cannot_be_held_is_streamed() {
    let build = keyed(0..100);
    let part = |i: i64| keyed((0..500).map(move |row| (row * 7 + i) % 2000));
    let rows = || batches(part(0).schema(), (0..200).map(part).collect());
    let join = |limit: Option<u64>, auto: bool| {
        let simulated = limit.map(|_| 5);
        let force = TestOverrides { simulated, auto, ..TestOverrides::default() };
        let budget = MemoryBudget::new(limit);
        let join = Join::inner().on("k").build_side(Side::Left).threads(2).batch_size(512);
        let ran = join.test_overrides(force).memory_budget(&budget).run(whole(&build), rows());
        let ran = ran.and_then(super::drained);
        (ran, budget)
    };
    let expected = join(None, false).0.unwrap().0;
    for auto in [false, true] {
        let (ran, budget) = join(Some(1 << 20), auto);
        let (rows, report) = ran.unwrap();
        assert_eq!(budget.used(), 0);
        assert_eq!(sorted(&rows), sorted(&expected));
        assert_eq!(report.right_rows, 200 * 500);
        assert_eq!(report.plan.details.probe_side, ProbeSide::Streamed, "{report}");
        assert!(report.peak_memory <= 1 << 20);
    }
}

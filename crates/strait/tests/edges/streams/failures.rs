//! Devices that fail while a probe side is streamed past them. Under `auto`, the CPU joins the rest.

use arrow::array::RecordBatch;
use strait::testing::{Fault, FaultKind, TestOverrides};
use strait::{
    Algorithm, Error, Join, JoinType, MemoryBudget, Output, Processor, Reason, Report, Side,
};

use super::super::{ints, keyed};
use super::{table, texts, tiny};

/// The outcome of a join: its rows as text, sorted, and then its report or its error.
fn outcome(
    join: &Join,
    output: Output,
    sides: [&[RecordBatch]; 2],
) -> (Vec<String>, Result<Report, Error>) {
    let [left, right] = sides.map(table);
    let reader = match output {
        Output::Count => {
            let counted = join.count(left, right);
            let rows = counted.as_ref().map_or(Vec::new(), |(rows, _)| vec![rows.to_string()]);
            return (rows, counted.map(|(_, report)| report));
        }
        Output::Pairs => join.pairs(left, right),
        _ => join.run(left, right),
    };
    let mut reader = match reader {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Err(error)),
    };
    let (mut seen, mut failed) = (Vec::new(), None);
    for batch in reader.by_ref() {
        match batch {
            Ok(batch) => seen.push(batch),
            Err(error) => failed = Some(Error::from_arrow(error)),
        }
    }
    let ended = match failed {
        Some(error) => Err(error),
        None => Ok(reader.report().expect("a report after the last batch")),
    };
    (texts(&seen), ended)
}

/// Some batches of a probe side, with null keys and keys that have no match.
fn probe() -> Vec<RecordBatch> {
    let batch = |n: i64| {
        let key = |i: i64| (i % 6 != 5).then_some((i * 5 + n) % 20);
        ints([
            ("k", (0..10).map(key).collect()),
            ("p", (0..10).map(|i| Some(10 * n + i)).collect()),
        ])
    };
    (0..8).map(batch).collect()
}

fn auto(fault: Option<Fault>, seed: u64) -> TestOverrides {
    TestOverrides { auto: true, fault, ..tiny(seed) }
}

/// How many joins went on where the device had failed, and how many failed.
#[derive(Default, Debug)]
struct Seen {
    continued: usize,
    failed: usize,
}

/// Lets the n-th operation of every kind fail, under `auto`. Calls `may_fail` if a join fails.
fn every_operation_fails(
    join: &Join,
    output: Output,
    build: &RecordBatch,
    may_fail: impl Fn(FaultKind, &Error) -> bool,
) -> Seen {
    let build = [build.clone()];
    let sides: [&[RecordBatch]; 2] = [&build, &probe()];
    let (expected, ended) = outcome(&join.clone().device(Processor::Cpu), output, sides);
    let all = ended.expect("the CPU joins").output_rows;
    let mut seen = Seen::default();
    for kind in FaultKind::ALL {
        for nth in 0.. {
            let budget = MemoryBudget::new(None);
            let force = auto(Some(Fault { kind, nth }), nth);
            let join = join.clone().test_overrides(force).memory_budget(&budget);
            let (rows, ended) = outcome(&join, output, sides);
            assert_eq!(budget.used(), 0);
            let what = format!("{:?} {output:?}, {kind:?} {nth}", join);
            match ended {
                Ok(report) => {
                    assert_eq!(rows, expected, "{what}");
                    assert_eq!(report.output_rows, all, "{what}");
                    if report.plan.abandoned.is_empty() && report.plan.device.gpu_name().is_some() {
                        // No operation with this number exists, or the join does without it.
                        if kind != FaultKind::Allocate || nth > 60 {
                            break;
                        }
                    }
                    let continued = report.plan.reason == Reason::Continues;
                    if continued {
                        assert!(report.gpu.is_some() && report.crossed.to_gpu > 0, "{what}");
                    }
                    seen.continued += usize::from(continued);
                }
                Err(error) => {
                    assert!(may_fail(kind, &error), "{what}: {error}");
                    seen.failed += 1;
                }
            }
        }
    }
    seen
}

/// Each build key occurs once, so the results of a chunk come back in one block. The CPU continues after any
/// chunk, for join types that do not return build rows by their flag.
#[test]
fn the_cpu_joins_the_rest_after_a_device_fails() {
    let build = keyed(0..12);
    for join_type in [JoinType::Inner, JoinType::Right, JoinType::RightSemi, JoinType::RightMark] {
        for output in [Output::Rows, Output::Pairs, Output::Count] {
            for threads in [1, 2] {
                let join = Join::new(join_type).on("k").build_side(Side::Left).threads(threads);
                let join = join.algorithm(Algorithm::NoPartition);
                let seen = every_operation_fails(&join, output, &build, |_, _| false);
                assert!(seen.continued > 20, "{join_type:?} {output:?}: {seen:?}");
            }
        }
    }
}

/// Join types that return build rows by their flag need the flags of the chunks that were joined. The device
/// returns them, unless it is lost.
#[test]
fn flags_of_build_rows_are_carried_over_to_the_cpu() {
    for build in [keyed(0..12), keyed((0..24).map(|i| i % 12))] {
        for join_type in [JoinType::Left, JoinType::Full, JoinType::LeftSemi, JoinType::LeftAnti] {
            for output in [Output::Rows, Output::Count] {
                let join = Join::new(join_type).on("k").build_side(Side::Left).threads(1);
                let join = join.algorithm(Algorithm::NoPartition);
                let lost = |_, error: &Error| {
                    let said = error.to_string();
                    said.contains("only the GPU knows which build rows have a match")
                        || (output != Output::Count
                            && said.contains("some rows were already returned"))
                };
                let seen = every_operation_fails(&join, output, &build, lost);
                assert!(seen.continued > 10, "{join_type:?} {output:?}: {seen:?}");
                assert!(seen.failed > 0, "{join_type:?} {output:?}: {seen:?}");
            }
        }
    }
}

/// A plan is abandoned because memory is refused. The next plan joins some chunks, and then the device is lost, at
/// any of its waits. The join then returns the right rows, or it fails because only the device knew the flags.
#[test]
fn a_device_that_is_lost_after_an_escalation_returns_no_wrong_rows() {
    let build = [keyed((0..24).map(|i| i % 12))];
    let sides: [&[RecordBatch]; 2] = [&build, &probe()];
    let (mut escalated, mut continued, mut lost) = (0, 0, 0);
    for join_type in [JoinType::Left, JoinType::LeftAnti] {
        let join = Join::new(join_type).on("k").build_side(Side::Left).threads(1);
        let on_cpu = join.clone().device(Processor::Cpu);
        let (expected, _) = outcome(&on_cpu, Output::Count, sides);
        for first in 0..40 {
            let mut seen = Seen::default();
            for second in 0.. {
                let force = TestOverrides {
                    then: Some(Fault { kind: FaultKind::Synchronize, nth: second }),
                    ..auto(Some(Fault { kind: FaultKind::Allocate, nth: first }), first)
                };
                let join = join.clone().test_overrides(force);
                let (rows, ended) = outcome(&join, Output::Count, sides);
                let what = format!("{join_type:?}, allocation {first}, then wait {second}");
                match ended {
                    Ok(report) => {
                        assert_eq!(rows, expected, "{what}: {report}");
                        seen.continued += usize::from(report.plan.reason == Reason::Continues);
                        if report.plan.device.gpu_name().is_some() {
                            // The device has joined all rows before this wait.
                            if !report.plan.abandoned.is_empty() {
                                escalated += 1;
                                continued += seen.continued;
                                lost += seen.failed;
                            }
                            break;
                        }
                    }
                    Err(error) => {
                        let said = error.to_string();
                        let flags_lost = said.contains("only the GPU knows which build rows");
                        assert!(flags_lost, "{what}: {said}");
                        seen.failed += 1;
                    }
                }
            }
        }
    }
    assert!(escalated > 10, "{escalated} plans were abandoned");
    assert!(lost > 10, "after that, {continued} joins continued on the CPU and {lost} failed");
}

/// If the keys are hashed or there is a filter, the host flags the build rows, and the CPU always has them.
#[test]
fn flags_of_build_rows_on_the_host_are_never_lost() {
    let build = keyed(0..12);
    for join_type in [JoinType::Full, JoinType::LeftAnti, JoinType::LeftMark] {
        let join = Join::new(join_type).on("k").build_side(Side::Left).threads(1);
        let join = join.algorithm(Algorithm::NoPartition).filter(strait::Filter::new(
            [(Side::Right, "p")],
            |batch: &RecordBatch| {
                let p = arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(
                    batch.column(0),
                );
                Ok(p.values().iter().map(|p| Some(p % 3 != 0)).collect())
            },
        ));
        let sent = |_, error: &Error| error.to_string().contains("some rows were already returned");
        let seen = every_operation_fails(&join, Output::Rows, &build, sent);
        assert!(seen.continued > 10, "{join_type:?}: {seen:?}");
    }
}

/// The reader fails with an error of another join. It is not an error of this join's GPU, so the CPU does not
/// try again, and the error is not replaced by another one.
#[test]
fn a_reader_that_fails_with_an_error_of_another_join_ends_the_join() {
    let build = [keyed(0..12)];
    for held in [false, true] {
        for after in [0, 3] {
            let other = Join::inner().on("no_such_key");
            let schema = build[0].schema();
            let inner = other.bind(Output::Rows, &schema, &schema).err().expect("no such column");
            let probe = probe();
            let schema = probe[0].schema();
            let good = probe.into_iter().take(after).map(Ok);
            let all: Vec<_> = good.chain([Err(inner.into())]).collect();
            let reader = arrow::array::RecordBatchIterator::new(all, schema);
            let algorithm = if held { Algorithm::Radix } else { Algorithm::NoPartition };
            let join = Join::inner().on("k").build_side(Side::Left).threads(2);
            let join = join.algorithm(algorithm).test_overrides(auto(None, 1));
            let error = join.count(table(&build), reader).expect_err("the reader fails");
            assert!(error.to_string().contains("no_such_key"), "{held} {after}: {error}");
        }
    }
}

/// A sum is reported at the end, so it can always continue.
#[test]
fn sums_continue_on_the_cpu() {
    let (build, probe) = ([keyed((0..24).map(|i| i % 12))], probe());
    let join = Join::inner().on("k").build_side(Side::Left).threads(1);
    let join = join.algorithm(Algorithm::NoPartition);
    let sums = [(Side::Left, "p"), (Side::Right, "p")];
    let run = |join: &Join| join.aggregate(&sums, table(&build), table(&probe));
    let expected = run(&join.clone().device(Processor::Cpu)).unwrap().0;
    let mut continued = 0;
    for kind in FaultKind::ALL {
        for nth in 0..120 {
            let force = auto(Some(Fault { kind, nth }), nth);
            let (found, report) = run(&join.clone().test_overrides(force)).unwrap();
            assert_eq!(found, expected, "{kind:?} {nth}");
            continued += usize::from(report.plan.reason == Reason::Continues);
        }
    }
    assert!(continued > 20, "{continued}");
}

/// A device that was asked for by name is not replaced by the CPU.
#[test]
fn a_device_that_was_asked_for_is_not_replaced() {
    let (build, probe) = ([keyed(0..12)], probe());
    let join = Join::inner().on("k").build_side(Side::Left).algorithm(Algorithm::NoPartition);
    let fault = Some(Fault { kind: FaultKind::Synchronize, nth: 40 });
    let join = join.test_overrides(TestOverrides { fault, ..tiny(1) });
    let (_, ended) = outcome(&join, Output::Rows, [&build, &probe]);
    assert!(matches!(ended, Err(Error::Cuda { .. })));
}

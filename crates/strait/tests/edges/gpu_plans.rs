//! Plans for a GPU: what a plan says is what runs. The report records what ran where it was done.

use arrow::array::RecordBatch;
use strait::testing::TestOverrides;
use strait::{
    Algorithm, Error, GpuOptions, GpuWork, Join, JoinType, Output, Partitioner, Plan, Report,
    ResultOrder, Side, Statistics, TablePlace, Transfer,
};

use super::{drained, ints, whole};

const BUILD_ROWS: i64 = 600;

/// Keys from zero on, far apart from one another. Each key occurs `times` times.
fn table(name: &str, rows: i64, times: i64) -> RecordBatch {
    let keys = (0..rows).map(|row| Some((row / times) << 40));
    ints([("k", keys.collect()), (name, (0..rows).map(Some).collect())])
}

/// Runs a join on a simulated GPU. Returns the plan before it, and its report.
fn joined(join: &Join, left: &RecordBatch, right: &RecordBatch) -> Result<(Plan, Report), Error> {
    let statistics = |table: &RecordBatch| Statistics::rows(table.num_rows() as u64);
    let join = join.clone().on("k").build_side(Side::Left);
    let join = join.statistics(Side::Left, statistics(left));
    let join = join.statistics(Side::Right, statistics(right));
    let before = join.bind(Output::Rows, &left.schema(), &right.schema())?.explain();
    let (_, report) = drained(join.run(whole(left), whole(right))?)?;
    Ok((before, report))
}

/// Returns a line of a plan's text, without its name.
fn line<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("  "));
    let mut values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    values.next().map(str::trim_start)
}

/// Compares the text of a plan with what ran.
fn compare(plan: &Plan, work: &GpuWork) {
    let text = plan.to_string();
    let what = format!("{text}\n{work:?}");
    let link = line(&text, "over the link").unwrap_or_default();
    let transfer = work.transfers.first().map(|method| method.name());
    assert_eq!(link.split(';').next(), transfer, "{what}");
    let parts = line(&text, "parts").map(|line| line.split(' ').next().unwrap_or_default());
    let counted = (work.parts > 0).then(|| work.parts.to_string());
    assert_eq!(parts, counted.as_deref(), "{what}");
    let bits: Vec<String> = work.radix_bits.iter().map(u32::to_string).collect();
    let bits = (!bits.is_empty()).then(|| bits.join(" + "));
    let printed = line(&text, "radix bits").and_then(|line| line.split(" in ").next());
    assert_eq!(printed, bits.as_deref(), "{what}");
    let ordered = line(&text, "results").is_some_and(|line| line.starts_with("in probe order"));
    assert_eq!(work.chunks_in_order > 0, ordered, "{what}");
    assert!(!ordered || work.chunks_unordered == 0, "{what}");
    let Some(chunks) = plan.details.chunk_rows else { panic!("{what}") };
    let longest = chunks.build.max(chunks.probe).max(chunks.tuples.unwrap_or(0));
    assert!((1..=longest).contains(&work.chunk_rows), "{what}");
    let most = plan.details.table_in_gpu_memory;
    assert_eq!(work.table_in_gpu_memory.is_some(), most.is_some(), "{what}");
    assert!(work.table_in_gpu_memory <= most, "{what}");
}

/// Compares the plan before a join with the plan of its report. Decisions may have been open, but what was
/// decided was done.
fn compare_before(before: &Plan, after: &Plan) {
    let what = format!("{before}\n{after}");
    let [old, new] = [&before.details, &after.details];
    assert_eq!(old.transfer, new.transfer, "{what}");
    assert_eq!(old.radix_bits, new.radix_bits, "{what}");
    match after.algorithm {
        // Partitions vary in size, so the number of working sets is an estimate before they are counted.
        Algorithm::CpuPartitioned | Algorithm::Triton => assert!(old.parts.is_some(), "{what}"),
        _ => assert_eq!(old.parts, new.parts, "{what}"),
    }
    assert_eq!(old.probe_side, new.probe_side, "{what}");
    let open = old.order == Some(ResultOrder::ProbeOrderIfUnique);
    assert!(old.order == new.order || open, "{what}");
    assert_ne!(new.order, Some(ResultOrder::ProbeOrderIfUnique), "{what}");
}

fn simulated(seed: u64) -> TestOverrides {
    TestOverrides { simulated: Some(seed), ..TestOverrides::default() }
}

/// Every GPU algorithm, with build keys that occur once, and with short parts. All probe rows have a match.
#[test]
fn a_plan_says_what_runs() -> Result<(), Error> {
    let (build, probe) = (table("v", BUILD_ROWS, 1), table("w", 2 * BUILD_ROWS, 2));
    let long = table("w", 4 * BUILD_ROWS, 4);
    for algorithm in Algorithm::ON_GPU {
        for (seed, tiny_partitions) in [(1, false), (2, true)] {
            let overrides = TestOverrides { tiny_partitions, ..simulated(seed) };
            for join_type in [JoinType::Inner, JoinType::RightSemi, JoinType::LeftAnti] {
                for probe in [&probe, &long] {
                    let join = Join::new(join_type).algorithm(algorithm).test_overrides(overrides);
                    let (before, report) = joined(&join, &build, probe)?;
                    let Some(work) = &report.gpu else { panic!("{report}") };
                    compare(&report.plan, work);
                    compare_before(&before, &report.plan);
                    let divides = matches!(
                        algorithm,
                        Algorithm::MultiPass | Algorithm::CpuPartitioned | Algorithm::Triton
                    );
                    assert_eq!(work.parts > 1, divides && tiny_partitions, "{report}");
                }
            }
        }
    }
    Ok(())
}

/// If a build key occurs more than once, pairs come back, and the parts of `multi-pass` and the one pass of
/// `radix` are partitioned instead. The report says so.
#[test]
fn repeated_keys_change_the_plan_and_what_runs() -> Result<(), Error> {
    let (build, probe) = (table("v", BUILD_ROWS, 3), table("w", 4 * BUILD_ROWS, 12));
    for algorithm in Algorithm::ON_GPU {
        let join = Join::inner().algorithm(algorithm).test_overrides(simulated(3));
        let (_, report) = joined(&join, &build, &probe)?;
        let Some(work) = &report.gpu else { panic!("{report}") };
        compare(&report.plan, work);
        assert_eq!(report.plan.details.order, Some(ResultOrder::Unordered), "{report}");
        let partitions = !matches!(algorithm, Algorithm::NoPartition | Algorithm::SortMerge);
        assert_eq!(partitions, !work.radix_bits.is_empty(), "{report}");
    }
    Ok(())
}

/// Rows cross as the plan says, by every method, also while a table lies in host memory.
#[test]
fn rows_cross_as_the_plan_says() -> Result<(), Error> {
    let (build, probe) = (table("v", BUILD_ROWS, 1), table("w", 2 * BUILD_ROWS, 2));
    for transfer in Transfer::ALL {
        for algorithm in Algorithm::ON_GPU {
            let table = match algorithm {
                Algorithm::NoPartition => TablePlace::Hybrid,
                _ => TablePlace::Gpu,
            };
            let options = GpuOptions::new().transfer(transfer).table(table);
            let join = Join::inner().algorithm(algorithm).gpu_options(options);
            let (before, report) = joined(&join.test_overrides(simulated(4)), &build, &probe)?;
            let Some(work) = &report.gpu else { panic!("{report}") };
            compare(&report.plan, work);
            compare_before(&before, &report.plan);
        }
    }
    for partitioner in Partitioner::ALL {
        let algorithm = if partitioner.to_host() { Algorithm::Triton } else { Algorithm::Radix };
        let options = GpuOptions::new().partitioner(partitioner);
        let join = Join::inner().algorithm(algorithm).gpu_options(options);
        let (before, report) = joined(&join.test_overrides(simulated(5)), &build, &probe)?;
        let Some(work) = &report.gpu else { panic!("{report}") };
        compare(&report.plan, work);
        compare_before(&before, &report.plan);
    }
    Ok(())
}

/// In algorithms that send each row once, the plan's bytes cross the link. To the GPU, up to one eighth fewer bytes cross,
/// because keys are packed.
#[test]
fn as_many_bytes_cross_as_the_plan_says() -> Result<(), Error> {
    const ROWS: u64 = 20_000;
    let (build, probe) = (table("v", ROWS as i64, 1), table("w", 2 * ROWS as i64, 2));
    let once = [
        Algorithm::NoPartition,
        Algorithm::Radix,
        Algorithm::SortMerge,
        Algorithm::StreamedProbe,
        Algorithm::MultiPass,
    ];
    for algorithm in once {
        for (join_type, matches) in [
            (JoinType::Inner, 2 * ROWS),
            (JoinType::Left, 2 * ROWS),
            (JoinType::RightSemi, 0),
            (JoinType::LeftAnti, 0),
        ] {
            let join = Join::new(join_type).algorithm(algorithm);
            let (_, report) = joined(&join.test_overrides(simulated(9)), &build, &probe)?;
            let Some(link) = report.plan.details.over_the_link else { panic!("{report}") };
            let to_gpu = 3 * ROWS * link.per_row + ROWS * link.per_build_row;
            let by_position = report.plan.details.order == Some(ResultOrder::ProbeOrder);
            let results = match by_position {
                true => 2 * ROWS * link.per_probe_row,
                false => matches * link.per_match,
            };
            let bits = if link.probe_bits { 2 * ROWS / 8 } else { 0 };
            let flags = ROWS * link.per_build_flag + 2 * ROWS * link.per_probe_flag;
            let from_gpu = results + bits + flags;
            let crossed = report.crossed;
            let what = format!("{report}planned {to_gpu} and {from_gpu}, crossed {crossed:?}");
            assert!((to_gpu * 7 / 8..=to_gpu).contains(&crossed.to_gpu), "{what}");
            assert_eq!(from_gpu, crossed.from_gpu, "{what}");
        }
    }
    Ok(())
}

/// Chunks are as long as the plan says, in every pipeline.
#[test]
fn chunks_are_as_long_as_the_plan_says() -> Result<(), Error> {
    let (build, probe) = (table("v", BUILD_ROWS, 1), table("w", 2 * BUILD_ROWS, 2));
    for algorithm in Algorithm::ON_GPU {
        for tiny_chunks in [false, true] {
            let overrides = TestOverrides { tiny_chunks, ..simulated(8) };
            let join = Join::inner().algorithm(algorithm).test_overrides(overrides);
            let (before, report) = joined(&join, &build, &probe)?;
            let Some(work) = &report.gpu else { panic!("{report}") };
            compare(&report.plan, work);
            assert_eq!(before.details.chunk_rows, report.plan.details.chunk_rows, "{report}");
            let Some(chunks) = report.plan.details.chunk_rows else { panic!("{report}") };
            assert_eq!([chunks.build, chunks.probe] == [7, 7], tiny_chunks, "{report}");
            assert_eq!(work.chunk_rows == 7, tiny_chunks, "{report}");
        }
    }
    Ok(())
}

/// With less and less GPU memory, less and less of a hybrid table lies there. A table in host memory has no part
/// in GPU memory.
#[test]
fn a_table_lies_where_the_plan_says() -> Result<(), Error> {
    let (build, probe) = (table("v", 40_000, 1), table("w", 80_000, 2));
    let run = |place: TablePlace, memory: u64| -> Result<(Plan, Option<u64>), Error> {
        let options = GpuOptions::new().table(place);
        let join = Join::inner().algorithm(Algorithm::NoPartition).gpu_options(options);
        let join = join.gpu_memory(memory).test_overrides(simulated(7));
        let (_, report) = joined(&join, &build, &probe)?;
        let Some(work) = &report.gpu else { panic!("{report}") };
        compare(&report.plan, work);
        Ok((report.plan.clone(), work.table_in_gpu_memory))
    };
    assert_eq!(run(TablePlace::Gpu, 4 << 20)?.1, None);
    assert_eq!(run(TablePlace::Host, 4 << 20)?.1, Some(0));
    let (plan, whole) = run(TablePlace::Hybrid, 4 << 20)?;
    assert_eq!(whole, Some(16 * (2 * 40_000 + 2)), "all of it: {plan}");
    let (plan, part) = run(TablePlace::Hybrid, 3 << 19)?;
    assert_eq!(part, plan.details.table_in_gpu_memory, "a part of it: {plan}");
    assert!(part < whole && plan.to_string().contains("of it in GPU memory"), "{plan}");
    Ok(())
}

/// With less and less GPU memory, a join is divided into more parts, or fails. The report counts the parts that
/// were joined.
#[test]
fn the_report_counts_the_parts_that_scarce_memory_needs() -> Result<(), Error> {
    let (build, probe) = (table("v", 8000, 1), table("w", 16000, 2));
    for algorithm in [Algorithm::MultiPass, Algorithm::CpuPartitioned, Algorithm::Triton] {
        let mut most_parts = 0;
        for shift in 0..6 {
            let join = Join::inner().algorithm(algorithm).gpu_memory((2 << 20) >> shift);
            match joined(&join.test_overrides(simulated(6)), &build, &probe) {
                Ok((_, report)) => {
                    let Some(work) = &report.gpu else { panic!("{report}") };
                    compare(&report.plan, work);
                    most_parts = most_parts.max(work.parts);
                }
                Err(Error::DeviceMemory { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        assert!(most_parts > 1, "{algorithm}");
    }
    Ok(())
}

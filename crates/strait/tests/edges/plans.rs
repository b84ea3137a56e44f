//! The plan before a join and the plan in its report: decisions that are open before are made afterwards.

use arrow::array::RecordBatch;
use strait::testing::TestOverrides;
use strait::{
    Algorithm, Error, HoldReason, Inlining, Join, JoinType, KeySource, Output, Plan, ProbeSide,
    Processor, RowIdReason, Side, TableKind, Transfer, Yields,
};

use super::{drained, ints, whole};

/// Returns the plan before the join, and the plan of its report.
fn plans(join: &Join, left: &RecordBatch, right: &RecordBatch) -> Result<[Plan; 2], Error> {
    let before = join.bind(Output::Rows, &left.schema(), &right.schema())?.explain();
    let (_, report) = drained(join.run(whole(left), whole(right))?)?;
    assert_eq!(report.plan.seed, Some(report.seed), "{report}");
    Ok([before, report.plan])
}

/// Keys that are multiples of `step`, and a column `v`, with a null in its row 7 if `null` is set.
fn table(rows: i64, step: i64, null: bool) -> RecordBatch {
    let values = (0..rows).map(|i| (!null || i != 7).then_some(i));
    ints([("k", (0..rows).map(|i| Some(i * step)).collect()), ("v", values.collect())])
}

#[test]
fn the_report_has_the_decisions_that_were_open() -> Result<(), Error> {
    let probe = ints([("k", (0..2000).map(Some).collect())]);
    let join = Join::inner().on("k").device(Processor::Cpu).build_side(Side::Left);
    let columns = || vec!["v".to_string()];
    for null in [false, true] {
        for (step, dense) in [(1, true), (1 << 40, false)] {
            let [before, after] = plans(&join, &table(1000, step, null), &probe)?;
            assert_eq!(before.seed, None);
            assert_eq!(before.details.table, Some(TableKind::ArrayIfDense));
            let open = Inlining::IfNoNulls { columns: columns(), bytes: 8 };
            assert_eq!(before.details.inlining, open);
            let inlining = match null {
                true => Inlining::RowIds(RowIdReason::Nulls("v".to_string())),
                false => Inlining::Inlined { columns: columns(), bytes: 8 },
            };
            assert_eq!(after.details.inlining, inlining);
            let array = matches!(after.details.table, Some(TableKind::Array { .. }));
            assert_eq!(array, dense, "{after}");
            assert_eq!(after.details.probe_side, ProbeSide::Streamed);
            assert_eq!(after.details.yields, Yields::Pairs);
        }
    }
    Ok(())
}

#[test]
fn each_algorithm_of_the_cpu_says_how_it_runs() -> Result<(), Error> {
    let (left, right) = (table(1000, 3, false), table(2000, 2, false));
    for (algorithm, probe_side) in [
        (Algorithm::NoPartition, ProbeSide::Streamed),
        (Algorithm::Radix, ProbeSide::Held(HoldReason::Partitioned)),
        (Algorithm::SortMerge, ProbeSide::Held(HoldReason::Sorted)),
    ] {
        let join = Join::new(JoinType::LeftSemi).on("k").device(Processor::Cpu);
        let join = join.build_side(Side::Left).algorithm(algorithm);
        let [before, after] = plans(&join, &left, &right)?;
        for plan in [&before, &after] {
            let details = &plan.details;
            assert_eq!((details.probe_side, details.yields), (probe_side, Yields::Exists));
            assert_eq!((details.word_bits, details.value_bits), (64, 32), "{plan}");
            assert_eq!((details.transfer, details.over_the_link), (None, None));
        }
        // The keys are dense and few, so the array of `no-partition` is not partitioned.
        assert_eq!(after.details.radix_bits.is_empty(), algorithm != Algorithm::Radix, "{after}");
        assert_eq!(after.build.rows, Some(1000));
        let probe_rows = if algorithm == Algorithm::NoPartition { None } else { Some(2000) };
        assert_eq!(after.probe.rows, probe_rows, "{after}");
    }
    Ok(())
}

/// A key column without nulls is staged from its batches. If it has a null, its words are computed. Whether a
/// streamed column has nulls is learned chunk by chunk.
#[test]
fn the_report_says_where_a_gpu_got_its_key_words() -> Result<(), Error> {
    let overrides = TestOverrides { simulated: Some(3), ..TestOverrides::default() };
    let join = Join::inner().on("k").build_side(Side::Left).test_overrides(overrides);
    let build = table(1000, 3, false);
    for (algorithm, held) in
        [(Algorithm::NoPartition, None), (Algorithm::Radix, Some(HoldReason::Partitioned))]
    {
        let join = join.clone().algorithm(algorithm);
        for null in [false, true] {
            let keys = (0..2000).map(|i| (!null || i != 7).then_some(i));
            let [before, after] = plans(&join, &build, &ints([("k", keys.collect())]))?;
            assert_eq!(before.details.probe_keys, KeySource::ColumnIfNoNulls);
            let probe_keys = match (held, null) {
                (None, _) => KeySource::ColumnIfNoNulls,
                (_, true) => KeySource::Computed,
                (_, false) => KeySource::Column,
            };
            assert_eq!(after.details.probe_keys, probe_keys, "{after}");
            assert_eq!(after.details.build_keys, KeySource::Column);
            assert_eq!(after.details.transfer, Some(Transfer::StagedCopy));
            let probe_side = held.map_or(ProbeSide::Streamed, ProbeSide::Held);
            assert_eq!(after.details.probe_side, probe_side);
            assert_eq!(after.probe.rows, held.map(|_| 2000));
        }
    }
    Ok(())
}

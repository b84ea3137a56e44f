//! Joins that spill do not write probe rows whose key is not in the build side.
//!
//! The runner compares small joins of this kind with the oracle. Here, tables are larger than the limit, and the
//! results are compared with the same join without a limit.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, RecordBatchIterator};
use arrow::array::{RecordBatchReader, StringArray};
use arrow::datatypes::Int64Type;
use strait::testing::TestOverrides;
use strait::{Algorithm, Error, Join, JoinType, NullEquality, Report, Side, TempFolders};

const MIB: u64 = 1 << 20;

/// A key per row; `None` is a null.
type Key = fn(usize) -> Option<i64>;
type Numbers = Vec<Vec<Option<i64>>>;

fn spread(row: usize) -> Option<i64> {
    Some((row as i64).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64))
}

/// One row of a hundred has a key of the other table, and one of a hundred has a null.
fn one_of_a_hundred(row: usize) -> Option<i64> {
    match row % 100 {
        0 => spread(row / 100),
        50 => None,
        _ => spread(row + 10_000_000),
    }
}

fn with_nulls(row: usize) -> Option<i64> {
    if row.is_multiple_of(50) { None } else { spread(row) }
}

/// A table with a key, the number of the row and a text. With `text`, the key is also hashed.
fn table(rows: usize, key: Key, text: bool) -> Box<dyn RecordBatchReader + Send> {
    let batch = move |at: usize| {
        let all = at..rows.min(at + 2048);
        let keys: Vec<_> = all.clone().map(key).collect();
        let texts = keys.iter().map(|key| key.map(|key| format!("text {key}")));
        let keys: ArrayRef = match text {
            true => Arc::new(StringArray::from_iter(texts.clone())),
            false => Arc::new(Int64Array::from(keys.clone())),
        };
        RecordBatch::try_from_iter_with_nullable([
            ("k", keys, true),
            ("n", Arc::new(Int64Array::from_iter_values(all.map(|row| row as i64))) as _, true),
            ("t", Arc::new(StringArray::from_iter(texts)) as _, true),
        ])
    };
    let schema = batch(0).expect("three columns").schema();
    Box::new(RecordBatchIterator::new((0..rows).step_by(2048).map(batch), schema))
}

fn folders() -> Arc<TempFolders> {
    Arc::new(TempFolders::new(vec![]))
}

/// Returns the numbers of the joined rows, sorted.
fn answer(join: &Join, tables: [(usize, Key); 2], text: bool) -> Result<(Numbers, Report), Error> {
    let [left, right] = tables.map(|(rows, key)| table(rows, key, text));
    let mut reader = join.run(left, right)?;
    let mut rows = Vec::new();
    for batch in &mut reader {
        let batch = batch.map_err(Error::from_arrow)?;
        let schema = batch.schema();
        let numbers: Vec<_> = (0..batch.num_columns())
            .filter(|&at| schema.field(at).name().starts_with('n'))
            .map(|at| batch.column(at).as_primitive::<Int64Type>().clone())
            .collect();
        let value = |column: &Int64Array, row| column.is_valid(row).then(|| column.value(row));
        rows.extend(
            (0..batch.num_rows()).map(|row| numbers.iter().map(|c| value(c, row)).collect()),
        );
    }
    let report = reader.report().expect("the join has ended");
    rows.sort_unstable();
    Ok((rows, report))
}

/// One probe row of a hundred has a match. A small part of the probe side goes to disk, also if the join type returns
/// the rows without a match.
#[test]
fn a_selective_join_writes_few_probe_rows() {
    let tables: [(usize, Key); 2] = [(40_000, spread), (400_000, one_of_a_hundred)];
    for join_type in JoinType::ALL {
        for text in [false, true] {
            if text && ![JoinType::Inner, JoinType::Full].contains(&join_type) {
                continue;
            }
            let join = Join::new(join_type).on("k").threads(2).build_side(Side::Left);
            let (expected, _) = answer(&join, tables, text).expect("no limit");
            let join = join.memory_limit(2 * MIB).spill(folders());
            let (rows, report) = answer(&join, tables, text).expect("it spills");
            assert!(rows == expected, "{join_type}: {} rows, not {}", rows.len(), expected.len());
            assert_eq!(report.plan.algorithm, Algorithm::Spill);
            let spilled = report.spilled;
            // All build rows may be written, but few probe rows. Some levels are deeper.
            assert!(spilled.rows < 2 * 40_000 + 40_000, "{join_type}: {spilled:?}");
            assert!(spilled.unmatched_rows > 200_000, "{join_type}: {spilled:?}");
            assert!(report.peak_memory <= 2 * MIB, "{join_type}: {}", report.peak_memory);
            assert!(report.to_string().contains("rows kept from disk"), "{report}");
        }
    }
}

/// The build side is known only when one side has ended. Until then, probe rows are written, too.
#[test]
fn the_side_that_ends_first_builds() {
    let tables: [(usize, Key); 2] = [(400_000, one_of_a_hundred), (40_000, with_nulls)];
    for join_type in JoinType::ALL {
        let join = Join::new(join_type).on("k").threads(2);
        let (expected, _) = answer(&join, tables, false).expect("no limit");
        let join = join.memory_limit(2 * MIB).spill(folders());
        let (rows, report) = answer(&join, tables, false).expect("it spills");
        assert!(rows == expected, "{join_type}: {} rows, not {}", rows.len(), expected.len());
        assert!(report.spilled.unmatched_rows > 100_000, "{join_type}: {:?}", report.spilled);
    }
}

/// If null equals null, a row with a null in its key may have a match. Otherwise it has none.
#[test]
fn null_keys() {
    let few_nulls: Key = |row| if row < 30 { None } else { spread(row) };
    let tables: [(usize, Key); 2] = [(30_000, few_nulls), (60_000, one_of_a_hundred)];
    let no_nulls: [(usize, Key); 2] = [(30_000, spread), (60_000, one_of_a_hundred)];
    for join_type in JoinType::ALL {
        for nulls in [NullEquality::Equal, NullEquality::NeverEqual] {
            for (tables, build) in
                [(tables, Side::Left), (tables, Side::Right), (no_nulls, Side::Left)]
            {
                let join = Join::new(join_type).on("k").threads(2).null_equality(nulls);
                let join = join.build_side(build);
                let (expected, _) = answer(&join, tables, false).expect("no limit");
                let join = join.memory_limit(MIB).spill(folders());
                let (rows, report) = answer(&join, tables, false).expect("it spills");
                assert!(rows == expected, "{join_type}: {} of {}", rows.len(), expected.len());
                assert!(report.spilled.rows > 0, "{join_type}: {report}");
            }
        }
    }
}

/// If all probe rows have a match, the keys are soon dropped, and all rows are returned.
#[test]
fn keys_that_reject_nothing() {
    let repeated: Key = |row| spread(row % 40_000);
    let tables: [(usize, Key); 2] = [(40_000, spread), (250_000, repeated)];
    let join = Join::inner().on("k").threads(2).build_side(Side::Left).memory_limit(2 * MIB);
    let (rows, report) = answer(&join.spill(folders()), tables, false).expect("it spills");
    assert_eq!(rows.len(), 250_000);
    assert_eq!(report.spilled.unmatched_rows, 0, "{report}");
}

/// The build side has far more keys than the filter has bits.
#[test]
fn more_keys_than_bits() {
    let others: Key = |row| spread(row + 1_000_000);
    let tables: [(usize, Key); 2] = [(100_000, spread), (120_000, others)];
    for (join_type, expected) in [(JoinType::Inner, 0), (JoinType::RightAnti, 120_000)] {
        let overrides = TestOverrides { tiny_partitions: true, ..TestOverrides::default() };
        let join = Join::new(join_type).on("k").threads(2).build_side(Side::Left);
        let join = join.memory_limit(4 * MIB).spill(folders()).test_overrides(overrides);
        let (rows, report) = answer(&join, tables, false).expect("it spills");
        assert_eq!(rows.len(), expected, "{join_type}");
        let spilled = report.spilled;
        assert!(spilled.rows > 100_000 && spilled.unmatched_rows == 0, "{join_type}: {spilled:?}");
    }
}

/// The algorithm of the joins in memory holds the probe side. Probe rows without a match take memory there, too. If
/// they do not fit, they go to disk. A small limit may still be too small for such an algorithm.
#[test]
fn joins_in_memory_that_hold_the_probe_side() {
    let tables: [(usize, Key); 2] = [(40_000, spread), (200_000, one_of_a_hundred)];
    let mut joined = 0;
    for join_type in JoinType::ALL {
        let join = Join::new(join_type).on("k").threads(2).build_side(Side::Left);
        let (expected, _) = answer(&join, tables, false).expect("no limit");
        let overrides = TestOverrides { spill_at_once: true, ..TestOverrides::default() };
        let join = join.algorithm(Algorithm::Radix).test_overrides(overrides).spill(folders());
        for limit in [3 * MIB, 4 * MIB, 6 * MIB] {
            match answer(&join.clone().memory_limit(limit), tables, false) {
                Ok((rows, report)) => {
                    assert!(rows == expected, "{join_type}: {} of {}", rows.len(), expected.len());
                    assert!(report.spilled.rows > 0, "{join_type}: {report}");
                    joined += 1;
                }
                Err(Error::MemoryLimit { .. }) => {}
                Err(other) => panic!("{join_type}: {other}"),
            }
        }
    }
    assert!(joined >= 15, "only {joined} of 30 joins fit");
}

/// The build side has no rows, or only rows with a null key. All probe rows are without a match.
#[test]
fn a_build_side_without_keys() {
    let null: Key = |_| None;
    for rows in [1, 3000] {
        let tables: [(usize, Key); 2] = [(rows, null), (50_000, with_nulls)];
        for join_type in JoinType::ALL {
            let join = Join::new(join_type).on("k").threads(2).build_side(Side::Left);
            let (expected, _) = answer(&join, tables, false).expect("no limit");
            let join = join.algorithm(Algorithm::Spill).memory_limit(MIB).spill(folders());
            let (rows, report) = answer(&join, tables, false).expect("it spills");
            assert!(rows == expected, "{join_type}: {} rows, not {}", rows.len(), expected.len());
            let spilled = report.spilled;
            assert!(spilled.rows <= 3000, "{join_type}: {spilled:?}");
            assert!(spilled.levels > 0, "{join_type}: {spilled:?}");
        }
    }
}

//! Tables without rows, without batches, or without columns besides the key; and tables of one long batch.

use arrow::array::{Array, AsArray, RecordBatchReader};
use arrow::datatypes::Int64Type;
use strait::{Algorithm, Join, JoinType};

use super::{batches, count, drained, ints, keyed, whole};

/// Returns the number of output rows of each join type if one side is empty.
fn rows_if_empty(join_type: JoinType, left: u64, right: u64) -> u64 {
    use JoinType::*;
    match join_type {
        Inner | LeftSemi | RightSemi => 0,
        Left | LeftAnti | LeftMark => left,
        Right | RightAnti | RightMark => right,
        Full => left + right,
        _ => unreachable!("this test does not know {join_type}"),
    }
}

#[test]
fn empty_sides_by_rows_and_by_batches() {
    let some = keyed([1, 2, 3]);
    let none = some.slice(0, 0);
    for algorithm in Algorithm::ANYWHERE {
        for join_type in JoinType::ALL {
            let join = Join::new(join_type).on("k").algorithm(algorithm).threads(2);
            for (left, right) in [(&some, &none), (&none, &some), (&none, &none)] {
                let expected =
                    rows_if_empty(join_type, left.num_rows() as u64, right.num_rows() as u64);
                assert_eq!(count(&join, left, right), expected, "{algorithm} {join_type}");
                // An empty table again, now without any batch.
                let reader = |batch: &arrow::array::RecordBatch| {
                    let held = if batch.num_rows() == 0 { vec![] } else { vec![batch.clone()] };
                    batches(batch.schema(), held)
                };
                let output = join.run(reader(left), reader(right)).unwrap();
                let columns = output.schema().fields().len();
                let (output, report) = drained(output).unwrap();
                let rows: usize = output.iter().map(|b| b.num_rows()).sum();
                assert_eq!(rows as u64, expected, "{algorithm} {join_type} without batches");
                assert_eq!(report.output_rows, expected);
                assert!(columns >= 2, "the schema is there without rows");
            }
        }
    }
}

#[test]
fn key_columns_alone() {
    let left = ints([("k", vec![Some(1), Some(2), None, Some(2)])]);
    let right = ints([("k", vec![Some(2), Some(3)])]);
    for algorithm in Algorithm::ANYWHERE {
        let join = Join::new(JoinType::Full).on("k").algorithm(algorithm);
        let (output, _) = drained(join.run(whole(&left), whole(&right)).unwrap()).unwrap();
        let mut keys: Vec<Option<i64>> = (output.iter())
            .flat_map(|b| b.column(0).as_primitive::<Int64Type>().iter().collect::<Vec<_>>())
            .collect();
        keys.sort();
        assert_eq!(keys, [None, Some(1), Some(2), Some(2), Some(3)], "{algorithm}");
    }
}

#[test]
fn a_selection_of_no_columns_still_has_rows() {
    let join = Join::inner().on("k").select(Vec::<String>::new());
    let (left, right) = (keyed([1, 2, 2]), keyed([2, 2, 5]));
    let (output, report) = drained(join.run(whole(&left), whole(&right)).unwrap()).unwrap();
    let rows: usize = output.iter().map(|b| b.num_rows()).sum();
    assert_eq!((rows, report.output_rows), (4, 4));
    assert!(output.iter().all(|b| b.num_columns() == 0));
}

#[test]
fn one_long_batch_a_side() {
    let rows = 300_000;
    let (left, right) = (keyed(0..rows), keyed((0..rows).map(|i| i * 2)));
    for algorithm in Algorithm::ANYWHERE {
        for threads in [1, 3] {
            let join = Join::inner().on("k").algorithm(algorithm).threads(threads);
            let output = join.run(whole(&left), whole(&right)).unwrap();
            let (output, report) = drained(output).unwrap();
            assert_eq!(report.output_rows, rows as u64 / 2, "{algorithm}");
            let mut sums = (0, 0, 0);
            for batch in &output {
                assert!(batch.num_rows() <= strait::DEFAULT_BATCH_SIZE);
                let column = |i: usize| batch.column(i).as_primitive::<Int64Type>();
                for i in 0..batch.num_rows() {
                    assert_eq!(column(0).value(i), column(1).value(i), "key is the left position");
                    assert_eq!(
                        column(0).value(i),
                        2 * column(2).value(i),
                        "and twice the right one"
                    );
                    sums.0 += column(0).value(i);
                    sums.1 += 1;
                }
                sums.2 += batch.columns().iter().map(|c| c.null_count()).sum::<usize>();
            }
            let half = rows / 2;
            assert_eq!(sums, (half * (half - 1), half, 0), "{algorithm}");
        }
    }
}

#[test]
fn batches_of_one_row() {
    let rows: Vec<_> = (0..500).map(|i| keyed([i % 50])).collect();
    let schema = rows[0].schema();
    for algorithm in Algorithm::ANYWHERE {
        let join = Join::inner().on("k").algorithm(algorithm).threads(2).batch_size(1);
        let reader = || batches(schema.clone(), rows.clone());
        let (output, report) = drained(join.run(reader(), reader()).unwrap()).unwrap();
        assert_eq!(report.output_rows, 50 * 10 * 10, "{algorithm}");
        assert!(output.iter().all(|b| b.num_rows() == 1));
    }
}

//! Statistics, true and false: they change the plan, never the rows, nor whether a join fits its limit.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchIterator, StringArray};
use strait::{Error, Join, Output, Processor, Side, Statistics};

use super::{batches, drained, whole};

/// Three columns of integers.
fn wide(keys: std::ops::Range<i64>) -> RecordBatch {
    let column = || Arc::new(Int64Array::from_iter_values(keys.clone())) as ArrayRef;
    RecordBatch::try_from_iter([("k", column()), ("p", column()), ("q", column())])
        .expect("columns of one length")
}

/// The probe side is a stream of unknown length that does not fit the limit. That both sides are sorted makes
/// a merge join fast, but it would have to hold the stream.
#[test]
fn a_stream_of_unknown_length_is_not_held_under_a_limit() {
    let build = wide(0..1 << 16);
    let probe = (0..40i64).map(|i| Ok(wide(i * 50_000..(i + 1) * 50_000)));
    let probe = RecordBatchIterator::new(probe, build.schema());
    let sorted = Statistics::unknown().with_sorted(true);
    let join = Join::inner().on("k").device(Processor::Cpu).threads(2).build_side(Side::Left);
    let join = join.statistics(Side::Left, sorted).statistics(Side::Right, sorted);
    let (count, _) = join.memory_limit(25 << 20).count(whole(&build), probe).expect("fits");
    assert_eq!(count, 1 << 16);
}

/// Statistics call the larger side tiny. The join finds out while it reads, and builds on the smaller one.
#[test]
fn a_side_that_is_larger_than_stated_is_not_read_to_its_end() -> Result<(), Error> {
    let text = "z".repeat(100);
    let with_text = |keys: std::ops::Range<i64>| {
        let texts = StringArray::from_iter_values(keys.clone().map(|_| &text));
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(keys));
        RecordBatch::try_from_iter([("k", keys), ("t", Arc::new(texts) as _)]).expect("one length")
    };
    let left = super::keyed(0..20_000);
    let right: Vec<_> = (0..64).map(|i| with_text(i * 200..i * 200 + 5000)).collect();
    let join = Join::inner().on("k").device(Processor::Cpu).threads(2).memory_limit(16 << 20);
    let join = join.statistics(Side::Left, Statistics::rows(9).with_bytes(9));
    let join = join.statistics(Side::Right, Statistics::rows(1).with_bytes(1));
    let (rows, report) = drained(join.run(whole(&left), batches(right[0].schema(), right))?)?;
    let rows: usize = rows.iter().map(RecordBatch::num_rows).sum();
    assert_eq!((rows, report.plan.build_side), (64 * 5000, Some(Side::Left)));
    Ok(())
}

#[test]
fn no_statistics_are_too_absurd() -> Result<(), Error> {
    let most = Statistics::rows(u64::MAX).with_bytes(u64::MAX).with_distinct(u64::MAX);
    let absurd = [
        Statistics::rows(0).with_distinct(0),
        most.with_nulls(u64::MAX).with_key_range(i128::MIN, i128::MAX),
        Statistics::rows(u64::MAX).with_key_range(0, u64::MAX.into()),
        Statistics::unknown().with_key_range(5, -5),
        Statistics::rows(5).with_key_range(0, 0).with_sorted(true),
    ];
    let (left, right) = (super::keyed(0..1000), super::keyed(500..2000));
    for left_statistics in absurd {
        for right_statistics in absurd {
            let join = Join::inner().on("k").statistics(Side::Left, left_statistics);
            let join = join.statistics(Side::Right, right_statistics);
            let bound = join.bind(Output::Rows, &left.schema(), &right.schema())?;
            assert!(bound.explain().to_string().contains("predicted"));
            assert_eq!(join.count(whole(&left), whole(&right))?.0, 500);
        }
    }
    Ok(())
}

//! The key filter that a join offers to its source: when it is offered, and which rows it lets through.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, DictionaryArray, FixedSizeBinaryArray, Float64Array,
    Int32Array, Int64Array, NullArray, RecordBatch, StringArray, StructArray,
};
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Field, Int32Type, Int64Type, SchemaRef};
use arrow::error::ArrowError;
use strait::testing::TestOverrides;
use strait::{
    Algorithm, Error, Input, Join, JoinType, KeyFilter, Morsel, NullEquality, Processor, Side,
    Source, SourceContext,
};

use super::{drained, ints, keyed, whole};

/// Does something with the filter of a call and the batch that the call would return.
type Use = Box<
    dyn Fn(Option<&dyn KeyFilter>, &RecordBatch) -> Result<Option<BooleanBuffer>, ArrowError>
        + Send
        + Sync,
>;

/// A source of slices of a table. It leaves out the rows that `keep` does not keep.
struct Filtered {
    table: RecordBatch,
    step: usize,
    next: AtomicUsize,
    keep: Use,
}

impl Source for Filtered {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        let at = self.next.fetch_add(self.step, Ordering::Relaxed);
        if at >= self.table.num_rows() {
            return Ok(None);
        }
        let batch = self.table.slice(at, self.step.min(self.table.num_rows() - at));
        let Some(kept) = (self.keep)(context.key_filter(), &batch)? else {
            return Ok(Some(Morsel::new(batch)));
        };
        let rest = filter_record_batch(&batch, &BooleanArray::new(kept, None))?;
        let left_out = (batch.num_rows() - rest.num_rows()) as u64;
        Ok(Some(Morsel::new(rest).leaving_out(left_out)))
    }
}

fn source(
    table: &RecordBatch,
    step: usize,
    keep: impl Fn(Option<&dyn KeyFilter>, &RecordBatch) -> Result<Option<BooleanBuffer>, ArrowError>
    + Send
    + Sync
    + 'static,
) -> Input {
    let (table, next, keep) = (table.clone(), AtomicUsize::new(0), Box::new(keep));
    Input::source(Filtered { table, step, next, keep })
}

fn key_columns(keys: &dyn KeyFilter, batch: &RecordBatch) -> Vec<ArrayRef> {
    keys.columns().iter().map(|&index| batch.column(index).clone()).collect()
}

/// Leaves out all rows that cannot match.
fn filtered(table: &RecordBatch, step: usize) -> Input {
    source(table, step, |keys, batch| {
        keys.map(|keys| keys.may_match(&key_columns(keys, batch))).transpose()
    })
}

fn join(join_type: JoinType) -> Join {
    let join = Join::new(join_type).build_side(Side::Left).device(Processor::Cpu).threads(2);
    join.algorithm(Algorithm::NoPartition)
}

/// Returns the rows of the filter for the keys `k` of two tables.
fn may_match(join: &Join, left: &RecordBatch, right: &RecordBatch) -> Vec<bool> {
    let found = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&found);
    let asking = source(right, right.num_rows(), move |keys, batch| {
        let keys = keys.expect("a filter is offered");
        let bits = keys.may_match(&key_columns(keys, batch))?;
        seen.lock().expect("not poisoned").extend(&bits);
        Ok(None)
    });
    join.clone().on("k").count(whole(left), asking).expect("the join succeeds");
    Arc::try_unwrap(found).expect("the source is gone").into_inner().expect("not poisoned")
}

fn one(name: &str, array: impl Array + 'static) -> RecordBatch {
    let array: ArrayRef = Arc::new(array);
    RecordBatch::try_from_iter_with_nullable([(name, array, true)]).expect("one column")
}

#[test]
fn rows_that_are_left_out_are_counted_and_change_nothing() {
    let (left, right) = (keyed((0..100).map(|i| i * 50)), keyed(0..10_000));
    for join_type in [JoinType::Inner, JoinType::Left, JoinType::LeftSemi, JoinType::RightSemi] {
        for overrides in [false, true] {
            let overrides = TestOverrides { collide: overrides, ..TestOverrides::default() };
            let join = join(join_type).on("k").test_overrides(overrides);
            let (batches, report) =
                drained(join.run(whole(&left), filtered(&right, 700)).expect("binds"))
                    .expect("the join succeeds");
            let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
            assert_eq!(rows, 100, "{join_type}");
            assert_eq!((report.left_rows, report.right_rows), (100, 10_000));
            // If all words collide, every row may match.
            let left_out = if overrides.collide { 0 } else { 9900 };
            assert_eq!(report.skipped_rows, left_out, "{join_type}");
            assert_eq!(report.to_string().contains("rows left out"), left_out > 0);
        }
    }
}

#[test]
fn a_filter_is_offered_only_if_rows_without_a_match_leave_no_trace() {
    let (left, right) = (keyed(0..10), keyed(5..500));
    for join_type in JoinType::ALL {
        let offers = Arc::new(AtomicU64::new(0));
        let counting = || {
            let offers = Arc::clone(&offers);
            source(&right, 50, move |keys, _| {
                offers.fetch_add(u64::from(keys.is_some()), Ordering::Relaxed);
                Ok(None)
            })
        };
        let join = join(join_type).on("k");
        join.count(whole(&left), counting()).expect("the join succeeds");
        use JoinType::{Inner, Left, LeftAnti, LeftMark, LeftSemi, RightSemi};
        let wanted = matches!(join_type, Inner | Left | LeftAnti | LeftMark | LeftSemi | RightSemi);
        assert_eq!(offers.load(Ordering::Relaxed) > 0, wanted, "{join_type}");
        // These read the probe side before there is a table.
        for algorithm in [Algorithm::Radix, Algorithm::SortMerge] {
            offers.store(0, Ordering::Relaxed);
            let join = join.clone().algorithm(algorithm);
            join.count(whole(&left), counting()).expect("the join succeeds");
            assert_eq!(offers.load(Ordering::Relaxed), 0, "{join_type} {algorithm}");
        }
    }
}

#[test]
fn nulls_match_as_the_join_says() {
    let keys = |keys: &[Option<i64>]| ints([("k", keys.to_vec())]);
    let (left, right) = (keys(&[Some(1), None]), keys(&[None, Some(1), Some(2), None]));
    let equal = join(JoinType::Inner).null_equality(NullEquality::Equal);
    assert_eq!(may_match(&equal, &left, &right), [true, true, false, true]);
    let never = join(JoinType::Inner);
    assert_eq!(may_match(&never, &left, &right), [false, true, false, false]);
    // Without a null on the build side, a null matches nothing.
    assert_eq!(may_match(&equal, &keys(&[Some(1)]), &right), [false, true, false, false]);
    let nothing = one("k", NullArray::new(3));
    assert_eq!(may_match(&equal, &left, &nothing), [true; 3]);
    assert_eq!(may_match(&never, &left, &nothing), [false; 3]);
    // An empty build side matches nothing.
    assert_eq!(may_match(&equal, &left.slice(0, 0), &right), [false; 4]);
}

#[test]
fn keys_of_all_forms_are_looked_up_as_the_join_compares_them() {
    let join = join(JoinType::Inner);
    let floats = |values: &[f64]| one("k", Float64Array::from(values.to_vec()));
    let found = may_match(&join, &floats(&[0.0, f64::NAN]), &floats(&[-0.0, -f64::NAN, 1.0]));
    assert_eq!(found, [true, true, false]);
    // The types differ between the sides.
    let narrow = one("k", Int32Array::from(vec![-1, 7, 1 << 30]));
    let wide = one("k", Int64Array::from(vec![7, -1, i64::MAX, 1 << 30, 0]));
    assert_eq!(may_match(&join, &narrow, &wide), [true, true, false, true, false]);
    // Strings are hashed.
    let names = one("k", StringArray::from(vec!["a rather long name", "b", ""]));
    let encoded: DictionaryArray<Int32Type> =
        [Some("b"), None, Some("c"), Some("a rather long name"), Some("")].into_iter().collect();
    let found = may_match(&join, &names, &one("k", encoded));
    assert_eq!(found, [true, false, false, true, true]);
}

/// More rows than a block of lookups, in a dense table, and in a hash table of 32 and of 64 bits.
#[test]
fn no_row_is_lost_in_long_batches() {
    for spread in [1, 1000, 1 << 40] {
        let keys = |step: usize| (0..20_001).step_by(step).map(move |key| key * spread);
        let left = one("k", Int64Array::from_iter_values(keys(3)));
        let nullable = keys(1).map(|key| (key / spread % 7 != 0).then_some(key));
        let right = one("k", Int64Array::from_iter(nullable));
        for overrides in [false, true] {
            let tiny_partitions = overrides;
            let overrides = TestOverrides { tiny_partitions, ..TestOverrides::default() };
            let found = may_match(&join(JoinType::Inner).test_overrides(overrides), &left, &right);
            let expected: Vec<_> = (0..20_001).map(|key| key % 3 == 0 && key % 7 != 0).collect();
            assert!(found == expected, "{spread}");
        }
    }
}

/// The filter counts columns in the schema of the source, which has more columns than the join needs.
#[test]
fn several_key_columns_are_found_in_a_wide_source() {
    let number = |i: i64| Some(i);
    let left = ints([("a", (0..10).map(number).collect()), ("b", (0..10).map(number).collect())]);
    let right = ints([
        ("unused", (0..1000).map(number).collect()),
        ("b", (0..1000).map(|i| Some(i % 10)).collect()),
        ("p", (0..1000).map(number).collect()),
        ("a", (0..1000).map(|i| Some(i % 20)).collect()),
    ]);
    let asked = source(&right, 100, |keys, batch| {
        let Some(keys) = keys else { return Ok(None) };
        assert_eq!(keys.columns(), [1, 3]);
        keys.may_match(&key_columns(keys, batch)).map(Some)
    });
    let join = join(JoinType::Inner).on("a").on("b").select(["p"]);
    let (batches, report) =
        drained(join.run(whole(&left), asked).expect("binds")).expect("the join succeeds");
    let payloads = batches.iter().flat_map(|b| b.column(0).as_primitive::<Int64Type>().values());
    let mut payloads: Vec<i64> = payloads.copied().collect();
    payloads.sort_unstable();
    assert_eq!(payloads, (0..1000).filter(|i| i % 20 < 10).collect::<Vec<_>>());
    assert_eq!(report.skipped_rows, 500);
}

#[test]
fn columns_that_are_no_keys_are_refused() {
    let (left, right) = (keyed(0..10), keyed(0..100));
    let long: ArrayRef = Arc::new(Int64Array::from(vec![1; 7]));
    let cases: [(Vec<ArrayRef>, &str); 3] = [
        (vec![], "0 columns, not 1"),
        (vec![Arc::new(Int32Array::from(vec![1]))], "column \"k\" is Int32, not Int64"),
        (vec![long.clone(), long], "2 columns, not 1"),
    ];
    for (columns, message) in cases {
        let asking = source(&right, 50, move |keys, _| {
            keys.map(|keys| keys.may_match(&columns)).transpose()
        });
        let error = join(JoinType::Inner).on("k").count(whole(&left), asking);
        let error = error.expect_err("these are no keys").to_string();
        assert!(error.contains(message), "{error}");
    }
    let two = ints([("a", vec![Some(1)]), ("b", vec![Some(2)])]);
    let asking = source(&two, 50, |keys, batch| {
        let short = batch.column(0).slice(0, 0);
        keys.map(|keys| keys.may_match(&[batch.column(0).clone(), short])).transpose()
    });
    let error = join(JoinType::Inner).on("a").on("b").count(whole(&two), asking);
    let error = error.expect_err("the lengths differ").to_string();
    assert!(error.contains("different lengths: 1 and 0 rows"), "{error}");
}

/// A source that counts rows as left out without a filter would hide a mistake.
#[test]
fn nobody_leaves_out_rows_without_a_filter() {
    struct Hasty(AtomicUsize, RecordBatch);
    impl Source for Hasty {
        fn schema(&self) -> SchemaRef {
            self.1.schema()
        }

        fn next(&self, _: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
            let call = self.0.fetch_add(1, Ordering::Relaxed);
            Ok((call == 0).then(|| Morsel::new(self.1.clone()).leaving_out(3)))
        }
    }
    let table = keyed(0..10);
    let hasty = Input::source(Hasty(AtomicUsize::new(0), table.clone()));
    let error = join(JoinType::Right).on("k").count(whole(&table), hasty);
    let error = error.expect_err("no filter is offered");
    assert!(matches!(error, Error::Arrow { .. }), "{error:?}");
    assert!(error.to_string().contains("left out 3 rows without a key filter"), "{error}");
}

/// Arrow's filter kernel returns arrays without rows if values have no bytes. This must not become a panic.
#[test]
fn a_batch_with_a_short_column_is_refused() {
    let empty: ArrayRef = Arc::new(
        FixedSizeBinaryArray::try_new_with_len(0, Buffer::default(), None, 100).expect("no bytes"),
    );
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
    let right = RecordBatch::try_from_iter([("k", keys), ("empty", empty)]).expect("two columns");
    let joined = join(JoinType::Inner).on("k").run(whole(&keyed(0..10)), filtered(&right, 100));
    match drained(joined.expect("binds")) {
        // The kernel may learn it.
        Ok((_, report)) => assert_eq!(report.output_rows, 10),
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains("a batch of 10 rows with a column of 0 rows"), "{message}");
        }
    }
}

/// The row numbers of pairs would be wrong if rows were missing.
#[test]
fn pairs_get_no_filter() {
    struct Numbered(AtomicUsize, RecordBatch);
    impl Source for Numbered {
        fn schema(&self) -> SchemaRef {
            self.1.schema()
        }

        fn has_row_numbers(&self) -> bool {
            true
        }

        fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
            assert!(context.key_filter().is_none());
            let call = self.0.fetch_add(1, Ordering::Relaxed);
            Ok((call == 0).then(|| Morsel::numbered(self.1.clone(), 0)))
        }
    }
    let table = keyed(0..10);
    let numbered = Input::source(Numbered(AtomicUsize::new(0), table.clone()));
    let pairs = join(JoinType::Inner).on("k").pairs(whole(&table), numbered).expect("binds");
    assert_eq!(drained(pairs).expect("the join succeeds").1.output_rows, 10);
}

/// A slow source that leaves out all its rows, and says how many there were. It notes how many calls run at once.
struct Emptied {
    table: RecordBatch,
    calls: AtomicUsize,
    says: u64,
    running: AtomicUsize,
    most: Arc<AtomicUsize>,
}

impl Source for Emptied {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        if self.calls.fetch_add(1, Ordering::SeqCst) >= 200 {
            return Ok(None);
        }
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(20));
        self.running.fetch_sub(1, Ordering::SeqCst);
        Ok(Some(match context.key_filter() {
            Some(_) => Morsel::new(self.table.slice(0, 0)).leaving_out(self.says),
            None => Morsel::new(self.table.clone()),
        }))
    }
}

/// Joins with such a source on 32 threads. Returns the number of calls at once, and the outcome.
fn emptied(says: u64) -> (usize, strait::Result<(u64, u64)>) {
    let most = Arc::new(AtomicUsize::new(0));
    let (calls, running) = Default::default();
    let table = keyed(1_000_000..1_000_100);
    let source = Emptied { table, calls, says, running, most: Arc::clone(&most) };
    let join = Join::inner().on("k").build_side(Side::Left).device(Processor::Cpu).threads(32);
    let join = join.algorithm(Algorithm::NoPartition).memory_limit(256 << 20);
    let counted = join.count(whole(&keyed(0..1000)), Input::source(source));
    let counted = counted.map(|(rows, report)| {
        // The text adds up the rows of both sides.
        assert!(report.to_string().contains("throughput"));
        (rows, report.skipped_rows)
    });
    (most.load(Ordering::SeqCst), counted)
}

/// Under a memory limit, the first batch of a source is expected to be large, so few calls run at once. A batch whose
/// rows are all left out ends that.
#[test]
fn sources_that_leave_out_all_rows_are_read_by_many_workers() {
    let (at_once, counted) = emptied(100);
    let (rows, skipped) = counted.unwrap();
    assert!(rows == 0 && skipped > 10_000, "{rows} rows, {skipped} skipped");
    assert!(at_once > 8, "{at_once} calls at once");
}

#[test]
fn absurd_numbers_of_rows_are_refused() {
    for says in [u64::MAX, 1 << 63, (1 << 48) + 1] {
        let error = emptied(says).1.unwrap_err().to_string();
        assert!(error.contains("left out"), "{error}");
    }
}

/// A source that gets an error of the filter may lose its rows. So the filter does not fail if memory for the conversion of
/// keys is refused: then all rows may match.
#[test]
fn a_filter_without_memory_loses_no_rows() -> Result<(), Error> {
    const LONG: usize = 2 << 20;
    let table = |short: usize, long: usize| {
        let texts = std::iter::repeat_n("short".to_string(), short);
        let texts = texts.chain(std::iter::repeat_n("x".repeat(LONG), long));
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..(short + long) as i64));
        let field =
            |name, array: &ArrayRef| Arc::new(Field::new(name, array.data_type().clone(), true));
        let keys = vec![(field("t", &texts), texts), (field("n", &numbers), numbers)];
        let keys: ArrayRef = Arc::new(StructArray::from(keys));
        RecordBatch::try_from_iter([("k", keys)]).expect("one column")
    };
    let (build, probe) = (table(1000, 0), table(1000, 1));
    let (mut joined, mut refused) = (0, 0);
    for limit in [3u64, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24] {
        let all = source(&probe, 2000, |filter, batch| {
            filter.map(|filter| filter.may_match(batch.columns())).transpose()
        });
        let join = Join::inner().on("k").build_side(Side::Left).algorithm(Algorithm::NoPartition);
        let join = join.threads(1).device(Processor::Cpu).memory_limit(limit << 20);
        match join.count(whole(&build), all) {
            Ok((rows, report)) => {
                assert_eq!(rows, 1000, "{limit} MiB: {report}");
                joined += 1;
            }
            Err(error) => {
                assert!(matches!(error, Error::MemoryLimit { .. }), "{limit} MiB: {error}");
                refused += 1;
            }
        }
    }
    assert!(joined > 0 && refused > 0, "{joined} joined, {refused} refused");
    Ok(())
}

//! Sort-merge joins that do not fit their memory limit write sorted runs to disk. Their output stays sorted.
//!
//! The runner compares small joins with the oracle. Here, tables are much larger than the limit. The rows, and the
//! order of their keys, are compared with those of the same join without a limit.

use std::io::{self, Cursor, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchIterator,
    RecordBatchReader, StringArray,
};
use arrow::datatypes::{DataType, Int64Type};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use strait::{
    Algorithm, Error, Filter, Join, JoinType, NullEquality, Reason, Report, ReservedBatch, Side,
    Sink, SpillFile, SpillStore, TempFolders,
};

const MIB: u64 = 1 << 20;

type Reader = Box<dyn RecordBatchReader + Send>;

/// The key columns of the given rows.
type Keys<'a> = &'a dyn Fn(std::ops::Range<usize>) -> Vec<ArrayRef>;

/// A table with key columns `k0`, `k1` and so on, the number of the row, and a text. Each batch has its own memory.
fn table(rows: usize, keys: Keys<'_>) -> Reader {
    const BATCH: usize = 1000;
    let batch = |start: usize| {
        let all = start..rows.min(start + BATCH);
        let named = (0..).zip(keys(all.clone()));
        let mut columns: Vec<(String, ArrayRef, bool)> =
            named.map(|(i, column): (usize, _)| (format!("k{i}"), column, true)).collect();
        let numbers = Int64Array::from_iter_values(all.clone().map(|row| row as i64));
        columns.push(("n".to_string(), Arc::new(numbers), false));
        let texts = StringArray::from_iter_values(all.map(|row| format!("text {row}")));
        columns.push(("t".to_string(), Arc::new(texts), false));
        RecordBatch::try_from_iter_with_nullable(columns).expect("columns")
    };
    let batches: Vec<_> = (0..rows).step_by(BATCH).map(batch).collect();
    let schema = batches[0].schema();
    Box::new(RecordBatchIterator::new(batches.into_iter().map(Ok), schema))
}

/// The key of a row.
type KeyOf<'a> = &'a dyn Fn(usize) -> Option<i64>;

fn numbers(rows: impl Iterator<Item = Option<i64>>) -> Vec<ArrayRef> {
    vec![Arc::new(rows.collect::<Int64Array>())]
}

fn spread(row: usize) -> i64 {
    (row as i64).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) >> 20
}

fn folders() -> Arc<TempFolders> {
    Arc::new(TempFolders::new(vec![]))
}

fn sort_merge(join_type: JoinType, keys: usize) -> Join {
    let join = Join::new(join_type).threads(2).algorithm(Algorithm::SortMerge);
    (0..keys).fold(join, |join, key| join.on(format!("k{key}")))
}

/// A filter over the numbers of both rows.
fn by_numbers(test: fn(i64, i64) -> bool) -> Filter {
    Filter::new([(Side::Left, "n"), (Side::Right, "n")], move |batch: &RecordBatch| {
        let [left, right] = [0, 1].map(|column| batch.column(column).as_primitive::<Int64Type>());
        let pairs = left.values().iter().zip(right.values());
        Ok(pairs.map(|(&left, &right)| Some(test(left, right))).collect::<BooleanArray>())
    })
}

/// The answer of a join: the keys of its rows in their order, and all rows in any order.
struct Answer {
    keys: Vec<String>,
    rows: Vec<String>,
    report: Report,
}

fn answer(join: &Join, [left, right]: [Reader; 2]) -> Result<Answer, Error> {
    let mut reader = join.run(left, right)?;
    let (mut keys, mut rows) = (Vec::new(), Vec::new());
    for batch in &mut reader {
        let batch = batch.map_err(Error::from_arrow)?;
        let options = FormatOptions::default().with_null("null");
        let schema = batch.schema();
        let shown: Vec<_> = (batch.columns().iter().zip(schema.fields()))
            .map(|(column, field)| {
                let shown = ArrayFormatter::try_new(column, &options).expect("simple types");
                (field.name().starts_with('k'), shown)
            })
            .collect();
        for row in 0..batch.num_rows() {
            let cells = |only_keys: bool| -> String {
                let wanted = shown.iter().filter(|(is_key, _)| *is_key || !only_keys);
                wanted.map(|(_, column)| format!("{}|", column.value(row))).collect()
            };
            // Zeros are equal, whatever their sign.
            keys.push(cells(true).replace("-0.0", "0.0"));
            rows.push(cells(false));
        }
    }
    let report = reader.report().expect("the join has ended");
    rows.sort_unstable();
    Ok(Answer { keys, rows, report })
}

/// Checks that a join under a limit spills, and returns the same rows in the same order of keys.
fn check(join: &Join, limit: u64, tables: impl Fn() -> [Reader; 2], what: &str) -> Report {
    let expected = answer(join, tables()).expect("no limit");
    let join = join.clone().memory_limit(limit).spill(folders());
    let found = answer(&join, tables()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let report = found.report;
    assert_eq!(found.rows.len(), expected.rows.len(), "{what}: {report}");
    assert!(found.rows == expected.rows, "{what}: other rows");
    let differs =
        found.keys.iter().zip(&expected.keys).position(|(found, expected)| found != expected);
    assert_eq!(differs, None, "{what}: another order");
    assert!(report.spilled.levels > 0 && report.spilled.bytes > 0, "{what}: {report}");
    assert_eq!(report.plan.algorithm, Algorithm::SortMerge, "{what}");
    assert!(report.peak_memory <= limit, "{what}: {}", report.peak_memory);
    report
}

/// All join types, with keys that have no match, nulls, and a residual filter. The tables are in random order, sorted,
/// or reversed.
#[test]
fn every_join_type_in_key_order() {
    let rows = 30_000;
    let key = |row: usize| (!row.is_multiple_of(11)).then(|| spread(row * 2 / 3));
    let orders: [(&str, KeyOf<'_>); 3] = [
        ("random", &key),
        ("sorted", &|row| (!row.is_multiple_of(11)).then_some(row as i64 * 2 / 3)),
        ("reversed", &|row| (!row.is_multiple_of(11)).then_some(-(row as i64 * 2 / 3))),
    ];
    for join_type in JoinType::ALL {
        for (order, key) in orders {
            let tables = || {
                let left = table(rows, &|all| numbers(all.map(key)));
                let right = table(rows / 2, &|all| {
                    numbers(all.map(|row| if row % 5 > 0 { key(row) } else { Some(row as i64) }))
                });
                [left, right]
            };
            let join = sort_merge(join_type, 1);
            check(&join, MIB, tables, &format!("{join_type}, {order}"));
            let even = by_numbers(|left, right| (left + right) % 3 > 0);
            check(&join.filter(even), MIB, tables, &format!("{join_type}, {order}, filtered"));
        }
    }
}

/// Text, floats, several columns, and nulls that are equal.
#[test]
fn every_kind_of_key_in_order() {
    let rows = 30_000;
    let text = |row: usize| format!("a key with a long common start {}", spread(row));
    let float = |row: usize| match row % 10_000 {
        0 => f64::NAN,
        1 => -f64::NAN,
        2 => -0.0,
        3 => 0.0,
        _ => spread(row) as f64 / 7.0,
    };
    let kinds: [(&str, usize, Keys<'_>); 4] = [
        ("text", 1, &|all| vec![Arc::new(StringArray::from_iter_values(all.map(text)))]),
        ("floats", 1, &|all| vec![Arc::new(Float64Array::from_iter_values(all.map(float)))]),
        ("nulls", 1, &|all| numbers(all.map(|row| (row % 999 > 0).then(|| spread(row))))),
        ("columns", 2, &|all| {
            let mut columns =
                numbers(all.clone().map(|row| (row % 7 > 0).then_some(row as i64 % 7)));
            columns.push(Arc::new(StringArray::from_iter(
                all.map(|row| (row % 5000 > 0).then(|| text(row))),
            )));
            columns
        }),
    ];
    for (kind, columns, keys) in kinds {
        for join_type in [JoinType::Inner, JoinType::Full, JoinType::LeftAnti, JoinType::RightMark]
        {
            for nulls in [NullEquality::NeverEqual, NullEquality::Equal] {
                let tables = || {
                    let moved =
                        |all: std::ops::Range<usize>| keys(all.start + 9000..all.end + 9000);
                    [table(rows, keys), table(rows, &moved)]
                };
                let join = sort_merge(join_type, columns).null_equality(nulls);
                check(&join, 2 * MIB, tables, &format!("{kind}, {join_type}, {nulls:?}"));
            }
        }
    }
}

/// There are more runs than can be read together, so some of them are merged first. Sorted runs of sorted tables are
/// read one after the other.
#[test]
fn runs_that_are_merged_first() {
    let rows = 150_000;
    let tables = |key: &dyn Fn(usize) -> i64| {
        let keys = |all: std::ops::Range<usize>| numbers(all.map(|row| Some(key(row))));
        [table(rows, &keys), table(rows, &keys)]
    };
    let random = check(&sort_merge(JoinType::Full, 1), MIB, || tables(&spread), "random");
    assert!(random.spilled.levels > 1, "{random}");
    let sorted =
        check(&sort_merge(JoinType::Full, 1), 4 * MIB, || tables(&|row| row as i64), "sorted");
    assert!(sorted.spilled.levels == 1 && sorted.spilled.rows == 2 * rows as u64, "{sorted}");
}

/// One key has half of the rows of both sides, and these rows have ten times the size of the limit. They are joined in
/// blocks, at their place in the order.
#[test]
fn one_key_that_does_not_fit() {
    let rows = 4000;
    let keys = |all: std::ops::Range<usize>| {
        numbers(all.map(|row| match row % 100 {
            0 => None,
            even if even % 2 == 0 => Some(7),
            _ => Some(spread(row)),
        }))
    };
    let wide = || {
        let narrow = table(rows, &keys);
        let schema = narrow.schema();
        let widened = narrow.map(|batch| {
            let batch = batch?;
            let texts = (0..batch.num_rows()).map(|row| format!("{row:02000}"));
            let mut columns = batch.columns().to_vec();
            columns[2] = Arc::new(StringArray::from_iter_values(texts));
            RecordBatch::try_new(batch.schema(), columns)
        });
        let batches: Vec<_> = widened.collect();
        // Each batch has few rows, so that a reader needs little memory.
        let short = batches.into_iter().flat_map(|batch: Result<RecordBatch, ArrowError>| {
            let batch = batch.expect("three columns");
            (0..batch.num_rows())
                .step_by(20)
                .map(move |at| {
                    let some: Vec<u32> = (at as u32..(at as u32 + 20)).collect();
                    arrow::compute::take_record_batch(
                        &batch,
                        &arrow::array::UInt32Array::from(some),
                    )
                })
                .collect::<Vec<_>>()
        });
        Box::new(RecordBatchIterator::new(short, schema)) as Reader
    };
    // The filter leaves few pairs of the frequent key.
    let filter = || by_numbers(|left, right| (left - right).abs() < 2 && left % 3 > 0);
    for join_type in JoinType::ALL {
        let join = sort_merge(join_type, 1).filter(filter());
        let report = check(&join, 800 << 10, || [wide(), wide()], &format!("{join_type}"));
        assert!(report.spilled.pairs_in_blocks > 0, "{join_type}: {report}");
        assert!(report.spilled.ranges > 1, "{join_type}: {report}");
    }
}

fn reader(batches: Vec<RecordBatch>) -> Reader {
    let schema = batches[0].schema();
    Box::new(RecordBatchIterator::new(batches.into_iter().map(Ok), schema))
}

/// A batch with a key column `k0` and other columns.
fn batch(keys: impl Iterator<Item = i64>, others: Vec<ArrayRef>) -> RecordBatch {
    let mut columns =
        vec![("k0".to_string(), Arc::new(Int64Array::from_iter_values(keys)) as ArrayRef)];
    columns.extend((0..).zip(others).map(|(i, column): (usize, _)| (format!("c{i}"), column)));
    RecordBatch::try_from_iter(columns).expect("columns")
}

fn texts(rows: usize, width: usize) -> ArrayRef {
    let rest = "x".repeat(width - 8);
    Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("{row:08}{rest}"))))
}

/// A row with several wide columns goes to disk as a block of its own. Its block is gathered as columns with spare
/// room, which counts only once.
#[test]
fn a_row_with_many_wide_columns() {
    let tables = || {
        let row = |row: usize| batch([spread(row)].into_iter(), vec![texts(1, 5 << 10); 10]);
        let keys = batch((0..100).map(spread), vec![]);
        [reader((0..150).map(row).collect()), reader(vec![keys])]
    };
    for threads in [1, 16] {
        let join = sort_merge(JoinType::Left, 1).threads(threads);
        check(&join, MIB, tables, &format!("{threads} threads"));
    }
}

/// A block has few views of a long buffer. Only the rows of the block count, not the whole buffer.
#[test]
fn views_of_a_long_buffer() {
    let rows = 20_000;
    let tables = || {
        [(); 2].map(|()| {
            let views = arrow::compute::cast(&texts(rows, 256), &DataType::Utf8View).expect("text");
            let whole = batch((0..rows).map(spread), vec![views]);
            reader((0..rows).step_by(1000).map(|at| whole.slice(at, 1000)).collect())
        })
    };
    for threads in [1, 8] {
        let join = sort_merge(JoinType::Left, 1).threads(threads);
        check(&join, 10 * MIB, tables, &format!("{threads} threads"));
    }
}

/// All rows have the same key, a text. A semi, anti or mark join needs only one row of the other side to know that there
/// is a match. So the number of candidate pairs does not grow with the square of the number of rows.
#[test]
fn one_key_whose_rows_all_match() {
    let keys = |all: std::ops::Range<usize>| -> Vec<ArrayRef> {
        vec![Arc::new(StringArray::from_iter_values(all.map(|_| "the same key in all rows")))]
    };
    let by_existence = JoinType::ALL.into_iter().filter(|join_type| {
        join_type.to_string().contains("semi")
            || join_type.to_string().contains("anti")
            || join_type.to_string().contains("mark")
    });
    let rows = 6000;
    for join_type in by_existence {
        let tables = || [table(rows, &keys), table(rows, &keys)];
        let what = format!("{join_type}");
        let report = check(&sort_merge(join_type, 1), 256 << 10, tables, &what);
        assert!(report.spilled.pairs_in_blocks > 0, "{what}: {report}");
        assert!(report.candidates <= 2 * rows as u64, "{what}: {} candidates", report.candidates);
    }
    for join_type in [JoinType::Inner, JoinType::Left, JoinType::Right, JoinType::Full] {
        let tables = || [table(rows, &keys), table(2, &keys)];
        let what = format!("{join_type}");
        let report = check(&sort_merge(join_type, 1), 256 << 10, tables, &what);
        assert!(report.spilled.pairs_in_blocks > 0, "{what}: {report}");
        assert!(report.candidates <= 3 * rows as u64, "{what}: {} candidates", report.candidates);
    }
}

/// One key has rows that are wide, and that share the memory of one block.
#[test]
fn one_key_with_wide_rows() {
    let tables = || {
        let row = |row: i64| batch([3 + 4 * row.min(1)].into_iter(), vec![texts(1, 160 << 10)]);
        let keys = batch([7, 7, 8].into_iter(), vec![]);
        [reader((0..20).map(row).collect()), reader(vec![keys])]
    };
    for join_type in [JoinType::LeftSemi, JoinType::Left, JoinType::LeftAnti] {
        for threads in [1, 4] {
            let join = sort_merge(join_type, 1).threads(threads);
            check(&join, MIB, tables, &format!("{join_type}, {threads} threads"));
        }
    }
}

/// A store that counts the files that exist at the same time.
#[derive(Debug, Default)]
struct Counted {
    now: Arc<AtomicU64>,
    most: AtomicU64,
}

struct CountedFile {
    bytes: Mutex<Vec<u8>>,
    now: Arc<AtomicU64>,
}

impl SpillStore for Counted {
    fn create(&self) -> io::Result<Arc<dyn SpillFile>> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        Ok(Arc::new(CountedFile { bytes: Mutex::default(), now: Arc::clone(&self.now) }))
    }

    fn place(&self) -> String {
        "a disk for tests".to_string()
    }
}

impl SpillFile for CountedFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.lock().expect("no panic").extend(bytes);
        Ok(())
    }

    fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(Cursor::new(self.bytes.lock().expect("no panic").clone())))
    }
}

impl Drop for CountedFile {
    fn drop(&mut self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Both sides are slices of one long batch, which takes most of the memory. The slices do not become a file each.
#[test]
fn slices_of_one_batch_become_few_runs() {
    let rows = 400_000;
    let tables = || {
        [(); 2].map(|()| {
            let numbers = Int64Array::from_iter_values(0..rows as i64);
            let whole = batch((0..rows).map(spread), vec![Arc::new(numbers)]);
            reader((0..rows).step_by(1000).map(|at| whole.slice(at, 1000)).collect())
        })
    };
    for kib in [7600, 9000, 12_000] {
        let store = Arc::new(Counted::default());
        let join = sort_merge(JoinType::Left, 1).build_side(Side::Left);
        let join = join.memory_limit(kib << 10).spill(Arc::clone(&store) as _);
        let [left, right] = tables();
        let (counted, report) = join.count(left, right).expect("it spills");
        assert_eq!(counted, rows as u64, "{kib} KiB: {report}");
        let most = store.most.load(Ordering::SeqCst);
        assert!(report.spilled.files > 0 && most <= 200, "{kib} KiB: {most} files");
    }
}

/// Rows with a null in their key do not become files if the join type does not return them.
#[test]
fn rows_that_are_dropped_need_no_files() {
    let keys = |all: std::ops::Range<usize>| numbers(all.map(|_| None));
    let join = sort_merge(JoinType::Inner, 1).memory_limit(MIB / 2).spill(folders());
    let answer = answer(&join, [table(20_000, &keys), table(20_000, &keys)]).expect("it spills");
    let spilled = answer.report.spilled;
    assert_eq!((answer.rows.len(), spilled.levels, spilled.files), (0, 1, 0), "{spilled:?}");
}

/// Records whether batches are pushed one after the other, and are marked as ordered.
#[derive(Default)]
struct InTurn {
    busy: AtomicBool,
    rows: AtomicU64,
    passed: AtomicU64,
}

impl Sink for InTurn {
    fn push(&self, _: usize, batch: ReservedBatch) -> Result<(), ArrowError> {
        assert!(batch.is_ordered(), "the output is ordered");
        assert!(!self.busy.swap(true, Ordering::SeqCst), "another worker is pushing");
        self.rows.fetch_add(batch.batch().num_rows() as u64, Ordering::SeqCst);
        std::thread::yield_now();
        self.busy.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn turn_passed(&self, _: usize) -> Result<(), ArrowError> {
        self.passed.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// A sink gets ordered batches one after the other, also from a key that is joined in blocks.
#[test]
fn a_sink_gets_its_batches_in_order() {
    let keys = |all: std::ops::Range<usize>| {
        numbers(all.map(|row| Some(if row % 2 == 0 { 7 } else { spread(row) })))
    };
    let tables = || [table(30_000, &keys), table(400, &keys)];
    let join = sort_merge(JoinType::Inner, 1).threads(3).batch_size(1000);
    let [left, right] = tables();
    let expected = join.count(left, right).expect("no limit").0;
    let join = join.memory_limit(MIB / 2).spill(folders());
    let (sink, [left, right]) = (InTurn::default(), tables());
    let report = join.run_into(left, right, &sink).expect("it spills");
    assert_eq!((sink.rows.into_inner(), report.output_rows), (expected, expected));
    assert!(report.spilled.pairs_in_blocks > 0 && sink.passed.into_inner() > 0, "{report}");
}

/// The plan says that the join was to sort, and that it spilled.
#[test]
fn the_report_of_a_join_that_spills() {
    let keys = |all: std::ops::Range<usize>| numbers(all.map(|row| Some(spread(row))));
    let tables = || [table(20_000, &keys), table(20_000, &keys)];
    let report = check(&sort_merge(JoinType::Inner, 1), MIB, tables, "a report");
    assert_eq!(report.plan.reason, Reason::Spilled);
    let text = report.to_string();
    assert!(
        text.contains("inner join by sort-merge: it was asked for, and the join did not fit"),
        "{text}"
    );
    assert!(text.contains("key ranges") && text.contains("the first join in memory"), "{text}");
}

/// How a store for tests fails.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// The n-th append fails.
    Full,
    /// The n-th file cannot be opened.
    Unreadable,
    /// A bit of the n-th block is flipped.
    Flipped,
    /// The n-th append writes nothing.
    Lost,
}

#[derive(Debug)]
struct Faulty {
    fault: Fault,
    left: Arc<AtomicU64>,
}

struct FaultyFile {
    bytes: Mutex<Vec<u8>>,
    fault: Fault,
    left: Arc<AtomicU64>,
}

impl FaultyFile {
    fn is_now(&self, fault: Fault) -> bool {
        let less = |left: u64| Some(left.wrapping_sub(1));
        fault == self.fault
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) == Ok(0)
    }
}

impl SpillStore for Faulty {
    fn create(&self) -> io::Result<Arc<dyn SpillFile>> {
        let (bytes, fault, left) = (Mutex::default(), self.fault, Arc::clone(&self.left));
        Ok(Arc::new(FaultyFile { bytes, fault, left }))
    }

    fn place(&self) -> String {
        "a disk for tests".to_string()
    }
}

impl SpillFile for FaultyFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        if self.is_now(Fault::Full) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.is_now(Fault::Lost) {
            return Ok(());
        }
        let mut bytes = bytes.to_vec();
        if self.is_now(Fault::Flipped) {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
        }
        self.bytes.lock().expect("no panic").extend(bytes);
        Ok(())
    }

    fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        if self.is_now(Fault::Unreadable) {
            return Err(io::ErrorKind::Other.into());
        }
        Ok(Box::new(Cursor::new(self.bytes.lock().expect("no panic").clone())))
    }
}

/// If the disk fails, the join fails. The error names the place, and no wrong row is returned.
#[test]
fn a_disk_that_fails() {
    let keys = |all: std::ops::Range<usize>| numbers(all.map(|row| Some(spread(row))));
    let tables = || [table(20_000, &keys), table(20_000, &keys)];
    for fault in [Fault::Full, Fault::Unreadable, Fault::Flipped, Fault::Lost] {
        // There are fewer files than blocks.
        let most = if fault == Fault::Unreadable { 5 } else { 40 };
        for nth in [0, 1, 5, 17, 40].into_iter().filter(|&nth| nth <= most) {
            let store = Faulty { fault, left: Arc::new(AtomicU64::new(nth)) };
            let join = sort_merge(JoinType::Full, 1).memory_limit(MIB).spill(Arc::new(store));
            let answer = answer(&join, tables());
            let Err(error) = answer else { panic!("{fault:?} {nth}: the disk did not fail") };
            assert!(matches!(error, Error::Spill { .. }), "{fault:?} {nth}: {error}");
            assert!(error.to_string().contains("a disk for tests"), "{error}");
        }
    }
}

/// If the reader is dropped early, the join deletes its files.
#[test]
fn a_reader_that_is_dropped() {
    let store = folders();
    let keys = |all: std::ops::Range<usize>| numbers(all.map(|row| Some(spread(row))));
    let join = sort_merge(JoinType::Inner, 1).memory_limit(MIB).spill(Arc::clone(&store) as _);
    for batches in [0, 1, 3] {
        let mut reader = join
            .clone()
            .batch_size(500)
            .run(table(30_000, &keys), table(30_000, &keys))
            .expect("bound");
        for _ in 0..batches {
            reader.next().expect("there are more").expect("a batch");
        }
        drop(reader);
        assert_eq!(store.used(), 0, "{batches} batches");
    }
}

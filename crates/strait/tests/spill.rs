//! Joins that do not fit their memory limit write rows to disk.
//!
//! The runner compares small joins with the oracle. Here, tables are much larger than the limit, and the rows are
//! compared with the rows of the same join without a limit.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int8Array, Int64Array, RecordBatch,
    RecordBatchIterator, RecordBatchReader, StringArray,
};
use arrow::datatypes::{Int64Type, UInt64Type};
use arrow::error::ArrowError;
use strait::testing::TestOverrides;
use strait::{
    Algorithm, Error, Join, JoinType, Reason, Report, Side, SpillFile, SpillStore, Statistics,
    TempFolders,
};

const MIB: u64 = 1 << 20;

fn table(rows: usize, key: impl Fn(usize) -> i64) -> impl RecordBatchReader + Send + 'static {
    table_of(4096, rows, key)
}

/// A table with a key, the number of the row and a text. Each batch has its own memory.
fn table_of(
    rows_per_batch: usize,
    rows: usize,
    key: impl Fn(usize) -> i64,
) -> impl RecordBatchReader + Send + 'static {
    let batch = |at: usize| {
        let all = at..rows.min(at + rows_per_batch);
        let keys: Vec<i64> = all.clone().map(&key).collect();
        // Frequent keys have long texts.
        let texts = keys.iter().map(|&key| match key {
            7 => "x".repeat(500),
            key => format!("text {key}"),
        });
        let columns: [(&str, ArrayRef); 3] = [
            ("k", Arc::new(Int64Array::from(keys.clone()))),
            ("n", Arc::new(Int64Array::from_iter_values(all.map(|row| row as i64)))),
            ("t", Arc::new(StringArray::from_iter_values(texts))),
        ];
        RecordBatch::try_from_iter(columns).expect("three columns")
    };
    let batches: Vec<_> = (0..rows).step_by(rows_per_batch).map(batch).collect();
    let schema = batches[0].schema();
    RecordBatchIterator::new(batches.into_iter().map(Ok), schema)
}

fn spread(row: usize) -> i64 {
    (row as i64).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)
}

fn folders() -> Arc<TempFolders> {
    Arc::new(TempFolders::new(vec![]))
}

type Rows = Vec<Vec<Option<i64>>>;
type Keys<'a> = (usize, &'a dyn Fn(usize) -> i64);

/// Joins two tables with these numbers of rows and keys.
fn answer(join: &Join, tables: [Keys<'_>; 2]) -> Result<(Rows, Report), Error> {
    let boxed =
        |(rows, key): Keys<'_>| -> Box<dyn RecordBatchReader + Send> { Box::new(table(rows, key)) };
    answer_of(join, tables.map(boxed))
}

/// Returns the numbers of the joined rows, sorted.
fn answer_of(
    join: &Join,
    [left, right]: [Box<dyn RecordBatchReader + Send>; 2],
) -> Result<(Rows, Report), Error> {
    let mut reader = join.run(left, right)?;
    let mut rows = Vec::new();
    for batch in &mut reader {
        let batch = batch.map_err(Error::from_arrow)?;
        let numbers: Vec<_> = batch
            .columns()
            .iter()
            .filter_map(|column| column.as_primitive_opt::<Int64Type>().cloned())
            .collect();
        rows.extend((0..batch.num_rows()).map(|row| {
            let number = |column: &Int64Array| column.is_valid(row).then(|| column.value(row));
            numbers.iter().map(number).collect::<Vec<_>>()
        }));
    }
    let report = reader.report().expect("the join has ended");
    rows.sort_unstable();
    Ok((rows, report))
}

/// All join types, with some keys that have no match.
#[test]
fn every_join_type_beyond_the_limit() {
    let (left, right) = (|row: usize| spread(row % 60_000), |row: usize| spread(row + 20_000));
    let tables: [Keys<'_>; 2] = [(90_000, &left), (120_000, &right)];
    for join_type in JoinType::ALL {
        for build_side in [None, Some(Side::Left), Some(Side::Right)] {
            let mut join = Join::new(join_type).on("k").threads(2);
            if let Some(side) = build_side {
                join = join.build_side(side);
            }
            let (expected, _) = answer(&join, tables).expect("no limit");
            let limit = 4 * MIB;
            let join = join.memory_limit(limit).spill(folders());
            let (rows, report) = answer(&join, tables).expect("it spills");
            assert!(rows == expected, "{join_type}: {} rows, not {}", rows.len(), expected.len());
            assert_eq!(report.plan.algorithm, Algorithm::Spill);
            assert!(report.spilled.bytes > 0 && report.spilled.pairs > 0, "{join_type}");
            assert!(report.peak_memory <= limit, "{join_type}: {}", report.peak_memory);
        }
    }
}

/// One key has half of the rows of both sides. No partitioning separates them, so they are joined in blocks.
#[test]
fn one_key_that_does_not_fit() {
    let frequent = |row: usize| if row.is_multiple_of(2) { 7 } else { spread(row) };
    for join_type in JoinType::ALL {
        let [left, right] = [1500, 1600].map(|rows| move || table_of(32, rows, frequent));
        let join = Join::new(join_type).on("k").threads(2);
        let expected = join.count(left(), right()).expect("no limit").0;
        let join = join.memory_limit(MIB).spill(folders());
        let mut reader = join.run(left(), right()).expect("bound");
        let rows = (&mut reader).map(|batch| batch.expect("it spills").num_rows() as u64);
        assert_eq!(rows.sum::<u64>(), expected, "{join_type}");
        let report = reader.report().expect("the join has ended");
        // The other types need only the keys of one side, which fit.
        if [JoinType::Inner, JoinType::Left, JoinType::Right, JoinType::Full].contains(&join_type) {
            assert!(report.spilled.pairs_in_blocks > 0, "{join_type}: {:?}", report.spilled);
        }
    }
}

/// The limit is a little too small. Few rows go to disk then.
#[test]
fn the_cost_grows_with_the_excess() {
    let tables: [Keys<'_>; 2] = [(200_000, &spread), (400_000, &spread)];
    let written = |limit: u64| {
        let join = Join::inner().on("k").threads(2).build_side(Side::Left);
        let join = join.memory_limit(limit).spill(folders());
        let (rows, report) = answer(&join, tables).expect("it spills");
        assert_eq!(rows.len(), 200_000);
        report.spilled.bytes
    };
    let all = written(3 * MIB);
    let some = written(16 * MIB);
    assert!(0 < some && some < all * 4 / 5, "{some} of {all} bytes");
    assert_eq!(written(1 << 34), 0);
}

/// The build rows fit memory, but their table does not. Then no build row goes to disk. The probe rows of the first part
/// of the table, which is as large as possible, do not either.
#[test]
fn only_the_table_does_not_fit() {
    let rows: [u64; 2] = [1_200_000, 400_000];
    let tables: [Keys<'_>; 2] = [(rows[0] as usize, &spread), (rows[1] as usize, &spread)];
    let joined = |limit: Option<u64>| {
        let join = Join::inner().on("k").threads(2).build_side(Side::Left);
        let join = join.device(strait::Processor::Cpu).select(["k", "n"]);
        let join = match limit {
            Some(limit) => join.memory_limit(limit).spill(folders()),
            None => join,
        };
        let (found, report) = answer(&join, tables).expect("it fits, or it spills");
        assert_eq!(found.len() as u64, rows[1]);
        report
    };
    let peak = joined(None).peak_memory;
    let (mut parts, mut written) = (0, 0);
    for limit in [peak * 95 / 100, peak * 85 / 100, peak * 3 / 4] {
        let report = joined(Some(limit));
        assert!(report.peak_memory <= limit, "{} over {limit}", report.peak_memory);
        assert_eq!(report.plan.algorithm, Algorithm::NoPartition, "{report}");
        assert!(report.spilled.rows <= rows[1], "{:?}", report.spilled);
        let of_table = report.plan.details.parts.unwrap_or(1);
        assert!(of_table >= parts && report.spilled.rows >= written, "{report}");
        (parts, written) = (of_table, report.spilled.rows);
    }
    assert!(parts > 1 && written > 0, "{parts} parts, {written} rows");
}

/// All join types with a table in parts.
#[test]
fn every_join_type_with_a_table_in_parts() {
    let (left, right) = (|row: usize| spread(row % 20_000), |row: usize| spread(row + 7_000));
    let tables: [Keys<'_>; 2] = [(30_000, &left), (40_000, &right)];
    for join_type in JoinType::ALL {
        for build_side in [Side::Left, Side::Right] {
            let join = Join::new(join_type).on("k").threads(2).build_side(build_side);
            let join = join.algorithm(Algorithm::NoPartition);
            let (expected, _) = answer(&join, tables).expect("no limit");
            let force = TestOverrides { table_parts: true, ..TestOverrides::default() };
            let join = join.spill(folders()).test_overrides(force);
            let (rows, report) = answer(&join, tables).expect("it spills");
            assert!(rows == expected, "{join_type}: {} rows, not {}", rows.len(), expected.len());
            assert!(report.plan.details.parts.is_some_and(|parts| parts >= 3), "{report}");
            let probe_rows = tables[build_side.other() as usize].0 as u64;
            let written = report.spilled.rows;
            assert!(0 < written && written < probe_rows, "{join_type}: {written} rows");
        }
    }
}

/// The build side is much larger than its statistics say. The rules for its partitions follow the statistics.
#[test]
fn statistics_that_are_far_too_small() {
    let tables: [Keys<'_>; 2] =
        [(90_000, &|row| spread(row % 60_000)), (120_000, &|row| spread(row + 20_000))];
    for join_type in JoinType::ALL {
        for (side, threads) in [(Side::Left, 1), (Side::Left, 3), (Side::Right, 2)] {
            let join = Join::new(join_type).on("k").threads(threads).build_side(side);
            let (expected, _) = answer(&join, tables).expect("no limit");
            let small = Statistics::rows(1000).with_bytes(32_000);
            let limit = 4 * MIB;
            let join = join.statistics(side, small).memory_limit(limit).spill(folders());
            let (rows, report) = answer(&join, tables).expect("it spills");
            assert!(rows == expected, "{join_type}: {} rows, not {}", rows.len(), expected.len());
            assert!(report.spilled.bytes > 0, "{join_type}: {:?}", report.spilled);
            assert!(report.peak_memory <= limit, "{join_type}: {}", report.peak_memory);
        }
    }
}

/// A store whose files fail at the n-th call.
#[derive(Debug)]
struct Failing {
    files: TempFolders,
    left: Arc<AtomicU64>,
    kind: io::ErrorKind,
    reads: bool,
}

struct FailingFile {
    file: Arc<dyn SpillFile>,
    left: Arc<AtomicU64>,
    kind: io::ErrorKind,
    reads: bool,
}

fn tick(left: &AtomicU64, kind: io::ErrorKind) -> io::Result<()> {
    match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
        Ok(_) => Ok(()),
        Err(_) => Err(kind.into()),
    }
}

impl SpillStore for Failing {
    fn create(&self) -> io::Result<Arc<dyn SpillFile>> {
        let (left, kind, reads) = (Arc::clone(&self.left), self.kind, self.reads);
        Ok(Arc::new(FailingFile { file: self.files.create()?, left, kind, reads }))
    }

    fn place(&self) -> String {
        "a disk for tests".to_string()
    }
}

impl SpillFile for FailingFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        if !self.reads {
            tick(&self.left, self.kind)?;
        }
        self.file.append(bytes)
    }

    fn open(&self) -> io::Result<Box<dyn io::Read + Send>> {
        if self.reads {
            tick(&self.left, self.kind)?;
        }
        self.file.open()
    }
}

/// If the disk fails, the join fails. The error names the place, and no wrong row is returned.
#[test]
fn a_disk_that_fails() {
    let tables: [Keys<'_>; 2] = [(30_000, &spread), (40_000, &spread)];
    for (kind, reads) in [(io::ErrorKind::StorageFull, false), (io::ErrorKind::Other, true)] {
        for nth in [0, 1, 5, 17] {
            let left = Arc::new(AtomicU64::new(nth));
            let store = Failing { files: TempFolders::new(vec![]), left, kind, reads };
            let join = Join::inner().on("k").threads(2).memory_limit(MIB).spill(Arc::new(store));
            let error = answer(&join, tables).expect_err("the disk fails");
            assert!(matches!(error, Error::Spill { .. }), "{error}");
            assert!(error.to_string().contains("a disk for tests"), "{error}");
        }
    }
}

/// A store whose files panic.
#[derive(Debug)]
struct Panicking(Arc<AtomicU64>);

struct PanickingFile(Arc<dyn SpillFile>, Arc<AtomicU64>);

impl SpillStore for Panicking {
    fn create(&self) -> io::Result<Arc<dyn SpillFile>> {
        Ok(Arc::new(PanickingFile(TempFolders::new(vec![]).create()?, Arc::clone(&self.0))))
    }

    fn place(&self) -> String {
        "a store that panics".to_string()
    }
}

impl SpillFile for PanickingFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        assert!(tick(&self.1, io::ErrorKind::Other).is_ok(), "the store panics");
        self.0.append(bytes)
    }

    fn open(&self) -> io::Result<Box<dyn io::Read + Send>> {
        self.0.open()
    }
}

/// A panic of the caller's store ends the join, also if other workers are refused memory at the same time.
#[test]
fn a_store_that_panics() {
    let tables: [Keys<'_>; 2] = [(30_000, &spread), (40_000, &spread)];
    for nth in [0, 1, 2, 3, 5, 8, 13, 21, 34] {
        let store = Arc::new(Panicking(Arc::new(AtomicU64::new(nth))));
        let join = Join::inner().on("k").threads(3).memory_limit(MIB).spill(store);
        let error = answer(&join, tables).expect_err("the store panics");
        assert!(!matches!(error, Error::MemoryLimit { .. }), "{error}");
    }
}

/// A limit on the bytes on disk is an error with advice, and the files are gone afterwards.
#[test]
fn a_disk_limit() {
    let tables: [Keys<'_>; 2] = [(60_000, &spread), (60_000, &spread)];
    let store = Arc::new(TempFolders::new(vec![]).with_limit(Some(MIB)));
    let join = Join::inner().on("k").memory_limit(2 * MIB).spill(Arc::clone(&store) as _);
    let error = answer(&join, tables).expect_err("the limit is too small").to_string();
    assert!(error.contains("disk"), "{error}");
    assert_eq!(store.used(), 0, "all files are dropped");
}

/// If the reader is dropped early, the join deletes its files.
#[test]
fn a_reader_that_is_dropped() {
    let store = Arc::new(TempFolders::new(vec![]));
    let join =
        Join::inner().on("k").threads(2).memory_limit(2 * MIB).spill(Arc::clone(&store) as _);
    for batches in [0, 1, 3] {
        let mut reader = join.run(table(80_000, spread), table(90_000, spread)).expect("bound");
        for _ in 0..batches {
            reader.next().expect("there are more").expect("a batch");
        }
        drop(reader);
        assert_eq!(store.used(), 0, "{batches} batches");
    }
}

/// Several joins share a store, and each is right.
#[test]
fn joins_at_the_same_time() {
    let store = Arc::new(TempFolders::new(vec![]));
    let counts = Mutex::new(HashMap::new());
    std::thread::scope(|scope| {
        for rows in [40_000, 50_000, 60_000] {
            let (store, counts) = (&store, &counts);
            scope.spawn(move || {
                let join = Join::inner().on("k").threads(2).memory_limit(2 * MIB);
                let join = join.spill(Arc::clone(store) as _);
                let (count, _) =
                    join.count(table(rows, spread), table(70_000, spread)).expect("spills");
                counts.lock().expect("no panic").insert(rows, count);
            });
        }
    });
    for (rows, count) in counts.into_inner().expect("no panic") {
        assert_eq!(rows as u64, count);
    }
    assert_eq!(store.used(), 0);
}

/// A join that cannot spill is refused when it is bound.
#[test]
fn settings_that_do_not_spill() {
    let asked = Join::inner().on("k").algorithm(Algorithm::Spill);
    let error = asked.run(table(1, spread), table(1, spread)).err().expect("no store").to_string();
    assert!(error.contains("Join::spill"), "{error}");
}

/// The output has the row numbers in the tables, also if the rows were written to disk on several levels, or as sorted
/// runs.
#[test]
fn row_numbers_of_rows_that_spill() {
    let (left, right) = (|row: usize| spread(row % 30_000), |row: usize| spread(row + 10_000));
    let tables = || (table(40_000, left), table(60_000, right));
    let answer = |join: &Join| -> (Vec<[Option<u64>; 2]>, Report) {
        let (left, right) = tables();
        let mut reader = join.pairs(left, right).expect("bound");
        let mut rows = Vec::new();
        for batch in &mut reader {
            let batch = batch.expect("it spills");
            let numbers = batch.columns().iter().filter_map(|c| c.as_primitive_opt::<UInt64Type>());
            let numbers: Vec<_> = numbers.collect();
            let number = |side: usize, row: usize| {
                let column = numbers.get(side)?;
                column.is_valid(row).then(|| column.value(row))
            };
            rows.extend((0..batch.num_rows()).map(|row| [number(0, row), number(1, row)]));
        }
        rows.sort_unstable();
        (rows, reader.report().expect("the join has ended"))
    };
    for join_type in JoinType::ALL {
        for algorithm in [None, Some(Algorithm::Spill), Some(Algorithm::SortMerge)] {
            let join = Join::new(join_type).on("k").threads(2);
            let (expected, _) = answer(&join);
            let join = join.algorithm(algorithm).memory_limit(MIB).spill(folders());
            let (rows, report) = answer(&join);
            let name = format!("{join_type} by {algorithm:?}");
            assert!(rows == expected, "{name}: {} rows, not {}", rows.len(), expected.len());
            assert!(report.spilled.rows > 0, "{name}: {report}");
            assert!(report.peak_memory <= MIB, "{name}: {}", report.peak_memory);
        }
    }
}

/// The report says why the join spilled, and that the details are of a join in memory.
#[test]
fn the_report_of_a_join_that_spills() {
    let tables: [Keys<'_>; 2] = [(30_000, &spread), (40_000, &spread)];
    let join = Join::inner().on("k").threads(2).memory_limit(MIB).spill(folders());
    let asked = join.clone().algorithm(Algorithm::Spill);
    for (join, reason) in [(join, Reason::Spilled), (asked, Reason::AskedFor)] {
        let (_, report) = answer(&join, tables).expect("it spills");
        assert_eq!(report.plan.algorithm, Algorithm::Spill);
        assert_eq!(report.plan.reason, reason, "{report}");
        let text = report.plan.to_string();
        assert!(text.starts_with(&format!("inner join by spill: {reason}\n")), "{text}");
        assert!(text.contains("the first join in memory"), "{text}");
    }
}

/// The left side has fewer bytes. But it has many rows, so its table does not fit memory. The right side fits, so the
/// pair is not joined in blocks.
#[test]
fn a_pair_that_fits_by_the_side_with_more_bytes() {
    let narrow = Int64Array::from_value(7, 200_000);
    let narrow = RecordBatch::try_from_iter([("k", Arc::new(narrow) as ArrayRef)]).expect("one");
    let wide: [(&str, ArrayRef); 2] = [
        ("k", Arc::new(Int64Array::from_value(7, 800))),
        ("t", Arc::new(StringArray::from_iter_values((0..800).map(|_| "x".repeat(2500))))),
    ];
    let wide = RecordBatch::try_from_iter(wide).expect("two columns");
    let parts = |batch: &RecordBatch, rows: usize| {
        let batch = batch.clone();
        let schema = batch.schema();
        let starts: Vec<_> = (0..batch.num_rows()).step_by(rows).collect();
        let slice = move |at: usize| Ok(batch.slice(at, rows.min(batch.num_rows() - at)));
        RecordBatchIterator::new(starts.into_iter().map(slice), schema)
    };
    let join = Join::new(JoinType::RightSemi).on("k").threads(1).algorithm(Algorithm::Spill);
    let join = join.memory_limit(9 * MIB).spill(folders());
    let mut reader = join.run(parts(&narrow, 4096), parts(&wide, 20)).expect("bound");
    let rows = (&mut reader).map(|batch| batch.expect("it spills").num_rows());
    assert_eq!(rows.sum::<usize>(), 800);
    let report = reader.report().expect("the join has ended");
    assert_eq!((report.spilled.pairs, report.spilled.pairs_in_blocks), (1, 0), "{report}");
}

/// With one thread, the seed of a report repeats the join, with its partitions.
#[test]
fn the_seed_repeats_a_join_that_spills() {
    let join = Join::inner().on("k").threads(1).memory_limit(MIB).spill(folders());
    let numbers = |join: &Join| {
        let mut reader = join.run(table(30_000, spread), table(40_000, spread)).expect("bound");
        let batches = (&mut reader).map(|batch| batch.expect("it spills"));
        let numbers = |batch: RecordBatch| batch.column(1).as_primitive::<Int64Type>().clone();
        let numbers: Vec<_> = batches.flat_map(|batch| numbers(batch).values().to_vec()).collect();
        (numbers, reader.report().expect("the join has ended").seed)
    };
    let (first, seed) = numbers(&join);
    assert!(numbers(&join).0 != first, "each join draws a seed");
    let overrides = TestOverrides { seed: Some(seed), ..TestOverrides::default() };
    assert!(numbers(&join.test_overrides(overrides)).0 == first, "another order");
}

/// A device joins the first rows of the probe side. Then memory for a batch of the probe side is refused. The join
/// either continues without losing the rows of the device, or fails.
#[test]
fn memory_that_is_refused_after_a_device_has_begun() {
    let build = || table_of(500, 10_000, spread);
    // Each row of the first batches matches. The last batch is large.
    let probe = || {
        let small: Vec<_> = table_of(100, 300, spread).collect();
        let large: Vec<_> = table_of(30_000, 30_000, |row| spread(row + 200)).collect();
        let schema = small[0].as_ref().expect("a batch").schema();
        RecordBatchIterator::new(small.into_iter().chain(large), schema)
    };
    let types = [JoinType::Inner, JoinType::LeftSemi];
    let (mut spilled, mut failed) = (0, 0);
    for join_type in types {
        let join = Join::new(join_type).on("k").threads(2).build_side(Side::Left);
        let (expected, _) = join.count(build(), probe()).expect("no limit");
        for auto in [false, true] {
            for limit in (14..40).map(|part| part * MIB / 64) {
                let overrides = TestOverrides {
                    simulated: Some(limit),
                    auto,
                    tiny_chunks: true,
                    ..TestOverrides::default()
                };
                let join = join.clone().algorithm(Algorithm::StreamedProbe);
                let join = join.memory_limit(limit).spill(folders()).test_overrides(overrides);
                match join.count(build(), probe()) {
                    Ok((count, report)) => {
                        assert_eq!(count, expected, "{join_type}, {limit}: {report}");
                        spilled += u32::from(report.spilled.rows > 0);
                    }
                    Err(Error::MemoryLimit { .. }) => failed += 1,
                    Err(other) => panic!("{join_type}, {limit}: {other}"),
                }
            }
        }
    }
    assert!(failed > 0, "{spilled} joins spilled, {failed} failed");
}

/// One worker is refused memory, and then a reader fails. The join returns the reader's error.
#[test]
fn a_reader_that_fails_under_a_limit() {
    for limit in (16..64).map(|kib| kib << 10) {
        let failing = || {
            let rows = table_of(20, 2000, spread);
            let schema = rows.schema();
            let failure = std::iter::once(Err(ArrowError::ParseError("a bad line".to_string())));
            RecordBatchIterator::new(rows.chain(failure), schema)
        };
        let overrides = TestOverrides { tiny_partitions: true, ..TestOverrides::default() };
        let join = Join::inner().on("k").threads(2).algorithm(Algorithm::Spill);
        let join = join.memory_limit(limit).spill(folders()).test_overrides(overrides);
        let error = join.count(failing(), table_of(20, 2000, spread)).expect_err("it fails");
        let text = error.to_string();
        assert!(text.contains("a bad line") || text.contains("memory limit"), "{limit}: {text}");
    }
}

/// The memory for partitioning rows is larger than rows of one byte, or of one bit.
#[test]
fn narrow_rows() {
    let rows = 300_000;
    let bits = |row: usize| row.is_multiple_of(3);
    let columns: [&dyn Fn() -> ArrayRef; 2] =
        [&|| Arc::new(BooleanArray::from_iter((0..rows).map(|row| Some(bits(row))))), &|| {
            Arc::new(Int8Array::from_iter_values((0..rows).map(|row| (row % 100) as i8)))
        }];
    for column in columns {
        let table = || {
            let batch = RecordBatch::try_from_iter([("k", column())]).expect("one column");
            let schema = batch.schema();
            let parts: Vec<_> = (0..rows).step_by(4096).collect();
            let slice = move |at: usize| Ok(batch.slice(at, 4096.min(rows - at)));
            RecordBatchIterator::new(parts.into_iter().map(slice), schema)
        };
        for algorithm in [None, Some(Algorithm::Spill)] {
            let join = Join::new(JoinType::LeftAnti).on("k").threads(2).algorithm(algorithm);
            let join = join.memory_limit(MIB).spill(folders());
            let (count, report) = join.count(table(), table()).expect("it spills");
            assert_eq!(count, 0);
            assert!(report.spilled.rows > 0, "{report}");
        }
    }
}

/// A join that uses all three kinds of memory: a device with little memory, host memory, and the disk. `make test-long`
/// sets `STRAIT_LONG`. Then the tables take 1 GiB, the device has 64 MiB, and the limit is 96 MiB.
#[test]
fn a_small_device_and_the_disk() {
    const BATCH: i64 = 1 << 16;
    let (batches, device, limit) = match std::env::var_os("STRAIT_LONG") {
        Some(_) => (512, 64 * MIB, 96 * MIB),
        None => (8, MIB, 6 * MIB),
    };
    let rows = batches * BATCH;
    // The tables have the same keys in different orders: a product with an odd factor meets each row once.
    let table = move |factor: i64| {
        let batch = move |at: i64| {
            let numbers =
                (at * BATCH..(at + 1) * BATCH).map(move |row| (row * factor) & (rows - 1));
            let keys = numbers.clone().map(|number| spread(number as usize));
            let columns: [(&str, ArrayRef); 2] = [
                ("k", Arc::new(Int64Array::from_iter_values(keys))),
                ("n", Arc::new(Int64Array::from_iter_values(numbers))),
            ];
            RecordBatch::try_from_iter(columns)
        };
        let schema = batch(0).expect("two columns").schema();
        RecordBatchIterator::new((0..batches).map(batch), schema)
    };
    let overrides = TestOverrides { simulated: Some(1), ..TestOverrides::default() };
    let join = Join::inner().on("k").threads(2).gpu_memory(device).test_overrides(overrides);
    // This algorithm needs a device. With `auto`, small pairs are joined on the CPU.
    let join = join.algorithm(Algorithm::MultiPass).memory_limit(limit).spill(folders());
    let sums = [(Side::Left, "n"), (Side::Right, "n")];
    let (found, report) = join.aggregate(&sums, table(5), table(7)).expect("it spills");
    let sum = i128::from(rows) * i128::from(rows - 1) / 2;
    assert_eq!((found.rows, found.sums), (rows as u64, vec![sum; 2]));
    assert!(report.spilled.bytes > limit && report.plan.device.is_gpu(), "{report}");
    assert!(report.peak_memory <= limit, "{report}");
}

/// The last rows of a side that is joined in blocks are much wider than the others.
#[test]
fn a_block_whose_last_rows_are_wide() {
    let narrow =
        |rows: usize| -> Box<dyn RecordBatchReader + Send> { Box::new(table(rows, |_| 1)) };
    let wide: Vec<_> = (0..15)
        .map(|at| {
            let texts = (0..100).map(|_| "x".repeat(10_000));
            let columns: [(&str, ArrayRef); 3] = [
                ("k", Arc::new(Int64Array::from_value(1, 100))),
                ("n", Arc::new(Int64Array::from_iter_values(at * 100..(at + 1) * 100))),
                ("t", Arc::new(StringArray::from_iter_values(texts))),
            ];
            RecordBatch::try_from_iter(columns)
        })
        .collect();
    let left = narrow(40_000);
    let schema = left.schema();
    let left = Box::new(RecordBatchIterator::new(left.chain(wide), schema));
    let join = Join::new(JoinType::LeftSemi).on("k").threads(1).memory_limit(8 * MIB);
    let (rows, report) =
        answer_of(&join.spill(folders()), [left, narrow(400_000)]).expect("it spills");
    assert_eq!(rows.len(), 41_500);
    assert!(report.spilled.pairs_in_blocks > 0, "{report}");
}

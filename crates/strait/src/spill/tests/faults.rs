//! Failing disks, memory limits, and many workers.

use std::collections::HashSet;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;

use super::{SpillStore, block, create, numbers, spill, spill_with, unlimited};
use crate::error::Error;
use crate::input::{Input, Source};
use crate::memory::Budget;
use crate::spill::block::Mark;
use crate::spill::{SpillCompression, SpillFile, SpillTarget, TempFolders};

/// A disk that fails after some bytes.
#[derive(Debug)]
struct Failing {
    code: i32,
    bytes: Arc<AtomicU64>,
    when_reading: bool,
}

impl SpillStore for Failing {
    fn create(&self) -> io::Result<Arc<dyn SpillFile>> {
        let (code, bytes, when_reading) = (self.code, Arc::clone(&self.bytes), self.when_reading);
        Ok(Arc::new(Failing { code, bytes, when_reading }))
    }

    fn place(&self) -> String {
        "/a, /b".to_string()
    }
}

impl SpillFile for Failing {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let used = self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        match !self.when_reading && used > 1000 {
            true => Err(io::Error::from_raw_os_error(self.code)),
            false => Ok(()),
        }
    }

    fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(Failing { code: self.code, bytes: Arc::default(), when_reading: true }))
    }
}

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(self.code))
    }
}

fn failing(code: i32, when_reading: bool) -> Arc<dyn SpillStore> {
    Arc::new(Failing { code, bytes: Arc::default(), when_reading })
}

fn temporary() -> Arc<dyn SpillStore> {
    Arc::new(TempFolders::new(vec![]))
}

#[test]
fn a_failed_append_is_an_error_with_its_place() {
    for (code, advice) in [(libc::ENOSPC, "free space"), (libc::EIO, "check the disk")] {
        let rows = Arc::new(create(&failing(code, false)));
        let block = block(&numbers(0, 1000));
        rows.append(&block).expect("there is room for one");
        // The second call must not write after a torn block.
        for _ in 0..2 {
            let Err(Error::Spill { place, reason, .. }) = rows.append(&block) else {
                panic!("full")
            };
            assert!(place == "/a, /b" && reason.contains(advice), "{place}: {reason}");
        }
        assert_eq!((rows.rows(), rows.marks().len()), (1000, 1));
        let source = rows.source(numbers(0, 0).schema());
        assert!(matches!(source.batch(&unlimited()), Err(Error::Spill { .. })));
    }
}

#[test]
fn a_failed_read_is_an_error_each_time() {
    let rows = spill(&failing(libc::EIO, true), &[numbers(0, 10)]);
    let source = rows.source(numbers(0, 0).schema());
    for _ in 0..2 {
        let Err(Error::Spill { doing, reason, .. }) = source.batch(&unlimited()) else {
            panic!("fails")
        };
        assert!(
            doing.starts_with("read spilled rows back") && reason.contains("os error 5"),
            "{doing}: {reason}"
        );
    }
}

#[test]
fn the_disk_limit_is_an_error_with_advice() {
    let store: Arc<dyn SpillStore> = Arc::new(TempFolders::new(vec![]).with_limit(Some(15_000)));
    let rows = create(&store);
    let block = block(&numbers(0, 500));
    rows.append(&block).expect("fits");
    let error = rows.append(&block).expect_err("does not fit").to_string();
    assert!(error.contains("14.6 KiB") && error.contains("option disk"), "{error}");
}

#[test]
fn a_refused_block_stays_for_a_later_call() {
    let rows = spill(&temporary(), &[numbers(1000, 1000), numbers(2000, 1000)]);
    let source = rows.source(numbers(0, 0).schema());
    let needed = rows.marks().iter().map(Mark::reading_bytes).max().expect("blocks");
    let small = Budget::new(Some(needed - 1));
    assert!(matches!(source.batch(&small), Err(Error::MemoryLimit { .. })));
    let enough = Budget::new(Some(needed));
    for first in [1000, 2000] {
        let batch = source.batch(&enough).expect("fits").expect("a block is left");
        assert_eq!(batch, numbers(first, 1000));
        assert_eq!(enough.used(), 0, "the join reserves the batch itself");
    }
    assert!(source.batch(&enough).expect("reads").is_none());
}

#[test]
fn counts_and_statistics_are_exact() {
    let batches = [numbers(0, 10), numbers(10, 500), numbers(510, 0)];
    let lengths: Vec<u64> = batches.iter().map(|batch| block(batch).bytes().len() as u64).collect();
    let rows = spill(&temporary(), &batches);
    let written: Vec<u64> = rows.marks().iter().map(|mark| mark.length).collect();
    assert_eq!((rows.rows(), rows.bytes(), &written), (510, lengths.iter().sum(), &lengths));
    let source = rows.source(batches[0].schema());
    let statistics = source.statistics();
    assert_eq!((statistics.rows, statistics.bytes), (Some(510), Some(rows.bytes())));
    assert!(!source.has_row_numbers() && source.schema() == batches[0].schema());
}

/// Returns the numbers of a batch.
fn values(batch: &RecordBatch) -> Vec<i64> {
    batch.column(0).as_primitive::<Int64Type>().values().to_vec()
}

#[test]
fn many_workers_write_and_read_each_row_once() {
    let rows = Arc::new(create(&temporary()));
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let rows = &rows;
            scope.spawn(move || {
                for part in 0..25 {
                    let first = (worker * 25 + part) * 100;
                    rows.append(&block(&numbers(first, 100))).expect("appends");
                }
            });
        }
    });
    assert_eq!((rows.rows(), rows.marks().len()), (20_000, 200));
    // Two sources of one file do not disturb each other.
    let sources = [0, 1].map(|_| rows.source(numbers(0, 0).schema()));
    for source in &sources {
        let read = || std::iter::from_fn(|| source.batch(&unlimited()).expect("reads"));
        let read = || read().flat_map(|batch| values(&batch)).collect::<Vec<i64>>();
        let parts: Vec<Vec<i64>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..8).map(|_| scope.spawn(read)).collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
        });
        let all = parts.concat();
        assert_eq!(all.len(), 20_000);
        assert_eq!(all.into_iter().collect::<HashSet<_>>(), (0..20_000).collect());
    }
}

#[test]
fn a_join_reads_the_rows_under_a_memory_limit() {
    let batches: Vec<RecordBatch> = (0..20).map(|i| numbers(i * 100, 100)).collect();
    let input = || Input::source(spill(&temporary(), &batches).source(batches[0].schema()));
    let join = crate::Join::inner().on("n").memory_limit(64 << 20);
    assert_eq!(join.count(input(), input()).expect("joins").0, 2000);
}

#[test]
fn compression_saves_bytes_and_keeps_the_rows() {
    let batches: Vec<RecordBatch> = (0..20).map(|i| numbers(i * 500, 500)).collect();
    let written = SpillCompression::ALL.map(|compression| {
        let rows = spill_with(&temporary(), compression, &batches);
        let source = rows.source(batches[0].schema());
        for batch in &batches {
            assert_eq!(source.batch(&unlimited()).expect("reads").as_ref(), Some(batch));
        }
        let marks = rows.marks();
        assert!(marks.iter().all(|mark| mark.compression == compression));
        assert_eq!(rows.bytes(), marks.iter().map(Mark::uncompressed).sum::<u64>());
        (rows.bytes(), marks.iter().map(|mark| mark.length).sum::<u64>())
    });
    let [none, lz4, zstd] = written;
    assert!(none.0 == none.1 && lz4.0 == none.0 && zstd.0 == none.0);
    assert!(lz4.1 < none.1 / 3 * 2 && zstd.1 < lz4.1, "{written:?}");
}

/// A join often writes blocks because memory was refused.
#[test]
fn without_memory_a_block_is_not_compressed() {
    let block = block(&numbers(0, 1000));
    for compression in [SpillCompression::Lz4, SpillCompression::Zstd] {
        let needed = block.compressing_bytes(compression);
        for (limit, expected) in [(needed - 1, SpillCompression::None), (needed, compression)] {
            let budget = Budget::new(Some(limit));
            let stored = SpillTarget::new(&temporary(), compression, &budget).form(&block);
            assert_eq!(stored.mark.compression, expected);
            drop(stored);
            assert_eq!(budget.used(), 0);
        }
    }
}

/// The decompressed rows need memory, too.
#[test]
fn reading_reserves_both_forms_of_a_block() {
    for compression in [SpillCompression::Lz4, SpillCompression::Zstd] {
        let rows = spill_with(&temporary(), compression, &[numbers(0, 1000)]);
        let source = rows.source(numbers(0, 0).schema());
        let mark = rows.marks()[0];
        let needed = mark.reading_bytes();
        assert!(needed >= mark.length + mark.payload);
        let refused = source.batch(&Budget::new(Some(needed - 1)));
        assert!(matches!(refused, Err(Error::MemoryLimit { .. })));
        let enough = Budget::new(Some(needed));
        assert_eq!(source.batch(&enough).expect("fits"), Some(numbers(0, 1000)));
        assert_eq!((enough.used(), enough.peak()), (0, needed));
    }
}

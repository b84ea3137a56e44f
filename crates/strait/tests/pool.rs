//! Joins whose memory comes from a pool that others use, too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader, StringArray};
use strait::{
    Algorithm, CancelToken, Error, Join, MemoryBudget, MemoryPool, Report, Source, SourceContext,
    TempFolders,
};

const MIB: u64 = 1 << 20;

/// A pool that refuses some requests.
#[derive(Debug, Default)]
struct Pool {
    size: u64,
    used: AtomicU64,
    most: AtomicU64,
    requests: AtomicU64,
    /// The numbers of the requests that are refused.
    refused: Vec<u64>,
    /// The number of the first request that panics.
    panics: Option<u64>,
}

impl Pool {
    fn of(size: u64) -> Arc<Pool> {
        Arc::new(Pool { size, ..Pool::default() })
    }

    fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }
}

impl MemoryPool for Pool {
    fn grow(&self, bytes: u64) -> bool {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        assert!(self.panics.is_none_or(|first| number < first), "the pool panics");
        if self.refused.contains(&number) {
            return false;
        }
        let more = |used: u64| used.checked_add(bytes).filter(|&total| total <= self.size);
        let granted = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        if let Ok(used) = granted {
            self.most.fetch_max(used + bytes, Ordering::SeqCst);
        }
        granted.is_ok()
    }

    fn shrink(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::SeqCst);
        assert!(before >= bytes, "more was returned than taken");
    }
}

/// A table with some 130 bytes per row. Each key occurs once.
fn table(rows: usize) -> impl RecordBatchReader + Send + 'static {
    let batch = |at: usize| {
        let all = at..rows.min(at + 500);
        let keys =
            all.clone().map(|row| (row as i64).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64));
        let texts = all.map(|row| format!("{row:x<100}"));
        let columns: [(&str, arrow::array::ArrayRef); 2] = [
            ("k", Arc::new(Int64Array::from_iter_values(keys))),
            ("t", Arc::new(StringArray::from_iter_values(texts))),
        ];
        RecordBatch::try_from_iter(columns).expect("two columns")
    };
    let batches: Vec<_> = (0..rows).step_by(500).map(batch).collect();
    let schema = batches[0].schema();
    RecordBatchIterator::new(batches.into_iter().map(Ok), schema)
}

fn join_with(budget: &Arc<MemoryBudget>) -> Join {
    let folders = Arc::new(TempFolders::new(vec![]));
    Join::inner().on("k").threads(2).memory_budget(budget).spill(folders)
}

/// Joins tables with these numbers of rows, and returns the number of joined rows.
fn joined(join: &Join, left: usize, right: usize) -> Result<(usize, Report), Error> {
    let mut reader = join.run(table(left), table(right))?;
    let mut rows = 0;
    for batch in &mut reader {
        rows += batch.map_err(Error::from_arrow)?.num_rows();
    }
    Ok((rows, reader.report().expect("the join has ended")))
}

/// The budget is told a limit that the pool does not have.
#[test]
fn a_pool_that_is_smaller_than_the_limit() {
    for size in [4 * MIB, 8 * MIB, 16 * MIB] {
        for limit in [size, 64 * MIB, 1 << 40, u64::MAX] {
            for algorithm in [None, Some(Algorithm::Spill)] {
                let pool = Pool::of(size);
                let budget = MemoryBudget::of_pool(limit, Arc::clone(&pool) as _);
                let mut join = join_with(&budget);
                if let Some(algorithm) = algorithm {
                    join = join.algorithm(algorithm);
                }
                let ran = joined(&join, 120_000, 130_000);
                let (rows, report) =
                    ran.unwrap_or_else(|e| panic!("{size} {limit} {algorithm:?}: {e}"));
                assert_eq!(rows, 120_000);
                assert!(report.spilled.bytes > 0, "{size} {limit} {algorithm:?}");
                assert!(report.plan.memory_limit <= Some(limit), "{report}");
                drop((join, budget, report));
                assert_eq!(pool.used(), 0);
                assert!(pool.most.load(Ordering::SeqCst) <= size);
            }
        }
    }
}

/// The report shows the memory that the join really had.
#[test]
fn the_plan_knows_what_the_pool_granted() {
    let pool = Pool::of(8 * MIB);
    let budget = MemoryBudget::of_pool(1 << 40, pool);
    let (_, report) = joined(&join_with(&budget), 120_000, 130_000).expect("it spills");
    assert!(report.plan.memory_limit <= Some(8 * MIB), "{report}");
}

/// Another owner holds a part of the pool.
#[test]
fn a_pool_that_others_use() {
    for size in [8 * MIB, 16 * MIB] {
        for other in [size / 4, size / 2] {
            let pool = Pool::of(size);
            assert!(pool.grow(other));
            let budget = MemoryBudget::of_pool(size, Arc::clone(&pool) as _);
            let ran = joined(&join_with(&budget), 120_000, 130_000);
            assert_eq!(ran.unwrap_or_else(|e| panic!("{size} {other}: {e}")).0, 120_000);
        }
    }
}

/// Both joins spill within what they get. The second may find too little left: then it says so.
#[test]
fn two_joins_share_a_pool() {
    for _ in 0..4 {
        let pool = Pool::of(32 * MIB);
        let results = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let budget = MemoryBudget::of_pool(16 * MIB, Arc::clone(&pool) as _);
                    let ran = joined(&join_with(&budget), 150_000, 150_000);
                    results.lock().expect("no panic").push(ran.map(|(rows, _)| rows));
                });
            }
        });
        for result in results.into_inner().expect("no panic") {
            assert_eq!(result.expect("each has half of the pool"), 150_000);
        }
        assert_eq!(pool.used(), 0);
    }
}

/// One refusal, at any time, is not the end of a join that fits.
#[test]
fn one_refusal_of_a_large_pool() {
    for number in 0..12 {
        let pool = Arc::new(Pool { size: 1 << 30, refused: vec![number], ..Pool::default() });
        let budget = MemoryBudget::of_pool(1 << 30, Arc::clone(&pool) as _);
        let (rows, report) = joined(&join_with(&budget), 30_000, 30_000).expect("it fits");
        assert_eq!(rows, 30_000);
        assert_eq!(report.spilled.bytes, 0, "request {number}");
        assert!(pool.requests.load(Ordering::SeqCst) > 0);
    }
}

/// A pool that panics is an error, and no bytes are lost.
#[test]
fn a_pool_that_panics() {
    for first in [0, 1, 3] {
        let pool = Arc::new(Pool { size: 1 << 30, panics: Some(first), ..Pool::default() });
        let budget = MemoryBudget::of_pool(1 << 30, Arc::clone(&pool) as _);
        match joined(&join_with(&budget), 30_000, 30_000) {
            Ok((rows, _)) => assert_eq!(rows, 30_000),
            Err(error) => assert!(matches!(error, Error::MemoryLimit { .. }), "{error}"),
        }
        assert_eq!(budget.used(), 0);
        drop(budget);
        assert_eq!(pool.used(), 0);
    }
}

/// A source that cancels the join from outside while it is read.
struct Cancelling(CancelToken, std::sync::atomic::AtomicUsize);

impl Source for Cancelling {
    fn schema(&self) -> arrow::datatypes::SchemaRef {
        table(1).schema()
    }

    fn next(
        &self,
        _: &SourceContext<'_>,
    ) -> Result<Option<strait::Morsel>, arrow::error::ArrowError> {
        let read = self.1.fetch_add(1, Ordering::SeqCst);
        if read == 3 {
            self.0.cancel();
        }
        // Without the token, this source would never end.
        let batch = table(500).next().expect("one batch")?;
        Ok(Some(strait::Morsel::new(batch)))
    }
}

#[test]
fn a_token_cancels_a_join() {
    let token = CancelToken::new();
    let endless = || strait::Input::source(Cancelling(token.clone(), Default::default()));
    let join = Join::inner().on("k").threads(2).cancelled_by(&token);
    let error = join.count(endless(), table(10)).expect_err("it is cancelled");
    assert!(matches!(error, Error::Cancelled), "{error}");
    assert!(token.is_cancelled());
}

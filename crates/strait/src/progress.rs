//! The progress of a running join: counters, and the thread that calls the progress callback.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::schedule::{catch_panic, lock};
use crate::stopwatch::thread_time;

/// The callback of [`Join::on_progress`](crate::Join::on_progress).
pub(crate) type OnProgress = Arc<dyn Fn(&Progress) + Send + Sync>;

/// A stage of a running join.
///
/// ```
/// use strait::{Join, Stage};
///
/// let join = Join::inner().on("id").on_progress(|progress| {
///     if progress.stage != Stage::Done {
///         println!("{}", progress.stage.name());
///     }
/// });
/// # drop(join);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Reading, until the build side is known and read to its end. If it is known at the start, only this side is read.
    Read,
    /// Converting key columns to key words, and partitioning or sorting them.
    Partition,
    /// Building the hash table.
    Build,
    /// Probing: finding matches and writing their rows.
    Probe,
    /// Writing held rows that the join type returns by their flag: unmatched rows, matched rows, or all rows with a mark.
    Unmatched,
    /// The join has finished.
    Done,
}

impl Stage {
    const ALL: [Stage; 6] =
        [Stage::Read, Stage::Partition, Stage::Build, Stage::Probe, Stage::Unmatched, Stage::Done];

    /// Returns a short name for display.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Read => "reading",
            Stage::Partition => "partitioning",
            Stage::Build => "building",
            Stage::Probe => "joining",
            Stage::Unmatched => "unmatched rows",
            Stage::Done => "done",
        }
    }
}

/// A snapshot of a running join's progress.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use strait::{Join, Progress};
///
/// let show = |progress: &Progress| println!("{}: {} rows", progress.stage.name(), progress.done);
/// let join = Join::inner().on("id").on_progress(show);
/// assert_eq!(join.count(ids(vec![1, 2]), ids(vec![2]))?.0, 1);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The current stage.
    pub stage: Stage,
    /// The number of rows read from the left table.
    pub left_rows: u64,
    /// The number of rows read from the right table.
    pub right_rows: u64,
    /// The number of rows that the current stage has processed.
    pub done: u64,
    /// The number of rows that the current stage will process; zero if unknown.
    pub total: u64,
    /// The number of output rows so far. It never decreases.
    pub output_rows: u64,
}

/// The counters behind [`Progress`], shared by all workers.
#[derive(Default)]
pub(crate) struct Counters {
    stage: AtomicU8,
    pub(crate) left_rows: AtomicU64,
    pub(crate) right_rows: AtomicU64,
    /// The rows that a source left out because they cannot match. They count as read, too.
    pub(crate) skipped_rows: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) total: AtomicU64,
    /// The output rows that the join has found. If the join starts again, the number goes back.
    found: AtomicU64,
    /// The output rows that the callback sees: the largest value that `found` has had. So the number never
    /// decreases.
    output_rows: AtomicU64,
    /// The CPU time that all workers together have spent on gathering output, in nanoseconds.
    gathering: AtomicU64,
    /// The number of batches that were gathered.
    gathers: AtomicU64,
}

impl Counters {
    /// Runs `gather`, and adds its CPU time to the time that workers spend on gathering output.
    ///
    /// The system takes about half a microsecond to tell the CPU time of a thread, which is 2 to 4 % of the time of a
    /// small batch. So only the first batches are measured one by one. After that, every sixteenth batch is measured,
    /// and counts sixteen times.
    pub(crate) fn gathering<T>(&self, gather: impl FnOnce() -> T) -> T {
        const SAMPLE: u64 = 16;
        let number = self.gathers.fetch_add(1, Ordering::Relaxed);
        let weight = match number {
            ..SAMPLE => 1,
            _ if number.is_multiple_of(SAMPLE) => SAMPLE,
            _ => return gather(),
        };
        let begun = thread_time();
        let gathered = gather();
        let spent = thread_time().saturating_sub(begun);
        let spent = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        self.gathering.fetch_add(spent.saturating_mul(weight), Ordering::Relaxed);
        gathered
    }

    /// Returns the CPU time that all workers together have spent on gathering output.
    pub(crate) fn gathered(&self) -> Duration {
        Duration::from_nanos(self.gathering.load(Ordering::Relaxed))
    }

    /// Adds output rows.
    pub(crate) fn add_output(&self, rows: u64) {
        let found = self.found.fetch_add(rows, Ordering::Relaxed) + rows;
        self.output_rows.fetch_max(found, Ordering::Relaxed);
    }

    /// Returns the output rows that the join has found.
    pub(crate) fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    /// Sets `found` back to an earlier value, because the join will find the later output rows a second time.
    pub(crate) fn find_again(&self, since: u64) {
        self.found.store(since, Ordering::Relaxed);
    }

    pub(crate) fn enter(&self, stage: Stage, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.stage.store(stage as u8, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Progress {
        Progress {
            stage: Stage::ALL[self.stage.load(Ordering::Relaxed) as usize],
            left_rows: self.left_rows.load(Ordering::Relaxed),
            right_rows: self.right_rows.load(Ordering::Relaxed),
            done: self.done.load(Ordering::Relaxed),
            total: self.total.load(Ordering::Relaxed),
            output_rows: self.output_rows.load(Ordering::Relaxed),
        }
    }
}

/// Calls the progress callback ten times per second until it is dropped, and then once more.
pub(crate) struct Ticker {
    end: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(crate) fn start(
        callback: Option<OnProgress>,
        counters: &Arc<Counters>,
    ) -> Result<Option<Ticker>> {
        let Some(callback) = callback else { return Ok(None) };
        let counters = Arc::clone(counters);
        let end = Arc::new((Mutex::new(false), Condvar::new()));
        let signal = Arc::clone(&end);
        let tick = move || {
            let (ended, changed) = &*signal;
            loop {
                let wait =
                    changed.wait_timeout_while(lock(ended), Duration::from_millis(100), |ended| {
                        !*ended
                    });
                let ended = *wait.unwrap_or_else(|e| e.into_inner()).0;
                if let Err(message) = catch_panic(|| callback(&counters.snapshot())) {
                    log::warn!("the progress callback panicked and is not called again: {message}");
                    return;
                }
                if ended {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("strait-progress".to_string()).spawn(tick);
        Ok(Some(Ticker { end, thread: Some(thread.map_err(Error::thread)?) }))
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        *lock(&self.end.0) = true;
        self.end.1.notify_all();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

//! What a running join tells of itself: counters, and the thread that calls back with them.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::schedule::guarded;
use crate::schedule::lock;

/// The callback of [`Join::on_progress`](crate::Join::on_progress).
pub(crate) type OnProgress = Arc<dyn Fn(&Progress) + Send + Sync>;

/// What the join is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Reading both sides until the smaller one is known and held.
    Read,
    /// Turning key columns into key words and partitioning or sorting them.
    Partition,
    /// Building the hash table.
    Build,
    /// Finding matches and writing rows.
    Probe,
    /// Writing the rows of the build side that found no match.
    Unmatched,
    /// Done.
    Done,
}

impl Stage {
    const ALL: [Stage; 6] =
        [Stage::Read, Stage::Partition, Stage::Build, Stage::Probe, Stage::Unmatched, Stage::Done];

    /// A word for it.
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

/// A moment of a running join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// What the join is busy with.
    pub stage: Stage,
    /// Rows read of the left table.
    pub left_rows: u64,
    /// Rows read of the right table.
    pub right_rows: u64,
    /// Rows the current stage has dealt with, and of how many, if that is known.
    pub done: u64,
    /// The total `done` runs up to; zero when unknown.
    pub total: u64,
    /// Rows of output so far.
    pub output_rows: u64,
}

/// The counters behind [`Progress`], shared by all workers.
#[derive(Default)]
pub(crate) struct Counters {
    stage: AtomicU8,
    pub(crate) left_rows: AtomicU64,
    pub(crate) right_rows: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) total: AtomicU64,
    /// Rows of output since the join began, or began again.
    found: AtomicU64,
    /// The rows of output that are shown: the most that were ever found. They never go back.
    output_rows: AtomicU64,
}

impl Counters {
    /// Adds rows of output.
    pub(crate) fn add_output(&self, rows: u64) {
        let found = self.found.fetch_add(rows, Ordering::Relaxed) + rows;
        self.output_rows.fetch_max(found, Ordering::Relaxed);
    }

    /// Rows of output since the join began, or began again.
    pub(crate) fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    /// The join begins again, and finds all rows of output anew.
    pub(crate) fn find_again(&self) {
        self.found.store(0, Ordering::Relaxed);
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

/// Calls the progress callback ten times a second until dropped, and once more then.
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
                let called = guarded(|| {
                    callback(&counters.snapshot());
                    Ok(())
                });
                if let Err(error) = called {
                    log::warn!("the progress callback failed and is not called again: {error}");
                    return;
                }
                if ended {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("strait-progress".to_string()).spawn(tick);
        let thread =
            thread.map_err(|error| Error::Worker(format!("could not start a thread: {error}")))?;
        Ok(Some(Ticker { end, thread: Some(thread) }))
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

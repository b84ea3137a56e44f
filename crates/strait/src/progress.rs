//! What a running join tells of itself.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

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
    pub(crate) output_rows: AtomicU64,
}

impl Counters {
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

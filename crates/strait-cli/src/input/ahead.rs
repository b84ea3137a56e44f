//! Decodes Parquet row groups ahead of the join on several threads, and returns their batches in file order.
//!
//! The join asks for one batch after another, and decompressing a batch takes longer than joining it. Each
//! row group has its own short queue. A worker that has filled its queue waits:
//!
//! ```text
//!  row groups   0: ██ taken   1: ▓▓▓▓ worker   2: ▓▓ worker   3: waits for a worker
//!                                 └──► next()
//! ```

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;

use super::parquet::{self, Footer};
use crate::failure::Told;
use crate::join::cores;
use crate::memory::Memory;
use crate::panics::caught;

/// The number of batches of a row group that may wait in its queue.
const WAITING: usize = 4;

/// A row group that is to be read.
pub(super) struct Unit {
    /// The index of the table's file.
    pub(super) file: usize,
    pub(super) path: PathBuf,
    pub(super) footer: Footer,
    pub(super) group: usize,
}

/// A batch, or None when the row group has ended without an error.
type Item = Result<Option<RecordBatch>, ArrowError>;

/// The row groups that are being read. Dropping this value stops the workers.
pub(super) struct Ahead {
    /// For each row group that is not completely taken: its file and its queue. The current one is last.
    queues: Vec<(usize, Receiver<Item>)>,
    workers: Vec<JoinHandle<()>>,
}

impl Ahead {
    /// Starts to read the given columns.
    pub(super) fn start(
        units: Vec<Unit>,
        columns: &[usize],
        threads: usize,
        memory: &Memory,
    ) -> std::io::Result<Ahead> {
        let mut tasks = Vec::with_capacity(units.len());
        let mut queues = Vec::with_capacity(units.len());
        for unit in units {
            let (sender, receiver) = sync_channel(WAITING);
            queues.push((unit.file, receiver));
            tasks.push(Mutex::new(Some((unit, sender))));
        }
        queues.reverse();
        let mut ahead = Ahead { queues, workers: Vec::new() };
        // Twice as many threads as cores, so that some decode while others wait for the disk.
        let threads = threads.min(tasks.len()).min(2 * cores());
        let shared = Arc::new((tasks, AtomicUsize::new(0)));
        for _ in 0..threads {
            let (shared, columns) = (Arc::clone(&shared), columns.to_vec());
            let memory = memory.clone();
            let worker = thread::Builder::new().name("strait-read".into()).spawn(move || {
                let (tasks, next) = &*shared;
                while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let taken = task.lock().ok().and_then(|mut task| task.take());
                    let Some((unit, sender)) = taken else { break };
                    if !decode(&unit, &columns, &memory, &sender) {
                        break;
                    }
                }
            });
            ahead.workers.push(worker?);
        }
        Ok(ahead)
    }

    /// Returns the next batch, and the index of its file.
    pub(super) fn next(&mut self) -> Option<(usize, Result<RecordBatch, ArrowError>)> {
        loop {
            let (file, queue) = self.queues.last()?;
            let file = *file;
            let item = match queue.recv() {
                Ok(Ok(Some(batch))) => Ok(batch),
                Ok(Ok(None)) => {
                    self.queues.pop();
                    continue;
                }
                Ok(Err(error)) => Err(error),
                // A queue that closes before its end belongs to a worker that panicked.
                Err(_) => Err(ArrowError::ParquetError("a page could not be decoded".into())),
            };
            if item.is_err() {
                self.queues.clear();
            }
            return Some((file, item));
        }
    }
}

/// Sends the batches of a row group. Returns false if nobody needs them any more.
fn decode(unit: &Unit, columns: &[usize], memory: &Memory, sender: &SyncSender<Item>) -> bool {
    let read = || parquet::read(&unit.path, &unit.footer, columns, Some(unit.group), memory);
    let mut reader = match read() {
        Ok(reader) => reader,
        Err(error) => {
            let error = Told(format!("{error:#}"));
            return sender.send(Err(error.into())).is_ok();
        }
    };
    loop {
        let batch = caught(|| reader.next().transpose());
        let batch = batch.unwrap_or_else(|why| Err(ArrowError::ParquetError(why)));
        let last = !matches!(batch, Ok(Some(_)));
        let ended = matches!(batch, Ok(None));
        if sender.send(batch).is_err() {
            return false;
        }
        if last {
            return ended;
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // Dropping a queue wakes a worker that waits for room in it.
        self.queues.clear();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

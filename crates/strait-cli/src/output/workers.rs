//! The threads that encode Parquet columns. They are started once per file and wait for work.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowLeafColumn};
use parquet::errors::{ParquetError, Result};

use crate::panics::caught;

/// A column writer, its position, and the values that it encodes.
struct Job {
    position: usize,
    writer: ArrowColumnWriter,
    leaf: ArrowLeafColumn,
    done: Sender<Done>,
}

type Done = (usize, Result<ArrowColumnWriter>);

/// Jobs that no thread has taken yet.
#[derive(Default)]
struct Queue {
    jobs: Mutex<(VecDeque<Job>, bool)>,
    added: Condvar,
}

/// A thread pool for one Parquet file. The caller's thread also works.
pub(super) struct Workers {
    queue: Arc<Queue>,
    /// The number of threads to start when there is work.
    helpers: usize,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// A pool for `columns` columns. It never has more threads than columns or cores, because they would only
    /// wait.
    pub(super) fn new(threads: usize, columns: usize) -> Workers {
        let useful = threads.min(columns).min(crate::join::cores());
        Workers { queue: Arc::default(), helpers: useful.saturating_sub(1), threads: Vec::new() }
    }

    /// The number of threads that encode, including the caller's.
    #[cfg(test)]
    fn threads(&self) -> usize {
        self.helpers + 1
    }

    /// Encodes each leaf with the writer at the same position. Returns the writers.
    pub(super) fn encode(
        &mut self,
        writers: Vec<ArrowColumnWriter>,
        leaves: Vec<ArrowLeafColumn>,
    ) -> Result<Vec<ArrowColumnWriter>> {
        if writers.len() != leaves.len() {
            return Err(ParquetError::General("a batch has columns that its schema lacks".into()));
        }
        self.start();
        let columns = writers.len();
        let (done, results) = channel();
        let jobs = writers.into_iter().zip(leaves).enumerate();
        let jobs = jobs.map(|(position, (writer, leaf))| Job {
            position,
            writer,
            leaf,
            done: done.clone(),
        });
        self.queue.lock().0.extend(jobs);
        drop(done);
        self.queue.added.notify_all();
        while let Some(job) = self.queue.take() {
            job.run();
        }
        gather(&results, columns)
    }

    fn start(&mut self) {
        while self.threads.len() < self.helpers {
            let queue = Arc::clone(&self.queue);
            let work = move || {
                while let Some(job) = queue.wait() {
                    job.run();
                }
            };
            match thread::Builder::new().name("strait-write".into()).spawn(work) {
                Ok(thread) => self.threads.push(thread),
                // The threads that were started do the work.
                Err(error) => {
                    log::debug!("cannot start a thread for encoding: {error}");
                    self.helpers = self.threads.len();
                }
            }
        }
    }
}

/// Collects the writers in the order of the columns.
fn gather(results: &Receiver<Done>, columns: usize) -> Result<Vec<ArrowColumnWriter>> {
    let mut writers: Vec<_> = (0..columns).map(|_| None).collect();
    for (position, writer) in results {
        writers[position] = Some(writer?);
    }
    let lost = || ParquetError::General("a thread that encodes columns ended early".into());
    writers.into_iter().map(|writer| writer.ok_or_else(lost)).collect()
}

impl Job {
    fn run(self) {
        let Job { position, mut writer, leaf, done } = self;
        let written = caught(|| writer.write(&leaf).map(|()| writer));
        // Nobody receives the result if another column has failed.
        let _ =
            done.send((position, written.unwrap_or_else(|why| Err(ParquetError::General(why)))));
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<Job>, bool)> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Job> {
        self.lock().0.pop_front()
    }

    /// Waits for a job. Returns None when the pool is dropped.
    fn wait(&self) -> Option<Job> {
        let mut jobs = self.lock();
        loop {
            if let Some(job) = jobs.0.pop_front() {
                return Some(job);
            }
            if jobs.1 {
                return None;
            }
            jobs = self.added.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue.lock().1 = true;
        self.queue.added.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Workers;

    #[test]
    fn no_more_threads_than_columns_or_cores() {
        let cores = crate::join::cores();
        assert_eq!(Workers::new(4096, 3).threads(), cores.min(3));
        assert_eq!(Workers::new(4096, 100_000).threads(), cores);
        assert_eq!(Workers::new(1, 100).threads(), 1);
        assert_eq!(Workers::new(8, 0).threads(), 1);
    }
}

//! The threads of a join, and how they share out work.

mod lock;
mod pool;

pub(crate) use lock::lock;

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::error::{Error, Result};
use pool::ThreadPool;

/// The threads of one join. They stay for all of its stages. The first error of any thread ends the join.
#[derive(Clone)]
pub(crate) struct Workers {
    threads: usize,
    pool: Arc<ThreadPool>,
    cancelled: Arc<AtomicBool>,
    /// The cancellation flags of the join and of the attempts around this one, if this is an
    /// [attempt](Workers::attempt).
    outer: Vec<Arc<AtomicBool>>,
}

impl Workers {
    pub(crate) fn new(threads: usize, cancelled: Arc<AtomicBool>) -> Self {
        Workers { threads: threads.max(1), pool: Arc::default(), cancelled, outer: Vec::new() }
    }

    /// Returns the same threads for work whose failure does not end the join. If the join ends, the work ends
    /// too.
    pub(crate) fn attempt(&self) -> Workers {
        let outer = self.outer.iter().chain([&self.cancelled]).cloned().collect();
        Workers { cancelled: Arc::default(), outer, ..self.clone() }
    }

    /// Returns the same workers, limited to `threads` threads.
    pub(crate) fn at_most(&self, threads: usize) -> Workers {
        Workers { threads: self.threads.min(threads).max(1), ..self.clone() }
    }

    /// Returns the number of threads that [`run`](Workers::run) uses.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Returns the same workers, with as many threads as are worthwhile for `rows` rows.
    pub(crate) fn for_rows(&self, rows: usize) -> Workers {
        /// With fewer rows, a thread costs more than it saves.
        const ROWS_PER_THREAD: usize = 16 * 1024;
        let threads = self.threads.min(rows / ROWS_PER_THREAD).max(1);
        Workers { threads, ..self.clone() }
    }

    /// Returns an error if the join was cancelled. Long loops call it between morsels.
    pub(crate) fn check(&self) -> Result<()> {
        let set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Relaxed);
        let cancelled = set(&self.cancelled) || self.outer.iter().any(set);
        if cancelled { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Runs `work(worker)` once per thread and waits for all.
    pub(crate) fn run(&self, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
        self.check()?;
        if self.threads == 1 {
            return guarded(|| work(0))
                .inspect_err(|_| self.cancelled.store(true, Ordering::Relaxed));
        }
        let failed = Mutex::new(None);
        let one = |worker: usize| {
            if let Err(error) = guarded(|| work(worker)) {
                let mut failed = lock(&failed);
                self.cancelled.store(true, Ordering::Relaxed);
                // `Cancelled` is a consequence of another worker's error. That error has the reason.
                if failed.is_none() || matches!(*failed, Some(Error::Cancelled)) {
                    *failed = Some(error);
                }
            }
        };
        if !self.pool.run(self.threads, &one) {
            // The pool is busy, for example because this call is inside a stage that uses it. Start other
            // threads.
            self.scoped(&one);
        }
        match failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Runs `one(worker)` once per thread, on threads that are started for this call.
    fn scoped(&self, one: &(impl Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for worker in 1..self.threads {
                let spawned = std::thread::Builder::new().spawn_scoped(scope, move || one(worker));
                if let Err(error) = spawned {
                    // In some stages each worker has its own share of the work. So this thread does the
                    // share.
                    log::warn!("could not start a thread ({error}); going on with fewer");
                    one(worker);
                }
            }
            one(0);
        });
    }

    /// Runs `work(task, worker)` for each task below `tasks`. Each idle thread takes the next task.
    pub(crate) fn each(
        &self,
        tasks: usize,
        work: impl Fn(usize, usize) -> Result<()> + Sync,
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let fewer = Workers { threads: self.threads.min(tasks).max(1), ..self.clone() };
        fewer.run(|worker| {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks || stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let done = self.check().and_then(|()| work(task, worker));
                if done.is_err() {
                    stop.store(true, Ordering::Relaxed);
                    return done;
                }
            }
        })
    }
}

/// Returns part `index` of `parts` nearly equal parts of `0..len`.
pub(crate) fn share(len: usize, parts: usize, index: usize) -> Range<usize> {
    let at = |i: usize| (len as u128 * i as u128 / parts as u128) as usize;
    at(index)..at(index + 1)
}

/// Runs code of this crate, and turns a panic into an internal error. The caller's own code (filters, readers,
/// callbacks) runs inside [`catch_panic`], so its panics do not get here.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let panicked = |message| Err(Error::internal(format!("a worker panicked: {message}")));
    catch_panic(work).unwrap_or_else(panicked)
}

/// Runs code, and returns the message of its panic if it panics.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let message = said(&panic).to_string();
        discard(panic);
        message
    })
}

/// Drops the payload of a panic. The payload may be the user's own type, whose `drop` panics in turn, with a
/// payload of its own. After a few such panics, the last payload is leaked.
fn discard(mut panic: Box<dyn Any + Send>) {
    const MAX_PANICS: usize = 8;
    for _ in 0..MAX_PANICS {
        match catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            Ok(()) => return,
            Err(next) => panic = next,
        }
    }
    std::mem::forget(panic);
}

/// Waits on `changed` while `condition` is true. Returns [`Error::Cancelled`] if `cancelled` is set.
///
/// It checks the flag every few milliseconds. So the thread that sets the flag need not know the condition
/// variables.
pub(crate) fn wait_while<'a, T>(
    cancelled: &AtomicBool,
    changed: &Condvar,
    mut guard: MutexGuard<'a, T>,
    mut condition: impl FnMut(&mut T) -> bool,
) -> Result<MutexGuard<'a, T>> {
    const LOOK_EVERY: Duration = Duration::from_millis(10);
    while condition(&mut guard) {
        if cancelled.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        guard = changed.wait_timeout(guard, LOOK_EVERY).unwrap_or_else(|e| e.into_inner()).0;
    }
    Ok(guard)
}

/// Returns the message of a panic.
fn said(panic: &Box<dyn Any + Send>) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(threads: usize) -> Workers {
        Workers::new(threads, Arc::default())
    }

    #[test]
    fn every_task_is_done_once() {
        for threads in [1, 3] {
            let done: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
            let add = |task: usize, _| {
                done[task].fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            workers(threads).each(1000, add).expect("no task fails");
            assert!(done.iter().all(|d| d.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let error = workers(2).run(|w| if w == 1 { panic!("oh") } else { Ok(()) }).unwrap_err();
        assert!(error.to_string().contains("oh"), "{error}");
    }

    #[test]
    fn shares_cover_without_overlap() {
        let mut at = 0;
        for i in 0..7 {
            let part = share(100, 7, i);
            assert_eq!(part.start, at);
            at = part.end;
        }
        assert_eq!(at, 100);
    }
}

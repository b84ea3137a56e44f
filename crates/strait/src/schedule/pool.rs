//! A thread pool that lives for all stages of a join.
//!
//! ```text
//!   run(work) ─► each thread: work(worker) ─► the last one done wakes the caller
//! ```
//!
//! The pool starts a stage on all threads within about ten microseconds. Starting sixteen new threads takes
//! half a millisecond, which is too slow for a pipeline that distributes one chunk every few milliseconds.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::thread::JoinHandle;

use super::lock;

/// A thread pool. Its threads start when they are first needed.
#[derive(Default)]
pub(super) struct ThreadPool {
    /// Held while the threads work on a job.
    threads: Mutex<Vec<JoinHandle<()>>>,
    board: Arc<Board>,
}

#[derive(Default)]
struct Board {
    state: Mutex<State>,
    /// Signals a new job, or the end of the pool.
    work: Condvar,
    /// Signals that all threads have finished the job.
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// The current job, and how many threads take part: numbers 1 up to this.
    job: Option<(Job, usize)>,
    /// Increases with every job.
    number: u64,
    /// The number of threads that have not finished their part.
    busy: usize,
    over: bool,
}

/// The work of each thread, called with its number. It must not panic.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(usize) + Sync));

// SAFETY: the closure is `Sync`, and lives until all threads have finished.
unsafe impl Send for Job {}

impl ThreadPool {
    /// Runs `work(worker)` for each number below `count`, and waits for all. Number 0 runs on the calling
    /// thread. Returns false, and runs nothing, if the pool is busy or a thread could not be started. `work`
    /// may panic only on the calling thread.
    pub(super) fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync)) -> bool {
        let mut threads = match self.threads.try_lock() {
            Ok(threads) => threads,
            Err(TryLockError::Poisoned(threads)) => threads.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        while threads.len() + 1 < count {
            let (board, number) = (Arc::clone(&self.board), threads.len() + 1);
            let name = format!("strait-{number}");
            match std::thread::Builder::new().name(name).spawn(move || board.serve(number)) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    log::warn!("could not start a thread ({error}); going on with fewer");
                    return false;
                }
            }
        }
        // SAFETY: this only extends the lifetime. No thread uses the closure after `AllDone` has waited,
        // which it does even while unwinding.
        let job = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync)>(
                work,
            )
        };
        self.board.post(Job(job), count - 1);
        let all_done = AllDone(&self.board);
        work(0);
        drop(all_done);
        true
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.board.state().over = true;
        self.board.work.notify_all();
        let threads = self.threads.get_mut().unwrap_or_else(|e| e.into_inner());
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                log::debug!("a thread of the pool panicked");
            }
        }
    }
}

/// Waits, when dropped, until all threads have finished their part.
struct AllDone<'a>(&'a Board);

impl Drop for AllDone<'_> {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// Records, when dropped, that a thread has finished its part.
struct PartDone<'a>(&'a Board);

impl Drop for PartDone<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.busy -= 1;
        if state.busy == 0 {
            self.0.done.notify_all();
        }
    }
}

impl Board {
    fn post(&self, job: Job, others: usize) {
        let mut state = self.state();
        state.job = Some((job, others));
        state.number += 1;
        state.busy = others;
        self.work.notify_all();
    }

    fn wait(&self) {
        let mut state = self.state();
        while state.busy > 0 {
            state = self.done.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        state.job = None;
    }

    /// The loop of a thread, until the pool is dropped.
    fn serve(&self, number: usize) {
        let mut seen = 0;
        loop {
            let mut state = self.state();
            while state.number == seen && !state.over {
                state = self.work.wait(state).unwrap_or_else(|e| e.into_inner());
            }
            if state.over {
                return;
            }
            seen = state.number;
            let Some((job, _)) = state.job.filter(|(_, others)| number <= *others) else {
                continue;
            };
            drop(state);
            let done = PartDone(self);
            // SAFETY: the thread that posted the job waits until all threads have finished it.
            unsafe { (*job.0)(number) };
            drop(done);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn everyone_takes_part_once() {
        let pool = ThreadPool::default();
        for count in [1, 2, 5, 3, 5, 1] {
            let seen: Vec<AtomicUsize> = (0..6).map(|_| AtomicUsize::new(0)).collect();
            for round in 1..=200 {
                let work = |worker: usize| {
                    seen[worker].fetch_add(1, Ordering::Relaxed);
                };
                assert!(pool.run(count, &work));
                let all: usize = seen.iter().map(|seen| seen.load(Ordering::Relaxed)).sum();
                assert_eq!(all, count * round);
            }
            assert!(seen[..count].iter().all(|seen| seen.load(Ordering::Relaxed) == 200));
        }
    }

    #[test]
    fn whoever_is_busy_says_so() {
        let pool = ThreadPool::default();
        let refused = AtomicUsize::new(0);
        let within = |_: usize| {
            refused.fetch_add(usize::from(!pool.run(2, &|_| {})), Ordering::Relaxed);
        };
        assert!(pool.run(3, &within));
        assert_eq!(refused.into_inner(), 3);
    }
}

//! Decides whether refused memory may still become free.
//!
//! A join under a memory limit must not fail, nor make smaller batches, because its output is read slowly. So
//! a worker that is refused memory waits while another participant can still release some:
//!
//! - another worker, unless that one also waits for memory or for its turn;
//! - the consumer, unless it waits for a batch and there is none.
//!
//! When no such participant is left, the waiting workers make a last attempt, one after the other: first the
//! workers that can continue with less memory, then the others. If an attempt succeeds, the others keep
//! waiting.
//!
//! A worker needs memory for its input and then for its output. If all workers reserved memory for input at
//! once, too little might be left for the output of any of them, although one worker after the other would
//! have enough. So a worker *starts* a piece of work only if no other worker has started one, or if enough
//! memory is left afterwards. Workers that wait to start fail last.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::{Error, Result};
use crate::memory::Budget;
use crate::schedule::lock;

/// The state of a running join that decides whether waiting for memory makes sense.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// The number of workers that produce output, and that wait for nothing except the queue.
    active: AtomicUsize,
    /// The number of batches that were sent and not taken yet.
    queued: AtomicUsize,
    /// Whether a batch was ever sent.
    sent: AtomicBool,
    /// Whether the consumer is waiting for a batch.
    awaited: AtomicBool,
    /// The number of workers that wait for memory and can continue with less.
    flexible: AtomicUsize,
    /// The number of pieces of work that were started and are not finished.
    started: AtomicUsize,
    /// The number of workers that call a concurrent source. They may have reserved memory of the budget for the call.
    reading: AtomicUsize,
    /// Held by the worker that starts a piece of work.
    starting: Mutex<()>,
    /// The number of events after which somebody may release more memory than before: a batch was taken, a
    /// worker has ended, a piece of work has finished.
    moves: AtomicU64,
    /// Held by the worker that makes a last attempt.
    last: Mutex<()>,
}

/// What a worker does when memory is finally refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It continues with less, for example with half a batch.
    TakesLess,
    /// It ends the join.
    Fails,
    /// It waits as long as another worker has started work or calls a source. If no worker does, it ends the
    /// join.
    StartsLater,
}

impl Flow {
    /// Counts a batch that is about to be sent, until the result is dropped.
    pub(crate) fn sending(self: &Arc<Self>) -> Queued {
        self.sent.store(true, Ordering::SeqCst);
        self.queued.fetch_add(1, Ordering::SeqCst);
        Queued { flow: Arc::clone(self) }
    }

    /// Records that the consumer waits for a batch, or that there is no consumer besides the sink.
    pub(crate) fn awaiting(&self, budget: &Budget) {
        self.awaited.store(true, Ordering::SeqCst);
        budget.nudge();
    }

    /// Records that the consumer has received something, and no longer waits. Call it before the batch is
    /// released.
    pub(crate) fn received(&self) {
        self.awaited.store(false, Ordering::SeqCst);
    }

    /// Returns whether no participant is left that could release memory for a waiting worker.
    fn hopeless(&self, refused: Refused) -> bool {
        let flexible = || self.flexible.load(Ordering::SeqCst);
        let others = match refused {
            Refused::TakesLess => 0,
            Refused::Fails => flexible(),
            Refused::StartsLater => {
                let reading = self.reading.load(Ordering::SeqCst);
                flexible() + self.started.load(Ordering::SeqCst) + reading
            }
        };
        others == 0
            && self.active.load(Ordering::SeqCst) == 0
            && self.queued.load(Ordering::SeqCst) == 0
            && self.awaited.load(Ordering::SeqCst)
    }

    /// Runs `attempt`, and repeats it whenever memory was released, until it succeeds, fails with another
    /// error, or no more memory will be released. The caller must be an active worker of this flow, and must
    /// hold no output that it could send.
    pub(crate) fn patiently<T>(
        &self,
        (budget, refused): (&Budget, Refused),
        cancelled: &AtomicBool,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let waiter = budget.waiter();
        // An attempt that fails halfway releases what it had reserved. Two workers with such attempts must
        // not wake each other forever. So until `moves` changes, each new attempt requires that less memory
        // is in use than the previous attempt found.
        let (mut moves, mut least) = (0, u64::MAX);
        loop {
            let before = self.moves();
            match attempt() {
                Err(Error::MemoryLimit { .. }) => {}
                done => return done,
            }
            if before != moves {
                (moves, least) = (before, u64::MAX);
            }
            // The failed attempt has released its own reservations. Memory that others released after the failure and
            // before this line is not noticed here. But the attempt is repeated at the latest when no other
            // participant is left.
            let level = budget.used();
            let less = |used| used < level.min(least) || (used < level && self.moves() != moves);
            let idle = self.idle(budget);
            let flexible = self.flexible(budget, refused);
            if let Some(used) = waiter.wait(less, || self.hopeless(refused), cancelled)? {
                least = least.min(used);
                continue;
            }
            let _last = lock(&self.last);
            // The worker that held this lock before may have succeeded. Then it releases memory later.
            if self.hopeless(refused) {
                // Become active before the attempt, so that the others wait for its result.
                drop(idle);
                drop(flexible);
                let before = self.moves();
                let done = attempt();
                if !matches!(done, Err(Error::MemoryLimit { .. })) {
                    return done;
                }
                // A worker that was just woken may have taken the memory. It will release it later.
                let _idle = self.idle(budget);
                if self.hopeless(refused) && self.moves() == before {
                    return done;
                }
            }
        }
    }

    /// Waits until the consumer has taken all output, if there was any, and waits for more. After that, the
    /// free memory does not depend on how fast the output is read. No worker may be active.
    pub(crate) fn drained(&self, budget: &Budget, cancelled: &AtomicBool) -> Result<()> {
        let waiter = budget.waiter();
        let drained = || !self.sent.load(Ordering::SeqCst) || self.hopeless(Refused::TakesLess);
        waiter.wait(|_| false, drained, cancelled).map(drop)
    }

    /// Starts a piece of work. `attempt` reserves the memory that the work holds. Its argument is true if no
    /// other worker has started work.
    pub(crate) fn start<'a, T>(
        &'a self,
        (budget, spare): (&'a Budget, u64),
        resting: &Resting<'_>,
        attempt: impl FnOnce(bool) -> Result<T>,
    ) -> Result<(Started<'a>, T)> {
        let idle = resting.idle();
        let _starting = lock(&self.starting);
        drop(idle);
        let alone = self.started.load(Ordering::SeqCst) == 0;
        self.may_read((budget, spare))?;
        let made = attempt(alone)?;
        self.started.fetch_add(1, Ordering::SeqCst);
        Ok((Started { flow: self, budget }, made))
    }

    /// Counts a worker that calls a concurrent source, until the result is dropped.
    pub(crate) fn reading<'a>(&'a self, budget: &'a Budget) -> ReadingSource<'a> {
        let others = self.reading.fetch_add(1, Ordering::SeqCst);
        let alone = others == 0 && self.started.load(Ordering::SeqCst) == 0;
        ReadingSource { flow: self, budget, alone }
    }

    /// Fails if fewer than `spare` bytes are left while others may still release memory. A source or a reader
    /// may take memory of the same budget, and fails if this memory is refused. So a worker calls it only with
    /// memory to spare, or after the consumer has taken the output.
    pub(crate) fn may_read(&self, (budget, spare): (&Budget, u64)) -> Result<()> {
        let alone = self.started.load(Ordering::SeqCst) == 0;
        let others = !alone || self.queued.load(Ordering::SeqCst) > 0;
        // The limit may have become lower since `spare` was computed.
        let spare = spare.min(budget.limit().unwrap_or(u64::MAX) / 2);
        match others && budget.left() < spare {
            true => Err(budget.refuse(spare, budget.used(), "a worker's next rows")),
            false => Ok(()),
        }
    }

    /// A worker of this flow that may rest. If it `holds_output`, it never rests.
    pub(crate) fn resting<'a>(&'a self, budget: &'a Budget, holds_output: bool) -> Resting<'a> {
        Resting((!holds_output && !budget.unlimited()).then_some((self, budget)))
    }

    fn moves(&self) -> u64 {
        self.moves.load(Ordering::SeqCst)
    }

    /// Counts a waiting worker that can continue with less memory, until the result is dropped.
    fn flexible<'a>(&'a self, budget: &'a Budget, refused: Refused) -> Option<Flexible<'a>> {
        (refused == Refused::TakesLess).then(|| {
            self.flexible.fetch_add(1, Ordering::SeqCst);
            Flexible { flow: self, budget }
        })
    }

    /// Counts a worker as active until the result is dropped.
    pub(crate) fn active<'a>(&'a self, budget: &'a Budget) -> Active<'a> {
        self.active.fetch_add(1, Ordering::SeqCst);
        Active { flow: self, budget }
    }

    /// Counts an active worker as idle until the result is dropped.
    pub(crate) fn idle<'a>(&'a self, budget: &'a Budget) -> Idle<'a> {
        self.one_less_active(budget);
        Idle { flow: self }
    }

    fn one_less_active(&self, budget: &Budget) {
        // When the last active worker leaves, waiting workers must check whether their wait is hopeless.
        if self.active.fetch_sub(1, Ordering::SeqCst) == 1 {
            budget.nudge();
        }
    }
}

/// A batch that was sent and not taken yet. Drop it before the memory of the batch is released.
#[derive(Debug)]
pub(crate) struct Queued {
    flow: Arc<Flow>,
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.flow.queued.fetch_sub(1, Ordering::SeqCst);
        self.flow.moves.fetch_add(1, Ordering::SeqCst);
    }
}

/// An active worker.
pub(crate) struct Active<'a> {
    flow: &'a Flow,
    budget: &'a Budget,
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.flow.moves.fetch_add(1, Ordering::SeqCst);
        self.flow.one_less_active(self.budget);
    }
}

/// A piece of work that was started. Drop it after the memory that the work holds.
pub(crate) struct Started<'a> {
    flow: &'a Flow,
    budget: &'a Budget,
}

impl Drop for Started<'_> {
    fn drop(&mut self) {
        self.flow.moves.fetch_add(1, Ordering::SeqCst);
        if self.flow.started.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.budget.nudge();
        }
    }
}

/// A worker that calls a concurrent source.
pub(crate) struct ReadingSource<'a> {
    flow: &'a Flow,
    budget: &'a Budget,
    /// Whether no other worker calls the source or has started work.
    pub(crate) alone: bool,
}

impl Drop for ReadingSource<'_> {
    fn drop(&mut self) {
        if self.flow.reading.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.budget.nudge();
        }
    }
}

/// A waiting worker that can continue with less memory.
struct Flexible<'a> {
    flow: &'a Flow,
    budget: &'a Budget,
}

impl Drop for Flexible<'_> {
    fn drop(&mut self) {
        if self.flow.flexible.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.budget.nudge();
        }
    }
}

/// A worker that waits for another worker.
pub(crate) struct Idle<'a> {
    flow: &'a Flow,
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.flow.active.fetch_add(1, Ordering::SeqCst);
    }
}

/// A worker that holds no output, and no memory that it could give back. It may wait for a reader, or for
/// another worker that waits for a reader. Meanwhile, no other worker has to wait for it.
pub(crate) struct Resting<'a>(Option<(&'a Flow, &'a Budget)>);

impl<'a> Resting<'a> {
    /// Counts the worker as idle until the guard is dropped.
    pub(crate) fn idle(&self) -> Option<Idle<'a>> {
        self.0.map(|(flow, budget)| flow.idle(budget))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn memory_is_waited_for_while_somebody_may_give_it_back() {
        let budget = Budget::new(Some(100));
        let (flow, cancelled) = (Arc::new(Flow::default()), AtomicBool::new(false));
        let queued = budget.reserve(80, "a batch").expect("fits");
        let sent = flow.sending();
        flow.awaiting(&budget);
        let _me = flow.active(&budget);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                flow.received();
                drop(sent);
                drop(queued);
            });
            let reserved = flow
                .patiently((&budget, Refused::Fails), &cancelled, || budget.reserve(50, "more"));
            assert_eq!(reserved.expect("it comes free").bytes(), 50);
        });
    }

    #[test]
    fn nobody_waits_without_hope() {
        let budget = Budget::new(Some(100));
        let (flow, cancelled) = (Flow::default(), AtomicBool::new(false));
        let _held = budget.reserve(80, "a table").expect("fits");
        flow.awaiting(&budget);
        // Both workers are refused. Each sees that the other one waits or has ended.
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let _me = flow.active(&budget);
                    let refused = flow.patiently((&budget, Refused::Fails), &cancelled, || {
                        budget.reserve(50, "more")
                    });
                    assert!(matches!(refused, Err(Error::MemoryLimit { .. })));
                });
            }
        });
    }

    #[test]
    fn whoever_waits_hears_of_the_end() {
        let budget = Budget::new(Some(100));
        let (flow, cancelled) = (Flow::default(), AtomicBool::new(false));
        let _held = budget.reserve(80, "a table").expect("fits");
        let _me = flow.active(&budget);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(30));
                cancelled.store(true, Ordering::Relaxed);
            });
            let refused = flow
                .patiently((&budget, Refused::Fails), &cancelled, || budget.reserve(50, "more"));
            assert!(matches!(refused, Err(Error::Cancelled)));
        });
    }

    /// An attempt that reserves memory in two steps, and is refused in the second, releases memory. For
    /// another worker that does the same, this must not look like progress.
    #[test]
    fn refused_workers_do_not_wake_one_another() {
        const WORKERS: usize = 8;
        let budget = Budget::new(Some(100));
        let (flow, cancelled) = (Flow::default(), AtomicBool::new(false));
        let attempts = AtomicUsize::new(0);
        let _held = budget.reserve(20, "a table").expect("fits");
        flow.awaiting(&budget);
        let busy = flow.active(&budget);
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    let _me = flow.active(&budget);
                    let refused = flow.patiently((&budget, Refused::Fails), &cancelled, || {
                        attempts.fetch_add(1, Ordering::SeqCst);
                        let _first = budget.reserve(5, "the first part")?;
                        std::thread::sleep(Duration::from_micros(100));
                        budget.reserve(90, "the second part")
                    });
                    assert!(matches!(refused, Err(Error::MemoryLimit { .. })));
                });
            }
            std::thread::sleep(Duration::from_millis(300));
            drop(busy);
        });
        let attempts = attempts.into_inner();
        // Waiting workers try again at intervals. On a loaded machine, they wait longer, so they try more often. If
        // they woke one another, there would be thousands of attempts.
        assert!(attempts <= 100 * WORKERS, "{attempts} attempts, and no memory came free");
    }
}

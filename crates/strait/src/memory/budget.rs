//! A hard limit on memory that several owners share.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::error::{Error, Result};
use crate::memory::{MemoryPool, Taken};
use crate::schedule::{lock, wait_while};

/// A hard limit on memory that several owners share: a join, and the readers and writers around it.
///
/// Each owner reserves memory before it allocates. A reservation that would exceed the limit is refused with
/// [`Error::MemoryLimit`].
///
/// ```
/// use strait::{Join, MemoryBudget};
///
/// let budget = MemoryBudget::new(Some(1 << 30));
/// let join = Join::inner().on("id").memory_budget(&budget);
/// let decoder = budget.reserve(8 << 20, "a decoded page")?;
/// assert_eq!(budget.used(), decoder.bytes());
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug)]
pub struct MemoryBudget {
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
    waiting: Waiting,
    pool: Option<Taken>,
}

/// Synchronises the threads that wait until memory is released.
#[derive(Debug, Default)]
struct Waiting {
    waiters: AtomicUsize,
    /// Held by a waiter while it checks whether to wait.
    looking: Mutex<()>,
    changed: Condvar,
}

impl MemoryBudget {
    /// Creates a budget of `limit` bytes. Without a limit, the budget only counts.
    ///
    /// With a limit, idle memory of the process is released first: see
    /// [`release_memory`](crate::release_memory).
    pub fn new(limit: Option<u64>) -> Arc<MemoryBudget> {
        if limit.is_some() {
            crate::memory::release_memory();
        }
        Self::create(limit.unwrap_or(u64::MAX), None)
    }

    /// Creates a budget of at most `limit` bytes that takes its memory from a pool.
    ///
    /// Joins plan with the limit. So the limit should be at most the number of bytes that the pool can grant, for
    /// example the size of the pool. The budget takes bytes when it needs them, and returns bytes that it no longer
    /// needs. If the pool refuses bytes, the limit becomes the number of bytes that the budget could get, until the
    /// pool grants more. When a join begins to spill, it takes the bytes that the pool grants at that time, and keeps
    /// them until it ends. So another join with the same pool may find too little memory.
    pub fn of_pool(limit: u64, pool: Arc<dyn MemoryPool>) -> Arc<MemoryBudget> {
        crate::memory::release_memory();
        // The largest number means that there is no limit.
        let limit = limit.min(u64::MAX - 1);
        Self::create(limit, Some(Taken::new(pool, limit)))
    }

    fn create(limit: u64, pool: Option<Taken>) -> Arc<MemoryBudget> {
        let (used, peak, waiting) = Default::default();
        Arc::new(MemoryBudget { limit, used, peak, waiting, pool })
    }

    /// Reserves `bytes` until the reservation is dropped. `what` names the purpose in the error message.
    pub fn reserve(self: &Arc<Self>, bytes: u64, what: &str) -> Result<MemoryReservation> {
        self.reserve_leaving(bytes, 0, what)
    }

    /// Reserves `bytes`, if at least `spare` bytes are left after that. `what` names the purpose in the error
    /// message.
    pub(crate) fn reserve_leaving(
        self: &Arc<Self>,
        bytes: u64,
        spare: u64,
        what: &str,
    ) -> Result<MemoryReservation> {
        let mut reservation = MemoryReservation { budget: Arc::clone(self), bytes: 0 };
        reservation.grow_leaving(bytes, spare, what)?;
        Ok(reservation)
    }

    /// Returns the bytes that are reserved now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the limit in bytes, if there is one.
    pub fn limit(&self) -> Option<u64> {
        (!self.unlimited()).then_some(self.most())
    }

    /// Returns the limit, or the largest number if there is none.
    fn most(&self) -> u64 {
        self.pool.as_ref().map_or(self.limit, Taken::most)
    }

    /// Returns the bytes that a join that spills can plan with, or `None` if there is no limit. With a pool, the
    /// budget first takes these bytes, and keeps them: all that the pool grants if the pool has refused memory, else
    /// `bytes`.
    pub(crate) fn settle(&self, bytes: u64) -> Option<u64> {
        match &self.pool {
            Some(pool) => Some(pool.settle(bytes)),
            None => self.limit(),
        }
    }

    /// Returns the bytes that are left.
    pub(crate) fn left(&self) -> u64 {
        self.most().saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Returns whether there is no limit.
    pub(crate) fn unlimited(&self) -> bool {
        self.limit == u64::MAX
    }

    /// Returns whether the budget takes its bytes from a pool.
    pub(crate) fn has_pool(&self) -> bool {
        self.pool.is_some()
    }

    /// Returns the most bytes that were ever reserved at once.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Registers a thread that is going to wait for memory, until the result is dropped.
    pub(crate) fn waiter(&self) -> Waiter<'_> {
        self.waiting.waiters.fetch_add(1, Ordering::SeqCst);
        Waiter(self)
    }

    /// Makes all waiters check their conditions again.
    pub(crate) fn nudge(&self) {
        if self.waiting.waiters.load(Ordering::SeqCst) > 0 {
            // A waiter that has checked, and does not sleep yet, holds the lock. So it cannot miss the
            // notification.
            drop(lock(&self.waiting.looking));
            self.waiting.changed.notify_all();
        }
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::SeqCst);
        if let Some(pool) = &self.pool {
            pool.release(&self.used);
        }
        self.nudge();
    }

    /// Counts `more` bytes as used if `spare` bytes are left after that. Returns the bytes that were in use before the
    /// call: as `Ok` if the memory was granted, as `Err` if it was refused.
    fn take(&self, more: u64, spare: u64) -> Result<u64, u64> {
        let Some(pool) = &self.pool else {
            let most = self.limit.saturating_sub(spare);
            return self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
                used.checked_add(more).filter(|&total| total <= most)
            });
        };
        // A refusal lowers the limit. So waiting threads check again whether they wait in vain.
        pool.take(&self.used, more, spare).inspect_err(|_| self.nudge())
    }

    /// Returns the error of a refused reservation.
    pub(crate) fn refuse(&self, needed: u64, used: u64, what: &str) -> Error {
        let hint = ", or read fewer columns".to_string();
        Error::MemoryLimit { what: what.to_string(), needed, used, limit: self.most(), hint }
    }
}

/// A thread that waits for memory of a budget.
pub(crate) struct Waiter<'a>(&'a MemoryBudget);

impl Waiter<'_> {
    /// Waits until `less` returns true for the number of reserved bytes, or `hopeless` returns true. Returns this
    /// number if `less` returned true for it, or `None` if the wait was hopeless.
    pub(crate) fn wait(
        &self,
        less: impl Fn(u64) -> bool,
        hopeless: impl Fn() -> bool,
        cancelled: &AtomicBool,
    ) -> Result<Option<u64>> {
        let waiting = &self.0.waiting;
        // Keep the value that ended the wait: others may reserve memory right after it.
        let mut found = None;
        let wait = |_: &mut ()| {
            found = Some(self.0.used()).filter(|&used| less(used));
            found.is_none() && !hopeless()
        };
        drop(wait_while(cancelled, &waiting.changed, lock(&waiting.looking), wait)?);
        Ok(found)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Memory that is reserved in a [`MemoryBudget`]. Dropping it releases the memory.
///
/// ```
/// let budget = strait::MemoryBudget::new(Some(1000));
/// let mut reservation = budget.reserve(600, "a buffer")?;
/// assert!(budget.reserve(600, "another buffer").is_err());
/// reservation.shrink(200);
/// assert_eq!((reservation.bytes(), budget.used()), (400, 400));
/// drop(reservation);
/// assert_eq!(budget.used(), 0);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug)]
pub struct MemoryReservation {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl MemoryReservation {
    /// Reserves `more` bytes in addition. `what` names the purpose in the error message.
    pub fn grow(&mut self, more: u64, what: &str) -> Result<()> {
        self.grow_leaving(more, 0, what)
    }

    fn grow_leaving(&mut self, more: u64, spare: u64, what: &str) -> Result<()> {
        match self.budget.take(more, spare) {
            Ok(used) => {
                self.budget.peak.fetch_max(used + more, Ordering::Relaxed);
                self.bytes += more;
                Ok(())
            }
            Err(used) => Err(self.budget.refuse(more, used, what)),
        }
    }

    /// Releases `less` bytes, or all if fewer are reserved.
    pub fn shrink(&mut self, less: u64) {
        let less = less.min(self.bytes);
        self.budget.give_back(less);
        self.bytes -= less;
    }

    /// Splits off `bytes` into a separate reservation.
    pub(crate) fn split(&mut self, bytes: u64) -> MemoryReservation {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        MemoryReservation { budget: Arc::clone(&self.budget), bytes }
    }

    /// Returns the number of reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Releases all bytes now.
    pub(crate) fn release(&mut self) {
        self.shrink(self.bytes);
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_never_passed() {
        let budget = MemoryBudget::new(Some(100));
        let first = budget.reserve(60, "a table").expect("fits");
        let error = budget.reserve(41, "a table").expect_err("does not fit");
        assert!(error.to_string().contains("at least 101 B"), "{error}");
        drop(first);
        let all = budget.reserve(100, "a table").expect("fits after release");
        assert_eq!((budget.left(), budget.peak()), (0, 100));
        drop(all);
        assert_eq!(budget.left(), 100);
    }

    #[test]
    fn sums_do_not_wrap() {
        let budget = MemoryBudget::new(None);
        let _some = budget.reserve(10, "a").expect("fits");
        assert!(budget.reserve(u64::MAX, "b").is_err());
    }
}

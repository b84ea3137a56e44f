//! A hard limit on memory that several owners share.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::error::{Error, Result};
use crate::schedule::lock;
use crate::schedule::wait_while;

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
    /// It only decreases, and only if a pool refuses memory.
    limit: AtomicU64,
    used: AtomicU64,
    peak: AtomicU64,
    waiting: Waiting,
    pool: Option<Arc<dyn MemoryPool>>,
}

/// Memory of another program part, such as a query engine, from which a [`MemoryBudget`] takes its bytes.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
/// use strait::{MemoryBudget, MemoryPool};
///
/// /// A pool of 1000 bytes.
/// #[derive(Debug, Default)]
/// struct Pool(AtomicU64);
///
/// impl MemoryPool for Pool {
///     fn grow(&self, bytes: u64) -> bool {
///         let more = |used: u64| used.checked_add(bytes).filter(|&total| total <= 1000);
///         self.0.fetch_update(SeqCst, SeqCst, more).is_ok()
///     }
///
///     fn shrink(&self, bytes: u64) {
///         self.0.fetch_sub(bytes, SeqCst);
///     }
/// }
///
/// let pool = Arc::new(Pool::default());
/// let budget = MemoryBudget::of_pool(5000, pool.clone());
/// let first = budget.reserve(600, "a buffer")?;
/// // The pool refuses this. So the budget is smaller than it seemed.
/// assert!(budget.reserve(600, "another buffer").is_err());
/// assert_eq!(budget.limit(), Some(900));
/// drop(first);
/// assert_eq!(pool.0.load(SeqCst), 0);
/// # Ok::<(), strait::Error>(())
/// ```
pub trait MemoryPool: Send + Sync + fmt::Debug {
    /// Takes bytes from the pool. Returns false if the pool refuses them. It must not block, because workers of a
    /// join call it.
    fn grow(&self, bytes: u64) -> bool;

    /// Returns bytes to the pool.
    fn shrink(&self, bytes: u64);

    /// Returns the bytes that the pool could still grant, if it knows. Others may take them meanwhile.
    fn left(&self) -> Option<u64> {
        None
    }
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
    /// If the pool refuses memory, the budget lowers its limit: to the bytes in use, half of the refused bytes, and no
    /// more than the pool has left. So a join plans with the memory that it can really get. The limit does not increase
    /// again.
    pub fn of_pool(limit: u64, pool: Arc<dyn MemoryPool>) -> Arc<MemoryBudget> {
        crate::memory::release_memory();
        // The largest number means that there is no limit.
        Self::create(limit.min(u64::MAX - 1), Some(pool))
    }

    fn create(limit: u64, pool: Option<Arc<dyn MemoryPool>>) -> Arc<MemoryBudget> {
        let (used, peak, waiting) = Default::default();
        Arc::new(MemoryBudget { limit: AtomicU64::new(limit), used, peak, waiting, pool })
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
        self.limit.load(Ordering::SeqCst)
    }

    /// Returns the bytes that are left.
    pub(crate) fn left(&self) -> u64 {
        self.most().saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Returns whether there is no limit.
    pub(crate) fn unlimited(&self) -> bool {
        self.most() == u64::MAX
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
        if let Some(pool) = self.pool.as_ref().filter(|_| bytes > 0) {
            pool.shrink(bytes);
        }
        self.used.fetch_sub(bytes, Ordering::SeqCst);
        self.nudge();
    }

    /// Takes bytes that were just counted as used from the pool. If the pool refuses them, stops counting them, lowers
    /// the limit, and returns the bytes that are still in use.
    fn take_from_pool(&self, bytes: u64) -> Result<(), u64> {
        let Some(pool) = self.pool.as_ref().filter(|_| bytes > 0) else { return Ok(()) };
        if pool.grow(bytes) {
            return Ok(());
        }
        let used = self.used.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        // The pool may still grant fewer bytes. If it does not know how many, later refusals lower the limit further.
        let rest = (bytes / 2).min(pool.left().unwrap_or(u64::MAX));
        self.limit.fetch_min(used.saturating_add(rest), Ordering::SeqCst);
        // Waiting for memory may have become hopeless.
        self.nudge();
        Err(used)
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
    /// Waits until `less` is true of the reserved bytes, or `hopeless` is true. Returns the bytes for which
    /// `less` was true, or `None` if the wait was hopeless.
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
        let most = self.budget.most().saturating_sub(spare);
        let taken = self.budget.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
            used.checked_add(more).filter(|&total| total <= most)
        });
        match taken.and_then(|used| self.budget.take_from_pool(more).map(|()| used)) {
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

    /// A pool of 100 bytes.
    #[derive(Debug, Default)]
    struct Pool(AtomicU64);

    impl MemoryPool for Pool {
        fn grow(&self, bytes: u64) -> bool {
            let more = |used| Some(used + bytes).filter(|&total| total <= 100);
            self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
        }

        fn shrink(&self, bytes: u64) {
            self.0.fetch_sub(bytes, Ordering::SeqCst);
        }

        fn left(&self) -> Option<u64> {
            Some(100 - self.0.load(Ordering::SeqCst))
        }
    }

    #[test]
    fn a_pool_that_refuses_lowers_the_limit() {
        let pool = Arc::new(Pool::default());
        let budget = MemoryBudget::of_pool(1000, Arc::clone(&pool) as _);
        let mut first = budget.reserve(30, "a table").expect("fits");
        let error = budget.reserve(400, "a table").expect_err("the pool refuses it");
        assert!(matches!(error, Error::MemoryLimit { used: 30, .. }), "{error}");
        assert_eq!((budget.limit(), budget.left()), (Some(100), 70));
        first.grow(70, "a table").expect("fits");
        assert!(first.grow(1, "a table").is_err());
        assert_eq!(pool.0.load(Ordering::SeqCst), 100);
        let part = first.split(20);
        first.shrink(10);
        assert_eq!(pool.0.load(Ordering::SeqCst), 90);
        drop((first, part));
        assert_eq!((pool.0.load(Ordering::SeqCst), budget.used()), (0, 0));
    }

    #[test]
    fn a_pool_with_nothing_left() {
        let pool = Arc::new(Pool(AtomicU64::new(100)));
        let budget = MemoryBudget::of_pool(u64::MAX, Arc::clone(&pool) as _);
        assert!(budget.reserve(8, "a table").is_err());
        assert_eq!((budget.limit(), pool.0.load(Ordering::SeqCst)), (Some(0), 100));
        assert!(budget.reserve(0, "nothing").is_ok());
    }

    #[test]
    fn sums_do_not_wrap() {
        let budget = MemoryBudget::new(None);
        let _some = budget.reserve(10, "a").expect("fits");
        assert!(budget.reserve(u64::MAX, "b").is_err());
    }
}

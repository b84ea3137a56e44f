//! The bytes that a budget has taken from a pool of the caller.
//!
//! ```text
//!  used by the join ≤ taken from the pool ≤ limit of the budget
//! ```
//!
//! Bytes are taken when they are needed, and kept until the end. So memory that a join needs to spill cannot be lost to
//! others while it spills. When the pool refuses bytes, [`Taken`] takes what it can get: the join then knows how much
//! memory it really has, and plans with it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::schedule::{catch_panic, lock};

/// Spare memory is needed to spill what was read. So it is at most half of what is in use, or this if that is more.
const SPARE: u64 = 4 << 20;

/// Smaller parts of a refused request are not asked for.
const SMALLEST_REQUEST: u64 = 64 << 10;

/// The pool has refused nothing, or has granted more since then.
const NOT_REFUSED: u64 = u64::MAX;

/// Memory of another program part, such as a query engine, from which a [`MemoryBudget`](crate::MemoryBudget) takes its
/// bytes.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
/// use strait::{MemoryBudget, MemoryPool};
///
/// /// A pool of 1 MB.
/// #[derive(Debug, Default)]
/// struct Pool(AtomicU64);
///
/// impl MemoryPool for Pool {
///     fn grow(&self, bytes: u64) -> bool {
///         let more = |used: u64| used.checked_add(bytes).filter(|&total| total <= 1_000_000);
///         self.0.fetch_update(SeqCst, SeqCst, more).is_ok()
///     }
///
///     fn shrink(&self, bytes: u64) {
///         self.0.fetch_sub(bytes, SeqCst);
///     }
/// }
///
/// let pool = Arc::new(Pool::default());
/// let budget = MemoryBudget::of_pool(5_000_000, pool.clone());
/// let first = budget.reserve(600_000, "a buffer")?;
/// // The pool refuses this. So the budget is smaller than it seemed.
/// assert!(budget.reserve(600_000, "another buffer").is_err());
/// assert!(budget.limit() < Some(1_000_000));
/// // The budget keeps what it has taken until it is dropped.
/// drop(first);
/// assert!(pool.0.load(SeqCst) >= 600_000);
/// drop(budget);
/// assert_eq!(pool.0.load(SeqCst), 0);
/// # Ok::<(), strait::Error>(())
/// ```
pub trait MemoryPool: Send + Sync + fmt::Debug {
    /// Takes bytes from the pool. Returns false if the pool refuses them. It must not block, because workers of a
    /// join call it. A panic counts as a refusal.
    fn grow(&self, bytes: u64) -> bool;

    /// Returns bytes to the pool.
    fn shrink(&self, bytes: u64);
}

/// The bytes that a budget has taken from a pool.
#[derive(Debug)]
pub(super) struct Taken {
    pool: Arc<dyn MemoryPool>,
    bytes: AtomicU64,
    /// The total that the pool has refused; [`NOT_REFUSED`] if it has granted at least as much since then.
    refused: AtomicU64,
    /// Held by the thread that asks the pool.
    asking: Mutex<()>,
}

impl Taken {
    pub(super) fn new(pool: Arc<dyn MemoryPool>) -> Taken {
        let (bytes, asking) = Default::default();
        Taken { pool, bytes, refused: AtomicU64::new(NOT_REFUSED), asking }
    }

    /// Returns the most bytes that can be in use, as far as it is known.
    pub(super) fn most(&self) -> u64 {
        match self.refused.load(Ordering::SeqCst) {
            NOT_REFUSED => u64::MAX,
            _ => self.bytes.load(Ordering::SeqCst),
        }
    }

    /// Takes bytes until `used` bytes, and some more, are covered. Returns whether they are. `spare` bytes should be
    /// left, but not more than a join needs that has read this much. `limit` is the limit of the budget.
    pub(super) fn covers(&self, used: u64, spare: u64, limit: u64) -> bool {
        let spare = spare.min(SPARE.max(used / 2));
        let total = used.saturating_add(spare).min(limit);
        if total <= self.bytes.load(Ordering::SeqCst) {
            return true;
        }
        let _asking = lock(&self.asking);
        if self.take(total) {
            return true;
        }
        // If there is little memory, a part of it is left, instead of the whole spare memory.
        let taken = self.bytes.load(Ordering::SeqCst);
        used.saturating_add(spare.min(taken / 3)) <= taken
    }

    /// Takes bytes up to this total, as many as the pool grants, unless it has refused bytes before. Returns the bytes
    /// that it has.
    pub(super) fn settle(&self, total: u64) -> u64 {
        let _asking = lock(&self.asking);
        if self.refused.load(Ordering::SeqCst) == NOT_REFUSED {
            self.take(total);
        }
        self.bytes.load(Ordering::SeqCst)
    }

    /// Takes bytes up to this total. If the pool refuses them, takes as many as it grants, and returns false.
    fn take(&self, total: u64) -> bool {
        let missing = || total.saturating_sub(self.bytes.load(Ordering::SeqCst));
        let mut request = missing();
        while request > 0 {
            if self.grow(request) {
                self.bytes.fetch_add(request, Ordering::SeqCst);
                request = missing();
            } else {
                self.refused.fetch_min(total, Ordering::SeqCst);
                request /= 2;
                if request < SMALLEST_REQUEST {
                    break;
                }
            }
        }
        let taken = self.bytes.load(Ordering::SeqCst);
        if taken >= self.refused.load(Ordering::SeqCst) {
            self.refused.store(NOT_REFUSED, Ordering::SeqCst);
        }
        taken >= total
    }

    fn grow(&self, bytes: u64) -> bool {
        catch_panic(|| self.pool.grow(bytes)).unwrap_or_else(|message| {
            log::error!("a memory pool panicked: {message}");
            false
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        // A panic here could end the process.
        if bytes > 0
            && let Err(message) = catch_panic(|| self.pool.shrink(bytes))
        {
            log::error!("a memory pool panicked: {message}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::memory::Budget;

    const MIB: u64 = 1 << 20;

    /// A pool that refuses some requests.
    #[derive(Debug, Default)]
    struct Pool {
        size: AtomicU64,
        used: AtomicU64,
        refusals: AtomicU64,
        panics: bool,
    }

    impl Pool {
        fn of(bytes: u64) -> Arc<Pool> {
            Arc::new(Pool { size: AtomicU64::new(bytes), ..Pool::default() })
        }

        fn used(&self) -> u64 {
            self.used.load(Ordering::SeqCst)
        }
    }

    impl MemoryPool for Pool {
        fn grow(&self, bytes: u64) -> bool {
            assert!(!self.panics, "a pool that panics");
            let one_less = |left: u64| left.checked_sub(1);
            if self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
                return false;
            }
            let size = self.size.load(Ordering::SeqCst);
            let more = |used: u64| used.checked_add(bytes).filter(|&total| total <= size);
            self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
        }

        fn shrink(&self, bytes: u64) {
            assert!(!self.panics, "a pool that panics");
            self.used.fetch_sub(bytes, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_pool_that_refuses_lowers_the_limit() {
        let pool = Pool::of(100 * MIB);
        let budget = Budget::of_pool(1000 * MIB, Arc::clone(&pool) as _);
        let mut first = budget.reserve(30 * MIB, "a table").expect("fits");
        assert_eq!((budget.limit(), pool.used()), (Some(1000 * MIB), 30 * MIB));
        let error = budget.reserve(400 * MIB, "a table").expect_err("the pool refuses it");
        assert!(matches!(error, Error::MemoryLimit { used, .. } if used == 30 * MIB), "{error}");
        let limit = budget.limit().expect("it has a limit");
        assert!(limit > 99 * MIB && limit <= 100 * MIB, "{limit}");
        assert_eq!(pool.used(), limit);
        first.grow(limit - 30 * MIB, "a table").expect("it was taken");
        assert!(first.grow(MIB, "a table").is_err());
        // What was taken stays with the budget.
        drop(first);
        assert_eq!((pool.used(), budget.used()), (limit, 0));
        drop(budget);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn spare_memory_is_taken_too() {
        let pool = Pool::of(100 * MIB);
        let budget = Budget::of_pool(1000 * MIB, Arc::clone(&pool) as _);
        let small = budget.reserve_leaving(MIB, 300 * MIB, "rows").expect("fits");
        assert_eq!(pool.used(), MIB + SPARE);
        let large = budget.reserve_leaving(59 * MIB, 300 * MIB, "rows").expect("fits");
        assert_eq!(pool.used(), 90 * MIB);
        // A third of what the pool has must be left, so this is too much.
        assert!(budget.reserve_leaving(10 * MIB, 300 * MIB, "rows").is_err());
        assert!(budget.reserve(30 * MIB, "memory for spilling").is_ok());
        drop((small, large));
    }

    #[test]
    fn a_little_memory_is_divided() {
        let pool = Pool::of(3 * MIB);
        let budget = Budget::of_pool(1000 * MIB, Arc::clone(&pool) as _);
        let rows = budget.reserve_leaving(MIB, 300 * MIB, "rows").expect("fits");
        assert!(pool.used() > 2 * MIB && budget.limit() == Some(pool.used()));
        drop(rows);
    }

    #[test]
    fn a_refusal_in_between_does_no_harm() {
        for refusals in [1, 2] {
            let pool = Pool::of(100 * MIB);
            pool.refusals.store(refusals, Ordering::SeqCst);
            let budget = Budget::of_pool(80 * MIB, Arc::clone(&pool) as _);
            let first = budget.reserve(27 << 10, "rows");
            let second = budget.reserve(40 * MIB, "rows").expect("the pool grants it");
            assert_eq!(budget.limit(), Some(80 * MIB), "{refusals}");
            drop((first, second));
        }
    }

    #[test]
    fn memory_that_others_return_is_taken_later() {
        let pool = Pool::of(10 * MIB);
        let budget = Budget::of_pool(80 * MIB, Arc::clone(&pool) as _);
        assert!(budget.reserve(40 * MIB, "rows").is_err());
        assert!(budget.limit() <= Some(10 * MIB));
        pool.size.store(60 * MIB, Ordering::SeqCst);
        let rows = budget.reserve(40 * MIB, "rows").expect("the pool has grown");
        assert_eq!(budget.limit(), Some(80 * MIB));
        drop(rows);
    }

    #[test]
    fn a_join_plans_with_memory_that_it_has() {
        let pool = Pool::of(100 * MIB);
        let budget = Budget::of_pool(u64::MAX, Arc::clone(&pool) as _);
        assert_eq!(budget.settle(20 * MIB), Some(20 * MIB));
        assert_eq!(pool.used(), 20 * MIB);
        assert!(budget.reserve(200 * MIB, "rows").is_err());
        assert_eq!(budget.settle(20 * MIB), Some(pool.used()));
        assert!(pool.used() > 99 * MIB);
        let small = Budget::of_pool(MIB / 2, Pool::of(MIB));
        assert_eq!(small.settle(20 * MIB), Some(MIB / 2));
        assert_eq!(Budget::new(Some(7)).settle(20 * MIB), Some(7));
        assert_eq!(Budget::new(None).settle(20 * MIB), None);
    }

    #[test]
    fn a_pool_that_panics_refuses() {
        let pool = Arc::new(Pool { panics: true, ..Pool::default() });
        let budget = Budget::of_pool(MIB, pool);
        assert!(budget.reserve(1, "rows").is_err());
        assert_eq!((budget.used(), budget.limit()), (0, Some(0)));
        // Dropping a budget returns its bytes. A panic of the pool stays there.
        let pool = Pool::of(MIB);
        let taken = Taken::new(Arc::clone(&pool) as _);
        assert!(taken.covers(1000, 0, MIB));
        let panicking = Taken::new(Arc::new(Pool { panics: true, ..Pool::default() }));
        panicking.bytes.store(7, Ordering::SeqCst);
        drop((taken, panicking));
        assert_eq!(pool.used(), 0);
    }
}

//! The bytes that a budget has taken from a pool of the caller.
//!
//! ```text
//!  used by the join  ≤  taken from the pool  ≤  limit of the budget
//! ```
//!
//! The budget takes more bytes than the join uses: a join that is refused memory still needs some memory to spill. The
//! budget returns bytes that are no longer needed. After a refusal, it keeps the bytes that it has, so that nobody
//! else can take them before the join spills.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::schedule::{catch_panic, lock};

/// The spare memory, with which a join spills the rows that it has read, is at most half of the bytes in use. But it
/// may always be this large.
const LEAST_SPARE: u64 = 4 << 20;

/// Unused bytes beyond this are returned to the pool.
const MOST_SPARE: u64 = 128 << 20;

/// The budget first asks the pool for at least this many bytes. If the pool refuses, the budget asks for only the
/// bytes that it needs.
const STEP: u64 = 1 << 20;

/// After a refusal, the budget asks for smaller and smaller parts of the request, but for no part smaller than this.
const SMALLEST_REQUEST: u64 = 64 << 10;

/// The value of `obtainable` if the pool has refused nothing yet, or has granted more since its last refusal.
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
/// drop((first, budget));
/// assert_eq!(pool.0.load(SeqCst), 0);
/// # Ok::<(), strait::Error>(())
/// ```
pub trait MemoryPool: Send + Sync + fmt::Debug {
    /// Takes bytes from the pool. Returns false if the pool refuses them. It must not block, because workers of a
    /// join call it, and must not use the budget. A panic counts as a refusal. After a refusal, smaller requests
    /// follow, to find out how much the pool grants. Bytes that are not needed are returned at once.
    fn grow(&self, bytes: u64) -> bool;

    /// Returns bytes to the pool.
    fn shrink(&self, bytes: u64);
}

/// The bytes that a budget has taken from a pool.
#[derive(Debug)]
pub(super) struct Taken {
    pool: Arc<dyn MemoryPool>,
    /// The limit of the budget.
    limit: u64,
    /// Locked by the thread that takes or returns bytes. Bytes in use increase only under this lock.
    state: Mutex<State>,
    /// The bytes that were taken. Changes only under the lock.
    taken: AtomicU64,
    /// The most bytes that the budget could have taken in total at the last refusal, or [`NOT_REFUSED`]. Changes only
    /// under the lock.
    obtainable: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// The bytes that are not returned before the end.
    kept: u64,
}

impl Taken {
    pub(super) fn new(pool: Arc<dyn MemoryPool>, limit: u64) -> Taken {
        let (state, taken) = Default::default();
        Taken { pool, limit, state, taken, obtainable: AtomicU64::new(NOT_REFUSED) }
    }

    /// Returns the current limit: the limit of the budget, or less if the pool has refused bytes.
    pub(super) fn most(&self) -> u64 {
        self.obtainable.load(Ordering::SeqCst).min(self.limit)
    }

    /// Counts `more` bytes as used. After that, `spare` bytes should be left, or fewer if a join that uses so many
    /// bytes needs fewer to spill. Returns the bytes that were in use before the call: as `Ok` if the memory was
    /// granted, as `Err` if it was refused.
    pub(super) fn take(&self, used: &AtomicU64, more: u64, spare: u64) -> Result<u64, u64> {
        let mut state = lock(&self.state);
        let before = used.load(Ordering::SeqCst);
        let allowed = self.limit.saturating_sub(spare);
        let Some(total) = before.checked_add(more).filter(|&total| total <= allowed) else {
            return Err(before);
        };
        let spare = spare.min(LEAST_SPARE.max(total / 2));
        if !self.obtain(total + spare) {
            // If the pool has little memory, only a third of it must be left, instead of all spare memory.
            let had = self.taken();
            let obtainable = self.obtain_most(total + spare);
            if total + spare.min(obtainable / 3) > obtainable {
                self.give_back(obtainable - had);
                state.kept = state.kept.max(had);
                return Err(before);
            }
        }
        used.fetch_add(more, Ordering::SeqCst);
        Ok(before)
    }

    /// Returns the bytes to the pool that a join with so many bytes in use does not need.
    pub(super) fn release(&self, used: &AtomicU64) {
        let surplus = |kept: u64| {
            let used = used.load(Ordering::SeqCst);
            let needed = used + LEAST_SPARE.max(used / 2).min(MOST_SPARE);
            self.taken().saturating_sub(needed.max(kept))
        };
        // Small amounts are not worth a lock.
        if surplus(0) <= STEP.max(self.taken() / 4) {
            return;
        }
        let state = lock(&self.state);
        self.give_back(surplus(state.kept));
    }

    /// Takes what a join needs to spill, and keeps it: all that the pool grants if it has refused memory, else `bytes`.
    /// Returns the bytes that the join has.
    pub(super) fn settle(&self, bytes: u64) -> u64 {
        let mut state = lock(&self.state);
        let wanted = match self.obtainable.load(Ordering::SeqCst) {
            NOT_REFUSED => bytes.min(self.limit),
            _ => self.limit,
        };
        if !self.obtain(wanted) {
            self.obtain_most(wanted);
        }
        state.kept = self.taken();
        state.kept
    }

    fn taken(&self) -> u64 {
        self.taken.load(Ordering::SeqCst)
    }

    /// Takes bytes until `total` bytes are taken, or a few more. Returns false if the pool refuses them.
    fn obtain(&self, total: u64) -> bool {
        let missing = total.saturating_sub(self.taken());
        if missing == 0 {
            return true;
        }
        let more = missing.max(STEP).min(self.limit.saturating_sub(self.taken())).max(missing);
        if self.grow(more) || (more > missing && self.grow(missing)) {
            if self.taken() > self.obtainable.load(Ordering::SeqCst) {
                self.obtainable.store(NOT_REFUSED, Ordering::SeqCst);
            }
            return true;
        }
        false
    }

    /// Takes as many bytes as the pool grants, up to `total`. The pool has just refused to grant `total`. Returns all
    /// bytes that are taken now.
    fn obtain_most(&self, total: u64) -> u64 {
        let mut request = total.saturating_sub(self.taken()) / 2;
        while request >= SMALLEST_REQUEST {
            request = match self.grow(request) {
                true => total - self.taken(),
                false => request / 2,
            };
        }
        self.obtainable.store(self.taken(), Ordering::SeqCst);
        self.taken()
    }

    fn grow(&self, bytes: u64) -> bool {
        let granted = catch_panic(|| self.pool.grow(bytes)).unwrap_or_else(|message| {
            log::error!("a memory pool panicked: {message}");
            false
        });
        if granted {
            self.taken.fetch_add(bytes, Ordering::SeqCst);
        }
        granted
    }

    fn give_back(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.taken.fetch_sub(bytes, Ordering::SeqCst);
        // A panic while memory is released could end the process.
        if let Err(message) = catch_panic(|| self.pool.shrink(bytes)) {
            log::error!("a memory pool panicked: {message}");
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.give_back(self.taken());
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
        requests: AtomicU64,
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
            self.requests.fetch_add(1, Ordering::SeqCst);
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
        // The bytes of a request that fails are returned.
        assert_eq!(pool.used(), 30 * MIB);
        first.grow(limit - 30 * MIB, "a table").expect("the pool grants it");
        assert!(first.grow(MIB, "a table").is_err());
        // After a refusal, the budget keeps what it has.
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
        assert_eq!(pool.used(), MIB + LEAST_SPARE);
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
    fn unused_memory_is_returned() {
        let pool = Pool::of(1000 * MIB);
        let budget = Budget::of_pool(1000 * MIB, Arc::clone(&pool) as _);
        let table = budget.reserve(10 * MIB, "a table").expect("fits");
        let batch = budget.reserve(500 * MIB, "a batch that may be large").expect("fits");
        drop(batch);
        assert_eq!(pool.used(), 15 * MIB);
        // Many small reservations need few requests.
        for _ in 0..1000 {
            drop(budget.reserve(100, "a row").expect("fits"));
        }
        assert!(pool.requests.load(Ordering::SeqCst) < 10);
        drop(table);
        assert!(pool.used() <= LEAST_SPARE + STEP);
    }

    #[test]
    fn a_refusal_in_between_does_no_harm() {
        for refusals in [1, 2, 3] {
            let pool = Pool::of(100 * MIB);
            pool.refusals.store(refusals, Ordering::SeqCst);
            let budget = Budget::of_pool(80 * MIB, Arc::clone(&pool) as _);
            let first = budget.reserve(27 << 10, "rows");
            let second = budget.reserve(40 * MIB, "rows").expect("the pool grants it");
            let third = budget.reserve(30 * MIB, "rows").expect("the pool grants it");
            assert_eq!(budget.limit(), Some(80 * MIB), "{refusals}");
            drop((first, second, third));
        }
    }

    #[test]
    fn memory_that_others_return_is_taken_later() {
        let pool = Pool::of(10 * MIB);
        let budget = Budget::of_pool(80 * MIB, Arc::clone(&pool) as _);
        assert!(budget.reserve(40 * MIB, "rows").is_err());
        assert!(budget.limit() <= Some(10 * MIB) && pool.used() == 0);
        pool.size.store(60 * MIB, Ordering::SeqCst);
        let rows = budget.reserve(40 * MIB, "rows").expect("the pool has grown");
        assert_eq!(budget.limit(), Some(80 * MIB));
        drop(rows);
    }

    #[test]
    fn a_join_that_spills_keeps_its_memory() {
        let pool = Pool::of(100 * MIB);
        let budget = Budget::of_pool(u64::MAX, Arc::clone(&pool) as _);
        assert_eq!(budget.settle(20 * MIB), Some(20 * MIB));
        assert_eq!(pool.used(), 20 * MIB);
        assert!(budget.reserve(200 * MIB, "rows").is_err());
        // After a refusal, it takes what it can get.
        let settled = budget.settle(20 * MIB).expect("a limit");
        assert!(settled > 99 * MIB && settled == pool.used() && budget.limit() == Some(settled));
        drop(budget.reserve(90 * MIB, "rows").expect("it was taken"));
        assert_eq!(pool.used(), settled);
        let small = Budget::of_pool(MIB / 2, Pool::of(MIB));
        assert_eq!(small.settle(20 * MIB), Some(MIB / 2));
        assert_eq!(Budget::new(Some(7)).settle(20 * MIB), Some(7));
        assert_eq!(Budget::new(None).settle(20 * MIB), None);
    }

    /// A request that waits for its refusal does not fail requests that fit.
    #[test]
    fn large_requests_do_not_disturb_small_ones() {
        let pool = Pool::of(100 * MIB);
        let budget = Budget::of_pool(1000 * MIB, Arc::clone(&pool) as _);
        let held = budget.reserve(50 * MIB, "a table").expect("fits");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2000 {
                    assert!(budget.reserve(500 * MIB, "too much").is_err());
                }
            });
            for _ in 0..2000 {
                let small = budget.reserve(MIB, "rows").expect("fits");
                assert!(budget.used() <= pool.used());
                drop(small);
            }
        });
        drop(held);
    }

    #[test]
    fn a_pool_that_panics_refuses() {
        let pool = Arc::new(Pool { panics: true, ..Pool::default() });
        let budget = Budget::of_pool(MIB, pool);
        assert!(budget.reserve(1, "rows").is_err());
        assert_eq!((budget.used(), budget.limit()), (0, Some(0)));
        // Dropping a budget returns its bytes. A panic of the pool stays there.
        let panicking = Taken::new(Arc::new(Pool { panics: true, ..Pool::default() }), MIB);
        panicking.taken.store(7, Ordering::SeqCst);
        drop(panicking);
    }
}

//! A hard limit on the memory of one join.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// The memory one join may hold, and what it holds.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit: Option<u64>) -> Arc<Budget> {
        if limit.is_some() {
            crate::memory::release_memory();
        }
        let limit = limit.unwrap_or(u64::MAX);
        Arc::new(Budget { limit, used: AtomicU64::new(0), peak: AtomicU64::new(0) })
    }

    /// Sets `bytes` aside for `what`, or says that they are not there.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64, what: &str) -> Result<Reservation> {
        let mut reservation = Reservation { budget: Arc::clone(self), bytes: 0 };
        reservation.grow(bytes, what)?;
        Ok(reservation)
    }

    /// What is left.
    pub(crate) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Whether there is no limit.
    pub(crate) fn unlimited(&self) -> bool {
        self.limit == u64::MAX
    }

    /// The most that was ever reserved at once.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn refuse(&self, needed: u64, used: u64, what: &str) -> Error {
        let hint = ", or read fewer columns".to_string();
        Error::MemoryLimit { what: what.to_string(), needed, used, limit: self.limit, hint }
    }
}

/// Memory set aside in a [`Budget`] until dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reservation {
    /// Sets `more` bytes aside.
    pub(crate) fn grow(&mut self, more: u64, what: &str) -> Result<()> {
        let taken = self.budget.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(more).filter(|&total| total <= self.budget.limit)
        });
        match taken {
            Ok(used) => {
                self.budget.peak.fetch_max(used + more, Ordering::Relaxed);
                self.bytes += more;
                Ok(())
            }
            Err(used) => Err(self.budget.refuse(more, used, what)),
        }
    }

    /// How much is set aside.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives everything back now.
    pub(crate) fn release(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = 0;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_never_passed() {
        let budget = Budget::new(Some(100));
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
        let budget = Budget::new(None);
        let _some = budget.reserve(10, "a").expect("fits");
        assert!(budget.reserve(u64::MAX, "b").is_err());
    }
}

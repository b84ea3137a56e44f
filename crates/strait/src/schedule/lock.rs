//! Locking that ignores poisoning.

use std::sync::{Mutex, MutexGuard};

/// Locks a mutex, even if a worker panicked while it held the lock. That panic ends the join, and the guarded
/// values are consistent at any time.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

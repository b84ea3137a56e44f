//! Locks, also after a panic.

use std::sync::{Mutex, MutexGuard};

/// Locks a mutex. A worker that panicked while it held the lock does not matter: its panic ends the join, and
/// the guarded value is consistent at any time.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

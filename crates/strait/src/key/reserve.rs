//! Reserves memory for the conversion of nested keys.

use std::sync::{Arc, PoisonError, RwLock};

use crate::error::Result;
use crate::memory::{Budget, Reservation};

/// The memory that a worker may take for the conversion of nested keys without a reservation.
const UNRESERVED: u64 = 1 << 20;

/// A worker locks this while it has a reservation for a conversion: shared if the budget has enough memory at once,
/// otherwise exclusively. So a worker that is refused waits until the other workers have finished their parts, and tries
/// again. Without this, it would depend on timing whether the memory suffices. All joins of the process share the lock.
static CONVERTING: RwLock<()> = RwLock::new(());

/// Calls `work` while `bytes` are reserved. `work` gets the reservation, and may keep it.
///
/// Up to [`UNRESERVED`] bytes are not reserved. A worker converts one part at a time. So each worker takes at most
/// `UNRESERVED` bytes without a reservation. `work` must not call this function.
pub(super) fn with_reserved<T>(
    budget: &Arc<Budget>,
    bytes: usize,
    work: impl FnOnce(Option<Reservation>) -> Result<T>,
) -> Result<T> {
    with_lock(&CONVERTING, budget, bytes as u64, work)
}

fn with_lock<T>(
    converting: &RwLock<()>,
    budget: &Arc<Budget>,
    bytes: u64,
    work: impl FnOnce(Option<Reservation>) -> Result<T>,
) -> Result<T> {
    if bytes <= UNRESERVED {
        return work(None);
    }
    let reserve = || budget.reserve(bytes, "converting nested keys");
    {
        let _shared = converting.read().unwrap_or_else(PoisonError::into_inner);
        if let Ok(reserved) = reserve() {
            return work(Some(reserved));
        }
    }
    let _alone = converting.write().unwrap_or_else(PoisonError::into_inner);
    work(Some(reserve()?))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::error::Error;

    const LONG: u64 = 4 << 20;

    /// Two conversions run at the same time if the budget has memory for both.
    #[test]
    fn conversions_do_not_wait_without_need() {
        let (lock, budget) = (RwLock::new(()), Budget::new(Some(3 * LONG)));
        let (entered, entries) = channel();
        let (leave, left) = channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                with_lock(&lock, &budget, LONG, move |reserved| {
                    entered.send(()).expect("the test waits for it");
                    // Returns an error when the sender is dropped.
                    let _ = left.recv();
                    drop(reserved);
                    Ok(())
                })
            });
            entries.recv().expect("the first conversion starts");
            let (done, second) = channel();
            scope.spawn(|| with_lock(&lock, &budget, LONG, move |_| Ok(done.send(()).is_ok())));
            let second = second.recv_timeout(Duration::from_secs(20));
            drop(leave);
            second.expect("the second conversion does not wait for the first");
        });
        assert_eq!(budget.used(), 0);
    }

    /// Eight workers share a budget that suffices for one conversion at a time.
    #[test]
    fn a_refused_conversion_waits_for_the_others() {
        let (lock, budget) = (RwLock::new(()), Budget::new(Some(LONG + 10)));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let work = |reserved: Option<Reservation>| {
                            std::thread::yield_now();
                            Ok(reserved.map_or(0, |reserved| reserved.bytes()))
                        };
                        let reserved = with_lock(&lock, &budget, LONG, work).expect("one fits");
                        assert_eq!(reserved, LONG);
                    }
                });
            }
        });
        let error = with_lock(&lock, &budget, 2 * LONG, |_| Ok(())).expect_err("it never fits");
        assert!(matches!(error, Error::MemoryLimit { .. }), "{error}");
        assert!(with_lock(&lock, &budget, UNRESERVED, |none| Ok(none.is_none())).unwrap());
    }
}

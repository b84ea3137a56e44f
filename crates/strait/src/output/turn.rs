//! The order of the segments of an ordered output.

use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex};

use crate::error::Result;
use crate::schedule::{lock, wait_while};

/// Lets the segments of an ordered output send one after the other.
#[derive(Default)]
pub(crate) struct Turn {
    /// The segment that may send now.
    now: Mutex<usize>,
    changed: Condvar,
}

impl Turn {
    pub(super) fn is(&self, segment: usize) -> bool {
        *lock(&self.now) == segment
    }

    /// Waits for the turn of a segment. If an earlier segment failed or was skipped, the turn never comes.
    /// Then `cancelled` is set, and the wait ends with an error.
    pub(super) fn wait_for(&self, segment: usize, cancelled: &AtomicBool) -> Result<()> {
        wait_while(cancelled, &self.changed, lock(&self.now), |now| *now != segment).map(drop)
    }

    pub(super) fn pass(&self, segment: usize) {
        *lock(&self.now) = segment + 1;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::error::Error;

    #[test]
    fn whoever_waits_for_a_turn_that_never_comes_hears_of_the_end() {
        let (turn, cancelled) = (Turn::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            // Segment 0 is skipped, as `Workers::each` skips tasks after the join was cancelled.
            let waits = scope.spawn(|| turn.wait_for(1, &cancelled));
            cancelled.store(true, Ordering::Relaxed);
            assert!(matches!(waits.join().expect("no panic"), Err(Error::Cancelled)));
        });
        turn.pass(0);
        assert!(turn.wait_for(1, &cancelled).is_ok(), "its turn has come");
    }
}

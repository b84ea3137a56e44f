//! The order of the segments of an ordered output.

use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::schedule::{lock, wait_while};

/// The number in place of a segment after the output has ended.
const ENDED: usize = usize::MAX;

/// Ends the output when it is dropped.
pub(crate) struct EndsTurn<'a>(Option<&'a Turn>);

impl EndsTurn<'_> {
    /// Lets the output continue.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for EndsTurn<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.0 {
            *lock(&turn.now) = ENDED;
            turn.changed.notify_all();
        }
    }
}

/// Lets the segments of an ordered output send one after the other.
#[derive(Default)]
pub(crate) struct Turn {
    /// The segment that may send now.
    now: Mutex<usize>,
    changed: Condvar,
}

impl Turn {
    /// Starts another ordered output, whose first segment is segment 0. No segment of the previous one may be left.
    pub(crate) fn restart(&self) {
        *lock(&self.now) = 0;
    }

    pub(super) fn is(&self, segment: usize) -> bool {
        *lock(&self.now) == segment
    }

    /// Waits for the turn of a segment. If an earlier segment failed or was skipped, the turn never comes.
    /// Then `cancelled` is set or the output [has ended](Turn::ends_unless_kept), and the wait ends with an error.
    pub(super) fn wait_for(&self, segment: usize, cancelled: &AtomicBool) -> Result<()> {
        let waits = |now: &mut usize| ![segment, ENDED].contains(now);
        match *wait_while(cancelled, &self.changed, lock(&self.now), waits)? {
            ENDED => Err(Error::Cancelled),
            _ => Ok(()),
        }
    }

    /// Returns a guard. If it is dropped before [`keep`](EndsTurn::keep) is called, the output ends: no segment gets
    /// its turn any more. A join that fails may be tried again, and then `cancelled` is not set.
    pub(crate) fn ends_unless_kept(&self) -> EndsTurn<'_> {
        EndsTurn(Some(self))
    }

    pub(super) fn pass(&self, segment: usize) {
        let mut now = lock(&self.now);
        if *now == segment {
            *now = segment + 1;
        }
        drop(now);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

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

    #[test]
    fn a_segment_that_fails_ends_the_wait_of_the_others() {
        let (turn, cancelled) = (Turn::default(), AtomicBool::new(false));
        turn.ends_unless_kept().keep();
        assert!(turn.is(0), "nothing has ended");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| turn.wait_for(1, &cancelled));
            drop(turn.ends_unless_kept());
            assert!(matches!(waits.join().expect("no panic"), Err(Error::Cancelled)));
        });
        turn.pass(0);
        assert!(turn.wait_for(1, &cancelled).is_err(), "no segment gets its turn any more");
        turn.restart();
        assert!(turn.wait_for(0, &cancelled).is_ok(), "another output has started");
    }
}

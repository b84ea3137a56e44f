//! Batches of Parquet files that wait to be cast, because memory for the cast was refused. The worker that was
//! refused leaves its batch to the next call.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::error::ArrowError;
use strait::Error;

use super::row_groups::ReadRows;

/// A call that waits for another one checks this often whether the join was cancelled.
const WAKES: Duration = Duration::from_millis(10);

/// The batches that were read and not cast yet.
#[derive(Default)]
pub(super) struct Casting {
    state: Mutex<State>,
    /// Notified when a call ends.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<ReadRows>,
    /// The number of calls that read or cast a batch.
    active: usize,
}

impl Casting {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a batch that was read by `read` and cast by `cast`; `None` at the end. No batch is lost if `cast`
    /// is refused memory, because it waits for the next call.
    pub(super) fn next<T>(
        &self,
        read: impl Fn() -> Result<Option<ReadRows>, ArrowError>,
        cast: impl Fn(&ReadRows) -> Result<T, ArrowError>,
        cancelled: impl Fn() -> bool,
    ) -> Result<Option<T>, ArrowError> {
        loop {
            let waiting = {
                let mut state = self.state();
                state.active += 1;
                state.waiting.pop()
            };
            let read = waiting.map_or_else(&read, |waiting| Ok(Some(waiting)));
            let result = read.map(|read| read.map(|read| (cast(&read), read)));
            let mut state = self.state();
            state.active -= 1;
            self.changed.notify_all();
            match result? {
                Some((Ok(cast), _)) => return Ok(Some(cast)),
                Some((Err(error), read)) => {
                    let error = Error::from_arrow(error);
                    if matches!(error, Error::MemoryLimit { .. }) {
                        state.waiting.push(read);
                    }
                    return Err(error.into());
                }
                // Another call may still leave its batch to this one.
                None => loop {
                    if cancelled() || state.active == 0 && state.waiting.is_empty() {
                        return Ok(None);
                    }
                    if !state.waiting.is_empty() {
                        break;
                    }
                    let waited = self.changed.wait_timeout(state, WAKES);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                },
            }
        }
    }
}

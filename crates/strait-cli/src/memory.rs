//! The memory of the command's own readers and writers. It is reserved before it is allocated.
//!
//! Readers and writers share one [`MemoryBudget`] with the join, so `--memory` limits all of them together.
//! Even without a limit, a large request is compared with the machine's free memory, because a damaged file
//! may claim sizes that no machine has.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use strait::{Error, Machine, MemoryBudget, MemoryReservation, Result};

use crate::freed::Freed;

/// Requests of at least this size are compared with the machine's free memory. Smaller ones are not, because
/// the lookup takes longer than most of them.
const LARGE: u64 = 1 << 30;

/// A reader stops waiting for memory after this long without any change.
const QUIET: Duration = Duration::from_secs(1);

/// The budget that the join, its readers and its writer share.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    budget: Arc<MemoryBudget>,
    output: Arc<Output>,
    /// Manages freed memory that the allocator keeps. Present only with a limit.
    freed: Option<Arc<Freed>>,
    /// Whether a refused request waits for memory that queued output holds.
    waits: bool,
}

/// The state of the join's output.
#[derive(Debug, Default)]
struct Output {
    /// Whether a consumer takes rows.
    taken: AtomicBool,
    /// The number of threads that write rows. Until the rows are written, they and queued rows hold memory.
    writing: AtomicUsize,
}

/// While this value exists, a consumer takes rows from the join.
pub(crate) struct Taking(Arc<Output>);

impl Taking {
    /// Runs `write`, which writes rows and releases them. Several threads may write.
    pub(crate) fn writing<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.writing.fetch_add(1, Ordering::Relaxed);
        let _written = Written(&self.0);
        write()
    }
}

/// Ends the count of a thread that writes, also if it panics.
struct Written<'a>(&'a Output);

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.0.writing.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Relaxed);
    }
}

impl Memory {
    /// A budget of `limit` bytes; without a limit, one that only counts.
    pub(crate) fn new(limit: Option<u64>) -> Memory {
        let freed = limit.map(|limit| Arc::new(Freed::new(limit)));
        Memory { budget: MemoryBudget::new(limit), output: Arc::default(), freed, waits: true }
    }

    /// The same memory, for threads that write: they must not wait for themselves.
    pub(crate) fn for_writing(&self) -> Memory {
        Memory { waits: false, ..self.clone() }
    }

    /// The same memory, for sources that the workers of the join call. Only the join knows whether a worker may
    /// wait, so the source is refused at once.
    pub(crate) fn for_sources(&self) -> Memory {
        self.for_writing()
    }

    /// Announces that a consumer will take rows from the join.
    pub(crate) fn taking(&self) -> Taking {
        self.output.taken.store(true, Ordering::Relaxed);
        Taking(Arc::clone(&self.output))
    }

    /// The budget, for the join.
    pub(crate) fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// The limit in bytes, if there is one.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.budget.limit()
    }

    /// Reserves `bytes` for `what`. The memory is returned when the reservation is dropped.
    pub(crate) fn reserve(&self, bytes: u64, what: &str) -> Result<MemoryReservation> {
        let mut reservation = self.budget.reserve(0, what)?;
        self.resize(&mut reservation, bytes, what)?;
        Ok(reservation)
    }

    /// Changes the size of `reservation` to `bytes`.
    pub(crate) fn resize(
        &self,
        reservation: &mut MemoryReservation,
        bytes: u64,
        what: &str,
    ) -> Result<()> {
        let held = reservation.bytes();
        if bytes <= held {
            reservation.shrink(held - bytes);
            return Ok(());
        }
        let more = bytes - held;
        if more >= LARGE
            && self.limit().is_none()
            && more > Machine::free_memory().unwrap_or(u64::MAX)
        {
            return Err(Error::OutOfMemory { what: what.to_string(), needed: more });
        }
        if let Some(freed) = &self.freed {
            freed.keep_small(more);
        }
        reservation.grow(more, what).or_else(|refused| self.wait(reservation, more, what, refused))
    }

    /// Retries while rows are written or while the memory in use changes. Whether a join fits its limit must
    /// not depend on how fast its output is taken.
    fn wait(
        &self,
        reservation: &mut MemoryReservation,
        more: u64,
        what: &str,
        mut refused: Error,
    ) -> Result<()> {
        let (mut used, mut since) = (self.budget.used(), Instant::now());
        let fits = self.limit().is_none_or(|limit| more <= limit);
        while self.waits && fits && since.elapsed() < QUIET {
            if !self.output.taken.load(Ordering::Relaxed) {
                break;
            }
            if self.output.writing.load(Ordering::Relaxed) > 0 {
                since = Instant::now();
            }
            std::thread::sleep(Duration::from_millis(1));
            match reservation.grow(more, what) {
                Ok(()) => return Ok(()),
                Err(error) => refused = error,
            }
            let now = self.budget.used();
            if now != used {
                (used, since) = (now, Instant::now());
            }
        }
        Err(refused)
    }
}

/// Keeps the error of a refused reservation while its message passes through a decoder, which would replace
/// the error by one of its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusal(Arc<Mutex<Option<Error>>>);

impl Refusal {
    /// Keeps the error if it is the first. Returns its message.
    pub(crate) fn note(&self, error: Error) -> String {
        let message = error.to_string();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        message
    }

    /// Returns and removes the error that was kept.
    pub(crate) fn take(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_machine_has_an_exbibyte() {
        let error = Memory::new(None).reserve(1 << 60, "a page").expect_err("too much");
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        assert!(Memory::new(None).reserve(1 << 20, "a page").is_ok());
    }

    #[test]
    fn reservations_follow_their_size() {
        let memory = Memory::new(Some(100));
        let mut held = memory.reserve(40, "a page").expect("fits");
        memory.resize(&mut held, 100, "a page").expect("fits");
        assert!(memory.resize(&mut held, 101, "a page").is_err());
        memory.resize(&mut held, 7, "a page").expect("shrinks");
        assert_eq!(memory.budget().used(), 7);
    }

    #[test]
    fn readers_wait_for_output_that_is_written() {
        let memory = Memory::new(Some(100));
        let output = memory.reserve(60, "a batch").expect("fits");
        assert!(memory.reserve(60, "a page").is_err());
        let taking = memory.taking();
        let reader = memory.clone();
        let reading = std::thread::spawn(move || reader.reserve(60, "a page").is_ok());
        // Longer than a reader waits if nothing changes.
        taking.writing(|| {
            std::thread::sleep(2 * QUIET);
            drop(output);
        });
        assert!(reading.join().expect("no panic"));
        let _output = memory.reserve(60, "a batch").expect("fits");
        assert!(memory.reserve(60, "a page").is_err(), "nothing is written any more");
        assert!(memory.for_writing().reserve(60, "a page").is_err());
    }
}

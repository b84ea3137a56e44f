//! A writer that keeps the system's error of its first failure. Encoders would wrap this error in their own
//! words.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use crate::busy::Step;

/// The first failure of a [`Watched`] writer.
#[derive(Clone, Default)]
pub(super) struct Fault(Arc<Mutex<Option<io::Error>>>);

impl Fault {
    /// Returns and removes the first failure, if there was one.
    pub(super) fn take(&self) -> Option<io::Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::Interrupted
        {
            let copy = match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(error.kind(), error.to_string()),
            };
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(copy);
        }
        result
    }
}

/// A writer that records its first failure, and the time of its calls.
pub(super) struct Watched<W> {
    inner: W,
    fault: Fault,
    /// The time for writing.
    writing: Arc<Step>,
}

impl<W: Write> Watched<W> {
    pub(super) fn new(inner: W, fault: Fault, writing: &Arc<Step>) -> Self {
        Watched { inner, fault, writing: Arc::clone(writing) }
    }
}

impl<W: Write> Write for Watched<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let result = self.writing.time(|| self.inner.write(bytes));
        self.fault.note(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        let result = self.inner.flush();
        self.fault.note(result)
    }
}

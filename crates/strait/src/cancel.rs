//! Cancels a running join from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Cancels a join. All clones of a token share one state. A cancelled token stays cancelled.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator};
/// # let columns = [("k", std::sync::Arc::new(Int64Array::from(vec![1, 2])) as _)];
/// # let batch = RecordBatch::try_from_iter(columns)?;
/// # let table = || RecordBatchIterator::new([Ok(batch.clone())], batch.schema());
/// use strait::{CancelToken, Error, Join};
///
/// let token = CancelToken::new();
/// let join = Join::inner().on("k").cancelled_by(&token);
/// // Another thread would do this while the join runs.
/// token.cancel();
/// assert!(matches!(join.count(table(), table()), Err(Error::Cancelled)));
/// # Ok::<(), arrow::error::ArrowError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Creates a token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Cancels the join. It ends soon after.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the token is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the flag that the workers of the join check.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

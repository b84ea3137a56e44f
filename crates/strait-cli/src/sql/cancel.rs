//! Cancels a statement while it runs.

use std::fmt;
use std::pin::pin;

use futures_util::future::{Either, select};
use tokio::sync::watch;

/// The statement was cancelled by Ctrl-C.
#[derive(Debug)]
pub(super) struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cancelled")
    }
}

impl std::error::Error for Cancelled {}

/// Says whether the running statement must stop.
#[derive(Debug, Clone)]
pub(super) struct Cancel(watch::Sender<bool>);

impl Cancel {
    pub(super) fn new() -> Cancel {
        Cancel(watch::Sender::new(false))
    }

    /// Cancels all work until the next [`Cancel::reset`].
    pub(super) fn ask(&self) {
        self.0.send_replace(true);
    }

    /// Allows work again.
    pub(super) fn reset(&self) {
        self.0.send_replace(false);
    }

    /// Waits for `work`. Fails with [`Cancelled`] if the statement is cancelled first.
    pub(super) async fn race<T>(&self, work: impl Future<Output = T>) -> anyhow::Result<T> {
        let mut asked = self.0.subscribe();
        let (work, asked) = (pin!(work), pin!(asked.wait_for(|asked| *asked)));
        match select(asked, work).await {
            Either::Left((Ok(_), _)) => Err(Cancelled.into()),
            // The sender lives as long as `self`, so nobody waits for ever.
            Either::Left((Err(_), work)) => Ok(work.await),
            Either::Right((done, _)) => Ok(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_or_is_cancelled() {
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let cancel = Cancel::new();
        assert_eq!(runtime.block_on(cancel.race(async { 7 })).unwrap(), 7);
        let asking = cancel.clone();
        let asked = std::thread::spawn(move || asking.ask());
        let never = std::future::pending::<()>();
        assert!(runtime.block_on(cancel.race(never)).unwrap_err().is::<Cancelled>());
        asked.join().unwrap();
        assert!(runtime.block_on(cancel.race(async { 7 })).is_err());
        cancel.reset();
        assert_eq!(runtime.block_on(cancel.race(async { 8 })).unwrap(), 8);
    }
}

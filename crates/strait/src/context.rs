//! The context that a join's stages share.

use std::sync::Arc;

use crate::machine::Machine;
use crate::memory::{Budget, Ledger};
use crate::overrides::TestOverrides;
use crate::progress::Counters;
use crate::schedule::Workers;
use crate::stopwatch::Stopwatch;

/// The objects that every stage of one join uses.
#[derive(Clone)]
pub(crate) struct Context<'a> {
    pub(crate) workers: Workers,
    pub(crate) budget: Arc<Budget>,
    pub(crate) counters: &'a Counters,
    pub(crate) watch: &'a Stopwatch,
    pub(crate) machine: &'a Machine,
    pub(crate) overrides: TestOverrides,
    /// The reservations for the input buffers. `None` if memory is not limited.
    pub(crate) ledger: Option<Arc<Ledger>>,
    /// Whether a table search that takes too long fails with [`Error::BadSeed`](crate::Error::BadSeed).
    pub(crate) bounded: bool,
}

//! The context that a join's stages share.

use std::sync::Arc;

use crate::gpu_options::GpuOptions;
use crate::machine::Machine;
use crate::memory::{Budget, Ledger};
use crate::overrides::TestOverrides;
use crate::progress::Counters;
use crate::schedule::Workers;
use crate::stopwatch::Stopwatch;

/// What every stage works with.
#[derive(Clone)]
pub(crate) struct Context<'a> {
    pub(crate) workers: Workers,
    pub(crate) budget: Arc<Budget>,
    pub(crate) counters: &'a Counters,
    pub(crate) watch: &'a Stopwatch,
    pub(crate) machine: &'a Machine,
    pub(crate) overrides: TestOverrides,
    /// How a join on a device goes about it.
    pub(crate) gpu_options: GpuOptions,
    /// The buffers of the input, where there is a limit.
    pub(crate) ledger: Option<Arc<Ledger>>,
    /// Whether a search that takes too long ends with [`Error::BadSeed`].
    pub(crate) bounded: bool,
}

//! Failures on demand: the n-th operation of a kind fails, so that tests reach every error path.

use std::sync::Mutex;

use crate::error::{Error, Result};
use crate::overrides::{Fault, FaultKind};
use crate::schedule::lock;

/// Counts the operations of the kind that must fail.
#[derive(Default)]
pub(super) struct Faults {
    /// The failures, in their order.
    faults: [Option<Fault>; 2],
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// The number of failures that have happened.
    failed: usize,
    /// The operations of the kind of the next failure since then.
    seen: u64,
}

impl Faults {
    pub(super) fn new(faults: [Option<Fault>; 2]) -> Faults {
        Faults { faults, progress: Mutex::default() }
    }

    /// Returns whether any operation may fail.
    pub(super) fn any(&self) -> bool {
        self.faults[0].is_some()
    }

    /// Returns an error if this is the operation that must fail.
    pub(super) fn check(&self, kind: FaultKind) -> Result<()> {
        if !self.any() {
            return Ok(());
        }
        let mut progress = lock(&self.progress);
        let Some(&Some(fault)) = self.faults.get(progress.failed) else { return Ok(()) };
        if fault.kind != kind {
            return Ok(());
        }
        progress.seen += 1;
        if progress.seen <= fault.nth {
            return Ok(());
        }
        *progress = Progress { failed: progress.failed + 1, seen: 0 };
        Err(error_of(kind))
    }
}

/// Returns the error that a real device would give.
fn error_of(kind: FaultKind) -> Error {
    let failed = |doing: &str| Error::Cuda {
        doing: doing.to_string(),
        name: "CUDA_ERROR_UNKNOWN".to_string(),
        detail: "a test asked for this failure".to_string(),
        hint: String::new(),
    };
    match kind {
        FaultKind::Open => failed("making a context"),
        FaultKind::Compile => Error::KernelCompile {
            module: "a test".to_string(),
            architecture: "simulated".to_string(),
            version: "0.0".to_string(),
            log: "a test asked for this failure".to_string(),
        },
        FaultKind::Allocate => Error::DeviceMemory {
            what: "a test".to_string(),
            needed: 0,
            used: 0,
            budget: 0,
            hint: "a test asked for this failure".to_string(),
        },
        FaultKind::Pin => Error::OutOfMemory { what: "a test".to_string(), needed: 0 },
        FaultKind::Copy => failed("copying"),
        FaultKind::Record => failed("recording an event"),
        FaultKind::Launch => failed("starting a kernel"),
        FaultKind::Synchronize => failed("running kernels and copies"),
    }
}

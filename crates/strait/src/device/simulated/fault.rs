//! Failures on demand: the n-th operation of a kind fails, so that tests reach every error path.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::overrides::{Fault, FaultKind};

/// Counts the operations of the kind that must fail.
#[derive(Default)]
pub(super) struct Faults {
    fault: Option<Fault>,
    seen: AtomicU64,
}

impl Faults {
    pub(super) fn new(fault: Option<Fault>) -> Faults {
        Faults { fault, seen: AtomicU64::new(0) }
    }

    /// Returns whether any operation may fail.
    pub(super) fn any(&self) -> bool {
        self.fault.is_some()
    }

    /// Returns an error if this is the operation that must fail.
    pub(super) fn check(&self, kind: FaultKind) -> Result<()> {
        let fails = self.fault.is_some_and(|fault| {
            fault.kind == kind && self.seen.fetch_add(1, Ordering::Relaxed) == fault.nth
        });
        if fails { Err(error_of(kind)) } else { Ok(()) }
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

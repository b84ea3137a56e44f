//! Failures on demand: the n-th operation of a kind fails, so that tests reach every error path.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// A failure that a simulated device is told to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The kind of operation that fails.
    pub kind: FaultKind,
    /// How many operations of that kind succeed before. Later ones succeed again, except after
    /// [`FaultKind::Synchronize`].
    pub nth: u64,
}

/// The kinds of operations that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// Opening the device.
    Open,
    /// Compiling the kernel of a stage.
    Compile,
    /// Allocating device memory: the device has none left.
    Allocate,
    /// Allocating pinned host memory, pinning the caller's memory, or mapping it.
    Pin,
    /// Enqueueing a copy, a fill or a prefetch.
    Copy,
    /// Recording an event, or letting a stream wait for one.
    Record,
    /// Launching a stage.
    Launch,
    /// Waiting for a stream or an event. The device is dead from then on: queued work is dropped, and
    /// all that uses it fails.
    Synchronize,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [FaultKind; 8] = [
        FaultKind::Open,
        FaultKind::Compile,
        FaultKind::Allocate,
        FaultKind::Pin,
        FaultKind::Copy,
        FaultKind::Record,
        FaultKind::Launch,
        FaultKind::Synchronize,
    ];

    /// The error that a real device gives.
    fn error(self) -> Error {
        let failed = |doing: &str| Error::Cuda {
            doing: doing.to_string(),
            name: "CUDA_ERROR_UNKNOWN".to_string(),
            detail: "a test asked for this failure".to_string(),
            hint: "",
        };
        match self {
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
}

/// Counts operations of the kind that is to fail.
#[derive(Default)]
pub(super) struct Faults {
    fault: Option<Fault>,
    seen: AtomicU64,
}

impl Faults {
    pub(super) fn new(fault: Option<Fault>) -> Faults {
        Faults { fault, seen: AtomicU64::new(0) }
    }

    /// Whether any operation may fail.
    pub(super) fn any(&self) -> bool {
        self.fault.is_some()
    }

    /// An error if this operation is the one that fails.
    pub(super) fn check(&self, kind: FaultKind) -> Result<()> {
        let fails = self.fault.is_some_and(|fault| {
            fault.kind == kind && self.seen.fetch_add(1, Ordering::Relaxed) == fault.nth
        });
        if fails { Err(kind.error()) } else { Ok(()) }
    }
}

//! The partitions of a side in host memory. Some may lie on the device.

use std::sync::Arc;

use crate::device::Pinned;
use crate::error::Result;
use crate::transfer::{Run, TransferContext};

/// The purpose of the host memory, for error messages.
const WHAT: &str = "partitions in host memory";

/// The partitions of a side. Each is a list of runs of tuples. The session owns runs that lie on the device.
pub(crate) struct HostPartitions {
    /// The number of top bits of the mixed key that choose a partition.
    pub(crate) bits: u32,
    pub(crate) runs: Vec<Vec<Run>>,
    pub(crate) rows: Vec<u64>,
}

impl HostPartitions {
    pub(crate) fn new(bits: u32) -> HostPartitions {
        let partitions = 1usize << bits;
        let runs = (0..partitions).map(|_| Vec::new()).collect();
        HostPartitions { bits, runs, rows: vec![0; partitions] }
    }

    /// Allocates pinned memory of at least `bytes` bytes. Sizes are rounded up, so that later requests find
    /// memory that is already pinned.
    pub(crate) fn pin(&self, link: &TransferContext<'_>, bytes: u64) -> Result<Arc<Pinned>> {
        let bytes = bytes.next_multiple_of((16 << 20).min(bytes.next_power_of_two()));
        link.session.pinned(bytes as usize, WHAT)
    }

    /// Adds a run to a partition.
    pub(crate) fn add(&mut self, partition: usize, run: Run) {
        if run.rows > 0 {
            self.rows[partition] += run.rows;
            self.runs[partition].push(run);
        }
    }

    /// Returns the runs of some partitions.
    pub(crate) fn of(&self, partitions: &[usize]) -> Vec<Run> {
        partitions.iter().flat_map(|&partition| self.runs[partition].iter().cloned()).collect()
    }
}

//! Overrides for tests: they force rare code paths, and make simulated devices fail.

/// Overrides that force rare code paths, for tests. The results of a join must not change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TestOverrides {
    /// Hash every key, and give all keys the same hash.
    pub collide: bool,
    /// Use 64-bit row ids, whatever the number of rows.
    pub wide_rows: bool,
    /// Make partitions of a few rows each, so that there are many partitions and two passes.
    pub tiny_partitions: bool,
    /// Hand on candidate pairs in very small chunks.
    pub tiny_chunks: bool,
    /// Store row ids in tuples, also where tuples could have inlined columns.
    pub row_ids: bool,
    /// Run on a simulated device, which orders its work by this seed.
    pub simulated: Option<u64>,
    /// The seed of the join's hash functions. The seed of a report repeats that join. If it is `None`, the
    /// join draws a random seed.
    pub seed: Option<u64>,
    /// How many of the first seeds are bad: they send chosen keys to one partition, and give all hashed keys
    /// the same hash.
    pub bad_seeds: u32,
    /// Do not examine a sample of the build side. A bad seed is then found only while a table is built.
    pub no_sample: bool,
    /// Treat the simulated device as chosen by [`Processor::Auto`](crate::Processor::Auto): if it fails,
    /// the join continues on the CPU. Otherwise it counts as asked for by name.
    pub auto: bool,
    /// The operation that fails on the simulated device.
    pub fault: Option<Fault>,
    /// The operation that fails after `fault` has happened. Operations are counted from then on.
    pub then: Option<Fault>,
    /// Write rows to disk at once, if the join has a place for them, instead of trying to join in memory first.
    pub spill_at_once: bool,
    /// Build the table of `no-partition` on the CPU in parts, if the join may spill.
    pub table_parts: bool,
    /// The memory that this process can use, in bytes, in place of what the system tells.
    pub host_memory: Option<u64>,
}

impl TestOverrides {
    /// Returns the operations that fail on the simulated device, in their order.
    pub(crate) fn faults(&self) -> [Option<Fault>; 2] {
        [self.fault, self.then]
    }
}

/// A failure that a simulated device is told to produce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The kind of operation that fails.
    pub kind: FaultKind,
    /// The number of operations of that kind that succeed first. Later operations succeed again, except after
    /// [`FaultKind::Synchronize`].
    pub nth: u64,
}

/// The kinds of operations that can fail on a simulated device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// Opening the device.
    Open,
    /// Compiling the kernel of a stage.
    Compile,
    /// Allocating device memory: the error says that no memory is left.
    Allocate,
    /// Allocating pinned host memory, pinning the caller's memory, or mapping it.
    Pin,
    /// Enqueueing a copy, a fill or a prefetch.
    Copy,
    /// Recording an event, or making a stream wait for an event.
    Record,
    /// Launching a stage.
    Launch,
    /// Waiting for a stream or an event. From then on the device is lost: queued work is dropped, and every
    /// operation on it fails.
    Synchronize,
}

impl FaultKind {
    /// All kinds.
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
}

//! Switches for tests: rare paths, and devices that fail.

/// Switches that force rare paths, for tests. The results must not change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TestOverrides {
    /// Every key takes the hashed path and every hash is the same.
    pub collide: bool,
    /// Row ids take 64 bits whatever the number of rows.
    pub wide_rows: bool,
    /// Partitions hold a handful of rows, so that there are many and in two passes.
    pub tiny_partitions: bool,
    /// Candidate pairs are handed on a few at a time.
    pub tiny_chunks: bool,
    /// Tuples have row ids, also where they could carry the columns wanted of their rows.
    pub row_ids: bool,
    /// The join runs on a simulated device, whose work runs in an order that follows from this seed.
    pub simulated: Option<u64>,
    /// The join's seed, which hashes and places of keys follow from: that of a report repeats its join.
    /// Each join draws its own where there is none.
    pub seed: Option<u64>,
    /// So many of the first seeds send chosen keys to one place, and give all hashed keys one hash.
    pub bad_seeds: u32,
    /// No sample of the build side is examined, so that a seed that does not suit the keys is found, if
    /// at all, while a table is built.
    pub no_sample: bool,
    /// The simulated device is one that [`Processor::Auto`] has chosen: what fails there before the
    /// first row of output goes on on the CPU. Otherwise it is one that was asked for by name.
    pub auto: bool,
    /// What fails on the simulated device.
    pub fault: Option<Fault>,
}

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
}

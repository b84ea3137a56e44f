//! Where a join runs, and how it goes about it on a GPU: what callers may say.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::options::{Algorithm, by_name};

/// Where a join runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Processor {
    /// On a GPU where that is predicted to be faster, copies included; else on the CPU. The CPU also
    /// joins where the GPU fails before the first row of output.
    #[default]
    Auto,
    /// On the CPU.
    Cpu,
    /// On the GPU of that number.
    Gpu(usize),
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Processor::Auto => f.write_str("auto"),
            Processor::Cpu => f.write_str("cpu"),
            Processor::Gpu(0) => f.write_str("gpu"),
            Processor::Gpu(number) => write!(f, "gpu:{number}"),
        }
    }
}

impl FromStr for Processor {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        let number = |text: &str| text.parse().ok().map(Processor::Gpu);
        let found = match text {
            "auto" => Some(Processor::Auto),
            "cpu" => Some(Processor::Cpu),
            "gpu" => Some(Processor::Gpu(0)),
            _ => text.strip_prefix("gpu:").and_then(number),
        };
        let unknown = || format!("unknown device \"{text}\"; there are auto, cpu, gpu and gpu:N");
        found.ok_or_else(|| Error::Setting(unknown()))
    }
}

/// How a GPU partitions: in its own memory for `radix`, into host memory for `triton`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Partitioner {
    /// Each pass reads and writes every tuple once; tiles learn where to write by looking back at
    /// the counts of earlier tiles. The one that `radix` uses unless told otherwise.
    #[default]
    LookBack,
    /// Each pass fills buckets taken from a pool, chained a partition, and counts nothing before;
    /// chains are copied together at the end.
    BucketPool,
    /// Each pass counts digits block by block in shared memory, and then reads the tuples again to
    /// write them.
    SharedHistogram,
    /// Writes every tuple to its partition in host memory by itself.
    Standard,
    /// Orders tiles in shared memory, and writes runs of tuples to host memory.
    Linear,
    /// Gathers tuples in a buffer a partition in shared memory, and writes full ones to host memory.
    Shared,
    /// Gathers tuples in shared memory, then in longer buffers in GPU memory, and writes these to
    /// host memory.
    Hierarchical,
    /// Partitions chunks in GPU memory, and lets the copy engine take them to host memory. The one
    /// that `triton` uses unless told otherwise.
    Dma,
}

impl Partitioner {
    /// All of them.
    pub const ALL: [Partitioner; 8] = [
        Partitioner::LookBack,
        Partitioner::BucketPool,
        Partitioner::SharedHistogram,
        Partitioner::Standard,
        Partitioner::Linear,
        Partitioner::Shared,
        Partitioner::Hierarchical,
        Partitioner::Dma,
    ];

    /// Whether it writes partitions to host memory, for `triton`; else it is one of `radix`.
    pub fn to_host(self) -> bool {
        match self {
            Partitioner::LookBack | Partitioner::BucketPool | Partitioner::SharedHistogram => false,
            Partitioner::Standard
            | Partitioner::Linear
            | Partitioner::Shared
            | Partitioner::Hierarchical
            | Partitioner::Dma => true,
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Partitioner::LookBack => "look-back",
            Partitioner::BucketPool => "bucket-pool",
            Partitioner::SharedHistogram => "shared-histogram",
            Partitioner::Standard => "standard",
            Partitioner::Linear => "linear",
            Partitioner::Shared => "shared",
            Partitioner::Hierarchical => "hierarchical",
            Partitioner::Dma => "dma",
        }
    }
}

impl FromStr for Partitioner {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        by_name("partitioner", text, Partitioner::ALL, Partitioner::name)
    }
}

/// How rows get from host memory to a GPU (001, table 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Transfer {
    /// By the copy engine where the memory is pinned, and staged where it is not.
    #[default]
    Auto,
    /// Copied by the driver, which stages what is not pinned by itself.
    PageableCopy,
    /// Copied by all threads into pinned buffers, and from there by the copy engine; keys in as few
    /// bytes as they need.
    StagedCopy,
    /// Pinned chunk by chunk, copied by the copy engine, and unpinned.
    DynamicPinning,
    /// Copied by the copy engine; memory that is not pinned is pinned as a whole before.
    PinnedCopy,
    /// Written to managed memory, which is moved to the GPU before it is read.
    UnifiedPrefetch,
    /// Written to managed memory, whose pages move to the GPU when they are read.
    UnifiedMigration,
    /// Read by kernels over the link; memory that is not pinned is pinned as a whole before.
    ZeroCopy,
    /// Read by kernels over the link, pinned or not, where the GPU can.
    Coherence,
}

impl Transfer {
    /// All of them, `Auto` first.
    pub const ALL: [Transfer; 9] = [
        Transfer::Auto,
        Transfer::PageableCopy,
        Transfer::StagedCopy,
        Transfer::DynamicPinning,
        Transfer::PinnedCopy,
        Transfer::UnifiedPrefetch,
        Transfer::UnifiedMigration,
        Transfer::ZeroCopy,
        Transfer::Coherence,
    ];

    /// Whether workers stage rows that are not pinned.
    pub(crate) fn stages(self) -> bool {
        matches!(self, Transfer::Auto | Transfer::StagedCopy)
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Transfer::Auto => "auto",
            Transfer::PageableCopy => "pageable-copy",
            Transfer::StagedCopy => "staged-copy",
            Transfer::DynamicPinning => "dynamic-pinning",
            Transfer::PinnedCopy => "pinned-copy",
            Transfer::UnifiedPrefetch => "unified-prefetch",
            Transfer::UnifiedMigration => "unified-migration",
            Transfer::ZeroCopy => "zero-copy",
            Transfer::Coherence => "coherence",
        }
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transfer {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        by_name("transfer method", text, Transfer::ALL, Transfer::name)
    }
}

/// Where the table of a `no-partition` join on a GPU lies (001 §5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum TablePlace {
    /// In GPU memory.
    #[default]
    Gpu,
    /// In host memory, which the GPU reaches over the link.
    Host,
    /// In GPU memory as far as that goes, and then in host memory, at one range of addresses.
    Hybrid,
}

impl TablePlace {
    /// All of them.
    pub const ALL: [TablePlace; 3] = [TablePlace::Gpu, TablePlace::Host, TablePlace::Hybrid];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            TablePlace::Gpu => "gpu",
            TablePlace::Host => "host",
            TablePlace::Hybrid => "hybrid",
        }
    }
}

impl FromStr for TablePlace {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        by_name("place of a table", text, TablePlace::ALL, TablePlace::name)
    }
}

/// Who counts the tuples of each partition before a `triton` join writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Histogram {
    /// Nobody: each chunk is counted, if need be, once it is on the GPU.
    #[default]
    None,
    /// The CPU, a chunk ahead of the GPU.
    Cpu,
    /// The GPU, over the link: keys cross it once more.
    Gpu,
}

impl Histogram {
    /// All of them.
    pub const ALL: [Histogram; 3] = [Histogram::None, Histogram::Cpu, Histogram::Gpu];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Histogram::None => "none",
            Histogram::Cpu => "cpu",
            Histogram::Gpu => "gpu",
        }
    }
}

impl FromStr for Histogram {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        by_name("histogram", text, Histogram::ALL, Histogram::name)
    }
}

/// How a join on a GPU is carried out, apart from its algorithm. Defaults are chosen for everything that is not
/// set.
///
/// ```
/// use strait::{Algorithm, GpuOptions, Join, Partitioner};
///
/// let options = GpuOptions::new().partitioner(Partitioner::Hierarchical).cache(4 << 30);
/// let join = Join::inner().on("id").algorithm(Algorithm::Triton).gpu_options(options);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use]
pub struct GpuOptions {
    pub(crate) partitioner: Option<Partitioner>,
    pub(crate) transfer: Transfer,
    pub(crate) table: TablePlace,
    pub(crate) histogram: Histogram,
    pub(crate) cache: Option<u64>,
}

impl GpuOptions {
    /// All defaults.
    pub fn new() -> Self {
        GpuOptions::default()
    }

    /// How `radix` and `triton` partition. Each has a default of its own.
    pub fn partitioner(mut self, partitioner: impl Into<Option<Partitioner>>) -> Self {
        self.partitioner = partitioner.into();
        self
    }

    /// How rows get from host memory to the GPU. By default, the method that suits the memory they are in.
    pub fn transfer(mut self, transfer: Transfer) -> Self {
        self.transfer = transfer;
        self
    }

    /// Where the table of `no-partition` is: in GPU memory by default.
    pub fn table(mut self, place: TablePlace) -> Self {
        self.table = place;
        self
    }

    /// Who counts the tuples of each partition for `triton`: nobody by default.
    pub fn histogram(mut self, histogram: Histogram) -> Self {
        self.histogram = histogram;
        self
    }

    /// The GPU memory in which `triton` keeps partitions, in bytes. By default, the memory that is free.
    pub fn cache(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.cache = bytes.into();
        self
    }
}

/// Checks that a partitioner is one of the algorithm's.
pub(crate) fn check_partitioner(
    algorithm: Option<Algorithm>,
    partitioner: Option<Partitioner>,
) -> Result<()> {
    let Some(partitioner) = partitioner else { return Ok(()) };
    let of_triton = algorithm == Some(Algorithm::Triton);
    if partitioner.to_host() == of_triton {
        return Ok(());
    }
    let name = partitioner.name();
    let Some(algorithm) = algorithm else {
        return Err(Error::Setting(format!(
            "only triton partitions by {name}; choose that algorithm, or no partitioner"
        )));
    };
    let others = Partitioner::ALL.into_iter().filter(|p| p.to_host() == of_triton);
    Err(Error::Setting(format!(
        "{algorithm} does not partition by {name}; it takes {}",
        names(others.map(Partitioner::name))
    )))
}

/// A list of names.
pub(crate) fn names(names: impl IntoIterator<Item = &'static str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

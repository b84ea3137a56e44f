//! The options that choose a processor, and that control how a join runs on a GPU.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::options::{Algorithm, named, names};

/// The processor that a join runs on.
///
/// ```
/// use strait::{Join, Processor};
///
/// let join = Join::inner().on("id").device(Processor::Cpu);
/// assert_eq!("gpu:1".parse::<Processor>()?, Processor::Gpu(1));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Processor {
    /// A GPU if the join is predicted to be faster there, including the time of all copies; otherwise the
    /// CPU. If the GPU fails, the join continues on the CPU if it can.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU with this number. Numbers start at 0.
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
        found.ok_or_else(|| {
            let unknown = format!("unknown device \"{text}\"");
            Error::invalid_option("device", unknown, "there are auto, cpu, gpu and gpu:N")
        })
    }
}

/// How a GPU partitions rows: in GPU memory for `radix`, into host memory for `triton`.
///
/// ```
/// use strait::Partitioner;
///
/// assert_eq!("linear".parse::<Partitioner>()?, Partitioner::Linear);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Partitioner {
    /// Each pass reads and writes every tuple once. A tile finds its output position by looking back at the
    /// counts of earlier tiles. This is the default of `radix`.
    #[default]
    LookBack,
    /// Each pass writes tuples into buckets from a pool, one chain of buckets per partition, without counting
    /// first. At the end, each chain is copied into one piece.
    BucketPool,
    /// Each pass counts digits in shared memory, block by block, and then reads the tuples a second time to
    /// write them.
    SharedHistogram,
    /// Writes each tuple alone to its partition in host memory.
    Standard,
    /// Sorts tiles by partition in shared memory, and writes runs of tuples to host memory.
    Linear,
    /// Collects tuples in shared memory, one buffer per partition, and writes full buffers to host memory.
    Shared,
    /// Collects tuples in shared memory, then in larger buffers in GPU memory, and writes those to host
    /// memory.
    Hierarchical,
    /// Partitions chunks in GPU memory, and copies them to host memory with the copy engine. This is the
    /// default of `triton`.
    Dma,
}

named! {
    Partitioner, "partitioner", "partitioner", "All partitioners.",
    LookBack => "look-back",
    BucketPool => "bucket-pool",
    SharedHistogram => "shared-histogram",
    Standard => "standard",
    Linear => "linear",
    Shared => "shared",
    Hierarchical => "hierarchical",
    Dma => "dma",
}

impl Partitioner {
    /// Returns whether it writes partitions to host memory. Those partitioners are for `triton`, the others
    /// for `radix`.
    pub fn to_host(self) -> bool {
        match self.purpose() {
            Purpose::Radix(_) => false,
            Purpose::Triton(_) => true,
        }
    }

    /// Returns which algorithm uses this partitioner, with the partitioner of that algorithm. No other function makes
    /// this decision.
    fn purpose(self) -> Purpose {
        match self {
            Partitioner::LookBack => Purpose::Radix(RadixPartitioner::LookBack),
            Partitioner::BucketPool => Purpose::Radix(RadixPartitioner::BucketPool),
            Partitioner::SharedHistogram => Purpose::Radix(RadixPartitioner::SharedHistogram),
            Partitioner::Standard => Purpose::scatter(Scatterer::Standard),
            Partitioner::Linear => Purpose::scatter(Scatterer::Linear),
            Partitioner::Shared => Purpose::scatter(Scatterer::Shared),
            Partitioner::Hierarchical => Purpose::scatter(Scatterer::Hierarchical),
            Partitioner::Dma => Purpose::Triton(TritonPartitioner::Dma),
        }
    }

    /// Returns the partitioner for passes in GPU memory. A partitioner of `triton` is an error that names it.
    pub(crate) fn for_radix(self) -> Result<RadixPartitioner> {
        match self.purpose() {
            Purpose::Radix(partitioner) => Ok(partitioner),
            Purpose::Triton(_) => Err(unsuitable(Algorithm::Radix, self)),
        }
    }

    /// Returns the partitioner for the first pass of `triton`. A partitioner of `radix` is an error that names
    /// it.
    pub(crate) fn for_triton(self) -> Result<TritonPartitioner> {
        match self.purpose() {
            Purpose::Triton(partitioner) => Ok(partitioner),
            Purpose::Radix(_) => Err(unsuitable(Algorithm::Triton, self)),
        }
    }
}

/// The algorithm that a [`Partitioner`] is for.
enum Purpose {
    Radix(RadixPartitioner),
    Triton(TritonPartitioner),
}

impl Purpose {
    fn scatter(scatterer: Scatterer) -> Purpose {
        Purpose::Triton(TritonPartitioner::Scatter(scatterer))
    }
}

/// A partitioner that writes to GPU memory, for `radix` and for all other passes there. See [`Partitioner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RadixPartitioner {
    LookBack,
    BucketPool,
    SharedHistogram,
}

/// A partitioner that writes to host memory, for the first pass of `triton`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TritonPartitioner {
    /// A kernel writes to host memory.
    Scatter(Scatterer),
    /// The copy engine writes to host memory.
    Dma,
}

impl TritonPartitioner {
    /// Checks that the partitioner can use the histogram.
    pub(crate) fn check_histogram(self, histogram: Histogram) -> Result<()> {
        match (self, histogram) {
            (TritonPartitioner::Scatter(_), _) | (TritonPartitioner::Dma, Histogram::None) => {
                Ok(())
            }
            (TritonPartitioner::Dma, Histogram::Cpu | Histogram::Gpu) => {
                Err(Error::invalid_option(
                    "histogram",
                    "the dma partitioner needs no histogram",
                    format!(
                        "use the histogram none, or keep the histogram {} and use another partitioner than dma",
                        histogram.name()
                    ),
                ))
            }
        }
    }
}

/// How a kernel combines tuples before it writes them to their partitions (000 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Scatterer {
    /// Does not combine: writes every tuple separately.
    Standard,
    /// Orders a tile by partition in shared memory, and writes the runs.
    Linear,
    /// Keeps one buffer per partition in shared memory, and writes full buffers, aligned to 128 bytes.
    Shared,
    /// Keeps a second, longer buffer per partition in device memory, behind the first.
    Hierarchical,
}

/// How rows get from host memory to a GPU (001, table 1).
///
/// The two `Unified` methods differ from the paper. There, the tables themselves lie in managed memory. Here,
/// rows are first copied into a few managed buffers.
///
/// ```
/// use strait::Transfer;
///
/// assert_eq!("staged-copy".parse::<Transfer>()?, Transfer::StagedCopy);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Transfer {
    /// The copy engine copies pinned memory; other memory is copied through staging buffers.
    #[default]
    Auto,
    /// The driver copies. If the memory is not pinned, the driver stages it.
    PageableCopy,
    /// All threads copy rows into pinned staging buffers, and the copy engine copies those. Keys take only as
    /// many bytes as they need.
    StagedCopy,
    /// Each chunk is pinned, copied by the copy engine, and unpinned.
    DynamicPinning,
    /// The copy engine copies. Memory that is not pinned is first pinned as a whole.
    PinnedCopy,
    /// Rows are written to managed memory, which is prefetched to the GPU before kernels read it.
    UnifiedPrefetch,
    /// Rows are written to managed memory, whose pages migrate to the GPU when kernels read them.
    UnifiedMigration,
    /// Kernels read host memory over the link. Memory that is not pinned is first pinned as a whole.
    ZeroCopy,
    /// Kernels read host memory over the link, pinned or not. Not every GPU can do this.
    Coherence,
}

named! {
    Transfer, "transfer", "transfer method", "All methods, `Auto` first.",
    Auto => "auto",
    PageableCopy => "pageable-copy",
    StagedCopy => "staged-copy",
    DynamicPinning => "dynamic-pinning",
    PinnedCopy => "pinned-copy",
    UnifiedPrefetch => "unified-prefetch",
    UnifiedMigration => "unified-migration",
    ZeroCopy => "zero-copy",
    Coherence => "coherence",
}

impl Transfer {
    /// Returns the method for rows in pinned memory, or in other memory. It is never [`Transfer::Auto`].
    pub(crate) fn resolved(self, pinned: bool) -> Transfer {
        match self {
            Transfer::Auto if pinned => Transfer::PinnedCopy,
            Transfer::Auto => Transfer::StagedCopy,
            asked => asked,
        }
    }

    /// Returns whether kernels read the columns in host memory.
    pub(crate) fn reads_in_place(self) -> bool {
        matches!(self, Transfer::ZeroCopy | Transfer::Coherence)
    }

    /// Returns whether worker threads stage rows that are not in pinned memory.
    pub(crate) fn stages(self) -> bool {
        matches!(self, Transfer::Auto | Transfer::StagedCopy)
    }
}

/// Where the hash table of a `no-partition` join on a GPU is stored (001 §5.2, §5.3).
///
/// ```
/// use strait::{GpuOptions, TablePlace};
///
/// let place: TablePlace = "hybrid".parse()?;
/// assert_eq!(GpuOptions::new().table(place), GpuOptions::new().table(TablePlace::Hybrid));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum TablePlace {
    /// In GPU memory.
    #[default]
    Gpu,
    /// In host memory, which the GPU accesses over the link.
    Host,
    /// At most 5/8 of the free GPU memory, and the rest in host memory, in one range of addresses.
    Hybrid,
}

named! {
    TablePlace, "table", "place of a table", "All places.",
    Gpu => "gpu",
    Host => "host",
    Hybrid => "hybrid",
}

/// The processor that counts the tuples of each partition before a `triton` join writes them.
///
/// ```
/// use strait::Histogram;
///
/// assert_eq!("cpu".parse::<Histogram>()?, Histogram::Cpu);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Histogram {
    /// No processor. If the partitioner needs counts, the GPU counts each chunk after it has arrived.
    #[default]
    None,
    /// The CPU, one chunk ahead of the GPU.
    Cpu,
    /// The GPU, over the link: keys cross the link twice.
    Gpu,
}

named! {
    Histogram, "histogram", "histogram", "All choices.",
    None => "none",
    Cpu => "cpu",
    Gpu => "gpu",
}

/// Options for joins on a GPU, apart from the algorithm. Options that are not set have defaults.
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
    /// Creates options with all defaults.
    pub fn new() -> Self {
        GpuOptions::default()
    }

    /// Sets how `radix` and `triton` partition. Each algorithm has its own default.
    pub fn partitioner(mut self, partitioner: impl Into<Option<Partitioner>>) -> Self {
        self.partitioner = partitioner.into();
        self
    }

    /// Returns the partitioner for the first pass of `triton`: the one that was set, or the default.
    pub(crate) fn triton_partitioner(&self) -> Result<TritonPartitioner> {
        self.partitioner.map_or(Ok(TritonPartitioner::Dma), Partitioner::for_triton)
    }

    /// Sets how rows get from host memory to the GPU. By default, the method depends on whether their memory
    /// is pinned.
    pub fn transfer(mut self, transfer: Transfer) -> Self {
        self.transfer = transfer;
        self
    }

    /// Sets where the hash table of `no-partition` is stored. The default is GPU memory.
    pub fn table(mut self, place: TablePlace) -> Self {
        self.table = place;
        self
    }

    /// Sets which processor counts the tuples of each partition for `triton`. The default is none.
    pub fn histogram(mut self, histogram: Histogram) -> Self {
        self.histogram = histogram;
        self
    }

    /// Sets how much GPU memory `triton` uses to cache partitions, in bytes. With 0, it caches none. By
    /// default, it is a fixed share of the free GPU memory.
    pub fn cache(mut self, bytes: impl Into<Option<u64>>) -> Self {
        self.cache = bytes.into();
        self
    }
}

/// Returns the error for a partitioner that an algorithm does not have.
pub(crate) fn unsuitable(algorithm: Algorithm, partitioner: Partitioner) -> Error {
    let of_triton = algorithm == Algorithm::Triton;
    let others = Partitioner::ALL.into_iter().filter(|p| p.to_host() == of_triton);
    Error::invalid_option(
        "partitioner",
        format!("{algorithm} does not partition by {}", partitioner.name()),
        format!("it takes {}", names(others.map(Partitioner::name))),
    )
}

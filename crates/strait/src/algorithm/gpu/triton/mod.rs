//! The Triton join (000): the GPU partitions both sides over the link, keeps as many partitions as fit in its
//! memory, and joins pairs of partitions.
//!
//! ```text
//!  build ─► chunk by chunk: partition ─┬─► GPU memory, as far as it goes ─┐
//!                                      └─► host memory ───────────────────┤
//!  probe ─► chunk by chunk: partition ─┬─► GPU memory ────────────────────┼─► working sets: partition
//!                                      └─► host memory ───────────────────┘   again, join ─► rows
//! ```
//!
//! | `--partitioner` | who writes to host memory | file |
//! | --- | --- | --- |
//! | `dma`, ours | the copy engine: whole chunks, partitioned in GPU memory | [`dma`] |
//! | `standard`, `linear`, `shared`, `hierarchical` | the kernel, as in 000 §4 | [`scatter`] |
//!
//! 000 first counts the tuples of each partition. So each partition is one piece of memory, whose pages
//! alternate between the GPU and the host. This implementation partitions a side chunk by chunk. Each chunk
//! gets its own memory, alternately on the GPU and on the host, and a partition is a list of runs. So the
//! tuples need not be counted first, no address range has to span both memories, and any kind of memory can
//! be used.

mod dma;
mod scatter;

use super::machinery::host_partitions::HostPartitions;
use super::machinery::working_set::{WorkingSets, join_sets};
use super::{JoinResult, Receiver, Session, Wanted};
use crate::error::Result;
use crate::gpu_options::{Histogram, Partitioner, TritonPartitioner};
use crate::plan::gpu_memory::cache_bytes;
use crate::plan::{ChunkRows, Learned, Plan};
use crate::transfer::{HostSide, TransferContext};
use scatter::{Counts, Units};

/// Joins two sides.
pub(super) fn join(
    link: &TransferContext<'_>,
    plan: &mut Plan,
    [build, probe]: [&HostSide; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let session = link.session;
    let ChunkRows { probe: of_probe, tuples, .. } = plan.chunk_rows()?;
    let of_tuples = &link.with_chunks_of(tuples.unwrap_or(of_probe));
    let mut sets = WorkingSets::new(of_tuples, [build.rows, probe.rows], wanted)?;
    let free = session.left();
    plan.refine(Learned { free: Some(free), ..Learned::default() });
    let gpu_options = plan.facts.gpu_options;
    let cache = cache_bytes(free, gpu_options.cache);
    let (fit, bits) = (plan.part_rows()?, plan.radix_bits());
    sets.bits = bits;
    let bytes = (build.rows + probe.rows) * session.word.tuple();
    let partitioner = gpu_options.triton_partitioner()?;
    let pass = Pass { partitioner, bits, histogram: gpu_options.histogram, cache, bytes };
    let chunks = plan.chunk_rows()?;
    let build = pass.partition(&link.with_chunks_of(chunks.build), build)?;
    session.mark("partition over the link")?;
    let probe = pass.partition(&link.with_chunks_of(chunks.probe), probe)?;
    session.mark("partition over the link")?;
    let packed = plan.working_sets(&build.rows)?;
    join_sets(&mut sets, &packed, [&build, &probe], fit, to)?;
    // The device partitions are given back only after all stages and copies that use them.
    session.device.synchronize(session.compute)?;
    session.device.synchronize(session.copies)?;
    sets.finish(to)
}

/// Prepares the first pass over one side, with all partitions in host memory; for benchmarks. The returned
/// closure runs the pass. With `counted`, the CPU counts the tuples before this function returns, and the
/// partitions of pinned columns lie in one piece.
pub(crate) fn partition_side<'a>(
    link: &'a TransferContext<'a>,
    side: &'a HostSide,
    partitioner: Partitioner,
    bits: u32,
    counted: bool,
) -> Result<impl FnOnce() -> Result<HostPartitions> + 'a> {
    let histogram = if counted { Histogram::Cpu } else { Histogram::None };
    let bytes = side.rows * link.session.word.tuple();
    let partitioner = partitioner.for_triton()?;
    let pass = Pass { partitioner, bits, histogram, cache: 0, bytes };
    let before = match partitioner {
        TritonPartitioner::Scatter(how) if counted => {
            let units = Units::new(link, side, &pass, how, true).in_one_piece(side);
            let counts = scatter::count_before(link, side, &pass, &units)?;
            Some((how, units, Counts::Before(counts)))
        }
        TritonPartitioner::Scatter(_) | TritonPartitioner::Dma => None,
    };
    Ok(move || match before {
        Some((how, units, counts)) => {
            scatter::partition_units(link, side, &pass, how, units, counts)
        }
        None => pass.partition(link, side),
    })
}

/// The settings of the first pass, the same for both sides.
struct Pass {
    partitioner: TritonPartitioner,
    /// The number of radix bits.
    bits: u32,
    histogram: Histogram,
    /// GPU memory for the partitions of both sides, in bytes.
    cache: u64,
    /// The bytes of both sides.
    bytes: u64,
}

impl Pass {
    /// Partitions a side.
    fn partition(&self, link: &TransferContext<'_>, side: &HostSide) -> Result<HostPartitions> {
        match self.partitioner {
            TritonPartitioner::Scatter(how) => scatter::partition_side(link, side, self, how),
            TritonPartitioner::Dma => dma::partition_side(link, side, self),
        }
    }

    fn partitions(&self) -> u64 {
        1 << self.bits
    }

    /// Returns the GPU memory that is left for buffers, after `taken` bytes for another purpose and after the
    /// cache of partitions. It is at least a quarter of the memory without `taken`.
    fn free(&self, session: &Session<'_>, taken: u64) -> u64 {
        let left = session.left().saturating_sub(taken);
        left.saturating_sub(self.cache).max(left / 4)
    }

    /// Returns the share of `whole` bytes that the cache can hold.
    fn cached(&self, whole: u64) -> u64 {
        let share = u128::from(self.cache.min(self.bytes)) * u128::from(whole);
        (share / u128::from(self.bytes.max(1))) as u64
    }
}

/// Decides which chunks stay on the device: every n-th chunk. So the share of cached chunks stays the same
/// during the whole pass (000 §5.3 alternates pages). Every chunk has tuples of every partition. So whichever
/// partition is joined, some of its tuples have to cross the link, and the link is never idle.
#[derive(Default)]
struct Turns {
    seen: u64,
    kept: u64,
}

impl Turns {
    /// Returns whether a chunk of `bytes` bytes stays on the device.
    fn keep(&mut self, bytes: u64, pass: &Pass) -> bool {
        self.seen += bytes;
        let keep = self.kept + bytes <= pass.cached(self.seen.min(pass.bytes));
        self.kept += if keep { bytes } else { 0 };
        keep
    }

    /// Records that a chunk could not be cached because GPU memory was full.
    fn refused(&mut self, bytes: u64) {
        self.kept = self.kept.saturating_sub(bytes);
    }
}

//! The Triton join (000): the GPU partitions both sides over the link, keeps in its memory what fits,
//! and joins pairs of partitions.
//!
//! ```text
//!  build ─► chunk by chunk: partition ─┬─► GPU memory, as far as it goes ─┐
//!                                      └─► host memory ───────────────────┤
//!  probe ─► chunk by chunk: partition ─┬─► GPU memory ────────────────────┼─► working sets: partition
//!                                      └─► host memory ───────────────────┘   on, join ─► rows
//! ```
//!
//! | `--partitioner` | who writes to host memory | file |
//! | --- | --- | --- |
//! | `dma`, ours | the copy engine, whole chunks partitioned in GPU memory | [`dma`] |
//! | `standard`, `linear`, `shared`, `hierarchical` | the kernel, as in 000 §4 | [`scatter`] |
//!
//! 000 counts the tuples of each partition first, so that a partition lies in one piece, of pages in turns
//! on the GPU and in host memory. Here a side is partitioned chunk by chunk, each into memory of its own, on
//! the GPU or in host memory in turns, and a partition is a list of runs: that needs no counting ahead, no
//! pages of both memories at one range of addresses, and memory of any kind.

mod dma;
mod scatter;

use super::host_partitions::{HostPartitions, bits, pack};
use super::working_set::{WorkingSets, join_sets};
use super::{FromHost, JoinResult, Receiver, Session, Wanted};
use crate::device::Scatterer;
use crate::error::Result;
use crate::gpu_options::{Histogram, Partitioner};
use crate::plan::gpu_memory::cache_bytes;
use crate::transfer::{HostSide, TransferContext};
use scatter::{Counts, Units};

/// Bits of the first pass, at most.
const MAX_BITS: u32 = 8;

/// Joins two sides.
pub(super) fn join(
    crossing: &TransferContext<'_>,
    how: &FromHost,
    [build, probe]: [&HostSide; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let session = crossing.session;
    let mut sets = WorkingSets::new(crossing, [build.rows, probe.rows], wanted)?;
    let left = session.left();
    let cache = how.gpu_options.cache.unwrap_or(cache_bytes(left)).min(left / 4 * 3);
    let fit = WorkingSets::fit(crossing, left - cache, how.part_rows);
    let bits = bits(build.rows, fit, MAX_BITS);
    sets.bits = bits;
    let bytes = (build.rows + probe.rows) * session.word.tuple();
    let pass = Pass { bits, histogram: how.gpu_options.histogram, cache, bytes };
    let partition_side = |side: &HostSide| -> Result<HostPartitions> {
        let partitioned = match how.gpu_options.partitioner.and_then(scatterer) {
            Some(scatterer) => scatter::partition_side(crossing, side, &pass, scatterer),
            None => dma::partition_side(crossing, side, &pass),
        };
        session.mark("partition over the link")?;
        partitioned
    };
    let partitioned = [partition_side(build)?, partition_side(probe)?];
    let packed = pack(&partitioned[0].rows, fit);
    join_sets(&mut sets, &packed, [&partitioned[0], &partitioned[1]], fit, to)?;
    // Partitions on the device go back once nothing uses them.
    session.device.synchronize(session.compute)?;
    session.device.synchronize(session.copies)?;
    sets.finish(to)
}

/// The kernel that a partitioner has write to host memory; none where the copy engine does.
fn scatterer(partitioner: Partitioner) -> Option<Scatterer> {
    match partitioner {
        Partitioner::Standard => Some(Scatterer::Standard),
        Partitioner::Linear => Some(Scatterer::Linear),
        Partitioner::Shared => Some(Scatterer::Shared),
        Partitioner::Hierarchical => Some(Scatterer::Hierarchical),
        _ => None,
    }
}

/// The first pass over one side by itself, all of it into host memory: for measuring. Where tuples are
/// `counted` before, the partitions of pinned columns lie in one piece, and counting is done when this
/// returns; what it returns is the rest.
pub(super) fn partition_side<'a>(
    crossing: &'a TransferContext<'a>,
    side: &'a HostSide,
    partitioner: Partitioner,
    bits: u32,
    counted: bool,
) -> Result<impl FnOnce() -> Result<HostPartitions> + 'a> {
    let histogram = if counted { Histogram::Cpu } else { Histogram::None };
    let bytes = side.rows * crossing.session.word.tuple();
    let pass = Pass { bits, histogram, cache: 0, bytes };
    let counts = match scatterer(partitioner) {
        Some(how) if counted => {
            let units = Units::new(crossing, side, &pass, how, true).in_one_piece(side);
            let counts = scatter::count_before(crossing, side, &pass, &units)?;
            Some((units, Counts::Before(counts)))
        }
        _ => None,
    };
    Ok(move || match (scatterer(partitioner), counts) {
        (Some(how), Some(counts)) => scatter::partition_units(crossing, side, &pass, how, counts),
        (Some(how), None) => scatter::partition_side(crossing, side, &pass, how),
        (None, _) => dma::partition_side(crossing, side, &pass),
    })
}

/// The first pass, over either side.
struct Pass {
    /// Bits that tell partitions.
    bits: u32,
    histogram: Histogram,
    /// GPU memory for partitions of both sides, in bytes.
    cache: u64,
    /// The bytes of both sides.
    bytes: u64,
}

impl Pass {
    fn partitions(&self) -> u64 {
        1 << self.bits
    }

    /// GPU memory that is not for partitions, or a quarter of what is left where that is more, once
    /// `taken` bytes are taken for something else.
    fn free(&self, session: &Session<'_>, taken: u64) -> u64 {
        let left = session.left().saturating_sub(taken);
        left.saturating_sub(self.cache).max(left / 4)
    }

    /// As much of `whole` as the cache has of all bytes.
    fn cached(&self, whole: u64) -> u64 {
        let share = u128::from(self.cache.min(self.bytes)) * u128::from(whole);
        (share / u128::from(self.bytes.max(1))) as u64
    }
}

/// Which chunks are kept on the device: every so many, so that they have their share at any time (000
/// §5.2 has pages in turns). Every chunk has some of each partition, so that while one is joined, the link
/// has something to carry.
#[derive(Default)]
struct Turns {
    seen: u64,
    kept: u64,
}

impl Turns {
    /// Whether one of so many bytes is.
    fn keep(&mut self, bytes: u64, pass: &Pass) -> bool {
        self.seen += bytes;
        let keep = self.kept + bytes <= pass.cached(self.seen.min(pass.bytes));
        self.kept += if keep { bytes } else { 0 };
        keep
    }

    /// Says that there was no room for one that was to be kept.
    fn refused(&mut self, bytes: u64) {
        self.kept = self.kept.saturating_sub(bytes);
    }
}

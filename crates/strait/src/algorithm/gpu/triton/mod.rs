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
//! 000 counts the tuples of each partition first, so that a partition lies in one piece. Without a
//! histogram, every chunk is partitioned by itself, and a partition is a list of runs: keys cross once
//! less, and a kernel writes to no more memory at a time than the GPU can translate addresses of
//! without a miss, which is what Hierarchical is for.

mod dma;
mod scatter;

use super::cpu_partitioned::bits;
use super::spilled::{Spilled, pack};
use super::working_set::{WorkingSets, join_sets};
use super::{Found, FromHost, Receiver, Wanted};
use crate::device::Scatterer;
use crate::error::Result;
use crate::join::{Histogram, Partitioner};
use crate::transfer::{Crossing, HostSide};

/// The share of GPU memory that is kept for partitions unless told otherwise, in eighths.
const FOR_CACHE: u64 = 3;
/// Bits of the first pass, at most.
const MOST_BITS: u32 = 8;

/// Joins two sides.
pub(super) fn join(
    crossing: &Crossing<'_>,
    how: &FromHost,
    [build, probe]: [&HostSide; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<Found> {
    let session = crossing.session;
    let left = session.left();
    let cache = how.on_gpu.cache.unwrap_or(left / 8 * FOR_CACHE).min(left / 2);
    let fit = WorkingSets::fit(crossing, left - cache, how.part_rows);
    let bits = bits(build.rows, fit, MOST_BITS);
    let mut sets = WorkingSets::new(crossing, [build.rows, probe.rows], bits, wanted)?;
    let bytes = (build.rows + probe.rows) * session.word.tuple();
    let pass = Pass { bits, histogram: how.on_gpu.histogram, cache, bytes };
    let divide = |side: &HostSide| -> Result<Spilled> {
        match how.on_gpu.partitioner {
            Some(Partitioner::Standard) => {
                scatter::divide(crossing, side, &pass, Scatterer::Standard)
            }
            Some(Partitioner::Linear) => scatter::divide(crossing, side, &pass, Scatterer::Linear),
            Some(Partitioner::Shared) => scatter::divide(crossing, side, &pass, Scatterer::Shared),
            Some(Partitioner::Hierarchical) => {
                scatter::divide(crossing, side, &pass, Scatterer::Hierarchical)
            }
            _ => dma::divide(crossing, side, &pass),
        }
    };
    let divided = [divide(build)?, divide(probe)?];
    session.mark("partition over the link")?;
    let packed = pack(&divided[0].rows, fit);
    join_sets(&mut sets, &packed, [&divided[0], &divided[1]], fit, to)?;
    // Partitions on the device go back once nothing uses them.
    session.device.synchronize(session.compute)?;
    session.device.synchronize(session.copies)?;
    sets.finish(to)
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

    /// As much of `whole` as the cache has of all bytes.
    fn cached(&self, whole: u64) -> u64 {
        let share = u128::from(self.cache.min(self.bytes)) * u128::from(whole);
        (share / u128::from(self.bytes.max(1))) as u64
    }
}

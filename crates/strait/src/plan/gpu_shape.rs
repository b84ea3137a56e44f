//! Sizes of tables and partitions on a GPU.
//!
//! They depend on numbers of rows, on the shared memory and the L2 cache of the GPU, and on its free memory. The
//! planner uses these functions for the [details](crate::plan::Details) of a plan. Conductors call them for
//! sizes that are learned too late for a plan, such as the radix bits of one working set.

use crate::device::{Shape, abi, l2};
use crate::gpu_options::{RadixPartitioner, Transfer};
use crate::options::Algorithm;
use crate::plan::gpu_memory::{FOR_TABLES, LEAST_SLOTS, MAX_SLOTS};
use crate::plan::shape::CELLS_PER_ROW;
use crate::transfer::STREAMED_SHARE;
use crate::word::Width;

/// The most rows of a side, or of a part of it, that a GPU joins at once. Positions in tables and runs have 32
/// bits.
pub(crate) const MAX_ROWS_AT_ONCE: u64 = (1 << 31) - 1;

/// With fewer build rows than this, an array may be as long as with this many rows.
const FEW_ROWS: u64 = 1024;

/// The most slots per build row in a hash table. More than two slots are used only if the table stays in the L2
/// cache ([`l2::for_roomy_table`]) and takes at most 1/16 ([`SPARE`]) of the free memory. Eight slots instead
/// of two made 2^16 ⋈ 2^29 rows 7 % faster (benchmarks/notes.md).
const ROOMIEST: u64 = 8;
const SPARE: u64 = 16;
/// The most bytes per slot of a hash table.
pub(crate) const SLOT: u64 = 16;
/// The fewest bits of the number of slots: a hash table must never be full.
const LEAST_BITS: u32 = 4;

/// A radix join makes one pass per side if the probe side is at least this many times as long as the build
/// side. From there on, one pass was faster on an H200: 31 against 26 billion tuples per second at a factor of
/// eight (benchmarks/notes.md).
const LONGER: u64 = 3;
/// The most radix bits of the one pass.
const ONE_PASS_BITS: u32 = 8;
/// The most radix bits of several passes together.
const PASSES_BITS: u32 = 24;
/// The bytes per chunk and column: long enough for the link and for kernel launches, short enough to overlap
/// copies and stages.
const CHUNK_BYTES: u64 = 128 << 20;
/// The bytes per staged chunk, all columns together. Workers wait for one another at the end of each chunk, so
/// chunks are long.
const STAGED_BYTES: u64 = 512 << 20;
/// The rows per chunk of a side that is read while it is joined. Such chunks stay in host memory from reading to
/// writing. So they are short, but long enough for full link speed.
pub(super) const STREAMED_ROWS: u64 = 4 << 20;
/// The rows per chunk that the CPU partitions: enough that each partition's run is long enough for the link.
pub(super) const PARTITIONED_ROWS: u64 = 16 << 20;
/// The fewest and the most rows of a unit. A unit is the rows that a kernel of `triton` reads over the link at once.
/// Units are long, because a kernel flushes its buffers at the end. But [`UNITS_OF_CACHE`] units must fit the cache,
/// so that only a small part of the cache stays empty.
const UNIT: [u64; 2] = [1 << 20, 1 << 26];
const UNITS_OF_CACHE: u64 = 16;
/// Units end at line boundaries, because each warp reads one or two whole lines.
const LINE: u64 = 128;

/// Returns the rows per chunk of a held side, if so many bytes per row cross to the GPU.
pub(crate) fn chunk_of_columns(transfer: Transfer, word: Width, row_bytes: u64) -> u64 {
    match transfer.stages() {
        true => STAGED_BYTES / row_bytes,
        false => CHUNK_BYTES / word.bytes(),
    }
}

/// Returns the most bytes of a streamed chunk's rows, with all their columns. `left` is the memory that a limit
/// leaves. About eight chunks are in host memory at once: some are in the ring, some come back, and the workers write
/// the rows of others.
///
/// All workers together decode the rows of one chunk, and later gather and encode them. So a chunk must have some
/// batches for each worker. With four workers or fewer, 64 MiB are enough for that.
pub(super) fn streamed_bytes(threads: usize, left: Option<u64>) -> u64 {
    const PER_WORKER: u64 = 16 << 20;
    let most = (threads as u64).saturating_mul(PER_WORKER).clamp(64 << 20, 256 << 20);
    left.map_or(most, |left| (left / STREAMED_SHARE).clamp(1, most))
}

/// Returns the tuples per chunk of a working set.
pub(super) fn chunk_of_tuples(word: Width) -> u64 {
    CHUNK_BYTES / word.tuple()
}

/// Returns the rows that a kernel of `triton` reads over the link at once. `cache` is the GPU memory that caches
/// partitions.
pub(crate) fn unit_rows(cache: u64, word: Width) -> u64 {
    let [least, most] = UNIT;
    match cache {
        0 => most,
        _ => (cache / UNITS_OF_CACHE / word.tuple()).clamp(least, most) / LINE * LINE,
    }
}

/// The approximate number of partitions per working set.
const PARTITIONS_PER_SET: u64 = 4;

/// Returns whether an array over the keys from `min` to `max` is used for `rows` build rows. A slot of an
/// array is half as wide as one of a hash table, and a hash table has at least two slots per row.
pub(super) fn is_array(rows: u64, (min, max): (u64, u64)) -> bool {
    let range = max - min;
    range / CELLS_PER_ROW < rows.max(FEW_ROWS) && range < u64::from(u32::MAX)
}

/// Returns the number of slots of a hash table, as a power of two: at least two slots per row. If the table
/// stays in the cache, it has up to eight slots per row, so that most keys are found at their home slot.
pub(crate) fn hash_table_bits(rows: u64, l2: u64, free: u64) -> u32 {
    let cheap = l2::for_roomy_table(l2).min(free / SPARE) / SLOT;
    let roomy = (ROOMIEST * rows).max(1).ilog2().min(cheap.max(1).ilog2());
    (2 * rows).next_power_of_two().ilog2().max(roomy).max(LEAST_BITS)
}

/// Returns the number of slots of the table over a part of `multi-pass`: two per row if they fit, and at least
/// 5/4 per row.
pub(crate) fn part_slots(rows: u64, tuple: u64, free: u64) -> u64 {
    let fit = (free / 8 * FOR_TABLES / tuple).min(MAX_SLOTS);
    (2 * rows).min(fit).max(rows * LEAST_SLOTS / (LEAST_SLOTS - 1) + 1)
}

/// Returns the radix bits that make partitions of `rows` build rows fit shared memory, which holds `fit` rows.
/// There are at most `most` bits. Partitions vary in size, so the target is 90 % of what fits.
pub(crate) fn radix_bits(rows: u64, fit: u32, most: u32) -> u32 {
    let room = u64::from(fit - fit / 10).max(1);
    let partitions = rows.div_ceil(room).max(1).next_power_of_two();
    partitions.ilog2().clamp(1, PASSES_BITS.min(most))
}

/// Returns whether the radix join makes one pass over each side, if each build key occurs once. Only the
/// look-back partitioner can do that.
pub(super) fn is_one_pass([build, probe]: [u64; 2], partitioner: RadixPartitioner) -> bool {
    partitioner == RadixPartitioner::LookBack && probe / LONGER >= build
}

/// Returns the radix bits of the one pass over each side. The part of the table that is in use at a time stays
/// in the L2 cache.
pub(super) fn one_pass_bits(build_rows: u64, l2: u64, free: u64, word: Width) -> u32 {
    let table = (1u64 << hash_table_bits(build_rows, l2, free)) * word.tuple();
    let part = l2::for_part_of_table(l2);
    table.div_ceil(part).next_power_of_two().ilog2().clamp(1, ONE_PASS_BITS)
}

/// Returns the radix bits of the first pass, which partitions `rows` build rows into host memory, so that a few
/// partitions fill a working set of `fit` rows.
pub(super) fn first_pass_bits(algorithm: Algorithm, rows: u64, fit: u64) -> u32 {
    let most = match algorithm {
        // The CPU partitions. One write-combining buffer per partition must stay in a core's cache.
        Algorithm::CpuPartitioned => 10,
        // `dma` partitions by one look-back pass. The scatter kernels could take more bits (000 §6.1 uses 6 to
        // 10), but have the same limit.
        _ => 8,
    };
    let partitions = rows.saturating_mul(PARTITIONS_PER_SET).div_ceil(fit.max(1));
    partitions.next_power_of_two().ilog2().clamp(1, most)
}

/// Returns the GPU memory per row that partitioning needs. It has three parts: one tuple for each of two
/// passes, the share of a row in the look-back words of its tile, and its share in the task list.
pub(crate) fn partitioning_bytes(shape: Shape, word: Width) -> u64 {
    let tile_bytes = abi::BINS as u64 * 4;
    let task = size_of::<abi::Task>() as u64;
    2 * word.tuple()
        + tile_bytes.div_ceil(u64::from(shape.tile))
        + 2 * task.div_ceil(u64::from(shape.probe_rows.min(shape.build_rows)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_fit_shared_memory() {
        assert_eq!(radix_bits(1 << 27, 4608, 64), 15);
        assert_eq!(radix_bits(100, 4608, 64), 1);
        assert_eq!(radix_bits(u64::from(u32::MAX), 4, 32), 24);
    }

    #[test]
    fn a_long_probe_side_is_partitioned_once() {
        let look_back = RadixPartitioner::LookBack;
        assert!(is_one_pass([1000, 3000], look_back) && !is_one_pass([1000, 2999], look_back));
        assert!(!is_one_pass([1000, 3000], RadixPartitioner::BucketPool));
        // 2^27 slots of 16 bytes are 2 GiB, in parts of 6.25 MiB.
        assert_eq!(one_pass_bits(1 << 26, 50 << 20, 64 << 30, Width::W64), 8);
        assert_eq!(one_pass_bits(1 << 20, 50 << 20, 64 << 30, Width::W64), 3);
    }

    #[test]
    fn dense_keys_address_an_array() {
        assert!(is_array(1, (7, 7 + 4095)) && !is_array(1, (7, 7 + 4096)));
        assert!(is_array(1 << 20, (0, (1 << 22) - 1)) && !is_array(1 << 20, (0, 1 << 22)));
        assert!(!is_array(u64::from(u32::MAX), (0, u64::from(u32::MAX))));
    }

    #[test]
    fn a_working_set_has_a_few_partitions() {
        assert_eq!(first_pass_bits(Algorithm::Triton, 1000, 1000), 2);
        assert_eq!(first_pass_bits(Algorithm::Triton, 1 << 44, 1), 8);
        assert_eq!(first_pass_bits(Algorithm::CpuPartitioned, 1 << 44, 1), 10);
        assert_eq!(first_pass_bits(Algorithm::CpuPartitioned, 1, u64::MAX), 1);
    }
}

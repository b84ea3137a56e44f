//! Shares of GPU memory that the planner and the algorithms both use.

use crate::options::Algorithm;

/// Returns the size of the GPU memory that caches partitions: as the caller asked, or the default. A larger
/// default would send fewer tuples back and forth. But throughput would fall more suddenly at the table size
/// at which spilling begins.
pub(crate) fn cache_bytes(memory: u64, asked: Option<u64>) -> u64 {
    asked.unwrap_or(memory / 16 * 9).min(memory / 4 * 3)
}

/// The build partitions of a working set may take this share of the free memory, in eighths.
const FOR_WORKING_SET: u64 = 4;

/// Returns the number of build rows that fit a working set. A row takes `row` bytes, including the memory for
/// partitioning it.
pub(crate) fn working_set_rows(memory: u64, row: u64) -> u64 {
    memory / 8 * FOR_WORKING_SET / row
}

/// Returns whether the CPU may read the key words in host memory for more than staging: to partition them, or
/// to count the tuples per partition.
pub(crate) fn reads_words(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::CpuPartitioned | Algorithm::Triton)
}

/// A table has at least `LEAST_SLOTS / (LEAST_SLOTS - 1)` slots per row, which is 5/4. A lookup then reads
/// about three slots.
pub(crate) const LEAST_SLOTS: u64 = 5;
/// The share of memory for tables, in eighths. The rest is for chunks and output.
pub(crate) const FOR_TABLES: u64 = 6;
/// The largest number of slots per table. A compact table has 32 bits for a slot number.
pub(crate) const MAX_SLOTS: u64 = u32::MAX as u64;

/// Returns the number of rows whose table fits.
pub(crate) fn table_rows(memory: u64, tuple: u64) -> u64 {
    let slots = (memory / 8 * FOR_TABLES / tuple).min(MAX_SLOTS);
    slots * (LEAST_SLOTS - 1) / LEAST_SLOTS
}

/// Returns the most bytes of a hybrid table that lie in GPU memory. Some memory must stay free for the probe
/// rows. (001 §5.3 fills the GPU memory.)
pub(crate) fn hybrid_table_bytes(memory: u64) -> u64 {
    memory / 8 * 5
}

#[cfg(test)]
mod tests {
    use super::{cache_bytes, table_rows, working_set_rows};

    /// With 16 GiB, 2^30 rows of 16 bytes take two passes, and twice as many rows take four.
    #[test]
    fn as_few_passes_as_memory_allows() {
        let passes = |rows: u64| rows.div_ceil(table_rows(16 << 30, 16));
        assert_eq!(passes(1 << 20), 1);
        assert_eq!(passes(1 << 30), 2);
        assert_eq!(passes(1 << 31), 4);
        assert_eq!(table_rows(0, 16), 0);
    }

    /// With 16 GiB, a working set has 2^33 / 48 rows. A cache leaves less memory for it.
    #[test]
    fn working_sets_share_memory_with_the_cache() {
        let sets = |rows: u64, memory| rows.div_ceil(working_set_rows(memory, 3 * 16));
        assert_eq!(sets(1 << 20, 16 << 30), 1);
        assert_eq!(sets(1 << 28, 16 << 30), 2);
        let left = (16 << 30) - cache_bytes(16 << 30, None);
        assert_eq!(sets(1 << 28, left), 4);
        assert_eq!(cache_bytes(16 << 30, Some(u64::MAX)), 12 << 30);
        assert_eq!(cache_bytes(16 << 30, Some(5)), 5);
    }
}

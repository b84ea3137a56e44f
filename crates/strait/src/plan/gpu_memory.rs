//! Shares of GPU memory that the planner and the algorithms agree on.

use crate::options::Algorithm;

/// The GPU memory that is kept for partitions unless told otherwise. More would let fewer tuples cross
/// twice, but throughput fall more steeply where they begin to.
pub(crate) fn cache_bytes(memory: u64) -> u64 {
    memory / 16 * 9
}

/// Whether the CPU may read the words of rows that lie in host memory, besides staging them: to
/// partition them, or to count those of partitions.
pub(crate) fn reads_words(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::CpuPartitioned | Algorithm::Triton)
}

/// Slots of a table a row, at least, in fifths: 5/4, which leaves look-ups three slots long.
pub(crate) const LEAST_SLOTS: u64 = 5;
/// The share of memory for tables, in eighths; the rest is for chunks and output.
pub(crate) const FOR_TABLES: u64 = 6;
/// The slots of a table, at most: a compact one has 32 bits for them.
pub(crate) const MAX_SLOTS: u64 = u32::MAX as u64;

/// Passes over the probe side that a build side takes, where keys come once.
pub(crate) fn passes(rows: u64, tuple: u64, memory: u64) -> u64 {
    let fit = table_rows(memory, tuple).max(1);
    rows.div_ceil(fit).max(1)
}

/// Rows whose table fits.
pub(crate) fn table_rows(memory: u64, tuple: u64) -> u64 {
    let slots = (memory / 8 * FOR_TABLES / tuple).min(MAX_SLOTS);
    slots * (LEAST_SLOTS - 1) / LEAST_SLOTS
}

#[cfg(test)]
mod tests {
    use super::passes;

    /// 2^30 rows of 16 bytes through 16 GiB: two passes; twice as many, four.
    #[test]
    fn as_few_passes_as_memory_allows() {
        assert_eq!(passes(1 << 20, 16, 16 << 30), 1);
        assert_eq!(passes(1 << 30, 16, 16 << 30), 2);
        assert_eq!(passes(1 << 31, 16, 16 << 30), 4);
        assert_eq!(passes(1 << 20, 16, 0), 1 << 20);
    }
}

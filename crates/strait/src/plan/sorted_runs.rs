//! The rules of a sort-merge join that spills: the sizes of sorted runs, of their blocks, and of key ranges.

use crate::input::ChunkLimits;
use crate::key::SORTED_BYTES_PER_ROW;
use crate::overrides::TestOverrides;

use super::spill::reading_bytes;

/// A block of a run has 1/`BLOCKS_OF_LIMIT` of the memory limit, between `LEAST_BLOCK` and `MOST_BLOCK` bytes. While
/// runs are merged, one block of each run is in memory.
const BLOCKS_OF_LIMIT: u64 = 1024;
const LEAST_BLOCK: u64 = 8 << 10;
const MOST_BLOCK: u64 = 1 << 20;
/// How many runs of one side and level are merged at once. Each run has a file, and a process may open about 1000 files.
const FAN_IN: usize = 64;
/// The most bytes of a chunk that is sorted at once if memory is not limited.
const CHUNK: u64 = 64 << 20;
/// The bytes per row that a join in memory takes besides the rows: key words or ranks, tuples, and the memory in which
/// they are sorted.
const JOINED_BYTES_PER_ROW: u64 = 80;
/// The memory that the rows of a key range take while they are joined, if memory is not limited.
const RANGE: u64 = 256 << 20;

/// The rules of a sort-merge join that spills.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunRules {
    pub(crate) limit: Option<u64>,
    pub(crate) threads: usize,
    pub(crate) overrides: TestOverrides,
}

impl RunRules {
    /// Returns the bytes that a block of a run should have.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.limit
            .map_or(MOST_BLOCK, |limit| limit / BLOCKS_OF_LIMIT)
            .clamp(LEAST_BLOCK, MOST_BLOCK)
    }

    /// Returns the rows per block if the rows have `bytes` bytes in total.
    pub(crate) fn block_rows(&self, rows: u64, bytes: u64) -> usize {
        match self.overrides.tiny_chunks {
            true => 2,
            false => (self.block_bytes() / (bytes / rows.max(1)).max(1)).clamp(1, 1 << 16) as usize,
        }
    }

    /// Returns whether rows of `bytes` bytes are too many for one block.
    pub(crate) fn is_too_wide(&self, bytes: u64) -> bool {
        bytes > 4 * self.block_bytes()
    }

    /// Returns the limits of a chunk that becomes a run. `free` bytes of memory are free, and `reading` bytes should
    /// stay free for the reader. The chunk has at most `rows` rows.
    pub(crate) fn chunk(&self, free: u64, reading: u64, rows: u64) -> ChunkLimits {
        if self.overrides.tiny_chunks {
            let (rows, bytes) = (rows.min(7), u64::MAX);
            return ChunkLimits { rows, bytes, held: bytes, spare: 0, free: 0, one_batch: false };
        }
        let bytes = self.limit.map_or(CHUNK, |_| free / 4).max(1);
        let rows = (bytes / SORTED_BYTES_PER_ROW).clamp(1, rows);
        ChunkLimits { rows, bytes, held: bytes, spare: 0, free: reading, one_batch: false }
    }

    /// Returns the bytes that should be free before a reader of the caller is called.
    pub(crate) fn reading_bytes(&self) -> u64 {
        reading_bytes(self.limit, self.threads)
    }

    /// Returns the most runs that are merged at once.
    pub(crate) fn fan_in(&self) -> usize {
        if self.overrides.tiny_partitions { 3 } else { FAN_IN }
    }

    /// Returns the number of runs of one side and level at which few of them are merged if little memory is free.
    pub(crate) fn most_runs(&self) -> usize {
        4 * self.fan_in()
    }

    /// Returns the most bytes of blocks, one per run, that are merged while a side is read, and `free` bytes are free.
    /// If much memory is free, waiting for more would not help. Otherwise, a part is for sorting and writing the rows.
    pub(crate) fn blocks_to_merge(&self, free: u64) -> u64 {
        match self.limit {
            Some(limit) if free < limit / 2 && !self.overrides.tiny_partitions => free / 4,
            _ => u64::MAX,
        }
    }

    /// Returns the most bytes of blocks, one per run, that may be in memory while runs are merged.
    pub(crate) fn merge_bytes(&self) -> u64 {
        self.limit.map_or(u64::MAX, |limit| limit / 8)
    }

    /// Returns the same for the join, which merges the runs of both sides.
    pub(crate) fn join_bytes(&self) -> u64 {
        match self.overrides.tiny_partitions {
            true => 1,
            false => self.limit.map_or(u64::MAX, |limit| limit / 4),
        }
    }

    /// Returns how much [memory](joined_bytes) the rows of a key range should take if `free` bytes are free. The rest
    /// is left for the output.
    pub(crate) fn range_bytes(&self, free: u64) -> u64 {
        match self.limit {
            _ if self.overrides.tiny_chunks => 4000,
            Some(_) => free / 2,
            None => RANGE,
        }
    }
}

/// Returns the memory that rows take while they are joined. The columns of the output are copied once.
pub(crate) fn joined_bytes(rows: u64, bytes: u64) -> u64 {
    2 * bytes + JOINED_BYTES_PER_ROW * rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn rules(limit: Option<u64>) -> RunRules {
        RunRules { limit, threads: 2, overrides: TestOverrides::default() }
    }

    #[test]
    fn blocks_of_all_runs_fit_memory() {
        for mib in [16, 300, 4096] {
            let rules = rules(Some(mib * MIB));
            let blocks = FAN_IN as u64 * rules.block_bytes();
            assert!(blocks <= rules.merge_bytes(), "{mib} MiB");
        }
        assert_eq!(rules(None).block_bytes(), MOST_BLOCK);
    }

    #[test]
    fn a_chunk_leaves_memory_for_sorting_it() {
        for free in [0, MIB, 64 * MIB] {
            let chunk = rules(Some(64 * MIB)).chunk(free, 0, u64::MAX);
            assert!(chunk.bytes + chunk.rows * SORTED_BYTES_PER_ROW <= free / 2 + 64, "{chunk:?}");
            assert!(chunk.rows > 0);
        }
        assert_eq!(rules(None).chunk(u64::MAX, 0, 5).rows, 5);
    }

    #[test]
    fn wide_rows_make_short_blocks() {
        let rules = rules(Some(16 * MIB));
        assert_eq!(rules.block_rows(100, 100 * MIB), 1);
        assert_eq!(rules.block_rows(1000, 16_000), 1024);
        assert_eq!(rules.block_rows(0, 0), 16_384);
    }
}

//! The rules of a join that spills: how many partitions it makes, which of them stay in memory, and when
//! partitioning again is of no use.

use crate::overrides::TestOverrides;

/// The most radix bits of one level. Each partition has a file per side, and a process may open some 1000 files.
const MAX_BITS: u32 = 6;
const LEAST_BITS: u32 = 3;
/// The radix bits if the size of the build side is unknown, or if memory is not limited.
const DEFAULT_BITS: u32 = 5;
/// The bytes of a chunk that is partitioned, if memory is not limited.
const CHUNK: u64 = 32 << 20;
/// While rows are partitioned, the chunks of all workers take at most 1/`CHUNKS_OF_LIMIT` of the memory limit.
const CHUNKS_OF_LIMIT: u64 = 32;
/// Partitioning a chunk takes up to four times its bytes: row ids, gathered rows, and encoded rows.
const ROOM_OF_LIMIT: u64 = CHUNKS_OF_LIMIT / 4;
/// Bytes per build row that a join in memory takes besides the rows: key word, tuple, and its part of the table.
const TABLE_BYTES_PER_ROW: u64 = 48;
/// Bytes that a join in memory takes even for few rows.
const BYTES_PER_JOIN: u64 = 128 << 10;
/// The most levels. Partitions of the last level are joined in blocks.
const MAX_LEVELS: u32 = 6;

/// The sizes of some rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SpilledSize {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

impl SpilledSize {
    pub(crate) fn plus(self, other: SpilledSize) -> SpilledSize {
        SpilledSize { rows: self.rows + other.rows, bytes: self.bytes + other.bytes }
    }

    /// Returns the bytes that a join in memory takes if these rows are its build side. The columns of the output
    /// are copied once, so that they can be gathered fast.
    fn join_bytes(self) -> u64 {
        let table = self.rows.saturating_mul(TABLE_BYTES_PER_ROW);
        self.bytes.saturating_mul(2).saturating_add(table).saturating_add(BYTES_PER_JOIN)
    }

    /// Returns whether these rows can be the build side of a join in memory that has `free` bytes. A third of them
    /// stays for the probe side and for the output.
    pub(crate) fn fits(self, free: u64) -> bool {
        self.join_bytes() <= free / 3 * 2
    }
}

/// The rules for one level of a join that spills. Level 0 partitions the tables, level 1 partitions pairs of spilled
/// partitions, and so on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpillRules {
    pub(crate) limit: Option<u64>,
    pub(crate) threads: usize,
    pub(crate) level: u32,
    pub(crate) overrides: TestOverrides,
    /// Whether the caller asked for the algorithm. Then no partition stays in memory at level 0.
    pub(crate) asked: bool,
}

impl SpillRules {
    /// Returns the radix bits of this level. The partitions of the build side are to fit memory, with room to spare
    /// because partitions vary in size.
    pub(crate) fn bits(&self, build: Option<SpilledSize>) -> u32 {
        if self.overrides.tiny_partitions {
            return 2;
        }
        let (Some(limit), Some(build)) = (self.limit, build) else { return DEFAULT_BITS };
        let partitions = build.join_bytes().saturating_mul(3) / limit.max(1);
        partitions.max(1).ilog2().saturating_add(1).clamp(LEAST_BITS, MAX_BITS)
    }

    /// Returns the bytes of a chunk that one worker partitions at a time.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        match self.limit {
            _ if self.overrides.tiny_chunks => 1,
            Some(limit) => (limit / CHUNKS_OF_LIMIT / self.threads as u64).clamp(1, CHUNK),
            None => CHUNK,
        }
    }

    /// Returns the memory for partitioning the probe side; `None` if memory is not limited.
    pub(crate) fn room_bytes(&self) -> Option<u64> {
        self.limit.map(|limit| limit / ROOM_OF_LIMIT)
    }

    /// Returns the most rows of a chunk that one worker partitions at a time.
    pub(crate) fn chunk_rows(&self) -> u64 {
        if self.overrides.tiny_chunks { 7 } else { u64::from(u32::MAX) }
    }

    /// Returns the most bytes of build partitions that stay in memory while the build side is partitioned.
    pub(crate) fn resident_bytes(&self) -> u64 {
        match self.limit {
            _ if self.asked && self.level == 0 => 0,
            Some(limit) => limit / 3,
            None => u64::MAX,
        }
    }

    /// Returns the rows of a block of a side that is joined in blocks, with `free` bytes of memory.
    pub(crate) fn block_rows(&self, side: SpilledSize, free: u64) -> u64 {
        if self.overrides.tiny_chunks {
            return 5;
        }
        let per_row = 2 * side.bytes / side.rows.max(1) + TABLE_BYTES_PER_ROW;
        // Half of what fits: rows vary in size.
        ((free / 3).saturating_sub(BYTES_PER_JOIN) / per_row).max(1)
    }

    /// Returns whether a pair is joined in blocks instead of being joined in memory or partitioned again. `part` is the
    /// smaller side of the pair, and `whole` is the smaller side before it was partitioned. If one key has most of the
    /// rows, partitioning again separates little. The number of levels is bounded, because a join can be refused memory
    /// although its rows fit.
    pub(crate) fn in_blocks(&self, part: SpilledSize, whole: SpilledSize, free: u64) -> bool {
        self.level >= MAX_LEVELS || (!part.fits(free) && part.bytes > whole.bytes / 4 * 3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn rules(limit: Option<u64>) -> SpillRules {
        SpillRules {
            limit,
            threads: 2,
            level: 0,
            overrides: TestOverrides::default(),
            asked: false,
        }
    }

    fn size(bytes: u64) -> SpilledSize {
        SpilledSize { rows: bytes / 32, bytes }
    }

    #[test]
    fn partitions_fit_memory_with_room_to_spare() {
        let limit = 300 * MIB;
        let rules = rules(Some(limit));
        for mib in [100, 640, 2000] {
            let bits = rules.bits(Some(size(mib * MIB)));
            let part = size(mib * MIB >> bits);
            assert!(part.fits(limit), "{mib} MiB: {bits} bits");
        }
        assert_eq!(rules.bits(Some(size(MIB))), LEAST_BITS);
        assert_eq!(rules.bits(Some(size(u64::MAX / 64))), MAX_BITS);
        assert_eq!(rules.bits(None), DEFAULT_BITS);
    }

    #[test]
    fn a_key_with_most_rows_is_joined_in_blocks() {
        let rules = rules(Some(MIB));
        assert!(!rules.in_blocks(size(50 * MIB), size(100 * MIB), MIB));
        assert!(rules.in_blocks(size(90 * MIB), size(100 * MIB), MIB));
        assert!(!rules.in_blocks(size(90 * MIB), size(100 * MIB), 1 << 40), "it fits");
        let deep = SpillRules { level: MAX_LEVELS, ..rules };
        assert!(deep.in_blocks(size(1), size(100), u64::MAX));
    }

    #[test]
    fn what_stays_in_memory_leaves_room() {
        assert_eq!(rules(None).resident_bytes(), u64::MAX);
        assert_eq!(SpillRules { asked: true, ..rules(None) }.resident_bytes(), 0);
        assert_eq!(rules(Some(3 * MIB)).resident_bytes(), MIB);
        assert!(size(MIB).fits(6 * MIB) && !size(MIB).fits(3 * MIB));
        assert!(!size(1).fits(BYTES_PER_JOIN));
    }
}

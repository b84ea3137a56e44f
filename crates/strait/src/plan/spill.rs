//! The rules of a join that spills: how many partitions it makes, how many of them stay in memory, and which pairs are
//! joined in blocks.

use std::ops::Range;

use crate::build_side::{of_pair, smaller_first};
use crate::input::ChunkLimits;
use crate::options::Side;
use crate::overrides::TestOverrides;

/// The most radix bits of one level. Each partition has one file per side. The files of all levels may be open at once,
/// and a process may open about 1000 files.
const MAX_BITS: u32 = 6;
const LEAST_BITS: u32 = 3;
/// The radix bits if the size of the build side is unknown, or if memory is not limited.
const DEFAULT_BITS: u32 = 5;
/// The most bytes of a chunk that one worker partitions at a time.
const CHUNK: u64 = 4 << 20;
/// While rows are partitioned, the chunks of all workers take at most 1/`CHUNKS_OF_LIMIT` of the memory limit.
const CHUNKS_OF_LIMIT: u64 = 32;
/// Partitioning a chunk takes memory of at most `ROOM_PER_CHUNK` times its bytes: for row ids, gathered rows, and
/// encoded rows.
const ROOM_PER_CHUNK: u64 = 4;
/// Before a chunk is read, 1/`READING_OF_LIMIT` of the memory limit should be free for the readers. `READING` per
/// thread is enough, and half of `MOST_SPARE` is enough.
const READING_OF_LIMIT: u64 = 4;
const READING: u64 = 8 << 20;
/// A join that may spill first reads its build side into memory. Meanwhile, it leaves about 1/`SPARE_OF_LIMIT` of the
/// memory limit free, at most `SPARE`.
const SPARE_OF_LIMIT: u64 = 8;
const SPARE: u64 = 128 << 20;
/// The bytes per row while its partition is computed: the key word and the row id.
pub(crate) const ASSIGNED_BYTES_PER_ROW: u64 = 16;
/// A chunk should have this many rows per partition. Each block takes time and bytes for each of its columns.
const ROWS_PER_BLOCK: u64 = 64;
/// The bytes per build row that a join in memory takes in addition to the row: key word, tuple, and its part of the
/// table.
const TABLE_BYTES_PER_ROW: u64 = 48;
/// A join in memory should leave a third of the free memory to the probe side and the output, but at most this many
/// bytes.
const MOST_SPARE: u64 = 128 << 20;
/// Bytes that a join in memory takes even for few rows.
const BYTES_PER_JOIN: u64 = 128 << 10;
/// The most levels. Partitions of the last level are joined in blocks.
const MAX_LEVELS: u32 = 6;

/// The filter over the keys of the build side takes at most 1/`FILTER_OF_LIMIT` of the memory limit, and at most
/// `MOST_FILTER` bytes.
const FILTER_OF_LIMIT: u64 = 16;
const MOST_FILTER: u64 = 256 << 20;
/// The most bytes of the filter if memory is not limited, and the number of build rows is unknown.
const DEFAULT_FILTER: u64 = 16 << 20;
/// The bytes of the filter per build row, if the number of build rows is known. They are 32 bits. The number may be too
/// small, and if it is right, the filter is folded later.
const FILTER_BYTES_PER_ROW: u64 = 4;
/// A filter with fewer bytes rejects almost nothing.
const LEAST_FILTER: u64 = 64;
/// When this many probe rows were looked up in the filter, and fewer than 1/`FILTER_PAYS` of them were rejected, the
/// filter is dropped.
const FILTER_SAMPLE: u64 = 100_000;
const FILTER_PAYS: u64 = 16;

/// A number of rows, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SpilledSize {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

impl SpilledSize {
    pub(crate) fn plus(self, other: SpilledSize) -> SpilledSize {
        SpilledSize { rows: self.rows + other.rows, bytes: self.bytes + other.bytes }
    }

    /// Returns the bytes that a join in memory takes if these rows are its build side. The rows count twice, because
    /// the join copies the columns of the output once, to gather them fast.
    fn join_bytes(self) -> u64 {
        let table = self.rows.saturating_mul(TABLE_BYTES_PER_ROW);
        self.bytes.saturating_mul(2).saturating_add(table).saturating_add(BYTES_PER_JOIN)
    }

    /// Returns whether these rows can be the build side of a join in memory that has `free` bytes. A third of `free`,
    /// at most `MOST_SPARE`, is left for the probe side and the output. This is an estimate: the join can still be
    /// refused memory. Then fewer partitions stay in memory, or the pair is partitioned again.
    pub(crate) fn fits(self, free: u64) -> bool {
        self.join_bytes() <= free - (free / 3).min(MOST_SPARE)
    }
}

/// Returns the bytes that should be free before rows are read, if the join may spill.
pub(crate) fn reading_bytes(limit: Option<u64>, threads: usize) -> u64 {
    limit.map_or(0, |limit| {
        (limit / READING_OF_LIMIT).min(READING * threads as u64).min(MOST_SPARE / 2)
    })
}

/// Returns the bytes that a join that may spill leaves free while it reads its build side. If it then spills, it needs
/// this memory to partition the rows that it has read.
pub(crate) fn spare_bytes(limit: Option<u64>) -> u64 {
    limit.map_or(0, |limit| (limit / SPARE_OF_LIMIT).min(SPARE))
}

/// The buckets by which the keys of a build side are divided into parts.
pub(crate) const PART_BUCKETS: usize = 256;
/// The most parts of a build side. With more, the hybrid hash join is faster, because it reads each build row from its
/// own partition, and not from all over the memory.
const MAX_PARTS: usize = 16;
/// A table is built in parts only if this much memory is free for it. With less, the fixed costs of each pass are more
/// than what they save.
const LEAST_FOR_PARTS: u64 = 8 << 20;

/// The memory that a table takes per build row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableMemory {
    /// While it is built: the tuples, and the table.
    pub(crate) building: u64,
    /// While it is probed.
    pub(crate) probing: u64,
}

/// The memory that a table may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreeForTable {
    /// The bytes that are free before the build rows are partitioned.
    pub(crate) left: u64,
    /// The bytes that are freed when the tuples are partitioned: the buffer of the key words.
    pub(crate) words: u64,
    /// The bytes that must be free before the probe side is read.
    pub(crate) to_probe: u64,
}

impl FreeForTable {
    /// Returns whether one table over `rows` rows is expected to fit. If the answer is wrong, memory is refused, and the
    /// table is built in parts after that.
    pub(crate) fn fits(self, rows: u64, memory: TableMemory) -> bool {
        let freed = self.left.saturating_add(self.words);
        rows.saturating_mul(memory.building) <= freed
            && rows.saturating_mul(memory.probing).saturating_add(self.to_probe) <= freed
    }

    /// Returns the most rows of a part. The key words stay in memory while there are more parts. Returns 0 if too little
    /// memory is free.
    pub(crate) fn rows_of_part(self, memory: TableMemory, overrides: TestOverrides) -> u64 {
        if self.left < LEAST_FOR_PARTS && !overrides.table_parts {
            return 0;
        }
        // Regions of a table are rounded up.
        let rounding = self.left / 32;
        let while_building = (self.left - rounding) / memory.building.max(1);
        let spare = self.to_probe.max((self.left / 3).min(MOST_SPARE)).saturating_add(rounding);
        let while_probing = self.left.saturating_sub(spare) / memory.probing.max(1);
        while_building.min(while_probing)
    }
}

/// Divides buckets into parts of at most `fit` rows. `rows` has the build rows of each bucket. Returns the buckets of
/// each part. The first parts are as large as possible, because the probe rows of the first part are not
/// written to disk. Returns `None` if one bucket has too many rows, or if there would be too many parts.
pub(crate) fn part_of_buckets(rows: &[u64], fit: u64) -> Option<Vec<Range<usize>>> {
    // The buckets of each part, and its rows.
    let mut parts = vec![(0..0, 0)];
    for (bucket, &rows) in rows.iter().enumerate() {
        if rows > fit {
            return None;
        }
        let last = parts.last_mut()?;
        match last.1 + rows <= fit {
            true => *last = (last.0.start..bucket + 1, last.1 + rows),
            false => parts.push((bucket..bucket + 1, rows)),
        }
    }
    let few = parts.len() <= MAX_PARTS;
    few.then(|| parts.into_iter().map(|(buckets, _)| buckets).collect())
}

/// The rules for one level of a join that spills. Level 0 partitions the tables, level 1 partitions pairs of spilled
/// partitions, and so on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpillRules {
    pub(crate) limit: Option<u64>,
    pub(crate) threads: usize,
    pub(crate) level: u32,
    pub(crate) overrides: TestOverrides,
    /// Whether the caller asked for the algorithm `spill`. Then level 0 keeps no blocks in memory.
    pub(crate) asked: bool,
}

impl SpillRules {
    /// Returns the radix bits of this level. A build partition should fit memory. Partitions vary in size. So the goal
    /// is more than three times as many partitions as partitions of equal size would need. If rows are wide, there are
    /// fewer partitions (`ROWS_PER_BLOCK`). `MAX_BITS` also limits the number.
    pub(crate) fn bits(&self, build: Option<SpilledSize>) -> u32 {
        if self.overrides.tiny_partitions {
            return 2;
        }
        let (Some(limit), Some(build)) = (self.limit, build) else { return DEFAULT_BITS };
        let partitions = build.join_bytes().saturating_mul(3) / limit.max(1);
        let bits = partitions.max(1).ilog2().saturating_add(1);
        // Wide rows make short chunks.
        let rows_of_chunk = self.chunk_bytes() / (build.bytes / build.rows.max(1)).max(1);
        let most = (rows_of_chunk / ROWS_PER_BLOCK).max(1).ilog2();
        bits.min(most).clamp(LEAST_BITS, MAX_BITS)
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
        self.limit.map(|_| self.chunk_bytes() * ROOM_PER_CHUNK * self.threads as u64)
    }

    /// Returns the most rows of a chunk that one worker partitions at a time. This limit matters for narrow rows:
    /// computing a partition takes 16 bytes per row, even if the row is shorter.
    pub(crate) fn chunk_rows(&self) -> u64 {
        match self.overrides.tiny_chunks {
            true => 7,
            false => (self.chunk_bytes() / ASSIGNED_BYTES_PER_ROW).max(1),
        }
    }

    /// Returns the bytes that should be free before a worker reads from a source of the caller. If fewer bytes are
    /// free, partitions first move to disk. If no partition is left in memory, the worker reads anyway.
    pub(crate) fn reading_bytes(&self) -> u64 {
        reading_bytes(self.limit, self.threads)
    }

    /// Returns the limits of a chunk that one worker partitions at a time.
    pub(crate) fn chunk_limits(&self) -> ChunkLimits {
        let bytes = self.chunk_bytes();
        let held = self.limit.map_or(u64::MAX, |_| bytes * ROOM_PER_CHUNK);
        let (rows, free) = (self.chunk_rows(), self.reading_bytes());
        ChunkLimits { rows, bytes, held, spare: 0, free, one_batch: false }
    }

    /// Returns the most bytes of partitions, of both sides together, that stay in memory during partitioning.
    pub(crate) fn resident_bytes(&self) -> u64 {
        match self.limit {
            _ if self.asked && self.level == 0 => 0,
            Some(limit) => limit / 3,
            None => u64::MAX,
        }
    }

    /// Returns the rows per block if a side is joined in blocks and `free` bytes of memory are free.
    pub(crate) fn block_rows(&self, side: SpilledSize, free: u64) -> u64 {
        if self.overrides.tiny_chunks {
            return 5;
        }
        let per_row = 2 * side.bytes / side.rows.max(1) + TABLE_BYTES_PER_ROW;
        // About half of the rows that would fit if all rows had the average size, because rows vary in size.
        ((free / 3).saturating_sub(BYTES_PER_JOIN) / per_row).max(1)
    }

    /// Returns the most bytes of rows per block if `free` bytes of memory are free.
    pub(crate) fn block_bytes(&self, free: u64) -> u64 {
        self.limit.map_or(u64::MAX, |_| (free / 3).max(1))
    }

    /// Returns the bytes of the filter over the keys of a build side: a power of two, or 0 if there is no filter.
    /// `rows` is the number of its rows, as far as known, and `free` is the free memory. As long as either side may
    /// become the build side, there are two filters (`is_open`).
    ///
    /// The filter is filled while the build side is partitioned. Its number of rows is exact only for pairs of
    /// partitions. Otherwise, the filter is as large as the limit allows.
    pub(crate) fn filter_bytes(&self, rows: Option<u64>, free: u64, is_open: bool) -> u64 {
        if self.overrides.tiny_partitions {
            return LEAST_FILTER;
        }
        let most = match self.limit {
            // Half of the free memory is left for the first rows that are partitioned.
            Some(limit) => (limit / FILTER_OF_LIMIT).min(free / 2),
            None if rows.is_none() => DEFAULT_FILTER,
            None => MOST_FILTER,
        };
        let most = most.min(MOST_FILTER) >> u32::from(is_open);
        let needed = rows.map_or(u64::MAX, |rows| rows.saturating_mul(FILTER_BYTES_PER_ROW));
        // A power of two is at least half of its bound. So a filter that needs less than `most` has 16 bits per row.
        match most.min(needed.max(LEAST_FILTER)) {
            ..LEAST_FILTER => 0,
            bytes => 1 << bytes.ilog2(),
        }
    }

    /// Returns whether a filter is made half as large. `set` of its `bits` bits are set. After it was made smaller, at
    /// most a quarter of its bits is set. Then it rejects more than 99 percent of the rows without a match.
    pub(crate) fn filter_folds(&self, set: u64, bits: u64) -> bool {
        set < bits / 8
    }

    /// Returns whether so many bits of a filter are set that it would reject only few rows. A key has four bits, so the
    /// filter rejects 41 percent of the rows without a match if 7/8 of its bits are set.
    pub(crate) fn filter_is_full(&self, set: u64, bits: u64) -> bool {
        set > bits / 8 * 7
    }

    /// Returns whether a filter is kept that was asked for `asked` rows, and has rejected `rejected` of them.
    pub(crate) fn filter_pays(&self, asked: u64, rejected: u64) -> bool {
        let sample = if self.overrides.tiny_chunks { 20 } else { FILTER_SAMPLE };
        asked < sample || rejected >= asked / FILTER_PAYS
    }

    /// Decides how a pair of partitions is joined. `sizes` has the sizes of its left and right side. `whole` is the
    /// size of the smaller one of the two tables that were partitioned.
    ///
    /// If both sides fit memory, the side with fewer bytes is the build side. If one key has most of the rows,
    /// partitioning again separates few rows, so the pair is joined in blocks. The number of levels has a limit,
    /// because a pair that is expected to fit can be refused memory, and is then partitioned again.
    pub(crate) fn pair(&self, sizes: [SpilledSize; 2], whole: SpilledSize, free: u64) -> PairPlan {
        let bytes = sizes.map(|size| size.bytes);
        let [smaller, _] = smaller_first(bytes).map(|side| sizes[side as usize]);
        match of_pair(bytes, |side| sizes[side as usize].fits(free)) {
            _ if self.level >= MAX_LEVELS => PairPlan::InBlocks,
            Some(build) => PairPlan::InMemory(build),
            None if smaller.bytes > whole.bytes / 4 * 3 => PairPlan::InBlocks,
            None => PairPlan::Partitioned,
        }
    }
}

/// How a pair of partitions is joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PairPlan {
    /// In memory. This side is the build side.
    InMemory(Side),
    /// It is partitioned again.
    Partitioned,
    /// In memory, block by block.
    InBlocks,
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
            let part = size((mib * MIB) >> bits);
            assert!(part.fits(limit), "{mib} MiB: {bits} bits");
        }
        assert_eq!(rules.bits(Some(size(MIB))), LEAST_BITS);
        assert_eq!(rules.bits(Some(size(u64::MAX / 64))), MAX_BITS);
        assert_eq!(rules.bits(None), DEFAULT_BITS);
    }

    #[test]
    fn a_key_with_most_rows_is_joined_in_blocks() {
        let rules = rules(Some(MIB));
        let whole = size(100 * MIB);
        let large = |mib: u64| [size(mib * MIB), size(200 * MIB)];
        assert_eq!(rules.pair(large(50), whole, MIB), PairPlan::Partitioned);
        assert_eq!(rules.pair(large(90), whole, MIB), PairPlan::InBlocks);
        assert_eq!(rules.pair(large(90), whole, 1 << 40), PairPlan::InMemory(Side::Left));
        let deep = SpillRules { level: MAX_LEVELS, ..rules };
        assert_eq!(deep.pair([size(1), size(1)], whole, u64::MAX), PairPlan::InBlocks);
    }

    #[test]
    fn the_side_that_fits_builds_even_if_it_has_more_bytes() {
        let rules = rules(Some(9 * MIB));
        let narrow = SpilledSize { rows: 200_000, bytes: 3 * MIB / 2 };
        let wide = SpilledSize { rows: 800, bytes: 2 * MIB };
        for (sizes, side) in [([narrow, wide], Side::Right), ([wide, narrow], Side::Left)] {
            assert_eq!(rules.pair(sizes, narrow, 9 * MIB), PairPlan::InMemory(side));
        }
    }

    #[test]
    fn parts_have_at_most_the_rows_that_fit() {
        let rows = [3, 0, 4, 2, 2, 5, 0];
        let parts = part_of_buckets(&rows, 7).expect("each bucket fits");
        assert_eq!(parts, [0..3, 3..5, 5..7]);
        assert_eq!(part_of_buckets(&rows, 4), None, "one bucket has five rows");
        assert_eq!(part_of_buckets(&[1; 100], 1), None, "too many parts");
        assert_eq!(part_of_buckets(&[1; 100], 100).map(|parts| parts.len()), Some(1));
    }

    /// If the limit is a little too small, the first part has most of the rows.
    #[test]
    fn the_first_part_grows_with_the_memory() {
        let memory = TableMemory { building: 46, probing: 30 };
        let rows = 20_000_000;
        let free = |mib: u64| FreeForTable { left: mib * MIB, words: 0, to_probe: 16 * MIB };
        let fit = |mib| free(mib).rows_of_part(memory, TestOverrides::default());
        assert!(free(900).fits(rows, memory) && !free(800).fits(rows, memory));
        assert!(fit(800) > rows * 85 / 100 && fit(400) > rows * 2 / 5, "{}", fit(800));
        assert_eq!(fit(7), 0);
    }

    #[test]
    fn what_stays_in_memory_leaves_room() {
        assert_eq!(rules(None).resident_bytes(), u64::MAX);
        assert_eq!(SpillRules { asked: true, ..rules(None) }.resident_bytes(), 0);
        assert_eq!(rules(Some(3 * MIB)).resident_bytes(), MIB);
        assert!(size(MIB).fits(6 * MIB) && !size(MIB).fits(3 * MIB));
        assert!(!size(1).fits(BYTES_PER_JOIN));
    }

    #[test]
    fn the_filter_is_small_against_the_limit() {
        let limited = rules(Some(64 * MIB));
        assert_eq!(limited.filter_bytes(None, 64 * MIB, false), 4 * MIB);
        assert_eq!(limited.filter_bytes(None, 64 * MIB, true), 2 * MIB);
        assert_eq!(limited.filter_bytes(None, 3 * MIB, false), MIB);
        assert_eq!(limited.filter_bytes(Some(u64::MAX), 64 * MIB, false), 4 * MIB);
        assert_eq!(limited.filter_bytes(Some(1000), 64 * MIB, false), 2048);
        assert_eq!(limited.filter_bytes(Some(0), 64 * MIB, false), LEAST_FILTER);
        assert_eq!(limited.filter_bytes(Some(1000), 100, false), 0);
        assert_eq!(rules(Some(512)).filter_bytes(None, 512, false), 0);
        assert_eq!(rules(None).filter_bytes(None, u64::MAX, true), DEFAULT_FILTER / 2);
        assert_eq!(rules(None).filter_bytes(Some(u64::MAX), u64::MAX, false), MOST_FILTER);
    }

    #[test]
    fn a_filter_that_rejects_few_rows_is_dropped() {
        let rules = rules(None);
        assert!(rules.filter_pays(0, 0) && rules.filter_pays(FILTER_SAMPLE - 1, 0));
        assert!(rules.filter_pays(FILTER_SAMPLE, FILTER_SAMPLE / 16));
        assert!(!rules.filter_pays(FILTER_SAMPLE, FILTER_SAMPLE / 17));
        assert!(!rules.filter_is_full(448, 512) && rules.filter_is_full(449, 512));
        assert!(rules.filter_folds(63, 512) && !rules.filter_folds(64, 512));
    }
}

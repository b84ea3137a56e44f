//! How kernels are shaped for a card: threads, items, tile sizes. Tuning is data, and this file is the data.
//!
//! All numbers depend on the shared memory that a block may have, which stands for the card's generation.
//! Kernels get the numbers as macros; conductors get them as a [`Shape`].

use crate::device::abi::{MAX_PARTITIONS, ROUNDS_PER_TASK};
use crate::device::{Scatterer, Shape};
use crate::word::Width;

/// The headers that the sources include.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("abi.cuh", include_str!("../../../kernels/abi.cuh")),
    ("word.cuh", include_str!("../../../kernels/word.cuh")),
    ("block.cuh", include_str!("../../../kernels/block.cuh")),
    ("tile.cuh", include_str!("../../../kernels/tile.cuh")),
    ("scatter.cuh", include_str!("../../../kernels/scatter.cuh")),
    ("look_up.cuh", include_str!("../../../kernels/look_up.cuh")),
    ("table.cuh", include_str!("../../../kernels/table.cuh")),
    ("output.cuh", include_str!("../../../kernels/output.cuh")),
    ("runs.cuh", include_str!("../../../kernels/runs.cuh")),
];

/// The shapes of all kernels for one generation of cards and one word width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Radix passes of all partitioners: threads per block, tuples per thread, and blocks per multiprocessor.
    pub(crate) look_back: (u32, u32, u32),
    /// The join in shared memory: the same three numbers, with tuples per round.
    pub(crate) shared: (u32, u32, u32),
    /// Build tuples that a table in shared memory holds.
    pub(crate) shared_build_rows: u32,
    /// The buckets of that table.
    pub(crate) shared_heads: u32,
    /// Lookups in device memory: the same three numbers.
    pub(crate) probe: (u32, u32, u32),
    /// Merges of sorted sides: the same three numbers.
    pub(crate) merge: (u32, u32, u32),
    /// Tuples that a thread orders at a time for [`Scatterer::Linear`].
    pub(crate) linear_items: u32,
    /// Shared memory of a block that combines writes: all of it, with one block per multiprocessor.
    pub(crate) combine_bytes: u32,
}

/// Threads per histogram block.
pub(crate) const HISTOGRAM_THREADS: u32 = 512;
/// Threads per block that scatters to partitions.
pub(crate) const SCATTER_THREADS: u32 = 512;
/// Tuples per thread at a time, if writes are combined. With wide words, 64 KiB per block are being written
/// at a time, many times what the link needs.
pub(crate) const SCATTER_ITEMS: u32 = 8;
/// Spare long buffers per block, which belong to no partition. A tile of tuples fills 32 buffers on average.
const SPARES: u32 = 64;
/// The minimum bytes per write from a long buffer. From this size on, writes over the link have the same
/// speed for any target (benchmarks/notes.md).
const LONG_BYTES: u32 = 2048;
/// A line of memory, in bytes.
const LINE_BYTES: u32 = 128;
/// How many long buffers each partition should fill per block, so that few are written half empty.
const LONGS_PER_BLOCK: u64 = 4;
/// The minimum number of blocks that keep the link busy.
const LEAST_BLOCKS: u64 = 32;
/// Bins per digit.
const BINS: u32 = 256;
/// Rows that a task may write before it is cut, so that several blocks share a frequent key.
const MAX_ROWS_PER_TASK: u64 = 1 << 20;

/// The policy for a card whose blocks may have so much shared memory, in bytes.
pub(crate) fn policy(shared_bytes: u32, word: Width) -> Policy {
    let narrow = word == Width::W32;
    let pick = |of_narrow: u32, of_wide: u32| if narrow { of_narrow } else { of_wide };
    if shared_bytes >= 220 << 10 {
        // Hopper and data-centre Blackwell: 227 KiB. Measured on an H200 (benchmarks/notes.md).
        Policy {
            look_back: (512, pick(12, 11), pick(3, 2)),
            shared: (pick(1024, 768), pick(4, 3), 2),
            shared_build_rows: pick(7168, 4608),
            shared_heads: pick(8192, 4096),
            probe: (256, pick(4, 2), 8),
            merge: (256, pick(8, 4), 4),
            linear_items: pick(20, 14),
            combine_bytes: shared_bytes,
        }
    } else if shared_bytes >= 160 << 10 {
        // Data-centre Ampere: 163 KiB.
        Policy {
            look_back: (512, pick(14, 8), 2),
            shared: (pick(1024, 768), pick(4, 3), 2),
            shared_build_rows: pick(5120, 3072),
            shared_heads: 4096,
            probe: (256, pick(4, 2), 8),
            merge: (256, pick(8, 4), 4),
            linear_items: pick(20, 14),
            combine_bytes: shared_bytes,
        }
    } else {
        // Turing has 64 KiB and 1024 threads per multiprocessor; other Ampere cards have 99 KiB.
        Policy {
            look_back: (512, pick(8, 5), 1),
            shared: (512, pick(6, 4), 1),
            shared_build_rows: pick(4096, 2048),
            shared_heads: pick(4096, 2048),
            probe: (256, pick(4, 2), 4),
            merge: (256, pick(4, 2), 2),
            linear_items: pick(8, 4),
            combine_bytes: shared_bytes,
        }
    }
}

/// Returns the shared memory per block of a generation, without asking a card.
pub(crate) fn shared_bytes_of(capability: (u32, u32)) -> u32 {
    match capability {
        (8, 0) | (8, 7) => 163 << 10,
        (9, _) | (10, _) | (11, _) => 227 << 10,
        (8, _) | (12, _) => 99 << 10,
        _ => 64 << 10,
    }
}

/// The macros that kernels of a generation are compiled with.
pub(crate) fn options(capability: (u32, u32), word: Width) -> Vec<String> {
    let p = policy(shared_bytes_of(capability), word);
    let defines = [
        ("HISTOGRAM_THREADS", HISTOGRAM_THREADS),
        ("LOOK_BACK_THREADS", p.look_back.0),
        ("LOOK_BACK_ITEMS", p.look_back.1),
        ("LOOK_BACK_BLOCKS", p.look_back.2),
        ("SHARED_THREADS", p.shared.0),
        ("SHARED_ITEMS", p.shared.1),
        ("SHARED_BLOCKS", p.shared.2),
        ("SHARED_BUILD_ROWS", p.shared_build_rows),
        ("SHARED_HEADS", p.shared_heads),
        ("PROBE_THREADS", p.probe.0),
        ("PROBE_ITEMS", p.probe.1),
        ("PROBE_BLOCKS", p.probe.2),
        ("MERGE_THREADS", p.merge.0),
        ("MERGE_ITEMS", p.merge.1),
        ("MERGE_BLOCKS", p.merge.2),
        ("SCATTER_THREADS", SCATTER_THREADS),
        ("SCATTER_ITEMS", SCATTER_ITEMS),
        ("SCATTER_SPARES", SPARES),
        ("SCATTER_LONG", LONG_BYTES),
        ("SCATTER_SHARED", p.combine_bytes),
        ("LINEAR_ITEMS", p.linear_items),
    ];
    defines.iter().map(|(name, value)| format!("-D{name}={value}")).collect()
}

impl Policy {
    /// Shared memory of a look-back block: its tuples, their order or its warps' counts, a target and a start
    /// per digit, and a sum per warp.
    pub(crate) fn look_back_bytes(&self, word: Width) -> u32 {
        let (threads, items, _) = self.look_back;
        let tile = threads * items;
        let order = (tile * 2).max(threads / 32 * BINS * 2);
        tile * word.tuple() as u32 + order + BINS * 12 + (threads / 32 + 1) * 4
    }

    /// Shared memory of a block that fills buckets: that of a look-back block, and per digit a second target
    /// and where it takes over.
    pub(crate) fn bucket_pool_bytes(&self, word: Width) -> u32 {
        self.look_back_bytes(word) + BINS * 12
    }

    /// Shared memory of a table.
    pub(crate) fn shared_bytes(&self, word: Width) -> u32 {
        self.shared_build_rows * (word.tuple() as u32 + 2) + self.shared_heads * 4
    }

    /// Shared memory of a tile whose runs are written: its tuples, firsts and begins.
    pub(crate) fn runs_bytes((threads, items, _): (u32, u32, u32), word: Width) -> u32 {
        threads * items * (word.tuple() as u32 + 8)
    }

    /// Shared memory of a block that orders tiles to scatter them: their tuples, a target and a start per
    /// partition, and a sum per warp.
    pub(crate) fn linear_bytes(&self, word: Width) -> u32 {
        let tile = SCATTER_THREADS * self.linear_items;
        tile * word.tuple() as u32 + MAX_PARTITIONS * 12 + (SCATTER_THREADS / 32 + 1) * 4
    }

    /// Tuples of a partition's buffer in shared memory, and of a line: the twin of `Shape` in
    /// `kernels/partition/combine.cu`.
    fn combine_shape(&self, word: Width, partitions: u32) -> (u32, u32) {
        let tuple = word.tuple() as u32;
        let bytes = self.combine_bytes - (SPARES * 20 + 16) - 12 * partitions;
        let room = (bytes / (partitions * tuple)).min(LONG_BYTES / tuple);
        let line = (LINE_BYTES / tuple).min(1 << room.ilog2());
        (room / line * line, line)
    }

    /// Bytes of one block's long buffers.
    fn long_bytes(&self, word: Width, partitions: u32) -> u64 {
        let (capacity, line) = self.combine_shape(word, partitions);
        let room = u64::from(LONG_BYTES) + u64::from(capacity + line) * word.tuple();
        u64::from(partitions + SPARES) * room
    }

    /// Returns the number of blocks with long buffers, on a card with this many multiprocessors. With few rows there
    /// are fewer blocks, because each block writes the last tuples of every partition separately.
    pub(crate) fn long_blocks(word: Width, partitions: u32, rows: u64, processors: u32) -> u64 {
        let fill = u64::from(partitions) * u64::from(LONG_BYTES) * LONGS_PER_BLOCK;
        let tiles = rows.div_ceil(u64::from(SCATTER_THREADS * SCATTER_ITEMS));
        (rows * word.tuple() / fill).max(LEAST_BLOCKS).min(processors.into()).min(tiles)
    }

    /// Returns the device memory that a scatterer needs, in bytes.
    pub(crate) fn scatter_bytes(
        &self,
        word: Width,
        how: Scatterer,
        partitions: u32,
        processors: u32,
    ) -> u64 {
        let partitions = partitions.clamp(1, MAX_PARTITIONS);
        match how {
            Scatterer::Hierarchical => self.long_bytes(word, partitions) * u64::from(processors),
            Scatterer::Standard | Scatterer::Linear | Scatterer::Shared => 0,
        }
    }

    /// Returns the numbers that conductors need.
    pub(crate) fn shape(&self, l2: u64) -> Shape {
        Shape {
            tile: self.look_back.0 * self.look_back.1,
            build_rows: self.shared_build_rows,
            probe_rows: self.shared.0 * self.shared.1 * ROUNDS_PER_TASK,
            probe_tile: self.probe.0 * self.probe.1 * ROUNDS_PER_TASK,
            merge_tile: self.merge.0 * self.merge.1,
            most_rows: MAX_ROWS_PER_TASK,
            l2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many blocks fit a multiprocessor as the kernels' launch bounds promise. Each block needs 1 KiB of
    /// shared memory for the system.
    #[test]
    fn blocks_fit_their_multiprocessor() {
        for capability in [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)] {
            for word in [Width::W32, Width::W64] {
                let all = shared_bytes_of(capability);
                let p = policy(all, word);
                let fits = |bytes: u32, blocks: u32| (bytes + 1024) * blocks <= all + 1024;
                assert!(fits(p.look_back_bytes(word), p.look_back.2), "{capability:?} {word:?}");
                assert!(fits(p.bucket_pool_bytes(word), p.look_back.2), "{capability:?} {word:?}");
                assert!(fits(p.shared_bytes(word) + 512, p.shared.2), "{capability:?} {word:?}");
                assert!(p.shared_build_rows < 1 << 16, "links have 16 bits");
                assert!(p.shared_heads.is_power_of_two());
                assert!(fits(p.linear_bytes(word), 1), "{capability:?} {word:?}");
                assert!(fits(p.combine_bytes, 1), "{capability:?} {word:?}");
            }
        }
    }

    /// For every number of partitions, the buffers fit shared memory and consist of whole lines.
    #[test]
    fn buffers_fit_every_fan_out() {
        for capability in [(7, 5), (8, 0), (8, 6), (9, 0), (10, 0)] {
            for (word, tuple) in [(Width::W32, 8), (Width::W64, 16)] {
                let p = policy(shared_bytes_of(capability), word);
                for bits in 0..=MAX_PARTITIONS.ilog2() {
                    let what = format!("{capability:?} {word:?}, {bits} bits");
                    let (capacity, line) = p.combine_shape(word, 1 << bits);
                    assert!(line.is_power_of_two() && line * tuple <= LINE_BYTES, "{what}");
                    assert!(capacity >= line && capacity % line == 0, "{what}");
                    let all = ((capacity * tuple + 12) << bits) + SPARES * 20 + 16;
                    assert!(all <= p.combine_bytes, "{what}");
                }
            }
        }
        let p = policy(shared_bytes_of((9, 0)), Width::W64);
        assert_eq!(p.combine_shape(Width::W64, 512), (24, 8), "lines of 128 bytes");
        assert_eq!(p.combine_shape(Width::W64, 2048), (4, 4), "lines of 64 bytes");
        assert_eq!(p.scatter_bytes(Width::W64, Scatterer::Shared, 512, 132), 0);
        let bytes = p.scatter_bytes(Width::W64, Scatterer::Hierarchical, 512, 132);
        assert_eq!(bytes, 132 * (512 + 64) * (2048 + 32 * 16));
    }
}

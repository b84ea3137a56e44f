//! The rules for the details that only plans for a GPU have. See `rules.rs`.

use crate::device::Shape;
use crate::gpu_options::{GpuOptions, Histogram, TablePlace, Transfer, TritonPartitioner};
use crate::matches::{FlagPlan, FoundBy};
use crate::options::{Algorithm, Yields};
use crate::partition::gpu::Digits;
use crate::plan::choose::HostMemory;
use crate::plan::decision::{ChunkRows, ProbeSide, ResultOrder, TableKind};
use crate::plan::gpu_memory::{
    FOR_TABLES, cache_bytes, hybrid_table_bytes, table_rows, working_set_rows,
};
use crate::plan::gpu_shape::{
    MAX_ROWS_AT_ONCE, PARTITIONED_ROWS, STREAMED_ROWS, chunk_of_columns, chunk_of_tuples,
    first_pass_bits, is_array, is_one_pass, one_pass_bits, partitioning_bytes, radix_bits,
    streamed_bytes, unit_rows,
};
use crate::plan::refine::Facts;
use crate::plan::rules::Case;

/// If a test forces several parts: the minimum number of rows per part, and the number of parts.
const TINY_PART: u64 = 11;
const TINY_PARTS: u64 = 6;
/// The rows per chunk if a test forces short chunks.
const TINY_CHUNK: u64 = 7;

/// Decides how columns cross to the GPU in the first pass of `triton`. `counted` says whether the tuples per
/// partition are counted before a kernel writes them over the link. While the kernel writes, the copy engine
/// gets about half of the link bandwidth, but reads by the kernel get four fifths (benchmarks/notes.md, chapter
/// 7). So such kernels read pinned columns directly in host memory, as in 000.
pub(crate) fn first_pass_transfer(
    asked: Transfer,
    pinned: bool,
    partitioner: TritonPartitioner,
    counted: bool,
) -> Transfer {
    match (asked, partitioner) {
        (Transfer::Auto, TritonPartitioner::Scatter(_)) if pinned && counted => Transfer::ZeroCopy,
        _ => asked.resolved(pinned),
    }
}

impl Case<'_> {
    /// Returns whether the algorithm looks the probe side up in tables, without partitioning it.
    pub(super) fn by_table(&self) -> bool {
        match self.algorithm {
            Algorithm::NoPartition => true,
            // If a build key occurs more than once, the parts are partitioned.
            Algorithm::MultiPass => self.facts.learned.unique != Some(false),
            Algorithm::Radix
            | Algorithm::SortMerge
            | Algorithm::StreamedProbe
            | Algorithm::CpuPartitioned
            | Algorithm::Triton
            | Algorithm::Spill => false,
        }
    }

    /// Returns whether the algorithm looks the probe side up in one table over the whole build side.
    fn one_table(&self) -> bool {
        self.by_table() && self.parts().is_none_or(|parts| parts == 1)
    }

    /// Decides whether results come back from a GPU in the order of the probe rows. This needs one table over
    /// the whole build side. With several tables, most probe rows match in at most one of them. So most
    /// results would be empty, and pairs take fewer bytes.
    pub(super) fn order(&self) -> Option<ResultOrder> {
        let gpu = self.gpu?;
        let if_unique = match self.yields() {
            Yields::Count => return Some(ResultOrder::Unordered),
            Yields::Exists if !self.flags(FoundBy::GpuInOrder).only_bits() => {
                return Some(ResultOrder::Unordered);
            }
            // One bit per probe row tells whether it has a match, however often build keys occur. But
            // multi-pass can build its table only if each key occurs once.
            Yields::Exists => self.algorithm == Algorithm::MultiPass,
            // One value per probe row is enough if each row has at most one match.
            Yields::Pairs => true,
        };
        if gpu.columns != HostMemory::Arrow || !self.one_table() {
            return Some(ResultOrder::Unordered);
        }
        Some(match self.facts.learned.unique {
            _ if !if_unique => ResultOrder::ProbeOrder,
            Some(true) => ResultOrder::ProbeOrder,
            Some(false) => ResultOrder::Unordered,
            None => ResultOrder::ProbeOrderIfUnique,
        })
    }

    /// Returns who flags rows, if the candidates are `found` in this way.
    pub(super) fn flags(&self, found: FoundBy) -> FlagPlan {
        FlagPlan::of(self.facts.roles, self.yields(), self.all_match(), found)
    }

    /// Returns the sizes of the GPU's work, once the GPU is open.
    fn shape(&self) -> Option<Shape> {
        self.facts.learned.shapes.map(|shapes| shapes[self.word() as usize])
    }

    /// Returns the free GPU memory, as it was measured or as it is predicted.
    pub(super) fn free(&self) -> Option<u64> {
        Some(self.facts.learned.free.unwrap_or(self.gpu?.gpu_bytes))
    }

    /// Decides the kind of table and the radix bits of each pass. The bits are known once the GPU is open,
    /// because they depend on its shared memory.
    pub(super) fn gpu_partitions(&self) -> (Option<TableKind>, Vec<u32>) {
        let (word, learned) = (self.word(), &self.facts.learned);
        let digits = |bits: u32| Digits::top(bits, word.bits()).widths();
        let shared = |rows: u64| match self.shape() {
            Some(shape) => digits(radix_bits(rows, shape.build_rows, word.bits())),
            None => Vec::new(),
        };
        match self.algorithm {
            Algorithm::NoPartition => (Some(self.gpu_table()), Vec::new()),
            Algorithm::MultiPass if learned.unique == Some(false) => {
                (None, shared(self.part_rows().unwrap_or(0)))
            }
            Algorithm::MultiPass => (Some(TableKind::Hash), Vec::new()),
            Algorithm::Radix if self.one_pass() => {
                let bits = |shape: Shape| {
                    let free = self.free().unwrap_or(0);
                    digits(one_pass_bits(self.matchable_rows(0), shape.l2, free, word))
                };
                (Some(TableKind::Hash), self.shape().map(bits).unwrap_or_default())
            }
            Algorithm::Radix | Algorithm::StreamedProbe => (None, shared(self.matchable_rows(0))),
            Algorithm::CpuPartitioned | Algorithm::Triton => {
                let fit = self.part_rows().unwrap_or(1);
                (None, vec![first_pass_bits(self.algorithm, self.matchable_rows(0), fit)])
            }
            // The passes of a sort follow from the bits in which the keys differ.
            Algorithm::SortMerge | Algorithm::Spill => (None, Vec::new()),
        }
    }

    /// Decides the kind of the table of `no-partition`.
    fn gpu_table(&self) -> TableKind {
        let Some(words) = self.facts.learned.words else {
            return match self.facts.gpu_options.table {
                TablePlace::Gpu => TableKind::ArrayIfDense,
                // Rows are inserted chunk by chunk, before the range of their keys is known.
                TablePlace::Host | TablePlace::Hybrid => TableKind::Hash,
            };
        };
        match words.range.filter(|&range| is_array(words.matchable, range)) {
            Some((min, max)) => TableKind::Array { min, max },
            None => TableKind::Hash,
        }
    }

    /// Decides how many bytes of the table of `no-partition` may lie in GPU memory. `None` if all of it does.
    pub(super) fn table_in_gpu_memory(&self) -> Option<u64> {
        let free = self.free()?;
        match self.facts.gpu_options.table {
            _ if self.algorithm != Algorithm::NoPartition => None,
            TablePlace::Gpu => None,
            TablePlace::Host => Some(0),
            TablePlace::Hybrid => Some(hybrid_table_bytes(free)),
        }
    }

    /// Decides whether `radix` makes one pass over each side.
    fn one_pass(&self) -> bool {
        let partitioner = self.facts.gpu_options.partitioner.unwrap_or_default().for_radix();
        let rows = [self.matchable_rows(0), self.matchable_rows(1)];
        self.facts.learned.unique != Some(false)
            && partitioner.is_ok_and(|partitioner| is_one_pass(rows, partitioner))
    }

    /// Decides how many build rows fit a part. `None` if the algorithm does not divide the build side.
    fn fit(&self) -> Option<u64> {
        let (word, learned, free) = (self.word(), &self.facts.learned, self.free()?);
        // Two passes need memory for two more tuples per row.
        let partitioning =
            self.shape().map_or(2 * word.tuple(), |shape| partitioning_bytes(shape, word));
        let fit = match self.algorithm {
            Algorithm::MultiPass if learned.unique == Some(false) => {
                // Columns, partitions, and the memory for partitioning.
                free / 8 * FOR_TABLES / (self.to_gpu_per_row()?[0] + partitioning)
            }
            Algorithm::MultiPass => table_rows(free, word.tuple()),
            Algorithm::CpuPartitioned => working_set_rows(free, word.tuple() + partitioning).max(1),
            Algorithm::Triton => {
                let cache = cache_bytes(free, self.facts.gpu_options.cache);
                working_set_rows(free - cache, word.tuple() + partitioning).max(1)
            }
            Algorithm::NoPartition
            | Algorithm::Radix
            | Algorithm::SortMerge
            | Algorithm::StreamedProbe
            | Algorithm::Spill => return None,
        };
        let tiny = match self.facts.overrides.tiny_partitions {
            true => (self.matchable_rows(0) / TINY_PARTS).max(TINY_PART),
            false => u64::MAX,
        };
        // After memory was refused, parts are at most half as long.
        let refused = learned.refused.map_or(u64::MAX, |rows| rows.div_ceil(2));
        Some(fit.min(MAX_ROWS_AT_ONCE).min(tiny).min(refused))
    }

    /// Returns the build rows that were not divided into parts yet.
    fn undivided(&self) -> u64 {
        let divided = self.facts.learned.divided.unwrap_or_default();
        self.matchable_rows(0).saturating_sub(divided.rows)
    }

    /// Decides into how many parts the build side is divided.
    pub(super) fn parts(&self) -> Option<u64> {
        if !self.on_gpu() {
            return self.facts.learned.divided.map(|divided| divided.parts);
        }
        let fit = self.fit()?.max(1);
        let divided = self.facts.learned.divided.unwrap_or_default();
        Some((divided.parts + self.undivided().div_ceil(fit)).max(1))
    }

    /// Decides the most build rows of a part. It is zero if GPU memory does not suffice for any part. The parts
    /// of `multi-pass` have about the same size.
    pub(super) fn part_rows(&self) -> Option<u64> {
        let fit = self.fit()?;
        if self.algorithm != Algorithm::MultiPass || fit == 0 {
            return Some(fit);
        }
        let left = match self.undivided() {
            0 => self.matchable_rows(0),
            left => left,
        };
        Some(left.div_ceil(left.div_ceil(fit).max(1)))
    }

    /// Decides the sizes of the chunks of each pipeline.
    pub(super) fn chunk_rows(&self) -> Option<ChunkRows> {
        let (word, transfer, gpu) = (self.word(), self.transfer()?, self.gpu?);
        let Facts { gpu_options, overrides, learned, .. } = self.facts;
        let of_columns = |row_bytes: u64| match self.algorithm {
            Algorithm::CpuPartitioned => PARTITIONED_ROWS,
            Algorithm::Triton if transfer.reads_in_place() => {
                unit_rows(cache_bytes(self.free().unwrap_or(0), gpu_options.cache), word)
            }
            _ => chunk_of_columns(transfer, word, row_bytes),
        };
        let streamed = gpu.columns == HostMemory::Arrow && self.probe_side() == ProbeSide::Streamed;
        let [build_row, probe_row] = self.to_gpu_per_row()?;
        // Before the join runs, the whole limit is left.
        let left = learned.left_for_chunks.or(self.limit);
        let probe = if streamed { STREAMED_ROWS } else { of_columns(probe_row) };
        let working_sets = matches!(self.algorithm, Algorithm::CpuPartitioned | Algorithm::Triton);
        let tiny = if overrides.tiny_chunks { TINY_CHUNK } else { u64::MAX };
        let most = learned.most_chunk_rows.unwrap_or(u64::MAX).min(tiny);
        Some(ChunkRows {
            build: of_columns(build_row).min(most),
            probe: probe.min(most),
            probe_bytes: streamed.then(|| streamed_bytes(self.threads, left)),
            tuples: working_sets.then(|| chunk_of_tuples(word).min(most)),
        })
    }

    /// Decides how rows cross to the GPU.
    pub(super) fn transfer(&self) -> Option<Transfer> {
        let pinned = self.gpu?.columns == HostMemory::Pinned;
        let GpuOptions { transfer, histogram, .. } = self.facts.gpu_options;
        Some(match (self.algorithm, self.facts.gpu_options.triton_partitioner()) {
            // The CPU writes tuples to pinned memory.
            (Algorithm::CpuPartitioned, _) => Transfer::PinnedCopy,
            (Algorithm::Triton, Ok(partitioner)) => {
                let counted = histogram != Histogram::None;
                first_pass_transfer(transfer, pinned, partitioner, counted)
            }
            _ => transfer.resolved(pinned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::simulated::TINY;
    use crate::matches::Roles;
    use crate::options::{JoinType, Side};
    use crate::plan::refine::tests::plan;
    use crate::plan::{Divided, HoldReason, Learned, Plan};

    /// Returns a plan for a GPU, after the join has learned these facts.
    fn refined(plan: &Plan, learned: Learned) -> Plan {
        let mut plan = plan.clone();
        plan.refine(learned);
        plan
    }

    fn unique(unique: bool) -> Learned {
        Learned { unique: Some(unique), ..Learned::default() }
    }

    #[test]
    fn one_table_returns_results_in_probe_order() {
        let any = Some(ResultOrder::Unordered);
        for algorithm in Algorithm::ON_GPU {
            let open = plan(algorithm, Some(1 << 30), |_| {});
            let table = matches!(algorithm, Algorithm::NoPartition | Algorithm::MultiPass);
            if !table {
                assert_eq!(open.details.order, any, "{open}");
                continue;
            }
            assert_eq!(open.details.order, Some(ResultOrder::ProbeOrderIfUnique), "{open}");
            let once = refined(&open, unique(true)).details;
            assert_eq!(once.order, Some(ResultOrder::ProbeOrder));
            assert_eq!(once.over_the_link.map(|link| link.per_probe_row), Some(8));
            let twice = refined(&open, unique(false)).details;
            assert_eq!(twice.order, any);
            assert_eq!(twice.over_the_link.map(|link| link.per_probe_row), Some(0));
            // Whether rows have a match comes back as one bit per row. Flags of build rows do not.
            let flagged = |join_type| {
                let roles = Roles::of(join_type, Side::Left);
                plan(algorithm, Some(1 << 30), |facts| facts.roles = roles)
            };
            let semi = refined(&flagged(JoinType::RightSemi), unique(false)).details.order;
            let in_order = algorithm == Algorithm::NoPartition;
            assert_eq!(semi == Some(ResultOrder::ProbeOrder), in_order, "{algorithm}");
            assert_eq!(flagged(JoinType::LeftSemi).details.order, any);
        }
    }

    /// The plan has 2^20 build rows of 16 bytes. A table takes six eighths of memory, and 5/4 slots per row.
    #[test]
    fn memory_decides_the_parts() {
        let parts = |plan: &Plan| (plan.details.parts, plan.details.part_rows);
        let large = plan(Algorithm::MultiPass, Some(1 << 25), |_| {});
        assert_eq!(parts(&large), (Some(1), Some(1 << 20)));
        assert_eq!(large.details.probe_side, ProbeSide::Streamed);
        let less = refined(&large, Learned { free: Some(1 << 24), ..Learned::default() });
        assert_eq!(parts(&less), (Some(2), Some(1 << 19)));
        assert_eq!(less.details.probe_side, ProbeSide::Held(HoldReason::ReadAgain));
        assert_eq!(less.details.order, Some(ResultOrder::Unordered));
        let refused = refined(&less, Learned { refused: Some(1 << 19), ..Learned::default() });
        assert_eq!(parts(&refused), (Some(4), Some(1 << 18)));
        let divided = Some(Divided { rows: 1 << 19, parts: 1 });
        let half = refined(&less, Learned { divided, ..Learned::default() });
        assert_eq!(parts(&half), (Some(2), Some(1 << 19)));
        let nothing = refined(&large, Learned { free: Some(0), ..Learned::default() });
        assert_eq!(nothing.details.part_rows, Some(0));
    }

    /// The number of rows and the shared memory decide the radix bits. If a key occurs more than once, one
    /// table is not enough.
    #[test]
    fn rows_decide_the_passes_of_a_radix_join() {
        let shapes = Some([TINY; 2]);
        let open = plan(Algorithm::Radix, Some(1 << 30), |_| {});
        assert!(open.details.radix_bits.is_empty(), "the GPU is not open: {open}");
        let long = refined(&open, Learned { shapes, ..Learned::default() });
        assert_eq!((long.details.table, long.radix_bits()), (Some(TableKind::Hash), 8));
        for learned in [Learned { probe_rows: Some(1 << 20), ..Learned::default() }, unique(false)]
        {
            let passes = refined(&long, learned);
            assert_eq!((passes.details.table, passes.radix_bits()), (None, 18), "{passes}");
            assert_eq!(passes.details.radix_bits.len(), 3);
        }
        let few = [Some(10), None];
        let few = refined(&long, Learned { matchable: few, ..unique(false) });
        assert_eq!(few.details.radix_bits, [2]);
    }

    /// The method, the columns and the algorithm decide the rows per chunk.
    #[test]
    fn pipelines_have_chunks_of_their_own_length() {
        let chunks = |algorithm: Algorithm, transfer: Transfer| {
            let change = |facts: &mut Facts| {
                facts.gpu_options = GpuOptions::new().transfer(transfer);
            };
            let plan = plan(algorithm, Some(1 << 34), change);
            let chunks = plan.details.chunk_rows.expect("a plan for a GPU");
            assert_eq!(chunks.probe_bytes.is_some(), algorithm == Algorithm::NoPartition);
            (chunks.build, chunks.probe, chunks.tuples)
        };
        let auto = Transfer::Auto;
        // A staged chunk has 512 MiB: here, keys and inlined columns of 8 bytes each.
        assert_eq!(chunks(Algorithm::NoPartition, auto), (32 << 20, 4 << 20, None));
        assert_eq!(chunks(Algorithm::Radix, auto), (32 << 20, 64 << 20, None));
        assert_eq!(chunks(Algorithm::Radix, Transfer::PinnedCopy), (16 << 20, 16 << 20, None));
        let partitioned = chunks(Algorithm::CpuPartitioned, auto);
        assert_eq!(partitioned, (16 << 20, 16 << 20, Some(8 << 20)));
        // 1/16 of the cache, which takes 9/16 of 16 GiB: kernels of `triton` read so many tuples at once.
        let unit = (9u64 << 30) / 16 / 16;
        assert_eq!(chunks(Algorithm::Triton, Transfer::ZeroCopy), (unit, unit, Some(8 << 20)));
        // After memory was refused, chunks are shorter.
        let open = plan(Algorithm::MultiPass, Some(1 << 34), |_| {});
        let shorter = refined(&open, Learned { most_chunk_rows: Some(9), ..Learned::default() });
        let shorter = shorter.details.chunk_rows.expect("a plan for a GPU");
        assert_eq!((shorter.build, shorter.probe), (9, 9));
        assert!(open.to_string().contains("chunks         at most 33554432 build rows"), "{open}");
    }
}

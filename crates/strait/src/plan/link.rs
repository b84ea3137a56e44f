//! What crosses the link between host memory and GPU memory. This is the only place that counts these bytes:
//! the plan shows the [`LinkBytes`] per row, and the predictions use the same bytes times rows ([`Crossing`]).

use crate::gpu_options::Histogram;
use crate::matches::{FlaggedBy, FoundBy};
use crate::options::{Algorithm, Yields};
use crate::plan::ResultOrder;
use crate::plan::decision::LinkBytes;
use crate::plan::gpu_memory::cache_bytes;
use crate::plan::rules::Case;

/// The bytes per random access to host memory, as measured.
const ACCESS_BYTES: f64 = 64.0;
/// The number of accesses that insert one row into a table in host memory. There are two: one takes a slot, and one
/// writes the value. They count as fewer than two, because both may hit the same line in a cache.
const ACCESSES_TO_INSERT: f64 = 1.6;

/// Returns whether results in the order of the probe rows take fewer bytes than pairs. `rows` results have
/// come back, and `matched` of them have a match.
pub(crate) fn order_pays(matched: u64, rows: u64) -> bool {
    matched >= rows / 2
}

/// The bytes of a whole join that cross the link, as predicted. They are not rounded, because times follow from
/// them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Crossing {
    /// The build side, to the GPU.
    pub(super) build: f64,
    /// The probe side, to the GPU. `multi-pass` sends it once per part of the build side.
    pub(super) probe: f64,
    /// The results, to the host. It is assumed that each probe row has one match.
    pub(super) back: f64,
    /// The tuples of `triton` that do not fit its cache in GPU memory. They cross to the host and come back.
    pub(super) spilled: f64,
    /// The accesses of kernels to a table in host memory, to the GPU.
    pub(super) table: f64,
}

impl Crossing {
    /// Returns the bytes to the GPU.
    pub(super) fn to_gpu(self) -> f64 {
        self.build + self.probe + self.spilled + self.table
    }

    /// Returns the bytes to the host.
    pub(super) fn to_host(self) -> f64 {
        self.back + self.spilled
    }
}

impl Case<'_> {
    /// Returns the bytes per row that cross the link; `None` on the CPU.
    pub(super) fn over_the_link(&self) -> Option<LinkBytes> {
        let word = self.word().bytes();
        let [build_row, per_row] = self.to_gpu_per_row()?;
        let per_build_row = build_row - per_row;
        let in_order = self.in_order();
        let [per_build_flag, per_probe_flag] = self.flagged().map(u64::from);
        let per_match = match self.yields() {
            Yields::Count | Yields::Exists => 0,
            // One value of each side. Tables that are not Arrow batches also get the key back, if they have a
            // column of values.
            Yields::Pairs => self.gpu?.row_bytes.max(word) + word,
        };
        let per_probe_row = if per_match > 0 && in_order { word } else { 0 };
        let probe_bits = in_order;
        Some(LinkBytes {
            per_row,
            per_build_row,
            per_match,
            per_probe_row,
            probe_bits,
            per_build_flag,
            per_probe_flag,
        })
    }

    /// Returns the bytes per row that cross to the GPU, build side first; `None` on the CPU.
    pub(super) fn to_gpu_per_row(&self) -> Option<[u64; 2]> {
        let word = self.word().bytes();
        // A column of key words crosses. Tables without Arrow batches may also have a column of values.
        let row = self.gpu?.row_bytes.max(word);
        Some(match self.algorithm {
            // The CPU makes tuples, which always have a value besides the key word.
            Algorithm::CpuPartitioned => [2 * word; 2],
            _ if self.inlining().bytes() > 0 => [row + word, row],
            _ => [row; 2],
        })
    }

    /// Returns the bytes of the whole join that cross the link, if each probe row has one match, and if results
    /// come back in order where they may.
    pub(super) fn crossing(&self) -> Crossing {
        let Some(link) = self.over_the_link() else { return Crossing::default() };
        let [build, probe] = [0, 1].map(|side| self.matchable_rows(side) as f64);
        let per_probe_row = match link.probe_bits {
            true => link.per_probe_row as f64 + 1.0 / 8.0,
            false => link.per_match as f64,
        };
        let times = match self.algorithm {
            Algorithm::MultiPass => self.parts().unwrap_or(1) as f64,
            _ => 1.0,
        };
        // The GPU reads the keys of `triton` a first time to count the tuples per partition.
        let counts = self.algorithm == Algorithm::Triton
            && self.facts.gpu_options.histogram == Histogram::Gpu;
        let counted = if counts { self.word().bytes() } else { 0 };
        Crossing {
            build: build * (link.per_row + link.per_build_row + counted) as f64,
            probe: times * probe * (link.per_row + counted) as f64,
            // The flags of probe rows come back with every part of the build side.
            back: probe * per_probe_row
                + build * link.per_build_flag as f64
                + times * probe * link.per_probe_flag as f64,
            spilled: self.spilled(build + probe),
            table: self.accesses() * ACCESS_BYTES,
        }
    }

    /// Returns the bytes of the table that lie in host memory, with two slots per row.
    pub(super) fn table_in_host_memory(&self) -> f64 {
        let Some(most) = self.table_in_gpu_memory() else { return 0.0 };
        let slots = 2.0 * self.matchable_rows(0) as f64;
        (slots * self.word().tuple() as f64 - most as f64).max(0.0)
    }

    /// Returns the accesses of kernels to the part of the table that lies in host memory.
    pub(super) fn accesses(&self) -> f64 {
        let [build, probe] = [0, 1].map(|side| self.matchable_rows(side) as f64);
        let table = 2.0 * build * self.word().tuple() as f64;
        let share = self.table_in_host_memory() / table.max(1.0);
        share * (ACCESSES_TO_INSERT * build + probe)
    }

    /// Returns whether results may come back in the order of the probe rows.
    pub(super) fn in_order(&self) -> bool {
        self.order().is_some_and(|order| order != ResultOrder::Unordered)
    }

    /// Returns whether one flag per row comes back that tells whether the row has a match: for the build side,
    /// and for the probe side.
    fn flagged(&self) -> [bool; 2] {
        let found = if self.in_order() { FoundBy::GpuInOrder } else { FoundBy::GpuUnordered };
        let flags = self.flags(found);
        [flags.build, flags.probe].map(|by| by == Some(FlaggedBy::Search))
    }

    /// Returns the bytes of tuples that spill to host memory.
    fn spilled(&self, rows: f64) -> f64 {
        if self.algorithm != Algorithm::Triton {
            return 0.0;
        }
        let cache = cache_bytes(self.free().unwrap_or(0), self.facts.gpu_options.cache);
        (rows * self.word().tuple() as f64 - cache as f64).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_options::GpuOptions;
    use crate::matches::Roles;
    use crate::options::{JoinType, Side};
    use crate::plan::refine::tests::plan;
    use crate::plan::{HostMemory, Learned, Plan, Prediction};
    use crate::word::Width;

    /// The rows of the plans.
    const BUILD: u64 = 1 << 20;
    const PROBE: u64 = 4 * BUILD;

    /// Returns the bytes over the link, from what the plan shows and the build and probe rows that are flagged.
    fn shown(plan: &Plan, memory: u64, flagged: [u64; 2]) -> u64 {
        let link = plan.details.over_the_link.expect("a plan for a GPU");
        let times = match plan.algorithm {
            Algorithm::MultiPass => plan.details.parts.expect("multi-pass has parts"),
            _ => 1,
        };
        let tuples = (BUILD + PROBE) * 2 * u64::from(plan.details.word_bits / 8);
        let spilled = match plan.algorithm {
            Algorithm::Triton => tuples.saturating_sub(cache_bytes(memory, None)),
            _ => 0,
        };
        let results = match link.probe_bits {
            true => PROBE * link.per_probe_row + PROBE / 8,
            false => PROBE * link.per_match,
        };
        let sent = BUILD * (link.per_row + link.per_build_row) + times * PROBE * link.per_row;
        sent + 2 * spilled
            + results
            + flagged[0] * link.per_build_flag
            + times * flagged[1] * link.per_probe_flag
    }

    #[test]
    fn predictions_count_the_bytes_that_the_plan_shows() {
        let mut several_passes = 0;
        for algorithm in Algorithm::ON_GPU {
            for (join_type, count_only, flagged) in [
                (JoinType::Inner, true, [0, 0]),
                (JoinType::Inner, false, [0, 0]),
                (JoinType::Right, false, [0, 0]),
                (JoinType::Left, false, [BUILD, 0]),
                (JoinType::Full, false, [BUILD, 0]),
                (JoinType::LeftSemi, false, [BUILD, 0]),
                (JoinType::LeftAnti, false, [BUILD, 0]),
                (JoinType::RightSemi, false, [0, PROBE]),
                (JoinType::RightAnti, false, [0, PROBE]),
            ] {
                for memory in [1 << 30, 1 << 24] {
                    for wide_rows in [false, true] {
                        let plan = plan(algorithm, Some(memory), |facts| {
                            facts.roles = Roles::of(join_type, Side::Left);
                            facts.count_only = count_only;
                            facts.keys.width = if wide_rows { Width::W32 } else { Width::W64 };
                            facts.overrides.wide_rows = wide_rows;
                        });
                        let mut all = plan.predictions.iter();
                        let predicted = all.find(|p| p.on_gpu && p.algorithm == algorithm);
                        let crosses = predicted.expect("a prediction for the GPU").crosses;
                        assert_eq!(crosses, shown(&plan, memory, flagged), "{plan}");
                        several_passes += u32::from(plan.details.parts.is_some_and(|n| n > 1));
                    }
                }
            }
        }
        assert!(several_passes > 0);
    }

    #[test]
    fn keys_cross_twice_if_the_gpu_counts_them_first() {
        let crosses = |histogram: Histogram| {
            let plan = plan(Algorithm::Triton, Some(1 << 30), |facts| {
                facts.gpu_options = GpuOptions::new().histogram(histogram);
            });
            let triton = |p: &&Prediction| p.on_gpu && p.algorithm == Algorithm::Triton;
            plan.predictions.iter().find(triton).expect("a prediction for the GPU").crosses
        };
        let once = crosses(Histogram::Cpu);
        assert_eq!(crosses(Histogram::Gpu), once + (BUILD + PROBE) * 8);
    }

    #[test]
    fn columns_of_values_cross_with_the_keys_and_come_back_with_them() {
        let mut plan = plan(Algorithm::Radix, Some(1 << 30), |facts| facts.payload = None);
        let gpu = plan.facts.gpu.as_mut().expect("a plan for a GPU");
        (gpu.columns, gpu.row_bytes) = (HostMemory::Pinned, 16);
        plan.refine(Learned::default());
        let link = plan.details.over_the_link.expect("a plan for a GPU");
        assert_eq!((link.per_row, link.per_build_row, link.per_match), (16, 0, 24));
    }
}

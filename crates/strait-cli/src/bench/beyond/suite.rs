//! The workloads of `strait bench beyond`, and how each is joined.

use strait::{Algorithm, GpuOptions, Histogram, Partitioner, Transfer};
use strait_bench::workload::{Keys, Shape};
use strait_bench::{HostPlacement, ResultKind};

use super::super::transfer::placement_name;
use super::shape;

/// Where the tables are, which also determines which processor joins them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// As Arrow tables, joined by the CPU.
    Cpu,
    Host(HostPlacement),
}

/// A named workload: row counts as powers of two, and how to join.
pub(super) struct Named {
    pub(super) name: &'static str,
    bits: [u32; 2],
    pub(super) keys: Keys,
    pub(super) place: Place,
    pub(super) result: ResultKind,
    pub(super) algorithm: Algorithm,
    pub(super) partitioner: Option<Partitioner>,
    pub(super) transfer: Transfer,
    pub(super) histogram: Histogram,
    /// The bytes of GPU memory in which `triton` keeps partitions, or the default.
    cache: Option<u64>,
}

/// A streamed probe side in pinned memory. Most workloads are variants of this one.
const PLAIN: Named = Named {
    name: "",
    bits: [27, 31],
    keys: Keys::Sparse,
    place: Place::Host(HostPlacement::Pinned),
    result: ResultKind::Aggregate,
    algorithm: Algorithm::NoPartition,
    partitioner: None,
    transfer: Transfer::Auto,
    histogram: Histogram::None,
    cache: None,
};

const PAGEABLE: Named = Named { place: Place::Host(HostPlacement::Pageable), ..PLAIN };

/// Only keys, which are packed while they are staged.
const PACKED: Named = Named {
    keys: Keys::Dense,
    result: ResultKind::Count,
    transfer: Transfer::StagedCopy,
    ..PAGEABLE
};

const MATERIALISED: Named = Named { bits: [27, 30], result: ResultKind::Materialise, ..PLAIN };

/// Neither table fits GPU memory.
const LARGE: Named = Named { bits: [30, 30], ..PLAIN };

const TRITON: Named = Named { algorithm: Algorithm::Triton, ..LARGE };

const fn triton(
    name: &'static str,
    bits: u32,
    partitioner: Partitioner,
    histogram: Histogram,
) -> Named {
    Named { name, bits: [bits, bits], partitioner: Some(partitioner), histogram, ..TRITON }
}

/// 2^28 rows of both tables fit the default cache. Without a cache, all tuples are written to host memory.
const fn uncached(name: &'static str, partitioner: Partitioner) -> Named {
    Named { cache: Some(0), ..triton(name, 28, partitioner, Histogram::None) }
}

const fn by(name: &'static str, algorithm: Algorithm, like: Named) -> Named {
    Named { name, algorithm, ..like }
}

/// Workloads over the same tables are adjacent. Among these, workloads in the same memory are adjacent.
pub(super) static SUITE: [Named; 23] = [
    by("2^27 x 2^31, pinned, no-partition", Algorithm::NoPartition, PLAIN),
    by("2^27 x 2^31, pinned, streamed-probe", Algorithm::StreamedProbe, PLAIN),
    by("2^27 x 2^31, pinned, multi-pass", Algorithm::MultiPass, PLAIN),
    by("2^27 x 2^31, pageable, no-partition", Algorithm::NoPartition, PAGEABLE),
    by("2^27 x 2^31, pageable, streamed-probe", Algorithm::StreamedProbe, PAGEABLE),
    by("2^27 x 2^31, pageable, multi-pass", Algorithm::MultiPass, PAGEABLE),
    by("2^27 x 2^31, dense, packed, count, no-partition", Algorithm::NoPartition, PACKED),
    by("2^27 x 2^31, dense, packed, count, streamed-probe", Algorithm::StreamedProbe, PACKED),
    by("2^27 x 2^31, dense, packed, count, multi-pass", Algorithm::MultiPass, PACKED),
    by("2^27 x 2^30, materialise, no-partition", Algorithm::NoPartition, MATERIALISED),
    by("2^27 x 2^30, materialise, streamed-probe", Algorithm::StreamedProbe, MATERIALISED),
    by("2^27 x 2^30, materialise, multi-pass", Algorithm::MultiPass, MATERIALISED),
    Named {
        name: "2^30 x 2^30, cpu radix",
        place: Place::Cpu,
        algorithm: Algorithm::Radix,
        ..LARGE
    },
    by("2^30 x 2^30, multi-pass", Algorithm::MultiPass, LARGE),
    by("2^30 x 2^30, cpu-partitioned", Algorithm::CpuPartitioned, LARGE),
    triton("2^30 x 2^30, triton dma", 30, Partitioner::Dma, Histogram::None),
    triton(
        "2^30 x 2^30, triton hierarchical, histogram",
        30,
        Partitioner::Hierarchical,
        Histogram::Gpu,
    ),
    triton(
        "2^30 x 2^30, triton hierarchical, cpu histogram",
        30,
        Partitioner::Hierarchical,
        Histogram::Cpu,
    ),
    triton("2^30 x 2^30, triton hierarchical", 30, Partitioner::Hierarchical, Histogram::None),
    triton("2^30 x 2^30, triton shared", 30, Partitioner::Shared, Histogram::None),
    triton("2^30 x 2^30, triton linear", 30, Partitioner::Linear, Histogram::None),
    uncached("2^28 x 2^28, triton dma", Partitioner::Dma),
    // Every tuple is one write over the link, which takes long.
    uncached("2^28 x 2^28, triton standard", Partitioner::Standard),
];

impl Named {
    pub(super) fn same_tables(&self, other: &Named) -> bool {
        (self.bits, self.keys) == (other.bits, other.keys)
    }

    pub(super) fn shape(&self, down: u64) -> Shape {
        let [build, probe] = self.bits.map(|bits| ((1u64 << bits) / down).max(16));
        shape([build, probe], self.keys)
    }

    pub(super) fn gpu_options(&self) -> GpuOptions {
        GpuOptions::new()
            .partitioner(self.partitioner)
            .transfer(self.transfer)
            .histogram(self.histogram)
            .cache(self.cache)
    }

    pub(super) fn placement(&self) -> &'static str {
        match self.place {
            Place::Cpu => "arrow",
            Place::Host(placement) => placement_name(placement),
        }
    }

    pub(super) fn result(&self) -> String {
        format!("{:?}", self.result).to_lowercase()
    }
}

/// The names that `--workloads` accepts.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SUITE.iter().map(|named| named.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_tables_are_made_once() {
        let mut sorted: Vec<_> = names().collect();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), SUITE.len());
        let groups: Vec<_> = SUITE.chunk_by(|a, b| a.same_tables(b)).collect();
        for (i, group) in groups.iter().enumerate() {
            assert!(!groups[..i].iter().any(|other| other[0].same_tables(&group[0])));
        }
    }

    #[test]
    fn the_smaller_triton_joins_have_no_cache() {
        for named in &SUITE {
            let cache = named.bits[0] == 28 && named.algorithm == Algorithm::Triton;
            let options = named.gpu_options();
            assert_eq!(options == options.cache(0), cache, "{}", named.name);
        }
    }
}

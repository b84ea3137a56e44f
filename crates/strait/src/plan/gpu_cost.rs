//! Predicts the time and the memory of each algorithm on a GPU.
//!
//! The constants were measured on an H200 with a PCIe 5.0 x16 link, and 16 cores (`benchmarks/record`). Their
//! ratios matter more than their values.

use crate::gpu_options::Transfer;
use crate::options::{Algorithm, Yields};
use crate::plan::choose::{GpuCandidate, HostMemory, Request};
use crate::plan::cost::{ReadWrite, Sizes, ns};
use crate::plan::rules::Case;
use crate::plan::{KeySource, Prediction, ProbeSide};

/// Constants of a GPU, measured on one with a PCIe 5.0 link.
mod device {
    /// Seconds to find the GPUs, which initialises the driver. On the H200 machine, `strait join --count` took
    /// 0.074 s with `--device cpu`, and 0.256 s when it looked for GPUs.
    pub(super) const FIND: f64 = 0.18;
    /// Setup: pools, streams, reading back results.
    pub(super) const SECONDS: f64 = 0.003;
    /// Opening a GPU: its context, and loading the kernels.
    pub(super) const OPEN: f64 = 0.3;
    /// Bytes per second: staged by one thread, staged by many threads, over the link in one direction, and over
    /// the link in each direction when both are busy.
    pub(super) const STAGED: f64 = 4e9;
    pub(super) const MAX_STAGED: f64 = 45e9;
    pub(super) const LINK: f64 = 55e9;
    pub(super) const BOTH_WAYS: f64 = 46e9;
    /// Tuples per second: no-partition, radix, sort-merge.
    pub(super) const TUPLES: [f64; 3] = [8e9, 20e9, 8e9];
    /// Tuples held per row, besides its key word: tables or partitions.
    pub(super) const HELD: u64 = 4;
    /// Bytes per second that one CPU thread partitions for the GPU.
    pub(super) const PARTITIONED: f64 = 1.0e9;
    /// Bytes that are always needed: buffers for chunks and for output.
    pub(super) const BUFFERS: u64 = 16 << 20;
    /// Chunks in host memory, if the probe side is read while it is joined.
    pub(super) const CHUNKS: u64 = 8;
    /// Seconds that a pipeline needs to start and to end.
    pub(super) const PIPELINE: f64 = 0.002;
    /// Build rows per second that are copied into place, and partitioned or inserted into a table. All of
    /// them must be ready before the first probe row is looked up.
    pub(super) const BUILT: f64 = 9e9;
    /// While threads feed a GPU, they decode and encode only during this share of the time. In whole jobs of TPC-H
    /// SF 10 with 16 threads on the H200 machine, the share was 0.4 (25 columns) to 0.7 (4 columns).
    pub(super) const BUSY: f64 = 0.5;
    /// Random accesses to host memory per second, over the link. The first rate is for `NEAR` bytes of memory, whose
    /// address translations the GPU keeps. The second rate is for all other memory.
    pub(super) const ACCESSES: [f64; 2] = [640e6, 43e6];
    pub(super) const NEAR: f64 = (1u64 << 29) as f64;
    /// The chunks of a streamed side may take 1 / `STREAMED` of GPU memory. They need that much to cross the link at
    /// full speed.
    pub(super) const STREAMED: u64 = 4;
}

/// Predicts one algorithm on a GPU. `link.rs` counts the bytes that cross to it and that come back. The CPU
/// gathers the columns that are not inlined.
pub(super) fn predict_on(on: &GpuCandidate, algorithm: Algorithm, request: &Request) -> Prediction {
    let sizes = Sizes::of(request);
    let threads = request.threads.max(1) as f64;
    let case = request.case(algorithm, Some(on));
    let [build, probe] = [sizes.build_rows, sizes.probe_rows];
    let both = build + probe;
    let word = case.word().bytes() as f64;
    let yields = case.yields();
    let words = |rows: f64| (rows * word) as u64;
    let streamed = case.probe_side() == ProbeSide::Streamed;
    let overlaps = streamed && on.columns == HostMemory::Arrow;
    let crossing = case.crossing();
    let (sent, back, spilled) = (crossing.build + crossing.probe, crossing.back, crossing.spilled);
    let pinned = on.columns == HostMemory::Pinned;
    let staged = case.transfer().map_or(device::LINK, |by| sent_per_second(by, pinned, threads));
    let inlined = case.inlining().bytes() > 0;
    let resolve = match yields {
        Yields::Count => 0.0,
        Yields::Exists => ns::GATHER[0],
        // Probe columns are slices. Build columns are gathered in any order, unless they are inlined.
        Yields::Pairs if case.in_order() => {
            ns::RESOLVE_IN_ORDER + if inlined { 0.0 } else { ns::GATHER[1] }
        }
        // If no side is partitioned, the order of the pairs is almost the order of the probe rows.
        Yields::Pairs => {
            ns::RESOLVE
                + ns::GATHER[usize::from(!inlined)]
                + ns::GATHER[usize::from(!case.by_table())]
        }
    };
    // Time is predicted as if nullable columns had no nulls. Memory is predicted as if they had.
    let sources = [0, 1].map(|side| case.key_source(side));
    let in_batches = on.columns == HostMemory::Arrow;
    let made = in_batches && sources.contains(&KeySource::Computed);
    let may_be_made = in_batches && sources != [KeySource::Column; 2];
    let making = if made { both * ns::KEPT } else { 0.0 };
    let on_cpu = (making + probe * resolve) * 1e-9 / threads;
    // The workers stage a streamed side, and resolve its results, while it crosses.
    let staging = if overlaps { probe * ns::STAGE * 1e-9 / threads } else { 0.0 };
    let buffers = device::BUFFERS.min(on.budget / 2);
    let rows = if yields == Yields::Pairs { words(2.0 * probe) } else { 0 };
    let [table, radix, sort] = device::TUPLES;
    let values = if inlined { words(build) } else { 0 };
    let of_words = match may_be_made {
        true => words(if streamed { build } else { both }),
        false => 0,
    };
    let chunk_bytes = case.chunk_rows().and_then(|chunks| chunks.probe_bytes);
    let of_probe = match chunk_bytes {
        Some(chunk) => sizes.probe_bytes.min(device::CHUNKS * chunk),
        None => sizes.probe_bytes,
    };
    let mut held = sizes.build_bytes + of_probe + of_words + values;
    // The time for both sides to cross to the device, and for the results to come back. `multi-pass` sends the probe
    // side several times. If the probe side is streamed, results come back while the next rows cross.
    let both_ways = match overlaps {
        true => crossing.build / staged + crossing.probe.max(back) / device::LINK,
        false => sent / staged + back / device::LINK,
    };
    // The time of the link, the time of the device's own work, and its memory.
    let (link, own, device_bytes) = match algorithm {
        Algorithm::NoPartition => {
            let tables = words(build) * (1 + 2 * device::HELD);
            let tables = case.table_in_gpu_memory().map_or(tables, |most| tables.min(most));
            let link = both_ways + build / device::BUILT + device::PIPELINE;
            (link, both / table + table_accesses(&case), tables + buffers)
        }
        Algorithm::Radix | Algorithm::SortMerge => {
            let rate = if algorithm == Algorithm::Radix { radix } else { sort };
            let all = words(both) * (1 + 2 * device::HELD) + rows;
            (both_ways, both / rate, all)
        }
        Algorithm::StreamedProbe => {
            let partitions = words(build) * (1 + device::HELD);
            let chunks =
                buffers.max((on.budget / device::STREAMED).min(words(probe) * device::HELD));
            let link = both_ways + build / device::BUILT + device::PIPELINE;
            (link, both / radix, partitions + chunks)
        }
        Algorithm::MultiPass => {
            let passes = case.parts().unwrap_or(1) as f64;
            let tables = on.budget.min(words(build) * 3 + buffers);
            let link = both_ways + build / device::BUILT + passes * device::PIPELINE;
            (link, (build + passes * probe) / table, tables)
        }
        Algorithm::CpuPartitioned => {
            // Tuples cross, not key words. The CPU has to make them first.
            held += 2 * words(both);
            let made = sent / (device::PARTITIONED * threads);
            (made.max((sent + back) / device::LINK), both / radix, buffers * 2)
        }
        Algorithm::Triton => {
            held += spilled as u64;
            let first = (sent / staged).max(spilled / device::BOTH_WAYS);
            let link = first + (spilled + back) / device::LINK + 2.0 * device::PIPELINE;
            (link, 2.0 * both / radix, buffers * 2)
        }
        // Not reached: each pair of spilled partitions has a plan of its own.
        Algorithm::Spill => (f64::INFINITY, f64::INFINITY, u64::MAX),
    };
    let work = ReadWrite::of(request, &sizes);
    let [reading, busy] = [work.build / threads, work.rest / threads / device::BUSY];
    // If chunks are streamed, copies overlap with the device's own work. Triton works on its cached
    // partitions after the last copy, so its time adds to the time of the link.
    let seconds = match algorithm {
        Algorithm::Radix | Algorithm::SortMerge | Algorithm::Triton => link + own,
        _ if overlaps => {
            let built = crossing.build / staged + build / device::BUILT;
            link.max(own).max(built + staging + on_cpu + busy)
        }
        _ => link.max(own),
    };
    let on_cpu = if overlaps { 0.0 } else { on_cpu + busy };
    let opening = if on.open { 0.0 } else { device::OPEN };
    Prediction {
        algorithm,
        on_gpu: true,
        seconds: opening + device::SECONDS + reading + seconds + on_cpu,
        read_write_seconds: reading + busy,
        bytes: held,
        device_bytes: device_bytes + values,
        crosses: (crossing.to_gpu() + crossing.to_host()) as u64,
        link_seconds: crossing.to_gpu().max(crossing.to_host()) / device::LINK,
    }
}

/// Returns the least time that a join takes on a GPU besides reading and writing, if this process has not looked
/// for GPUs yet.
pub(super) fn least_seconds_of_first_use() -> f64 {
    device::FIND + device::OPEN + device::SECONDS
}

/// Returns the seconds of the accesses to a table in host memory. If only a part of the table lies there, only
/// accesses to this part count.
fn table_accesses(case: &Case<'_>) -> f64 {
    let [fast, slow] = device::ACCESSES;
    let near = (device::NEAR / case.table_in_host_memory().max(1.0)).min(1.0);
    case.accesses() * (near / fast + (1.0 - near) / slow)
}

/// Returns the bytes per second that cross to the GPU by a method, from pinned or from other memory. They were
/// measured on an H200 with 16 threads (`benchmarks/record/2026-11-15-transfer-….csv`). `coherence` could not be
/// measured there. It is predicted like `zero-copy` from pinned memory.
fn sent_per_second(transfer: Transfer, pinned: bool, threads: f64) -> f64 {
    match (transfer, pinned) {
        (Transfer::Auto | Transfer::StagedCopy, _) => {
            device::MAX_STAGED.min(device::STAGED * threads)
        }
        (Transfer::PageableCopy | Transfer::DynamicPinning | Transfer::PinnedCopy, true) => {
            device::LINK
        }
        (Transfer::PageableCopy, false) => 5.7e9,
        (Transfer::DynamicPinning, false) => 16.8e9,
        (Transfer::PinnedCopy, false) => 16.0e9,
        (Transfer::UnifiedPrefetch, _) => 9.5e9,
        (Transfer::UnifiedMigration, _) => 4.7e9,
        (Transfer::ZeroCopy, false) => 16.5e9,
        (Transfer::ZeroCopy, true) | (Transfer::Coherence, _) => 51e9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_options::{GpuOptions, TablePlace};
    use crate::machine::Machine;
    use crate::options::Side;
    use crate::plan::JobCosts;
    use crate::plan::choose::tests::{machine, on_device, one_column, request};
    use crate::plan::cost::predict;

    /// Returns the request of a count of rows of 16 bytes in host memory, with 16 threads and `budget` bytes of
    /// GPU memory.
    fn count(build: u64, probe: u64, columns: HostMemory, budget: u64) -> Request {
        let machine = Machine { cores: 16, last_level: 300 << 20, ..machine() };
        let mut request = request(&machine, build, probe, None);
        (request.threads, request.facts.count_only) = (16, true);
        let candidate = GpuCandidate { row_bytes: 16, columns, ..on_device(budget, true) };
        request.device = Some(candidate);
        request
    }

    fn no_partition(request: &Request) -> Prediction {
        let on = request.device.as_ref().expect("a GPU");
        predict_on(on, Algorithm::NoPartition, request)
    }

    /// Checks that predictions are in the order of the measured seconds, and not further from them than `factor`.
    fn compare(mut seconds: Vec<(&str, f64, f64)>, factor: f64) {
        seconds.sort_by(|a, b| a.1.total_cmp(&b.1));
        for &(what, measured, predicted) in &seconds {
            let off = (predicted / measured).max(measured / predicted);
            assert!(off < factor, "{what}: predicted {predicted}, measured {measured}");
        }
        assert!(seconds.is_sorted_by(|a, b| a.2 <= b.2), "{seconds:?}");
    }

    /// The medians of benchmarks/record/2026-11-15-transfer-intel-xeon-processor-16-cores.csv: joins of 2^20 and
    /// 2^28 rows.
    #[test]
    fn transfer_methods_are_predicted_in_the_order_measured() {
        let predicted = |transfer: Transfer, memory: HostMemory| {
            let mut request = count(1 << 20, 1 << 28, memory, 100 << 30);
            request.facts.gpu_options = GpuOptions::new().transfer(transfer);
            (transfer.name(), no_partition(&request).seconds)
        };
        let all = |memory: HostMemory, measured: &[(Transfer, f64)]| {
            let of = |&(transfer, seconds): &(Transfer, f64)| {
                let (name, predicted) = predicted(transfer, memory);
                (name, seconds, predicted)
            };
            measured.iter().map(of).collect::<Vec<_>>()
        };
        let pinned = [
            (Transfer::PinnedCopy, 0.0783),
            (Transfer::PageableCopy, 0.0784),
            (Transfer::DynamicPinning, 0.0784),
            (Transfer::ZeroCopy, 0.0849),
            (Transfer::StagedCopy, 0.0869),
            (Transfer::UnifiedPrefetch, 0.4241),
            (Transfer::UnifiedMigration, 0.8017),
        ];
        compare(all(HostMemory::Pinned, &pinned), 1.35);
        let pageable = [
            (Transfer::StagedCopy, 0.0869),
            (Transfer::DynamicPinning, 0.2575),
            (Transfer::ZeroCopy, 0.2659),
            (Transfer::PinnedCopy, 0.2700),
            (Transfer::UnifiedPrefetch, 0.4237),
            (Transfer::PageableCopy, 0.6732),
            (Transfer::UnifiedMigration, 0.7053),
        ];
        compare(all(HostMemory::Pageable, &pageable), 1.35);
    }

    /// The medians of benchmarks/record/2026-11-15-beyond-size-intel-xeon-processor-16-cores.csv: both sides have
    /// this many rows, and the GPU has 8 GiB.
    #[test]
    fn tables_in_host_memory_are_predicted_in_the_order_measured() {
        let measured = [
            ("hybrid", TablePlace::Hybrid, 67_108_864, 0.0464),
            ("hybrid", TablePlace::Hybrid, 134_217_728, 0.0902),
            ("hybrid", TablePlace::Hybrid, 189_812_531, 0.3004),
            ("host", TablePlace::Host, 67_108_864, 3.743),
            ("hybrid", TablePlace::Hybrid, 268_435_456, 4.881),
            ("host", TablePlace::Host, 134_217_728, 10.22),
            ("hybrid", TablePlace::Hybrid, 379_625_062, 15.05),
        ];
        let of = |(name, table, rows, seconds): (&'static str, TablePlace, u64, f64)| {
            let mut request = count(rows, rows, HostMemory::Pinned, 8 << 30);
            request.facts.gpu_options = GpuOptions::new().table(table);
            let predicted = no_partition(&request);
            // 64 bytes per access cross the link, besides the rows.
            assert_eq!(predicted.crosses > rows * 32, seconds > 0.1, "{name} {rows}");
            (name, seconds, predicted.seconds)
        };
        compare(measured.map(of).to_vec(), 1.6);
        let mut request = count(1 << 30, 1 << 30, HostMemory::Pinned, 8 << 30);
        request.facts.gpu_options = GpuOptions::new().table(TablePlace::Host);
        assert!(no_partition(&request).device_bytes < 8 << 30, "the table is in host memory");
    }

    /// Whole jobs of TPC-H SF 10 on 16 cores and an H200: the processor seconds of reading and writing, and the
    /// seconds on the CPU and on a GPU that was opened for the job.
    #[test]
    fn reading_and_writing_count_on_both_processors() {
        for (work, [on_cpu, on_gpu]) in
            [(6.4, [0.46, 1.08]), (63.0, [4.0, 10.5]), (0.3, [0.07, 0.49])]
        {
            let machine = Machine { cores: 16, last_level: 300 << 20, ..machine() };
            let mut request = request(&machine, 15_000_000, 60_000_000, None);
            request.threads = 16;
            request.facts.payload = Some(one_column());
            request.build_side = Some(Side::Left);
            request.costs = JobCosts::none().with_reading(Side::Right, work / 2.0);
            request.costs.write_per_row = work / 2.0 / 60e6;
            let device = GpuCandidate { open: false, ..on_device(100 << 30, false) };
            let gpu = predict_on(&device, Algorithm::NoPartition, &request);
            let cpu = predict(Algorithm::NoPartition, &request);
            assert!(cpu.seconds < gpu.seconds && cpu.read_write_seconds >= work / 16.0);
            for (predicted, measured) in [(cpu.seconds, on_cpu), (gpu.seconds, on_gpu)] {
                let off = (predicted / measured).max(measured / predicted);
                assert!(off < 2.0, "{work}: predicted {predicted}, measured {measured}");
            }
        }
    }
}

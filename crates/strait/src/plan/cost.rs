//! Predicts the time and the memory of each algorithm.
//!
//! Times are nanoseconds per row on one core, divided by the number of threads. The constants were measured
//! on a server core of 2023 with 2 MiB of second-level cache (`benchmarks/notes.md`). Their ratios matter
//! more than their values.

use crate::machine::Machine;
use crate::options::{Algorithm, Yields};
use crate::plan::choose::{GpuCandidate, HostMemory, Request};
use crate::plan::rules::{MAX_PLANNED_ROWS, UNKNOWN_ROWS};
use crate::plan::shape::is_dense;
use crate::plan::{KeySource, Prediction, ProbeSide, Statistics};
use crate::table::table_bytes;

/// Nanoseconds per row.
mod ns {
    pub(super) const WORDS: f64 = 3.0;
    pub(super) const PARTITION: f64 = 10.0;
    pub(super) const INSERT: f64 = 10.0;
    pub(super) const RANK: f64 = 200.0;
    pub(super) const SORT: f64 = 32.0;
    pub(super) const MERGE: f64 = 20.0;
    /// A lookup in a hash table in the second-level cache, in the last-level cache, and in memory; and in an
    /// array that dense keys address.
    pub(super) const PROBE: [f64; 3] = [4.0, 10.0, 28.0];
    pub(super) const PROBE_ARRAY: [f64; 3] = [0.5, 2.5, 12.0];
    /// Gathering a row of payload in ascending order, and in random order.
    pub(super) const GATHER: [f64; 2] = [1.5, 25.0];
    /// For a join on a GPU: computing a word and storing it; and turning a returned pair into a row, without
    /// gathering its columns.
    pub(super) const KEPT: f64 = 8.0;
    pub(super) const RESOLVE: f64 = 16.0;
    /// The same if results come back in the order of the probe rows; and staging a key of a streamed side.
    pub(super) const RESOLVE_IN_ORDER: f64 = 2.5;
    pub(super) const STAGE: f64 = 5.5;
}

/// Seconds that a join on the CPU takes per thread, however few rows there are: to start threads and to wait
/// for them.
const SECONDS_PER_THREAD: f64 = 0.000_2;

/// The sizes of both sides: the rows that may match, and the bytes. If the length of the probe side is
/// unknown, it is assumed to be four times that of the build side.
struct Sizes {
    build_rows: f64,
    probe_rows: f64,
    build_bytes: u64,
    probe_bytes: u64,
}

impl Sizes {
    fn of(request: &Request) -> Sizes {
        // Users can give any statistics. This limit and that of rows keep all results within 64 bits.
        const MAX_BYTES: u64 = 1 << 52;
        let all = |side: &Statistics| side.rows.map(|rows| rows.min(MAX_PLANNED_ROWS));
        let build_rows = all(&request.build).unwrap_or(UNKNOWN_ROWS);
        let probe_rows = all(&request.probe).unwrap_or(4 * build_rows);
        let bytes = |known: Option<u64>, rows: u64| known.unwrap_or(rows * 16).min(MAX_BYTES);
        let matchable =
            |side: &Statistics, rows: u64| rows.saturating_sub(side.nulls.unwrap_or(0)) as f64;
        Sizes {
            build_rows: matchable(&request.build, build_rows),
            probe_rows: matchable(&request.probe, probe_rows),
            build_bytes: bytes(request.build.bytes, build_rows),
            probe_bytes: bytes(request.probe.bytes, probe_rows),
        }
    }
}

/// Predicts one algorithm on the CPU.
pub(super) fn predict(algorithm: Algorithm, request: &Request) -> Prediction {
    let sizes = Sizes::of(request);
    let word = request.word_bytes();
    let tuple = (2 * word) as u64;
    let machine = &request.facts.machine;
    let rows = |n: f64| n as u64;
    let (nanoseconds, bytes) = match algorithm {
        Algorithm::NoPartition => {
            let (table, times) = no_partition_table(request, &sizes);
            let build = ns::WORDS + ns::PARTITION + ns::INSERT;
            let probe = ns::WORDS + look_up(table, times, machine);
            let case = request.case(algorithm, None);
            let inlined = case.inlining().bytes() > 0;
            let far = sizes.build_bytes > machine.l2 && !inlined;
            let gather = match case.yields() {
                Yields::Count => 0.0,
                Yields::Exists | Yields::Pairs => ns::GATHER[0] + ns::GATHER[usize::from(far)],
            };
            let time = sizes.build_rows * build + sizes.probe_rows * (probe + gather);
            // Tuples live until the table is built. Key words are freed before.
            (time, sizes.build_bytes + table + rows(sizes.build_rows) * tuple)
        }
        Algorithm::Radix => {
            let both = sizes.build_rows + sizes.probe_rows;
            let partition = ns::WORDS + ns::PARTITION;
            let gather = 2.0 * ns::GATHER[1];
            let time = both * partition
                + sizes.build_rows * ns::INSERT
                + sizes.probe_rows * (ns::PROBE[0] + gather);
            (time, sizes.build_bytes + sizes.probe_bytes + rows(both) * (tuple + word as u64))
        }
        Algorithm::SortMerge => {
            let both = sizes.build_rows + sizes.probe_rows;
            let sort = |sorted: bool| if sorted { 0.0 } else { ns::SORT };
            let rank = if request.facts.keys.exact { 0.0 } else { ns::RANK };
            // Rows that were sorted before are gathered in ascending order.
            let gather = |sorted: bool| ns::GATHER[usize::from(!sorted)];
            let gathers = gather(request.build.sorted) + gather(request.probe.sorted);
            let time = sizes.build_rows * sort(request.build.sorted)
                + sizes.probe_rows * (sort(request.probe.sorted) + gathers)
                + both * (ns::WORDS + ns::PARTITION + ns::MERGE + rank);
            (time, sizes.build_bytes + sizes.probe_bytes + rows(both) * 2 * tuple)
        }
        // Not reached: these run on a GPU only.
        Algorithm::StreamedProbe
        | Algorithm::MultiPass
        | Algorithm::CpuPartitioned
        | Algorithm::Triton => (f64::INFINITY, u64::MAX),
    };
    let threads = request.threads.max(1) as f64;
    let seconds = nanoseconds * 1e-9 / threads + threads * SECONDS_PER_THREAD;
    let (device_bytes, crosses, link_seconds) = (0, 0, 0.0);
    Prediction { algorithm, on_gpu: false, seconds, bytes, device_bytes, crosses, link_seconds }
}

/// Returns the bytes of the CPU's table over the whole build side, and the times of its lookups. It is an array
/// for dense keys; otherwise a hash table with one slot per key, and the values of repeated keys beside it.
fn no_partition_table(request: &Request, sizes: &Sizes) -> (u64, [f64; 3]) {
    let word = request.word_bytes();
    let rows = sizes.build_rows as u64;
    let keys = request.build.distinct.map_or(rows, |keys| keys.min(rows));
    let repeated = (rows - keys) * word as u64;
    let cells = request.build.cells().or(request.facts.learned.sampled_cells);
    match cells.filter(|&cells| request.facts.keys.exact && is_dense(cells, rows)) {
        Some(cells) => (cells * word as u64 + repeated, ns::PROBE_ARRAY),
        None => (table_bytes(keys as usize, word, word) + repeated, ns::PROBE),
    }
}

/// Constants of a GPU, measured on one with a PCIe 5.0 link.
mod device {
    /// Setup: pools, streams, reading back results.
    pub(super) const SECONDS: f64 = 0.003;
    /// Opening a GPU: its context, and loading the kernels.
    pub(super) const OPEN: f64 = 0.3;
    /// Bytes per second: staged by one thread, staged by many threads, over the link in one direction, and over the link in each
    /// direction when both are busy.
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
    /// Bytes of host memory for the chunks of a probe side that is read while it is joined.
    pub(super) const CHUNKS: u64 = 1 << 29;
    /// Seconds that a pipeline needs to start and to end.
    pub(super) const PIPELINE: f64 = 0.002;
    /// Build rows per second that are copied into place, and partitioned or inserted into a table. All of
    /// them must be ready before the first probe row is looked up.
    pub(super) const BUILT: f64 = 9e9;
    /// The chunks of a streamed side need this fraction of memory, 1 / `STREAMED`, to cross the link at full
    /// speed.
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
    let overlaps = streamed && on.memory == HostMemory::Arrow;
    let crossing = case.crossing();
    let (sent, back, spilled) = (crossing.build + crossing.probe, crossing.back, crossing.spilled);
    let staged = match on.memory {
        HostMemory::Pinned => device::LINK,
        HostMemory::Pageable | HostMemory::Arrow => {
            device::MAX_STAGED.min(device::STAGED * threads)
        }
    };
    let inlined = case.inlining().bytes() > 0;
    let resolve = match yields {
        Yields::Count => 0.0,
        Yields::Exists => ns::GATHER[0],
        // Probe columns are slices. Build columns are gathered in any order, unless they are inlined.
        Yields::Pairs if case.in_order() => {
            ns::RESOLVE_IN_ORDER + if inlined { 0.0 } else { ns::GATHER[1] }
        }
        // Without partitions, pairs come back almost in the order of the probe rows.
        Yields::Pairs => {
            ns::RESOLVE
                + ns::GATHER[usize::from(!inlined)]
                + ns::GATHER[usize::from(!case.by_table())]
        }
    };
    // Time is predicted as if nullable columns had no nulls. Memory is predicted as if they had.
    let sources = [0, 1].map(|side| case.key_source(side));
    let in_batches = on.memory == HostMemory::Arrow;
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
    let of_probe = match streamed {
        true => sizes.probe_bytes.min(device::CHUNKS),
        false => sizes.probe_bytes,
    };
    let mut held = sizes.build_bytes + of_probe + of_words + values;
    // The time to bring both sides to the device, the probe side several times. If the probe side is streamed,
    // results come back while the next rows cross to the device.
    let both_ways = match overlaps {
        true => crossing.build / staged + crossing.probe.max(back) / device::LINK,
        false => (sent + back) / staged,
    };
    // The time of the link, the time of the device's own work, and its memory.
    let (link, own, device_bytes) = match algorithm {
        Algorithm::NoPartition => {
            let tables = words(build) * (1 + 2 * device::HELD);
            let link = both_ways + build / device::BUILT + device::PIPELINE;
            (link, both / table, tables + buffers)
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
    };
    // If chunks are streamed, copies overlap with the device's own work. Triton works on its cached
    // partitions after the last copy, so its time adds to the time of the link.
    let seconds = match algorithm {
        Algorithm::Radix | Algorithm::SortMerge | Algorithm::Triton => link + own,
        _ if overlaps => {
            let built = crossing.build / staged + build / device::BUILT;
            link.max(own).max(built + staging + on_cpu)
        }
        _ => link.max(own),
    };
    let on_cpu = if overlaps { 0.0 } else { on_cpu };
    let opening = if on.open { 0.0 } else { device::OPEN };
    Prediction {
        algorithm,
        on_gpu: true,
        seconds: opening + device::SECONDS + seconds + on_cpu,
        bytes: held,
        device_bytes: device_bytes + values,
        crosses: (crossing.to_gpu() + crossing.to_host()) as u64,
        link_seconds: crossing.to_gpu().max(crossing.to_host()) / device::LINK,
    }
}

/// Returns the nanoseconds of a lookup in a table of `table` bytes. `times` are the times in the second-level
/// cache, in the last-level cache, and in memory. Part of the table may be in the last-level cache; three
/// quarters of that cache are assumed to be free for it.
fn look_up(table: u64, times: [f64; 3], machine: &Machine) -> f64 {
    let [near, cached, far] = times;
    if table <= machine.l2 {
        return near;
    }
    let hit = (machine.last_level as f64 * 0.75 / table as f64).min(1.0);
    hit * cached + (1.0 - hit) * far
}

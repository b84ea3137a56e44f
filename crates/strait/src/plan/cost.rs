//! Predicts the time and the memory of each algorithm on the CPU. `gpu_cost.rs` predicts those on a GPU.
//!
//! Times are nanoseconds per row on one core, divided by the number of threads. The constants were measured
//! on a server core of 2023 with 2 MiB of second-level cache (`benchmarks/notes.md`). Their ratios matter
//! more than their values.

use crate::build_side::BuildSide;
use crate::machine::Machine;
use crate::matches::Keep;
use crate::options::{Algorithm, Yields};
use crate::plan::choose::Request;
use crate::plan::refine::Facts;
use crate::plan::rules::{MAX_PLANNED_ROWS, UNKNOWN_ROWS};
use crate::plan::shape::is_dense;
use crate::plan::{Prediction, Statistics};
use crate::table::table_bytes;

/// Nanoseconds per row.
pub(super) mod ns {
    pub(in crate::plan) const WORDS: f64 = 3.0;
    pub(in crate::plan) const PARTITION: f64 = 10.0;
    pub(in crate::plan) const INSERT: f64 = 10.0;
    pub(in crate::plan) const RANK: f64 = 200.0;
    pub(in crate::plan) const SORT: f64 = 32.0;
    pub(in crate::plan) const MERGE: f64 = 20.0;
    /// A lookup in a hash table in the second-level cache, in the last-level cache, and in memory; and in an
    /// array that dense keys address.
    pub(in crate::plan) const PROBE: [f64; 3] = [4.0, 10.0, 28.0];
    pub(in crate::plan) const PROBE_ARRAY: [f64; 3] = [0.5, 2.5, 12.0];
    /// Gathering a row of payload in ascending order, and in random order.
    pub(in crate::plan) const GATHER: [f64; 2] = [1.5, 25.0];
    /// For a join on a GPU: computing a word and storing it; and turning a returned pair into a row, without
    /// gathering its columns.
    pub(in crate::plan) const KEPT: f64 = 8.0;
    pub(in crate::plan) const RESOLVE: f64 = 16.0;
    /// The same if results come back in the order of the probe rows; and staging a key of a streamed side.
    pub(in crate::plan) const RESOLVE_IN_ORDER: f64 = 2.5;
    pub(in crate::plan) const STAGE: f64 = 5.5;
}

/// Seconds that a join on the CPU takes per thread, however few rows there are: to start threads and to wait
/// for them.
const SECONDS_PER_THREAD: f64 = 0.000_2;

/// The sizes of both sides: the rows that may match, and the bytes. If the length of the probe side is
/// unknown, it is assumed to be four times that of the build side.
pub(super) struct Sizes {
    pub(super) build_rows: f64,
    pub(super) probe_rows: f64,
    pub(super) build_bytes: u64,
    pub(super) probe_bytes: u64,
}

impl Sizes {
    pub(super) fn of(request: &Request) -> Sizes {
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

/// The work of reading and writing that the threads of a join do besides the join, in seconds of all threads
/// together.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadWrite {
    /// Reading the build side.
    pub(super) build: f64,
    /// Reading the probe side, and writing the output.
    pub(super) rest: f64,
}

impl ReadWrite {
    /// Returns the work that follows from the [costs](crate::JobCosts) that the caller stated. It assumes that each
    /// probe row has one match.
    pub(super) fn of(request: &Request, sizes: &Sizes) -> ReadWrite {
        let Facts { roles, count_only, .. } = &request.facts;
        let build = BuildSide::or_assumed(request.build_side);
        let rows = match roles.pairs || roles.build == Keep::Nothing {
            _ if *count_only => 0.0,
            true => sizes.probe_rows,
            false => sizes.build_rows,
        };
        let costs = &request.costs;
        let rest = costs.reading(build.other()) + costs.writing(rows);
        ReadWrite { build: costs.reading(build), rest }
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
        // Not reached: these run on a GPU only, and each pair of spilled partitions has a plan of its own.
        Algorithm::StreamedProbe
        | Algorithm::MultiPass
        | Algorithm::CpuPartitioned
        | Algorithm::Triton
        | Algorithm::Spill => (f64::INFINITY, u64::MAX),
    };
    let threads = request.threads.max(1) as f64;
    let work = ReadWrite::of(request, &sizes);
    let read_write_seconds = (work.build + work.rest) / threads;
    Prediction {
        algorithm,
        on_gpu: false,
        seconds: nanoseconds * 1e-9 / threads + threads * SECONDS_PER_THREAD + read_write_seconds,
        read_write_seconds,
        bytes,
        device_bytes: 0,
        crosses: 0,
        link_seconds: 0.0,
    }
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

//! How long would each algorithm take, and how much memory would it hold?
//!
//! Time is nanoseconds a row on one core, divided by the threads. The constants were measured on
//! a server core of 2023 with 2 MiB of second-level cache (`benchmarks/notes.md`); what matters is
//! their ratio.

use crate::join::Algorithm;
use crate::plan::choose::{OnDevice, Request};
use crate::plan::{Machine, Prediction};
use crate::table::table_bytes;

/// Nanoseconds a row.
mod ns {
    pub(super) const WORDS: f64 = 3.0;
    pub(super) const PARTITION: f64 = 10.0;
    pub(super) const INSERT: f64 = 10.0;
    pub(super) const RANK: f64 = 200.0;
    pub(super) const SORT: f64 = 32.0;
    pub(super) const MERGE: f64 = 20.0;
    /// A look-up in the second-level cache, the last-level cache, and memory.
    pub(super) const PROBE: [f64; 3] = [4.0, 10.0, 28.0];
    /// Fetching a row of payload in order, and from anywhere.
    pub(super) const GATHER: [f64; 2] = [1.5, 25.0];
}

/// Rows of a side that may be unknown: then the probe side is taken to be four times the other.
struct Sizes {
    build_rows: f64,
    probe_rows: f64,
    build_bytes: u64,
    probe_bytes: u64,
}

impl Sizes {
    fn of(request: &Request<'_>) -> Sizes {
        let build_rows = request.build.rows.unwrap_or(1 << 20);
        let probe_rows = request.probe.rows.unwrap_or(4 * build_rows);
        let bytes = |known: Option<u64>, rows: u64| known.unwrap_or(rows * 16);
        Sizes {
            build_rows: build_rows as f64,
            probe_rows: probe_rows as f64,
            build_bytes: bytes(request.build.bytes, build_rows),
            probe_bytes: bytes(request.probe.bytes, probe_rows),
        }
    }
}

/// Predicts one algorithm.
pub(super) fn predict(algorithm: Algorithm, request: &Request<'_>) -> Prediction {
    let sizes = Sizes::of(request);
    let word = request.word_bytes;
    let tuple = (2 * word) as u64;
    let rows = |n: f64| n as u64;
    let (nanoseconds, bytes) = match algorithm {
        Algorithm::NoPartition | Algorithm::Auto => {
            let table = table_bytes(sizes.build_rows as usize, word, word);
            let build = ns::WORDS + ns::PARTITION + ns::INSERT;
            let probe = ns::WORDS + ns::PROBE[level(table, request.machine)];
            let gather = ns::GATHER[0]
                + ns::GATHER[usize::from(level(sizes.build_bytes, request.machine) > 0)];
            let time = sizes.build_rows * build + sizes.probe_rows * (probe + gather);
            // Tuples live until the table is built; words are gone before.
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
            let rank = if request.exact { 0.0 } else { ns::RANK };
            // Rows that were sorted before are gathered in their own order.
            let gather = |sorted: bool| ns::GATHER[usize::from(!sorted)];
            let gathers = gather(request.build.sorted) + gather(request.probe.sorted);
            let time = sizes.build_rows * sort(request.build.sorted)
                + sizes.probe_rows * (sort(request.probe.sorted) + gathers)
                + both * (ns::WORDS + ns::PARTITION + ns::MERGE + rank);
            (time, sizes.build_bytes + sizes.probe_bytes + rows(both) * 2 * tuple)
        }
    };
    let seconds = nanoseconds * 1e-9 / request.threads.max(1) as f64;
    Prediction { algorithm, on_gpu: false, seconds, bytes, device_bytes: 0 }
}

/// What a GPU does, as measured on one with a PCIe 5.0 link.
mod device {
    /// Making ready: contexts, pools, read-backs.
    pub(super) const SECONDS: f64 = 0.02;
    /// Bytes a second that one thread stages, and that the link carries.
    pub(super) const STAGED: f64 = 9e9;
    pub(super) const LINK: f64 = 50e9;
    /// Tuples a second: no-partition, radix, sort-merge.
    pub(super) const TUPLES: [f64; 3] = [8e9, 20e9, 8e9];
    /// Tuples held a row, besides its words: tables or partitions.
    pub(super) const HELD: u64 = 4;
}

/// Predicts one algorithm on a GPU: words cross to it, pairs of row numbers come back, and columns
/// are gathered on the CPU.
pub(super) fn predict_on(on: &OnDevice, algorithm: Algorithm, request: &Request<'_>) -> Prediction {
    let sizes = Sizes::of(request);
    let threads = request.threads.max(1) as f64;
    let both = sizes.build_rows + sizes.probe_rows;
    let word = request.word_bytes as f64;
    let back = if on.count_only { 0.0 } else { 2.0 * word * sizes.probe_rows };
    let link = device::LINK.min(device::STAGED * threads);
    let gather = if on.count_only { 0.0 } else { 2.0 * ns::GATHER[1] };
    let on_cpu = (both * ns::WORDS + sizes.probe_rows * gather) * 1e-9 / threads;
    let rate = match algorithm {
        Algorithm::NoPartition | Algorithm::Auto => device::TUPLES[0],
        Algorithm::Radix => device::TUPLES[1],
        Algorithm::SortMerge => device::TUPLES[2],
    };
    let seconds = device::SECONDS + (both * word + back) / link + both / rate + on_cpu;
    let words = (both * word) as u64;
    let held = sizes.build_bytes + sizes.probe_bytes + words;
    let device_bytes = words * (1 + 2 * device::HELD) + back as u64;
    Prediction { algorithm, on_gpu: true, seconds, bytes: held, device_bytes }
}

/// Which memory holds so many bytes: 0 and 1 are caches, 2 is memory.
fn level(bytes: u64, machine: &Machine) -> usize {
    if bytes <= machine.l2 {
        0
    } else if bytes <= machine.last_level / 4 {
        1
    } else {
        2
    }
}

//! Which kernels a stage launches, and with how many blocks.

use std::ffi::c_void;

use super::CudaDevice;
use super::policy::{HISTOGRAM_THREADS, Policy, SCATTER_ITEMS, SCATTER_THREADS};
use crate::device::{Flavour, Scatterer, Stage, Stream, abi};
use crate::error::{Error, Result};
use crate::word::Width;

/// Keys that a histogram block takes at a time.
const HISTOGRAM_KEYS: u64 = HISTOGRAM_THREADS as u64 * 8;

/// One kernel launch.
struct Kernel {
    module: &'static str,
    entry: &'static str,
    blocks: u64,
    threads: u32,
    shared_bytes: u32,
}

impl Kernel {
    fn new(module: &'static str, entry: &'static str, blocks: u64, threads: u32) -> Kernel {
        Kernel { module, entry, blocks, threads, shared_bytes: 0 }
    }

    fn shared(self, shared_bytes: u32) -> Kernel {
        Kernel { shared_bytes, ..self }
    }
}

/// Returns the maximum number of pieces of chains: each chain may end with a piece that is not full. Only the
/// device knows the real number, and blocks without a piece end at once.
fn most_pieces(rows: u64, piece: u32, chains: u32) -> u64 {
    let piece = u64::from(piece);
    rows.div_ceil(piece).max(rows / piece + rows.min(u64::from(chains)))
}

/// Unpacking blocks per multiprocessor: as many as run at once.
const UNPACK_BLOCKS: u32 = 4;
/// Threads per block if each tuple is written separately.
const STANDARD_THREADS: u32 = 256;

/// Returns the kernel of a scatterer, for a card with this number of multiprocessors.
fn scatter(
    policy: &Policy,
    word: Width,
    how: Scatterer,
    stage: &abi::Scatter,
    processors: u32,
) -> Result<Kernel> {
    let partitions = stage.digit.mask.saturating_add(1);
    if partitions > abi::MAX_PARTITIONS {
        return Err(Error::Worker(format!("{partitions} partitions are too many to scatter to")));
    }
    let tiles = |tuples: u32| stage.rows.div_ceil(u64::from(tuples));
    // Enough blocks to fill the card; they take tiles until there are none left.
    let fill = |tiles: u64, each: u32| tiles.min(u64::from(processors * each));
    let from = |tuples, columns| if stage.tuples != 0 { tuples } else { columns };
    Ok(match how {
        Scatterer::Standard => {
            let entry = from("standard_tuples", "standard_columns");
            let blocks = fill(tiles(STANDARD_THREADS), 8);
            Kernel::new("partition/scatter", entry, blocks, STANDARD_THREADS)
        }
        Scatterer::Linear => {
            let entry = from("linear_tuples", "linear_columns");
            let blocks = fill(tiles(SCATTER_THREADS * policy.linear_items), 1);
            Kernel::new("partition/scatter", entry, blocks, SCATTER_THREADS)
                .shared(policy.linear_bytes(word))
        }
        Scatterer::Shared => {
            let entry = from("shared_tuples", "shared_columns");
            let blocks = fill(tiles(SCATTER_THREADS * SCATTER_ITEMS), 1);
            Kernel::new("partition/combine", entry, blocks, SCATTER_THREADS)
                .shared(policy.combine_bytes)
        }
        Scatterer::Hierarchical => {
            let entry = from("hierarchical_tuples", "hierarchical_columns");
            let blocks = Policy::long_blocks(word, partitions, stage.rows, processors);
            Kernel::new("partition/combine", entry, blocks, SCATTER_THREADS)
                .shared(policy.combine_bytes)
        }
    })
}

/// Returns the module with a table's kernels.
fn table_module(table: &abi::Table) -> &'static str {
    match table.direct != 0 {
        true if table.is_array() => "table/array",
        false if table.bits == 0 => "table/compact",
        _ => "table/global",
    }
}

/// Enqueues a stage's kernels.
///
/// # Safety
/// The same as for [`Device::run`](crate::device::Device::run).
pub(super) unsafe fn launch(
    device: &CudaDevice,
    stream: Stream,
    word: Width,
    stage: &Stage,
) -> Result<()> {
    let start = |kernel: Kernel, arguments: *const c_void| -> Result<()> {
        if kernel.blocks == 0 {
            return Ok(());
        }
        let blocks = u32::try_from(kernel.blocks).map_err(|_| {
            Error::Worker(format!("{} would need {} blocks", kernel.entry, kernel.blocks))
        })?;
        let function = device.function(kernel.module, word, kernel.entry)?;
        let shape = (blocks, kernel.threads, kernel.shared_bytes);
        // SAFETY: the kernel takes exactly this structure, which the layout test checks. The caller
        // guarantees the memory behind its addresses.
        unsafe { device.launch_kernel(function, shape, stream, arguments.cast_mut()) }
    };
    let policy = device.policy(word);
    // Enough blocks to fill the card; they take work until there is none left.
    let full = |blocks_each: u32| u64::from(device.multiprocessors() * blocks_each);
    let (probe_threads, _, probe_blocks) = policy.probe;
    macro_rules! argument {
        ($a:expr) => {
            std::ptr::from_ref($a).cast::<c_void>()
        };
    }
    match stage {
        Stage::Survey(a) => {
            let blocks = a.rows.div_ceil(HISTOGRAM_KEYS).min(full(4));
            let kernel = Kernel::new("partition/histogram", "survey", blocks, HISTOGRAM_THREADS);
            start(kernel, argument!(a))
        }
        Stage::Histogram(a) => {
            let blocks = a.rows.div_ceil(HISTOGRAM_KEYS).min(full(4));
            let kernel = Kernel::new("partition/histogram", "histogram", blocks, HISTOGRAM_THREADS);
            start(kernel.shared(a.passes * abi::BINS as u32 * 4), argument!(a))
        }
        Stage::Offsets(a) => {
            let passes = u64::from(a.passes);
            let kernel = Kernel::new("partition/histogram", "offsets", passes, abi::BINS as u32);
            start(kernel, argument!(a))
        }
        Stage::LookBack(a) => {
            let (threads, items, _) = policy.look_back;
            let entry = match (a.tuples != 0, a.to_tuples != 0, a.stable != 0) {
                (false, true, false) => "look_back_first",
                (false, true, true) => "look_back_first_stable",
                (false, false, _) => "look_back_only",
                (true, true, _) => "look_back_tuples",
                (true, false, _) => "look_back_last",
            };
            let tiles = a.rows.div_ceil(u64::from(threads * items));
            let kernel = Kernel::new("partition/look_back", entry, tiles, threads);
            start(kernel.shared(policy.look_back_bytes(word)), argument!(a))
        }
        Stage::SharedCount(a) => {
            let entry = if a.tuples != 0 { "shared_count_tuples" } else { "shared_count_first" };
            let (threads, chunks) = (policy.look_back.0, u64::from(a.chunks));
            start(Kernel::new("partition/shared_histogram", entry, chunks, threads), argument!(a))
        }
        Stage::SharedScan(a) => {
            let (threads, digits) = (policy.look_back.0, abi::BINS as u64);
            let kernel = Kernel::new("partition/shared_histogram", "shared_scan", digits, threads);
            start(kernel, argument!(a))
        }
        Stage::SharedScatter(a) => {
            let from_tuples = a.tuples != 0;
            let entry = if from_tuples { "shared_scatter_tuples" } else { "shared_scatter_first" };
            let (threads, chunks) = (policy.look_back.0, u64::from(a.chunks));
            let kernel = Kernel::new("partition/shared_histogram", entry, chunks, threads);
            start(kernel.shared(policy.look_back_bytes(word)), argument!(a))
        }
        Stage::CutChains(a) => {
            start(Kernel::new("partition/bucket_pool", "cut_chains", 1, 1024), argument!(a))
        }
        Stage::BucketPool(a) => {
            let chains = a.from.tuples != 0;
            let entry = if chains { "bucket_pool_chains" } else { "bucket_pool_first" };
            let pieces = most_pieces(a.rows, a.piece, if chains { a.parents } else { 0 });
            let kernel = Kernel::new("partition/bucket_pool", entry, pieces, policy.look_back.0);
            start(kernel.shared(policy.bucket_pool_bytes(word)), argument!(a))
        }
        Stage::Compact(a) => {
            let pieces = most_pieces(a.rows, a.piece, a.chains);
            start(Kernel::new("partition/bucket_pool", "compact", pieces, 256), argument!(a))
        }
        Stage::Bounds(a) => {
            let blocks = (u64::from(a.partitions) + 1).div_ceil(256);
            start(Kernel::new("partition/tasks", "bounds", blocks, 256), argument!(a))
        }
        Stage::ListTasks(a) => {
            let blocks = u64::from(a.partitions).div_ceil(256);
            start(Kernel::new("partition/tasks", "list_tasks", blocks, 256), argument!(a))
        }
        Stage::JoinShared(flavour, a) => {
            let entry = match flavour {
                Flavour::Pairs => "join_shared_pairs",
                Flavour::PairsFlagged => "join_shared_flagged",
                Flavour::Exists => "join_shared_exists",
                Flavour::Aggregate => "join_shared_aggregate",
            };
            let (threads, _, each) = policy.shared;
            let blocks = u64::from(a.count).min(full(each));
            let kernel = Kernel::new("table/shared", entry, blocks, threads);
            start(kernel.shared(policy.shared_bytes(word)), argument!(a))
        }
        Stage::ClearTable(a) => {
            let single = a.table.groups == 0;
            let entry = if single { "clear_single" } else { "clear_groups" };
            let blocks = a.table.slot_count.div_ceil(256).min(full(8));
            start(Kernel::new(table_module(&a.table), entry, blocks, 256), argument!(a))
        }
        Stage::Insert(a) if a.slot_of == 0 => {
            let tile = u64::from(probe_threads * policy.probe.1);
            let blocks = a.rows.div_ceil(tile);
            let module = table_module(&a.table);
            start(Kernel::new(module, "insert_single", blocks, probe_threads), argument!(a))
        }
        Stage::Insert(a) => {
            let blocks = a.rows.div_ceil(u64::from(probe_threads));
            let module = table_module(&a.table);
            start(Kernel::new(module, "insert_groups", blocks, probe_threads), argument!(a))
        }
        Stage::PlaceGroups(a) => {
            let blocks = a.table.slot_count.div_ceil(256).min(full(8));
            start(Kernel::new(table_module(&a.table), "place_groups", blocks, 256), argument!(a))
        }
        Stage::FillGroups(a) => {
            let blocks = a.rows.div_ceil(256);
            start(Kernel::new(table_module(&a.table), "fill_groups", blocks, 256), argument!(a))
        }
        Stage::Probe(flavour, a) => {
            let single = a.table.groups == 0;
            let entry = match (single, flavour) {
                (true, Flavour::Pairs) => "probe_single_pairs",
                (true, Flavour::PairsFlagged) => "probe_single_flagged",
                (true, Flavour::Exists) => "probe_single_exists",
                (true, Flavour::Aggregate) => "probe_single_aggregate",
                (false, Flavour::Pairs) => "probe_groups_pairs",
                (false, Flavour::PairsFlagged) => "probe_groups_flagged",
                (false, Flavour::Exists) => "probe_groups_exists",
                (false, Flavour::Aggregate) => "probe_groups_aggregate",
            };
            let blocks = u64::from(a.count).min(full(probe_blocks));
            let shared = if single { 0 } else { Policy::runs_bytes(policy.probe, word) };
            let kernel = Kernel::new(table_module(&a.table), entry, blocks, probe_threads);
            start(kernel.shared(shared), argument!(a))
        }
        Stage::ProbeInOrder(a) => {
            let single = a.table.groups == 0;
            let entry = if single { "probe_single_in_order" } else { "probe_groups_in_order" };
            let blocks = u64::from(a.count).min(full(probe_blocks));
            let kernel = Kernel::new(table_module(&a.table), entry, blocks, probe_threads);
            start(kernel, argument!(a))
        }
        Stage::MergeJoin(flavour, a) => {
            if a.tasks == 0 {
                let blocks = (2 * u64::from(a.count)).div_ceil(256);
                let kernel = Kernel::new("sort/merge_join", "merge_splits", blocks, 256);
                start(kernel, argument!(a))?;
            }
            let entry = match flavour {
                Flavour::Pairs => "merge_join_pairs",
                Flavour::PairsFlagged => "merge_join_flagged",
                Flavour::Exists => "merge_join_exists",
                Flavour::Aggregate => "merge_join_aggregate",
            };
            let (threads, _, each) = policy.merge;
            let blocks = u64::from(a.count).min(full(each));
            let kernel = Kernel::new("sort/merge_join", entry, blocks, threads);
            start(kernel.shared(Policy::runs_bytes(policy.merge, word)), argument!(a))
        }
        Stage::Gather(a) => {
            let entry = match a.width {
                1 => "gather_1",
                2 => "gather_2",
                4 => "gather_4",
                8 => "gather_8",
                16 => "gather_16",
                other => {
                    return Err(Error::Worker(format!(
                        "columns of {other} bytes are not gathered"
                    )));
                }
            };
            let blocks = a.count.div_ceil(256).min(full(16));
            start(Kernel::new("materialise/gather", entry, blocks, 256), argument!(a))
        }
        Stage::Tally(a) => {
            if a.digit.mask >= abi::MAX_PARTITIONS {
                return Err(Error::Worker(format!("{} digits are not counted", a.digit.mask)));
            }
            let blocks = a.rows.div_ceil(HISTOGRAM_KEYS).min(full(4));
            let kernel = Kernel::new("partition/histogram", "tally", blocks, HISTOGRAM_THREADS);
            start(kernel, argument!(a))
        }
        Stage::Unpack(a) => {
            // The same number of blocks per pack, so that even a single pack fills the card.
            let packs = u64::from(a.count);
            let blocks = packs * full(UNPACK_BLOCKS).div_ceil(packs.max(1));
            start(Kernel::new("transfer/unpack", "unpack", blocks, 256), argument!(a))
        }
        Stage::Scatter(how, a) => {
            let kernel = scatter(&policy, word, *how, a, device.multiprocessors())?;
            start(kernel, argument!(a))
        }
    }
}

#[cfg(test)]
mod tests;

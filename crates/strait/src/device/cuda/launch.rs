//! Which kernels does a stage launch, and with how many blocks? The [table of stages](crate::device::stage)
//! says so, and uses the functions of this file for it.

use std::ffi::c_void;

use super::CudaDevice;
use super::policy::{HISTOGRAM_THREADS, Policy, SCATTER_ITEMS, SCATTER_THREADS};
use crate::device::stage::stage_table;
use crate::device::{DeviceStage, Flavour, Scatterer, Stream, abi};
use crate::error::{Error, Result};
use crate::word::Width;

/// Keys that a histogram block takes at a time.
const HISTOGRAM_KEYS: u64 = HISTOGRAM_THREADS as u64 * 8;
/// Unpacking blocks per multiprocessor: as many as run at once.
const UNPACK_BLOCKS: u32 = 4;
/// Threads per block if each tuple is written separately.
const STANDARD_THREADS: u32 = 256;

/// One kernel launch.
struct Kernel {
    module: &'static str,
    entry: &'static str,
    threads: u32,
    shared_bytes: u32,
    blocks: u32,
}

impl Kernel {
    /// Starts to describe a launch: an entry of a module, with this number of threads per block.
    fn new(module: &'static str, entry: &'static str, threads: u32) -> Kernel {
        Kernel { module, entry, threads, shared_bytes: 0, blocks: 0 }
    }

    /// Sets the dynamic shared memory per block, in bytes.
    fn shared(self, shared_bytes: u32) -> Kernel {
        Kernel { shared_bytes, ..self }
    }

    /// Ends the description with the number of blocks. A kernel with zero blocks is not launched.
    fn blocks(self, blocks: u64) -> Result<Kernel> {
        match u32::try_from(blocks) {
            Ok(blocks) => Ok(Kernel { blocks, ..self }),
            Err(_) => refuse(format!("{} would need {blocks} blocks", self.entry)),
        }
    }
}

/// Returns the error of a stage whose arguments no kernel takes.
fn refuse(why: String) -> Result<Kernel> {
    Err(Error::internal(why))
}

/// The card for which kernels are launched, and the word width.
struct Card {
    policy: Policy,
    word: Width,
    multiprocessors: u32,
}

impl Card {
    /// Returns the number of blocks that fill the card, if a multiprocessor runs `each` blocks at once. These
    /// blocks take work until there is none left.
    fn full(&self, each: u32) -> u64 {
        u64::from(self.multiprocessors * each)
    }
}

/// Returns a kernel that reads a column of keys, with this much shared memory per block.
fn over_keys(card: &Card, entry: &'static str, rows: u64, shared: u32) -> Result<Kernel> {
    Kernel::new("partition/histogram", entry, HISTOGRAM_THREADS)
        .shared(shared)
        .blocks(rows.div_ceil(HISTOGRAM_KEYS).min(card.full(4)))
}

/// Returns a kernel that visits all slots of a table.
fn over_slots(card: &Card, entry: &'static str, table: &abi::DeviceTable) -> Result<Kernel> {
    let blocks = table.slot_count.div_ceil(256).min(card.full(8));
    Kernel::new(table_module(table), entry, 256).blocks(blocks)
}

/// Returns the first entry if there are tuples to read, and otherwise the second.
fn by_source(tuples: u64, from_tuples: &'static str, from_columns: &'static str) -> &'static str {
    if tuples != 0 { from_tuples } else { from_columns }
}

/// The entry of a join kernel, by its flavour.
macro_rules! flavoured {
    ($entry:literal, $flavour:expr) => {
        match $flavour {
            Flavour::Pairs => concat!($entry, "_pairs"),
            Flavour::PairsFlagged => concat!($entry, "_flagged"),
            Flavour::Exists => concat!($entry, "_exists"),
            Flavour::Aggregate => concat!($entry, "_aggregate"),
        }
    };
}

/// Returns the module with a table's kernels.
fn table_module(table: &abi::DeviceTable) -> &'static str {
    match table.direct != 0 {
        true if table.is_array() => "table/array",
        false if table.bits == 0 => "table/compact",
        _ => "table/global",
    }
}

/// Returns the maximum number of pieces of chains: each chain may end with a piece that is not full. Only the
/// device knows the real number, and blocks without a piece end at once.
fn most_pieces(rows: u64, piece: u32, chains: u32) -> u64 {
    let piece = u64::from(piece.max(1));
    rows.div_ceil(piece).max(rows / piece + rows.min(u64::from(chains)))
}

/// Returns the kernel of a scatterer.
fn scatter_kernel(how: Scatterer, stage: &abi::Scatter, card: &Card) -> Result<Kernel> {
    let partitions = stage.digit.mask.saturating_add(1);
    if partitions > abi::MAX_PARTITIONS {
        return refuse(format!("{partitions} partitions are too many to scatter to"));
    }
    let policy = &card.policy;
    // Enough blocks to fill the card; they take tiles of so many tuples until there are none left.
    let tiles = |tuples: u32, each| stage.rows.div_ceil(tuples.into()).min(card.full(each));
    let from = |tuples, columns| by_source(stage.tuples, tuples, columns);
    match how {
        Scatterer::Standard => {
            let entry = from("standard_tuples", "standard_columns");
            Kernel::new("partition/scatter", entry, STANDARD_THREADS)
                .blocks(tiles(STANDARD_THREADS, 8))
        }
        Scatterer::Linear => {
            let entry = from("linear_tuples", "linear_columns");
            Kernel::new("partition/scatter", entry, SCATTER_THREADS)
                .shared(policy.linear_bytes(card.word))
                .blocks(tiles(SCATTER_THREADS * policy.linear_items, 1))
        }
        Scatterer::Shared => {
            let entry = from("shared_tuples", "shared_columns");
            Kernel::new("partition/combine", entry, SCATTER_THREADS)
                .shared(policy.combine_bytes)
                .blocks(tiles(SCATTER_THREADS * SCATTER_ITEMS, 1))
        }
        Scatterer::Hierarchical => {
            let entry = from("hierarchical_tuples", "hierarchical_columns");
            let (rows, processors) = (stage.rows, card.multiprocessors);
            Kernel::new("partition/combine", entry, SCATTER_THREADS)
                .shared(policy.combine_bytes)
                .blocks(Policy::long_blocks(card.word, partitions, rows, processors))
        }
    }
}

/// Defines the function that lists the kernels of the table of stages.
macro_rules! list_kernels {
    ($($(#[$doc:meta])* $name:ident $([$how:ident: $how_type:ty])? ($arguments:ident) {
        bytes: $bytes:expr,
        kernels: [$($kernel:expr),+ $(,)?],
        twin: $twin:expr,
    })*) => {
        /// Calls `start` for every kernel of a stage, in order, with the address of the stage's arguments.
        fn each_kernel(
            stage: &DeviceStage,
            card: &Card,
            start: &mut dyn FnMut(Kernel, *const c_void) -> Result<()>,
        ) -> Result<()> {
            match stage {
                $(DeviceStage::$name($($how,)? arguments) => {
                    type Describe = fn($($how_type,)? &abi::$arguments, &Card) -> Result<Kernel>;
                    let kernel = |describe: Describe| describe($(*$how,)? arguments, card);
                    $(start(kernel($kernel)?, std::ptr::from_ref(arguments).cast())?;)+
                })*
            }
            Ok(())
        }
    };
}

stage_table!(list_kernels);

/// Enqueues a stage's kernels.
///
/// # Safety
/// The same as for [`Device::run`](crate::device::Device::run).
pub(super) unsafe fn launch(
    device: &CudaDevice,
    stream: Stream,
    word: Width,
    stage: &DeviceStage,
) -> Result<()> {
    let policy = device.policy(word);
    let card = Card { policy, word, multiprocessors: device.multiprocessors() };
    each_kernel(stage, &card, &mut |kernel, arguments| {
        if kernel.blocks == 0 {
            return Ok(());
        }
        let function = device.function(kernel.module, word, kernel.entry)?;
        let shape = (kernel.blocks, kernel.threads, kernel.shared_bytes);
        // SAFETY: the kernel takes exactly this structure, which the layout test checks. The caller
        // guarantees the memory behind its addresses.
        unsafe { device.launch_kernel(function, shape, stream, arguments.cast_mut()) }
    })
}

#[cfg(test)]
mod entries;
#[cfg(test)]
mod tests;

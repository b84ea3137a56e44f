//! The table of stages. A stage is a step of a join on a device.
//!
//! Each row of the table says everything about one stage:
//!
//! | column | what it says | who reads it |
//! | --- | --- | --- |
//! | name | the variant of [`DeviceStage`], and the stage's name in errors | this file |
//! | `(ARGUMENTS)` | the structure of [`abi`] with the arguments of kernels and twin | this file |
//! | `[how: TYPE]` | a choice that selects among the kernels of the stage; few stages have one | this file |
//! | `bytes` | the bytes that the stage moves | this file, with [`Sizes`] |
//! | `kernels` | the kernels that the stage launches, in this order | `cuda/launch.rs` |
//! | `twin` | the function that does the same on the CPU | `simulated/stages/mod.rs` |
//!
//! A reader passes the name of a macro to [`stage_table`]. That macro gets all rows, and uses the columns
//! that it needs. Paths in a column are resolved in the module of the reader.

use super::abi;
use super::bytes::Sizes;
use crate::gpu_options::Scatterer;
use crate::options::Yields;
use crate::word::Width;

/// What a join stage does with its matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Flavour {
    /// Writes them.
    Pairs,
    /// Writes them, and flags the rows of each side that has flags.
    PairsFlagged,
    /// Flags the rows, and writes nothing.
    Exists,
    /// Counts them, and sums their values.
    Aggregate,
}

impl Flavour {
    /// Returns the flavour for what a join has to find. With `flags`, a stage that writes pairs also flags
    /// their rows.
    pub(crate) fn of(yields: Yields, flags: bool) -> Flavour {
        match yields {
            Yields::Pairs if flags => Flavour::PairsFlagged,
            Yields::Pairs => Flavour::Pairs,
            Yields::Exists => Flavour::Exists,
            Yields::Count => Flavour::Aggregate,
        }
    }
}

/// Lists the kernel modules `kernels/NAME.cu` as pairs of name and source.
macro_rules! modules {
    ($($name:literal,)*) => {
        &[$(($name, include_str!(concat!("../../kernels/", $name, ".cu"))),)*]
    };
}

/// The modules with the kernels of all stages. Each module is compiled separately.
pub(crate) const MODULES: &[(&str, &str)] = modules![
    "partition/histogram",
    "partition/look_back",
    "partition/shared_histogram",
    "partition/bucket_pool",
    "partition/scatter",
    "partition/combine",
    "partition/tasks",
    "table/shared",
    "table/global",
    "table/array",
    "table/compact",
    "sort/merge_join",
    "materialise/gather",
    "transfer/unpack",
];

/// Passes all rows of the table to the macro `$read`: see the [module](self).
macro_rules! stage_table {
    ($read:ident) => {
        $read! {
            /// See [`abi::Survey`]; likewise for the other stages.
            Survey(Survey) {
                bytes: |a, size| a.rows * size.word,
                kernels: [|a, card| over_keys(card, "survey", a.rows, 0)],
                twin: partition::survey::<W>,
            }
            Histogram(Histogram) {
                // Keys in tuples share cache lines with their values, so both are read.
                bytes: |a, size| a.rows * size.word * u64::from(a.stride),
                kernels: [|a, card| {
                    over_keys(card, "histogram", a.rows, a.passes * abi::BINS as u32 * 4)
                }],
                twin: partition::histogram::<W>,
            }
            Offsets(Offsets) {
                bytes: |a, _| 2 * u64::from(a.passes) * abi::BINS as u64 * 8,
                kernels: [|a, _| {
                    let (digits, passes) = (abi::BINS as u32, u64::from(a.passes));
                    Kernel::new("partition/histogram", "offsets", digits).blocks(passes)
                }],
                twin: partition::offsets,
            }
            LookBack(LookBack) {
                bytes: |a, size| a.rows * (size.row(a.tuples, &a.columns) + size.tuple),
                kernels: [|a, card| {
                    let entry = match (a.tuples != 0, a.to_tuples != 0, a.stable != 0) {
                        (false, true, false) => "look_back_first",
                        (false, true, true) => "look_back_first_stable",
                        (false, false, _) => "look_back_only",
                        (true, true, _) => "look_back_tuples",
                        (true, false, _) => "look_back_last",
                    };
                    let (threads, items, _) = card.policy.look_back;
                    Kernel::new("partition/look_back", entry, threads)
                        .shared(card.policy.look_back_bytes(card.word))
                        .blocks(a.rows.div_ceil(u64::from(threads * items)))
                }],
                twin: partition::look_back::<W>,
            }
            /// Counts the digits of chunks. [`SharedScan`](DeviceStage::SharedScan) then scans the counts,
            /// and [`SharedScatter`](DeviceStage::SharedScatter) writes the tuples.
            SharedCount(SharedHistogram) {
                bytes: |a, size| a.rows * if a.tuples == 0 { size.word } else { size.tuple },
                kernels: [|a, card| {
                    let entry = by_source(a.tuples, "shared_count_tuples", "shared_count_first");
                    Kernel::new("partition/shared_histogram", entry, card.policy.look_back.0)
                        .blocks(a.chunks.into())
                }],
                twin: shared_histogram::count::<W>,
            }
            SharedScan(SharedHistogram) {
                bytes: |a, _| 2 * u64::from(a.chunks) * abi::BINS as u64 * 4,
                kernels: [|_, card| {
                    Kernel::new("partition/shared_histogram", "shared_scan", card.policy.look_back.0)
                        .blocks(abi::BINS as u64)
                }],
                twin: shared_histogram::scan,
            }
            SharedScatter(SharedHistogram) {
                bytes: |a, size| a.rows * (size.row(a.tuples, &a.columns) + size.tuple),
                kernels: [|a, card| {
                    let entry = by_source(a.tuples, "shared_scatter_tuples", "shared_scatter_first");
                    Kernel::new("partition/shared_histogram", entry, card.policy.look_back.0)
                        .shared(card.policy.look_back_bytes(card.word))
                        .blocks(a.chunks.into())
                }],
                twin: shared_histogram::scatter::<W>,
            }
            CutChains(CutChains) {
                bytes: |a, _| 2 * u64::from(a.chains) * 4,
                kernels: [|_, _| Kernel::new("partition/bucket_pool", "cut_chains", 1024).blocks(1)],
                twin: bucket_pool::cut_chains,
            }
            BucketPool(BucketPool) {
                bytes: |a, size| a.rows * (size.row(a.from.tuples, &a.columns) + size.tuple),
                kernels: [|a, card| {
                    let entry = by_source(a.from.tuples, "bucket_pool_chains", "bucket_pool_first");
                    let chains = if a.from.tuples != 0 { a.parents } else { 0 };
                    Kernel::new("partition/bucket_pool", entry, card.policy.look_back.0)
                        .shared(card.policy.bucket_pool_bytes(card.word))
                        .blocks(most_pieces(a.rows, a.piece, chains))
                }],
                twin: bucket_pool::partition::<W>,
            }
            Compact(Compact) {
                bytes: |a, size| 2 * a.rows * size.tuple,
                kernels: [|a, _| {
                    Kernel::new("partition/bucket_pool", "compact", 256)
                        .blocks(most_pieces(a.rows, a.piece, a.chains))
                }],
                twin: bucket_pool::compact::<W>,
            }
            Bounds(Bounds) {
                bytes: |a, _| (u64::from(a.partitions) + 1) * 8,
                kernels: [|a, _| {
                    let bounds = u64::from(a.partitions) + 1;
                    Kernel::new("partition/tasks", "bounds", 256).blocks(bounds.div_ceil(256))
                }],
                twin: tasks::bounds::<W>,
            }
            ListTasks(ListTasks) {
                bytes: |a, _| 2 * (u64::from(a.partitions) + 1) * 8,
                kernels: [|a, _| {
                    let blocks = u64::from(a.partitions).div_ceil(256);
                    Kernel::new("partition/tasks", "list_tasks", 256).blocks(blocks)
                }],
                twin: tasks::list,
            }
            JoinShared[flavour: Flavour](JoinShared) {
                // The number of tuples is in the tasks, not in the arguments.
                bytes: |a, _| u64::from(a.count) * size_of::<abi::Task>() as u64,
                kernels: [|flavour, a, card| {
                    let (threads, _, each) = card.policy.shared;
                    Kernel::new("table/shared", flavoured!("join_shared", flavour), threads)
                        .shared(card.policy.shared_bytes(card.word))
                        .blocks(u64::from(a.count).min(card.full(each)))
                }],
                twin: join::shared::<W>,
            }
            ClearTable(ClearTable) {
                bytes: |a, size| match a.table.is_array() {
                    // Only the bitmap of an array is cleared.
                    true => a.table.slot_count / 8,
                    false => a.table.slot_count * size.slot(&a.table),
                },
                kernels: [|a, card| {
                    let entry = if a.table.groups == 0 { "clear_single" } else { "clear_groups" };
                    over_slots(card, entry, &a.table)
                }],
                twin: table::clear::<W>,
            }
            Insert(Insert) {
                bytes: |a, size| a.rows * (size.row(a.tuples, &a.columns) + size.slot(&a.table)),
                kernels: [|a, card| {
                    let (threads, items, _) = card.policy.probe;
                    let (entry, tile) = match a.slot_of {
                        0 => ("insert_single", threads * items),
                        _ => ("insert_groups", threads),
                    };
                    Kernel::new(table_module(&a.table), entry, threads)
                        .blocks(a.rows.div_ceil(tile.into()))
                }],
                twin: table::insert::<W>,
            }
            PlaceGroups(PlaceGroups) {
                bytes: |a, size| 2 * a.table.slot_count * size.slot(&a.table),
                kernels: [|a, card| over_slots(card, "place_groups", &a.table)],
                twin: table::place_groups::<W>,
            }
            FillGroups(FillGroups) {
                bytes: |a, size| a.rows * (size.row(a.tuples, &a.columns) + size.word + 8),
                kernels: [|a, _| {
                    Kernel::new(table_module(&a.table), "fill_groups", 256)
                        .blocks(a.rows.div_ceil(256))
                }],
                twin: table::fill_groups::<W>,
            }
            Probe[flavour: Flavour](Probe) {
                bytes: |a, size| a.rows * size.row(a.tuples, &a.columns),
                kernels: [|flavour, a, card| {
                    let runs = Policy::runs_bytes(card.policy.probe, card.word);
                    let (entry, shared) = match a.table.groups {
                        0 => (flavoured!("probe_single", flavour), 0),
                        _ => (flavoured!("probe_groups", flavour), runs),
                    };
                    let (threads, _, each) = card.policy.probe;
                    Kernel::new(table_module(&a.table), entry, threads)
                        .shared(shared)
                        .blocks(u64::from(a.count).min(card.full(each)))
                }],
                twin: join::probe::<W>,
            }
            /// Looks probe rows up in a table, and writes the result of each row at its position: one bit to
            /// `output.probe`, which says whether it has a match, and its build value to `output.build`, if
            /// there is such a column. Build values need a table in which every key occurs once.
            ProbeInOrder(Probe) {
                bytes: |a, size| a.rows * size.row(a.tuples, &a.columns),
                kernels: [|a, card| {
                    let entry = match a.table.groups {
                        0 => "probe_single_in_order",
                        _ => "probe_groups_in_order",
                    };
                    let (threads, _, each) = card.policy.probe;
                    Kernel::new(table_module(&a.table), entry, threads)
                        .blocks(u64::from(a.count).min(card.full(each)))
                }],
                twin: join::probe_in_order::<W>,
            }
            MergeJoin[flavour: Flavour](MergeJoin) {
                bytes: |a, size| (a.build_rows + a.probe_rows) * size.tuple,
                kernels: [
                    |_, a, _| {
                        let splits = if a.tasks == 0 { 2 * u64::from(a.count) } else { 0 };
                        Kernel::new("sort/merge_join", "merge_splits", 256)
                            .blocks(splits.div_ceil(256))
                    },
                    |flavour, a, card| {
                        let (threads, _, each) = card.policy.merge;
                        Kernel::new("sort/merge_join", flavoured!("merge_join", flavour), threads)
                            .shared(Policy::runs_bytes(card.policy.merge, card.word))
                            .blocks(u64::from(a.count).min(card.full(each)))
                    },
                ],
                twin: join::merge::<W>,
            }
            Gather(Gather) {
                bytes: |a, size| a.count * (size.word + 2 * u64::from(a.width)),
                kernels: [|a, card| {
                    let entry = match a.width {
                        1 => "gather_1",
                        2 => "gather_2",
                        4 => "gather_4",
                        8 => "gather_8",
                        16 => "gather_16",
                        other => return refuse(format!("columns of {other} bytes are not gathered")),
                    };
                    Kernel::new("materialise/gather", entry, 256)
                        .blocks(a.count.div_ceil(256).min(card.full(16)))
                }],
                twin: tasks::gather::<W>,
            }
            /// Counts the tuples per partition. There may be more partitions than a radix pass makes.
            Tally(Tally) {
                // As for the histogram.
                bytes: |a, size| a.rows * size.word * u64::from(a.stride),
                kernels: [|a, card| match a.digit.mask < abi::MAX_PARTITIONS {
                    true => over_keys(card, "tally", a.rows, 0),
                    false => refuse(format!("{} digits are not counted", a.digit.mask)),
                }],
                twin: scatter::tally::<W>,
            }
            /// Unpacks keys, which crossed the link in fewer bytes, to words.
            Unpack(Unpack) {
                // The number of keys is in the packs, not in the arguments.
                bytes: |a, _| u64::from(a.count) * size_of::<abi::Pack>() as u64,
                kernels: [|a, card| {
                    // The same number of blocks per pack, so that even a single pack fills the card.
                    let packs = u64::from(a.count);
                    let each = card.full(UNPACK_BLOCKS).div_ceil(packs.max(1));
                    Kernel::new("transfer/unpack", "unpack", 256).blocks(packs * each)
                }],
                twin: unpack::unpack::<W>,
            }
            /// Writes tuples to partitions. These may lie in host memory, so the writes cross the link.
            Scatter[how: Scatterer](Scatter) {
                bytes: |a, size| a.rows * (size.row(a.tuples, &a.columns) + size.tuple),
                kernels: [scatter_kernel],
                twin: scatter::scatter::<W>,
            }
        }
    };
}

pub(crate) use stage_table;

/// Defines [`DeviceStage`] with the names and bytes of its variants.
macro_rules! define {
    ($($(#[$doc:meta])* $name:ident $([$how:ident: $how_type:ty])? ($arguments:ident) {
        bytes: $bytes:expr,
        kernels: [$($kernel:expr),+ $(,)?],
        twin: $twin:expr,
    })*) => {
        /// A step of a join on a device. Each stage has a kernel, and a twin on the CPU.
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum DeviceStage {
            $($(#[$doc])* $name($($how_type,)? abi::$arguments),)*
        }

        impl DeviceStage {
            /// Returns the name, for errors.
            pub(crate) fn name(&self) -> &'static str {
                match self {
                    $(DeviceStage::$name(..) => stringify!($name),)*
                }
            }

            /// Returns the bytes that the stage moves, as far as the arguments tell. The rows that a join
            /// finds, and the tuples that its tasks read, are counted where they are known. Buffers between
            /// are not counted.
            pub(crate) fn bytes(&self, word: Width) -> u64 {
                let size = Sizes::of(word);
                match self {
                    $(DeviceStage::$name(.., arguments) => {
                        let bytes: fn(&abi::$arguments, &Sizes) -> u64 = $bytes;
                        bytes(arguments, &size)
                    })*
                }
            }
        }
    };
}

stage_table!(define);

//! The structures that host and kernels exchange, byte for byte: the twin of `kernels/abi.cuh`.
//!
//! Addresses have 64 bits, and address zero means "none". [`LAYOUTS`] lists every field with its offset, and
//! a test lets NVRTC assert the same offsets for the C++ structures.

use std::mem::{offset_of, size_of};

use crate::word::{KeyWord, Mixer};

/// The maximum number of digits that a [`Histogram`] counts at once.
pub(crate) const MAX_PASSES: usize = 8;
/// The maximum bits per digit of a radix pass.
pub(crate) const DIGIT_BITS: u32 = 8;
/// Bins per digit.
pub(crate) const BINS: usize = 1 << DIGIT_BITS;

/// The maximum number of partitions of a [`Scatter`] and a [`Tally`].
pub(crate) const MAX_PARTITIONS: u32 = 2048;

/// The maximum rounds of probe tuples per task.
pub(crate) const ROUNDS_PER_TASK: u32 = 8;

/// Declares structures, and lists their layouts.
macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
            #[repr(C)]
            pub(crate) struct $name { $($(#[$field_doc])* pub(crate) $field: $type,)* }

            // SAFETY: integers and arrays of integers, without padding (a test adds up the fields).
            unsafe impl crate::memory::Plain for $name {}
        )*

        /// Every structure: its name and size, and the name, offset and size of each field.
        pub(crate) const LAYOUTS: &[(&str, usize, &[(&str, usize, usize)])] = &[
            $((stringify!($name), size_of::<$name>(), &[
                $((stringify!($field), offset_of!($name, $field), size_of::<$type>()),)*
            ]),)*
        ];
    };
}

layouts! {
    /// Some bits of a key: `(key >> shift) & mask`.
    Digit { shift: u32, mask: u32, }

    /// The multipliers of the mixer's two rounds, both odd. For 32-bit words, only the low bits are used.
    Mixing { first: u64, second: u64, }

    /// A part of a join: build tuples against probe tuples.
    ///
    /// If a kernel itself finds the runs of build rows (in a table or a sorted side), `build` and
    /// `build_rows` select a part of the run of a single probe row: how many rows to skip, and how many to
    /// take. Zero takes all.
    Task { build: u64, probe: u64, build_rows: u32, probe_rows: u32, }

    /// A task that found no room, and its number of rows.
    Redo { task: Task, rows: u64, }

    /// The counters of a join kernel.
    Control {
        /// Rows that asked for room. Unless `full`, this is the number of rows written.
        rows: u64,
        /// Rows that the aggregate flavour counted. If `full`, the number of rows written.
        counted: u64,
        /// The sum of the build values of all rows, modulo 2^64.
        build_sum: u64,
        /// The sum of the probe values.
        probe_sum: u64,
        /// The next task to take.
        next: u32,
        /// The number of entries in the redo list.
        redone: u32,
        /// Whether a task found no room. If so, no more tasks are taken.
        full: u32,
        /// Whether a key occurs more than once in the build side.
        duplicates: u32,
    }

    /// Where the output rows of a join go.
    Output {
        /// The keys of the rows, or none.
        keys: u64,
        /// The build values of the rows.
        build: u64,
        /// The probe values of the rows. In `ProbeInOrder`: one bit per probe row, set if it has a match.
        probe: u64,
        /// One byte per build value, set if it has a match; or none.
        build_flags: u64,
        /// One byte per probe value, set if it has a match; or none.
        probe_flags: u64,
        /// The number of rows for which there is room.
        capacity: u64,
        /// The number of rows that a task may write. A task with more goes onto the redo list, to be cut.
        most: u64,
        /// The [`Control`].
        control: u64,
        /// The list of [`Redo`] entries. It has room for one entry per round of each task, from the task in the
        /// control's `next` on.
        redo: u64,
        /// Whether keys are mixed, and have to be unmixed when they are written.
        mixed: u32,
        /// Whether 32-bit values are summed as signed numbers.
        sign: u32,
        /// The inverse mixer, if keys are mixed and written.
        unmixing: Mixing,
    }

    /// Unmixed key words, and one value per row. Without values, the value is `first` plus the row's
    /// position.
    Columns { keys: u64, values: u64, first: u64, }

    /// Finds the range and the varying bits of keys: `found` is `[max key, max !key, or of keys, or of
    /// !keys]`, initially zeros.
    Survey { keys: u64, rows: u64, found: u64, }

    /// Counts digits: adds to `bins[pass][digit]`, 64 bits each.
    Histogram {
        keys: u64,
        rows: u64,
        bins: u64,
        digits: [Digit; MAX_PASSES],
        passes: u32,
        /// Whether the digits are bits of the mixed key.
        mix: u32,
        /// Words from one key to the next: one in a column, two in tuples.
        stride: u32,
        unused: u32,
        mixing: Mixing,
    }

    /// Replaces the counts in `bins[pass]` by the start of each digit.
    Offsets { bins: u64, passes: u32, unused: u32, }

    /// One radix pass that reads its input once, with decoupled look-back.
    LookBack {
        /// The source: tuples if there are any, otherwise columns.
        columns: Columns,
        tuples: u64,
        /// The target: tuples if there are any, otherwise columns.
        to_tuples: u64,
        to_keys: u64,
        to_values: u64,
        rows: u64,
        /// The start of each digit.
        base: u64,
        /// The start of each digit for the rows after these.
        next_base: u64,
        /// One word per tile and digit, initially zeros.
        status: u64,
        /// The next tile, initially zero.
        ticket: u64,
        digit: Digit,
        /// Whether keys from columns are mixed.
        mix: u32,
        /// Whether rows with equal digits must keep their order.
        stable: u32,
        mixing: Mixing,
    }

    /// One radix pass with one histogram per thread block (004 §3.2.1). Three stages take these arguments.
    /// Keys from columns are mixed, and their rows come in any order. Tuples keep their order.
    SharedHistogram {
        /// The source: tuples if there are any, otherwise columns.
        columns: Columns,
        tuples: u64,
        to_tuples: u64,
        rows: u64,
        /// Rows per thread block.
        chunk: u64,
        /// `counts[digit][chunk]`, 32 bits: the count, and after the scan the sum of the counts of earlier
        /// chunks.
        counts: u64,
        /// After the scan, the count of each digit, 64 bits. The last stage needs the start of each digit
        /// instead.
        bins: u64,
        digit: Digit,
        chunks: u32,
        unused: u32,
        mixing: Mixing,
    }

    /// Partitions as chains of buckets. A bucket is an array of `1 << bucket_bits` tuples in a pool.
    ///
    /// Each chain has a parent, and each parent has `1 << digit_bits` chains. Bucket `k` of digit `d` of
    /// parent `p` is `directory[(slots[p] << digit_bits) + d * (slots[p + 1] - slots[p]) + k] - 1`.
    /// `slots[p]` is the number of buckets of the parents before `p`. No chain is longer than its parent. So
    /// the size of the directory depends only on the number of rows, for any skew.
    Chains {
        /// The pool.
        tuples: u64,
        /// For each entry, the number of a bucket plus one, 32 bits.
        directory: u64,
        slots: u64,
        /// The number of tuples of each chain, 32 bits.
        counts: u64,
        digit_bits: u32,
        bucket_bits: u32,
    }

    /// Cuts chains into pieces. `starts[i]` is the number of pieces of the chains before chain `i`, 32 bits.
    /// There is one entry more than there are chains.
    CutChains {
        /// The number of tuples of each chain. None if there is only one chain, with `rows` tuples.
        counts: u64,
        rows: u64,
        starts: u64,
        chains: u32,
        /// Tuples per piece.
        piece: u32,
    }

    /// Splits chains by a digit into new chains of other buckets (003 §III-A).
    BucketPool {
        /// The source of the first pass. Its keys are mixed.
        columns: Columns,
        /// The source of the later passes. In the first pass, it has no pool.
        from: Chains,
        /// The target. `directory` and `counts` are initially zeros.
        to: Chains,
        /// The first piece of each chain of the source, if the source is chains.
        pieces: u64,
        rows: u64,
        /// The number of buckets taken from the pool, 32 bits, initially zero.
        cursor: u64,
        digit: Digit,
        /// The number of chains of the source; one if it is columns.
        parents: u32,
        /// Tuples per piece: at most a tile, and whole buckets if the source is chains.
        piece: u32,
        /// The number of buckets in the pool.
        buckets: u32,
        unused: u32,
        mixing: Mixing,
    }

    /// Copies chains together, in their order.
    Compact {
        from: Chains,
        /// The first piece of each chain.
        pieces: u64,
        /// The first tuple of each chain, 32 bits.
        starts: u64,
        to_tuples: u64,
        rows: u64,
        chains: u32,
        piece: u32,
    }

    /// Finds the start of each partition in tuples that are ordered by `(key >> shift) & (partitions - 1)`.
    /// `partitions` is a power of two, and `bounds` has one entry more than that.
    Bounds { tuples: u64, rows: u64, bounds: u64, shift: u32, partitions: u32, }

    /// Lists the tasks of co-partitions: none if a side is empty, several if one is long.
    ListTasks {
        build_bounds: u64,
        probe_bounds: u64,
        tasks: u64,
        /// The number of tasks, even if it exceeds `capacity`; 32 bits, initially zero.
        count: u64,
        partitions: u32,
        /// The maximum build rows per task.
        build_rows: u32,
        /// The maximum probe rows per task.
        probe_rows: u32,
        capacity: u32,
    }

    /// Joins co-partitions in shared memory.
    JoinShared { build: u64, probe: u64, tasks: u64, count: u32, unused: u32, output: Output, }

    /// A table. It has `1 << bits` slots. If `bits` is zero, it has `slot_count` slots, and is either
    /// compact or directly addressed by keys. The top bits of a mixed key choose its home slot. In a compact
    /// table, the home slot is `(top 32 bits * slot_count) >> 32`. A directly addressed table holds no keys;
    /// if its slots hold values, it is an array.
    DeviceTable {
        slots: u64,
        /// The values in groups, if slots refer to groups. None if each slot holds its only value.
        groups: u64,
        /// Which slots of an array hold a value: one bit each, in 32-bit words. None if all slots do.
        taken: u64,
        /// The number of slots.
        slot_count: u64,
        /// The key of slot zero, if keys address slots directly.
        min: u64,
        bits: u32,
        /// Whether keys address slots directly.
        direct: u32,
        /// How keys from columns are mixed, if the table is hashed.
        mixing: Mixing,
    }

    /// Marks every slot of a table as empty.
    ClearTable { table: DeviceTable, }

    /// Inserts rows into a table: keys and values if each key occurs once. Otherwise it inserts the keys and
    /// counts the rows of each.
    Insert {
        table: DeviceTable,
        columns: Columns,
        tuples: u64,
        rows: u64,
        /// The slot of each row, 32 bits, if groups are made.
        slot_of: u64,
        /// The rank of each row in its group, 32 bits, if groups are made.
        rank: u64,
        control: u64,
    }

    /// Assigns each group of a table its place. `cursor`, 64 bits, is initially zero.
    PlaceGroups { table: DeviceTable, cursor: u64, }

    /// Writes values into their groups.
    FillGroups { table: DeviceTable, columns: Columns, tuples: u64, rows: u64, slot_of: u64, rank: u64, }

    /// Looks probe rows up in a table.
    Probe {
        table: DeviceTable,
        columns: Columns,
        tuples: u64,
        rows: u64,
        /// The tasks. If none, every `tile` rows are one task.
        tasks: u64,
        count: u32,
        tile: u32,
        output: Output,
    }

    /// Joins two sorted sides.
    MergeJoin {
        build: u64,
        build_rows: u64,
        probe: u64,
        probe_rows: u64,
        /// The tasks. If none, every `tile` probe rows are one task.
        tasks: u64,
        /// Two 64-bit words per tile, for the kernels' own use, if there are no tasks.
        splits: u64,
        count: u32,
        tile: u32,
        output: Output,
    }

    /// Gathers values of `width` bytes by row number: `target[i] = source[rows[i]]`.
    Gather { rows: u64, source: u64, target: u64, count: u64, width: u32, unused: u32, }

    /// A piece of packed keys: `rows` keys, starting at byte `at` of the chunk, each `bytes` wide (0 to 8),
    /// with `base` subtracted. Its first key is row `first` of the chunk.
    Pack { at: u64, base: u64, first: u64, rows: u32, bytes: u32, }

    /// Unpacks keys to words.
    Unpack {
        packed: u64,
        /// The [`Pack`]s.
        packs: u64,
        keys: u64,
        count: u32,
        unused: u32,
    }

    /// Adds to `counts[digit]`, 64 bits each. There are `digit.mask + 1` counts, at most [`MAX_PARTITIONS`].
    Tally {
        keys: u64,
        rows: u64,
        counts: u64,
        digit: Digit,
        /// Words from one key to the next: one in a column, two in tuples.
        stride: u32,
        /// Whether the digits are bits of the mixed key.
        mix: u32,
        mixing: Mixing,
    }

    /// Writes tuples to partitions, in any order within each partition: tuple `i` of partition `p` goes to
    /// `to_tuples + cursors[p] + i`. Keys from columns are mixed.
    Scatter {
        /// The source: tuples if there are any, otherwise columns.
        columns: Columns,
        tuples: u64,
        /// The target. It may lie in host memory.
        to_tuples: u64,
        rows: u64,
        /// The position of each partition's next tuple, 64 bits. The stage advances it by the tuples it
        /// writes.
        cursors: u64,
        /// Second-level buffers and their state, for
        /// [`Scatterer::Hierarchical`](super::Scatterer::Hierarchical):
        /// [`Device::scatter_bytes`](super::Device::scatter_bytes) bytes.
        buffers: u64,
        digit: Digit,
        mixing: Mixing,
    }
}

impl Mixing {
    /// Returns the multipliers of a mixer.
    pub(crate) fn of<K: KeyWord>(mixer: Mixer<K>) -> Mixing {
        Mixing { first: mixer.first.to_u64(), second: mixer.second.to_u64() }
    }
}

impl DeviceTable {
    /// Returns whether keys directly address values.
    pub(crate) fn is_array(&self) -> bool {
        self.direct != 0 && self.groups == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_structure_has_padding() {
        for (name, size, fields) in LAYOUTS {
            let sum: usize = fields.iter().map(|field| field.2).sum();
            assert_eq!(*size, sum, "{name}");
        }
    }
}

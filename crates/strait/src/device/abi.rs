//! What host and kernels pass to one another, byte for byte: the twin of `kernels/abi.cuh`.
//!
//! Addresses are 64 bits; an address of zero means "none". [`LAYOUTS`] names every field with its
//! offset, and a test has NVRTC assert the same of the C++ structures.

use std::mem::{offset_of, size_of};

use crate::word::{KeyWord, Mixer};

/// Digits a [`Histogram`] counts at once, at most.
pub(crate) const MAX_PASSES: usize = 8;
/// Bits of a digit of a radix pass, at most.
pub(crate) const DIGIT_BITS: u32 = 8;
/// Bins of one digit.
pub(crate) const BINS: usize = 1 << DIGIT_BITS;

/// Partitions of a [`Scatter`] and a [`Tally`], at most.
pub(crate) const MAX_PARTITIONS: u32 = 2048;

/// Rounds of probe tuples in a task, at most.
pub(crate) const ROUNDS_PER_TASK: u32 = 8;

/// Declares structures, and lists their layouts.
macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
            #[repr(C)]
            pub(crate) struct $name { $($(#[$field_doc])* pub(crate) $field: $type,)* }

            // SAFETY: integers and arrays of them, without padding (a test adds up the fields).
            unsafe impl crate::memory::Plain for $name {}
        )*

        /// Every structure: its name, its size, and its fields' names, offsets and sizes.
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

    /// The multipliers of the mixer's rounds, both odd; of words of 32 bits, the low bits count.
    Mixing { first: u64, second: u64, }

    /// A piece of a join: build tuples against probe tuples.
    ///
    /// Where a kernel finds runs of build rows by itself (a table, a sorted side), `build` and
    /// `build_rows` cut the run of a single probe row: skip so many, take so many; zero takes all.
    Task { build: u64, probe: u64, build_rows: u32, probe_rows: u32, }

    /// A task that found no room, and how many rows it has.
    Redo { task: Task, rows: u64, }

    /// What a joining kernel counts.
    Control {
        /// Rows that asked for room: those written, unless `full`.
        rows: u64,
        /// Rows counted, by the aggregate flavour; where `full`, the rows written.
        counted: u64,
        /// The sum of the build values of all rows, modulo 2^64.
        build_sum: u64,
        /// The sum of the probe values.
        probe_sum: u64,
        /// The next task to be taken.
        next: u32,
        /// Tasks in the redo list.
        redone: u32,
        /// Whether a task found no room: then no more are taken.
        full: u32,
        /// Whether the build side has a key twice.
        duplicates: u32,
    }

    /// Where the rows of a join go.
    Output {
        /// The keys of the rows, or none.
        keys: u64,
        /// The build values of the rows.
        build: u64,
        /// The probe values of the rows.
        probe: u64,
        /// A byte a build value, set where it has a match, or none.
        build_flags: u64,
        /// A byte a probe value, set where it has a match, or none.
        probe_flags: u64,
        /// The rows there is room for.
        capacity: u64,
        /// The rows a task may write; one with more goes onto the redo list to be cut.
        most: u64,
        /// The [`Control`].
        control: u64,
        /// The list of [`Redo`]; has room for every round of every task from the control's next on.
        redo: u64,
        /// Whether keys are mixed, and have to be unmixed when written.
        mixed: u32,
        /// Whether 32-bit values are added up as signed numbers.
        sign: u32,
        /// What undoes mixing, where keys are mixed and written.
        unmixing: Mixing,
    }

    /// Key words as they came, and a value a row; without values, the value is `first` plus the
    /// row's position.
    Columns { keys: u64, values: u64, first: u64, }

    /// What the bits of keys are: `found` is `[max key, max !key, or of keys, or of !keys]`, zeros
    /// at first.
    Survey { keys: u64, rows: u64, found: u64, }

    /// Counts digits: adds to `bins[pass][digit]`, 64 bits each.
    Histogram {
        keys: u64,
        rows: u64,
        bins: u64,
        digits: [Digit; MAX_PASSES],
        passes: u32,
        /// Whether digits are those of the mixed key.
        mix: u32,
        /// Words from one key to the next: one in a column, two in tuples.
        stride: u32,
        unused: u32,
        mixing: Mixing,
    }

    /// Turns `bins[pass]` into where each digit begins.
    Offsets { bins: u64, passes: u32, unused: u32, }

    /// One stable radix pass in a single sweep, with decoupled look-back.
    LookBack {
        /// The source: columns, or tuples where there are some.
        columns: Columns,
        tuples: u64,
        /// The target: tuples, or columns where there are none.
        to_tuples: u64,
        to_keys: u64,
        to_values: u64,
        rows: u64,
        /// Where each digit begins.
        base: u64,
        /// Where each digit of the rows after these begins.
        next_base: u64,
        /// A word a tile and digit, zeros at first.
        status: u64,
        /// The next tile, zero at first.
        ticket: u64,
        digit: Digit,
        /// Whether keys from columns are mixed.
        mix: u32,
        /// Whether rows with equal digits have to keep their order.
        stable: u32,
        mixing: Mixing,
    }

    /// One radix pass with a histogram a block (004 §3.2.1): three stages that take the same. Keys
    /// from columns are mixed, and those rows come in any order; tuples keep theirs.
    SharedHistogram {
        /// The source: columns, or tuples where there are some.
        columns: Columns,
        tuples: u64,
        to_tuples: u64,
        rows: u64,
        /// Rows of a block.
        chunk: u64,
        /// `counts[digit][chunk]`, 32 bits: how often, and after the scan how often before.
        counts: u64,
        /// How often each digit comes, 64 bits, once scanned; the last stage needs where it begins.
        bins: u64,
        digit: Digit,
        chunks: u32,
        unused: u32,
        mixing: Mixing,
    }

    /// Partitions as chains of buckets: each an array of `1 << bucket_bits` tuples in a pool.
    ///
    /// Chains have parents, each of which has `1 << digit_bits` of them. Bucket `k` of digit `d` of
    /// parent `p` is `directory[(slots[p] << digit_bits) + d * (slots[p + 1] - slots[p]) + k] - 1`,
    /// `slots` being the parents' buckets up to each: no chain is longer than its parent, so that
    /// the directory has its size from the number of rows, whatever the skew.
    Chains {
        /// The pool.
        tuples: u64,
        /// A bucket's number plus one, 32 bits.
        directory: u64,
        slots: u64,
        /// The tuples of each chain, 32 bits.
        counts: u64,
        digit_bits: u32,
        bucket_bits: u32,
    }

    /// Cuts chains into pieces: `starts[i]` is how many the chains before `i` have, 32 bits; there
    /// is one entry more than chains.
    CutChains {
        /// The tuples of each chain; none where there is one, of `rows`.
        counts: u64,
        rows: u64,
        starts: u64,
        chains: u32,
        /// Tuples of a piece.
        piece: u32,
    }

    /// Divides chains by a digit into chains of other buckets (003 §III-A).
    BucketPool {
        /// The source of the first pass, whose keys are mixed.
        columns: Columns,
        /// The source of the others; without a pool in the first.
        from: Chains,
        /// The target: `directory` and `counts` are zeros at first.
        to: Chains,
        /// Where the pieces of each chain of the source begin, where there are chains.
        pieces: u64,
        rows: u64,
        /// Buckets taken from the pool, 32 bits, zero at first.
        cursor: u64,
        digit: Digit,
        /// Chains of the source, one where it is columns.
        parents: u32,
        /// Tuples of a piece: no more than a tile, and whole buckets where there are chains.
        piece: u32,
        /// Buckets of the pool.
        buckets: u32,
        unused: u32,
        mixing: Mixing,
    }

    /// Copies chains together, in their order.
    Compact {
        from: Chains,
        /// Where the pieces of each chain begin.
        pieces: u64,
        /// Where the tuples of each chain begin, 32 bits.
        starts: u64,
        to_tuples: u64,
        rows: u64,
        chains: u32,
        piece: u32,
    }

    /// Where partitions begin in tuples ordered by `(key >> shift) & (partitions - 1)`: `bounds` has
    /// one more entry than there are partitions, of which there are a power of two.
    Bounds { tuples: u64, rows: u64, bounds: u64, shift: u32, partitions: u32, }

    /// The tasks of co-partitions: none where a side is empty, several where one is long.
    ListTasks {
        build_bounds: u64,
        probe_bounds: u64,
        tasks: u64,
        /// How many there are, also where they exceed `capacity`; 32 bits, zero at first.
        count: u64,
        partitions: u32,
        /// Build rows of a task, at most.
        build_rows: u32,
        /// Probe rows of a task, at most.
        probe_rows: u32,
        capacity: u32,
    }

    /// Joins co-partitions in shared memory.
    JoinShared { build: u64, probe: u64, tasks: u64, count: u32, unused: u32, output: Output, }

    /// A table of `1 << bits` slots; of `slot_count` where `bits` is zero: compact, or addressed by
    /// keys directly. The home of a mixed key is given by its top bits: where the table is compact,
    /// it is `(top 32 bits * slot_count) >> 32`. One that is addressed directly has no keys, and if
    /// its slots have values, is an array.
    Table {
        slots: u64,
        /// Values by group, where slots tell groups; none where each slot has its only value.
        groups: u64,
        /// Which slots of an array have a value, a bit each in words of 32; none where all have.
        taken: u64,
        /// Slots there are.
        slot_count: u64,
        /// The key of slot zero, where keys address slots directly.
        min: u64,
        bits: u32,
        /// Whether keys address slots directly.
        direct: u32,
        /// How keys from columns are mixed, where they do not.
        mixing: Mixing,
    }

    /// Marks every slot of a table empty.
    ClearTable { table: Table, }

    /// Puts rows into a table: their values where each key comes once, else their numbers.
    Insert {
        table: Table,
        columns: Columns,
        tuples: u64,
        rows: u64,
        /// The slot of each row, 32 bits, where groups are made.
        slot_of: u64,
        /// The rank of each row in its group, 32 bits, where groups are made.
        rank: u64,
        control: u64,
    }

    /// Gives each group of a table its place: `cursor`, 64 bits, is zero at first.
    PlaceGroups { table: Table, cursor: u64, }

    /// Writes values into their groups.
    FillGroups { table: Table, columns: Columns, tuples: u64, rows: u64, slot_of: u64, rank: u64, }

    /// Looks probe rows up in a table.
    Probe {
        table: Table,
        columns: Columns,
        tuples: u64,
        rows: u64,
        /// The tasks, or none: then every `tile` rows are one.
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
        /// The tasks, or none: then every `tile` probe rows are one.
        tasks: u64,
        /// Two words of 64 bits a tile, for the kernels' own use, where there are no tasks.
        splits: u64,
        count: u32,
        tile: u32,
        output: Output,
    }

    /// Fetches values of `width` bytes by row number: `target[i] = source[rows[i]]`.
    Gather { rows: u64, source: u64, target: u64, count: u64, width: u32, unused: u32, }

    /// Keys that were packed together: `rows` of them, from byte `at` of the chunk on, each `bytes`
    /// wide (0 to 8) and less by `base`. They are rows `first` and following of the chunk.
    Pack { at: u64, base: u64, first: u64, rows: u32, bytes: u32, }

    /// Makes words of packed keys.
    Unpack {
        packed: u64,
        /// The [`Pack`]s.
        packs: u64,
        keys: u64,
        count: u32,
        unused: u32,
    }

    /// Adds to `counts[digit]`, 64 bits each, `digit.mask + 1` of them: at most
    /// [`MAX_PARTITIONS`].
    Tally {
        keys: u64,
        rows: u64,
        counts: u64,
        digit: Digit,
        /// Words from one key to the next: one in a column, two in tuples.
        stride: u32,
        /// Whether digits are those of the mixed key.
        mix: u32,
        mixing: Mixing,
    }

    /// Writes tuples to partitions, in any order within each: tuple `i` of partition `p` goes to
    /// `to_tuples + cursors[p] + i`. Keys from columns are mixed.
    Scatter {
        /// The source: columns, or tuples where there are some.
        columns: Columns,
        tuples: u64,
        /// The target: it may lie in host memory.
        to_tuples: u64,
        rows: u64,
        /// Where the next tuple of each partition goes, 64 bits: moved on by as many as came.
        cursors: u64,
        /// Second-level buffers and what goes with them, for [`Scatterer::Hierarchical`](super::Scatterer::Hierarchical), of
        /// [`Device::scatter_bytes`](super::Device::scatter_bytes).
        buffers: u64,
        digit: Digit,
        mixing: Mixing,
    }
}

impl Mixing {
    /// The multipliers of a mixer.
    pub(crate) fn of<K: KeyWord>(mixer: Mixer<K>) -> Mixing {
        Mixing { first: mixer.first.to_u64(), second: mixer.second.to_u64() }
    }
}

impl Table {
    /// Whether keys address values.
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

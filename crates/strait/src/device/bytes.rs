//! How many bytes does a stage move? Counts the tables and rows that it must read and write, once each.

use super::Stage;
use super::abi::{BINS, Pack, Table, Task};
use crate::word::Width;

impl Stage {
    /// The bytes, as far as the arguments tell: rows that a join finds are counted where they are
    /// known, and so are the tuples its tasks read. Buffers between are not counted.
    pub(crate) fn bytes(&self, word: Width) -> u64 {
        let (w, tuple) = (word.bytes(), word.tuple());
        // A row from columns is a key, and a value if there is a value column.
        let row = |tuples: u64, values: u64| match (tuples, values) {
            (0, 0) => w,
            _ => tuple,
        };
        match self {
            Stage::Survey(a) => a.rows * w,
            // Keys in tuples share cache lines with their values, so both are read.
            Stage::Histogram(a) => a.rows * w * u64::from(a.stride),
            Stage::Tally(a) => a.rows * w * u64::from(a.stride),
            Stage::Offsets(a) => 2 * u64::from(a.passes) * BINS as u64 * 8,
            Stage::LookBack(a) => a.rows * (row(a.tuples, a.columns.values) + tuple),
            Stage::SharedCount(a) => a.rows * if a.tuples == 0 { w } else { tuple },
            Stage::SharedScan(a) => 2 * u64::from(a.chunks) * BINS as u64 * 4,
            Stage::SharedScatter(a) => a.rows * (row(a.tuples, a.columns.values) + tuple),
            Stage::CutChains(a) => 2 * u64::from(a.chains) * 4,
            Stage::BucketPool(a) => a.rows * (row(a.from.tuples, a.columns.values) + tuple),
            Stage::Compact(a) => 2 * a.rows * tuple,
            Stage::Scatter(_, a) => a.rows * (row(a.tuples, a.columns.values) + tuple),
            Stage::Bounds(a) => (u64::from(a.partitions) + 1) * 8,
            Stage::ListTasks(a) => 2 * (u64::from(a.partitions) + 1) * 8,
            // The number of tuples is in the tasks, not in the arguments.
            Stage::JoinShared(_, a) => u64::from(a.count) * size_of::<Task>() as u64,
            // Only the bitmap of an array is cleared.
            Stage::ClearTable(a) if a.table.is_array() => a.table.slot_count / 8,
            Stage::ClearTable(a) => a.table.slot_count * slot(word, &a.table),
            Stage::Insert(a) => a.rows * (row(a.tuples, a.columns.values) + slot(word, &a.table)),
            Stage::PlaceGroups(a) => 2 * a.table.slot_count * slot(word, &a.table),
            Stage::FillGroups(a) => a.rows * (row(a.tuples, a.columns.values) + w + 8),
            Stage::Probe(_, a) | Stage::ProbeInOrder(a) => a.rows * row(a.tuples, a.columns.values),
            Stage::MergeJoin(_, a) => (a.build_rows + a.probe_rows) * tuple,
            Stage::Gather(a) => a.count * (w + 2 * u64::from(a.width)),
            // The number of keys is in the packs, not in the arguments.
            Stage::Unpack(a) => u64::from(a.count) * size_of::<Pack>() as u64,
        }
    }
}

/// The bytes of a table's slot.
fn slot(word: Width, table: &Table) -> u64 {
    match (table.direct, table.groups) {
        (0, 0) => word.tuple(),
        (0, _) => 16,
        (_, 0) => word.bytes(),
        _ => 8,
    }
}

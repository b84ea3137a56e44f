//! How many bytes does a stage move? What it must read and write of tables and rows, once each.

use super::{Stage, Word};

impl Stage {
    /// The bytes, as far as the arguments tell: rows that a join finds are counted where they are
    /// known, and so are the tuples its tasks read.
    pub(crate) fn bytes(&self, word: Word) -> u64 {
        let (w, tuple) = (word.bytes(), word.tuple());
        // A row from columns is a key, and a value if there are some.
        let row = |tuples: u64, values: u64| match (tuples, values) {
            (0, 0) => w,
            _ => tuple,
        };
        match self {
            Stage::Survey(a) => a.rows * w,
            Stage::Histogram(a) => a.rows * w,
            Stage::LookBack(a) => a.rows * (row(a.tuples, a.columns.values) + tuple),
            Stage::ClearTable(a) => a.table.slot_count * slot(word, a.table.direct, a.table.groups),
            Stage::Insert(a) => {
                let groups = a.slot_of.max(a.table.groups);
                a.rows * (row(a.tuples, a.columns.values) + slot(word, a.table.direct, groups))
            }
            Stage::PlaceGroups(a) => 2 * a.table.slot_count * slot(word, a.table.direct, 1),
            Stage::FillGroups(a) => a.rows * (row(a.tuples, a.columns.values) + w + 8),
            Stage::Probe(_, a) => a.rows * row(a.tuples, a.columns.values),
            Stage::MergeJoin(_, a) => (a.build_rows + a.probe_rows) * tuple,
            Stage::Gather(a) => a.count * (w + 2 * u64::from(a.width)),
            _ => 0,
        }
    }
}

/// The bytes of a table's slot.
fn slot(word: Word, direct: u32, groups: u64) -> u64 {
    match (direct, groups) {
        (0, 0) => word.tuple(),
        (0, _) => 16,
        _ => 8,
    }
}

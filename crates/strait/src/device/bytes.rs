//! The sizes with which the table of stages counts the bytes that a stage moves: the rows and tables that it
//! must read and write, once each.

use super::abi::{Columns, DeviceTable};
use crate::word::Width;

/// The sizes of keys, rows and slots for one word width, in bytes.
pub(super) struct Sizes {
    /// A key, or a value.
    pub(super) word: u64,
    /// A key with its value.
    pub(super) tuple: u64,
}

impl Sizes {
    pub(super) fn of(word: Width) -> Sizes {
        Sizes { word: word.bytes(), tuple: word.tuple() }
    }

    /// Returns the size of an input row: a tuple if there are tuples. Otherwise it is a key from a column,
    /// and a value if there is a value column.
    pub(super) fn row(&self, tuples: u64, columns: &Columns) -> u64 {
        match (tuples, columns.values) {
            (0, 0) => self.word,
            _ => self.tuple,
        }
    }

    /// Returns the size of a table's slot.
    pub(super) fn slot(&self, table: &DeviceTable) -> u64 {
        match (table.direct, table.groups) {
            (0, 0) => self.tuple,
            (0, _) => 16,
            (_, 0) => self.word,
            _ => 8,
        }
    }
}

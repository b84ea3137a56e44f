//! One side of a join in the memory of a device.

use super::{View, abi};

/// One side, or a part of it, at device addresses: one key and one value per row. Without values, the row
/// number is the value.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeviceSide {
    pub(crate) keys: View,
    pub(crate) values: Option<View>,
    /// Tuples of mixed keys and values, instead of columns.
    pub(crate) tuples: Option<View>,
    pub(crate) rows: u64,
    /// The number of the first row.
    pub(crate) first: u64,
}

impl DeviceSide {
    pub(crate) fn columns(&self) -> abi::Columns {
        let values = self.values.map_or(0, |values| values.address);
        abi::Columns { keys: self.keys.address, values, first: self.first }
    }

    /// Returns the address of the tuples, or zero if the side has columns.
    pub(crate) fn tuples_at(&self) -> u64 {
        self.tuples.map_or(0, |tuples| tuples.address)
    }

    /// Returns the address of the keys, the words from one key to the next, and whether they still must be
    /// mixed.
    pub(crate) fn keys_at(&self) -> (u64, u32, bool) {
        match self.tuples {
            Some(tuples) => (tuples.address, 2, false),
            None => (self.keys.address, 1, true),
        }
    }
}

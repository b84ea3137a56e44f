//! Values that travel with the key in place of a row id.

use std::ops::Range;

use crate::input::Piece;

/// What was carried of some rows, one value a row.
#[derive(Debug)]
pub(crate) enum Values {
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

impl Values {
    pub(crate) fn len(&self) -> usize {
        match self {
            Values::Narrow(values) => values.len(),
            Values::Wide(values) => values.len(),
        }
    }

    pub(crate) fn part(&self, range: Range<usize>) -> Values {
        match self {
            Values::Narrow(values) => Values::Narrow(values[range].to_vec()),
            Values::Wide(values) => Values::Wide(values[range].to_vec()),
        }
    }
}

/// Columns whose values tuples hold in place of row ids.
pub(crate) trait Payload: Sync {
    /// The values of the rows of a piece, in 32 bits each.
    fn narrow<'a>(&'a self, piece: &Piece, scratch: &'a mut Vec<u32>) -> &'a [u32];
    /// The same in 64 bits.
    fn wide<'a>(&'a self, piece: &Piece, scratch: &'a mut Vec<u64>) -> &'a [u64];
}

//! Inlined columns: tuples hold their values in place of a row id.

use std::ops::Range;

use crate::input::Piece;

/// Inlined values of some rows, one per row.
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

/// Columns that can be inlined into tuples.
pub(crate) trait Payload: Sync {
    /// Returns the values of a piece's rows, in 32 bits each.
    fn narrow<'a>(&'a self, piece: &Piece, scratch: &'a mut Vec<u32>) -> &'a [u32];
    /// Returns the values of a piece's rows, in 64 bits each.
    fn wide<'a>(&'a self, piece: &Piece, scratch: &'a mut Vec<u64>) -> &'a [u64];
}

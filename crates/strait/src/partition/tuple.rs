//! Tuples: a key word, and a row id or inlined columns.

use std::fmt::Debug;

use super::payload::{Payload, Values};
use crate::input::Piece;
use crate::memory::Plain;
use crate::word::KeyWord;

/// The value that a tuple has besides its key: the id of its row (the row's position in its side), or inlined
/// columns. It has 32 bits if they suffice, else 64.
///
/// A table uses the same type for the positions of values that share a key. There are at most one and a half
/// times as many positions as rows, so the 32-bit type serves 2^31 rows.
pub(crate) trait RowId: Copy + Ord + Debug + Default + Plain {
    /// The largest number of rows of a side.
    const MAX_SIDE_ROWS: u64;
    fn from_u64(row: u64) -> Self;
    fn to_u64(self) -> u64;
    fn from_usize(row: usize) -> Self {
        Self::from_u64(row as u64)
    }
    fn to_usize(self) -> usize {
        self.to_u64() as usize
    }
    /// Wraps inlined values, whatever their width.
    fn into_values(values: Vec<Self>) -> Values;
    /// Unwraps the values that [`into_values`](RowId::into_values) wrapped; empty if they have the other
    /// width.
    fn of_values(values: Values) -> Vec<Self>;
    /// Returns the inlined values of a piece's rows, in this width.
    fn payload<'a>(
        columns: &'a dyn Payload,
        piece: &Piece,
        scratch: &'a mut Vec<Self>,
    ) -> &'a [Self];
}

macro_rules! row_id {
    ($int:ty, $variant:ident, $values:ident) => {
        impl RowId for $int {
            const MAX_SIDE_ROWS: u64 = 1 << (<$int>::BITS - 1);
            #[inline(always)]
            fn from_u64(row: u64) -> $int {
                row as $int
            }
            #[inline(always)]
            fn to_u64(self) -> u64 {
                self as u64
            }
            fn into_values(values: Vec<$int>) -> Values {
                Values::$variant(values)
            }
            fn of_values(values: Values) -> Vec<$int> {
                match values {
                    Values::$variant(values) => values,
                    _ => Vec::new(),
                }
            }
            fn payload<'a>(
                columns: &'a dyn Payload,
                piece: &Piece,
                scratch: &'a mut Vec<$int>,
            ) -> &'a [$int] {
                columns.$values(piece, scratch)
            }
        }
    };
}

row_id!(u32, Narrow, narrow);
row_id!(u64, Wide, wide);

/// A key word (mixed, in hash joins), with its row id or the inlined columns of its row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub(crate) struct Tuple<K, I> {
    pub(crate) key: K,
    pub(crate) row: I,
}

// SAFETY: two integers. The padding that a (u64, u32) tuple has is never read.
unsafe impl<K: KeyWord, I: RowId> Plain for Tuple<K, I> {}

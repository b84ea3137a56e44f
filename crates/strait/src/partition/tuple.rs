//! A tuple: the key word, and what it stands for.

use std::fmt::Debug;

use super::payload::{Payload, Values};
use crate::input::Piece;
use crate::memory::Plain;
use crate::word::KeyWord;

/// What a tuple has besides its key, 32 bits while those suffice, else 64: the id of its row (the
/// row's position in its side), or the narrow columns wanted of it themselves.
///
/// A table numbers the places of rows with equal keys in the same type, at most half as many again
/// as there are rows, so the narrow one serves 2^31 rows.
pub(crate) trait RowId: Copy + Ord + Debug + Default + Plain {
    /// The most rows a side may have.
    const MAX_ROWS: u64;
    fn from_u64(row: u64) -> Self;
    fn to_u64(self) -> u64;
    fn from_usize(row: usize) -> Self {
        Self::from_u64(row as u64)
    }
    fn to_usize(self) -> usize {
        self.to_u64() as usize
    }
    /// Many of them as carried values, whatever their width.
    fn into_values(values: Vec<Self>) -> Values;
    /// What [`into_values`](RowId::into_values) was given; empty if that was of the other width.
    fn of_values(values: Values) -> Vec<Self>;
    /// The values of the rows of a piece in this width.
    fn payload<'a>(
        columns: &'a dyn Payload,
        piece: &Piece,
        scratch: &'a mut Vec<Self>,
    ) -> &'a [Self];
}

macro_rules! row_id {
    ($int:ty, $variant:ident, $values:ident) => {
        impl RowId for $int {
            const MAX_ROWS: u64 = 1 << (<$int>::BITS - 1);
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

/// A key word (mixed, in hash joins) and its row, or what it carries of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub(crate) struct Tuple<K, I> {
    pub(crate) key: K,
    pub(crate) row: I,
}

// SAFETY: two integers; the padding between (u64, u32) and the next tuple is never read as such.
unsafe impl<K: KeyWord, I: RowId> Plain for Tuple<K, I> {}

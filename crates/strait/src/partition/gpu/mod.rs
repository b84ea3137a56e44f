//! Radix passes on a device: tuples ordered by some bits of their keys.
//!
//! | file | how a pass learns where tuples go | reads and writes of a tuple |
//! | --- | --- | --- |
//! | [`look_back`] | tiles look back at the counts of earlier tiles | one and one a pass, after one read of all keys |
//! | [`shared_histogram`] | blocks count first (004 §3.2.1) | two and one a pass |
//! | [`bucket_pool`] | it takes room as it goes (003 §III-A) | one and one a pass, and once more |
//!
//! All give the same: a side's tuples in partition order, in one piece, with keys mixed.

mod bucket_pool;
mod look_back;
mod shared_histogram;
#[cfg(test)]
mod tests;

pub(crate) use bucket_pool::chained;
pub(crate) use look_back::{ordered, ordered_columns};
pub(crate) use shared_histogram::counted;

use crate::device::Session;
use crate::device::{View, abi};
use crate::error::Result;

/// Which bits tuples are ordered by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Digits {
    /// The least significant first.
    digits: Vec<abi::Digit>,
    /// Whether they are those of the mixed key, which tuples then have.
    mixed: bool,
}

impl Digits {
    /// The top `bits` of mixed keys of so many bits, in as few passes as can be.
    pub(crate) fn top(bits: u32, word_bits: u32) -> Digits {
        Digits::below(0, bits, word_bits)
    }

    /// The `bits` of mixed keys below the top `skip`.
    pub(crate) fn below(skip: u32, bits: u32, word_bits: u32) -> Digits {
        let passes = bits.div_ceil(abi::DIGIT_BITS).max(1);
        let mut shift = word_bits - skip - bits;
        let mut digits = Vec::new();
        for pass in 0..passes {
            let width = (word_bits - skip - shift).div_ceil(passes - pass);
            digits.push(digit(shift, width));
            shift += width;
        }
        Digits { digits, mixed: true }
    }

    /// The bits in which keys differ. At least one pass, so that tuples are made.
    pub(crate) fn varying(bits: u64) -> Digits {
        let mut digits = Vec::new();
        let mut left = bits;
        while left != 0 {
            let shift = left.trailing_zeros();
            let last = 63 - left.leading_zeros();
            let width = abi::DIGIT_BITS.min(last - shift + 1);
            digits.push(digit(shift, width));
            left &= !(u64::from(digit(shift, width).mask) << shift);
        }
        if digits.is_empty() {
            digits.push(digit(0, 1));
        }
        Digits { digits, mixed: false }
    }

    /// How many passes they take.
    pub(crate) fn passes(&self) -> usize {
        self.digits.len()
    }
}

fn digit(shift: u32, width: u32) -> abi::Digit {
    // A shift by the whole width is not defined, and there is nothing to see there.
    abi::Digit { shift: if width == 0 { 0 } else { shift }, mask: (1u32 << width) - 1 }
}

/// Memory of at least so many bytes: the spare where it is large enough, or else a new one, which is
/// the spare from then on.
fn spare_of(session: &Session<'_>, spare: &mut Option<View>, bytes: u64) -> Result<View> {
    match *spare {
        Some(view) if view.bytes >= bytes => Ok(view),
        _ => {
            let view = session.allocate(bytes, "partitioning")?;
            *spare = Some(view);
            Ok(view)
        }
    }
}

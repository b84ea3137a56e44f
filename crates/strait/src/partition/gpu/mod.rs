//! Radix passes on a device: tuples are ordered by some bits of their keys.
//!
//! | file | how a pass finds the target positions | reads and writes per tuple |
//! | --- | --- | --- |
//! | [`look_back`] | tiles look back at the counts of earlier tiles | one and one per pass, after one read of all keys |
//! | [`shared_histogram`] | thread blocks count first (004 §3.2.1) | two and one per pass |
//! | [`bucket_pool`] | takes buckets as they fill (003 §III-A) | one and one per pass, and once more at the end |
//!
//! All three have the same result: a side's tuples in partition order, in one piece, with mixed keys.

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

/// The bits by which tuples are ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Digits {
    /// One digit per pass, the least significant first.
    digits: Vec<abi::Digit>,
    /// Whether the digits are bits of the mixed key. If so, the tuples have mixed keys.
    mixed: bool,
}

impl Digits {
    /// Returns the top `bits` bits of mixed keys, in as few passes as possible.
    pub(crate) fn top(bits: u32, word_bits: u32) -> Digits {
        Digits::below(0, bits, word_bits)
    }

    /// Returns the `bits` bits of mixed keys below the top `skip` bits.
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

    /// Returns the bits in which keys differ. There is at least one pass, because a pass creates the tuples.
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

    /// Returns the number of bits of each pass.
    pub(crate) fn widths(&self) -> Vec<u32> {
        self.digits.iter().map(|digit| digit.mask.count_ones()).collect()
    }

    /// Returns the number of passes.
    pub(crate) fn passes(&self) -> usize {
        self.digits.len()
    }
}

fn digit(shift: u32, width: u32) -> abi::Digit {
    // A shift by the whole width is undefined. A digit without bits is zero with any shift.
    abi::Digit { shift: if width == 0 { 0 } else { shift }, mask: (1u32 << width) - 1 }
}

/// Returns memory of at least `bytes` bytes: the spare memory if it is large enough, or else new memory,
/// which becomes the spare.
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

//! The stages of a sort-merge join: sort both sides, split them into segments, and merge each segment.
//!
//! They run in this order (paper 004, section 3.3):
//!
//! 1. [`sort`] orders each side's tuples by key. Equal keys keep their order.
//! 2. [`split`] cuts the merge of the two sides into segments of nearly equal size. Workers merge segments
//!    independently, because no key is in two segments.
//! 3. [`groups()`] goes through one segment, and tells which rows of the two sides share a key, and which
//!    rows have no match.
//!
//! This module does not know join types: pairs, unmatched rows and existence all follow from the groups.
//!
//! # Example
//! The keys of both sides after sorting:
//!
//! ```text
//! position   0  1  2  3  4  5  6
//! a          1  3  3  7  9
//! b          2  3  3  3  8  8  9
//! ```
//!
//! Split in two, each segment should have 6 of the 12 tuples. The merge 1 2 3 3 3 3 | 3 7 8 8 9 9 would be
//! cut inside the group of key 3, which has five tuples, from position 2 to 7. The group's end is nearer to
//! the cut than its start, so the cut moves there: `a 0..3, b 0..4` and `a 3..5, b 4..7`. The groups of the
//! two segments are
//!
//! ```text
//! a 0..1  b 0..0   key 1, only in a
//! a 1..1  b 0..1   key 2, only in b
//! a 1..3  b 1..4   key 3: 2 × 3 pairs
//!
//! a 3..4  b 4..4   key 7, only in a
//! a 4..4  b 4..6   key 8, only in b
//! a 4..5  b 6..7   key 9: 1 × 1 pair
//! ```

mod cached;
mod digit;
mod groups;
mod merge_path;
mod radix;
mod scatter;
#[cfg(test)]
mod tests;

pub(crate) use groups::groups;
pub(crate) use merge_path::{Segment, split};
pub(crate) use radix::sort;
pub(crate) use scatter::WriteCombiner;

/// Inputs for this module's tests.
#[cfg(test)]
mod testing {
    use fastrand::Rng;

    use crate::partition::Tuple;

    /// Returns `keys` with their positions as rows.
    pub(super) fn tuples(keys: &[u64]) -> Vec<Tuple<u64, u32>> {
        keys.iter().enumerate().map(|(row, &key)| Tuple { key, row: row as u32 }).collect()
    }

    /// Returns `len` sorted keys in runs of up to `run`. Keys are from `0..range`, so that some are equal.
    pub(super) fn sorted(random: &mut Rng, len: usize, range: u64, run: u64) -> Vec<u64> {
        let mut keys = Vec::with_capacity(len);
        while keys.len() < len {
            let (key, copies) = (random.u64(..range), 1 + random.u64(..run) as usize);
            keys.extend(std::iter::repeat_n(key, copies.min(len - keys.len())));
        }
        // The smallest and the largest word are keys like any other.
        keys.iter_mut().filter(|k| **k == range - 1).for_each(|k| *k = u64::MAX);
        keys.sort_unstable();
        keys
    }
}

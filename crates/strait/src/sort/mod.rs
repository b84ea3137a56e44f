//! Both sides by key: how are they sorted, cut into fair shares, and walked side by side?
//!
//! The stages of a sort-merge join (paper 004, section 3.3), in the order they run:
//!
//! 1. [`sort`] orders each side's tuples by key; equal keys keep their order.
//! 2. [`split`] cuts the merge of the two sides into segments of nearly equal work, each of which
//!    a worker merges alone: no key is in two segments.
//! 3. [`groups()`] walks one segment and says which rows of the two sides share a key, and which
//!    rows have no partner.
//!
//! Nothing here knows join types: pairs, unmatched rows and existence are all read off the groups.
//!
//! # Example
//! The sides after sorting, keys only:
//!
//! ```text
//! position   0  1  2  3  4  5  6
//! a          1  3  3  7  9
//! b          2  3  3  3  8  8  9
//! ```
//!
//! Split in two, each segment should have 6 of the 12 tuples. The merge 1 2 3 3 3 3 | 3 7 8 8 9 9
//! would be cut inside the group of key 3, which is five tuples long from place 2 to 7. Its end is
//! nearer than its beginning, so the cut moves there: `a 0..3, b 0..4` and `a 3..5, b 4..7`. Their
//! groups are
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
    use crate::partition::Tuple;

    /// A xorshift generator: a seed is a test case.
    pub(super) struct Random(pub(super) u64);

    impl Random {
        pub(super) fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
        }

        pub(super) fn below(&mut self, limit: u64) -> u64 {
            self.next() % limit.max(1)
        }
    }

    /// `keys` with their positions as rows.
    pub(super) fn tuples(keys: &[u64]) -> Vec<Tuple<u64, u32>> {
        keys.iter().enumerate().map(|(row, &key)| Tuple { key, row: row as u32 }).collect()
    }

    /// `len` sorted keys in runs of up to `run`, out of a range that makes some meet.
    pub(super) fn sorted(random: &mut Random, len: usize, range: u64, run: u64) -> Vec<u64> {
        let mut keys = Vec::with_capacity(len);
        while keys.len() < len {
            let (key, copies) = (random.below(range), 1 + random.below(run) as usize);
            keys.extend(std::iter::repeat_n(key, copies.min(len - keys.len())));
        }
        // The least and the greatest word are keys like any other.
        keys.iter_mut().filter(|k| **k == range - 1).for_each(|k| *k = u64::MAX);
        keys.sort_unstable();
        keys
    }
}

//! The digit by which a wide pass chooses a bucket.

use crate::partition::{RowId, Tuple};
use crate::word::KeyWord;

/// The target size of a bucket: one worker sorts it within its cache.
const BUCKET: usize = 1 << 13;
/// The most bits of a digit: a cache line per bucket has to stay in the second-level cache.
const WIDEST: u32 = 11;
/// The number of keys of a sample.
const SAMPLE: usize = 1024;

/// A function from keys to buckets: the leading bits of a key, minus those of the smallest key. It is
/// monotonic.
///
/// Bucket 0 is for keys below the range, the last bucket for keys above it. The other buckets start at
/// multiples of a power of two, so that the keys of a bucket share all their leading bits. For keys from 100
/// to 190, with `shift` 5:
///
/// ```text
/// bucket    0        1           2           3            4
/// keys      0 … 95   96 … 127    128 … 159   160 … 191    192 …
/// ```
#[derive(Clone, Copy)]
pub(super) struct Digit {
    shift: u32,
    /// The leading bits of the smallest key.
    first: u64,
    /// The digit of the largest key.
    last: u64,
}

impl Digit {
    /// Creates a digit for `len` keys from `least` to `greatest`.
    pub(super) fn new(least: u64, greatest: u64, len: usize) -> Self {
        let width = (len / BUCKET).max(2).next_power_of_two().ilog2().min(WIDEST);
        let shift = (u64::BITS - (greatest - least).leading_zeros()).saturating_sub(width);
        let first = least >> shift;
        Digit { shift, first, last: (greatest >> shift) - first }
    }

    /// Creates a digit from an evenly spaced sample of the keys.
    pub(super) fn sampled<K: KeyWord, I: RowId>(data: &[Tuple<K, I>]) -> Self {
        let (least, greatest) = bounds(data.iter().step_by((data.len() / SAMPLE).max(1)));
        Digit::new(least, greatest, data.len())
    }

    /// Returns the number of buckets.
    pub(super) fn buckets(self) -> usize {
        self.last as usize + 3
    }

    /// Returns the bucket of `key`, below `buckets()`.
    #[inline(always)]
    pub(super) fn of(self, key: u64) -> usize {
        let leading = key >> self.shift;
        let digit = leading.wrapping_sub(self.first).min(self.last + 1) as usize + 1;
        if leading < self.first { 0 } else { digit }
    }

    /// Returns whether all keys of `bucket` must be equal.
    pub(super) fn is_one_key(self, bucket: usize) -> bool {
        self.shift == 0 && !self.is_stray(bucket)
    }

    /// Returns whether `bucket` is one of the two for keys outside the range.
    pub(super) fn is_stray(self, bucket: usize) -> bool {
        bucket == 0 || bucket == self.buckets() - 1
    }
}

/// Returns the smallest and the largest key.
pub(super) fn bounds<'a, K: KeyWord, I: RowId>(
    tuples: impl Iterator<Item = &'a Tuple<K, I>>,
) -> (u64, u64) {
    tuples
        .map(|t| t.key.to_u64())
        .fold((u64::MAX, 0), |(least, greatest), key| (least.min(key), greatest.max(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_rise_with_keys_and_stay_below_the_buckets() {
        let edges = [0, 1, 99, 100, 101, 131, 132, 190, 196, 1 << 40, u64::MAX - 1, u64::MAX];
        for (least, greatest) in [(100, 190), (0, u64::MAX), (5, 5), (u64::MAX, u64::MAX), (0, 0)] {
            for len in [1, 1 << 15, 1 << 20, 1 << 40] {
                let digit = Digit::new(least, greatest, len);
                let buckets: Vec<usize> = edges.iter().map(|&k| digit.of(k)).collect();
                assert!(buckets.is_sorted(), "{buckets:?}");
                assert!(buckets.iter().all(|&b| b < digit.buckets()), "{buckets:?}");
                assert!(digit.buckets() <= (1 << WIDEST) + 3);
                for key in [least, greatest] {
                    assert!(!digit.is_stray(digit.of(key)), "{key} of {least}..={greatest}");
                }
            }
        }
    }
}

//! Key words: what partitions, tables and sorts see of a key.

use std::fmt::Debug;
use std::hash::Hash;

use crate::memory::Plain;

/// A key word: `u32` or `u64`, whichever the key columns need.
///
/// [`mix`](KeyWord::mix) is a bijection, so equality of mixed words is equality of words and no
/// key value has to be reserved, and every output bit depends on every input bit, so no pattern
/// of keys makes partitions or slots uneven.
pub(crate) trait KeyWord: Plain + Ord + Eq + Hash + Debug + Default {
    /// The width in bits.
    const BITS: u32;
    /// The word, scattered.
    fn mix(self) -> Self;
    /// The word as 64 bits.
    fn to_u64(self) -> u64;
    /// The low bits of `word`.
    fn from_u64(word: u64) -> Self;
}

impl KeyWord for u32 {
    const BITS: u32 = 32;

    /// Two rounds of xor-shift and odd multiply: each step can be undone.
    #[inline(always)]
    fn mix(self) -> u32 {
        let mut x = self;
        x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
        x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
        x ^ (x >> 16)
    }

    #[inline(always)]
    fn to_u64(self) -> u64 {
        u64::from(self)
    }

    #[inline(always)]
    fn from_u64(word: u64) -> u32 {
        word as u32
    }
}

impl KeyWord for u64 {
    const BITS: u32 = 64;

    #[inline(always)]
    fn mix(self) -> u64 {
        let mut x = self;
        x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        x ^ (x >> 32)
    }

    #[inline(always)]
    fn to_u64(self) -> u64 {
        self
    }

    #[inline(always)]
    fn from_u64(word: u64) -> u64 {
        word
    }
}

#[cfg(test)]
mod tests {
    use super::KeyWord;

    /// Every step of the mixer is undone by its inverse, so no two words meet.
    #[test]
    fn mixing_loses_nothing() {
        let mut seen: Vec<u32> = (0..1 << 16).map(|x: u32| (x << 16 | x).mix()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1 << 16);
        let mut seen: Vec<u64> = (0..1u64 << 16).flat_map(|x| [x.mix(), (x << 48).mix()]).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), (1 << 17) - 1, "0 is in both halves");
    }

    /// Multiples of a power of two fill all top-bit partitions evenly.
    #[test]
    fn patterns_spread_over_partitions() {
        for shift in [0, 8, 20, 40, 52] {
            let mut counts = [0u32; 256];
            for x in 0..1u64 << 12 {
                counts[((x << shift).mix() >> 56) as usize] += 1;
            }
            assert!(counts.iter().all(|&c| c < 64), "shift {shift}: {counts:?}");
        }
    }
}

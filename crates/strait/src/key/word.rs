//! Key words: what partitions, tables and sorts see of a key.

use std::fmt::Debug;
use std::hash::Hash;

use crate::memory::Plain;
use crate::processor::on_this_processor;

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
    /// Scatters all of them.
    fn mix_all(words: &mut [Self]) {
        on_this_processor!(mix_each(words) where [K: KeyWord](words: &mut [K]))
    }
    /// Which of four words are this one, as bits.
    fn same(self, four: &[Self; 4]) -> u32 {
        (0..4).fold(0, |bits, i| bits | u32::from(four[i] == self) << i)
    }
    /// Which of four words have another top bit, as bits.
    fn apart(self, four: &[Self; 4]) -> u32 {
        let top = |word: Self| (word.to_u64() ^ self.to_u64()) >> (Self::BITS - 1);
        (0..4).fold(0, |bits, i| bits | (top(four[i]) as u32) << i)
    }
    /// [`same`](KeyWord::same) with vectors, where there are some.
    ///
    /// # Safety
    /// On x86-64, `processor::modern()` is true.
    #[inline(always)]
    unsafe fn same_modern(self, four: &[Self; 4]) -> u32 {
        self.same(four)
    }
    /// [`apart`](KeyWord::apart) with vectors, where there are some.
    ///
    /// # Safety
    /// On x86-64, `processor::modern()` is true.
    #[inline(always)]
    unsafe fn apart_modern(self, four: &[Self; 4]) -> u32 {
        self.apart(four)
    }
    /// The word as 64 bits.
    fn to_u64(self) -> u64;
    /// The low bits of `word`.
    fn from_u64(word: u64) -> Self;
}

#[inline(always)]
fn mix_each<K: KeyWord>(words: &mut [K]) {
    words.iter_mut().for_each(|word| *word = word.mix());
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

    #[cfg(vectors)]
    #[inline(always)]
    unsafe fn same_modern(self, four: &[u32; 4]) -> u32 {
        use std::arch::x86_64::*;
        // SAFETY: four words are loaded; SSE2 is part of x86-64.
        unsafe {
            let words = _mm_loadu_si128(four.as_ptr().cast());
            let same = _mm_cmpeq_epi32(words, _mm_set1_epi32(self as i32));
            _mm_movemask_ps(_mm_castsi128_ps(same)) as u32
        }
    }

    #[cfg(vectors)]
    #[inline(always)]
    unsafe fn apart_modern(self, four: &[u32; 4]) -> u32 {
        use std::arch::x86_64::*;
        // SAFETY: as above.
        unsafe {
            let words = _mm_loadu_si128(four.as_ptr().cast());
            let apart = _mm_xor_si128(words, _mm_set1_epi32(self as i32));
            _mm_movemask_ps(_mm_castsi128_ps(apart)) as u32
        }
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

    #[cfg(vectors)]
    #[inline(always)]
    unsafe fn same_modern(self, four: &[u64; 4]) -> u32 {
        use std::arch::x86_64::*;
        // SAFETY: four words are loaded; the caller promises AVX2.
        unsafe {
            let words = _mm256_loadu_si256(four.as_ptr().cast());
            let same = _mm256_cmpeq_epi64(words, _mm256_set1_epi64x(self as i64));
            _mm256_movemask_pd(_mm256_castsi256_pd(same)) as u32
        }
    }

    #[cfg(vectors)]
    #[inline(always)]
    unsafe fn apart_modern(self, four: &[u64; 4]) -> u32 {
        use std::arch::x86_64::*;
        // SAFETY: as above.
        unsafe {
            let words = _mm256_loadu_si256(four.as_ptr().cast());
            let apart = _mm256_xor_si256(words, _mm256_set1_epi64x(self as i64));
            _mm256_movemask_pd(_mm256_castsi256_pd(apart)) as u32
        }
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

    #[test]
    fn words_are_compared_alike_with_and_without_vectors() {
        fn check<K: KeyWord>(words: [u64; 4]) {
            let four = words.map(K::from_u64);
            for key in words.iter().flat_map(|&w| [w, !w, w ^ 1]).map(K::from_u64) {
                let same: u32 = (0..4).map(|i| u32::from(four[i] == key) << i).sum();
                assert_eq!(key.same(&four), same);
                #[cfg(vectors)]
                if crate::processor::modern() {
                    // SAFETY: just asked.
                    unsafe {
                        assert_eq!(key.same_modern(&four), same);
                        assert_eq!(key.apart_modern(&four), key.apart(&four));
                    }
                }
            }
            let top = |word: K| word.to_u64() >> (K::BITS - 1);
            let apart: u32 = (0..4).map(|i| u32::from(top(four[i]) == 1) << i).sum();
            assert_eq!(K::from_u64(0).apart(&four), apart);
        }
        for words in [[0, 1, u64::MAX, 1 << 63], [5, 5, 1 << 31, (1 << 31) + 5]] {
            check::<u64>(words);
            check::<u32>(words);
        }
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

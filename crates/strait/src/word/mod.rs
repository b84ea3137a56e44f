//! Key words: the integers that represent keys in partitions, tables and sorts.

mod mixer;

use std::fmt::Debug;
use std::hash::Hash;

use crate::memory::Plain;
use crate::processor::on_this_processor;

pub(crate) use mixer::{Mixer, Mixers, splitmix};

/// The width of a key word. Tuples of a device have keys and values of one width, so that a tuple is one
/// aligned load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Width {
    /// 32 bits.
    W32,
    /// 64 bits.
    W64,
}

impl Width {
    /// Its bytes.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Width::W32 => 4,
            Width::W64 => 8,
        }
    }

    /// Its bits.
    pub(crate) fn bits(self) -> u32 {
        8 * self.bytes() as u32
    }

    /// The bytes of a tuple: a key and a value.
    pub(crate) fn tuple(self) -> u64 {
        2 * self.bytes()
    }
}

/// A key word: `u32` or `u64`, whichever the key columns need.
///
/// [`mix`](KeyWord::mix) is a bijection, so two mixed words are equal exactly if the words are equal, and no
/// key value has to be reserved. Its multipliers are random per join, so nobody can choose keys that make
/// partitions or buckets uneven.
pub(crate) trait KeyWord: Plain + Ord + Eq + Hash + Debug + Default {
    /// The width in bits.
    const BITS: u32;
    /// Mixes the word: two rounds of xor-shift and multiplication by an odd number, then one more xor-shift.
    /// A xor-shift by half the width is its own inverse, so the [inverse](Mixer::inverse) mixer undoes
    /// everything.
    fn mix(self, mixer: Mixer<Self>) -> Self;
    /// Mixes all words in place.
    fn mix_all(words: &mut [Self], mixer: Mixer<Self>) {
        on_this_processor!(mix_each(words, mixer) where
            [K: KeyWord](words: &mut [K], mixer: Mixer<K>))
    }
    /// Returns the mixer of this width.
    fn mixer_of(narrow: Mixer<u32>, wide: Mixer<u64>) -> Mixer<Self>;
    /// Compares four words with this one. Returns a bit mask of the equal ones.
    fn same(self, four: &[Self; 4]) -> u32 {
        (0..4).fold(0, |bits, i| bits | u32::from(four[i] == self) << i)
    }
    /// Compares the top bits of four words with this one's. Returns a bit mask of those that differ.
    fn apart(self, four: &[Self; 4]) -> u32 {
        let top = |word: Self| (word.to_u64() ^ self.to_u64()) >> (Self::BITS - 1);
        (0..4).fold(0, |bits, i| bits | (top(four[i]) as u32) << i)
    }
    /// [`same`](KeyWord::same) with vector instructions, if available.
    ///
    /// # Safety
    /// On x86-64, `processor::modern()` is true.
    #[inline(always)]
    unsafe fn same_modern(self, four: &[Self; 4]) -> u32 {
        self.same(four)
    }
    /// [`apart`](KeyWord::apart) with vector instructions, if available.
    ///
    /// # Safety
    /// On x86-64, `processor::modern()` is true.
    #[inline(always)]
    unsafe fn apart_modern(self, four: &[Self; 4]) -> u32 {
        self.apart(four)
    }
    /// Returns the word as 64 bits.
    fn to_u64(self) -> u64;
    /// Returns the low bits of `word`.
    fn from_u64(word: u64) -> Self;
}

#[inline(always)]
fn mix_each<K: KeyWord>(words: &mut [K], mixer: Mixer<K>) {
    words.iter_mut().for_each(|word| *word = word.mix(mixer));
}

impl KeyWord for u32 {
    const BITS: u32 = 32;

    #[inline(always)]
    fn mix(self, mixer: Mixer<u32>) -> u32 {
        let mut x = self;
        x = (x ^ (x >> 16)).wrapping_mul(mixer.first);
        x = (x ^ (x >> 16)).wrapping_mul(mixer.second);
        x ^ (x >> 16)
    }

    fn mixer_of(narrow: Mixer<u32>, _: Mixer<u64>) -> Mixer<u32> {
        narrow
    }

    #[cfg(vectors)]
    #[inline(always)]
    unsafe fn same_modern(self, four: &[u32; 4]) -> u32 {
        use std::arch::x86_64::*;
        // SAFETY: reads four words; SSE2 is part of x86-64.
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
    fn mix(self, mixer: Mixer<u64>) -> u64 {
        let mut x = self;
        x = (x ^ (x >> 32)).wrapping_mul(mixer.first);
        x = (x ^ (x >> 32)).wrapping_mul(mixer.second);
        x ^ (x >> 32)
    }

    fn mixer_of(_: Mixer<u32>, wide: Mixer<u64>) -> Mixer<u64> {
        wide
    }

    #[cfg(vectors)]
    #[inline(always)]
    unsafe fn same_modern(self, four: &[u64; 4]) -> u32 {
        use std::arch::x86_64::*;
        // SAFETY: reads four words; the caller guarantees AVX2.
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
    use super::{KeyWord, Mixer};

    #[test]
    fn the_inverse_undoes_mixing() {
        for seed in 0..500u64 {
            let (wide, narrow) = (Mixer::<u64>::new(seed), Mixer::<u32>::new(seed));
            for i in 0..100u64 {
                let word = (i << (seed % 58)) ^ (seed * i) ^ i.wrapping_neg() << 32;
                assert_eq!(word.mix(wide).mix(wide.inverse()), word);
                let word = word as u32;
                assert_eq!(word.mix(narrow).mix(narrow.inverse()), word);
            }
        }
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
                    // SAFETY: checked in the condition.
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

    /// Returns the largest number of words, out of 4096, that share their top eight bits under any of 200
    /// seeds. The average is 16.
    fn crowd<K: KeyWord>(words: impl Iterator<Item = u64> + Clone) -> u32 {
        let most = |seed: u64| {
            let mixer = Mixer::<K>::new(seed);
            let mut counts = [0u32; 256];
            for word in words.clone() {
                counts[(K::from_u64(word).mix(mixer).to_u64() >> (K::BITS - 8)) as usize] += 1;
            }
            counts.into_iter().max().unwrap_or(0)
        };
        (0..200).map(most).max().unwrap_or(0)
    }

    /// Multiples of a power of two spread over all partitions, with any seed.
    #[test]
    fn patterns_spread_over_partitions() {
        for shift in [0, 8, 20] {
            let crowd = crowd::<u32>((0..1u64 << 12).map(|x| x << shift));
            assert!(crowd < 100, "shift {shift}: {crowd}");
        }
        for shift in [0, 8, 20, 40, 52] {
            let crowd = crowd::<u64>((0..1u64 << 12).map(|x| x << shift));
            assert!(crowd < 100, "shift {shift}: {crowd}");
        }
    }

    /// Words that share their top bits under a known mixer are spread by other mixers.
    #[test]
    fn words_chosen_for_a_known_mixer_spread() {
        let known = Mixer { first: 0xd6e8_feb8_6659_fd93u64, second: 0xd6e8_feb8_6659_fd93 };
        let chosen = (0..1u64 << 12).map(|i| i.mix(known.inverse()));
        assert!(chosen.clone().all(|word| word.mix(known) >> 52 == 0));
        let crowd = crowd::<u64>(chosen);
        assert!(crowd < 100, "{crowd}");
    }
}

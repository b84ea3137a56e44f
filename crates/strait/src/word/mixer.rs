//! The mixer: a random bijection of key words.
//!
//! It ends with a multiplication by a random odd number. Partitions and tables use the top bits of the
//! product. Multiply-shift is universal (Dietzfelbinger et al., "A reliable randomized algorithm for the
//! closest-pair problem", 1997): for any two different keys, the probability that they share their top k bits
//! is at most 2 / 2^k. If the seed were only added to the key before a fixed multiplication, this would not
//! hold.

use super::KeyWord;

/// The multipliers of the two rounds of [`KeyWord::mix`]. Both are odd, so the mixer is a bijection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mixer<K> {
    pub(crate) first: K,
    pub(crate) second: K,
}

impl<K: KeyWord> Mixer<K> {
    /// Creates the mixer of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = seed;
        let first = multiplier(&mut state);
        Mixer { first, second: multiplier(&mut state) }
    }

    /// Creates a mixer with the low bits of these multipliers.
    pub(crate) fn of(first: u64, second: u64) -> Self {
        Mixer { first: K::from_u64(first), second: K::from_u64(second) }
    }

    /// Returns the mixer that undoes this one. The inverse of each multiplier undoes its round.
    pub(crate) fn inverse(self) -> Self {
        Mixer { first: inverse(self.second), second: inverse(self.first) }
    }
}

/// Returns a random odd number with about half of its bits set. A multiplier with very few or very many set
/// bits would mix most keys badly.
fn multiplier<K: KeyWord>(state: &mut u64) -> K {
    let even = K::BITS / 2;
    let slack = K::BITS / 8 + u32::from(K::BITS == 32) * 2;
    loop {
        // The top bits of this generator are its best ones.
        let candidate = K::from_u64(splitmix(state) >> (64 - K::BITS) | 1);
        let ones = candidate.to_u64().count_ones();
        if ones.abs_diff(even) <= slack {
            return candidate;
        }
    }
}

/// Returns the inverse of an odd number modulo 2^width, by Newton's iteration. `n * n` is 1 modulo 8, and
/// each step doubles the number of correct bits.
fn inverse<K: KeyWord>(odd: K) -> K {
    let n = odd.to_u64();
    let step = |x: u64, _| x.wrapping_mul(2u64.wrapping_sub(n.wrapping_mul(x)));
    K::from_u64((0..5).fold(n, step))
}

/// Returns the next number of the SplitMix64 generator.
pub(crate) fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The mixers for both widths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mixers {
    pub(crate) narrow: Mixer<u32>,
    pub(crate) wide: Mixer<u64>,
}

impl Mixers {
    /// Creates the mixers of two seeds.
    pub(crate) fn new(narrow: u64, wide: u64) -> Mixers {
        Mixers { narrow: Mixer::new(narrow), wide: Mixer::new(wide) }
    }

    /// Returns the mixer for words of type `K`.
    pub(crate) fn of<K: KeyWord>(&self) -> Mixer<K> {
        K::mixer_of(self.narrow, self.wide)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multipliers_are_odd_and_have_inverses() {
        for seed in 0..2000 {
            let wide = Mixer::<u64>::new(seed);
            for m in [wide.first, wide.second] {
                assert!(m & 1 == 1 && (24..=40).contains(&m.count_ones()), "{m:x}");
                assert_eq!(m.wrapping_mul(inverse(m)), 1);
            }
            let narrow = Mixer::<u32>::new(seed);
            for m in [narrow.first, narrow.second] {
                assert!(m & 1 == 1 && (10..=22).contains(&m.count_ones()), "{m:x}");
                assert_eq!(m.wrapping_mul(inverse(m)), 1);
            }
        }
    }
}

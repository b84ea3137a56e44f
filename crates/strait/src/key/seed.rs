//! The random numbers of one join: what a key's word and its place depend on besides the key.
//!
//! With a fixed mixer and a fixed hash, anyone can compute keys that all fall into one partition or
//! one bucket, and a join of such keys takes quadratic time. So each join draws a [`Seed`]. The
//! multipliers of the [mixer](Mixer) and the secrets of the [hash](super::hash) follow from it. The
//! report prints the seed, and [`Force::seed`](crate::Force) repeats it.
//!
//! The mixer ends with a multiplication by a random odd number, of which partitions and tables use
//! the top bits. Multiply-shift is universal (Dietzfelbinger et al., "A reliable randomized algorithm
//! for the closest-pair problem", 1997): whatever the keys, the probability that two of them share
//! their top k bits is at most 2 / 2^k. A seed that is only added to the key in front of a fixed
//! multiplication would not have this property.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::SystemTime;

use super::hash::Secrets;
use super::word::KeyWord;

/// The multipliers of the two rounds of [`KeyWord::mix`]. Both are odd, so the mixer is a bijection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mixer<K> {
    pub(crate) first: K,
    pub(crate) second: K,
}

impl<K: KeyWord> Mixer<K> {
    /// The mixer of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = seed;
        let first = multiplier(&mut state);
        Mixer { first, second: multiplier(&mut state) }
    }

    /// A mixer with these multipliers, of which the low bits count.
    pub(crate) fn of(first: u64, second: u64) -> Self {
        Mixer { first: K::from_u64(first), second: K::from_u64(second) }
    }

    /// The mixer that undoes this one: each round is undone by the inverse of its multiplier.
    pub(crate) fn inverse(self) -> Self {
        Mixer { first: inverse(self.second), second: inverse(self.first) }
    }
}

/// A random odd number. About half of its bits are set: a multiplier with few set or few clear bits
/// would move most keys hardly at all.
fn multiplier<K: KeyWord>(state: &mut u64) -> K {
    let even = K::BITS / 2;
    let slack = K::BITS / 8 + u32::from(K::BITS == 32) * 2;
    loop {
        // The top bits are the best ones of a 64-bit generator.
        let candidate = K::from_u64(splitmix(state) >> (64 - K::BITS) | 1);
        let ones = candidate.to_u64().count_ones();
        if ones.abs_diff(even) <= slack {
            return candidate;
        }
    }
}

/// The inverse of an odd number modulo the width of a word, by Newton's iteration: `n * n` is 1 modulo
/// 8, and each step doubles the number of correct bits.
fn inverse<K: KeyWord>(odd: K) -> K {
    let n = odd.to_u64();
    let step = |x: u64, _| x.wrapping_mul(2u64.wrapping_sub(n.wrapping_mul(x)));
    K::from_u64((0..5).fold(n, step))
}

/// The next number of the SplitMix64 generator.
pub(super) fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Everything that a join draws at random.
#[derive(Debug, Clone)]
pub(crate) struct Seed {
    /// The number that the rest follows from.
    number: u64,
    narrow: Mixer<u32>,
    wide: Mixer<u64>,
    secrets: Secrets,
}

impl Seed {
    /// The seed with this number.
    pub(crate) fn new(number: u64) -> Seed {
        let mut state = number;
        let mut next = || splitmix(&mut state);
        Seed {
            number,
            narrow: Mixer::new(next()),
            wide: Mixer::new(next()),
            secrets: Secrets::new(next()),
        }
    }

    /// A seed for tests: keys that were chosen for a mixer that everyone knows meet, and all hashed
    /// keys have one hash.
    pub(crate) fn bad() -> Seed {
        let wide = Mixer { first: 0xd6e8_feb8_6659_fd93, second: 0xd6e8_feb8_6659_fd93 };
        let narrow = Mixer { first: 0x7feb_352d, second: 0x846c_a68b };
        Seed { number: 0, narrow, wide, secrets: Secrets::bad() }
    }

    /// A number that nobody outside of this process can know.
    pub(crate) fn random_number() -> u64 {
        // The standard library's hasher has keys from the operating system's random generator.
        RandomState::new().hash_one(SystemTime::now())
    }

    /// The number that this seed follows from.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The mixer of words of one width.
    pub(crate) fn mixer<K: KeyWord>(&self) -> Mixer<K> {
        K::mixer_of(self.narrow, self.wide)
    }

    /// The secrets of the hash.
    pub(super) fn secrets(&self) -> &Secrets {
        &self.secrets
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

    #[test]
    fn random_numbers_differ() {
        let numbers: std::collections::HashSet<u64> =
            (0..100).map(|_| Seed::random_number()).collect();
        assert_eq!(numbers.len(), 100);
    }
}

//! The random numbers of one join: what a key's word and its place depend on besides the key.
//!
//! With a fixed mixer and a fixed hash, anyone can compute keys that all fall into one partition or
//! one bucket, and a join of such keys takes quadratic time. So each join draws a [`Seed`]. The
//! multipliers of the [mixer](Mixer) and the secrets of the [hash](super::hash) follow from it. The
//! report prints the seed, and [`TestOverrides::seed`](crate::overrides::TestOverrides) repeats it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::SystemTime;

use super::hash::Secrets;
use crate::word::{KeyWord, Mixer, Mixers, splitmix};

/// Everything that a join draws at random.
#[derive(Debug, Clone)]
pub(crate) struct Seed {
    /// The number that the rest follows from.
    number: u64,
    mixers: Mixers,
    secrets: Secrets,
}

impl Seed {
    /// The seed with this number.
    pub(crate) fn new(number: u64) -> Seed {
        let mut state = number;
        let mut next = || splitmix(&mut state);
        let mixers = Mixers::new(next(), next());
        Seed { number, mixers, secrets: Secrets::new(next()) }
    }

    /// A seed for tests: keys that were chosen for a mixer that everyone knows meet, and all hashed
    /// keys have one hash.
    pub(crate) fn bad() -> Seed {
        let wide = Mixer { first: 0xd6e8_feb8_6659_fd93, second: 0xd6e8_feb8_6659_fd93 };
        let narrow = Mixer { first: 0x7feb_352d, second: 0x846c_a68b };
        Seed { number: 0, mixers: Mixers { narrow, wide }, secrets: Secrets::bad() }
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
        self.mixers.of()
    }

    /// The mixers of both widths.
    pub(crate) fn mixers(&self) -> &Mixers {
        &self.mixers
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
    fn random_numbers_differ() {
        let numbers: std::collections::HashSet<u64> =
            (0..100).map(|_| Seed::random_number()).collect();
        assert_eq!(numbers.len(), 100);
    }
}

//! The random numbers of one join, on which hashes and the placing of words depend.
//!
//! With a fixed mixer and a fixed hash function, anyone could compute keys that all fall into one partition
//! or one bucket. A join of such keys would take quadratic time. So each join draws a [`Seed`]. The
//! multipliers of the [mixer](Mixer) and the secrets of the [hash function](super::hash) follow from it. The
//! report shows the seed, and [`TestOverrides::seed`](crate::overrides::TestOverrides) repeats it.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::SystemTime;

use super::hash::Secrets;
use crate::word::{KeyWord, Mixer, Mixers, splitmix};

/// All random numbers of a join.
#[derive(Debug, Clone)]
pub(crate) struct Seed {
    /// The number that everything else follows from.
    number: u64,
    mixers: Mixers,
    secrets: Secrets,
}

impl Seed {
    /// Creates the seed with this number.
    pub(crate) fn new(number: u64) -> Seed {
        let mut state = number;
        let mut next = || splitmix(&mut state);
        let mixers = Mixers::new(next(), next());
        Seed { number, mixers, secrets: Secrets::new(next()) }
    }

    /// Creates a bad seed, for tests. Its mixer is publicly known, so keys can be chosen that collide. All
    /// hashed keys have the same hash.
    pub(crate) fn bad() -> Seed {
        let wide = Mixer { first: 0xd6e8_feb8_6659_fd93, second: 0xd6e8_feb8_6659_fd93 };
        let narrow = Mixer { first: 0x7feb_352d, second: 0x846c_a68b };
        Seed { number: 0, mixers: Mixers { narrow, wide }, secrets: Secrets::bad() }
    }

    /// Returns a number that nobody outside this process can know.
    pub(crate) fn random_number() -> u64 {
        // The keys of the standard library's hasher come from the operating system's random generator.
        RandomState::new().hash_one(SystemTime::now())
    }

    /// Returns the number that this seed follows from.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the mixer for words of type `K`.
    pub(crate) fn mixer<K: KeyWord>(&self) -> Mixer<K> {
        self.mixers.of()
    }

    /// Returns the mixers for both widths.
    pub(crate) fn mixers(&self) -> &Mixers {
        &self.mixers
    }

    /// Returns the secrets of the hash function.
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

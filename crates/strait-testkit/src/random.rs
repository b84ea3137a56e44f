//! A small deterministic random number generator. The same seed gives the same case on every machine and with
//! every version of every dependency.

/// xoshiro256** by Blackman and Vigna. splitmix64 fills its state.
#[derive(Debug, Clone)]
pub struct Rng {
    state: [u64; 4],
}

/// One step of splitmix64. It also derives an independent seed from a seed.
pub fn splitmix(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Rng {
    /// A generator that depends only on `seed`.
    pub fn new(mut seed: u64) -> Self {
        Rng { state: std::array::from_fn(|_| splitmix(&mut seed)) }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// 128 random bits.
    pub fn bits128(&mut self) -> u128 {
        u128::from(self.bits()) << 64 | u128::from(self.bits())
    }

    /// A number in `0..end`; 0 if the range is empty.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.bits()) * end as u128) >> 64) as usize
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// A number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns true with probability `hits / of`.
    pub fn chance(&mut self, hits: usize, of: usize) -> bool {
        self.below(of) < hits
    }

    /// Returns one of the items. Panics if there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Puts the items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_numbers() {
        let mut rng = Rng::new(42);
        let first = [rng.bits(), rng.bits(), rng.bits()];
        assert_eq!(first, [1546998764402558742, 6990951692964543102, 12544586762248559009]);
    }

    #[test]
    fn numbers_stay_in_range_and_reach_both_ends() {
        let mut rng = Rng::new(7);
        let drawn: Vec<_> = (0..1000).map(|_| rng.between(3, 6)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&6)));
        assert_eq!(rng.below(0), 0);
    }
}

//! A deterministic random number generator. The same seed gives the same case on every machine.

/// A seeded generator, with the draws that the generators of cases need.
#[derive(Debug, Clone)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// A generator that depends only on `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(fastrand::Rng::with_seed(seed))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// 128 random bits.
    pub fn bits128(&mut self) -> u128 {
        self.0.u128(..)
    }

    /// A number in `0..end`; 0 if the range is empty.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end.max(1))
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        self.0.usize(low..=high)
    }

    /// A number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        self.0.f64()
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
        self.0.shuffle(items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If a new version of the crate fails here, a seed means another case from then on.
    #[test]
    fn a_seed_always_gives_the_same_numbers() {
        let mut rng = Rng::new(42);
        let first = [rng.bits(), rng.bits(), rng.bits()];
        assert_eq!(first, [14587678697106979209, 9105053682160394182, 14839644324764355487]);
    }

    #[test]
    fn numbers_stay_in_range_and_reach_both_ends() {
        let mut rng = Rng::new(7);
        let drawn: Vec<_> = (0..1000).map(|_| rng.between(3, 6)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&6)));
        assert_eq!(rng.below(0), 0);
    }
}

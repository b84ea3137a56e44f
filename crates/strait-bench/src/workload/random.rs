//! Random numbers that are the same on every machine and with any number of threads. Each part of a table has
//! its own generator, and a shuffle is a function of the position.

/// Mixes all bits of a word into all others. It is a bijection (the finaliser of SplitMix64).
pub(super) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Same as [`mix`] within the lowest `bits` bits. The other bits of `word` must be zero.
pub(super) fn mix_within(bits: u32, word: u64) -> u64 {
    let mask = u64::MAX >> (64 - bits);
    let half = bits.div_ceil(2);
    let word = (word ^ (word >> half)).wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask;
    let word = (word ^ (word >> half)).wrapping_mul(0x94d0_49bb_1331_11eb) & mask;
    word ^ (word >> half)
}

/// Random numbers for one part of a table.
pub struct Random(fastrand::Rng);

impl Random {
    /// The generator for one part of one stream.
    pub(super) fn new(seed: u64, stream: u64, part: u64) -> Self {
        let seed = mix(seed ^ mix(stream.wrapping_add(1)) ^ mix(!part));
        Random(fastrand::Rng::with_seed(seed))
    }

    /// Returns a number in `0..n`; 0 if `n` is zero.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0.u64(..n.max(1))
    }

    /// Returns a number in `0.0..1.0`.
    pub(super) fn unit(&mut self) -> f64 {
        self.0.f64()
    }
}

/// A shuffle of `0..n` that is computed for each position: a Feistel network over the next even number of
/// bits, repeated until the result is below `n`.
pub(super) struct Shuffle {
    n: u64,
    half: u32,
    seed: u64,
}

impl Shuffle {
    pub(super) fn new(n: u64, seed: u64) -> Self {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        Shuffle { n, half: bits.div_ceil(2).max(1), seed }
    }

    /// Returns the new place of `position`, which must be below `n`.
    pub(super) fn at(&self, position: u64) -> u64 {
        let mask = (1u64 << self.half) - 1;
        let mut value = position;
        loop {
            let (mut left, mut right) = (value >> self.half, value & mask);
            for round in 0..4 {
                let scrambled = mix(right ^ mix(self.seed.wrapping_add(round))) & mask;
                (left, right) = (right, left ^ scrambled);
            }
            value = (left << self.half) | right;
            if value < self.n {
                return value;
            }
        }
    }
}

/// Ranks in `0..n`. The frequency of rank `k` is proportional to `1 / (k + 1)^theta`. Sampled by
/// rejection-inversion (Hörmann and Derflinger, 1996), in constant time and memory.
pub(super) struct Zipf {
    n: f64,
    theta: f64,
    low: f64,
    high: f64,
    shortcut: f64,
}

impl Zipf {
    pub(super) fn new(n: u64, theta: f64) -> Self {
        let n = n as f64;
        let mut zipf = Zipf { n, theta, low: 0.0, high: 0.0, shortcut: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(n + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    pub(super) fn sample(&self, random: &mut Random) -> u64 {
        loop {
            let u = self.high + random.unit() * (self.low - self.high);
            let x = self.inverse(u);
            let k = (x + 0.5).floor().clamp(1.0, self.n);
            if k - x <= self.shortcut || u >= self.integral(k + 0.5) - self.weight(k) {
                return k as u64 - 1;
            }
        }
    }

    fn weight(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    /// The integral of the weight. For theta = 1, it is the limit.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.theta) * log;
        log * if t.abs() > 1e-8 { t.exp_m1() / t } else { 1.0 + t / 2.0 }
    }

    fn inverse(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.theta)).max(-1.0);
        (y * if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 - t / 2.0 }).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_loses_nothing() {
        for n in [1, 2, 3, 10, 1000, 4097] {
            let shuffle = Shuffle::new(n, 7);
            let mut seen: Vec<u64> = (0..n).map(|i| shuffle.at(i)).collect();
            assert!(n < 10 || seen.iter().enumerate().any(|(i, &v)| i as u64 != v));
            seen.sort_unstable();
            assert_eq!(seen, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn mixing_within_bits_loses_nothing() {
        for bits in [1, 2, 7, 16] {
            let mut seen: Vec<u64> = (0..1 << bits).map(|word| mix_within(bits, word)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..1 << bits).collect::<Vec<_>>(), "{bits}");
        }
    }

    #[test]
    fn zipf_prefers_low_ranks_as_its_exponent_says() {
        for theta in [0.0, 0.5, 1.0, 1.5] {
            let zipf = Zipf::new(100, theta);
            let mut random = Random::new(1, 2, 3);
            let mut counts = [0u32; 100];
            for _ in 0..200_000 {
                counts[zipf.sample(&mut random) as usize] += 1;
            }
            let total: f64 = (1..=100).map(|k| f64::from(k).powf(-theta)).sum();
            for k in [1usize, 2, 10] {
                let expected = 200_000.0 * (k as f64).powf(-theta) / total;
                let found = f64::from(counts[k - 1]);
                assert!(
                    (found - expected).abs() < 5.0 * expected.sqrt(),
                    "{theta} {k} {found} {expected}"
                );
            }
        }
    }

    #[test]
    fn one_key_is_a_distribution_too() {
        let mut random = Random::new(1, 2, 3);
        assert_eq!(Zipf::new(1, 0.9).sample(&mut random), 0);
    }
}

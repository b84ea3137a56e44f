//! Random numbers for the simulated device: the same for the same seed, on every machine.

/// Splitmix64, by Steele, Lea and Flood: one addition and one mixer per number.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Returns a number below `end`, which must not be zero. The distribution is slightly uneven, which is
    /// harmless here.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    /// Returns the numbers below `end` in random order, like the order in which a kernel's threads reach
    /// rows.
    pub(super) fn order(&mut self, end: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..end).collect();
        self.shuffle(&mut order);
        order
    }
}

//! Chooses the algorithm for columns that are already in GPU memory.
//!
//! ```text
//!  a hash table stays in the L2 cache? ── yes ──────────────────────────► no-partition
//!            │ no
//!  an array with one slot per row would stay there? ── no ──────────────► radix
//!            │ yes: survey the keys
//!  an array over the range of the keys stays there? ── yes ─────────────► no-partition
//!            │ no, or the keys are sparse ──────────────────────────────► radix
//! ```

use crate::device::l2;
use crate::options::Algorithm;
use crate::plan::gpu_shape::is_array;
use crate::word::Width;

/// The facts that decide.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InGpuMemory {
    pub(crate) build_rows: u64,
    pub(crate) word: Width,
    /// The size of the L2 cache of the GPU, in bytes.
    pub(crate) l2: u64,
}

/// The algorithm, as far as it can be chosen without looking at the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BeforeSurvey {
    pub(crate) algorithm: Algorithm,
    /// Whether the choice must be checked again when the range of the build keys is known. If so, the
    /// conductor surveys the keys and asks [`InGpuMemory::after_survey`].
    pub(crate) survey: bool,
}

impl InGpuMemory {
    /// Chooses the algorithm without looking at the keys.
    pub(crate) fn before_survey(&self) -> BeforeSurvey {
        let slots = self.build_rows.next_power_of_two().saturating_mul(2);
        if slots.saturating_mul(self.word.tuple()) <= l2::for_table(self.l2) {
            return BeforeSurvey { algorithm: Algorithm::NoPartition, survey: false };
        }
        // Each key has its own slot, so an array has at least as many slots as there are rows.
        let survey = self.array_stays_in_cache(self.build_rows);
        BeforeSurvey { algorithm: Algorithm::Radix, survey }
    }

    /// Chooses the algorithm after a survey, by the smallest and the largest build key.
    pub(crate) fn after_survey(&self, (min, max): (u64, u64)) -> Algorithm {
        match is_array(self.build_rows, (min, max)) && self.array_stays_in_cache(max - min + 1) {
            true => Algorithm::NoPartition,
            false => Algorithm::Radix,
        }
    }

    fn array_stays_in_cache(&self, slots: u64) -> bool {
        slots.saturating_mul(self.word.bytes()) <= l2::for_array(self.l2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(build_rows: u64, word: Width) -> InGpuMemory {
        InGpuMemory { build_rows, word, l2: 50 << 20 }
    }

    #[test]
    fn the_cache_decides_before_the_survey() {
        let chosen = |rows, word| {
            let chosen = facts(rows, word).before_survey();
            (chosen.algorithm, chosen.survey)
        };
        assert_eq!(chosen(0, Width::W64), (Algorithm::NoPartition, false));
        // 2^19 rows need 2^20 slots of 16 bytes, which is 16 of 25 MiB.
        assert_eq!(chosen(1 << 19, Width::W64), (Algorithm::NoPartition, false));
        assert_eq!(chosen((1 << 19) + 1, Width::W64), (Algorithm::Radix, true));
        assert_eq!(chosen(1 << 20, Width::W32), (Algorithm::NoPartition, false));
        // 50 MiB hold 6,553,600 words of 8 bytes.
        assert_eq!(chosen(6_553_600, Width::W64), (Algorithm::Radix, true));
        assert_eq!(chosen(6_553_601, Width::W64), (Algorithm::Radix, false));
        assert_eq!(chosen(6_553_601, Width::W32), (Algorithm::Radix, true));
        assert_eq!(chosen(u64::MAX / 4, Width::W64), (Algorithm::Radix, false));
    }

    #[test]
    fn the_range_of_the_keys_decides_after_the_survey() {
        let facts = facts(1 << 22, Width::W64);
        assert_eq!(facts.after_survey((0, u64::MAX)), Algorithm::Radix);
        assert_eq!(facts.after_survey((5, 4 + (1 << 22))), Algorithm::NoPartition);
        assert_eq!(facts.after_survey((1, 6_553_600)), Algorithm::NoPartition);
        assert_eq!(facts.after_survey((0, 6_553_600)), Algorithm::Radix);
    }
}

//! Words and tuples for the stages of the simulated device: the twin of `kernels/word.cuh`.

use super::memory::{Space, nth};
use crate::device::abi::{Columns, Mixing};
use crate::error::Result;
use crate::memory::Plain;
use crate::word::{KeyWord, Mixer};

/// A word for which stages are made.
pub(super) trait DeviceWord: KeyWord {
    /// Returns the word, mixed with a stage's multipliers. Multipliers that were not set would map all words
    /// to one place.
    fn mixed_by(self, mixing: Mixing) -> Self {
        debug_assert!(mixing.first & mixing.second & 1 == 1, "multipliers are odd: {mixing:?}");
        self.mix(Mixer::of(mixing.first, mixing.second))
    }
    /// Returns the word as a 64-bit number. With `sign`, a 32-bit word is signed.
    fn widen(self, sign: bool) -> u64;
}

impl DeviceWord for u32 {
    fn widen(self, sign: bool) -> u64 {
        if sign { self as i32 as u64 } else { u64::from(self) }
    }
}

impl DeviceWord for u64 {
    fn widen(self, _sign: bool) -> u64 {
        self
    }
}

/// A key and a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub(super) struct Tuple<W> {
    pub(super) key: W,
    pub(super) value: W,
}

// SAFETY: two integers of the same width: no padding, and every bit pattern is valid.
unsafe impl<W: KeyWord> Plain for Tuple<W> {}

/// The rows of one side: tuples if there are any, otherwise columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub(super) columns: Columns,
    pub(super) tuples: u64,
}

impl Source {
    /// Reads keys and values of some rows. Keys are not mixed here: those in columns are raw.
    pub(super) fn read<W: DeviceWord>(
        &self,
        space: &Space,
        from: u64,
        rows: u64,
    ) -> Result<Vec<Tuple<W>>> {
        if self.tuples != 0 {
            return space.tuples(nth::<Tuple<W>>(self.tuples, from), rows, "source tuples");
        }
        let keys = space.read::<W>(nth::<W>(self.columns.keys, from), rows, "source keys")?;
        let values = self.values(space, from, rows)?;
        Ok(keys.into_iter().zip(values).map(|(key, value)| Tuple { key, value }).collect())
    }

    /// Reads only the values, for stages that do not need keys.
    pub(super) fn values<W: DeviceWord>(
        &self,
        space: &Space,
        from: u64,
        rows: u64,
    ) -> Result<Vec<W>> {
        if self.tuples != 0 {
            return Ok(self.read(space, from, rows)?.iter().map(|t| t.value).collect());
        }
        if self.columns.values != 0 {
            return space.read(nth::<W>(self.columns.values, from), rows, "source values");
        }
        let first = self.columns.first.wrapping_add(from);
        Ok((0..rows).map(|row| W::from_u64(first.wrapping_add(row))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn stages_mix_as_the_host_does_and_back() {
        let mut random = Rng::with_seed(1);
        for seed in 0..50 {
            let (wide, narrow) = (Mixer::<u64>::new(seed), Mixer::<u32>::new(seed));
            let (by, back) = (Mixing::of(wide), Mixing::of(wide.inverse()));
            let (by_narrow, back_narrow) = (Mixing::of(narrow), Mixing::of(narrow.inverse()));
            for word in (0..100).map(|_| random.u64(..)).chain([0, 1, u64::MAX, 1 << 63]) {
                assert_eq!(word.mixed_by(by), word.mix(wide));
                assert_eq!(word.mixed_by(by).mixed_by(back), word);
                let word = word as u32;
                assert_eq!(word.mixed_by(by_narrow), word.mix(narrow));
                assert_eq!(word.mixed_by(by_narrow).mixed_by(back_narrow), word);
            }
        }
    }
}

//! Words and tuples as the simulated device's stages see them: the twin of `kernels/word.cuh`.

use super::memory::{Space, nth};
use crate::device::abi::Columns;
use crate::error::Result;
use crate::key::KeyWord;
use crate::memory::Plain;

/// A word that stages are made for.
pub(super) trait DeviceWord: KeyWord {
    /// Undoes [`mix`](KeyWord::mix).
    fn unmix(self) -> Self;
    /// The word as a 64-bit number; a signed one of 32 bits where `sign` says so.
    fn widen(self, sign: bool) -> u64;
}

impl DeviceWord for u32 {
    fn unmix(self) -> u32 {
        let mut x = self;
        x = (x ^ (x >> 16)).wrapping_mul(0x4302_1123);
        x = (x ^ (x >> 15) ^ (x >> 30)).wrapping_mul(0x1d69_e2a5);
        x ^ (x >> 16)
    }

    fn widen(self, sign: bool) -> u64 {
        if sign { self as i32 as u64 } else { u64::from(self) }
    }
}

impl DeviceWord for u64 {
    fn unmix(self) -> u64 {
        let mut x = self;
        x = (x ^ (x >> 32)).wrapping_mul(0xcfee_444d_8b59_a89b);
        x = (x ^ (x >> 32)).wrapping_mul(0xcfee_444d_8b59_a89b);
        x ^ (x >> 32)
    }

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

// SAFETY: two integers of one width: no padding, and any bits will do.
unsafe impl<W: KeyWord> Plain for Tuple<W> {}

/// Rows of one side: columns, or tuples where there are some.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub(super) columns: Columns,
    pub(super) tuples: u64,
}

impl Source {
    /// Keys and values of some rows. Keys are as they lie there: raw in columns.
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

    /// Values alone: what a stage reads that does not ask for keys.
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
    use super::super::random::Random;
    use super::*;

    #[test]
    fn unmixing_undoes_mixing() {
        let mut random = Random::new(1);
        for word in (0..1000).map(|_| random.next()).chain([0, 1, u64::MAX, 1 << 63]) {
            assert_eq!(word.mix().unmix(), word);
            assert_eq!((word as u32).mix().unmix(), word as u32);
        }
    }
}

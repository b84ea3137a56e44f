//! When must one copy become several? The driver requires that each end of a copy lies in one registration
//! or one allocation. [Pinned pages](super::pages) and [ranges](super::range) do not always satisfy this.

use cudarc::driver::sys::CUresult;

/// A copy of some bytes, and its cuts.
pub(super) struct Pieces {
    bytes: u64,
    /// Offsets inside the copy, in any order.
    cuts: Vec<u64>,
}

impl Pieces {
    /// A copy in one piece.
    pub(super) fn of(bytes: u64) -> Pieces {
        Pieces { bytes, cuts: Vec::new() }
    }

    /// Adds cuts at some offsets. Offsets outside the copy are ignored.
    pub(super) fn cut(mut self, at: impl IntoIterator<Item = u64>) -> Pieces {
        let inside = 1..self.bytes;
        self.cuts.extend(at.into_iter().filter(|cut| inside.contains(cut)));
        self
    }

    /// Returns the start and the bytes of each piece, in order.
    pub(super) fn list(mut self) -> impl Iterator<Item = (u64, u64)> {
        self.cuts.sort_unstable();
        self.cuts.dedup();
        let ends = self.cuts.into_iter().chain((self.bytes > 0).then_some(self.bytes));
        ends.scan(0, |begin, end| {
            let piece = (*begin, end - *begin);
            *begin = end;
            Some(piece)
        })
    }

    /// Copies piece by piece, until the first failure.
    pub(super) fn copy(self, mut one: impl FnMut(u64, u64) -> CUresult) -> CUresult {
        let codes = self.list().map(|(at, bytes)| one(at, bytes));
        let mut failed = codes.filter(|&code| code != CUresult::CUDA_SUCCESS);
        failed.next().unwrap_or(CUresult::CUDA_SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(bytes: u64, cuts: &[u64]) -> Vec<(u64, u64)> {
        Pieces::of(bytes).cut(cuts.iter().copied()).list().collect()
    }

    #[test]
    fn pieces_cover_the_copy_once() {
        assert_eq!(list(10, &[]), [(0, 10)]);
        assert_eq!(list(10, &[7, 3, 7]), [(0, 3), (3, 4), (7, 3)]);
        assert_eq!(list(10, &[0, 10, 11]), [(0, 10)]);
        assert_eq!(list(0, &[0, 1]), []);
        assert_eq!(list(1, &[0, 1]), [(0, 1)]);
    }

    #[test]
    fn the_first_failure_ends_the_copy() {
        let mut copied = Vec::new();
        let code = Pieces::of(9).cut([3, 6]).copy(|at, _| {
            copied.push(at);
            if at == 3 { CUresult::CUDA_ERROR_INVALID_VALUE } else { CUresult::CUDA_SUCCESS }
        });
        assert_eq!((code, copied), (CUresult::CUDA_ERROR_INVALID_VALUE, vec![0, 3]));
    }
}

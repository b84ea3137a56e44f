//! Candidate pairs, as a walk writes them.

use std::mem::MaybeUninit;

use crate::partition::RowId;

/// Candidate pairs: what the build side's tuple has (the id of its row, or what was carried of it)
/// and the probe row, side by side.
pub(crate) struct Pairs<B> {
    pub(crate) build: Vec<B>,
    pub(crate) probe: Vec<u64>,
    /// Pairs that were only counted.
    pub(crate) counted: u64,
    /// The probe rows follow one another without a gap.
    pub(crate) run: bool,
}

impl<B> Default for Pairs<B> {
    fn default() -> Self {
        Pairs { build: Vec::new(), probe: Vec::new(), counted: 0, run: false }
    }
}

impl<B> Pairs<B> {
    pub(crate) fn clear(&mut self) {
        self.build.clear();
        self.probe.clear();
        self.run = false;
    }

    pub(crate) fn len(&self) -> usize {
        self.build.len()
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, build: B, probe: u64) {
        self.build.push(build);
        self.probe.push(probe);
    }
}

/// Appends pairs up to a cap, for which room was made before.
pub(super) struct Writer<'p, B> {
    pairs: &'p mut Pairs<B>,
    build: *mut B,
    probe: *mut u64,
    len: usize,
    cap: usize,
}

impl<'p, B: RowId> Writer<'p, B> {
    pub(super) fn new(pairs: &'p mut Pairs<B>, cap: usize) -> Self {
        let len = pairs.len();
        pairs.build.reserve(cap.saturating_sub(len));
        pairs.probe.reserve(cap.saturating_sub(len));
        let (build, probe) = (pairs.build.as_mut_ptr(), pairs.probe.as_mut_ptr());
        Writer { pairs, build, probe, len, cap }
    }

    #[inline(always)]
    pub(super) fn room(&self) -> usize {
        self.cap.saturating_sub(self.len)
    }

    #[inline(always)]
    pub(super) fn push<I: RowId>(&mut self, build: I, probe: u64) {
        assert!(self.len < self.cap);
        // SAFETY: both vectors have room for `cap` values, and were not touched since.
        unsafe {
            self.build.add(self.len).write(B::from_u64(build.to_u64()));
            self.probe.add(self.len).write(probe);
        }
        self.len += 1;
    }

    /// The places of the next `some` build values.
    ///
    /// # Safety
    /// There is room for so many.
    #[inline(always)]
    pub(super) unsafe fn spare<'s>(&self, some: usize) -> &'s mut [MaybeUninit<B>] {
        debug_assert!(some <= self.room());
        // SAFETY: the vector has room for `cap` values, was not touched since, and lives as long as
        // this writer, which the caller uses these places with.
        unsafe { std::slice::from_raw_parts_mut(self.build.add(self.len).cast(), some) }
    }

    /// Of `some` build values that were written to the [`spare`](Writer::spare) places, keeps those
    /// whose bit is set in `hits`, and writes their rows.
    ///
    /// # Safety
    /// They were written.
    #[inline(always)]
    pub(super) unsafe fn keep(&mut self, some: usize, hits: u64, row: impl Fn(usize) -> u64) {
        debug_assert!(some <= self.room() && some <= u64::BITS as usize);
        // SAFETY: there is room for `some` values in both vectors, and the kept ones are fewer.
        unsafe {
            let (build, probe) = (self.build.add(self.len), self.probe.add(self.len));
            if hits.count_ones() as usize == some {
                (0..some).for_each(|i| probe.add(i).write(row(i)));
                self.len += some;
                return;
            }
            let mut kept = 0;
            for i in 0..some {
                build.add(kept).write(build.add(i).read());
                probe.add(kept).write(row(i));
                kept += (hits >> i & 1) as usize;
            }
            self.len += kept;
        }
    }
}

impl<B> Drop for Writer<'_, B> {
    fn drop(&mut self) {
        // SAFETY: the first `len` values of both were written.
        unsafe {
            self.pairs.build.set_len(self.len);
            self.pairs.probe.set_len(self.len);
        }
    }
}

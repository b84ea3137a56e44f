//! Candidate pairs, as a probe writes them.
//!
//! While every probe row finds exactly one build row, the probe rows are consecutive, and only the first one
//! is stored. This is a *run*. The first row without a match ends it, and then the probe rows so far are
//! written out.

use std::borrow::Cow;
use std::mem::MaybeUninit;

use crate::partition::RowId;

/// Candidate pairs: the values of build tuples (row ids or inlined columns) and the probe rows, side by side.
pub(crate) struct Pairs<B> {
    pub(crate) build: Vec<B>,
    /// The probe rows. Empty during a run.
    pub(crate) probe: Vec<u64>,
    /// The number of pairs that were only counted.
    pub(crate) counted: u64,
    /// The first probe row, if the probe rows are consecutive.
    pub(crate) run: Option<u64>,
}

impl<B> Default for Pairs<B> {
    fn default() -> Self {
        Pairs { build: Vec::new(), probe: Vec::new(), counted: 0, run: None }
    }
}

impl<B> Pairs<B> {
    pub(crate) fn clear(&mut self) {
        self.build.clear();
        self.probe.clear();
        self.run = None;
    }

    /// Returns the probe rows.
    pub(crate) fn probe_rows(&self) -> Cow<'_, [u64]> {
        match self.run {
            Some(first) => Cow::Owned((first..first + self.len() as u64).collect()),
            None => Cow::Borrowed(&self.probe),
        }
    }

    /// Ends a run: writes out its probe rows.
    pub(crate) fn spell_out(&mut self) {
        if let Some(first) = self.run.take() {
            self.probe.clear();
            self.probe.extend(first..first + self.len() as u64);
        }
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

/// Appends pairs up to a cap. The vectors have capacity for all of them.
pub(super) struct Writer<'p, B> {
    pairs: &'p mut Pairs<B>,
    build: *mut B,
    probe: *mut u64,
    len: usize,
    cap: usize,
    /// Whether the probe rows are a run so far.
    run: bool,
}

impl<'p, B: RowId> Writer<'p, B> {
    /// Creates a writer that appends to `pairs`. `next` is the row of the next key, if the rows of the keys
    /// after it are consecutive. Then the pairs can be a run.
    pub(super) fn new(pairs: &'p mut Pairs<B>, cap: usize, next: Option<u64>) -> Self {
        let len = pairs.len();
        pairs.run = match (pairs.run, next) {
            (_, Some(next)) if len == 0 => Some(next),
            (Some(first), Some(next)) if first + len as u64 == next => Some(first),
            _ => {
                pairs.spell_out();
                None
            }
        };
        pairs.build.reserve(cap.saturating_sub(len));
        let (build, run) = (pairs.build.as_mut_ptr(), pairs.run.is_some());
        let mut writer = Writer { pairs, build, probe: std::ptr::null_mut(), len, cap, run };
        if !run {
            writer.make_room();
        }
        writer
    }

    /// Reserves capacity for further probe rows.
    fn make_room(&mut self) {
        self.pairs.probe.reserve(self.cap.saturating_sub(self.pairs.probe.len()));
        self.probe = self.pairs.probe.as_mut_ptr();
    }

    /// Ends the run: writes out its rows.
    #[cold]
    #[inline(never)]
    fn spell_out(&mut self) {
        if let Some(first) = self.pairs.run.take() {
            self.pairs.probe.clear();
            self.pairs.probe.extend(first..first + self.len as u64);
        }
        self.make_room();
        self.run = false;
    }

    #[inline(always)]
    pub(super) fn room(&self) -> usize {
        self.cap.saturating_sub(self.len)
    }

    #[inline(always)]
    pub(super) fn push<I: RowId>(&mut self, build: I, probe: u64) {
        assert!(self.len < self.cap && !self.run);
        // SAFETY: both vectors have capacity for `cap` values, and were not changed since it was reserved.
        unsafe {
            self.build.add(self.len).write(B::from_u64(build.to_u64()));
            self.probe.add(self.len).write(probe);
        }
        self.len += 1;
    }

    /// Returns the memory of the next `some` build values.
    ///
    /// # Safety
    /// There is room for `some` values.
    #[inline(always)]
    pub(super) unsafe fn spare<'s>(&self, some: usize) -> &'s mut [MaybeUninit<B>] {
        debug_assert!(some <= self.room());
        // SAFETY: the vector has capacity for `cap` values, was not changed since it was reserved, and lives
        // as long as this writer. The caller uses the slice only while the writer exists.
        unsafe { std::slice::from_raw_parts_mut(self.build.add(self.len).cast(), some) }
    }

    /// Keeps those of `some` build values in the [`spare`](Writer::spare) memory whose bit is set in `hits`.
    /// Writes their probe rows, unless they continue the run.
    ///
    /// # Safety
    /// All `some` values were written.
    #[inline(always)]
    pub(super) unsafe fn keep(&mut self, some: usize, hits: u64, row: impl Fn(usize) -> u64) {
        debug_assert!(some <= self.room() && some <= u64::BITS as usize);
        let all = hits.count_ones() as usize == some;
        if self.run {
            if all {
                self.len += some;
                return;
            }
            self.spell_out();
        }
        // SAFETY: both vectors have room for `some` values, and at most as many are kept.
        unsafe {
            let (build, probe) = (self.build.add(self.len), self.probe.add(self.len));
            if all {
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
        // SAFETY: the first `len` values of both were written. During a run, no probe rows were written, and
        // the length is 0.
        unsafe {
            self.pairs.build.set_len(self.len);
            self.pairs.probe.set_len(if self.run { 0 } else { self.len });
        }
    }
}

//! Columns of words in host memory, and sides made of them.

use std::ops::Range;
use std::sync::Arc;

use crate::device::Session;
use crate::device::{HostView, Pinned};
use crate::error::{Error, Result};
use crate::memory::Plain;
use crate::word::Width;

/// A column of words in host memory.
#[derive(Clone)]
pub(crate) struct HostColumn(Storage);

#[derive(Clone)]
enum Storage {
    /// One piece of memory. If it is pinned: the pinned memory, and the column's first byte in it.
    Together(HostView, Option<(Arc<Pinned>, usize)>),
    /// Batches, and the range of their bytes that is the column.
    InBatches(Arc<Batches>, Range<u64>),
}

/// Batches of words.
struct Batches {
    views: Vec<HostView>,
    /// The number of bytes before each batch, and the total.
    starts: Vec<u64>,
    /// The bias to add to each word, modulo its width.
    plus: u64,
}

impl HostColumn {
    /// Creates a column in memory that is not known to be pinned.
    ///
    /// # Safety
    /// The memory must stay allocated and unchanged for as long as the column is used.
    pub(crate) unsafe fn pageable(view: HostView) -> HostColumn {
        HostColumn(Storage::Together(view, None))
    }

    /// Creates a column without words.
    pub(super) fn empty() -> HostColumn {
        HostColumn(Storage::Together(HostView::of::<u8>(&[]), None))
    }

    /// Creates a column from batches of whole, aligned words. The transfer adds the bias `plus` to each
    /// word. Only `staged-copy` can transfer it.
    ///
    /// # Safety
    /// The same as for [`HostColumn::pageable`].
    pub(crate) unsafe fn in_batches(views: Vec<HostView>, plus: u64) -> HostColumn {
        let mut starts = vec![0];
        for view in &views {
            starts.push(starts[starts.len() - 1] + view.bytes);
        }
        let bytes = 0..starts[views.len()];
        HostColumn(Storage::InBatches(Arc::new(Batches { views, starts, plus }), bytes))
    }

    /// Creates a column from `bytes` bytes of pinned memory, starting at byte `at`.
    pub(crate) fn pinned(memory: &Arc<Pinned>, at: usize, bytes: u64) -> HostColumn {
        let start = memory.start.wrapping_add(at);
        let bytes = bytes.min((memory.len - at.min(memory.len)) as u64);
        let pinned = Some((Arc::clone(memory), at));
        HostColumn(Storage::Together(HostView { start, bytes }, pinned))
    }

    /// Returns whether the column lies in one piece.
    pub(super) fn in_one_piece(&self) -> bool {
        matches!(self.0, Storage::Together(..))
    }

    /// Returns the bias to add to each word, modulo its width.
    pub(super) fn plus(&self) -> u64 {
        match &self.0 {
            Storage::Together(..) => 0,
            Storage::InBatches(batches, _) => batches.plus,
        }
    }

    /// Returns some words of a column that lies in one piece. The words must be as wide as `W`.
    ///
    /// # Safety
    /// The constructor's safety contract must still hold.
    pub(crate) unsafe fn words<'a, W: Plain>(&self, rows: Range<u64>) -> Result<&'a [W]> {
        let size = size_of::<W>() as u64;
        let part = self.part(&(rows.start * size..rows.end * size))?;
        if !part.start.cast::<W>().is_aligned() || part.bytes != (rows.end - rows.start) * size {
            return Err(Error::internal("a column has fewer words than rows"));
        }
        // SAFETY: the checks above prove the length and the alignment; the caller keeps the memory alive.
        Ok(unsafe { std::slice::from_raw_parts(part.start.cast(), (part.bytes / size) as usize) })
    }

    /// Returns some words without the bias. Copies them to `scratch` if they lie in several batches.
    ///
    /// # Safety
    /// The same as for [`HostColumn::words`].
    pub(super) unsafe fn words_or<'a, W: Plain + Default>(
        &self,
        rows: Range<u64>,
        scratch: &'a mut Vec<W>,
    ) -> Result<&'a [W]> {
        let size = size_of::<W>() as u64;
        let bytes = rows.start * size..rows.end * size;
        if let Some(part) =
            self.stretch(bytes.start).filter(|part| part.bytes >= bytes.end - bytes.start)
        {
            let start = part.start.cast::<W>();
            if start.is_aligned() {
                let count = (rows.end - rows.start) as usize;
                // SAFETY: the part has `count` aligned words of a plain type; the caller keeps the memory
                // alive.
                return Ok(unsafe { std::slice::from_raw_parts(start, count) });
            }
        }
        let count = (rows.end - rows.start) as usize;
        if scratch.len() < count {
            scratch.resize(count, W::default());
        }
        let to = &mut scratch[..count];
        // SAFETY: `to` is as long as the words, and every bit pattern is a valid `W`.
        unsafe { self.copy(bytes, to.as_mut_ptr().cast()) }?;
        Ok(to)
    }

    /// Copies some bytes, without adding the bias.
    ///
    /// # Safety
    /// The constructor's safety contract must still hold, and `to` must have room for the bytes.
    pub(super) unsafe fn copy(&self, bytes: Range<u64>, to: *mut u8) -> Result<()> {
        let mut at = bytes.start;
        while at < bytes.end {
            let part = self.stretch(at).filter(|part| part.bytes > 0);
            let part = part.ok_or_else(|| Error::internal("a column is too short"))?;
            let some = part.bytes.min(bytes.end - at);
            let to = to.wrapping_add((at - bytes.start) as usize);
            // SAFETY: these are bytes of the column, and the caller guarantees room for them.
            unsafe { std::ptr::copy_nonoverlapping(part.start, to, some as usize) };
            at += some;
        }
        Ok(())
    }

    /// Returns the longest piece that starts at byte `at`, or `None` at the end of the column.
    fn stretch(&self, at: u64) -> Option<HostView> {
        match &self.0 {
            Storage::Together(view, _) => (at < view.bytes).then(|| view.part(at, view.bytes)),
            Storage::InBatches(batches, bytes) => {
                let at = bytes.start + at;
                if at >= bytes.end {
                    return None;
                }
                // Empty batches have the same start as the next batch, so this skips them.
                let batch = batches.starts.partition_point(|&start| start <= at) - 1;
                let view = batches.views.get(batch)?;
                Some(view.part(at - batches.starts[batch], bytes.end - at))
            }
        }
    }

    /// Returns some bytes of a column that lies in one piece.
    pub(super) fn part(&self, bytes: &Range<u64>) -> Result<HostView> {
        match &self.0 {
            Storage::Together(view, _) => Ok(view.part(bytes.start, bytes.end - bytes.start)),
            Storage::InBatches(..) => {
                Err(Error::internal("a column in batches can only be staged"))
            }
        }
    }

    /// Returns the whole column, which must lie in one piece.
    pub(super) fn whole(&self) -> Result<HostView> {
        self.part(&(0..u64::MAX))
    }

    /// Returns the pinned memory of the column and the offset in it. Pins the column first if necessary.
    pub(super) fn pin(&self, session: &Session<'_>) -> Result<(Arc<Pinned>, usize)> {
        match &self.0 {
            Storage::Together(_, Some(pinned)) => Ok(pinned.clone()),
            // SAFETY: the creator of the column keeps its memory alive.
            _ => Ok((unsafe { session.device.pin(self.whole()?) }?, 0)),
        }
    }

    /// Returns the part of the column with these bytes.
    fn between(&self, bytes: Range<u64>) -> HostColumn {
        HostColumn(match &self.0 {
            Storage::Together(view, pinned) => {
                let view = view.part(bytes.start, bytes.end - bytes.start);
                let further = |(memory, at): &(Arc<Pinned>, usize)| {
                    (Arc::clone(memory), at + bytes.start as usize)
                };
                Storage::Together(view, pinned.as_ref().map(further))
            }
            Storage::InBatches(batches, all) => {
                let end = all.end.min(all.start + bytes.end);
                Storage::InBatches(Arc::clone(batches), (all.start + bytes.start).min(end)..end)
            }
        })
    }
}

/// One side in host memory: one key and one value per row. Without values, the row number is the value; the
/// device computes it.
#[derive(Clone)]
pub(crate) struct HostSide {
    pub(crate) keys: HostColumn,
    pub(crate) values: Option<HostColumn>,
    pub(crate) rows: u64,
}

impl HostSide {
    /// Returns the number of columns.
    pub(crate) fn columns(&self) -> u64 {
        1 + u64::from(self.values.is_some())
    }

    /// Returns some rows. Row `i` of the result is row `rows.start + i` of this side.
    pub(crate) fn part(&self, word: Width, rows: Range<u64>) -> HostSide {
        let bytes = rows.start * word.bytes()..rows.end * word.bytes();
        let values = self.values.as_ref().map(|values| values.between(bytes.clone()));
        HostSide { keys: self.keys.between(bytes), values, rows: rows.end - rows.start }
    }
}

//! What lies in host memory: columns of words, and sides made of them.

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
    /// In one piece, which may be part of pinned memory: of which, and from which byte on.
    Together(HostView, Option<(Arc<Pinned>, usize)>),
    /// In batches, of which these bytes are the column.
    InBatches(Arc<Batches>, Range<u64>),
}

/// Batches of words.
struct Batches {
    views: Vec<HostView>,
    /// The bytes before each, and those of all.
    starts: Vec<u64>,
    /// What each word is short of, modulo its width.
    plus: u64,
}

impl HostColumn {
    /// One in memory that is not known to be pinned.
    ///
    /// # Safety
    /// The memory is kept, and not written to, for as long as the column is used.
    pub(crate) unsafe fn pageable(view: HostView) -> HostColumn {
        HostColumn(Storage::Together(view, None))
    }

    /// One in batches of whole, aligned words, each of which is short of `plus`: for `staged-copy`.
    ///
    /// # Safety
    /// As of [`HostColumn::pageable`].
    pub(crate) unsafe fn in_batches(views: Vec<HostView>, plus: u64) -> HostColumn {
        let mut starts = vec![0];
        for view in &views {
            starts.push(starts[starts.len() - 1] + view.bytes);
        }
        let bytes = 0..starts[views.len()];
        HostColumn(Storage::InBatches(Arc::new(Batches { views, starts, plus }), bytes))
    }

    /// `bytes` of pinned memory from `at` on.
    pub(crate) fn pinned(memory: &Arc<Pinned>, at: usize, bytes: u64) -> HostColumn {
        let start = memory.start.wrapping_add(at);
        let bytes = bytes.min((memory.len - at.min(memory.len)) as u64);
        let pinned = Some((Arc::clone(memory), at));
        HostColumn(Storage::Together(HostView { start, bytes }, pinned))
    }

    /// Whether it is known to lie in pinned memory.
    fn is_pinned(&self) -> bool {
        matches!(self.0, Storage::Together(_, Some(_)))
    }

    /// Whether it lies in one piece.
    pub(super) fn in_one_piece(&self) -> bool {
        matches!(self.0, Storage::Together(..))
    }

    /// What each of its words is short of, modulo its width.
    pub(super) fn plus(&self) -> u64 {
        match &self.0 {
            Storage::Together(..) => 0,
            Storage::InBatches(batches, _) => batches.plus,
        }
    }

    /// Some of its words, which are as wide as `W` and lie in one piece.
    ///
    /// # Safety
    /// What the column was made with is still so.
    pub(crate) unsafe fn words<'a, W: Plain>(&self, rows: Range<u64>) -> Result<&'a [W]> {
        let size = size_of::<W>() as u64;
        let part = self.part(&(rows.start * size..rows.end * size))?;
        if !part.start.cast::<W>().is_aligned() || part.bytes != (rows.end - rows.start) * size {
            return Err(Error::Worker("a column has fewer words than rows".to_string()));
        }
        // SAFETY: so many words of a plain type, as was checked; kept, as the caller promises.
        Ok(unsafe { std::slice::from_raw_parts(part.start.cast(), (part.bytes / size) as usize) })
    }

    /// Some of its words as they lie, put together in `scratch` where they are in several batches.
    ///
    /// # Safety
    /// As of [`HostColumn::words`].
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
                // SAFETY: so many words of a plain type; kept, as the caller promises.
                return Ok(unsafe { std::slice::from_raw_parts(start, count) });
            }
        }
        let count = (rows.end - rows.start) as usize;
        if scratch.len() < count {
            scratch.resize(count, W::default());
        }
        let to = &mut scratch[..count];
        // SAFETY: as long as the words, of a type for which any bytes are a value.
        unsafe { self.copy(bytes, to.as_mut_ptr().cast()) }?;
        Ok(to)
    }

    /// Copies some of its bytes, as they lie.
    ///
    /// # Safety
    /// What the column was made with is still so, and `to` has room for so many bytes.
    pub(super) unsafe fn copy(&self, bytes: Range<u64>, to: *mut u8) -> Result<()> {
        let mut at = bytes.start;
        while at < bytes.end {
            let part = self.stretch(at).filter(|part| part.bytes > 0);
            let part = part.ok_or_else(|| Error::Worker("a column is too short".to_string()))?;
            let some = part.bytes.min(bytes.end - at);
            let to = to.wrapping_add((at - bytes.start) as usize);
            // SAFETY: bytes of the column, and room for them, as the caller promises.
            unsafe { std::ptr::copy_nonoverlapping(part.start, to, some as usize) };
            at += some;
        }
        Ok(())
    }

    /// What lies in one piece from a byte on; None from its end on.
    fn stretch(&self, at: u64) -> Option<HostView> {
        match &self.0 {
            Storage::Together(view, _) => (at < view.bytes).then(|| view.part(at, view.bytes)),
            Storage::InBatches(batches, bytes) => {
                let at = bytes.start + at;
                if at >= bytes.end {
                    return None;
                }
                // Empty batches begin where the next one does.
                let batch = batches.starts.partition_point(|&start| start <= at) - 1;
                let view = batches.views.get(batch)?;
                Some(view.part(at - batches.starts[batch], bytes.end - at))
            }
        }
    }

    /// Some of its bytes, in one piece.
    pub(super) fn part(&self, bytes: &Range<u64>) -> Result<HostView> {
        match &self.0 {
            Storage::Together(view, _) => Ok(view.part(bytes.start, bytes.end - bytes.start)),
            Storage::InBatches(..) => {
                Err(Error::Worker("a column in batches can only be staged".to_string()))
            }
        }
    }

    /// All of it, in one piece.
    pub(super) fn whole(&self) -> Result<HostView> {
        self.part(&(0..u64::MAX))
    }

    /// The pinned memory it lies in, and where: pinned now where it was not.
    pub(super) fn pin(&self, session: &Session<'_>) -> Result<(Arc<Pinned>, usize)> {
        match &self.0 {
            Storage::Together(_, Some(pinned)) => Ok(pinned.clone()),
            // SAFETY: who made the column keeps its memory.
            _ => Ok((unsafe { session.device.pin(self.whole()?) }?, 0)),
        }
    }

    /// The words from one byte to another.
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

/// One side in host memory: a key a row, and a value; without values, the row's number, which is made
/// on the device.
#[derive(Clone)]
pub(crate) struct HostSide {
    pub(crate) keys: HostColumn,
    pub(crate) values: Option<HostColumn>,
    pub(crate) rows: u64,
}

impl HostSide {
    /// How many columns it has.
    pub(crate) fn columns(&self) -> u64 {
        1 + u64::from(self.values.is_some())
    }

    /// Some of its rows: their numbers are those they have here plus `rows.start`.
    pub(crate) fn part(&self, word: Width, rows: Range<u64>) -> HostSide {
        let bytes = rows.start * word.bytes()..rows.end * word.bytes();
        let values = self.values.as_ref().map(|values| values.between(bytes.clone()));
        HostSide { keys: self.keys.between(bytes), values, rows: rows.end - rows.start }
    }

    /// Whether all of it is known to lie in pinned memory.
    pub(super) fn pinned(&self) -> bool {
        self.keys.is_pinned() && self.values.as_ref().is_none_or(HostColumn::is_pinned)
    }
}

//! Short pinned buffers that workers fill and send, one after the other.
//!
//! ```text
//!   worker ─► the oldest buffer, once its copy is done ─► filled ─► copied ─► the newest buffer
//! ```
//!
//! There are two a worker, and all of them together fit the processor's last cache, if it is not very
//! small. So what a worker
//! writes is still there when the copy engine reads it, and is soon written again: the host's memory
//! is read once for each byte that crosses, where long buffers would have it written and read as well.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::device::Session;
use crate::device::{Device, Event, Pinned, Stream, View};
use crate::error::{Error, Result};
use crate::schedule::{Workers, lock};

/// Bytes of a buffer, at most: long enough for the copy engine not to wait between two of them, nor
/// workers for one another when they hand them over.
const BLOCK: usize = 4 << 20;
/// Where the cache is small, buffers are no shorter than this.
const SHORTEST: usize = 512 << 10;
/// The part of what a memory limit leaves, one of so many, that all buffers together may take.
const SHARE: u64 = 8;

/// See the [module](self).
pub(super) struct StagingPool<'a> {
    device: &'a dyn Device,
    stream: Stream,
    /// Bytes of a buffer.
    block: usize,
    /// How many there are.
    count: u64,
    /// Oldest first, each with the event that says that its copy is done.
    buffers: Mutex<VecDeque<(Arc<Pinned>, Option<Event>)>>,
}

impl<'a> StagingPool<'a> {
    /// Buffers for the blocks of a chunk of so many bytes, each at least as long as a `unit`. Under a
    /// memory limit that leaves little, buffers are shorter, and then fewer: one for each worker.
    pub(super) fn new(
        session: &Session<'a>,
        workers: &Workers,
        [bytes, unit]: [u64; 2],
    ) -> Result<StagingPool<'a>> {
        let count = 2 * workers.threads() + 2;
        let cache = crate::machine::Machine::detect().last_level as usize;
        let block = (cache / 2 / count).clamp(SHORTEST, BLOCK) / SHORTEST * SHORTEST;
        let wish = (bytes.max(1)).min(block as u64) as usize;
        let least = (unit as usize).min(wish);
        let share = session.portion(SHARE, wish.saturating_mul(count))?;
        let bytes = (share / count).clamp(least, wish);
        let count = (share / bytes).clamp(workers.threads(), count);
        let buffer = |_| Ok((session.pinned(bytes, "staging buffers")?, None));
        let buffers = (0..count).map(buffer).collect::<Result<_>>()?;
        let (device, stream) = (session.device, session.copies);
        Ok(StagingPool {
            device,
            stream,
            block: bytes,
            count: count as u64,
            buffers: Mutex::new(buffers),
        })
    }

    /// Fills a buffer, and sends as many bytes as that says to the first of `to`.
    pub(super) fn send(&self, to: View, fill: impl FnOnce(*mut u8) -> Result<usize>) -> Result<()> {
        let oldest = self.buffers().pop_front();
        // Each worker has one at most, and there are more.
        let (buffer, sent) =
            oldest.ok_or_else(|| Error::Worker("no buffer is left".to_string()))?;
        if let Some(sent) = sent {
            self.device.wait_for(sent)?;
        }
        let bytes = fill(buffer.start)? as u64;
        // Together, so that buffers are in the order of their copies.
        let mut buffers = self.buffers();
        self.device.copy_in(self.stream, &buffer, 0, to.part(0, bytes))?;
        let sent = self.device.record(self.stream)?;
        buffers.push_back((buffer, Some(sent)));
        Ok(())
    }

    /// Cuts a chunk of so many bytes into what buffers take: whole units, where `unit` is not longer
    /// than a buffer. The last ones are half as long, so that all workers end nearly together.
    pub(super) fn cut(&self, bytes: u64, unit: u64) -> Vec<Range<u64>> {
        let block = self.block as u64;
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < bytes {
            let wish = if bytes - at > block * self.count / 2 { block } else { block.div_ceil(2) };
            let length = (wish / unit).max(1).saturating_mul(unit);
            let end = bytes.min(at + length);
            pieces.push(at..end);
            at = end;
        }
        pieces
    }

    fn buffers(&self) -> std::sync::MutexGuard<'_, VecDeque<(Arc<Pinned>, Option<Event>)>> {
        lock(&self.buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::simulated::{Settings, Simulated, TINY};
    use crate::word::Width;

    #[test]
    fn pieces_are_whole_units_and_get_shorter() {
        let settings = Settings { memory: 1 << 20, shape: TINY, seed: 1, ..Settings::default() };
        let device = Simulated::new(settings);
        let session = Session::new(&device, Width::W64).unwrap();
        let workers = Workers::new(2, Arc::default());
        for bytes in [1, 8, 100 << 10, (40 << 20) + 24, 512 << 20] {
            let staging = StagingPool::new(&session, &workers, [bytes, 128 << 10]).unwrap();
            for unit in [1, 128 << 10] {
                let pieces = staging.cut(bytes, unit);
                assert_eq!(pieces.iter().map(|piece| piece.end - piece.start).sum::<u64>(), bytes);
                let mut at = 0;
                for piece in &pieces {
                    assert_eq!((piece.start, piece.start % unit), (at, 0));
                    assert!(piece.end - piece.start <= staging.block as u64);
                    at = piece.end;
                }
                let length = |i: usize| pieces[i].end - pieces[i].start;
                assert!((1..pieces.len()).all(|i| length(i) <= length(i - 1)));
            }
        }
    }
}

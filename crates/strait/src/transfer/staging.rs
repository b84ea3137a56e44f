//! A pool of short pinned buffers that workers fill and send, one after the other.
//!
//! ```text
//!   worker ─► the oldest buffer, once its copy is done ─► filled ─► copied ─► the newest buffer
//! ```
//!
//! There are about two buffers per worker. All of them together fit the last-level cache, unless it is very
//! small. So a buffer's content is still in the cache when the copy engine reads it, and is soon overwritten.
//! Each byte that crosses is read from host memory once. With long buffers, it would also be written to host
//! memory and read again.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::device::Session;
use crate::device::{Device, Event, Pinned, Stream, View};
use crate::error::{Error, Result};
use crate::schedule::{Workers, lock};

/// The maximum bytes per buffer. Long enough that the copy engine has no pauses and workers rarely wait for
/// the lock of the pool.
const BLOCK: usize = 4 << 20;
/// The minimum bytes per buffer if the cache is small.
const SHORTEST: usize = 512 << 10;
/// All buffers together may take 1/8 of the memory that a limit leaves.
const SHARE: u64 = 8;

/// See the [module](self).
pub(super) struct StagingPool<'a> {
    device: &'a dyn Device,
    stream: Stream,
    /// Bytes per buffer.
    block: usize,
    /// The number of buffers.
    count: u64,
    /// The oldest first, each with the event after which its copy is done.
    buffers: Mutex<VecDeque<(Arc<Pinned>, Option<Event>)>>,
}

impl<'a> StagingPool<'a> {
    /// Allocates buffers for a chunk of `bytes` bytes. Each buffer holds at least one `unit` (or the whole
    /// chunk, if it is shorter). With little memory, buffers get shorter first. Then their number falls, down
    /// to one per worker.
    pub(super) fn new(
        session: &Session<'a>,
        workers: &Workers,
        bytes: u64,
        unit: u64,
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

    /// Fills a buffer, and copies the bytes that `fill` wrote to the start of `to`. `fill` returns their
    /// number.
    pub(super) fn send(&self, to: View, fill: impl FnOnce(*mut u8) -> Result<usize>) -> Result<()> {
        let oldest = self.buffers().pop_front();
        // Each worker holds at most one buffer, and there are at least as many buffers as workers.
        let (buffer, sent) = oldest.ok_or_else(|| Error::internal("no buffer is left"))?;
        if let Some(sent) = sent {
            self.device.wait_for(sent)?;
        }
        let bytes = fill(buffer.start)? as u64;
        // One lock covers the copy and the queue. So the queue has the buffers in the order of their copies.
        let mut buffers = self.buffers();
        self.device.copy_in(self.stream, &buffer, 0, to.part(0, bytes))?;
        let sent = self.device.record(self.stream)?;
        buffers.push_back((buffer, Some(sent)));
        Ok(())
    }

    /// Cuts a chunk into pieces that fit a buffer: whole units, unless a unit is longer than a buffer. The
    /// last pieces are half as long, so that all workers finish at nearly the same time.
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
            let staging = StagingPool::new(&session, &workers, bytes, 128 << 10).unwrap();
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

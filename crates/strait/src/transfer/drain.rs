//! Copies rows back to the host, block by block. While the device produces block 3, block 2 crosses to pinned
//! memory, and the taker reads block 1. With a third buffer, the next block can already be queued.
//!
//! ```text
//!   buffer 0   ─── block 1 crosses ──▶ the taker has it
//!   buffer 1        queued             ─── block 2 crosses ──▶ the taker has it
//!   buffer 2                                queued             ─── block 3 crosses ──▶
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use crate::device::Session;
use crate::device::{Event, Pinned, View};
use crate::error::{Error, Result};

/// The maximum bytes per buffer of one column.
const PIECE_BYTES: usize = 64 << 20;
/// The number of buffers: one is being copied, one waits for its copy, and the taker has one.
const BUFFERS: usize = 3;
/// All buffers together may take 1/4 of the memory that a limit leaves.
const SHARE: u64 = 4;
/// A block is copied in parts of a multiple of this many rows, so that the bits of a part fill whole words.
const ALIGNED_ROWS: u64 = 64;

/// A column of a block in device memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockColumn {
    pub(crate) view: View,
    /// Bits per row: those of a word, or one.
    pub(crate) bits: u64,
}

impl BlockColumn {
    fn bytes(&self, rows: u64) -> u64 {
        (rows * self.bits).div_ceil(8)
    }
}

/// Rows of a block, in host memory.
pub(crate) struct Arrived<'a, T> {
    /// What the block was sent with.
    pub(crate) tag: &'a T,
    /// The number of the first row within its block.
    pub(crate) first: u64,
    pub(crate) rows: usize,
    /// The bytes of each column. None if this is a [mark](Drain::mark).
    pub(crate) columns: &'a [&'a [u8]],
}

/// The columns of a block, or of a part of one, in host memory.
struct Load<T> {
    tag: T,
    first: u64,
    rows: usize,
    /// The pinned memory of each column, and its bytes.
    columns: Vec<(Arc<Pinned>, usize)>,
    /// After this event, the columns have arrived. `None` for a mark.
    arrived: Option<Event>,
}

/// See the [module](self). Blocks are sent with a tag, which their taker sees.
pub(crate) struct Drain<T> {
    under_way: VecDeque<Load<T>>,
    idle: Vec<Vec<Arc<Pinned>>>,
    /// The maximum bytes per buffer of one column. Set when the first block is sent.
    piece: Option<u64>,
    /// The bytes of new buffers, one entry per column: enough for all blocks so far.
    lengths: Vec<usize>,
}

/// Takes rows from pinned memory.
pub(crate) type Taker<'a, T> = dyn FnMut(Arrived<'_, T>) -> Result<()> + 'a;

impl<T: Clone> Drain<T> {
    pub(crate) fn new() -> Drain<T> {
        Drain { under_way: VecDeque::new(), idle: Vec::new(), piece: None, lengths: Vec::new() }
    }

    /// Starts to copy a block to the host. After the returned event, the block's memory may be reused.
    pub(crate) fn send(
        &mut self,
        session: &Session<'_>,
        columns: &[BlockColumn],
        rows: u64,
        tag: T,
        take: &mut Taker<'_, T>,
    ) -> Result<Option<Event>> {
        let widest = columns.iter().map(|column| column.bits).max().unwrap_or(8);
        let parts = SHARE * (BUFFERS * columns.len()) as u64;
        let piece = match self.piece {
            Some(piece) => piece,
            None => session.portion(parts, PIECE_BYTES)? as u64,
        };
        self.piece = Some(piece);
        let step = (piece * 8 / widest / ALIGNED_ROWS).max(1) * ALIGNED_ROWS;
        // The copies wait for the stages that write the block.
        let written = session.device.record(session.compute)?;
        session.device.wait(session.back, written)?;
        let mut last = None;
        let mut first = 0;
        while first < rows {
            let some = step.min(rows - first);
            let sizes: Vec<usize> = columns.iter().map(|c| c.bytes(some) as usize).collect();
            let to = self.buffers(session, &sizes, take)?;
            for ((column, to), &bytes) in columns.iter().zip(&to).zip(&sizes) {
                let part = column.view.part(column.bytes(first), bytes as u64);
                session.copy_out(part, to, 0)?;
            }
            let arrived = session.device.record(session.back)?;
            let (tag, columns) = (tag.clone(), to.into_iter().zip(sizes).collect());
            let arrived = Some(arrived);
            self.under_way.push_back(Load { tag, first, rows: some as usize, columns, arrived });
            last = arrived;
            first += some;
        }
        Ok(last)
    }

    /// Adds an end mark. The taker gets its tag, without rows, after all blocks that were sent before.
    pub(crate) fn mark(&mut self, tag: T) {
        let load = Load { tag, first: 0, rows: 0, columns: Vec::new(), arrived: None };
        self.under_way.push_back(load);
    }

    /// Waits for all copies that were started, and hands their rows to `take`.
    pub(crate) fn take_all(
        &mut self,
        session: &Session<'_>,
        take: &mut Taker<'_, T>,
    ) -> Result<()> {
        while let Some(load) = self.under_way.pop_front() {
            if let Some(arrived) = load.arrived {
                session.device.wait_for(arrived)?;
            }
            let mut columns = Vec::with_capacity(load.columns.len());
            for (column, bytes) in &load.columns {
                // SAFETY: the copy into the buffer is done, and the next one starts after `take`.
                let all = unsafe { column.bytes() };
                let short = || Error::internal("a block came back shorter than it was");
                columns.push(all.get(..*bytes).ok_or_else(short)?);
            }
            let Load { tag, first, rows, .. } = &load;
            take(Arrived { tag, first: *first, rows: *rows, columns: &columns })?;
            if load.arrived.is_some() {
                self.idle.push(load.columns.into_iter().map(|(column, _)| column).collect());
            }
        }
        Ok(())
    }

    /// Raises the lengths of new buffers for blocks of these sizes. Blocks vary in length. Buffer lengths are
    /// rounded up to powers of two, so that a slightly longer block fits too.
    fn lengthen(&mut self, sizes: &[usize]) {
        let piece = self.piece.map_or(usize::MAX, |piece| piece as usize);
        self.lengths.resize(self.lengths.len().max(sizes.len()), 1);
        for (length, &size) in self.lengths.iter_mut().zip(sizes) {
            let rounded = size.checked_next_power_of_two().unwrap_or(size).min(piece);
            *length = rounded.max(size).max(*length);
        }
    }

    /// Returns buffers of at least these sizes, one per column.
    fn buffers(
        &mut self,
        session: &Session<'_>,
        sizes: &[usize],
        take: &mut Taker<'_, T>,
    ) -> Result<Vec<Arc<Pinned>>> {
        let copying = |load: &&Load<T>| load.arrived.is_some();
        if self.idle.is_empty() && self.under_way.iter().filter(copying).count() >= BUFFERS {
            self.take_all(session, take)?;
        }
        let fits = |buffers: &[Arc<Pinned>]| {
            buffers.len() >= sizes.len() && buffers.iter().zip(sizes).all(|(b, &s)| b.len >= s)
        };
        if let Some(buffers) = self.idle.pop().filter(|buffers| fits(buffers)) {
            return Ok(buffers);
        }
        self.lengthen(sizes);
        let pinned = |sizes: &[usize]| -> Result<Vec<Arc<Pinned>>> {
            let column = |&bytes: &usize| session.pinned(bytes.max(1), "rows from the GPU");
            sizes.iter().map(column).collect()
        };
        match pinned(&self.lengths[..sizes.len()]) {
            Err(Error::MemoryLimit { .. }) => {}
            made => return made,
        }
        // There is no memory for more buffers. So wait for the copies to finish and reuse their buffers; if
        // those are too short, release them and allocate buffers of exactly the needed sizes.
        self.take_all(session, take)?;
        if let Some(buffers) = self.idle.pop().filter(|buffers| fits(buffers)) {
            return Ok(buffers);
        }
        self.idle.clear();
        pinned(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::simulated::{Settings, Simulated, TINY};
    use crate::word::Width;

    /// Blocks of varying length use the same few buffers.
    #[test]
    fn buffers_are_allocated_for_the_longest_block() {
        let device = Simulated::new(Settings { shape: TINY, ..Settings::default() });
        let session = Session::new(&device, Width::W64).unwrap();
        let memory = session.zeroed(8 * 1000, "a test").unwrap();
        let before = device.pinnings();
        let mut drain = Drain::new();
        let mut taken = 0;
        for number in 0..200u64 {
            let rows = 500 + (number * 37) % 500;
            // Results come back in order, or as pairs.
            let bits = if number % 2 == 0 { 1 } else { 64 };
            let columns = [bits, 64].map(|bits| BlockColumn { view: memory, bits });
            let mut take = |arrived: Arrived<'_, u64>| {
                assert_eq!(arrived.columns[1].len(), 8 * arrived.rows);
                taken += arrived.rows as u64;
                Ok(())
            };
            drain.send(&session, &columns, rows, number, &mut take).unwrap();
            drain.take_all(&session, &mut take).unwrap();
        }
        assert_eq!(taken, (0..200).map(|number| 500 + (number * 37) % 500).sum::<u64>());
        let pinnings = device.pinnings() - before;
        assert!(pinnings < 20, "pinned memory was allocated {pinnings} times for 200 blocks");
    }
}

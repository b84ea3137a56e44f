//! Rows on their way back: blocks are copied to pinned memory while the device makes the next ones,
//! and handed to their taker while others are copied.
//!
//! ```text
//!   buffer 0   ──── block crosses ────▶ the taker has it
//!   buffer 1                            ──── the next one crosses ────▶
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use crate::device::Session;
use crate::device::{Event, Pinned, View};
use crate::error::{Error, Result};

/// Bytes of a buffer of one column, at most.
const PIECE_BYTES: usize = 64 << 20;
/// Buffers: one crosses, one waits its turn, one is with the taker.
const BUFFERS: usize = 3;
/// The part of what a memory limit leaves, one of so many, that all buffers together may take.
const SHARE: u64 = 4;

/// Columns of a block, or of a part of one, in host memory.
struct Load {
    columns: Vec<Arc<Pinned>>,
    rows: usize,
    /// When they have arrived.
    arrived: Event,
}

/// See the [module](self).
pub(crate) struct Drain {
    /// Bytes of a value of each column.
    widths: Vec<u64>,
    under_way: VecDeque<Load>,
    idle: Vec<Vec<Arc<Pinned>>>,
    /// Bytes of a buffer of one column, at most: known once the first block is sent.
    piece: Option<u64>,
}

/// Takes rows from pinned memory: how many, and the bytes of each column.
pub(crate) type Taker<'a> = dyn FnMut(usize, &[&[u8]]) -> Result<()> + 'a;

impl Drain {
    /// For blocks of columns whose values have so many bytes.
    pub(crate) fn new(widths: Vec<u64>) -> Drain {
        Drain { widths, under_way: VecDeque::new(), idle: Vec::new(), piece: None }
    }

    /// Sends a block. The event is when its memory may be used again.
    pub(crate) fn send(
        &mut self,
        session: &Session<'_>,
        columns: &[View],
        rows: u64,
        take: &mut Taker<'_>,
    ) -> Result<Option<Event>> {
        let widest = self.widths.iter().copied().max().unwrap_or(1);
        let parts = SHARE * (BUFFERS * self.widths.len()) as u64;
        let piece = match self.piece {
            Some(piece) => piece,
            None => session.portion(parts, PIECE_BYTES)? as u64,
        };
        self.piece = Some(piece);
        let step = (piece / widest).min(rows).max(1);
        // Stages that wrote the block come first.
        let written = session.device.record(session.compute)?;
        session.device.wait(session.back, written)?;
        let mut last = None;
        let mut at = 0;
        while at < rows {
            let some = step.min(rows - at);
            let to = self.buffers(session, some, take)?;
            for ((view, to), width) in columns.iter().zip(&to).zip(&self.widths) {
                let part = view.part(at * width, some * width);
                session.copy_out(part, to, 0)?;
            }
            let arrived = session.device.record(session.back)?;
            self.under_way.push_back(Load { columns: to, rows: some as usize, arrived });
            last = Some(arrived);
            at += some;
        }
        Ok(last)
    }

    /// Hands what is under way to its taker.
    pub(crate) fn take_arrived(
        &mut self,
        session: &Session<'_>,
        take: &mut Taker<'_>,
    ) -> Result<()> {
        while let Some(load) = self.under_way.pop_front() {
            session.device.wait_for(load.arrived)?;
            let mut columns = Vec::with_capacity(load.columns.len());
            for (column, width) in load.columns.iter().zip(&self.widths) {
                // SAFETY: the copy into it has been waited for, and the next comes after this.
                let bytes = unsafe { column.bytes() };
                let short = || Error::Worker("a block came back shorter than it was".to_string());
                columns.push(bytes.get(..load.rows * *width as usize).ok_or_else(short)?);
            }
            take(load.rows, &columns)?;
            self.idle.push(load.columns);
        }
        Ok(())
    }

    /// Buffers for so many rows.
    fn buffers(
        &mut self,
        session: &Session<'_>,
        rows: u64,
        take: &mut Taker<'_>,
    ) -> Result<Vec<Arc<Pinned>>> {
        if self.idle.is_empty() && self.under_way.len() >= BUFFERS {
            self.take_arrived(session, take)?;
        }
        let fits = |buffers: &[Arc<Pinned>], widths: &[u64]| {
            buffers.iter().zip(widths).all(|(b, w)| b.len as u64 >= rows * w)
        };
        if let Some(buffers) = self.idle.pop()
            && fits(&buffers, &self.widths)
        {
            return Ok(buffers);
        }
        let pinned = |width: &u64| session.pinned((rows * width) as usize, "rows from the GPU");
        match self.widths.iter().map(pinned).collect() {
            // Without memory for one more, those that are under way have to do.
            Err(Error::MemoryLimit { .. }) if !self.under_way.is_empty() => {
                self.take_arrived(session, take)?;
                match self.idle.pop().filter(|buffers| fits(buffers, &self.widths)) {
                    Some(buffers) => Ok(buffers),
                    None => {
                        self.idle.clear();
                        self.widths.iter().map(pinned).collect()
                    }
                }
            }
            made => made,
        }
    }
}

//! Copies rows back to the host. While the device produces a block, an earlier one is copied to pinned
//! memory, and one before that is handed to its taker.
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

/// The maximum bytes per buffer of one column.
const PIECE_BYTES: usize = 64 << 20;
/// The number of buffers: one is being copied, one waits for its copy, and the taker has one.
const BUFFERS: usize = 3;
/// All buffers together may take 1/4 of the memory that a limit leaves.
const SHARE: u64 = 4;

/// The columns of a block, or of a part of one, in host memory.
struct Load {
    columns: Vec<Arc<Pinned>>,
    rows: usize,
    /// After this event, the columns have arrived.
    arrived: Event,
}

/// See the [module](self).
pub(crate) struct Drain {
    /// Bytes per value, for each column.
    widths: Vec<u64>,
    under_way: VecDeque<Load>,
    idle: Vec<Vec<Arc<Pinned>>>,
    /// The maximum bytes per buffer of one column. Set when the first block is sent.
    piece: Option<u64>,
}

/// Takes rows from pinned memory. The arguments are the number of rows, and the bytes of each column.
pub(crate) type Taker<'a> = dyn FnMut(usize, &[&[u8]]) -> Result<()> + 'a;

impl Drain {
    /// Creates a drain for blocks whose columns have the given bytes per value.
    pub(crate) fn new(widths: Vec<u64>) -> Drain {
        Drain { widths, under_way: VecDeque::new(), idle: Vec::new(), piece: None }
    }

    /// Starts to copy a block to the host. After the returned event, the block's memory may be reused.
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
        // The copies wait for the stages that write the block.
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

    /// Waits for all copies that were started, and hands their rows to `take`.
    pub(crate) fn take_arrived(
        &mut self,
        session: &Session<'_>,
        take: &mut Taker<'_>,
    ) -> Result<()> {
        while let Some(load) = self.under_way.pop_front() {
            session.device.wait_for(load.arrived)?;
            let mut columns = Vec::with_capacity(load.columns.len());
            for (column, width) in load.columns.iter().zip(&self.widths) {
                // SAFETY: the copy into the buffer is done, and the next one starts after `take`.
                let bytes = unsafe { column.bytes() };
                let short = || Error::Worker("a block came back shorter than it was".to_string());
                columns.push(bytes.get(..load.rows * *width as usize).ok_or_else(short)?);
            }
            take(load.rows, &columns)?;
            self.idle.push(load.columns);
        }
        Ok(())
    }

    /// Returns buffers for `rows` rows, one per column.
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
            // There is no memory for more buffers, so this reuses one that is being copied.
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

//! Flags of matched rows: a window with one byte per row on the device. The window moves over a side, and the
//! receiver gets its flags before each move.

use std::sync::Arc;

use super::wanted::{Receiver, Wanted, Which};
use crate::device::{Pinned, Session, View};
use crate::error::Result;

/// The maximum number of bytes per copy to the host.
const PIECE: u64 = 16 << 20;
/// One copy may take 1/32 of the memory that a limit leaves.
const SHARE: u64 = 32;

/// See the [module](self).
pub(crate) struct Window {
    which: Which,
    memory: View,
    pinned: Arc<Pinned>,
    first: u64,
    rows: u64,
}

impl Window {
    /// Creates a window for up to `most_rows` rows. Returns `None` if the kernels do not flag this side.
    pub(crate) fn new(
        session: &Session<'_>,
        which: Which,
        wanted: &Wanted,
        most_rows: u64,
    ) -> Result<Option<Window>> {
        if !wanted.kernels_flag(which) {
            return Ok(None);
        }
        const WHAT: &str = "flags of matched rows";
        // The flags of a long side may extend into host memory, which is slower.
        let memory = match most_rows > session.left() / 4 {
            true => {
                let on_device = session.left() / 8;
                session.range(most_rows, on_device, WHAT)?
            }
            false => session.allocate(most_rows, WHAT)?,
        };
        let bytes = session.portion(SHARE, most_rows.clamp(1, PIECE) as usize)?;
        let pinned = session.pinned(bytes, WHAT)?;
        Ok(Some(Window { which, memory, pinned, first: 0, rows: 0 }))
    }

    /// Moves the window to some rows and clears their flags. The address of the returned view is shifted: row
    /// `first` is at offset `first`. So kernels can use row numbers as offsets.
    pub(crate) fn open(&mut self, session: &Session<'_>, first: u64, rows: u64) -> Result<View> {
        (self.first, self.rows) = (first, rows);
        let view = self.memory.part(0, rows);
        session.device.fill(session.compute, view, 0)?;
        let address = view.address.wrapping_sub(first);
        Ok(View { address, bytes: first + rows, ..view })
    }

    /// Hands the flags to the receiver.
    pub(crate) fn close(&self, session: &Session<'_>, to: &mut dyn Receiver) -> Result<()> {
        let mut at = 0;
        while at < self.rows {
            let some = (self.pinned.len as u64).min(self.rows - at);
            let part = self.memory.part(at, some);
            session.crosses_back(some);
            session.device.copy_out(session.compute, part, &self.pinned, 0)?;
            session.device.synchronize(session.compute)?;
            // SAFETY: the copy is done, and the next one starts after `flags` was used.
            let flags = unsafe { &self.pinned.bytes()[..some as usize] };
            to.flags(self.which, self.first + at, flags)?;
            at += some;
        }
        Ok(())
    }
}

/// Moves the window, if there is one.
pub(crate) fn opened(
    window: &mut Option<Window>,
    session: &Session<'_>,
    first: u64,
    rows: u64,
) -> Result<Option<View>> {
    window.as_mut().map(|window| window.open(session, first, rows)).transpose()
}

/// Calls [`closed`] if the join succeeded, or if it failed and the CPU may continue: the CPU needs the flags that were
/// found so far. Returns the first error.
pub(crate) fn closed_after(
    joined: Result<()>,
    window: &Option<Window>,
    session: &Session<'_>,
    to: &mut dyn Receiver,
) -> Result<()> {
    match joined {
        Err(error) if !error.cpu_may_help() => Err(error),
        joined => {
            let closed = closed(window, session, to);
            joined.and(closed)
        }
    }
}

/// Hands the flags of the window, if there is one, to the receiver.
pub(crate) fn closed(
    window: &Option<Window>,
    session: &Session<'_>,
    to: &mut dyn Receiver,
) -> Result<()> {
    window.as_ref().map_or(Ok(()), |window| window.close(session, to))
}

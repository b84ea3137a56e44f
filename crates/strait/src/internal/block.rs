//! Blocks of output rows, in GPU memory or in host memory.

use crate::device::{Device, Session, Stream, View};
use crate::error::{Error, Result};

/// The maximum bytes per copy to or from the GPU.
pub(super) const COPY_BYTES: usize = 64 << 20;

/// Receives the rows of a join.
pub trait BlockReceiver {
    /// Receives the next block. Its memory is reused after this call.
    fn block(&mut self, block: &Block<'_>) -> Result<()>;
}

/// Some values of one column: signed integers in the byte order of the machine.
#[derive(Debug, Clone, Copy)]
pub struct Values<'a> {
    /// The bytes of the values.
    pub bytes: &'a [u8],
    /// The bytes per value: 4 or 8.
    pub value_bytes: usize,
}

/// Some rows of a join's output.
pub struct Block<'a> {
    rows: u64,
    /// Whether the first column is the key.
    keys: bool,
    columns: Place<'a>,
}

enum Place<'a> {
    /// Columns in GPU memory, with the bytes per value of each.
    Gpu(&'a Session<'a>, Vec<(View, usize)>),
    /// Columns in host memory, and the bytes per value of all.
    Host(&'a [&'a [u8]], usize),
}

impl<'a> Block<'a> {
    /// A block in GPU memory.
    pub(super) fn in_gpu_memory(
        session: &'a Session<'a>,
        rows: u64,
        keys: Option<View>,
        columns: &[(View, usize)],
    ) -> Block<'a> {
        let key = keys.map(|view| (view, session.word.bytes() as usize));
        let all = key.into_iter().chain(columns.iter().copied()).collect();
        Block { rows, keys: keys.is_some(), columns: Place::Gpu(session, all) }
    }

    /// A block in host memory.
    pub(super) fn in_host_memory(
        rows: usize,
        keys: bool,
        columns: &'a [&'a [u8]],
        value_bytes: usize,
    ) -> Block<'a> {
        Block { rows: rows as u64, keys, columns: Place::Host(columns, value_bytes) }
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns whether the block has the keys of its rows.
    pub fn has_keys(&self) -> bool {
        self.keys
    }

    /// Returns the number of columns besides the keys: the payload columns or the row numbers, build side
    /// first.
    pub fn columns(&self) -> usize {
        let all = match &self.columns {
            Place::Gpu(_, columns) => columns.len(),
            Place::Host(columns, _) => columns.len(),
        };
        all - usize::from(self.keys)
    }

    /// Waits until the block is complete. Reading waits as well.
    pub fn wait(&self) -> Result<()> {
        match &self.columns {
            Place::Gpu(session, _) => session.device.synchronize(session.compute),
            Place::Host(..) => Ok(()),
        }
    }

    /// Hands the keys to `take`, piece by piece. Does nothing if there are no keys.
    pub fn read_keys(&self, take: &mut dyn FnMut(Values<'_>) -> Result<()>) -> Result<()> {
        if self.keys { self.read(0, take) } else { Ok(()) }
    }

    /// Hands the values of a column besides the keys to `take`, piece by piece.
    pub fn read_column(
        &self,
        column: usize,
        take: &mut dyn FnMut(Values<'_>) -> Result<()>,
    ) -> Result<()> {
        self.read(column + usize::from(self.keys), take)
    }

    fn read(&self, at: usize, take: &mut dyn FnMut(Values<'_>) -> Result<()>) -> Result<()> {
        let absent = || Error::internal("a block has fewer columns");
        match &self.columns {
            Place::Gpu(session, columns) => {
                let (view, value_bytes) = *columns.get(at).ok_or_else(absent)?;
                self.wait()?;
                let view = view.part(0, self.rows * value_bytes as u64);
                let mut values = |bytes: &[u8]| take(Values { bytes, value_bytes });
                read_view(session.device, session.copies, view, &mut values)
            }
            Place::Host(columns, value_bytes) => {
                let bytes = columns.get(at).ok_or_else(absent)?;
                take(Values { bytes, value_bytes: *value_bytes })
            }
        }
    }
}

/// Copies GPU memory to the host and hands it to `take`, piece by piece. All writes to it must be complete.
pub(super) fn read_view(
    device: &dyn Device,
    stream: Stream,
    view: View,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let pinned = device.pinned(COPY_BYTES.min(view.bytes as usize).max(1), "reading a column")?;
    for first in (0..view.bytes).step_by(COPY_BYTES) {
        let part = view.part(first, COPY_BYTES as u64);
        device.copy_out(stream, part, &pinned, 0)?;
        device.synchronize(stream)?;
        // SAFETY: the copy is done, and the next one starts after `take` has returned.
        take(unsafe { &pinned.bytes()[..part.bytes as usize] })?;
    }
    Ok(())
}

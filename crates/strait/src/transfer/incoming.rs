//! The probe side of a join on a device: held in host memory, or read while it is joined.

use std::cell::OnceCell;

use super::{HostColumn, HostSide};
use crate::error::Result;

/// Reads a side chunk by chunk.
pub(crate) trait ChunkSource {
    /// Returns the next chunk, of at most `most_rows` rows.
    fn next(&self, most_rows: u64) -> Result<Read>;

    /// Takes back the chunks that a pipeline has read and the device has not joined. The next pipeline reads
    /// them again.
    fn rewind(&self);

    /// Reads the rest of the side, and returns all of it.
    fn hold(&self) -> Result<HostSide>;
}

/// The answer to a request for the next chunk.
pub(crate) enum Read {
    /// The key words of a chunk. There may be none: rows with a null key do not cross to the device.
    Chunk {
        keys: HostColumn,
        rows: u64,
    },
    /// There is no memory for another chunk until one of the earlier chunks has been joined.
    Later,
    End,
}

/// See the [module](self). A side that is read while it is joined can be read only once. An algorithm that
/// needs it more often, or needs its number of rows, asks for the [held](Incoming::held) side.
pub(crate) struct Incoming<'a> {
    chunks: Option<&'a dyn ChunkSource>,
    held: OnceCell<HostSide>,
}

impl<'a> Incoming<'a> {
    /// A side that is read on demand: chunk by chunk while it is joined, or to its end at the first call of
    /// [`held`](Incoming::held).
    pub(crate) fn on_demand(chunks: &'a dyn ChunkSource) -> Incoming<'a> {
        Incoming { chunks: Some(chunks), held: OnceCell::new() }
    }

    /// Returns whether the side is read while it is joined.
    pub(crate) fn streams(&self) -> bool {
        self.held.get().is_none()
    }

    /// Returns the whole side. Reads it first, if it is not held yet.
    pub(crate) fn held(&self) -> Result<&HostSide> {
        if let (None, Some(chunks)) = (self.held.get(), self.chunks) {
            let side = chunks.hold()?;
            return Ok(self.held.get_or_init(|| side));
        }
        let missing = || crate::error::Error::internal("a side has no rows to hold");
        self.held.get().ok_or_else(missing)
    }

    /// Returns the next chunk of a side that is read while it is joined.
    pub(crate) fn next(&self, most_rows: u64) -> Result<Read> {
        match self.chunks {
            Some(chunks) => chunks.next(most_rows),
            None => Ok(Read::End),
        }
    }

    pub(super) fn rewind(&self) {
        if let Some(chunks) = self.chunks {
            chunks.rewind();
        }
    }
}

impl From<HostSide> for Incoming<'_> {
    fn from(side: HostSide) -> Self {
        Incoming { chunks: None, held: OnceCell::from(side) }
    }
}

//! The rows of one side and one partition on disk.

use std::sync::{Arc, Mutex};

use arrow::datatypes::SchemaRef;

use super::block::{Block, Mark};
use super::problem::Doing;
use super::source::SpilledSource;
use super::store::{SpillFile, SpillStore};
use crate::error::{Error, Result};
use crate::schedule::lock;

/// The rows of one side and one partition, in a file. Many workers append blocks. After that, sources read them.
pub(crate) struct SpilledRows {
    file: Arc<dyn SpillFile>,
    place: String,
    written: Mutex<Written>,
}

/// What was written so far.
#[derive(Default)]
struct Written {
    /// The blocks of the file, in order. So a reader knows the length of a block before it reads the block, and
    /// notices a missing block.
    blocks: Vec<Mark>,
    rows: u64,
    bytes: u64,
    /// The error of an append. The file may have a part of that block, so no further block is written.
    failure: Option<Error>,
}

impl SpilledRows {
    /// Creates an empty file.
    pub(crate) fn create(store: &Arc<dyn SpillStore>) -> Result<SpilledRows> {
        let place = store.place();
        let file = store.create().map_err(|error| Doing::Create.failed(&place, &error))?;
        Ok(SpilledRows { file, place, written: Mutex::default() })
    }

    /// Writes a block at the end of the file. Many workers may call it at the same time. After an error, all
    /// further calls and all sources return the same error.
    pub(crate) fn append(&self, block: &Block) -> Result<()> {
        let mut written = lock(&self.written);
        if let Some(failure) = &written.failure {
            return Err(failure.clone());
        }
        if let Err(error) = self.file.append(block.bytes()) {
            let failure = Doing::Write.failed(&self.place, &error);
            written.failure = Some(failure.clone());
            return Err(failure);
        }
        let mark = block.mark();
        written.blocks.push(mark);
        written.rows += mark.rows;
        written.bytes += mark.length;
        Ok(())
    }

    /// Returns the number of rows that were written.
    pub(crate) fn rows(&self) -> u64 {
        lock(&self.written).rows
    }

    /// Returns the number of bytes that were written.
    pub(crate) fn bytes(&self) -> u64 {
        lock(&self.written).bytes
    }

    /// Returns the number of blocks that were written.
    #[cfg(test)]
    pub(super) fn blocks(&self) -> usize {
        lock(&self.written).blocks.len()
    }

    /// Returns the length of the largest block in bytes. A source needs this much memory per worker.
    #[cfg(test)]
    pub(super) fn largest_block(&self) -> u64 {
        lock(&self.written).blocks.iter().map(|mark| mark.length).max().unwrap_or(0)
    }

    /// Returns a source of all rows that were written so far. No block may be appended after this call.
    ///
    /// `schema` is the schema of all batches that were encoded.
    pub(crate) fn source(self: &Arc<Self>, schema: SchemaRef) -> SpilledSource {
        let written = lock(&self.written);
        let (blocks, failure) = (written.blocks.clone(), written.failure.clone());
        drop(written);
        SpilledSource::new(Arc::clone(self), schema, blocks, failure)
    }

    pub(super) fn file(&self) -> &Arc<dyn SpillFile> {
        &self.file
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }
}

//! The rows of one side and one partition on disk.

use std::sync::{Arc, Mutex};

use arrow::datatypes::SchemaRef;

use super::block::{Block, Mark};
use super::problem::Doing;
use super::source::SpilledSource;
use super::store::SpillFile;
use super::target::SpillTarget;
use crate::error::{Error, Result};
use crate::schedule::lock;

/// The rows of one side and one partition, in a file. Many workers append blocks. After that, sources read them.
pub(crate) struct SpilledRows {
    file: Arc<dyn SpillFile>,
    target: Arc<SpillTarget>,
    written: Mutex<Written>,
}

/// What was written so far.
#[derive(Default)]
struct Written {
    /// The blocks of the file, in order. So a reader knows the length of a block before it reads the block, and
    /// notices a missing block.
    blocks: Vec<Mark>,
    rows: u64,
    /// The bytes of the blocks without compression.
    bytes: u64,
    /// The error of an append. The file may have a part of that block, so no further block is written.
    failure: Option<Error>,
}

impl SpilledRows {
    /// Creates an empty file.
    pub(crate) fn create(target: &Arc<SpillTarget>) -> Result<SpilledRows> {
        let target = Arc::clone(target);
        let file = target.create();
        let file = file.map_err(|error| Doing::Create.failed(&target.place(), &error))?;
        Ok(SpilledRows { file, target, written: Mutex::default() })
    }

    /// Writes a block at the end of the file, and returns the number of bytes that were written. Many workers may call
    /// it at the same time. They compress their blocks at the same time, and write them one after the other. After an
    /// error, all further calls and all sources return the same error.
    pub(crate) fn append(&self, block: &Block) -> Result<u64> {
        let stored = self.target.form(block);
        let mut written = lock(&self.written);
        if let Some(failure) = &written.failure {
            return Err(failure.clone());
        }
        if let Err(error) = self.file.append(&stored.bytes) {
            let failure = Doing::Write.failed(&self.place(), &error);
            written.failure = Some(failure.clone());
            return Err(failure);
        }
        let mark = stored.mark;
        written.blocks.push(mark);
        written.rows += mark.rows;
        written.bytes += mark.uncompressed();
        Ok(mark.length)
    }

    /// Returns the number of rows that were written.
    pub(crate) fn rows(&self) -> u64 {
        lock(&self.written).rows
    }

    /// Returns the number of bytes that the rows take in memory, as blocks. If they are compressed, fewer bytes were
    /// written.
    pub(crate) fn bytes(&self) -> u64 {
        lock(&self.written).bytes
    }

    /// Returns the blocks that were written.
    #[cfg(test)]
    pub(super) fn marks(&self) -> Vec<Mark> {
        lock(&self.written).blocks.clone()
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

    /// Names the place for messages.
    pub(super) fn place(&self) -> String {
        self.target.place()
    }
}

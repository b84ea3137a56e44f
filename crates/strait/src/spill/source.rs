//! Reads the rows of one side and one partition from disk, on many workers.

use std::io::{ErrorKind, Read};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::block::{Mark, decode, open};
use super::problem::{Doing, damaged};
use super::rows::SpilledRows;
use crate::error::{Error, Result};
use crate::input::{Morsel, Source, SourceContext};
use crate::memory::Budget;
use crate::schedule::lock;
use crate::statistics::Statistics;

/// A source of rows on disk. Each call returns the rows of one block. The rows have no numbers.
///
/// One worker at a time reads the bytes of a block, so the file is read from front to back. Checking, decompressing and
/// decoding happen on all workers at the same time.
pub(crate) struct SpilledSource {
    rows: Arc<SpilledRows>,
    schema: SchemaRef,
    blocks: Vec<Mark>,
    reading: Mutex<Reading>,
}

/// The position in the file.
struct Reading {
    /// The open file. `None` before the first block is read.
    reader: Option<Box<dyn Read + Send>>,
    /// The number of the next block.
    next: usize,
    /// The first error. All later calls return it, because the position in the file is unknown after an error.
    failure: Option<Error>,
}

impl SpilledSource {
    pub(super) fn new(
        rows: Arc<SpilledRows>,
        schema: SchemaRef,
        blocks: Vec<Mark>,
        failure: Option<Error>,
    ) -> SpilledSource {
        let reading = Mutex::new(Reading { reader: None, next: 0, failure });
        SpilledSource { rows, schema, blocks, reading }
    }

    /// Returns the next batch; `None` at the end.
    pub(super) fn batch(&self, budget: &Arc<Budget>) -> Result<Option<RecordBatch>> {
        let mut reading = lock(&self.reading);
        if let Some(failure) = &reading.failure {
            return Err(failure.clone());
        }
        let number = reading.next;
        let Some(&mark) = self.blocks.get(number) else { return Ok(None) };
        // If memory is short, the block stays for a later call.
        let _block = budget.reserve(mark.reading_bytes(), "a block of rows from disk")?;
        let bytes = self.read(&mut reading, number, mark).inspect_err(|error| {
            reading.failure = Some(error.clone());
        })?;
        reading.next += 1;
        drop(reading);
        let payload = open(bytes, mark);
        let payload = payload.map_err(|what| damaged(&self.rows.place(), self.about(number, what)));
        decode(payload?, &self.schema).map(Some)
    }

    /// Reads the bytes of the next block.
    fn read(&self, reading: &mut Reading, number: usize, mark: Mark) -> Result<Buffer> {
        let failed = |error| Doing::Read.failed(&self.rows.place(), &error);
        let reader = match &mut reading.reader {
            Some(reader) => reader,
            none => none.insert(self.rows.file().open().map_err(failed)?),
        };
        let refused = |_| {
            let what = "a block of rows from disk".to_string();
            Error::OutOfMemory { what, needed: mark.length }
        };
        let mut bytes =
            MutableBuffer::from_len_zeroed(usize::try_from(mark.length).map_err(refused)?);
        match reader.read_exact(&mut bytes) {
            Ok(()) => Ok(bytes.into()),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(damaged(&self.rows.place(), self.about(number, "is cut off")))
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn about(&self, number: usize, what: &str) -> String {
        format!("block {} of {} {what}", number + 1, self.blocks.len())
    }
}

impl Source for SpilledSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn statistics(&self) -> Statistics {
        let rows = self.blocks.iter().map(|block| block.rows).sum();
        let bytes = self.blocks.iter().map(|block| block.uncompressed()).sum();
        Statistics::rows(rows).with_bytes(bytes)
    }

    fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        if context.cancelled() {
            return Err(Error::Cancelled.into());
        }
        Ok(self.batch(context.budget())?.map(Morsel::new))
    }
}

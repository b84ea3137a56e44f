//! Makes a source of a reader. The reading thread calls the reader.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::Reader;
use super::source::{Morsel, Source, SourceContext};
use crate::error::{Error, Result};
use crate::options::Side;
use crate::reading::ReadingThread;
use crate::schedule::lock;

/// A reader as a source. One worker at a time gets batches from it.
pub(crate) struct ReaderSource {
    side: Side,
    schema: SchemaRef,
    reading: Arc<ReadingThread>,
    state: Mutex<State>,
}

struct State {
    /// The reader. `None` while the reading thread has it, and after it has ended or failed.
    reader: Option<Reader>,
    /// Batches from the reader that were not returned yet. More than one only if memory is not limited.
    fetched: VecDeque<RecordBatch>,
    /// The error that the reader returned after the fetched batches.
    failure: Option<Error>,
    /// Whether the error was returned.
    failed: bool,
    next_row: u64,
}

impl ReaderSource {
    pub(crate) fn new(side: Side, reader: Reader, reading: &Arc<ReadingThread>) -> ReaderSource {
        let (schema, reading) = (reader.schema(), Arc::clone(reading));
        let (reader, fetched) = (Some(reader), VecDeque::new());
        let state = State { reader, fetched, failure: None, failed: false, next_row: 0 };
        ReaderSource { side, schema, reading, state: Mutex::new(state) }
    }

    /// Returns the next batch; `None` at the end.
    fn read(&self, state: &mut State) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = state.fetched.pop_front() {
                return Ok(Some(batch));
            }
            if let Some(failure) = state.failure.take() {
                state.failed = true;
                if let Error::MemoryLimit { .. } = failure {
                    // The caller may wait for memory and ask again. It gets the same error then, because the
                    // reader has ended.
                    state.failure = Some(failure.clone());
                }
                return Err(failure);
            }
            let Some(reader) = state.reader.take() else {
                return if state.failed { Err(Error::Cancelled) } else { Ok(None) };
            };
            let answer = self.reading.ask(self.side, reader);
            let answer = answer.inspect_err(|_| state.failed = true)?;
            (state.reader, state.fetched) = (answer.reader, answer.batches);
            state.failure = answer.failure;
        }
    }
}

impl Source for ReaderSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn has_row_numbers(&self) -> bool {
        true
    }

    fn next(&self, _: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        let mut state = lock(&self.state);
        let Some(batch) = self.read(&mut state)? else { return Ok(None) };
        let first_row = state.next_row;
        state.next_row += batch.num_rows() as u64;
        Ok(Some(Morsel::numbered(batch, first_row)))
    }
}

impl Drop for ReaderSource {
    /// Drops the reader on the reading thread, so that its `drop` delays nobody.
    fn drop(&mut self) {
        if let Some(reader) = lock(&self.state).reader.take() {
            self.reading.retire(reader);
        }
    }
}

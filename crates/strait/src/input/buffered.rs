//! One side while it is being read: the batches that were read and not handed out yet, and the reader.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};

use super::relation::{Held, Relation};
use super::{MAX_ROWS_PER_BATCH, Reader};
use crate::error::{Error, Result};
use crate::memory::{Budget, Hold, Ledger, Resting, each_buffer, frame};
use crate::options::Side;
use crate::progress::Counters;
use crate::reading::ReadingThread;

/// A side that is still being read.
pub(crate) struct BufferedSource {
    side: Side,
    /// The reader. `None` while the reading thread has it, and after it has ended or failed.
    reader: Option<Reader>,
    reading: Arc<ReadingThread>,
    /// Batches from the reader that were not checked and counted yet. More than one only if memory is not
    /// limited.
    fetched: VecDeque<RecordBatch>,
    /// The error that the reader returned after the fetched batches.
    failure: Option<Error>,
    state: State,
    schema: SchemaRef,
    /// A batch whose memory could not be reserved yet.
    refused: Option<RecordBatch>,
    /// Batches that were read and not handed out yet.
    waiting: VecDeque<Held>,
    waiting_bytes: u64,
    footprint: Footprint,
    /// The number of rows handed out.
    next_row: u64,
    budget: Arc<Budget>,
    /// The reservations for input buffers, if memory is limited.
    ledger: Option<Arc<Ledger>>,
    counters: Arc<Counters>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Ended,
    /// The error was returned to the caller.
    Failed,
}

/// Some rows of a side in one batch, and the row id of the first.
pub(crate) struct Morsel {
    pub(crate) batch: RecordBatch,
    pub(crate) first_row: u64,
    _hold: Arc<Hold>,
}

/// Some rows of a side, as a held side, and the row id of the first.
pub(crate) struct Chunk {
    pub(crate) rows: Relation,
    pub(crate) first_row: u64,
}

/// How much of a side a [`Chunk`] takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkLimits {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// The bytes that the reservation for a batch must leave free.
    pub(crate) spare: u64,
    /// Whether a chunk is at most one batch, so that its rows need not wait for the next batch.
    pub(crate) one_batch: bool,
}

impl BufferedSource {
    pub(crate) fn new(
        side: Side,
        reader: Reader,
        reading: Arc<ReadingThread>,
        budget: &Arc<Budget>,
        ledger: Option<Arc<Ledger>>,
        counters: &Arc<Counters>,
    ) -> Self {
        BufferedSource {
            side,
            schema: reader.schema(),
            reader: Some(reader),
            reading,
            fetched: VecDeque::new(),
            failure: None,
            state: State::Open,
            refused: None,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            footprint: Footprint::default(),
            next_row: 0,
            budget: Arc::clone(budget),
            ledger,
            counters: Arc::clone(counters),
        }
    }

    pub(crate) fn side(&self) -> Side {
        self.side
    }

    /// Returns the bytes of the batches that wait.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Reads one more batch and appends it to the waiting batches. Returns false at the end of the input. If
    /// memory does not suffice for the batch plus `spare` bytes, the batch is kept for the next attempt.
    pub(super) fn advance(&mut self, spare: u64, resting: Option<&Resting<'_>>) -> Result<bool> {
        let batch = match self.refused.take() {
            Some(batch) => batch,
            None => match self.read(resting)? {
                Some(batch) => batch,
                None => return Ok(false),
            },
        };
        let what = format!("holding rows of the {} table, so far,", self.side.name());
        let (bytes, fresh) = self.footprint.of(&batch);
        let held = match &self.ledger {
            Some(ledger) => ledger.hold_leaving(&batch, spare, &what),
            None => self.budget.reserve(bytes, &what).map(|reserved| vec![Arc::new(reserved)]),
        };
        let hold = match held {
            Ok(hold) => Arc::new(hold),
            Err(error) => {
                self.refused = Some(batch);
                return Err(error);
            }
        };
        self.footprint.seen.extend(fresh);
        self.waiting_bytes += bytes;
        let mut at = 0;
        while at < batch.num_rows() {
            let len = MAX_ROWS_PER_BATCH.min(batch.num_rows() - at);
            let batch = if len == batch.num_rows() { batch.clone() } else { batch.slice(at, len) };
            self.waiting.push_back(Held { batch, hold: Arc::clone(&hold) });
            at += len;
        }
        Ok(true)
    }

    /// Returns the reader's next batch, checked and counted; `None` at the end.
    fn read(&mut self, resting: Option<&Resting<'_>>) -> Result<Option<RecordBatch>> {
        while self.fetched.is_empty() {
            if let Some(failure) = self.failure.take() {
                self.state = State::Failed;
                if let Error::MemoryLimit { .. } = failure {
                    // The caller may wait for memory and ask again. It gets the same error then, because the
                    // reader has ended.
                    self.failure = Some(failure.clone());
                }
                return Err(failure);
            }
            let Some(reader) = self.reader.take() else {
                if self.state == State::Failed {
                    return Err(Error::Cancelled);
                }
                self.state = State::Ended;
                return Ok(None);
            };
            let idle = resting.and_then(Resting::idle);
            let answer = self.reading.ask(self.side, reader);
            drop(idle);
            let answer = answer.inspect_err(|_| self.state = State::Failed)?;
            (self.reader, self.fetched) = (answer.reader, answer.batches);
            self.failure = answer.failure;
        }
        let Some(batch) = self.fetched.pop_front() else { return Ok(None) };
        if let Err(error) = self.check(&batch) {
            self.state = State::Failed;
            self.fetched.clear();
            self.retire();
            return Err(error);
        }
        let counter = match self.side {
            Side::Left => &self.counters.left_rows,
            Side::Right => &self.counters.right_rows,
        };
        counter.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        Ok(Some(batch))
    }

    /// Drops the reader on the reading thread, so that its `drop` delays nobody.
    fn retire(&mut self) {
        if let Some(reader) = self.reader.take() {
            self.reading.retire(reader);
        }
    }

    fn check(&self, batch: &RecordBatch) -> Result<()> {
        let changed = |detail| Error::SchemaChanged { side: self.side.name(), detail };
        let (expected, found) = (self.schema.fields(), batch.columns());
        if expected.len() != found.len() {
            return Err(changed(format!("{} columns, not {}", found.len(), expected.len())));
        }
        for (field, column) in expected.iter().zip(found) {
            if field.data_type() != column.data_type() {
                let (name, was, is) = (field.name(), field.data_type(), column.data_type());
                return Err(changed(format!("column \"{name}\" is {is}, not {was}")));
            }
            // The key plan relies on these columns having no nulls. A null there would lose matches.
            let nulls = if field.is_nullable() { 0 } else { nulls_of(column) };
            if nulls > 0 {
                let name = field.name();
                return Err(changed(format!(
                    "column \"{name}\" is declared non-nullable and has {nulls} null(s); declare it nullable"
                )));
            }
        }
        Ok(())
    }

    /// Returns the next rows, at most `most` of them; `None` at the end. If it has to read another batch, the
    /// reservation for that batch must leave `spare` bytes free.
    pub(crate) fn morsel(
        &mut self,
        most: usize,
        spare: u64,
        resting: &Resting<'_>,
    ) -> Result<Option<Morsel>> {
        while self.waiting.is_empty() {
            if !self.advance(spare, Some(resting))? {
                return Ok(None);
            }
            // While batches are streamed, their buffers are freed and their addresses are used again.
            self.footprint = Footprint::default();
        }
        let Some(held) = self.waiting.pop_front() else { return Ok(None) };
        let rows = held.batch.num_rows();
        let first_row = self.next_row;
        let batch = if rows <= most {
            held.batch
        } else {
            let rest = held.batch.slice(most, rows - most);
            self.waiting.push_front(Held { batch: rest, ..held.clone() });
            held.batch.slice(0, most)
        };
        self.next_row += batch.num_rows() as u64;
        Ok(Some(Morsel { batch, first_row, _hold: held.hold }))
    }

    /// Returns the next rows as a held side: whole batches, except that the last one may be cut. Stops before
    /// a batch that would pass one of the limits, and after the first batch if the limits say so. Returns
    /// `None` at the end.
    pub(crate) fn chunk(&mut self, most: ChunkLimits) -> Result<Option<Chunk>> {
        let first_row = self.next_row;
        let (mut held, mut rows, mut bytes) = (Vec::new(), 0, 0);
        while rows < most.rows && (rows == 0 || bytes < most.bytes) {
            let Some(next) = self.waiting.pop_front() else {
                match self.advance(most.spare, None) {
                    // While batches are streamed, their buffers are freed and their addresses are used again.
                    Ok(true) => self.footprint = Footprint::default(),
                    Ok(false) => break,
                    // The refused batch waits for the next chunk.
                    Err(Error::MemoryLimit { .. }) if rows > 0 => break,
                    Err(error) => return Err(error),
                }
                continue;
            };
            let all = next.batch.num_rows();
            let of_batch = slice_bytes(&next.batch);
            // As many rows as both limits allow, but at least one.
            let fit = (most.bytes.saturating_sub(bytes) as u128 * all as u128
                / of_batch.max(1) as u128)
                .min((most.rows - rows) as u128);
            let some = (fit as usize).max(1).min(all);
            if some < all {
                let rest = next.batch.slice(some, all - some);
                self.waiting.push_front(Held { batch: rest, hold: Arc::clone(&next.hold) });
            }
            rows += some as u64;
            bytes += of_batch * some as u64 / all.max(1) as u64;
            held.push(Held { batch: next.batch.slice(0, some), hold: next.hold });
            if most.one_batch {
                break;
            }
        }
        self.next_row += rows;
        let relation = || Relation::new(Arc::clone(&self.schema), held, bytes);
        Ok((rows > 0).then(|| Chunk { rows: relation(), first_row }))
    }

    /// Puts chunks back that were taken, in their order. They were the last ones taken.
    pub(crate) fn put_back<'c>(&mut self, chunks: impl DoubleEndedIterator<Item = &'c Chunk>) {
        for chunk in chunks.rev() {
            self.next_row = chunk.first_row;
            for (batch, hold) in chunk.rows.batches.iter().zip(&chunk.rows.holds).rev() {
                let (batch, hold) = (batch.clone(), Arc::clone(hold));
                self.waiting.push_front(Held { batch, hold });
            }
        }
    }

    /// Reads the rest of the side and holds all of it.
    pub(crate) fn collect(mut self, check: impl Fn() -> Result<()>) -> Result<Relation> {
        while self.advance(0, None)? {
            check()?;
        }
        let waiting = std::mem::take(&mut self.waiting).into();
        Ok(Relation::new(Arc::clone(&self.schema), waiting, self.waiting_bytes))
    }

    /// Reads to the end and keeps all batches waiting. After an error of the budget, the batches that were
    /// read can still be streamed, and the rest can still be read.
    pub(crate) fn fill(&mut self, check: impl Fn() -> Result<()>) -> Result<()> {
        while self.advance(0, None)? {
            check()?;
        }
        Ok(())
    }

    /// Returns the waiting batches as a held side. They keep waiting here, too.
    pub(crate) fn waiting(&self) -> Relation {
        let waiting = self.waiting.iter().cloned().collect();
        Relation::new(Arc::clone(&self.schema), waiting, self.waiting_bytes)
    }

    pub(super) fn ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Returns the number of waiting rows, if the reader has ended.
    pub(crate) fn known_rows(&self) -> Option<u64> {
        self.ended().then(|| self.waiting.iter().map(|h| h.batch.num_rows() as u64).sum())
    }
}

impl Drop for BufferedSource {
    fn drop(&mut self) {
        self.retire();
    }
}

/// Returns the number of null rows. It includes nulls in dictionary values, in values of runs, and in null
/// and union arrays.
fn nulls_of(column: &dyn Array) -> usize {
    use DataType::{Dictionary, Null, RunEndEncoded, Union};
    match column.data_type() {
        Null | Dictionary(..) | RunEndEncoded(..) | Union(..) => column.logical_null_count(),
        _ => column.null_count(),
    }
}

/// Returns the bytes of a batch's rows, even if the batch is a slice of longer arrays.
fn slice_bytes(batch: &RecordBatch) -> u64 {
    let of_column = |column: &Arc<dyn Array>| {
        let sliced = column.to_data().get_slice_memory_size();
        sliced.unwrap_or_else(|_| column.get_array_memory_size()) as u64
    };
    batch.columns().iter().map(of_column).sum()
}

/// Counts the bytes of each buffer once, even if several batches share it.
#[derive(Default)]
struct Footprint {
    seen: HashSet<usize>,
}

impl Footprint {
    /// Returns the bytes that a batch adds, and the addresses of its buffers that were not seen before.
    fn of(&self, batch: &RecordBatch) -> (u64, HashSet<usize>) {
        let (mut bytes, mut fresh) = (frame(batch), HashSet::new());
        each_buffer(batch, &mut |address, size| {
            if !self.seen.contains(&address) && fresh.insert(address) {
                bytes += size as u64;
            }
        });
        (bytes, fresh)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use arrow::array::{ArrayRef, Int64Array, RecordBatchIterator};

    use super::*;

    /// A batch that is refused at first shares a buffer with a held batch. The buffer must count once.
    #[test]
    fn a_refused_batch_does_not_make_shared_buffers_count_again() {
        let column = |rows: i64| Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef;
        let (shared, more) = (column(1000), column(10_000));
        let batch = |other: ArrayRef| {
            RecordBatch::try_from_iter([("k", Arc::clone(&shared)), ("p", other)]).expect("columns")
        };
        let batches = [batch(Arc::clone(&shared)), batch(more.slice(0, 1000))];
        let schema = batches[0].schema();
        let reader = Box::new(RecordBatchIterator::new(batches.into_iter().map(Ok), schema));
        let budget = Budget::new(Some(100_000));
        let (ledger, cancelled) = (Arc::new(Ledger::new(&budget)), Arc::<AtomicBool>::default());
        let reading = ReadingThread::new(1, &cancelled);
        let counters = Arc::default();
        let mut source =
            BufferedSource::new(Side::Left, reader, reading, &budget, Some(ledger), &counters);
        assert!(source.advance(0, None).expect("the first batch fits"));
        let first = source.waiting_bytes();
        let rest = budget.reserve(budget.left(), "a test").expect("fits");
        assert!(matches!(source.advance(0, None), Err(Error::MemoryLimit { .. })));
        drop(rest);
        assert!(source.advance(0, None).expect("the second batch fits now"));
        let second = source.waiting_bytes() - first;
        assert!((80_000..88_000).contains(&second), "{second} bytes");
        assert_eq!(source.waiting_bytes(), budget.used());
    }
}

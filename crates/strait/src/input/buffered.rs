//! One side while it is being read: the source, and the batches that were read and not handed out yet.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};

use super::MAX_ROWS_PER_BATCH;
use super::feed::Feed;
use super::key_filter::{CheckedFilter, KeyFilter, KeyLookup};
use super::relation::{Held, Relation};
use super::source::Morsel;
use crate::error::{Error, Result};
use crate::memory::{Hold, Ledger, Reservation, Resting, each_buffer, frame};
use crate::options::Side;
use crate::schedule::{Workers, lock};

/// Before the first batch was read, a batch is expected to take 1/`FIRST_SHARE` of the memory limit. So only a
/// few workers call a concurrent source for its first batches.
const FIRST_SHARE: u64 = 8;

/// The bytes that a value without a fixed width is expected to take, such as a string.
const VARIABLE_WIDTH: usize = 32;

/// A side that is still being read. Any number of workers may use it.
///
/// A worker calls a [concurrent](BufferedSource::concurrent) source without holding the buffer's lock. A
/// reader is called under the lock, so that its batches stay in order.
pub(crate) struct BufferedSource {
    pub(super) feed: Feed,
    pub(super) buffer: Mutex<Buffer>,
    /// Whether the source has returned its last batch.
    ended: AtomicBool,
    /// The bytes of all batches that were read.
    bytes: AtomicU64,
    /// The number of batches that were read, including empty ones.
    batches: AtomicU64,
    /// The bytes of the largest batch that was read. A batch has no size before it is read, so this is the
    /// expected size of the next one.
    largest: AtomicU64,
    /// The most rows that the source left out in one call.
    left_out: AtomicU64,
}

/// The batches that were read and not handed out yet.
pub(super) struct Buffer {
    /// Batches whose memory is not reserved yet. For a reader, there is at most one: its reservation was
    /// refused.
    pulled: VecDeque<Morsel>,
    pub(super) waiting: VecDeque<Held>,
    pub(super) footprint: Footprint,
    /// The number of rows that were read and reserved. If the rows have no numbers from their source, they
    /// are numbered in this order.
    pub(super) rows: u64,
    /// The reservations for input buffers, if memory is limited.
    ledger: Option<Arc<Ledger>>,
}

/// Some rows of a side in one batch, with a memory reservation, and the row id of the first.
pub(crate) struct ReservedMorsel {
    pub(crate) batch: RecordBatch,
    pub(crate) first_row: u64,
    _hold: Arc<Hold>,
}

impl BufferedSource {
    pub(crate) fn new(feed: Feed, ledger: Option<Arc<Ledger>>) -> Self {
        let (pulled, waiting, footprint) = Default::default();
        let buffer = Buffer { pulled, waiting, footprint, rows: 0, ledger };
        let (buffer, ended) = (Mutex::new(buffer), AtomicBool::new(false));
        let (bytes, batches, largest, left_out) = Default::default();
        BufferedSource { feed, buffer, ended, bytes, batches, largest, left_out }
    }

    pub(crate) fn side(&self) -> Side {
        self.feed.side
    }

    /// Returns whether many workers call the source at the same time.
    pub(crate) fn concurrent(&self) -> bool {
        self.feed.concurrent
    }

    /// Returns the bytes of all batches that were read. While none was handed out, these are the batches that
    /// wait.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of batches that were read, including empty ones.
    pub(super) fn read_batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Returns whether the source has returned its last batch. Other workers may still bring batches that
    /// they got before.
    pub(super) fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.feed.expected.schema)
    }

    /// Reads one more batch and appends it to the waiting batches. Returns false at the end of the input. If
    /// memory does not suffice for the batch plus `spare` bytes, the batch is kept for the next attempt.
    pub(super) fn advance(&self, spare: u64) -> Result<bool> {
        self.advance_if(spare, || true)
    }

    /// Like [`advance`](BufferedSource::advance), but checks `still` after getting the lock. If it is false,
    /// reads nothing and returns true.
    pub(super) fn advance_if(&self, spare: u64, still: impl Fn() -> bool) -> Result<bool> {
        let mut buffer = lock(&self.buffer);
        if !still() {
            return Ok(true);
        }
        if !self.feed.concurrent || !buffer.pulled.is_empty() {
            return self.advance_within(&mut buffer, spare, None);
        }
        drop(buffer);
        let Some(morsel) = self.pull(None, None)? else { return Ok(false) };
        self.reserve(&mut lock(&self.buffer), morsel, spare)?;
        Ok(true)
    }

    /// Does the same as [`advance`](BufferedSource::advance) while it holds the lock.
    pub(super) fn advance_within(
        &self,
        buffer: &mut Buffer,
        spare: u64,
        resting: Option<&Resting<'_>>,
    ) -> Result<bool> {
        let morsel = match buffer.pulled.pop_front() {
            Some(morsel) => morsel,
            None => match self.pull(resting, None)? {
                Some(morsel) => morsel,
                None => return Ok(false),
            },
        };
        self.reserve(buffer, morsel, spare)?;
        Ok(true)
    }

    /// Calls the source, unless it has ended.
    fn pull(
        &self,
        resting: Option<&Resting<'_>>,
        keys: Option<&dyn KeyFilter>,
    ) -> Result<Option<Morsel>> {
        if self.ended() {
            return Ok(None);
        }
        let pulled = self.feed.pull(resting, keys)?;
        if pulled.is_none() {
            self.ended.store(true, Ordering::Relaxed);
        }
        Ok(pulled)
    }

    /// Reserves the memory of a batch, and appends the batch to the waiting ones. If memory does not suffice
    /// for the batch plus `spare` bytes, the batch is kept for the next attempt.
    fn reserve(&self, buffer: &mut Buffer, morsel: Morsel, spare: u64) -> Result<()> {
        let batch = &morsel.batch;
        self.left_out.fetch_max(morsel.left_out, Ordering::Relaxed);
        if batch.num_rows() == 0 {
            // A batch without rows is dropped, and nothing is reserved for it. Otherwise, whether memory suffices could
            // depend on its place among the batches.
            self.batches.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let what =
            format!("holding the rows of the {} table that were read so far", self.side().name());
        let (bytes, fresh) = buffer.footprint.of(batch);
        self.largest.fetch_max(bytes, Ordering::Relaxed);
        let held = match &buffer.ledger {
            Some(ledger) => ledger.hold_leaving(batch, spare, &what),
            None => self.feed.budget.reserve(bytes, &what).map(|reserved| vec![Arc::new(reserved)]),
        };
        let hold = match held {
            Ok(hold) => Arc::new(hold),
            Err(error) => {
                buffer.pulled.push_front(morsel);
                return Err(error);
            }
        };
        buffer.footprint.seen.extend(fresh);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        let (first_row, rows) = (morsel.first_row.unwrap_or(buffer.rows), batch.num_rows());
        for at in (0..rows).step_by(MAX_ROWS_PER_BATCH) {
            let len = MAX_ROWS_PER_BATCH.min(rows - at);
            let batch = if len == rows { batch.clone() } else { batch.slice(at, len) };
            let (first_row, hold) = (first_row + at as u64, Arc::clone(&hold));
            buffer.waiting.push_back(Held { batch, first_row, hold });
        }
        buffer.rows += rows as u64;
        Ok(())
    }

    /// Calls a concurrent source if no batch waits. Returns whether there may be rows to take. A reader is
    /// not called, because [`morsel`](BufferedSource::morsel) does this.
    ///
    /// If other workers hold memory, `spare` is the number of bytes that the batch must leave free. Then the
    /// expected bytes of the batch are reserved before the call. So not all workers read a batch at the same
    /// time if there is memory for one. The source may leave out rows that cannot match according to `keys`.
    pub(crate) fn fetch(
        &self,
        spare: Option<u64>,
        resting: &Resting<'_>,
        keys: Option<&dyn KeyFilter>,
    ) -> Result<bool> {
        if !self.feed.concurrent || lock(&self.buffer).has_rows() {
            return Ok(true);
        }
        let room = match spare {
            Some(spare) => self.room(spare)?,
            None => None,
        };
        let morsel = self.pull(Some(resting), keys)?;
        let mut buffer = lock(&self.buffer);
        drop(room);
        // A batch may be empty. Then none waits, but the source has not ended.
        let came = morsel.is_some();
        if let Some(morsel) = morsel {
            match self.reserve(&mut buffer, morsel, spare.unwrap_or(0)) {
                // The batch was kept. It is reserved when a worker takes it.
                Err(Error::MemoryLimit { .. }) => {}
                reserved => reserved?,
            }
            buffer.footprint = Footprint::default();
        }
        Ok(came || buffer.has_rows())
    }

    /// Reserves the expected bytes of the next batch, if `spare` bytes are left after that. Reserves nothing if
    /// memory is not limited.
    fn room(&self, spare: u64) -> Result<Option<Reservation>> {
        let budget = &self.feed.budget;
        let Some(limit) = budget.limit() else { return Ok(None) };
        let bytes = self.expected_bytes(limit);
        budget.reserve_leaving(bytes, spare, "a batch that is being read").map(Some)
    }

    /// Returns the expected bytes of the next batch.
    ///
    /// If the source leaves out rows, the largest batch so far says little about the next one. If each call reserved
    /// the large share of a first batch, only few workers could read. If each call reserved almost nothing, all
    /// workers would decode a whole batch at the same time when the matching rows come, as in a sorted table. So each
    /// call reserves memory for as many rows as one call has left out: the next call may return as many.
    fn expected_bytes(&self, limit: u64) -> u64 {
        let first = limit / FIRST_SHARE;
        match (self.largest.load(Ordering::Relaxed), self.left_out.load(Ordering::Relaxed)) {
            (0, 0) => first,
            (largest, rows) => largest.max(first.min(rows.saturating_mul(self.row_bytes()))),
        }
    }

    /// Returns the bytes that a row is expected to take, by the types of its columns.
    fn row_bytes(&self) -> u64 {
        let fields = self.feed.expected.schema.fields();
        let widths = fields.iter().map(|field| expected_width(field.data_type()));
        widths.fold(0, u64::saturating_add)
    }

    /// Returns the filter that [`fetch`](BufferedSource::fetch) may offer to the source: see
    /// [`Feed::key_filter`].
    pub(crate) fn key_filter<'a>(&self, lookup: &'a dyn KeyLookup) -> Option<CheckedFilter<'a>> {
        self.feed.key_filter(lookup)
    }

    /// Reads one more batch of a concurrent source, if there is memory for it besides `spare` bytes. Returns
    /// false at the end of the input, or if there is too little memory.
    pub(super) fn advance_within_budget(&self, spare: u64) -> Result<bool> {
        let read = || {
            if !lock(&self.buffer).pulled.is_empty() {
                // There was no memory for a batch that was read before.
                return Ok(false);
            }
            let room = self.room(spare)?;
            let Some(morsel) = self.pull(None, None)? else { return Ok(false) };
            let mut buffer = lock(&self.buffer);
            drop(room);
            self.reserve(&mut buffer, morsel, spare).map(|()| true)
        };
        match read() {
            Err(Error::MemoryLimit { .. }) => Ok(false),
            read => read,
        }
    }

    /// Returns the next rows, at most `most` of them. Returns `None` at the end. For a concurrent source, it
    /// also returns `None` if no rows wait: the caller must [fetch](BufferedSource::fetch) some first. If this
    /// reads another batch, the reservation for that batch must leave `spare` bytes free.
    pub(crate) fn morsel(
        &self,
        most: usize,
        spare: u64,
        resting: &Resting<'_>,
    ) -> Result<Option<ReservedMorsel>> {
        let mut buffer = lock(&self.buffer);
        while buffer.waiting.is_empty() {
            if self.feed.concurrent && buffer.pulled.is_empty() {
                return Ok(None);
            }
            if !self.advance_within(&mut buffer, spare, Some(resting))? {
                return Ok(None);
            }
            // While batches are streamed, their buffers are freed and their addresses are used again.
            buffer.footprint = Footprint::default();
        }
        let Some(Held { batch, first_row, hold }) = buffer.waiting.pop_front() else {
            return Ok(None);
        };
        let rows = batch.num_rows();
        if rows <= most {
            return Ok(Some(ReservedMorsel { batch, first_row, _hold: hold }));
        }
        let rest = batch.slice(most, rows - most);
        let next = first_row + most as u64;
        buffer.waiting.push_front(Held { batch: rest, first_row: next, hold: Arc::clone(&hold) });
        Ok(Some(ReservedMorsel { batch: batch.slice(0, most), first_row, _hold: hold }))
    }

    /// Reads to the end and keeps all batches waiting. Each batch must leave `spare` bytes of memory free. After an
    /// error of the budget, the batches that were read can still be streamed, and the rest can still be read.
    pub(crate) fn fill(
        &self,
        workers: &Workers,
        spare: u64,
        check: impl Fn() -> Result<()> + Sync,
    ) -> Result<()> {
        let step = || {
            let more = self.advance(spare)?;
            if more {
                check()?;
            }
            Ok(more)
        };
        // A side that was read before is not read again.
        if self.known_rows().is_none() {
            self.repeat(workers, step)?;
            // A worker may have left a batch to the others when they had already reached the end.
            repeat(None, step)?;
        }
        self.order()
    }

    /// Calls `step` until it returns false. If the source is concurrent, all workers do so. An error does not
    /// end the join by itself, because the caller may continue without the batches that do not fit memory.
    pub(super) fn repeat(
        &self,
        workers: &Workers,
        step: impl Fn() -> Result<bool> + Sync,
    ) -> Result<()> {
        match self.feed.concurrent {
            true => repeat(Some(&workers.attempt()), step),
            false => repeat(None, step),
        }
    }

    /// Orders the waiting batches by their row numbers, if the output has row numbers. The source must have
    /// ended, and no batch may have been handed out.
    fn order(&self) -> Result<()> {
        if !self.feed.expected.row_numbers {
            return Ok(());
        }
        let mut buffer = lock(&self.buffer);
        let waiting = buffer.waiting.make_contiguous();
        waiting.sort_by_key(|held| held.first_row);
        let mut next = 0;
        for held in waiting {
            if held.first_row != next {
                let found = held.first_row;
                let what = format!("its source returned a morsel at row {found} instead of {next}");
                return Err(self.feed.invalid(what));
            }
            next += held.batch.num_rows() as u64;
        }
        Ok(())
    }

    /// Returns the bytes that should be free before a batch is read. If the caller supplied the source, this is at
    /// least `of_caller`. For a reader, it is also at least twice the largest batch: a reader fails if it is refused
    /// memory, and for a moment, both the reader and the join reserve a batch. But twice the largest batch counts as at
    /// most a quarter of the limit, because the batch may be a slice of a longer one.
    pub(crate) fn reading_bytes(&self, of_caller: u64) -> u64 {
        match (self.feed.expected.counted, self.feed.concurrent) {
            // The source reads rows back from disk, or is `Diverted`. Blocks on disk are short, and `Diverted`
            // itself reserves memory for its reader.
            (false, _) => of_caller / 2,
            (true, true) => of_caller,
            (true, false) => {
                let most = self.feed.budget.limit().unwrap_or(u64::MAX) / 4;
                let two = self.largest.load(Ordering::Relaxed).saturating_mul(2);
                two.min(most).max(of_caller)
            }
        }
    }

    /// Returns whether rows wait that were read and not handed out.
    pub(crate) fn has_waiting(&self) -> bool {
        lock(&self.buffer).has_rows()
    }

    /// Drops the source and the memory that it reserved. The source must have ended. Waiting batches stay.
    pub(crate) fn close(&mut self) {
        self.feed.close();
    }

    /// Lets the rows of a held side wait as the only rows. The source must not have been called, and is not called any
    /// more.
    pub(crate) fn hold(&self, rows: Relation) {
        self.ended.store(true, Ordering::Relaxed);
        self.bytes.store(rows.bytes(), Ordering::Relaxed);
        let buffer = &mut *lock(&self.buffer);
        for (batch, hold) in rows.into_batches() {
            let first_row = buffer.rows;
            buffer.rows += batch.num_rows() as u64;
            buffer.waiting.push_back(Held { batch, first_row, hold });
        }
    }

    /// Returns the waiting batches as a held side. They keep waiting here, too.
    pub(crate) fn waiting(&self) -> Relation {
        let waiting = lock(&self.buffer).waiting.iter().cloned().collect();
        Relation::new(self.schema(), waiting, self.read_bytes())
    }

    /// Returns the number of waiting rows, if the source has ended.
    pub(crate) fn known_rows(&self) -> Option<u64> {
        let buffer = lock(&self.buffer);
        let rows = || buffer.waiting.iter().map(|h| h.batch.num_rows() as u64).sum();
        (self.ended() && buffer.pulled.is_empty()).then(rows)
    }
}

impl Buffer {
    fn has_rows(&self) -> bool {
        !self.waiting.is_empty() || !self.pulled.is_empty()
    }
}

/// Returns the bytes that a value of a type is expected to take.
fn expected_width(data_type: &DataType) -> u64 {
    match data_type {
        DataType::FixedSizeBinary(bytes) => u64::from(bytes.unsigned_abs()),
        DataType::FixedSizeList(field, len) => {
            u64::from(len.unsigned_abs()).saturating_mul(expected_width(field.data_type()))
        }
        DataType::Struct(fields) => {
            let widths = fields.iter().map(|field| expected_width(field.data_type()));
            widths.fold(0, u64::saturating_add)
        }
        other => other.primitive_width().unwrap_or(VARIABLE_WIDTH) as u64,
    }
}

/// Calls `step` until it returns false: on all `workers`, or without workers on this thread.
///
/// If a worker is refused memory, it stops and leaves the work to the others. With fewer workers, fewer calls of the
/// source take memory at the same time. The last worker tries again alone, and fails if it is refused memory again.
pub(super) fn repeat(
    workers: Option<&Workers>,
    step: impl Fn() -> Result<bool> + Sync,
) -> Result<()> {
    let all = || {
        while step()? {}
        Ok(())
    };
    let Some(workers) = workers else { return all() };
    let working = AtomicUsize::new(workers.threads());
    workers.run(|_| {
        let done = all();
        let last = working.fetch_sub(1, Ordering::SeqCst) == 1;
        match done {
            Err(Error::MemoryLimit { .. }) if last => all(),
            Err(Error::MemoryLimit { .. }) => Ok(()),
            done => done,
        }
    })
}

/// Counts the bytes of each buffer once, even if several batches share it.
#[derive(Default)]
pub(super) struct Footprint {
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
    use arrow::buffer::BooleanBuffer;
    use arrow::datatypes::Field;
    use arrow::error::ArrowError;

    use super::*;
    use crate::input::feed::Expected;
    use crate::input::{Input, Source, SourceContext};
    use crate::memory::{Budget, Flow};
    use crate::reading::ReadingThread;

    fn source(batches: Vec<RecordBatch>, budget: &Arc<Budget>) -> BufferedSource {
        let schema = batches[0].schema();
        let reader = RecordBatchIterator::new(batches.into_iter().map(Ok), Arc::clone(&schema));
        buffered(reader.into(), budget)
    }

    fn buffered(input: Input, budget: &Arc<Budget>) -> BufferedSource {
        let schema = input.schema();
        let (ledger, cancelled) = (Arc::new(Ledger::new(budget)), Arc::<AtomicBool>::default());
        let reading = ReadingThread::new(1, &cancelled);
        let expected = Expected { schema, columns: None, row_numbers: false, counted: true };
        let counters = Arc::default();
        let (input, running) = ((Side::Left, input), (&cancelled, &counters));
        let feed = Feed::new(input, expected, &reading, budget, running);
        BufferedSource::new(feed, Some(ledger))
    }

    /// A batch without rows may still have large buffers. Whether memory suffices must not depend on its place.
    #[test]
    fn a_batch_without_rows_needs_no_memory() {
        let column = Arc::new(Int64Array::from_iter_values(0..1000)) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("k", column)]).expect("a column");
        let empty = batch.slice(0, 0);
        let budget = Budget::new(Some(9000));
        let source = source(vec![batch, empty], &budget);
        assert!(source.advance(0).expect("the rows fit"));
        let other = budget.reserve(budget.left(), "a test").expect("fits");
        assert!(source.advance(0).expect("no rows need no memory"));
        assert!(!source.advance(0).expect("the end"));
        assert_eq!(source.known_rows(), Some(1000));
        assert_eq!(source.read_bytes(), budget.used() - other.bytes());
        assert_eq!(source.read_batches(), 2);
    }

    /// A batch that is refused at first shares a buffer with a held batch. The buffer must count once.
    #[test]
    fn a_refused_batch_does_not_make_shared_buffers_count_again() {
        let column = |rows: i64| Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef;
        let (shared, more) = (column(1000), column(10_000));
        let batch = |other: ArrayRef| {
            RecordBatch::try_from_iter([("k", Arc::clone(&shared)), ("p", other)]).expect("columns")
        };
        let batches = [batch(Arc::clone(&shared)), batch(more.slice(0, 1000))];
        let budget = Budget::new(Some(100_000));
        let source = source(batches.into(), &budget);
        assert!(source.advance(0).expect("the first batch fits"));
        let first = source.read_bytes();
        let rest = budget.reserve(budget.left(), "a test").expect("fits");
        assert!(matches!(source.advance(0), Err(Error::MemoryLimit { .. })));
        drop(rest);
        assert!(source.advance(0).expect("the second batch fits now"));
        let second = source.read_bytes() - first;
        assert!((80_000..88_000).contains(&second), "{second} bytes");
        assert_eq!(source.read_bytes(), budget.used());
    }

    /// A table of 100 keys per call. The first 10 calls leave out all their rows, and the next call leaves out all but
    /// one.
    struct Sorted {
        calls: AtomicUsize,
        batch: RecordBatch,
    }

    impl Source for Sorted {
        fn schema(&self) -> SchemaRef {
            self.batch.schema()
        }

        fn next(&self, _: &SourceContext<'_>) -> std::result::Result<Option<Morsel>, ArrowError> {
            Ok(Some(match self.calls.fetch_add(1, Ordering::Relaxed) {
                0..10 => Morsel::new(self.batch.slice(0, 0)).leaving_out(100),
                10 => {
                    let column = Arc::new(Int64Array::from(vec![0])) as ArrayRef;
                    Morsel::new(RecordBatch::try_from_iter([("k", column)])?).leaving_out(99)
                }
                _ => Morsel::new(self.batch.clone()),
            }))
        }
    }

    struct AnyKey;

    impl KeyFilter for AnyKey {
        fn columns(&self) -> &[usize] {
            &[0]
        }

        fn may_match(&self, keys: &[ArrayRef]) -> std::result::Result<BooleanBuffer, ArrowError> {
            Ok(BooleanBuffer::new_set(keys[0].len()))
        }
    }

    /// A call reserves memory for the rows that were left out before, because the next call may return as many. It
    /// does not reserve the share of a first batch, because then few workers could read at the same time.
    #[test]
    fn rows_that_were_left_out_tell_the_size_of_a_batch() {
        let column = Arc::new(Int64Array::from_iter_values(0..100)) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("k", column)]).expect("a column");
        let budget = Budget::new(Some(1 << 20));
        let source = buffered(Input::source(Sorted { calls: 0.into(), batch }), &budget);
        let flow = Flow::default();
        let reserved = || {
            let room = source.room(0).expect("memory is free");
            room.expect("memory is limited").bytes()
        };
        assert_eq!(reserved(), (1 << 20) / FIRST_SHARE);
        for _ in 0..10 {
            assert!(
                source.fetch(Some(0), &flow.resting(&budget, true), Some(&AnyKey)).expect("fits")
            );
            assert_eq!(reserved(), 8 * 100);
        }
        // The first matching rows are few, because most rows of their batch were left out.
        assert!(source.fetch(Some(0), &flow.resting(&budget, true), Some(&AnyKey)).expect("fits"));
        assert!(source.read_bytes() < 8 * 100, "{} bytes", source.read_bytes());
        assert_eq!(reserved(), 8 * 100);
        // The next batch is whole.
        assert!(source.fetch(Some(0), &flow.resting(&budget, true), Some(&AnyKey)).expect("fits"));
        assert!((800..2000).contains(&reserved()), "{} bytes", reserved());
    }

    /// The width of types of fixed size follows from the type, also if they are nested.
    #[test]
    fn embeddings_are_expected_to_be_as_large_as_they_are() {
        let floats = Arc::new(Field::new("item", DataType::Float32, true));
        let embedding = DataType::FixedSizeList(floats, 1024);
        assert_eq!(expected_width(&embedding), 4096);
        let fields = vec![
            Field::new("e", embedding, true),
            Field::new("b", DataType::FixedSizeBinary(16), true),
            Field::new("t", DataType::Utf8, true),
        ];
        assert_eq!(expected_width(&DataType::Struct(fields.into())), 4096 + 16 + 32);
    }
}

//! Creates the output: gathers rows into batches and sends them to the reader, or only counts them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

use crate::error::{Error, Result, too_long};
use crate::materialise::{
    ABSENT, Chosen, Columns, Picked, absent, absent_bytes, coalesce, concat, concat_bytes,
};
use crate::memory::{
    Active, Budget, Flow, Hold, Ledger, Refused, Reservation, Resting, Started, frame,
};
use crate::options::Side;
use crate::progress::Counters;
use crate::schedule::lock;
use crate::schedule::wait_while;

/// The kind of output of a join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Output {
    /// The rows of both tables.
    #[default]
    Rows,
    /// Row numbers instead of rows, in the columns `left_row` and `right_row`.
    Pairs,
    /// Only the number of rows.
    Count,
}

/// The origin of an output column. Column numbers are those of the readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Column(Side, usize),
    /// A key with the same name and type on both sides of an inner join. Equal values have equal bits, so
    /// either side can be read.
    Either {
        left: usize,
        right: usize,
    },
    /// The left key, or the right key if the left row is absent, converted to one type.
    Coalesced {
        left: usize,
        right: usize,
        data_type: DataType,
    },
    RowId(Side),
    Mark,
}

/// The output columns.
#[derive(Debug, Clone)]
pub(crate) struct OutputPlan {
    pub(crate) schema: SchemaRef,
    pub(crate) origins: Vec<Origin>,
    pub(crate) output: Output,
    /// Integer columns to add up, besides counting rows.
    pub(crate) sums: Vec<(Side, usize)>,
}

/// The number of joined rows, and the sums of some of their columns.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Aggregate {
    /// The number of rows.
    pub rows: u64,
    /// The sum of each requested column over all rows. Nulls are skipped.
    pub sums: Vec<i128>,
}

/// Rows to write. Both sides have the same number; a row may be absent on one side.
pub(crate) struct Rows {
    pub(crate) left: Chosen,
    pub(crate) right: Chosen,
    pub(crate) marks: Option<Vec<bool>>,
}

/// A finished batch and its memory reservation, which ends when the consumer takes the batch.
pub(crate) struct ReservedBatch {
    pub(crate) batch: RecordBatch,
    /// The reservation for the buffers that were allocated for this batch.
    _reserved: Reservation,
    /// The reservations for the input buffers that the batch refers to, if memory is limited.
    hold: Hold,
}

/// The destination of all workers' rows.
pub(crate) struct Sink<'a> {
    pub(crate) plan: &'a OutputPlan,
    pub(crate) sender: SyncSender<Result<ReservedBatch>>,
    pub(crate) budget: &'a Arc<Budget>,
    /// The reservations for the input buffers, if memory is limited.
    pub(crate) ledger: Option<&'a Ledger>,
    pub(crate) flow: &'a Flow,
    pub(crate) cancelled: &'a AtomicBool,
    pub(crate) counters: &'a Counters,
    pub(crate) batch_size: usize,
    /// The number of workers that make output.
    pub(crate) workers: u64,
    /// Whether rows are sent before more input is read.
    pub(crate) prompt: bool,
    /// For ordered output: the segment that may send next.
    pub(crate) turn: Turn,
    /// The sums so far.
    pub(crate) sums: Mutex<Vec<i128>>,
}

impl Sink<'_> {
    /// Returns whether the consumer has seen nothing of the output yet: no rows have been sent. Counts are
    /// only reported at the end.
    pub(crate) fn untouched(&self) -> bool {
        self.plan.output == Output::Count || self.counters.found() == 0
    }

    /// Resets the counts, so that the join can restart. Nothing may have been sent.
    pub(crate) fn reset(&self) {
        self.counters.find_again();
        lock(&self.sums).fill(0);
    }

    /// Makes a [`ReservedBatch`] of a batch, and adjusts its reservation to the bytes that the batch really
    /// takes. Raises `bytes` to this number, so that another attempt reserves enough before it gathers.
    fn parcel(
        &self,
        batch: RecordBatch,
        mut reserved: Reservation,
        bytes: &mut u64,
    ) -> Result<ReservedBatch> {
        let Some(ledger) = self.ledger else {
            return Ok(ReservedBatch { batch, _reserved: reserved, hold: Hold::new() });
        };
        let referred = ledger.refer(&batch);
        let takes = referred.own + frame(&batch);
        if takes > reserved.bytes() {
            *bytes = takes.max(*bytes);
            reserved.grow(takes - reserved.bytes(), OUTPUT)?;
        } else {
            reserved.shrink(reserved.bytes() - takes);
        }
        Ok(ReservedBatch { batch, _reserved: reserved, hold: referred.hold })
    }
}

/// The purpose that is named if memory for output is refused.
const OUTPUT: &str = "a batch of output";

/// Lets the segments of an ordered output send one after the other.
#[derive(Default)]
pub(crate) struct Turn {
    /// The segment that may send now.
    now: Mutex<usize>,
    changed: Condvar,
}

impl Turn {
    fn is(&self, segment: usize) -> bool {
        *lock(&self.now) == segment
    }

    /// Waits for the turn of a segment. If an earlier segment failed or was skipped, the turn never comes.
    /// Then `cancelled` is set, and the wait ends with an error.
    fn wait_for(&self, segment: usize, cancelled: &AtomicBool) -> Result<()> {
        wait_while(cancelled, &self.changed, lock(&self.now), |now| *now != segment).map(drop)
    }

    fn pass(&self, segment: usize) {
        *lock(&self.now) = segment + 1;
        self.changed.notify_all();
    }
}

/// The largest number of rows that are gathered at once, whatever the batch size.
const MAX_AT_ONCE: usize = 1 << 18;

/// One worker's access to the sink. It collects small results until they fill a batch.
pub(crate) struct Emitter<'a> {
    sink: &'a Sink<'a>,
    waiting: Vec<ReservedBatch>,
    waiting_rows: usize,
    /// The input that waiting batches keep in memory: the address of each reservation, and their bytes.
    held: (HashSet<usize>, u64),
    /// The segment these rows belong to, where output is ordered.
    segment: Option<usize>,
    /// Rows that were counted and not yet added to the sink's counters.
    counted: u64,
    /// Sums that were not yet added to the sink's sums.
    sums: Vec<i128>,
    _active: Active<'a>,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(sink: &'a Sink<'a>) -> Self {
        Emitter {
            sink,
            waiting: Vec::new(),
            waiting_rows: 0,
            held: (HashSet::new(), 0),
            segment: None,
            counted: 0,
            sums: vec![0; sink.plan.sums.len()],
            _active: sink.flow.active(sink.budget),
        }
    }

    /// Creates an emitter for one segment of an ordered output.
    pub(crate) fn of_segment(sink: &'a Sink<'a>, segment: usize) -> Self {
        Emitter { segment: Some(segment), ..Emitter::new(sink) }
    }

    /// Returns the largest number of rows that a caller should write at once.
    pub(crate) fn batch_size(&self) -> usize {
        self.sink.batch_size.min(MAX_AT_ONCE)
    }

    /// Returns an error if the join was cancelled.
    pub(crate) fn check(&self) -> Result<()> {
        if self.sink.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Counts rows that need not be written.
    pub(crate) fn count(&mut self, rows: u64) {
        self.counted += rows;
    }

    /// Runs `attempt`. If it is refused memory, sends the waiting batches, and tries again as long as memory
    /// may become free.
    pub(crate) fn patiently<T>(
        &mut self,
        refused: Refused,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        match attempt() {
            Err(Error::MemoryLimit { .. }) if !self.sink.budget.unlimited() => {}
            done => return done,
        }
        self.send_waiting()?;
        self.sink.flow.patiently((self.sink.budget, refused), self.sink.cancelled, attempt)
    }

    /// Starts a piece of work. `attempt` reserves the memory that the work holds while its output is written.
    /// Its argument is the number of bytes that the reservation must leave free: `spare` if other workers
    /// have started work, otherwise 0. Waits like [`patiently`](Emitter::patiently).
    pub(crate) fn start<T>(
        &mut self,
        spare: u64,
        mut attempt: impl FnMut(u64, &Resting<'_>) -> Result<T>,
    ) -> Result<(Started<'a>, T)> {
        let sink = self.sink;
        let resting = sink.flow.resting(sink.budget, !self.waiting.is_empty());
        self.patiently(Refused::StartsLater, || {
            sink.flow.start((sink.budget, spare), &resting, |alone| {
                attempt(if alone { 0 } else { spare }, &resting)
            })
        })
    }

    /// Sends the waiting batches if they keep much input in memory. The worker that reads the next input may
    /// need this memory, and cannot ask for it. With `prompt`, it sends them in any case.
    pub(crate) fn relieve(&mut self) -> Result<()> {
        if self.sink.prompt {
            return self.flush();
        }
        let Some(limit) = self.sink.budget.limit().filter(|_| !self.waiting.is_empty()) else {
            return Ok(());
        };
        match self.held.1 > limit / 4 / self.sink.workers {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Writes at most one batch of rows. Returns the vectors, so that the caller can use them again.
    pub(crate) fn rows(&mut self, sides: [Option<&Columns>; 2], rows: Rows) -> Result<Rows> {
        self.counted += rows.left.len() as u64;
        if self.sink.plan.output == Output::Count {
            for (sum, &(side, column)) in self.sums.iter_mut().zip(&self.sink.plan.sums) {
                let picked = if side == Side::Left { &rows.left } else { &rows.right };
                *sum += sides[side as usize].map_or(0, |columns| columns.sum(column, picked));
            }
            self.check()?;
            return Ok(rows);
        }
        if rows.left.len() == 0 {
            return Ok(rows);
        }
        if !self.sink.budget.unlimited() {
            // The segment whose turn it is needs memory. Segments that wait for their turn must not hold any.
            self.wait_for_turn()?;
        }
        self.write(sides, rows)
    }

    /// Gathers a batch. If offsets overflow or memory does not suffice, it writes the two halves instead.
    fn write(&mut self, sides: [Option<&Columns>; 2], rows: Rows) -> Result<Rows> {
        let len = rows.left.len();
        let (sink, plan) = (self.sink, self.sink.plan);
        let pooled = sink.budget.unlimited();
        let picked = [
            sides[0].map(|columns| columns.pick(rows.left, pooled)),
            sides[1].map(|columns| columns.pick(rows.right, pooled)),
        ];
        let mut bytes = plan.bytes(sides, &picked, len);
        let gathered = self.patiently(fewer(len), || {
            let reserved = sink.budget.reserve(bytes, OUTPUT)?;
            let batch = plan.gather(sides, &picked, rows.marks.as_deref(), len);
            let batch = batch.map_err(Error::arrow("gathering output rows"))?;
            sink.parcel(batch, reserved, &mut bytes)
        });
        let absent = || Chosen::Ids(vec![ABSENT; len]);
        let [left, right] = picked.map(|p| p.map_or_else(absent, |p| p.chosen));
        let rows = Rows { left, right, marks: rows.marks };
        match gathered {
            Ok(parcel) => self.push(parcel)?,
            Err(error) if len > 1 && error.fewer_rows_may_help() => {
                for range in [0..len / 2, len / 2..len] {
                    let marks = rows.marks.as_ref().map(|m| m[range.clone()].to_vec());
                    let left = rows.left.part(range.clone());
                    self.write(sides, Rows { left, right: rows.right.part(range), marks })?;
                }
            }
            Err(error) => return Err(error),
        }
        Ok(rows)
    }

    fn push(&mut self, parcel: ReservedBatch) -> Result<()> {
        let rows = parcel.batch.num_rows();
        let size = self.sink.batch_size;
        if self.waiting.is_empty() && rows > size / 2 {
            return self.send(parcel);
        }
        if self.waiting_rows + rows > size {
            self.flush()?;
        }
        for part in &parcel.hold {
            // Reservations of waiting batches live on, so no two of them have one address.
            if self.held.0.insert(Arc::as_ptr(part) as usize) {
                self.held.1 += part.bytes();
            }
        }
        self.waiting_rows += rows;
        self.waiting.push(parcel);
        Ok(())
    }

    /// Sends the waiting batches, as one batch if possible.
    fn flush(&mut self) -> Result<()> {
        if let Some(whole) = self.joined()? {
            drop(self.take_waiting());
            return self.send(whole);
        }
        self.send_waiting()
    }

    /// Concatenates the waiting batches. Returns `None` if there are fewer than two, or if they do not fit
    /// one batch.
    fn joined(&self) -> Result<Option<ReservedBatch>> {
        if self.waiting.len() < 2 {
            return Ok(None);
        }
        // For a moment, memory holds the parts and the whole. If it does not suffice for both, the parts are
        // sent as they are.
        let schema = &self.sink.plan.schema;
        let parts: Vec<&RecordBatch> = self.waiting.iter().map(|parcel| &parcel.batch).collect();
        let mut bytes = concat_bytes(schema, &parts);
        let Ok(reserved) = self.sink.budget.reserve(bytes, OUTPUT) else { return Ok(None) };
        match concat(schema, &parts) {
            Ok(batch) => Ok(self.sink.parcel(batch, reserved, &mut bytes).ok()),
            Err(error) if too_long(&error) => Ok(None),
            Err(error) => Err(Error::arrow("gathering output rows")(error)),
        }
    }

    /// Sends the waiting batches as they are.
    fn send_waiting(&mut self) -> Result<()> {
        self.take_waiting().into_iter().try_for_each(|parcel| self.send(parcel))
    }

    /// Takes the waiting batches: none waits afterwards.
    fn take_waiting(&mut self) -> Vec<ReservedBatch> {
        self.waiting_rows = 0;
        self.held.0.clear();
        self.held.1 = 0;
        std::mem::take(&mut self.waiting)
    }

    fn send(&mut self, parcel: ReservedBatch) -> Result<()> {
        self.wait_for_turn()?;
        self.tell();
        self.sink.flow.sending();
        // If the reader is gone, there is no reason to continue.
        self.sink.sender.send(Ok(parcel)).map_err(|_| Error::Cancelled)
    }

    /// If the output is ordered, waits until this segment may send.
    fn wait_for_turn(&self) -> Result<()> {
        let sink = self.sink;
        match self.segment {
            Some(segment) if !sink.turn.is(segment) => {
                let _idle = sink.flow.idle(sink.budget);
                sink.turn.wait_for(segment, sink.cancelled)
            }
            _ => Ok(()),
        }
    }

    fn tell(&mut self) {
        let counted = std::mem::take(&mut self.counted);
        self.sink.counters.add_output(counted);
        if !self.sums.is_empty() {
            let mut total = lock(&self.sink.sums);
            total.iter_mut().zip(&mut self.sums).for_each(|(t, s)| *t += std::mem::take(s));
        }
    }

    /// Sends the remaining rows. An ordered segment then passes the turn to the next one.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.tell();
        if let Some(segment) = self.segment {
            self.wait_for_turn()?;
            self.sink.turn.pass(segment);
        }
        Ok(())
    }
}

impl OutputPlan {
    /// Returns whether only the number of rows is needed.
    pub(crate) fn count_only(&self) -> bool {
        self.output == Output::Count && self.sums.is_empty()
    }

    /// Returns whether the output needs only values of this side: no row numbers, and no coalesced keys.
    pub(crate) fn by_values(&self, side: Side) -> bool {
        self.origins.iter().all(|origin| match origin {
            Origin::RowId(s) => *s != side,
            Origin::Coalesced { .. } => false,
            Origin::Column(..) | Origin::Either { .. } | Origin::Mark => true,
        })
    }

    /// Returns the columns that are read in random order if this side is the build side.
    pub(crate) fn gathered(&self, side: Side) -> Vec<usize> {
        let of_side = |&(s, column): &(Side, usize)| (s == side).then_some(column);
        let columns = self.origins.iter().filter_map(|origin| match origin {
            Origin::Column(s, column) => of_side(&(*s, *column)),
            _ => None,
        });
        columns.chain(self.sums.iter().filter_map(of_side)).collect()
    }

    /// Returns the bytes that gathering these rows needs.
    fn bytes(&self, sides: [Option<&Columns>; 2], picked: &[Option<Picked>; 2], len: usize) -> u64 {
        let side = |side: Side| sides[side as usize].zip(picked[side as usize].as_ref());
        let of = |(from, column): (Side, usize), data_type: &DataType| match side(from) {
            Some((columns, picked)) => columns.bytes(column, picked),
            None => absent_bytes(data_type, len),
        };
        let copied = |(from, column): (Side, usize)| {
            side(from).map_or(0, |(columns, picked)| columns.plain_bytes(column, picked))
        };
        let fields = self.schema.fields().iter().map(|field| field.data_type());
        let bytes = self.origins.iter().zip(fields).map(|(origin, data_type)| match origin {
            Origin::Column(side, column) => of((*side, *column), data_type),
            Origin::Either { left, right } => match self.nearer(picked) {
                Side::Left => of((Side::Left, *left), data_type),
                Side::Right => of((Side::Right, *right), data_type),
            },
            // Both columns are gathered, converted to one type, and then merged.
            Origin::Coalesced { left, right, .. } => {
                let both = [(Side::Left, *left), (Side::Right, *right)];
                both.map(|from| of(from, data_type) + 2 * copied(from)).iter().sum()
            }
            Origin::RowId(_) => 8 * len as u64,
            Origin::Mark => len as u64,
        });
        bytes.sum()
    }

    /// Returns the side to read values from that both sides have. It is the side whose rows come in ascending
    /// order, because they are close to each other in memory. It is never a side that has only inlined
    /// columns.
    fn nearer(&self, picked: &[Option<Picked>; 2]) -> Side {
        let whole = |side: Side| {
            let picked = picked[side as usize].as_ref();
            picked.filter(|picked| !matches!(picked.chosen, Chosen::Values(_)))
        };
        match (whole(Side::Left), whole(Side::Right)) {
            (Some(_), Some(right)) if right.rising() => Side::Right,
            (None, Some(_)) => Side::Right,
            _ => Side::Left,
        }
    }

    fn gather(
        &self,
        sides: [Option<&Columns>; 2],
        picked: &[Option<Picked>; 2],
        marks: Option<&[bool]>,
        len: usize,
    ) -> Result<RecordBatch, ArrowError> {
        let column = |side: Side, column: usize, data_type: &DataType| match (
            sides[side as usize],
            &picked[side as usize],
        ) {
            (Some(columns), Some(picked)) => columns.gather(column, picked),
            _ => absent(data_type, len),
        };
        let one = |(i, origin): (usize, &Origin)| -> Result<ArrayRef, ArrowError> {
            let data_type = self.schema.field(i).data_type();
            match origin {
                Origin::Column(side, c) => column(*side, *c, data_type),
                Origin::Either { left, right } => match self.nearer(picked) {
                    Side::Left => column(Side::Left, *left, data_type),
                    Side::Right => column(Side::Right, *right, data_type),
                },
                Origin::Coalesced { left, right, data_type } => {
                    let values = [
                        sides[0].map(|_| column(Side::Left, *left, data_type)).transpose()?,
                        sides[1].map(|_| column(Side::Right, *right, data_type)).transpose()?,
                    ];
                    coalesce(values, picked, data_type)
                }
                Origin::RowId(side) => {
                    Ok(row_ids(sides[*side as usize], picked[*side as usize].as_ref(), len))
                }
                Origin::Mark => Ok(Arc::new(BooleanArray::from(marks.unwrap_or(&[]).to_vec()))),
            }
        };
        let columns = self.origins.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(len));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
    }
}

/// Tells what this number of rows allows if memory is finally refused: split them, or fail.
pub(crate) fn fewer(rows: usize) -> Refused {
    if rows > 1 { Refused::TakesLess } else { Refused::Fails }
}

/// Returns the row numbers in their table; null for absent rows.
fn row_ids(columns: Option<&Columns>, picked: Option<&Picked>, len: usize) -> ArrayRef {
    let (Some(columns), Some(picked)) = (columns, picked) else {
        return Arc::new(UInt64Array::new_null(len));
    };
    let first = columns.first_row;
    if let Chosen::Run(run) = &picked.chosen {
        return Arc::new(UInt64Array::from_iter_values(run.start + first..run.end + first));
    }
    let rows = picked.ids();
    let ids: Vec<u64> = rows.iter().map(|&row| row.wrapping_add(first)).collect();
    let there = || BooleanBuffer::collect_bool(len, |i| rows[i] != ABSENT);
    let nulls = (!picked.all_there()).then(|| NullBuffer::new(there()));
    Arc::new(UInt64Array::new(ids.into(), nulls))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A join that restarts on the CPU while it counts: the number of rows that the user sees must not
    /// decrease.
    #[test]
    fn the_number_of_rows_never_goes_back() {
        let schema = Arc::new(arrow::datatypes::Schema::empty());
        let (origins, sums) = (Vec::new(), Vec::new());
        let plan = OutputPlan { schema, origins, output: Output::Count, sums };
        let (budget, flow, counters) = (Budget::new(None), Flow::default(), Counters::default());
        let (sender, _receiver) = std::sync::mpsc::sync_channel(1);
        let sink = Sink {
            plan: &plan,
            sender,
            budget: &budget,
            ledger: None,
            flow: &flow,
            cancelled: &AtomicBool::new(false),
            counters: &counters,
            batch_size: 100,
            workers: 1,
            prompt: false,
            turn: Turn::default(),
            sums: Mutex::default(),
        };
        let count = |rows| {
            let mut emitter = Emitter::new(&sink);
            emitter.count(rows);
            emitter.finish().expect("nothing is sent");
            counters.snapshot().output_rows
        };
        assert_eq!(count(5), 5);
        assert!(sink.untouched(), "counts are told at the end");
        sink.reset();
        assert_eq!(counters.snapshot().output_rows, 5);
        assert_eq!(count(3), 5);
        assert_eq!(count(4), 7);
    }

    #[test]
    fn whoever_waits_for_a_turn_that_never_comes_hears_of_the_end() {
        let (turn, cancelled) = (Turn::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            // Segment 0 is skipped, as `Workers::each` skips tasks after the join was cancelled.
            let waits = scope.spawn(|| turn.wait_for(1, &cancelled));
            cancelled.store(true, Ordering::Relaxed);
            assert!(matches!(waits.join().expect("no panic"), Err(Error::Cancelled)));
        });
        turn.pass(0);
        assert!(turn.wait_for(1, &cancelled).is_ok(), "its turn has come");
    }
}

//! Rows on their way out: gathered into batches, handed to the reader, or only counted.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

use crate::error::{Error, Result};
use crate::materialise::{
    ABSENT, Chosen, Columns, Picked, absent, absent_bytes, coalesce, concat, concat_bytes, too_long,
};
use crate::memory::{Active, Budget, Flow, Hold, Ledger, Refused, Reservation, Started, frame};
use crate::options::Side;
use crate::progress::Counters;
use crate::schedule::lock;
use crate::schedule::wait_while;

/// What a join yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Output {
    /// Rows of both tables.
    #[default]
    Rows,
    /// Positions of rows: `left_row` and `right_row`.
    Pairs,
    /// Only how many rows there are.
    Count,
}

/// Where an output column comes from. Columns are those of the readers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Column(Side, usize),
    /// A key with the same type and name on both sides of an inner join, whose equal values are the
    /// same bit by bit: either will do.
    Either {
        left: usize,
        right: usize,
    },
    /// The left key, or the right one where the left row is absent, as one type.
    Coalesced {
        left: usize,
        right: usize,
        data_type: DataType,
    },
    RowId(Side),
    Mark,
}

/// The columns of the output.
#[derive(Debug, Clone)]
pub(crate) struct OutputPlan {
    pub(crate) schema: SchemaRef,
    pub(crate) origins: Vec<Origin>,
    pub(crate) output: Output,
    /// Integer columns whose sums are asked for besides the count.
    pub(crate) sums: Vec<(Side, usize)>,
}

/// The rows of a join, added up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Aggregate {
    /// How many rows there are.
    pub rows: u64,
    /// The sum of each column asked for, over all rows; nulls count as nothing.
    pub sums: Vec<i128>,
}

/// Rows to write: as many of each side, absent where there is none.
pub(crate) struct Rows {
    pub(crate) left: Chosen,
    pub(crate) right: Chosen,
    pub(crate) marks: Option<Vec<bool>>,
}

/// A batch on its way to the consumer, and its place in the budget until the consumer takes it.
pub(crate) struct ReservedBatch {
    pub(crate) batch: RecordBatch,
    /// Of the buffers that were made for the batch.
    _reserved: Reservation,
    /// Of the buffers of the input that it refers to, where there is a limit.
    hold: Hold,
}

/// Where all workers send their rows.
pub(crate) struct Sink<'a> {
    pub(crate) plan: &'a OutputPlan,
    pub(crate) sender: SyncSender<Result<ReservedBatch>>,
    pub(crate) budget: &'a Arc<Budget>,
    /// The buffers of the input, where there is a limit.
    pub(crate) ledger: Option<&'a Ledger>,
    pub(crate) flow: &'a Flow,
    pub(crate) cancelled: &'a AtomicBool,
    pub(crate) counters: &'a Counters,
    pub(crate) batch_size: usize,
    /// Whether rows are sent before more input is read.
    pub(crate) prompt: bool,
    /// For ordered output: whose turn it is to send.
    pub(crate) turn: Turn,
    /// The sums asked for.
    pub(crate) sums: Mutex<Vec<i128>>,
}

impl Sink<'_> {
    /// Whether nobody outside has seen anything of the output yet: no rows have been sent, and counts
    /// are told at the end.
    pub(crate) fn untouched(&self) -> bool {
        self.plan.output == Output::Count || self.counters.found() == 0
    }

    /// Forgets what was counted, so that the join can begin again. Nothing may have been sent.
    pub(crate) fn reset(&self) {
        self.counters.find_again();
        lock(&self.sums).fill(0);
    }

    /// Makes a parcel of a batch, and corrects what was reserved for it to what it takes. Raises
    /// `bytes` to that, so that a further attempt reserves enough before it gathers.
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

/// What memory of output is reserved for.
const OUTPUT: &str = "a batch of output";

/// Lets the segments of an ordered output through one after the other.
#[derive(Default)]
pub(crate) struct Turn {
    /// The segment that may send.
    now: Mutex<usize>,
    changed: Condvar,
}

impl Turn {
    fn is(&self, segment: usize) -> bool {
        *lock(&self.now) == segment
    }

    /// Waits for the segment's turn. It never comes if an earlier segment failed or was left out; then
    /// `cancelled` is set.
    fn wait_for(&self, segment: usize, cancelled: &AtomicBool) -> Result<()> {
        wait_while(cancelled, &self.changed, lock(&self.now), |now| *now != segment).map(drop)
    }

    fn pass(&self, segment: usize) {
        *lock(&self.now) = segment + 1;
        self.changed.notify_all();
    }
}

/// Rows that are gathered at once at most, however large batches may be.
const MAX_AT_ONCE: usize = 1 << 18;

/// One worker's way to the sink. Small results wait until they fill a batch.
pub(crate) struct Emitter<'a> {
    sink: &'a Sink<'a>,
    waiting: Vec<ReservedBatch>,
    waiting_rows: usize,
    /// The input that waiting batches keep in memory: the address of each reservation, and their bytes.
    held: (HashSet<usize>, u64),
    /// The segment these rows belong to, where output is ordered.
    segment: Option<usize>,
    /// Rows counted and not yet told the sink.
    counted: u64,
    /// Sums not yet told the sink.
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

    /// An emitter for one segment of an ordered output.
    pub(crate) fn of_segment(sink: &'a Sink<'a>, segment: usize) -> Self {
        Emitter { segment: Some(segment), ..Emitter::new(sink) }
    }

    /// How many rows should be written at once at most.
    pub(crate) fn batch_size(&self) -> usize {
        self.sink.batch_size.min(MAX_AT_ONCE)
    }

    /// An error once the join was cancelled.
    pub(crate) fn check(&self) -> Result<()> {
        if self.sink.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Rows that need not be written.
    pub(crate) fn count(&mut self, rows: u64) {
        self.counted += rows;
    }

    /// Runs `attempt`. Where it is refused memory, sends what waits, and tries again as long as memory
    /// may come free.
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

    /// Starts a piece of work: `attempt` takes the memory that the work holds while its output is
    /// written. If other workers have work that was started, it has to leave as many bytes as its
    /// argument says, which is `spare`. Waits as [`patiently`](Emitter::patiently) does.
    pub(crate) fn start<T>(
        &mut self,
        spare: u64,
        mut attempt: impl FnMut(u64) -> Result<T>,
    ) -> Result<(Started<'a>, T)> {
        let sink = self.sink;
        self.patiently(Refused::StartsLater, || {
            sink.flow.start(sink.budget, |alone| attempt(if alone { 0 } else { spare }))
        })
    }

    /// Sends what waits if it keeps much of the input in memory: whoever reads the next input may need
    /// that memory, and cannot ask for it. Where rows are wanted promptly, sends them in any case.
    pub(crate) fn relieve(&mut self) -> Result<()> {
        if self.sink.prompt {
            return self.flush();
        }
        let Some(limit) = self.sink.budget.limit().filter(|_| !self.waiting.is_empty()) else {
            return Ok(());
        };
        match self.held.1 > limit / 4 {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Writes rows: at most a batch. Gives the vectors back for the next.
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
            // Whoever has the turn needs memory that nobody who waits for it may hold.
            self.wait_for_turn()?;
        }
        self.write(sides, rows)
    }

    /// Gathers a batch, or halves it where offsets would overflow or memory does not suffice.
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
            Err(error) if len > 1 && fewer_would_do(&error) => {
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

    /// Sends what waits, as one batch where that can be.
    fn flush(&mut self) -> Result<()> {
        if let Some(whole) = self.joined()? {
            drop(self.take_waiting());
            return self.send(whole);
        }
        self.send_waiting()
    }

    /// What waits as one batch. None where it is one already, or does not fit one.
    fn joined(&self) -> Result<Option<ReservedBatch>> {
        if self.waiting.len() < 2 {
            return Ok(None);
        }
        // The parts and the whole are held together for a moment. Where memory does not suffice for
        // that, the parts will do.
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

    /// Sends what waits as it is.
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
        // The reader is gone: so is the reason to go on.
        self.sink.sender.send(Ok(parcel)).map_err(|_| Error::Cancelled)
    }

    /// Waits until rows of this segment may be sent, where output is ordered.
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

    /// Sends the rest. An ordered segment lets the next one through.
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
    /// Whether nothing but the number of rows is asked for.
    pub(crate) fn count_only(&self) -> bool {
        self.output == Output::Count && self.sums.is_empty()
    }

    /// Whether rows of a side are asked for by their values alone: not by their position, nor in
    /// place of the other side's.
    pub(crate) fn by_values(&self, side: Side) -> bool {
        self.origins.iter().all(|origin| match origin {
            Origin::RowId(s) => *s != side,
            Origin::Coalesced { .. } => false,
            Origin::Column(..) | Origin::Either { .. } | Origin::Mark => true,
        })
    }

    /// The columns of a side that are read at random while it is the build side.
    pub(crate) fn gathered(&self, side: Side) -> Vec<usize> {
        let of_side = |&(s, column): &(Side, usize)| (s == side).then_some(column);
        let columns = self.origins.iter().filter_map(|origin| match origin {
            Origin::Column(s, column) => of_side(&(*s, *column)),
            _ => None,
        });
        columns.chain(self.sums.iter().filter_map(of_side)).collect()
    }

    /// The bytes that gathering these rows takes.
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
            // Both are gathered, brought to one type, and then made one.
            Origin::Coalesced { left, right, .. } => {
                let both = [(Side::Left, *left), (Side::Right, *right)];
                both.map(|from| of(from, data_type) + 2 * copied(from)).iter().sum()
            }
            Origin::RowId(_) => 8 * len as u64,
            Origin::Mark => len as u64,
        });
        bytes.sum()
    }

    /// The side from which values that both sides have are taken: the one whose rows come in their own
    /// order, since they are near each other; never one of which only some columns are there.
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

/// What becomes of so many rows where memory is refused for good.
pub(crate) fn fewer(rows: usize) -> Refused {
    if rows > 1 { Refused::TakesLess } else { Refused::Fails }
}

/// Whether a batch of fewer rows would get round an error.
pub(crate) fn fewer_would_do(error: &Error) -> bool {
    match error {
        Error::MemoryLimit { .. } => true,
        Error::Arrow { source, .. } => too_long(source),
        _ => false,
    }
}

/// Positions of rows in their table; null where absent.
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

    /// A join that begins again on the CPU while it counts: nobody sees the number of rows go back.
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
            // Segment 0 is left out, as `Workers::each` does with tasks once the join was cancelled.
            let waits = scope.spawn(|| turn.wait_for(1, &cancelled));
            cancelled.store(true, Ordering::Relaxed);
            assert!(matches!(waits.join().expect("no panic"), Err(Error::Cancelled)));
        });
        turn.pass(0);
        assert!(turn.wait_for(1, &cancelled).is_ok(), "its turn has come");
    }
}

//! Rows on their way out: gathered into batches, handed to the reader, or only counted.

use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;

use crate::error::{Error, Result};
use crate::join::Side;
use crate::materialise::{ABSENT, Chosen, Columns, Picked, too_long};
use crate::memory::{Budget, Reservation};
use crate::progress::Counters;

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
    /// A key with the same type and name on both sides of an inner join: either will do.
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

/// A batch and its place in the budget, until the reader takes it.
pub(crate) type Parcel = (RecordBatch, Reservation);

/// Where all workers send their rows.
pub(crate) struct Sink<'a> {
    pub(crate) plan: &'a OutputPlan,
    pub(crate) sender: SyncSender<Result<Parcel>>,
    pub(crate) budget: &'a Arc<Budget>,
    pub(crate) counters: &'a Counters,
    pub(crate) batch_size: usize,
    /// For ordered output: whose turn it is to send.
    pub(crate) turn: Turn,
    /// The sums asked for.
    pub(crate) sums: Mutex<Vec<i128>>,
}

/// Lets the segments of an ordered output through one after the other.
#[derive(Default)]
pub(crate) struct Turn {
    /// The segment that may send, and whether the join has failed and all may go home.
    now: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Turn {
    fn wait_for(&self, segment: usize) -> Result<()> {
        let mut now = self.now.lock().unwrap_or_else(|e| e.into_inner());
        while now.0 != segment {
            if now.1 {
                return Err(Error::Cancelled);
            }
            now = self.changed.wait(now).unwrap_or_else(|e| e.into_inner());
        }
        Ok(())
    }

    fn pass(&self, segment: usize) {
        let mut now = self.now.lock().unwrap_or_else(|e| e.into_inner());
        now.0 = segment + 1;
        self.changed.notify_all();
    }

    /// Wakes those who wait for a turn that will not come.
    pub(crate) fn fail(&self) {
        self.now.lock().unwrap_or_else(|e| e.into_inner()).1 = true;
        self.changed.notify_all();
    }
}

/// One worker's way to the sink. Small results wait until they fill a batch.
pub(crate) struct Emitter<'a> {
    sink: &'a Sink<'a>,
    waiting: Vec<Parcel>,
    waiting_rows: usize,
    /// The segment these rows belong to, where output is ordered.
    segment: Option<usize>,
    /// Rows counted and not yet told the sink.
    counted: u64,
    /// Sums not yet told the sink.
    sums: Vec<i128>,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(sink: &'a Sink<'a>) -> Self {
        let sums = vec![0; sink.plan.sums.len()];
        Emitter { sink, waiting: Vec::new(), waiting_rows: 0, segment: None, counted: 0, sums }
    }

    /// An emitter for one segment of an ordered output.
    pub(crate) fn of_segment(sink: &'a Sink<'a>, segment: usize) -> Self {
        Emitter { segment: Some(segment), ..Emitter::new(sink) }
    }

    pub(crate) fn batch_size(&self) -> usize {
        self.sink.batch_size
    }

    /// Rows that need not be written.
    pub(crate) fn count(&mut self, rows: u64) {
        self.counted += rows;
    }

    /// Writes rows: at most a batch. Gives the vectors back for the next.
    pub(crate) fn rows(&mut self, sides: [Option<&Columns>; 2], rows: Rows) -> Result<Rows> {
        self.counted += rows.left.len() as u64;
        if self.sink.plan.output == Output::Count {
            for (sum, &(side, column)) in self.sums.iter_mut().zip(&self.sink.plan.sums) {
                let picked = if side == Side::Left { &rows.left } else { &rows.right };
                *sum += sides[side as usize].map_or(0, |columns| columns.sum(column, picked));
            }
            return Ok(rows);
        }
        if rows.left.len() == 0 {
            return Ok(rows);
        }
        self.write(sides, rows)
    }

    /// Gathers a batch, or halves it where offsets would overflow or memory does not suffice.
    fn write(&mut self, sides: [Option<&Columns>; 2], rows: Rows) -> Result<Rows> {
        let len = rows.left.len();
        let plan = self.sink.plan;
        let pooled = self.sink.budget.unlimited();
        let picked = [
            sides[0].map(|columns| columns.pick(rows.left, pooled)),
            sides[1].map(|columns| columns.pick(rows.right, pooled)),
        ];
        let bytes = plan.bytes(sides, &picked, len);
        let gathered = self.sink.budget.reserve(bytes, "a batch of output").and_then(|reserved| {
            let batch = plan.gather(sides, &picked, rows.marks.as_deref(), len);
            Ok((batch.map_err(Error::arrow("gathering output rows"))?, reserved))
        });
        let absent = || Chosen::Ids(vec![ABSENT; len]);
        let [left, right] = picked.map(|p| p.map_or_else(absent, |p| p.chosen));
        let rows = Rows { left, right, marks: rows.marks };
        match gathered {
            Ok((batch, reserved)) => self.push(batch, reserved)?,
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

    fn push(&mut self, batch: RecordBatch, reservation: Reservation) -> Result<()> {
        let rows = batch.num_rows();
        if self.waiting.is_empty() && rows * 2 > self.batch_size() {
            return self.send((batch, reservation));
        }
        if self.waiting_rows + rows > self.batch_size() {
            self.flush()?;
        }
        self.waiting_rows += rows;
        self.waiting.push((batch, reservation));
        Ok(())
    }

    /// Sends what waits, as one batch where that can be.
    fn flush(&mut self) -> Result<()> {
        self.waiting_rows = 0;
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.len() > 1 {
            // Twice for a moment: the parts and the whole.
            let bytes = waiting.iter().map(|(_, reserved)| reserved.bytes()).sum();
            let reserved = self.sink.budget.reserve(bytes, "a batch of output")?;
            let whole = concat_batches(&self.sink.plan.schema, waiting.iter().map(|(b, _)| b));
            match whole {
                Ok(batch) => {
                    drop(waiting);
                    return self.send((batch, reserved));
                }
                Err(error) if too_long(&error) => {}
                Err(error) => return Err(Error::arrow("gathering output rows")(error)),
            }
        }
        waiting.into_iter().try_for_each(|parcel| self.send(parcel))
    }

    fn send(&mut self, parcel: Parcel) -> Result<()> {
        if let Some(segment) = self.segment {
            self.sink.turn.wait_for(segment)?;
        }
        self.tell();
        // The reader is gone: so is the reason to go on.
        self.sink.sender.send(Ok(parcel)).map_err(|_| Error::Cancelled)
    }

    fn tell(&mut self) {
        let counted = std::mem::take(&mut self.counted);
        self.sink.counters.output_rows.fetch_add(counted, Ordering::Relaxed);
        if !self.sums.is_empty() {
            let mut total = self.sink.sums.lock().unwrap_or_else(|e| e.into_inner());
            total.iter_mut().zip(&mut self.sums).for_each(|(t, s)| *t += std::mem::take(s));
        }
    }

    /// Sends the rest. An ordered segment lets the next one through.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.tell();
        if let Some(segment) = self.segment {
            self.sink.turn.wait_for(segment)?;
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
        let of = |side: Side, column: usize| match (sides[side as usize], &picked[side as usize]) {
            (Some(columns), Some(picked)) => columns.bytes(column, picked),
            _ => 8 * len as u64,
        };
        let bytes = self.origins.iter().map(|origin| match origin {
            Origin::Column(side, column) => of(*side, *column),
            Origin::Either { left, .. } => of(Side::Left, *left),
            // Both are gathered, and then made one.
            Origin::Coalesced { left, right, .. } => {
                2 * (of(Side::Left, *left) + of(Side::Right, *right))
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
            _ => Ok(arrow::array::new_null_array(data_type, len)),
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

/// Whether a batch of fewer rows would get round an error.
fn fewer_would_do(error: &Error) -> bool {
    match error {
        Error::MemoryLimit { .. } => true,
        Error::Arrow { source, .. } => too_long(source),
        _ => false,
    }
}

/// The left value where the left row is there, else the right one.
fn coalesce(
    values: [Option<ArrayRef>; 2],
    picked: &[Option<Picked>; 2],
    data_type: &DataType,
) -> Result<ArrayRef, ArrowError> {
    let as_one = |array: &ArrayRef| {
        if array.data_type() == data_type { Ok(Arc::clone(array)) } else { cast(array, data_type) }
    };
    match (&values, picked) {
        ([Some(left), Some(right)], [Some(rows), _]) => {
            let (left, right) = (as_one(left)?, as_one(right)?);
            if rows.all_there() {
                return Ok(left);
            }
            let ids = rows.ids();
            let there = BooleanBuffer::collect_bool(ids.len(), |i| ids[i] != ABSENT);
            arrow::compute::kernels::zip::zip(&BooleanArray::new(there, None), &left, &right)
        }
        ([Some(only), None], _) | ([None, Some(only)], _) => as_one(only),
        _ => Err(ArrowError::ComputeError("a row of no side".to_string())),
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

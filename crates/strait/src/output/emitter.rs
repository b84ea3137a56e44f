//! One worker's access to the output. It gathers rows into batches, and collects small batches.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::RecordBatch;

use super::sink::OUTPUT;
use super::{Output, ReservedBatch, SharedSink};
use crate::error::{Error, Result, too_long};
use crate::materialise::{ABSENT, Chosen, Columns, concat, concat_bytes};
use crate::memory::{Active, Refused, Resting, Started};
use crate::options::Side;
use crate::schedule::lock;

/// Rows to write. Both sides have the same number; a row may be absent on one side.
pub(crate) struct Rows {
    pub(crate) left: Chosen,
    pub(crate) right: Chosen,
    pub(crate) marks: Option<Vec<bool>>,
}

/// The largest number of rows that are gathered at once, whatever the batch size.
const MAX_AT_ONCE: usize = 1 << 18;

/// One worker's access to the sink. It collects small results until they fill a batch.
pub(crate) struct Emitter<'a> {
    sink: &'a SharedSink<'a>,
    /// The number of the worker.
    worker: usize,
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
    /// Creates the access of this worker. A worker has one emitter at a time.
    pub(crate) fn new(sink: &'a SharedSink<'a>, worker: usize) -> Self {
        Emitter {
            sink,
            worker,
            waiting: Vec::new(),
            waiting_rows: 0,
            held: (HashSet::new(), 0),
            segment: None,
            counted: 0,
            sums: vec![0; sink.output_plan.sums.len()],
            _active: sink.flow.active(sink.budget),
        }
    }

    /// Creates an emitter for one segment of an ordered output.
    pub(crate) fn of_segment(sink: &'a SharedSink<'a>, worker: usize, segment: usize) -> Self {
        Emitter { segment: Some(segment), ..Emitter::new(sink, worker) }
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

    /// Runs `read`, which calls a concurrent source. Its first argument is the number of bytes that the batch must
    /// leave free, or `None` if no other worker is reading or working. If memory is refused or scarce, this method
    /// waits like [`start`](Emitter::start).
    pub(crate) fn read<T>(
        &mut self,
        spare: u64,
        mut read: impl FnMut(Option<u64>, &Resting<'_>) -> Result<T>,
    ) -> Result<T> {
        let sink = self.sink;
        let resting = sink.flow.resting(sink.budget, !self.waiting.is_empty());
        self.patiently(Refused::StartsLater, || {
            sink.flow.may_read((sink.budget, spare))?;
            let reading = sink.flow.reading(sink.budget);
            read((!reading.alone).then_some(spare), &resting)
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
        if self.sink.output_plan.output == Output::Count {
            for (sum, &(side, column)) in self.sums.iter_mut().zip(&self.sink.output_plan.sums) {
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
        let (sink, plan) = (self.sink, &*self.sink.output_plan);
        let pooled = sink.budget.unlimited();
        let picked = [
            sides[0].map(|columns| columns.pick(rows.left, pooled)),
            sides[1].map(|columns| columns.pick(rows.right, pooled)),
        ];
        let mut bytes = plan.bytes(sides, &picked, len);
        let gathered = self.patiently(fewer(len), || {
            let reserved = sink.budget.reserve(bytes, OUTPUT)?;
            let gather = || plan.gather(sides, &picked, rows.marks.as_deref(), len);
            let batch = sink.counters.gathering(gather);
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
        let rows = parcel.batch().num_rows();
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
        let schema = &self.sink.output_plan.schema;
        let parts: Vec<&RecordBatch> = self.waiting.iter().map(|parcel| parcel.batch()).collect();
        let mut bytes = concat_bytes(schema, &parts);
        let Ok(reserved) = self.sink.budget.reserve(bytes, OUTPUT) else { return Ok(None) };
        match self.sink.counters.gathering(|| concat(schema, &parts)) {
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

    fn send(&mut self, mut parcel: ReservedBatch) -> Result<()> {
        self.wait_for_turn()?;
        parcel.ordered = self.segment.is_some();
        self.tell();
        self.sink.push(self.worker, parcel)
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
            self.sink.turn_passed(self.worker)?;
        }
        Ok(())
    }
}

/// Tells what this number of rows allows if memory is finally refused: split them, or fail.
pub(crate) fn fewer(rows: usize) -> Refused {
    if rows > 1 { Refused::TakesLess } else { Refused::Fails }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::memory::Budget;
    use crate::output::{CurrentPlan, NoRows, OutputPlan, Turn};
    use crate::progress::Counters;

    /// A join that restarts on the CPU while it counts: the number of rows that the user sees must not
    /// decrease.
    #[test]
    fn the_number_of_rows_never_goes_back() {
        let schema = Arc::new(arrow::datatypes::Schema::empty());
        let (origins, sums) = (Vec::new(), Vec::new());
        let plan = OutputPlan { schema, origins, output: Output::Count, sums };
        let (budget, flow, counters) = (Budget::new(None), Arc::default(), Counters::default());
        let sink = SharedSink {
            output_plan: CurrentPlan::new(&plan),
            sink: &NoRows,
            budget: &budget,
            ledger: None,
            flow: &flow,
            cancelled: &AtomicBool::new(false),
            counters: &counters,
            batch_size: 100,
            workers: 1,
            prompt: false,
            turn: Turn::default(),
            one_key: AtomicBool::new(false),
            pushing: Mutex::default(),
            sums: Mutex::default(),
        };
        let count = |rows| {
            let mut emitter = Emitter::new(&sink, 0);
            emitter.count(rows);
            emitter.finish().expect("nothing is sent");
            counters.snapshot().output_rows
        };
        let start = sink.point();
        assert_eq!(count(5), 5);
        assert!(sink.go_back(&start), "counts are told at the end");
        assert_eq!(counters.snapshot().output_rows, 5);
        assert_eq!(count(3), 5);
        assert_eq!(count(4), 7);
    }
}

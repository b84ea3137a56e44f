//! The methods that run a join. All of them call [`BoundJoin::conduct`](super), with different sinks.
//!
//! | method | sink | runs on |
//! | --- | --- | --- |
//! | `run`, `pairs` | a queue, which the [`JoinReader`] empties | its own thread |
//! | `run_into` | the caller's | the caller's thread |
//! | `count`, `aggregate` | none | the caller's thread |

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use arrow::datatypes::Schema;

use super::{Conducted, MAX_THREADS};
use crate::bind::BoundJoin;
use crate::error::{Error, Result};
use crate::input::Input;
use crate::join::Join;
use crate::memory::Budget;
use crate::options::Side;
use crate::output::{Aggregate, NoRows, Origin, Output, Sink};
use crate::reader::{JoinReader, Queue, Running};
use crate::report::Report;
use crate::schedule::{guarded, lock};
use crate::statistics::Statistics;

impl Join {
    /// Joins two tables and returns a reader of the joined rows. Each table is a
    /// [`RecordBatchReader`](arrow::array::RecordBatchReader) or a [`Source`](crate::Source): see [`Input`].
    ///
    /// The join runs on its own threads, and stays only a few batches ahead of the reader. Dropping the
    /// reader cancels the join: the drop waits until the workers have ended and the memory is released. It
    /// does not wait for a reader of an input table that blocks. Such a reader is dropped on its own thread
    /// when it returns. It does wait for calls of [`Source::next`](crate::Source::next).
    ///
    /// # Errors
    ///
    /// Fails like [`bind`](Join::bind), before any row is read. Later errors come from the reader.
    ///
    /// ```
    /// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
    /// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
    /// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
    /// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
    /// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
    /// # }
    /// use strait::Join;
    ///
    /// let mut rows = 0;
    /// for batch in Join::inner().on("id").run(ids(vec![1, 2, 3]), ids(vec![3, 1, 3]))? {
    ///     rows += batch?.num_rows();
    /// }
    /// assert_eq!(rows, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run<L: Into<Input>, R: Into<Input>>(&self, left: L, right: R) -> Result<JoinReader> {
        self.ready(Output::Rows, left.into(), right.into())?.start()
    }

    /// Joins two tables and returns a reader of row numbers instead of rows.
    ///
    /// The columns are `left_row` and `right_row`, both `UInt64`. A join type that returns rows of only one
    /// side has only the column of that side.
    ///
    /// ```
    /// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
    /// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
    /// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
    /// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
    /// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
    /// # }
    /// use strait::Join;
    ///
    /// let mut pairs = Join::inner().on("id").pairs(ids(vec![7, 8]), ids(vec![8]))?;
    /// let batch = pairs.next().expect("one batch")?;
    /// assert_eq!(batch.schema().field(0).name(), "left_row");
    /// assert_eq!(batch.num_rows(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pairs<L: Into<Input>, R: Into<Input>>(&self, left: L, right: R) -> Result<JoinReader> {
        self.ready(Output::Pairs, left.into(), right.into())?.start()
    }

    /// Joins two tables and writes the joined rows into a [`Sink`]. It blocks until the join has finished.
    /// The workers push their batches at the same time.
    ///
    /// # Errors
    ///
    /// Fails like [`bind`](Join::bind) before any row is read, and later if a source, the join or the sink
    /// fails. An error of the sink cancels the join.
    pub fn run_into<L: Into<Input>, R: Into<Input>>(
        &self,
        left: L,
        right: R,
        sink: &dyn Sink,
    ) -> Result<Report> {
        let ready = self.ready(Output::Rows, left.into(), right.into())?;
        ready.finish(sink).map(|done| done.report)
    }

    /// Joins two tables and returns the number of rows, without creating them. It blocks until the join has
    /// finished.
    ///
    /// ```
    /// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
    /// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
    /// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
    /// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
    /// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
    /// # }
    /// use strait::Join;
    ///
    /// let (rows, report) = Join::inner().on("id").count(ids(vec![1, 2]), ids(vec![2, 2]))?;
    /// assert_eq!((rows, report.right_rows), (2, 2));
    /// # Ok::<(), strait::Error>(())
    /// ```
    pub fn count<L: Into<Input>, R: Into<Input>>(
        &self,
        left: L,
        right: R,
    ) -> Result<(u64, Report)> {
        self.ready(Output::Count, left.into(), right.into())?.count()
    }

    /// Joins two tables and returns the sums of integer columns over the joined rows, without creating them.
    ///
    /// ```
    /// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
    /// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
    /// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
    /// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
    /// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
    /// # }
    /// use strait::{Join, Side};
    ///
    /// let (left, right) = (ids(vec![1, 2]), ids(vec![2, 2]));
    /// let (aggregate, _) = Join::inner().on("id").aggregate(&[(Side::Left, "id")], left, right)?;
    /// assert_eq!((aggregate.rows, aggregate.sums), (2, vec![4]));
    /// # Ok::<(), strait::Error>(())
    /// ```
    pub fn aggregate<L: Into<Input>, R: Into<Input>>(
        &self,
        sums: &[(Side, &str)],
        left: L,
        right: R,
    ) -> Result<(Aggregate, Report)> {
        let (left, right) = (left.into(), right.into());
        let schemas = [left.schema(), right.schema()];
        let bound = BoundJoin::new(self, Output::Count, sums, [&schemas[0], &schemas[1]])?;
        let Conducted { report, sums } = Ready::new(bound, [left, right], true)?.finish(&NoRows)?;
        Ok((Aggregate { rows: report.output_rows, sums }, report))
    }

    fn ready(&self, output: Output, left: Input, right: Input) -> Result<Ready> {
        Ready::new(self.bind(output, &left.schema(), &right.schema())?, [left, right], true)
    }
}

impl BoundJoin {
    /// Runs the join over tables that have exactly the needed [`columns`](BoundJoin::columns). See
    /// [`Join::run`].
    pub fn run<L: Into<Input>, R: Into<Input>>(self, left: L, right: R) -> Result<JoinReader> {
        Ready::new(self, [left.into(), right.into()], false)?.start()
    }

    /// Runs the join over tables that have exactly the needed [`columns`](BoundJoin::columns), and writes its
    /// output into a [`Sink`]. See [`Join::run_into`].
    pub fn run_into<L: Into<Input>, R: Into<Input>>(
        self,
        left: L,
        right: R,
        sink: &dyn Sink,
    ) -> Result<Report> {
        let ready = Ready::new(self, [left.into(), right.into()], false)?;
        ready.finish(sink).map(|done| done.report)
    }

    /// Runs the join and returns the number of rows. The tables must have exactly the needed
    /// [`columns`](BoundJoin::columns).
    pub fn count<L: Into<Input>, R: Into<Input>>(self, left: L, right: R) -> Result<(u64, Report)> {
        Ready::new(self, [left.into(), right.into()], false)?.count()
    }

    fn check_schema(&self, side: Side, schema: &Schema) -> Result<()> {
        let expected = &self.schemas[side as usize];
        let same = expected.fields().len() == schema.fields().len()
            && expected
                .fields()
                .iter()
                .zip(schema.fields())
                .all(|(e, s)| e.name() == s.name() && e.data_type() == s.data_type());
        if same {
            return Ok(());
        }
        let names = |schema: &Schema| {
            schema.fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>().join(", ")
        };
        let detail = format!("expected columns {}; found {}", names(expected), names(schema));
        Err(Error::SchemaChanged { side: side.name(), detail })
    }

    /// Returns whether the output has the row numbers of a side.
    pub(super) fn wants_row_numbers(&self, side: Side) -> bool {
        self.output.origins.contains(&Origin::RowId(side))
    }
}

/// A bound join with its inputs, which were checked.
struct Ready {
    bound: BoundJoin,
    /// The left and the right table.
    inputs: [Input; 2],
    running: Arc<Running>,
}

impl Ready {
    /// Checks the inputs. With `project`, they may have more columns than the join needs.
    fn new(mut bound: BoundJoin, inputs: [Input; 2], project: bool) -> Result<Ready> {
        for (side, input) in [Side::Left, Side::Right].into_iter().zip(&inputs) {
            if !project {
                bound.check_schema(side, &input.schema())?;
            }
            if bound.wants_row_numbers(side) && !input.has_row_numbers() {
                return Err(Error::invalid_option(
                    "output",
                    format!(
                        "it has the row numbers of the {} table, but its source does not number its rows",
                        side.name()
                    ),
                    "let Source::has_row_numbers return true and use Morsel::numbered, or use Join::run",
                ));
            }
            let statistics = &mut bound.join.statistics[side as usize];
            if *statistics == Statistics::unknown().with_stream(statistics.stream) {
                let known = input.statistics();
                *statistics = known.with_stream(known.stream || statistics.stream);
            }
        }
        let budget = match &bound.join.memory_budget {
            Some(shared) => Arc::clone(shared),
            None => Budget::new(bound.join.memory_limit),
        };
        let cancelled = bound.join.cancelled.clone().unwrap_or_default().flag();
        Ok(Ready { bound, inputs, running: Running::new(budget, cancelled) })
    }

    /// Runs the join on this thread.
    fn finish(self, sink: &dyn Sink) -> Result<Conducted> {
        let Ready { bound, inputs, running } = self;
        // No consumer takes batches out of a queue. So a worker that is refused memory waits only for other
        // workers, and for batches that the sink holds.
        running.flow.awaiting(&running.budget);
        guarded(|| bound.conduct(inputs, sink, &running))
    }

    fn count(self) -> Result<(u64, Report)> {
        let report = self.finish(&NoRows)?.report;
        Ok((report.output_rows, report))
    }

    /// Starts the join on its own thread, and returns the reader of its output.
    fn start(self) -> Result<JoinReader> {
        let Ready { bound, inputs, running: shared } = self;
        // Each worker can have one batch in the queue, and one more can wait. Without a memory limit the
        // queue is longer, so that workers do not have to stop while the consumer is busy with a batch.
        let threads = bound.join.threads.min(MAX_THREADS);
        let waiting = if bound.join.memory_limit.is_some() { 1 } else { 3 * threads };
        let (sender, receiver) = sync_channel(threads + waiting);
        let schema = bound.schema();
        let conductor = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("strait-conductor".to_string()).spawn(move || {
                let queue = Queue(sender);
                match guarded(|| bound.conduct(inputs, &queue, &shared)) {
                    Ok(done) => *lock(&shared.report) = Some(done.report),
                    // The send fails if the reader is gone. Then nobody needs the error.
                    Err(error) => drop(queue.0.send(Err(error))),
                }
            })
        };
        let conductor = conductor.map_err(Error::thread)?;
        Ok(JoinReader { schema, receiver: Some(receiver), conductor: Some(conductor), shared })
    }
}

//! Creates the output: gathers rows into batches and sends them to the reader, or only counts them.
//!
//! ```text
//!  worker ── rows ──► Emitter ── gathers (OutputPlan), collects ──► batches ──► SharedSink ──► Sink
//!                        └─ if the output is ordered: waits for its Turn
//! ```

mod emitter;
mod plan;
mod sink;
mod turn;

pub(crate) use emitter::{Emitter, Rows, fewer};
pub(crate) use plan::{CurrentPlan, Origin, OutputPlan};
pub(crate) use sink::{NoRows, OutputPoint, SharedSink};
pub use sink::{ReservedBatch, Sink};
pub(crate) use turn::Turn;

/// The kind of output of a join.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
/// use strait::{Join, Output};
///
/// let bound = Join::inner().on("id").bind(Output::Pairs, &schema, &schema)?;
/// let names: Vec<_> = bound.schema().fields().iter().map(|f| f.name().clone()).collect();
/// assert_eq!(names, ["left_row", "right_row"]);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Output {
    /// The rows of both tables.
    #[default]
    Rows,
    /// Row numbers instead of rows, in the columns `left_row` and `right_row`.
    Pairs,
    /// Only the number of rows.
    Count,
}

/// The number of joined rows, and the sums of some of their columns.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use strait::{Aggregate, Join, Side};
///
/// let (left, right) = (ids(vec![1, 2, 3]), ids(vec![2, 3, 3]));
/// let (aggregate, _) = Join::inner().on("id").aggregate(&[(Side::Right, "id")], left, right)?;
/// let Aggregate { rows, sums, .. } = aggregate;
/// assert_eq!((rows, sums), (3, vec![8]));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Aggregate {
    /// The number of rows.
    pub rows: u64,
    /// The sum of each requested column over all rows. Nulls are skipped.
    pub sums: Vec<i128>,
}

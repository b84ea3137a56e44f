//! The inputs of a join: sources that many workers read at the same time, and readers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::Reader;
use super::key_filter::KeyFilter;
use crate::memory::MemoryBudget;
use crate::statistics::Statistics;

/// A table that many workers read at the same time.
///
/// The workers of the join call [`next`](Source::next) on their own threads. So a source that decodes files
/// decodes on all of them. The join calls `next` outside of its locks.
///
/// Use a [`RecordBatchReader`] instead if a call may block for long. The join calls a reader on a separate
/// thread, and does not wait for it when the join ends.
///
/// # Contract
///
/// - `next` returns each row of the table once, in some morsel. It may leave out rows that cannot match
///   according to [`SourceContext::key_filter`]. `None` means that no morsel is left to hand out. Calls of
///   other workers that run at this time may still return morsels.
/// - `next` must return soon after [`SourceContext::cancelled`] becomes true. The end of a join waits for all
///   calls. The call may return any result then, for example `Err(Error::Cancelled.into())`.
/// - Any error ends the join, except [`Error::MemoryLimit`](crate::Error::MemoryLimit). After this error, the
///   join may wait until memory is free, and call `next` again. So a source must reserve its memory before
///   it chooses the rows to return. A call that fails with this error has returned no rows, and the rows are
///   left for other calls. A panic ends the join, too.
/// - The join reserves the memory of a batch after `next` has returned it. Under a memory limit, a source
///   should reserve the memory for decoding in [`SourceContext::budget`], and should not wait for it.
/// - A call must not wait until another worker calls `next`. The join may call it from one worker only.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use arrow::array::{Int64Array, RecordBatch};
/// use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
/// use arrow::error::ArrowError;
/// use strait::{Input, Join, Morsel, Source, SourceContext};
///
/// /// The numbers below `batches * 1000`. Each worker makes its own batches.
/// struct Numbers {
///     schema: SchemaRef,
///     next: AtomicUsize,
///     batches: usize,
/// }
///
/// impl Source for Numbers {
///     fn schema(&self) -> SchemaRef {
///         Arc::clone(&self.schema)
///     }
///
///     fn next(&self, _: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
///         let batch = self.next.fetch_add(1, Ordering::Relaxed);
///         if batch >= self.batches {
///             return Ok(None);
///         }
///         let first = batch as i64 * 1000;
///         let numbers = Arc::new(Int64Array::from_iter_values(first..first + 1000));
///         let batch = RecordBatch::try_new(self.schema(), vec![numbers])?;
///         Ok(Some(Morsel::new(batch)))
///     }
/// }
///
/// let numbers = |batches| {
///     let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
///     Input::source(Numbers { schema, next: AtomicUsize::new(0), batches })
/// };
/// let (rows, _) = Join::inner().on("n").count(numbers(3), numbers(50))?;
/// assert_eq!(rows, 3000);
/// # Ok::<(), strait::Error>(())
/// ```
pub trait Source: Send + Sync {
    /// Returns the schema of all batches.
    fn schema(&self) -> SchemaRef;

    /// Returns what is known about the table before it is read. The join uses it unless
    /// [`Join::statistics`](crate::Join::statistics) says something about this side.
    fn statistics(&self) -> Statistics {
        Statistics::unknown()
    }

    /// Returns whether all morsels are [numbered](Morsel::numbered). [`Join::pairs`](crate::Join::pairs)
    /// refuses a source without row numbers. No other output needs them.
    fn has_row_numbers(&self) -> bool {
        false
    }

    /// Returns some rows that no other call returns; `None` if there are no more. Many workers call it at the
    /// same time.
    fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError>;
}

/// Some rows of a [`Source`]. It may have any number of rows: the join slices long batches.
///
/// ```
/// # use std::sync::Arc;
/// # use arrow::array::{Int64Array, RecordBatch};
/// # let columns = [("k", Arc::new(Int64Array::from(vec![1, 2])) as _)];
/// # let batch = RecordBatch::try_from_iter(columns)?;
/// use strait::Morsel;
///
/// // Its rows are the rows 1000 and 1001 of the table.
/// let morsel = Morsel::numbered(batch, 1000);
/// # drop(morsel);
/// # Ok::<(), arrow::error::ArrowError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Morsel {
    pub(super) batch: RecordBatch,
    pub(super) first_row: Option<u64>,
    /// The number of rows that the source left out.
    pub(super) left_out: u64,
}

impl Morsel {
    /// Creates a morsel of a table whose order does not matter.
    pub fn new(batch: RecordBatch) -> Morsel {
        Morsel { batch, first_row: None, left_out: 0 }
    }

    /// Creates a morsel with the number of its first row in the table. The first row of a table has the
    /// number 0, and no number is left out.
    pub fn numbered(batch: RecordBatch, first_row: u64) -> Morsel {
        Morsel { batch, first_row: Some(first_row), left_out: 0 }
    }

    /// Returns the rows.
    pub(crate) fn into_batch(self) -> RecordBatch {
        self.batch
    }

    /// Adds the number of rows that the source left out because of [`SourceContext::key_filter`]. Each such row is
    /// counted in one morsel only. The rows count as read. The batch may be empty.
    pub fn leaving_out(self, rows: u64) -> Morsel {
        Morsel { left_out: rows, ..self }
    }
}

/// What a join tells its [`Source`] in each call.
///
/// ```
/// use arrow::error::ArrowError;
/// use strait::{Error, Morsel, SourceContext};
///
/// /// Waits for a page that another thread loads.
/// fn wait_for_page(
///     context: &SourceContext<'_>,
///     load: impl Fn() -> Option<Morsel>,
/// ) -> Result<Option<Morsel>, ArrowError> {
///     let _page = context.budget().reserve(1 << 20, "a page of a file")?;
///     loop {
///         if context.cancelled() {
///             return Err(Error::Cancelled.into());
///         }
///         if let Some(morsel) = load() {
///             return Ok(Some(morsel));
///         }
///         std::thread::sleep(std::time::Duration::from_millis(1));
///     }
/// }
/// ```
pub struct SourceContext<'a> {
    pub(super) budget: &'a Arc<MemoryBudget>,
    pub(super) cancelled: [&'a AtomicBool; 2],
    pub(super) key_filter: Option<&'a dyn KeyFilter>,
}

impl SourceContext<'_> {
    /// Returns the budget of the join. A source reserves the memory in it that it needs for decoding.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        self.budget
    }

    /// Returns whether the join was cancelled or has failed. A call that waits for something must check this
    /// again and again, and must return soon after it becomes true.
    pub fn cancelled(&self) -> bool {
        self.cancelled.iter().any(|cancelled| cancelled.load(Ordering::Relaxed))
    }

    /// Returns a filter that says which rows may have a match. The source may leave out the other rows, which
    /// the join does not need. It should say how many with [`Morsel::leaving_out`].
    ///
    /// It is `None` if the join needs all rows, and while the keys of the other table are not known yet. So a
    /// source that gets `None` in one call may get a filter in a later one. A filter is for one call only.
    pub fn key_filter(&self) -> Option<&dyn KeyFilter> {
        self.key_filter
    }
}

/// An input table of a join: a [`RecordBatchReader`], or a [`Source`].
///
/// Methods such as [`Join::run`](crate::Join::run) take anything that converts into an `Input`. Every reader
/// does. A source becomes an input by [`Input::source`].
///
/// A reader is called by one thread at a time, on a separate thread of the join. So a reader that blocks does
/// not delay the end of the join.
///
/// ```
/// use std::sync::Arc;
/// use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator};
/// use strait::{Input, Join};
///
/// let batch = RecordBatch::try_from_iter([("k", Arc::new(Int64Array::from(vec![1, 2])) as _)])?;
/// let reader = || RecordBatchIterator::new([Ok(batch.clone())], batch.schema());
/// let left = Input::from(reader());
/// assert_eq!(left.schema(), batch.schema());
/// // A reader is converted by itself.
/// assert_eq!(Join::inner().on("k").count(left, reader())?.0, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Input(pub(crate) Kind);

/// The kind of an [`Input`].
pub(crate) enum Kind {
    Reader(Reader),
    Source(Box<dyn Source>),
}

impl Input {
    /// Creates an input that many workers read at the same time.
    pub fn source(source: impl Source + 'static) -> Input {
        Input(Kind::Source(Box::new(source)))
    }

    /// Returns the schema of the table.
    pub fn schema(&self) -> SchemaRef {
        match &self.0 {
            Kind::Reader(reader) => reader.schema(),
            Kind::Source(source) => source.schema(),
        }
    }

    /// Returns what is known about the table before it is read.
    pub(crate) fn statistics(&self) -> Statistics {
        match &self.0 {
            Kind::Reader(_) => Statistics::unknown(),
            Kind::Source(source) => source.statistics(),
        }
    }

    /// Returns whether the rows of the table have numbers.
    pub(crate) fn has_row_numbers(&self) -> bool {
        match &self.0 {
            Kind::Reader(_) => true,
            Kind::Source(source) => source.has_row_numbers(),
        }
    }
}

impl<R: RecordBatchReader + Send + 'static> From<R> for Input {
    fn from(reader: R) -> Input {
        Input(Kind::Reader(Box::new(reader)))
    }
}

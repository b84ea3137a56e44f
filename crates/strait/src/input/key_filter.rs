//! The filter that a join offers to its source: which rows may have a match.

use arrow::array::ArrayRef;
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::FieldRef;
use arrow::error::ArrowError;

use super::feed::check_columns;
use crate::error::Result;
use crate::options::Side;

/// Says which rows of a table may have a match in the other table. [`SourceContext::key_filter`] returns it.
///
/// A source that first decodes the key columns can leave out rows that cannot match, and need not decode their
/// other columns. A source need not ask the filter, and it may leave out only some of these rows.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, RecordBatchIterator, StringArray};
/// use arrow::compute::filter;
/// use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
/// use arrow::error::ArrowError;
/// use strait::{Input, Join, Morsel, Side, Source, SourceContext};
///
/// /// The numbers below 1000, with their names. It makes names only for numbers that may have a match.
/// struct Names {
///     schema: SchemaRef,
///     ended: AtomicBool,
/// }
///
/// impl Source for Names {
///     fn schema(&self) -> SchemaRef {
///         Arc::clone(&self.schema)
///     }
///
///     fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
///         if self.ended.swap(true, Ordering::Relaxed) {
///             return Ok(None);
///         }
///         let all: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
///         let mut numbers = all.clone();
///         if let Some(keys) = context.key_filter() {
///             assert_eq!(keys.columns(), [0]);
///             let may_match = keys.may_match(&[all.clone()])?;
///             numbers = filter(&all, &BooleanArray::from(may_match))?;
///         }
///         let name = |number: &i64| format!("number {number}");
///         let values = numbers.as_any().downcast_ref::<Int64Array>().expect("Int64").values().iter();
///         let names = Arc::new(StringArray::from_iter_values(values.map(name)));
///         let left_out = (all.len() - numbers.len()) as u64;
///         let batch = RecordBatch::try_new(self.schema(), vec![numbers, names])?;
///         Ok(Some(Morsel::new(batch).leaving_out(left_out)))
///     }
/// }
///
/// let few = RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![7, 5000])) as _)])?;
/// let few = RecordBatchIterator::new([Ok(few.clone())], few.schema());
/// let fields = [("n", DataType::Int64), ("name", DataType::Utf8)];
/// let fields = fields.map(|(name, data_type)| Field::new(name, data_type, false));
/// let schema = Arc::new(Schema::new(fields.to_vec()));
/// let names = Input::source(Names { schema, ended: AtomicBool::new(false) });
/// let join = Join::inner().on("n").build_side(Side::Left);
/// let (rows, report) = join.count(few, names)?;
/// assert_eq!((rows, report.right_rows, report.skipped_rows), (1, 1000, 999));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`SourceContext::key_filter`]: crate::SourceContext::key_filter
pub trait KeyFilter: Sync {
    /// Returns the key columns: their indices in the schema of the source, in ascending order.
    fn columns(&self) -> &[usize];

    /// Returns one bit per row. If the bit is not set, the row has no match. If it is set, the row may or may
    /// not have one. `keys` are the values of the [key columns](KeyFilter::columns), in the same order, with
    /// their types in the schema of the source.
    ///
    /// # Errors
    ///
    /// Fails if the columns are not the key columns, or if they do not have the same length.
    fn may_match(&self, keys: &[ArrayRef]) -> Result<BooleanBuffer, ArrowError>;
}

/// Looks up keys for a [`KeyFilter`].
pub(crate) trait KeyLookup: Sync {
    /// Returns the key columns: their indices among the columns that the join needs, in ascending order.
    fn columns(&self) -> &[usize];

    /// Returns the rows that may have a match. The columns are checked.
    fn may_match(&self, keys: &[ArrayRef], rows: usize) -> Result<BooleanBuffer>;
}

/// The filter of one source. It checks the columns that it gets.
pub(crate) struct CheckedFilter<'a> {
    side: Side,
    fields: Vec<FieldRef>,
    /// The indices of the key columns in the schema of the source.
    columns: Vec<usize>,
    lookup: &'a dyn KeyLookup,
}

impl<'a> CheckedFilter<'a> {
    /// Creates the filter of a side. `keys` are the key columns: their indices in the source, and their fields.
    pub(super) fn new(
        side: Side,
        mut keys: Vec<(usize, FieldRef)>,
        lookup: &'a dyn KeyLookup,
    ) -> CheckedFilter<'a> {
        let (columns, fields) = keys.drain(..).unzip();
        CheckedFilter { side, fields, columns, lookup }
    }
}

impl KeyFilter for CheckedFilter<'_> {
    fn columns(&self) -> &[usize] {
        &self.columns
    }

    fn may_match(&self, keys: &[ArrayRef]) -> Result<BooleanBuffer, ArrowError> {
        check_columns(self.side, &self.fields, keys)?;
        let rows = keys.first().map_or(0, |key| key.len());
        if let Some(other) = keys.iter().find(|key| key.len() != rows) {
            let lengths = format!("{rows} and {} rows", other.len());
            return Err(ArrowError::InvalidArgumentError(format!(
                "the key columns have different lengths: {lengths}; give all of them the same rows"
            )));
        }
        Ok(self.lookup.may_match(keys, rows)?)
    }
}

//! What is known before a join reads its sides: statistics of each side, and the work of reading and writing.

use crate::options::Side;

/// Statistics of one side, known before it is read.
///
/// The planner uses them to choose. They do not affect the rows of the output: wrong statistics make a join
/// slower, but never wrong. Under a memory limit, a plan that follows from wrong statistics may not fit.
///
/// ```
/// use strait::{Join, Side, Statistics};
///
/// let orders = Statistics::rows(1_500_000).with_bytes(24_000_000).with_key_range(1, 6_000_000);
/// let join = Join::inner().on("order_key").statistics(Side::Left, orders);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Statistics {
    /// The number of rows.
    pub rows: Option<u64>,
    /// The bytes of the columns that the join needs.
    pub bytes: Option<u64>,
    /// The smallest and the largest key. Only for a single integer key column.
    pub key_range: Option<(i128, i128)>,
    /// The estimated number of different keys.
    pub distinct: Option<u64>,
    /// The number of rows with a null in their key.
    pub nulls: Option<u64>,
    /// Whether the rows are sorted by the key.
    pub sorted: bool,
    /// Whether the rows come from a stream that may pause, such as a pipe. With
    /// [`Join::prompt`](crate::Join::prompt), the join then builds on the other side if that side is small.
    pub stream: bool,
}

impl Statistics {
    /// Creates statistics that say nothing.
    pub fn unknown() -> Self {
        Statistics::default()
    }

    /// Creates statistics with the number of rows.
    pub fn rows(rows: u64) -> Self {
        Statistics { rows: Some(rows), ..Statistics::default() }
    }

    /// Adds the bytes of the columns that the join needs.
    pub fn with_bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Adds the smallest and the largest key. Only for a single integer key column.
    pub fn with_key_range(mut self, min: i128, max: i128) -> Self {
        self.key_range = Some((min, max));
        self
    }

    /// Adds the estimated number of different keys.
    pub fn with_distinct(mut self, keys: u64) -> Self {
        self.distinct = Some(keys);
        self
    }

    /// Adds the number of rows with a null in their key.
    pub fn with_nulls(mut self, rows: u64) -> Self {
        self.nulls = Some(rows);
        self
    }

    /// Adds whether the rows are sorted by the key.
    pub fn with_sorted(mut self, sorted: bool) -> Self {
        self.sorted = sorted;
        self
    }

    /// Adds whether the rows come from a stream that may pause, such as a pipe.
    pub fn with_stream(mut self, stream: bool) -> Self {
        self.stream = stream;
        self
    }

    /// Replaces the rows and bytes by counted numbers, where these are known.
    pub(crate) fn counted(mut self, rows: Option<u64>, bytes: Option<u64>) -> Self {
        (self.rows, self.bytes) = (rows.or(self.rows), bytes.or(self.bytes));
        self
    }

    /// Returns the number of cells of an array with one cell per possible key, if the key range is known.
    pub(crate) fn cells(&self) -> Option<u64> {
        let (min, max) = self.key_range?;
        u64::try_from(max.checked_sub(min)?).ok()?.checked_add(1)
    }
}

/// The expected work of reading the inputs and writing the output, besides the join itself.
///
/// The work is in processor seconds, of all threads together. The planner adds it to the predicted times of the
/// CPU and of a GPU. The threads of the join do this work on both processors. So if it takes most of the time, a
/// GPU gains little. Wrong costs can make a join slower, but never wrong.
///
/// ```
/// # use arrow::datatypes::{DataType, Field, Schema};
/// # let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
/// use strait::{JobCosts, Join, Output, Processor, Side, Statistics};
///
/// let costs = JobCosts::none()
///     .with_reading(Side::Left, 0.5)
///     .with_reading(Side::Right, 2.0)
///     .with_writing_per_row(20e-9);
/// let join = Join::inner().on("id").device(Processor::Cpu).threads(4);
/// let join = join.statistics(Side::Left, Statistics::rows(1_000));
/// let join = join.statistics(Side::Right, Statistics::rows(1_000_000));
/// let join = join.job_costs(costs).bind(Output::Rows, &schema, &schema)?;
/// let plan = join.explain();
/// // Four threads share 2.5 seconds of reading, and 0.02 seconds of writing.
/// assert!(plan.predictions.iter().all(|p| p.seconds > 2.52 / 4.0));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct JobCosts {
    /// The seconds of reading and decoding the left table.
    pub read_left: f64,
    /// The seconds of reading and decoding the right table.
    pub read_right: f64,
    /// The seconds of encoding and writing a row of the output.
    pub write_per_row: f64,
}

impl JobCosts {
    /// Creates costs of zero. The planner assumes them if nothing else is said.
    pub fn none() -> Self {
        JobCosts::default()
    }

    /// Sets the seconds of reading and decoding a table.
    pub fn with_reading(mut self, side: Side, seconds: f64) -> Self {
        match side {
            Side::Left => self.read_left = seconds,
            Side::Right => self.read_right = seconds,
        }
        self
    }

    /// Sets the seconds of encoding and writing a row of the output.
    pub fn with_writing_per_row(mut self, seconds: f64) -> Self {
        self.write_per_row = seconds;
        self
    }

    /// Returns the seconds of reading a side. Callers can state any number, so it is kept within limits.
    pub(crate) fn reading(&self, side: Side) -> f64 {
        plausible(match side {
            Side::Left => self.read_left,
            Side::Right => self.read_right,
        })
    }

    /// Returns the seconds of writing `rows` rows.
    pub(crate) fn writing(&self, rows: f64) -> f64 {
        plausible(plausible(self.write_per_row) * rows)
    }
}

/// Limits a number of seconds to the range from zero to 31 years. NaN becomes zero.
fn plausible(seconds: f64) -> f64 {
    const MOST: f64 = 1e9;
    if seconds.is_nan() { 0.0 } else { seconds.clamp(0.0, MOST) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_replaces_what_was_said() {
        let said = Statistics::rows(10).with_bytes(100).with_key_range(-5, 4).with_nulls(1);
        let counted = said.counted(Some(12), None);
        assert_eq!((counted.rows, counted.bytes, counted.nulls), (Some(12), Some(100), Some(1)));
        assert_eq!(counted.cells(), Some(10));
        assert_eq!(Statistics::unknown().with_key_range(i128::MIN, i128::MAX).cells(), None);
    }

    /// Callers can state any costs.
    #[test]
    fn costs_are_kept_within_limits() {
        let costs = JobCosts::none().with_reading(Side::Left, f64::NAN);
        let costs = costs.with_reading(Side::Right, f64::INFINITY).with_writing_per_row(-1.0);
        assert_eq!([Side::Left, Side::Right].map(|side| costs.reading(side)), [0.0, 1e9]);
        assert_eq!(costs.writing(5.0), 0.0);
        assert_eq!(costs.with_writing_per_row(1e300).writing(1e300), 1e9);
        assert_eq!(JobCosts::none().with_writing_per_row(0.5).writing(4.0), 2.0);
    }
}

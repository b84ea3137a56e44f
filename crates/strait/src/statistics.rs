//! Statistics of a side before it is read.

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
}

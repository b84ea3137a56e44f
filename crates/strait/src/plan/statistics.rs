//! What is known of a side before or after it was read.

/// What is known of one side.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Statistics {
    /// Its rows, if known.
    pub rows: Option<u64>,
    /// The bytes of the columns the join needs, if known.
    pub bytes: Option<u64>,
    /// The smallest and largest key, for a single integer key column whose range is known.
    pub key_range: Option<(i128, i128)>,
    /// Whether its rows come sorted by the key.
    pub sorted: bool,
}

impl Statistics {
    /// Nothing known.
    pub fn unknown() -> Self {
        Statistics::default()
    }

    /// A known number of rows.
    pub fn rows(rows: u64) -> Self {
        Statistics { rows: Some(rows), ..Statistics::default() }
    }

    /// Adds the bytes of the needed columns.
    pub fn with_bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }
}

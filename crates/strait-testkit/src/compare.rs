//! Compares batches with the expected rows, as multisets. A mismatch lists the missing and the extra rows.

use std::fmt;

use arrow::array::RecordBatch;

use crate::decode::decode;
use crate::fingerprint::row_fingerprint;
use crate::value::{Comparison, Value};

/// A row of cells.
pub type Row = Vec<Value>;

/// Returns the rows of some batches. `terms` has the comparison rules of each column.
pub fn rows_of(batches: &[RecordBatch], terms: &[Comparison]) -> Vec<Row> {
    let mut rows = Vec::new();
    for batch in batches {
        let start = rows.len();
        rows.resize_with(start + batch.num_rows(), Vec::new);
        for (column, comparison) in batch.columns().iter().zip(terms) {
            for (row, value) in rows[start..].iter_mut().zip(decode(column, comparison)) {
                row.push(value);
            }
        }
    }
    rows
}

/// The difference between two multisets of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The expected number of rows.
    pub expected: usize,
    /// The actual number of rows.
    pub actual: usize,
    /// Expected rows that are missing.
    pub missing: Vec<Row>,
    /// Rows that are there but not expected.
    pub extra: Vec<Row>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 5;
        writeln!(f, "{} rows expected, {} found", self.expected, self.actual)?;
        for (what, rows) in [("missing", &self.missing), ("too much", &self.extra)] {
            writeln!(f, "{} {what}", rows.len())?;
            for row in rows.iter().take(SHOWN) {
                let cells: Vec<_> = row.iter().map(shown).collect();
                writeln!(f, "  {}", cells.join(" | "))?;
            }
            if rows.len() > SHOWN {
                writeln!(f, "  …")?;
            }
        }
        Ok(())
    }
}

/// Formats a cell as text. Omits the middle of a very long cell.
fn shown(value: &Value) -> String {
    const SHOWN: usize = 200;
    let text: Vec<char> = value.to_string().chars().collect();
    if text.len() <= SHOWN {
        return text.into_iter().collect();
    }
    let part = |chars: &[char]| chars.iter().collect::<String>();
    let (start, end) = (part(&text[..SHOWN / 2]), part(&text[text.len() - SHOWN / 2..]));
    format!("{start} … {} characters … {end}", text.len() - SHOWN)
}

/// Returns the number of rows, and two sums over all rows that do not depend on their order. Equal multisets
/// have equal sums. Different multisets have different sums, unless hashes collide.
fn sums(rows: &[Row]) -> (usize, u64, u64) {
    let mut sums = (rows.len(), 0u64, 0u64);
    for row in rows {
        let print = row_fingerprint(row);
        sums.1 = sums.1.wrapping_add(print);
        sums.2 = sums.2.wrapping_add(fastrand::Rng::with_seed(print).u64(..));
    }
    sums
}

/// Checks that both contain the same rows, each the same number of times.
pub fn same_rows(mut expected: Vec<Row>, mut actual: Vec<Row>) -> Result<(), Box<Mismatch>> {
    if sums(&expected) == sums(&actual) {
        return Ok(());
    }
    expected.sort_unstable();
    actual.sort_unstable();
    if expected == actual {
        return Ok(());
    }
    let (counts, mut missing, mut extra) = ((expected.len(), actual.len()), vec![], vec![]);
    let (mut expected, mut actual) =
        (expected.into_iter().peekable(), actual.into_iter().peekable());
    loop {
        match (expected.peek(), actual.peek()) {
            (None, None) => break,
            (Some(e), Some(a)) if e == a => {
                expected.next();
                actual.next();
            }
            (Some(e), a) if a.is_none_or(|a| e < a) => missing.extend(expected.next()),
            _ => extra.extend(actual.next()),
        }
    }
    Err(Box::new(Mismatch { expected: counts.0, actual: counts.1, missing, extra }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[i128]) -> Vec<Row> {
        rows.iter().map(|&v| vec![Value::Int(v)]).collect()
    }

    #[test]
    fn order_does_not_matter_but_number_does() {
        assert!(same_rows(rows(&[1, 2, 2]), rows(&[2, 1, 2])).is_ok());
        let mismatch = same_rows(rows(&[1, 2, 2, 5]), rows(&[1, 2, 3, 4, 5])).unwrap_err();
        assert_eq!(mismatch.missing, rows(&[2]));
        assert_eq!(mismatch.extra, rows(&[3, 4]));
        assert_eq!((mismatch.expected, mismatch.actual), (4, 5));
    }

    #[test]
    fn a_long_text_is_shown_in_part() {
        let text = Value::Bytes(vec![b'x'; 100_000]);
        let mismatch = same_rows(vec![vec![text]], vec![]).unwrap_err();
        let shown = mismatch.to_string();
        assert!(shown.contains("characters") && shown.len() < 1000, "{} bytes", shown.len());
    }
}

//! The rows of a row group that a decoder returns: runs of consecutive rows.

use std::ops::Range;

use arrow::buffer::BooleanBuffer;
use parquet::arrow::arrow_reader::RowSelector;

/// If fewer rows than this lie between two runs, the runs become one. To skip so few rows takes longer than to decode
/// them. The Parquet crate, too, decodes all rows if the runs are closer than this on average.
const SHORTEST_GAP: u64 = 64;

/// Rows of a row group, in ascending order. No two runs overlap.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    runs: Vec<Range<u64>>,
    /// For each run, the number of wanted rows before it.
    before: Vec<u64>,
    rows: u64,
}

impl Wanted {
    /// All rows of a range.
    pub(super) fn range(range: Range<u64>) -> Wanted {
        let mut wanted = Wanted::default();
        wanted.push(range);
        wanted
    }

    /// The number of wanted rows.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether there are rows between wanted rows.
    pub(super) fn is_scattered(&self) -> bool {
        self.runs.len() > 1
    }

    /// Adds the rows whose bit is set. The first bit is row `first`. Rows must be added in ascending order. Rows
    /// between close runs are added, too.
    pub(super) fn add(&mut self, first: u64, bits: &BooleanBuffer) {
        for (start, end) in bits.set_slices() {
            let mut run = first + start as u64..first + end as u64;
            if let Some(last) = self.runs.pop_if(|last| run.start - last.end < SHORTEST_GAP) {
                self.before.pop();
                self.rows -= last.end - last.start;
                run.start = last.start;
            }
            self.push(run);
        }
    }

    fn push(&mut self, run: Range<u64>) {
        self.before.push(self.rows);
        self.rows += run.end.saturating_sub(run.start);
        self.runs.push(run);
    }

    /// Keeps the first `most` rows. Returns the row after the last of them, if others were removed.
    pub(super) fn truncate(&mut self, most: u64) -> Option<u64> {
        if self.rows <= most {
            return None;
        }
        let kept = self.before.partition_point(|&before| before < most);
        self.runs.truncate(kept);
        self.before.truncate(kept);
        self.rows = most;
        let (last, before) = (self.runs.last_mut()?, self.before.last()?);
        last.end = last.start + (most - before);
        Some(last.end)
    }

    /// Returns the number of wanted rows in a range.
    pub(super) fn count(&self, range: Range<u64>) -> u64 {
        self.count_before(range.end) - self.count_before(range.start)
    }

    fn count_before(&self, row: u64) -> u64 {
        let after = self.runs.partition_point(|run| run.start < row);
        let Some(at) = after.checked_sub(1) else { return 0 };
        let run = &self.runs[at];
        self.before[at] + row.min(run.end).saturating_sub(run.start)
    }

    /// Returns the rows as the Parquet crate needs them; `None` if they are the first rows of the row group.
    pub(super) fn selectors(&self) -> Option<Vec<RowSelector>> {
        if let [run] = &self.runs[..]
            && run.start == 0
        {
            return None;
        }
        let rows = |rows: u64| usize::try_from(rows).unwrap_or(usize::MAX);
        let mut at = 0;
        let mut selectors = Vec::with_capacity(2 * self.runs.len());
        for run in &self.runs {
            selectors.push(RowSelector::skip(rows(run.start - at)));
            selectors.push(RowSelector::select(rows(run.end.saturating_sub(run.start))));
            at = run.end;
        }
        Some(selectors)
    }

    /// Returns a bound for the memory of the wanted rows among `rows` rows, and of their selectors.
    pub(super) fn most_memory(rows: u64) -> u64 {
        let runs = rows / SHORTEST_GAP + 1;
        // Growing vectors may be twice as large as their content.
        let run = 2 * size_of::<(Range<u64>, u64)>() + 2 * size_of::<RowSelector>();
        runs.saturating_mul(run as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(rows: u64, set: &[u64]) -> BooleanBuffer {
        (0..rows).map(|row| set.contains(&row)).collect::<Vec<bool>>().into()
    }

    #[test]
    fn close_runs_become_one() {
        let mut wanted = Wanted::default();
        wanted.add(1000, &bits(300, &[0, 1, 64, 200]));
        wanted.add(1300, &bits(300, &[]));
        wanted.add(1600, &bits(10, &[0, 9]));
        assert_eq!(wanted.runs, [1000..1065, 1200..1201, 1600..1610]);
        assert_eq!(wanted.rows(), 76);
        assert!(wanted.is_scattered());
        // A run goes on in the next batch.
        wanted.add(1610, &bits(5, &[0, 1]));
        assert_eq!((wanted.runs.last(), wanted.rows()), (Some(&(1600..1612)), 78));
        let selectors = wanted.selectors().expect("rows are skipped");
        let skipped: Vec<_> = selectors.iter().map(|s| (s.skip, s.row_count)).collect();
        let expected =
            [(true, 1000), (false, 65), (true, 135), (false, 1), (true, 399), (false, 12)];
        assert_eq!(skipped, expected);
    }

    #[test]
    fn rows_of_a_range_are_counted() {
        let mut wanted = Wanted::default();
        wanted.add(0, &bits(1000, &[100, 101, 500, 501, 502]));
        for range in [0..0, 0..100, 0..101, 101..501, 100..1000, 502..503, 503..2000] {
            let rows = [100, 101, 500, 501, 502];
            let expected = rows.iter().filter(|&row| range.contains(row)).count() as u64;
            assert_eq!(wanted.count(range.clone()), expected, "{range:?}");
        }
        assert_eq!(Wanted::range(7..20).count(0..10), 3);
    }

    #[test]
    fn a_part_of_the_rows_can_be_kept() {
        let mut wanted = Wanted::default();
        wanted.add(0, &bits(1000, &[100, 101, 500, 501, 502, 900]));
        assert_eq!(wanted.truncate(6), None);
        assert_eq!(wanted.truncate(4), Some(502));
        assert_eq!((&wanted.runs[..], wanted.rows()), (&[100..102, 500..502][..], 4));
        assert_eq!(wanted.truncate(2), Some(102));
        assert_eq!((wanted.runs.as_slice(), wanted.rows()), (std::slice::from_ref(&(100..102)), 2));
    }

    #[test]
    fn a_whole_row_group_needs_no_selectors() {
        assert_eq!(Wanted::range(0..10).selectors(), None);
        assert_eq!(Wanted::range(3..10).selectors().map(|selectors| selectors.len()), Some(2));
        assert_eq!(Wanted::default().selectors(), Some(Vec::new()));
    }
}

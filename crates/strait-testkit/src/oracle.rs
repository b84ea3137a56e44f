//! The naive join. It defines, as plainly as possible, which rows a join must return.
//!
//! Keys are rows of [`Value`]s. Two keys are equal if all their values are equal. A key with a null in one of
//! its columns equals nothing, unless nulls are set to be equal. A null further inside (in a struct or a
//! list) is part of the value and equals another such null, as in Arrow's row format. The [`Comparison`]
//! defines when floats are equal: by total order, as in Arrow's comparison kernels, or as numbers, as in SQL
//! engines.

use std::collections::HashMap;

use arrow::array::RecordBatch;

use crate::decode::decode;
use crate::value::{Comparison, Value};

/// The rows that a join keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JoinKind {
    /// Pairs.
    Inner,
    /// Pairs, and left rows without a match.
    Left,
    /// Pairs, and right rows without a match.
    Right,
    /// Pairs, and rows of either side without a match.
    Full,
    /// Left rows with a match.
    LeftSemi,
    /// Right rows with a match.
    RightSemi,
    /// Left rows without a match.
    LeftAnti,
    /// Right rows without a match.
    RightAnti,
    /// Left rows, and whether they have a match.
    LeftMark,
    /// Right rows, and whether they have a match.
    RightMark,
}

/// An output row: the positions of its input rows, and its mark in a mark join.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Triple {
    /// The left row, if there is one.
    pub left: Option<usize>,
    /// The right row, if there is one.
    pub right: Option<usize>,
    /// Whether the row has a match. Only mark joins have it, and it is never null.
    pub mark: Option<bool>,
}

impl Triple {
    fn pair(left: usize, right: usize) -> Self {
        Triple { left: Some(left), right: Some(right), mark: None }
    }

    fn left(left: usize, mark: Option<bool>) -> Self {
        Triple { left: Some(left), right: None, mark }
    }

    fn right(right: usize, mark: Option<bool>) -> Self {
        Triple { left: None, right: Some(right), mark }
    }
}

/// Returns whether a pair of rows with equal keys passes the residual filter.
pub type PairFilter<'a> = &'a dyn Fn(usize, usize) -> bool;

/// Returns the keys of a table's rows: the named columns, with their comparison rules.
///
/// # Panics
/// If a column is missing.
pub fn keys(batches: &[RecordBatch], columns: &[(&str, Comparison)]) -> Vec<Vec<Value>> {
    let mut keys = Vec::new();
    for batch in batches {
        let mut cells: Vec<_> = (columns.iter())
            .map(|(name, comparison)| {
                let column = batch.column_by_name(name).expect("a key column");
                decode(column, comparison).into_iter()
            })
            .collect();
        keys.extend((0..batch.num_rows()).map(|_| {
            cells.iter_mut().map(|c| c.next().expect("a cell a row")).collect::<Vec<_>>()
        }));
    }
    keys
}

/// Returns the output rows of a join, in no particular order.
pub fn join(
    kind: JoinKind,
    left: &[Vec<Value>],
    right: &[Vec<Value>],
    nulls_equal: bool,
    filter: Option<PairFilter<'_>>,
) -> Vec<Triple> {
    let pairs = pairs(left, right, nulls_equal, filter);
    let (mut left_met, mut right_met) = (vec![false; left.len()], vec![false; right.len()]);
    for &(l, r) in &pairs {
        left_met[l] = true;
        right_met[r] = true;
    }
    let lefts = |met: bool| (0..left.len()).filter(move |&l| left_met[l] == met);
    let rights = |met: bool| (0..right.len()).filter(move |&r| right_met[r] == met);
    let mut rows: Vec<Triple> = Vec::new();
    use JoinKind::*;
    if matches!(kind, Inner | Left | Right | Full) {
        rows.extend(pairs.iter().map(|&(l, r)| Triple::pair(l, r)));
    }
    match kind {
        Inner => {}
        Left | LeftAnti => rows.extend(lefts(false).map(|l| Triple::left(l, None))),
        Right | RightAnti => rows.extend(rights(false).map(|r| Triple::right(r, None))),
        Full => {
            rows.extend(lefts(false).map(|l| Triple::left(l, None)));
            rows.extend(rights(false).map(|r| Triple::right(r, None)));
        }
        LeftSemi => rows.extend(lefts(true).map(|l| Triple::left(l, None))),
        RightSemi => rows.extend(rights(true).map(|r| Triple::right(r, None))),
        LeftMark => {
            rows.extend(lefts.clone()(true).map(|l| Triple::left(l, Some(true))));
            rows.extend(lefts(false).map(|l| Triple::left(l, Some(false))));
        }
        RightMark => {
            rows.extend(rights.clone()(true).map(|r| Triple::right(r, Some(true))));
            rows.extend(rights(false).map(|r| Triple::right(r, Some(false))));
        }
    }
    rows
}

/// Returns the pairs of rows that match.
fn pairs(
    left: &[Vec<Value>],
    right: &[Vec<Value>],
    nulls_equal: bool,
    filter: Option<PairFilter<'_>>,
) -> Vec<(usize, usize)> {
    let can_match = |key: &[Value]| nulls_equal || !key.iter().any(Value::is_null);
    let mut rights: HashMap<&[Value], Vec<usize>> = HashMap::new();
    for (r, key) in right.iter().enumerate().filter(|(_, key)| can_match(key)) {
        rights.entry(key).or_default().push(r);
    }
    let mut pairs = Vec::new();
    for (l, key) in left.iter().enumerate().filter(|(_, key)| can_match(key)) {
        let met = rights.get(key.as_slice()).into_iter().flatten();
        pairs.extend(met.map(|&r| (l, r)).filter(|&(l, r)| filter.is_none_or(|f| f(l, r))));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Left row, right row, mark; -1 for none.
    type Worked = &'static [(i64, i64, i64)];

    fn keys_of(keys: &[Option<i128>]) -> Vec<Vec<Value>> {
        keys.iter().map(|k| vec![k.map_or(Value::Null, Value::Int)]).collect()
    }

    fn joined(kind: JoinKind, nulls_equal: bool, filter: Option<PairFilter<'_>>) -> Vec<Triple> {
        let left = keys_of(&[Some(1), Some(2), None, Some(2)]);
        let right = keys_of(&[Some(2), None, Some(3)]);
        let mut rows = join(kind, &left, &right, nulls_equal, filter);
        rows.sort();
        rows
    }

    fn table(rows: &[(i64, i64, i64)]) -> Vec<Triple> {
        let row = |v: i64| usize::try_from(v).ok();
        let mut rows: Vec<_> = (rows.iter())
            .map(|&(l, r, m)| Triple { left: row(l), right: row(r), mark: row(m).map(|m| m == 1) })
            .collect();
        rows.sort();
        rows
    }

    #[test]
    fn every_kind_worked_by_hand() {
        let worked: [(JoinKind, Worked); 10] = [
            (JoinKind::Inner, &[(1, 0, -1), (3, 0, -1)]),
            (JoinKind::Left, &[(0, -1, -1), (1, 0, -1), (2, -1, -1), (3, 0, -1)]),
            (JoinKind::Right, &[(1, 0, -1), (3, 0, -1), (-1, 1, -1), (-1, 2, -1)]),
            (
                JoinKind::Full,
                &[(0, -1, -1), (1, 0, -1), (2, -1, -1), (3, 0, -1), (-1, 1, -1), (-1, 2, -1)],
            ),
            (JoinKind::LeftSemi, &[(1, -1, -1), (3, -1, -1)]),
            (JoinKind::RightSemi, &[(-1, 0, -1)]),
            (JoinKind::LeftAnti, &[(0, -1, -1), (2, -1, -1)]),
            (JoinKind::RightAnti, &[(-1, 1, -1), (-1, 2, -1)]),
            (JoinKind::LeftMark, &[(0, -1, 0), (1, -1, 1), (2, -1, 0), (3, -1, 1)]),
            (JoinKind::RightMark, &[(-1, 0, 1), (-1, 1, 0), (-1, 2, 0)]),
        ];
        for (kind, rows) in worked {
            assert_eq!(joined(kind, false, None), table(rows), "{kind:?}");
        }
    }

    #[test]
    fn nulls_match_only_when_asked_to() {
        let rows = [(1, 0, -1), (2, 1, -1), (3, 0, -1)];
        assert_eq!(joined(JoinKind::Inner, true, None), table(&rows));
    }

    #[test]
    fn a_pair_the_filter_rejects_is_no_match() {
        let rows = [(0, -1, -1), (1, 0, -1), (2, -1, -1), (3, -1, -1)];
        assert_eq!(joined(JoinKind::Left, false, Some(&|l, _| l < 2)), table(&rows));
    }
}

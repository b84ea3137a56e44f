//! Merges two sorted lists into groups.

use std::ops::Range;

use super::Segment;
use crate::partition::{RowId, Tuple};
use crate::word::KeyWord;

/// A group of rows, as positions in the two whole lists.
///
/// There are two kinds. If both ranges have rows, these are all rows of one key. If the range of one list is empty, the
/// other range has all next rows of its list that come before the next key of the first list. These rows may have
/// several keys, and none of them has a match. The empty range is at the position where its rows would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) a: Range<usize>,
    pub(crate) b: Range<usize>,
}

/// An iterator over the groups of a segment, in key order. It can be paused between any two groups.
pub(crate) struct Groups<'a, K, I> {
    /// The lists up to the segment's end, so that positions are those of the whole lists.
    a: &'a [Tuple<K, I>],
    b: &'a [Tuple<K, I>],
    at_a: usize,
    at_b: usize,
}

/// Merges two sorted lists over `segment`, which [`split`](super::split) made of them.
pub(crate) fn groups<'a, K: KeyWord, I: RowId>(
    a: &'a [Tuple<K, I>],
    b: &'a [Tuple<K, I>],
    segment: &Segment,
) -> Groups<'a, K, I> {
    Groups {
        a: &a[..segment.a.end],
        b: &b[..segment.b.end],
        at_a: segment.a.start,
        at_b: segment.b.start,
    }
}

impl<K: KeyWord, I: RowId> Iterator for Groups<'_, K, I> {
    type Item = Group;

    #[inline]
    fn next(&mut self) -> Option<Group> {
        let (i, j) = (self.at_a, self.at_b);
        match (self.a.get(i), self.b.get(j)) {
            (Some(x), Some(y)) => {
                if x.key <= y.key {
                    // The rows with keys below `y`, or equal to it.
                    let equal = x.key == y.key;
                    self.at_a = run_end(self.a, i, |k| k < y.key || (equal && k == y.key));
                }
                if y.key <= x.key {
                    let equal = x.key == y.key;
                    self.at_b = run_end(self.b, j, |k| k < x.key || (equal && k == x.key));
                }
            }
            (None, None) => return None,
            (_, None) => self.at_a = self.a.len(),
            (None, _) => self.at_b = self.b.len(),
        }
        Some(Group { a: i..self.at_a, b: j..self.at_b })
    }
}

/// Returns the first position after `start` whose key is not `inside`. The key at `start` must be inside.
///
/// Most runs have one or two rows, which a linear scan finds. After that, steps double, so that a run of a
/// million rows takes about forty comparisons.
#[inline(always)]
fn run_end<K: KeyWord, I: RowId>(
    list: &[Tuple<K, I>],
    start: usize,
    inside: impl Fn(K) -> bool,
) -> usize {
    const LOOKS: usize = 8;
    let rest = &list[start..];
    for (n, tuple) in rest.iter().enumerate().take(LOOKS).skip(1) {
        if !inside(tuple.key) {
            return start + n;
        }
    }
    if rest.len() <= LOOKS { list.len() } else { start + gallop(rest, LOOKS - 1, inside) }
}

/// Like `run_end`, for runs that reach beyond `known`.
#[cold]
fn gallop<K: KeyWord, I: RowId>(
    list: &[Tuple<K, I>],
    mut known: usize,
    inside: impl Fn(K) -> bool,
) -> usize {
    let mut step = 8;
    while let Some(tuple) = list.get(known + step)
        && inside(tuple.key)
    {
        known += step;
        step *= 2;
    }
    let unknown = &list[known + 1..list.len().min(known + step)];
    known + 1 + unknown.partition_point(|t| inside(t.key))
}

#[cfg(test)]
mod tests {
    use super::super::split;
    use fastrand::Rng;

    use super::super::testing::{sorted, tuples};
    use super::*;

    /// Finds every key's rows by scanning. Adjacent groups of the same side are merged, as the contract says.
    fn naive(a: &[u64], b: &[u64]) -> Vec<Group> {
        let mut keys: Vec<u64> = a.iter().chain(b).copied().collect();
        keys.sort_unstable();
        keys.dedup();
        let mut groups: Vec<Group> = Vec::new();
        for key in keys {
            let find = |list: &[u64]| {
                let start = list.iter().filter(|&&k| k < key).count();
                start..start + list.iter().filter(|&&k| k == key).count()
            };
            let (ra, rb) = (find(a), find(b));
            match groups.last_mut() {
                Some(g) if rb.is_empty() && g.b.is_empty() => g.a.end = ra.end,
                Some(g) if ra.is_empty() && g.a.is_empty() => g.b.end = rb.end,
                _ => groups.push(Group { a: ra, b: rb }),
            }
        }
        groups
    }

    #[test]
    fn groups_are_those_of_a_scan() {
        let mut random = Rng::with_seed(4711);
        for case in 0..3000 {
            let (m, n) = (random.u64(..150) as usize, random.u64(..150) as usize);
            let range = [1, 2, 30, 500][case % 4];
            let runs = (1 + random.u64(..60), 1 + random.u64(..4));
            let a = sorted(&mut random, m, range, runs.0);
            let b = sorted(&mut random, n, range, runs.1);
            let (ta, tb) = (tuples(&a), tuples(&b));
            let whole = Segment { a: 0..m, b: 0..n };
            let expected = naive(&a, &b);
            assert_eq!(groups(&ta, &tb, &whole).collect::<Vec<_>>(), expected, "case {case}");
            // Segments cut only groups that have rows of one side.
            let pairs = |g: &Group| !g.a.is_empty() && !g.b.is_empty();
            let parts = split(&ta, &tb, 1 + random.u64(..9) as usize);
            let cut: Vec<Group> = parts.iter().flat_map(|s| groups(&ta, &tb, s)).collect();
            assert!(cut.iter().filter(|g| pairs(g)).eq(expected.iter().filter(|g| pairs(g))));
            assert_eq!(cut.iter().map(|g| g.a.len()).sum::<usize>(), m);
            assert_eq!(cut.iter().map(|g| g.b.len()).sum::<usize>(), n);
        }
    }

    #[test]
    fn a_long_run_takes_few_looks() {
        let list = tuples(&vec![3; 1 << 20]);
        let looks = std::cell::Cell::new(0);
        let end = run_end(&list, 5, |_| {
            looks.set(looks.get() + 1);
            true
        });
        assert_eq!(end, 1 << 20);
        assert!(looks.get() < 60, "{}", looks.get());
    }
}

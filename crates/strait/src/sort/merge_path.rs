//! Cuts a merge into segments of equal work.
//!
//! The merge path (papers 004, section 3.3, and 002, section 3.3.1): a binary search finds the state of a
//! merge after `d` tuples, without merging. A join cannot be cut anywhere, however, because the rows of a key
//! must stay together. Paper 002 takes a key that crosses a cut out of both parts, and joins it separately.
//! Here the cut moves to the nearer end of that key's group. This needs no second kind of work, and
//! unbalances segments by at most half a group. A group can be long: all rows of one key are the work of one
//! thread.

use std::ops::Range;

use crate::partition::{RowId, Tuple};
use crate::word::KeyWord;

/// A part of both lists that can be merged independently: none of its keys is elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) a: Range<usize>,
    pub(crate) b: Range<usize>,
}

/// Splits the merge of two sorted lists into up to `parts` segments with nearly the same number of tuples.
///
/// Segments are in key order, cover both lists, and are never empty. If a group is larger than a segment should be,
/// there are fewer segments. The split balances tuples, not pairs: all pairs of a key are in one segment.
pub(crate) fn split<K: KeyWord, I: RowId>(
    a: &[Tuple<K, I>],
    b: &[Tuple<K, I>],
    parts: usize,
) -> Vec<Segment> {
    let total = a.len() + b.len();
    let parts = parts.clamp(1, total.max(1));
    let mut segments = Vec::with_capacity(parts);
    let mut from = (0, 0);
    for part in 1..=parts {
        let to = match part == parts {
            true => (a.len(), b.len()),
            false => boundary(a, b, (total as u128 * part as u128 / parts as u128) as usize),
        };
        if to != from {
            segments.push(Segment { a: from.0..to.0, b: from.1..to.1 });
            from = to;
        }
    }
    segments
}

/// Returns the boundary between groups that is nearest to the first `taken` tuples of the merge.
fn boundary<K: KeyWord, I: RowId>(
    a: &[Tuple<K, I>],
    b: &[Tuple<K, I>],
    taken: usize,
) -> (usize, usize) {
    let (i, j) = intersect(a, b, taken);
    let key = match (a.get(i), b.get(j)) {
        (Some(x), Some(y)) => x.key.min(y.key),
        (Some(x), None) => x.key,
        (None, Some(y)) => y.key,
        (None, None) => return (i, j),
    };
    // All keys before the cut are at most `key`, all keys after it at least `key`.
    let start = (a[..i].partition_point(|t| t.key < key), b[..j].partition_point(|t| t.key < key));
    let end = (
        i + a[i..].partition_point(|t| t.key == key),
        j + b[j..].partition_point(|t| t.key == key),
    );
    if taken - (start.0 + start.1) <= end.0 + end.1 - taken { start } else { end }
}

/// Returns how many tuples of each list are among the first `taken` of the merge. Of equal keys, those of `a`
/// come first.
fn intersect<K: KeyWord, I: RowId>(
    a: &[Tuple<K, I>],
    b: &[Tuple<K, I>],
    taken: usize,
) -> (usize, usize) {
    let (mut low, mut high) = (taken.saturating_sub(b.len()), taken.min(a.len()));
    while low < high {
        let i = low + (high - low) / 2;
        // If `i` tuples come from `a`, the last one from `b` is at `taken - i - 1`. Does `a[i]` come before
        // it?
        if a[i].key <= b[taken - i - 1].key {
            low = i + 1;
        } else {
            high = i;
        }
    }
    (low, taken - low)
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::super::testing::{sorted, tuples};
    use super::*;

    fn check(a: &[u64], b: &[u64], parts: usize) -> Vec<Segment> {
        let (a, b) = (tuples(a), tuples(b));
        let segments = split(&a, &b, parts);
        let mut at = (0, 0);
        for (n, segment) in segments.iter().enumerate() {
            assert_eq!((segment.a.start, segment.b.start), at, "{segments:?}");
            assert!(!segment.a.is_empty() || !segment.b.is_empty(), "{segments:?}");
            at = (segment.a.end, segment.b.end);
            let last = a[..at.0].last().max(b[..at.1].last()).map(|_| {
                let keys = [a[..at.0].last(), b[..at.1].last()];
                keys.into_iter().flatten().map(|t| t.key).max().expect("one is there")
            });
            let first = [a.get(at.0), b.get(at.1)].into_iter().flatten().map(|t| t.key).min();
            if let (Some(last), Some(first)) = (last, first) {
                assert!(last < first, "{segments:?}: segment {n} ends inside key {first}");
            }
        }
        assert_eq!(at, (a.len(), b.len()));
        assert!(segments.len() <= parts.max(1));
        segments
    }

    #[test]
    fn segments_cover_and_keep_groups_whole() {
        let mut random = Rng::with_seed(77);
        for case in 0..3000 {
            let (m, n) = (random.u64(..120) as usize, random.u64(..120) as usize);
            let range = [1, 3, 40, 1000][case % 4];
            let run = 1 + random.u64(..30);
            let a = sorted(&mut random, m, range, run);
            let b = sorted(&mut random, n, range, 3);
            check(&a, &b, 1 + random.u64(..20) as usize);
        }
    }

    #[test]
    fn work_is_shared_evenly() {
        let a: Vec<u64> = (0..1000).map(|x| x * 2).collect();
        let b: Vec<u64> = (0..3000).map(|x| x * 3).collect();
        let segments = check(&a, &b, 8);
        assert_eq!(segments.len(), 8);
        assert!(segments.iter().all(|s| (498..=502).contains(&(s.a.len() + s.b.len()))));
    }

    #[test]
    fn edges() {
        assert!(check(&[], &[], 4).is_empty());
        assert_eq!(check(&[5; 100], &[5; 100], 4).len(), 1, "one group is one segment");
        assert_eq!(check(&[1, 2, 3, 4], &[], 4).len(), 4);
        assert_eq!(check(&[0, u64::MAX], &[0, u64::MAX], 100).len(), 2);
        // The example in the module documentation.
        let segments = check(&[1, 3, 3, 7, 9], &[2, 3, 3, 3, 8, 8, 9], 2);
        assert_eq!(segments[0], Segment { a: 0..3, b: 0..4 });
    }
}

//! Sorts tuples that fit the cache, on one thread.
//!
//! It starts with the most significant digit in which keys differ. So a random input needs only about as many
//! bits as its length has, not all bits of the key: 8,192 tuples with 64-bit keys take one pass into groups of about
//! four. Then an insertion sort orders each group while the group is copied back. Groups that stay large, because
//! their keys are close, take further passes on the bits in which they differ. A group of equal keys takes none.

use crate::partition::{RowId, Tuple};
use crate::word::KeyWord;

/// Up to this length, insertion sort is fastest.
const INSERTION: usize = 24;
/// The most bits of a digit: its counters, and the cache lines that are being written, should stay in a near
/// cache.
const WIDEST: u32 = 11;
/// The counters of all nested passes. Each pass uses bits that the passes above it did not use, so there are
/// at most five of the widest passes and one narrower one.
const COUNTERS: usize = 6 << WIDEST;

/// Sorts on one thread. It keeps the counters, so that groups need no allocation.
pub(super) struct CachedSort {
    counters: Vec<u32>,
}

impl CachedSort {
    pub(super) fn new() -> Self {
        CachedSort { counters: vec![0; COUNTERS] }
    }

    /// Sorts `data`, with `other` as scratch memory. Both must have the same length, below 2^32. The result
    /// is in `other` if `into_other`, otherwise in `data`. The content of the other slice is lost.
    pub(super) fn sort<K: KeyWord, I: RowId>(
        &mut self,
        data: &mut [Tuple<K, I>],
        other: &mut [Tuple<K, I>],
        into_other: bool,
    ) {
        debug_assert_eq!(data.len(), other.len());
        if into_other && data.len() <= INSERTION {
            insert_all(data, other);
        } else if data.len() <= INSERTION {
            data.sort_by_key(|t| t.key);
        } else {
            by_digit(data, other, into_other, &mut self.counters);
        }
    }
}

/// Distributes `data` over `other` by its most significant digit that differs, then sorts each group.
fn by_digit<K: KeyWord, I: RowId>(
    data: &mut [Tuple<K, I>],
    other: &mut [Tuple<K, I>],
    into_other: bool,
    counters: &mut [u32],
) {
    let differing = differing_bits(data);
    if differing == 0 {
        if into_other {
            other.copy_from_slice(data);
        }
        return;
    }
    let top = u64::BITS - differing.leading_zeros();
    let width = width(data.len()).min(top);
    let shift = top - width;
    let (ends, counters) = counters.split_at_mut(1 << width);
    distribute(data, other, shift, ends);
    if shift == 0 {
        // All keys of a group are equal.
        if !into_other {
            data.copy_from_slice(other);
        }
        return;
    }
    let mut start = 0;
    for &end in ends.iter() {
        let group = start..end as usize;
        start = group.end;
        let (from, to) = (&mut other[group.clone()], &mut data[group]);
        match (from.len(), into_other) {
            (0, _) => {}
            (..=INSERTION, false) => insert_all(from, to),
            (..=INSERTION, true) => insert(from),
            _ => by_digit(from, to, !into_other, counters),
        }
    }
}

/// Returns the bits in which any two keys differ.
fn differing_bits<K: KeyWord, I: RowId>(data: &[Tuple<K, I>]) -> u64 {
    let Some(first) = data.first() else { return 0 };
    let first = first.key.to_u64();
    data.iter().fold(0, |bits, t| bits | (t.key.to_u64() ^ first))
}

/// Returns the width of a digit that gives groups of about four tuples. If that is too wide, it is split into
/// nearly equal digits.
fn width(len: usize) -> u32 {
    let wanted = len.ilog2() - 2;
    wanted.div_ceil(wanted.div_ceil(WIDEST))
}

/// Does one stable pass. Leaves the end of each group in `ends`.
fn distribute<K: KeyWord, I: RowId>(
    data: &[Tuple<K, I>],
    other: &mut [Tuple<K, I>],
    shift: u32,
    ends: &mut [u32],
) {
    let mask = ends.len() - 1;
    let digit = |t: &Tuple<K, I>| (t.key.to_u64() >> shift) as usize & mask;
    ends.fill(0);
    for tuple in data {
        ends[digit(tuple)] += 1;
    }
    let mut start = 0;
    for count in ends.iter_mut() {
        start += std::mem::replace(count, start);
    }
    for tuple in data {
        let at = &mut ends[digit(tuple)];
        other[*at as usize] = *tuple;
        *at += 1;
    }
}

/// Sorts a few tuples in place.
#[inline(always)]
fn insert<K: KeyWord, I: RowId>(data: &mut [Tuple<K, I>]) {
    for next in 1..data.len() {
        let tuple = data[next];
        let mut at = next;
        while at > 0 && tuple.key < data[at - 1].key {
            data[at] = data[at - 1];
            at -= 1;
        }
        data[at] = tuple;
    }
}

/// Sorts a few tuples into `to`.
#[inline(always)]
fn insert_all<K: KeyWord, I: RowId>(from: &[Tuple<K, I>], to: &mut [Tuple<K, I>]) {
    for (next, &tuple) in from.iter().enumerate() {
        let mut at = next;
        while at > 0 && tuple.key < to[at - 1].key {
            to[at] = to[at - 1];
            at -= 1;
        }
        to[at] = tuple;
    }
}

//! What all tables share: filling entries and groups, and walking probe keys.

use crate::key::KeyWord;
use crate::matches::Flags;
use crate::partition::{RowId, Tuple};

/// Candidate pairs: build row and probe row, side by side.
#[derive(Default)]
pub(crate) struct Pairs {
    pub(crate) build: Vec<u64>,
    pub(crate) probe: Vec<u64>,
    /// Pairs that were only counted.
    pub(crate) counted: u64,
}

impl Pairs {
    pub(crate) fn clear(&mut self) {
        self.build.clear();
        self.probe.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.build.len()
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, build: u64, probe: u64) {
        self.build.push(build);
        self.probe.push(probe);
    }
}

/// What a probe has to find.
#[derive(Clone, Copy)]
pub(crate) enum Want<'a> {
    /// Every pair.
    All,
    /// One pair a probe row that has any: which rows of the probe side match?
    First,
    /// No pairs, but the flags of the build rows: which of them match?
    Flag(&'a Flags),
    /// No pairs, but their number.
    Count,
}

/// What a probe has to find, and how many pairs at a time.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) want: Want<'a>,
    pub(crate) cap: usize,
}

/// How far a walk over probe keys has come.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    /// The next probe key.
    pub(crate) next: usize,
    /// How many rows of its group have been paired already.
    within: usize,
}

impl Cursor {
    /// Whether all keys have been walked.
    pub(crate) fn ended<K>(&self, keys: &impl ProbeKeys<K>) -> bool {
        self.next >= keys.len()
    }
}

/// The keys of some probe rows.
pub(crate) trait ProbeKeys<K> {
    fn len(&self) -> usize;
    fn key(&self, index: usize) -> K;
    fn row(&self, index: usize) -> u64;
}

impl<K: KeyWord, I: RowId> ProbeKeys<K> for &[Tuple<K, I>] {
    fn len(&self) -> usize {
        <[_]>::len(self)
    }
    #[inline(always)]
    fn key(&self, index: usize) -> K {
        self[index].key
    }
    #[inline(always)]
    fn row(&self, index: usize) -> u64 {
        self[index].row.to_u64()
    }
}

/// The words of a morsel, row after row, or of those rows that may match.
pub(crate) struct MorselKeys<'a, K> {
    pub(crate) words: &'a [K],
    pub(crate) rows: Option<&'a [u32]>,
}

impl<K: KeyWord> ProbeKeys<K> for MorselKeys<'_, K> {
    fn len(&self) -> usize {
        self.rows.map_or(self.words.len(), <[_]>::len)
    }
    #[inline(always)]
    fn key(&self, index: usize) -> K {
        self.rows.map_or_else(|| self.words[index], |rows| self.words[rows[index] as usize])
    }
    #[inline(always)]
    fn row(&self, index: usize) -> u64 {
        self.rows.map_or(index as u64, |rows| u64::from(rows[index]))
    }
}

/// Probe keys whose table lines are fetched together before the first is read.
const AHEAD: usize = 32;

/// Walks the probe keys from the cursor on, until `pairs` holds as many as asked for or the keys end.
/// `locate` answers where a key's search begins, and fetches that; `find` its entry.
pub(crate) fn walk<K: KeyWord, I: RowId, P: ProbeKeys<K>>(
    keys: &P,
    groups: &[I],
    ask: Ask<'_>,
    (cursor, pairs): (&mut Cursor, &mut Pairs),
    locate: impl Fn(K) -> usize,
    find: impl Fn(K, usize) -> I,
) {
    let Ask { want, cap } = ask;
    let mut starts = [0usize; AHEAD];
    while cursor.next < keys.len() {
        let first = cursor.next;
        let ahead = AHEAD.min(keys.len() - first);
        for (i, start) in starts[..ahead].iter_mut().enumerate() {
            *start = locate(keys.key(first + i));
        }
        for (i, &start) in starts[..ahead].iter().enumerate() {
            let index = first + i;
            let entry = find(keys.key(index), start);
            if entry == I::default() {
                cursor.next += 1;
                continue;
            }
            let one = [entry.without_top()];
            let rows = if entry.has_top() { &one[..] } else { group(groups, entry) };
            match want {
                Want::Count => pairs.counted += rows.len() as u64,
                Want::Flag(flags) if flags.get(rows[0].to_u64()) => {}
                Want::Flag(flags) => rows.iter().for_each(|row| flags.set(row.to_u64())),
                Want::First => pairs.push(rows[0].to_u64(), keys.row(index)),
                Want::All => {
                    let room = cap.saturating_sub(pairs.len());
                    let left = &rows[cursor.within..];
                    let taken = left.len().min(room);
                    let probe = keys.row(index);
                    for row in &left[..taken] {
                        pairs.push(row.to_u64(), probe);
                    }
                    if taken < left.len() {
                        cursor.within += taken;
                        return;
                    }
                    cursor.within = 0;
                }
            }
            cursor.next += 1;
            if pairs.len() >= cap {
                return;
            }
        }
    }
}

/// The rows of an entry that has several.
#[inline(always)]
fn group<I: RowId>(groups: &[I], entry: I) -> &[I] {
    let at = entry.to_usize() - 1;
    let len = groups[at].to_usize();
    &groups[at + 1..at + 1 + len]
}

/// Enters a row, counting. Answers how many more places in `groups` that takes.
#[inline(always)]
pub(crate) fn count_row<I: RowId>(entry: &mut I, row: I) -> usize {
    if *entry == I::default() {
        *entry = row.with_top();
        0
    } else if entry.has_top() {
        *entry = I::from_u64(2);
        3
    } else {
        *entry = I::from_u64(entry.to_u64() + 1);
        1
    }
}

/// Gives an entry that counts its place in `groups`, from `next` on.
#[inline(always)]
pub(crate) fn place_group<I: RowId>(
    entry: &mut I,
    groups: &mut [I],
    base: usize,
    next: &mut usize,
) {
    if *entry != I::default() && !entry.has_top() {
        let count = entry.to_usize();
        *entry = I::from_usize(base + *next + 1);
        groups[*next] = I::default();
        *next += count + 1;
    }
}

/// Puts a row into its group. `groups` begins at position `base` of all groups.
#[inline(always)]
pub(crate) fn group_row<I: RowId>(entry: I, row: I, groups: &mut [I], base: usize) {
    if !entry.has_top() {
        let at = entry.to_usize() - 1 - base;
        let len = groups[at].to_usize();
        groups[at + 1 + len] = row;
        groups[at] = I::from_usize(len + 1);
    }
}

/// Brings the line at `place` into the cache.
#[inline(always)]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it faults on no address. SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

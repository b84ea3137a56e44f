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

/// Walks the probe keys from the cursor on, until `pairs` holds as many as asked for or the keys
/// end. `locate` answers where a key's search begins, and fetches that; `find` its entry.
pub(crate) fn walk<K: KeyWord, I: RowId, P: ProbeKeys<K>>(
    keys: &P,
    groups: &[I],
    ask: Ask<'_>,
    (cursor, pairs): (&mut Cursor, &mut Pairs),
    locate: impl Fn(K) -> usize,
    find: impl Fn(K, usize) -> I,
) {
    let rows_of = |entry: I| if entry.has_top() { None } else { Some(group(groups, entry)) };
    // What is wanted is decided outside the loop.
    match ask.want {
        Want::Count => {
            let mut counted = 0;
            each_entry(keys, cursor, locate, find, |_, _, entry| {
                counted += rows_of(entry).map_or(1, <[I]>::len) as u64;
                true
            });
            pairs.counted += counted;
        }
        Want::Flag(flags) => each_entry(keys, cursor, locate, find, |_, _, entry| {
            match rows_of(entry) {
                None => flags.set(entry.without_top().to_u64()),
                // A group is flagged as a whole, so its first row tells of all.
                Some(rows) if flags.get(rows[0].to_u64()) => {}
                Some(rows) => rows.iter().for_each(|row| flags.set(row.to_u64())),
            }
            true
        }),
        Want::First => {
            let mut out = Writer::new(pairs, ask.cap);
            each_entry(keys, cursor, locate, find, |_, index, entry| {
                let row = rows_of(entry).map_or(entry.without_top(), |rows| rows[0]);
                out.push(row.to_u64(), keys.row(index));
                out.room() > 0
            });
        }
        Want::All => {
            let mut out = Writer::new(pairs, ask.cap);
            each_entry(keys, cursor, locate, find, |within, index, entry| {
                let probe = keys.row(index);
                let Some(rows) = rows_of(entry) else {
                    out.push(entry.without_top().to_u64(), probe);
                    return out.room() > 0;
                };
                let left = &rows[*within..];
                let taken = left.len().min(out.room());
                left[..taken].iter().for_each(|row| out.push(row.to_u64(), probe));
                *within = if taken < left.len() { *within + taken } else { 0 };
                out.room() > 0
            });
        }
    }
}

/// Calls `on_entry(rows of the group done, index, entry)` for every key that has an entry, until
/// it answers false. It is called again for a key whose group it left unfinished.
#[inline(always)]
fn each_entry<K: KeyWord, I: RowId, P: ProbeKeys<K>>(
    keys: &P,
    cursor: &mut Cursor,
    locate: impl Fn(K) -> usize,
    find: impl Fn(K, usize) -> I,
    mut on_entry: impl FnMut(&mut usize, usize, I) -> bool,
) {
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
            if entry != I::default() {
                let go_on = on_entry(&mut cursor.within, index, entry);
                cursor.next = index + usize::from(cursor.within == 0);
                if !go_on {
                    return;
                }
            }
        }
        cursor.next = first + ahead;
    }
}

/// Appends pairs up to a cap, for which room was made before.
struct Writer<'p> {
    pairs: &'p mut Pairs,
    build: *mut u64,
    probe: *mut u64,
    len: usize,
    cap: usize,
}

impl<'p> Writer<'p> {
    fn new(pairs: &'p mut Pairs, cap: usize) -> Self {
        let len = pairs.len();
        pairs.build.reserve(cap.saturating_sub(len));
        pairs.probe.reserve(cap.saturating_sub(len));
        let (build, probe) = (pairs.build.as_mut_ptr(), pairs.probe.as_mut_ptr());
        Writer { pairs, build, probe, len, cap }
    }

    #[inline(always)]
    fn room(&self) -> usize {
        self.cap.saturating_sub(self.len)
    }

    #[inline(always)]
    fn push(&mut self, build: u64, probe: u64) {
        assert!(self.len < self.cap);
        // SAFETY: both vectors have room for `cap` values, and were not touched since.
        unsafe {
            self.build.add(self.len).write(build);
            self.probe.add(self.len).write(probe);
        }
        self.len += 1;
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // SAFETY: the first `len` values of both were written.
        unsafe {
            self.pairs.build.set_len(self.len);
            self.pairs.probe.set_len(self.len);
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

/// Where each part begins if they lie one behind the other.
pub(crate) fn running_starts(lengths: &[usize]) -> Vec<usize> {
    let mut at = 0;
    lengths
        .iter()
        .map(|len| {
            at += len;
            at - len
        })
        .collect()
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

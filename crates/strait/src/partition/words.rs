//! Computes the key words of a held side, on all workers.

use std::sync::Mutex;

use arrow::array::RecordBatch;
use arrow::buffer::{BooleanBuffer, NullBuffer};

use crate::context::Context;
use crate::error::Result;
use crate::input::{Piece, Relation};
use crate::key::{KeyPlan, Ranked};
use crate::memory::Buffer;
use crate::options::Side;
use crate::schedule::{lock, share};
use crate::word::KeyWord;

/// The most rows per piece, so that the words of a piece stay in the cache.
pub(crate) const PIECE: usize = 16 * 1024;

/// The key words of a side, one per row, not placed yet.
pub(crate) struct Words<'a, K: KeyWord> {
    source: Source<'a, K>,
    /// The number of rows.
    pub(crate) rows: usize,
    /// The side in pieces. For each piece, the rows that may match; `None` if all may.
    pub(crate) pieces: Vec<(Piece, Option<NullBuffer>)>,
    /// The smallest and the largest word among rows that may match; `None` if there is no such row.
    pub(crate) range: Option<(K, K)>,
    /// The number of rows that may match.
    pub(crate) matchable: usize,
}

/// Where the words are read from.
enum Source<'a, K: KeyWord> {
    /// A buffer that holds all words.
    Made(Buffer<K>),
    /// The key column. The words of a piece are computed whenever they are read. For a plain integer column
    /// this is as fast as reading them from memory, and it needs no memory.
    Column { keys: &'a KeyPlan, side: Side, relation: &'a Relation },
}

/// Returns the key words of a side, to be read piece by piece.
pub(crate) fn key_words<'a, K: KeyWord>(
    cx: &Context<'_>,
    keys: &'a KeyPlan,
    side: Side,
    relation: &'a Relation,
) -> Result<Words<'a, K>> {
    if !keys.plain(side) {
        return made_words(cx, keys, side, relation);
    }
    let make = |piece: &Piece, made: &mut Vec<K>| keys.words(side, &relation.piece(piece), made);
    let rows = relation.rows() as usize;
    let (pieces, range, matchable) = survey(cx, relation.pieces(PIECE), rows, make)?;
    Ok(Words { source: Source::Column { keys, side, relation }, rows, pieces, range, matchable })
}

/// Computes all key words of a side into a buffer.
fn made_words<K: KeyWord>(
    cx: &Context<'_>,
    keys: &KeyPlan,
    side: Side,
    relation: &Relation,
) -> Result<Words<'static, K>> {
    let rows = relation.rows() as usize;
    let what = format!("the key words of the {} table", side.name());
    let mut words = Buffer::<K>::uninit(rows, &cx.budget, &what)?;
    let out = words.shared();
    let pieces = relation.pieces(PIECE);
    let make = |piece: &Piece, made: &mut Vec<K>| -> Result<Option<NullBuffer>> {
        let batch: RecordBatch = relation.piece(piece);
        let valid = keys.words(side, &batch, made)?;
        // SAFETY: pieces do not overlap, and each belongs to one task.
        let to = unsafe { out.range(piece.first_row..piece.first_row + piece.len) };
        to.copy_from_slice(made);
        Ok(valid)
    };
    let (pieces, range, matchable) = survey(cx, pieces, rows, make)?;
    Ok(Words { source: Source::Made(words), rows, pieces, range, matchable })
}

impl<K: KeyWord> Words<'static, K> {
    /// Returns the ranks of a side's keys as its key words.
    pub(crate) fn of_ranks(cx: &Context<'_>, relation: &Relation, ranked: &Ranked) -> Result<Self> {
        let rows = relation.rows() as usize;
        let mut words = Buffer::<K>::uninit(rows, &cx.budget, "the ranks of the keys")?;
        let out = words.shared();
        let pieces = relation.pieces(PIECE);
        let make = |piece: &Piece, made: &mut Vec<K>| -> Result<Option<NullBuffer>> {
            let range = piece.first_row..piece.first_row + piece.len;
            made.clear();
            made.extend(ranked.words[range.clone()].iter().map(|&w| K::from_u64(w)));
            // SAFETY: pieces do not overlap, and each belongs to one task.
            unsafe { out.range(range) }.copy_from_slice(made);
            Ok(ranked.valid.as_ref().map(|v| v.slice(piece.first_row, piece.len)))
        };
        let (pieces, range, matchable) = survey(cx, pieces, rows, make)?;
        Ok(Words { source: Source::Made(words), rows, pieces, range, matchable })
    }
}

impl<K: KeyWord> Words<'_, K> {
    /// Returns the buffer that holds the words of all rows; if there is none, returns `self` as the error.
    pub(crate) fn into_made(self) -> std::result::Result<Buffer<K>, Self> {
        match self.source {
            Source::Made(words) => Ok(words),
            source => Err(Words { source, ..self }),
        }
    }

    /// Returns the words of a piece's rows, and which of these rows may match, if not all.
    pub(crate) fn of_piece<'s>(
        &'s self,
        piece: usize,
        scratch: &'s mut Vec<K>,
    ) -> Result<(&'s [K], Option<&'s NullBuffer>)> {
        let (piece, valid) = &self.pieces[piece];
        let words = match &self.source {
            Source::Made(words) => &words[piece.first_row..piece.first_row + piece.len],
            Source::Column { keys, side, relation } => {
                keys.words(*side, &relation.piece(piece), scratch)?;
                scratch
            }
        };
        Ok((words, valid.as_ref()))
    }

    /// Counts the rows that may match, per bucket. `bucket` returns a number below `buckets` for each word.
    pub(crate) fn histogram(
        &self,
        cx: &Context<'_>,
        buckets: usize,
        bucket: impl Fn(K) -> usize + Sync,
    ) -> Result<Vec<u64>> {
        let counts = Mutex::new(vec![0u64; buckets]);
        let workers = cx.workers.for_rows(self.rows);
        workers.run(|worker| {
            let (mut scratch, mut mine) = (Vec::new(), vec![0u64; buckets]);
            for piece in self.share(workers.threads(), worker) {
                cx.workers.check()?;
                let (words, valid) = self.of_piece(piece, &mut scratch)?;
                match valid {
                    None => words.iter().for_each(|&word| mine[bucket(word)] += 1),
                    Some(valid) => valid.valid_indices().for_each(|i| mine[bucket(words[i])] += 1),
                }
            }
            lock(&counts).iter_mut().zip(mine).for_each(|(all, mine)| *all += mine);
            Ok(())
        })?;
        Ok(counts.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// From now on, only the rows of `all` whose word is selected may match. `all` has the pieces as they were when
    /// the words were computed.
    pub(crate) fn select(
        &mut self,
        cx: &Context<'_>,
        all: &[(Piece, Option<NullBuffer>)],
        selects: impl Fn(K) -> bool + Sync,
    ) -> Result<()> {
        self.pieces = all.to_vec();
        let selected: Vec<Mutex<Option<NullBuffer>>> =
            all.iter().map(|_| Mutex::default()).collect();
        let workers = cx.workers.for_rows(self.rows);
        let this = &*self;
        workers.run(|worker| {
            let mut scratch = Vec::new();
            for piece in this.share(workers.threads(), worker) {
                cx.workers.check()?;
                let (words, valid) = this.of_piece(piece, &mut scratch)?;
                let bits = BooleanBuffer::collect_bool(words.len(), |i| selects(words[i]));
                *lock(&selected[piece]) = NullBuffer::union(Some(&NullBuffer::new(bits)), valid);
            }
            Ok(())
        })?;
        for ((_, valid), selected) in self.pieces.iter_mut().zip(selected) {
            *valid = selected.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        self.matchable = (0..self.pieces.len()).map(|piece| self.matchable_of(piece)).sum();
        Ok(())
    }

    /// Returns the bytes of the buffer that holds the words; 0 if there is none.
    pub(crate) fn made_bytes(&self) -> u64 {
        match &self.source {
            Source::Made(words) => size_of_val::<[K]>(words) as u64,
            Source::Column { .. } => 0,
        }
    }

    /// Returns how many rows of a piece may match.
    pub(crate) fn matchable_of(&self, piece: usize) -> usize {
        let (piece, valid) = &self.pieces[piece];
        piece.len - valid.as_ref().map_or(0, NullBuffer::null_count)
    }

    /// Returns the rows that cannot match, because their key has a null.
    pub(crate) fn unmatchable(&self) -> Vec<u64> {
        let mut rows = Vec::with_capacity(self.rows - self.matchable);
        for (piece, valid) in &self.pieces {
            if let Some(valid) = valid {
                let null = (0..piece.len).filter(|&i| valid.is_null(i));
                rows.extend(null.map(|i| (piece.first_row + i) as u64));
            }
        }
        rows
    }

    /// Returns the pieces that are this worker's share.
    pub(crate) fn share(&self, workers: usize, worker: usize) -> std::ops::Range<usize> {
        share(self.pieces.len(), workers, worker)
    }
}

type Surveyed<K> = (Vec<(Piece, Option<NullBuffer>)>, Option<(K, K)>, usize);

/// Computes the words of each piece, and their range.
fn survey<K: KeyWord>(
    cx: &Context<'_>,
    pieces: Vec<Piece>,
    rows: usize,
    make: impl Fn(&Piece, &mut Vec<K>) -> Result<Option<NullBuffer>> + Sync,
) -> Result<Surveyed<K>> {
    type NullsAndRange<K> = (Option<NullBuffer>, Option<(K, K)>);
    let found: Vec<Mutex<NullsAndRange<K>>> =
        pieces.iter().map(|_| Mutex::new((None, None))).collect();
    let workers = cx.workers.for_rows(rows);
    workers.run(|worker| {
        let mut made = Vec::new();
        for task in share(pieces.len(), workers.threads(), worker) {
            cx.workers.check()?;
            let valid = make(&pieces[task], &mut made)?;
            let range = match &valid {
                None => range_of(made.iter().copied()),
                Some(valid) => range_of(valid.valid_indices().map(|i| made[i])),
            };
            *found[task].lock().unwrap_or_else(|e| e.into_inner()) = (valid, range);
        }
        Ok(())
    })?;
    let mut whole: Option<(K, K)> = None;
    let mut matchable = 0;
    let mut surveyed = Vec::with_capacity(pieces.len());
    for (piece, found) in pieces.into_iter().zip(found) {
        let (valid, range) = found.into_inner().unwrap_or_else(|e| e.into_inner());
        matchable += piece.len - valid.as_ref().map_or(0, NullBuffer::null_count);
        whole = match (whole, range) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (whole, range) => whole.or(range),
        };
        surveyed.push((piece, valid));
    }
    Ok((surveyed, whole, matchable))
}

fn range_of<K: KeyWord>(words: impl Iterator<Item = K>) -> Option<(K, K)> {
    words.fold(None, |range, word| match range {
        None => Some((word, word)),
        Some((min, max)) => Some((min.min(word), max.max(word))),
    })
}

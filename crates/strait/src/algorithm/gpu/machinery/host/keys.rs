//! The key words of a side, or of a chunk of it, in host memory, as the device needs them.
//!
//! If a key is one integer column without nulls, and is as wide as a word, then its values plus a bias are
//! the words. Such a column is staged directly from its batches. For all other keys, the words are computed
//! first.

use std::any::Any;

use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::ArrowNativeType;

use crate::context::Context;
use crate::device::HostView;
use crate::error::{Error, Result};
use crate::input::{Piece, Relation};
use crate::key::KeyPlan;
use crate::materialise::Columns;
use crate::memory::{Buffer, Plain};
use crate::options::Side;
use crate::partition::{PIECE, RowId, Words};
use crate::transfer::{HostColumn, HostSide};
use crate::word::KeyWord;
use crate::word::Width;

/// The key words of the rows of one side that may match, in the device's word width.
pub(super) struct Keys {
    words: WordColumn,
    /// The inlined columns of each row, in the same width.
    values: Option<WordColumn>,
    pub(super) rows: u64,
    /// The row number for each position. `None` if all rows may match.
    pub(super) row_of: Option<Buffer<u64>>,
}

/// One word per row, and the memory that holds the words.
struct WordColumn {
    column: HostColumn,
    _memory: Box<dyn Any + Send + Sync>,
}

impl WordColumn {
    fn in_buffer<D: Plain>(made: Buffer<D>) -> WordColumn {
        // SAFETY: the memory lives as long as this value, which outlives the join.
        let column = unsafe { HostColumn::pageable(HostView::of(&made)) };
        WordColumn { column, _memory: Box::new(made) }
    }

    /// Words in batches. The device's words are these values plus `bias`.
    fn in_batches<D: Plain + ArrowNativeType>(
        batches: Vec<ScalarBuffer<D>>,
        bias: u64,
    ) -> WordColumn {
        let views = batches.iter().map(|batch| HostView::of(batch)).collect();
        // SAFETY: as above.
        let column = unsafe { HostColumn::in_batches(views, bias) };
        WordColumn { column, _memory: Box::new(batches) }
    }
}

impl Keys {
    /// Returns the words of a plain column without copying them. The plan decides that, by [`KeySource::Column`].
    /// Fails with an internal error if the words have to be computed.
    ///
    /// `inlining` has the inlined columns, and whether the plan says that they [are one
    /// word](crate::plan::Inlining::is_one_word).
    ///
    /// [`KeySource::Column`]: crate::plan::KeySource::Column
    pub(super) fn in_place<K: KeyWord + RowId + Plain + ArrowNativeType>(
        cx: &Context<'_>,
        keys: &KeyPlan,
        side: Side,
        relation: &Relation,
        inlining: Option<(&Columns, bool)>,
    ) -> Result<Keys> {
        let words = keys.unbiased_values::<K>(side, relation.batches())?;
        let (words, bias) = words.ok_or_else(|| {
            let side = side.name();
            Error::internal(format!("the key words of the {side} table are not in its column"))
        })?;
        let values = match inlining {
            None => None,
            Some((columns, is_one_word)) => {
                let in_batches = match is_one_word {
                    true => columns.inlined_in_place::<K>()?,
                    false => None,
                };
                Some(match in_batches {
                    Some(batches) => WordColumn::in_batches(batches, 0),
                    None => {
                        let pieces = relation.pieces(PIECE).into_iter().map(|piece| (piece, None));
                        inlined::<K>(cx, &pieces.collect::<Vec<_>>(), columns)?
                    }
                })
            }
        };
        let words = WordColumn::in_batches(words, bias);
        Ok(Keys { words, values, rows: relation.rows(), row_of: None })
    }

    pub(super) fn of<K: KeyWord + Plain>(
        cx: &Context<'_>,
        words: Words<'_, K>,
        word: Width,
        inlining: Option<&Columns>,
    ) -> Result<Keys> {
        let (rows, whole) = (words.matchable as u64, words.matchable == words.rows);
        let values = match (inlining, word) {
            (None, _) => None,
            (Some(columns), Width::W32) => Some(inlined::<u32>(cx, &words.pieces, columns)?),
            (Some(columns), Width::W64) => Some(inlined::<u64>(cx, &words.pieces, columns)?),
        };
        let row_of = match whole || inlining.is_some() {
            true => None,
            false => Some(chosen(cx, &words, "the numbers of rows", |row, _| row as u64)?),
        };
        let as_they_are = whole && word.bytes() as usize == size_of::<K>();
        let made = if as_they_are { words.into_made() } else { Err(words) };
        let words = match (made, word) {
            (Ok(made), _) => WordColumn::in_buffer(made),
            (Err(words), Width::W32) => {
                let narrow = |_, word: K| word.to_u64() as u32;
                WordColumn::in_buffer(chosen(cx, &words, "the key words", narrow)?)
            }
            (Err(words), Width::W64) => {
                let wide = |_, word: K| word.to_u64();
                WordColumn::in_buffer(chosen(cx, &words, "the key words", wide)?)
            }
        };
        Ok(Keys { words, values, rows, row_of })
    }

    pub(super) fn side(&self) -> HostSide {
        let values = self.values.as_ref().map(|values| values.column.clone());
        HostSide { keys: self.words.column.clone(), values, rows: self.rows }
    }
}

/// Builds the inlined values of the rows that may match.
fn inlined<I: RowId>(cx: &Context<'_>, pieces: &Pieces, columns: &Columns) -> Result<WordColumn> {
    let made = by_pieces(cx, pieces, "the inlined columns", |piece, valid, to| {
        let mut scratch = Vec::new();
        let all = columns.inlined::<I>(&pieces[piece].0, &mut scratch);
        match valid {
            None => to.copy_from_slice(all),
            Some(valid) => {
                to.iter_mut().zip(valid.valid_indices()).for_each(|(to, i)| *to = all[i])
            }
        }
        Ok(())
    })?;
    Ok(WordColumn::in_buffer(made))
}

/// Builds a column with one value for each row that may match.
fn chosen<K: KeyWord, D: Plain>(
    cx: &Context<'_>,
    words: &Words<'_, K>,
    what: &str,
    value: impl Fn(usize, K) -> D + Sync,
) -> Result<Buffer<D>> {
    by_pieces(cx, &words.pieces, what, |piece, valid, to| {
        let mut scratch = Vec::new();
        let (of_piece, _) = words.of_piece(piece, &mut scratch)?;
        let row = words.pieces[piece].0.first_row;
        match valid {
            // Without a branch inside, the compiler vectorises this loop.
            None => to.iter_mut().zip(of_piece).enumerate().for_each(|(i, (to, &word))| {
                *to = value(row + i, word);
            }),
            Some(valid) => to.iter_mut().zip(valid.valid_indices()).for_each(|(to, i)| {
                *to = value(row + i, of_piece[i]);
            }),
        }
        Ok(())
    })
}

/// The pieces of a side, each with the rows that may match. `None` means that all its rows may.
type Pieces = [(Piece, Option<NullBuffer>)];

/// Builds a column over the rows that may match, piece by piece, on all workers. `fill` gets the index of a
/// piece, its rows that may match (`None` for all), and the part of the column to write.
fn by_pieces<D: Plain>(
    cx: &Context<'_>,
    pieces: &Pieces,
    what: &str,
    fill: impl Fn(usize, Option<&NullBuffer>, &mut [D]) -> Result<()> + Sync,
) -> Result<Buffer<D>> {
    let mut starts = vec![0usize];
    for (piece, valid) in pieces {
        let nulls = valid.as_ref().map_or(0, NullBuffer::null_count);
        starts.push(starts[starts.len() - 1] + piece.len - nulls);
    }
    let matchable = starts[pieces.len()];
    let mut made = Buffer::<D>::uninit(matchable, &cx.budget, what)?;
    let out = made.shared();
    cx.workers.for_rows(matchable).each(pieces.len(), |piece, _| {
        // SAFETY: pieces do not overlap, and each piece belongs to one task.
        let to = unsafe { out.range(starts[piece]..starts[piece + 1]) };
        fill(piece, pieces[piece].1.as_ref(), to)
    })?;
    Ok(made)
}

//! Reads sorted runs together, block by block, in the order of their keys.
//!
//! Each run has a cursor: the blocks of it that are in memory, and its *bound*, the largest key in them. All rows that
//! are still on disk have at least this key. So all rows with a smaller key than the smallest bound are in memory.
//! These rows are *complete*.
//!
//! ```text
//!              complete │ not complete
//!  run 0   1 2 4        │ 6 7           bound 7, on disk: 8 …
//!  run 1   2 3 3        │ 5 ◄───────────bound 5, on disk: 5 …   the smallest bound
//!  run 2                │ 9             bound 9, on disk: …
//! ```
//!
//! The next block is always read from the run with the smallest bound. So of each run, at most one block has rows that
//! are not complete, apart from rows whose key is the smallest bound.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;

use super::SortedRuns;
use super::run::Run;
use crate::algorithm::spill::BYTES_PER_BLOCK;
use crate::error::{Error, Result};
use crate::input::{BufferedSource, ChunkLimits, Input, Relation, slice_bytes};
use crate::key::just_after;
use crate::memory::{Hold, Reservation};
use crate::options::Side;
use crate::plan::joined_bytes;

/// One block at a time, whatever its size.
const ONE_BLOCK: ChunkLimits = ChunkLimits {
    rows: u64::MAX,
    bytes: u64::MAX,
    held: u64::MAX,
    spare: 0,
    free: 0,
    one_batch: true,
};

/// Rows of one block that are in memory.
#[derive(Clone)]
pub(super) struct Piece {
    pub(super) batch: RecordBatch,
    hold: Arc<Hold>,
}

impl Piece {
    /// Returns the bytes of memory that it keeps.
    pub(super) fn held_bytes(&self) -> u64 {
        self.hold.iter().map(|reserved| reserved.bytes()).sum()
    }

    fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// Returns two pieces: the rows before a row, and the rows from it on.
    pub(super) fn split(&self, at: usize) -> [Piece; 2] {
        let slice = |start: usize, end: usize| Piece {
            batch: self.batch.slice(start, end - start),
            hold: Arc::clone(&self.hold),
        };
        [slice(0, at), slice(at, self.rows())]
    }
}

/// The position in a run.
struct Cursor {
    side: Side,
    /// The rest of the run; `None` at its end.
    rest: Option<BufferedSource>,
    /// The rows in memory, in order.
    pieces: VecDeque<Piece>,
    /// No row of `rest` has a smaller key than this.
    bound: Vec<u8>,
    _bound: Option<Reservation>,
}

/// Rows that were taken from the cursors.
pub(super) struct Taken {
    /// The pieces, each with the number of its cursor.
    pub(super) pieces: Vec<(usize, Piece)>,
}

impl Taken {
    pub(super) fn rows(&self) -> usize {
        self.pieces.iter().map(|(_, piece)| piece.rows()).sum()
    }
}

/// The rows in memory after some blocks were read.
pub(super) enum Filled {
    /// No rows are left.
    Nothing,
    /// All rows with a smaller key are complete, and there are some.
    Below(Vec<u8>),
    /// All rows are in memory.
    All,
    /// The rows with this key are too many, and no smaller key is left.
    OneKey(Vec<u8>),
}

/// Where to cut rows that are too many.
pub(super) enum Cut {
    /// Some rows have smaller keys, but not all.
    Below(Vec<u8>),
    /// All rows have this key.
    OneKey(Vec<u8>),
}

/// The cursors of some runs.
pub(super) struct Cursors<'a> {
    of: &'a SortedRuns<'a>,
    all: Vec<Cursor>,
    /// The bytes of the largest block.
    largest: u64,
}

impl<'a> Cursors<'a> {
    pub(super) fn new(of: &'a SortedRuns<'a>, runs: Vec<Run>) -> Cursors<'a> {
        let cursor = |run: Run| {
            let schema = Arc::clone(&of.spilling.schemas[run.side as usize]);
            let rest = of.spilling.joins.source(run.side, Input::source(run.rows.source(schema)));
            let (side, bound) = (run.side, run.first);
            Cursor { side, rest: Some(rest), pieces: VecDeque::new(), bound, _bound: None }
        };
        let largest = runs.iter().map(|run| run.largest).max().unwrap_or(0);
        Cursors { of, all: runs.into_iter().map(cursor).collect(), largest }
    }

    pub(super) fn side(&self, at: usize) -> Side {
        self.all[at].side
    }

    /// Returns the numbers of the cursors.
    pub(super) fn numbers(&self) -> std::ops::Range<usize> {
        0..self.all.len()
    }

    /// Reads blocks until the rows that are probably complete take `most` [bytes](joined_bytes), or memory is refused.
    pub(super) fn fill(&mut self, most: u64) -> Result<Filled> {
        // These rows are written or joined next. So if possible, some memory stays free for gathering and encoding one
        // block.
        let budget = &self.of.spilling.cx.budget;
        let mut room = budget.reserve(2 * (self.largest + BYTES_PER_BLOCK), "reading runs").ok();
        loop {
            self.of.spilling.cx.workers.check()?;
            let Some((at, bound)) = self.least() else {
                return Ok(match self.all.iter().any(|cursor| !cursor.pieces.is_empty()) {
                    true => Filled::All,
                    false => Filled::Nothing,
                });
            };
            let loaded = self.complete_bytes();
            if loaded >= most && self.has_below(&bound)? {
                return Ok(Filled::Below(bound));
            }
            if loaded / 2 >= most {
                return Ok(Filled::OneKey(bound));
            }
            match self.load(at) {
                Ok(()) => {}
                Err(why @ Error::MemoryLimit { .. }) => {
                    if self.has_below(&bound)? {
                        return Ok(Filled::Below(bound));
                    }
                    if self.has_below(&just_after(&bound))? {
                        return Ok(Filled::OneKey(bound));
                    }
                    if room.take().is_none() {
                        return Err(why);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the cursor with the smallest bound, and the bound. Returns `None` if nothing is left on disk.
    fn least(&self) -> Option<(usize, Vec<u8>)> {
        let unread = self.all.iter().enumerate().filter(|(_, cursor)| cursor.rest.is_some());
        let least = unread.min_by(|(_, a), (_, b)| a.bound.cmp(&b.bound));
        least.map(|(at, cursor)| (at, cursor.bound.clone()))
    }

    /// Returns the memory that joining the complete rows takes. Counts all blocks except the last one of each run that
    /// is not at its end.
    fn complete_bytes(&self) -> u64 {
        let of_cursor = |cursor: &Cursor| {
            let open = usize::from(cursor.rest.is_some());
            let complete = cursor.pieces.len().saturating_sub(open);
            let bytes = |piece: &Piece| joined_bytes(piece.rows() as u64, piece.held_bytes());
            cursor.pieces.iter().take(complete).map(bytes).sum::<u64>()
        };
        self.all.iter().map(of_cursor).sum()
    }

    /// Returns whether a row in memory has a smaller key.
    fn has_below(&self, bound: &[u8]) -> Result<bool> {
        for cursor in &self.all {
            if let Some(piece) = cursor.pieces.front()
                && self.key(cursor.side, piece, 0)?.as_slice() < bound
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn key(&self, side: Side, piece: &Piece, row: usize) -> Result<Vec<u8>> {
        self.of.key_of(side, &piece.batch, row)
    }

    /// Returns whether rows of a cursor that have a smaller key may be on disk.
    pub(super) fn may_have_more(&self, at: usize, below: &[u8]) -> bool {
        self.all[at].rest.is_some() && self.all[at].bound.as_slice() < below
    }

    /// Returns whether rows of a cursor are left on disk.
    pub(super) fn has_rest(&self, at: usize) -> bool {
        self.all[at].rest.is_some()
    }

    /// Reads the next block of the run with the smallest bound, if there is one.
    pub(super) fn load_least(&mut self) -> Result<()> {
        match self.least() {
            Some((at, _)) => self.load(at),
            None => Ok(()),
        }
    }

    /// Reads the next block of a run. If memory is refused, nothing changes.
    pub(super) fn load(&mut self, at: usize) -> Result<()> {
        let (cx, cursor) = (self.of.spilling.cx, &mut self.all[at]);
        let Some(rest) = &cursor.rest else { return Ok(()) };
        let Some(chunk) = rest.chunk(ONE_BLOCK, &cx.workers)? else {
            // This also deletes the file.
            cursor.rest = None;
            return Ok(());
        };
        let bound = || {
            let rows = chunk.rows.rows();
            let last = (rows > 0).then(|| chunk.rows.places().locate(rows - 1));
            let bound = self.of.key_in(cursor.side, &chunk.rows, last)?;
            let reserved = cx.budget.reserve(bound.len() as u64, "the keys of sorted runs")?;
            Ok((bound, reserved))
        };
        match bound() {
            Ok((bound, reserved)) => (cursor.bound, cursor._bound) = (bound, Some(reserved)),
            Err(error) => {
                rest.put_back([&chunk].into_iter());
                return Err(error);
            }
        }
        let pieces = chunk.rows.into_batches().map(|(batch, hold)| Piece { batch, hold });
        cursor.pieces.extend(pieces);
        Ok(())
    }

    /// Takes the rows in memory that have a smaller key. Takes all rows if `below` is `None`.
    pub(super) fn take(&mut self, below: Option<&[u8]>) -> Result<Taken> {
        let cuts = self.numbers().map(|at| self.cut(at, below)).collect::<Result<Vec<_>>>()?;
        let mut pieces = Vec::new();
        for (at, cut) in cuts.into_iter().enumerate() {
            self.take_up_to(at, cut, &mut pieces);
        }
        Ok(Taken { pieces })
    }

    /// Does the same for one cursor.
    pub(super) fn take_of(&mut self, at: usize, below: Option<&[u8]>) -> Result<Taken> {
        let (cut, mut pieces) = (self.cut(at, below)?, Vec::new());
        self.take_up_to(at, cut, &mut pieces);
        Ok(Taken { pieces })
    }

    /// Returns how many whole pieces of a cursor have smaller keys, and how many rows of the next piece.
    fn cut(&self, at: usize, below: Option<&[u8]>) -> Result<(usize, usize)> {
        let cursor = &self.all[at];
        let Some(below) = below else { return Ok((cursor.pieces.len(), 0)) };
        for (number, piece) in cursor.pieces.iter().enumerate() {
            if self.key(cursor.side, piece, piece.rows() - 1)?.as_slice() < below {
                continue;
            }
            if self.key(cursor.side, piece, 0)?.as_slice() >= below {
                return Ok((number, 0));
            }
            return Ok((number, self.rows_below(cursor.side, piece, below)?));
        }
        Ok((cursor.pieces.len(), 0))
    }

    /// Returns how many rows of a piece have a smaller key. Looks at few rows, because the keys of a whole block may
    /// take much memory.
    fn rows_below(&self, side: Side, piece: &Piece, below: &[u8]) -> Result<usize> {
        let (mut low, mut high) = (0, piece.rows());
        while low < high {
            let row = low + (high - low) / 2;
            match self.key(side, piece, row)?.as_slice() < below {
                true => low = row + 1,
                false => high = row,
            }
        }
        Ok(low)
    }

    fn take_up_to(
        &mut self,
        at: usize,
        (whole, rows): (usize, usize),
        to: &mut Vec<(usize, Piece)>,
    ) {
        let pieces = &mut self.all[at].pieces;
        to.extend(pieces.drain(..whole).map(|piece| (at, piece)));
        if rows > 0
            && let Some(piece) = pieces.pop_front()
        {
            let [taken, left] = piece.split(rows);
            to.push((at, taken));
            pieces.push_front(left);
        }
    }

    /// Puts back the rows that were taken last.
    pub(super) fn put_back(&mut self, taken: Taken) {
        for (at, piece) in taken.pieces.into_iter().rev() {
            self.all[at].pieces.push_front(piece);
        }
    }

    /// Decides where to cut rows that are too many: near the middle.
    pub(super) fn middle(&self, taken: &Taken) -> Result<Cut> {
        let key =
            |(at, piece): &(usize, Piece), row: usize| self.key(self.all[*at].side, piece, row);
        let mut middles = Vec::new();
        let (mut least, mut most) = (None::<Vec<u8>>, None::<Vec<u8>>);
        for taken in &taken.pieces {
            let rows = taken.1.rows();
            middles.push((key(taken, rows / 2)?, rows));
            let (first, last) = (key(taken, 0)?, key(taken, rows - 1)?);
            least = Some(least.map_or_else(|| first.clone(), |least| least.min(first.clone())));
            most = Some(most.map_or_else(|| last.clone(), |most| most.max(last.clone())));
        }
        middles.sort_unstable();
        let half = taken.rows() / 2;
        let mut before = 0;
        let middle = middles.into_iter().find(|&(_, rows)| {
            before += rows;
            before > half
        });
        let (Some((middle, _)), Some(least), Some(most)) = (middle, least, most) else {
            return Err(Error::internal("no rows are cut"));
        };
        Ok(match (middle > least, most > middle) {
            (true, _) => Cut::Below(middle),
            (false, true) => Cut::Below(just_after(&middle)),
            (false, false) => Cut::OneKey(middle),
        })
    }
}

/// Returns some pieces of one side as a held side.
pub(super) fn relation<'p>(
    of: &SortedRuns<'_>,
    side: Side,
    pieces: impl Iterator<Item = &'p Piece>,
) -> Relation {
    let schema = Arc::clone(&of.spilling.schemas[side as usize]);
    let held: Vec<_> = pieces.map(|piece| (piece.batch.clone(), Arc::clone(&piece.hold))).collect();
    let bytes = held.iter().map(|(batch, _)| slice_bytes(batch)).sum();
    Relation::of_batches(schema, held, bytes)
}

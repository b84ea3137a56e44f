//! A side that is held in memory, and the positions of its rows in its batches.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::memory::Hold;

/// A batch and its memory reservation. The last clone releases the reservation.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) batch: RecordBatch,
    /// The number of its first row in the side.
    pub(super) first_row: u64,
    pub(super) hold: Arc<Hold>,
}

/// A side that is held in memory: its batches, and the first row id of each.
pub(crate) struct Relation {
    schema: SchemaRef,
    pub(super) batches: Vec<RecordBatch>,
    places: Arc<Places>,
    bytes: u64,
    pub(super) holds: Vec<Arc<Hold>>,
}

impl Relation {
    /// Takes batches that follow one another.
    pub(super) fn new(schema: SchemaRef, held: Vec<Held>, bytes: u64) -> Self {
        let (batches, holds): (Vec<_>, Vec<_>) =
            held.into_iter().map(|h| (h.batch, h.hold)).unzip();
        let places = Arc::new(Places::new(batches.iter().map(RecordBatch::num_rows)));
        Relation { schema, batches, places, bytes, holds }
    }

    /// Creates a relation from batches and their reservations. `bytes` is the size of all batches.
    pub(crate) fn of_batches(
        schema: SchemaRef,
        held: Vec<(RecordBatch, Arc<Hold>)>,
        bytes: u64,
    ) -> Self {
        let held = held.into_iter().map(|(batch, hold)| Held { batch, first_row: 0, hold });
        Relation::new(schema, held.collect(), bytes)
    }

    /// Returns its batches with their reservations.
    pub(crate) fn into_batches(self) -> impl Iterator<Item = (RecordBatch, Arc<Hold>)> {
        self.batches.into_iter().zip(self.holds)
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub(crate) fn rows(&self) -> u64 {
        self.places.rows()
    }

    /// Returns the bytes of its batches.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }

    pub(crate) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// Splits all rows into pieces of at most `most` rows. A piece does not cross batches.
    pub(crate) fn pieces(&self, most: usize) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut first_row = 0;
        for (batch, rows) in self.batches.iter().map(RecordBatch::num_rows).enumerate() {
            let mut at = 0;
            while at < rows {
                let len = most.min(rows - at);
                pieces.push(Piece { batch, at, len, first_row });
                first_row += len;
                at += len;
            }
        }
        pieces
    }

    /// Returns the rows of a piece as a slice, without copying.
    pub(crate) fn piece(&self, piece: &Piece) -> RecordBatch {
        self.batches[piece.batch].slice(piece.at, piece.len)
    }
}

/// A run of rows inside one batch of a [`Relation`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    /// The number of the batch.
    pub(crate) batch: usize,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) first_row: usize,
}

/// The position of a row in a list of batches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(crate) struct Location {
    /// The number of the batch.
    pub(crate) batch: u32,
    /// The row within the batch.
    pub(crate) row: u32,
}

/// Maps row ids to batches.
///
/// With batches of 3, 1 and 4 rows, `starts` is `[0, 3, 4, 8]`. `shift` is 1, so `hints` has one entry per
/// two rows: `[0, 0, 2, 2, 2]`. Row 3 has entry 1, so the search for its batch goes from batch 0 to batch 2.
pub(crate) struct Places {
    starts: Vec<u64>,
    shift: u32,
    hints: Vec<u32>,
}

impl Places {
    pub(crate) fn new(lengths: impl Iterator<Item = usize>) -> Self {
        let mut starts = vec![0u64];
        let mut end = 0;
        for len in lengths {
            end += len as u64;
            starts.push(end);
        }
        let batches = starts.len() as u64 - 1;
        let shift = if batches <= 1 { 63 } else { (end / batches).max(1).ilog2() };
        let mut hints = Vec::new();
        if batches > 1 {
            let mut batch = 0;
            for granule in 0..=(end >> shift) {
                while batch + 1 < batches as usize && starts[batch + 1] <= granule << shift {
                    batch += 1;
                }
                hints.push(batch as u32);
            }
        }
        Places { starts, shift, hints }
    }

    pub(crate) fn rows(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the number of batches.
    pub(crate) fn batches(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the number of rows of a batch.
    pub(crate) fn rows_of(&self, batch: usize) -> usize {
        match (self.starts.get(batch), self.starts.get(batch + 1)) {
            (Some(start), Some(end)) => (end - start) as usize,
            _ => 0,
        }
    }

    /// Returns the batch that contains all of these consecutive rows, and their positions in it; `None` if
    /// they lie in several batches.
    pub(crate) fn slice(&self, rows: &Range<u64>) -> Option<(usize, Range<usize>)> {
        if rows.is_empty() {
            return None;
        }
        let first = self.locate(rows.start);
        let (batch, at) = (first.batch as usize, first.row as usize);
        let end = at + (rows.end - rows.start) as usize;
        (end <= self.rows_of(batch)).then_some((batch, at..end))
    }

    /// Returns the first rows of all batches, and the number of rows.
    pub(crate) fn starts(&self) -> &[u64] {
        &self.starts
    }

    /// Returns whether all rows are in one batch.
    pub(crate) fn single(&self) -> bool {
        self.starts.len() <= 2
    }

    /// Returns the position of a row. The row must exist.
    #[inline]
    pub(crate) fn locate(&self, row: u64) -> Location {
        if self.single() {
            return Location { batch: 0, row: row as u32 };
        }
        let granule = (row >> self.shift) as usize;
        let mut batch = self.hints[granule] as usize;
        if self.starts[batch + 1] <= row {
            let last = self.hints.get(granule + 1).map_or(self.starts.len() - 2, |&h| h as usize);
            batch += self.starts[batch + 1..=last].partition_point(|&start| start <= row);
        }
        Location { batch: batch as u32, row: (row - self.starts[batch]) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_in_batches_of_any_size() {
        for lengths in [
            vec![],
            vec![5],
            vec![3, 1, 4],
            vec![1, 1000, 1, 1, 1, 1, 1, 1, 1],
            vec![0, 2, 0, 0, 3, 0],
        ] {
            let places = Places::new(lengths.iter().copied());
            let mut row = 0;
            for (batch, &len) in lengths.iter().enumerate() {
                for at in 0..len {
                    let found = places.locate(row);
                    assert_eq!(
                        (found.batch as usize, found.row as usize),
                        (batch, at),
                        "{lengths:?}"
                    );
                    row += 1;
                }
            }
            assert_eq!(places.rows(), row);
        }
    }
}

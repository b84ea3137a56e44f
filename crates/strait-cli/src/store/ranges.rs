//! Fetches the column chunks of a row group, in the order in which a decoder needs them.
//!
//! A decoder reads all columns at the same time, each from its start to its end. So when half of the rows are
//! decoded, it needs the bytes in the middle of each column:
//!
//! ```text
//!  columns  a: ██████████░░░░░░░░░░   b: ████░░░░   c: ████████░░░░░░░░     half of the rows are decoded
//!  pieces   a0  a1  a2  a3  a4        b0  b1        c0  c1  c2  c3          needed in the order a0 b0 c0 a1 c1 …
//! ```
//!
//! Chunks that lie close together are fetched as one range, and long ranges are cut into pieces. A piece is
//! released when every column that has bytes in it has passed its end.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use strait::MemoryReservation;

use super::object::{Fetch, Object, piece_and_ahead};
use crate::failure::Told;
use crate::memory::Memory;

/// Chunks are fetched together if at most this many bytes lie between them.
const GAP: u64 = 256 << 10;

/// Pieces of many columns are not shorter than this, because each is a request.
const SHORTEST: u64 = 256 << 10;

const WHAT: &str = "reading an object";

/// The column chunks of a row group.
pub(crate) struct Ranges {
    object: Arc<Object>,
    memory: Memory,
    /// The most bytes that are fetched before they are needed.
    ahead: u64,
    state: Mutex<State>,
}

struct State {
    /// Column chunks: their bytes, and the position of the decoder.
    columns: Vec<(Range<u64>, u64)>,
    /// All pieces, in the order of their positions.
    pieces: Vec<Piece>,
    /// Indices of pieces, in the order in which they are needed. Those before `next` were started.
    order: Vec<usize>,
    next: usize,
}

struct Piece {
    range: Range<u64>,
    content: Content,
}

/// A piece is absent before its request and after it is released.
enum Content {
    Absent,
    Fetching(Fetch, MemoryReservation),
    Arrived(Bytes, MemoryReservation),
}

impl Ranges {
    /// Plans the requests for column chunks.
    pub(crate) fn new(object: &Arc<Object>, chunks: Vec<Range<u64>>, memory: &Memory) -> Ranges {
        let (piece, ahead) = piece_and_ahead(memory);
        let chunks: Vec<_> = chunks
            .into_iter()
            .filter(|chunk| chunk.start < chunk.end && chunk.end <= object.size())
            .collect();
        // All columns have a piece in use at the same time.
        let piece = (ahead / chunks.len().max(1) as u64).max(SHORTEST).min(piece);
        let pieces = cut(&chunks, piece);
        let order = order(&pieces, &chunks);
        let content = |range| Piece { range, content: Content::Absent };
        let state = State {
            columns: chunks.into_iter().map(|chunk| (chunk.clone(), chunk.start)).collect(),
            pieces: pieces.into_iter().map(content).collect(),
            order,
            next: 0,
        };
        let (object, memory) = (Arc::clone(object), memory.for_sources());
        Ranges { object, memory, ahead, state: Mutex::new(state) }
    }

    /// The number of bytes of the object.
    pub(crate) fn size(&self) -> u64 {
        self.object.size()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the first requests, if there is memory for them.
    pub(crate) fn begin(&self) {
        self.fetch_ahead(&mut self.state());
    }

    /// Returns bytes of a column chunk. Within a chunk, positions must not decrease. The error is that of a
    /// refused reservation, or of a failed request.
    pub(crate) fn bytes(&self, at: u64, length: usize) -> strait::Result<Bytes> {
        let end = at.saturating_add(length as u64);
        let mut state = self.state();
        state.moved(at);
        let first = state.pieces.partition_point(|piece| piece.range.end <= at);
        let mut bytes = Vec::with_capacity(length.min(self.size() as usize));
        for index in first..state.pieces.len() {
            let range = state.pieces[index].range.clone();
            if range.start >= end {
                break;
            }
            let (from, to) = (at.max(range.start), end.min(range.end));
            let piece = self.arrived(&mut state, index)?;
            bytes.extend_from_slice(
                &piece[(from - range.start) as usize..(to - range.start) as usize],
            );
        }
        self.fetch_ahead(&mut state);
        match bytes.len() == length {
            true => Ok(bytes.into()),
            false => Err(failed(Told("a page lies outside of its column chunk".to_string()))),
        }
    }

    /// Waits for a piece. Starts its request if it was not started yet.
    fn arrived(&self, state: &mut State, index: usize) -> strait::Result<Bytes> {
        if let Content::Absent = state.pieces[index].content {
            let range = state.pieces[index].range.clone();
            let length = range.end - range.start;
            let reservation = self.memory.reserve(length, WHAT).or_else(|_| {
                // Pieces that are not needed yet make room.
                state.forget_ahead();
                self.memory.reserve(length, WHAT)
            })?;
            let fetch = self.object.fetch(range).map_err(failed)?;
            state.pieces[index].content = Content::Fetching(fetch, reservation);
        }
        // Other requests run while this one is awaited.
        self.fetch_ahead(state);
        let content = std::mem::replace(&mut state.pieces[index].content, Content::Absent);
        let (bytes, reservation) = match content {
            Content::Arrived(bytes, reservation) => (bytes, reservation),
            Content::Fetching(fetch, held) => (self.object.fetched(fetch).map_err(failed)?, held),
            Content::Absent => return Err(failed(Told("a piece was lost".to_string()))),
        };
        state.pieces[index].content = Content::Arrived(bytes.clone(), reservation);
        Ok(bytes)
    }

    /// Starts the requests that come next, up to the bytes that may be ahead.
    fn fetch_ahead(&self, state: &mut State) {
        let mut ahead = state.ahead();
        while let Some(&index) = state.order.get(state.next) {
            let piece = &mut state.pieces[index];
            let length = piece.range.end - piece.range.start;
            if matches!(piece.content, Content::Absent) {
                if ahead > 0 && ahead + length > self.ahead {
                    return;
                }
                let Ok(reservation) = self.memory.reserve(length, WHAT) else { return };
                let Ok(fetch) = self.object.fetch(piece.range.clone()) else { return };
                piece.content = Content::Fetching(fetch, reservation);
                ahead += length;
            }
            state.next += 1;
        }
    }
}

fn failed(told: Told) -> strait::Error {
    strait::Error::from_arrow(told.into())
}

impl State {
    /// Notes the position of a column, and releases the pieces that all their columns have passed.
    fn moved(&mut self, at: u64) {
        if let Some((_, position)) = self.columns.iter_mut().find(|(chunk, _)| chunk.contains(&at))
        {
            *position = at.max(*position);
        }
        let columns = &self.columns;
        for piece in &mut self.pieces {
            let needs = |(chunk, position): &(Range<u64>, u64)| {
                chunk.start < piece.range.end
                    && piece.range.start < chunk.end
                    && *position < piece.range.end
            };
            if matches!(piece.content, Content::Arrived(..)) && !columns.iter().any(needs) {
                piece.content = Content::Absent;
            }
        }
    }

    /// The bytes of all pieces that were started before a column came to them.
    fn ahead(&self) -> u64 {
        let is_ahead = |piece: &&Piece| {
            let is_in = |(chunk, position): &(Range<u64>, u64)| {
                *position > chunk.start && piece.range.contains(position)
            };
            !matches!(piece.content, Content::Absent) && !self.columns.iter().any(is_in)
        };
        self.pieces.iter().filter(is_ahead).map(|piece| piece.range.end - piece.range.start).sum()
    }

    /// Releases all pieces. Those that are needed later are fetched again.
    fn forget_ahead(&mut self) {
        self.pieces.iter_mut().for_each(|piece| piece.content = Content::Absent);
        self.next = self.order.len();
    }
}

/// Merges chunks that lie close together, and cuts them into pieces.
fn cut(chunks: &[Range<u64>], piece: u64) -> Vec<Range<u64>> {
    let mut sorted = chunks.to_vec();
    sorted.sort_by_key(|chunk| chunk.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for chunk in sorted {
        match merged.last_mut() {
            Some(last) if chunk.start <= last.end.saturating_add(GAP) => {
                last.end = last.end.max(chunk.end);
            }
            _ => merged.push(chunk),
        }
    }
    let pieces = merged.into_iter().flat_map(|range| {
        let starts = (range.start..range.end).step_by(piece as usize);
        starts.map(move |start| start..(start + piece).min(range.end))
    });
    pieces.collect()
}

/// Returns the indices of pieces, in the order in which a decoder needs them.
fn order(pieces: &[Range<u64>], chunks: &[Range<u64>]) -> Vec<usize> {
    let needed = |piece: &Range<u64>| {
        let inside = chunks.iter().filter(|c| c.start < piece.end && piece.start < c.end);
        let fraction = |chunk: &Range<u64>| {
            let before = piece.start.saturating_sub(chunk.start) as f64;
            before / (chunk.end - chunk.start) as f64
        };
        inside.map(fraction).fold(1.0, f64::min)
    };
    let mut order: Vec<(f64, usize)> =
        pieces.iter().enumerate().map(|(index, piece)| (needed(piece), index)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    order.into_iter().map(|(_, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn close_chunks_are_one_range() {
        let chunks = [0..MIB, MIB + GAP..2 * MIB, 9 * MIB..10 * MIB];
        assert_eq!(cut(&chunks, 4 * MIB), [0..2 * MIB, 9 * MIB..10 * MIB]);
        let long = 0..3 * MIB;
        assert_eq!(cut(&[long], 2 * MIB), [0..2 * MIB, 2 * MIB..3 * MIB]);
        assert_eq!(cut(&[], MIB), []);
    }

    #[test]
    fn columns_are_fetched_side_by_side() {
        // The second column begins far behind the first, and is half as long.
        let chunks = [0..4 * MIB, 100 * MIB..102 * MIB];
        let pieces = cut(&chunks, MIB);
        assert_eq!(order(&pieces, &chunks), [0, 4, 1, 2, 5, 3]);
    }
}

//! Takes chunks of a side that is streamed, and puts them back.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::DataType;

use super::buffered::{BufferedSource, Footprint};
use super::relation::{Held, Relation};
use crate::error::{Error, Result};
use crate::memory::{Hold, MemoryReservation};
use crate::schedule::{Workers, lock};

/// Some rows of a side, as a held side, and the row id of the first.
pub(crate) struct Chunk {
    pub(crate) rows: Relation,
    pub(crate) first_row: u64,
}

/// How much of a side a [`Chunk`] takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkLimits {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// The most bytes of reserved memory that the chunk may keep. A slice keeps its whole batch in memory. If few
    /// columns of a batch are needed, the batch may still keep all columns in memory. If the chunk keeps most of the memory
    /// of a waiting batch anyway, this does not limit the batch: slices of one batch can be in one chunk.
    pub(crate) held: u64,
    /// The bytes that the reservation for a batch must leave free.
    pub(crate) spare: u64,
    /// Once the chunk has rows, the reader is asked for another batch only if this much memory is free: the
    /// reader may take memory of the same budget, and fails if it is refused.
    pub(crate) free: u64,
    /// Whether a chunk is at most one batch, so that its rows need not wait for the next batch.
    pub(crate) one_batch: bool,
}

impl BufferedSource {
    /// Returns the next rows as a held side: whole batches, except that the last one may be cut. Stops before
    /// a batch that would pass one of the limits, and after the first batch if the limits say so. Returns
    /// `None` at the end.
    pub(crate) fn chunk(&self, most: ChunkLimits, workers: &Workers) -> Result<Option<Chunk>> {
        self.read_ahead(most, workers)?;
        self.take(most)
    }

    /// Does the same as [`chunk`](BufferedSource::chunk), and several workers may call it at the same time. If the
    /// source is concurrent, each call reads it on the calling thread.
    pub(crate) fn chunk_of_worker(&self, most: ChunkLimits) -> Result<Option<Chunk>> {
        let enough = || {
            let buffer = lock(&self.buffer);
            let (mut rows, mut bytes, mut kept) = (0, 0, KeptBytes::default());
            buffer.waiting.iter().any(|held| {
                rows += held.batch.num_rows() as u64;
                bytes += slice_bytes(&held.batch);
                kept.add(&held.hold);
                bytes >= most.bytes || rows >= most.rows || kept.bytes >= most.held
            })
        };
        while self.feed.concurrent && !enough() {
            match self.advance(most.spare) {
                Ok(true) => {}
                Ok(false) => break,
                Err(Error::MemoryLimit { .. }) if !lock(&self.buffer).waiting.is_empty() => break,
                Err(error) => return Err(error),
            }
            lock(&self.buffer).footprint = Footprint::default();
        }
        self.take(most)
    }

    /// Takes the next rows. A reader is asked for more if too few rows wait.
    fn take(&self, most: ChunkLimits) -> Result<Option<Chunk>> {
        let mut buffer = lock(&self.buffer);
        let (mut held, mut rows, mut bytes) = (Vec::<Held>::new(), 0, 0);
        let mut kept = KeptBytes::default();
        while rows < most.rows && (rows == 0 || bytes < most.bytes) {
            let is_full = rows > 0 && kept.bytes >= most.held;
            if is_full && !buffer.waiting.front().is_some_and(|next| kept.has_most_of(next)) {
                break;
            }
            let Some(next) = buffer.waiting.pop_front() else {
                if rows > 0 && self.feed.budget.left() < most.free {
                    break;
                }
                match self.advance_within(&mut buffer, most.spare, None) {
                    // While batches are streamed, their buffers are freed and their addresses are used again.
                    Ok(true) => buffer.footprint = Footprint::default(),
                    Ok(false) => break,
                    // The refused batch waits for the next chunk.
                    Err(Error::MemoryLimit { .. }) if rows > 0 => break,
                    Err(error) => return Err(error),
                }
                continue;
            };
            if held.first().is_some_and(|first| next.first_row != first.first_row + rows) {
                // The rows of a chunk follow one another. A concurrent source returns its batches in any
                // order, and the output has row numbers.
                buffer.waiting.push_front(next);
                break;
            }
            let all = next.batch.num_rows();
            let of_batch = slice_bytes(&next.batch);
            // As many rows as both limits allow, but at least one.
            let fit = (most.bytes.saturating_sub(bytes) as u128 * all as u128
                / of_batch.max(1) as u128)
                .min((most.rows - rows) as u128);
            let some = (fit as usize).max(1).min(all);
            if some < all {
                let (batch, hold) = (next.batch.slice(some, all - some), Arc::clone(&next.hold));
                let first_row = next.first_row + some as u64;
                buffer.waiting.push_front(Held { batch, first_row, hold });
            }
            rows += some as u64;
            bytes += of_batch * some as u64 / all.max(1) as u64;
            kept.add(&next.hold);
            held.push(Held { batch: next.batch.slice(0, some), ..next });
            if most.one_batch {
                break;
            }
        }
        let Some(first_row) = held.first().map(|first| first.first_row) else { return Ok(None) };
        Ok(Some(Chunk { rows: Relation::new(self.schema(), held, bytes), first_row }))
    }

    /// Reads the batches of the next chunk on all workers, if the source is concurrent and a chunk may have
    /// several batches. Under a memory limit, they read as long as there is memory for another batch.
    fn read_ahead(&self, most: ChunkLimits, workers: &Workers) -> Result<()> {
        let limited = !self.feed.budget.unlimited();
        if !self.feed.concurrent || most.one_batch {
            return Ok(());
        }
        let (rows, bytes) = {
            let buffer = lock(&self.buffer);
            let waiting = || buffer.waiting.iter();
            let rows: u64 = waiting().map(|held| held.batch.num_rows() as u64).sum();
            let bytes: u64 = waiting().map(|held| slice_bytes(&held.batch)).sum();
            let missing = (most.rows.saturating_sub(rows), most.bytes.saturating_sub(bytes));
            // Reading stops at these totals: then enough batches wait for a chunk.
            (buffer.rows.saturating_add(missing.0), self.read_bytes().saturating_add(missing.1))
        };
        self.repeat(workers, || {
            let enough = lock(&self.buffer).rows >= rows || self.read_bytes() >= bytes;
            match limited {
                _ if enough => Ok(false),
                true => self.advance_within_budget(most.free.max(most.spare)),
                false => self.advance(0),
            }
        })?;
        let mut buffer = lock(&self.buffer);
        if self.feed.expected.row_numbers {
            buffer.waiting.make_contiguous().sort_by_key(|held| held.first_row);
        }
        buffer.footprint = Footprint::default();
        Ok(())
    }

    /// Puts chunks back that were taken, in their order. They were the last ones taken.
    pub(crate) fn put_back<'c>(&self, chunks: impl DoubleEndedIterator<Item = &'c Chunk>) {
        let mut buffer = lock(&self.buffer);
        for chunk in chunks.rev() {
            let mut first_row = chunk.first_row + chunk.rows.rows();
            for (batch, hold) in chunk.rows.batches.iter().zip(&chunk.rows.holds).rev() {
                first_row -= batch.num_rows() as u64;
                let (batch, hold) = (batch.clone(), Arc::clone(hold));
                buffer.waiting.push_front(Held { batch, first_row, hold });
            }
        }
    }
}

/// The bytes of the reservations that some batches keep. Batches may share reservations.
#[derive(Default)]
struct KeptBytes {
    bytes: u64,
    seen: HashSet<*const MemoryReservation>,
}

impl KeptBytes {
    /// Returns whether most of the memory of a batch is kept anyway, because the batch is a slice.
    fn has_most_of(&self, next: &Held) -> bool {
        let fresh = next.hold.iter().filter(|reserved| !self.seen.contains(&Arc::as_ptr(reserved)));
        fresh.map(|reserved| reserved.bytes()).sum::<u64>() < slice_bytes(&next.batch) / 2
    }

    fn add(&mut self, hold: &Hold) {
        let fresh = hold.iter().filter(|reserved| self.seen.insert(Arc::as_ptr(reserved)));
        self.bytes += fresh.map(|reserved| reserved.bytes()).sum::<u64>();
    }
}

/// Returns the bytes of a batch's rows, even if the batch is a slice of longer arrays. Dictionaries are not
/// counted, because batches share them.
pub(crate) fn slice_bytes(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(|column| row_bytes(column)).sum()
}

/// Estimates the bytes of an array's rows.
fn row_bytes(array: &dyn Array) -> u64 {
    let rows = array.len() as u64;
    // The bytes of a list's elements: as many as they have on average.
    let elements = |values: &dyn Array, count: u64| {
        let all = values.len().max(1) as u64;
        (u128::from(row_bytes(values)) * u128::from(count) / u128::from(all)) as u64
    };
    let viewed = |views: &[u128]| -> u64 {
        // The low 32 bits of a view are its length.
        views.iter().map(|&view| size_of::<u128>() as u64 + u64::from(view as u32)).sum()
    };
    match array.data_type() {
        DataType::Dictionary(keys, _) => rows * keys.primitive_width().unwrap_or(8) as u64,
        DataType::Utf8View => viewed(array.as_string_view().views()),
        DataType::BinaryView => viewed(array.as_binary_view().views()),
        DataType::List(_) | DataType::Map(..) => {
            let (offsets, values): (&[i32], &dyn Array) = match array.as_list_opt::<i32>() {
                Some(list) => (list.value_offsets(), list.values()),
                None => (array.as_map().value_offsets(), array.as_map().entries()),
            };
            let count = offsets[offsets.len() - 1] - offsets[0];
            rows * 4 + elements(values, count as u64)
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            let offsets = list.value_offsets();
            rows * 8 + elements(list.values(), (offsets[offsets.len() - 1] - offsets[0]) as u64)
        }
        DataType::Struct(_) => {
            array.as_struct().columns().iter().map(|column| row_bytes(column)).sum()
        }
        _ => {
            let sliced = array.to_data().get_slice_memory_size();
            sliced.unwrap_or_else(|_| array.get_array_memory_size()) as u64
        }
    }
}

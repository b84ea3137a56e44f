//! Tables in host memory, pinned or pageable, that a GPU joins.

use std::time::Instant;

use arrow::array::{ArrayRef, RecordBatch};

use super::columns::{bytes_of, parts, value_bytes, widen};
use super::{OpenGpu, WordSize};
use crate::device::{DeviceSide, DeviceStage, HostView, abi};
use crate::error::{Error, Result};
use crate::gpu_options::Transfer;
use crate::memory::{Buffer, Shared};
use crate::plan::gpu_shape::chunk_of_columns;
use crate::schedule::share;
use crate::transfer::{HostColumn, HostSide, Pipeline, TransferContext};

/// Where the columns of a table lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPlacement {
    /// In pinned memory, which the GPU reads at full speed.
    Pinned,
    /// In ordinary, pageable memory.
    Pageable,
}

/// A table in host memory: a key column and at most one payload column, in words of the same size.
pub struct HostTable {
    keys: OwnedColumn,
    payload: Option<OwnedColumn>,
    pub(super) rows: u64,
    pub(super) word: WordSize,
    pub(super) placement: HostPlacement,
    /// Dropped after the memory.
    pub(super) gpu: OpenGpu,
}

/// A column, with its memory if that is pageable. Nobody writes to it.
struct OwnedColumn {
    column: HostColumn,
    _memory: Option<Buffer<u64>>,
}

impl HostTable {
    /// Copies a table to host memory of the given placement.
    pub fn load(
        gpu: &OpenGpu,
        placement: HostPlacement,
        word: WordSize,
        batches: &[RecordBatch],
    ) -> Result<HostTable> {
        let (rows, columns) = parts(batches);
        if !(1..=2).contains(&columns.len()) {
            let what = "tables in host memory are joined by a key and at most one payload column";
            return Err(Error::invalid_option(
                "payload-columns",
                what,
                "give --payload-columns 0 or 1",
            ));
        }
        let mut placed = Vec::new();
        for parts in &columns {
            for part in parts {
                if u64::from(value_bytes(part)?) > word.bytes() {
                    let what = "a column of 8 bytes does not fit words of 4 bytes";
                    return Err(Error::invalid_option("word", what, "use words of 8 bytes"));
                }
            }
            placed.push(place(gpu, placement, word, parts, rows)?);
        }
        let payload = if columns.len() == 2 { placed.pop() } else { None };
        let Some(keys) = placed.pop() else {
            return Err(Error::internal("a table lost its key"));
        };
        Ok(HostTable { keys, payload, rows, word, placement, gpu: gpu.clone() })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the size of the words.
    pub fn word(&self) -> WordSize {
        self.word
    }

    /// Returns the bytes of the keys.
    pub fn key_bytes(&self) -> Result<&[u8]> {
        self.bytes(&self.keys)
    }

    /// Returns the bytes of the payload. Returns an error if there is none.
    pub fn payload_bytes(&self) -> Result<&[u8]> {
        let absent = || Error::internal("a table has no payload");
        self.bytes(self.payload.as_ref().ok_or_else(absent)?)
    }

    fn bytes<'a>(&'a self, column: &'a OwnedColumn) -> Result<&'a [u8]> {
        // SAFETY: the table owns the memory for as long as it is borrowed, and nobody writes to it.
        unsafe { column.column.words(0..self.rows * self.word.bytes()) }
    }

    /// Transfers the keys to the GPU once, where a kernel reads them. Returns the seconds, and the bytes of
    /// the keys.
    pub fn transfer_keys(&self, transfer: Transfer) -> Result<(f64, u64)> {
        let side = self.side(false)?;
        let session = self.gpu.session(self.word.width(), None)?;
        let transfer = transfer.resolved(self.placement == HostPlacement::Pinned);
        let most_rows = chunk_of_columns(transfer, self.word.width(), 1);
        let link = self.gpu.transfer_context(&session, transfer, most_rows);
        let started = Instant::now();
        read_keys(&link, &side)?;
        session.device.synchronize(session.compute)?;
        Ok((started.elapsed().as_secs_f64(), self.rows * self.word.bytes()))
    }

    /// Returns the side of a join, with the payload if `with_payload` is set.
    pub(super) fn side(&self, with_payload: bool) -> Result<HostSide> {
        let values = match (with_payload, &self.payload) {
            (false, _) => None,
            (true, Some(payload)) => Some(payload.column.clone()),
            (true, None) => {
                let what = "sums and rows need a payload column per table";
                return Err(Error::invalid_option(
                    "payload-columns",
                    what,
                    "give --payload-columns 1",
                ));
            }
        };
        Ok(HostSide { keys: self.keys.column.clone(), values, rows: self.rows })
    }
}

/// Transfers the keys of a side to the device, where a stage reads them.
fn read_keys(link: &TransferContext<'_>, side: &HostSide) -> Result<()> {
    let session = link.session;
    let found = session.zeroed(4 * 8, "the range of the keys")?;
    let chunk_rows = link.chunk_rows(side, 0, session.left() / 2);
    let mut pipeline = Pipeline::new(link, side, chunk_rows)?;
    while let Some(chunk) = pipeline.next()? {
        let DeviceSide { keys, rows, .. } = chunk.side;
        let survey = abi::Survey { keys: keys.address, rows, found: found.address };
        session.run(DeviceStage::Survey(survey))?;
        pipeline.done(chunk)?;
        pipeline.ahead()?;
    }
    Ok(())
}

/// Copies a column to its placement, widened to words.
fn place(
    gpu: &OpenGpu,
    placement: HostPlacement,
    word: WordSize,
    parts: &[&ArrayRef],
    rows: u64,
) -> Result<OwnedColumn> {
    let bytes = (rows * word.bytes()) as usize;
    match placement {
        HostPlacement::Pinned => {
            let pinned = gpu.device.pinned(bytes.max(1), "a column")?;
            // SAFETY: nobody else has this memory yet.
            copy(gpu, word, parts, unsafe { &mut pinned.bytes_mut()[..bytes] })?;
            Ok(OwnedColumn { column: HostColumn::pinned(&pinned, 0, bytes as u64), _memory: None })
        }
        HostPlacement::Pageable => {
            // A buffer of `u64`, for the alignment of words.
            let mut buffer = Buffer::<u64>::uninit(bytes.div_ceil(8), &gpu.budget, "a column")?;
            let start = buffer.as_mut_ptr().cast::<u8>();
            // SAFETY: the buffer has at least `bytes` bytes, and nobody else has it yet.
            copy(gpu, word, parts, unsafe { std::slice::from_raw_parts_mut(start, bytes) })?;
            let view = HostView::of(&buffer).part(0, bytes as u64);
            // SAFETY: the column is returned together with the buffer, whose memory does not move.
            let column = unsafe { HostColumn::pageable(view) };
            Ok(OwnedColumn { column, _memory: Some(buffer) })
        }
    }
}

/// Copies values on all workers, widened to words.
fn copy(gpu: &OpenGpu, word: WordSize, parts: &[&ArrayRef], to: &mut [u8]) -> Result<()> {
    let size = word.bytes() as usize;
    let mut starts = vec![0];
    for part in parts {
        starts.push(starts[starts.len() - 1] + part.len() * size);
    }
    let out = Shared::of(to);
    let threads = gpu.workers.threads();
    gpu.workers.run(|worker| {
        for part in share(parts.len(), threads, worker) {
            // SAFETY: parts do not overlap.
            let to = unsafe { out.range(starts[part]..starts[part + 1]) };
            widen(bytes_of(parts[part]), (to, size));
        }
        Ok(())
    })
}

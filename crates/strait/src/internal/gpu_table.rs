//! Tables in GPU memory.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, RecordBatch};

use super::block::{COPY_BYTES, read_view};
use super::columns::{bytes_of, parts, value_bytes, widen};
use super::{Block, BlockReceiver, OpenGpu, Timed, Usage, Values, WordSize};
use crate::algorithm::gpu::varying_bits;
use crate::device::{Device, DeviceSide, DeviceStage, Memory, Pinned, View, abi};
use crate::error::{Error, Result};
use crate::partition::gpu::{Digits, ordered_columns};

/// A table in GPU memory.
pub struct GpuTable {
    pub(super) keys: Memory,
    /// The payload columns, with the bytes per value of each.
    pub(super) payload: Vec<(Memory, usize)>,
    pub(super) rows: u64,
    pub(super) word: WordSize,
    /// Dropped after the memory.
    pub(super) gpu: OpenGpu,
}

impl GpuTable {
    /// Copies a table to a GPU. Keys become words of the given size. So does a single payload column, because
    /// it travels with the key. Several payload columns keep their size.
    pub fn load(gpu: &OpenGpu, word: WordSize, batches: &[RecordBatch]) -> Result<GpuTable> {
        let (rows, columns) = parts(batches);
        let inlined = columns.len() == 2;
        let wide = word.bytes() as usize;
        let mut copied = Vec::new();
        for (at, parts) in columns.iter().enumerate() {
            let widths = parts.iter().map(|part| value_bytes(part));
            let widest = widths.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or(4);
            let value_bytes = if at == 0 || inlined { wide } else { widest as usize };
            if value_bytes < widest as usize {
                let what = "a column of 8 bytes does not fit words of 4 bytes";
                return Err(Error::invalid_option("word", what, "use words of 8 bytes"));
            }
            copied.push((send(&*gpu.device, parts, rows, value_bytes)?, value_bytes));
        }
        if copied.is_empty() {
            return Err(Error::internal("a table has no columns"));
        }
        let (keys, _) = copied.remove(0);
        Ok(GpuTable { keys, payload: copied, rows, word, gpu: gpu.clone() })
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the size of the words.
    pub fn word(&self) -> WordSize {
        self.word
    }

    /// Hands the keys to `take`, piece by piece.
    pub fn read_keys(&self, take: &mut dyn FnMut(Values<'_>) -> Result<()>) -> Result<()> {
        self.read((&self.keys, self.word.bytes() as usize), take)
    }

    /// Hands the values of a payload column to `take`, piece by piece.
    pub fn read_payload(
        &self,
        column: usize,
        take: &mut dyn FnMut(Values<'_>) -> Result<()>,
    ) -> Result<()> {
        let absent = || Error::internal("a table has fewer payload columns");
        let (memory, value_bytes) = self.payload.get(column).ok_or_else(absent)?;
        self.read((memory, *value_bytes), take)
    }

    fn read(
        &self,
        (memory, value_bytes): (&Memory, usize),
        take: &mut dyn FnMut(Values<'_>) -> Result<()>,
    ) -> Result<()> {
        let device = &*self.gpu.device;
        let view = memory.view.part(0, self.rows * value_bytes as u64);
        let mut values = |bytes: &[u8]| take(Values { bytes, value_bytes });
        read_view(device, device.stream(0)?, view, &mut values)
    }

    /// Makes a kernel read all keys in sequence. Returns the time by the GPU's clock, and the bytes.
    pub fn scan_keys(&self) -> Result<Timed> {
        const STAGE: &str = "reading";
        let session = self.gpu.session(self.word.width(), None)?;
        let found = session.zeroed(4 * 8, "the range of the keys")?;
        let (keys, rows) = (self.keys.address(), self.rows);
        session.mark("before")?;
        session.run(DeviceStage::Survey(abi::Survey { keys, rows, found: found.address }))?;
        session.mark(STAGE)?;
        let times = session.times()?;
        let scanned = times.into_iter().find(|time| time.stage == STAGE);
        scanned.ok_or_else(|| Error::internal("the GPU did not time a kernel"))
    }

    /// Returns the side of a join, with the single payload column if `with_payload` is set.
    pub(super) fn side(&self, with_payload: bool) -> DeviceSide {
        let payload = self.payload.first().filter(|_| with_payload);
        let values = payload.map(|(memory, _)| memory.view);
        DeviceSide { keys: self.keys.view, values, rows: self.rows, ..DeviceSide::default() }
    }
}

/// Sorts the rows of a table by key, as unsigned numbers, into new columns in GPU memory. The table has words
/// of 8 bytes and one payload column. The sorted rows go to `to` as one block, after the clock has stopped.
pub fn sort(table: &GpuTable, to: &mut dyn BlockReceiver) -> Result<Usage> {
    if table.word != WordSize::Eight || table.payload.len() != 1 {
        let what = "only pairs of 64-bit integers are sorted";
        let advice = "give a key and one payload column of 64-bit integers";
        return Err(Error::invalid_option("payload-columns", what, advice));
    }
    let started = Instant::now();
    let session = table.gpu.session(table.word.width(), None)?;
    let side = table.side(true);
    let mut columns = [View::default(); 2];
    if table.rows > 0 {
        let digits = Digits::varying(varying_bits(&session, &[&side])?);
        session.mark("survey")?;
        columns = ordered_columns(&session, &side, &digits)?;
    }
    session.mark("sort")?;
    session.device.synchronize(session.compute)?;
    let seconds = started.elapsed().as_secs_f64();
    let usage = Usage::of(&session, seconds)?;
    let [keys, values] = columns;
    to.block(&Block::in_gpu_memory(&session, table.rows, Some(keys), &[(values, 8)]))?;
    Ok(usage)
}

/// Copies a column to the device, widened to values of `to` bytes.
fn send(device: &dyn Device, parts: &[&ArrayRef], rows: u64, to: usize) -> Result<Memory> {
    let bytes = rows * to as u64;
    let memory = device.allocate(bytes.max(1), "a column")?;
    let stream = device.stream(0)?;
    let room = COPY_BYTES.min(bytes as usize).max(8);
    let pinned = device.pinned(room, "staging")?;
    let (mut at, mut filled) = (0u64, 0usize);
    let flush = |pinned: &Arc<Pinned>, at: &mut u64, filled: &mut usize| -> Result<()> {
        if *filled > 0 {
            device.copy_in(stream, pinned, 0, memory.view.part(*at, *filled as u64))?;
            device.synchronize(stream)?;
        }
        *at += *filled as u64;
        *filled = 0;
        Ok(())
    };
    for part in parts {
        let (bytes, from) = bytes_of(part);
        let mut row = 0;
        while row * from < bytes.len() {
            if filled + to > room {
                flush(&pinned, &mut at, &mut filled)?;
            }
            let rows = ((room - filled) / to).min(bytes.len() / from - row);
            // SAFETY: no copy from the buffer is in progress, because each one is waited for.
            let target = unsafe { &mut pinned.bytes_mut()[filled..filled + rows * to] };
            widen((&bytes[row * from..(row + rows) * from], from), (target, to));
            (row, filled) = (row + rows, filled + rows * to);
        }
    }
    flush(&pinned, &mut at, &mut filled)?;
    Ok(memory)
}

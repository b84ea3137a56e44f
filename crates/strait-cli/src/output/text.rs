//! Writes CSV and TSV files, compressed or not. Each lane formats blocks of text.
//!
//! A compressed file is a sequence of gzip members or zstd frames, one per block. Decompressors read such a
//! sequence like one long member or frame.

use std::io::Write;
use std::sync::Arc;

use anyhow::bail;
use arrow::array::RecordBatch;
use arrow::csv;
use arrow::datatypes::{DataType, SchemaRef};
use flate2::write::GzEncoder;
use strait::MemoryReservation;

use super::blocks::{Blocks, Lane, Tail};
use super::destination::Squeeze;
use super::encode::{Bytes, STANDING_SHARE};
use super::pieces::Pieces;
use super::sink::SinkOptions;
use super::zones::{printable_batch, printable_schema};
use crate::memory::Memory;

/// A block ends when its text has this many bytes. Longer blocks compress hardly better.
const BLOCK_BYTES: u64 = 1 << 20;

/// Under a memory limit, blocks have at least this many bytes.
const SMALLEST_BLOCK: u64 = 16 << 10;

/// A lane takes this many times the size of a block: for rows that become text of up to four times their size,
/// for the text before them, and for the compressed text.
const COPIES: u64 = 6;

/// Ordered rows are put aside until there are this many.
const ASIDE_ROWS: usize = 1 << 15;

const WHAT: &str = "formatting text";

/// Opens a text file for `options.threads` threads.
pub(super) fn open(
    (delimiter, squeeze): (u8, Squeeze),
    schema: &SchemaRef,
    options: &SinkOptions,
    bytes: Bytes,
) -> anyhow::Result<Blocks<TextLane, Bytes>> {
    flat(schema)?;
    let memory = &options.memory;
    let threads = options.threads.max(1) as u64;
    let context = squeeze.context_bytes();
    let (lanes, block) = match memory.limit() {
        None => (threads, BLOCK_BYTES),
        Some(limit) => {
            let share = limit / STANDING_SHARE;
            let lanes = (share / (COPIES * SMALLEST_BLOCK + context)).clamp(1, threads);
            let block = (share / lanes).saturating_sub(context) / COPIES;
            (lanes, block.clamp(SMALLEST_BLOCK, BLOCK_BYTES))
        }
    };
    let standing = memory.limit().map_or(0, |_| COPIES * block + context);
    let schema = printable_schema(schema);
    let lane = || {
        Ok(TextLane {
            schema: Arc::clone(&schema),
            delimiter,
            squeeze,
            text: Vec::new(),
            block,
            memory: memory.clone(),
            standing,
            reservation: memory.reserve(standing, WHAT)?,
        })
    };
    let lanes = (0..lanes).map(|_| lane()).collect::<anyhow::Result<Vec<_>>>()?;
    let aside_rows = memory.limit().is_none().then_some(ASIDE_ROWS);
    let header = squeeze.squeezed(&header(&schema, delimiter)?)?;
    let mut tail = bytes;
    tail.append(header)?;
    Ok(Blocks::new(lanes, tail, aside_rows))
}

/// Returns the line with the names of the columns.
fn header(schema: &SchemaRef, delimiter: u8) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut writer = csv::WriterBuilder::new().with_delimiter(delimiter).build(&mut text);
    writer.write(&RecordBatch::new_empty(Arc::clone(schema)))?;
    drop(writer);
    Ok(text)
}

/// Formats blocks of text, one after the other.
pub(super) struct TextLane {
    /// The schema to which batches are converted.
    schema: SchemaRef,
    delimiter: u8,
    squeeze: Squeeze,
    /// The text of the current block.
    text: Vec<u8>,
    /// The bytes of text that end a block.
    block: u64,
    memory: Memory,
    /// The bytes that stay reserved.
    standing: u64,
    reservation: MemoryReservation,
}

impl Lane for TextLane {
    type Block = Vec<u8>;

    fn write(
        &mut self,
        batch: &RecordBatch,
        done: &mut dyn FnMut(Vec<u8>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let batch = printable_batch(&self.schema, batch)?;
        for (piece, bytes) in Pieces::new(&batch, self.block) {
            if self.standing > 0 {
                // Only a single row may need more than the standing reservation.
                let bytes = (COPIES * bytes).max(self.standing);
                self.memory.resize(&mut self.reservation, bytes, WHAT)?;
            }
            let builder = csv::WriterBuilder::new().with_delimiter(self.delimiter);
            builder.with_header(false).build(&mut self.text).write(&piece)?;
            if self.text.len() as u64 >= self.block
                && let Some(block) = self.close()?
            {
                done(block)?;
            }
        }
        Ok(())
    }

    fn close(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        if self.text.is_empty() {
            return Ok(None);
        }
        if self.squeeze == Squeeze::None {
            let room = self.text.capacity();
            return Ok(Some(std::mem::replace(&mut self.text, Vec::with_capacity(room))));
        }
        let block = self.squeeze.squeezed(&self.text)?;
        self.text.clear();
        Ok(Some(block))
    }
}

impl Tail for Bytes {
    type Block = Vec<u8>;

    fn append(&mut self, block: Vec<u8>) -> anyhow::Result<()> {
        Ok(self.write_all(&block)?)
    }

    fn finish(mut self) -> anyhow::Result<()> {
        Ok(self.flush()?)
    }
}

impl Squeeze {
    /// The approximate memory of a compressor, in bytes.
    fn context_bytes(self) -> u64 {
        match self {
            Squeeze::None => 0,
            Squeeze::Gzip => 384 << 10,
            Squeeze::Zstd => 2 << 20,
        }
    }

    /// Compresses text into a gzip member or a zstd frame.
    fn squeezed(self, text: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Squeeze::None => Ok(text.to_vec()),
            Squeeze::Gzip => {
                let bytes = Vec::with_capacity(text.len() / 2);
                let mut encoder = GzEncoder::new(bytes, flate2::Compression::default());
                encoder.write_all(text)?;
                encoder.finish()
            }
            Squeeze::Zstd => zstd::bulk::compress(text, zstd::DEFAULT_COMPRESSION_LEVEL),
        }
    }
}

/// Rejects nested columns: text files have no notation for nested values.
fn flat(schema: &SchemaRef) -> anyhow::Result<()> {
    let nested = |data_type: &DataType| match data_type {
        DataType::Dictionary(_, values) => values.is_nested(),
        other => other.is_nested(),
    };
    match schema.fields().iter().find(|field| nested(field.data_type())) {
        None => Ok(()),
        Some(field) => bail!(
            "CSV cannot hold column \"{}\" ({}); write .parquet or .arrow, or leave it out with --select",
            field.name(),
            field.data_type()
        ),
    }
}

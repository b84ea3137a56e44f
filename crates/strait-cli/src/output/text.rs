//! Writes CSV, TSV and JSON lines, compressed or not. Each lane formats blocks of text.
//!
//! A compressed file is a sequence of gzip members or zstd frames, one per block. Decompressors read such a
//! sequence like one long member or frame.

use std::io::Write;
use std::sync::Arc;

use anyhow::bail;
use arrow::array::{RecordBatch, new_empty_array};
use arrow::csv;
use arrow::datatypes::{DataType, Field, Fields, SchemaRef};
use arrow_json::writer::{EncoderOptions, LineDelimited, WriterBuilder, make_encoder};
use libdeflater::{CompressionLvl, Compressor};
use strait::MemoryReservation;

use super::blocks::{Blocks, Lane, Tail};
use super::destination::{Notation, Squeeze};
use super::encode::{Bytes, STANDING_SHARE};
use super::pieces::Pieces;
use super::sink::SinkOptions;
use super::zones::{printable_batch, printable_schema};
use super::{parquet, times};
use crate::memory::Memory;

/// A block ends when its text has this many bytes. Longer blocks compress hardly better.
const BLOCK_BYTES: u64 = 1 << 20;

/// Under a memory limit, blocks have at least this many bytes.
const SMALLEST_BLOCK: u64 = 16 << 10;

/// A lane takes this many times the size of a block: for rows that become text of up to four times their size,
/// for the text before them, and for the compressed text.
const COPIES: u64 = 6;

/// The compression level of libdeflate for gzip. Files have about the size of zlib's level 6, and take a third of its
/// time.
const GZIP_LEVEL: i32 = 4;

/// Ordered rows are put aside until there are this many.
const ASIDE_ROWS: usize = 1 << 15;

const WHAT: &str = "formatting text";

/// Opens a text file for `options.threads` threads.
pub(super) fn open(
    (notation, squeeze): (Notation, Squeeze),
    schema: &SchemaRef,
    options: &SinkOptions,
    bytes: Bytes,
) -> anyhow::Result<Blocks<TextLane, TextTail>> {
    let schema = printable_schema(schema);
    check(notation, &schema)?;
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
    let lane = || {
        Ok(TextLane {
            schema: Arc::clone(&schema),
            notation,
            names: match notation {
                Notation::Delimited(_) => 0,
                Notation::JsonLines => names(schema.fields()),
            },
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
    let mut tail = TextTail { bytes, squeeze, is_empty: true };
    if let Notation::Delimited(delimiter) = notation {
        tail.append(squeeze.squeezed(&header(&schema, delimiter)?)?)?;
    }
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
    notation: Notation,
    /// The bytes of the column names that each row repeats.
    names: u64,
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

impl TextLane {
    /// Appends rows to the text.
    fn format(&mut self, rows: &RecordBatch) -> anyhow::Result<()> {
        match self.notation {
            Notation::Delimited(delimiter) => {
                times::check_durations(rows)?;
                let builder = csv::WriterBuilder::new().with_delimiter(delimiter);
                builder.with_header(false).build(&mut self.text).write(rows)?;
            }
            Notation::JsonLines => {
                times::check_all(rows)?;
                // With nulls, the first line names all columns.
                let builder = WriterBuilder::new().with_explicit_nulls(true);
                builder.build::<_, LineDelimited>(&mut self.text).write(rows)?;
            }
        }
        Ok(())
    }
}

impl Lane for TextLane {
    type Block = Vec<u8>;

    fn write(
        &mut self,
        batch: &RecordBatch,
        done: &mut dyn FnMut(Vec<u8>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let batch = printable_batch(&self.schema, batch)?;
        for (piece, bytes) in Pieces::new(&batch, self.block).with_bytes_per_row(self.names) {
            if self.standing > 0 {
                // Only a single row may need more than the standing reservation.
                let bytes = (COPIES * bytes).max(self.standing);
                self.memory.resize(&mut self.reservation, bytes, WHAT)?;
            }
            self.format(&piece)?;
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

/// Writes blocks of text one after the other.
pub(super) struct TextTail {
    bytes: Bytes,
    squeeze: Squeeze,
    /// Whether nothing was written.
    is_empty: bool,
}

impl Tail for TextTail {
    type Block = Vec<u8>;

    fn append(&mut self, block: Vec<u8>) -> anyhow::Result<()> {
        self.is_empty = false;
        Ok(self.bytes.write_all(&block)?)
    }

    fn finish(mut self) -> anyhow::Result<()> {
        // A compressed file without text has a member or frame without text.
        if self.is_empty {
            self.bytes.write_all(&self.squeeze.squeezed(b"")?)?;
        }
        Ok(self.bytes.flush()?)
    }
}

impl Squeeze {
    /// The approximate memory of a compressor, in bytes.
    fn context_bytes(self) -> u64 {
        match self {
            Squeeze::None => 0,
            Squeeze::Gzip => 768 << 10,
            Squeeze::Zstd => 2 << 20,
        }
    }

    /// Compresses text into a gzip member or a zstd frame.
    fn squeezed(self, text: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Squeeze::None => Ok(text.to_vec()),
            Squeeze::Gzip => {
                let level = CompressionLvl::new(GZIP_LEVEL).unwrap_or_default();
                let mut compressor = Compressor::new(level);
                let mut bytes = vec![0; compressor.gzip_compress_bound(text.len())];
                let length = compressor.gzip_compress(text, &mut bytes);
                bytes.truncate(length.map_err(std::io::Error::other)?);
                // The block may wait for others before it is written.
                bytes.shrink_to_fit();
                Ok(bytes)
            }
            Squeeze::Zstd => zstd::bulk::compress(text, zstd::DEFAULT_COMPRESSION_LEVEL),
        }
    }
}

/// Rejects columns that the notation cannot hold.
fn check(notation: Notation, schema: &SchemaRef) -> anyhow::Result<()> {
    let (name, holds): (_, fn(&Arc<Field>) -> bool) = match notation {
        Notation::Delimited(_) => ("CSV", is_flat),
        Notation::JsonLines => ("JSON", has_json),
    };
    match schema.fields().iter().find(|field| !holds(field)) {
        None => Ok(()),
        Some(field) => {
            let is_in_parquet = parquet::holds(field.data_type());
            bail!(
                "{name} cannot hold column \"{}\" ({}); write {}, or leave it out with --select",
                field.name(),
                field.data_type(),
                if is_in_parquet { ".parquet or .arrow" } else { ".arrow" }
            )
        }
    }
}

/// Returns whether values are not nested: CSV has no notation for nested values.
fn is_flat(field: &Arc<Field>) -> bool {
    match field.data_type() {
        DataType::Dictionary(_, values) => !values.is_nested(),
        other => !other.is_nested(),
    }
}

/// Returns the bytes of all names in a JSON object, with quotes, colons and commas. Lists may repeat the names
/// of structs; they are counted once.
fn names(fields: &Fields) -> u64 {
    let of = |field: &Arc<Field>| {
        let inner = match field.data_type() {
            DataType::Struct(fields) => names(fields),
            DataType::List(values) | DataType::LargeList(values) => match values.data_type() {
                DataType::Struct(fields) => names(fields),
                _ => 0,
            },
            _ => 0,
        };
        field.name().len() as u64 + 4 + inner
    };
    fields.iter().map(of).sum()
}

/// Returns whether there is an encoder for the column.
fn has_json(field: &Arc<Field>) -> bool {
    let column = new_empty_array(field.data_type());
    make_encoder(field, &column, &EncoderOptions::default()).is_ok()
}

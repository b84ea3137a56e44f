//! Writes Parquet files. Several threads encode the columns.
//!
//! Compression takes longer than most joins, so the columns of each batch are distributed to the threads.
//! Only encoded bytes are held until their row group is complete. Under a memory limit, a row group ends
//! early when it becomes too large for the limit.

use anyhow::Context;
use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::{Compression as Codec, ZstdLevel};
use parquet::file::properties::{DEFAULT_DICTIONARY_PAGE_SIZE_LIMIT, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;
use strait::MemoryReservation;

use super::destination::Compression;
use super::encode::{Bytes, STANDING_SHARE};
use super::pieces::{Pieces, plain_bytes};
use super::unpack::{unpacked, without_dictionaries};
use super::workers::Workers;
use crate::memory::Memory;

/// Rows per row group, as in Arrow's own writer.
const GROUP_ROWS: usize = 1 << 20;

/// The number of rows that is worth waking threads for.
const CHUNK_ROWS: usize = 1 << 16;

/// The memory of a column writer without values, in bytes.
const COLUMN_BYTES: u64 = 16 << 10;

/// The memory of its compression contexts before they compress, in bytes. Only Zstandard has contexts.
const CONTEXT_BYTES: u64 = 48 << 10;

/// Contexts grow with the data that they compress, by up to this many bytes per column.
const CONTEXT_GROWTH: u64 = 192 << 10;

/// Encoding rows takes this many times their size: for a copy, their encoded bytes, and the growth of the
/// contexts.
const COPIES: u64 = 3;

/// A row group ends when it takes one part in this many of the memory limit.
const GROUP_SHARE: u64 = 8;

const WHAT: &str = "encoding Parquet columns";

/// A Parquet file that is being written.
pub(super) struct ParquetEncoder {
    writer: SerializedFileWriter<Bytes>,
    factory: ArrowRowGroupWriterFactory,
    /// The schema that batches are converted to.
    schema: SchemaRef,
    workers: Workers,
    /// Batches that are not encoded yet.
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    /// The current row group: its columns and the number of its rows.
    columns: Vec<ArrowColumnWriter>,
    group_rows: usize,
    /// The bytes of that group's rows before they were encoded.
    group_bytes: u64,
    memory: Memory,
    reservation: MemoryReservation,
    /// The bytes that stay reserved even if nothing is held.
    standing: u64,
    /// The memory of empty column writers.
    empty: u64,
    /// The most that the contexts of all columns can grow.
    growth: u64,
}

impl ParquetEncoder {
    pub(super) fn new(
        schema: &SchemaRef,
        compression: Option<Compression>,
        threads: usize,
        memory: &Memory,
        bytes: Bytes,
    ) -> anyhow::Result<Self> {
        let codec = match compression {
            None | Some(Compression::Zstd) => Codec::ZSTD(ZstdLevel::default()),
            Some(Compression::Snappy) => Codec::SNAPPY,
            Some(Compression::None) => Codec::UNCOMPRESSED,
        };
        let mut properties = WriterProperties::builder().set_compression(codec);
        if let Some(limit) = memory.limit() {
            // Every column holds a page and a dictionary. All of them together must fit.
            let leaves = schema.flattened_fields().len().max(1) as u64;
            let page = (limit / (8 * GROUP_SHARE * leaves)).clamp(16 << 10, 1 << 20) as usize;
            properties =
                properties.set_data_page_size_limit(page).set_dictionary_page_size_limit(page);
            // Without their dictionary, these columns can be many times larger.
            for path in schema.fields().iter().flat_map(dictionaries) {
                properties = properties.set_column_dictionary_page_size_limit(
                    ColumnPath::new(path),
                    DEFAULT_DICTIONARY_PAGE_SIZE_LIMIT,
                );
            }
        }
        let schema = writable(schema);
        let (writer, factory) =
            ArrowWriter::try_new(bytes, schema.clone(), Some(properties.build()))
                .and_then(ArrowWriter::into_serialized_writer)
                .context("cannot write these columns as Parquet")?;
        let columns = writer.schema_descr().num_columns();
        let (context, growth) = match codec {
            Codec::ZSTD(_) => (CONTEXT_BYTES, CONTEXT_GROWTH),
            _ => (0, 0),
        };
        let empty = columns as u64 * (COLUMN_BYTES + context);
        let standing = memory.limit().map_or(0, |limit| limit / STANDING_SHARE + empty);
        Ok(ParquetEncoder {
            writer,
            factory,
            schema,
            workers: Workers::new(threads, columns),
            pending: Vec::new(),
            pending_rows: 0,
            columns: Vec::new(),
            group_rows: 0,
            group_bytes: 0,
            memory: memory.clone(),
            reservation: memory.reserve(standing, WHAT)?,
            standing,
            empty,
            growth: columns as u64 * growth,
        })
    }

    pub(super) fn write(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        let Some(limit) = self.memory.limit() else { return self.write_piece(batch) };
        // Such pieces fit the standing reservation. Only a single row may be larger.
        for (piece, _) in Pieces::new(batch, limit / STANDING_SHARE / COPIES) {
            self.write_piece(&piece)?;
        }
        Ok(())
    }

    fn write_piece(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        // Under a limit, no batch waits: a waiting batch may hold more memory than its own rows.
        let chunk = if self.memory.limit().is_some() { 1 } else { CHUNK_ROWS };
        let mut start = 0;
        while start < batch.num_rows() {
            let room = GROUP_ROWS - self.group_rows - self.pending_rows;
            let rows = room.min(batch.num_rows() - start);
            self.pending.push(batch.slice(start, rows));
            self.pending_rows += rows;
            start += rows;
            let full = self.group_rows + self.pending_rows == GROUP_ROWS;
            if full || self.pending_rows >= chunk {
                self.encode()?;
            }
            if full {
                self.close_group()?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        self.encode()?;
        self.close_group()?;
        self.writer.finish()?;
        std::io::Write::flush(self.writer.inner_mut())?;
        Ok(())
    }

    /// Encodes the pending rows into the current row group.
    fn encode(&mut self) -> anyhow::Result<()> {
        if self.pending_rows == 0 {
            return Ok(());
        }
        self.make_room()?;
        if self.columns.is_empty() {
            let index = self.writer.flushed_row_groups().len();
            self.columns = self.factory.create_column_writers(index)?;
        }
        let batch = match self.pending.as_slice() {
            [] => return Ok(()),
            [only] => only.clone(),
            [first, ..] => concat_batches(&first.schema(), &self.pending)?,
        };
        let batch = match batch.schema().fields() == self.schema.fields() {
            true => batch,
            false => unpacked(&self.schema, &batch)?,
        };
        let mut leaves = Vec::with_capacity(self.columns.len());
        for (field, array) in self.schema.fields().iter().zip(batch.columns()) {
            leaves.extend(compute_leaves(field, array)?);
        }
        self.columns = self.workers.encode(std::mem::take(&mut self.columns), leaves)?;
        self.group_rows += self.pending_rows;
        self.pending_rows = 0;
        self.pending.clear();
        self.adjust_reservation()
    }

    /// Reserves the memory that encoding the pending rows needs. If there is not enough, writes the current
    /// row group first.
    fn make_room(&mut self) -> anyhow::Result<()> {
        if self.memory.limit().is_none() {
            return Ok(());
        }
        let bytes = self.pending.iter().map(plain_bytes).sum::<u64>();
        if self.reserve(self.held() + COPIES * bytes).is_err() {
            self.close_group()?;
            self.reserve(self.held() + COPIES * bytes)?;
        }
        self.group_bytes += bytes;
        Ok(())
    }

    /// The approximate memory of the current row group.
    fn held(&self) -> u64 {
        let encoded: u64 = self.columns.iter().map(|column| column.memory_size() as u64).sum();
        encoded + self.empty + self.group_bytes.min(self.growth)
    }

    fn reserve(&mut self, bytes: u64) -> anyhow::Result<()> {
        let bytes = bytes.max(self.standing);
        Ok(self.memory.resize(&mut self.reservation, bytes, WHAT)?)
    }

    /// Adjusts the reservation to the memory of the row group. Ends the row group if this is too much.
    fn adjust_reservation(&mut self) -> anyhow::Result<()> {
        let Some(limit) = self.memory.limit() else { return Ok(()) };
        let held = self.held();
        if self.reserve(held).is_err() || held > limit / GROUP_SHARE + self.standing {
            self.close_group()?;
        }
        Ok(())
    }

    fn close_group(&mut self) -> anyhow::Result<()> {
        if self.group_rows > 0 {
            let mut group = self.writer.next_row_group()?;
            for column in self.columns.drain(..) {
                column.close()?.append_to_row_group(&mut group)?;
            }
            group.close()?;
            self.group_rows = 0;
            self.group_bytes = 0;
        }
        let beyond = self.reservation.bytes().saturating_sub(self.standing);
        self.reservation.shrink(beyond);
        Ok(())
    }
}

/// Returns the schema to write. Dictionaries stay, unless one has values that Parquet cannot store in a
/// dictionary.
fn writable(schema: &SchemaRef) -> SchemaRef {
    let plain = without_dictionaries(schema);
    if plain == *schema {
        return plain;
    }
    let trial = ArrowWriter::try_new(std::io::sink(), schema.clone(), None)
        .and_then(ArrowWriter::into_serialized_writer)
        .and_then(|(_, factory)| factory.create_column_writers(0));
    match trial {
        Ok(_) => schema.clone(),
        Err(_) => plain,
    }
}

/// Returns the paths of a field's dictionaries, including those in structs.
fn dictionaries(field: &FieldRef) -> Vec<Vec<String>> {
    let below: Vec<Vec<String>> = match field.data_type() {
        DataType::Dictionary(..) => vec![Vec::new()],
        DataType::Struct(fields) => fields.iter().flat_map(dictionaries).collect(),
        _ => Vec::new(),
    };
    let named = |path| std::iter::once(field.name().clone()).chain(path).collect();
    below.into_iter().map(named).collect()
}

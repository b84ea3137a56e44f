//! Writes Parquet files. Each lane encodes a row group.
//!
//! A row group holds encoded bytes only. Under a memory limit, it ends early when it becomes too large for
//! the limit.

mod bits;
mod bounds;
mod chunk;
mod codec;
mod columns;
mod delta;
mod dictionary;
mod encodings;
mod numbers;
mod page;
mod recent;
mod rle;
#[cfg(test)]
mod round_trip;
mod seconds;
mod strings;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, bail};
use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression as Codec, ZstdLevel};
use parquet::file::properties::{
    DEFAULT_DICTIONARY_PAGE_SIZE_LIMIT, WriterProperties, WriterPropertiesBuilder,
};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;
use strait::MemoryReservation;

use self::codec::PageCodec;
use self::columns::{Chunk, Column, Columns, encode};
use self::encodings::Setting;
use super::blocks::{Blocks, Lane, Tail};
use super::destination::Compression;
use super::encode::{Bytes, STANDING_SHARE};
use super::pieces::Pieces;
use super::sink::SinkOptions;
use super::types::any;
use super::unpack::{plain, unpacked};
use crate::digits::grouped;
use crate::memory::Memory;
use seconds::{converted, in_milliseconds};

/// Rows per row group. Larger groups are no faster, and the groups of all threads take memory.
const GROUP_ROWS: usize = 1 << 18;

/// A file has at most 32,768 row groups. So after every 4,096 row groups, the next ones are twice as large.
const DOUBLED_AFTER: u64 = 4096;

/// The memory of a column writer without values, in bytes.
const COLUMN_BYTES: u64 = 16 << 10;

/// The memory of its compression contexts before they compress, in bytes. Only Zstandard has contexts.
const CONTEXT_BYTES: u64 = 48 << 10;

/// Contexts grow with the data that they compress, by up to this many bytes per column.
const CONTEXT_GROWTH: u64 = 192 << 10;

/// Encoding rows takes this many times their size: for a copy, their encoded bytes, and the growth of the
/// contexts.
const COPIES: u64 = 3;

/// A row group ends when it takes more than its lane's share of 1/N of a memory limit, where N is this number.
const GROUP_SHARE: u64 = 8;

/// Under a memory limit, there are only so many lanes that each row group may have this many bytes. With more
/// lanes, row groups would be tiny, and a file can hold at most 32,768 of them.
const LEAST_GROUP_BYTES: u64 = 2 << 20;

/// Under a memory limit, columns of integers are encoded here if each column of a row group may have this many bytes.
/// This is twice the memory of a page that is being encoded.
const OWN_COLUMN_BYTES: u64 = 1 << 20;
const WHAT: &str = "encoding Parquet columns";

/// Opens a Parquet file for `options.threads` threads.
pub(super) fn open(
    schema: &SchemaRef,
    options: &SinkOptions,
    bytes: Bytes,
) -> anyhow::Result<Blocks<GroupLane, ParquetTail>> {
    check(schema)?;
    let schema = &in_milliseconds(schema);
    let memory = &options.memory;
    let codec = match options.compression {
        None | Some(Compression::Zstd) => Codec::ZSTD(ZstdLevel::default()),
        Some(Compression::Snappy) => Codec::SNAPPY,
        Some(Compression::None) => Codec::UNCOMPRESSED,
    };
    let leaves = schema.flattened_fields().len().max(1) as u64;
    let (context, growth) = match codec {
        Codec::ZSTD(_) => (CONTEXT_BYTES, CONTEXT_GROWTH),
        _ => (0, 0),
    };
    let empty = leaves * (COLUMN_BYTES + context);
    // Each lane takes memory for all its column writers, even if it has few rows.
    let lanes = match memory.limit() {
        Some(limit) => (limit / STANDING_SHARE / empty)
            .min(limit / GROUP_SHARE / LEAST_GROUP_BYTES)
            .clamp(1, options.threads.max(1) as u64),
        None => options.threads.max(1) as u64,
    };
    let properties = properties(codec, schema, lanes, memory.limit());
    let rows_schema = Arc::clone(schema);
    let schema = writable(schema);
    let (writer, _) = ArrowWriter::try_new(bytes, schema.clone(), Some(properties.clone().build()))
        .and_then(ArrowWriter::into_serialized_writer)
        .context("cannot write these columns as Parquet")?;
    let group_rows = options.row_group_rows.unwrap_or(GROUP_ROWS);
    // Arrow's writers can make smaller pages. Under a memory limit, they encode strings, whose pages may be long. They
    // encode integers only if whole pages do not fit.
    let of_column = |limit: u64| limit / (GROUP_SHARE * leaves * lanes);
    let own_numbers = memory.limit().is_none_or(|limit| of_column(limit) >= OWN_COLUMN_BYTES);
    let setting = Setting { group_rows, codec, own: memory.limit().is_none(), own_numbers };
    let descr = writer.schema_descr();
    let shared = Arc::new(Shared {
        rows_schema,
        columns: Columns::new((schema, descr), properties, setting)?,
        codec,
        begun: AtomicU64::new(0),
        group_rows,
        fixed_rows: options.row_group_rows.is_some(),
        memory: memory.clone(),
        lanes,
        standing: memory.limit().map_or(0, |limit| limit / STANDING_SHARE / lanes + empty),
        empty,
        growth: leaves * growth,
    });
    let lanes = (0..lanes).map(|_| GroupLane::new(&shared)).collect::<anyhow::Result<Vec<_>>>()?;
    let aside_rows = memory.limit().is_none().then_some(group_rows);
    Ok(Blocks::new(lanes, ParquetTail { writer, groups: 0 }, aside_rows))
}

fn properties(
    codec: Codec,
    schema: &SchemaRef,
    lanes: u64,
    limit: Option<u64>,
) -> WriterPropertiesBuilder {
    let mut properties = WriterProperties::builder().set_compression(codec);
    if let Some(limit) = limit {
        // Every column of every lane holds a page and a dictionary. All of them together must fit.
        let leaves = schema.flattened_fields().len().max(1) as u64;
        let page = (limit / (8 * GROUP_SHARE * leaves * lanes)).clamp(16 << 10, 1 << 20) as usize;
        properties = properties.set_data_page_size_limit(page).set_dictionary_page_size_limit(page);
        // Without their dictionary, these columns can be many times larger.
        for path in schema.fields().iter().flat_map(dictionaries) {
            properties = properties.set_column_dictionary_page_size_limit(
                ColumnPath::new(path),
                DEFAULT_DICTIONARY_PAGE_SIZE_LIMIT,
            );
        }
    }
    properties
}

/// What all lanes of a file share.
struct Shared {
    /// The schema of the rows, with milliseconds in place of seconds.
    rows_schema: SchemaRef,
    columns: Columns,
    codec: Codec,
    /// The number of row groups that were begun.
    begun: AtomicU64,
    /// Rows per row group.
    group_rows: usize,
    /// Whether the user chose this number.
    fixed_rows: bool,
    memory: Memory,
    /// The number of lanes.
    lanes: u64,
    /// The bytes that each lane keeps reserved even if it holds nothing.
    standing: u64,
    /// The memory of a lane's empty column writers.
    empty: u64,
    /// The most that the contexts of a lane's columns can grow.
    growth: u64,
}

/// Encodes row groups, one after the other.
pub(super) struct GroupLane {
    shared: Arc<Shared>,
    /// The current row group: its columns, the number of its rows, and the most rows that it takes.
    columns: Vec<Column>,
    codec: PageCodec,
    rows: usize,
    most_rows: usize,
    /// The bytes of its rows before they were encoded. Counted only under a memory limit.
    plain_bytes: u64,
    reservation: MemoryReservation,
}

/// A complete row group.
pub(super) struct RowGroup(Vec<Chunk>);

/// Takes the row groups that are complete.
type Done<'a> = &'a mut dyn FnMut(RowGroup) -> anyhow::Result<()>;

impl Lane for GroupLane {
    type Block = RowGroup;

    fn write(&mut self, batch: &RecordBatch, done: Done<'_>) -> anyhow::Result<()> {
        let batch = &converted(&self.shared.rows_schema, batch)?;
        let Some(limit) = self.shared.memory.limit() else {
            return self.write_rows(batch, done);
        };
        // Such pieces fit the standing reservation. Only a single row may be larger.
        let most = limit / STANDING_SHARE / self.shared.lanes / COPIES;
        for (piece, bytes) in Pieces::new(batch, most) {
            self.make_room(bytes, done)?;
            self.write_rows(&piece, done)?;
            self.adjust_reservation(limit, done)?;
        }
        Ok(())
    }

    fn close(&mut self) -> anyhow::Result<Option<Self::Block>> {
        if self.rows == 0 {
            return Ok(None);
        }
        (self.rows, self.plain_bytes) = (0, 0);
        let codec = &mut self.codec;
        let columns = self.columns.drain(..).map(|column| column.close(codec));
        columns.collect::<anyhow::Result<_>>().map(|chunks| Some(RowGroup(chunks)))
    }
}

impl GroupLane {
    fn new(shared: &Arc<Shared>) -> anyhow::Result<GroupLane> {
        let reservation = shared.memory.reserve(shared.standing, WHAT)?;
        let shared = Arc::clone(shared);
        let codec = PageCodec::new(shared.codec)?;
        let columns = Vec::new();
        Ok(GroupLane { shared, columns, codec, rows: 0, most_rows: 0, plain_bytes: 0, reservation })
    }

    /// Encodes rows. Begins and ends row groups as their numbers of rows require.
    fn write_rows(&mut self, batch: &RecordBatch, done: Done<'_>) -> anyhow::Result<()> {
        let mut start = 0;
        while start < batch.num_rows() {
            if self.rows == 0 {
                self.begin(batch)?;
            }
            let rows = (batch.num_rows() - start).min(self.most_rows - self.rows);
            self.encode(&batch.slice(start, rows))?;
            start += rows;
            if self.rows == self.most_rows {
                self.end(done)?;
            }
        }
        Ok(())
    }

    /// Begins a row group. Its first rows are in `batch`.
    fn begin(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        let shared = &self.shared;
        let begun = shared.begun.fetch_add(1, Ordering::Relaxed);
        let doubled = if shared.fixed_rows { 0 } else { (begun / DOUBLED_AFTER).min(16) };
        self.most_rows = shared.group_rows << doubled;
        self.columns = shared.columns.begin(begun as usize, batch)?;
        Ok(())
    }

    /// Encodes rows into the current row group.
    fn encode(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        let schema = &self.shared.columns.schema;
        let unpacked = match batch.schema_ref().fields() == schema.fields() {
            true => None,
            false => Some(unpacked(schema, batch)?),
        };
        let arrays = unpacked.as_ref().unwrap_or(batch).columns();
        encode(&mut self.columns, schema, arrays, &mut self.codec)?;
        self.rows += batch.num_rows();
        Ok(())
    }

    fn end(&mut self, done: Done<'_>) -> anyhow::Result<()> {
        if let Some(group) = self.close()? {
            done(group)?;
        }
        let beyond = self.reservation.bytes().saturating_sub(self.shared.standing);
        self.reservation.shrink(beyond);
        Ok(())
    }

    /// Reserves the memory that encoding `bytes` of rows needs. If there is not enough, ends the current row
    /// group first.
    fn make_room(&mut self, bytes: u64, done: Done<'_>) -> anyhow::Result<()> {
        if self.reserve(self.held() + COPIES * bytes).is_err() {
            self.end(done)?;
            self.reserve(self.held() + COPIES * bytes)?;
        }
        self.plain_bytes += bytes;
        Ok(())
    }

    /// The approximate memory of the current row group.
    fn held(&self) -> u64 {
        let encoded: u64 = self.columns.iter().map(Column::memory_size).sum();
        encoded + self.shared.empty + self.plain_bytes.min(self.shared.growth)
    }

    fn reserve(&mut self, bytes: u64) -> anyhow::Result<()> {
        let bytes = bytes.max(self.shared.standing);
        Ok(self.shared.memory.resize(&mut self.reservation, bytes, WHAT)?)
    }

    /// Adjusts the reservation to the memory of the row group. Ends the row group if this is too much.
    fn adjust_reservation(&mut self, limit: u64, done: Done<'_>) -> anyhow::Result<()> {
        let held = self.held();
        let most = limit / GROUP_SHARE / self.shared.lanes + self.shared.standing;
        match self.reserve(held).is_err() || held > most {
            true => self.end(done),
            false => Ok(()),
        }
    }
}

/// The file that row groups are appended to.
pub(super) struct ParquetTail {
    writer: SerializedFileWriter<Bytes>,
    groups: usize,
}

/// The most row groups of a Parquet file. Their numbers are signed and have 16 bits.
pub(crate) const MAX_ROW_GROUPS: usize = 1 << 15;

impl Tail for ParquetTail {
    type Block = RowGroup;

    fn append(&mut self, RowGroup(columns): RowGroup) -> anyhow::Result<()> {
        if self.groups == MAX_ROW_GROUPS {
            bail!(
                "it would need more than {} row groups, and a Parquet file cannot have more; give a larger \
                 --row-group-rows, or leave it out and raise --memory",
                grouped(MAX_ROW_GROUPS as u64)
            );
        }
        self.groups += 1;
        let mut group = self.writer.next_row_group()?;
        columns.into_iter().try_for_each(|column| column.append_to(&mut group))?;
        group.close()?;
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.writer.finish()?;
        std::io::Write::flush(self.writer.inner_mut())?;
        Ok(())
    }
}

/// Rejects columns that Parquet cannot hold.
fn check(schema: &SchemaRef) -> anyhow::Result<()> {
    match schema.fields().iter().find(|field| !holds(field.data_type())) {
        None => Ok(()),
        Some(field) => bail!(
            "Parquet cannot hold column \"{}\" ({}); write .arrow, or leave it out with --select",
            field.name(),
            field.data_type()
        ),
    }
}

/// Returns whether Parquet can hold a type.
pub(super) fn holds(data_type: &DataType) -> bool {
    !any(data_type, &|data_type| match data_type {
        DataType::Union(..) | DataType::FixedSizeBinary(0) => true,
        DataType::Struct(fields) => fields.is_empty(),
        _ => false,
    })
}

/// Returns the schema to write. A column keeps its dictionaries if all of them have text or binary values. Arrow's Parquet
/// writer cannot write dictionaries of nested values, and its reader cannot read some others, such as dictionaries of
/// booleans.
fn writable(schema: &SchemaRef) -> SchemaRef {
    use DataType::{Binary, Dictionary, LargeBinary, LargeUtf8, Utf8};
    let is_unpacked = |data_type: &DataType| match data_type {
        Dictionary(_, values) => !matches!(**values, Utf8 | LargeUtf8 | Binary | LargeBinary),
        _ => false,
    };
    let field = |field: &FieldRef| match any(field.data_type(), &is_unpacked) {
        true => Arc::new(field.as_ref().clone().with_data_type(plain(field.data_type()))),
        false => Arc::clone(field),
    };
    let fields: Vec<FieldRef> = schema.fields().iter().map(field).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
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

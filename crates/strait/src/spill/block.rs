//! A block: the rows of one batch, encoded for a file.
//!
//! ```text
//!  byte  0 ┌──────────────────────────────┐
//!          │ magic                        │ 8 bytes
//!        8 │ version                      │ 8 bytes, little-endian, as all numbers
//!       16 │ length of the payload        │ 8 bytes, as it is in this block
//!       24 │ number of rows               │ 8 bytes
//!       32 │ compression                  │ 8 bytes
//!       40 │ length of the payload        │ 8 bytes, without compression
//!       48 │ zeros                        │ 8 bytes
//!       56 │ checksum                     │ 8 bytes, of the header above and of the payload
//!       64 ├──────────────────────────────┤
//!          │ payload                      │ messages of the Arrow IPC stream format: dictionaries, one batch,
//!          │                              │ and the end of the stream
//!          └──────────────────────────────┘
//! ```
//!
//! The payload has no schema message, because the reader knows the schema. All buffers are aligned to 64 bytes
//! within the payload, so decoded arrays are slices of its memory.
//!
//! A block in memory is never compressed. In a file, its payload may be.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, make_array};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamEncoder;
use rapidhash::v3::rapidhash_v3;

use super::compact::compact;
use super::compression::SpillCompression;
use super::stored::{convert, stored_schema};
use crate::error::{Error, Result};
use crate::memory::Reservation;

const MAGIC: [u8; 8] = *b"STRAITSP";
const VERSION: u64 = 2;
/// The length of the header in bytes. It is a multiple of the alignment of buffers, so that the payload is aligned.
const HEADER: usize = 64;
/// The position of the checksum in the header.
const CHECKSUM: usize = 56;

/// Memory comes in multiples of this many bytes.
const ALIGNMENT: u64 = 64;

/// The rows of one batch, encoded, in memory.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// The header and the payload.
    bytes: Buffer,
    mark: Mark,
}

/// A block as it is in a file. The payload may be compressed.
pub(super) struct StoredBlock {
    /// The header and the payload.
    pub(super) bytes: Buffer,
    pub(super) mark: Mark,
    /// The memory of the compressed payload.
    _reserved: Option<Reservation>,
}

/// The lengths, the rows and the checksum of a block in a file. The writer keeps them in memory. The reader compares
/// them with the block in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// The length in bytes, with the header.
    pub(super) length: u64,
    pub(super) rows: u64,
    pub(super) compression: SpillCompression,
    /// The length of the payload in bytes, without compression.
    pub(super) payload: u64,
    /// A valid block with another checksum is the wrong block, for example an earlier block of the file.
    pub(super) checksum: u64,
}

impl Mark {
    /// Returns the length of the block in memory, in bytes.
    pub(super) fn uncompressed(&self) -> u64 {
        HEADER as u64 + self.payload
    }

    /// Returns the memory that reading the block takes: for its bytes, and for the decompressed payload.
    pub(super) fn reading_bytes(&self) -> u64 {
        let length = self.length.next_multiple_of(ALIGNMENT);
        match self.compression {
            SpillCompression::None => length,
            codec => length + self.payload.next_multiple_of(ALIGNMENT) + codec.decompressor_bytes(),
        }
    }
}

/// Encodes the rows of a batch. The encoding has only the parts of the arrays that the rows use.
pub(crate) fn encode(batch: &RecordBatch) -> Result<Block> {
    let buffers = messages(batch).map_err(Error::arrow("encoding rows for the disk"))?;
    let payload: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let mut bytes = MutableBuffer::with_capacity(HEADER + payload);
    bytes.extend_zeros(HEADER);
    buffers.iter().for_each(|buffer| bytes.extend_from_slice(buffer));
    let rows = batch.num_rows() as u64;
    let mark = seal(&mut bytes, rows, (SpillCompression::None, payload as u64));
    Ok(Block { bytes: bytes.into(), mark })
}

/// Writes the header in front of a payload. `payload` is the length of the payload without compression.
fn seal(block: &mut [u8], rows: u64, (compression, payload): (SpillCompression, u64)) -> Mark {
    let length = block.len() as u64;
    let (header, body) = block.split_at_mut(HEADER);
    header[0..8].copy_from_slice(&MAGIC);
    let fields = [VERSION, body.len() as u64, rows, compression.number(), payload];
    for (field, at) in fields.into_iter().zip((8..).step_by(8)) {
        header[at..at + 8].copy_from_slice(&field.to_le_bytes());
    }
    let checksum = checksum(header, body);
    header[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    Mark { length, rows, compression, payload, checksum }
}

/// Checks that the bytes of a file are the block that the writer remembers. Returns the payload, decompressed, or what
/// is wrong. [`Mark::reading_bytes`] of memory must be reserved.
pub(super) fn open(bytes: Buffer, mark: Mark) -> Result<Buffer, &'static str> {
    if bytes.len() < HEADER || bytes.len() as u64 != mark.length {
        return Err("has a wrong length");
    }
    let (header, payload) = bytes.split_at(HEADER);
    let field = |at: usize| header[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let expected =
        [VERSION, payload.len() as u64, mark.rows, mark.compression.number(), mark.payload];
    if header[..8] != MAGIC || !expected.into_iter().eq((8..48).step_by(8).map(field)) {
        return Err("has a damaged header");
    }
    if checksum(header, payload) != field(CHECKSUM) {
        return Err("has a wrong checksum");
    }
    if field(CHECKSUM) != mark.checksum {
        return Err("is not the one that was written there");
    }
    if mark.compression == SpillCompression::None {
        return Ok(bytes.slice(HEADER));
    }
    let length = usize::try_from(mark.payload).map_err(|_| "is too long")?;
    let mut decompressed = MutableBuffer::from_len_zeroed(length);
    match mark.compression.decompress(payload, &mut decompressed) {
        true => Ok(decompressed.into()),
        false => Err("cannot be decompressed"),
    }
}

/// Decodes the rows of a payload. The arrays are slices of the payload's memory.
///
/// `schema` is the schema of the batch that was encoded.
pub(super) fn decode(payload: Buffer, schema: &SchemaRef) -> Result<RecordBatch> {
    let batch = decode_columns(payload, schema);
    batch.map_err(Error::arrow("decoding rows from the disk"))
}

fn decode_columns(mut payload: Buffer, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let mut decoder = StreamDecoder::new();
    for mut message in schema_message(&stored_schema(schema))?.0 {
        decoder.decode(&mut message)?;
    }
    let stored = decoder.decode(&mut payload)?;
    let missing = || ArrowError::IpcError("the block has no batch".to_string());
    let stored = stored.ok_or_else(missing)?;
    let columns = stored.columns().iter().zip(schema.fields()).map(|(column, field)| {
        match column.data_type() == field.data_type() {
            true => Ok(Arc::clone(column)),
            false => Ok(make_array(convert(column.to_data(), field.data_type())?)),
        }
    });
    let columns = columns.collect::<Result<Vec<_>, ArrowError>>()?;
    let rows = RecordBatchOptions::new().with_row_count(Some(stored.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &rows)
}

impl Block {
    /// Decodes the rows. The arrays are slices of the block's memory.
    ///
    /// `schema` is the schema of the batch that was encoded.
    pub(crate) fn decode(&self, schema: &SchemaRef) -> Result<RecordBatch> {
        decode(self.bytes.slice(HEADER), schema)
    }

    /// Returns the memory that compressing the block takes: for the compressed bytes, and for the compressor.
    pub(super) fn compressing_bytes(&self, compression: SpillCompression) -> u64 {
        let payload = self.bytes.len() - HEADER;
        let most = (HEADER + compression.most_bytes(payload)) as u64;
        most.next_multiple_of(ALIGNMENT).saturating_add(compression.compressor_bytes(payload))
    }

    /// Compresses the block for a file. Returns `None` if that saves too little. `reserved` has
    /// [`compressing_bytes`](Block::compressing_bytes).
    pub(super) fn compressed(
        &self,
        compression: SpillCompression,
        reserved: Reservation,
    ) -> Option<StoredBlock> {
        let payload = &self.bytes[HEADER..];
        let mut bytes =
            MutableBuffer::from_len_zeroed(HEADER + compression.most_bytes(payload.len()));
        let length = compression.compress(payload, &mut bytes[HEADER..])?;
        bytes.truncate(HEADER + length);
        let mark = seal(&mut bytes, self.mark.rows, (compression, self.mark.payload));
        Some(StoredBlock { bytes: bytes.into(), mark, _reserved: Some(reserved) })
    }

    /// Returns the block for a file, without compression.
    pub(super) fn uncompressed(&self) -> StoredBlock {
        StoredBlock { bytes: self.bytes.clone(), mark: self.mark, _reserved: None }
    }

    /// Returns the header and the payload.
    pub(crate) fn bytes(&self) -> &Buffer {
        &self.bytes
    }

    /// Returns the bytes of memory that the block takes.
    pub(crate) fn memory(&self) -> u64 {
        self.bytes.capacity() as u64
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> u64 {
        self.mark.rows
    }
}

/// Encodes a batch as messages without the schema.
fn messages(batch: &RecordBatch) -> Result<Vec<Buffer>, ArrowError> {
    let schema = stored_schema(batch.schema_ref());
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        let column = compact(column)?;
        match column.data_type() == field.data_type() {
            true => Ok(column),
            false => Ok(make_array(convert(column.to_data(), field.data_type())?)),
        }
    });
    let columns = columns.collect::<Result<Vec<_>, ArrowError>>()?;
    let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let (schema_message, end) = schema_message(&schema)?;
    let mut encoder = StreamEncoder::try_new(&schema)?;
    let batch = RecordBatch::try_new_with_options(Arc::new(schema), columns, &rows)?;
    let mut buffers = encoder.encode(&batch)?.split_off(schema_message.len());
    // Without the end, the decoder would wait for more bytes after a message without buffers.
    buffers.extend(end);
    Ok(buffers)
}

/// Returns the parts of the message that starts a stream with this schema, and the end of a stream.
fn schema_message(schema: &Schema) -> Result<(Vec<Buffer>, Option<Buffer>), ArrowError> {
    let mut parts = StreamEncoder::try_new(schema)?.finish()?;
    let end = parts.pop();
    Ok((parts, end))
}

/// Computes the checksum of the header, without its last field, and of the payload.
fn checksum(header: &[u8], payload: &[u8]) -> u64 {
    let mut fields = [0; HEADER];
    fields[..CHECKSUM].copy_from_slice(&header[..CHECKSUM]);
    fields[CHECKSUM..].copy_from_slice(&rapidhash_v3(payload).to_le_bytes());
    rapidhash_v3(&fields)
}

//! A block: the rows of one batch, encoded for a file.
//!
//! ```text
//!  byte  0 ┌──────────────────────────────┐
//!          │ magic                        │ 8 bytes
//!        8 │ version                      │ 8 bytes, little-endian, as all numbers
//!       16 │ length of the payload        │ 8 bytes
//!       24 │ number of rows               │ 8 bytes
//!       32 │ zeros                        │ 24 bytes
//!       56 │ checksum                     │ 8 bytes, of the header above and of the payload
//!       64 ├──────────────────────────────┤
//!          │ payload                      │ messages of the Arrow IPC stream format: dictionaries, one batch,
//!          │                              │ and the end of the stream
//!          └──────────────────────────────┘
//! ```
//!
//! The payload has no schema message, because the reader knows the schema. All buffers are aligned to 64 bytes
//! within the block, so decoded arrays are slices of the block's memory.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions, make_array};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamEncoder;
use rapidhash::v3::rapidhash_v3;

use super::compact::compact;
use super::stored::{convert, stored_schema};
use crate::error::{Error, Result};

const MAGIC: [u8; 8] = *b"STRAITSP";
const VERSION: u64 = 1;
/// The length of the header in bytes. It is a multiple of the alignment of buffers, so that the payload is aligned.
const HEADER: usize = 64;
/// The position of the checksum in the header.
const CHECKSUM: usize = 56;

/// The rows of one batch, encoded.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// The header and the payload.
    bytes: Buffer,
    mark: Mark,
}

/// The length, the rows and the checksum of a block. The writer keeps them in memory. The reader compares them with the
/// block in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// The length in bytes, with the header.
    pub(super) length: u64,
    pub(super) rows: u64,
    /// A valid block with another checksum is the wrong block, for example an earlier block of the file.
    pub(super) checksum: u64,
}

/// Encodes the rows of a batch. The encoding has only the parts of the arrays that the rows use.
pub(crate) fn encode(batch: &RecordBatch) -> Result<Block> {
    let buffers = messages(batch).map_err(Error::arrow("encoding rows for the disk"))?;
    let payload: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let mut bytes = MutableBuffer::with_capacity(HEADER + payload);
    bytes.extend_zeros(HEADER);
    buffers.iter().for_each(|buffer| bytes.extend_from_slice(buffer));
    let rows = batch.num_rows() as u64;
    let (header, body) = bytes.as_slice_mut().split_at_mut(HEADER);
    header[0..8].copy_from_slice(&MAGIC);
    for (field, at) in [(VERSION, 8), (payload as u64, 16), (rows, 24)] {
        header[at..at + 8].copy_from_slice(&field.to_le_bytes());
    }
    let checksum = checksum(header, body);
    header[CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    let mark = Mark { length: bytes.len() as u64, rows, checksum };
    Ok(Block { bytes: bytes.into(), mark })
}

impl Block {
    /// Returns the block if it is the one that the writer remembers, otherwise what is wrong with it.
    pub(super) fn check(bytes: Buffer, mark: Mark) -> Result<Block, &'static str> {
        if bytes.len() < HEADER || bytes.len() as u64 != mark.length {
            return Err("has a wrong length");
        }
        let (header, payload) = bytes.split_at(HEADER);
        let field = |at: usize| header[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        if header[..8] != MAGIC || field(8) != VERSION {
            return Err("has a damaged header");
        }
        if field(16) != payload.len() as u64 || field(24) != mark.rows {
            return Err("has a damaged header");
        }
        if checksum(header, payload) != field(CHECKSUM) {
            return Err("has a wrong checksum");
        }
        match field(CHECKSUM) == mark.checksum {
            true => Ok(Block { bytes, mark }),
            false => Err("is not the one that was written there"),
        }
    }

    /// Decodes the rows. The arrays are slices of the block's memory.
    ///
    /// `schema` is the schema of the batch that was encoded.
    pub(crate) fn decode(&self, schema: &SchemaRef) -> Result<RecordBatch> {
        let batch = self.decode_columns(schema);
        batch.map_err(Error::arrow("decoding rows from the disk"))
    }

    fn decode_columns(&self, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
        let mut decoder = StreamDecoder::new();
        for mut message in schema_message(&stored_schema(schema))?.0 {
            decoder.decode(&mut message)?;
        }
        let stored = decoder.decode(&mut self.bytes.slice(HEADER))?;
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

    pub(super) fn mark(&self) -> Mark {
        self.mark
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

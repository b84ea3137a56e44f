//! Encodes record batches in the format of the output.

use std::fs::File;
use std::io::{BufWriter, Stdout, Write};
use std::sync::Arc;

use anyhow::{Context, bail};
use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::csv;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use flate2::write::GzEncoder;
use strait::MemoryReservation;

use super::destination::{Compression, FileFormat, Squeeze};
use super::parquet::ParquetEncoder;
use super::pieces::{Pieces, array_bytes, compacted, is_view};
use super::sink::SinkOptions;
use super::unpack::{unpacked, without_dictionaries};
use super::watched::Watched;
use super::zones::{printable_batch, printable_schema};
use crate::memory::Memory;

/// The final writer of the encoded bytes.
pub(super) type Bytes = BufWriter<Watched<Drain>>;

/// A file or stdout.
pub(super) enum Drain {
    File(File),
    Stdout(Stdout),
}

impl Write for Drain {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Drain::File(file) => file.write(bytes),
            Drain::Stdout(stdout) => stdout.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Drain::File(file) => file.flush(),
            Drain::Stdout(stdout) => stdout.flush(),
        }
    }
}

/// The writer of a format, and the memory that it may hold.
pub(super) struct Encoder {
    format: FormatWriter,
    memory: Memory,
    /// The reservation for the message into which an Arrow writer copies a batch.
    message: MemoryReservation,
    /// The bytes that stay reserved for messages.
    standing: u64,
}

/// Writers reserve one part in this many of a memory limit before the join begins. Later, the join could use
/// the memory that they need.
pub(super) const STANDING_SHARE: u64 = 16;

const MESSAGE: &str = "encoding an Arrow message";

enum FormatWriter {
    Parquet(Box<ParquetEncoder>),
    /// Has the schema to which batches are converted.
    Csv(Box<csv::Writer<Text>>, SchemaRef),
    /// Has the schema to which batches are converted. An Arrow file holds one dictionary per column, but
    /// batches from several files have several dictionaries. A stream may replace a dictionary.
    IpcFile(Box<FileWriter<Bytes>>, SchemaRef),
    IpcStream(Box<StreamWriter<Bytes>>),
}

impl Encoder {
    pub(super) fn new(
        format: FileFormat,
        options: &SinkOptions,
        schema: &SchemaRef,
        bytes: Bytes,
    ) -> anyhow::Result<Encoder> {
        let SinkOptions { compression, threads, memory, .. } = options;
        let format = match format {
            FileFormat::Parquet => {
                let encoder = ParquetEncoder::new(schema, *compression, *threads, memory, bytes)?;
                FormatWriter::Parquet(Box::new(encoder))
            }
            FileFormat::Csv(squeeze) => {
                flat(schema)?;
                let mut writer = csv::WriterBuilder::new().build(Text::new(squeeze, bytes)?);
                // The writer writes the header with the first batch, and there may be none.
                let printable = printable_schema(schema);
                writer.write(&RecordBatch::new_empty(Arc::clone(&printable)))?;
                FormatWriter::Csv(Box::new(writer), printable)
            }
            FileFormat::IpcFile => {
                let options = ipc_options(*compression)?;
                let plain = without_dictionaries(schema);
                let writer = FileWriter::try_new_with_options(bytes, &plain, options)?;
                FormatWriter::IpcFile(Box::new(writer), plain)
            }
            FileFormat::IpcStream => {
                let options = ipc_options(*compression)?;
                let writer = StreamWriter::try_new_with_options(bytes, schema, options)?;
                FormatWriter::IpcStream(Box::new(writer))
            }
        };
        let standing = match &format {
            FormatWriter::IpcFile(..) | FormatWriter::IpcStream(_) => {
                memory.limit().unwrap_or(0) / STANDING_SHARE
            }
            _ => 0,
        };
        let message = memory.reserve(standing, MESSAGE)?;
        Ok(Encoder { format, memory: memory.clone(), message, standing })
    }

    pub(super) fn write(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        // An Arrow writer copies a batch into one message. CSV is written row by row.
        let (memory, message, standing) = (&self.memory, &mut self.message, self.standing);
        match &mut self.format {
            FormatWriter::Parquet(encoder) => encoder.write(batch)?,
            FormatWriter::Csv(writer, printable) => {
                writer.write(&printable_batch(printable, batch)?)?
            }
            FormatWriter::IpcFile(writer, plain) => {
                let unpacks = batch.schema().fields() != plain.fields();
                // Rows are copied when they are unpacked or compacted, and copied again into the message.
                let views = plain.fields().iter().any(|field| is_view(field.data_type()));
                let copies = if unpacks || views { 2 } else { 1 };
                let most = memory.limit().map_or(u64::MAX, |_| standing / copies);
                for (piece, bytes) in Pieces::new(batch, most) {
                    memory.resize(message, (copies * bytes).max(standing), MESSAGE)?;
                    let piece = if unpacks { unpacked(plain, &piece)? } else { piece };
                    writer.write(&compacted(piece)?)?;
                }
            }
            FormatWriter::IpcStream(writer) => {
                memory.resize(message, slice_bytes(batch).max(message.bytes()), MESSAGE)?;
                writer.write(&compacted(batch.clone())?)?;
                // A reader of the stream must get the rows now, not when a buffer is full.
                writer.flush()?;
            }
        }
        Ok(())
    }

    /// Writes the end of the format, and flushes all buffers.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        match self.format {
            FormatWriter::Parquet(encoder) => encoder.finish()?,
            FormatWriter::Csv(writer, _) => writer.into_inner().finish()?,
            FormatWriter::IpcFile(writer, _) => writer.into_inner()?.flush()?,
            FormatWriter::IpcStream(writer) => writer.into_inner()?.flush()?,
        }
        Ok(())
    }
}

/// Returns the bytes of the rows of a batch, without the rest of the arrays that they are slices of.
fn slice_bytes(batch: &RecordBatch) -> u64 {
    let bytes = |column: &ArrayRef| {
        if is_view(column.data_type()) {
            // The copy of the values, and the message.
            return 2 * array_bytes(column);
        }
        let exact = column.to_data().get_slice_memory_size();
        exact.unwrap_or_else(|_| column.get_array_memory_size()) as u64
    };
    batch.columns().iter().map(bytes).sum()
}

fn ipc_options(compression: Option<Compression>) -> anyhow::Result<IpcWriteOptions> {
    let compression = match compression {
        None | Some(Compression::None) => None,
        Some(Compression::Zstd) => Some(CompressionType::ZSTD),
        Some(Compression::Snappy) => {
            bail!("Arrow files cannot be compressed with snappy; use --compression zstd or none")
        }
    };
    IpcWriteOptions::default().try_with_compression(compression).context("cannot compress")
}

/// Rejects nested columns: CSV has no notation for nested values.
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

/// A text writer, with or without compression.
pub(super) enum Text {
    Plain(Bytes),
    Gzip(GzEncoder<Bytes>),
    Zstd(zstd::Encoder<'static, Bytes>),
}

impl Text {
    fn new(squeeze: Squeeze, bytes: Bytes) -> std::io::Result<Text> {
        Ok(match squeeze {
            Squeeze::None => Text::Plain(bytes),
            Squeeze::Gzip => Text::Gzip(GzEncoder::new(bytes, flate2::Compression::default())),
            Squeeze::Zstd => Text::Zstd(zstd::Encoder::new(bytes, 0)?),
        })
    }

    fn finish(self) -> std::io::Result<()> {
        match self {
            Text::Plain(mut bytes) => bytes.flush(),
            Text::Gzip(encoder) => encoder.finish()?.flush(),
            Text::Zstd(encoder) => encoder.finish()?.flush(),
        }
    }
}

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Text::Plain(inner) => inner.write(bytes),
            Text::Gzip(inner) => inner.write(bytes),
            Text::Zstd(inner) => inner.write(bytes),
        }
    }

    /// Does nothing. The CSV writer flushes after every batch, which would end compressed blocks too early.
    /// `finish` flushes at the end.
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

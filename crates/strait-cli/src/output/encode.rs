//! Writes Arrow files and streams, and opens the writer of every format.

use std::fs::File;
use std::io::{BufWriter, Stdout, Write};

use anyhow::{Context, bail};
use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use strait::MemoryReservation;

use super::blocks::{Blocks, Lane, Output, Tail};
use super::destination::{Compression, FileFormat};
use super::pieces::{Pieces, array_bytes, compacted, is_view};
use super::sink::SinkOptions;
use super::unpack::{unpacked, without_dictionaries};
use super::watched::Watched;
use super::{ipc, parquet, text};
use crate::memory::Memory;
use crate::store::UploadBytes;

/// The final writer of the encoded bytes.
pub(super) type Bytes = BufWriter<Watched<Drain>>;

/// A file, an object or stdout.
pub(super) enum Drain {
    File(File),
    Object(UploadBytes),
    Stdout(Stdout),
}

impl Write for Drain {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Drain::File(file) => file.write(bytes),
            Drain::Object(object) => object.write(bytes),
            Drain::Stdout(stdout) => stdout.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Drain::File(file) => file.flush(),
            Drain::Object(object) => object.flush(),
            Drain::Stdout(stdout) => stdout.flush(),
        }
    }
}

/// Writers reserve 1/N of a memory limit before the join begins, where N is this number. Later, the join could
/// already have taken the memory that they need.
pub(super) const STANDING_SHARE: u64 = 16;

const MESSAGE: &str = "encoding an Arrow message";

/// Opens the writer of a format.
pub(super) fn open(
    format: FileFormat,
    options: &SinkOptions,
    schema: &SchemaRef,
    bytes: Bytes,
) -> anyhow::Result<Box<dyn Output>> {
    Ok(match format {
        FileFormat::Parquet => Box::new(parquet::open(schema, options, bytes)?),
        FileFormat::Text(notation, squeeze) => {
            Box::new(text::open((notation, squeeze), schema, options, bytes)?)
        }
        FileFormat::IpcFile | FileFormat::IpcStream if compresses(format, options, schema) => {
            let is_file = format == FileFormat::IpcFile;
            let plain = without_dictionaries(schema);
            let ipc_options = ipc_options(options.compression)?;
            Box::new(ipc::open(&plain, is_file, &ipc_options, options.threads, bytes)?)
        }
        FileFormat::IpcFile | FileFormat::IpcStream => {
            let tail = IpcTail::new(format, options, schema, bytes)?;
            let lanes = (0..options.threads.max(1)).map(|_| IpcLane).collect();
            // No thread encodes, so there is nothing to put aside for another thread.
            Box::new(Blocks::new(lanes, tail, None))
        }
    })
}

/// Returns whether threads compress the messages of an Arrow file or stream.
fn compresses(format: FileFormat, options: &SinkOptions, schema: &SchemaRef) -> bool {
    // A file has no dictionaries. In a stream, a message with a dictionary belongs before its rows.
    let independent = format == FileFormat::IpcFile || without_dictionaries(schema) == *schema;
    options.compression == Some(Compression::Zstd)
        && options.memory.limit().is_none()
        && independent
}

/// Passes batches on. The tail encodes them.
struct IpcLane;

impl Lane for IpcLane {
    type Block = RecordBatch;

    fn write(
        &mut self,
        batch: &RecordBatch,
        done: &mut dyn FnMut(RecordBatch) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        done(batch.clone())
    }

    fn close(&mut self) -> anyhow::Result<Option<RecordBatch>> {
        Ok(None)
    }
}

/// An Arrow file or stream, and the memory that its writer may hold.
struct IpcTail {
    writer: IpcWriter,
    memory: Memory,
    /// The reservation for the message into which the writer copies a batch.
    message: MemoryReservation,
    /// The bytes that stay reserved for messages.
    standing: u64,
}

enum IpcWriter {
    /// Has the schema to which batches are converted. An Arrow file holds one dictionary per column, but
    /// batches from several files have several dictionaries. A stream may replace a dictionary.
    File(Box<FileWriter<Bytes>>, SchemaRef),
    Stream(Box<StreamWriter<Bytes>>),
}

impl IpcTail {
    fn new(
        format: FileFormat,
        options: &SinkOptions,
        schema: &SchemaRef,
        bytes: Bytes,
    ) -> anyhow::Result<IpcTail> {
        let SinkOptions { compression, memory, .. } = options;
        let options = ipc_options(*compression)?;
        let writer = if format == FileFormat::IpcFile {
            let plain = without_dictionaries(schema);
            let writer = FileWriter::try_new_with_options(bytes, &plain, options)?;
            IpcWriter::File(Box::new(writer), plain)
        } else {
            IpcWriter::Stream(Box::new(StreamWriter::try_new_with_options(bytes, schema, options)?))
        };
        let standing = memory.limit().unwrap_or(0) / STANDING_SHARE;
        let message = memory.reserve(standing, MESSAGE)?;
        Ok(IpcTail { writer, memory: memory.clone(), message, standing })
    }
}

impl Tail for IpcTail {
    type Block = RecordBatch;

    fn append(&mut self, batch: RecordBatch) -> anyhow::Result<()> {
        // An Arrow writer copies a batch into one message.
        let (memory, message, standing) = (&self.memory, &mut self.message, self.standing);
        match &mut self.writer {
            IpcWriter::File(writer, plain) => {
                let unpacks = batch.schema().fields() != plain.fields();
                // Rows are copied when they are unpacked or compacted, and copied again into the message.
                let views = plain.fields().iter().any(|field| is_view(field.data_type()));
                let copies = if unpacks || views { 2 } else { 1 };
                let most = memory.limit().map_or(u64::MAX, |_| standing / copies);
                for (piece, bytes) in Pieces::new(&batch, most) {
                    memory.resize(message, (copies * bytes).max(standing), MESSAGE)?;
                    let piece = if unpacks { unpacked(plain, &piece)? } else { piece };
                    writer.write(&compacted(piece)?)?;
                }
            }
            IpcWriter::Stream(writer) => {
                memory.resize(message, slice_bytes(&batch).max(message.bytes()), MESSAGE)?;
                writer.write(&compacted(batch)?)?;
                // A reader of the stream must get the rows now, not when a buffer is full.
                writer.flush()?;
            }
        }
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        match self.writer {
            IpcWriter::File(writer, _) => writer.into_inner()?.flush()?,
            IpcWriter::Stream(writer) => writer.into_inner()?.flush()?,
        }
        Ok(())
    }
}

/// Returns the bytes of the rows of a batch, without the rest of the arrays that they are slices of.
pub(super) fn slice_bytes(batch: &RecordBatch) -> u64 {
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

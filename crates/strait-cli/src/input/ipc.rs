//! Arrow IPC: files with a footer, streams without one, and a stream on stdin.
//!
//! This module reads messages, and Arrow decodes them. Before anything is allocated, every length in a
//! message is compared with the bytes that exist and with the memory that may be used.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufReader, IsTerminal, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use arrow::array::{ArrayRef, RecordBatch, RecordBatchReader};
use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::{RecordBatchDecoder, read_dictionary};
use arrow::ipc::{self, Block, MessageHeader, MetadataVersion};
use flatbuffers::VerifierOptions;
use strait::MemoryReservation;

use super::file::InputFile;
use super::{detached, schema};
use crate::failure::{of_join, of_stream, one_line};
use crate::memory::Memory;
use crate::panics::caught;

type Result<T> = std::result::Result<T, ArrowError>;

/// The mark before the metadata of a message, in streams since 2019.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// The magic and the padding at the start of a file.
const START: u64 = 8;

/// The length of the footer and the magic at the end of a file.
const END: u64 = 10;

/// The longest metadata of a message. A schema with the [largest number of columns](schema::MAX_COLUMNS)
/// takes less.
const MAX_METADATA: u64 = 256 << 20;

/// The most bytes that one byte of Zstandard or LZ4 can decompress to: a block of 128 KiB in four bytes.
const MAX_EXPANSION: u64 = 1 << 15;

/// Returns the schema of a file.
pub(super) fn schema(path: &Path, memory: &Memory) -> anyhow::Result<SchemaRef> {
    Ok(read(path, None, memory)?.schema())
}

/// Reads the given columns, in file order, or all columns if None.
pub(super) fn read(
    path: &Path,
    columns: Option<&[usize]>,
    memory: &Memory,
) -> anyhow::Result<Box<dyn RecordBatchReader + Send>> {
    let shown = path.display();
    let mut file = InputFile::open(path, memory).map_err(of_stream)?;
    let mut start = Vec::new();
    let length = (&mut file)
        .take(6)
        .read_to_end(&mut start)
        .and_then(|_| file.seek(SeekFrom::Start(0)))
        .and_then(|_| file.size())
        .with_context(|| format!("cannot read {shown}"))?;
    let columns = columns.map(<[usize]>::to_vec);
    let open = || match start.as_slice() {
        b"ARROW1" => IpcReader::file(file, length, columns, memory),
        _ => {
            let bytes = Box::new(BufReader::with_capacity(1 << 18, file));
            IpcReader::stream(Stream { bytes, left: Some(length) }, columns, memory)
        }
    };
    match start.as_slice() {
        [b'F', b'E', b'A', b'1', ..] => {
            bail!("{shown} is a Feather file of version 1; write it again as version 2")
        }
        // Streams from before 2019 begin with a length, newer ones with a mark.
        b"ARROW1" | [0xff, 0xff, 0xff, 0xff, ..] | [_, _, 0, 0, ..] => {}
        _ => bail!("{shown} is not an Arrow IPC file; give it the ending of the format it has"),
    }
    let opened = caught(open).unwrap_or_else(|why| Err(ArrowError::IpcError(why)));
    opened.map(|reader| Box::new(reader) as _).map_err(|error| {
        refused(error, &shown.to_string()).unwrap_or_else(|error| {
            anyhow!(
                "{shown} is truncated or damaged: it cannot be read as Arrow IPC ({}); get the file again",
                one_line(&error.to_string())
            )
        })
    })
}

/// Returns the message of a refused reservation, or the error itself if it is another one.
fn refused(error: ArrowError, name: &str) -> std::result::Result<anyhow::Error, ArrowError> {
    match strait::Error::from_arrow(error) {
        strait::Error::Arrow { source, .. } => {
            Err(std::sync::Arc::into_inner(source).unwrap_or_else(unknown))
        }
        ours => Ok(of_join(ours).context(format!("cannot read {name}"))),
    }
}

fn unknown() -> ArrowError {
    ArrowError::IpcError("unknown".into())
}

/// Returns a reader of the stream on stdin. It has read the schema.
pub(super) fn stdin(memory: &Memory) -> anyhow::Result<Box<dyn RecordBatchReader + Send>> {
    if io::stdin().is_terminal() {
        bail!(
            "stdin is a terminal; pipe an Arrow IPC stream to it, as `strait join … -o -` writes"
        );
    }
    let bytes = Box::new(BufReader::with_capacity(1 << 18, io::stdin()));
    let stream = Stream { bytes, left: None };
    let opened = caught(|| IpcReader::stream(stream, None, memory));
    let opened = opened.unwrap_or_else(|why| Err(ArrowError::IpcError(why)));
    opened.map(|reader| Box::new(reader) as _).map_err(|error| {
        refused(error, "stdin").unwrap_or_else(|error| {
            anyhow!("stdin is not an Arrow IPC stream ({}); pipe the output of `strait join … -o -` or of another writer of Arrow streams", one_line(&error.to_string()))
        })
    })
}

/// Reads the batches of a file or a stream.
struct IpcReader {
    schema: SchemaRef,
    columns: Option<Vec<usize>>,
    messages: Messages,
    dictionaries: HashMap<i64, ArrayRef>,
    /// The memory of each dictionary.
    sizes: HashMap<i64, u64>,
    memory: Memory,
    /// The reservation for the message that is being decoded.
    decoding: MemoryReservation,
    /// The reservation for the dictionaries that are kept.
    kept: MemoryReservation,
    ended: bool,
}

/// The source of messages.
enum Messages {
    /// The blocks of a file: dictionaries first.
    Blocks {
        file: InputFile,
        length: u64,
        blocks: VecDeque<Block>,
    },
    Stream(Stream),
}

struct Stream {
    bytes: Box<dyn Read + Send>,
    /// The bytes until the end, if known.
    left: Option<u64>,
}

/// A message: its metadata, and the body that the metadata points into.
struct Message {
    metadata: Vec<u8>,
    body: Buffer,
}

impl IpcReader {
    fn file(
        mut file: InputFile,
        length: u64,
        columns: Option<Vec<usize>>,
        memory: &Memory,
    ) -> Result<IpcReader> {
        let end = length.checked_sub(END).filter(|&end| end >= START).ok_or_else(cut)?;
        let mut trailer = [0; END as usize];
        file.seek(SeekFrom::Start(end))?;
        file.read_exact(&mut trailer)?;
        let footer_length = ipc::reader::read_footer_length(trailer)? as u64;
        let start = end.checked_sub(footer_length).filter(|&start| start >= START);
        let start = start.ok_or_else(|| lie("the footer", footer_length))?;
        let _held =
            memory.reserve(metadata_memory(footer_length), "the footer of an Arrow file")?;
        let mut footer = vec![0; footer_length as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut footer)?;
        let footer = ipc::root_as_footer_with_opts(&verifier(footer.len()), &footer)
            .map_err(|error| ArrowError::ParseError(format!("bad footer: {error:?}")))?;
        let schema = footer.schema().ok_or_else(|| bad("the footer has no schema"))?;
        let blocks: VecDeque<Block> = footer
            .dictionaries()
            .into_iter()
            .chain(footer.recordBatches())
            .flat_map(|blocks| blocks.iter().copied())
            .collect();
        let schema = converted(schema)?;
        IpcReader::new(schema, columns, Messages::Blocks { file, length: start, blocks }, memory)
    }

    fn stream(
        mut stream: Stream,
        columns: Option<Vec<usize>>,
        memory: &Memory,
    ) -> Result<IpcReader> {
        let mut held = memory.reserve(0, "an Arrow message")?;
        let message = stream.next(memory, &mut held)?.ok_or_else(|| bad("the stream is empty"))?;
        let schema = parsed(&message.metadata)?
            .header_as_schema()
            .ok_or_else(|| bad("the stream does not begin with a schema"))?;
        let schema = converted(schema)?;
        IpcReader::new(schema, columns, Messages::Stream(stream), memory)
    }

    fn new(
        schema: SchemaRef,
        columns: Option<Vec<usize>>,
        messages: Messages,
        memory: &Memory,
    ) -> Result<IpcReader> {
        Ok(IpcReader {
            schema,
            columns,
            messages,
            dictionaries: HashMap::new(),
            sizes: HashMap::new(),
            memory: memory.clone(),
            decoding: memory.reserve(0, "an Arrow message")?,
            kept: memory.reserve(0, "an Arrow dictionary")?,
            ended: false,
        })
    }

    fn advance(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let message = match &mut self.messages {
                Messages::Stream(stream) => stream.next(&self.memory, &mut self.decoding)?,
                Messages::Blocks { file, length, blocks } => match blocks.pop_front() {
                    None => None,
                    Some(block) => {
                        Some(read_block(file, *length, &block, &self.memory, &mut self.decoding)?)
                    }
                },
            };
            let Some(message) = message else { return Ok(None) };
            if let Some(batch) = self.decode(&message)? {
                return Ok(Some(batch));
            }
        }
    }

    /// Decodes a batch, or keeps a dictionary.
    fn decode(&mut self, message: &Message) -> Result<Option<RecordBatch>> {
        let header = parsed(&message.metadata)?;
        let version = header.version();
        match header.header_type() {
            MessageHeader::RecordBatch => {
                let batch = header.header_as_record_batch().ok_or_else(|| bad("an empty batch"))?;
                self.admit(&batch, &message.body)?;
                self.decode_batch(batch, &message.body, version).map(Some)
            }
            MessageHeader::DictionaryBatch => {
                let dictionary = header
                    .header_as_dictionary_batch()
                    .ok_or_else(|| bad("an empty dictionary"))?;
                let batch = dictionary.data().ok_or_else(|| bad("a dictionary without values"))?;
                self.admit(&batch, &message.body)?;
                let (id, mut size) = (dictionary.id(), self.decoding.bytes());
                if dictionary.isDelta() {
                    // The old and the new values are copied into one array.
                    size = size.saturating_add(self.sizes.get(&id).copied().unwrap_or(0));
                    let both = self.decoding.bytes().saturating_add(size);
                    self.memory.resize(&mut self.decoding, both, "an Arrow dictionary")?;
                }
                let (schema, dictionaries) = (&self.schema, &mut self.dictionaries);
                read_dictionary(&message.body, dictionary, schema, dictionaries, &version)?;
                self.sizes.insert(id, size);
                self.decoding.shrink(self.decoding.bytes());
                let all = self.sizes.values().copied().fold(0, u64::saturating_add);
                self.memory.resize(&mut self.kept, all, "an Arrow dictionary")?;
                Ok(None)
            }
            MessageHeader::NONE => Ok(None),
            other => Err(bad(&format!("a message of type {other:?} where rows are expected"))),
        }
    }

    fn decode_batch(
        &self,
        batch: ipc::RecordBatch<'_>,
        body: &Buffer,
        version: MetadataVersion,
    ) -> Result<RecordBatch> {
        let schema = self.schema.clone();
        let batch = RecordBatchDecoder::try_new(body, batch, schema, &self.dictionaries, &version)?
            .with_projection(self.columns.as_deref())
            .read_record_batch()?;
        // A limit may have no room for the copy.
        match self.memory.limit() {
            None => detached::detached(batch, body.len()),
            Some(_) => Ok(batch),
        }
    }

    /// Checks the lengths in a batch's metadata. Reserves the memory that decoding needs in addition to the
    /// body.
    fn admit(&mut self, batch: &ipc::RecordBatch<'_>, body: &Buffer) -> Result<()> {
        let length = body.len() as u64;
        let compressed = batch.compression().is_some();
        let mut decoded: u64 = 0;
        for buffer in batch.buffers().into_iter().flatten() {
            let (at, bytes) = (unsigned(buffer.offset())?, unsigned(buffer.length())?);
            let end = at.checked_add(bytes).filter(|&end| end <= length);
            end.ok_or_else(|| lie("a buffer", bytes))?;
            let more = match compressed {
                true => uncompressed(&body[at as usize..(at + bytes) as usize])?,
                // Arrow copies a buffer that is not aligned for its type.
                false if at % 16 != 0 => bytes,
                false => 0,
            };
            decoded = decoded.saturating_add(more);
        }
        let most = (8 * length).saturating_add(decoded.saturating_mul(8)).max(i32::MAX as u64);
        let rows = unsigned(batch.length())?;
        if rows > most {
            return Err(lie("a batch", rows));
        }
        for node in batch.nodes().into_iter().flatten() {
            if unsigned(node.null_count())? > unsigned(node.length())? || node.length() >> 48 != 0 {
                return Err(lie("a column", node.length() as u64));
            }
        }
        let buffers = batch.buffers().map_or(0, |buffers| buffers.len() as i64);
        if batch.variadicBufferCounts().into_iter().flatten().any(|n| !(0..=buffers).contains(&n)) {
            return Err(bad("a batch with more buffers than it lists"));
        }
        let all = self.decoding.bytes().saturating_add(decoded);
        Ok(self.memory.resize(&mut self.decoding, all, "decoding an Arrow batch")?)
    }
}

impl Iterator for IpcReader {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.advance();
        self.ended = !matches!(next, Ok(Some(_)));
        // The consumer of the batch reserves memory for it.
        self.decoding.shrink(self.decoding.bytes());
        next.transpose()
    }
}

impl RecordBatchReader for IpcReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

impl Stream {
    /// Reads the next message. None at the end.
    fn next(&mut self, memory: &Memory, held: &mut MemoryReservation) -> Result<Option<Message>> {
        let Some(mut length) = self.length()? else { return Ok(None) };
        if length == CONTINUATION {
            length = self.length()?.ok_or_else(cut)?;
        }
        let length = unsigned(i32::from_le_bytes(length).into())?;
        if length == 0 {
            return Ok(None);
        }
        self.claim(length)?;
        if length > MAX_METADATA {
            return Err(lie("the metadata of a message", length));
        }
        memory.resize(held, metadata_memory(length), "the metadata of an Arrow message")?;
        // The buffer grows as bytes arrive, so a false length ends with the stream.
        let mut metadata = Vec::with_capacity(length.min(1 << 16) as usize);
        (&mut self.bytes).take(length).read_to_end(&mut metadata)?;
        if metadata.len() as u64 != length {
            return Err(cut());
        }
        let length = unsigned(parsed(&metadata)?.bodyLength())?;
        self.claim(length)?;
        memory.resize(held, held.bytes().saturating_add(length), "an Arrow message")?;
        let mut body = MutableBuffer::from_len_zeroed(length as usize);
        self.bytes.read_exact(&mut body).map_err(end)?;
        Ok(Some(Message { metadata, body: body.into() }))
    }

    /// Returns the next four bytes, or None at the end.
    fn length(&mut self) -> Result<Option<[u8; 4]>> {
        let mut length = Vec::with_capacity(4);
        (&mut self.bytes).take(4).read_to_end(&mut length)?;
        if length.is_empty() {
            return Ok(None);
        }
        self.claim(4)?;
        length.try_into().map(Some).map_err(|_| cut())
    }

    /// Subtracts bytes from those that are left. Fails if there are not that many.
    fn claim(&mut self, bytes: u64) -> Result<()> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(bytes).ok_or_else(|| lie("a message", bytes))?;
        }
        Ok(())
    }
}

/// Reads a message of a file whose footer begins at `length`.
fn read_block(
    file: &mut InputFile,
    length: u64,
    block: &Block,
    memory: &Memory,
    held: &mut MemoryReservation,
) -> Result<Message> {
    let (at, body) = (unsigned(block.offset())?, unsigned(block.bodyLength())?);
    let metadata = unsigned(block.metaDataLength().into())?;
    let end = at.checked_add(metadata).and_then(|end| end.checked_add(body));
    end.filter(|&end| end <= length).ok_or_else(|| lie("a block", body))?;
    let needed = metadata_memory(metadata).saturating_add(body);
    memory.resize(held, needed, "an Arrow message")?;
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = vec![0; metadata as usize];
    file.read_exact(&mut bytes)?;
    let prefix = if bytes.starts_with(&CONTINUATION) { 8 } else { 4 };
    if bytes.len() < prefix {
        return Err(bad("a block without metadata"));
    }
    bytes.drain(..prefix);
    let mut body = MutableBuffer::from_len_zeroed(body as usize);
    file.read_exact(&mut body)?;
    Ok(Message { metadata: bytes, body: body.into() })
}

/// The approximate memory of decoded metadata.
fn metadata_memory(bytes: u64) -> u64 {
    bytes.saturating_mul(16)
}

fn parsed(metadata: &[u8]) -> Result<ipc::Message<'_>> {
    ipc::root_as_message_with_opts(&verifier(metadata.len()), metadata)
        .map_err(|error| ArrowError::ParseError(format!("bad metadata: {error:?}")))
}

/// Limits for the verifier of metadata of `length` bytes. A table takes at least eight bytes, unless several
/// references share one table. Only an attacker does this: a few bytes then represent millions of columns.
pub(super) fn verifier(length: usize) -> VerifierOptions {
    VerifierOptions {
        max_depth: schema::DEEPEST,
        max_tables: length / 8 + 64,
        max_apparent_size: 64 * length + 4096,
        ..VerifierOptions::default()
    }
}

fn converted(found: ipc::Schema<'_>) -> Result<SchemaRef> {
    if !found.endianness().equals_to_target_endianness() {
        return Err(bad("its bytes are in the order of another kind of processor"));
    }
    let found = ipc::convert::fb_to_schema(found);
    schema::check(&found).map_err(|why| bad(&why))?;
    Ok(found.into())
}

/// Returns the decompressed length that a compressed buffer claims.
fn uncompressed(buffer: &[u8]) -> Result<u64> {
    let Some((length, rest)) = buffer.split_first_chunk::<8>() else { return Ok(0) };
    let most = (rest.len() as u64).saturating_mul(MAX_EXPANSION);
    match i64::from_le_bytes(*length) {
        // This buffer is not compressed.
        -1 => Ok(0),
        length => match unsigned(length)? {
            length if length <= most => Ok(length),
            length => Err(lie("a compressed buffer", length)),
        },
    }
}

fn unsigned(length: i64) -> Result<u64> {
    u64::try_from(length).map_err(|_| bad("a length below zero"))
}

fn lie(what: &str, bytes: u64) -> ArrowError {
    bad(&format!("{what} claims a size of {bytes}, which is more than there is"))
}

fn cut() -> ArrowError {
    bad("it ends too early")
}

fn end(error: io::Error) -> ArrowError {
    if error.kind() == io::ErrorKind::UnexpectedEof { cut() } else { error.into() }
}

fn bad(what: &str) -> ArrowError {
    ArrowError::IpcError(what.to_string())
}

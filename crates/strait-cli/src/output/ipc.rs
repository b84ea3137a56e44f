//! Writes compressed Arrow files and streams. Each lane compresses whole messages.
//!
//! Arrow's own writers compress one message after the other. They are used for output without compression,
//! where encoding is only a copy, under a memory limit, and for dictionaries, whose messages depend on the
//! messages before them.

use std::io::Write;
use std::sync::Arc;

use anyhow::Context;
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::convert::IpcSchemaEncoder;
use arrow::ipc::writer::{
    DictionaryTracker, EncodedData, IpcDataGenerator, IpcWriteContext, IpcWriteOptions,
    write_message,
};
use arrow::ipc::{Block, FooterBuilder, MetadataVersion};
use flatbuffers::FlatBufferBuilder;

use super::blocks::{Blocks, Lane, Tail};
use super::encode::Bytes;
use super::pieces::compacted;
use super::unpack::unpacked;

/// A file begins with these bytes, up to a multiple of the alignment, and ends with the first six of them.
const MAGIC: &[u8; 6] = b"ARROW1";
const ALIGNMENT: usize = 64;

/// Marks the end of a stream.
const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// Ordered rows are put aside until there are this many.
const ASIDE_ROWS: usize = 1 << 15;

/// Opens a file, or a stream. The schema must not have dictionaries.
pub(super) fn open(
    schema: &SchemaRef,
    is_file: bool,
    options: &IpcWriteOptions,
    threads: usize,
    bytes: Bytes,
) -> anyhow::Result<Blocks<MessageLane, MessageTail>> {
    let lane = || MessageLane {
        schema: Arc::clone(schema),
        options: options.clone(),
        tracker: DictionaryTracker::new(true),
        context: IpcWriteContext::default(),
    };
    let lanes = (0..threads.max(1)).map(|_| lane()).collect();
    let mut tail = MessageTail {
        bytes,
        schema: Arc::clone(schema),
        options: options.clone(),
        is_file,
        position: 0,
        blocks: Vec::new(),
    };
    if is_file {
        let mut start = [0; ALIGNMENT];
        start[..MAGIC.len()].copy_from_slice(MAGIC);
        tail.bytes.write_all(&start)?;
        tail.position = ALIGNMENT;
    }
    let tracker = &mut DictionaryTracker::new(true);
    let generator = IpcDataGenerator::default();
    let message = generator.schema_to_bytes_with_dictionary_tracker(schema, tracker, options);
    tail.write(message)?;
    Ok(Blocks::new(lanes, tail, Some(ASIDE_ROWS)))
}

/// Encodes batches as messages.
pub(super) struct MessageLane {
    /// The schema to which batches are converted.
    schema: SchemaRef,
    options: IpcWriteOptions,
    tracker: DictionaryTracker,
    context: IpcWriteContext,
}

impl Lane for MessageLane {
    type Block = EncodedData;

    fn write(
        &mut self,
        batch: &RecordBatch,
        done: &mut dyn FnMut(EncodedData) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let batch = match batch.schema_ref().fields() == self.schema.fields() {
            true => batch.clone(),
            false => unpacked(&self.schema, batch)?,
        };
        let (_, message) = IpcDataGenerator::default().encode(
            &compacted(batch)?,
            &mut self.tracker,
            &self.options,
            &mut self.context,
        )?;
        done(message)
    }

    fn close(&mut self) -> anyhow::Result<Option<EncodedData>> {
        Ok(None)
    }
}

/// A file or a stream of messages.
pub(super) struct MessageTail {
    bytes: Bytes,
    schema: SchemaRef,
    options: IpcWriteOptions,
    is_file: bool,
    /// The number of bytes written.
    position: usize,
    /// The places of the messages in the file.
    blocks: Vec<Block>,
}

impl MessageTail {
    /// Writes a message. Returns its place.
    fn write(&mut self, message: EncodedData) -> anyhow::Result<Block> {
        let (metadata, body) = write_message(&mut self.bytes, message, &self.options)?;
        let length = i32::try_from(metadata).context("the metadata of a message is too long")?;
        let block = Block::new(self.position as i64, length, body as i64);
        self.position += metadata + body;
        Ok(block)
    }

    /// Returns the footer of a file.
    fn footer(&self) -> Vec<u8> {
        let builder = &mut FlatBufferBuilder::new();
        let none: [Block; 0] = [];
        let dictionaries = builder.create_vector(&none);
        let batches = builder.create_vector(&self.blocks);
        let tracker = &mut DictionaryTracker::new(true);
        let mut encoder = IpcSchemaEncoder::new().with_dictionary_tracker(tracker);
        let schema = encoder.schema_to_fb_offset(builder, &self.schema);
        let mut footer = FooterBuilder::new(builder);
        footer.add_version(MetadataVersion::V5);
        footer.add_schema(schema);
        footer.add_dictionaries(dictionaries);
        footer.add_recordBatches(batches);
        let root = footer.finish();
        builder.finish(root, None);
        builder.finished_data().to_vec()
    }
}

impl Tail for MessageTail {
    type Block = EncodedData;

    fn append(&mut self, message: EncodedData) -> anyhow::Result<()> {
        let block = self.write(message)?;
        if self.is_file {
            self.blocks.push(block);
        } else {
            // A reader of the stream must get the rows now, not when a buffer is full.
            self.bytes.flush()?;
        }
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.bytes.write_all(&END)?;
        if self.is_file {
            let footer = self.footer();
            let length = i32::try_from(footer.len());
            let length = length.context("the file has too many batches for its footer")?;
            self.bytes.write_all(&footer)?;
            self.bytes.write_all(&length.to_le_bytes())?;
            self.bytes.write_all(MAGIC)?;
        }
        Ok(self.bytes.flush()?)
    }
}

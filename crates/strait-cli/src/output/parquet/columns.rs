//! The columns of row groups, and how they are encoded.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, bail};
use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{
    ArrowColumnChunk, ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves,
};
use parquet::basic::{Encoding, Type};
use parquet::file::properties::WriterPropertiesBuilder;
use parquet::file::writer::SerializedRowGroupWriter;
use parquet::schema::types::{ColumnDescPtr, ColumnPath, SchemaDescriptor};

use super::super::encode::Bytes;
use super::bounds::without_bad_bounds;
use super::chunk::OwnChunk;
use super::codec::PageCodec;
use super::encodings::{self, ColumnEncoding, Setting};
use super::numbers::{NumberColumn, holds_numbers};
use super::strings::{StringColumn, holds_strings};

/// Makes the columns of row groups.
pub(super) struct Columns {
    pub(super) schema: SchemaRef,
    properties: WriterPropertiesBuilder,
    setting: Setting,
    /// One entry per column chunk of a row group: the index of the field in the schema, and the Parquet
    /// description of the column.
    leaves: Vec<(usize, ColumnDescPtr)>,
    /// The encodings until there is a sample.
    unsampled: Chosen,
    /// The encodings that the sample suggests.
    sampled: OnceLock<Chosen>,
}

/// The encodings of all columns.
struct Chosen {
    factory: ArrowRowGroupWriterFactory,
    /// The encodings of the fields that are encoded here, by position.
    own: Vec<Option<ColumnEncoding>>,
}

impl Columns {
    pub(super) fn new(
        (schema, descr): (SchemaRef, &SchemaDescriptor),
        properties: WriterPropertiesBuilder,
        setting: Setting,
    ) -> anyhow::Result<Columns> {
        let unsampled = Chosen::new(&schema, properties.clone(), Vec::new())?;
        let leaf = |leaf| (descr.get_column_root_idx(leaf), descr.column(leaf));
        let leaves = (0..descr.num_columns()).map(leaf).collect();
        Ok(Columns { schema, properties, setting, leaves, unsampled, sampled: OnceLock::new() })
    }

    /// Returns the encodings for a row group that begins with these rows. The first batch that is large enough
    /// for a sample decides on the encodings of the whole file.
    fn chosen(&self, rows: &RecordBatch) -> anyhow::Result<&Chosen> {
        if let Some(chosen) = self.sampled.get() {
            return Ok(chosen);
        }
        let mut properties = self.properties.clone();
        let mut known = false;
        let mut own = vec![None; self.schema.fields().len()];
        for ((field, array), own) in self.schema.fields().iter().zip(rows.columns()).zip(&mut own) {
            let chosen = encodings::choose(array, &self.setting);
            let Some(encoding) = chosen else { continue };
            known = true;
            log::debug!("column {}: {encoding:?}", field.name());
            let data_type = field.data_type();
            let Setting { own: own_strings, own_numbers, .. } = self.setting;
            if own_strings && holds_strings(data_type) || own_numbers && holds_numbers(data_type) {
                *own = chosen;
                continue;
            }
            let encoding = match encoding {
                ColumnEncoding::Dictionary => continue,
                ColumnEncoding::Plain => Encoding::PLAIN,
                ColumnEncoding::Differences => Encoding::DELTA_BINARY_PACKED,
            };
            let path = ColumnPath::new(vec![field.name().clone()]);
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, encoding);
        }
        if !known {
            return Ok(&self.unsampled);
        }
        let chosen = Chosen::new(&self.schema, properties, own)?;
        Ok(self.sampled.get_or_init(|| chosen))
    }

    /// Makes the columns of a row group that begins with these rows.
    pub(super) fn begin(&self, group: usize, rows: &RecordBatch) -> anyhow::Result<Vec<Column>> {
        let chosen = self.chosen(rows)?;
        let columns = chosen.factory.create_column_writers(group)?.into_iter().zip(&self.leaves);
        let column = |(column, (field, descr)): (_, &(usize, ColumnDescPtr))| {
            let descr = Arc::clone(descr);
            match chosen.own.get(*field).copied().flatten() {
                None => Column::Arrow(Box::new(column)),
                Some(encoding) if descr.physical_type() == Type::BYTE_ARRAY => {
                    let dictionary = encoding == ColumnEncoding::Dictionary;
                    Column::Strings(Box::new(StringColumn::new(descr, dictionary)))
                }
                Some(encoding) => Column::Numbers(Box::new(NumberColumn::new(descr, encoding))),
            }
        };
        Ok(columns.map(column).collect())
    }
}

impl Chosen {
    fn new(
        schema: &SchemaRef,
        properties: WriterPropertiesBuilder,
        own: Vec<Option<ColumnEncoding>>,
    ) -> anyhow::Result<Chosen> {
        // Only the factory is needed. It has the properties of its writer.
        let writer =
            ArrowWriter::try_new(std::io::sink(), Arc::clone(schema), Some(properties.build()))?;
        let (_, factory) = writer.into_serialized_writer()?;
        Ok(Chosen { factory, own })
    }
}

/// A column chunk that is being encoded.
pub(super) enum Column {
    Arrow(Box<ArrowColumnWriter>),
    Strings(Box<StringColumn>),
    Numbers(Box<NumberColumn>),
}

/// A column chunk that is complete.
pub(super) enum Chunk {
    Arrow(ArrowColumnChunk),
    Own(OwnChunk),
}

impl Column {
    pub(super) fn close(self, codec: &mut PageCodec) -> anyhow::Result<Chunk> {
        let mut chunk = match self {
            Column::Arrow(column) => Chunk::Arrow(column.close()?),
            Column::Strings(column) => Chunk::Own(column.close(codec)?),
            Column::Numbers(column) => Chunk::Own(column.close(codec)?),
        };
        without_bad_bounds(match &mut chunk {
            Chunk::Arrow(chunk) => chunk.close_mut(),
            Chunk::Own(chunk) => &mut chunk.close,
        })?;
        Ok(chunk)
    }

    /// The approximate memory of the column chunk, in bytes.
    pub(super) fn memory_size(&self) -> u64 {
        match self {
            Column::Arrow(column) => column.memory_size() as u64,
            Column::Numbers(column) => column.memory_size(),
            // Not used under a memory limit.
            Column::Strings(_) => 0,
        }
    }
}

/// Encodes the rows of a batch into the columns of a row group.
pub(super) fn encode(
    columns: &mut [Column],
    schema: &SchemaRef,
    arrays: &[ArrayRef],
    codec: &mut PageCodec,
) -> anyhow::Result<()> {
    let mut columns = columns.iter_mut();
    let lacks = "a batch has columns that its schema lacks";
    for (field, array) in schema.fields().iter().zip(arrays) {
        let first = match columns.next().context(lacks)? {
            Column::Strings(column) => {
                column.write(array, codec)?;
                continue;
            }
            Column::Numbers(column) => {
                column.write(array, codec)?;
                continue;
            }
            Column::Arrow(column) => column,
        };
        // A nested column has several leaves. Arrow's writers encode all of them.
        let mut leaves = compute_leaves(field, array)?.into_iter();
        first.write(&leaves.next().context(lacks)?)?;
        for leaf in leaves {
            match columns.next().context(lacks)? {
                Column::Arrow(column) => column.write(&leaf)?,
                Column::Strings(_) | Column::Numbers(_) => bail!(lacks),
            }
        }
    }
    Ok(())
}

impl Chunk {
    pub(super) fn append_to(
        self,
        group: &mut SerializedRowGroupWriter<'_, Bytes>,
    ) -> anyhow::Result<()> {
        match self {
            Chunk::Arrow(chunk) => chunk.append_to_row_group(group)?,
            Chunk::Own(chunk) => group.append_column(&chunk.bytes, chunk.close)?,
        }
        Ok(())
    }
}

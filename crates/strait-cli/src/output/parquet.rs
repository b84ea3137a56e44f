//! Parquet files, their columns encoded by several threads.
//!
//! Compression takes longer than most joins. So each batch's columns are dealt out to the threads;
//! only encoded bytes are held until their row group is complete.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context;
use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{
    ArrowColumnWriter, ArrowLeafColumn, ArrowRowGroupWriterFactory, compute_leaves,
};
use parquet::basic::{Compression as Codec, ZstdLevel};
use parquet::errors::Result;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

use super::destination::Compression;
use super::encode::Bytes;

/// Rows in a row group, as Arrow's own writer has it.
const GROUP_ROWS: usize = 1 << 20;

/// Rows that are worth waking threads for.
const CHUNK_ROWS: usize = 1 << 16;

/// A Parquet file under way.
pub(super) struct ParquetEncoder {
    writer: SerializedFileWriter<Bytes>,
    factory: ArrowRowGroupWriterFactory,
    schema: SchemaRef,
    threads: usize,
    /// Batches not yet encoded.
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    /// The row group under way: its columns and rows.
    columns: Vec<ArrowColumnWriter>,
    group_rows: usize,
}

impl ParquetEncoder {
    pub(super) fn new(
        schema: &SchemaRef,
        compression: Option<Compression>,
        threads: usize,
        bytes: Bytes,
    ) -> anyhow::Result<Self> {
        let codec = match compression {
            None | Some(Compression::Zstd) => Codec::ZSTD(ZstdLevel::default()),
            Some(Compression::Snappy) => Codec::SNAPPY,
            Some(Compression::None) => Codec::UNCOMPRESSED,
        };
        let properties = WriterProperties::builder().set_compression(codec).build();
        let (writer, factory) = ArrowWriter::try_new(bytes, schema.clone(), Some(properties))
            .and_then(ArrowWriter::into_serialized_writer)
            .context("cannot write these columns as Parquet")?;
        Ok(ParquetEncoder {
            writer,
            factory,
            schema: schema.clone(),
            threads,
            pending: Vec::new(),
            pending_rows: 0,
            columns: Vec::new(),
            group_rows: 0,
        })
    }

    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut start = 0;
        while start < batch.num_rows() {
            let room = GROUP_ROWS - self.group_rows - self.pending_rows;
            let rows = room.min(batch.num_rows() - start);
            self.pending.push(batch.slice(start, rows));
            self.pending_rows += rows;
            start += rows;
            let full = self.group_rows + self.pending_rows == GROUP_ROWS;
            if full || self.pending_rows >= CHUNK_ROWS {
                self.encode()?;
            }
            if full {
                self.close_group()?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<()> {
        self.encode()?;
        self.close_group()?;
        self.writer.finish()?;
        std::io::Write::flush(self.writer.inner_mut())?;
        Ok(())
    }

    /// Encodes the pending rows into the row group under way.
    fn encode(&mut self) -> Result<()> {
        if self.pending_rows == 0 {
            return Ok(());
        }
        if self.columns.is_empty() {
            let index = self.writer.flushed_row_groups().len();
            self.columns = self.factory.create_column_writers(index)?;
        }
        let batch = concat_batches(&self.schema, &self.pending)?;
        let mut leaves = Vec::with_capacity(self.columns.len());
        for (field, array) in self.schema.fields().iter().zip(batch.columns()) {
            leaves.extend(compute_leaves(field, array)?);
        }
        encode_columns(self.columns.iter_mut().zip(leaves), self.threads)?;
        self.group_rows += self.pending_rows;
        self.pending_rows = 0;
        self.pending.clear();
        Ok(())
    }

    fn close_group(&mut self) -> Result<()> {
        if self.group_rows > 0 {
            let mut group = self.writer.next_row_group()?;
            for column in self.columns.drain(..) {
                column.close()?.append_to_row_group(&mut group)?;
            }
            group.close()?;
            self.group_rows = 0;
        }
        Ok(())
    }
}

/// Encodes each leaf by its writer, as many at once as there are threads.
fn encode_columns<'a>(
    jobs: impl Iterator<Item = (&'a mut ArrowColumnWriter, ArrowLeafColumn)> + Send,
    threads: usize,
) -> Result<()> {
    let jobs = Arc::new(Mutex::new(jobs));
    let work = || {
        loop {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).next();
            match job {
                Some((writer, leaf)) => writer.write(&leaf)?,
                None => return Ok(()),
            }
        }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut result = work();
        for other in others {
            match other.join() {
                Ok(theirs) => result = result.and(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        result
    })
}

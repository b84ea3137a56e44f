//! The columns of a table that a join needs. Some are stored in the files, and some are in the names of
//! their folders.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;

use super::table::Files;
use super::{cast, decimals, hive};
use crate::memory::Memory;

/// The columns of a table that are wanted, and their order.
pub(super) struct Columns {
    wanted: Vec<usize>,
    /// The wanted columns that are stored in the files, in the order of the files.
    stored: Vec<usize>,
    /// The fields of these columns after casts.
    stored_fields: Vec<FieldRef>,
    /// The schema of the wanted columns only.
    schema: SchemaRef,
}

impl Columns {
    /// The `wanted` columns of a table. Its first `stored` columns are in the files.
    pub(super) fn new(table: &Schema, wanted: &[usize], stored: usize) -> Self {
        // Metadata is omitted, because it may differ between files.
        let fields = wanted.iter().map(|&i| table.fields()[i].clone());
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let mut stored: Vec<usize> = wanted.iter().copied().filter(|&i| i < stored).collect();
        stored.sort_unstable();
        stored.dedup();
        let stored_fields = stored.iter().map(|&i| table.fields()[i].clone()).collect();
        Columns { wanted: wanted.to_vec(), stored, stored_fields, schema }
    }

    pub(super) fn stored(&self) -> &[usize] {
        &self.stored
    }

    pub(super) fn stored_fields(&self) -> &[FieldRef] {
        &self.stored_fields
    }

    /// Returns the columns at these positions, in this order.
    pub(super) fn at(&self, positions: &[usize]) -> Option<Columns> {
        let wanted = positions.iter().map(|&i| self.wanted.get(i).copied());
        let wanted: Vec<usize> = wanted.collect::<Option<_>>()?;
        let stored = self.stored.iter().copied().zip(self.stored_fields.iter().cloned());
        let (stored, stored_fields) = stored.filter(|(column, _)| wanted.contains(column)).unzip();
        let schema = Arc::new(self.schema.project(positions).ok()?);
        Some(Columns { wanted, stored, stored_fields, schema })
    }

    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Arranges the columns of a file's batch in the wanted order, casts them, and checks their decimals. If memory is
    /// refused, it can be called again.
    pub(super) fn arranged(
        &self,
        files: &Files,
        index: usize,
        batch: &RecordBatch,
        memory: &Memory,
    ) -> Result<RecordBatch, ArrowError> {
        let rows = batch.num_rows();
        let path = &files.files[index].found.path;
        let batch = cast_within(memory, batch, &self.stored_fields, || path.display().to_string())?;
        let column = |(position, wanted): (usize, &usize)| match self.stored.binary_search(wanted) {
            Ok(at) => Some(batch.column(at).clone()),
            Err(_) => {
                let field = self.schema.field(position);
                let partitions = &files.files[index].found.partitions;
                let partition = partitions.iter().find(|p| p.key == *field.name())?;
                Some(hive::column(partition, field.data_type(), rows))
            }
        };
        let columns: Option<Vec<_>> = self.wanted.iter().enumerate().map(column).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        columns
            .ok_or_else(|| ArrowError::SchemaError("a folder's column is missing".to_string()))
            .and_then(|columns| {
                RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            })
    }

    /// Arranges the columns of a batch of stdin, which has all columns of the table, casts them, and checks their
    /// decimals.
    pub(super) fn picked(
        &self,
        batch: &RecordBatch,
        memory: &Memory,
    ) -> Result<RecordBatch, ArrowError> {
        let picked = batch.project(&self.wanted)?;
        let picked = cast_within(memory, &picked, self.schema.fields(), || "stdin".to_string())?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(self.schema.clone(), picked.columns().to_vec(), &options)
    }
}

/// Casts the columns of a batch. Memory for the cast is reserved while it runs. Decimals are checked after the cast: if
/// the user casts a column to a type with more digits, its decimals may have more digits. Errors name the file, or stdin.
fn cast_within(
    memory: &Memory,
    batch: &RecordBatch,
    fields: &[FieldRef],
    place: impl Fn() -> String,
) -> Result<RecordBatch, ArrowError> {
    let needed = cast::memory(batch, fields);
    let _held = match needed {
        0 => None,
        needed => Some(memory.reserve(needed, &format!("casting columns of {}", place()))?),
    };
    let batch = cast::cast_batch(batch.clone(), fields).map_err(|error| error.at(|_| place()))?;
    decimals::check(&batch, place)?;
    Ok(batch)
}

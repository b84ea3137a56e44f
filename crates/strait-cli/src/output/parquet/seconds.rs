//! Timestamps and times of day in seconds become milliseconds. Parquet has no unit for seconds, and Arrow's writer
//! stores them as plain integers, which other programs do not take for times.

use std::sync::Arc;

use anyhow::Context;
use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::compute::{CastOptions, can_cast_types, cast_with_options};
use arrow::datatypes::{DataType, SchemaRef, TimeUnit};

use crate::output::types::retyped_schema;

/// Returns the schema with milliseconds in place of seconds, at any depth.
pub(super) fn in_milliseconds(schema: &SchemaRef) -> SchemaRef {
    let replaced = retyped_schema(schema, &|data_type| match data_type {
        DataType::Timestamp(TimeUnit::Second, zone) => {
            Some(DataType::Timestamp(TimeUnit::Millisecond, zone.clone()))
        }
        DataType::Time32(TimeUnit::Second) => Some(DataType::Time32(TimeUnit::Millisecond)),
        _ => None,
    });
    let mut pairs = schema.fields().iter().zip(replaced.fields());
    // Arrow casts all nested types that Parquet can store.
    let can_cast = pairs.all(|(from, to)| {
        from.data_type() == to.data_type() || can_cast_types(from.data_type(), to.data_type())
    });
    if can_cast { replaced } else { Arc::clone(schema) }
}

/// Converts those columns of a batch that have another type in `schema`. Dictionaries are left as they are.
pub(super) fn converted(schema: &SchemaRef, batch: &RecordBatch) -> anyhow::Result<RecordBatch> {
    if *schema.fields() == *batch.schema_ref().fields() {
        return Ok(batch.clone());
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let pairs = schema.fields().iter().zip(batch.columns());
    let columns = pairs.map(|(field, column)| {
        cast_with_options(column, field.data_type(), &options).with_context(|| {
            format!("column \"{}\" has a time that milliseconds cannot hold", field.name())
        })
    });
    let columns = columns.collect::<anyhow::Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

//! Parquet tables. Strait finds and checks their files, and DataFusion reads them: it skips the row groups and pages that
//! a statement does not need.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, ScalarValue, Statistics};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::Result;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::object_store::ObjectMeta;
use datafusion::object_store::path::Path as Key;
use datafusion::physical_plan::ExecutionPlan;
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::OnceCell;

use crate::input::InputTable;

/// The number of footers that are read at the same time.
const FOOTERS: usize = 32;

/// A table of Parquet files, on disk or in one object store.
#[derive(Debug)]
pub(super) struct ParquetTable {
    schema: TableSchema,
    store: ObjectStoreUrl,
    files: Vec<PartitionedFile>,
    /// The files with the statistics of their footers.
    known: OnceCell<Vec<PartitionedFile>>,
}

impl ParquetTable {
    /// Returns `None` if DataFusion cannot read the table: its files have another format, or are on a web server.
    pub(super) fn of(table: &InputTable, views: bool) -> anyhow::Result<Option<ParquetTable>> {
        let Some(found) = table.parquet_files() else { return Ok(None) };
        let mut store = None;
        let mut files = Vec::with_capacity(found.files.len());
        for file in found.files {
            let Some((url, meta)) = described(&file.path)? else { return Ok(None) };
            store = Some(url);
            let values = file.values.iter().map(|value| ScalarValue::try_from_array(value, 0));
            let values = values.collect::<Result<Vec<_>>>()?;
            files.push(PartitionedFile::new_from_meta(meta).with_partition_values(values));
        }
        let store = store.context("a table has at least one file")?;
        let folders: Vec<FieldRef> = found.folders.into_iter().map(Arc::new).collect();
        let stored = if views { with_views(&found.stored) } else { found.stored };
        let schema = TableSchema::builder(stored);
        let schema = schema.with_table_partition_cols(folders).build();
        Ok(Some(ParquetTable { schema, store, files, known: OnceCell::new() }))
    }

    /// Returns the files with their statistics. Reads the footers at the first call.
    async fn known(
        &self,
        format: &ParquetFormat,
        state: &dyn Session,
    ) -> Result<&Vec<PartitionedFile>> {
        let store = state.runtime_env().object_store(&self.store)?;
        let read = || async {
            let known = futures_util::stream::iter(self.files.clone()).map(|file| async {
                let columns = Arc::clone(self.schema.file_schema());
                let meta = &file.object_meta;
                let statistics = format.infer_stats(state, &store, columns, meta).await?;
                Ok(with_statistics(file, statistics))
            });
            known.buffered(FOOTERS).try_collect().await
        };
        self.known.get_or_try_init(read).await
    }
}

/// Returns the object store of a file, and the size and time of the file. Returns `None` for a file on a web server.
fn described(path: &Path) -> anyhow::Result<Option<(ObjectStoreUrl, ObjectMeta)>> {
    #[cfg(feature = "object-stores")]
    if let Some(object) = crate::store::object(path) {
        if object.location().is_web() {
            return Ok(None);
        }
        let url = ObjectStoreUrl::parse(object.location().store_url())?;
        return Ok(Some((url, object.meta())));
    }
    let cannot_read = || format!("cannot read {}", path.display());
    let found = path.metadata().with_context(cannot_read)?;
    let meta = ObjectMeta {
        location: Key::from_filesystem_path(path).with_context(cannot_read)?,
        last_modified: found.modified().with_context(cannot_read)?.into(),
        size: found.len(),
        e_tag: None,
        version: None,
    };
    Ok(Some((ObjectStoreUrl::local_filesystem(), meta)))
}

/// Adds the statistics of a file's columns, and those of its folder columns.
fn with_statistics(mut file: PartitionedFile, mut statistics: Statistics) -> PartitionedFile {
    let folder = |value: &ScalarValue| match value.is_null() {
        true => ColumnStatistics { null_count: statistics.num_rows, ..Default::default() },
        false => ColumnStatistics {
            null_count: Precision::Exact(0),
            min_value: Precision::Exact(value.clone()),
            max_value: Precision::Exact(value.clone()),
            distinct_count: Precision::Exact(1),
            ..Default::default()
        },
    };
    let folders: Vec<_> = file.partition_values.iter().map(folder).collect();
    statistics.column_statistics.extend(folders);
    file.statistics = Some(Arc::new(statistics));
    file
}

/// Returns the schema with views in the place of text and binary values. DataFusion decodes views faster.
fn with_views(schema: &Schema) -> SchemaRef {
    let field = |field: &FieldRef| {
        let viewed = match field.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
            DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
            _ => return Arc::clone(field),
        };
        Arc::new(Field::new(field.name(), viewed, field.is_nullable()))
    };
    Arc::new(Schema::new(schema.fields().iter().map(field).collect::<Vec<_>>()))
}

#[async_trait]
impl TableProvider for ParquetTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.schema.table_schema())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = state.table_options().parquet.clone();
        let format = ParquetFormat::default().with_options(options);
        let files = self.known(&format, state).await?;
        let each = files.iter().filter_map(|file| file.statistics.as_deref());
        let statistics = Statistics::try_merge_iter(each, self.schema.table_schema())?;
        let groups = FileGroup::new(files.clone()).split_files(state.config().target_partitions());
        let source = format.file_source(self.schema.clone());
        let scan = FileScanConfigBuilder::new(self.store.clone(), source)
            .with_file_groups(groups)
            .with_statistics(statistics)
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        format.create_physical_plan(state, scan).await
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        // A filter leaves out whole row groups, but not single rows.
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the value of a folder is null, its column has no least value, and every row counts as null.
    #[test]
    fn folders_have_statistics() {
        let rows = Statistics::new_unknown(&Schema::empty()).with_num_rows(Precision::Exact(7));
        let values = vec![ScalarValue::Int64(Some(3)), ScalarValue::Utf8(None)];
        let file = PartitionedFile::new("a.parquet", 100).with_partition_values(values);
        let known = with_statistics(file, rows).statistics.unwrap();
        let [three, null] = &known.column_statistics[..] else { panic!("two columns") };
        assert_eq!(three.null_count, Precision::Exact(0));
        assert_eq!(three.min_value, Precision::Exact(ScalarValue::Int64(Some(3))));
        assert_eq!((null.null_count, &null.min_value), (Precision::Exact(7), &Precision::Absent));
    }
}

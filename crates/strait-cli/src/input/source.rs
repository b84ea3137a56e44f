//! The source that a join gets for Parquet files. The workers of the join decode the rows.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use strait::{Morsel, Source, SourceContext};

use super::columns::Columns;
use super::row_groups::{Failure, ParquetFile, RowGroups};
use super::sizes;
use super::table::Files;
use crate::memory::Memory;

/// The wanted columns of a table's files.
pub(crate) struct TableSource {
    columns: Columns,
    files: Files,
    rows: RowGroups,
}

impl TableSource {
    /// Prepares to read on up to `threads` threads. All files must be Parquet files.
    pub(super) fn new(files: Files, columns: Columns, threads: usize, memory: &Memory) -> Self {
        let stored = columns.stored();
        let footers = files.files.iter().enumerate();
        let footers =
            footers.filter_map(|(index, file)| Some((index, file, file.footer.as_ref()?)));
        let groups = footers.flat_map(|(index, file, footer)| {
            let rows = |group| sizes::group_rows(footer.metadata().row_group(group));
            file.groups.iter().map(move |&group| (index, group, rows(group)))
        });
        let rows = RowGroups::new(groups, stored, threads, &memory.for_sources());
        TableSource { columns, files, rows }
    }

    /// Returns a batch that no other call returns; `None` at the end. Many workers may call it.
    pub(super) fn read(
        &self,
        cancelled: impl Fn() -> bool,
    ) -> Result<Option<RecordBatch>, ArrowError> {
        let file = |index: usize| {
            let file = self.files.files.get(index)?;
            let (path, footer) = (&*file.found.path, file.footer.as_ref()?);
            Some(ParquetFile { path, footer })
        };
        let read = self.rows.next(file, cancelled);
        let Some((index, batch)) = read.map_err(|failure| self.explained(failure))? else {
            return Ok(None);
        };
        let arranged = self.columns.arranged(&self.files, index, &batch);
        arranged.map(Some).map_err(|error| self.files.explained(index, None, error))
    }

    fn explained(&self, (part, error): Failure) -> ArrowError {
        self.files.explained(part.file, Some(part.group), error)
    }
}

impl Source for TableSource {
    fn schema(&self) -> SchemaRef {
        self.columns.schema().clone()
    }

    fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        Ok(self.read(|| context.cancelled())?.map(Morsel::new))
    }
}

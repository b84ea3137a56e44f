//! The source that a join gets for Parquet and text files. The workers of the join decode the rows.

use arrow::array::RecordBatch;
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use strait::{KeyFilter, Morsel, Source, SourceContext};

use super::blocks::Blocks;
use super::casting::Casting;
use super::columns::Columns;
use super::row_groups::{Failure, Keys, ParquetFile, ReadRows, RowGroups};
use super::sizes;
use super::table::Files;
use crate::memory::Memory;
use crate::store;

/// The wanted columns of a table's files.
pub(crate) struct TableSource {
    columns: Columns,
    files: Files,
    rows: Rows,
    casting: Casting,
    memory: Memory,
}

enum Rows {
    /// The row groups, and whether the keys of rows may be decoded before their other columns.
    Parquet(RowGroups, bool),
    Text(Blocks),
}

impl TableSource {
    /// Prepares to read CSV files or JSON lines on up to `threads` threads.
    pub(super) fn text(files: Files, columns: Columns, threads: usize, memory: &Memory) -> Self {
        let memory = memory.for_sources();
        let rows = Rows::Text(Blocks::new(&columns, threads, &memory));
        TableSource { columns, files, rows, casting: Casting::default(), memory }
    }

    /// Prepares to read Parquet files on up to `threads` threads.
    pub(super) fn parquet(files: Files, columns: Columns, threads: usize, memory: &Memory) -> Self {
        let stored = columns.stored();
        let footers = files.files.iter().enumerate();
        let footers =
            footers.filter_map(|(index, file)| Some((index, file, file.footer.as_ref()?)));
        let groups = footers.flat_map(|(index, file, footer)| {
            let rows = |group| sizes::group_rows(footer.metadata().row_group(group));
            file.groups.iter().map(move |&group| (index, group, rows(group)))
        });
        let memory = memory.for_sources();
        let may_decode_keys_first = may_decode_keys_first(&files, &columns);
        let row_groups = RowGroups::new(groups, stored, threads, &memory);
        let rows = Rows::Parquet(row_groups, may_decode_keys_first);
        TableSource { columns, files, rows, casting: Casting::default(), memory }
    }

    /// Returns a batch that no other call returns; `None` at the end. Many workers may call it.
    pub(super) fn read(
        &self,
        cancelled: impl Fn() -> bool,
    ) -> Result<Option<RecordBatch>, ArrowError> {
        Ok(self.read_matching(None, cancelled)?.map(|(batch, _)| batch))
    }

    /// Does the same as [`read`](TableSource::read), but may leave out rows that cannot match according to a
    /// filter. Also returns the number of these rows.
    fn read_matching(
        &self,
        filter: Option<&dyn KeyFilter>,
        cancelled: impl Fn() -> bool,
    ) -> Result<Option<(RecordBatch, u64)>, ArrowError> {
        let file = |index: usize| {
            let file = self.files.files.get(index)?;
            let (path, footer) = (&*file.found.path, file.footer.as_ref()?);
            Some(ParquetFile { path, footer })
        };
        let read = || match &self.rows {
            Rows::Parquet(rows, may_decode_keys_first) => {
                let filter = filter.filter(|_| *may_decode_keys_first);
                let keyed = filter.and_then(|filter| self.keyed(filter));
                let may_match = |index: usize, batch: &RecordBatch| match &keyed {
                    Some((filter, columns)) => {
                        let keys = columns.arranged(&self.files, index, batch, &self.memory)?;
                        filter.may_match(keys.columns())
                    }
                    None => Ok(BooleanBuffer::new_set(batch.num_rows())),
                };
                let keys = keyed
                    .as_ref()
                    .map(|(_, columns)| Keys { columns: columns.stored(), may_match: &may_match });
                let read = rows.next(file, keys.as_ref(), &cancelled);
                read.map_err(|failure| self.explained(failure))
            }
            Rows::Text(rows) => rows.next(&self.files, &cancelled).map(|read| {
                read.map(|(file, batch)| ReadRows { file, batch: Some(batch), left_out: 0 })
            }),
        };
        let arrange = |read: &ReadRows| {
            let Some(batch) = &read.batch else {
                return Ok((RecordBatch::new_empty(self.columns.schema().clone()), read.left_out));
            };
            let arranged = self.columns.arranged(&self.files, read.file, batch, &self.memory);
            let arranged =
                arranged.map_err(|error| self.files.explained(read.file, None, error))?;
            Ok((arranged, read.left_out))
        };
        if self.memory.limit().is_none() {
            // No memory is refused, so no batch has to wait.
            return read()?.map(|read| arrange(&read)).transpose();
        }
        self.casting.next(read, arrange, &cancelled)
    }

    /// Returns the filter and its columns. Returns `None` if the files have no key column, or if the join needs only
    /// key columns of the files. Then all columns are decoded at once.
    fn keyed<'f>(&self, filter: &'f dyn KeyFilter) -> Option<(&'f dyn KeyFilter, Columns)> {
        let columns = self.columns.at(filter.columns())?;
        let keys = columns.stored().len();
        (0 < keys && keys < self.columns.stored().len()).then_some((filter, columns))
    }

    fn explained(&self, (part, error): Failure) -> ArrowError {
        self.files.explained(part.file, Some(part.group), error)
    }
}

/// Returns whether the keys of rows may be decoded first, so that rows without a match are left out. Returns false in
/// two cases:
///
/// - A column is cast. A value that cannot be cast is an error, even if its row has no match.
/// - A file is an object of a store. All bytes of its column chunks are fetched in any case.
fn may_decode_keys_first(files: &Files, columns: &Columns) -> bool {
    let stored = files.stored.fields();
    let is_cast = columns.stored().iter().zip(columns.stored_fields()).any(|(&column, field)| {
        stored.get(column).is_none_or(|stored| stored.data_type() != field.data_type())
    });
    !is_cast && files.files.iter().all(|file| store::object(&file.found.path).is_none())
}

impl Source for TableSource {
    fn schema(&self) -> SchemaRef {
        self.columns.schema().clone()
    }

    fn next(&self, context: &SourceContext<'_>) -> Result<Option<Morsel>, ArrowError> {
        let read = self.read_matching(context.key_filter(), || context.cancelled())?;
        Ok(read.map(|(batch, left_out)| Morsel::new(batch).leaving_out(left_out)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
    use arrow::datatypes::{DataType, Int64Type};
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;
    use strait::Error;

    use super::*;
    use crate::arguments::{CsvArguments, Source as Given};
    use crate::input::table::Reading;
    use crate::input::{InputTable, find};

    const ROWS: i64 = 200_000;
    const SUM: i64 = ROWS * (ROWS - 1) / 2;

    fn table() -> RecordBatch {
        let key: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
        let text = (0..ROWS).map(|i| format!("{}", i % 977).repeat(1 + i as usize % 20));
        let text: ArrayRef = Arc::new(StringArray::from_iter_values(text));
        RecordBatch::try_from_iter([("k", key), ("t", text)]).expect("two columns")
    }

    fn write_parquet(path: &Path, group: usize) {
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group));
        let file = std::fs::File::create(path).expect("a file");
        let table = table();
        let writer = ArrowWriter::try_new(file, table.schema(), Some(properties.build()));
        let mut writer = writer.expect("a schema");
        writer.write(&table).expect("writes");
        writer.close().expect("writes");
    }

    /// Opens a table, and casts its second column if `casts`.
    fn open(path: &Path, threads: usize, memory: &Memory, casts: bool) -> TableSource {
        let found = find(&Given::Path(path.to_path_buf())).expect("a file");
        let opened = InputTable::open(found, &CsvArguments::default(), memory);
        let mut table = opened.expect("a table");
        if casts {
            table.cast(1, &DataType::Binary).expect("text");
        }
        let Reading::Source(source) = table.reading(&[0, 1], threads) else {
            panic!("{} has a source", path.display());
        };
        *source
    }

    /// Returns the number of rows and the sum of the keys.
    fn summed(batch: &RecordBatch) -> (i64, i64) {
        let keys = batch.column(0).as_primitive::<Int64Type>();
        (batch.num_rows() as i64, keys.values().iter().sum())
    }

    /// Writes the table in several formats.
    fn files(folder: &Path) -> [std::path::PathBuf; 4] {
        let names = ["one.parquet", "many.parquet", "t.csv", "t.jsonl"];
        let paths = names.map(|name| folder.join(name));
        write_parquet(&paths[0], ROWS as usize);
        write_parquet(&paths[1], 7_001);
        let mut text = Vec::new();
        arrow::csv::Writer::new(&mut text).write(&table()).expect("writes");
        std::fs::write(&paths[2], text).expect("writes");
        let mut writer = arrow_json::LineDelimitedWriter::new(Vec::new());
        writer.write(&table()).expect("writes");
        writer.finish().expect("writes");
        std::fs::write(&paths[3], writer.into_inner()).expect("writes");
        paths
    }

    /// A filter that rejects all keys whose remainder by `modulus` is at least `rest`.
    struct Modulo {
        modulus: i64,
        rest: i64,
    }

    impl KeyFilter for Modulo {
        fn columns(&self) -> &[usize] {
            &[0]
        }

        fn may_match(&self, keys: &[ArrayRef]) -> Result<BooleanBuffer, ArrowError> {
            let keys = keys[0].as_primitive::<Int64Type>().values().iter();
            let may_match = keys.map(|key| key % self.modulus < self.rest);
            Ok(may_match.collect::<Vec<bool>>().into())
        }
    }

    /// Reads a file on several threads. Returns the number of rows and the sum of the keys. With a filter, rows
    /// that it rejects are not in the sum, and rows that were left out are in the number.
    fn read(
        path: &Path,
        threads: usize,
        limit: Option<u64>,
        casts: bool,
        filter: Option<&Modulo>,
    ) -> (i64, i64) {
        let memory = Memory::new(limit);
        let source = open(path, threads, &memory, casts);
        let summed = |batch: &RecordBatch| {
            let keys = batch.column(0).as_primitive::<Int64Type>().values().iter();
            let accepted = keys.filter(|&key| filter.is_none_or(|f| key % f.modulus < f.rest));
            (batch.num_rows() as i64, accepted.sum::<i64>())
        };
        let (refusals, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let work = || {
            let (mut rows, mut sum) = (0, 0);
            // After the first `None`, the join does not call a source again.
            while !ended.load(Ordering::SeqCst) {
                let filter = filter.map(|filter| filter as &dyn KeyFilter);
                match source.read_matching(filter, || false) {
                    Ok(Some((batch, left_out))) => {
                        let (more, keys) = summed(&batch);
                        (rows, sum) = (rows + more + left_out as i64, sum + keys);
                    }
                    Ok(None) => ended.store(true, Ordering::SeqCst),
                    Err(error) => match Error::from_arrow(error) {
                        Error::MemoryLimit { .. } => {
                            let before = refusals.fetch_add(1, Ordering::SeqCst);
                            assert!(before < 10_000, "memory is refused for ever");
                            std::thread::sleep(std::time::Duration::from_millis(1));
                        }
                        error => panic!("{error}"),
                    },
                }
            }
            (rows, sum)
        };
        let sums = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect::<Vec<_>>()
        });
        drop(source);
        assert_eq!(memory.budget().used(), 0);
        sums.into_iter().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }

    /// Many threads get every row once, also if they are refused memory.
    #[test]
    fn every_row_is_read_once() {
        let folder = tempfile::tempdir().expect("a folder");
        for path in files(folder.path()) {
            for threads in [1, 2, 7] {
                for limit in [None, Some(64 << 20), Some(10 << 20)] {
                    for casts in [false, true] {
                        let read = read(&path, threads, limit, casts, None);
                        assert_eq!(read, (ROWS, SUM), "{path:?} {threads} {casts}");
                    }
                }
            }
        }
    }

    /// No row that may match is lost, whether few rows match or many, and also if memory is refused.
    #[test]
    fn every_row_that_may_match_is_read_once() {
        let folder = tempfile::tempdir().expect("a folder");
        for path in files(folder.path()) {
            for (modulus, rest) in [(1000, 3), (5000, 900), (150_000, 1), (1000, 600), (1, 0)] {
                let filter = Modulo { modulus, rest };
                let sum = (0..ROWS).filter(|key| key % modulus < rest).sum();
                for (threads, limit) in
                    [(1, None), (7, None), (3, Some(64 << 20)), (2, Some(10 << 20))]
                {
                    let read = read(&path, threads, limit, false, Some(&filter));
                    assert_eq!(read, (ROWS, sum), "{path:?} {modulus} {rest} {threads} {limit:?}");
                }
            }
        }
    }

    /// A call that is refused memory, at its start or later, leaves its rows to the next call.
    #[test]
    fn refused_rows_come_later() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = files(folder.path());
        for (path, casts) in paths.iter().flat_map(|path| [(path, false), (path, true)]) {
            let limit = 64 << 20;
            let memory = Memory::new(Some(limit));
            let source = open(path, 4, &memory, casts);
            let (mut read, mut refusals) = ((0, 0), 0);
            for room in [0, 1 << 14, 1 << 18, 1 << 20, 3 << 20].into_iter().cycle() {
                let rest = (limit - memory.budget().used()).saturating_sub(room);
                let rest = memory.reserve(rest, "a test").expect("it is free");
                let batch = source.read(|| false).or_else(|error| {
                    let error = Error::from_arrow(error);
                    assert!(matches!(error, Error::MemoryLimit { .. }), "{error}");
                    refusals += 1;
                    drop(rest);
                    source.read(|| false)
                });
                let Some(batch) = batch.expect("there is memory") else { break };
                let (rows, sum) = summed(&batch);
                read = (read.0 + rows, read.1 + sum);
            }
            assert_eq!(read, (ROWS, SUM), "{path:?}");
            assert!(refusals > 2, "{path:?}: {refusals} refusals");
        }
    }
}

//! The tables that statements name by a path, and those of `--table`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::bail;
use async_trait::async_trait;
use datafusion::catalog::{TableProvider, UrlTableFactory};
use datafusion::error::{DataFusionError, Result};

use super::parquet::ParquetTable;
use super::rows::SharedTable;
use crate::arguments::{CsvArguments, Source};
use crate::failure::Told;
use crate::input::{FoundFiles, InputTable, find};
use crate::memory::Memory;

/// Opens tables by their paths.
#[derive(Debug, Clone)]
pub(super) struct PathTables {
    csv: CsvArguments,
    /// Whether texts of Parquet files are read as views. A view keeps a whole page in memory. So under a memory limit,
    /// an operator would count many more bytes than its rows have.
    views: bool,
    /// The files of all tables that were opened.
    found: Arc<Mutex<Vec<FoundFiles>>>,
    /// The table on stdin. It can be opened only once.
    stdin: Arc<Mutex<Option<Arc<dyn TableProvider>>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PathTables {
    pub(super) fn new(csv: &CsvArguments, views: bool) -> PathTables {
        PathTables { csv: csv.clone(), views, found: Arc::default(), stdin: Arc::default() }
    }

    /// Opens a table. This may block.
    pub(super) fn open(&self, source: &Source) -> anyhow::Result<Arc<dyn TableProvider>> {
        if *source == Source::Stdin {
            let mut stdin = locked(&self.stdin);
            if let Some(table) = &*stdin {
                return Ok(Arc::clone(table));
            }
            return Ok(Arc::clone(stdin.insert(self.opened(source)?)));
        }
        self.opened(source)
    }

    fn opened(&self, source: &Source) -> anyhow::Result<Arc<dyn TableProvider>> {
        let found = find(source)?;
        let table = InputTable::open(found.clone(), &self.csv, &Memory::new(None))?;
        locked(&self.found).push(found);
        Ok(match ParquetTable::of(&table, self.views)? {
            Some(parquet) => Arc::new(parquet),
            None => Arc::new(SharedTable::new(table)),
        })
    }

    /// Remembers the files of a table that DataFusion opens itself.
    pub(super) fn remember(&self, locations: &[String]) {
        let found = locations.iter().filter_map(|location| location.parse().ok());
        // A folder may be empty, and its table gets rows later.
        locked(&self.found).extend(found.filter_map(|source: Source| find(&source).ok()));
    }

    /// Fails if one of the opened tables would contain an output.
    pub(super) fn check_output(
        &self,
        output: &dyn std::fmt::Display,
        claims: impl Fn(&FoundFiles) -> bool,
    ) -> anyhow::Result<()> {
        match locked(&self.found).iter().find(|found| claims(found)) {
            None => Ok(()),
            Some(found) => bail!(
                "the output {output} is part of the table {}; write to another place; to replace the table, move the file there afterwards",
                found.name
            ),
        }
    }
}

/// Returns the place of a table if its name is a path, and `None` otherwise. A path has a slash, a dot or a wildcard,
/// or is `-`.
fn source(name: &str) -> Option<Result<Source, String>> {
    let is_path = name == "-" || name.contains(['/', '.', '*', '?', '[']);
    let source = is_path.then(|| name.parse::<Source>())?;
    Some(source.and_then(|source| match &source {
        Source::Object(location) => location.check(false).map(|()| source),
        _ => Ok(source),
    }))
}

#[async_trait]
impl UrlTableFactory for PathTables {
    async fn try_new(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let source = match source(name) {
            None => return Ok(None),
            Some(source) => source.map_err(told)?,
        };
        let tables = self.clone();
        // Requests to stores block.
        let opened = tokio::task::spawn_blocking(move || tables.open(&source)).await;
        let opened = opened.map_err(|error| told(error.to_string()))?;
        opened.map(Some).map_err(|error| told(format!("{error:#}")))
    }
}

/// An error whose message is shown unchanged.
pub(super) fn told(message: String) -> DataFusionError {
    DataFusionError::External(Box::new(Told(message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_marks_of_a_path_are_no_files() {
        for name in ["orders", "Orders 2024", "a=b", ""] {
            assert!(source(name).is_none(), "{name}");
        }
        for name in ["./orders", "orders.csv", "a/*", "b?", "/", "a[0-9]"] {
            assert!(matches!(source(name), Some(Ok(Source::Path(_)))), "{name}");
        }
        assert_eq!(source("-"), Some(Ok(Source::Stdin)));
        assert!(source("ftp://host/a.csv").unwrap().unwrap_err().contains("ftp://"));
    }
}

//! `strait sql`: runs SQL statements on files.
//!
//! DataFusion parses, plans and runs the statements, and Strait does the joins. [`session`] puts them together. [`tables`]
//! finds the tables that statements name: [`parquet`] lets DataFusion read Parquet files, and [`rows`] reads the other
//! formats as `strait join` does. [`results`] writes and shows rows, [`target`] opens the files that are written, [`copy`] is
//! `COPY`, and [`prompt`] is the interactive prompt.
//!
//! All of this needs the cargo feature `sql`. Without it, the arguments are rejected.

#[cfg(feature = "sql")]
mod cancel;
#[cfg(feature = "sql")]
mod copy;
#[cfg(feature = "sql")]
mod explain;
#[cfg(feature = "sql")]
mod held;
#[cfg(feature = "sql")]
mod parquet;
#[cfg(feature = "sql")]
mod prompt;
#[cfg(feature = "sql")]
mod results;
#[cfg(feature = "sql")]
mod rows;
#[cfg(feature = "sql")]
mod script;
#[cfg(feature = "sql")]
mod session;
#[cfg(all(feature = "sql", feature = "object-stores"))]
mod stores;
#[cfg(feature = "sql")]
mod tables;
#[cfg(feature = "sql")]
mod target;

#[cfg(feature = "sql")]
pub(crate) use script::run;
#[cfg(feature = "sql")]
pub(crate) use session::{Session, Settings};

/// Fails. The arguments were checked before, so nobody calls it.
#[cfg(not(feature = "sql"))]
pub(crate) fn run(_: &crate::arguments::SqlArguments) -> anyhow::Result<()> {
    anyhow::bail!("this build of strait has no SQL")
}

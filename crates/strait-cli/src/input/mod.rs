//! Where the tables come from: which files, what columns they have, and how their rows are read.
//!
//! [`mod@find`] lists files and opens none; [`mod@table`] reads what is needed to know the schema; rows are
//! read by [`reader`], file after file, and of each only the columns the join needs.

mod ahead;
mod codec;
mod csv;
mod find;
mod format;
mod hive;
#[cfg(test)]
mod hostile;
mod ipc;
mod lengths;
mod levels;
mod page_memory;
mod pages;
mod parquet;
mod reader;
mod schema;
mod table;
mod text;
mod thrift;

pub(crate) use find::{FoundFiles, find};
pub(crate) use table::Table;

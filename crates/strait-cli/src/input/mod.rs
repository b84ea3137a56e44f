//! The input tables: their files, their columns, and how their rows are read.
//!
//! [`mod@find`] lists files and opens none. [`mod@table`] reads as much as is needed for the schema.
//! [`reader`] reads the rows, one file after another, and only the columns that the join needs.

mod ahead;
mod codec;
mod csv;
mod find;
mod format;
mod hive;
#[cfg(test)]
mod hostile;
mod ipc;
mod json;
mod lengths;
mod levels;
mod page_memory;
mod pages;
mod parquet;
mod reader;
mod schema;
mod sizes;
mod table;
mod text;
mod thrift;

pub(crate) use find::{FoundFiles, find};
pub(crate) use reader::TableReader;
pub(crate) use table::InputTable;

//! The input tables: their files, their columns, and how their rows are read.
//!
//! [`mod@find`] lists files and opens none. [`mod@table`] reads as much as is needed for the schema.
//! [`source`] reads the rows of Parquet and text files on the workers of the join, and [`reader`] the rows of
//! Arrow files, one file after another. Both read only the columns that the join needs.

mod ahead;
mod block;
mod blocks;
mod cast;
mod casting;
mod codec;
mod columns;
mod csv;
mod decimals;
mod detached;
mod fields;
mod file;
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
mod pieces;
mod prune;
#[cfg(feature = "sql")]
mod queried;
mod reader;
mod records;
mod row_groups;
mod sampled;
mod schema;
mod sizes;
mod source;
mod table;
mod text;
mod thrift;
mod times;
mod values;
mod wanted;
mod work;

pub(crate) use find::{FoundFiles, find};
#[cfg(feature = "sql")]
pub(crate) use queried::SharedRows;
pub(crate) use table::InputTable;

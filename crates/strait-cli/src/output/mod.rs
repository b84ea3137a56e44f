//! The output of joined rows: a file that appears completely or not at all, stdout, or a preview.

mod aside;
mod blocks;
mod destination;
mod encode;
mod ipc;
mod joined;
mod parquet;
mod pieces;
mod preview;
mod sink;
mod stdout;
mod temporary;
mod text;
mod times;
mod types;
mod unpack;
mod watched;
mod zones;

pub(crate) use aside::{Aside, resolved};
pub(crate) use destination::{Compression, Destination, FileFormat, Notation, Squeeze};
pub(crate) use joined::JoinedRows;
pub(crate) use parquet::MAX_ROW_GROUPS;
pub(crate) use preview::Preview;
pub(crate) use sink::{Sink, SinkOptions};
pub(crate) use stdout::{Closed, check_stdout, failed_write, print};
pub(crate) use zones::printable;

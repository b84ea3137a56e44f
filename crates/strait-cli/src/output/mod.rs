//! The output of joined rows: a file that appears completely or not at all, stdout, or a preview.

mod aside;
mod destination;
mod encode;
mod parquet;
mod pieces;
mod preview;
mod sink;
mod stdout;
mod types;
mod unpack;
mod watched;
mod workers;
mod zones;

pub(crate) use aside::{Aside, resolved};
pub(crate) use destination::{Compression, Destination, FileFormat};
pub(crate) use preview::Preview;
pub(crate) use sink::{Sink, SinkOptions};
pub(crate) use stdout::{Closed, print};

//! Which algorithm, on which side, with how many partitions? Decided once, here, and explained.
//!
//! [`Statistics`] of both sides and the [`Machine`] go into a pure function (`choose`) that
//! predicts each algorithm's time and memory and takes the fastest that fits. The shapes of tables
//! and partitions follow from the rows and the caches ([`shape`]).

mod choose;
mod cost;
mod explain;
pub(crate) mod gpu_memory;
mod shape;
mod statistics;

pub use choose::{Abandoned, Plan, Prediction};
pub(crate) use choose::{KeySource, OnDevice, Request, choose};
pub(crate) use shape::{TableShape, radix_passes, table_shape};
pub use statistics::Statistics;
pub(crate) use statistics::build_side;

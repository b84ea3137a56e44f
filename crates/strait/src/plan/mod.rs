//! The planner: it chooses the algorithm, the device and the number of partitions once, and explains the
//! choice.
//!
//! `choose` is a pure function of the [`Statistics`] of both sides and the
//! [`Machine`](crate::machine::Machine). It predicts the time and memory of each algorithm, and takes the
//! fastest one that fits. [`shape`] derives the shapes of tables and partitions from the number of rows and
//! the cache sizes.

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

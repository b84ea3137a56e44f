//! Strait joins Arrow tables.
#![allow(dead_code, missing_docs)]
mod error;
mod join;
mod key;
mod memory;
mod metrics;
mod partition;
pub mod plan;
mod progress;
mod schedule;
pub use error::{Error, Result, bytes, nearest_name};
pub use join::{
    Algorithm, DEFAULT_BATCH_SIZE, Filter, Force, Join, JoinType, NullEquality, Predicate, Side,
};
pub use metrics::Report;
pub use plan::{Plan, Statistics};
pub use progress::{Progress, Stage};

//! Strait joins Arrow tables.
#![allow(dead_code)]
mod error;
mod join;
mod metrics;
pub mod plan;
mod progress;
pub use error::{Error, Result, bytes, nearest_name};
pub use join::{Algorithm, DEFAULT_BATCH_SIZE, Filter, Force, Join, JoinType, NullEquality, Predicate, Side};
pub use metrics::Report;
pub use plan::{Machine, Plan, Statistics};
pub use progress::{Progress, Stage};

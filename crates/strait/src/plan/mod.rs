//! Which algorithm, on which side, with how many partitions? Decided once, here, and explained.
//!
//! [`Statistics`] of both sides and the [`Machine`] go into a pure function ([`choose`]) that
//! predicts each algorithm's time and memory and takes the fastest that fits.

mod choose;
mod cost;
mod explain;
pub mod machine;
mod statistics;

pub use choose::{Plan, Prediction};
pub(crate) use choose::{Request, choose};
pub use machine::Machine;
pub use statistics::Statistics;

//! Runs the real binary on real files.

// A test fails by panicking, also in the functions that it calls.
#![allow(clippy::unwrap_used)]

mod cast;
mod devices;
mod explain;
mod faults;
mod generate;
mod hostile;
mod inputs;
mod interrupts;
mod joins;
mod json;
mod late;
mod outputs;
mod parquet;
#[cfg(feature = "sql")]
mod prompt;
mod reading;
mod sandbox;
mod shells;
mod spill;
mod sql;
#[cfg(feature = "object-stores")]
mod stores;
mod types;
mod usage;

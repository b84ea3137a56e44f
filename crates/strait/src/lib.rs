//! Strait joins Arrow tables: any two, by any keys, in every way SQL knows.
//!
//! ```
//! use std::sync::Arc;
//! use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, StringArray};
//! use strait::Join;
//!
//! let people = RecordBatch::try_from_iter([
//!     ("id", Arc::new(Int64Array::from(vec![1, 2, 3])) as _),
//!     ("name", Arc::new(StringArray::from(vec!["Ada", "Bob", "Cleo"])) as _),
//! ])?;
//! let visits = RecordBatch::try_from_iter([("id", Arc::new(Int64Array::from(vec![3, 1, 3])) as _)])?;
//! let table = |batch: RecordBatch| RecordBatchIterator::new([Ok(batch.clone())], batch.schema());
//!
//! let joined = Join::inner().on("id").run(table(people), table(visits))?;
//! let rows: usize = joined.map(|batch| batch.map_or(0, |b| b.num_rows())).sum();
//! assert_eq!(rows, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Join`] says what is wanted; [`Join::run`] reads both tables and yields rows batch by batch,
//! [`Join::pairs`] positions of rows, [`Join::count`] their number. [`BoundJoin`] is the step in
//! between, for those who want to know which columns to read or what the plan is.

mod algorithm;
mod bind;
mod decide;
mod device;
mod error;
mod input;
mod join;
mod key;
mod matches;
mod materialise;
mod memory;
mod metrics;
mod on_gpu;
mod output;
mod partition;
mod plan;
mod processor;
mod progress;
mod reader;
mod reading;
mod resolve;
mod run;
mod schedule;
mod settings;
mod sort;
mod table;
mod transfer;

#[doc(hidden)]
pub use algorithm::gpu::{hosted, resident};
pub use bind::BoundJoin;
#[doc(hidden)]
pub use device::cuda::testing as device_testing;
pub use device::cuda::{
    Architecture, CompiledKernel, Gpu, Link, Nvrtc, compile_kernels, kernel_cache,
};
#[doc(hidden)]
pub use device::simulated::{Fault, FaultKind};
pub use error::{Error, Result, bytes, nearest_name};
pub use join::{
    Algorithm, DEFAULT_BATCH_SIZE, Filter, FloatEquality, Force, Join, JoinType, NullEquality,
    Predicate, Side,
};
pub use memory::{MemoryBudget, MemoryReservation, release_memory};
pub use metrics::Report;
pub use on_gpu::{Histogram, OnGpu, Partitioner, Processor, TablePlace, Transfer};
pub use output::{Aggregate, Output};
pub use plan::{Abandoned, Machine, Plan, Prediction, Statistics};
pub use progress::{Progress, Stage};
pub use reader::JoinReader;

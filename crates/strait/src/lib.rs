//! Strait joins Arrow tables: inner, outer, semi, anti and mark joins on equal keys, on the CPU or on a GPU.
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
//! [`Join`] is a builder that describes a join. [`Join::run`] reads two tables and returns the joined rows,
//! batch by batch. [`Join::pairs`] returns row numbers instead of rows, [`Join::count`] only the number of
//! rows, and [`Join::aggregate`] sums of columns. [`Join::bind`] checks a join against two schemas without
//! reading any rows. The result is a [`BoundJoin`], which tells the columns that the join needs, the output
//! schema and the plan.
//!
//! # How a join runs
//!
//! The join holds one side in memory, the *build side*, usually the smaller one. For each row of the other
//! side, the *probe side*, it finds the matches. Some algorithms hold the probe side as well. The planner
//! chooses the build side by size, and the [`Algorithm`] and the [`Processor`] by predicted time, unless the
//! caller names them. [`Statistics`] help it to choose. [`BoundJoin::explain`] returns the [`Plan`] before
//! the join runs. The [`Report`] has the plan that was carried out, with its times.
//!
//! # Memory
//!
//! [`Join::memory_limit`] sets a hard limit on the memory of a join, and a [`MemoryBudget`] is a limit that
//! several owners share. A budget can take its bytes from a [`MemoryPool`], for example of a query engine. With
//! [`Join::spill`], a join that does not fit writes rows to disk. Otherwise it fails with [`Error::MemoryLimit`],
//! which says how much memory it needs.
//!
//! # GPUs
//!
//! The CUDA driver and compiler are loaded at run time; without them, joins run on the CPU. On a machine with
//! an NVIDIA GPU, joins can use it: see [`Join::device`], [`GpuOptions`] and [`gpu`]. A build without the
//! default cargo feature `cuda` contains no CUDA code, and its joins run on the CPU only.

// Without CUDA, some of the code that describes kernels has no caller.
#![cfg_attr(not(feature = "cuda"), allow(dead_code, unused_imports))]

mod algorithm;
mod bind;
mod build_side;
mod cancel;
mod context;
mod device;
mod error;
mod gpu_options;
mod input;
#[doc(hidden)]
pub mod internal;
mod join;
mod key;
mod machine;
mod matches;
mod materialise;
mod memory;
mod options;
mod output;
mod overrides;
mod partition;
mod plan;
mod processor;
mod progress;
mod reader;
mod reading;
mod report;
mod resolve;
mod run;
mod schedule;
mod settings;
mod sort;
mod spill;
mod statistics;
mod stopwatch;
mod table;
mod transfer;
mod word;

pub use bind::BoundJoin;
pub use cancel::CancelToken;
pub use error::{CallerCode, Error, Result, bytes, nearest_name};
pub use gpu_options::{GpuOptions, Histogram, Partitioner, Processor, TablePlace, Transfer};
pub use input::{Input, KeyFilter, Morsel, Source, SourceContext};
pub use join::{DEFAULT_BATCH_SIZE, Join};
pub use key::{KeyEncoding, KeyForm};
pub use machine::Machine;
pub use memory::{MemoryBudget, MemoryPool, MemoryReservation, release_memory};
pub use options::{
    Algorithm, Filter, FloatEquality, JoinType, NullEquality, Predicate, Side, Yields,
};
pub use output::{Aggregate, Output, ReservedBatch, Sink};
pub use plan::{
    Abandoned, ChunkRows, Details, HoldReason, Inlining, JobCosts, KeySource, LinkBytes, Plan,
    PlanDevice, Prediction, ProbeSide, Reason, ResultOrder, RowIdReason, Statistics, TableKind,
};
pub use progress::{Progress, Stage};
pub use reader::JoinReader;
pub use report::{LinkTraffic, Report, Spilled};
pub use spill::{SpillCompression, SpillFile, SpillStore, TempFolders};
pub use stopwatch::{GpuWork, StageTime};

/// The GPUs of the machine, the compiler of the kernels, and the compiled kernels.
///
/// ```
/// // The GPUs of this machine, or the reason why there are none.
/// match strait::gpu::Gpu::detect() {
///     Ok(gpus) => gpus.iter().for_each(|gpu| println!("{}", gpu.name)),
///     Err(why) => println!("joins run on the CPU: {why}"),
/// }
/// ```
pub mod gpu {
    pub use crate::device::cuda::{
        Architecture, CompiledKernel, Gpu, Link, Nvrtc, compile_kernels, kernel_cache,
    };
}

/// Overrides and hooks for this crate's own tests. They may change at any time.
#[doc(hidden)]
pub mod testing {
    #[cfg(feature = "cuda")]
    pub use crate::device::cuda::testing as device;
    pub use crate::overrides::{Fault, FaultKind, TestOverrides};
}

//! Joins tables of integer columns on a GPU, without Arrow batches. This module is hidden: it exists for the crate
//! `strait-bench`, and it may change at any time. Later, it can become the public API for tables in GPU memory.
//!
//! ```text
//!            ┌─► GpuTable ──┐                          ┌─► blocks in GPU memory ──┐
//!  OpenGpu ──┤              ├─► planner ─► conductor ──┤                          ├─► BlockReceiver
//!            └─► HostTable ─┘                          └─► blocks in host memory ─┘
//! ```
//!
//! | file | what it does |
//! | --- | --- |
//! | `columns` | reads Arrow columns as integers of 4 or 8 bytes |
//! | `gpu_table` | tables in GPU memory: loading, reading, sorting |
//! | `gpu_join` | joins two of them; the rows stay in GPU memory |
//! | `host_table` | tables in pinned or pageable host memory |
//! | `host_join` | joins two of them; the rows come back to host memory |
//! | `first_pass` | runs only the first partitioning pass of the Triton join |
//! | `block` | hands the rows of a join to the caller |
//!
//! The first column of a table is the key. The other columns are payload. All columns are signed integers of
//! 4 or 8 bytes without nulls.

mod block;
mod columns;
mod first_pass;
mod gpu_join;
mod gpu_table;
mod host_join;
mod host_table;

use std::sync::Arc;

use crate::algorithm::gpu::Wanted;
use crate::device::cuda::{self, Gpu};
use crate::device::simulated::{Settings, Simulated, TINY};
use crate::device::{Device, Flavour, Session};
use crate::error::{Error, Result};
use crate::gpu_options::{GpuOptions, Transfer};
use crate::key::Seed;
use crate::matches::FlagPlan;
use crate::memory::Budget;
use crate::options::{Algorithm, Yields};
use crate::schedule::Workers;
use crate::transfer::TransferContext;
use crate::word::{Mixers, Width};

pub use crate::stopwatch::Timed;
pub use block::{Block, BlockReceiver, Values};
pub use columns::WordSize;
pub use first_pass::{FirstPass, PartitionedTable, partition};
pub use gpu_join::join_in_gpu_memory;
pub use gpu_table::{GpuTable, sort};
pub use host_join::join_from_host_memory;
pub use host_table::{HostPlacement, HostTable};

/// A GPU that is open, and the threads that copy rows to it. Clones share both.
#[derive(Clone)]
pub struct OpenGpu {
    workers: Workers,
    budget: Arc<Budget>,
    device: Arc<dyn Device>,
}

impl OpenGpu {
    /// Opens a GPU. Joins hold at most `gpu_memory` bytes of its memory; `None` means most of the memory that
    /// is free now.
    pub fn open(gpu: &Gpu, gpu_memory: Option<u64>, threads: usize) -> Result<OpenGpu> {
        Ok(OpenGpu::with(cuda::open(gpu, gpu_memory)?, threads))
    }

    /// Opens a simulated GPU. The seed determines the order in which its work runs.
    pub fn simulated(seed: u64, gpu_memory: u64) -> OpenGpu {
        let settings = Settings { memory: gpu_memory, shape: TINY, seed, coherent: true };
        OpenGpu::with(Arc::new(Simulated::new(settings)), 2)
    }

    fn with(device: Arc<dyn Device>, threads: usize) -> OpenGpu {
        let workers = Workers::new(threads, Arc::default());
        OpenGpu { workers, budget: Budget::new(None), device }
    }

    fn session(&self, word: Width, hash_seed: Option<u64>) -> Result<Session<'_>> {
        Session::within(&*self.device, word, &mixers(hash_seed), &self.budget)
    }

    fn transfer_context<'a>(
        &'a self,
        session: &'a Session<'a>,
        transfer: Transfer,
        most_rows: u64,
    ) -> TransferContext<'a> {
        TransferContext { session, workers: &self.workers, transfer, most_rows }
    }

    /// Returns an error unless two tables belong to the same GPU and have words of the same size.
    fn check_pair(pair: [(&OpenGpu, WordSize); 2]) -> Result<()> {
        let [(gpu, word), (other_gpu, other_word)] = pair;
        if !Arc::ptr_eq(&gpu.device, &other_gpu.device) {
            let what = "the tables of a join belong to two GPUs";
            return Err(Error::invalid_option("device", what, "load both with the same one"));
        }
        if word != other_word {
            let what = "the tables of a join have words of 4 and of 8 bytes";
            return Err(Error::invalid_option("word", what, "load both alike"));
        }
        Ok(())
    }
}

/// Returns the mixers of a seed. Without a seed, every run mixes keys in the same way, so that runs can be
/// compared.
fn mixers(hash_seed: Option<u64>) -> Mixers {
    match hash_seed {
        Some(number) => *Seed::new(number).mixers(),
        None => Mixers::new(1, 2),
    }
}

/// What a join computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultKind {
    /// The number of rows.
    Count,
    /// The number of rows, and the sum of each side's payload column.
    Aggregate,
    /// The row numbers of all matches.
    Pairs,
    /// The key and all payload columns of every output row.
    Materialise,
}

impl ResultKind {
    /// Returns the name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            ResultKind::Count => "count",
            ResultKind::Aggregate => "aggregate",
            ResultKind::Pairs => "pairs",
            ResultKind::Materialise => "materialise",
        }
    }

    /// Returns whether the result needs the payload.
    fn needs_payload(self) -> bool {
        matches!(self, ResultKind::Aggregate | ResultKind::Materialise)
    }

    /// Returns what the planner must plan for.
    fn yields(self) -> Yields {
        match self {
            ResultKind::Count | ResultKind::Aggregate => Yields::Count,
            ResultKind::Pairs | ResultKind::Materialise => Yields::Pairs,
        }
    }

    /// Returns what the conductors must produce.
    fn wanted(self, expected_rows: u64) -> Wanted {
        let flavour = match self {
            ResultKind::Count | ResultKind::Aggregate => Flavour::Aggregate,
            ResultKind::Pairs | ResultKind::Materialise => Flavour::Pairs,
        };
        Wanted {
            flavour,
            keys: self == ResultKind::Materialise,
            signed: true,
            flags: FlagPlan::default(),
            build_flags: None,
            probe_flags: None,
            expected_rows,
        }
    }
}

/// How to join two tables.
#[derive(Debug, Clone, Copy)]
pub struct JoinRequest {
    /// The algorithm. `None` if the planner chooses.
    pub algorithm: Option<Algorithm>,
    /// The settings for the GPU. Tables in GPU memory use only the partitioner.
    pub gpu_options: GpuOptions,
    /// What the join computes.
    pub result: ResultKind,
    /// The seed of the hash functions, as [`Report`](crate::Report) shows it. `None` means the fixed mixers of
    /// this module.
    pub hash_seed: Option<u64>,
}

/// The result of a join. Its rows, if any, went to a [`BlockReceiver`].
#[derive(Debug, Clone)]
pub struct Joined {
    /// The algorithm that joined.
    pub algorithm: Algorithm,
    /// The number of output rows.
    pub rows: u64,
    /// The sum of each side's payload column over the output rows, build side first, modulo 2^64. Only
    /// [`ResultKind::Aggregate`] computes them.
    pub sums: Option<[u64; 2]>,
    /// The time and the memory.
    pub usage: Usage,
}

/// The time and the memory that a run took.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// The time until the result was complete. It includes the time of the receiver.
    pub seconds: f64,
    /// The time of each stage on the GPU.
    pub stages: Vec<Timed>,
    /// The peak GPU memory since the GPU was opened, including tables, in bytes.
    pub peak_memory: u64,
    /// Bytes that crossed the link: to the GPU, and back.
    pub crossed: [u64; 2],
}

impl Usage {
    /// Collects what a session used. The clock has already stopped.
    fn of(session: &Session<'_>, seconds: f64) -> Result<Usage> {
        Ok(Usage {
            seconds,
            stages: session.times()?,
            peak_memory: session.device.memory().peak,
            crossed: session.crossed(),
        })
    }
}

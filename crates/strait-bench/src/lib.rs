//! Generates tables, measures joins of them, and checks the answers. `strait bench` uses this crate.
//!
//! | type | what it measures |
//! | --- | --- |
//! | [`measure`] | joins of Arrow tables, as `strait join` runs them |
//! | [`streamed`] | joins whose probe side is generated while it is read, and their memory |
//! | [`GpuTables`] | joins of tables in GPU memory; the rows stay there |
//! | [`SortedPairs`] | sorting pairs in GPU memory |
//! | [`HostTables`] | joins of tables in host memory; the rows come back |
//! | [`HostTables::partition`] | only the first partitioning pass of the Triton join |
//!
//! | module | what it does |
//! | --- | --- |
//! | [`workload`] | generates tables, and knows the answer of their join |
//! | [`runs`] | repeats a join, and checks each answer |
//! | [`machine`], [`link`] | describe the machine and its GPU |
//! | [`plot`] | draws figures |
//!
//! The joins of [`GpuTables`] and [`HostTables`] run through the planner and the conductors of the engine
//! (`strait::internal`). This crate repeats nothing of the engine: it times, adds up and compares.

mod check;
mod first_pass;
mod gpu_tables;
mod host_tables;
pub mod link;
pub mod machine;
pub mod measure;
pub mod plot;
pub mod runs;
mod sorted_pairs;
pub mod streamed;
pub mod workload;

use strait::Algorithm;
use strait::internal::Joined;

pub use first_pass::MeasuredPass;
pub use gpu_tables::GpuTables;
pub use host_tables::HostTables;
pub use sorted_pairs::SortedPairs;
pub use strait::internal::{FirstPass, HostPlacement, JoinRequest, ResultKind, Timed, WordSize};

/// The measurements of one join or sort.
#[derive(Debug, Clone, Default)]
pub struct MeasuredRun {
    /// The algorithm that joined. `None` if nothing was joined.
    pub algorithm: Option<Algorithm>,
    /// The number of output rows.
    pub rows: u64,
    /// The sum of each payload column over the output rows, build side first, modulo 2^64. Set by
    /// [`ResultKind::Aggregate`], and by [`ResultKind::Materialise`] if checked.
    pub sums: Vec<u64>,
    /// The sum of the keys over the output rows. Set by [`ResultKind::Materialise`] if checked.
    pub key_sum: u64,
    /// The time from the inputs in their memory to the outputs in their memory.
    pub seconds: f64,
    /// The time of each stage.
    pub stages: Vec<Timed>,
    /// The peak GPU memory, including inputs, in bytes.
    pub peak_memory: u64,
    /// Bytes that crossed the link: to the GPU, and back.
    pub crossed: [u64; 2],
}

impl MeasuredRun {
    /// Puts together what the engine returned, and what the receiver of the rows added up.
    fn of(joined: Joined, added: check::Sums, result: ResultKind) -> MeasuredRun {
        let sums = match (joined.sums, result) {
            (Some(sums), _) => sums.to_vec(),
            (None, ResultKind::Materialise) => added.columns,
            (None, _) => Vec::new(),
        };
        MeasuredRun {
            algorithm: Some(joined.algorithm),
            rows: joined.rows,
            sums,
            key_sum: added.keys,
            seconds: joined.usage.seconds,
            stages: joined.usage.stages,
            peak_memory: joined.usage.peak_memory,
            crossed: joined.usage.crossed,
        }
    }
}

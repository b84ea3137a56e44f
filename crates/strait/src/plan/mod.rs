//! The planner: it chooses the algorithm, the device and the number of partitions, and explains the choice.
//! Later facts can change the details.
//!
//! `choose` is a pure function of the [`Statistics`] of both sides and the
//! [`Machine`](crate::machine::Machine). It predicts the time and memory of each algorithm, and takes the
//! fastest one that fits. [`rules`] and [`gpu_rules`] have one function per further decision. [`refine`] decides
//! again when a running join has learned more. [`link`] counts the bytes that cross the link. [`shape`] computes the
//! sizes of tables and partitions on the CPU, and [`gpu_shape`] those on a GPU.

mod choose;
mod cost;
mod decision;
mod explain;
mod gpu_cost;
pub(crate) mod gpu_memory;
mod gpu_rules;
pub(crate) mod gpu_shape;
mod in_gpu_memory;
mod link;
mod refine;
mod rules;
mod shape;
mod sorted_runs;
mod spill;
mod working_sets;

pub use crate::statistics::{JobCosts, Statistics};
pub(crate) use choose::{GpuCandidate, HostMemory, Request, choose};
pub use decision::{
    Abandoned, ChunkRows, Details, HoldReason, Inlining, KeySource, LinkBytes, Plan, PlanDevice,
    Prediction, ProbeSide, Reason, ResultOrder, RowIdReason, TableKind,
};
pub(crate) use gpu_rules::first_pass_transfer;
pub(crate) use in_gpu_memory::{BeforeSurvey, InGpuMemory};
pub(crate) use link::order_pays;
pub(crate) use refine::{Divided, Facts, KeyFacts, Learned, LearnedWords, Payload, PayloadColumn};
pub(crate) use sorted_runs::{RunRules, joined_bytes};
pub(crate) use spill::{
    ASSIGNED_BYTES_PER_ROW, FreeForTable, PART_BUCKETS, PairPlan, SpillRules, SpilledSize,
    TableMemory, part_of_buckets, reading_bytes, spare_bytes,
};

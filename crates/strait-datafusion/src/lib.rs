//! Strait's joins in [DataFusion](https://datafusion.apache.org): on the CPU or on a GPU, and with less memory than the
//! tables need.
//!
//! Add Strait to a DataFusion program with one call, [`with_strait`](WithStrait::with_strait):
//!
//! ```
//! use datafusion::execution::SessionStateBuilder;
//! use datafusion::prelude::SessionContext;
//! use strait_datafusion::WithStrait;
//!
//! let state = SessionStateBuilder::new().with_default_features().with_strait().build();
//! let ctx = SessionContext::new_with_state(state);
//! # let _ = ctx;
//! ```
//!
//! After that, [`StraitJoinRule`] replaces each hash join of a plan by a [`StraitJoinExec`]. Queries return the same rows
//! as before. A join that Strait does not replace is shown by `EXPLAIN` as `StraitJoinExec: declined`, with the reason.
//! It is then carried out by DataFusion's own operator.
//!
//! # What changes
//!
//! - **Memory.** A join takes its memory from the memory pool of the session. If the pool refuses memory, the join
//!   writes rows to temporary files of the session's disk manager, and continues. DataFusion's hash join would fail.
//! - **Speed.** If no other operator needs the partitions of a join, its inputs are not repartitioned: all threads join
//!   one table. `EXPLAIN` shows `mode=Shared` for such a join.
//! - **Order.** Strait's joins keep no order. If a query uses the order of a join, the join is declined, or a sort of its
//!   output restores the order: see [`StraitOptions::restore_order`].
//! - **Sort-merge joins** are replaced if [`StraitOptions::sort_merge_joins`] says so. They need no sorted inputs then.
//! - **Dynamic filters** of a join reach the scans of its probe side, as in DataFusion's hash join.
//!
//! # Options
//!
//! [`StraitOptions`] has the settings. In SQL, they are set with `SET strait.device = 'cpu'`.

mod exec;
mod execution;
mod needs;
mod options;
mod order;
mod rule;
mod run;
mod session;
mod translate;

pub use exec::StraitJoinExec;
pub use options::StraitOptions;
pub use rule::StraitJoinRule;
pub use run::disk::UnnamedFiles;
pub use session::WithStrait;

//! Files on disk for the rows of a join that do not fit its memory limit.
//!
//! ```text
//!  RecordBatch ─► compact ─► stored form ─► Block ─► SpilledRows ─► SpillFile       written by many workers
//!                                                                      │
//!  RecordBatch ◄─ given types ◄─ checked Block ◄─ SpilledSource ◄──────┘            read by many workers
//! ```
//!
//! | file | question |
//! | --- | --- |
//! | `store.rs`, `folders.rs` | Where are the bytes? |
//! | `compact.rs` | Which parts of the arrays are not needed? |
//! | `stored.rs` | Which types does the encoding not support, and what is written instead? |
//! | `block.rs` | What does a block look like, and how is a damaged block found? |
//! | `rows.rs`, `source.rs` | How do workers write and read the rows of one side and partition? |
//! | `problem.rs` | What does the user read if the disk fails? |

mod block;
mod compact;
mod folders;
mod problem;
mod rows;
mod source;
mod store;
mod stored;
#[cfg(test)]
mod tests;

pub(crate) use block::{Block, encode};
pub use folders::TempFolders;
pub(crate) use rows::SpilledRows;
pub(crate) use source::SpilledSource;
pub use store::{SpillFile, SpillStore};

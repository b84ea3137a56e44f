//! Files on disk for the rows of a join that do not fit its memory limit.
//!
//! ```text
//!  RecordBatch ─► compact ─► stored form ─► Block ─► compressed ─► SpilledRows ─► SpillFile   written by many workers
//!                                                                                    │
//!  RecordBatch ◄─ given types ◄─ decompressed ◄─ checked ◄─ SpilledSource ◄──────────┘        read by many workers
//! ```
//!
//! | file | question |
//! | --- | --- |
//! | `store.rs`, `folders.rs` | Where are the bytes? |
//! | `compact.rs` | Which parts of the arrays are not needed? |
//! | `stored.rs` | Which types does the encoding not support, and what is written instead? |
//! | `block.rs` | What does a block look like, and how is a damaged block found? |
//! | `compression.rs` | How are the bytes of a block compressed? |
//! | `target.rs` | Where does a join write, and in which form? |
//! | `rows.rs`, `source.rs` | How do workers write and read the rows of one side and partition? |
//! | `problem.rs` | What does the user read if the disk fails? |

mod block;
mod compact;
mod compression;
mod folders;
mod problem;
mod rows;
mod source;
mod store;
mod stored;
mod target;
#[cfg(test)]
mod tests;

pub(crate) use block::{Block, encode};
pub use compression::SpillCompression;
pub use folders::TempFolders;
pub(crate) use rows::SpilledRows;
pub(crate) use source::SpilledSource;
pub use store::{SpillFile, SpillStore};
pub(crate) use target::SpillTarget;

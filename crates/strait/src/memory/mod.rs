//! Memory: budgets, reservations and buffers.
//!
//! Every large allocation goes through a [`Budget`]: first a [`Reservation`], then the memory. A [`Buffer`]
//! is both: reserved memory on huge pages.

mod budget;
mod buffer;
mod flow;
mod ledger;
mod pool;
mod slab;
mod taken;

pub use budget::{MemoryBudget, MemoryReservation};
pub(crate) use budget::{MemoryBudget as Budget, MemoryReservation as Reservation};
pub(crate) use buffer::{Buffer, Plain, Shared};
pub(crate) use flow::{Active, Flow, Queued, Refused, Resting, Started};
pub(crate) use ledger::{Hold, Ledger, each_buffer, frame};
pub(crate) use pool::Mapping;
pub(crate) use pool::on_release;
pub use pool::release_memory;
pub(crate) use slab::{copy_past_cache, filled};
pub use taken::MemoryPool;
use taken::Taken;

//! How much memory may the join hold, and where does it come from?
//!
//! Every large allocation goes through a [`Budget`]: a [`Reservation`] first, then the memory.
//! [`Buffer`] is both in one: reserved memory on huge pages. Spill files will live here
//! too: what a reservation refuses today is what goes to disk then.

mod budget;
mod buffer;
mod flow;
mod ledger;
mod pool;
mod slab;

pub use budget::{MemoryBudget, MemoryReservation};
pub(crate) use budget::{MemoryBudget as Budget, MemoryReservation as Reservation};
pub(crate) use buffer::{Buffer, Plain, Shared};
pub(crate) use flow::{Active, Flow, Refused, Started};
pub(crate) use ledger::{Hold, Ledger, each_buffer, frame};
pub(crate) use pool::Mapping;
pub(crate) use pool::on_release;
pub use pool::release_memory;
pub(crate) use slab::{copy_past_cache, filled};

//! One CPU twin per kernel: simple rather than fast, and with as little order as a kernel's threads.
//!
//! Each twin checks every address before it accesses memory, and checks the content that a kernel requires
//! there. So a mistake of a conductor becomes an error that names it.

mod bucket_pool;
mod join;
mod output;
mod partition;
mod scatter;
mod shared_histogram;
mod table;
mod tasks;
mod unpack;

pub(super) use scatter::buffer_bytes;

use fastrand::Rng;

use super::memory::Space;
use super::word::DeviceWord;
use crate::device::stage::stage_table;
use crate::device::{DeviceStage, Shape};
use crate::error::{Error, Result};
use crate::word::Width;

/// The state on which stages work.
pub(super) struct Machine {
    pub(super) space: Space,
    pub(super) random: Rng,
    pub(super) shape: Shape,
}

/// Runs a stage.
pub(super) fn run(machine: &mut Machine, word: Width, stage: &DeviceStage) -> Result<()> {
    match word {
        Width::W32 => run_as::<u32>(machine, stage),
        Width::W64 => run_as::<u64>(machine, stage),
    }
}

/// Defines the function that runs the twins of the [table of stages](crate::device::stage).
macro_rules! run_twins {
    ($($(#[$doc:meta])* $name:ident $([$how:ident: $how_type:ty])? ($arguments:ident) {
        bytes: $bytes:expr,
        kernels: [$($kernel:expr),+ $(,)?],
        twin: $twin:expr,
    })*) => {
        fn run_as<W: DeviceWord>(machine: &mut Machine, stage: &DeviceStage) -> Result<()> {
            match stage {
                $(DeviceStage::$name($($how,)? arguments) => $twin(machine, $(*$how,)? arguments),)*
            }
        }
    };
}

stage_table!(run_twins);

/// Returns an error unless the condition holds, without which a kernel could not work.
fn require(holds: bool, what: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::internal(what)) }
}

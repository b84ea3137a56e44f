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

use super::memory::Space;
use super::random::Random;
use super::word::DeviceWord;
use crate::device::{Shape, Stage};
use crate::error::{Error, Result};
use crate::word::Width;

/// The state on which stages work.
pub(super) struct Machine {
    pub(super) space: Space,
    pub(super) random: Random,
    pub(super) shape: Shape,
}

/// Runs a stage.
pub(super) fn run(machine: &mut Machine, word: Width, stage: &Stage) -> Result<()> {
    match word {
        Width::W32 => run_as::<u32>(machine, stage),
        Width::W64 => run_as::<u64>(machine, stage),
    }
}

fn run_as<W: DeviceWord>(machine: &mut Machine, stage: &Stage) -> Result<()> {
    match stage {
        Stage::Survey(stage) => partition::survey::<W>(machine, stage),
        Stage::Histogram(stage) => partition::histogram::<W>(machine, stage),
        Stage::Offsets(stage) => partition::offsets(machine, stage),
        Stage::LookBack(stage) => partition::look_back::<W>(machine, stage),
        Stage::SharedCount(stage) => shared_histogram::count::<W>(machine, stage),
        Stage::SharedScan(stage) => shared_histogram::scan(machine, stage),
        Stage::SharedScatter(stage) => shared_histogram::scatter::<W>(machine, stage),
        Stage::CutChains(stage) => bucket_pool::cut_chains(machine, stage),
        Stage::BucketPool(stage) => bucket_pool::divide::<W>(machine, stage),
        Stage::Compact(stage) => bucket_pool::compact::<W>(machine, stage),
        Stage::Bounds(stage) => tasks::bounds::<W>(machine, stage),
        Stage::ListTasks(stage) => tasks::list(machine, stage),
        Stage::JoinShared(flavour, stage) => join::shared::<W>(machine, *flavour, stage),
        Stage::ClearTable(stage) => table::clear::<W>(machine, stage),
        Stage::Insert(stage) => table::insert::<W>(machine, stage),
        Stage::PlaceGroups(stage) => table::place_groups::<W>(machine, stage),
        Stage::FillGroups(stage) => table::fill_groups::<W>(machine, stage),
        Stage::Probe(flavour, stage) => join::probe::<W>(machine, *flavour, stage),
        Stage::ProbeInOrder(stage) => join::probe_in_order::<W>(machine, stage),
        Stage::MergeJoin(flavour, stage) => join::merge::<W>(machine, *flavour, stage),
        Stage::Gather(stage) => tasks::gather::<W>(machine, stage),
        Stage::Tally(stage) => scatter::tally::<W>(machine, stage),
        Stage::Unpack(stage) => unpack::unpack::<W>(machine, stage),
        Stage::Scatter(how, stage) => scatter::scatter::<W>(machine, *how, stage),
    }
}

/// Returns the name of a stage, for errors.
pub(super) fn name(stage: &Stage) -> &'static str {
    match stage {
        Stage::Survey(_) => "Survey",
        Stage::Histogram(_) => "Histogram",
        Stage::Offsets(_) => "Offsets",
        Stage::LookBack(_) => "LookBack",
        Stage::SharedCount(_) => "SharedCount",
        Stage::SharedScan(_) => "SharedScan",
        Stage::SharedScatter(_) => "SharedScatter",
        Stage::CutChains(_) => "CutChains",
        Stage::BucketPool(_) => "BucketPool",
        Stage::Compact(_) => "Compact",
        Stage::Bounds(_) => "Bounds",
        Stage::ListTasks(_) => "ListTasks",
        Stage::JoinShared(..) => "JoinShared",
        Stage::ClearTable(_) => "ClearTable",
        Stage::Insert(_) => "Insert",
        Stage::PlaceGroups(_) => "PlaceGroups",
        Stage::FillGroups(_) => "FillGroups",
        Stage::Probe(..) => "Probe",
        Stage::ProbeInOrder(_) => "ProbeInOrder",
        Stage::MergeJoin(..) => "MergeJoin",
        Stage::Gather(_) => "Gather",
        Stage::Tally(_) => "Tally",
        Stage::Unpack(_) => "Unpack",
        Stage::Scatter(..) => "Scatter",
    }
}

/// Returns an error unless the condition holds, without which a kernel could not work.
fn require(holds: bool, what: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Worker(what.to_string())) }
}

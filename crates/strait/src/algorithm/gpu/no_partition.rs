//! One table over the build side; the probe side looks up in it (001 §5, 003).
//!
//! ```text
//!  in GPU memory:   build ─► table ◄─ look up ─ probe ─► rows
//!
//!  over the link:   build: host ─► device ─► table ──────┐
//!                                                        ├─► rows ─► host
//!                   probe: host ─► chunk, chunk ─► look up ┘
//! ```
//!
//! Lookups are faster than the link, even if each one misses the cache.

use super::machinery::look_up::{TableOf, look_up, stream_past};
use super::machinery::stream::release;
use super::machinery::table::{self, Place, Rows};
use super::{DeviceSide, JoinResult, Receiver, Session, Wanted, check_rows};
use crate::device::abi;
use crate::error::Result;
use crate::options::Algorithm;
use crate::plan::{InGpuMemory, Learned, Plan};
use crate::transfer::{HostSide, Incoming, TransferContext, load};

/// Joins two sides in GPU memory.
pub(super) fn join(
    session: &Session<'_>,
    plan: &mut Plan,
    build: &DeviceSide,
    probe: &DeviceSide,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let table = table::build(session, plan, build, Place::Device)?;
    look_up(session, table, Rows::of(probe), wanted, to)
}

/// Joins two sides in host memory. The probe side is streamed past the table.
pub(super) fn join_from_host(
    link: &TransferContext<'_>,
    plan: &mut Plan,
    build: &HostSide,
    probe: &Incoming<'_>,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    check_rows(build.rows)?;
    let table = build_from_host(link, plan, build)?;
    plan.refine(Learned { unique: Some(table.groups == 0), ..Learned::default() });
    let past = TableOf { table, build: 0..build.rows, order: plan.order()? };
    stream_past(&link.with_chunks_of(plan.chunk_rows()?.probe), past, probe, wanted, to)
}

/// Surveys the build keys and asks the plan which algorithm is best for them. If it is this one, joins by a
/// directly addressed array. Returns `None` if the plan chooses another algorithm, or if a build key occurs
/// more than once.
pub(super) fn join_surveyed(
    session: &Session<'_>,
    [build, probe]: [&DeviceSide; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<Option<JoinResult>> {
    let word = session.word;
    let facts = InGpuMemory { build_rows: build.rows, word, l2: session.device.shape(word).l2 };
    let (min, max) = table::survey(session, build)?;
    if facts.after_survey((min, max)) != Algorithm::NoPartition {
        return Ok(None);
    }
    let array = table::direct(min, max);
    let table = table::array(session, Rows::of(build), array, Place::Device)?;
    session.mark("build table")?;
    let Some(table) = table else { return Ok(None) };
    look_up(session, table, Rows::of(probe), wanted, to).map(Some)
}

/// Builds a table over the whole build side. If the table may lie in host memory, the build side need not fit
/// the device: it is inserted chunk by chunk, as long as no key occurs more than once.
fn build_from_host(
    link: &TransferContext<'_>,
    plan: &mut Plan,
    build: &HostSide,
) -> Result<abi::DeviceTable> {
    let session = link.session;
    let place = Place::by_free_memory(session, plan);
    let mut repeated = false;
    if place != Place::Device {
        let point = session.point();
        let slot_count = 2 * build.rows + 2;
        let slots = table::slots(session, slot_count * session.word.tuple(), place)?;
        let table = table::compact(session, slots, slot_count);
        if slot_count <= u64::from(u32::MAX) {
            if table::fill(link, build, 0, table)? {
                session.mark("build table")?;
                return Ok(table);
            }
            repeated = true;
        }
        session.release_since(point)?;
    }
    let side = load(link, build)?;
    let place = Place::by_free_memory(session, plan);
    let table = match repeated {
        true => table::build_groups(session, plan, &side, place)?,
        false => table::build(session, plan, &side, place)?,
    };
    // The table has its own copy of the columns.
    release(session, &side)?;
    Ok(table)
}

//! Joins the build side in parts that fit the device, and streams the probe side once per part. (Our design.)
//!
//! ```text
//!  build: part 1 ─► table ─┐ ◄── probe, chunk by chunk
//!         part 2 ─► table ─┤ ◄── probe again
//!         …                └─► rows; the host combines the flags of all passes
//! ```
//!
//! The load factor of a table depends on the memory: four fifths if that saves a pass, otherwise one half.
//! If a key occurs more than once in a part, this part and all later parts are joined by partitions instead.

use super::machinery::look_up::{TableOf, stream_past};
use super::machinery::table::{compact, fill};
use super::machinery::wanted::Watched;
use super::streamed_probe::join_loaded;
use super::{DeviceSide, JoinResult, Receiver, Session, Wanted};
use crate::error::{Error, Result, bytes};
use crate::plan::gpu_shape::part_slots;
use crate::plan::{Divided, Learned, Plan, ProbeSide};
use crate::transfer::{HostSide, Incoming, TransferContext, load};

/// Joins two sides.
pub(super) fn join(
    link: &TransferContext<'_>,
    plan: &mut Plan,
    build: &HostSide,
    probe: &Incoming<'_>,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let session = link.session;
    let mut found = JoinResult::default();
    let mut done = Divided::default();
    while done.rows < build.rows {
        plan.refine(Learned { free: Some(session.left()), ..Learned::default() });
        let (first, rows) = (done.rows, part_rows(session, plan)?.min(build.rows - done.rows));
        let part = Part { side: build.part(session.word, first..first + rows), first };
        if let ProbeSide::Held(reason) = plan.details.probe_side {
            probe.held()?;
            plan.refine(Learned { held: Some(reason), ..Learned::default() });
        }
        let link = &link.with_chunks_of(plan.chunk_rows()?.build);
        let point = session.point();
        let mut watched = Watched { to, blocks: 0 };
        // There is no table if a key occurred more than once.
        let joined = match plan.details.table {
            Some(_) => by_table(link, plan, &part, probe, wanted, &mut watched),
            None => by_partitions(link, plan, &part, probe, wanted, &mut watched),
        };
        let untouched = watched.blocks == 0;
        session.release_since(point)?;
        match joined {
            Ok(Some(joined)) => {
                found = found.and(joined);
                done = Divided { rows: first + rows, parts: done.parts + 1 };
                session.record_work(|work| work.parts += 1);
                plan.refine(Learned { divided: Some(done), ..Learned::default() });
            }
            Ok(None) => plan.refine(Learned { unique: Some(false), ..Learned::default() }),
            // Another process took GPU memory, or the part needs more than predicted. Smaller parts and
            // chunks help, as long as no row of this part has been written.
            Err(Error::DeviceMemory { .. }) if untouched && rows > 1 => {
                let chunks = link.with_chunks_of(plan.chunk_rows()?.probe);
                let half = chunks.probe_rows(probe, 0, u64::MAX)?.div_ceil(2);
                let (refused, most_chunk_rows) = (Some(rows), Some(half));
                plan.refine(Learned { refused, most_chunk_rows, ..Learned::default() });
                session.record_work(|work| work.chunk_rows = 0);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// A part of the build side.
struct Part {
    side: HostSide,
    /// The number of its first row in the build side.
    first: u64,
}

/// Joins a part by partitions, because a key may occur more than once.
fn by_partitions(
    link: &TransferContext<'_>,
    plan: &Plan,
    part: &Part,
    probe: &Incoming<'_>,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<Option<JoinResult>> {
    let side = DeviceSide { first: part.first, ..load(link, &part.side)? };
    join_loaded(link, plan, side, probe, wanted, to).map(Some)
}

/// Returns the rows of the next part. Fails if GPU memory does not suffice for any part.
fn part_rows(session: &Session<'_>, plan: &Plan) -> Result<u64> {
    match plan.part_rows()? {
        0 => {
            let all = session.device.memory().budget;
            Err(Error::DeviceMemory {
                what: "a part of the build side".to_string(),
                needed: 8 * 2 * session.word.tuple(),
                used: all.saturating_sub(session.left()),
                budget: all,
                hint: format!("give the join more than {} of GPU memory", bytes(all)),
            })
        }
        rows => Ok(rows),
    }
}

/// Joins a part by one table. Returns `None` if a key occurs more than once.
fn by_table(
    link: &TransferContext<'_>,
    plan: &mut Plan,
    part: &Part,
    probe: &Incoming<'_>,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<Option<JoinResult>> {
    let session = link.session;
    let tuple = session.word.tuple();
    let Part { side, first } = part;
    let slot_count = part_slots(side.rows, tuple, session.left());
    let slots = session.allocate(slot_count * tuple, "the hash table")?;
    let table = compact(session, slots, slot_count);
    if !fill(link, side, *first, table)? {
        return Ok(None);
    }
    session.mark("build table")?;
    plan.refine(Learned { unique: Some(true), ..Learned::default() });
    let past = TableOf { table, build: *first..first + side.rows, order: plan.order()? };
    let link = &link.with_chunks_of(plan.chunk_rows()?.probe);
    stream_past(link, past, probe, wanted, to).map(Some)
}

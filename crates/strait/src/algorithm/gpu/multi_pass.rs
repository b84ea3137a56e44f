//! Joins the build side in parts that fit the device, and streams the probe side once per part. (Our design.)
//!
//! ```text
//!  build: part 1 ─► table ─┐ ◄── probe, chunk by chunk
//!         part 2 ─► table ─┤ ◄── probe again
//!         …                └─► rows; the host combines the flags of all passes
//! ```
//!
//! The load factor of a table depends on the memory: four fifths if that saves a pass, otherwise one half.
//! If a key occurs twice in a part, this part and all later parts are joined by partitions instead.

use super::machinery::look_up::{TableOf, stream_past};
use super::machinery::partitions::partitioning;
use super::machinery::table::{compact, fill};
use super::machinery::wanted::Watched;
use super::streamed_probe::join_loaded;
use super::{DeviceSide, JoinResult, MAX_ROWS, Receiver, Session, Wanted};
use crate::error::{Error, Result, bytes};
use crate::plan::gpu_memory::{FOR_TABLES, LEAST_SLOTS, MAX_SLOTS, table_rows};
use crate::plan::{Learned, Plan};
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
    let mut link = TransferContext { ..*link };
    let mut most_rows = plan.most_part_rows(build.rows);
    let mut found = JoinResult::default();
    let mut at = 0;
    let mut unique = true;
    while at < build.rows {
        let rows = part_rows(session, build, build.rows - at, unique)?.min(most_rows);
        let rows = rows.min(build.rows - at);
        let part = build.part(session.word, at..at + rows);
        if rows < build.rows {
            // The probe side is needed several times.
            probe.held()?;
        }
        let point = session.point();
        let mut watched = Watched { to, blocks: 0 };
        let joined = match unique {
            true => by_table(&link, plan, &part, at, probe, wanted, &mut watched),
            false => by_partitions(&link, &part, at, probe, wanted, &mut watched),
        };
        let untouched = watched.blocks == 0;
        session.release_since(point)?;
        match joined {
            Ok(Some(joined)) => {
                found = found.and(joined);
                at += rows;
            }
            Ok(None) => {
                unique = false;
                plan.refine(Learned { unique: Some(false), ..Learned::default() });
            }
            // Somebody else took memory, or less was left than predicted. Smaller parts and chunks help, as
            // long as no row of this part has been written.
            Err(Error::DeviceMemory { .. }) if untouched && rows > 1 => {
                most_rows = rows.div_ceil(2);
                link.most_rows = Some(link.probe_rows(probe, 0, u64::MAX)?.div_ceil(2));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Joins a part by partitions, because a key may occur more than once. `first` is its first row number.
fn by_partitions(
    link: &TransferContext<'_>,
    part: &HostSide,
    first: u64,
    probe: &Incoming<'_>,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<Option<JoinResult>> {
    let side = DeviceSide { first, ..load(link, part)? };
    join_loaded(link, side, probe, wanted, to).map(Some)
}

/// Returns the rows of the next part. There are as few parts as possible, all of about the same size.
fn part_rows(session: &Session<'_>, build: &HostSide, left: u64, unique: bool) -> Result<u64> {
    let (word, tuple) = (session.word.bytes(), session.word.tuple());
    let memory = session.left();
    let fit = match unique {
        true => table_rows(memory, tuple),
        // Columns, partitions, and the extra memory of two partitioning passes.
        false => memory / 8 * FOR_TABLES / (build.columns() * word + partitioning(session)),
    };
    if fit == 0 {
        let all = session.device.memory().budget;
        return Err(Error::DeviceMemory {
            what: "a part of the build side".to_string(),
            needed: 8 * 2 * tuple,
            used: all - memory,
            budget: all,
            hint: format!("give the join more than {} of GPU memory", bytes(all)),
        });
    }
    let fit = fit.min(MAX_ROWS);
    Ok(left.div_ceil(left.div_ceil(fit)))
}

/// Joins a part by one table. `first` is its first row number. Returns `None` if a key occurs twice.
fn by_table(
    link: &TransferContext<'_>,
    plan: &mut Plan,
    part: &HostSide,
    first: u64,
    probe: &Incoming<'_>,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<Option<JoinResult>> {
    let session = link.session;
    let tuple = session.word.tuple();
    let fit = (session.left() / 8 * FOR_TABLES / tuple).min(MAX_SLOTS);
    let slot_count = (2 * part.rows).min(fit).max(part.rows * LEAST_SLOTS / (LEAST_SLOTS - 1) + 1);
    let slots = session.allocate(slot_count * tuple, "the hash table")?;
    let table = compact(session, slots, slot_count);
    if !fill(link, part, first, table)? {
        return Ok(None);
    }
    session.mark("build table")?;
    plan.refine(Learned { unique: Some(true), ..Learned::default() });
    let past = TableOf { table, build: first..first + part.rows, order: plan.order()? };
    stream_past(link, past, probe, wanted, to).map(Some)
}

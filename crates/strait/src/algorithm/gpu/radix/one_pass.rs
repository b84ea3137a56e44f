//! The radix join in one pass: one table in GPU memory, whose parts take turns in the L2 cache.
//!
//! ```text
//!  build: columns ─► one pass ─► tuples in partition order ─► insert ─┐ the slots of one partition
//!                                                                     ├─ are adjacent, so the active
//!  probe: columns ─► one pass ─► tuples in partition order ─► look up ┘ part stays in the cache
//! ```
//!
//! The top bits of the mixed key choose both the home slot and the partition. So no table per partition is
//! needed: it is enough to insert and to look up in partition order. Building costs more than a table in
//! shared memory (atomics; slots are cleared, written and read). But the probe side is partitioned once
//! instead of twice, so this join is faster if the probe side is much longer.

use super::super::machinery::look_up::look_up;
use super::super::machinery::table::{Place, Rows, single};
use super::super::{DeviceSide, JoinResult, Receiver, Session, Wanted};
use crate::device::View;
use crate::error::Result;
use crate::partition::gpu::{Digits, ordered};

/// Joins two sides by the top `bits` bits. Returns `None` if a build key occurs more than once.
pub(super) fn join(
    session: &Session<'_>,
    bits: u32,
    build: &DeviceSide,
    probe: &DeviceSide,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<Option<JoinResult>> {
    let digits = Digits::top(bits, session.word.bits());
    session.record_work(|work| work.radix_bits = digits.widths());
    let rows = |side: &DeviceSide, tuples: View| Rows {
        columns: side.columns(),
        tuples: tuples.address,
        rows: side.rows,
    };
    let tuples = ordered(session, build, &digits, &mut None, "the partitioned build side")?;
    session.mark("partition build side")?;
    let table = single(session, rows(build, tuples), Place::Device)?;
    session.mark("build table")?;
    session.release(&[tuples])?;
    let Some(table) = table else { return Ok(None) };
    let tuples = ordered(session, probe, &digits, &mut None, "the partitioned probe side")?;
    session.mark("partition probe side")?;
    look_up(session, table, rows(probe, tuples), wanted, to).map(Some)
}

//! The radix join in one pass: a table in the device's memory, whose parts take turns in its L2 cache.
//!
//! ```text
//!  build: columns ─► one pass ─► tuples in partition order ─► insert ─┐ the slots of a partition
//!                                                                     ├─ lie together: what is worked
//!  probe: columns ─► one pass ─► tuples in partition order ─► look up ┘ on stays in the cache
//! ```
//!
//! A key's home slot is given by the top bits of the mixed key, and partitions are too, so no table a
//! partition is needed: inserting and looking up in partition order is enough. Building costs more
//! than a table in shared memory (atomics, and slots that are cleared, written and read), but the
//! probe side is partitioned once instead of twice: it pays where that side is much the longer one.

use super::no_partition::{Rows, hashed, look_up, single};
use super::{JoinResult, Receiver, Session, Side, Wanted};
use crate::device::View;
use crate::error::Result;
use crate::gpu_options::TablePlace;
use crate::partition::gpu::{Digits, ordered};

/// How much longer the probe side has to be: from there on one pass won on an H200, 31 to 26
/// billion tuples a second at eight times (benchmarks/notes.md).
const LONGER: u64 = 3;
/// Parts of the table that share the cache with streams of tuples and rows.
const SHARE: u64 = 8;

/// Joins two sides, if one pass is worth it; None where it is not, or a build key comes twice.
pub(super) fn join(
    session: &Session<'_>,
    build: &Side,
    probe: &Side,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<Option<JoinResult>> {
    if probe.rows / LONGER < build.rows {
        return Ok(None);
    }
    let table_bytes = hashed(session, build.rows).slot_count * session.word.tuple();
    let part = (session.device.shape(session.word).l2 / SHARE).max(1);
    let bits = table_bytes.div_ceil(part).next_power_of_two().ilog2().clamp(1, 8);
    let digits = Digits::top(bits, session.word.bits());
    let rows = |side: &Side, tuples: View| Rows {
        columns: side.columns(),
        tuples: tuples.address,
        rows: side.rows,
    };
    let tuples = ordered(session, build, &digits, &mut None, "the partitioned build side")?;
    session.mark("partition build side")?;
    let table = single(session, rows(build, tuples), TablePlace::Gpu)?;
    session.mark("build table")?;
    session.release(&[tuples])?;
    let Some(table) = table else { return Ok(None) };
    let tuples = ordered(session, probe, &digits, &mut None, "the partitioned probe side")?;
    session.mark("partition probe side")?;
    look_up(session, table, rows(probe, tuples), wanted, to).map(Some)
}

//! The CPU partitions both sides, and the GPU joins them (003 §IV-B to D).
//!
//! ```text
//!  build ─► CPU: partitions in pinned memory ─► working sets ─► the first set to the device ─┐
//!                                                                                            ├─► rows
//!  probe ─► CPU: chunk by chunk into pinned memory ─► rows for the first set, at once ───────┘
//!                                    └─► the other rows, set after set
//! ```
//!
//! While the device joins the rows of one chunk with the first working set, the CPU partitions the next
//! chunk. Every tuple crosses the link once, except probe tuples whose build partition is joined in blocks.

use std::cell::RefCell;

use super::machinery::host_partitions::{HostPartitions, bits, pack};
use super::machinery::working_set::{WorkingSetJoin, WorkingSets, blocks, join_lists, join_sets};
use super::{JoinResult, Receiver, Wanted};
use crate::error::Result;
use crate::partition::{RowId, Tuple, partition_columns};
use crate::transfer::{HostSide, Place, Run, TransferContext};
use crate::word::KeyWord;
use crate::word::Width;

/// Rows per chunk that the CPU partitions: enough that each partition's run is long enough for the link.
const CHUNK_ROWS: u64 = 16 << 20;
/// The maximum number of radix bits: one write-combining buffer per partition must stay in a core's cache.
const MAX_BITS: u32 = 10;

/// Joins two sides. Working sets have at most `most_rows` build rows, if given.
pub(super) fn join(
    crossing: &TransferContext<'_>,
    most_rows: Option<u64>,
    [build, probe]: [&HostSide; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let session = crossing.session;
    let mut sets = WorkingSets::new(crossing, [build.rows, probe.rows], wanted)?;
    let fit = WorkingSets::fit(crossing, session.left(), most_rows);
    let bits = bits(build.rows, fit, MAX_BITS);
    sets.bits = bits;
    let mut partitioned = HostPartitions::new(bits);
    let mut at = 0;
    while let Some(rows) = chunk(crossing, build, &mut at) {
        partition_side(crossing, build, rows, &mut partitioned)?;
    }
    let packed = pack(&partitioned.rows, fit);
    let Some((first, others)) = packed.split_first() else { return sets.finish(to) };

    // The first block of the first set is joined while the probe side is being partitioned. The other
    // blocks of this set (if it does not fit) and the other sets are joined afterwards.
    let tuple = session.word.tuple();
    let mut first_blocks = blocks(partitioned.of(first), fit, tuple).into_iter();
    let Some(block) = first_blocks.next() else { return sets.finish(to) };
    let probes = RefCell::new(HostPartitions::new(bits));
    let mut block = Some(block);
    let meeting =
        WorkingSetJoin { build: block.iter().flatten().map(|run| run.rows).sum(), probe: None };
    if meeting.build == 0 {
        return sets.finish(to);
    }
    let mut at = 0;
    let probes_of_first = || {
        if let Some(block) = block.take() {
            return Ok(Some(block));
        }
        let Some(rows) = chunk(crossing, probe, &mut at) else { return Ok(None) };
        let mut probes = probes.borrow_mut();
        let before: Vec<usize> = first.iter().map(|&p| probes.runs[p].len()).collect();
        partition_side(crossing, probe, rows, &mut probes)?;
        let new = first.iter().zip(before).flat_map(|(&p, n)| probes.runs[p][n..].to_vec());
        Ok(Some(new.collect()))
    };
    sets.join(&[meeting], Box::new(probes_of_first), to)?;
    let probes = probes.into_inner();
    let rest = first_blocks.map(|block| [block, probes.of(first)]).collect();
    join_lists(&mut sets, rest, to)?;
    join_sets(&mut sets, others, [&partitioned, &probes], fit, to)?;
    sets.finish(to)
}

/// Returns the rows of the next chunk.
fn chunk(
    crossing: &TransferContext<'_>,
    side: &HostSide,
    at: &mut u64,
) -> Option<std::ops::Range<u64>> {
    let step = crossing.most_rows.unwrap_or(CHUNK_ROWS);
    let rows = *at..(*at + step).min(side.rows);
    *at = rows.end;
    (!rows.is_empty()).then_some(rows)
}

/// Partitions some rows of a side into pinned memory.
fn partition_side(
    crossing: &TransferContext<'_>,
    side: &HostSide,
    rows: std::ops::Range<u64>,
    to: &mut HostPartitions,
) -> Result<()> {
    match crossing.session.word {
        Width::W32 => partition_side_as::<u32>(crossing, side, rows, to),
        Width::W64 => partition_side_as::<u64>(crossing, side, rows, to),
    }
}

fn partition_side_as<W: KeyWord + RowId>(
    crossing: &TransferContext<'_>,
    side: &HostSide,
    rows: std::ops::Range<u64>,
    to: &mut HostPartitions,
) -> Result<()> {
    let count = (rows.end - rows.start) as usize;
    let bytes = count * size_of::<Tuple<W, W>>();
    let pinned = to.pin(crossing, bytes as u64)?;
    // SAFETY: the creator of the columns keeps their memory alive. Nobody else has the pinned memory yet; it
    // has room for all tuples and is aligned for them, and every bit pattern is a valid tuple.
    let (keys, values, tuples) = unsafe {
        let keys = side.keys.words::<W>(rows.clone())?;
        let values = match &side.values {
            Some(values) => Some(values.words::<W>(rows.clone())?),
            None => None,
        };
        let start = pinned.bytes_mut().as_mut_ptr().cast::<Tuple<W, W>>();
        (keys, values, std::slice::from_raw_parts_mut(start, count))
    };
    let values = (values, rows.start);
    let by = (crossing.session.mixer(), to.bits);
    let bounds = partition_columns(crossing.workers, keys, values, by, tuples)?;
    for (partition, bound) in bounds.windows(2).enumerate() {
        let place = Place::Host(pinned.clone(), bound[0] * size_of::<Tuple<W, W>>());
        to.add(partition, Run { place, rows: (bound[1] - bound[0]) as u64 });
    }
    Ok(())
}

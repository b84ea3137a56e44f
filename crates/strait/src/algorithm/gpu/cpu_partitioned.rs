//! The CPU partitions both sides, and the GPU joins them (003 §IV-B to D, figures 3 and 4).
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

use super::machinery::host_partitions::HostPartitions;
use super::machinery::working_set::{
    SetRows, SetRuns, WorkingSets, blocks, join_runs, join_sets, rows_of,
};
use super::{JoinResult, Receiver, Wanted};
use crate::error::Result;
use crate::partition::{ColumnRows, RowId, Tuple, partition_columns};
use crate::plan::{Learned, Plan};
use crate::transfer::{HostSide, Place, Run, TransferContext};
use crate::word::KeyWord;
use crate::word::Width;

/// Joins two sides.
pub(super) fn join(
    link: &TransferContext<'_>,
    plan: &mut Plan,
    [build, probe]: [&HostSide; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let session = link.session;
    let chunks = plan.chunk_rows()?;
    let of_tuples = &link.with_chunks_of(chunks.tuples.unwrap_or(chunks.probe));
    let mut sets = WorkingSets::new(of_tuples, [build.rows, probe.rows], wanted)?;
    plan.refine(Learned { free: Some(session.left()), ..Learned::default() });
    let fit = plan.part_rows()?;
    sets.bits = plan.radix_bits();

    let mut build = CpuPartitioner::new(link, build, sets.bits);
    while build.next_chunk()? {}
    let build = build.partitions;

    let packed = plan.working_sets(&build.rows)?;
    let Some((first, others)) = packed.split_first() else { return sets.finish(to) };

    // A set that does not fit is joined in blocks. Its first block is joined while the probe side is being
    // partitioned. Its other blocks, and the other sets, are joined afterwards.
    let mut first_blocks = blocks(build.of(first), fit, session.word.tuple()).into_iter();
    let first_block = first_blocks.next().unwrap_or_default();
    let of_probe = &link.with_chunks_of(chunks.probe);
    let mut probe = CpuPartitioner::new(of_probe, probe, sets.bits);
    join_while_partitioning(&mut sets, first_block, first, &mut probe, to)?;
    let probe = probe.partitions;

    let other_blocks = first_blocks.map(|block| SetRuns { build: block, probe: probe.of(first) });
    join_runs(&mut sets, other_blocks.collect(), to)?;
    join_sets(&mut sets, others, [&build, &probe], fit, to)?;
    sets.finish(to)
}

/// Joins `build`, which are build rows of the partitions `set`, with all probe rows of these partitions. The
/// device joins the rows of one chunk while the CPU partitions the next chunk.
fn join_while_partitioning(
    sets: &mut WorkingSets<'_>,
    build: Vec<Run>,
    set: &[usize],
    probe: &mut CpuPartitioner<'_>,
    to: &mut dyn Receiver,
) -> Result<()> {
    let rows = SetRows { build: rows_of(&build), probe: None };
    let mut build = Some(build);
    let produce = || match build.take() {
        Some(build) => Ok(Some(build)),
        None => probe.next_runs(set),
    };
    sets.join(&[rows], Box::new(produce), to)
}

/// Partitions a side on the CPU, chunk by chunk, into pinned memory.
struct CpuPartitioner<'a> {
    link: &'a TransferContext<'a>,
    side: &'a HostSide,
    /// The number of rows that are already partitioned.
    at: u64,
    partitions: HostPartitions,
}

impl<'a> CpuPartitioner<'a> {
    fn new(link: &'a TransferContext<'a>, side: &'a HostSide, bits: u32) -> Self {
        CpuPartitioner { link, side, at: 0, partitions: HostPartitions::new(bits) }
    }

    /// Partitions the next chunk. Returns `false` if there is none.
    fn next_chunk(&mut self) -> Result<bool> {
        let step = self.link.most_rows;
        let rows = self.at..(self.at + step).min(self.side.rows);
        if rows.is_empty() {
            return Ok(false);
        }
        self.at = rows.end;
        match self.link.session.word {
            Width::W32 => self.partition::<u32>(rows)?,
            Width::W64 => self.partition::<u64>(rows)?,
        }
        Ok(true)
    }

    /// Partitions the next chunk, and returns its runs of the partitions `set`. Returns `None` if there is no
    /// chunk.
    fn next_runs(&mut self, set: &[usize]) -> Result<Option<Vec<Run>>> {
        let before: Vec<usize> = set.iter().map(|&p| self.partitions.runs[p].len()).collect();
        if !self.next_chunk()? {
            return Ok(None);
        }
        let runs = &self.partitions.runs;
        let new = set.iter().zip(before).flat_map(|(&p, before)| runs[p][before..].iter().cloned());
        Ok(Some(new.collect()))
    }

    fn partition<W: KeyWord + RowId>(&mut self, rows: std::ops::Range<u64>) -> Result<()> {
        let (link, side, to) = (self.link, self.side, &mut self.partitions);
        let count = (rows.end - rows.start) as usize;
        let bytes = count * size_of::<Tuple<W, W>>();
        let pinned = to.pin(link, bytes as u64)?;
        // SAFETY: the creator of the columns keeps their memory alive. Nobody else has the pinned memory yet;
        // it has room for all tuples and is aligned for them, and every bit pattern is a valid tuple.
        let (columns, tuples) = unsafe {
            let keys = side.keys.words::<W>(rows.clone())?;
            let values = match &side.values {
                Some(values) => Some(values.words::<W>(rows.clone())?),
                None => None,
            };
            let start = pinned.bytes_mut().as_mut_ptr().cast::<Tuple<W, W>>();
            let tuples = std::slice::from_raw_parts_mut(start, count);
            (ColumnRows { keys, values, first_row: rows.start }, tuples)
        };
        link.session.record_work(|work| work.radix_bits = vec![to.bits]);
        let mixer = link.session.mixer();
        let bounds = partition_columns(link.workers, columns, mixer, to.bits, tuples)?;
        for (partition, bound) in bounds.windows(2).enumerate() {
            let place = Place::Host(pinned.clone(), bound[0] * size_of::<Tuple<W, W>>());
            to.add(partition, Run { place, rows: (bound[1] - bound[0]) as u64 });
        }
        Ok(())
    }
}

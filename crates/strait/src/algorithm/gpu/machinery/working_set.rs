//! Joins partitions that lie in host memory, one working set at a time (000 §5, 003 §IV-B).
//!
//! ```text
//!  build partitions of the set ─► device ─► partitioned again ─┐
//!                                                              ├─► joined chunk by chunk ─► rows
//!  probe partitions of the set ─► chunk, chunk, chunk ─────────┘
//!
//!  the link:   build 1 │ probe 1 │ build 2 │ probe 2 │ …           one stream for all sets
//! ```
//!
//! The build partitions of the next set cross the link while the last chunks of the current set are joined.
//! Every tuple crosses once, for any number of sets. There is one exception: a build partition may not fit GPU
//! memory. Such a partition is joined in blocks, and its probe partition crosses once per block. There are two
//! causes. Keys may be frequent. Or the build side is so long that the first pass would need more radix bits
//! than it may have (`first_pass_bits`). More bits would split partitions that have several keys, but not a
//! single key. (003 partitions oversized partitions again.)

use super::flags::{Window, closed, opened};
use super::host_partitions::HostPartitions;
use super::output_loop::OutputLoop;
use super::partitions::{Radix, join_chunk, partitioning};
use super::stream::Feeding;
use super::wanted::{JoinResult, Receiver, Wanted, Which};
use crate::device::DeviceSide;
use crate::error::Result;
use crate::transfer::{Pipeline, Produce, Run, TransferContext};

/// Joins working sets.
pub(crate) struct WorkingSets<'a> {
    link: &'a TransferContext<'a>,
    wanted: Wanted,
    /// The number of radix bits that choose a partition.
    pub(crate) bits: u32,
    windows: [Option<Window>; 2],
    found: JoinResult,
}

impl<'a> WorkingSets<'a> {
    /// Prepares to join sides with the given numbers of rows. The caller sets `bits` later: the plan needs to
    /// know how much memory is left after this call.
    pub(crate) fn new(
        link: &'a TransferContext<'a>,
        [build, probe]: [u64; 2],
        wanted: &Wanted,
    ) -> Result<WorkingSets<'a>> {
        let session = link.session;
        // The rows of a set come from anywhere in a side, so the flags cover the whole side.
        let mut windows = [
            Window::new(session, Which::Build, wanted, build)?,
            Window::new(session, Which::Probe, wanted, probe)?,
        ];
        let build_flags = opened(&mut windows[0], session, 0, build)?;
        let probe_flags = opened(&mut windows[1], session, 0, probe)?;
        let wanted = Wanted { build_flags, probe_flags, ..*wanted };
        Ok(WorkingSets { link, wanted, bits: 0, windows, found: JoinResult::default() })
    }

    /// Joins working sets one after the other. For each set, `produce` returns two lists of runs: first the
    /// build rows, then the probe rows. The probe rows of the last set may come in any number of lists.
    pub(crate) fn join<'p>(
        &mut self,
        sets: &[SetRows],
        produce: Produce<'p>,
        to: &mut dyn Receiver,
    ) -> Result<()>
    where
        'a: 'p,
    {
        let session = self.link.session;
        let Some(most) = sets.iter().map(|set| set.build).max() else { return Ok(()) };
        let tuple = session.word.tuple();
        let extra = partitioning(session) + 2 * tuple + session.word.bytes();
        let held = most * (tuple + partitioning(session));
        let left = session.left();
        let share = left.saturating_sub(held).max(left / 4) / 2;
        let chunk_rows = self.link.chunk_of_tuples(extra, share);
        let link: &'p TransferContext<'p> = self.link;
        let mut pipeline = Pipeline::of_runs(link, produce, chunk_rows)?;
        for &set in sets {
            let point = session.point();
            self.join_set(set, chunk_rows, &mut pipeline, to)?;
            session.release_since(point)?;
        }
        Ok(())
    }

    /// Joins one working set: first its build rows arrive in the pipeline, then its probe rows.
    fn join_set(
        &mut self,
        set: SetRows,
        chunk_rows: u64,
        pipeline: &mut Pipeline<'_>,
        to: &mut dyn Receiver,
    ) -> Result<()> {
        let session = self.link.session;
        let rows = set.build;
        let radix = Radix::below(session, self.bits, rows);
        session.record_work(|work| work.parts += 1);
        let side = self.gather(pipeline, rows)?;
        let held = radix.partition_alone(session, &side, "the partitioned build side")?;
        session.release(side.tuples.as_slice())?;
        session.mark("partition build side")?;

        let expected_rows = self.wanted.expected_rows.min(chunk_rows);
        let wanted = Wanted { expected_rows, ..self.wanted };
        let tasks = radix.tasks(session, rows, chunk_rows);
        let mut output_loop = OutputLoop::new(session, &wanted, tasks as u32)?;
        let mut left = set.probe.unwrap_or(u64::MAX);
        while left > 0
            && let Some(chunk) = pipeline.next()?
        {
            let side = chunk.side;
            left -= side.rows;
            let mut feeding = Feeding { pipeline: &mut *pipeline, to };
            join_chunk(&mut output_loop, &radix, &held, &side, &wanted, &mut feeding)?;
            pipeline.done(chunk)?;
        }
        self.found = self.found.and(output_loop.finish()?);
        Ok(())
    }

    /// Copies the next rows of the stream into one piece of memory.
    fn gather(&self, pipeline: &mut Pipeline<'_>, rows: u64) -> Result<DeviceSide> {
        let session = self.link.session;
        let tuples =
            session.allocate(rows * session.word.tuple(), "the build side's partitions")?;
        let mut at = 0;
        while at < tuples.bytes
            && let Some(chunk) = pipeline.next()?
        {
            if let Some(from) = chunk.side.tuples {
                session.device.copy_between(session.compute, from, tuples.part(at, from.bytes))?;
                at += from.bytes;
            }
            pipeline.done(chunk)?;
            pipeline.ahead()?;
        }
        session.mark("copy to device")?;
        Ok(DeviceSide { tuples: Some(tuples), rows, ..DeviceSide::default() })
    }

    /// Hands the flags to the receiver and returns the result.
    pub(crate) fn finish(self, to: &mut dyn Receiver) -> Result<JoinResult> {
        for window in &self.windows {
            closed(window, self.link.session, to)?;
        }
        Ok(self.found)
    }
}

/// The numbers of rows of one working set. `probe` is `None` if the number of probe rows is unknown: then the
/// set is joined with all probe rows that come.
#[derive(Clone, Copy)]
pub(crate) struct SetRows {
    pub(crate) build: u64,
    pub(crate) probe: Option<u64>,
}

/// The tuples of one working set.
pub(crate) struct SetRuns {
    pub(crate) build: Vec<Run>,
    pub(crate) probe: Vec<Run>,
}

/// Returns the number of tuples of some runs.
pub(crate) fn rows_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.rows).sum()
}

/// Joins all sets of two partitioned sides, at most `fit` build rows at a time.
pub(crate) fn join_sets(
    sets: &mut WorkingSets<'_>,
    packed: &[Vec<usize>],
    [build, probe]: [&HostPartitions; 2],
    fit: u64,
    to: &mut dyn Receiver,
) -> Result<()> {
    let tuple = sets.link.session.word.tuple();
    let mut runs = Vec::new();
    for set in packed {
        let probe = probe.of(set);
        let blocks = blocks(build.of(set), fit, tuple).into_iter();
        runs.extend(blocks.map(|build| SetRuns { build, probe: probe.clone() }));
    }
    join_runs(sets, runs, to)
}

/// Joins the build runs of each set with its probe runs, one set after the other.
pub(crate) fn join_runs(
    sets: &mut WorkingSets<'_>,
    mut runs: Vec<SetRuns>,
    to: &mut dyn Receiver,
) -> Result<()> {
    runs.retain(|set| rows_of(&set.build) > 0 && rows_of(&set.probe) > 0);
    let rows =
        |set: &SetRuns| SetRows { build: rows_of(&set.build), probe: Some(rows_of(&set.probe)) };
    let rows: Vec<SetRows> = runs.iter().map(rows).collect();
    let mut lists = runs.into_iter().flat_map(|set| [set.build, set.probe]);
    sets.join(&rows, Box::new(move || Ok(lists.next())), to)
}

/// Splits runs into blocks of at most `fit` rows.
pub(crate) fn blocks(runs: Vec<Run>, fit: u64, tuple: u64) -> Vec<Vec<Run>> {
    let mut blocks = vec![Vec::new()];
    let mut filled = 0;
    for mut run in runs {
        while run.rows > 0 {
            if filled == fit {
                blocks.push(Vec::new());
                filled = 0;
            }
            let (some, rest) = run.split(fit - filled, tuple);
            filled += some.rows;
            if let Some(block) = blocks.last_mut() {
                block.push(some);
            }
            run = rest;
        }
    }
    blocks
}

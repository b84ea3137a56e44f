//! Pairs of partitions that lie in host memory, joined a working set at a time (000 §5, 003 §IV-B).
//!
//! ```text
//!  build partitions of the set ─► device ─► partitioned on ─┐
//!                                                           ├─► joined chunk by chunk ─► rows
//!  probe partitions of the set ─► chunk, chunk, chunk ──────┘
//! ```
//!
//! Every tuple crosses once, however many sets there are. A build partition that does not fit, since
//! some keys in it are frequent, is joined in blocks, and its probe partition crosses once for each: no
//! further partitioning could split a single key.

use super::flags::{Window, closed, opened};
use super::radix::Radix;
use super::rounds::Rounds;
use super::spilled::Spilled;
use super::streamed::{Feeding, join_chunk, partitioning};
use super::{Found, MOST_ROWS, Receiver, Side, Wanted, Which};
use crate::error::Result;
use crate::join::Partitioner;
use crate::transfer::{Crossing, Pipeline, Produce, Run, those};

/// The share of the memory that is left, in eighths, for the build partitions of a set.
const FOR_BUILD: u64 = 4;

/// Joins working sets.
pub(super) struct WorkingSets<'a> {
    crossing: &'a Crossing<'a>,
    wanted: Wanted,
    /// Top bits that tell partitions.
    bits: u32,
    windows: [Option<Window>; 2],
    found: Found,
}

impl<'a> WorkingSets<'a> {
    /// Prepares to join sides of so many rows, partitioned by so many bits.
    pub(super) fn new(
        crossing: &'a Crossing<'a>,
        [build, probe]: [u64; 2],
        bits: u32,
        wanted: &Wanted,
    ) -> Result<WorkingSets<'a>> {
        let session = crossing.session;
        // Rows of a set come from anywhere in a side: flags are there for all of it.
        let mut windows = [
            Window::new(session, Which::Build, wanted.flag_build, build)?,
            Window::new(session, Which::Probe, wanted.flag_probe, probe)?,
        ];
        let build_flags = opened(&mut windows[0], session, 0, build)?;
        let probe_flags = opened(&mut windows[1], session, 0, probe)?;
        let wanted = Wanted { build_flags, probe_flags, ..*wanted };
        Ok(WorkingSets { crossing, wanted, bits, windows, found: Found::default() })
    }

    /// Build rows of a set, at most; no more than `most`, where given.
    pub(super) fn fit(crossing: &Crossing<'_>, memory: u64, most: Option<u64>) -> u64 {
        let session = crossing.session;
        let a_row = session.word.tuple() + partitioning(session);
        (memory / 8 * FOR_BUILD / a_row).min(most.unwrap_or(MOST_ROWS)).clamp(1, MOST_ROWS)
    }

    /// Joins the build runs of a set, at most `fit` rows at a time, with what `probe` produces: asked
    /// for once a block.
    pub(super) fn join<'p>(
        &mut self,
        build: Vec<Run>,
        fit: u64,
        mut probe: impl FnMut(usize) -> Produce<'p>,
        to: &mut dyn Receiver,
    ) -> Result<()>
    where
        'a: 'p,
    {
        let tuple = self.crossing.session.word.tuple();
        for (number, block) in blocks(build, fit, tuple).into_iter().enumerate() {
            let point = self.crossing.session.point();
            self.block(block, probe(number), to)?;
            self.crossing.session.release_since(point)?;
        }
        Ok(())
    }

    /// Joins build runs that fit.
    fn block<'p>(
        &mut self,
        build: Vec<Run>,
        probe: Produce<'p>,
        to: &mut dyn Receiver,
    ) -> Result<()>
    where
        'a: 'p,
    {
        let session = self.crossing.session;
        let rows: u64 = build.iter().map(|run| run.rows).sum();
        if rows == 0 {
            return Ok(());
        }
        let radix = Radix::below(session, Partitioner::LookBack, self.bits, rows);
        let side = self.load(build, rows)?;
        let held = radix.partition_alone(session, &side, "the partitioned build side")?;
        session.release(side.tuples.as_slice())?;
        session.mark("partition build side")?;

        let extra = partitioning(session) + 2 * session.word.tuple() + session.word.bytes();
        let chunk_rows = self.crossing.chunk_of_tuples(extra, session.left() / 2);
        let expected_rows = self.wanted.expected_rows.min(chunk_rows);
        let wanted = Wanted { expected_rows, ..self.wanted };
        let crossing: &'p Crossing<'p> = self.crossing;
        let mut pipeline = Pipeline::of_runs(crossing, probe, chunk_rows)?;
        let tasks = radix.tasks(session, rows, chunk_rows);
        let mut rounds = Rounds::new(session, &wanted, tasks as u32)?;
        while let Some(chunk) = pipeline.next()? {
            let side = chunk.side;
            let mut feeding = Feeding { pipeline: &mut pipeline, to };
            let found = join_chunk(&mut rounds, &radix, &held, (&side, &wanted), &mut feeding)?;
            self.found = self.found.and(found);
            pipeline.done(chunk)?;
        }
        Ok(())
    }

    /// Brings build runs to the device, in one piece.
    fn load(&self, build: Vec<Run>, rows: u64) -> Result<Side> {
        let session = self.crossing.session;
        let tuple = session.word.tuple();
        let tuples = session.allocate(rows * tuple, "the build side's partitions")?;
        let chunk_rows = self.crossing.chunk_of_tuples(0, session.left() / 4).min(rows);
        let mut pipeline = Pipeline::of_runs(self.crossing, those(build), chunk_rows)?;
        let mut at = 0;
        while let Some(chunk) = pipeline.next()? {
            if let Some(from) = chunk.side.tuples {
                let to = tuples.part(at, from.bytes);
                session.device.copy_between(session.compute, from, to)?;
                at += from.bytes;
            }
            pipeline.done(chunk)?;
            pipeline.ahead()?;
        }
        session.mark("copy to device")?;
        Ok(Side { tuples: Some(tuples), rows, ..Side::default() })
    }

    /// Hands out the flags, and says what was found.
    pub(super) fn finish(self, to: &mut dyn Receiver) -> Result<Found> {
        for window in &self.windows {
            closed(window, self.crossing.session, to)?;
        }
        Ok(self.found)
    }
}

/// Joins all sets of two sides that are there.
pub(super) fn join_sets<'a>(
    sets: &mut WorkingSets<'a>,
    packed: &[Vec<usize>],
    [build, probe]: [&Spilled; 2],
    fit: u64,
    to: &mut dyn Receiver,
) -> Result<()> {
    for set in packed {
        sets.join(build.of(set), fit, |_| those(probe.of(set)), to)?;
    }
    Ok(())
}

/// Runs in blocks of at most `fit` rows.
fn blocks(runs: Vec<Run>, fit: u64, tuple: u64) -> Vec<Vec<Run>> {
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

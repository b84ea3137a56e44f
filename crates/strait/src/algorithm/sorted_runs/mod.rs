//! The sort-merge join of tables that do not fit memory. Both sides are sorted in parts, and the parts go to disk.
//!
//! ```text
//!  left side  ──► chunks ──► sorted ──► runs on disk ──┐
//!                                                      ├─► key range by key range ──► joins in memory, in order
//!  right side ──► chunks ──► sorted ──► runs on disk ──┘
//! ```
//!
//! A chunk is as large as memory allows. It is sorted and written as a *run*. Then the runs of both sides are read
//! together ([`Cursors`]). All rows of the next key range are in memory at some point. They are joined in memory by the
//! sort-merge join, whose output is in the order of the keys. Then the next key range follows. So the whole output is
//! in the order of the keys. All rows with one key are in one range, so every join type can be carried out range by
//! range.
//!
//! - One block per run is in memory. If there are too many runs, some of them are [merged](merge) into longer ones
//!   first.
//! - If a range turns out not to fit, it is cut. If one key has too many rows for a range, its rows are copied to two
//!   files and joined [in blocks](Spilling::join_in_blocks). The order of rows within one key does not matter.
//! - Rows that cannot match because of a null in their key are sorted last. If the join type does not return them, they
//!   are dropped before they are written.
//!
//! We do not merge row by row. The join in memory sorts each range again, on all threads. A merge needs a comparison per
//! row and run, on one thread.

mod cursors;
mod merge;
mod run;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::RecordBatch;

use self::cursors::{Cursors, Cut, Filled, Piece, Taken, relation};
use self::run::{Run, RunWriter};
use super::spill::{Attempted, Pair, Spilling, Tables, encode_reserved, has_output};
use crate::build_side::smaller_first;
use crate::error::{Error, Result};
use crate::input::{BufferedSource, Input, Location, Morsel, Relation, Source, SourceContext};
use crate::key::{InOrder, KeyPlan, UNMATCHABLE, just_after};
use crate::matches::{Keep, Roles};
use crate::options::{JoinType, Side};
use crate::plan::RunRules;
use crate::spill::{Block, SpilledRows};

/// The purpose of the memory for rows that are copied.
const COPYING: &str = "copying the rows of one key";

const SIDES: [Side; 2] = [Side::Left, Side::Right];

/// A sort-merge join that spills.
pub(crate) struct SortedRuns<'a> {
    spilling: &'a Spilling<'a>,
    keys: KeyPlan,
    rules: RunRules,
    join_type: JoinType,
    /// Whether the join has a residual filter.
    filtered: bool,
}

impl<'a> SortedRuns<'a> {
    pub(crate) fn new(
        spilling: &'a Spilling<'a>,
        join_type: JoinType,
        filtered: bool,
    ) -> SortedRuns<'a> {
        let (cx, rules) = (spilling.cx, spilling.rules);
        let keys = spilling.keys.within(&cx.workers, &cx.budget);
        let rules =
            RunRules { limit: rules.limit, threads: rules.threads, overrides: rules.overrides };
        SortedRuns { spilling, keys, rules, join_type, filtered }
    }

    /// Joins two tables. The output is in the order of the keys.
    pub(crate) fn run(&self, tables: Tables) -> Result<()> {
        let (watch, totals) = (self.spilling.cx.watch, self.spilling.totals);
        log::info!("writing sorted runs to {}", self.spilling.target.place());
        totals.levels.fetch_max(1, Ordering::Relaxed);
        let runs = watch.time("sort to disk", || {
            let runs = self.write_runs(&tables.sources)?;
            drop(tables);
            self.merge_for_join(runs)
        })?;
        log::info!("joining {} sorted runs", runs.len());
        self.join_ranges(&mut Cursors::new(self, runs))
    }

    /// Reads both sides to their ends, and writes them as runs.
    fn write_runs(&self, sources: &[BufferedSource; 2]) -> Result<Vec<Run>> {
        let mut runs = Vec::new();
        // The batches that were already read take most of the memory. If memory for a batch of one side is refused,
        // the other side's batches may still leave memory.
        loop {
            let (mut chunks, mut refused) = (0, None);
            for source in sources {
                let written = self.write_waiting(source, &mut runs)?;
                chunks += written.chunks;
                refused = written.refused.or(refused);
            }
            match refused {
                None => break,
                Some(why) if chunks == 0 => return Err(why),
                Some(_) => {}
            }
        }
        for source in sources {
            if let Some(why) = self.write_while((source, || true), &mut runs)?.refused {
                return Err(why);
            }
        }
        Ok(runs)
    }

    /// Writes the batches of a side that were already read as runs.
    fn write_waiting(&self, source: &BufferedSource, runs: &mut Vec<Run>) -> Result<Written> {
        self.write_while((source, || source.has_waiting()), runs)
    }

    /// Writes chunks of a side as runs until `goes_on` returns false, the side ends, or memory for the next batch is
    /// refused. If there are many runs, merges some of them.
    fn write_while(
        &self,
        (source, goes_on): (&BufferedSource, impl Fn() -> bool),
        runs: &mut Vec<Run>,
    ) -> Result<Written> {
        let (cx, side, mut most) = (self.spilling.cx, source.side(), u64::MAX);
        let mut written = Written::default();
        while goes_on() {
            cx.workers.check()?;
            let free = cx.budget.limit().map_or(u64::MAX, |_| cx.budget.left());
            let reading = source.reading_bytes(self.rules.reading_bytes());
            let chunk = match source.chunk(self.rules.chunk(free, reading, most), &cx.workers) {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(why @ Error::MemoryLimit { .. }) => {
                    written.refused = Some(why);
                    break;
                }
                Err(error) => return Err(error),
            };
            written.chunks += 1;
            match self.sorted(side, &chunk.rows) {
                Ok(order) => {
                    if order.len() > 0 {
                        let mut writer = RunWriter::create(self, side, 0)?;
                        writer.append((&chunk.rows, chunk.first_row), &order)?;
                        runs.extend(writer.finish());
                    }
                    drop((order, chunk));
                    self.merge_level(runs, side)?;
                    most = most.saturating_mul(2);
                }
                Err(Error::MemoryLimit { .. }) if chunk.rows.rows() > 1 => {
                    most = chunk.rows.rows() / 2;
                    source.put_back([&chunk].into_iter());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    /// Joins the rows of all runs, key range by key range.
    fn join_ranges(&self, cursors: &mut Cursors<'_>) -> Result<()> {
        loop {
            let free = self.spilling.joins.free_memory()?;
            let watch = self.spilling.cx.watch;
            let filled =
                watch.time("read sorted runs", || cursors.fill(self.rules.range_bytes(free)))?;
            match filled {
                Filled::Nothing => return Ok(()),
                Filled::All => self.join_below(cursors, None)?,
                Filled::Below(bound) => self.join_below(cursors, Some(bound))?,
                Filled::OneKey(key) => self.join_key(cursors, &key)?,
            }
        }
    }

    /// Joins the complete rows whose key is smaller. If they do not fit, joins only the first of them.
    fn join_below(&self, cursors: &mut Cursors<'_>, mut below: Option<Vec<u8>>) -> Result<()> {
        loop {
            let taken = cursors.take(below.as_deref())?;
            let pieces = taken.pieces.iter().map(|(at, piece)| (cursors.side(*at), piece));
            let Some(why) = self.join_range(&pieces.collect::<Vec<_>>())? else { return Ok(()) };
            if taken.rows() <= 1 {
                return Err(why);
            }
            log::info!("{why}; the next key range is shorter");
            // Finished rows that the consumer has not taken yet may be the reason.
            self.spilling.joins.free_memory()?;
            let cut = cursors.middle(&taken)?;
            cursors.put_back(taken);
            match cut {
                Cut::Below(bound) => below = Some(bound),
                Cut::OneKey(key) => return self.join_key(cursors, &key),
            }
        }
    }

    /// Joins the rows of one key range in memory. Returns an error if they do not fit.
    fn join_range(&self, pieces: &[(Side, &Piece)]) -> Result<Option<Error>> {
        let of_side = |wanted: Side| {
            let pieces = pieces.iter().filter(move |(side, _)| *side == wanted);
            relation(self, wanted, pieces.map(|(_, piece)| *piece))
        };
        let [left, right] = SIDES.map(of_side);
        if !has_output(self.join_type, [left.rows(), right.rows()]) {
            return Ok(None);
        }
        let [build_side, _] = smaller_first([left.bytes(), right.bytes()]);
        let (build, probe) = if build_side == Side::Left { (left, right) } else { (right, left) };
        let none = NoRows(Arc::clone(probe.schema()));
        let source = self.spilling.joins.source(build_side.other(), Input::source(none));
        source.hold(probe);
        let joined = self.spilling.joins.join_held((build_side, &build), source, self.join_type)?;
        Ok(match joined {
            Attempted::Joined => {
                self.spilling.totals.ranges.fetch_add(1, Ordering::Relaxed);
                None
            }
            Attempted::TooLarge(_, why) => Some(why),
        })
    }

    /// Joins the rows with one key, which do not fit memory. No smaller key may be left.
    fn join_key(&self, cursors: &mut Cursors<'_>, key: &[u8]) -> Result<()> {
        if key == UNMATCHABLE {
            return self.join_unmatchable(cursors);
        }
        let after = just_after(key);
        let rows = [Arc::new(self.create_file()?), Arc::new(self.create_file()?)];
        for at in cursors.numbers() {
            let side = cursors.side(at);
            let to = &rows[side as usize];
            loop {
                for (_, piece) in cursors.take_of(at, Some(&after))?.pieces {
                    match self.needs_one_row_per_key(side) {
                        false => self.append_piece(to, piece)?,
                        true if to.rows() == 0 => {
                            let [first, _] = piece.split(1);
                            self.append_piece(to, first)?;
                        }
                        true => {}
                    }
                }
                if !cursors.may_have_more(at, &after) {
                    break;
                }
                cursors.load(at)?;
            }
        }
        let counts = [rows[0].rows(), rows[1].rows()];
        if !has_output(self.join_type, counts) {
            return Ok(());
        }
        self.spilling.totals.pairs.fetch_add(1, Ordering::Relaxed);
        let returns_pairs = Roles::of(self.join_type, Side::Left).pairs;
        let join_type = match !self.filtered && returns_pairs && !counts.contains(&0) {
            // All rows match. An outer join would look for unmatched rows, for which a full join reads the rows again.
            true => JoinType::Inner,
            false => self.join_type,
        };
        let pair = Pair { rows, join_type };
        self.spilling.joins.within_key(&mut || self.spilling.join_in_blocks(&pair))
    }

    /// Returns whether the join needs only one row per key of a side. It does if there is no filter, and the join type
    /// returns rows of the other side by whether they have a match: then any row with the key is such a match. If all
    /// rows with the key were joined, each would be compared with each row of the other side.
    fn needs_one_row_per_key(&self, side: Side) -> bool {
        let roles = Roles::of(self.join_type, side);
        !self.filtered && !roles.pairs && roles.build == Keep::Nothing
    }

    /// Appends rows to a file.
    fn append_piece(&self, to: &SpilledRows, piece: Piece) -> Result<()> {
        let cx = self.spilling.cx;
        let mut pieces = vec![piece];
        while let Some(piece) = pieces.pop() {
            cx.workers.check()?;
            let rows = piece.batch.num_rows();
            // The rows themselves are reserved already.
            let reserved = cx.budget.reserve(0, COPYING)?;
            match encode_reserved(piece.batch.clone(), reserved, COPYING) {
                Ok((block, _reserved)) => self.append(to, &block)?,
                Err(why) if rows > 1 && why.fewer_rows_may_help() => {
                    pieces.extend(piece.split(rows / 2));
                }
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Joins the rows that cannot match. They are the last ones.
    fn join_unmatchable(&self, cursors: &mut Cursors<'_>) -> Result<()> {
        for side in SIDES {
            for at in cursors.numbers().filter(|&at| cursors.side(at) == side).collect::<Vec<_>>() {
                loop {
                    let Taken { pieces } = cursors.take_of(at, None)?;
                    let mut left: Vec<Piece> = pieces.into_iter().rev().map(|(_, p)| p).collect();
                    while let Some(piece) = left.pop() {
                        // Finished rows that the consumer has not taken yet may have the memory.
                        self.spilling.joins.free_memory()?;
                        let rows = piece.batch.num_rows();
                        match self.join_range(&[(side, &piece)])? {
                            None => {}
                            Some(why) if rows <= 1 => return Err(why),
                            Some(_) => left.extend(piece.split(rows / 2)),
                        }
                    }
                    if !cursors.has_rest(at) {
                        break;
                    }
                    cursors.load(at)?;
                }
            }
        }
        Ok(())
    }

    /// Sorts rows by key. Leaves out rows that cannot match, unless the join type returns them.
    fn sorted(&self, side: Side, rows: &Relation) -> Result<InOrder> {
        let cx = self.spilling.cx;
        let drops = matches!(Roles::of(self.join_type, side).build, Keep::Nothing | Keep::Matched);
        // Refused memory must not end the join.
        let workers = cx.workers.attempt();
        self.keys.in_order(side, rows.batches(), drops, (&workers, &cx.budget))
    }

    /// Returns the key of one row. Keys of some types are copied into another form first, so only this row is
    /// looked at.
    fn key_of(&self, side: Side, batch: &RecordBatch, row: usize) -> Result<Vec<u8>> {
        let (cx, row) = (self.spilling.cx, batch.slice(row, 1));
        let with = (&cx.workers, &cx.budget);
        let keys = self.keys.key_bytes(side, std::slice::from_ref(&row), with)?;
        Ok(keys.key(Location { batch: 0, row: 0 }))
    }

    /// Returns the key of one row of a held side. The row must exist.
    fn key_in(&self, side: Side, rows: &Relation, at: Option<Location>) -> Result<Vec<u8>> {
        let at = at.ok_or_else(|| Error::internal("a row of a sorted run is missing"))?;
        self.key_of(side, &rows.batches()[at.batch as usize], at.row as usize)
    }

    fn create_file(&self) -> Result<SpilledRows> {
        self.spilling.totals.files.fetch_add(1, Ordering::Relaxed);
        SpilledRows::create(self.spilling.target)
    }

    fn append(&self, to: &SpilledRows, block: &Block) -> Result<()> {
        let written = to.append(block)?;
        self.spilling.totals.count(block, written);
        Ok(())
    }
}

/// What was written of a side.
#[derive(Default)]
struct Written {
    /// The number of chunks that were taken from the source. A chunk that was too large counts, too.
    chunks: usize,
    /// The error if memory for the next batch was refused.
    refused: Option<Error>,
}

/// A source without rows.
struct NoRows(arrow::datatypes::SchemaRef);

impl Source for NoRows {
    fn schema(&self) -> arrow::datatypes::SchemaRef {
        Arc::clone(&self.0)
    }

    fn next(
        &self,
        _: &SourceContext<'_>,
    ) -> std::result::Result<Option<Morsel>, arrow::error::ArrowError> {
        Ok(None)
    }
}

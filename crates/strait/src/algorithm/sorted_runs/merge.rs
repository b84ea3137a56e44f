//! Merges sorted runs of one side into a longer run.
//!
//! Each run that is read takes the memory of one block and an open file. So the number of runs that are read together
//! has a limit.

use std::sync::atomic::Ordering;

use super::cursors::{Cursors, Cut, Filled, Taken, relation};
use super::run::{Run, RunWriter};
use super::{SIDES, SortedRuns};
use crate::error::{Error, Result};
use crate::key::just_after;
use crate::options::Side;

impl SortedRuns<'_> {
    /// Merges runs of a side if many of them were merged equally often. So each row is merged about as often as needed.
    ///
    /// The rows that wait in a source may take most of the memory. Then the runs are merged later. If there are so many
    /// runs that the process could run out of open files, fewer runs are merged at once.
    pub(super) fn merge_level(&self, runs: &mut Vec<Run>, side: Side) -> Result<()> {
        let budget = &self.spilling.cx.budget;
        let mut level = 0;
        while runs.iter().any(|run| run.side == side && run.level >= level) {
            let of_level = |run: &Run| run.side == side && run.level == level;
            let all = runs.iter().filter(|run| of_level(run));
            let count = all.clone().count();
            let free = budget.limit().map_or(u64::MAX, |_| budget.left());
            let group = match count < self.rules.most_runs() {
                true => self.group(all, self.rules.merge_bytes()),
                false => {
                    let most = self.rules.merge_bytes().min(self.rules.blocks_to_merge(free));
                    self.group(all, most)
                }
            };
            if count < self.rules.fan_in() || group.bytes > self.rules.blocks_to_merge(free) {
                level += 1;
                continue;
            }
            let mut left = group.runs;
            let taken = runs.extract_if(.., |run| {
                let is_taken = left > 0 && of_level(run);
                left -= usize::from(is_taken);
                is_taken
            });
            let taken = taken.collect();
            runs.extend(self.merge(side, taken)?);
        }
        Ok(())
    }

    /// Returns how many of the first runs are merged at once: as many as may be read together, if one block per run may
    /// take `most` bytes. At least two runs are merged.
    fn group<'r>(&self, runs: impl Iterator<Item = &'r Run>, most: u64) -> Group {
        let mut group = Group { runs: 0, bytes: 0 };
        for run in runs.take(self.rules.fan_in()) {
            let bytes = group.bytes + run.largest;
            if group.runs >= 2 && bytes > most {
                break;
            }
            group = Group { runs: group.runs + 1, bytes };
        }
        group
    }

    /// Merges runs until the blocks of all runs that are read at the same time fit memory.
    pub(super) fn merge_for_join(&self, mut runs: Vec<Run>) -> Result<Vec<Run>> {
        while most_bytes_at_once(&runs) > self.rules.join_bytes() {
            let of_side = |side: Side| runs.iter().filter(move |run| run.side == side);
            let Some(side) = SIDES
                .into_iter()
                .filter(|&side| of_side(side).count() > 1)
                .max_by_key(|&side| of_side(side).map(|run| run.largest).sum::<u64>())
            else {
                break;
            };
            // The shortest runs are merged, because this copies the fewest bytes.
            runs.sort_by_key(|run| (run.side != side, run.rows.bytes()));
            let of_side = runs.iter().take_while(|run| run.side == side);
            let group = self.group(of_side, self.rules.merge_bytes());
            let taken = runs.drain(..group.runs).collect();
            runs.extend(self.merge(side, taken)?);
        }
        Ok(runs)
    }

    /// Merges runs of a side into one.
    fn merge(&self, side: Side, group: Vec<Run>) -> Result<Option<Run>> {
        let level = group.iter().map(|run| run.level + 1).max().unwrap_or(0);
        log::info!("merging {} sorted runs of the {} side", group.len(), side.name());
        self.spilling.totals.levels.fetch_max(u64::from(level) + 1, Ordering::Relaxed);
        let budget = &self.spilling.cx.budget;
        let mut cursors = Cursors::new(self, group);
        let mut writer = RunWriter::create(self, side, level)?;
        loop {
            let free = budget.limit().map_or(u64::MAX, |_| budget.left());
            let below = match cursors.fill(self.rules.range_bytes(free))? {
                Filled::Nothing => return Ok(writer.finish()),
                Filled::All => None,
                Filled::Below(bound) => Some(bound),
                // Rows with one key may have any order. So those in memory can be written now.
                Filled::OneKey(key) => Some(just_after(&key)),
            };
            self.write_below(&mut cursors, below, &mut writer)?;
        }
    }

    /// Writes the rows in memory whose key is smaller. If they are too many to be sorted at once, writes only the first
    /// of them.
    fn write_below(
        &self,
        cursors: &mut Cursors<'_>,
        mut below: Option<Vec<u8>>,
        writer: &mut RunWriter<'_>,
    ) -> Result<()> {
        loop {
            let taken = cursors.take(below.as_deref())?;
            if taken.pieces.is_empty() {
                // The bound came from the first bytes of a key.
                return cursors.load_least();
            }
            match self.write_sorted(&taken, writer)? {
                None => return Ok(()),
                Some(why) if taken.rows() <= 1 => return Err(why),
                Some(_) => {}
            }
            match cursors.middle(&taken)? {
                Cut::Below(bound) => {
                    cursors.put_back(taken);
                    below = Some(bound);
                }
                Cut::OneKey(_) => {
                    return self.write_piecewise(taken, writer);
                }
            }
        }
    }

    /// Writes rows with one key. They need no order, so each piece is written by itself, or even in parts.
    fn write_piecewise(&self, taken: Taken, writer: &mut RunWriter<'_>) -> Result<()> {
        let mut pieces = taken.pieces;
        while let Some((at, piece)) = pieces.pop() {
            let taken = Taken { pieces: vec![(at, piece.clone())] };
            match self.write_sorted(&taken, writer)? {
                None => {}
                Some(why) if taken.rows() <= 1 => return Err(why),
                Some(_) => pieces.extend(piece.split(taken.rows() / 2).map(|half| (at, half))),
            }
        }
        Ok(())
    }

    /// Sorts and writes rows. Returns an error if memory for sorting them is refused.
    fn write_sorted(&self, taken: &Taken, writer: &mut RunWriter<'_>) -> Result<Option<Error>> {
        let side = writer.side();
        let rows = relation(self, side, taken.pieces.iter().map(|(_, piece)| piece));
        match self.sorted(side, &rows) {
            Ok(order) => writer.append((&rows, 0), &order).map(|()| None),
            Err(why @ Error::MemoryLimit { .. }) => Ok(Some(why)),
            Err(error) => Err(error),
        }
    }
}

/// Some runs that are merged at once.
struct Group {
    runs: usize,
    /// The bytes of one block per run.
    bytes: u64,
}

/// Returns the bytes of the blocks that are in memory at the same time while the runs are read together. A run is read
/// only from its first to its last key.
fn most_bytes_at_once(runs: &[Run]) -> u64 {
    let at = |key: &[u8]| {
        let open =
            runs.iter().filter(|run| run.first.as_slice() <= key && key <= run.last.as_slice());
        open.map(|run| run.largest).sum()
    };
    runs.iter().map(|run| at(&run.first)).max().unwrap_or(0)
}

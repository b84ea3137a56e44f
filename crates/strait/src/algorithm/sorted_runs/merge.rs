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
    pub(super) fn merge_level(&self, runs: &mut Vec<Run>, side: Side) -> Result<()> {
        let Some(newest) = runs.iter().rfind(|run| run.side == side) else { return Ok(()) };
        let mut level = newest.level;
        loop {
            let of_level = |run: &Run| run.side == side && run.level == level;
            let (mut count, mut bytes) = (0, 0);
            runs.iter().filter(|run| of_level(run)).for_each(|run| {
                count += 1;
                bytes += run.largest;
            });
            let is_full = count >= self.rules.fan_in() || bytes > self.rules.merge_bytes();
            if count < 2 || !is_full {
                return Ok(());
            }
            let group = runs.extract_if(.., |run| of_level(run)).collect();
            runs.extend(self.merge(side, group)?);
            level += 1;
        }
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
            let (mut count, mut bytes) = (0, 0);
            for run in runs.iter().take_while(|run| run.side == side) {
                bytes += run.largest;
                if count >= self.rules.fan_in() || count >= 2 && bytes > self.rules.merge_bytes() {
                    break;
                }
                count += 1;
            }
            let group = runs.drain(..count).collect();
            runs.extend(self.merge(side, group)?);
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
                    // The pieces need no order, so each one is written by itself.
                    for piece in taken.pieces {
                        let taken = Taken { pieces: vec![piece] };
                        if let Some(why) = self.write_sorted(&taken, writer)? {
                            return Err(why);
                        }
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Sorts and writes rows. Returns an error if memory for sorting them is refused.
    fn write_sorted(&self, taken: &Taken, writer: &mut RunWriter<'_>) -> Result<Option<Error>> {
        let side = writer.side();
        let rows = relation(self, side, taken.pieces.iter().map(|(_, piece)| piece));
        match self.sorted(side, &rows) {
            Ok(order) => writer.append(&rows, &order).map(|()| None),
            Err(why @ Error::MemoryLimit { .. }) => Ok(Some(why)),
            Err(error) => Err(error),
        }
    }
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

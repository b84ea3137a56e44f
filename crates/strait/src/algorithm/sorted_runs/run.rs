//! Sorts rows by key and writes them to disk as sorted runs.
//!
//! ```text
//!  rows ──► sorted positions ──► one block per worker, gathered and encoded ──► appended in order
//! ```

use std::ops::Range;
use std::sync::{Arc, Mutex};

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;

use super::SortedRuns;
use crate::algorithm::spill::encode_reserved;
use crate::error::{Error, Result};
use crate::input::Relation;
use crate::key::InOrder;
use crate::materialise::{Chosen, Columns};
use crate::memory::{Budget, Reservation};
use crate::options::Side;
use crate::plan::RunRules;
use crate::schedule::lock;
use crate::spill::{Block, SpilledRows};

/// The purpose of the memory for gathered and encoded rows.
const WRITING: &str = "writing sorted rows to disk";
/// The first and last key of a run are kept in memory, but only so many bytes of them.
const KEPT_KEY: usize = 64;

/// Rows of one side on disk, sorted by key.
pub(super) struct Run {
    pub(super) side: Side,
    pub(super) rows: Arc<SpilledRows>,
    /// How many times its rows were merged before.
    pub(super) level: u32,
    /// The first bytes of the smallest key. They are not larger than the key.
    pub(super) first: Vec<u8>,
    /// The first bytes of the largest key.
    pub(super) last: Vec<u8>,
    /// The bytes of the largest block.
    pub(super) largest: u64,
}

/// Writes a run.
pub(super) struct RunWriter<'a> {
    of: &'a SortedRuns<'a>,
    run: Run,
}

/// A block with its reservation; `None` if its rows are too wide.
type Encoded = Option<(Block, Reservation)>;

/// How far some blocks were appended.
#[derive(Default)]
struct Progress {
    /// The end of the last block that was appended.
    end: Option<usize>,
    /// Whether the next block must have fewer rows.
    is_too_long: bool,
    /// The error if this is because memory was refused.
    refused: Option<Error>,
}

impl<'a> RunWriter<'a> {
    pub(super) fn create(of: &'a SortedRuns<'a>, side: Side, level: u32) -> Result<RunWriter<'a>> {
        let rows = Arc::new(of.create_file()?);
        let run = Run { side, rows, level, first: Vec::new(), last: Vec::new(), largest: 0 };
        Ok(RunWriter { of, run })
    }

    /// Appends rows in this order. All of them must come after the rows that were appended before.
    ///
    /// If memory is refused, the blocks become shorter. An error is final, because some rows may be written already.
    /// `first_row` is the number of the first row in its table, if the rows were read from the table.
    pub(super) fn append(
        &mut self,
        (rows, first_row): (&Relation, u64),
        order: &InOrder,
    ) -> Result<()> {
        if order.len() == 0 {
            return Ok(());
        }
        let key = |row: usize| -> Result<Vec<u8>> {
            let mut key = self.of.key_in(self.run.side, rows, order.at(row))?;
            key.truncate(KEPT_KEY);
            Ok(key)
        };
        let (first, last) = (key(0)?, key(order.len() - 1)?);
        if self.run.rows.rows() == 0 {
            self.run.first = first;
        }
        self.run.last = last;
        let columns = Columns::of_chunk(rows, first_row);
        let usual = self.of.rules.block_rows(rows.rows(), rows.bytes());
        let threads = self.of.spilling.cx.workers.threads();
        let (mut at, mut len, mut at_once) = (0, usual, threads);
        while at < order.len() {
            let end = order.len().min(at + len * at_once);
            let ranges: Vec<_> =
                (at..end).step_by(len).map(|start| start..end.min(start + len)).collect();
            let progress = self.append_blocks((rows, &columns, order), ranges)?;
            at = progress.end.unwrap_or(at);
            (len, at_once) = match (progress.is_too_long, progress.refused) {
                // The other workers may have the memory that the first block needs. So it is encoded alone.
                (true, Some(why)) if len == 1 && progress.end.is_none() => match at_once {
                    1 => return Err(why),
                    _ => (1, 1),
                },
                (true, _) => ((len / 2).max(1), threads),
                (false, _) => (usual.min(2 * len), threads),
            };
        }
        Ok(())
    }

    /// Encodes blocks on all workers, and appends them in order until one was refused memory or is too wide.
    fn append_blocks(
        &mut self,
        (rows, columns, order): (&Relation, &Columns, &InOrder),
        ranges: Vec<Range<usize>>,
    ) -> Result<Progress> {
        let blocks: Vec<Mutex<Option<Result<Encoded>>>> =
            ranges.iter().map(|_| Mutex::default()).collect();
        let (cx, rules) = (self.of.spilling.cx, self.of.rules);
        let schema = &self.of.spilling.schemas[self.run.side as usize];
        cx.workers.attempt().each(ranges.len(), |block, _| {
            let rows = (rows, columns, order);
            let encoded = block_of(rows, schema, &ranges[block], (&rules, &cx.budget));
            match encoded {
                Err(error) if !error.fewer_rows_may_help() => Err(error),
                encoded => {
                    *lock(&blocks[block]) = Some(encoded);
                    Ok(())
                }
            }
        })?;
        let mut progress = Progress::default();
        for (block, range) in blocks.iter().zip(ranges) {
            match lock(block).take() {
                Some(Ok(Some((block, _reserved)))) => {
                    self.of.append(&self.run.rows, &block)?;
                    self.run.largest = self.run.largest.max(block.memory());
                    progress.end = Some(range.end);
                }
                Some(other) => {
                    let refused = other.err();
                    return Ok(Progress { is_too_long: true, refused, ..progress });
                }
                None => return Err(Error::internal("a block of a run is missing")),
            }
        }
        Ok(progress)
    }

    pub(super) fn side(&self) -> Side {
        self.run.side
    }

    /// Returns the run; `None` if it has no rows.
    pub(super) fn finish(self) -> Option<Run> {
        (self.run.rows.rows() > 0).then_some(self.run)
    }
}

/// Gathers and encodes some rows. Returns `None` if several rows are too wide for one block, because the blocks of a
/// run should have about the same size.
fn block_of(
    (rows, columns, order): (&Relation, &Columns, &InOrder),
    schema: &SchemaRef,
    range: &Range<usize>,
    (rules, budget): (&RunRules, &Arc<Budget>),
) -> Result<Encoded> {
    let len = range.len();
    let mut reserved = budget.reserve((len * size_of::<u64>()) as u64, WRITING)?;
    let starts = rows.places().starts();
    let at = range.clone().filter_map(|row| order.at(row));
    let ids = at.map(|at| starts[at.batch as usize] + u64::from(at.row)).collect();
    let picked = columns.pick(Chosen::Ids(ids), false);
    let bytes = columns.bytes_with_numbers(schema, &picked);
    if len > 1 && rules.is_too_wide(bytes) {
        return Ok(None);
    }
    reserved.grow(bytes, WRITING)?;
    let arrays = columns.gather_with_numbers(schema, &picked);
    let options = RecordBatchOptions::new().with_row_count(Some(len));
    let batch = arrays
        .and_then(|arrays| RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options));
    let batch = batch.map_err(Error::arrow("gathering the rows of a sorted run"))?;
    encode_reserved(batch, reserved, WRITING).map(Some)
}

//! Streams the probe side through a build table, on all workers.

use std::sync::atomic::Ordering;

use arrow::array::RecordBatch;

use super::MORSEL;
use super::parts::{Pass, Taken};
use crate::algorithm::morsel_words::{BLOCK, MorselWords, TableLookup};
use crate::context::Context;
use crate::error::Result;
use crate::input::{BufferedSource, KeyFilter, ReservedMorsel};
use crate::key::KeyPlan;
use crate::matches::{Matcher, Unit};
use crate::materialise::Columns;
use crate::memory::{Refused, Started};
use crate::output::{Emitter, SharedSink};
use crate::partition::RowId;
use crate::schedule::Workers;
use crate::table::{BuildTable, Cursor, Pairs};
use crate::word::KeyWord;

/// The probing of a table by all workers.
pub(super) struct Probing<'a, K: KeyWord, I: RowId> {
    pub(super) cx: &'a Context<'a>,
    pub(super) workers: Workers,
    pub(super) keys: &'a KeyPlan,
    pub(super) matcher: &'a Matcher<'a>,
    pub(super) build: &'a Unit,
    pub(super) sink: &'a SharedSink<'a>,
    pub(super) table: &'a BuildTable<K, I>,
    pub(super) probe: &'a BufferedSource,
    pub(super) cap: usize,
    /// Bytes that must stay free when a worker takes a morsel while other workers have one.
    pub(super) spare: u64,
    /// Whether the source gets the table as a filter.
    pub(super) key_filter: bool,
    /// The part of the build side that the table has; `None` if it has the whole build side.
    pub(super) pass: Option<&'a Pass<'a, K>>,
}

impl<K: KeyWord, I: RowId> Probing<'_, K, I> {
    /// Streams the probe side through the table, and calls `resolve` for the matches.
    pub(super) fn run<B: RowId>(
        &self,
        resolve: impl Fn(&Unit, &mut Pairs<B>, &mut Emitter<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        let (workers, side, keep) =
            (&self.workers, self.build.side.other(), self.matcher.roles.probe);
        let ask = self.matcher.ask(self.build, self.cap);
        let lookup = TableLookup::new(self.keys, self.table, side);
        let filter = match self.key_filter {
            true => self.probe.key_filter(&lookup),
            false => None,
        };
        let filter = filter.as_ref().map(|filter| filter as &dyn KeyFilter);
        workers.run(|worker| {
            let mut emitter = Emitter::new(self.sink, worker);
            let mut keys = MorselWords::<K>::default();
            let mut pairs = Pairs::<B>::default();
            loop {
                workers.check()?;
                emitter.relieve()?;
                let Some((_started, morsel)) = self.next(&mut emitter, filter)? else { break };
                let taken = match self.pass {
                    Some(pass) => pass.take(self.keys, side, &morsel.batch, &mut emitter)?,
                    None => Taken::All,
                };
                let batch: &RecordBatch = &morsel.batch;
                let batches = std::slice::from_ref(batch);
                let unit = emitter.patiently(Refused::Fails, || {
                    let columns = Columns::of_batch(batch, morsel.first_row);
                    self.matcher.unit(side, columns, batches, self.matcher.flags().probe)
                })?;
                for first in (0..unit.rows).step_by(BLOCK) {
                    let block = batch.slice(first, BLOCK.min(unit.rows - first));
                    emitter.patiently(Refused::Fails, || {
                        keys.fill(self.keys, self.table, side, &block)
                    })?;
                    let block_keys = keys.view(first);
                    let mut cursor = Cursor::default();
                    while !cursor.ended(&block_keys) {
                        workers.check()?;
                        self.table.probe(&block_keys, ask, &mut cursor, &mut pairs);
                        if pairs.len() >= self.cap {
                            resolve(&unit, &mut pairs, &mut emitter)?;
                        }
                    }
                }
                // The pairs refer to rows of this morsel, so they must be resolved before the next one.
                resolve(&unit, &mut pairs, &mut emitter)?;
                match taken {
                    Taken::All => {
                        let rows = (0..unit.rows, self.cap);
                        self.matcher.emit_by_flag(&unit, keep, rows, &mut emitter)?;
                    }
                    Taken::Only(rows, _reserved) => {
                        let rows = (rows.into_iter(), self.cap);
                        self.matcher.emit_some_by_flag(&unit, keep, rows, &mut emitter)?;
                    }
                }
                let rows = morsel.batch.num_rows() as u64;
                self.cx.counters.done.fetch_add(rows, Ordering::Relaxed);
            }
            emitter.finish()
        })
    }

    /// Takes the next rows of the probe side. Returns `None` at its end. The source may leave out rows that
    /// cannot match according to `filter`.
    fn next<'e>(
        &self,
        emitter: &mut Emitter<'e>,
        filter: Option<&dyn KeyFilter>,
    ) -> Result<Option<(Started<'e>, ReservedMorsel)>> {
        loop {
            // A concurrent source is called before the work starts, so that workers call it at the same time.
            let concurrent = self.probe.concurrent();
            let mut fetch = || {
                emitter.read(self.spare, |spare, resting| self.probe.fetch(spare, resting, filter))
            };
            if concurrent && !fetch()? {
                return Ok(None);
            }
            let (started, morsel) = emitter
                .start(self.spare, |spare, resting| self.probe.morsel(MORSEL, spare, resting))?;
            match morsel {
                Some(morsel) => return Ok(Some((started, morsel))),
                // Another worker took the rows.
                None if concurrent => {}
                None => return Ok(None),
            }
        }
    }
}

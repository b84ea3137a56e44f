//! Columns, chunk by chunk: each carried by the method that was chosen.

use std::ops::Range;

use super::{
    Carry, Crossing, Feed, Filling, HostColumn, HostSide, SLOTS, coherence, dynamic_pinning,
    packed, pageable_copy, pinned_copy, staged_copy, unified, zero_copy,
};
use crate::algorithm::gpu::{Session, Side};
use crate::error::Result;
use crate::join::Transfer;
use crate::schedule::Workers;

/// See the [module](self).
pub(super) struct ColumnFeed<'a> {
    keys: Box<dyn Carry + 'a>,
    values: Option<Box<dyn Carry + 'a>>,
    rows: u64,
    chunk_rows: u64,
    /// The next row to be sent.
    at: u64,
    /// The rows of each slot.
    chunks: [Range<u64>; SLOTS],
}

impl<'a> ColumnFeed<'a> {
    pub(super) fn new(
        crossing: &Crossing<'a>,
        side: &HostSide,
        chunk_rows: u64,
    ) -> Result<ColumnFeed<'a>> {
        let session = crossing.session;
        let method = crossing.method(side);
        let chunk_rows = chunk_rows.min(side.rows).max(1);
        let carry =
            |column: &HostColumn, key: bool| carry(session, method, column, key, chunk_rows);
        let keys = carry(&side.keys, true)?;
        let values = side.values.as_ref().map(|column| carry(column, false)).transpose()?;
        let chunks = Default::default();
        Ok(ColumnFeed { keys, values, rows: side.rows, chunk_rows, at: 0, chunks })
    }
}

impl Feed for ColumnFeed<'_> {
    fn send(&mut self, session: &Session<'_>, workers: &Workers, slot: usize) -> Result<bool> {
        let rows = self.at..(self.at + self.chunk_rows).min(self.rows);
        if rows.is_empty() {
            return Ok(false);
        }
        let word = session.word.bytes();
        let bytes = rows.start * word..rows.end * word;
        // Both columns at once, so that threads start once a chunk.
        let keys = self.keys.fill(slot, bytes.clone())?;
        let values = match &mut self.values {
            Some(values) => values.fill(slot, bytes.clone())?,
            None => None,
        };
        let tasks = |of: &Option<Filling<'_>>| of.as_ref().map_or(0, |of| of.tasks);
        let of_keys = tasks(&keys);
        let all = of_keys + tasks(&values);
        if all > 0 {
            workers.each(all, |task, _| match (&keys, &values) {
                (Some(keys), _) if task < of_keys => (keys.work)(task),
                (_, Some(values)) => (values.work)(task - of_keys),
                _ => Ok(()),
            })?;
        }
        drop((keys, values));
        self.keys.send(session, slot, bytes.clone())?;
        if let Some(values) = &mut self.values {
            values.send(session, slot, bytes)?;
        }
        self.at = rows.end;
        self.chunks[slot] = rows;
        Ok(true)
    }

    fn arrive(&mut self, session: &Session<'_>, slot: usize) -> Result<Side> {
        let keys = self.keys.arrive(session, slot)?;
        let values = match &mut self.values {
            Some(values) => Some(values.arrive(session, slot)?),
            None => None,
        };
        let Range { start, end } = self.chunks[slot];
        Ok(Side { keys, values, tuples: None, rows: end - start, first: start })
    }

    fn shares(&self) -> bool {
        self.keys.shares() || self.values.as_ref().is_some_and(|values| values.shares())
    }
}

/// What carries a column by a method.
fn carry<'a>(
    session: &'a Session<'a>,
    method: Transfer,
    column: &HostColumn,
    key: bool,
    chunk_rows: u64,
) -> Result<Box<dyn Carry + 'a>> {
    let bytes = chunk_rows * session.word.bytes();
    Ok(match method {
        Transfer::PageableCopy => Box::new(pageable_copy::Pageable::new(session, column, bytes)?),
        Transfer::StagedCopy | Transfer::Auto if key => {
            Box::new(packed::Packed::new(session, column, chunk_rows)?)
        }
        Transfer::StagedCopy | Transfer::Auto => {
            Box::new(staged_copy::Staged::new(session, column, bytes)?)
        }
        Transfer::DynamicPinning => {
            Box::new(dynamic_pinning::Dynamic::new(session, column, bytes)?)
        }
        Transfer::PinnedCopy => Box::new(pinned_copy::FromPinned::new(session, column, bytes)?),
        Transfer::UnifiedPrefetch => Box::new(unified::Unified::new(session, column, bytes, true)?),
        Transfer::UnifiedMigration => {
            Box::new(unified::Unified::new(session, column, bytes, false)?)
        }
        Transfer::ZeroCopy => Box::new(zero_copy::Mapped::new(session, column)?),
        Transfer::Coherence => Box::new(coherence::Coherent::new(session, column)?),
    })
}

//! Gathers runs of tuples into chunks with the copy engine. This is how partitions return to the device.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Landed, Sent, SlotFeed};
use crate::device::DeviceSide;
use crate::device::Session;
use crate::device::{Pinned, View};
use crate::error::Result;
use crate::schedule::Workers;

/// Consecutive tuples.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) place: Place,
    pub(crate) rows: u64,
}

impl Run {
    /// Splits off at most `most` rows, and returns them and the rest, which may be empty. `tuple` is the
    /// bytes per tuple.
    pub(crate) fn split(self, most: u64, tuple: u64) -> (Run, Run) {
        let rows = self.rows.min(most);
        let place = match &self.place {
            Place::Host(pinned, at) => {
                Place::Host(Arc::clone(pinned), at + (rows * tuple) as usize)
            }
            Place::Device(view) => Place::Device(view.part(rows * tuple, view.bytes)),
        };
        (Run { place: self.place, rows }, Run { place, rows: self.rows - rows })
    }
}

/// Where a run lies.
#[derive(Clone)]
pub(crate) enum Place {
    /// In pinned memory, starting at this byte.
    Host(Arc<Pinned>, usize),
    /// At addresses of the device: device memory, or a range over both memories.
    Device(View),
}

/// Returns the next list of runs, or `None` if there are no more. A chunk never has runs of two lists.
pub(crate) type Produce<'a> = Box<dyn FnMut() -> Result<Option<Vec<Run>>> + 'a>;

/// See the [module](self).
pub(super) struct RunFeed<'a> {
    produce: Produce<'a>,
    /// The rest of the current list.
    pending: VecDeque<Run>,
    ended: bool,
    chunk_rows: u64,
    landed: Vec<Landed>,
}

impl<'a> RunFeed<'a> {
    pub(super) fn new(
        session: &Session<'_>,
        produce: Produce<'a>,
        chunk_rows: u64,
    ) -> Result<Self> {
        let landed = Landed::ring(session, chunk_rows * session.word.tuple())?;
        // Copies to the device wait for all writes by stages and copies so far.
        for stream in [session.compute, session.back] {
            let written = session.device.record(stream)?;
            session.device.wait(session.copies, written)?;
        }
        let pending = VecDeque::new();
        Ok(RunFeed { produce, pending, ended: false, chunk_rows, landed })
    }

    /// Takes at most `most` rows of the list's next run. `tuple` is the bytes per tuple.
    fn next(&mut self, most: u64, tuple: u64) -> Option<Run> {
        let (run, rest) = self.pending.pop_front()?.split(most, tuple);
        if rest.rows > 0 {
            self.pending.push_front(rest);
        }
        Some(run)
    }
}

impl SlotFeed for RunFeed<'_> {
    fn send(&mut self, session: &Session<'_>, _workers: &Workers, slot: usize) -> Result<Sent> {
        let tuple = session.word.tuple();
        while self.pending.is_empty() && !self.ended {
            match (self.produce)()? {
                Some(runs) => self.pending.extend(runs.into_iter().filter(|run| run.rows > 0)),
                None => self.ended = true,
            }
        }
        let mut filled = 0;
        while filled < self.chunk_rows {
            let Some(run) = self.next(self.chunk_rows - filled, tuple) else { break };
            let bytes = run.rows * tuple;
            let to = self.landed[slot].memory.view.part(filled * tuple, bytes);
            match &run.place {
                Place::Host(pinned, at) => session.copy_in(pinned, *at, to)?,
                Place::Device(view) => {
                    session.device.copy_between(session.copies, view.part(0, bytes), to)?;
                }
            }
            filled += run.rows;
        }
        self.landed[slot].bytes = filled * tuple;
        Ok(if filled > 0 { Sent::Chunk } else { Sent::Nothing })
    }

    fn arrive(&mut self, session: &Session<'_>, slot: usize) -> Result<DeviceSide> {
        let view = self.landed[slot].view();
        let rows = view.bytes / session.word.tuple();
        Ok(DeviceSide { tuples: Some(view), rows, ..DeviceSide::default() })
    }
}

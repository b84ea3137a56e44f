//! `dma`: a chunk is partitioned in GPU memory, and the copy engine takes it to host memory: ours.
//!
//! ```text
//!  chunk ─► partitioned in GPU memory ─► [ partitions that are kept | partitions that go ]
//!                                             └─► GPU memory            └─► host memory, one copy
//! ```
//!
//! The GPU's memory is so much faster than the link that partitioning there costs next to nothing; and
//! a copy fills the link whatever the number of partitions.

use std::collections::VecDeque;

use super::super::Session;
use super::super::radix::Radix;
use super::super::spilled::Spilled;
use super::super::streamed::partitioning;
use super::Pass;
use crate::device::{Event, Memory, View};
use crate::error::{Error, Result};
use crate::join::Histogram;
use crate::transfer::{Crossing, HostSide, Pipeline, Place, Run};

/// Partitioned chunks that may be on their way out at once.
const UNDER_WAY: usize = 2;

/// Partitions a side.
pub(super) fn divide(crossing: &Crossing<'_>, side: &HostSide, pass: &Pass) -> Result<Spilled> {
    if pass.histogram != Histogram::None {
        return Err(Error::Setting(format!(
            "the dma partitioner needs no histogram: give --histogram none, or another partitioner than dma for {}",
            pass.histogram.name()
        )));
    }
    let session = crossing.session;
    let tuple = session.word.tuple();
    let extra = partitioning(session) + UNDER_WAY as u64 * tuple;
    let free = session.left().saturating_sub(pass.cache).max(session.left() / 4);
    let chunk_rows = crossing.chunk_rows(side, extra, free / 2);
    let radix = Radix::exactly(pass.bits);
    // Whole partitions are kept, the same of every chunk.
    let kept = pass.cached(pass.partitions()) as usize;
    let mut divided = Spilled::new(pass.bits);
    let mut leaving = Leaving { session, going: VecDeque::new() };
    let mut pipeline = Pipeline::new(crossing, side, chunk_rows)?;
    while let Some(chunk) = pipeline.next()? {
        let point = session.point();
        let ordered = radix.partition(session, &chunk.side, &mut None, "a partitioned chunk")?;
        pipeline.done(chunk)?;
        pipeline.ahead()?;
        let bounds: Vec<u64> = session.read(ordered.bounds, pass.partitions() as usize + 1)?;
        let Some(tuples) = session.take(ordered.tuples) else {
            return Err(Error::Worker("a partitioned chunk was lost".to_string()));
        };
        let tuples = leaving.hold(tuples)?;
        session.release_since(point)?;

        let rows = bounds.last().copied().unwrap_or(0);
        let mut at = bounds[kept];
        match keep(session, tuples.part(0, at * tuple)) {
            Ok(Some(view)) => add(&mut divided, &bounds[..=kept], 0, |start| {
                Place::Device(view.part(start * tuple, view.bytes))
            }),
            Ok(None) => {}
            // More rows came to these partitions than to others: they go out with the rest.
            Err(Error::DeviceMemory { .. }) => at = 0,
            Err(error) => return Err(error),
        }
        if at < rows {
            const WHAT: &str = "partitions in host memory";
            let bytes = (rows - at) * tuple;
            divided.reserved.push(crossing.budget.reserve(bytes, WHAT)?);
            // Sizes that come again find memory that was pinned before.
            let room = bytes.next_multiple_of((16 << 20).min(bytes.next_power_of_two()));
            let pinned = session.device.pinned(room as usize, WHAT)?;
            let written = session.device.record(session.compute)?;
            session.device.wait(session.back, written)?;
            let from = tuples.part(at * tuple, bytes);
            session.copy_out(from, &pinned, 0)?;
            let first = if at == 0 { 0 } else { kept };
            add(&mut divided, &bounds[first..], first, |start| {
                Place::Host(pinned.clone(), ((start - at) * tuple) as usize)
            });
        }
        leaving.sent()?;
    }
    Ok(divided)
}

/// Adds a run a partition, the first of which is number `first`.
fn add(to: &mut Spilled, bounds: &[u64], first: usize, place: impl Fn(u64) -> Place) {
    for (i, bound) in bounds.windows(2).enumerate() {
        let run = Run { place: place(bound[0]), rows: bound[1] - bound[0] };
        to.add(first + i, run);
    }
}

/// A copy of some tuples that stays on the device; none of none.
fn keep(session: &Session<'_>, tuples: View) -> Result<Option<View>> {
    if tuples.bytes == 0 {
        return Ok(None);
    }
    let view = session.allocate(tuples.bytes, "partitions kept on the device")?;
    session.device.copy_between(session.compute, tuples, view)?;
    Ok(Some(view))
}

/// Chunks on their way out: their memory goes back when they are gone.
struct Leaving<'a> {
    session: &'a Session<'a>,
    /// With the events that say so, once all that reads them is enqueued.
    going: VecDeque<(Memory, Vec<Event>)>,
}

impl Leaving<'_> {
    /// One more, for which the oldest may have to be waited for.
    fn hold(&mut self, memory: Memory) -> Result<View> {
        let view = memory.view;
        self.going.push_back((memory, Vec::new()));
        if self.going.len() > UNDER_WAY
            && let Some((_, read)) = self.going.front()
        {
            read.iter().try_for_each(|&event| self.session.device.wait_for(event))?;
            self.going.pop_front();
        }
        Ok(view)
    }

    /// Says that stages and copies enqueued so far are the last to read the newest.
    fn sent(&mut self) -> Result<()> {
        let device = self.session.device;
        let read = vec![device.record(self.session.back)?, device.record(self.session.compute)?];
        if let Some((_, events)) = self.going.back_mut() {
            *events = read;
        }
        Ok(())
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        for stream in [self.session.back, self.session.compute] {
            if let Err(error) = self.session.device.synchronize(stream) {
                log::debug!("a device did not finish its work: {error}");
            }
        }
    }
}

//! The `dma` partitioner: the GPU partitions a chunk in its own memory, and the copy engine copies it to host
//! memory. (Our design.)
//!
//! ```text
//!  chunk ─► partitioned in GPU memory ─┬─► some chunks stay there
//!                                      └─► host memory, one copy
//! ```
//!
//! GPU memory is so much faster than the link that partitioning there costs almost nothing. One copy per
//! chunk uses the full link bandwidth for any number of partitions.

use std::collections::VecDeque;

use super::super::Session;
use super::super::machinery::host_partitions::HostPartitions;
use super::super::machinery::partitions::{Radix, partitioning};
use super::{Pass, Turns};
use crate::device::{Event, Memory, View};
use crate::error::{Error, Result};
use crate::gpu_options::{RadixPartitioner, TritonPartitioner};
use crate::transfer::{HostSide, Pipeline, Place, Run, TransferContext};

/// The maximum number of partitioned chunks that are being copied out.
const UNDER_WAY: usize = 2;

/// Partitions a side.
pub(super) fn partition_side(
    link: &TransferContext<'_>,
    side: &HostSide,
    pass: &Pass,
) -> Result<HostPartitions> {
    TritonPartitioner::Dma.check_histogram(pass.histogram)?;
    let session = link.session;
    let tuple = session.word.tuple();
    let extra = partitioning(session) + UNDER_WAY as u64 * tuple;
    let chunk_rows = link.chunk_rows(side, extra, pass.free(session, 0) / 2);
    let radix = Radix::top(RadixPartitioner::LookBack, pass.bits);
    let mut turns = Turns::default();
    let mut partitioned = HostPartitions::new(pass.bits);
    let mut leaving = Leaving { session, going: VecDeque::new() };
    let mut pipeline = Pipeline::new(link, side, chunk_rows)?;
    while let Some(chunk) = pipeline.next()? {
        let point = session.point();
        let ordered = radix.partition(session, &chunk.side, &mut None, "a partitioned chunk")?;
        pipeline.done(chunk)?;
        pipeline.ahead()?;
        let bounds: Vec<u64> = session.read(ordered.bounds, pass.partitions() as usize + 1)?;
        let Some(tuples) = session.take(ordered.tuples) else {
            return Err(Error::internal("a partitioned chunk was lost"));
        };
        let bytes = bounds.last().copied().unwrap_or(0) * tuple;
        if turns.keep(bytes, pass) {
            session.release_since(point)?;
            let view = session.keep(tuples);
            add(&mut partitioned, &bounds, |start| {
                Place::Device(view.part(start * tuple, view.bytes))
            });
            continue;
        }
        let tuples = leaving.hold(tuples)?;
        session.release_since(point)?;
        let pinned = partitioned.pin(link, bytes)?;
        let written = session.device.record(session.compute)?;
        session.device.wait(session.back, written)?;
        session.copy_out(tuples.part(0, bytes), &pinned, 0)?;
        add(&mut partitioned, &bounds, |start| {
            Place::Host(pinned.clone(), (start * tuple) as usize)
        });
        leaving.sent()?;
    }
    Ok(partitioned)
}

/// Adds one run per partition.
fn add(to: &mut HostPartitions, bounds: &[u64], place: impl Fn(u64) -> Place) {
    for (partition, bound) in bounds.windows(2).enumerate() {
        to.add(partition, Run { place: place(bound[0]), rows: bound[1] - bound[0] });
    }
}

/// Chunks that are being copied out. Their memory is given back when the copies are done.
struct Leaving<'a> {
    session: &'a Session<'a>,
    /// Each chunk with the events to wait for. The events are recorded once all readers are enqueued.
    going: VecDeque<(Memory, Vec<Event>)>,
}

impl Leaving<'_> {
    /// Adds a chunk. May wait for the oldest one.
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

    /// Records that no later stage or copy reads the newest chunk.
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
        self.session.finish_before_drop([self.session.back, self.session.compute]);
    }
}

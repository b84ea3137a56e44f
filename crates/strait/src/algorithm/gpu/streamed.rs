//! Joins that keep the build side on the device and stream the probe side (001 §5, 003 §IV-A, 004 §3.4).
//!
//! ```text
//!  build: host ─► device ─► a table (`no-partition`), or partitions (`streamed-probe`) ─┐
//!                                                                                       ├─► rows ─► host
//!  probe: host ─► chunk, chunk, chunk ─► look up, or partition and join ────────────────┘
//! ```
//!
//! While one chunk is joined, the next chunks cross to the device, and the output rows of the chunk before
//! cross back. A table keeps up with the link even if every lookup misses the cache. Partitions take half
//! the memory, and frequent keys do not slow them down.

use std::ops::Range;

use super::flags::{Window, closed, opened};
use super::in_order::{InOrder, answers};
use super::no_partition::{self, Rows, look_up_in, look_ups};
use super::output_loop::OutputLoop;
use super::radix::{Partitioned, Radix};
use super::{Block, InOrderBlock, JoinResult, Receiver, Session, Side, Wanted, Which};
use crate::device::{Event, Stage, View, abi};
use crate::error::Result;
use crate::gpu_options::{RadixPartitioner, TablePlace};
use crate::transfer::{HostSide, Incoming, Pipeline, Read, TransferContext, load};

/// Joins by one table over the build side.
pub(super) fn no_partition(
    crossing: &TransferContext<'_>,
    place: TablePlace,
    (build, probe): (&HostSide, &Incoming<'_>),
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let table = table(crossing, place, build)?;
    stream_past(crossing, (table, 0..build.rows), probe, wanted, to)
}

/// Streams a probe side past a table. The table holds the build rows with these numbers.
pub(super) fn stream_past(
    crossing: &TransferContext<'_>,
    (table, build): (abi::Table, Range<u64>),
    probe: &Incoming<'_>,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let session = crossing.session;
    let rows = build.end - build.start;
    let in_order = to.takes_order() && answers(&table, wanted);
    let flag_probe = wanted.flag_probe && !in_order;
    let mut stream = Stream::new(crossing, probe, &Wanted { flag_probe, ..*wanted }, 0)?;
    let look_ups = look_ups(session, stream.chunk_rows);
    let mut output_loop = OutputLoop::new(session, &stream.wanted, look_ups)?;
    let mut in_order = match in_order {
        true => Some(InOrder::new(session, wanted, stream.chunk_rows)?),
        false => None,
    };
    let mut flags = Window::new(session, Which::Build, wanted.flag_build, rows)?;
    let build_flags = opened(&mut flags, session, build.start, rows)?;
    let always = flag_probe != wanted.flag_probe;
    let found = stream.each(build_flags, to, |chunk, wanted, to| match &mut in_order {
        Some(in_order) if always || to.takes_order() => in_order.look_up(table, chunk, wanted, to),
        _ => look_up_in(&mut output_loop, (session, table), Rows::of(chunk), wanted, to),
    })?;
    session.mark("look up")?;
    closed(&flags, session, to)?;
    Ok(found)
}

/// Reads a probe side that has no matches, because the build side is empty.
pub(super) fn without_matches(
    crossing: &TransferContext<'_>,
    probe: &Incoming<'_>,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let session = crossing.session;
    while probe.streams() {
        match probe.next(crossing.probe_rows(probe, 0, u64::MAX)?)? {
            Read::Chunk { .. } => to.end_chunk()?,
            Read::Later => {}
            Read::End => break,
        }
        to.meanwhile(session)?;
    }
    Ok(JoinResult::default())
}

/// Builds a table over the whole build side. If the table may lie in host memory, the build side need not
/// fit the device: it is inserted chunk by chunk, as long as no key occurs twice.
fn table(
    crossing: &TransferContext<'_>,
    place: TablePlace,
    build: &HostSide,
) -> Result<abi::Table> {
    let session = crossing.session;
    let mut repeated = false;
    if place != TablePlace::Gpu {
        let point = session.point();
        let slot_count = 2 * build.rows + 2;
        let slots = no_partition::slots(session, slot_count * session.word.tuple(), place)?;
        let table = no_partition::compact(session, slots, slot_count);
        if slot_count <= u64::from(u32::MAX) {
            if fill(crossing, build, 0, table)? {
                session.mark("build table")?;
                return Ok(table);
            }
            repeated = true;
        }
        session.release_since(point)?;
    }
    let side = load(crossing, build)?;
    let table = match repeated {
        true => no_partition::table_of_groups(session, &side, place)?,
        false => no_partition::table(session, &side, place)?,
    };
    // The table has its own copy of the columns.
    release(session, &side)?;
    Ok(table)
}

/// Inserts rows into a table with one value per key, chunk by chunk. `first` is the first row number.
/// Returns whether every key occurred once.
pub(super) fn fill(
    crossing: &TransferContext<'_>,
    part: &HostSide,
    first: u64,
    table: abi::Table,
) -> Result<bool> {
    let session = crossing.session;
    let control = session.zeroed(size_of::<abi::Control>() as u64, "the table's counts")?;
    session.run(Stage::ClearTable(abi::ClearTable { table }))?;
    let chunk_rows = crossing.chunk_rows(part, 0, session.left() / 2);
    let mut pipeline = Pipeline::new(crossing, part, chunk_rows)?;
    while let Some(chunk) = pipeline.next()? {
        let mut columns = chunk.side.columns();
        columns.first += first;
        session.run(Stage::Insert(abi::Insert {
            table,
            columns,
            rows: chunk.side.rows,
            control: control.address,
            ..abi::Insert::default()
        }))?;
        pipeline.done(chunk)?;
        pipeline.ahead()?;
    }
    let seen: abi::Control = session.read(control, 1)?.pop().unwrap_or_default();
    Ok(seen.duplicates == 0)
}

/// Joins by partitions of the build side that stay on the device.
pub(super) fn streamed_probe(
    crossing: &TransferContext<'_>,
    (build, probe): (&HostSide, &Incoming<'_>),
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let side = load(crossing, build)?;
    partitions(crossing, side, probe, wanted, to)
}

/// Streams a probe side past the partitions of `build`, which is a build side on the device or a part of
/// one. Releases the columns of `build`.
pub(super) fn partitions(
    crossing: &TransferContext<'_>,
    build: Side,
    probe: &Incoming<'_>,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let session = crossing.session;
    let radix = Radix::of(session, RadixPartitioner::LookBack, build.rows);
    let held = radix.partition_alone(session, &build, "the partitioned build side")?;
    release(session, &build)?;
    session.mark("partition build side")?;
    let mut stream = Stream::new(crossing, probe, wanted, partitioning(session))?;
    let tasks = radix.tasks(session, build.rows, stream.chunk_rows);
    let mut output_loop = OutputLoop::new(session, &stream.wanted, tasks as u32)?;
    let mut flags = Window::new(session, Which::Build, wanted.flag_build, build.rows)?;
    let build_flags = opened(&mut flags, session, build.first, build.rows)?;
    let found = stream.each(build_flags, to, |chunk, wanted, to| {
        join_chunk(&mut output_loop, &radix, &held, (chunk, wanted), to)
    })?;
    closed(&flags, session, to)?;
    Ok(found)
}

/// Partitions a chunk and joins it.
pub(super) fn join_chunk(
    output_loop: &mut OutputLoop<'_>,
    radix: &Radix,
    build: &Partitioned,
    (chunk, wanted): (&Side, &Wanted),
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let session = output_loop.session();
    let point = session.point();
    let probe = radix.partition_alone(session, chunk, "a partitioned chunk")?;
    session.mark("partition probe side")?;
    let tasks = radix.list(session, [build, &probe])?;
    session.mark("tasks")?;
    let found = radix.join(output_loop, [build, &probe], tasks, wanted, to)?;
    session.mark("join partitions")?;
    session.release_since(point)?;
    Ok(found)
}

/// Returns the device memory per row for partitioning: one tuple for each of two passes, the row's share of
/// the look-back words of its tile, and its share of the tasks.
pub(super) fn partitioning(session: &Session<'_>) -> u64 {
    let shape = session.device.shape(session.word);
    let a_tile = abi::BINS as u64 * 4;
    let task = size_of::<abi::Task>() as u64;
    2 * session.word.tuple()
        + a_tile.div_ceil(u64::from(shape.tile))
        + 2 * task.div_ceil(u64::from(shape.probe_rows.min(shape.build_rows)))
}

/// Releases the columns of a side.
pub(super) fn release(session: &Session<'_>, side: &Side) -> Result<()> {
    let columns: Vec<View> = [Some(side.keys), side.values].into_iter().flatten().collect();
    session.release(&columns)
}

/// A probe side that is being streamed to the device.
pub(super) struct Stream<'a> {
    session: &'a Session<'a>,
    pipeline: Pipeline<'a>,
    flags: Option<Window>,
    /// Whether the side is read while it is joined.
    reading: bool,
    /// What one chunk must produce.
    pub(super) wanted: Wanted,
    pub(super) chunk_rows: u64,
}

impl<'a> Stream<'a> {
    /// Prepares a stream. The stream and its output take at most half of the free memory. `extra` is the
    /// additional memory per row of a chunk.
    pub(super) fn new(
        crossing: &'a TransferContext<'a>,
        probe: &'a Incoming<'a>,
        wanted: &Wanted,
        extra: u64,
    ) -> Result<Stream<'a>> {
        let session = crossing.session;
        let extra = extra + aside(session, wanted);
        let chunk_rows = crossing.probe_rows(probe, extra, session.left() / 2)?;
        let flags = Window::new(session, Which::Probe, wanted.flag_probe, chunk_rows)?;
        let pipeline = Pipeline::of_probe(crossing, probe, chunk_rows)?;
        let expected_rows = wanted.expected_rows.min(chunk_rows);
        let wanted = Wanted { expected_rows, ..*wanted };
        let reading = probe.streams();
        Ok(Stream { session, pipeline, flags, reading, wanted, chunk_rows })
    }

    /// Calls `join` for every chunk and adds up the results.
    pub(super) fn each(
        &mut self,
        build_flags: Option<View>,
        to: &mut dyn Receiver,
        mut join: impl FnMut(&Side, &Wanted, &mut dyn Receiver) -> Result<JoinResult>,
    ) -> Result<JoinResult> {
        let mut found = JoinResult::default();
        loop {
            let Some(chunk) = self.pipeline.next()? else {
                if self.pipeline.ended() {
                    return Ok(found);
                }
                // There is memory for the next chunk when the rows of the chunks before it are written.
                to.meanwhile(self.session)?;
                continue;
            };
            let Side { first, rows, .. } = chunk.side;
            if rows > 0 {
                let probe_flags = opened(&mut self.flags, self.session, first, rows)?;
                let wanted = Wanted { build_flags, probe_flags, ..self.wanted };
                let mut feeding = Feeding { pipeline: &mut self.pipeline, to };
                found = found.and(join(&chunk.side, &wanted, &mut feeding)?);
                closed(&self.flags, self.session, to)?;
            }
            self.pipeline.done(chunk)?;
            if self.reading {
                to.end_chunk()?;
            }
        }
    }
}

/// Returns the device memory for output and flags, per row of a chunk: two buffers of rows.
fn aside(session: &Session<'_>, wanted: &Wanted) -> u64 {
    2 * session.word.bytes() * (2 + u64::from(wanted.keys)) + 2
}

/// A receiver that also fills the pipeline while the device works.
pub(super) struct Feeding<'r, 'a> {
    pub(super) pipeline: &'r mut Pipeline<'a>,
    pub(super) to: &'r mut dyn Receiver,
}

impl Receiver for Feeding<'_, '_> {
    fn block(&mut self, session: &Session<'_>, block: Block) -> Result<Option<Event>> {
        self.to.block(session, block)
    }

    fn flags(&mut self, which: Which, first: u64, flags: &[u8]) -> Result<()> {
        self.to.flags(which, first, flags)
    }

    fn in_order(&mut self, session: &Session<'_>, block: InOrderBlock) -> Result<Option<Event>> {
        self.to.in_order(session, block)
    }

    fn takes_order(&self) -> bool {
        self.to.takes_order()
    }

    fn meanwhile(&mut self, session: &Session<'_>) -> Result<()> {
        self.pipeline.ahead()?;
        self.to.meanwhile(session)
    }

    fn goes_on(&self) -> bool {
        true
    }
}

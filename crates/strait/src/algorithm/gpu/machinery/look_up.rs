//! Looks rows up in a table: the rows of a side in GPU memory, or a probe side that is streamed past the table.

use std::ops::Range;

use super::flags::{Window, closed_after, opened};
use super::in_order::InOrder;
use super::output_loop::{Cut, OutputLoop, Work};
use super::stream::ProbeStream;
use super::table::Rows;
use super::wanted::{JoinResult, Receiver, Wanted, Which};
use crate::device::{DeviceStage, Flavour, Session, abi};
use crate::error::Result;
use crate::plan::ResultOrder;
use crate::transfer::{Incoming, TransferContext};

/// Looks rows up in a table.
pub(crate) fn look_up(
    session: &Session<'_>,
    table: abi::DeviceTable,
    probe: Rows,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let mut output_loop = OutputLoop::new(session, wanted, look_ups(session, probe.rows))?;
    look_up_in(&mut output_loop, table, probe, wanted, to)?;
    session.mark("look up")?;
    output_loop.finish()
}

/// Returns the number of tasks for looking up `rows` rows.
pub(crate) fn look_ups(session: &Session<'_>, rows: u64) -> u32 {
    rows.div_ceil(u64::from(session.device.shape(session.word).probe_tile)) as u32
}

/// Looks rows up in a table, with an output loop that the caller may use again.
pub(crate) fn look_up_in(
    output_loop: &mut OutputLoop<'_>,
    table: abi::DeviceTable,
    probe: Rows,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<()> {
    let session = output_loop.session();
    let tile = session.device.shape(session.word).probe_tile;
    let count = look_ups(session, probe.rows);
    let work = Work { tasks: None, count, cut: Cut::Run, mixed: true };
    let stage = |tasks: u64, count: u32, output: abi::Output| {
        let Rows { columns, tuples, rows } = probe;
        let look_up = abi::Probe { table, columns, tuples, rows, tasks, count, tile, output };
        DeviceStage::Probe(wanted.flavour, look_up)
    };
    output_loop.run(wanted, work, stage, to)
}

/// A table over build rows.
pub(crate) struct TableOf {
    pub(crate) table: abi::DeviceTable,
    /// The numbers of the build rows in the table.
    pub(crate) build: Range<u64>,
    /// The order in which the plan wants the results.
    pub(crate) order: ResultOrder,
}

/// Streams a probe side past a table.
pub(crate) fn stream_past(
    link: &TransferContext<'_>,
    past: TableOf,
    probe: &Incoming<'_>,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let session = link.session;
    let TableOf { table, build, order } = past;
    let rows = build.end - build.start;
    let in_order = order == ResultOrder::ProbeOrder;
    let flags = if in_order { wanted.flags.in_order() } else { wanted.flags };
    let mut stream = ProbeStream::new(link, probe, &Wanted { flags, ..*wanted }, 0)?;
    let look_ups = look_ups(session, stream.chunk_rows);
    let mut output_loop = OutputLoop::new(session, &stream.wanted, look_ups)?;
    let mut in_order = match in_order {
        true => Some(InOrder::new(session, wanted, stream.chunk_rows)?),
        false => None,
    };
    let mut flags = Window::new(session, Which::Build, wanted, rows)?;
    let build_flags = opened(&mut flags, session, build.start, rows)?;
    // Bits always take fewer bytes than flags. Values take fewer bytes than pairs only if at least half of
    // the rows match.
    let always = wanted.flavour == Flavour::Exists;
    let joined = stream.each(build_flags, to, |chunk, wanted, to| match &mut in_order {
        Some(in_order) if always || to.most_rows_match() => {
            session.record_work(|work| work.chunks_in_order += 1);
            in_order.look_up(table, chunk, wanted, to)
        }
        _ => {
            session.record_work(|work| work.chunks_unordered += 1);
            look_up_in(&mut output_loop, table, Rows::of(chunk), wanted, to)
        }
    });
    let joined = joined.and_then(|()| session.mark("look up"));
    closed_after(joined, &flags, session, to)?;
    output_loop.finish()
}

//! Streams the probe side to the device, chunk by chunk, past a build side that stays there (001 §5,
//! 003 §IV-A, 004 §3.4).
//!
//! While one chunk is joined, the next chunks cross to the device, and the output rows of the chunk before
//! cross back.

use super::flags::{Window, closed, opened};
use super::wanted::{InOrderBlock, JoinResult, OutputBlock, Receiver, Wanted, Which};
use crate::device::{DeviceSide, Event, Session, View};
use crate::error::Result;
use crate::transfer::{Incoming, Pipeline, Read, TransferContext};

/// Reads a probe side that has no matches, because the build side is empty.
pub(crate) fn without_matches(
    link: &TransferContext<'_>,
    probe: &Incoming<'_>,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let session = link.session;
    while probe.streams() {
        match probe.next(link.probe_rows(probe, 0, u64::MAX)?)? {
            Read::Chunk { .. } => to.end_chunk()?,
            Read::Later => {}
            Read::End => break,
        }
        to.meanwhile(session)?;
    }
    Ok(JoinResult::default())
}

/// Releases the columns of a side.
pub(crate) fn release(session: &Session<'_>, side: &DeviceSide) -> Result<()> {
    let columns: Vec<View> = [Some(side.keys), side.values].into_iter().flatten().collect();
    session.release(&columns)
}

/// A probe side that is being streamed to the device.
pub(crate) struct ProbeStream<'a> {
    session: &'a Session<'a>,
    pipeline: Pipeline<'a>,
    flags: Option<Window>,
    /// Whether the side is read while it is joined.
    reading: bool,
    /// What one chunk must produce.
    pub(crate) wanted: Wanted,
    pub(crate) chunk_rows: u64,
}

impl<'a> ProbeStream<'a> {
    /// Prepares a stream. The stream and its output take at most half of the free memory. `extra` is the
    /// additional memory per row of a chunk.
    pub(crate) fn new(
        link: &'a TransferContext<'a>,
        probe: &'a Incoming<'a>,
        wanted: &Wanted,
        extra: u64,
    ) -> Result<ProbeStream<'a>> {
        let session = link.session;
        let extra = extra + aside(session, wanted);
        let chunk_rows = link.probe_rows(probe, extra, session.left() / 2)?;
        let flags = Window::new(session, Which::Probe, wanted, chunk_rows)?;
        let pipeline = Pipeline::of_probe(link, probe, chunk_rows)?;
        let expected_rows = wanted.expected_rows.min(chunk_rows);
        let wanted = Wanted { expected_rows, ..*wanted };
        let reading = probe.streams();
        Ok(ProbeStream { session, pipeline, flags, reading, wanted, chunk_rows })
    }

    /// Calls `join` for every chunk.
    pub(crate) fn each(
        &mut self,
        build_flags: Option<View>,
        to: &mut dyn Receiver,
        mut join: impl FnMut(&DeviceSide, &Wanted, &mut dyn Receiver) -> Result<()>,
    ) -> Result<()> {
        loop {
            let next = self.pipeline.next();
            let Some(chunk) = keep_arrived(next, self.session, to)? else {
                if self.pipeline.ended() {
                    return Ok(());
                }
                // There is memory for the next chunk when the rows of the chunks before it are written.
                to.meanwhile(self.session)?;
                continue;
            };
            let DeviceSide { first, rows, .. } = chunk.side;
            if rows > 0 {
                let probe_flags = opened(&mut self.flags, self.session, first, rows)?;
                let wanted = Wanted { build_flags, probe_flags, ..self.wanted };
                let mut feeding = Feeding { pipeline: &mut self.pipeline, to };
                join(&chunk.side, &wanted, &mut feeding)?;
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

/// If the reader of the probe side failed, hands over the results of earlier chunks before the join fails. Does
/// not do this if the CPU may continue the join: the CPU joins these chunks again, and rows of an unfinished
/// chunk would prevent that.
fn keep_arrived<T>(read: Result<T>, session: &Session<'_>, to: &mut dyn Receiver) -> Result<T> {
    read.inspect_err(|error| {
        if !error.cpu_may_help()
            && let Err(later) = to.meanwhile(session)
        {
            log::debug!("the results of earlier chunks are lost: {later}");
        }
    })
}

/// A receiver that also fills the pipeline while the device works.
pub(crate) struct Feeding<'r, 'a> {
    pub(crate) pipeline: &'r mut Pipeline<'a>,
    pub(crate) to: &'r mut dyn Receiver,
}

impl Receiver for Feeding<'_, '_> {
    fn block(&mut self, session: &Session<'_>, block: OutputBlock) -> Result<Option<Event>> {
        self.to.block(session, block)
    }

    fn flags(&mut self, which: Which, first: u64, flags: &[u8]) -> Result<()> {
        self.to.flags(which, first, flags)
    }

    fn in_order(&mut self, session: &Session<'_>, block: InOrderBlock) -> Result<Option<Event>> {
        self.to.in_order(session, block)
    }

    fn counted(&mut self, session: &Session<'_>, rows: View) -> Result<Option<Event>> {
        self.to.counted(session, rows)
    }

    fn most_rows_match(&self) -> bool {
        self.to.most_rows_match()
    }

    fn end_chunk(&mut self) -> Result<()> {
        self.to.end_chunk()
    }

    fn meanwhile(&mut self, session: &Session<'_>) -> Result<()> {
        keep_arrived(self.pipeline.ahead(), session, self.to)?;
        self.to.meanwhile(session)
    }

    fn more_follows(&self) -> bool {
        true
    }
}

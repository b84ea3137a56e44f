//! `standard`, `linear`, `shared` and `hierarchical`: a kernel writes tuples to their partitions in
//! host memory, over the link (000 §4).
//!
//! ```text
//!  histogram:  keys ─► count ─► partitions in one piece      without:  chunk ─► count in GPU memory
//!                                  ▲                                      ▲         └─► runs of its own
//!  chunk ─► kernel ────────────────┘                          chunk ─► kernel
//! ```
//!
//! Partitions begin at multiples of 128 bytes. What is kept in GPU memory lies in pages in turns with
//! the host's, at one range of addresses (000 §5.2), so that no partition is all of one kind. Without a
//! histogram it is whole chunks in turns instead.

use std::sync::Arc;

use super::super::spilled::{Spilled, WHAT};
use super::super::{Session, Side};
use super::{Pass, Turns};
use crate::device::{Memory, Pinned, Scatterer, Spread, Stage, View, Word, abi};
use crate::error::{Error, Result};
use crate::join::{Histogram, Transfer};
use crate::partition::count_column;
use crate::transfer::{Crossing, HostSide, Pipeline, Place, Run};

/// What partitions are aligned to, in bytes: a line of the GPU's caches.
const LINE: u64 = 128;

/// Rows that a kernel reads over the link, at most.
const STRETCH: u64 = 1 << 28;

/// How many tuples of a side each partition gets, where that is to be known before.
pub(super) fn count(
    crossing: &Crossing<'_>,
    side: &HostSide,
    pass: &Pass,
) -> Result<Option<Vec<u64>>> {
    Ok(match pass.histogram {
        Histogram::None => None,
        Histogram::Cpu => Some(count_on_host(crossing, side, pass.bits)?),
        Histogram::Gpu => Some(count_on_device(crossing, side, pass)?),
    })
}

/// Partitions a side: where tuples are counted, all of it into partitions in one piece, and else each
/// chunk by itself.
pub(super) fn divide(
    crossing: &Crossing<'_>,
    side: &HostSide,
    pass: &Pass,
    how: Scatterer,
    counts: Option<Vec<u64>>,
) -> Result<Spilled> {
    let session = crossing.session;
    let mut divided = Spilled::new(pass.bits);
    let partitions = pass.partitions();
    let bytes = session.device.scatter_bytes(session.word, how, partitions as u32);
    let scatter = Scatter {
        how,
        buffers: session.allocate(bytes, "write-combining buffers")?,
        cursors: session.allocate(partitions * 8, "the partitions' places")?,
        tally: Tally::new(session, pass)?,
    };
    // Writes of a kernel leave the copy engine a third of the link, but its own reads four fifths. So
    // what need not be counted here is read where it lies, as in 000, and in long stretches, since
    // buffers are flushed at the end of each.
    let pinned =
        (crossing.transfer, crossing.method(side)) == (Transfer::Auto, Transfer::PinnedCopy);
    let reads = counts.is_some() && pinned;
    let transfer = if reads { Transfer::ZeroCopy } else { crossing.transfer };
    let crossing = &Crossing { transfer, ..*crossing };
    let chunk_rows = match reads {
        true => crossing.most_rows.unwrap_or(STRETCH).min(side.rows),
        false => crossing.chunk_rows(side, 0, pass.free(session) / 2),
    };
    let whole = match counts {
        Some(counts) => {
            let layout = Layout::new(&counts, session.word.tuple());
            let memory = scatter.whole(crossing, &layout, pass, &mut divided)?;
            Some(scatter.target(&layout, memory, &mut divided)?)
        }
        None => None,
    };
    let mut turns = Turns::default();
    let mut pipeline = Pipeline::new(crossing, side, chunk_rows)?;
    while let Some(chunk) = pipeline.next()? {
        let to = match whole {
            Some(to) => to,
            None => {
                scatter.tally.clear()?;
                scatter.tally.add(&chunk.side)?;
                pipeline.ahead()?;
                let layout = Layout::new(&scatter.tally.read()?, session.word.tuple());
                let keep = turns.keep(layout.bytes, pass);
                let memory = scatter.piece(crossing, &layout, keep, &mut divided)?;
                scatter.target(&layout, memory, &mut divided)?
            }
        };
        scatter.write(&chunk.side, to)?;
        pipeline.done(chunk)?;
        pipeline.ahead()?;
    }
    drop(pipeline);
    session.release(&[scatter.buffers, scatter.cursors, scatter.tally.counts])?;
    Ok(divided)
}

/// Counts tuples on the device.
struct Tally<'a> {
    session: &'a Session<'a>,
    counts: View,
    digit: abi::Digit,
}

impl<'a> Tally<'a> {
    fn new(session: &'a Session<'a>, pass: &Pass) -> Result<Tally<'a>> {
        let partitions = pass.partitions();
        let digit =
            abi::Digit { shift: session.word.bits() - pass.bits, mask: partitions as u32 - 1 };
        let counts = session.allocate(partitions * 8, "the partitions' counts")?;
        Ok(Tally { session, counts, digit })
    }

    /// Sets all counts to zero.
    fn clear(&self) -> Result<()> {
        self.session.device.fill(self.session.compute, self.counts, 0)
    }

    /// Counts the tuples of each partition.
    fn add(&self, side: &Side) -> Result<()> {
        let (keys, stride, raw) = side.keys_at();
        self.session.run(Stage::Tally(abi::Tally {
            keys,
            rows: side.rows,
            counts: self.counts.address,
            digit: self.digit,
            stride,
            mix: u32::from(raw),
        }))
    }

    fn read(&self) -> Result<Vec<u64>> {
        self.session.read(self.counts, self.digit.mask as usize + 1)
    }
}

/// What the kernels are given.
struct Scatter<'a> {
    how: Scatterer,
    buffers: View,
    cursors: View,
    tally: Tally<'a>,
}

/// Where partitions begin in their memory.
struct Layout {
    /// The tuples before each.
    starts: Vec<u64>,
    rows: Vec<u64>,
    bytes: u64,
    tuple: u64,
}

impl Layout {
    fn new(counts: &[u64], tuple: u64) -> Layout {
        let line = (LINE / tuple).max(1);
        let mut at = 0u64;
        let mut start = |count: &u64| {
            let start = at;
            at = (at + count).next_multiple_of(line);
            start
        };
        let starts = counts.iter().map(&mut start).collect();
        Layout { starts, rows: counts.to_vec(), bytes: (at * tuple).max(1), tuple }
    }

    /// The bytes of all tuples.
    fn tuples(&self) -> u64 {
        self.rows.iter().sum::<u64>() * self.tuple
    }
}

/// Memory at addresses of the device, and the host's that it is, if it is.
type Target = (Memory, Option<Arc<Pinned>>);

impl Scatter<'_> {
    /// Memory for all tuples of a side, some of it perhaps on the device.
    fn whole(
        &self,
        crossing: &Crossing<'_>,
        layout: &Layout,
        pass: &Pass,
        divided: &mut Spilled,
    ) -> Result<Target> {
        let (session, bytes) = (crossing.session, layout.bytes);
        let cached = pass.cached(bytes).min(session.left() / 4 * 3);
        if cached == 0 {
            return self.in_host(crossing, layout, divided);
        }
        divided.reserve(crossing, bytes - cached)?;
        let memory = session.device.range(bytes, Spread::Interleaved(cached), WHAT)?;
        // What lies in the host's memory crosses as stages write it here, and when it is joined.
        let crossing = layout.tuples().saturating_sub(cached);
        session.crosses_back(crossing);
        session.crosses_in(crossing);
        Ok((memory, None))
    }

    /// Memory for the tuples of a chunk, on the device where it is to be kept and there is room.
    fn piece(
        &self,
        crossing: &Crossing<'_>,
        layout: &Layout,
        keep: bool,
        divided: &mut Spilled,
    ) -> Result<Target> {
        if keep {
            match crossing.session.device.allocate(layout.bytes, "partitions kept on the device") {
                Ok(memory) => return Ok((memory, None)),
                Err(Error::DeviceMemory { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.in_host(crossing, layout, divided)
    }

    fn in_host(
        &self,
        crossing: &Crossing<'_>,
        layout: &Layout,
        divided: &mut Spilled,
    ) -> Result<Target> {
        let device = crossing.session.device;
        crossing.session.crosses_back(layout.tuples());
        let pinned = divided.pin(crossing, layout.bytes)?;
        Ok((device.mapped(&pinned)?, Some(pinned)))
    }

    /// Notes the partitions in some memory as runs, and sets the cursors to them.
    fn target(
        &self,
        layout: &Layout,
        (memory, pinned): Target,
        divided: &mut Spilled,
    ) -> Result<u64> {
        let session = self.tally.session;
        for (partition, (&start, &rows)) in layout.starts.iter().zip(&layout.rows).enumerate() {
            let at = start * layout.tuple;
            let place = match &pinned {
                Some(pinned) => Place::Host(pinned.clone(), at as usize),
                None => Place::Device(memory.view.part(at, rows * layout.tuple)),
            };
            divided.add(partition, Run { place, rows });
        }
        session.write(&layout.starts, self.cursors)?;
        Ok(session.keep(memory).address)
    }

    /// Writes tuples to their partitions.
    fn write(&self, side: &Side, to: u64) -> Result<()> {
        let session = self.tally.session;
        let scatter = abi::Scatter {
            columns: side.columns(),
            tuples: side.tuples_at(),
            to_tuples: to,
            rows: side.rows,
            cursors: self.cursors.address,
            buffers: self.buffers.address,
            digit: self.tally.digit,
        };
        session.run(Stage::Scatter(self.how, scatter))
    }
}

/// Counts all tuples of a side on the device: keys cross once for that alone.
fn count_on_device(crossing: &Crossing<'_>, side: &HostSide, pass: &Pass) -> Result<Vec<u64>> {
    let session = crossing.session;
    let keys = HostSide { values: None, ..side.clone() };
    let tally = Tally::new(session, pass)?;
    tally.clear()?;
    let chunk_rows = crossing.chunk_rows(&keys, 0, pass.free(session) / 2);
    let mut pipeline = Pipeline::new(crossing, &keys, chunk_rows)?;
    while let Some(chunk) = pipeline.next()? {
        tally.add(&chunk.side)?;
        pipeline.done(chunk)?;
        pipeline.ahead()?;
    }
    drop(pipeline);
    let counts = tally.read()?;
    session.release(&[tally.counts])?;
    session.mark("count over the link")?;
    Ok(counts)
}

/// Counts all tuples of a side on the CPU.
pub(in super::super) fn count_on_host(
    crossing: &Crossing<'_>,
    side: &HostSide,
    bits: u32,
) -> Result<Vec<u64>> {
    // SAFETY: who made the columns keeps them.
    unsafe {
        match crossing.session.word {
            Word::W4 => count_column(crossing.workers, side.keys.words::<u32>(0..side.rows)?, bits),
            Word::W8 => count_column(crossing.workers, side.keys.words::<u64>(0..side.rows)?, bits),
        }
    }
}

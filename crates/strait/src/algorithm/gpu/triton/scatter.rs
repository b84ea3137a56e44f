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
//! the host's, at one range of addresses (000 §5.2), so that no partition is all of one kind.

use super::super::spilled::Spilled;
use super::super::{Session, Side};
use super::Pass;
use crate::device::{Scatterer, Spread, Stage, View, Word, abi};
use crate::error::Result;
use crate::join::Histogram;
use crate::partition::count_column;
use crate::transfer::{Crossing, HostSide, Pipeline, Place, Run};

/// What partitions are aligned to, in bytes: a line of the GPU's caches.
const LINE: u64 = 128;

/// Partitions a side.
pub(super) fn divide(
    crossing: &Crossing<'_>,
    side: &HostSide,
    pass: &Pass,
    how: Scatterer,
) -> Result<Spilled> {
    let session = crossing.session;
    let mut divided = Spilled::new(pass.bits);
    let partitions = pass.partitions();
    let bytes = session.device.scatter_bytes(session.word, how, partitions as u32);
    let scatter = Scatter {
        session,
        how,
        buffers: session.allocate(bytes, "write-combining buffers")?,
        counts: session.allocate(partitions * 8, "the partitions' counts")?,
        cursors: session.allocate(partitions * 8, "the partitions' places")?,
        digit: abi::Digit { shift: session.word.bits() - pass.bits, mask: partitions as u32 - 1 },
    };
    let free = session.left().saturating_sub(pass.cache).max(session.left() / 4);
    let chunk_rows = crossing.chunk_rows(side, 0, free / 2);
    let counted = match pass.histogram {
        Histogram::None => None,
        Histogram::Cpu => Some(count_on_host(crossing, side, pass.bits)?),
        Histogram::Gpu => Some(scatter.count_all(crossing, side, chunk_rows)?),
    };
    let mut target = match counted {
        Some(counts) => Some(scatter.target(crossing, &counts, pass, &mut divided)?),
        None => None,
    };
    let mut pipeline = Pipeline::new(crossing, side, chunk_rows)?;
    while let Some(chunk) = pipeline.next()? {
        let to = match target {
            Some(to) => to,
            None => {
                scatter.clear()?;
                scatter.count(&chunk.side)?;
                pipeline.ahead()?;
                let counts: Vec<u64> = session.read(scatter.counts, partitions as usize)?;
                scatter.target(crossing, &counts, pass, &mut divided)?
            }
        };
        scatter.write(&chunk.side, to)?;
        if pass.histogram != Histogram::None {
            target = Some(to);
        }
        pipeline.done(chunk)?;
        pipeline.ahead()?;
    }
    drop(pipeline);
    session.release(&[scatter.buffers, scatter.counts, scatter.cursors])?;
    Ok(divided)
}

/// What the kernels are given.
struct Scatter<'a> {
    session: &'a Session<'a>,
    how: Scatterer,
    buffers: View,
    counts: View,
    cursors: View,
    digit: abi::Digit,
}

impl Scatter<'_> {
    /// Sets all counts to zero.
    fn clear(&self) -> Result<()> {
        self.session.device.fill(self.session.compute, self.counts, 0)
    }

    /// Counts the tuples of each partition.
    fn count(&self, side: &Side) -> Result<()> {
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

    /// Counts all tuples of a side: keys cross once for that alone.
    fn count_all(
        &self,
        crossing: &Crossing<'_>,
        side: &HostSide,
        chunk_rows: u64,
    ) -> Result<Vec<u64>> {
        let keys = HostSide { values: None, ..side.clone() };
        self.clear()?;
        let mut pipeline = Pipeline::new(crossing, &keys, chunk_rows)?;
        while let Some(chunk) = pipeline.next()? {
            self.count(&chunk.side)?;
            pipeline.done(chunk)?;
            pipeline.ahead()?;
        }
        drop(pipeline);
        let counts = self.session.read(self.counts, self.digit.mask as usize + 1)?;
        self.session.mark("count over the link")?;
        Ok(counts)
    }

    /// Memory for partitions of so many tuples, noted as their runs, with the cursors set to them.
    fn target(
        &self,
        crossing: &Crossing<'_>,
        counts: &[u64],
        pass: &Pass,
        divided: &mut Spilled,
    ) -> Result<u64> {
        const WHAT: &str = "partitions in host memory";
        let session = self.session;
        let tuple = session.word.tuple();
        let line = (LINE / tuple).max(1);
        let mut starts = Vec::with_capacity(counts.len());
        let mut rows = 0u64;
        for count in counts {
            starts.push(rows);
            rows = (rows + count).next_multiple_of(line);
        }
        let bytes = (rows * tuple).max(1);
        let cached = pass.cached(bytes).min(session.left() / 2);
        divided.reserved.push(crossing.budget.reserve(bytes - cached, WHAT)?);
        let (memory, pinned) = match cached > 0 {
            true => (session.device.range(bytes, Spread::Interleaved(cached), WHAT)?, None),
            false => {
                let pinned = session.device.pinned(bytes as usize, WHAT)?;
                (session.device.mapped(&pinned)?, Some(pinned))
            }
        };
        for (partition, (&start, &rows)) in starts.iter().zip(counts).enumerate() {
            let place = match &pinned {
                Some(pinned) => Place::Host(pinned.clone(), (start * tuple) as usize),
                None => Place::Device(memory.view.part(start * tuple, rows * tuple)),
            };
            divided.add(partition, Run { place, rows });
        }
        session.write(&starts, self.cursors)?;
        Ok(session.keep(memory).address)
    }

    /// Writes tuples to their partitions.
    fn write(&self, side: &Side, to: u64) -> Result<()> {
        self.session.crosses_back(side.rows * self.session.word.tuple());
        let scatter = abi::Scatter {
            columns: side.columns(),
            tuples: side.tuples_at(),
            to_tuples: to,
            rows: side.rows,
            cursors: self.cursors.address,
            buffers: self.buffers.address,
            digit: self.digit,
        };
        self.session.run(Stage::Scatter(self.how, scatter))
    }
}

/// Counts all tuples of a side on the CPU.
fn count_on_host(crossing: &Crossing<'_>, side: &HostSide, bits: u32) -> Result<Vec<u64>> {
    // SAFETY: who made the columns keeps them.
    unsafe {
        match crossing.session.word {
            Word::W4 => count_column(crossing.workers, side.keys.words::<u32>(0..side.rows)?, bits),
            Word::W8 => count_column(crossing.workers, side.keys.words::<u64>(0..side.rows)?, bits),
        }
    }
}

//! The `standard`, `linear`, `shared` and `hierarchical` partitioners: a kernel writes tuples over the link
//! to their partitions in host memory (000 §4).
//!
//! ```text
//!  keys ─► count ──────┐     `--histogram` says who counts
//!  unit after unit ─► kernel ─┬─► some units stay in GPU memory
//!                             └─► host memory
//! ```
//!
//! Each unit of rows gets its own memory, so the tuples per partition must be counted first. There are three
//! ways: the GPU counts, and keys cross the link one more time; the CPU counts one unit ahead of the kernel;
//! or each unit is copied to GPU memory and counted there. Each partition starts at a multiple of 128 bytes.

use std::sync::Arc;

use super::super::machinery::host_partitions::HostPartitions;
use super::super::{DeviceSide, Session};
use super::{Pass, Turns};
use crate::device::{DeviceStage, Memory, Pinned, Scatterer, View, abi};
use crate::error::{Error, Result};
use crate::gpu_options::{Histogram, Transfer};
use crate::partition::count_column;
use crate::transfer::{HostSide, Pipeline, Place, Run, TransferContext};
use crate::word::Width;

/// The alignment of partitions in bytes: a cache line of the GPU.
const LINE: u64 = 128;
/// Who counts the tuples per partition, for each unit.
pub(super) enum Counts {
    /// The device, from the unit in its memory.
    OnDevice,
    /// The CPU, while the device writes the previous unit.
    Ahead,
    /// Already counted: the counts of each unit.
    Before(Vec<Vec<u64>>),
}

/// How a side is split into units.
pub(super) struct Units {
    transfer: Transfer,
    /// Rows per unit.
    rows: u64,
}

impl Units {
    /// Chooses the units. Columns that kernels read in host memory get long units. All other columns, and
    /// columns that are counted on the device, get units as long as a chunk.
    pub(super) fn new(
        link: &TransferContext<'_>,
        side: &HostSide,
        pass: &Pass,
        how: Scatterer,
        counted: bool,
    ) -> Units {
        let session = link.session;
        let transfer = link.transfer;
        if counted && transfer.reads_in_place() {
            return Units { transfer, rows: link.most_rows.min(side.rows).max(1) };
        }
        let buffers = scatter_bytes(session, pass, how);
        let rows = link.chunk_rows(side, 0, pass.free(session, buffers) / 2);
        Units { transfer, rows }
    }

    /// Returns the same with all rows in one unit, unless the columns must be copied to the device.
    pub(super) fn in_one_piece(self, side: &HostSide) -> Units {
        match self.transfer.reads_in_place() {
            true => Units { rows: side.rows.max(1), ..self },
            false => self,
        }
    }

    /// Returns the rows of a unit; an empty range after the last.
    fn range(&self, unit: u64, side: &HostSide) -> std::ops::Range<u64> {
        let start = (unit * self.rows).min(side.rows);
        start..(start + self.rows).min(side.rows)
    }
}

/// Partitions a side unit by unit. `--histogram` says who counts.
pub(super) fn partition_side(
    link: &TransferContext<'_>,
    side: &HostSide,
    pass: &Pass,
    how: Scatterer,
) -> Result<HostPartitions> {
    let units = Units::new(link, side, pass, how, pass.histogram != Histogram::None);
    let counts = match pass.histogram {
        Histogram::None => Counts::OnDevice,
        Histogram::Cpu => Counts::Ahead,
        Histogram::Gpu => Counts::Before(count_on_device(link, side, pass, &units)?),
    };
    partition_units(link, side, pass, how, units, counts)
}

/// Partitions a side unit by unit.
pub(super) fn partition_units(
    link: &TransferContext<'_>,
    side: &HostSide,
    pass: &Pass,
    how: Scatterer,
    units: Units,
    counts: Counts,
) -> Result<HostPartitions> {
    let session = link.session;
    let mut partitioned = HostPartitions::new(pass.bits);
    session.record_work(|work| work.radix_bits = vec![pass.bits]);
    let partitions = pass.partitions();
    let bytes = scatter_bytes(session, pass, how);
    let scatter = Scatter {
        how,
        buffers: session.allocate(bytes, "write-combining buffers")?,
        cursors: session.allocate(partitions * 8, "the partitions' places")?,
        tally: Tally::new(session, pass)?,
    };
    let on_host = |unit| count_on_host(link, side, pass.bits, units.range(unit, side));
    let mut ahead = match counts {
        Counts::Ahead => on_host(0)?,
        _ => Vec::new(),
    };
    let mut turns = Turns::default();
    let mut pipeline = Pipeline::new(link, side, units.rows)?;
    for unit in 0.. {
        let Some(chunk) = pipeline.next()? else { break };
        let rows = match &counts {
            Counts::Ahead => std::mem::take(&mut ahead),
            Counts::Before(counts) => counts.get(unit as usize).cloned().unwrap_or_default(),
            Counts::OnDevice => {
                scatter.tally.clear()?;
                scatter.tally.add(&chunk.side, 0..chunk.side.rows)?;
                pipeline.ahead()?;
                scatter.tally.read()?
            }
        };
        if rows.iter().sum::<u64>() != chunk.side.rows {
            let what = "tuples of the triton join differ from those counted before";
            return Err(Error::internal(format!("{what}: a column was changed during the join")));
        }
        let layout = Layout::new(rows, session.word.tuple());
        let keep = turns.keep(layout.bytes, pass);
        let target = scatter.memory(link, &layout, keep, &mut partitioned)?;
        if keep && target.pinned.is_some() {
            turns.refused(layout.bytes);
        }
        let to = scatter.add_runs(&layout, target, &mut partitioned)?;
        scatter.write(&chunk.side, to)?;
        pipeline.done(chunk)?;
        pipeline.ahead()?;
        if let Counts::Ahead = counts {
            ahead = on_host(unit + 1)?;
        }
    }
    drop(pipeline);
    session.release(&[scatter.buffers, scatter.cursors, scatter.tally.counts])?;
    Ok(partitioned)
}

/// Returns the bytes of the write-combining buffers.
fn scatter_bytes(session: &Session<'_>, pass: &Pass, how: Scatterer) -> u64 {
    session.device.scatter_bytes(session.word, how, pass.partitions() as u32)
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

    /// Counts the tuples per partition of some rows.
    fn add(&self, side: &DeviceSide, rows: std::ops::Range<u64>) -> Result<()> {
        let (keys, stride, raw) = side.keys_at();
        self.session.run(DeviceStage::Tally(abi::Tally {
            keys: keys + rows.start * u64::from(stride) * self.session.word.bytes(),
            rows: rows.end - rows.start,
            counts: self.counts.address,
            digit: self.digit,
            stride,
            mix: u32::from(raw),
            mixing: self.session.mixing(),
        }))
    }

    fn read(&self) -> Result<Vec<u64>> {
        self.session.read(self.counts, self.digit.mask as usize + 1)
    }
}

/// The arguments of the kernels.
struct Scatter<'a> {
    how: Scatterer,
    buffers: View,
    cursors: View,
    tally: Tally<'a>,
}

/// The start of each partition in the memory of its unit.
struct Layout {
    /// The position of each partition's first tuple.
    starts: Vec<u64>,
    rows: Vec<u64>,
    bytes: u64,
    tuple: u64,
}

impl Layout {
    fn new(rows: Vec<u64>, tuple: u64) -> Layout {
        let line = (LINE / tuple).max(1);
        let mut at = 0u64;
        let mut start = |count: &u64| {
            let start = at;
            at = (at + count).next_multiple_of(line);
            start
        };
        let starts = rows.iter().map(&mut start).collect();
        Layout { starts, rows, bytes: (at * tuple).max(1), tuple }
    }

    /// Returns the bytes of all tuples.
    fn tuples(&self) -> u64 {
        self.rows.iter().sum::<u64>() * self.tuple
    }
}

/// The memory for the tuples of a unit.
struct Target {
    /// The memory, at addresses of the device.
    memory: Memory,
    /// The pinned memory behind it, if it is host memory.
    pinned: Option<Arc<Pinned>>,
}

impl Scatter<'_> {
    /// Allocates memory for the tuples of a unit: on the device if `keep` is set and there is room.
    fn memory(
        &self,
        link: &TransferContext<'_>,
        layout: &Layout,
        keep: bool,
        partitioned: &mut HostPartitions,
    ) -> Result<Target> {
        if keep {
            match link.session.device.allocate(layout.bytes, "partitions kept on the device") {
                Ok(memory) => return Ok(Target { memory, pinned: None }),
                Err(Error::DeviceMemory { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let device = link.session.device;
        link.session.crosses_back(layout.tuples());
        let pinned = partitioned.pin(link, layout.bytes)?;
        Ok(Target { memory: device.mapped(&pinned)?, pinned: Some(pinned) })
    }

    /// Adds the partitions in this memory as runs, and sets the cursors to their starts.
    fn add_runs(
        &self,
        layout: &Layout,
        target: Target,
        partitioned: &mut HostPartitions,
    ) -> Result<u64> {
        let session = self.tally.session;
        let Target { memory, pinned } = target;
        for (partition, (&start, &rows)) in layout.starts.iter().zip(&layout.rows).enumerate() {
            let at = start * layout.tuple;
            let place = match &pinned {
                Some(pinned) => Place::Host(pinned.clone(), at as usize),
                None => Place::Device(memory.view.part(at, rows * layout.tuple)),
            };
            partitioned.add(partition, Run { place, rows });
        }
        session.write(&layout.starts, self.cursors)?;
        Ok(session.keep(memory).address)
    }

    /// Writes tuples to their partitions.
    fn write(&self, side: &DeviceSide, to: u64) -> Result<()> {
        let session = self.tally.session;
        let scatter = abi::Scatter {
            columns: side.columns(),
            tuples: side.tuples_at(),
            to_tuples: to,
            rows: side.rows,
            cursors: self.cursors.address,
            buffers: self.buffers.address,
            digit: self.tally.digit,
            mixing: session.mixing(),
        };
        session.run(DeviceStage::Scatter(self.how, scatter))
    }
}

/// Counts all tuples of a side on the device, unit by unit. The keys cross the link only for counting.
fn count_on_device(
    link: &TransferContext<'_>,
    side: &HostSide,
    pass: &Pass,
    units: &Units,
) -> Result<Vec<Vec<u64>>> {
    let session = link.session;
    let keys = HostSide { values: None, ..side.clone() };
    let tally = Tally::new(session, pass)?;
    tally.clear()?;
    let chunk_rows = link.chunk_rows(&keys, 0, pass.free(session, 0) / 2);
    let mut pipeline = Pipeline::new(link, &keys, chunk_rows)?;
    let (mut counts, mut at) = (Vec::new(), 0);
    while let Some(chunk) = pipeline.next()? {
        // A chunk may hold the end of one unit and the start of another.
        let first = at;
        while at < first + chunk.side.rows {
            let unit = units.range(at / units.rows, side);
            let some = at..unit.end.min(first + chunk.side.rows);
            tally.add(&chunk.side, some.start - first..some.end - first)?;
            at = some.end;
            if at == unit.end {
                counts.push(tally.read()?);
                tally.clear()?;
            }
        }
        pipeline.done(chunk)?;
        pipeline.ahead()?;
    }
    drop(pipeline);
    session.release(&[tally.counts])?;
    session.mark("count over the link")?;
    Ok(counts)
}

/// Counts all tuples of a side on the CPU, unit by unit.
pub(super) fn count_before(
    link: &TransferContext<'_>,
    side: &HostSide,
    pass: &Pass,
    units: &Units,
) -> Result<Vec<Vec<u64>>> {
    let all = side.rows.div_ceil(units.rows);
    let of = |unit| count_on_host(link, side, pass.bits, units.range(unit, side));
    (0..all).map(of).collect()
}

/// Counts the tuples of some rows on the CPU.
fn count_on_host(
    link: &TransferContext<'_>,
    side: &HostSide,
    bits: u32,
    rows: std::ops::Range<u64>,
) -> Result<Vec<u64>> {
    let (session, workers) = (link.session, link.workers);
    // SAFETY: the creator of the columns keeps their memory alive.
    unsafe {
        match session.word {
            Width::W32 => {
                count_column(workers, side.keys.words::<u32>(rows)?, session.mixer(), bits)
            }
            Width::W64 => {
                count_column(workers, side.keys.words::<u64>(rows)?, session.mixer(), bits)
            }
        }
    }
}

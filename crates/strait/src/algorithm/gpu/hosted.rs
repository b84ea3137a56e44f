//! Joins columns in host memory, which may be larger than GPU memory. `bench join --placement pinned` and
//! `pageable` measure these joins with `--device gpu`.
//!
//! The first column of a table is the key, an integer. A second column is the payload, also an integer. It is
//! inlined if it is wanted. Output rows come back to the host, into buffers that are reused all the time.
//! [`Hosted::partition`] only partitions a table and joins nothing.

mod first_pass;

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, RecordBatch};

use super::resident::{Ran, Yield, bytes_of, width, words};
use super::{Block, FromHost, HostJoinResult, Receiver, Session, Wanted, join_from_host};
use crate::device::cuda::{CudaDevice, Gpu};
use crate::device::simulated::{Settings, Simulated, TINY};
use crate::device::{Device, Event, Flavour, HostView};
use crate::error::{Error, Result};
use crate::gpu_options::{GpuOptions, Transfer, check_partitioner};
use crate::machine::Machine;
use crate::memory::{Budget, Buffer, Shared};
use crate::options::{Algorithm, JoinType, Yields};
use crate::plan::{Facts, HostMemory, OnDevice, Request, Statistics, choose};
use crate::schedule::{Workers, share};
use crate::transfer::{BlockColumn, Drain, HostColumn, HostSide, TransferContext};
use crate::word::Mixers;
use crate::word::Width;

pub use first_pass::{Divided, FirstPass};

/// Where the columns lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPlacement {
    /// In pinned memory, which the GPU reads at full speed.
    Pinned,
    /// In ordinary, pageable memory.
    Pageable,
}

/// Two tables in host memory, and a GPU.
pub struct Hosted {
    tables: [Table; 2],
    placement: HostPlacement,
    word: Width,
    workers: Workers,
    budget: Arc<Budget>,
    device: Box<dyn Device>,
}

/// A table in host memory.
struct Table {
    keys: HostColumn,
    payload: Option<HostColumn>,
    rows: u64,
    /// The memory of pageable columns.
    _memory: Vec<Box<dyn Any + Send + Sync>>,
}

impl Hosted {
    /// Copies two tables to memory of the given placement, build side first.
    pub fn load(
        gpu: &Gpu,
        gpu_memory: Option<u64>,
        placement: HostPlacement,
        threads: usize,
        tables: [&[RecordBatch]; 2],
    ) -> Result<Hosted> {
        Hosted::on(Box::new(CudaDevice::new(gpu, gpu_memory)?), placement, threads, tables)
    }

    /// The same with a simulated device. The seed determines the order in which its work runs.
    pub fn simulate(
        seed: u64,
        gpu_memory: u64,
        placement: HostPlacement,
        tables: [&[RecordBatch]; 2],
    ) -> Result<Hosted> {
        let settings = Settings { memory: gpu_memory, shape: TINY, seed, ..Settings::default() };
        Hosted::on(Box::new(Simulated::new(settings)), placement, 2, tables)
    }

    fn on(
        device: Box<dyn Device>,
        placement: HostPlacement,
        threads: usize,
        [build, probe]: [&[RecordBatch]; 2],
    ) -> Result<Hosted> {
        let narrow = |batches: &[RecordBatch]| {
            let widths = batches.iter().flat_map(|b| b.columns()).map(width);
            widths.collect::<Result<Vec<_>>>().map(|widths| widths.iter().all(|&w| w == 4))
        };
        let word = if narrow(build)? && narrow(probe)? { Width::W32 } else { Width::W64 };
        let workers = Workers::new(threads, Arc::default());
        let budget = Budget::new(None);
        let table = |batches: &[RecordBatch]| {
            let place = Place { device: &*device, placement, word, workers: &workers };
            place.table(batches, &budget)
        };
        let tables = [table(build)?, table(probe)?];
        Ok(Hosted { tables, placement, word, workers, budget, device })
    }

    /// Joins the tables once. The planner chooses the algorithm if none is given. With `check`, the rows that
    /// come back are summed, which takes extra time.
    pub fn run(
        &self,
        algorithm: Option<Algorithm>,
        gpu_options: GpuOptions,
        yields: Yield,
        check: bool,
    ) -> Result<Ran> {
        check_partitioner(algorithm, gpu_options.partitioner)?;
        let [build, probe] = &self.tables;
        let carry = matches!(yields, Yield::Aggregate | Yield::Materialise);
        let (build_side, probe_side) = (build.side(carry)?, probe.side(carry)?);
        let flavour = match yields {
            Yield::Count | Yield::Aggregate => Flavour::Aggregate,
            Yield::Pairs | Yield::Materialise => Flavour::Pairs,
        };
        let wanted = Wanted {
            flavour,
            keys: yields == Yield::Materialise,
            signed: true,
            flag_build: false,
            flag_probe: false,
            build_flags: None,
            probe_flags: None,
            expected_rows: probe.rows,
        };
        let escalation = algorithm.is_none().then_some(Algorithm::MultiPass);
        let algorithm = match algorithm {
            Some(asked) => asked,
            None if flavour == Flavour::Aggregate => self.planned(carry, Yields::Count),
            None => self.planned(carry, Yields::Pairs),
        };
        let started = Instant::now();
        let session = Session::within(&*self.device, self.word, &Mixers::new(1, 2), &self.budget)?;
        let crossing = self.crossing(&session, gpu_options.transfer);
        let columns = if wanted.keys { 3 } else { 2 };
        let mut back = Back {
            drain: Drain::new(),
            check,
            narrow: self.word == Width::W32,
            sums: vec![0; columns],
        };
        let how = FromHost { algorithm, gpu_options, escalation, part_rows: None };
        let HostJoinResult { found, escalated } =
            join_from_host(&crossing, &how, (&build_side, &probe_side.into()), &wanted, &mut back)?;
        back.finish(&session)?;
        session.device.synchronize(session.compute)?;
        let seconds = started.elapsed().as_secs_f64();
        let stages = session.times()?;
        let crossed = session.crossed();
        let sums = match yields {
            Yield::Aggregate => vec![found.build_sum, found.probe_sum],
            Yield::Materialise if check => back.sums[1..].to_vec(),
            _ => Vec::new(),
        };
        let key_sum = if wanted.keys && check { back.sums[0] } else { 0 };
        let peak_memory = self.device.memory().peak;
        let rows = found.rows;
        let algorithm = Some(escalated.map_or(algorithm, |escalated| escalated.to));
        Ok(Ran { algorithm, rows, sums, key_sum, seconds, stages, peak_memory, crossed })
    }

    /// Returns the algorithm that the planner chooses.
    fn planned(&self, carry: bool, yields: Yields) -> Algorithm {
        let [build, probe] = &self.tables;
        let word_bytes = self.word.bytes();
        let row_bytes = if carry { 2 * word_bytes } else { word_bytes };
        let known = |table: &Table| {
            let bytes = Some(table.rows * row_bytes);
            Statistics { rows: Some(table.rows), bytes, ..Statistics::default() }
        };
        let memory = match self.placement {
            HostPlacement::Pinned => HostMemory::Pinned,
            HostPlacement::Pageable => HostMemory::Pageable,
        };
        let budget = self.device.memory().budget;
        let name = self.device.name().to_string();
        choose(Request {
            asked: None,
            partitioner: None,
            join_type: JoinType::Inner,
            build_side: None,
            build: known(build),
            probe: known(probe),
            threads: self.workers.threads(),
            limit: None,
            key: String::new(),
            facts: Facts::of_columns(self.word, yields, &Machine::detect()),
            device: Some(OnDevice { name, budget, asked: true, row_bytes, memory }),
        })
        .algorithm
    }

    /// Transfers the keys of the probe side to the GPU once, where a kernel reads them. Returns the seconds,
    /// and the bytes of the keys.
    pub fn transfer(&self, transfer: Transfer) -> Result<(f64, u64)> {
        let [_, probe] = &self.tables;
        let side = probe.side(false)?;
        let session = Session::within(&*self.device, self.word, &Mixers::new(1, 2), &self.budget)?;
        let crossing = self.crossing(&session, transfer);
        let started = Instant::now();
        crate::transfer::survey(&crossing, &side)?;
        session.device.synchronize(session.compute)?;
        Ok((started.elapsed().as_secs_f64(), probe.rows * self.word.bytes()))
    }

    /// Returns the transfer context of a session.
    fn crossing<'a>(&'a self, session: &'a Session<'a>, transfer: Transfer) -> TransferContext<'a> {
        TransferContext { session, workers: &self.workers, transfer, most_rows: None }
    }
}

impl Table {
    /// Returns the table's keys, and its payload if `carry` is set.
    fn side(&self, carry: bool) -> Result<HostSide> {
        let values = match (carry, &self.payload) {
            (false, _) => None,
            (true, Some(payload)) => Some(payload.clone()),
            (true, None) => {
                let what = "sums and rows need a payload column a table";
                return Err(Error::Setting(format!("{what}; give --payload-columns 1")));
            }
        };
        Ok(HostSide { keys: self.keys.clone(), values, rows: self.rows })
    }
}

/// Where columns are copied to.
struct Place<'a> {
    device: &'a dyn Device,
    placement: HostPlacement,
    word: Width,
    workers: &'a Workers,
}

impl Place<'_> {
    fn table(&self, batches: &[RecordBatch], budget: &Arc<Budget>) -> Result<Table> {
        let rows: u64 = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        let columns = batches.first().map_or(0, RecordBatch::num_columns);
        if !(1..=2).contains(&columns) {
            let what = "tables in host memory are joined by a key and at most one payload column";
            return Err(Error::Setting(format!("{what}; give --payload-columns 0 or 1")));
        }
        let mut memory: Vec<Box<dyn Any + Send + Sync>> = Vec::new();
        let mut placed = Vec::new();
        for column in 0..columns {
            let parts: Vec<&ArrayRef> = batches.iter().map(|batch| batch.column(column)).collect();
            placed.push(self.column(&parts, rows, budget, &mut memory)?);
        }
        let payload = if columns == 2 { placed.pop() } else { None };
        let Some(keys) = placed.pop() else {
            return Err(Error::Worker("a table lost its key".to_string()));
        };
        Ok(Table { keys, payload, rows, _memory: memory })
    }

    /// Copies a column, widened to words.
    fn column(
        &self,
        parts: &[&ArrayRef],
        rows: u64,
        budget: &Arc<Budget>,
        memory: &mut Vec<Box<dyn Any + Send + Sync>>,
    ) -> Result<HostColumn> {
        let size = self.word.bytes() as usize;
        let bytes = rows as usize * size;
        match self.placement {
            HostPlacement::Pinned => {
                let pinned = self.device.pinned(bytes.max(1), "a column")?;
                // SAFETY: nobody else has this memory yet.
                self.copy(parts, unsafe { &mut pinned.bytes_mut()[..bytes] })?;
                Ok(HostColumn::pinned(&pinned, 0, bytes as u64))
            }
            HostPlacement::Pageable => {
                // A buffer of `u64`, for the alignment of words.
                let mut buffer = Buffer::<u64>::uninit(bytes.div_ceil(8), budget, "a column")?;
                let start = buffer.as_mut_ptr().cast::<u8>();
                // SAFETY: the buffer has at least `bytes` bytes, and nobody else has it yet.
                self.copy(parts, unsafe { std::slice::from_raw_parts_mut(start, bytes) })?;
                let view = HostView::of(&buffer).part(0, bytes as u64);
                memory.push(Box::new(buffer));
                // SAFETY: the table keeps the buffer, and the buffer's memory does not move.
                Ok(unsafe { HostColumn::pageable(view) })
            }
        }
    }

    /// Copies values on all workers, and extends their sign if they get wider.
    fn copy(&self, parts: &[&ArrayRef], to: &mut [u8]) -> Result<()> {
        let size = self.word.bytes() as usize;
        let mut starts = vec![0];
        for part in parts {
            starts.push(starts[starts.len() - 1] + part.len() * size);
        }
        let out = Shared::of(to);
        let threads = self.workers.threads();
        self.workers.run(|worker| {
            for part in share(parts.len(), threads, worker) {
                // SAFETY: parts do not overlap.
                let to = unsafe { out.range(starts[part]..starts[part + 1]) };
                let (from, width) = bytes_of(parts[part]);
                if width as usize == size {
                    to.copy_from_slice(from);
                    continue;
                }
                for (to, from) in to.chunks_exact_mut(8).zip(words::<4>(from)) {
                    to.copy_from_slice(&i64::from(from as u32 as i32).to_le_bytes());
                }
            }
            Ok(())
        })
    }
}

/// Receives rows on the host.
struct Back {
    drain: Drain<()>,
    check: bool,
    narrow: bool,
    /// The sum of each column, modulo 2^64.
    sums: Vec<u64>,
}

/// Adds the values of columns to the sums.
fn add(sums: &mut [u64], columns: &[&[u8]], narrow: bool) {
    for (sum, column) in sums.iter_mut().zip(columns) {
        let of_column = match narrow {
            true => words::<4>(column).fold(0, |s: u64, w| s.wrapping_add(w as u32 as i32 as u64)),
            false => words::<8>(column).fold(0, u64::wrapping_add),
        };
        *sum = sum.wrapping_add(of_column);
    }
}

impl Back {
    fn finish(&mut self, session: &Session<'_>) -> Result<()> {
        let Back { drain, check, narrow, sums } = self;
        drain.take_arrived(session, &mut |arrived| {
            if *check {
                add(sums, arrived.columns, *narrow);
            }
            Ok(())
        })
    }
}

impl Receiver for Back {
    fn block(&mut self, session: &Session<'_>, block: Block) -> Result<Option<Event>> {
        let Back { drain, check, narrow, sums } = self;
        let columns = [block.keys, block.build, block.probe];
        let bits = if *narrow { 32 } else { 64 };
        let columns = columns[3 - sums.len()..].iter().map(|&view| BlockColumn { view, bits });
        let columns: Vec<BlockColumn> = columns.collect();
        drain.send(session, &columns, (block.rows, ()), &mut |arrived| {
            if *check {
                add(sums, arrived.columns, *narrow);
            }
            Ok(())
        })
    }

    fn meanwhile(&mut self, session: &Session<'_>) -> Result<()> {
        self.finish(session)
    }
}

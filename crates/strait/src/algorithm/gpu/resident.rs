//! Joins columns in GPU memory and leaves the results there. `bench join --placement gpu` measures these
//! joins.
//!
//! The first column of a table is the key, an integer. The other columns are payload, also integers. A single
//! payload column is inlined. With several payload columns, tuples hold the row number, and the payload is
//! gathered afterwards.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Int32Type, Int64Type};

use super::sort_merge::varying;
use super::{Block, Method, Receiver, Session, Side, Wanted, join};
use crate::device::cuda::{CudaDevice, Gpu};
use crate::device::simulated::{Settings, Simulated, TINY};
use crate::device::{Device, Event, Flavour, Memory, Pinned, Stage, View, abi};
use crate::error::{Error, Result};
use crate::gpu_options::Partitioner;
use crate::options::Algorithm;
use crate::partition::gpu::{Digits, ordered_columns};
use crate::plan::{BeforeSurvey, InGpuMemory};
pub use crate::stopwatch::Timed;
use crate::word::KeyWord;
use crate::word::Width;

/// The result that a measured join leaves in GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Yield {
    /// The number of rows.
    Count,
    /// The number of rows, and the sum of each side's payload column.
    Aggregate,
    /// The row numbers of all matches.
    Pairs,
    /// The key and all payload columns of every output row.
    Materialise,
}

/// The measurements of one join.
#[derive(Debug, Clone, Default)]
pub struct Ran {
    /// The algorithm. `None` if the pairs were sorted, and nothing was joined.
    pub algorithm: Option<Algorithm>,
    /// The number of output rows.
    pub rows: u64,
    /// The sum of each payload column over the output rows, build side first, modulo 2^64. Set by
    /// [`Yield::Aggregate`], and by [`Yield::Materialise`] if checked.
    pub sums: Vec<u64>,
    /// The sum of the keys over the output rows. Set by [`Yield::Materialise`] if checked.
    pub key_sum: u64,
    /// The time from inputs in GPU memory to outputs in GPU memory.
    pub seconds: f64,
    /// The time of each stage.
    pub stages: Vec<Timed>,
    /// The peak GPU memory, including inputs, in bytes.
    pub peak_memory: u64,
    /// Bytes that crossed the link: to the GPU, and back.
    pub crossed: [u64; 2],
}

/// Two tables in GPU memory.
pub struct Resident {
    tables: [Table; 2],
    word: Width,
    signed: bool,
    device: Box<dyn Device>,
}

/// A table in GPU memory. It must be dropped before its device.
struct Table {
    keys: Memory,
    payload: Vec<(Memory, u32)>,
    rows: u64,
}

impl Resident {
    /// Copies two tables to a GPU, build side first.
    pub fn load(
        gpu: &Gpu,
        gpu_memory: Option<u64>,
        build: &[RecordBatch],
        probe: &[RecordBatch],
    ) -> Result<Resident> {
        Resident::on(Box::new(CudaDevice::new(gpu, gpu_memory)?), build, probe)
    }

    /// Copies two tables to a simulated device. The seed determines the order in which its work runs.
    pub fn simulate(seed: u64, build: &[RecordBatch], probe: &[RecordBatch]) -> Result<Resident> {
        let settings = Settings { memory: 16 << 20, shape: TINY, seed, coherent: true };
        Resident::on(Box::new(Simulated::new(settings)), build, probe)
    }

    fn on(
        device: Box<dyn Device>,
        build: &[RecordBatch],
        probe: &[RecordBatch],
    ) -> Result<Resident> {
        let narrow = |batches: &[RecordBatch]| {
            let widths = batches.iter().flat_map(|b| b.columns()).map(width);
            widths.collect::<Result<Vec<_>>>().map(|widths| widths.iter().all(|&w| w == 4))
        };
        let word = if narrow(build)? && narrow(probe)? { Width::W32 } else { Width::W64 };
        let tables = [table(&*device, word, build)?, table(&*device, word, probe)?];
        Ok(Resident { tables, word, signed: true, device })
    }

    /// Measures the bytes per second that the GPU reads sequentially. Reports compare stages with this rate.
    pub fn read_rate(&self) -> Result<f64> {
        let [build, probe] = &self.tables;
        let longer = if build.rows > probe.rows { build } else { probe };
        let session = Session::new(&*self.device, self.word)?;
        let found = session.zeroed(4 * 8, "the range of the keys")?;
        let survey =
            abi::Survey { keys: longer.keys.address(), rows: longer.rows, found: found.address };
        let mut best = 0.0f64;
        for _ in 0..5 {
            session.mark("before")?;
            session.run(Stage::Survey(survey))?;
            session.mark("reading")?;
            let times = session.times()?;
            let last = times.iter().find(|time| time.stage == "reading");
            best = last.map_or(best, |time| best.max(time.bytes as f64 / time.seconds.max(1e-12)));
        }
        Ok(best)
    }

    /// Returns whether words in GPU memory have 4 bytes; otherwise they have 8.
    pub fn narrow(&self) -> bool {
        self.word == Width::W32
    }

    /// Joins the tables once. With `check`, the output rows are copied to the host and summed after the
    /// clock has stopped.
    pub fn run(
        &self,
        algorithm: Option<Algorithm>,
        partitioner: Partitioner,
        yields: Yield,
        check: bool,
    ) -> Result<Ran> {
        let [build, probe] = &self.tables;
        let columns = [build.payload.len(), probe.payload.len()];
        // One payload column per side is inlined; several columns are gathered by row number.
        let carry = columns == [1, 1] && matches!(yields, Yield::Aggregate | Yield::Materialise);
        if yields == Yield::Aggregate && !carry {
            let what = "sums in GPU memory are of one payload column a table";
            return Err(Error::Setting(format!("{what}; give --payload-columns 1")));
        }
        let side = |table: &Table| Side {
            keys: table.keys.view,
            values: if carry { Some(table.payload[0].0.view) } else { None },
            rows: table.rows,
            ..Side::default()
        };
        let flavour = match yields {
            Yield::Count | Yield::Aggregate => Flavour::Aggregate,
            Yield::Pairs | Yield::Materialise => Flavour::Pairs,
        };
        let wanted = Wanted {
            flavour,
            keys: yields == Yield::Materialise,
            signed: self.signed,
            flag_build: false,
            flag_probe: false,
            build_flags: None,
            probe_flags: None,
            expected_rows: probe.rows,
        };
        let started = Instant::now();
        let session = Session::new(&*self.device, self.word)?;
        let gathering = yields == Yield::Materialise && !carry;
        let mut kept = Kept {
            tables: &self.tables,
            check,
            gathering,
            sums: Vec::new(),
            key_sum: 0,
            clock: 0.0,
        };
        let chosen = match algorithm {
            Some(algorithm) => BeforeSurvey { algorithm, survey: false },
            None => {
                let l2 = self.device.shape(self.word).l2;
                InGpuMemory { build_rows: build.rows, word: self.word, l2 }.before_survey()
            }
        };
        let BeforeSurvey { algorithm, survey } = chosen;
        let method = Method { algorithm, survey, partitioner };
        let joined = join(&session, method, [&side(build), &side(probe)], &wanted, &mut kept)?;
        let found = joined.found;
        session.device.synchronize(session.compute)?;
        let seconds = started.elapsed().as_secs_f64() - kept.clock;
        let stages = session.times()?;
        let sums = match yields {
            Yield::Aggregate => vec![found.build_sum, found.probe_sum],
            _ => kept.sums.clone(),
        };
        let (rows, key_sum) = (found.rows, kept.key_sum);
        let peak_memory = self.device.memory().peak;
        let algorithm = Some(joined.algorithm);
        Ok(Ran { algorithm, rows, sums, key_sum, seconds, stages, peak_memory, crossed: [0; 2] })
    }
}

/// Pairs of 64-bit keys and values in GPU memory, to be sorted by key.
pub struct Sorting {
    keys: Memory,
    values: Memory,
    rows: u64,
    device: Box<dyn Device>,
}

impl Sorting {
    /// Copies pairs to a GPU.
    pub fn load(gpu: &Gpu, gpu_memory: Option<u64>, pairs: &RecordBatch) -> Result<Sorting> {
        Sorting::on(Box::new(CudaDevice::new(gpu, gpu_memory)?), pairs)
    }

    /// Copies pairs to a simulated device.
    pub fn simulate(seed: u64, pairs: &RecordBatch) -> Result<Sorting> {
        let settings = Settings { memory: 16 << 20, shape: TINY, seed, coherent: true };
        Sorting::on(Box::new(Simulated::new(settings)), pairs)
    }

    fn on(device: Box<dyn Device>, pairs: &RecordBatch) -> Result<Sorting> {
        let rows = pairs.num_rows() as u64;
        let column = |at: usize| match width(pairs.column(at))? {
            8 => send(&*device, &[pairs.column(at)], rows, 8),
            _ => Err(Error::Setting("only columns of 64-bit integers are sorted".to_string())),
        };
        let (keys, values) = (column(0)?, column(1)?);
        Ok(Sorting { keys, values, rows, device })
    }

    /// Sorts the pairs once, as unsigned numbers, from columns into columns, by all bits in which the keys
    /// differ. With `check`, returns an error unless the output has the same pairs as the input, in order.
    pub fn run(&self, check: bool) -> Result<Ran> {
        let started = Instant::now();
        let session = Session::new(&*self.device, Width::W64)?;
        let (keys, values) = (self.keys.view, Some(self.values.view));
        let side = Side { keys, values, rows: self.rows, ..Side::default() };
        let mut columns = [View::default(); 2];
        if self.rows > 0 {
            let digits = Digits::varying(varying(&session, &[&side])?);
            session.mark("survey")?;
            columns = ordered_columns(&session, &side, &digits)?;
        }
        session.mark("sort")?;
        session.device.synchronize(session.compute)?;
        let seconds = started.elapsed().as_secs_f64();
        let stages = session.times()?;
        if check {
            self.check(&session, columns)?;
        }
        let peak_memory = self.device.memory().peak;
        Ok(Ran { rows: self.rows, seconds, stages, peak_memory, ..Ran::default() })
    }

    /// Checks the order, and compares sums over a mix of key and value to see whether the pairs are the same.
    fn check(&self, session: &Session<'_>, [keys, values]: [View; 2]) -> Result<()> {
        let fetched = |view: View| fetch(session, view, self.rows);
        let mixer = session.mixer();
        let sum = |keys: &[u64], values: &[u64]| {
            let mixed = keys.iter().zip(values).map(|(k, v)| (k ^ v.mix(mixer)).mix(mixer));
            mixed.fold(0, u64::wrapping_add)
        };
        let before = sum(&fetched(self.keys.view)?, &fetched(self.values.view)?);
        let (keys, values) = (fetched(keys)?, fetched(values)?);
        if !keys.is_sorted() || sum(&keys, &values) != before {
            return Err(Error::Worker("wrong answer: the pairs are not sorted".to_string()));
        }
        Ok(())
    }
}

/// Copies a column of 64-bit words to the host.
fn fetch(session: &Session<'_>, column: View, rows: u64) -> Result<Vec<u64>> {
    let mut all = Vec::with_capacity(rows as usize);
    let bytes = rows * 8;
    let pinned = session.device.pinned(STAGE.min(bytes as usize).max(1), "checking")?;
    for first in (0..bytes).step_by(STAGE) {
        let part = column.part(first, (STAGE as u64).min(bytes - first));
        session.device.copy_out(session.copies, part, &pinned, 0)?;
        session.device.synchronize(session.copies)?;
        // SAFETY: the copy is done, and the next one starts after the words were read.
        all.extend(words::<8>(unsafe { &pinned.bytes()[..part.bytes as usize] }));
    }
    Ok(all)
}

/// Gathers the payload of rows, and sums it if `check` is set.
struct Kept<'a> {
    tables: &'a [Table; 2],
    check: bool,
    gathering: bool,
    sums: Vec<u64>,
    key_sum: u64,
    /// The seconds spent on checking.
    clock: f64,
}

impl Receiver for Kept<'_> {
    fn block(&mut self, session: &Session<'_>, block: Block) -> Result<Option<Event>> {
        let mut columns: Vec<(View, u32)> = Vec::new();
        if self.gathering {
            for (table, rows) in self.tables.iter().zip([block.build, block.probe]) {
                for (column, width) in &table.payload {
                    let bytes = block.rows * u64::from(*width);
                    let target = session.allocate(bytes, "a gathered column")?;
                    let gather = abi::Gather {
                        rows: rows.address,
                        source: column.address(),
                        target: target.address,
                        count: block.rows,
                        width: *width,
                        unused: 0,
                    };
                    session.run(Stage::Gather(gather))?;
                    columns.push((target, *width));
                }
            }
            session.mark("gather")?;
        } else {
            let width = session.word.bytes() as u32;
            columns.extend([(block.build, width), (block.probe, width)]);
        }
        if self.check {
            session.device.synchronize(session.compute)?;
            let started = Instant::now();
            self.sums.resize(columns.len(), 0);
            for (sum, &(view, width)) in self.sums.iter_mut().zip(&columns) {
                *sum = sum.wrapping_add(total(session, view, block.rows, width)?);
            }
            if block.keys.bytes > 0 {
                let width = session.word.bytes() as u32;
                let of_block = total(session, block.keys, block.rows, width)?;
                self.key_sum = self.key_sum.wrapping_add(of_block);
            }
            self.clock += started.elapsed().as_secs_f64();
        }
        if self.gathering {
            let views: Vec<View> = columns.iter().map(|column| column.0).collect();
            session.release(&views)?;
        }
        Ok(None)
    }
}

/// Bytes per copy to or from the device.
const STAGE: usize = 64 << 20;

/// Returns the sum of a column of signed numbers in device memory, modulo 2^64.
fn total(session: &Session<'_>, column: View, rows: u64, width: u32) -> Result<u64> {
    let bytes = rows * u64::from(width);
    let pinned = session.device.pinned(STAGE.min(bytes as usize).max(1), "checking")?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut sum = 0u64;
    for first in (0..bytes).step_by(STAGE) {
        let part = column.part(first, (STAGE as u64).min(bytes - first));
        session.device.copy_out(session.copies, part, &pinned, 0)?;
        session.device.synchronize(session.copies)?;
        // SAFETY: the copy is done, and the next one starts after `some` was read.
        let some = unsafe { &pinned.bytes()[..part.bytes as usize] };
        let share = some.len().div_ceil(threads).next_multiple_of(8);
        let of_share = |some: &[u8]| match width {
            4 => words::<4>(some).fold(0, |sum: u64, w| sum.wrapping_add(w as u32 as i32 as u64)),
            _ => words::<8>(some).fold(0, u64::wrapping_add),
        };
        sum = std::thread::scope(|scope| {
            let workers: Vec<_> =
                some.chunks(share).map(|some| scope.spawn(move || of_share(some))).collect();
            workers.into_iter().try_fold(sum, |sum, worker| {
                let of_worker = worker.join().map_err(crate::algorithm::poisoned)?;
                Ok::<u64, Error>(sum.wrapping_add(of_worker))
            })
        })?;
    }
    Ok(sum)
}

pub(super) fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(N).map(|chunk| {
        let mut all = [0; 8];
        all[..N].copy_from_slice(chunk);
        u64::from_le_bytes(all)
    })
}

/// Returns the bytes per value of a column.
pub(super) fn width(column: &ArrayRef) -> Result<u32> {
    match column.data_type() {
        _ if column.null_count() > 0 => {
            Err(Error::Setting("columns in GPU memory have no nulls".to_string()))
        }
        DataType::Int32 => Ok(4),
        DataType::Int64 => Ok(8),
        other => Err(Error::Setting(format!(
            "columns of type {other} are not measured in GPU memory; only signed integers of 4 or 8 bytes"
        ))),
    }
}

/// Copies a table: keys as wide as the words, payload too where it travels with the key.
fn table(device: &dyn Device, word: Width, batches: &[RecordBatch]) -> Result<Table> {
    let rows: u64 = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    let columns = batches.first().map_or(0, RecordBatch::num_columns);
    if columns == 0 {
        return Err(Error::Setting("a table without columns is not joined".to_string()));
    }
    let mut copied = Vec::new();
    for column in 0..columns {
        let parts: Vec<&ArrayRef> = batches.iter().map(|batch| batch.column(column)).collect();
        let wide = word.bytes() as u32;
        // The key and a single payload column become tuples.
        let to = if column == 0 || columns == 2 { wide } else { width(parts[0])? };
        copied.push((send(device, &parts, rows, to)?, to));
    }
    let (keys, _) = copied.remove(0);
    Ok(Table { keys, payload: copied, rows })
}

/// Copies a column, widened to values of `width` bytes.
fn send(device: &dyn Device, parts: &[&ArrayRef], rows: u64, width: u32) -> Result<Memory> {
    let memory = device.allocate((rows * u64::from(width)).max(1), "a column")?;
    let stream = device.stream(0)?;
    let room = STAGE.min((rows * u64::from(width)) as usize).max(8);
    let pinned = device.pinned(room, "staging")?;
    let (mut at, mut filled) = (0u64, 0usize);
    let flush = |pinned: &Arc<Pinned>, at: &mut u64, filled: &mut usize| -> Result<()> {
        if *filled > 0 {
            device.copy_in(stream, pinned, 0, memory.view.part(*at, *filled as u64))?;
            device.synchronize(stream)?;
        }
        *at += *filled as u64;
        *filled = 0;
        Ok(())
    };
    for part in parts {
        let (bytes, from) = bytes_of(part);
        let (from, to) = (from as usize, width as usize);
        let mut row = 0;
        while row * from < bytes.len() {
            if filled + to > room {
                flush(&pinned, &mut at, &mut filled)?;
            }
            let rows = ((room - filled) / to).min(bytes.len() / from - row);
            // SAFETY: no copy from the buffer is in progress, because each one is waited for.
            let target = unsafe { &mut pinned.bytes_mut()[filled..filled + rows * to] };
            let source = &bytes[row * from..(row + rows) * from];
            if from == to {
                target.copy_from_slice(source);
            } else {
                for (target, source) in target.chunks_exact_mut(to).zip(source.chunks_exact(from)) {
                    let sign = if source[from - 1] >> 7 == 1 { 0xff } else { 0 };
                    target.fill(sign);
                    target[..from].copy_from_slice(source);
                }
            }
            (row, filled) = (row + rows, filled + rows * to);
        }
    }
    flush(&pinned, &mut at, &mut filled)?;
    Ok(memory)
}

/// Returns a column's values as bytes, and the bytes per value.
pub(super) fn bytes_of(column: &ArrayRef) -> (&[u8], u32) {
    match column.as_primitive_opt::<Int32Type>() {
        Some(narrow) => (narrow.values().inner().as_slice(), 4),
        None => {
            let wide = column.as_primitive_opt::<Int64Type>();
            (wide.map_or(&[], |wide| wide.values().inner().as_slice()), 8)
        }
    }
}

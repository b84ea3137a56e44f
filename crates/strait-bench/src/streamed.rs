//! Measures a join whose probe side is generated while it is read, as a reader of unknown length delivers it.
//!
//! The rows of the probe side and of the output are dropped as soon as possible. So the memory of the process
//! shows what the join itself holds.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, ensure};
use arrow::array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow::error::ArrowError;
use strait::{Join, Report};

use crate::machine::{forget_peak, resident};
use crate::measure::Task;
use crate::workload::{Answer, Random, Shape, Side, Table, Tables, Workload, answer};

/// Rows of the small join that opens the GPU and compiles its kernels, before memory is measured.
const SMALL: u64 = 1 << 10;

/// The measurements of a streamed join.
pub struct Streamed {
    /// The time, including the time to generate the probe side.
    pub seconds: f64,
    /// The bytes of the build side.
    pub build_bytes: u64,
    /// The memory of the process with the build side, before the join.
    pub before: u64,
    /// The peak memory of the process during the join.
    pub peak: u64,
    /// The report of the join.
    pub report: Report,
}

/// Joins once, with batches of `batch` rows on the probe side.
pub fn measure(shape: Shape, batch: usize, task: &Task) -> anyhow::Result<Streamed> {
    open(&shape, task)?;
    let workload = Arc::new(Workload::new(shape.clone())?);
    let only_build = Tables::generate(Shape { probe: 0, ..shape }, batch, task.threads)?;
    let build: Table = only_build.build;
    let expected = Arc::new(Mutex::new(Answer::default()));
    let probe = reader(Arc::clone(&workload), batch, Arc::clone(&expected));
    let before = resident().0;
    forget_peak();
    let started = Instant::now();
    let join = task.join().build_side(strait::Side::Left);
    let (rows, report) = consume(&join, build.reader(), probe)?;
    let seconds = started.elapsed().as_secs_f64();
    let expected = expected.lock().unwrap_or_else(PoisonError::into_inner).rows;
    ensure!(rows == expected, "wrong answer: {rows} rows, where there must be {expected}");
    let peak = resident().1;
    Ok(Streamed { seconds, build_bytes: build.bytes(), before, peak, report })
}

/// Runs a small join on the same processor.
fn open(shape: &Shape, task: &Task) -> anyhow::Result<()> {
    let small = Shape { build: SMALL, probe: SMALL, ..shape.clone() };
    let tables = Tables::generate(small, SMALL as usize, task.threads)?;
    consume(&task.join(), tables.build.reader(), tables.probe.reader())?;
    Ok(())
}

/// Counts the rows of a join, and drops them batch by batch.
fn consume(
    join: &Join,
    build: impl RecordBatchReader + Send + 'static,
    probe: impl RecordBatchReader + Send + 'static,
) -> anyhow::Result<(u64, Report)> {
    let mut joined = join.run(build, probe)?;
    let mut rows = 0;
    for batch in joined.by_ref() {
        rows += batch?.num_rows() as u64;
    }
    Ok((rows, joined.report().context("the join ended without a report")?))
}

/// Returns a reader that generates the probe side, and adds up the expected answer.
fn reader(
    workload: Arc<Workload>,
    batch: usize,
    expected: Arc<Mutex<Answer>>,
) -> impl RecordBatchReader + Send + 'static {
    let schema = workload.schema(Side::Probe);
    let mut part = 0;
    let mut left: Option<(Range<u64>, Random)> = None;
    let batches = std::iter::from_fn(move || {
        loop {
            if let Some((rows, random)) = &mut left
                && !rows.is_empty()
            {
                let some = rows.start..rows.end.min(rows.start + batch as u64);
                rows.start = some.end;
                return Some(made(&workload, some, random, &expected));
            }
            if part == workload.parts(Side::Probe) {
                return None;
            }
            left = Some((workload.part(Side::Probe, part), workload.random(part)));
            part += 1;
        }
    });
    RecordBatchIterator::new(batches, schema)
}

fn made(
    workload: &Workload,
    rows: Range<u64>,
    random: &mut Random,
    expected: &Mutex<Answer>,
) -> Result<RecordBatch, ArrowError> {
    let first = rows.start;
    let rows = workload.batch(Side::Probe, rows, random);
    let rows = rows.map_err(|error| ArrowError::ComputeError(error.to_string()))?;
    let more = answer(workload, &rows.numbers, first);
    expected.lock().unwrap_or_else(PoisonError::into_inner).add(&more);
    Ok(rows.batch)
}

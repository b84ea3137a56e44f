//! The report of a join: its plan, and its rows, times and bytes.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::algorithm::spill::SpillTotals;
use crate::error::bytes;
use crate::options::Algorithm;
use crate::plan::Plan;
use crate::stopwatch::{GpuWork, StageTime};

/// The report of a join. [`JoinReader::report`](crate::JoinReader::report) returns it after the last batch.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use strait::Join;
///
/// let (_, report) = Join::inner().on("id").count(ids(vec![1, 2]), ids(vec![2]))?;
/// for stage in &report.stages {
///     println!("{}: {:?}", stage.name, stage.time);
/// }
/// println!("{report}");
/// assert_eq!((report.left_rows, report.output_rows), (2, 1));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// The plan that the join carried out, and the reason for it.
    pub plan: Plan,
    /// The wall time of each stage, in the order in which the stages started.
    pub stages: Vec<StageTime>,
    /// The time from the start of the join to its last batch.
    pub elapsed: Duration,
    /// The number of rows read from the left table.
    pub left_rows: u64,
    /// The number of rows read from the right table.
    pub right_rows: u64,
    /// The number of rows that a [`Source`](crate::Source) left out because they cannot match. They are part of
    /// `left_rows` or `right_rows`.
    pub skipped_rows: u64,
    /// The number of output rows.
    pub output_rows: u64,
    /// The number of pairs with equal key words, before verification and filter.
    pub candidates: u64,
    /// The CPU time that all threads together spent on gathering the columns of the output. It is part of the
    /// stages that find matches.
    pub gathering: Duration,
    /// The most memory that was reserved at once, in bytes: input that is held, tables, and unfinished
    /// output. With a [shared budget](crate::Join::memory_budget), it includes the memory of other owners.
    pub peak_memory: u64,
    /// The rows, bytes and files that the join has written to disk.
    pub spilled: Spilled,
    /// The bytes that crossed the link between host memory and GPU memory.
    pub crossed: LinkTraffic,
    /// What was done on a GPU; `None` if the join ran on the CPU.
    pub gpu: Option<GpuWork>,
    /// The seed of the hash functions. Each join draws its own.
    pub seed: u64,
    /// The number of seeds that the join tried. It is more than one if many keys collided under the first
    /// seed.
    pub seeds_tried: u32,
}

/// The rows that a join has written to disk. All numbers are zero if it did not [spill](crate::Join::spill).
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use std::sync::Arc;
/// use strait::{Algorithm, Join, TempFolders};
///
/// let join = Join::inner().on("id").algorithm(Algorithm::Spill);
/// let join = join.spill(Arc::new(TempFolders::new(vec![])));
/// let (_, report) = join.count(ids(vec![1, 2]), ids(vec![2]))?;
/// assert_eq!((report.spilled.rows, report.spilled.levels), (3, 1));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Spilled {
    /// The bytes that were written, after [compression](crate::Join::spill_compression).
    pub bytes: u64,
    /// The bytes that would have been written without compression.
    pub uncompressed_bytes: u64,
    /// The rows that were written. A row that is partitioned on several levels counts once per level.
    pub rows: u64,
    /// The number of files.
    pub files: u64,
    /// The pairs of partitions that were joined from disk. For `sort-merge`: the keys with so many rows that these rows
    /// were joined by themselves.
    pub pairs: u64,
    /// How many of these pairs were joined in blocks: because partitioning them again would not help, or because the
    /// last level was reached.
    pub pairs_in_blocks: u64,
    /// The levels of partitioning: 1 if no partition had to be partitioned again. For `sort-merge`: 1 if no sorted runs
    /// had to be merged into longer ones.
    pub levels: u64,
    /// The key ranges that `sort-merge` read from sorted runs and joined in memory.
    pub ranges: u64,
    /// The rows of probe sides that were not written because no build row has their key. If the join type returns them,
    /// they were returned at once.
    pub unmatched_rows: u64,
}

impl From<&SpillTotals> for Spilled {
    fn from(totals: &SpillTotals) -> Self {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Spilled {
            bytes: read(&totals.bytes),
            uncompressed_bytes: read(&totals.uncompressed_bytes),
            rows: read(&totals.rows),
            files: read(&totals.files),
            pairs: read(&totals.pairs),
            pairs_in_blocks: read(&totals.pairs_in_blocks),
            levels: read(&totals.levels),
            ranges: read(&totals.ranges),
            unmatched_rows: read(&totals.unmatched),
        }
    }
}

/// The bytes that crossed the link between host memory and GPU memory during a join. Both numbers are zero if the
/// join ran on the CPU.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use strait::{Join, LinkTraffic, Processor};
///
/// let join = Join::inner().on("id").device(Processor::Cpu);
/// let (_, report) = join.count(ids(vec![1, 2]), ids(vec![2]))?;
/// assert_eq!(report.crossed, LinkTraffic::default());
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LinkTraffic {
    /// The bytes from host memory to GPU memory.
    pub to_gpu: u64,
    /// The bytes from GPU memory to host memory.
    pub from_gpu: u64,
}

impl From<[u64; 2]> for LinkTraffic {
    fn from([to_gpu, from_gpu]: [u64; 2]) -> Self {
        LinkTraffic { to_gpu, from_gpu }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.plan)?;
        writeln!(f, "what happened:")?;
        for StageTime { name, time, .. } in &self.stages {
            writeln!(f, "  {name:<22} {:>10.3} s", time.as_secs_f64())?;
        }
        let seconds = self.elapsed.as_secs_f64();
        writeln!(f, "  {:<22} {seconds:>10.3} s", "total")?;
        writeln!(f, "  {:<22} {:>12}", "left rows", self.left_rows)?;
        writeln!(f, "  {:<22} {:>12}", "right rows", self.right_rows)?;
        if self.skipped_rows > 0 {
            let left_out = self.skipped_rows;
            writeln!(f, "  {:<22} {left_out:>12} by their keys", "rows left out")?;
        }
        writeln!(f, "  {:<22} {:>12}", "candidate pairs", self.candidates)?;
        writeln!(f, "  {:<22} {:>12}", "output rows", self.output_rows)?;
        writeln!(f, "  {:<22} {:>12}", "peak memory", bytes(self.peak_memory))?;
        if self.spilled.levels > 0 {
            let Spilled { bytes: written, files, pairs, pairs_in_blocks, levels, ranges, .. } =
                self.spilled;
            let ranges = match self.plan.algorithm {
                Algorithm::SortMerge => format!("{ranges} key ranges, "),
                _ => String::new(),
            };
            let on = format!("in {files} files, {ranges}{pairs} pairs, {levels} levels");
            write!(f, "  {:<22} {:>12} {on}", "written to disk", bytes(written))?;
            if pairs_in_blocks > 0 {
                write!(f, ", {pairs_in_blocks} pairs in blocks")?;
            }
            match self.spilled.uncompressed_bytes {
                same if same == written => writeln!(f)?,
                more => writeln!(f, ", {} before compression", bytes(more))?,
            }
            if self.spilled.unmatched_rows > 0 {
                let rows = self.spilled.unmatched_rows;
                writeln!(f, "  {:<22} {rows:>12} without a match", "rows kept from disk")?;
            }
        }
        if self.crossed != LinkTraffic::default() {
            let LinkTraffic { to_gpu, from_gpu } = self.crossed;
            let (to, from) = (bytes(to_gpu), bytes(from_gpu));
            writeln!(f, "  {:<22} {to:>12} to the GPU, {from} back", "over the link")?;
        }
        if let Some(GpuWork { chunks_in_order, chunks_unordered, .. }) = &self.gpu
            && chunks_in_order + chunks_unordered > 0
        {
            let others = format!("in probe order, {chunks_unordered} in any order");
            writeln!(f, "  {:<22} {chunks_in_order:>12} {others}", "chunks")?;
        }
        write!(f, "  {:<22} {:>#18x}", "seed", self.seed)?;
        match self.seeds_tried {
            ..=1 => writeln!(f)?,
            tried => writeln!(f, ", and {} after it", tried - 1)?,
        }
        let rate = self.left_rows.saturating_add(self.right_rows) as f64 / seconds.max(1e-9) / 1e6;
        write!(f, "  {:<22} {rate:>12.1} M tuples/s", "throughput")
    }
}

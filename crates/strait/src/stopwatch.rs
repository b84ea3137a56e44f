//! Measures the times of a join's stages.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::gpu_options::Transfer;
use crate::schedule::lock;

/// The time and bytes of one stage of a join on a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// The name of the stage.
    pub stage: &'static str,
    /// The time by the device's clock, in seconds.
    pub seconds: f64,
    /// The bytes of tables and rows that the stage read and wrote. It does not include bytes that stay in
    /// caches, nor counts, partition bounds and tasks.
    pub bytes: u64,
}

/// The time that a join spent in one stage.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use std::time::Duration;
/// use strait::Join;
///
/// let (_, report) = Join::inner().on("id").count(ids(vec![1, 2]), ids(vec![2]))?;
/// let on_cpu: Duration = report.stages.iter().filter(|s| !s.on_gpu).map(|s| s.time).sum();
/// assert!(on_cpu > Duration::ZERO);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageTime {
    /// The name of the stage, such as `read build side`. Names may change between versions.
    pub name: &'static str,
    /// The time.
    pub time: Duration,
    /// Whether the GPU measured the time of this stage by its own clock. Such a stage ran inside other stages,
    /// so the times overlap.
    pub on_gpu: bool,
}

/// What a join did on a GPU, recorded where it was done. [`Plan::details`](crate::Plan::details) says what
/// was planned; this says what was done.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use strait::{Join, Processor};
///
/// let join = Join::inner().on("id").device(Processor::Cpu);
/// let (_, report) = join.count(ids(vec![1, 2]), ids(vec![2]))?;
/// assert_eq!(report.gpu, None);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuWork {
    /// How rows crossed to the GPU: the methods that were used, in the order of their first use. Partitions that
    /// return from host memory to the GPU cross by [`Transfer::PinnedCopy`].
    pub transfers: Vec<Transfer>,
    /// The number of parts of the build side that were joined: the parts of `multi-pass`, or the working sets of
    /// `cpu-partitioned` and `triton`. A working set without probe rows is not joined.
    pub parts: u64,
    /// The radix bits of each pass that partitioned the build side.
    pub radix_bits: Vec<u32>,
    /// The most rows of a chunk, or tuples, that crossed to the GPU together. If `multi-pass` was refused memory,
    /// only the chunks since then count.
    pub chunk_rows: u64,
    /// The bytes of a table that were in GPU memory, if the rest of the table could lie in host memory.
    pub table_in_gpu_memory: Option<u64>,
    /// The number of chunks of the probe side whose results came back in the order of the probe rows.
    pub chunks_in_order: u64,
    /// The number of chunks that were looked up in a table and whose results came back in any order.
    pub chunks_unordered: u64,
}

impl GpuWork {
    /// Records that rows crossed to the GPU.
    pub(crate) fn transferred(&mut self, method: Transfer) {
        if !self.transfers.contains(&method) {
            self.transfers.push(method);
        }
    }
}

/// Returns the CPU time of this thread; zero if the system does not measure it.
pub(crate) fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid. The call writes only to this local variable.
    match unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } {
        0 => Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32),
        _ => Duration::ZERO,
    }
}

/// Adds up the wall times of a join's stages.
pub(crate) struct Stopwatch {
    started: Instant,
    stages: Mutex<Vec<StageTime>>,
    crossed: Mutex<[u64; 2]>,
    gpu: Mutex<Option<GpuWork>>,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Stopwatch {
            started: Instant::now(),
            stages: Mutex::default(),
            crossed: Mutex::default(),
            gpu: Mutex::default(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Runs `work` and adds its wall time to the stage `name`.
    pub(crate) fn time<T>(&self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = work();
        let spent = begun.elapsed();
        let mut stages = lock(&self.stages);
        match stages.iter_mut().find(|stage| stage.name == name) {
            Some(stage) => stage.time += spent,
            None => stages.push(StageTime { name, time: spent, on_gpu: false }),
        }
        result
    }

    /// Adds the times of stages on a device, and the bytes that crossed the link in both directions. Records what was
    /// done; in a join that spills, this is the work of the last pair. The stages ran inside other stages, so the times
    /// overlap.
    pub(crate) fn add_device(&self, times: Vec<Timed>, crossed: [u64; 2], work: GpuWork) {
        for (sum, bytes) in lock(&self.crossed).iter_mut().zip(crossed) {
            *sum += bytes;
        }
        *lock(&self.gpu) = Some(work);
        let mut stages = lock(&self.stages);
        stages.extend(times.iter().map(|timed| {
            let time = Duration::from_secs_f64(timed.seconds.max(0.0));
            StageTime { name: timed.stage, time, on_gpu: true }
        }));
    }

    /// Returns the bytes that crossed the link to a device, and the bytes that came back.
    pub(crate) fn crossed(&self) -> [u64; 2] {
        *lock(&self.crossed)
    }

    /// Returns what was done on a device; `None` if the join ran on the CPU.
    pub(crate) fn gpu(&self) -> Option<GpuWork> {
        lock(&self.gpu).clone()
    }

    pub(crate) fn stages(&self) -> Vec<StageTime> {
        lock(&self.stages).clone()
    }
}

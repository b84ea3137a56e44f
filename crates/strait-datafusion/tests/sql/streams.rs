//! Inputs that wait, fail or panic where a test wants it, and a memory pool that a test can watch.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::Partitioning;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use tokio::sync::Semaphore;

/// One step of an input stream.
#[derive(Clone)]
pub(crate) enum Step {
    Batch(RecordBatch),
    /// Lets other tasks run.
    Yield,
    /// Waits until the gate opens. A gate without permits never opens.
    Wait(Arc<Semaphore>),
    Fail(Arc<dyn Fn() -> DataFusionError + Send + Sync>),
    Panic,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Batch(_) => "batch",
            Step::Yield => "yield",
            Step::Wait(_) => "wait",
            Step::Fail(_) => "fail",
            Step::Panic => "panic",
        })
    }
}

/// A partition of an input.
#[derive(Debug)]
pub(crate) struct Script {
    schema: SchemaRef,
    pub(crate) steps: Vec<Step>,
    /// The streams that are not dropped.
    alive: Arc<AtomicUsize>,
}

/// Counts a stream until it is dropped.
struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl PartitionStream for Script {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        self.alive.fetch_add(1, Ordering::SeqCst);
        let alive = Alive(Arc::clone(&self.alive));
        let steps = self.steps.clone().into_iter();
        let batches =
            futures_util::stream::unfold((steps, alive), |(mut steps, alive)| async move {
                loop {
                    let item = match steps.next()? {
                        Step::Batch(batch) => Ok(batch),
                        Step::Yield => {
                            tokio::task::yield_now().await;
                            continue;
                        }
                        Step::Wait(gate) => {
                            drop(gate.acquire().await);
                            continue;
                        }
                        Step::Fail(error) => Err(error()),
                        Step::Panic => panic!("this input panics on purpose"),
                    };
                    return Some((item, (steps, alive)));
                }
            });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), batches))
    }
}

/// An input with the columns `k` and `v`.
pub(crate) struct Scripted {
    pub(crate) partitions: Vec<Vec<Step>>,
    alive: Arc<AtomicUsize>,
}

pub(crate) fn key_and_value() -> SchemaRef {
    let fields = ["k", "v"].map(|name| Field::new(name, DataType::Int64, true));
    Arc::new(Schema::new(fields.to_vec()))
}

impl Scripted {
    /// Returns an input with this many rows per partition and different keys in all. Each key is in the partition of its
    /// remainder.
    pub(crate) fn new(
        partitions: usize,
        rows: usize,
        keys: usize,
        batch: usize,
        alive: &Arc<AtomicUsize>,
    ) -> Scripted {
        let steps = |partition: usize| {
            let row = |n: usize| (n % keys.div_ceil(partitions)) * partitions + partition;
            let batches = (0..rows).step_by(batch).flat_map(|first| {
                let rows = first..rows.min(first + batch);
                let keys: Int64Array = rows.clone().map(|n| Some(row(n) as i64)).collect();
                let values = rows.map(|n| Some((n * partitions + partition) as i64));
                let values: Int64Array = values.collect();
                let columns: Vec<Arc<dyn arrow::array::Array>> =
                    vec![Arc::new(keys), Arc::new(values)];
                let batch = RecordBatch::try_new(key_and_value(), columns).expect("a valid batch");
                [Step::Batch(batch), Step::Yield]
            });
            batches.collect()
        };
        Scripted { partitions: (0..partitions).map(steps).collect(), alive: Arc::clone(alive) }
    }

    /// Returns the table. `hashed` says that the partitions are those of a hash of the key.
    pub(crate) fn table(self, hashed: bool) -> Arc<StreamingTable> {
        let count = self.partitions.len();
        let partitions = self.partitions.into_iter().map(|steps| {
            let (schema, alive) = (key_and_value(), Arc::clone(&self.alive));
            Arc::new(Script { schema, steps, alive }) as Arc<dyn PartitionStream>
        });
        let table = StreamingTable::try_new(key_and_value(), partitions.collect());
        let table = table.expect("the partitions have the schema");
        Arc::new(match hashed {
            true => table.with_output_partitioning(Partitioning::Hash(
                vec![Arc::new(Column::new("k", 0))],
                count,
            )),
            false => table,
        })
    }
}

/// A memory pool that records its peak and its consumers.
#[derive(Debug)]
pub(crate) struct Watched<P> {
    inner: P,
    peak: AtomicUsize,
    consumers: AtomicUsize,
}

impl<P> Watched<P> {
    pub(crate) fn new(inner: P) -> Arc<Watched<P>> {
        Arc::new(Watched { inner, peak: AtomicUsize::new(0), consumers: AtomicUsize::new(0) })
    }

    /// Returns the most bytes that were reserved at one time.
    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::SeqCst)
    }

    /// Returns the number of consumers that are not dropped. A join is a consumer until its threads have ended.
    pub(crate) fn consumers(&self) -> usize {
        self.consumers.load(Ordering::SeqCst)
    }
}

impl<P: fmt::Display> fmt::Display for Watched<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<P: MemoryPool> MemoryPool for Watched<P> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.consumers.fetch_add(1, Ordering::SeqCst);
        self.inner.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.inner.unregister(consumer);
        self.consumers.fetch_sub(1, Ordering::SeqCst);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.inner.grow(reservation, additional);
        self.peak.fetch_max(self.inner.reserved(), Ordering::SeqCst);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.inner.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.inner.try_grow(reservation, additional)?;
        self.peak.fetch_max(self.inner.reserved(), Ordering::SeqCst);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.inner.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.inner.memory_limit()
    }
}

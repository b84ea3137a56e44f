//! Dynamic filters: the keys of the build side reach the Parquet scans of the probe side.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use futures_util::{FutureExt, StreamExt};
use strait_datafusion::StraitJoinExec;
use tokio::sync::Semaphore;

use crate::rows::assert_same;
use crate::session::{self, counted, joins, metric, operators, released};
use crate::setup::drained;
use crate::streams::{Scripted, Step};

/// The rows of the probe table, in row groups of `GROUP` rows.
const ROWS: i64 = 20_000;
const GROUP: usize = 500;

/// Writes batches into a Parquet file with small row groups.
pub(crate) fn write<'a>(
    path: &Path,
    schema: &SchemaRef,
    batches: impl IntoIterator<Item = &'a RecordBatch>,
    group: usize,
) -> Result<(), ParquetError> {
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group)).build();
    let mut writer =
        ArrowWriter::try_new(File::create(path)?, Arc::clone(schema), Some(properties))?;
    for batch in batches {
        // The writer calls itself for each row group of a batch.
        for first in (0..batch.num_rows()).step_by(group) {
            writer.write(&batch.slice(first, group.min(batch.num_rows() - first)))?;
        }
    }
    writer.close().map(drop)
}

/// Returns a table with the columns `id`, `k`, `j`, `x`, `t` and `p`.
///
/// `k` grows with the rows, so that row groups have ranges of it. `x` is the same as a float, and `t` as a text.
fn table(rows: i64, key: impl Fn(i64) -> Option<i64>, width: usize) -> RecordBatch {
    let keys: Vec<_> = (0..rows).map(key).collect();
    let float = |key: i64| match key % 97 {
        0 => f64::NAN,
        1 => -0.0,
        2 => 0.0,
        _ => key as f64,
    };
    let columns: [(&str, ArrayRef); 6] = [
        ("id", Arc::new(Int64Array::from_iter_values(0..rows))),
        ("k", Arc::new(Int64Array::from(keys.clone()))),
        ("j", Arc::new(keys.iter().map(|key| key.map(|key| key % 7)).collect::<Int64Array>())),
        ("x", Arc::new(keys.iter().map(|key| key.map(float)).collect::<Float64Array>())),
        (
            "t",
            Arc::new(
                keys.iter().map(|key| key.map(|key| format!("t{key:07}"))).collect::<StringArray>(),
            ),
        ),
        ("p", Arc::new((0..rows).map(|id| Some(format!("{id:>width$}"))).collect::<StringArray>())),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))
        .expect("a valid batch")
}

/// The tables of the tests as files.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Files { folder };
        // One in 40 row groups of the probe side has only nulls.
        let nulls = |id: i64| !(7_000..7_500).contains(&id) && id % 1_000 != 3;
        files.write("r", &table(ROWS, |id| nulls(id).then_some(id / 2), 0));
        // Keys in a narrow range, and nulls.
        files.write("l", &table(60, |id| (id % 20 != 5).then_some(3_000 + id * 3), 10));
        files.write("few", &table(5, |id| Some(100 + id * 2_000), 10));
        files.write("many", &table(8_000, |id| (id % 31 != 0).then_some(2_000 + id % 400), 200));
        files.write("none", &table(0, Some, 10));
        files.write("nulls", &table(30, |_| None, 10));
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.parquet"))
    }

    fn write(&self, name: &str, batch: &RecordBatch) {
        write(&self.path(name), &batch.schema(), [batch], GROUP).expect("a file is written");
    }

    async fn register(&self, ctx: &SessionContext) {
        for name in ["r", "l", "few", "many", "none", "nulls"] {
            let path = self.path(name);
            let path = path.to_str().expect("a path in UTF-8");
            ctx.register_parquet(name, path, ParquetReadOptions::default()).await.expect("a table");
        }
    }
}

/// How a plan reads its files.
#[derive(Debug, Clone, Copy)]
struct Reading {
    partitions: usize,
    collected: usize,
    /// Whether the decoder of Parquet evaluates filters.
    pushdown: bool,
    /// Whether joins write both sides to disk.
    spill: bool,
}

const READINGS: [Reading; 4] = [
    Reading { partitions: 1, collected: 1 << 20, pushdown: false, spill: false },
    Reading { partitions: 3, collected: 1 << 20, pushdown: true, spill: false },
    Reading { partitions: 3, collected: 0, pushdown: false, spill: false },
    Reading { partitions: 2, collected: 0, pushdown: true, spill: false },
];

impl Reading {
    fn config(self) -> SessionConfig {
        let config = SessionConfig::new().with_target_partitions(self.partitions);
        let mut config = config.with_batch_size(GROUP);
        let options = config.options_mut();
        options.optimizer.hash_join_single_partition_threshold = self.collected;
        options.optimizer.hash_join_single_partition_threshold_rows = self.collected;
        // The left table stays the build side.
        options.optimizer.join_reordering = false;
        options.execution.parquet.pushdown_filters = self.pushdown;
        config
    }
}

/// Returns the rows that the scan of a file has returned.
fn scanned(plan: &Arc<dyn ExecutionPlan>, file: &str) -> usize {
    let of_file = |operator: &&Arc<dyn ExecutionPlan>| {
        let shown = displayable(operator.as_ref()).one_line().to_string();
        shown.contains("DataSourceExec") && shown.contains(&format!("/{file}.parquet"))
    };
    let all = operators(plan);
    let scans: Vec<_> = all.iter().filter(of_file).collect();
    assert!(!scans.is_empty(), "no scan of {file}");
    scans.into_iter().map(|scan| metric(scan, "output_rows")).sum()
}

/// Runs a query with and without Strait. Returns the plan with Strait after it has run.
async fn compare(
    files: &Files,
    sql: &str,
    reading: Reading,
    runtime: Arc<RuntimeEnv>,
) -> Arc<dyn ExecutionPlan> {
    let about = format!("{sql}, {reading:?}");
    let stock = session::stock(reading.config(), Arc::default());
    let mut options = session::options();
    if reading.spill {
        options.algorithm = "spill".to_string();
    }
    let ctx = session::with_strait(reading.config(), runtime, options);
    files.register(&stock).await;
    files.register(&ctx).await;
    let expected = session::run(&stock, sql).await.unwrap_or_else(|e| panic!("{about}: {e}"));
    let plan = session::plan(&ctx, sql).await.expect("a plan");
    let all = joins(&plan);
    assert!(all.replaced > 0 && all.stock == 0 && all.declined.is_empty(), "{about}: {all:?}");
    let found = tokio::time::timeout(session::PATIENCE, collect(Arc::clone(&plan), ctx.task_ctx()));
    let found = found.await.unwrap_or_else(|_| panic!("{about}: it hangs"));
    let found = found.unwrap_or_else(|error| panic!("{about}: {error}"));
    assert_same(&expected, &found, &about);
    plan
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_groups_without_a_match_are_not_read() {
    let files = Files::new();
    for reading in READINGS {
        for sql in [
            "SELECT l.id, r.id FROM l JOIN r ON l.k = r.k",
            "SELECT l.id, r.id, r.p FROM l JOIN r ON l.t = r.t",
            "SELECT l.id, r.id FROM l JOIN r ON l.k = r.k AND l.j = r.j",
            "SELECT l.id, r.id FROM l JOIN r ON l.j = r.j AND l.k = r.k AND l.id < r.id",
            "SELECT r.id FROM l RIGHT SEMI JOIN r ON l.k = r.k",
            "SELECT l.id, r.id FROM l LEFT JOIN r ON l.k = r.k",
            "SELECT l.id FROM l LEFT ANTI JOIN r ON l.k = r.k",
        ] {
            let plan = compare(&files, sql, reading, Arc::default()).await;
            let read = scanned(&plan, "r");
            assert!(read * 4 < ROWS as usize, "{sql}, {reading:?}: {read} rows were read");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitioned_joins_publish_the_keys_of_all_partitions() {
    let files = Files::new();
    for reading in READINGS {
        for sql in [
            "SELECT l.k, count(*), sum(r.id) FROM l JOIN r ON l.k = r.k GROUP BY l.k",
            "SELECT r.k, count(*), sum(l.id) FROM l JOIN r ON l.k = r.k GROUP BY r.k",
            "SELECT many.k, count(*), sum(r.id) FROM many JOIN r ON many.k = r.k GROUP BY many.k",
        ] {
            // A partition waits only for partitions that have begun. So how many rows it reads depends on timing.
            compare(&files, sql, reading, Arc::default()).await;
        }
    }
}

/// Every partition sees other build rows, and each run spills some of them. The filter must hold for all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spilled_partitions_publish_the_keys_of_all_rows() {
    let files = Files::new();
    let limit = 4 << 20;
    for pushdown in [false, true] {
        let reading = Reading { partitions: 2, collected: 0, pushdown, spill: true };
        for sql in [
            "SELECT many.k, count(*), sum(r.id), max(many.p) FROM many JOIN r ON many.k = r.k GROUP BY many.k",
            "SELECT many.k, count(*), sum(r.id), max(many.p) FROM many LEFT JOIN r ON many.k = r.k GROUP BY many.k",
            "SELECT many.k, count(*), max(many.p) FROM many JOIN r ON many.k IS NOT DISTINCT FROM r.k GROUP BY many.k",
        ] {
            let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(limit));
            let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool));
            let runtime = runtime.build_arc().expect("a runtime");
            let plan = compare(&files, sql, reading, runtime).await;
            let shown = displayable(plan.as_ref()).indent(false).to_string();
            assert!(shown.contains("mode=Partitioned"), "{shown}");
            let spilled = counted(&plan, "spilled_bytes");
            assert!(spilled > 0, "{sql}, {reading:?}: nothing was spilled\n{shown}");
            drop(plan);
            released(&pool, sql).await;
        }
    }
}

/// A join of two partitions whose left input waits at two gates. Its right input is a file.
struct Gated {
    ctx: SessionContext,
    plan: Arc<dyn ExecutionPlan>,
    /// The left partitions end when their gates open.
    gates: [Arc<Semaphore>; 2],
}

impl Gated {
    async fn new(files: &Files) -> Gated {
        let config = READINGS[3].config();
        let ctx = session::with_strait(config, Arc::default(), session::options());
        files.register(&ctx).await;
        let gates = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
        let mut left = Scripted::new(2, 40, 40, 10, &Arc::default());
        for (steps, gate) in left.partitions.iter_mut().zip(&gates) {
            steps.push(Step::Wait(Arc::clone(gate)));
        }
        // Its partitions are not those of DataFusion's hash function. So the join returns too few rows, but it reads all
        // rows that the filter lets pass.
        ctx.register_table("gated", left.table(true)).expect("the name is new");
        let sql = "SELECT gated.k, sum(r.id) FROM gated JOIN r ON gated.k = r.k GROUP BY gated.k";
        let plan = session::plan(&ctx, sql).await.expect("a plan");
        let all = operators(&plan);
        let join = all.iter().find(|operator| operator.is::<StraitJoinExec>()).expect("a join");
        let shown = displayable(join.as_ref()).one_line().to_string();
        assert!(shown.contains("mode=Partitioned"), "{shown}");
        Gated { ctx, plan: Arc::clone(join), gates }
    }

    /// Executes both partitions, and polls them once.
    async fn streams(&self) -> [SendableRecordBatchStream; 2] {
        let context = self.ctx.task_ctx();
        let streams = [0, 1].map(|at| self.plan.execute(at, Arc::clone(&context)));
        let mut streams = streams.map(|stream| stream.expect("a stream"));
        for stream in &mut streams {
            assert!(stream.next().now_or_never().is_none(), "the left input has not ended");
        }
        streams
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_waits_for_the_keys_of_the_others() {
    let files = Files::new();
    let gated = Gated::new(&files).await;
    let [mut first, mut second] = gated.streams().await;
    gated.gates[0].add_permits(1);
    let early = tokio::time::timeout(Duration::from_millis(200), first.next()).await;
    assert!(early.is_err(), "the first partition did not wait");
    assert_eq!(scanned(&gated.plan, "r"), 0);
    gated.gates[1].add_permits(1);
    for stream in [&mut first, &mut second] {
        drained(stream, "both gates are open").await;
    }
    let read = scanned(&gated.plan, "r");
    assert!(read <= GROUP, "{read} rows were read");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_waits_for_nobody_who_is_not_polled() {
    let files = Files::new();
    // The second partition is dropped while the first one waits.
    let gated = Gated::new(&files).await;
    let [mut first, second] = gated.streams().await;
    gated.gates[0].add_permits(1);
    let early = tokio::time::timeout(Duration::from_millis(50), first.next()).await;
    assert!(early.is_err(), "the first partition did not wait");
    drop(second);
    drained(&mut first, "the second partition was dropped").await;
    // Nobody knows the keys of the second partition.
    assert_eq!(scanned(&gated.plan, "r"), ROWS as usize);
    // The second partition was never polled.
    let gated = Gated::new(&files).await;
    gated.gates[0].add_permits(1);
    let mut first = gated.plan.execute(0, gated.ctx.task_ctx()).expect("a stream");
    drained(&mut first, "the second partition was not polled").await;
    assert_eq!(scanned(&gated.plan, "r"), ROWS as usize);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listed_keys_prune_between_the_ends_of_their_range() {
    let files = Files::new();
    for reading in READINGS {
        let sql = "SELECT few.id, r.id FROM few JOIN r ON few.k = r.k";
        let plan = compare(&files, sql, reading, Arc::default()).await;
        let read = scanned(&plan, "r");
        assert!(read <= 6 * GROUP, "{reading:?}: {read} rows were read");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spilled_joins_publish_the_keys_of_all_rows() {
    let files = Files::new();
    let limit = 1 << 20;
    for reading in READINGS {
        // At most one in `one_in` rows is read. Nulls are in every second row group.
        for (sql, one_in) in [
            ("SELECT many.id, r.id, many.p FROM many JOIN r ON many.k = r.k", 2),
            ("SELECT many.id, r.id, many.p FROM many JOIN r ON many.k = r.k AND many.id < r.id", 2),
            ("SELECT many.id, r.id, many.p FROM many LEFT JOIN r ON many.k = r.k", 2),
            ("SELECT many.id, r.id, many.p FROM many JOIN r ON many.k IS NOT DISTINCT FROM r.k", 1),
        ] {
            let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(limit));
            let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool));
            let runtime = runtime.build_arc().expect("a runtime");
            let plan = compare(&files, sql, reading, runtime).await;
            assert!(counted(&plan, "spilled_bytes") > 0, "{sql}, {reading:?}: nothing was spilled");
            let read = scanned(&plan, "r");
            assert!(read * one_in < ROWS as usize, "{sql}, {reading:?}: {read} rows were read");
            drop(plan);
            released(&pool, sql).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_must_be_read_are_read() {
    let files = Files::new();
    for reading in READINGS {
        for sql in [
            // Every row of the probe side is in the output.
            "SELECT l.id, r.id FROM l RIGHT JOIN r ON l.k = r.k",
            "SELECT l.id, r.id FROM l FULL JOIN r ON l.k = r.k",
            "SELECT r.id FROM l RIGHT ANTI JOIN r ON l.k = r.k",
            "SELECT count(*) FROM none RIGHT JOIN r ON none.k = r.k",
        ] {
            let plan = compare(&files, sql, reading, Arc::default()).await;
            assert_eq!(scanned(&plan, "r"), ROWS as usize, "{sql}, {reading:?}");
        }
        for sql in [
            // Nulls that match nulls, and `NOT IN` that looks for nulls.
            "SELECT l.id, r.id FROM l JOIN r ON l.k IS NOT DISTINCT FROM r.k",
            "SELECT nulls.id, r.id FROM nulls JOIN r ON nulls.k IS NOT DISTINCT FROM r.k",
            "SELECT l.id, r.id FROM l JOIN r ON (l.k IS NOT DISTINCT FROM r.k) AND (l.j IS NOT DISTINCT FROM r.j)",
            "SELECT few.id, r.id FROM few JOIN r ON few.k IS NOT DISTINCT FROM r.k",
            "SELECT id FROM l WHERE k NOT IN (SELECT k FROM r)",
            "SELECT id FROM l WHERE k NOT IN (SELECT k FROM r WHERE id > 9000)",
            "SELECT id FROM l WHERE k NOT IN (SELECT k FROM r WHERE k IS NOT NULL AND k <> 3003)",
            "SELECT id FROM l WHERE k IN (SELECT k FROM r) OR id = 7",
            "SELECT l.id FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.k = l.k AND r.id % 3 = 0)",
            // Floats: the zeros are equal, and NaN is equal to itself.
            "SELECT l.id, r.id FROM l JOIN r ON l.x = r.x",
            "SELECT few.id, r.id FROM few JOIN r ON few.x = r.x AND few.j = r.j",
            "SELECT r.id FROM few RIGHT SEMI JOIN r ON few.x = r.x",
            // Keys that are expressions.
            "SELECT l.id, r.id FROM l JOIN r ON l.k + 1 = r.k",
            "SELECT l.id, r.id FROM l JOIN r ON l.k = r.k + 1",
            "SELECT l.id, r.id FROM l JOIN r ON l.k = CAST(r.k AS INT)",
        ] {
            compare(&files, sql, reading, Arc::default()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_build_side_reads_nothing() {
    let files = Files::new();
    for reading in READINGS {
        for sql in [
            "SELECT none.id, r.id FROM none JOIN r ON none.k = r.k",
            "SELECT r.id FROM none RIGHT SEMI JOIN r ON none.k = r.k",
            "SELECT nulls.id, r.id FROM nulls JOIN r ON nulls.k = r.k",
        ] {
            let plan = compare(&files, sql, reading, Arc::default()).await;
            assert_eq!(scanned(&plan, "r"), 0, "{sql}, {reading:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_filters_reach_one_scan() {
    let files = Files::new();
    for reading in READINGS {
        for sql in [
            "SELECT few.id, l.id, r.id FROM few JOIN (SELECT l.id, r.k, r.id AS rid FROM l JOIN r ON l.k = r.k) l \
             ON few.k < l.k AND few.j = l.k % 7 JOIN r ON l.rid = r.id",
            "SELECT a.id, b.id, r.id FROM l a JOIN (many b JOIN r ON b.k = r.k) ON a.j = r.j",
            "SELECT l.id, r.id FROM l JOIN r ON l.k = r.k ORDER BY r.id DESC LIMIT 7",
            "SELECT r.k, max(r.id) FROM l JOIN r ON l.k = r.k GROUP BY r.k ORDER BY r.k LIMIT 3",
            "SELECT l.id, r.id FROM l JOIN r ON l.k = r.k WHERE r.id BETWEEN 6010 AND 6100",
            "SELECT a.k, count(*) FROM (SELECT k FROM l UNION ALL SELECT k FROM few) a JOIN \
             (SELECT k FROM r UNION ALL SELECT k FROM many) b ON a.k = b.k GROUP BY a.k",
        ] {
            compare(&files, sql, reading, Arc::default()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_option_all_rows_are_read() {
    let files = Files::new();
    let config = READINGS[1]
        .config()
        .set_bool("datafusion.optimizer.enable_join_dynamic_filter_pushdown", false);
    let ctx = session::with_strait(config, Arc::default(), session::options());
    files.register(&ctx).await;
    let plan =
        session::plan(&ctx, "SELECT l.id, r.id FROM l JOIN r ON l.k = r.k").await.expect("a plan");
    let found = collect(Arc::clone(&plan), ctx.task_ctx()).await.expect("no error");
    assert!(found.iter().map(RecordBatch::num_rows).sum::<usize>() > 50);
    assert_eq!(scanned(&plan, "r"), ROWS as usize);
}

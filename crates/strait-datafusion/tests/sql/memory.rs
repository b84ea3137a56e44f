//! Limits of memory and disk.

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::catalog::MemTable;
use datafusion::error::DataFusionError;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::physical_plan::{collect, displayable};
use datafusion::prelude::{SessionConfig, SessionContext, col};
use futures_util::StreamExt;
use strait::TempFolders;
use strait_datafusion::UnnamedFiles;

use crate::rows::{assert_same, sequence};
use crate::session::{self, PATIENCE, counted, eventually, released};
use crate::streams::Watched;

/// The size of the pools. The tables are several times as large.
const LIMIT: usize = 2 << 20;
const ROWS: i64 = 20_000;

/// A table with the columns `id`, `k` and `p`. `key` is the key of a row; `None` is a null.
fn table(rows: i64, width: usize, key: impl Fn(i64) -> Option<i64>) -> Arc<MemTable> {
    table_in(3, rows, width, key)
}

fn table_in(
    partitions: usize,
    rows: i64,
    width: usize,
    key: impl Fn(i64) -> Option<i64>,
) -> Arc<MemTable> {
    let fields = vec![
        Field::new("id", DataType::Int64, false),
        Field::new("k", DataType::Int64, true),
        Field::new("p", DataType::Utf8, false),
    ];
    let schema = Arc::new(Schema::new(fields));
    let mut partitions = vec![Vec::new(); partitions];
    for (number, first) in (0..rows).step_by(500).enumerate() {
        let ids = first..rows.min(first + 500);
        let keys: Int64Array = ids.clone().map(&key).collect();
        let texts = ids.clone().map(|id| Some(format!("{id:>width$}")));
        let batch = RecordBatch::try_new(
            Arc::clone(&schema),
            vec![
                Arc::new(ids.map(Some).collect::<Int64Array>()),
                Arc::new(keys),
                Arc::new(texts.collect::<StringArray>()),
            ],
        );
        let at = number % partitions.len();
        partitions[at].push(batch.expect("a valid batch"));
    }
    Arc::new(MemTable::try_new(schema, partitions).expect("one schema"))
}

/// Spreads keys, so that neighbours are not in order. One key in 50 is null.
fn spread(id: i64) -> Option<i64> {
    (id % 50 != 7).then_some(id * 7919 % 30_011)
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Fair,
    Greedy,
    /// A pool that does not tell its limit.
    Unknown,
}

#[derive(Debug)]
struct WithoutLimit(GreedyMemoryPool);

impl std::fmt::Display for WithoutLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl MemoryPool for WithoutLimit {
    fn name(&self) -> &str {
        "without a known limit"
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.0.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.0.shrink(reservation, shrink);
    }

    fn try_grow(
        &self,
        reservation: &MemoryReservation,
        additional: usize,
    ) -> datafusion::error::Result<()> {
        self.0.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.0.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Unknown
    }
}

/// Any pool that is watched.
trait AnyWatched: MemoryPool {
    fn most(&self) -> usize;
}

impl<P: MemoryPool> AnyWatched for Watched<P> {
    fn most(&self) -> usize {
        self.peak()
    }
}

fn pool(kind: Kind, bytes: usize) -> (Arc<dyn AnyWatched>, Arc<dyn MemoryPool>) {
    match kind {
        Kind::Fair => {
            let pool = Watched::new(FairSpillPool::new(bytes));
            (Arc::clone(&pool) as _, pool)
        }
        Kind::Greedy => {
            let pool = Watched::new(GreedyMemoryPool::new(bytes));
            (Arc::clone(&pool) as _, pool)
        }
        Kind::Unknown => {
            let pool = Watched::new(WithoutLimit(GreedyMemoryPool::new(bytes)));
            (Arc::clone(&pool) as _, pool)
        }
    }
}

fn runtime(pool: &Arc<dyn MemoryPool>) -> Arc<RuntimeEnv> {
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(pool));
    runtime.build_arc().expect("a runtime")
}

fn config(partitions: usize, collected: usize) -> SessionConfig {
    let mut config = SessionConfig::new().with_target_partitions(partitions).with_batch_size(1024);
    let options = config.options_mut();
    options.optimizer.hash_join_single_partition_threshold = collected;
    options.optimizer.hash_join_single_partition_threshold_rows = collected;
    // Sorts and aggregates need less for themselves.
    options.execution.sort_spill_reservation_bytes = 64 << 10;
    config
}

fn register(ctx: &SessionContext) {
    ctx.register_table("l", table(ROWS, 150, spread)).expect("the name is new");
    ctx.register_table("r", table(ROWS + 5000, 150, |id| spread(id * 3))).expect("the name is new");
}

const INNER: &str = "SELECT l.id, r.id, l.p, r.p FROM l JOIN r ON l.k = r.k";
const FULL: &str = "SELECT l.id, r.id, l.p, r.p FROM l FULL JOIN r ON l.k = r.k AND l.id < r.id";

/// Queries, and whether the build side has the wide column.
const JOINS: [(&str, bool); 10] = [
    (INNER, true),
    ("SELECT l.id, r.id, l.p, r.p FROM l LEFT JOIN r ON l.k = r.k", true),
    ("SELECT l.id, r.id, l.p, r.p FROM l RIGHT JOIN r ON l.k = r.k", true),
    (FULL, true),
    ("SELECT * FROM l LEFT SEMI JOIN r ON l.k = r.k", false),
    ("SELECT * FROM l RIGHT ANTI JOIN r ON l.k = r.k", false),
    ("SELECT * FROM l LEFT ANTI JOIN r ON l.k = r.k AND l.id <> r.id", false),
    ("SELECT * FROM l WHERE l.k IN (SELECT k FROM r) OR l.id % 3 = 0", false),
    ("SELECT l.id, r.id, l.p FROM l JOIN r ON (l.k IS NOT DISTINCT FROM r.k) AND l.p = r.p", true),
    (
        "SELECT k % 10, count(*), sum(x), max(p) FROM \
         (SELECT l.k, r.id AS x, l.p FROM l JOIN r ON l.k = r.k AND l.p <> r.p) GROUP BY k % 10",
        true,
    ),
];

async fn expected(sql: &str) -> Vec<RecordBatch> {
    let stock = session::stock(config(2, 0), Arc::default());
    register(&stock);
    session::run(&stock, sql).await.expect("DataFusion joins without a limit")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_spill_where_datafusion_fails() {
    for (sql, wide) in JOINS {
        let expected = expected(sql).await;
        let mut failed = 0;
        for (kind, partitions, collected) in [
            (Kind::Greedy, 1, 0),
            (Kind::Greedy, 2, 0),
            (Kind::Fair, 2, 1 << 30),
            (Kind::Unknown, 3, 0),
        ] {
            let about = format!("{sql}, {kind:?}, {partitions} partitions, {collected} collected");
            let (_, of_stock) = pool(kind, LIMIT);
            let stock = session::stock(config(partitions, collected), runtime(&of_stock));
            register(&stock);
            if let Err(error) = session::run(&stock, sql).await {
                assert!(
                    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)),
                    "{error}"
                );
                failed += 1;
            }
            let (watched, pool) = pool(kind, LIMIT);
            let runtime = runtime(&pool);
            let disk = Arc::clone(&runtime.disk_manager);
            let ctx =
                session::with_strait(config(partitions, collected), runtime, session::options());
            register(&ctx);
            let plan = session::plan(&ctx, sql).await.expect("a plan");
            let shown = displayable(plan.as_ref()).indent(false).to_string();
            let found = tokio::time::timeout(PATIENCE, collect(Arc::clone(&plan), ctx.task_ctx()));
            let found = found.await.unwrap_or_else(|_| panic!("{about}: it hangs\n{shown}"));
            let found = found.unwrap_or_else(|error| panic!("{about}: {error}\n{shown}"));
            assert_same(&expected, &found, &about);
            let spilled = counted(&plan, "spilled_bytes").min(counted(&plan, "spilled_rows"));
            assert!(spilled > 0 || !wide, "{about}: nothing was spilled\n{shown}");
            drop(plan);
            released(&pool, &about).await;
            assert!(watched.most() <= LIMIT, "{about}: the peak is {}", watched.most());
            eventually(&format!("{about}: the files are gone"), || disk.used_disk_space() == 0)
                .await;
        }
        assert!(failed > 0 || !wide, "{sql}: DataFusion can run it with this limit");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitioned_joins_spill_too() {
    let sql =
        "SELECT l.k, count(*), sum(r.id), sum(length(l.p)) FROM l JOIN r ON l.k = r.k GROUP BY l.k";
    // With several input partitions, DataFusion 55's RepartitionExec can wait for ever when it spills (DataFusion's issue
    // 24883).
    let tables = |ctx: &SessionContext| {
        let key = |id: i64| Some(id * 7919 % 1009);
        ctx.register_table("l", table_in(1, 4 * ROWS, 150, key)).expect("the name is new");
        ctx.register_table("r", table_in(1, 9 * ROWS, 0, |id| Some(id * 31)))
            .expect("the name is new");
    };
    let stock = session::stock(config(2, 0), Arc::default());
    tables(&stock);
    let expected = session::run(&stock, sql).await.expect("DataFusion joins");
    for kind in [Kind::Greedy, Kind::Fair] {
        for partitions in [2, 4] {
            let about = format!("{kind:?}, {partitions} partitions");
            // Each of the partitions of both inputs has a share of a fair pool, too.
            let limit = match kind {
                Kind::Fair => (3 * partitions) << 20,
                _ => partitions << 20,
            };
            let (watched, pool) = pool(kind, limit);
            // A batch has to fit the memory of a run.
            let config = config(partitions, 0)
                .with_batch_size(256)
                .with_repartition_file_scans(false)
                .with_round_robin_repartition(false);
            let ctx = session::with_strait(config, runtime(&pool), session::options());
            tables(&ctx);
            let plan = session::plan(&ctx, sql).await.expect("a plan");
            let shown = displayable(plan.as_ref()).indent(false).to_string();
            assert!(shown.contains("mode=Partitioned"), "{about}: {shown}");
            let found = tokio::time::timeout(PATIENCE, collect(Arc::clone(&plan), ctx.task_ctx()));
            let found = found.await.unwrap_or_else(|_| panic!("{about}: it hangs\n{shown}"));
            let found = found.unwrap_or_else(|error| panic!("{about}: {error}\n{shown}"));
            assert_same(&expected, &found, &about);
            assert!(counted(&plan, "spilled_bytes") > 0, "{about}: nothing was spilled\n{shown}");
            drop(plan);
            released(&pool, &about).await;
            assert!(watched.most() <= limit, "{about}: the peak is {}", watched.most());
        }
    }
}

/// DataFusion joins in the order of the right table, and needs memory for the whole left table.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_restored_where_datafusion_fails() {
    let limit = 4 * LIMIT;
    let sql = "SELECT r.id, l.id AS lid, l.p, r.p AS rp FROM l JOIN r ON l.k = r.k ORDER BY r.id";
    // Two sorts of DataFusion at the same time may leave no memory for their merges.
    let partitions = 1;
    let config = || {
        let mut config = config(partitions, 1 << 30).with_batch_size(64);
        // The left table stays the build side.
        config.options_mut().optimizer.join_reordering = false;
        // Sorts leave this much of the pool to their merges.
        config.options_mut().execution.sort_spill_reservation_bytes = 512 << 10;
        config
    };
    let register = |ctx: &SessionContext| {
        let left = table_in(partitions, ROWS, 600, spread);
        ctx.register_table("l", left).expect("the name is new");
        let sorted = table_in(partitions, ROWS + 5000, 20, |id| spread(id * 3));
        let sorted = Arc::into_inner(sorted).expect("no other owner");
        let sorted = sorted.with_sort_order(vec![vec![col("id").sort(true, false)]]);
        ctx.register_table("r", Arc::new(sorted)).expect("the name is new");
    };
    let expected = session::stock(config(), Arc::default());
    register(&expected);
    let expected = session::run(&expected, sql).await.expect("DataFusion joins without a limit");
    let (_, of_stock) = pool(Kind::Fair, limit);
    let stock = session::stock(config(), runtime(&of_stock));
    register(&stock);
    let error = session::run(&stock, sql).await.expect_err("DataFusion needs more memory");
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
    let (_, pool) = pool(Kind::Fair, limit);
    let mut options = session::options();
    options.restore_order = true;
    let ctx = session::with_strait(config(), runtime(&pool), options);
    register(&ctx);
    let plan = session::plan(&ctx, sql).await.expect("a plan");
    let shown = displayable(plan.as_ref()).indent(false).to_string();
    let found = collect(Arc::clone(&plan), ctx.task_ctx()).await;
    let found = found.unwrap_or_else(|error| panic!("{sql}: {error}\n{shown}"));
    assert_same(&expected, &found, sql);
    assert!(sequence(&expected, 1) == sequence(&found, 1), "{sql}: another order");
    assert!(counted(&plan, "spilled_bytes") > 0, "{sql}: nothing was spilled\n{shown}");
    drop(plan);
    released(&pool, sql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_in_half_of_the_rows() {
    let skewed = |id: i64| if id % 2 == 0 { Some(-1) } else { spread(id) };
    let sql = "SELECT l.id, r.id, l.p FROM l JOIN r ON l.k = r.k AND r.id % 100 = l.id % 100 WHERE r.id < 2000";
    let tables = |ctx: &SessionContext| {
        ctx.register_table("l", table(ROWS, 150, skewed)).expect("the name is new");
        ctx.register_table("r", table(ROWS, 150, skewed)).expect("the name is new");
    };
    let stock = session::stock(config(2, 0), Arc::default());
    tables(&stock);
    let sqls = [sql, "SELECT * FROM l WHERE k NOT IN (SELECT k FROM r WHERE k > 0)"];
    for sql in sqls {
        let expected = session::run(&stock, sql).await.expect("DataFusion joins");
        for kind in [Kind::Greedy, Kind::Fair] {
            let about = format!("{sql}, {kind:?}");
            let (watched, pool) = pool(kind, LIMIT);
            let ctx = session::with_strait(config(2, 0), runtime(&pool), session::options());
            tables(&ctx);
            let found = session::run(&ctx, sql).await;
            let found = found.unwrap_or_else(|error| panic!("{about}: {error}"));
            assert_same(&expected, &found, &about);
            released(&pool, &about).await;
            assert!(watched.most() <= LIMIT, "{about}: the peak is {}", watched.most());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_query_releases_memory_and_files() {
    for (kind, batches) in [(Kind::Greedy, 0), (Kind::Greedy, 1), (Kind::Fair, 5), (Kind::Fair, 15)]
    {
        let about = format!("{kind:?}, {batches} batches");
        let (_, pool) = pool(kind, LIMIT);
        let runtime = runtime(&pool);
        let disk = Arc::clone(&runtime.disk_manager);
        let ctx = session::with_strait(config(2, 0), runtime, session::options());
        register(&ctx);
        let frame = ctx.sql(FULL).await.expect("a query");
        let mut stream = frame.execute_stream().await.expect("a stream");
        if batches == 0 {
            drop(futures_util::FutureExt::now_or_never(stream.next()));
            eventually("the join writes files", || disk.used_disk_space() > 0).await;
        }
        for _ in 0..batches {
            stream.next().await.expect("the stream has more rows").expect("no error");
        }
        assert!(disk.used_disk_space() > 0, "{about}: the join has no files");
        drop(stream);
        released(&pool, &about).await;
        eventually(&format!("{about}: the files are gone"), || disk.used_disk_space() == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_joins_share_a_pool() {
    let nested = "SELECT a.id, a.p, r.p, n FROM \
                  (SELECT l.id, l.k, l.p, r.id AS n FROM l JOIN r ON l.k = r.k) a LEFT JOIN r ON a.n = r.k";
    let expected_nested = expected(nested).await;
    let expected_full = expected(FULL).await;
    for kind in [Kind::Greedy, Kind::Fair] {
        let limit = 3 * LIMIT;
        let (watched, pool) = pool(kind, limit);
        let runtime = runtime(&pool);
        let ctx = session::with_strait(config(2, 0), runtime, session::options());
        register(&ctx);
        let found = session::run(&ctx, nested).await;
        let found = found.unwrap_or_else(|error| panic!("{kind:?}, nested: {error}"));
        assert_same(&expected_nested, &found, &format!("{kind:?}, nested"));
        released(&pool, "nested").await;
        // Two queries at the same time.
        let (one, other) = tokio::join!(session::run(&ctx, FULL), session::run(&ctx, nested));
        let one = one.unwrap_or_else(|error| panic!("{kind:?}, at the same time: {error}"));
        let other = other.unwrap_or_else(|error| panic!("{kind:?}, at the same time: {error}"));
        assert_same(&expected_full, &one, &format!("{kind:?}, full"));
        assert_same(&expected_nested, &other, &format!("{kind:?}, nested at the same time"));
        released(&pool, "at the same time").await;
        assert!(watched.most() <= limit, "{kind:?}: the peak is {}", watched.most());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_consumer_takes_memory_while_the_join_runs() {
    let expected = expected(INNER).await;
    let (watched, pool) = pool(Kind::Greedy, 4 * LIMIT);
    let ctx = session::with_strait(config(2, 0), runtime(&pool), session::options());
    register(&ctx);
    let other = MemoryConsumer::new("another consumer").register(&pool);
    let frame = ctx.sql(INNER).await.expect("a query");
    let mut stream = frame.execute_stream().await.expect("a stream");
    let mut found = vec![stream.next().await.expect("a batch").expect("no error")];
    // All that is left: the join must go on with what it has.
    while other.try_grow(16 << 10).is_ok() {}
    while let Some(batch) = stream.next().await {
        found.push(batch.expect("the join goes on"));
    }
    assert_same(&expected, &found, "another consumer");
    drop(stream);
    other.free();
    released(&pool, "another consumer").await;
    assert!(watched.most() <= 4 * LIMIT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unnamed_files_leave_nothing() {
    let sql =
        "SELECT l.id, r.id, l.p, r.p FROM l FULL JOIN r ON l.k = r.k ORDER BY l.p, r.p, l.id, r.id";
    let expected = expected(sql).await;
    for threads in [1, 2] {
        let folder = tempfile::tempdir().expect("a folder");
        let (_, pool) = pool(Kind::Fair, 16 * LIMIT);
        let files = UnnamedFiles::new(TempFolders::new(vec![folder.path().to_path_buf()]));
        let disk = DiskManagerBuilder::default().with_temp_file_factory(Arc::new(files));
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::clone(&pool))
            .with_disk_manager_builder(disk)
            .build_arc()
            .expect("a runtime");
        let mut options = session::options();
        options.algorithm = "spill".to_string();
        let ctx = session::with_strait(config(threads, 0), runtime, options);
        register(&ctx);
        let plan = session::plan(&ctx, sql).await.expect("a plan");
        let mut stream =
            datafusion::physical_plan::execute_stream(Arc::clone(&plan), ctx.task_ctx())
                .expect("a stream");
        let mut found = Vec::new();
        let names = || std::fs::read_dir(folder.path()).expect("the folder exists").count();
        while let Some(batch) = stream.next().await {
            found.push(batch.unwrap_or_else(|error| panic!("{threads} threads: {error}")));
            assert_eq!(names(), 0, "a temporary file has a name");
        }
        assert!(counted(&plan, "spilled_bytes") > 0, "the join has not spilled");
        assert_same(&expected, &found, &format!("{threads} threads"));
        drop((stream, plan));
        released(&pool, "unnamed files").await;
        assert_eq!(names(), 0);
    }
}

/// DataFusion's option says how a join compresses what it writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spilled_rows_are_compressed() {
    let expected = expected(INNER).await;
    let mut written = Vec::new();
    for codec in ["uncompressed", "lz4_frame", "zstd"] {
        let (_, pool) = pool(Kind::Fair, 16 * LIMIT);
        let config = config(2, 0).set_str("datafusion.execution.spill_compression", codec);
        let mut options = session::options();
        options.algorithm = "spill".to_string();
        let ctx = session::with_strait(config, runtime(&pool), options);
        register(&ctx);
        let plan = session::plan(&ctx, INNER).await.expect("a plan");
        let found = collect(Arc::clone(&plan), ctx.task_ctx()).await.expect("no error");
        assert_same(&expected, &found, codec);
        written.push(counted(&plan, "spilled_bytes"));
        drop(plan);
        released(&pool, codec).await;
    }
    assert!(written.is_sorted_by(|more, less| more > less), "{written:?}");
}

#[test]
fn unnamed_files_are_read_on_a_runtime_with_one_thread() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let expected = expected(INNER).await;
        let (_, pool) = pool(Kind::Greedy, LIMIT);
        let files = UnnamedFiles::new(TempFolders::new(vec![std::env::temp_dir()]));
        let disk = DiskManagerBuilder::default().with_temp_file_factory(Arc::new(files));
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::clone(&pool))
            .with_disk_manager_builder(disk);
        let runtime = runtime.build_arc().expect("a runtime");
        let ctx = session::with_strait(config(2, 0), runtime, session::options());
        register(&ctx);
        let found = session::run(&ctx, INNER).await.expect("no error");
        assert_same(&expected, &found, "one thread");
        released(&pool, "one thread").await;
    });
}

/// Runs a join that needs more memory than its pool has, and returns the error.
async fn fails(disk: DiskManagerBuilder) -> DataFusionError {
    let (_, pool) = pool(Kind::Greedy, LIMIT);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::clone(&pool))
        .with_disk_manager_builder(disk)
        .build_arc()
        .expect("a runtime");
    let ctx = session::with_strait(config(2, 0), runtime, session::options());
    register(&ctx);
    let error = session::run(&ctx, INNER).await.expect_err("the join cannot spill");
    released(&pool, "after the error").await;
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_disk_manager_the_memory_is_exhausted() {
    let error = fails(DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled)).await;
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_an_error_that_says_so() {
    let limited = DiskManagerBuilder::default().with_max_temp_directory_size(300 << 10);
    let error = fails(limited).await.to_string();
    assert!(error.contains("max_temp_directory_size"), "{error}");
    let folders = TempFolders::new(vec![std::env::temp_dir()]).with_limit(Some(300 << 10));
    let files = Arc::new(UnnamedFiles::new(folders));
    let error =
        fails(DiskManagerBuilder::default().with_temp_file_factory(files)).await.to_string();
    assert!(error.to_lowercase().contains("limit"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().expect("a folder").path().join("missing");
    let files = Arc::new(UnnamedFiles::new(TempFolders::new(vec![folder.clone()])));
    let error =
        fails(DiskManagerBuilder::default().with_temp_file_factory(files)).await.to_string();
    assert!(error.contains(folder.to_str().expect("a path in UTF-8")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_join_that_fits_does_not_spill() {
    let (watched, pool) = pool(Kind::Greedy, 256 << 20);
    let ctx = session::with_strait(config(2, 0), runtime(&pool), session::options());
    register(&ctx);
    let plan = session::plan(&ctx, INNER).await.expect("a plan");
    let found = collect(Arc::clone(&plan), ctx.task_ctx()).await.expect("no error");
    assert_same(&expected(INNER).await, &found, "it fits");
    assert_eq!(counted(&plan, "spilled_bytes"), 0);
    drop(plan);
    // At once, not soon: the next query may need it.
    assert_eq!(pool.reserved(), 0, "the rows were returned before the memory");
    // The rows of the build side are in the pool's books.
    assert!(watched.most() > ROWS as usize * 16, "the peak is {}", watched.most());
}

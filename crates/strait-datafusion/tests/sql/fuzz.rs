//! Random queries over random tables: Strait and DataFusion return the same rows.
//!
//! A seed determines a case completely, except for the order in which threads run. `STRAIT_SQL_CASES` is the number of
//! cases, and `STRAIT_SEED` the first seed. A failing case prints the command that repeats it.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryPool, TrackConsumersPool, UnboundedMemoryPool,
};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, collect, displayable};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use fastrand::Rng;
use futures_util::StreamExt;
use strait_datafusion::StraitOptions;

use crate::dynamic_filter;
use crate::query::Query;
use crate::rows::{Rows, sequence, shown};
use crate::session::{self, Joins, PATIENCE, counted, setting};
use crate::tables::{Family, Shape, Sorted, Table, key_types};

/// The default number of cases.
const CASES: u64 = 400;

/// How long DataFusion's own joins may run.
const STOCK_PATIENCE: Duration = Duration::from_secs(5);

/// How the streams of a plan are polled.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Polling {
    /// One stream with all rows.
    Collected,
    /// One task per partition.
    Tasks,
    /// One partition after the other, in this order.
    InTurn { reversed: bool },
}

/// One case.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) query: Query,
    tables: Vec<Table>,
    shapes: Vec<Shape>,
    partitions: usize,
    batch_size: usize,
    /// Joins with more bytes and rows than this are partitioned.
    collected: usize,
    prefer_hash_join: bool,
    /// The orders of the tables.
    sorted: [Option<Sorted>; 3],
    restore_order: bool,
    sort_merge_joins: bool,
    algorithm: &'static str,
    memory: Memory,
    polling: Polling,
    parquet: Option<Parquet>,
}

/// The tables are Parquet files.
#[derive(Debug, Clone, Copy)]
struct Parquet {
    /// The rows of a row group.
    group: usize,
    /// Whether the decoder evaluates filters.
    pushdown: bool,
}

#[derive(Debug, Clone, Copy)]
enum Memory {
    Unlimited,
    Greedy(usize),
    Fair(usize),
}

impl Memory {
    fn random(rng: &mut Rng, large: bool) -> Memory {
        let bytes =
            if large { rng.usize(500_000..4_000_000) } else { rng.usize(4_000_000..64_000_000) };
        match rng.u8(..4) {
            0 => Memory::Unlimited,
            1 => Memory::Fair(bytes),
            _ => Memory::Greedy(bytes),
        }
    }

    fn pool(self) -> Arc<dyn MemoryPool> {
        let top = NonZeroUsize::new(5).expect("five is not zero");
        match self {
            Memory::Unlimited => Arc::new(UnboundedMemoryPool::default()),
            Memory::Greedy(bytes) => {
                Arc::new(TrackConsumersPool::new(GreedyMemoryPool::new(bytes), top))
            }
            Memory::Fair(bytes) => Arc::new(FairSpillPool::new(bytes)),
        }
    }
}

impl Case {
    pub(crate) fn random(seed: u64) -> Case {
        // The seeds of neighbours must not give similar first numbers.
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)).fork();
        let large = rng.u8(..16) == 0;
        let families: Vec<_> = (0..rng.usize(1..=3)).map(|_| Family::random(&mut rng)).collect();
        let types = key_types(&mut rng, &families);
        let shapes: Vec<_> = (0..3).map(|_| Shape::random(&mut rng, large)).collect();
        let tables = shapes.iter().zip(&types);
        let tables =
            tables.map(|(shape, types)| Table::random(&mut rng, &families, types, shape)).collect();
        let algorithms = ["auto", "auto", "auto", "no-partition", "radix", "spill", "spill"];
        Case {
            query: Query::random(&mut rng, &families),
            tables,
            shapes,
            partitions: rng.usize(1..=4),
            batch_size: [1, 3, 100, 8192][rng.usize(if large { 2..4 } else { 0..4 })],
            collected: [0, 1_000, 1 << 20][rng.usize(..3)],
            prefer_hash_join: rng.u8(..8) > 0,
            sorted: [(); 3].map(|()| match rng.u8(..6) {
                0 => Some(Sorted::Id),
                1 => Some(Sorted::Key),
                _ => None,
            }),
            restore_order: rng.u8(..4) > 0,
            sort_merge_joins: rng.u8(..4) > 0,
            algorithm: algorithms[rng.usize(..algorithms.len())],
            memory: Memory::random(&mut rng, large),
            polling: [
                Polling::Collected,
                Polling::Collected,
                Polling::Tasks,
                Polling::InTurn { reversed: false },
                Polling::InTurn { reversed: true },
            ][rng.usize(..5)],
            parquet: (rng.u8(..5) == 0).then(|| Parquet {
                group: [5, 30, 1000][rng.usize(if large { 2..3 } else { 0..3 })],
                pushdown: rng.bool(),
            }),
        }
    }

    /// Registers the tables in both sessions.
    async fn register(&self, sessions: [&SessionContext; 2], folder: &Path) -> Result<()> {
        for (number, table) in self.tables.iter().enumerate() {
            let name = format!("t{number}");
            let path = folder.join(format!("{name}.parquet"));
            let batches = table.partitions.iter().flatten();
            // Parquet has no place for some types.
            let written = self.parquet.is_some_and(|parquet| {
                dynamic_filter::write(&path, &table.schema, batches, parquet.group).is_ok()
            });
            for ctx in sessions {
                if written {
                    let path = path.to_str().expect("a path in UTF-8");
                    ctx.register_parquet(&name, path, ParquetReadOptions::default()).await?;
                } else {
                    ctx.register_table(&name, table.provider(self.sorted[number]))?;
                }
            }
        }
        Ok(())
    }

    fn config(&self) -> SessionConfig {
        let mut config = SessionConfig::new()
            .with_target_partitions(self.partitions)
            .with_batch_size(self.batch_size);
        // Sorts that need no more than they have rows.
        config.options_mut().execution.sort_spill_reservation_bytes = 16 << 10;
        config.options_mut().execution.parquet.pushdown_filters =
            self.parquet.is_some_and(|parquet| parquet.pushdown);
        let optimizer = &mut config.options_mut().optimizer;
        optimizer.hash_join_single_partition_threshold = self.collected;
        optimizer.hash_join_single_partition_threshold_rows = self.collected;
        optimizer.prefer_hash_join = self.prefer_hash_join;
        config
    }

    fn runtime(&self) -> Arc<RuntimeEnv> {
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(self.memory.pool());
        runtime.build_arc().expect("a runtime")
    }

    fn options(&self) -> StraitOptions {
        let mut options = session::options();
        options.algorithm = self.algorithm.to_string();
        options.restore_order = self.restore_order;
        options.sort_merge_joins = self.sort_merge_joins;
        options
    }
}

/// The facts about a case that has passed.
#[derive(Debug, Default)]
struct Outcome {
    joins: Joins,
    rows: usize,
    /// Queries with an `ORDER BY`.
    sorted: usize,
    spilled: usize,
    /// DataFusion itself cannot run the query, or not soon.
    invalid: bool,
    /// The limit is too small.
    exhausted: bool,
    limited: bool,
}

/// What went wrong.
struct Failure(String);

async fn check(case: &Case) -> Result<Outcome, Failure> {
    let stock = session::stock(case.config(), Arc::default());
    let runtime = case.runtime();
    let pool = Arc::clone(&runtime.memory_pool);
    let ctx = session::with_strait(case.config(), runtime, case.options());
    let folder = tempfile::tempdir().expect("a folder");
    case.register([&stock, &ctx], folder.path()).await.expect("the tables are registered");
    let all = case.query.without_limit();
    // In a task, because some of DataFusion's own operators panic for some types.
    let expected = SpawnedTask::spawn(async move { all.frame(&stock).await?.collect().await });
    // Some joins have too many rows for a test.
    let Ok(Ok(Ok(expected))) = tokio::time::timeout(STOCK_PATIENCE, expected.join()).await else {
        return Ok(Outcome { invalid: true, ..Outcome::default() });
    };
    let planned = match case.query.frame(&ctx).await {
        Ok(frame) => frame.create_physical_plan().await,
        Err(error) => Err(error),
    };
    let plan = planned.map_err(|error| Failure(format!("no plan: {error}")))?;
    let mut joins = session::joins(&plan);
    if !case.restore_order {
        // These joins are not replaced on purpose.
        joins.declined.retain(|why| !why.contains("strait.restore_order is false"));
    }
    if case.sort_merge_joins {
        joins.stock += joins.sort_merge;
    }
    let shown_plan = displayable(plan.as_ref()).indent(true).to_string();
    let told = |what: String| Failure(format!("{what}\n{shown_plan}"));
    session::sanity(&plan).map_err(|error| told(error.to_string()))?;
    let context = ctx.task_ctx();
    let running = execute(&plan, &context, case.polling);
    let found = match tokio::time::timeout(PATIENCE, running).await {
        Err(_) => return Err(told("it hangs".to_string())),
        Ok(found) => found,
    };
    let spilled = counted(&plan, "spilled_bytes");
    let schema = plan.schema();
    // Operators may keep memory as long as their plan.
    drop(plan);
    let limited = !matches!(case.memory, Memory::Unlimited);
    let mut outcome = Outcome { joins, spilled, limited, ..Outcome::default() };
    let found = match found {
        Ok(found) => found,
        Err(error) if limited && is_exhausted(&error) => {
            outcome.exhausted = true;
            session::released(&pool, "after an error").await;
            return Ok(outcome);
        }
        Err(error) => return Err(told(format!("it failed: {error}"))),
    };
    session::released(&pool, "after the query").await;
    let rows_of = if case.query.groups() { Rows::of_groups } else { Rows::of };
    let [all, rows] = [&expected, &found].map(|batches| rows_of(&schema, batches));
    outcome.rows = rows.len();
    let right = match case.query.limit() {
        None => all == rows,
        Some(limit) => rows.len() == all.len().min(limit) && rows.are_among(&all),
    };
    // Rows that are equal in the sorted columns may have any order.
    let sorted_by = case.query.sorted_by();
    let [mut of_all, of_found] = [&expected, &found].map(|batches| sequence(batches, sorted_by));
    of_all.truncate(of_found.len());
    match right && of_all == of_found {
        true => Ok(outcome),
        false => Err(told(format!("expected {}\nfound {}", shown(&expected), shown(&found)))),
    }
}

fn is_exhausted(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// Executes a plan, and polls its streams as told.
pub(crate) async fn execute(
    plan: &Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    polling: Polling,
) -> Result<Vec<RecordBatch>> {
    let partitions = plan.output_partitioning().partition_count();
    let stream = |partition| plan.execute(partition, Arc::clone(context));
    let mut batches = Vec::new();
    match polling {
        Polling::Collected => return collect(Arc::clone(plan), Arc::clone(context)).await,
        Polling::Tasks => {
            let streams = (0..partitions).map(stream).collect::<Result<Vec<_>>>()?;
            let drained = streams.into_iter().map(|mut stream| {
                SpawnedTask::spawn(async move {
                    let mut batches = Vec::new();
                    while let Some(batch) = stream.next().await {
                        batches.push(batch?);
                    }
                    Ok::<_, DataFusionError>(batches)
                })
            });
            for task in drained.collect::<Vec<_>>() {
                batches.extend(task.join().await.expect("no task panics")?);
            }
        }
        Polling::InTurn { reversed } => {
            let mut streams = (0..partitions).map(stream).collect::<Result<Vec<_>>>()?;
            if reversed {
                streams.reverse();
            }
            for mut stream in streams {
                while let Some(batch) = stream.next().await {
                    batches.push(batch?);
                }
            }
        }
    }
    Ok(batches)
}

#[test]
fn random_queries() {
    let cases = setting("STRAIT_SQL_CASES", CASES);
    let first = setting("STRAIT_SEED", 1);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut failures = Vec::new();
    let mut sum = Outcome::default();
    let (mut invalid, mut exhausted, mut limited) = (0, 0, 0);
    for seed in first..first + cases {
        let repeat = format!(
            "STRAIT_SEED={seed} STRAIT_SQL_CASES=1 cargo test -p strait-datafusion --test sql random_queries"
        );
        let case = Case::random(seed);
        if cases == 1 {
            println!("{:#?}", case.query);
        }
        let checked = catch_unwind(AssertUnwindSafe(|| runtime.block_on(check(&case))));
        let checked = checked.unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
            Err(Failure(format!("it panicked: {}", text.unwrap_or("with no message"))))
        });
        match checked {
            Ok(outcome) => {
                invalid += u64::from(outcome.invalid);
                exhausted += u64::from(outcome.exhausted);
                limited += u64::from(outcome.limited);
                sum.rows += outcome.rows;
                sum.spilled += outcome.spilled;
                sum.joins.replaced += outcome.joins.replaced;
                sum.joins.stock += outcome.joins.stock;
                sum.joins.declined.extend(outcome.joins.declined);
                sum.sorted += usize::from(case.query.sorted_by() > 0);
            }
            Err(Failure(failure)) => {
                let tables: Vec<_> = case.tables.iter().map(|table| &table.schema).collect();
                failures.push(format!(
                    "{failure}\n{:#?}\n{:?} {} {} {} partitions {}, batch size {}, collected {}, {}, {:?}, {:?}, {:?}\n{:?}\n{tables:?}\n\
                     repeat it with\n  {repeat}\n",
                    case.query, case.sorted, case.restore_order, case.sort_merge_joins,
                    case.prefer_hash_join, case.partitions, case.batch_size, case.collected, case.algorithm,
                    case.memory, case.polling, case.parquet, case.shapes,
                ));
            }
        }
        if failures.len() >= 10 {
            break;
        }
    }
    assert!(failures.is_empty(), "{} cases failed\n{}", failures.len(), failures.join("\n"));
    println!(
        "{cases} cases, {invalid} invalid, {exhausted} of {limited} limited ones exhausted, {} rows, {} sorted, {} bytes spilled, {:?}",
        sum.rows, sum.sorted, sum.spilled, sum.joins
    );
    if cases < 100 {
        return;
    }
    let replaced = sum.joins.replaced;
    let all = replaced + sum.joins.stock + sum.joins.declined.len();
    assert!(replaced * 100 >= all * 95, "{replaced} of {all} joins were replaced: {:?}", sum.joins);
    assert!(invalid * 10 <= cases, "DataFusion cannot run {invalid} of {cases} queries");
    assert!(exhausted * 20 <= limited, "{exhausted} of {limited} queries had too little memory");
    assert!(sum.spilled > 0, "no join has spilled");
    assert!(sum.sorted > 0, "no query has an order");
    assert!(sum.rows > 0, "no join has returned rows");
}

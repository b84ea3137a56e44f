//! The two engines: a session of `strait sql`, and DataFusion with its own joins and readers. One run of a query.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use arrow::array::RecordBatch;
use clap::ValueEnum;
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use strait::{Processor, TempFolders};
use strait_datafusion::{StraitJoinExec, UnnamedFiles};
use tokio::runtime::{Builder, Runtime};

use crate::arguments::{CsvArguments, NamedTable, Source, SpillArguments, TpchTable};
use crate::sql;

/// The joins of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Joins {
    DataFusion,
    Strait,
}

impl Joins {
    pub(super) const BOTH: [Joins; 2] = [Joins::DataFusion, Joins::Strait];

    pub(super) fn name(self) -> &'static str {
        match self {
            Joins::DataFusion => "datafusion",
            Joins::Strait => "strait",
        }
    }
}

/// The settings that both engines share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings<'a> {
    pub(super) tables: &'a Path,
    pub(super) temporary: &'a Path,
    pub(super) threads: usize,
    pub(super) memory: Option<u64>,
}

impl Settings<'_> {
    fn file(&self, table: TpchTable) -> PathBuf {
        self.tables.join(format!("{}.parquet", table.name()))
    }
}

/// An engine with all tables.
pub(super) enum Engine {
    /// As a program that uses DataFusion without changes.
    DataFusion(SessionContext, Runtime),
    /// As `strait sql`.
    Strait(sql::Session),
}

/// One run of a query.
pub(super) struct Run {
    pub(super) seconds: f64,
    pub(super) rows: Vec<RecordBatch>,
    pub(super) plan: Planned,
}

/// The joins of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Planned {
    /// The joins that Strait carries out.
    pub(super) replaced: usize,
    /// The other joins: why Strait declined them, or the names of their operators.
    pub(super) declined: Vec<String>,
    /// The bytes that all operators wrote to temporary files.
    pub(super) spilled: usize,
}

impl Engine {
    pub(super) fn open(joins: Joins, settings: Settings<'_>) -> anyhow::Result<Engine> {
        match joins {
            Joins::DataFusion => Engine::datafusion(settings),
            Joins::Strait => Engine::strait(settings),
        }
    }

    fn strait(settings: Settings<'_>) -> anyhow::Result<Engine> {
        let table = |table: &TpchTable| NamedTable {
            name: table.name().to_string(),
            source: Source::Path(settings.file(*table)),
        };
        let spill = SpillArguments {
            temp_dirs: vec![settings.temporary.to_path_buf()],
            ..SpillArguments::default()
        };
        Ok(Engine::Strait(sql::Session::new(&sql::Settings {
            tables: TpchTable::value_variants().iter().map(table).collect(),
            csv: CsvArguments::default(),
            threads: settings.threads,
            memory: settings.memory,
            // The rows of an answer are few. They are kept in memory, with both engines.
            writes: false,
            spill,
            device: Processor::Auto,
            gpu_memory: None,
        })?))
    }

    fn datafusion(settings: Settings<'_>) -> anyhow::Result<Engine> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(settings.threads)
            .enable_all()
            .build()
            .context("cannot start the threads of DataFusion")?;
        let config = SessionConfig::new().with_target_partitions(settings.threads);
        let files = UnnamedFiles::new(TempFolders::new(vec![settings.temporary.to_path_buf()]));
        let disk = DiskManagerBuilder::default().with_temp_file_factory(Arc::new(files));
        let mut environment = RuntimeEnvBuilder::new().with_disk_manager_builder(disk);
        if let Some(bytes) = settings.memory {
            let pool = FairSpillPool::new(usize::try_from(bytes).unwrap_or(usize::MAX));
            environment = environment.with_memory_pool(Arc::new(pool));
        }
        let context = SessionContext::new_with_config_rt(config, environment.build_arc()?);
        for &table in TpchTable::value_variants() {
            let path = settings.file(table);
            let path = path.to_str().context("the path of the tables is not valid UTF-8")?;
            let options = ParquetReadOptions::default();
            let registered =
                runtime.block_on(context.register_parquet(table.name(), path, options));
            registered.with_context(|| format!("cannot read {path}"))?;
        }
        Ok(Engine::DataFusion(context, runtime))
    }

    /// Plans and runs a query.
    pub(super) fn run(&self, sql: &str) -> anyhow::Result<Run> {
        let started = Instant::now();
        let (plan, context, runtime) = match self {
            Engine::DataFusion(session, runtime) => {
                let planned = async { session.sql(sql).await?.create_physical_plan().await };
                (runtime.block_on(planned)?, session.task_ctx(), runtime)
            }
            Engine::Strait(session) => {
                let statement = session.parse(sql)?.pop().context("a query is a statement")?;
                let query = session.plan(statement)?;
                (query.plan, query.context, session.runtime)
            }
        };
        let rows = runtime.block_on(collect(Arc::clone(&plan), context))?;
        let seconds = started.elapsed().as_secs_f64();
        let mut planned = Planned::default();
        planned.visit(&plan);
        Ok(Run { seconds, rows, plan: planned })
    }
}

impl Planned {
    fn visit(&mut self, plan: &Arc<dyn ExecutionPlan>) {
        match plan.downcast_ref::<StraitJoinExec>() {
            Some(join) => match join.declined() {
                Some(why) => self.declined.push(why.to_string()),
                None => self.replaced += 1,
            },
            // Strait replaces hash joins only.
            None if plan.name().ends_with("JoinExec") => {
                self.declined.push(plan.name().to_string())
            }
            None => {}
        }
        self.spilled += plan.metrics().and_then(|metrics| metrics.spilled_bytes()).unwrap_or(0);
        for child in plan.children() {
            self.visit(child);
        }
    }
}

//! A DataFusion session with or without Strait's joins, and one run of a query in it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use arrow::array::RecordBatch;
use clap::ValueEnum;
use datafusion::execution::SessionStateBuilder;
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use strait::TempFolders;
use strait_datafusion::{StraitJoinExec, UnnamedFiles, WithStrait};

use crate::arguments::TpchTable;

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

/// A session with all tables.
pub(super) struct Engine {
    context: SessionContext,
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
    pub(super) async fn open(joins: Joins, settings: Settings<'_>) -> anyhow::Result<Engine> {
        let config = SessionConfig::new().with_target_partitions(settings.threads);
        let files = UnnamedFiles::new(TempFolders::new(vec![settings.temporary.to_path_buf()]));
        let disk = DiskManagerBuilder::default().with_temp_file_factory(Arc::new(files));
        let mut runtime = RuntimeEnvBuilder::new().with_disk_manager_builder(disk);
        if let Some(bytes) = settings.memory {
            runtime = runtime.with_memory_pool(Arc::new(FairSpillPool::new(bytes as usize)));
        }
        let state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(Arc::new(runtime.build()?))
            .with_default_features();
        let state = match joins {
            Joins::Strait => state.with_strait(),
            Joins::DataFusion => state,
        };
        let context = SessionContext::new_with_state(state.build());
        for table in TpchTable::value_variants() {
            let name = table.name();
            let path = settings.tables.join(format!("{name}.parquet"));
            let path = path.to_str().context("the path of the tables is not valid UTF-8")?;
            let options = ParquetReadOptions::default();
            let registered = context.register_parquet(name, path, options).await;
            registered.with_context(|| format!("cannot read {path}"))?;
        }
        Ok(Engine { context })
    }

    /// Plans and runs a query.
    pub(super) async fn run(&self, sql: &str) -> anyhow::Result<Run> {
        let started = Instant::now();
        let plan = self.context.sql(sql).await?.create_physical_plan().await?;
        let rows = collect(Arc::clone(&plan), self.context.task_ctx()).await?;
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

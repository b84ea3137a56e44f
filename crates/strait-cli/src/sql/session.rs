//! A session: DataFusion with Strait's joins, limits on memory and disk, and tables in files.

use std::sync::Arc;

use anyhow::{Context, anyhow};
use datafusion::catalog::{DynamicFileCatalog, UrlTableFactory};
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{DataFusionError, TableReference};
use datafusion::config::{self, Dialect};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::logical_expr::{DdlStatement, LogicalPlan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::dialect::dialect_from_str;
use strait::{Processor, SpillCompression, TempFolders};
use strait_datafusion::{StraitOptions, UnnamedFiles, WithStrait};
use tokio::runtime::{Builder, Runtime};

use super::cancel::Cancel;
use super::explain::explained;
use super::held::{Held, HeldTables};
use super::tables::PathTables;
use crate::arguments::{CsvArguments, NamedTable, SpillArguments, SqlArguments};
use crate::memory::Memory;
use crate::{panics, spill};

/// The dialect of statements until a statement changes it.
pub(super) const DIALECT: Dialect = Dialect::Generic;

/// The schema whose tables list all tables. The prompt does not show these tables themselves.
const ABOUT_TABLES: &str = "information_schema";

/// The most memory that a sort keeps free to merge its runs, if memory is limited.
const MERGING: usize = 10 << 20;

/// The memory that a thread should have per row of a batch. With less memory, batches have fewer rows.
const MEMORY_PER_ROW: usize = 8 << 10;

/// The least batch size, in rows.
const LEAST_ROWS: usize = 1024;

/// Runs statements.
pub(crate) struct Session {
    context: SessionContext,
    pub(super) tables: Arc<PathTables>,
    /// The threads end with the process. A cancelled statement may keep one of them busy for a while.
    pub(crate) runtime: &'static Runtime,
    pub(super) threads: usize,
    pub(super) cancel: Cancel,
    held: HeldTables,
    limits: Limits,
}

/// The settings of a session.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) tables: Vec<NamedTable>,
    pub(crate) csv: CsvArguments,
    pub(crate) threads: usize,
    pub(crate) memory: Option<u64>,
    /// Whether statements may write files, which takes memory.
    pub(crate) writes: bool,
    pub(crate) spill: SpillArguments,
    pub(crate) device: Processor,
    pub(crate) gpu_memory: Option<u64>,
}

impl Settings {
    /// Returns the settings of `strait sql`.
    pub(super) fn of(arguments: &SqlArguments, writes: bool) -> Settings {
        Settings {
            tables: arguments.tables.clone(),
            csv: arguments.csv.clone(),
            threads: arguments.threads(),
            memory: arguments.memory,
            writes,
            spill: arguments.spill.clone(),
            device: arguments.device,
            gpu_memory: arguments.gpu_memory,
        }
    }
}

/// How `--memory` is divided.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// All memory, as the user gave it.
    all: Option<u64>,
    /// For the operators of statements.
    statements: Option<u64>,
    /// For the output.
    output: Option<u64>,
}

/// A statement that is planned.
pub(crate) struct Query {
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    pub(crate) context: Arc<TaskContext>,
    pub(super) kind: Kind,
}

/// What a statement returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Rows,
    /// The rows of `EXPLAIN`, whose values are texts of many lines.
    Plan,
    /// Nothing: the statement has been carried out.
    Nothing,
}

impl Session {
    /// Opens the tables of `--table`.
    pub(crate) fn new(settings: &Settings) -> anyhow::Result<Session> {
        for folder in &settings.spill.temp_dirs {
            spill::check(
                folder,
                &format!("--temp-dir {}", folder.display()),
                "name another folder",
            )?;
        }
        let (threads, limits) = (settings.threads, Limits::of(settings.memory, settings.writes));
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("strait-sql")
            .on_thread_start(panics::log_here)
            .enable_all()
            .build()
            .context("cannot start threads")?;
        let runtime: &'static Runtime = Box::leak(Box::new(runtime));
        let tables = Arc::new(PathTables::new(&settings.csv, limits.all.is_none()));
        let state = SessionStateBuilder::new()
            .with_config(config(settings, limits.statements))
            .with_runtime_env(environment(settings, limits.statements)?)
            .with_default_features()
            .with_strait()
            .build();
        let catalogs = Arc::clone(state.catalog_list());
        let by_path = Arc::clone(&tables) as Arc<dyn UrlTableFactory>;
        let state = SessionStateBuilder::from(state)
            .with_catalog_list(Arc::new(DynamicFileCatalog::new(catalogs, by_path)))
            .build();
        let context = SessionContext::new_with_state(state);
        for table in &settings.tables {
            let opened = tables.open(&table.source)?;
            context
                .register_table(TableReference::bare(table.name.as_str()), opened)
                .map_err(|error| anyhow!("--table {}: {error}", table.name))?;
        }
        let held = HeldTables::new(&context.runtime_env().memory_pool);
        let cancel = Cancel::new();
        Ok(Session { context, tables, runtime, threads, cancel, held, limits })
    }

    /// Parses statements in the dialect of the session.
    pub(crate) fn parse(&self, text: &str) -> anyhow::Result<Vec<Statement>> {
        parse(text, self.context.state().config_options().sql_parser.dialect)
    }

    /// Plans a statement. Carries it out if it returns no rows.
    pub(crate) fn plan(&self, statement: Statement) -> anyhow::Result<Query> {
        self.planned(statement, false)
    }

    /// Plans a statement that must return rows.
    pub(super) fn plan_rows(&self, statement: Statement) -> anyhow::Result<Query> {
        self.planned(statement, true)
    }

    fn planned(&self, statement: Statement, must_return_rows: bool) -> anyhow::Result<Query> {
        let planning = async {
            self.held.count().await;
            let logical = self.context.state().statement_to_plan(statement).await?;
            // DataFusion's `COPY` could replace files without a question.
            let copies = logical.exists(|plan| Ok(matches!(plan, LogicalPlan::Copy(_))))?;
            if copies {
                let why = "COPY cannot be a part of another statement; put it alone";
                return Err(DataFusionError::Plan(why.to_string()));
            }
            let kind = match &logical {
                LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) => Kind::Plan,
                LogicalPlan::Ddl(_) | LogicalPlan::Statement(_) => Kind::Nothing,
                _ => Kind::Rows,
            };
            if must_return_rows && kind != Kind::Rows {
                return Err(DataFusionError::Plan("the statement returns no rows".to_string()));
            }
            if let LogicalPlan::Ddl(DdlStatement::CreateExternalTable(table)) = &logical {
                self.tables.remember(&table.locations);
            }
            let (logical, held) = self.holding(logical).await?;
            let frame = self.context.execute_logical_plan(logical).await?;
            match held {
                Some(held) => self.held.keep(held, &self.context).await?,
                None if kind == Kind::Nothing => self.held.count().await,
                None => {}
            }
            // `EXECUTE` may return rows. Other statements of this kind return none.
            let kind = match kind {
                Kind::Nothing if !frame.schema().fields().is_empty() => Kind::Rows,
                kind => kind,
            };
            let context = Arc::new(frame.task_ctx());
            Ok(Query { plan: frame.create_physical_plan().await?, context, kind })
        };
        let planned = self.runtime.block_on(self.cancel.race(planning))?;
        planned.map_err(|error| self.explained(&error))
    }

    /// If memory is limited and a statement creates a table in memory, reads the rows of the table, and reserves their
    /// memory.
    async fn holding(
        &self,
        logical: LogicalPlan,
    ) -> datafusion::error::Result<(LogicalPlan, Option<Held>)> {
        let LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(mut create)) = logical else {
            return Ok((logical, None));
        };
        let held = match self.limits.all {
            Some(_) => self.held.read(&mut create, &self.context).await?,
            None => None,
        };
        Ok((LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)), held))
    }

    /// Turns an error of DataFusion into a message.
    pub(super) fn explained(&self, error: &datafusion::error::DataFusionError) -> anyhow::Error {
        explained(error, &self.table_names(), self.limits.all)
    }

    /// Returns the names of all tables and views.
    pub(super) fn table_names(&self) -> Vec<String> {
        let state = self.context.state();
        let default = &state.config_options().catalog;
        let Some(catalog) = self.context.catalog(&default.default_catalog) else {
            return Vec::new();
        };
        let mut names = Vec::new();
        for schema in catalog.schema_names().iter().filter(|name| *name != ABOUT_TABLES) {
            let Some(tables) = catalog.schema(schema) else { continue };
            names.extend(tables.table_names().into_iter().map(|table| {
                match *schema == default.default_schema {
                    true => table,
                    false => format!("{schema}.{table}"),
                }
            }));
        }
        names.sort();
        names
    }

    /// Returns the columns of a table, which may be a path: their names and types.
    pub(super) fn columns(&self, table: &str) -> anyhow::Result<Vec<(String, String)>> {
        let listed = self.table_names().iter().any(|name| name == table);
        let reference = match listed && table.contains('.') {
            true => TableReference::from(table),
            false => TableReference::bare(table),
        };
        let found = self.runtime.block_on(self.context.table_provider(reference));
        let found = found.map_err(|error| self.explained(&error))?;
        let fields = found.schema();
        let column = |field: &Arc<arrow::datatypes::Field>| {
            let null = if field.is_nullable() { "" } else { " not null" };
            (field.name().clone(), format!("{}{null}", field.data_type()))
        };
        Ok(fields.fields().iter().map(column).collect())
    }

    /// Returns the memory for the output.
    pub(super) fn memory_for_output(&self) -> Memory {
        Memory::new(self.limits.output).for_writing()
    }
}

impl Limits {
    fn of(all: Option<u64>, writes: bool) -> Limits {
        let output = all.filter(|_| writes).map(|all| all / 4);
        Limits { all, statements: all.map(|all| all - output.unwrap_or(0)), output }
    }
}

/// Parses statements that are separated by semicolons.
pub(super) fn parse(text: &str, dialect: Dialect) -> anyhow::Result<Vec<Statement>> {
    let dialect = dialect_from_str(dialect).context("an unknown dialect")?;
    let parser = DFParserBuilder::new(text).with_dialect(dialect.as_ref()).build();
    let statements = parser.and_then(|mut parser| parser.parse_statements());
    statements.map(Vec::from).map_err(|error| explained(&error, &[], None))
}

fn config(settings: &Settings, memory: Option<u64>) -> SessionConfig {
    let threads = settings.threads;
    let mut strait = StraitOptions::default();
    strait.device = settings.device.to_string();
    strait.gpu_memory = settings.gpu_memory.unwrap_or(0);
    // DataFusion's own joins cannot spill.
    strait.restore_order = memory.is_some();
    let mut config = SessionConfig::new()
        .with_target_partitions(threads)
        .with_information_schema(true)
        .with_option_extension(strait);
    let options = config.options_mut();
    // Messages need the positions of names in a statement.
    options.sql_parser.collect_spans = true;
    if let Some(compression) = settings.spill.spill_compression {
        // Strait's joins and DataFusion's operators read this option.
        options.execution.spill_compression = match compression {
            SpillCompression::Lz4 => config::SpillCompression::Lz4Frame,
            SpillCompression::Zstd => config::SpillCompression::Zstd,
            _ => config::SpillCompression::Uncompressed,
        };
    }
    if let Some(memory) = memory {
        let share = usize::try_from(memory).unwrap_or(usize::MAX) / threads.max(1);
        options.execution.sort_spill_reservation_bytes = (share / 8).min(MERGING);
        // A sort needs memory for several batches at once.
        let rows = (share / MEMORY_PER_ROW).clamp(LEAST_ROWS, options.execution.batch_size.get());
        config = config.with_batch_size(rows);
    }
    config
}

fn environment(settings: &Settings, memory: Option<u64>) -> anyhow::Result<Arc<RuntimeEnv>> {
    let folders = TempFolders::new(settings.spill.temp_dirs.clone());
    let files = UnnamedFiles::new(folders.with_limit(settings.spill.disk));
    let disk = match settings.spill.no_spill {
        true => DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled),
        false => DiskManagerBuilder::default().with_temp_file_factory(Arc::new(files)),
    };
    // Files may change between two statements of the prompt, so listings are not kept.
    let mut environment =
        RuntimeEnvBuilder::new().with_disk_manager_builder(disk).with_object_list_cache_limit(0);
    if let Some(limit) = memory {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        environment = environment.with_memory_pool(Arc::new(FairSpillPool::new(limit)));
    }
    #[cfg(feature = "object-stores")]
    let environment =
        environment.with_object_store_registry(Arc::new(super::stores::Stores::default()));
    environment.build_arc().map_err(|error| anyhow!("cannot start SQL: {error}"))
}

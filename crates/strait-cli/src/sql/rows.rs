//! Tables that Strait's own readers read: CSV, JSON lines, Arrow IPC, stdin, and files of web servers.
//!
//! All partitions of a scan share one [`SharedRows`]. Each batch goes to the partition that asks first.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Statistics, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{
    Boundedness, ChildrenPropertiesMode, EmissionType, ReplaceChildrenOptions, SchedulingType,
};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::{
    RecordBatchReceiverStreamBuilder, RecordBatchStreamAdapter,
};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties,
};

use futures_util::TryStreamExt;

use super::tables::told;
use crate::input::{InputTable, SharedRows};

/// The most batches that wait per partition.
const WAITING: usize = 2;

/// A table that Strait reads.
struct RowsTable {
    name: String,
    schema: SchemaRef,
    file_bytes: Option<u64>,
    /// `None` after a stream on stdin was read.
    table: Mutex<Option<InputTable>>,
}

impl RowsTable {
    fn new(table: InputTable) -> RowsTable {
        RowsTable {
            name: table.name.clone(),
            // The batches have no metadata, so the schema has none.
            schema: Arc::new(Schema::new(table.schema().fields().clone())),
            file_bytes: table.file_bytes(),
            table: Mutex::new(Some(table)),
        }
    }

    /// Begins to read the table.
    fn read(&self, columns: &[usize], threads: usize) -> Result<SharedRows> {
        let mut kept = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let again = kept.as_ref().and_then(InputTable::again);
        match again.or_else(|| kept.take()) {
            Some(table) => Ok(table.shared(columns, threads)),
            None => Err(told(format!(
                "{} can be read only once; write the rows to a file first, or use CREATE TABLE name AS SELECT * FROM '-'",
                self.name
            ))),
        }
    }
}

impl fmt::Debug for RowsTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowsTable").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A table for DataFusion. Its scans share it.
#[derive(Debug)]
pub(super) struct SharedTable(Arc<RowsTable>);

impl SharedTable {
    pub(super) fn new(table: InputTable) -> SharedTable {
        SharedTable(Arc::new(RowsTable::new(table)))
    }
}

#[async_trait]
impl TableProvider for SharedTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.0.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all = || (0..self.0.schema.fields().len()).collect();
        let columns = projection.cloned().unwrap_or_else(all);
        // With a limit, one partition reads the table. So the rows are the first rows of the file.
        let partitions = if limit.is_some() { 1 } else { state.config().target_partitions() };
        Ok(Arc::new(RowsExec::new(Arc::clone(&self.0), columns, partitions)?))
    }
}

/// Reads columns of a table.
#[derive(Debug)]
struct RowsExec {
    table: Arc<RowsTable>,
    columns: Vec<usize>,
    properties: Arc<PlanProperties>,
    running: Mutex<Running>,
    metrics: ExecutionPlanMetricsSet,
}

/// The rows of an execution, and the partitions that have begun to read them.
#[derive(Default)]
struct Running {
    rows: Option<Arc<SharedRows>>,
    begun: Vec<usize>,
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("begun", &self.begun).finish_non_exhaustive()
    }
}

impl RowsExec {
    fn new(table: Arc<RowsTable>, columns: Vec<usize>, partitions: usize) -> Result<RowsExec> {
        let schema = Arc::new(table.schema.project(&columns)?);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        Ok(RowsExec {
            table,
            columns,
            properties: Arc::new(properties),
            running: Mutex::default(),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    /// Returns the rows that a partition shares with the other partitions. If the partition was executed before, a new
    /// execution begins.
    fn rows(&self, partition: usize) -> Result<Arc<SharedRows>> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.begun.contains(&partition) {
            *running = Running::default();
        }
        running.begun.push(partition);
        if let Some(rows) = &running.rows {
            return Ok(Arc::clone(rows));
        }
        let threads = self.properties.output_partitioning().partition_count();
        Ok(Arc::clone(running.rows.insert(Arc::new(self.table.read(&self.columns, threads)?))))
    }
}

impl DisplayAs for RowsExec {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let schema = self.schema();
        let columns: Vec<&str> = schema.fields().iter().map(|field| &**field.name()).collect();
        match t {
            DisplayFormatType::TreeRender => writeln!(f, "{}", self.table.name),
            _ => write!(f, "RowsExec: {}, columns=[{}]", self.table.name, columns.join(", ")),
        }
    }
}

impl ExecutionPlan for RowsExec {
    fn name(&self) -> &'static str {
        "RowsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match children.is_empty() {
            true => Ok(self),
            false => internal_err!("a table has no inputs"),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let partitions = self.properties.output_partitioning().partition_count();
        let (table, columns) = (Arc::clone(&self.table), self.columns.clone());
        Ok(Arc::new(RowsExec::new(table, columns, partitions)?))
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let rows = self.rows(partition)?;
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let schema = self.schema();
        // A reading thread is started when the first row is needed. Otherwise, tables that are read later could take all
        // threads of the runtime.
        let start = async move {
            let mut stream = RecordBatchReceiverStreamBuilder::new(schema, WAITING);
            let sender = stream.tx();
            stream.spawn_blocking(move || {
                loop {
                    let read = {
                        let _time = metrics.elapsed_compute().timer();
                        rows.next().map_err(DataFusionError::from)?
                    };
                    let Some(batch) = read else { return Ok(()) };
                    metrics.record_output(batch.num_rows());
                    // The receiver is gone if the statement needs no more rows, or is cancelled.
                    if sender.blocking_send(Ok(batch)).is_err() {
                        return Ok(());
                    }
                }
            });
            Ok::<_, DataFusionError>(stream.build())
        };
        let batches = futures_util::stream::once(start).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema());
        // The planner needs sizes to choose which side of a join is held in memory. Text takes about as many bytes in
        // memory as on disk.
        let bytes = self.table.file_bytes.filter(|_| args.partition().is_none());
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        if let Some(bytes) = bytes {
            let all = self.table.schema.fields().len().max(1);
            let share = bytes / all * self.columns.len().max(1);
            statistics.total_byte_size = Precision::Inexact(share);
        }
        Ok(Arc::new(statistics))
    }
}

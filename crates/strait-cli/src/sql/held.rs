//! The tables that `CREATE TABLE` keeps in memory. If memory is limited, their rows count as long as they are kept.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use datafusion::catalog::TableProvider;
use datafusion::common::TableReference;
use datafusion::common::utils::memory::RecordBatchMemoryCounter;
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::logical_expr::{CreateMemoryTable, LogicalPlanBuilder};
use datafusion::prelude::SessionContext;
use futures_util::StreamExt;

/// All tables in memory, and the reservation of their rows.
#[derive(Debug)]
pub(super) struct HeldTables {
    memory: MemoryReservation,
    tables: Mutex<Vec<Weak<dyn TableProvider>>>,
}

/// A table that is being created, and the reservation of its rows.
pub(super) struct Held {
    name: TableReference,
    _memory: MemoryReservation,
}

impl HeldTables {
    pub(super) fn new(pool: &Arc<dyn MemoryPool>) -> HeldTables {
        let memory = MemoryConsumer::new("tables in memory").register(pool);
        HeldTables { memory, tables: Mutex::default() }
    }

    fn tables(&self) -> MutexGuard<'_, Vec<Weak<dyn TableProvider>>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the rows of a new table, and reserves their memory while it reads. The statement then takes the rows from
    /// memory. Returns `None` if the table exists already and the statement does not replace it.
    pub(super) async fn read(
        &self,
        create: &mut CreateMemoryTable,
        context: &SessionContext,
    ) -> Result<Option<Held>> {
        if !create.or_replace && context.table_exist(create.name.clone())? {
            return Ok(None);
        }
        let name = create.name.clone();
        let consumer = MemoryConsumer::new(format!("table {name}"));
        let memory = consumer.register(&context.runtime_env().memory_pool);
        let frame = context.execute_logical_plan(create.input.as_ref().clone()).await?;
        let mut stream = frame.execute_stream().await?;
        let (schema, mut batches) = (stream.schema(), Vec::new());
        // Batches may be slices of one large batch.
        let mut counter = RecordBatchMemoryCounter::new();
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            memory.try_grow(counter.count_batch(&batch))?;
            batches.push(batch);
        }
        let rows = provider_as_source(Arc::new(MemTable::try_new(schema, vec![batches])?));
        create.input = Arc::new(LogicalPlanBuilder::scan("rows", rows, None)?.build()?);
        Ok(Some(Held { name, _memory: memory }))
    }

    /// Remembers a table that has been created.
    pub(super) async fn keep(&self, held: Held, context: &SessionContext) -> Result<()> {
        let table = context.table_provider(held.name).await?;
        self.tables().push(Arc::downgrade(&table));
        drop(table);
        self.count().await;
        Ok(())
    }

    /// Counts the memory of all tables again, because a statement may have dropped tables or inserted rows. A dropped
    /// table still counts if a view reads it. Rows that several tables share count once.
    pub(super) async fn count(&self) {
        let tables: Vec<_> = {
            let mut tables = self.tables();
            tables.retain(|table| table.strong_count() > 0);
            tables.iter().filter_map(Weak::upgrade).collect()
        };
        let mut counter = RecordBatchMemoryCounter::new();
        for table in &tables {
            let Some(table) = table.downcast_ref::<MemTable>() else { continue };
            for partition in &table.batches {
                for batch in partition.read().await.iter() {
                    counter.count_batch(batch);
                }
            }
        }
        self.memory.resize(counter.memory_usage());
    }
}

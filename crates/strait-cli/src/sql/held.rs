//! The tables that `CREATE TABLE` keeps in memory. If memory is limited, their rows count.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::logical_expr::{CreateMemoryTable, LogicalPlanBuilder};
use datafusion::prelude::SessionContext;
use futures_util::StreamExt;

/// The reservations of all tables in memory, by name.
#[derive(Debug, Default)]
pub(super) struct HeldTables(Mutex<HashMap<String, MemoryReservation>>);

/// A table that is being created, and the reservation of its rows.
pub(super) struct Held {
    name: String,
    memory: MemoryReservation,
}

impl HeldTables {
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
        let name = create.name.to_string();
        let consumer = MemoryConsumer::new(format!("table {name}"));
        let memory = consumer.register(&context.runtime_env().memory_pool);
        let frame = context.execute_logical_plan(create.input.as_ref().clone()).await?;
        let mut stream = frame.execute_stream().await?;
        let (schema, mut batches) = (stream.schema(), Vec::new());
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            memory.try_grow(get_record_batch_memory_size(&batch))?;
            batches.push(batch);
        }
        let rows = provider_as_source(Arc::new(MemTable::try_new(schema, vec![batches])?));
        create.input = Arc::new(LogicalPlanBuilder::scan("rows", rows, None)?.build()?);
        Ok(Some(Held { name, memory }))
    }

    /// Keeps the reservation of a table that has been created. Releases those of tables that no longer exist.
    pub(super) fn settle(&self, held: Option<Held>, context: &SessionContext) {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Held { name, memory }) = held {
            tables.insert(name, memory);
        }
        tables.retain(|name, _| context.table_exist(name.as_str()).unwrap_or(true));
    }
}

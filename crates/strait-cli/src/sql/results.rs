//! Runs planned statements, and writes or shows their rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, anyhow};
use arrow::array::{Array, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::{ExecutionPlanProperties, execute_stream};
use futures_util::StreamExt;
use tokio::task::JoinHandle;

use super::session::{Kind, Query, Session};
use crate::digits::{counted, grouped};
use crate::memory::Memory;
use crate::output::{Preview, Sink};
use crate::panics::caught;

/// If a plan has more partitions per thread than this, its rows are read as one stream.
const PARTITIONS: usize = 4;

/// Runs a statement, and writes its rows. Returns their number.
pub(super) fn write(session: &Session, query: Query, sink: Sink) -> anyhow::Result<u64> {
    let sink = Arc::new(sink);
    let partitions = query.plan.output_partitioning().partition_count();
    let rows = match partitions {
        2.. if partitions <= PARTITIONS * session.threads => {
            write_partitions(session, &query, &sink)?
        }
        _ => write_in_order(session, &query, &sink)?,
    };
    drop(query);
    Arc::into_inner(sink).context("a thread still writes")?.finish()?;
    Ok(rows)
}

/// Writes the partitions of a plan at the same time. The order of their rows does not matter.
fn write_partitions(session: &Session, query: &Query, sink: &Sink) -> anyhow::Result<u64> {
    let (rows, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let failure: Mutex<Option<anyhow::Error>> = Mutex::default();
    let partitions = query.plan.output_partitioning().partition_count();
    let streams = {
        let _runtime = session.runtime.enter();
        let stream = |partition| query.plan.execute(partition, Arc::clone(&query.context));
        let streams = (0..partitions).map(stream).collect::<Result<Vec<_>, _>>();
        streams.map_err(|error| session.explained(&error))?
    };
    std::thread::scope(|scope| {
        for stream in streams {
            scope.spawn(|| {
                let written = read(session, stream, |batch| {
                    rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
                    sink.write(&batch).map(|()| !failed.load(Ordering::Relaxed))
                });
                if let Err(error) = written {
                    failed.store(true, Ordering::Relaxed);
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            });
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failure) => Err(failure),
        None => Ok(rows.into_inner()),
    }
}

/// Writes the rows in the order of the plan. Other threads encode them.
fn write_in_order(session: &Session, query: &Query, sink: &Arc<Sink>) -> anyhow::Result<u64> {
    let mut rows = 0;
    let mut encoding: Vec<JoinHandle<anyhow::Result<()>>> = Vec::new();
    in_order(session, query, |batch| {
        rows += batch.num_rows() as u64;
        sink.write_in_order(batch)?;
        for ended in encoding.extract_if(.., |thread| thread.is_finished()) {
            session.runtime.block_on(ended)??;
        }
        if encoding.len() + 1 < session.threads {
            let sink = Arc::clone(sink);
            encoding.push(session.runtime.spawn_blocking(move || sink.encode_ordered()));
        }
        Ok(())
    })?;
    for thread in encoding {
        session.runtime.block_on(thread)??;
    }
    Ok(rows)
}

/// Runs a statement, and passes on its rows in the order of the plan.
pub(super) fn in_order(
    session: &Session,
    query: &Query,
    mut take: impl FnMut(RecordBatch) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let stream = {
        let _runtime = session.runtime.enter();
        execute_stream(Arc::clone(&query.plan), Arc::clone(&query.context))
    };
    let stream = stream.map_err(|error| session.explained(&error))?;
    read(session, stream, |batch| take(batch).map(|()| true))
}

/// Reads a stream as long as `take` returns true.
fn read(
    session: &Session,
    mut stream: SendableRecordBatchStream,
    mut take: impl FnMut(RecordBatch) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    // Damaged files make DataFusion's readers panic in some places.
    let mut next = || {
        let next = caught(|| session.runtime.block_on(session.cancel.race(stream.next())));
        next.unwrap_or_else(|why| Err(anyhow!(why)))
    };
    while let Some(batch) = next()? {
        let batch = batch.map_err(|error| session.explained(&error))?;
        if batch.num_rows() > 0 && !take(batch)? {
            break;
        }
    }
    // Dropping a stream may end tasks, which needs the runtime.
    let _runtime = session.runtime.enter();
    drop(stream);
    Ok(())
}

/// Runs a statement. Returns a text with a table of up to `shown` rows, and with the number of rows.
pub(super) fn shown(session: &Session, query: &Query, shown: usize) -> anyhow::Result<String> {
    match query.kind {
        Kind::Nothing => Ok(String::new()),
        Kind::Plan => plan(session, query),
        Kind::Rows => {
            let schema = query.plan.schema();
            let mut preview = Preview::new(&schema, shown, &Memory::new(None))?;
            let mut rows = 0;
            in_order(session, query, |batch| {
                rows += batch.num_rows() as u64;
                preview.add(&batch)
            })?;
            let (mut text, hidden) = preview.render();
            let rows = match preview.rows() as u64 {
                shown if shown < rows => {
                    format!("first {} of {}", grouped(shown), counted(rows, "row"))
                }
                _ => counted(rows, "row"),
            };
            let columns = counted(schema.fields().len() as u64, "column");
            let hidden = match hidden {
                0 => String::new(),
                hidden => format!(" ({hidden} not shown; name fewer columns after SELECT)"),
            };
            text.push_str(&format!("\n{rows}, {columns}{hidden}\n"));
            Ok(text)
        }
    }
}

/// Returns the plans that EXPLAIN returns. Each has a name and a text of many lines.
fn plan(session: &Session, query: &Query) -> anyhow::Result<String> {
    let mut text = String::new();
    in_order(session, query, |batch| {
        let texts = batch.columns().iter().map(|column| cast(column, &DataType::Utf8));
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        let texts: Option<Vec<&StringArray>> =
            texts.iter().map(|column| column.as_any().downcast_ref()).collect();
        let texts = texts.ok_or_else(|| anyhow!("the plan is not text"))?;
        for row in 0..batch.num_rows() {
            for column in texts.iter().filter(|column| column.is_valid(row)) {
                text.push_str(column.value(row).trim_end());
                text.push('\n');
            }
        }
        Ok(())
    })?;
    Ok(text)
}

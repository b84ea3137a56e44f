//! Joins of tables in GPU memory. The rows stay in GPU memory.
//!
//! A single payload column per table is inlined. With several payload columns, the conductor returns row
//! numbers, and the payload is gathered for each block.

use std::time::Instant;

use super::{Block, BlockReceiver, GpuTable, JoinRequest, Joined, OpenGpu, ResultKind, Usage};
use crate::algorithm::gpu::{self, DeviceJoinResult, PairsOnly, learned_of_device};
use crate::device::{DeviceStage, Event, Session, View, abi};
use crate::error::{Error, Result};
use crate::key::KeyEncoding;
use crate::machine::Machine;
use crate::options::{Algorithm, JoinType};
use crate::plan::{
    BeforeSurvey, Facts, GpuCandidate, HostMemory, InGpuMemory, JobCosts, Plan, Request,
    Statistics, choose,
};

/// Joins two tables in GPU memory, build side first. The clock starts with the call, and stops when the last
/// row is in GPU memory and the receiver has returned.
pub fn join_in_gpu_memory(
    tables: [&GpuTable; 2],
    request: &JoinRequest,
    to: &mut dyn BlockReceiver,
) -> Result<Joined> {
    let [build, probe] = tables;
    OpenGpu::check_pair(tables.map(|table| (&table.gpu, table.word)))?;
    let result = request.result;
    let inlined = result.needs_payload() && tables.iter().all(|table| table.payload.len() == 1);
    if result == ResultKind::Aggregate && !inlined {
        let what = "a join in GPU memory adds up one payload column per table";
        return Err(Error::invalid_option("payload-columns", what, "give --payload-columns 1"));
    }
    let BeforeSurvey { algorithm, survey } = planned(build, request.algorithm);
    let mut plan = plan(tables, algorithm, request);
    let wanted = result.wanted(probe.rows);
    let started = Instant::now();
    let session = build.gpu.session(build.word.width(), request.hash_seed)?;
    let gather = result == ResultKind::Materialise && !inlined;
    let mut passed_on = PassedOn { tables, gather, to };
    let sides = [&build.side(inlined), &probe.side(inlined)];
    let DeviceJoinResult { found, algorithm } =
        gpu::join(&session, &mut plan, survey, sides, &wanted, &mut passed_on)?;
    session.device.synchronize(session.compute)?;
    let usage = Usage::of(&session, started.elapsed().as_secs_f64())?;
    let sums = (result == ResultKind::Aggregate).then_some([found.build_sum, found.probe_sum]);
    Ok(Joined { algorithm, rows: found.rows, sums, usage })
}

/// Returns the algorithm that the caller asked for, or else the one that the planner chooses.
fn planned(build: &GpuTable, asked: Option<Algorithm>) -> BeforeSurvey {
    if let Some(algorithm) = asked {
        return BeforeSurvey { algorithm, survey: false };
    }
    let word = build.word.width();
    let l2 = build.gpu.device.shape(word).l2;
    InGpuMemory { build_rows: build.rows, word, l2 }.before_survey()
}

/// Returns the plan of a join of these tables by an algorithm.
fn plan([build, probe]: [&GpuTable; 2], algorithm: Algorithm, request: &JoinRequest) -> Plan {
    let (word, device) = (build.word.width(), &build.gpu.device);
    let facts = Facts {
        gpu_options: request.gpu_options,
        learned: learned_of_device(&**device),
        ..Facts::of_columns(word, request.result.yields(), &Machine::detect())
    };
    choose(Request {
        asked: Some(algorithm),
        partitioner: request.gpu_options.partitioner,
        join_type: JoinType::Inner,
        build_side: None,
        build: Statistics::rows(build.rows),
        probe: Statistics::rows(probe.rows),
        threads: build.gpu.workers.threads(),
        limit: None,
        prompt: false,
        costs: JobCosts::none(),
        key: KeyEncoding::of_words(word),
        facts,
        device: Some(GpuCandidate {
            name: device.name().to_string(),
            budget: device.memory().budget,
            asked: true,
            open: true,
            row_bytes: word.bytes(),
            // Nothing crosses the link, so this does not matter.
            columns: HostMemory::Pinned,
        }),
    })
}

/// Passes blocks on to the caller's receiver.
struct PassedOn<'a> {
    tables: [&'a GpuTable; 2],
    /// Whether the block has row numbers, and the payload is still to be gathered.
    gather: bool,
    to: &'a mut dyn BlockReceiver,
}

impl PairsOnly for PassedOn<'_> {
    fn block(&mut self, session: &Session<'_>, block: gpu::OutputBlock) -> Result<Option<Event>> {
        let columns = match self.gather {
            true => self.gathered(session, &block)?,
            false => [block.build, block.probe].map(|v| (v, session.word.bytes() as usize)).into(),
        };
        let keys = Some(block.keys).filter(|keys| keys.bytes > 0);
        self.to.block(&Block::in_gpu_memory(session, block.rows, keys, &columns))?;
        if self.gather {
            let views: Vec<View> = columns.iter().map(|column| column.0).collect();
            session.release(&views)?;
        }
        Ok(None)
    }
}

impl PassedOn<'_> {
    /// Gathers the payload columns for the row numbers of a block.
    fn gathered(
        &self,
        session: &Session<'_>,
        block: &gpu::OutputBlock,
    ) -> Result<Vec<(View, usize)>> {
        let mut columns = Vec::new();
        for (table, rows) in self.tables.iter().zip([block.build, block.probe]) {
            for (column, value_bytes) in &table.payload {
                let bytes = block.rows * *value_bytes as u64;
                let target = session.allocate(bytes, "a gathered column")?;
                session.run(DeviceStage::Gather(abi::Gather {
                    rows: rows.address,
                    source: column.address(),
                    target: target.address,
                    count: block.rows,
                    width: *value_bytes as u32,
                    unused: 0,
                }))?;
                columns.push((target, *value_bytes));
            }
        }
        session.mark("gather")?;
        Ok(columns)
    }
}

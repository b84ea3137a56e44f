//! Joins of tables in host memory, which may be larger than GPU memory. The rows come back to host memory, into a few
//! buffers that are used again and again.

use std::time::Instant;

use super::{
    Block, BlockReceiver, HostPlacement, HostTable, JoinRequest, Joined, OpenGpu, ResultKind, Usage,
};
use crate::algorithm::gpu::{self, PairsOnly, join_from_host};
use crate::device::{Event, Session};
use crate::error::Result;
use crate::key::KeyEncoding;
use crate::machine::Machine;
use crate::options::JoinType;
use crate::plan::{Facts, GpuCandidate, HostMemory, JobCosts, Plan, Request, Statistics, choose};
use crate::settings::check_partitioner;
use crate::transfer::{BlockColumn, Drain};

/// Joins two tables in host memory, build side first. The clock starts with the call, and stops when the
/// receiver has got the last row.
pub fn join_from_host_memory(
    tables: [&HostTable; 2],
    request: &JoinRequest,
    to: &mut dyn BlockReceiver,
) -> Result<Joined> {
    let [build, probe] = tables;
    OpenGpu::check_pair(tables.map(|table| (&table.gpu, table.word)))?;
    check_partitioner(request.algorithm, request.gpu_options.partitioner)?;
    let result = request.result;
    let inlined = result.needs_payload();
    let (build_side, probe_side) = (build.side(inlined)?, probe.side(inlined)?);
    let wanted = result.wanted(probe.rows);
    let mut plan = plan(tables, request);
    let started = Instant::now();
    let session = build.gpu.session(build.word.width(), request.hash_seed)?;
    let link = build.gpu.transfer_context(&session, plan.transfer()?, plan.chunk_rows()?.build);
    let mut back = Back {
        drain: Drain::new(),
        handed: Handed { keys: wanted.keys, value_bytes: build.word.bytes() as usize, to },
    };
    let found =
        join_from_host(&link, &mut plan, &build_side, &probe_side.into(), &wanted, &mut back)?;
    back.finish(&session)?;
    session.device.synchronize(session.compute)?;
    let usage = Usage::of(&session, started.elapsed().as_secs_f64())?;
    let sums = (result == ResultKind::Aggregate).then_some([found.build_sum, found.probe_sum]);
    Ok(Joined { algorithm: plan.algorithm, rows: found.rows, sums, usage })
}

/// Plans the join as `strait join --device gpu` does, with both tables known.
fn plan([build, probe]: [&HostTable; 2], request: &JoinRequest) -> Plan {
    let word_bytes = build.word.bytes();
    let row_bytes = if request.result.needs_payload() { 2 * word_bytes } else { word_bytes };
    let known = |table: &HostTable| {
        let bytes = Some(table.rows * row_bytes);
        Statistics { rows: Some(table.rows), bytes, ..Statistics::default() }
    };
    let columns = match (build.placement, probe.placement) {
        (HostPlacement::Pinned, HostPlacement::Pinned) => HostMemory::Pinned,
        _ => HostMemory::Pageable,
    };
    let budget = build.gpu.device.memory().budget;
    let name = build.gpu.device.name().to_string();
    choose(Request {
        asked: request.algorithm,
        partitioner: request.gpu_options.partitioner,
        join_type: JoinType::Inner,
        build_side: None,
        build: known(build),
        probe: known(probe),
        threads: build.gpu.workers.threads(),
        limit: None,
        prompt: false,
        costs: JobCosts::none(),
        key: KeyEncoding::of_words(build.word.width()),
        facts: Facts {
            gpu_options: request.gpu_options,
            ..Facts::of_columns(build.word.width(), request.result.yields(), &Machine::detect())
        },
        device: Some(GpuCandidate { name, budget, asked: true, open: true, row_bytes, columns }),
    })
}

/// Brings rows back to the host and hands them to the caller's receiver.
struct Back<'a> {
    drain: Drain<()>,
    handed: Handed<'a>,
}

/// The caller's receiver, and what its blocks look like.
struct Handed<'a> {
    keys: bool,
    value_bytes: usize,
    to: &'a mut dyn BlockReceiver,
}

impl Handed<'_> {
    fn take(&mut self, rows: usize, columns: &[&[u8]]) -> Result<()> {
        self.to.block(&Block::in_host_memory(rows, self.keys, columns, self.value_bytes))
    }
}

impl Back<'_> {
    fn finish(&mut self, session: &Session<'_>) -> Result<()> {
        let Back { drain, handed } = self;
        drain.take_all(session, &mut |arrived| handed.take(arrived.rows, arrived.columns))
    }
}

impl PairsOnly for Back<'_> {
    fn block(&mut self, session: &Session<'_>, block: gpu::OutputBlock) -> Result<Option<Event>> {
        let Back { drain, handed } = self;
        let columns = [block.keys, block.build, block.probe];
        let bits = 8 * handed.value_bytes as u64;
        let columns = columns[usize::from(!handed.keys)..].iter();
        let columns: Vec<BlockColumn> = columns.map(|&view| BlockColumn { view, bits }).collect();
        drain.send(session, &columns, block.rows, (), &mut |arrived| {
            handed.take(arrived.rows, arrived.columns)
        })
    }

    fn meanwhile(&mut self, session: &Session<'_>) -> Result<()> {
        self.finish(session)
    }
}

//! Joins on a GPU of tables in host memory, which may be larger than GPU memory. `bench join --placement
//! pinned` and `pageable`, `bench transfer` and `bench beyond` measure them.

use arrow::array::RecordBatch;
use strait::gpu::Gpu;
use strait::internal::{
    FirstPass, HostPlacement, HostTable, JoinRequest, OpenGpu, WordSize, join_from_host_memory,
    partition,
};
use strait::{Result, Transfer};

use crate::check::Sums;
use crate::first_pass::{self, MeasuredPass};
use crate::{MeasuredRun, ResultKind};

/// Two tables in host memory, and a GPU.
pub struct HostTables {
    build: HostTable,
    probe: HostTable,
}

impl HostTables {
    /// Copies two tables to host memory of the given placement, build side first.
    pub fn load(
        gpu: &Gpu,
        gpu_memory: Option<u64>,
        placement: HostPlacement,
        threads: usize,
        tables: [&[RecordBatch]; 2],
    ) -> Result<HostTables> {
        HostTables::on(&OpenGpu::open(gpu, gpu_memory, threads)?, placement, tables)
    }

    /// The same with a simulated GPU. The seed determines the order in which its work runs.
    pub fn simulate(
        seed: u64,
        gpu_memory: u64,
        placement: HostPlacement,
        tables: [&[RecordBatch]; 2],
    ) -> Result<HostTables> {
        HostTables::on(&OpenGpu::simulated(seed, gpu_memory), placement, tables)
    }

    fn on(
        gpu: &OpenGpu,
        placement: HostPlacement,
        tables: [&[RecordBatch]; 2],
    ) -> Result<HostTables> {
        let word = WordSize::of(&tables)?;
        let [build, probe] = tables;
        let build = HostTable::load(gpu, placement, word, build)?;
        Ok(HostTables { build, probe: HostTable::load(gpu, placement, word, probe)? })
    }

    /// Joins the tables once. With `check`, the rows of [`ResultKind::Materialise`] are added up as they come
    /// back, which takes extra time.
    pub fn run(&self, request: &JoinRequest, check: bool) -> Result<MeasuredRun> {
        let mut sums = Sums::new(check && request.result == ResultKind::Materialise);
        let joined = join_from_host_memory([&self.build, &self.probe], request, &mut sums)?;
        Ok(MeasuredRun::of(joined, sums, request.result))
    }

    /// Transfers the keys of the probe side to the GPU once, where a kernel reads them. Returns the seconds,
    /// and the bytes of the keys.
    pub fn transfer(&self, transfer: Transfer) -> Result<(f64, u64)> {
        self.probe.transfer_keys(transfer)
    }

    /// Partitions the probe table once, keys and payload. Returns an error if a tuple is lost, changed or in
    /// the wrong partition.
    pub fn partition(&self, how: FirstPass) -> Result<MeasuredPass> {
        let partitioned = partition(&self.probe, how)?;
        first_pass::check(&self.probe, &partitioned, how.bits)?;
        Ok(MeasuredPass {
            seconds: partitioned.seconds,
            bytes: self.probe.rows() * 2 * self.probe.word().bytes(),
            crossed: partitioned.crossed,
        })
    }
}

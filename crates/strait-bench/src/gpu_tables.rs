//! Joins of tables in GPU memory. `bench join --placement gpu` and `bench gpu` measure them.

use arrow::array::RecordBatch;
use strait::Result;
use strait::gpu::Gpu;
use strait::internal::{GpuTable, JoinRequest, OpenGpu, WordSize, join_in_gpu_memory};

use crate::check::Sums;
use crate::{MeasuredRun, ResultKind};

/// The memory of a simulated GPU.
pub(crate) const SIMULATED_MEMORY: u64 = 16 << 20;

/// Two tables in GPU memory.
pub struct GpuTables {
    build: GpuTable,
    probe: GpuTable,
}

impl GpuTables {
    /// Copies two tables to a GPU, build side first.
    pub fn load(
        gpu: &Gpu,
        gpu_memory: Option<u64>,
        tables: [&[RecordBatch]; 2],
    ) -> Result<GpuTables> {
        GpuTables::on(&OpenGpu::open(gpu, gpu_memory, 1)?, tables)
    }

    /// Copies two tables to a simulated GPU. The seed determines the order in which its work runs.
    pub fn simulate(seed: u64, tables: [&[RecordBatch]; 2]) -> Result<GpuTables> {
        GpuTables::on(&OpenGpu::simulated(seed, SIMULATED_MEMORY), tables)
    }

    fn on(gpu: &OpenGpu, tables: [&[RecordBatch]; 2]) -> Result<GpuTables> {
        let word = WordSize::of(&tables)?;
        let [build, probe] = tables;
        let build = GpuTable::load(gpu, word, build)?;
        Ok(GpuTables { build, probe: GpuTable::load(gpu, word, probe)? })
    }

    /// Returns the size of the words in GPU memory.
    pub fn word(&self) -> WordSize {
        self.build.word()
    }

    /// Measures the bytes per second that the GPU reads sequentially. Reports compare stages with this rate.
    pub fn read_rate(&self) -> Result<f64> {
        let longer = if self.build.rows() > self.probe.rows() { &self.build } else { &self.probe };
        let (mut bytes, mut seconds, mut best) = (0, 0.0, 0.0f64);
        for _ in 0..5 {
            let scan = longer.scan_keys()?;
            bytes += scan.bytes;
            seconds += scan.seconds;
            best = best.max(bytes as f64 / seconds.max(1e-12));
        }
        Ok(best)
    }

    /// Joins the tables once. With `check`, the rows of [`ResultKind::Materialise`] are copied to the host and
    /// added up. The time for that does not count.
    pub fn run(&self, request: &JoinRequest, check: bool) -> Result<MeasuredRun> {
        let mut sums = Sums::new(check && request.result == ResultKind::Materialise);
        let joined = join_in_gpu_memory([&self.build, &self.probe], request, &mut sums)?;
        let checking = sums.seconds;
        let run = MeasuredRun::of(joined, sums, request.result);
        Ok(MeasuredRun { seconds: run.seconds - checking, ..run })
    }
}

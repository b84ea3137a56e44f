//! Checks for settings that contradict each other. They are refused when a join is bound, before any input is
//! read.

use crate::error::{Error, Result};
use crate::gpu_options::{Processor, check_partitioner, names};
use crate::join::Join;
use crate::options::Algorithm;

/// Checks the settings that can be checked without schemas and without a device.
pub(crate) fn check(join: &Join) -> Result<()> {
    if join.threads == 0 || join.batch_size == 0 {
        let what = if join.threads == 0 { "number of threads" } else { "batch size" };
        return Err(Error::Setting(format!("the {what} is zero; it has to be at least 1")));
    }
    if let Some(algorithm) = join.algorithm
        && algorithm.needs_gpu()
        && join.processor == Processor::Cpu
        && join.overrides.simulated.is_none()
    {
        let anywhere = names(Algorithm::ANYWHERE.map(Algorithm::name));
        return Err(Error::Setting(format!(
            "{algorithm} runs on a GPU only, and the join is to run on the CPU; {anywhere} run anywhere"
        )));
    }
    check_partitioner(join.algorithm, join.gpu_options.partitioner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_options::{GpuOptions, Partitioner};

    fn refused(join: Join) -> String {
        check(&join).expect_err("is refused").to_string()
    }

    fn by(partitioner: Partitioner) -> GpuOptions {
        GpuOptions::new().partitioner(partitioner)
    }

    #[test]
    fn contradictions_are_refused() {
        let on_cpu = Join::inner().algorithm(Algorithm::Triton).device(Processor::Cpu);
        assert!(refused(on_cpu).contains("no-partition, radix, sort-merge run anywhere"));
        let radix = Join::inner().algorithm(Algorithm::Radix);
        let other = refused(radix.clone().gpu_options(by(Partitioner::Linear)));
        assert!(other.contains("it takes look-back, bucket-pool, shared-histogram"), "{other}");
        let triton = Join::inner().algorithm(Algorithm::Triton);
        let other = refused(triton.gpu_options(by(Partitioner::LookBack)));
        assert!(other.contains("triton does not") && other.contains("dma"), "{other}");
        let unnamed = refused(Join::inner().gpu_options(by(Partitioner::Linear)));
        assert!(unnamed.contains("only triton partitions by linear"), "{unnamed}");
        assert!(refused(Join::inner().threads(0)).contains("threads is zero"));
        assert!(check(&radix.gpu_options(by(Partitioner::BucketPool))).is_ok());
        assert!(check(&Join::inner().gpu_options(by(Partitioner::LookBack))).is_ok());
    }
}

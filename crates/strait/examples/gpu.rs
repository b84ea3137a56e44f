//! Joins on a GPU with little of its memory, if there is one, and explains the plan.
//!
//!     cargo run --release -p strait --example gpu

use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator};
use strait::gpu::Gpu;
use strait::{GpuOptions, Join, Output, Processor, Side, Statistics, Transfer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let keys = |rows: i64| -> Result<RecordBatch, arrow::error::ArrowError> {
        let keys = Int64Array::from_iter_values((0..rows).map(|i| i * 31 % 100_000));
        RecordBatch::try_from_iter([("key", Arc::new(keys) as _)])
    };
    let reader = |batch: RecordBatch| {
        let schema = batch.schema();
        RecordBatchIterator::new([Ok(batch)], schema)
    };
    let (build, probe) = (keys(100_000)?, keys(1_000_000)?);

    // Without a GPU, the same join runs on the CPU.
    let processor = match Gpu::detect() {
        Ok(gpus) => {
            gpus.iter().for_each(|gpu| println!("found {}", gpu.name));
            Processor::Gpu(0)
        }
        Err(why) => {
            println!("no GPU: {why}");
            Processor::Cpu
        }
    };
    let join = Join::inner()
        .on("key")
        .device(processor)
        .gpu_memory(256 << 20)
        .gpu_options(GpuOptions::new().transfer(Transfer::StagedCopy))
        .statistics(Side::Left, Statistics::rows(100_000).with_key_range(0, 99_999))
        .statistics(Side::Right, Statistics::rows(1_000_000));

    let bound = join.bind(Output::Count, &build.schema(), &probe.schema())?;
    println!("{}", bound.explain());
    let (rows, report) = join.count(reader(build), reader(probe))?;
    println!("{rows} rows\n{report}");
    assert_eq!(rows, 1_000_000);
    Ok(())
}

//! Finds the GPU of a benchmark, and copies tables to GPU memory or to the host memory that the GPU reads.

use anyhow::{Context, bail};
use arrow::datatypes::DataType;
use strait::Processor;
use strait::gpu::Gpu;
use strait_bench::workload::Tables;
use strait_bench::{GpuTables, HostPlacement, HostTables};

use crate::failure;

/// Returns the requested GPU. If none was requested, the error says with `what` why one is needed.
pub(super) fn the_gpu(device: Processor, what: &str) -> anyhow::Result<Gpu> {
    let Processor::Gpu(number) = device else {
        bail!("{what}; give --device gpu or gpu:N");
    };
    let gpus = Gpu::detect().map_err(failure::of_join)?;
    gpus.get(number).cloned().with_context(|| format!("there is no GPU {number}"))
}

/// Copies tables to a GPU.
pub(super) fn in_gpu_memory(
    gpu: &Gpu,
    memory: Option<u64>,
    tables: &Tables,
) -> anyhow::Result<GpuTables> {
    let batches = [tables.build.batches.as_slice(), tables.probe.batches.as_slice()];
    GpuTables::load(gpu, memory, batches).map_err(failure::of_join)
}

/// Copies tables to host memory. The given tables are not needed after this.
pub(super) fn in_host_memory(
    gpu: &Gpu,
    memory: Option<u64>,
    placement: HostPlacement,
    threads: usize,
    tables: &Tables,
) -> anyhow::Result<HostTables> {
    joinable(tables)?;
    let batches = [tables.build.batches.as_slice(), tables.probe.batches.as_slice()];
    HostTables::load(gpu, memory, placement, threads, batches).map_err(failure::of_join)
}

/// Fails if these tables cannot be measured. The error says which tables can.
fn joinable(tables: &Tables) -> anyhow::Result<()> {
    for (name, table) in [("build", &tables.build), ("probe", &tables.probe)] {
        let fields = table.schema.fields();
        let odd =
            fields.iter().find(|f| !matches!(f.data_type(), DataType::Int32 | DataType::Int64));
        if let Some(field) = odd {
            bail!(
                "column \"{}\" of the {name} table is {}: with --placement pinned or pageable \
                 columns are integers of 4 or 8 bytes; leave out --placement to measure others",
                field.name(),
                field.data_type()
            );
        }
        if fields.len() > 2 {
            bail!(
                "the {name} table has {} payload columns: with --placement pinned or pageable one \
                 travels with the key; give --payload-columns 1, or leave out --placement",
                fields.len() - 1
            );
        }
        if table.batches.is_empty() {
            bail!("the {name} table is empty: with --placement both tables have rows");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait_bench::workload::{KeyType, Keys, Shape, Skew};

    #[test]
    fn what_cannot_be_measured_is_said() {
        let shape = |key_type, payload_columns| Shape {
            build: 10,
            probe: 10,
            key_type,
            keys: Keys::Sparse,
            skew: Skew::None,
            selectivity: 1.0,
            duplicates: 1,
            payload_bytes: 8,
            payload_columns,
            seed: 1,
        };
        let refused = |key_type, columns| {
            let tables = Tables::generate(shape(key_type, columns), 500, 1).expect("tables");
            joinable(&tables).expect_err("refused").to_string()
        };
        assert!(refused(KeyType::String, 1).contains("\"key\" of the build table is Utf8"));
        assert!(refused(KeyType::Int64, 3).contains("3 payload columns"));
    }
}

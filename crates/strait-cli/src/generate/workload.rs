//! `strait generate workload`: writes both tables to files.

use arrow::array::RecordBatch;
use strait_bench::workload::{Shape, Side, Workload};

use super::{Parts, prepare, write_parts};
use crate::arguments::WorkloadArguments;
use crate::digits::counted;
use crate::failure::say;

/// Rows per batch.
const BATCH_ROWS: u64 = 1 << 14;

/// Runs the command.
pub(super) fn run(arguments: &WorkloadArguments) -> anyhow::Result<()> {
    let workload = Workload::new(shape(arguments))?;
    let names = ["build.parquet".to_string(), "probe.parquet".to_string()];
    let paths = prepare(&arguments.out, &names, arguments.overwrite)?;
    for (path, side) in paths.iter().zip([Side::Build, Side::Probe]) {
        let make = |part: usize, send: &dyn Fn(RecordBatch) -> bool| {
            let mut random = workload.random(part);
            let rows = workload.part(side, part);
            for start in rows.clone().step_by(BATCH_ROWS as usize) {
                let end = (start + BATCH_ROWS).min(rows.end);
                if !send(workload.batch(side, start..end, &mut random)?.batch) {
                    break;
                }
            }
            Ok(())
        };
        let parts = Parts { schema: workload.schema(side), count: workload.parts(side), make };
        let rows = write_parts(path, parts, arguments.overwrite, arguments.threads)?;
        say(format_args!("{}: {}", path.display(), counted(rows, "row")));
    }
    Ok(())
}

fn shape(arguments: &WorkloadArguments) -> Shape {
    Shape {
        build: arguments.build,
        probe: arguments.probe,
        key_type: arguments.key_type,
        keys: arguments.keys,
        skew: arguments.skew,
        selectivity: arguments.selectivity,
        duplicates: arguments.duplicates,
        payload_bytes: 8,
        payload_columns: arguments.payload_columns,
        seed: arguments.seed,
    }
}

//! `strait bench stream`: the memory of a join from a reader of unknown length.

use strait::bytes;
use strait_bench::ResultKind;
use strait_bench::measure::Task;
use strait_bench::streamed::measure;
use strait_bench::workload::Shape;

use crate::arguments::StreamArguments;
use crate::join::cores;
use crate::output::print;

/// Runs the command.
pub(super) fn run(arguments: &StreamArguments) -> anyhow::Result<()> {
    let device = &arguments.device;
    let task = Task {
        result: ResultKind::Materialise,
        algorithm: arguments.algorithm.0,
        threads: arguments.threads.unwrap_or_else(cores),
        repeat: 1,
        device: device.device,
        gpu_memory: device.gpu_memory,
        gpu_options: device.gpu_options(),
        statistics: false,
    };
    let shape = Shape::of_words(arguments.build, arguments.probe, arguments.keys, 1);
    let measured = measure(shape, arguments.batch_rows, &task)?;
    let beyond = measured.peak.saturating_sub(measured.before);
    let plan = &measured.report.plan;
    let on = &plan.device;
    print(&format!(
        "{} on {on}: {:.3} s, with the time to generate the probe table\n\
         build table                    {}\n\
         memory before the join         {}\n\
         peak memory beyond that        {}\n",
        plan.algorithm,
        measured.seconds,
        bytes(measured.build_bytes),
        bytes(measured.before),
        bytes(beyond),
    ))
}

//! `strait bench auto`: how far the planner's choice is from the faster processor.

use strait::Processor;
use strait_bench::ResultKind;
use strait_bench::measure::{Measured, Task, measure_in_turns};
use strait_bench::workload::{Keys, Shape, Tables};

use super::load::the_gpu;
use super::record::Record;
use crate::arguments::AutoArguments;
use crate::failure::say;
use crate::join::cores;
use crate::output::print;

/// The sizes are powers of this.
const STEP: u64 = 4;
/// The smallest tables.
const SMALLEST_BUILD: u64 = 1 << 16;
const SMALLEST_PROBE: u64 = 1 << 18;
/// Tables of this many rows together are joined more often, because short times vary more.
const SMALL: u64 = 1 << 23;
const MORE: u32 = 5;
/// Rows per input batch.
const BATCH_ROWS: usize = 1 << 20;
/// The planner's choice is good if it reaches this share of the faster processor's speed.
const GOOD: f64 = 1.0 / 1.15;

/// The columns of the record, after the common ones.
const COLUMNS: [&str; 11] = [
    "gpu",
    "keys",
    "mode",
    "build_rows",
    "probe_rows",
    "cpu_seconds",
    "gpu_seconds",
    "auto_seconds",
    "auto_ran",
    "auto_on",
    "ratio",
];

/// The medians of one point.
struct Point {
    name: String,
    /// The speed of the planner's choice, as a share of the faster processor's speed.
    ratio: f64,
}

/// Runs the command.
pub(super) fn run(arguments: &AutoArguments) -> anyhow::Result<()> {
    let gpu = the_gpu(arguments.device, "bench auto compares the CPU with a GPU")?;
    let mut record = Record::new(&COLUMNS)?;
    let mut points = Vec::new();
    for keys in [Keys::Sparse, Keys::Dense] {
        for (build, probe) in sizes(arguments.largest) {
            let tables =
                Tables::generate(Shape::of_words(build, probe, keys, 1), BATCH_ROWS, cores())?;
            for result in [ResultKind::Materialise, ResultKind::Count] {
                let few = build + probe <= SMALL;
                let repeat = arguments.repeat * if few { MORE } else { 1 };
                let on = |device| task(result, device, repeat);
                let tasks = [on(Processor::Cpu), on(arguments.device), on(Processor::Auto)];
                let [cpu, on_gpu, auto] = measure_in_turns(&tables, tasks.each_ref())?;
                let best = cpu.median().min(on_gpu.median());
                let ratio = best / auto.median().max(1e-9);
                let (keys, mode) = (keys.name(), result.name());
                let name = format!("2^{} x 2^{}, {keys}, {mode}", build.ilog2(), probe.ilog2());
                let seconds = |measured: &Measured| format!("{:.6}", measured.median());
                let auto_on = auto.device.as_ref().map_or("cpu", |_| "gpu");
                say(format_args!(
                    "{name}: CPU {}, GPU {}, auto {} ({} on the {auto_on}), {ratio:.2}",
                    seconds(&cpu),
                    seconds(&on_gpu),
                    seconds(&auto),
                    auto.ran,
                ));
                log::info!("{name}: CPU {:.4?}", cpu.stages);
                log::info!("{name}: GPU, {}: {:.4?}", on_gpu.ran, on_gpu.stages);
                record.add([
                    gpu.name.clone(),
                    keys.to_string(),
                    mode.to_string(),
                    build.to_string(),
                    probe.to_string(),
                    seconds(&cpu),
                    seconds(&on_gpu),
                    seconds(&auto),
                    auto.ran.clone(),
                    auto_on.to_string(),
                    format!("{ratio:.3}"),
                ])?;
                points.push(Point { name, ratio });
            }
            record.save(&arguments.out, "auto")?;
        }
    }
    let path = record.write(&arguments.out, "auto")?;
    print(&format!("{}\n{}", path.display(), summary(&mut points)))
}

/// Returns the sizes of both tables: the build table has at most a quarter of the largest probe table.
fn sizes(largest: u64) -> Vec<(u64, u64)> {
    let powers = |from: u64, to: u64| {
        std::iter::successors(Some(from), |size| size.checked_mul(STEP))
            .take_while(move |&size| size <= to)
    };
    let builds = powers(SMALLEST_BUILD, largest / STEP);
    let pairs = builds.flat_map(|build| {
        powers(SMALLEST_PROBE, largest).filter(move |&p| p >= build).map(move |p| (build, p))
    });
    pairs.collect()
}

fn task(result: ResultKind, device: Processor, repeat: u32) -> Task {
    Task { device, statistics: true, ..Task::on_cpu(result, None, cores(), repeat) }
}

/// Says how many points are good, and which are the worst.
fn summary(points: &mut [Point]) -> String {
    points.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    let good = points.iter().filter(|point| point.ratio >= GOOD).count();
    let worst = points.iter().take(12).map(|p| format!("  {:.2}  {}\n", p.ratio, p.name));
    let all = points.len();
    format!("{good} of {all} points within 15 % of the faster processor; the worst:\n")
        + &worst.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_four() {
        let sizes = sizes(1 << 28);
        assert_eq!((sizes[0], sizes[sizes.len() - 1]), ((1 << 16, 1 << 18), (1 << 26, 1 << 28)));
        assert!(sizes.iter().all(|(build, probe)| build <= probe));
        assert_eq!(sizes.len(), 26);
    }

    #[test]
    fn the_worst_points_come_first() {
        let point = |name: &str, ratio| Point { name: name.to_string(), ratio };
        let text = summary(&mut [point("a", 1.0), point("b", 0.5), point("c", 0.9)]);
        assert!(text.starts_with("2 of 3 points"), "{text}");
        assert!(text.find("0.50  b") < text.find("0.90  c"), "{text}");
    }
}

//! `strait join`: finds the tables, checks the arguments, joins, and writes or shows the rows.

use std::io::{IsTerminal, Write};

use anyhow::{Context, bail};
use arrow::array::RecordBatch;
use strait::gpu::Gpu;
use strait::{
    BoundJoin, Input, JobCosts, Join, JoinReader, NullEquality, Output, Plan, Prediction,
    Processor, Report, Side,
};

use crate::arguments::{DeviceArguments, JoinArguments, Show, Source};
use crate::busy::{Busy, Running};
use crate::casts;
use crate::costs::writing_per_row;
use crate::digits::{counted, grouped};
use crate::failure;
use crate::input::{FoundFiles, InputTable, find};
use crate::memory::Memory;
use crate::output::{
    Aside, Destination, JoinedRows, MAX_ROW_GROUPS, Preview, Sink, SinkOptions, check_stdout,
    print, resolved,
};
use crate::progress;
use crate::spill::Spilling;
use crate::store::Upload;

/// The number of rows that are shown if neither an output nor a limit is given.
const SHOWN: usize = 10;

/// What else to do if the rows cannot be written to stdout.
const OR_FILE: &str = ", or write a file with -o";

/// Runs the command.
pub(crate) fn run(arguments: &JoinArguments) -> anyhow::Result<()> {
    let spilling = Spilling::of(arguments)?;
    let (left, right) = (find(&arguments.left)?, find(&arguments.right)?);
    check_output(arguments, [&left, &right])?;
    let memory = Memory::new(arguments.memory);
    let mut left = InputTable::open(left, &arguments.csv, &memory)?;
    let mut right = InputTable::open(right, &arguments.csv, &memory)?;
    let casts = casts::apply(arguments, &mut left, &mut right)?;
    prune(arguments, &mut left, &mut right);
    let notes = casts + &[&left, &right].map(pruned).concat();

    let output = if arguments.count { Output::Count } else { Output::Rows };
    let rows = left.rows().zip(right.rows()).map(|(left, right)| left.saturating_add(right));
    let join = progress::attach(described(arguments, &memory, &spilling), arguments.progress, rows);
    let bound = join
        .bind(output, left.schema(), right.schema())
        .map_err(|error| named(error, &left, &right))?;
    check_row_groups(arguments, left.rows(), right.rows())?;
    left.check(bound.columns(Side::Left))?;
    right.check(bound.columns(Side::Right))?;
    let bound = with_statistics(arguments, bound, &left, &right);
    if arguments.explain {
        let plan = bound.explain();
        let (gpu, disk) = (gpu_memory(&plan, arguments), spilling.explained(arguments));
        return print(&format!("{plan}\n{gpu}{disk}{notes}"));
    }
    if memory.limit().is_some() {
        let predicted = match spilling.store() {
            // A join that may spill can run with less memory than the plan predicts.
            Some(_) => 0,
            None => predicted_memory(&bound.explain(), [&left, &right]),
        };
        failure::note_prediction(predicted, spilling.advice());
    }
    execute(arguments, bound, (left, right), &memory, &notes)
}

/// The memory of a join is estimated as this many times its files, if their rows are not known.
const FILE_COPIES: u64 = 2;

/// Returns the memory that the plan predicts for the join. If the rows of a side are not known, the sizes of the files
/// give an estimate. It is 0 if these are not known either.
fn predicted_memory(plan: &Plan, tables: [&InputTable; 2]) -> u64 {
    if plan.build.rows.is_none() || plan.probe.rows.is_none() {
        let files = tables.map(|table| table.file_bytes().unwrap_or(0));
        return files[0].saturating_add(files[1]).saturating_mul(FILE_COPIES);
    }
    let is_chosen = |prediction: &&Prediction| {
        prediction.algorithm == plan.algorithm && prediction.on_gpu == plan.device.is_gpu()
    };
    plan.predictions.iter().find(is_chosen).map_or(0, |prediction| prediction.bytes)
}

/// Returns a line about the GPU memory that `--explain` planned with, if it compared a GPU with the CPU. The free
/// memory is known only when a GPU is open, and opening one takes too long for a plan.
fn gpu_memory(plan: &Plan, arguments: &JoinArguments) -> String {
    let DeviceArguments { device, gpu_memory, .. } = &arguments.device;
    let is_compared = plan.predictions.iter().any(|prediction| prediction.on_gpu);
    if *device != Processor::Auto || gpu_memory.is_some() || !is_compared {
        return String::new();
    }
    let budget = Gpu::detect().ok().and_then(|gpus| gpus.first().map(Gpu::default_budget));
    budget.map_or(String::new(), planned_gpu_memory)
}

fn planned_gpu_memory(budget: u64) -> String {
    let planned = strait::bytes(budget);
    format!(
        "GPU memory: planned with {planned}; the run plans with the memory that is free when it starts\n"
    )
}

/// Adds the statistics of both tables' files, and the work of reading and writing, to the join: for `--explain`
/// and for the run.
fn with_statistics(
    arguments: &JoinArguments,
    bound: BoundJoin,
    left: &InputTable,
    right: &InputTable,
) -> BoundJoin {
    // Only a key of one column has a range.
    let mut keys = arguments.keys();
    let (left_key, right_key) = match (keys.next(), keys.next()) {
        (Some((left, right)), None) => (Some(left.as_str()), Some(right.as_str())),
        _ => (None, None),
    };
    let mut left_known = left.statistics(bound.columns(Side::Left), left_key);
    let mut right_known = right.statistics(bound.columns(Side::Right), right_key);
    if left.is_stream() || right.is_stream() {
        for (table, known) in [(left, &mut left_known), (right, &mut right_known)] {
            known.stream = table.is_stream();
            // The library needs a size to decide whether the table beside the stream is small. If the files do
            // not tell the bytes of their columns, their own size is a good estimate.
            known.bytes = known.bytes.or_else(|| table.file_bytes());
        }
    }
    let costs = JobCosts::none()
        .with_reading(Side::Left, left.read_seconds(bound.columns(Side::Left)))
        .with_reading(Side::Right, right.read_seconds(bound.columns(Side::Right)))
        .with_writing_per_row(writing_per_row(arguments.output.as_ref(), &bound.schema()));
    let bound = bound.statistics(Side::Left, left_known).statistics(Side::Right, right_known);
    bound.job_costs(costs)
}

/// Leaves out the row groups of a side whose rows cannot match, if unmatched rows of this side are not output.
fn prune(arguments: &JoinArguments, left: &mut InputTable, right: &mut InputTable) {
    let prunes = |side: Side| !arguments.join_type.returns_unmatched(side);
    let (prunes_left, prunes_right) = (prunes(Side::Left), prunes(Side::Right));
    for (left_key, right_key) in arguments.keys() {
        let (of_left, of_right) = (left.bounds(left_key), right.bounds(right_key));
        if let (true, Some(other)) = (prunes_left, of_right) {
            left.prune(left_key, &other, arguments.nulls_equal);
        }
        if let (true, Some(other)) = (prunes_right, of_left) {
            right.prune(right_key, &other, arguments.nulls_equal);
        }
    }
}

/// Returns a line about the row groups that are left out, if there are any.
fn pruned(table: &InputTable) -> String {
    let (pruned, all) = table.pruned();
    if pruned == 0 {
        return String::new();
    }
    let all = counted(all as u64, "row group");
    log::info!("{}: {pruned} of {all} left out", table.name);
    format!(
        "{}: {} of {all} left out, because the other table has no key in their ranges\n",
        table.name,
        grouped(pruned as u64)
    )
}

/// Returns the join that the arguments describe.
fn described(arguments: &JoinArguments, memory: &Memory, spilling: &Spilling) -> Join {
    let mut join = Join::new(arguments.join_type)
        .keep_keys(arguments.keep_keys)
        .suffix(&arguments.suffix)
        .mark_column(&arguments.mark_column)
        .float_equality(arguments.float_equality)
        .algorithm(arguments.algorithm.0);
    for (left, right) in arguments.keys() {
        join = join.on_pair(left, right);
    }
    if arguments.nulls_equal {
        join = join.null_equality(NullEquality::Equal);
    }
    if let Some(columns) = arguments.selected() {
        join = join.select(columns);
    }
    join = join.threads(arguments.threads());
    if memory.limit().is_some() {
        join = join.memory_budget(memory.budget());
    }
    if let Some(store) = spilling.store() {
        join = join.spill(store);
    }
    if let Some(compression) = arguments.spill.spill_compression {
        join = join.spill_compression(compression);
    }
    // If the rows so far reach the limit, the join must not wait for a stream that pauses.
    let has_stream = [&arguments.left, &arguments.right].contains(&&Source::Stdin);
    arguments.device.apply(join.prompt(arguments.limit.is_some() && has_stream))
}

/// Rejects an output that exists or is one of the inputs, before anything is read.
fn check_output(arguments: &JoinArguments, inputs: [&FoundFiles; 2]) -> anyhow::Result<()> {
    // The number of rows, the plan and the report need stdout also if the rows go to a file.
    if arguments.count || arguments.explain || arguments.explain_analyze {
        check_stdout("")?;
    }
    let path = match &arguments.output {
        None => return check_stdout(OR_FILE),
        Some(Destination::Stdout) if std::io::stdout().is_terminal() => {
            bail!(
                "an Arrow IPC stream cannot be shown on a terminal; redirect stdout, or leave out -o to see the first rows"
            )
        }
        Some(Destination::Stdout) => return check_stdout(OR_FILE),
        Some(Destination::File(path, _)) => path,
        Some(Destination::Object(location, _)) => {
            for input in inputs {
                if input.claims_object(location) {
                    bail!("{}", is_input(location, input));
                }
            }
            return Upload::check(location, arguments.overwrite);
        }
    };
    let target = resolved(path)?;
    for input in inputs {
        if input.claims(&target) {
            bail!("{}", is_input(&path.display(), input));
        }
    }
    Aside::check(path, arguments.overwrite)
}

fn is_input(output: &dyn std::fmt::Display, input: &FoundFiles) -> String {
    format!(
        "the output {output} is part of the input {}; write to another place; to replace the input, move the file there after the join",
        input.name
    )
}

/// Rejects row groups that are certain to be too many for a Parquet file. The arguments are the numbers of rows of
/// both tables, if they are known.
fn check_row_groups(
    arguments: &JoinArguments,
    left: Option<u64>,
    right: Option<u64>,
) -> anyhow::Result<()> {
    let Some(rows) = arguments.row_group_rows else { return Ok(()) };
    let of_side =
        |side, rows| Some(rows).filter(|_| arguments.join_type.returns_all(side)).flatten();
    let least: Option<u64> = of_side(Side::Left, left).max(of_side(Side::Right, right));
    let least = least.unwrap_or(0).min(arguments.limit.unwrap_or(u64::MAX));
    let needed = least.div_ceil(MAX_ROW_GROUPS as u64);
    if rows as u64 >= needed {
        return Ok(());
    }
    bail!(
        "--row-group-rows {rows} makes more than {} row groups of {}, and a Parquet file cannot have more; give at \
         least --row-group-rows {needed}",
        grouped(MAX_ROW_GROUPS as u64),
        counted(least, "row")
    )
}

/// Adds the name of the file, or a cast that may help, to the library's message.
fn named(error: strait::Error, left: &InputTable, right: &InputTable) -> anyhow::Error {
    use strait::Error::{AmbiguousColumn, KeyType, UnknownColumn};
    let name = match &error {
        UnknownColumn { side, .. } | AmbiguousColumn { side, .. } | KeyType { side, .. } => {
            match *side {
                "left" => Some(&left.name),
                "right" => Some(&right.name),
                _ => None,
            }
        }
        _ => None,
    };
    match name.cloned() {
        Some(name) => anyhow::Error::from(error).context(name),
        None => casts::advised(error, left.schema(), right.schema()),
    }
}

fn execute(
    arguments: &JoinArguments,
    bound: BoundJoin,
    (left, right): (InputTable, InputTable),
    memory: &Memory,
    found: &str,
) -> anyhow::Result<()> {
    let threads = arguments.threads();
    let running = Running::begin(threads);
    let left = left.input(bound.columns(Side::Left), threads, &running.busy.left);
    let right = right.input(bound.columns(Side::Right), threads, &running.busy.right);
    if arguments.count {
        let (rows, report) = bound.count(left, right).map_err(failure::of_join)?;
        progress::clear();
        // Only the number goes to stdout.
        if arguments.explain_analyze {
            print_aside(&reported(Some(report), &running, ["", found]))?;
        }
        return print(&format!("{rows}\n"));
    }
    // Opens the output first, so that a folder that cannot be written is reported before the join runs.
    let sink = match &arguments.output {
        Some(destination) => Some(Sink::open(
            destination,
            options(arguments, memory, &running.busy),
            &bound.schema(),
        )?),
        None => None,
    };
    // A join that the limit stops has no report, but it has a plan.
    let shows_plan = arguments.explain_analyze && arguments.limit.is_some();
    let plan = if shows_plan { format!("{}\n", bound.explain()) } else { String::new() };
    let notes = [&*plan, found];
    if let Some(sink) = sink {
        let written = write(arguments, (bound, left, right), sink, memory)?;
        return announce(arguments, written, &running, notes);
    }
    let reader = bound.run(left, right).map_err(failure::of_join)?;
    if arguments.explain_analyze {
        let (_, report) = drain(reader, arguments.limit, memory, |_| Ok(()))?;
        progress::clear();
        return print(&reported(report, &running, notes));
    }
    preview(reader, arguments.limit, memory)
}

fn options(arguments: &JoinArguments, memory: &Memory, busy: &Busy) -> SinkOptions {
    SinkOptions {
        overwrite: arguments.overwrite,
        compression: arguments.compression,
        threads: arguments.threads(),
        row_group_rows: arguments.row_group_rows,
        memory: memory.for_writing(),
        busy: busy.clone(),
    }
}

/// The number of threads that the machine can run at once.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// The number of rows that were written, and a report unless the limit stopped the join.
type Written = (u64, Option<Report>);

/// Runs the join, and writes its rows.
fn write(
    arguments: &JoinArguments,
    (bound, left, right): (BoundJoin, Input, Input),
    sink: Sink,
    memory: &Memory,
) -> anyhow::Result<Written> {
    // A stream on stdin may pause. Then only a reader of the join's rows can end the join.
    let streams = [&arguments.left, &arguments.right].contains(&&Source::Stdin);
    let to_stdout = arguments.output == Some(Destination::Stdout);
    let written = if to_stdout || arguments.limit == Some(0) || arguments.limit.is_some() && streams
    {
        let reader = bound.run(left, right).map_err(failure::of_join)?;
        drain(reader, arguments.limit, memory, |batch| sink.write(batch))?
    } else {
        let rows = JoinedRows::new(&sink, arguments.limit, memory);
        let report = match bound.run_into(left, right, &rows) {
            Ok(report) => Some(report),
            Err(_) if rows.reached_limit() => None,
            // The sink's own failure says more than the join's.
            Err(error) => {
                return Err(rows.finish().err().unwrap_or_else(|| failure::of_join(error)));
            }
        };
        (rows.finish()?, report)
    };
    sink.finish()?;
    Ok(written)
}

/// Tells the user what was written.
fn announce(
    arguments: &JoinArguments,
    written: Written,
    running: &Running,
    notes: [&str; 2],
) -> anyhow::Result<()> {
    let (rows, report) = written;
    progress::clear();
    let analyzed = arguments.explain_analyze.then(|| reported(report, running, notes));
    match &arguments.output {
        Some(file @ (Destination::File(..) | Destination::Object(..))) => {
            if arguments.progress != Show::Never {
                failure::say(format_args!("wrote {} to {file}", counted(rows, "row")));
            }
            analyzed.map_or(Ok(()), |text| print(&text))
        }
        // Stdout has the rows, so the report goes to stderr.
        _ => analyzed.map_or(Ok(()), |text| print_aside(&text)),
    }
}

/// Writes a report to stderr, because stdout has something else.
fn print_aside(text: &str) -> anyhow::Result<()> {
    std::io::stderr().write_all(text.as_bytes()).context("cannot write the report to stderr")
}

/// Returns the text of the report and how busy the threads were, or the `plan` if there is no report, and what was
/// `found` in the files.
fn reported(report: Option<Report>, running: &Running, [plan, found]: [&str; 2]) -> String {
    match report {
        Some(report) => format!("{report}\n{}{found}", running.table(report.gathering)),
        None => format!("{plan}{found}the join was stopped by --limit, so there is no report\n"),
    }
}

/// Shows the first rows of a join, and the number of rows.
pub(crate) fn preview(
    reader: JoinReader,
    limit: Option<u64>,
    memory: &Memory,
) -> anyhow::Result<()> {
    let (text, _) = previewed(reader, limit, memory)?;
    progress::clear();
    print(&text)
}

/// Returns the text of a preview, and the join's report.
pub(crate) fn previewed(
    reader: JoinReader,
    limit: Option<u64>,
    memory: &Memory,
) -> anyhow::Result<(String, Option<Report>)> {
    let schema = arrow::array::RecordBatchReader::schema(&reader);
    let shown = limit.map_or(SHOWN, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let mut preview = Preview::new(&schema, shown, &memory.for_writing())?;
    let (rows, report) = drain(reader, limit, memory, |batch| preview.add(batch))?;
    let (mut text, hidden) = preview.render();
    let rows = match preview.rows() as u64 {
        shown if shown < rows => format!("first {} of {}", grouped(shown), counted(rows, "row")),
        _ if limit == Some(rows) => format!("{} (as limited)", counted(rows, "row")),
        _ => counted(rows, "row"),
    };
    let columns = counted(schema.fields().len() as u64, "column");
    let hidden = match hidden {
        0 => String::new(),
        hidden => format!(" ({hidden} not shown; --select picks some, -o writes all)"),
    };
    text.push_str(&format!("\n{rows}, {columns}{hidden}\n"));
    Ok((text, report))
}

/// Passes on up to `limit` rows. Returns a report if there is no limit, or if it was not reached. Otherwise
/// drops the reader, which cancels the join.
fn drain(
    mut reader: JoinReader,
    limit: Option<u64>,
    memory: &Memory,
    mut take: impl FnMut(&RecordBatch) -> anyhow::Result<()>,
) -> anyhow::Result<(u64, Option<Report>)> {
    let taking = memory.taking();
    let mut rows = 0;
    while limit.is_none_or(|limit| rows < limit) {
        let Some(batch) = reader.next() else {
            let report = reader.report().context("the join ended without a report")?;
            return Ok((rows, Some(report)));
        };
        let mut batch = batch.map_err(failure::of_stream)?;
        let room = limit.map_or(u64::MAX, |limit| limit - rows);
        if (batch.num_rows() as u64) > room {
            batch = batch.slice(0, room as usize);
        }
        rows += batch.num_rows() as u64;
        taking.writing(|| take(&batch))?;
    }
    Ok((rows, None))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_planned_gpu_memory_is_told() {
        let told = super::planned_gpu_memory(72 << 30);
        assert!(told.starts_with("GPU memory: planned with 72.0 GiB; the run"), "{told}");
    }
}

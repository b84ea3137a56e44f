//! Runs a case and compares all its results with the expected ones.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, RecordBatchReader};
use arrow::datatypes::{DataType, Int32Type, Schema};
use arrow::error::ArrowError;
use strait::{
    Algorithm, Error, Filter, Input, Join, JoinReader, JoinType, MemoryBudget, Output, Processor,
    Report, Side, SpillCompression, TempFolders,
};
use strait_testkit::{Comparison, Pair, Table, Value, rows_of, same_rows};

use super::case::{Case, Entry, FilterKind};
use super::expect::{Expected, Origin, settled};
use super::order::check_order;
use super::readers::{Fed, Gate, Taking};
use super::store::InMemory;
use super::together::{Collected, FedTogether, SINK_FULL};
use super::unusual::{announced, as_declared, check_given_back, denies_nulls};

/// Why a case failed.
pub(crate) type Failure = String;

/// Fails with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;

/// Runs the case. Returns the number of output rows, or why the case failed.
pub(crate) fn check(case: &Case, pair: &Pair) -> Result<usize, Failure> {
    let pair = &*as_declared(case, pair);
    let expected = Expected::of(case, pair);
    let budget = case.unusual.shared_budget.then(|| MemoryBudget::new(case.memory_limit));
    let (limit, gate) = (case.memory_limit, Arc::default());
    let run = Run { case, pair, expected: &expected, limit, budget, gate };
    let outcome = run.outcome(case.unusual.taking);
    if let (Some(percent), Ok(Taken { report: Some(report), .. })) =
        (case.unusual.again_slowly, &outcome)
    {
        check_again(&run, report.peak_memory * percent / 100)?;
    }
    let taken = match outcome {
        Err(Trouble::Test(failure)) => return Err(failure),
        Err(Trouble::Join(error, rows)) => {
            run.check_ended()?;
            return excuse(case, pair, &error, rows).map(|()| 0);
        }
        Ok(taken) => taken,
    };
    let rows = taken.rows;
    if let Some(report) = &taken.report {
        check_report(case, pair, report)?;
        ensure!(report.output_rows == rows, "{rows} rows, but {} reported", report.output_rows);
        let complaints = case.unusual.complaints();
        ensure!(complaints.is_empty(), "the join succeeds, but a reader said {complaints:?}");
    }
    if case.output == Output::Count {
        let right = expected.triples.len() as u64;
        ensure!(rows == right, "a count of {rows} instead of {right}");
        run.check_ended()?;
        return Ok(rows as usize);
    }
    let terms: Vec<_> = expected.columns.iter().map(|column| column.terms).collect();
    let cells = |terms: &[Comparison]| -> Vec<Vec<Value>> {
        let settle = |row: Vec<Value>| row.into_iter().map(settled).collect();
        rows_of(&taken.batches, terms).into_iter().map(settle).collect()
    };
    // On a device, the merge join returns rows in any order: tiles write as they end.
    if case.algorithm == Some(Algorithm::SortMerge) && !case.on_device() {
        let compared: Vec<_> = terms.iter().map(|&terms| case.compared(terms)).collect();
        check_order(case, &expected, &cells(&compared))?;
    }
    let whole = taken.report.is_some();
    let actual = cells(&terms);
    drop(taken);
    run.check_ended()?;
    match same_rows(expected.rows(pair), actual) {
        // If the output was not read to its end, rows may be missing.
        Err(mismatch) if whole || !mismatch.extra.is_empty() => Err(mismatch.to_string()),
        _ => Ok(rows as usize),
    }
}

/// A case that is being run.
struct Run<'a> {
    case: &'a Case,
    /// The tables, with the schemas that the case declares.
    pair: &'a Pair,
    expected: &'a Expected,
    limit: Option<u64>,
    budget: Option<Arc<MemoryBudget>>,
    gate: Arc<Gate>,
}

/// The part of the output that the consumer took.
struct Taken {
    batches: Vec<RecordBatch>,
    rows: u64,
    /// Present only if the consumer took everything.
    report: Option<Report>,
}

impl Run<'_> {
    fn outcome(&self, taking: Taking) -> Result<Taken, Trouble> {
        let join = join_of(self);
        match self.case.output {
            Output::Count => count(self, &join),
            _ if self.case.unusual.sink => push(self, &join, taking),
            _ => collect(self, &join, taking),
        }
    }

    fn input(&self, side: Side, table: &Table) -> Input {
        let input = (announced(self.case, table), table.batches.clone());
        let fed = Fed::new(input, (side, self.case.unusual.feeds[side as usize]), &self.gate);
        match self.case.unusual.concurrent[side as usize] {
            true => Input::source(FedTogether::new(fed, self.case.output == Output::Pairs)),
            false => Input::from(fed),
        }
    }

    /// Checks that the join holds no memory and no reader any more.
    fn check_ended(&self) -> Result<(), Failure> {
        check_given_back(self.budget.as_ref())?;
        self.gate.check_dropped()
    }
}

/// Checks that a slow consumer does not change whether this memory limit suffices.
fn check_again(run: &Run<'_>, limit: u64) -> Result<(), Failure> {
    let outcome = |taking| {
        let again = Run { limit: Some(limit), budget: None, gate: Arc::default(), ..*run };
        match again.outcome(taking) {
            Ok(_) => ("succeeds", String::new()),
            Err(Trouble::Join(error @ Error::MemoryLimit { .. }, _)) => {
                ("runs out of memory", format!(" ({error})"))
            }
            Err(Trouble::Join(error, _)) => ("fails", format!(": {error}")),
            Err(Trouble::Test(failure)) => ("is wrong", format!(": {failure}")),
        }
    };
    // On a real GPU, the host memory of a join varies a little with the timing of copies. The rows of a concurrent
    // source come in any order, and a sort-merge join needs less memory if they come sorted. In a join that spills,
    // timing decides which partition goes to disk first. So if a limit is barely large enough, even two fast runs may
    // differ.
    let sorts = matches!(run.case.algorithm, None | Some(Algorithm::SortMerge));
    let any_order = sorts && run.case.unusual.concurrent != [false; 2];
    let on_gpu = matches!(run.case.processor, Processor::Gpu(_));
    let attempts = if on_gpu || any_order || run.case.spill { 12 } else { 1 };
    let mut differs = None;
    for _ in 0..attempts {
        let (fast, slow) = (outcome(Taking::All), outcome(Taking::Slowly));
        if fast.0 == slow.0 && fast.0 != "is wrong" {
            return Ok(());
        }
        differs = Some((fast, slow));
    }
    let ((fast, why), (slow, why_slow)) = differs.unwrap_or_default();
    Err(format!(
        "with {limit} bytes the join {fast}{why}, with a slow consumer it {slow}{why_slow}"
    ))
}

/// Accepts an error that the settings of the case explain.
fn excuse(case: &Case, pair: &Pair, error: &Error, rows: u64) -> Result<(), Failure> {
    let excused = match error {
        // An error about an insufficient limit is a correct result.
        Error::MemoryLimit { limit, .. } => Some(*limit) == case.memory_limit,
        // So is a device failure, unless the CPU could still have carried out the join.
        error => device_may_fail(case, error) && (case.ends_with_device() || says_why(error, rows)),
    };
    let complaints = case.unusual.complaints();
    let text = error.to_string();
    let told = complaints.iter().any(|complaint| text.contains(complaint.as_str()));
    if excused || told || denies_nulls(case, pair, error) {
        return Ok(());
    }
    ensure!(complaints.is_empty(), "the error is \"{text}\", but a reader said {complaints:?}");
    Err(format!("the join failed: {text}"))
}

/// Whether a device failure says why the CPU could not continue the join. Some errors have no room for it.
fn says_why(error: &Error, rows: u64) -> bool {
    let roomless = matches!(error, Error::KernelCompile { .. } | Error::OutOfMemory { .. });
    (roomless && rows > 0) || error.to_string().contains("the CPU cannot continue this join")
}

/// Why a run has no output to compare.
enum Trouble {
    /// The join returned an error, after this many rows.
    Join(Error, u64),
    /// The join broke its contract.
    Test(Failure),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Trouble::Join(error, 0)
    }
}

/// Whether the device of this case may cause the error.
fn device_may_fail(case: &Case, error: &Error) -> bool {
    match error {
        Error::DeviceMemory { .. } => case.gpu_memory.is_some() || case.force.fault.is_some(),
        Error::Cuda { .. } | Error::KernelCompile { .. } | Error::OutOfMemory { .. } => {
            case.force.fault.is_some()
        }
        _ => false,
    }
}

fn join_of(run: &Run<'_>) -> Join {
    let Run { case, pair, expected, .. } = run;
    let mut join = Join::new(case.join_type)
        .null_equality(case.null_equality)
        .float_equality(case.float_equality)
        .algorithm(case.algorithm)
        .threads(case.threads)
        .batch_size(case.batch_size)
        .keep_keys(case.keep_keys)
        .suffix(case.suffix)
        .mark_column(case.mark_column)
        .device(case.processor)
        .gpu_options(case.gpu_options)
        .statistics(Side::Left, case.statistics[0])
        .statistics(Side::Right, case.statistics[1])
        .test_overrides(case.force);
    if let Some(bytes) = case.gpu_memory {
        join = join.gpu_memory(bytes);
    }
    for (left, right) in &pair.keys {
        join = join.on_pair(left, right);
    }
    if let Some(filter) = case.filter {
        join = join.filter(filter_of(filter, pair));
    }
    if let Some(side) = case.build_side {
        join = join.build_side(side);
    }
    if let Some(limit) = run.limit {
        join = join.memory_limit(limit);
    }
    if let Some(budget) = &run.budget {
        join = join.memory_budget(budget);
    }
    if case.spill {
        join = join.spill(match case.temp_files {
            true => Arc::new(TempFolders::new(vec![])),
            false => Arc::new(InMemory),
        });
        join = join.spill_compression(case.spill_compression);
    }
    if case.select.is_some() && case.output == Output::Rows {
        join = join.select(expected.columns.iter().map(|column| column.name.clone()));
    }
    join
}

fn filter_of(kind: FilterKind, pair: &Pair) -> Filter {
    let number = |batch: &RecordBatch, column: usize, row: usize| {
        let numbers = batch.column(column).as_primitive::<Int32Type>();
        numbers.is_valid(row).then(|| i64::from(numbers.value(row)))
    };
    let by_row = |columns: Vec<(Side, &str)>, of: Box<PairPredicate>| {
        let width = columns.len();
        Filter::new(columns, move |batch: &RecordBatch| {
            assert_eq!(batch.num_columns(), width, "the filter gets just its columns");
            Ok((0..batch.num_rows()).map(|row| of(batch, row)).collect::<BooleanArray>())
        })
    };
    let (left, right) = ((Side::Left, "n"), (Side::Right, "n"));
    match kind {
        FilterKind::SumNotDivisible(m) => by_row(
            vec![left, right],
            Box::new(move |b, i| Some((number(b, 0, i)? + number(b, 1, i)?) % m != 0)),
        ),
        FilterKind::LeftEven => {
            by_row(vec![left], Box::new(move |b, i| Some(number(b, 0, i)? % 2 == 0)))
        }
        FilterKind::RightEven => {
            by_row(vec![right], Box::new(move |b, i| Some(number(b, 0, i)? % 2 == 0)))
        }
        FilterKind::AlwaysNull => by_row(vec![right, left], Box::new(|_, _| None)),
        FilterKind::KeyNotNull => {
            Filter::new([(Side::Left, &pair.keys[0].0)], |batch: &RecordBatch| {
                arrow::compute::is_not_null(batch.column(0))
            })
        }
        FilterKind::Cells(cells) => cells.filter(pair),
    }
}

type PairPredicate = dyn Fn(&RecordBatch, usize) -> Option<bool> + Send + Sync;

/// Returns the table with only these columns.
fn narrowed(table: &Table, columns: &[usize]) -> Table {
    let project = |batch: &RecordBatch| batch.project(columns).expect("columns of the table");
    Table {
        schema: table.schema.project(columns).expect("columns of the table").into(),
        batches: table.batches.iter().map(project).collect(),
    }
}

fn count(run: &Run<'_>, join: &Join) -> Result<Taken, Trouble> {
    let (left, right) = (&run.pair.left, &run.pair.right);
    let (rows, report) = match run.case.entry {
        Entry::Whole => join.count(run.input(Side::Left, left), run.input(Side::Right, right))?,
        Entry::Bound => {
            let bound = join.bind(Output::Count, &left.schema, &right.schema)?;
            let left = narrowed(left, bound.columns(Side::Left));
            let right = narrowed(right, bound.columns(Side::Right));
            bound.count(run.input(Side::Left, &left), run.input(Side::Right, &right))?
        }
    };
    Ok(Taken { batches: vec![], rows, report: Some(report) })
}

fn start(run: &Run<'_>, join: &Join) -> Result<JoinReader, Trouble> {
    let (left, right) = (&run.pair.left, &run.pair.right);
    let inputs = |left, right| (run.input(Side::Left, left), run.input(Side::Right, right));
    if run.case.entry == Entry::Whole {
        let (left, right) = inputs(left, right);
        return Ok(match run.case.output {
            Output::Pairs => join.pairs(left, right)?,
            _ => join.run(left, right)?,
        });
    }
    let bound = join.bind(run.case.output, &left.schema, &right.schema)?;
    let left = narrowed(left, bound.columns(Side::Left));
    let right = narrowed(right, bound.columns(Side::Right));
    let schema = bound.schema();
    let (left, right) = inputs(&left, &right);
    let reader = bound.run(left, right)?;
    match reader.schema() == schema {
        true => Ok(reader),
        false => Err(Trouble::Test("bound and running schema differ".to_string())),
    }
}

fn collect(run: &Run<'_>, join: &Join, taking: Taking) -> Result<Taken, Trouble> {
    let mut output = start(run, join)?;
    let schema = output.schema();
    check_schema(run.case, run.pair, run.expected, &schema).map_err(Trouble::Test)?;
    if run.case.unusual.blocks() {
        run.gate.await_waiting();
        drop(output);
        let given_back = check_given_back(run.budget.as_ref());
        run.gate.open().and(given_back).map_err(Trouble::Test)?;
        return Ok(Taken { batches: vec![], rows: 0, report: None });
    }
    let (mut batches, mut rows) = (Vec::new(), 0);
    loop {
        taking.pause(batches.len());
        if taking == Taking::DropAfter(batches.len()) {
            return Ok(Taken { batches, rows, report: None });
        }
        let Some(batch) = output.next() else { break };
        let failed = |e: ArrowError| Trouble::Join(Error::from_arrow(e), rows);
        let batch = batch.map_err(failed)?;
        let checked = check_batch(run.case, &batch).and_then(|()| match batch.schema() == schema {
            true => Ok(()),
            false => Err("a batch has another schema than its reader".to_string()),
        });
        checked.map_err(Trouble::Test)?;
        rows += batch.num_rows() as u64;
        batches.push(batch);
    }
    let report = output.report();
    let missing = || Trouble::Test("no report after the last batch".to_string());
    Ok(Taken { batches, rows, report: Some(report.ok_or_else(missing)?) })
}

/// Runs a join whose workers push their batches into a sink.
fn push(run: &Run<'_>, join: &Join, taking: Taking) -> Result<Taken, Trouble> {
    let (left, right) = (&run.pair.left, &run.pair.right);
    let bound = join.bind(run.case.output, &left.schema, &right.schema)?;
    let schema = bound.schema();
    check_schema(run.case, run.pair, run.expected, &schema).map_err(Trouble::Test)?;
    let sink = Collected::new(run.case.threads, taking);
    let inputs = |left, right| (run.input(Side::Left, left), run.input(Side::Right, right));
    let done = match (run.case.entry, run.case.output) {
        (Entry::Whole, Output::Rows) => {
            let (left, right) = inputs(left, right);
            join.run_into(left, right, &sink)
        }
        _ => {
            let left = narrowed(left, bound.columns(Side::Left));
            let right = narrowed(right, bound.columns(Side::Right));
            let (left, right) = inputs(&left, &right);
            bound.run_into(left, right, &sink)
        }
    };
    let batches = sink.batches(done.is_ok()).map_err(Trouble::Test)?;
    let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    for batch in &batches {
        let checked = check_batch(run.case, batch).and_then(|()| match batch.schema() == schema {
            true => Ok(()),
            false => Err("a batch has another schema than the join".to_string()),
        });
        checked.map_err(Trouble::Test)?;
    }
    match done {
        Ok(report) => Ok(Taken { batches, rows, report: Some(report) }),
        Err(error) if error.to_string().contains(SINK_FULL) => {
            Ok(Taken { batches, rows, report: None })
        }
        Err(error) => Err(Trouble::Join(error, rows)),
    }
}

fn check_batch(case: &Case, batch: &RecordBatch) -> Result<(), Failure> {
    let rows = batch.num_rows();
    ensure!(rows > 0, "an empty output batch");
    ensure!(rows <= case.batch_size, "an output batch of {rows} rows, over {}", case.batch_size);
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        let valid = column.to_data().validate_full();
        valid.map_err(|error| format!("output column {} is invalid: {error}", field.name()))?;
        let nulls = column.logical_null_count();
        let nullable = field.is_nullable() || nulls == 0;
        ensure!(nullable, "{nulls} nulls in column {}, which is not nullable", field.name());
    }
    Ok(())
}

fn check_schema(
    case: &Case,
    pair: &Pair,
    expected: &Expected,
    schema: &Schema,
) -> Result<(), Failure> {
    let names: Vec<_> = schema.fields().iter().map(|f| f.name().as_str()).collect();
    let wanted: Vec<_> = expected.columns.iter().map(|c| c.name.as_str()).collect();
    ensure!(names == wanted, "output columns {names:?} instead of {wanted:?}");
    for (field, column) in schema.fields().iter().zip(&expected.columns) {
        let padded = |side| match side {
            Side::Left => matches!(case.join_type, JoinType::Right | JoinType::Full),
            Side::Right => matches!(case.join_type, JoinType::Left | JoinType::Full),
        };
        let (data_type, nullable) = match column.origin {
            Origin::Column(side, i) => {
                let table = if side == Side::Left { &pair.left } else { &pair.right };
                let field = table.schema.field(i);
                (field.data_type().clone(), field.is_nullable() || padded(side))
            }
            Origin::Position(side) => (DataType::UInt64, padded(side)),
            Origin::Mark => (DataType::Boolean, false),
            // The library may choose the common type of two keys, as long as no value changes.
            Origin::Key(_) => continue,
        };
        let (name, is) = (field.name(), field.data_type());
        ensure!(*is == data_type, "output column {name} is {is} instead of {data_type}");
        let is = field.is_nullable();
        ensure!(is == nullable, "output column {name} nullable: {is} instead of {nullable}");
    }
    Ok(())
}

fn check_report(case: &Case, pair: &Pair, report: &Report) -> Result<(), Failure> {
    let ran = report.plan.algorithm;
    if let Some(asked) = case.algorithm {
        let may_spill = case.memory_limit.is_some() || case.force.spill_at_once;
        let spilled = case.spill && may_spill && ran == Algorithm::Spill;
        let sorts = asked == Algorithm::SortMerge;
        ensure!(ran == asked || spilled && !sorts, "{ran} ran instead of {asked}");
    }
    let must_spill = case.force.spill_at_once;
    ensure!(!must_spill || report.spilled.levels > 0, "the join did not spill");
    let (bytes, most) = (report.spilled.bytes, report.spilled.uncompressed_bytes);
    let is_compressed = case.spill_compression != SpillCompression::None;
    ensure!(bytes == most || is_compressed && bytes < most, "wrote {bytes} of {most} bytes");
    let (left, right) = (pair.left.rows() as u64, pair.right.rows() as u64);
    let read = (report.left_rows, report.right_rows);
    ensure!(read == (left, right), "{read:?} rows read of {left} and {right}");
    if let Some(limit) = case.memory_limit {
        let peak = report.peak_memory;
        ensure!(peak <= limit, "a peak of {peak} bytes over a limit of {limit}");
    }
    Ok(())
}

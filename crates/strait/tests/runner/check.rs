//! Runs a case and holds everything it yields against what it must yield.

use arrow::array::{
    Array, AsArray, BooleanArray, RecordBatch, RecordBatchIterator, RecordBatchReader,
};
use arrow::datatypes::{DataType, Int32Type, Schema};
use arrow::error::ArrowError;
use strait::{Algorithm, Error, Filter, Join, JoinReader, JoinType, Output, Report, Side};
use strait_testkit::{Meeting, Pair, Table, Value, rows_of, same_rows};

use super::case::{Case, Entry, FilterKind};
use super::expect::{Expected, Origin, settled};
use super::order::check_order;

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

/// Runs the case; how many output rows it has, or why it failed.
pub(crate) fn check(case: &Case, pair: &Pair) -> Result<usize, Failure> {
    let expected = Expected::of(case, pair);
    let join = join_of(case, pair, &expected);
    let outcome = match case.output {
        Output::Count => count(case, &join, pair).map(|(rows, report)| (vec![], rows, report)),
        _ => collect(case, &join, pair, &expected),
    };
    let (batches, rows, report) = match outcome {
        // A limit that does not suffice is an answer too, if it says so.
        Err(Trouble::Join(Error::MemoryLimit { limit, .. }))
            if Some(limit) == case.memory_limit =>
        {
            return Ok(0);
        }
        Err(Trouble::Join(Error::DeviceMemory { .. })) if case.gpu_memory.is_some() => {
            return Ok(0);
        }
        Err(Trouble::Join(error)) => return Err(format!("the join failed: {error}")),
        Err(Trouble::Test(failure)) => return Err(failure),
        Ok(outcome) => outcome,
    };
    check_report(case, pair, &report)?;
    ensure!(report.output_rows == rows, "{rows} rows, but {} reported", report.output_rows);
    if case.output == Output::Count {
        let right = expected.triples.len() as u64;
        ensure!(rows == right, "a count of {rows} instead of {right}");
        return Ok(rows as usize);
    }
    let terms: Vec<_> = expected.columns.iter().map(|column| column.terms).collect();
    let cells = |terms: &[Meeting]| -> Vec<Vec<Value>> {
        let settle = |row: Vec<Value>| row.into_iter().map(settled).collect();
        rows_of(&batches, terms).into_iter().map(settle).collect()
    };
    // Tiles of a device's merge write as they end.
    if case.algorithm == Algorithm::SortMerge && !case.on_device() {
        let compared: Vec<_> = terms.iter().map(|&terms| case.compared(terms)).collect();
        check_order(case, &expected, &cells(&compared))?;
    }
    same_rows(expected.rows(pair), cells(&terms)).map_err(|mismatch| mismatch.to_string())?;
    Ok(rows as usize)
}

/// What came of a run that yielded nothing to compare.
enum Trouble {
    /// The join says it failed.
    Join(Error),
    /// The join broke a promise.
    Test(Failure),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Trouble::Join(error)
    }
}

fn join_of(case: &Case, pair: &Pair, expected: &Expected) -> Join {
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
        .on_gpu(case.on_gpu)
        .force(case.force);
    if let Some(bytes) = case.gpu_memory {
        join = join.gpu_memory(bytes);
    }
    for (left, right) in &pair.keys {
        join = join.on_pair(left, right);
    }
    if let Some(filter) = case.filter {
        join = join.filter(filter_of(filter, &pair.keys[0].0));
    }
    if let Some(side) = case.build_side {
        join = join.build_side(side);
    }
    if let Some(limit) = case.memory_limit {
        join = join.memory_limit(limit);
    }
    if case.select.is_some() && case.output == Output::Rows {
        join = join.select(expected.columns.iter().map(|column| column.name.clone()));
    }
    join
}

fn filter_of(kind: FilterKind, first_key: &str) -> Filter {
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
        FilterKind::KeyNotNull => Filter::new([(Side::Left, first_key)], |batch: &RecordBatch| {
            arrow::compute::is_not_null(batch.column(0))
        }),
    }
}

type PairPredicate = dyn Fn(&RecordBatch, usize) -> Option<bool> + Send + Sync;

fn reader(table: &Table) -> impl RecordBatchReader + Send + 'static {
    RecordBatchIterator::new(table.batches.clone().into_iter().map(Ok), table.schema.clone())
}

/// The table with only these columns, under the schema that its reader is to announce.
fn narrowed(case: &Case, table: &Table, columns: &[usize]) -> Table {
    let project = |batch: &RecordBatch| batch.project(columns).expect("columns of the table");
    let mut schema = table.schema.project(columns).expect("columns of the table");
    if case.entry == Entry::Relaxed {
        let nullable = schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true));
        schema = Schema::new(nullable.collect::<Vec<_>>());
    }
    Table { schema: schema.into(), batches: table.batches.iter().map(project).collect() }
}

fn count(case: &Case, join: &Join, pair: &Pair) -> Result<(u64, Report), Trouble> {
    Ok(match case.entry {
        Entry::Whole => join.count(reader(&pair.left), reader(&pair.right))?,
        Entry::Bound | Entry::Relaxed => {
            let bound = join.bind(Output::Count, &pair.left.schema, &pair.right.schema)?;
            let left = narrowed(case, &pair.left, bound.columns(Side::Left));
            let right = narrowed(case, &pair.right, bound.columns(Side::Right));
            bound.count(reader(&left), reader(&right))?
        }
    })
}

fn start(case: &Case, join: &Join, pair: &Pair) -> Result<JoinReader, Trouble> {
    let (left, right) = (&pair.left, &pair.right);
    Ok(match (case.entry, case.output) {
        (Entry::Bound | Entry::Relaxed, output) => {
            let bound = join.bind(output, &left.schema, &right.schema)?;
            let left = narrowed(case, left, bound.columns(Side::Left));
            let right = narrowed(case, right, bound.columns(Side::Right));
            let schema = bound.schema();
            let reader = bound.run(reader(&left), reader(&right))?;
            if reader.schema() != schema {
                return Err(Trouble::Test("bound and running schema differ".to_string()));
            }
            reader
        }
        (Entry::Whole, Output::Pairs) => join.pairs(reader(left), reader(right))?,
        (Entry::Whole, _) => join.run(reader(left), reader(right))?,
    })
}

fn collect(
    case: &Case,
    join: &Join,
    pair: &Pair,
    expected: &Expected,
) -> Result<(Vec<RecordBatch>, u64, Report), Trouble> {
    let mut output = start(case, join, pair)?;
    let schema = output.schema();
    check_schema(case, pair, expected, &schema).map_err(Trouble::Test)?;
    let (mut batches, mut rows) = (Vec::new(), 0);
    for batch in output.by_ref() {
        let batch = batch.map_err(|e: ArrowError| Error::from_arrow(e))?;
        let checked = check_batch(case, &batch).and_then(|()| match batch.schema() == schema {
            true => Ok(()),
            false => Err("a batch has another schema than its reader".to_string()),
        });
        checked.map_err(Trouble::Test)?;
        rows += batch.num_rows() as u64;
        batches.push(batch);
    }
    let report = output.report();
    let missing = || Trouble::Test("no report after the last batch".to_string());
    Ok((batches, rows, report.ok_or_else(missing)?))
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
            // In which type two keys meet is the library's choice, as long as no value changes.
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
    let asked = case.algorithm;
    let ran = report.plan.algorithm;
    ensure!(ran != Algorithm::Auto, "the report names no algorithm");
    ensure!(asked == Algorithm::Auto || ran == asked, "{ran} ran instead of {asked}");
    let (left, right) = (pair.left.rows() as u64, pair.right.rows() as u64);
    let read = (report.left_rows, report.right_rows);
    ensure!(read == (left, right), "{read:?} rows read of {left} and {right}");
    if let Some(limit) = case.memory_limit {
        let peak = report.peak_memory;
        ensure!(peak <= limit, "a peak of {peak} bytes over a limit of {limit}");
    }
    Ok(())
}

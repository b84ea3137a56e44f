//! The eight tables of TPC-H.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchReader, StringViewArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use clap::ValueEnum;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use super::{Parts, prepare, write_parts};
use crate::arguments::{TableFormat, TpchArguments, TpchTable};
use crate::digits::counted;
use crate::failure::say;

/// The approximate number of rows per part: enough to be worth a generator, and few enough to distribute
/// evenly.
const PART_ROWS: f64 = 250_000.0;

/// Runs the command.
pub(super) fn run(arguments: &TpchArguments) -> anyhow::Result<()> {
    let all = TpchTable::value_variants();
    let mut tables: Vec<TpchTable> = arguments.tables.clone();
    if tables.is_empty() {
        tables.extend(all);
    }
    tables.sort_by_key(|table| all.iter().position(|other| other == table));
    tables.dedup();
    let ending = match arguments.format {
        TableFormat::Parquet => "parquet",
        TableFormat::Csv => "csv",
        TableFormat::Arrow => "arrow",
    };
    let mut files = Vec::new();
    for table in tables {
        let name = table.name();
        match arguments.files {
            None => files.push((table, Slice::WHOLE, format!("{name}.{ending}"))),
            Some(count) => files.extend((0..table.slices(count)).map(|index| {
                let slice = Slice { index: index as usize, count: table.slices(count) as usize };
                (table, slice, format!("{name}/{name}-{index:05}.{ending}"))
            })),
        }
    }
    let names: Vec<String> = files.iter().map(|(_, _, name)| name.clone()).collect();
    let paths = prepare(&arguments.out, &names, arguments.overwrite)?;
    for ((table, slice, _), path) in files.into_iter().zip(&paths) {
        let rows = Rows { table, scale: arguments.scale, slice, text_keys: arguments.text_keys }
            .write(path, arguments.overwrite, arguments.threads)?;
        say(format_args!("{}: {}", path.display(), counted(rows, "row")));
    }
    Ok(())
}

/// Writes one table to `path`, and returns the number of rows.
pub(crate) fn write(
    table: TpchTable,
    scale: f64,
    path: &Path,
    overwrite: bool,
    threads: Option<usize>,
) -> anyhow::Result<u64> {
    let rows = Rows { table, scale, slice: Slice::WHOLE, text_keys: false };
    rows.write(path, overwrite, threads)
}

/// One of `count` consecutive slices of a table.
#[derive(Debug, Clone, Copy)]
struct Slice {
    index: usize,
    count: usize,
}

impl Slice {
    const WHOLE: Slice = Slice { index: 0, count: 1 };
}

/// The rows of one file.
struct Rows {
    table: TpchTable,
    scale: f64,
    slice: Slice,
    /// Whether order keys are text.
    text_keys: bool,
}

impl Rows {
    /// Writes the rows to `path`, and returns their number.
    fn write(self, path: &Path, overwrite: bool, threads: Option<usize>) -> anyhow::Result<u64> {
        let Rows { table, scale, slice, text_keys } = self;
        // A slice consists of whole parts.
        let count = table.parts(scale).div_ceil(slice.count);
        let make = |part: usize, send: &dyn Fn(RecordBatch) -> bool| {
            let part = slice.index * count + part;
            for batch in table.generate(scale, part, count * slice.count) {
                let batch = if text_keys { with_text_key(&batch?)? } else { batch? };
                if !send(batch) {
                    break;
                }
            }
            Ok(())
        };
        let schema = match text_keys {
            true => with_text_key(&RecordBatch::new_empty(table.schema()))?.schema(),
            false => table.schema(),
        };
        write_parts(path, Parts { schema, count, make }, overwrite, threads)
    }
}

/// The columns with order keys.
const ORDER_KEYS: [&str; 2] = ["o_orderkey", "l_orderkey"];

/// Replaces the order key, if the batch has one, by its text. The text has the form of other texts of TPC-H,
/// such as `Customer#000000042`: a word, and at least nine digits. It is the same in both tables.
fn with_text_key(batch: &RecordBatch) -> anyhow::Result<RecordBatch> {
    let schema = batch.schema();
    let Some(at) = schema.fields().iter().position(|f| ORDER_KEYS.contains(&f.name().as_str()))
    else {
        return Ok(batch.clone());
    };
    let keys = batch.column(at).as_primitive_opt::<Int64Type>().context("a key is no integer")?;
    let text: StringViewArray =
        keys.iter().map(|key| key.map(|key| format!("Order#{key:09}"))).collect();
    let mut columns = batch.columns().to_vec();
    columns[at] = Arc::new(text) as ArrayRef;
    let mut fields: Vec<_> = schema.fields().iter().cloned().collect();
    fields[at] = Arc::new(Field::new(fields[at].name(), DataType::Utf8View, false));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

impl TpchTable {
    pub(crate) fn name(self) -> &'static str {
        match self {
            TpchTable::Region => "region",
            TpchTable::Nation => "nation",
            TpchTable::Supplier => "supplier",
            TpchTable::Customer => "customer",
            TpchTable::Part => "part",
            TpchTable::Partsupp => "partsupp",
            TpchTable::Orders => "orders",
            TpchTable::Lineitem => "lineitem",
        }
    }

    /// Returns the number of files, if `count` files are requested. The generators of the two smallest tables
    /// cannot generate a slice.
    fn slices(self, count: u32) -> u32 {
        if matches!(self, TpchTable::Region | TpchTable::Nation) { 1 } else { count }
    }

    /// Returns the number of parts of a table at this scale.
    fn parts(self, scale: f64) -> usize {
        let rows = match self {
            TpchTable::Region | TpchTable::Nation => return 1,
            TpchTable::Supplier => 10_000.0,
            TpchTable::Customer => 150_000.0,
            TpchTable::Part => 200_000.0,
            TpchTable::Partsupp => 800_000.0,
            TpchTable::Orders => 1_500_000.0,
            TpchTable::Lineitem => 6_000_000.0,
        };
        (rows * scale / PART_ROWS).ceil().max(1.0) as usize
    }

    fn schema(self) -> SchemaRef {
        self.generate(0.001, 0, 1).schema()
    }

    /// Returns the rows of a part. Parts are counted from zero.
    fn generate(self, scale: f64, part: usize, count: usize) -> Box<dyn RecordBatchReader> {
        let (part, count) = (part as i32 + 1, count as i32);
        macro_rules! of {
            ($arrow:ident, $generator:ident) => {
                Box::new(
                    $arrow::new($generator::new(scale, part, count))
                        .with_batch_size(strait::DEFAULT_BATCH_SIZE),
                )
            };
        }
        match self {
            TpchTable::Region => of!(RegionArrow, RegionGenerator),
            TpchTable::Nation => of!(NationArrow, NationGenerator),
            TpchTable::Supplier => of!(SupplierArrow, SupplierGenerator),
            TpchTable::Customer => of!(CustomerArrow, CustomerGenerator),
            TpchTable::Part => of!(PartArrow, PartGenerator),
            TpchTable::Partsupp => of!(PartSuppArrow, PartSuppGenerator),
            TpchTable::Orders => of!(OrderArrow, OrderGenerator),
            TpchTable::Lineitem => of!(LineItemArrow, LineItemGenerator),
        }
    }
}

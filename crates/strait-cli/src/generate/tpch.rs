//! The eight tables of TPC-H.

use std::path::Path;

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
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
    let names: Vec<String> =
        tables.iter().map(|table| format!("{}.{ending}", table.name())).collect();
    let paths = prepare(&arguments.out, &names, arguments.overwrite)?;
    for (table, path) in tables.into_iter().zip(&paths) {
        let rows = write(table, arguments.scale, path, arguments.overwrite, arguments.threads)?;
        eprintln!("{}: {}", path.display(), counted(rows, "row"));
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
    let count = table.parts(scale);
    let make = |part: usize, send: &dyn Fn(RecordBatch) -> bool| {
        for batch in table.generate(scale, part, count) {
            if !send(batch?) {
                break;
            }
        }
        Ok(())
    };
    write_parts(path, Parts { schema: table.schema(), count, make }, overwrite, threads)
}

impl TpchTable {
    fn name(self) -> &'static str {
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

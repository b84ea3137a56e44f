//! `strait demo`: generates two tables, joins them, and shows the result.

use std::time::Instant;

use anyhow::Context;
use console::style;
use strait::{Join, Output, Side};

use crate::arguments::{CsvArguments, DemoArguments, Show, Source, TpchTable};
use crate::busy::Busy;
use crate::digits::{counted, grouped};
use crate::failure;
use crate::generate::write_tpch;
use crate::input::{InputTable, find};
use crate::interrupt;
use crate::join::{cores, previewed};
use crate::memory::Memory;
use crate::output::print;
use crate::progress;

/// The columns that are shown, some of each table.
const COLUMNS: [&str; 7] = [
    "o_orderkey",
    "o_orderdate",
    "o_orderpriority",
    "l_linenumber",
    "l_quantity",
    "l_extendedprice",
    "l_shipmode",
];

/// Runs the command.
pub(crate) fn run(arguments: &DemoArguments) -> anyhow::Result<()> {
    let folder = interrupt::make(
        || tempfile::Builder::new().prefix("strait-demo-").tempdir(),
        tempfile::TempDir::path,
    )
    .context("cannot make a temporary folder; TMPDIR chooses another place")?;
    let path = folder.path().to_path_buf();
    let result = demonstrate(arguments, &path);
    let removed = interrupt::forget_after(&path, || folder.close());
    result.and(removed.context("cannot remove the temporary folder"))
}

fn demonstrate(arguments: &DemoArguments, folder: &std::path::Path) -> anyhow::Result<()> {
    let scale = arguments.scale;
    heading(&format!("Generating TPC-H orders and lineitem at scale {scale}"))?;
    let started = Instant::now();
    for (name, table) in [("orders", TpchTable::Orders), ("lineitem", TpchTable::Lineitem)] {
        let path = folder.join(format!("{name}.parquet"));
        let rows = write_tpch(table, scale, &path, false, arguments.threads)?;
        let bytes = std::fs::metadata(&path)?.len();
        let size = strait::bytes(bytes);
        print(&format!(
            "  {:<17} {:>12} rows  {size:>10}\n",
            format!("{name}.parquet"),
            grouped(rows)
        ))?;
    }
    print(&format!("  in {:.2} s\n\n", started.elapsed().as_secs_f64()))?;

    heading("Joining them: every line item with its order")?;
    print(&format!(
        "  strait join orders.parquet lineitem.parquet --on o_orderkey=l_orderkey \\\n    --select {}\n\n",
        COLUMNS.join(",")
    ))?;
    let (text, report) = join(arguments, folder)?;
    progress::clear();
    print(&format!("{text}\n"))?;
    let report = report.context("the join ended without a report")?;
    heading("What happened")?;
    print(&format!("{report}\n\n"))?;
    let rows = report.left_rows + report.right_rows;
    let seconds = report.elapsed.as_secs_f64();
    print(&format!(
        "{} joined with {} in {seconds:.3} s from Parquet files: {:.1} M tuples/s\n\n",
        counted(report.left_rows, "order"),
        counted(report.right_rows, "line item"),
        rows as f64 / seconds.max(1e-9) / 1e6
    ))?;
    heading("Try next")?;
    print(
        "  strait generate tpch --scale 1 --out tpch\n  \
         strait join tpch/orders.parquet tpch/lineitem.parquet --on o_orderkey=l_orderkey -o joined.parquet\n",
    )
}

fn join(
    arguments: &DemoArguments,
    folder: &std::path::Path,
) -> anyhow::Result<(String, Option<strait::Report>)> {
    let memory = Memory::new(None);
    let open = |name: &str| {
        InputTable::open(find(&Source::Path(folder.join(name)))?, &CsvArguments::default(), &memory)
    };
    let (left, right) = (open("orders.parquet")?, open("lineitem.parquet")?);
    let mut join = Join::inner().on_pair("o_orderkey", "l_orderkey").select(COLUMNS);
    if let Some(threads) = arguments.threads {
        join = join.threads(threads);
    }
    let rows = left.rows().zip(right.rows()).map(|(left, right)| left + right);
    let join = progress::attach(join, Show::Auto, rows);
    let bound = join.bind(Output::Rows, left.schema(), right.schema())?;
    let threads = arguments.threads.unwrap_or_else(cores);
    let busy = Busy::default();
    let left = left.input(bound.columns(Side::Left), threads, &busy.left);
    let right = right.input(bound.columns(Side::Right), threads, &busy.right);
    previewed(bound.run(left, right).map_err(failure::of_join)?, None, &memory)
}

fn heading(text: &str) -> anyhow::Result<()> {
    print(&format!("{}\n", style(text).bold()))
}

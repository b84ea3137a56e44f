//! The 22 queries of TPC-H, from tables in memory and from Parquet files.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchReader};
use datafusion::catalog::MemTable;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use crate::rows::assert_same;
use crate::session;

const SCALE: f64 = 0.01;
const PARTITIONS: usize = 3;

/// Returns the tables, in several partitions and in batches that differ in size.
fn tables() -> Vec<(&'static str, Vec<RecordBatch>)> {
    fn all(reader: impl RecordBatchReader) -> Vec<RecordBatch> {
        reader.collect::<Result<_, _>>().expect("generated rows are valid")
    }
    vec![
        (
            "customer",
            all(CustomerArrow::new(CustomerGenerator::new(SCALE, 1, 1)).with_batch_size(700)),
        ),
        (
            "lineitem",
            all(LineItemArrow::new(LineItemGenerator::new(SCALE, 1, 1)).with_batch_size(3000)),
        ),
        ("nation", all(NationArrow::new(NationGenerator::new(SCALE, 1, 1)))),
        ("orders", all(OrderArrow::new(OrderGenerator::new(SCALE, 1, 1)).with_batch_size(1000))),
        ("part", all(PartArrow::new(PartGenerator::new(SCALE, 1, 1)))),
        (
            "partsupp",
            all(PartSuppArrow::new(PartSuppGenerator::new(SCALE, 1, 1)).with_batch_size(900)),
        ),
        ("region", all(RegionArrow::new(RegionGenerator::new(SCALE, 1, 1)))),
        ("supplier", all(SupplierArrow::new(SupplierGenerator::new(SCALE, 1, 1)))),
    ]
}

fn query(number: usize) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("queries/tpch");
    let path = folder.join(format!("q{number:02}.sql"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn register(ctx: &SessionContext, tables: &[(&str, Vec<RecordBatch>)]) {
    for (name, batches) in tables {
        let mut partitions = vec![Vec::new(); PARTITIONS];
        for (number, batch) in batches.iter().enumerate() {
            partitions[number % PARTITIONS].push(batch.clone());
        }
        let table = MemTable::try_new(batches[0].schema(), partitions).expect("one schema");
        ctx.register_table(*name, Arc::new(table)).expect("the name is new");
    }
}

/// Runs all queries with and without Strait.
async fn compare(stock: &SessionContext, ctx: &SessionContext, about: &str) {
    let mut replaced = 0;
    for number in 1..=22 {
        let sql = query(number);
        let about = format!("{about}, query {number}");
        let expected = session::run(stock, &sql).await.unwrap_or_else(|e| panic!("{about}: {e}"));
        let found = session::run(ctx, &sql).await.unwrap_or_else(|e| panic!("{about}: {e}"));
        assert_same(&expected, &found, &about);
        let plan = session::plan(ctx, &sql).await.expect("a plan");
        let joins = session::joins(&plan);
        assert_eq!(joins.declined, Vec::<String>::new(), "{about}");
        assert_eq!(joins.stock, 0, "{about}");
        let of_stock = session::joins(&session::plan(stock, &sql).await.expect("a plan"));
        assert_eq!(joins.replaced, of_stock.stock, "{about}");
        replaced += joins.replaced;
    }
    assert!(replaced >= 45, "{about}: only {replaced} joins");
}

fn config(partitions: usize, collected: usize) -> SessionConfig {
    let mut config = SessionConfig::new().with_target_partitions(partitions);
    let optimizer = &mut config.options_mut().optimizer;
    optimizer.hash_join_single_partition_threshold = collected;
    optimizer.hash_join_single_partition_threshold_rows = collected;
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_memory() {
    let tables = tables();
    for (partitions, collected) in [(1, 1 << 20), (2, 1 << 20), (3, 0)] {
        let stock = session::stock(config(partitions, collected), Arc::default());
        let ctx =
            session::with_strait(config(partitions, collected), Arc::default(), session::options());
        register(&stock, &tables);
        register(&ctx, &tables);
        compare(&stock, &ctx, &format!("{partitions} partitions, at most {collected} collected"))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_parquet() {
    let folder = tempfile::tempdir().expect("a folder");
    let stock = session::stock(config(2, 0), Arc::default());
    let ctx = session::with_strait(config(2, 0), Arc::default(), session::options());
    for (name, batches) in tables() {
        let path = folder.path().join(name);
        let path = path.to_str().expect("a path in UTF-8");
        let written = stock.read_batches(batches).expect("one schema");
        let options = DataFrameWriteOptions::new();
        written.write_parquet(path, options, None).await.expect("a file is written");
        for ctx in [&stock, &ctx] {
            let options = ParquetReadOptions::default();
            ctx.register_parquet(name, path, options).await.expect("the name is new");
        }
    }
    compare(&stock, &ctx, "Parquet").await;
}

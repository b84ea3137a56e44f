//! The jobs: orders ⋈ lineitem of TPC-H on the order key, from files to a file.

use std::path::Path;

use serde_json::{Value, json};

use super::inputs::{Form, Input};
use crate::arguments::TpchTable;

/// A job.
pub(super) struct Job {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    orders: Form,
    lineitem: Form,
    how: How,
    columns: Columns,
    pub(super) written: Written,
}

/// The join type, and the left table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// Orders are left.
    Inner,
    /// Orders are left.
    Left,
    /// Line items are left.
    LeftAnti,
}

/// The columns of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Columns {
    /// Two of each table.
    Four,
    /// All columns that the join type has.
    All,
}

/// What becomes of the joined rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// They are counted.
    Count,
    Snappy,
    Zstd,
    CsvGz,
}

const FOUR: [&str; 4] = ["o_orderkey", "o_orderdate", "l_quantity", "l_extendedprice"];
const ORDERS: [&str; 9] = [
    "o_orderkey",
    "o_custkey",
    "o_orderstatus",
    "o_totalprice",
    "o_orderdate",
    "o_orderpriority",
    "o_clerk",
    "o_shippriority",
    "o_comment",
];
const LINEITEM: [&str; 16] = [
    "l_orderkey",
    "l_partkey",
    "l_suppkey",
    "l_linenumber",
    "l_quantity",
    "l_extendedprice",
    "l_discount",
    "l_tax",
    "l_returnflag",
    "l_linestatus",
    "l_shipdate",
    "l_commitdate",
    "l_receiptdate",
    "l_shipinstruct",
    "l_shipmode",
    "l_comment",
];

/// The inner join of one Parquet file per table, to a Parquet file. The other jobs are variants of this one.
const PLAIN: Job = Job {
    name: "four",
    about: "four columns, Parquet to Parquet, snappy",
    orders: Form::Parquet,
    lineitem: Form::Parquet,
    how: How::Inner,
    columns: Columns::Four,
    written: Written::Snappy,
};

/// All jobs. The ones that read the same files follow each other, so that few files are in memory at once.
pub(super) static JOBS: [Job; 9] = [
    PLAIN,
    Job {
        name: "all-snappy",
        about: "all 25 columns, Parquet to Parquet, snappy",
        columns: Columns::All,
        ..PLAIN
    },
    Job {
        name: "all-zstd",
        about: "all 25 columns, Parquet to Parquet, zstd",
        columns: Columns::All,
        written: Written::Zstd,
        ..PLAIN
    },
    Job {
        name: "count",
        about: "the number of rows, from Parquet",
        written: Written::Count,
        ..PLAIN
    },
    // Some orders have no line items.
    Job {
        name: "left",
        about: "left join, four columns, Parquet to Parquet, snappy",
        orders: Form::More,
        how: How::Left,
        ..PLAIN
    },
    // Some line items have no order.
    Job {
        name: "anti-csv",
        about: "left anti join of line items in CSV with orders in Parquet, to Parquet, snappy",
        lineitem: Form::Csv,
        how: How::LeftAnti,
        columns: Columns::All,
        ..PLAIN
    },
    Job {
        name: "strings",
        about: "a text key, four columns, Parquet to Parquet, snappy",
        orders: Form::Text,
        lineitem: Form::Text,
        ..PLAIN
    },
    Job {
        name: "files",
        about: "line items in 100 files, four columns, Parquet to Parquet, snappy",
        lineitem: Form::Files,
        ..PLAIN
    },
    Job {
        name: "csv-gz",
        about: "four columns, Arrow to .csv.gz",
        orders: Form::Arrow,
        lineitem: Form::Arrow,
        written: Written::CsvGz,
        ..PLAIN
    },
];

/// The names of all jobs.
pub(crate) fn names() -> Vec<&'static str> {
    JOBS.iter().map(|job| job.name).collect()
}

impl How {
    /// The name in Strait.
    fn strait(self) -> &'static str {
        match self {
            How::Inner => "inner",
            How::Left => "left",
            How::LeftAnti => "left-anti",
        }
    }

    /// The name in Polars.
    fn polars(self) -> &'static str {
        match self {
            How::LeftAnti => "anti",
            other => other.strait(),
        }
    }
}

impl Written {
    /// The ending of the output file.
    pub(super) fn ending(self) -> &'static str {
        match self {
            Written::Snappy | Written::Zstd | Written::Count => "parquet",
            Written::CsvGz => "csv.gz",
        }
    }

    pub(super) fn is_parquet(self) -> bool {
        matches!(self, Written::Snappy | Written::Zstd)
    }

    /// The format and the compression in the words of other engines.
    fn described(self) -> Option<(&'static str, &'static str)> {
        match self {
            Written::Count => None,
            Written::Snappy => Some(("parquet", "snappy")),
            Written::Zstd => Some(("parquet", "zstd")),
            Written::CsvGz => Some(("csv", "gzip")),
        }
    }
}

impl Job {
    /// The left and the right table.
    pub(super) fn inputs(&self) -> [Input; 2] {
        let orders = Input { table: TpchTable::Orders, form: self.orders };
        let lineitem = Input { table: TpchTable::Lineitem, form: self.lineitem };
        match self.how {
            How::Inner | How::Left => [orders, lineitem],
            How::LeftAnti => [lineitem, orders],
        }
    }

    fn columns(&self) -> Vec<&'static str> {
        match (self.columns, self.how) {
            (Columns::Four, _) => FOUR.to_vec(),
            (Columns::All, How::LeftAnti) => LINEITEM.to_vec(),
            (Columns::All, _) => ORDERS.iter().chain(&LINEITEM).copied().collect(),
        }
    }

    /// The query of engines that speak SQL. Both tables have their names from TPC-H.
    pub(super) fn sql(&self) -> String {
        let columns = match self.written {
            Written::Count => "count(*)".to_string(),
            _ => self.columns().join(", "),
        };
        let [left, right] = self.inputs().map(Input::name);
        let [left_key, right_key] = self.inputs().map(Input::key);
        let from = match self.how {
            How::Inner => format!("{left} JOIN {right} ON {left_key} = {right_key}"),
            How::Left => format!("{left} LEFT JOIN {right} ON {left_key} = {right_key}"),
            How::LeftAnti => {
                let matching = format!("SELECT 1 FROM {right} WHERE {right_key} = {left_key}");
                format!("{left} WHERE NOT EXISTS ({matching})")
            }
        };
        format!("SELECT {columns} FROM {from}")
    }

    /// The description of the job that other engines read.
    pub(super) fn described(&self, folder: &Path) -> Value {
        let table = |input: Input| {
            json!({
                "name": input.name(),
                "key": input.key(),
                "path": input.path(folder),
                "format": input.form.format(),
            })
        };
        let output = self.written.described();
        json!({
            "tables": self.inputs().map(table),
            "join": self.how.polars(),
            "columns": if output.is_some() { self.columns() } else { Vec::new() },
            "output": output.map(|(format, codec)| json!({ "format": format, "compression": codec })),
            "sql": self.sql(),
        })
    }

    /// The arguments of the command that does the job.
    pub(super) fn arguments(&self, folder: &Path, out: &Path) -> Vec<String> {
        let mut all = vec!["join".to_string()];
        all.extend(self.inputs().map(|input| input.path(folder)));
        let [left, right] = self.inputs().map(Input::key);
        all.extend(["--on".into(), format!("{left}={right}")]);
        all.extend(["--type", self.how.strait(), "--progress", "never"].map(Into::into));
        if self.written == Written::Count {
            all.push("--count".into());
            return all;
        }
        if self.columns != Columns::All {
            all.extend(["--select".into(), self.columns().join(",")]);
        }
        all.extend(["-o".into(), out.display().to_string()]);
        if let Some(("parquet", codec)) = self.written.described() {
            all.extend(["--compression", codec].map(Into::into));
        }
        all
    }

    /// The approximate bytes of the output, at scale 1.
    pub(super) fn output_bytes(&self) -> u64 {
        match (self.written, self.columns) {
            (Written::Count, _) => 0,
            (_, Columns::Four) => 100 << 20,
            (_, Columns::All) => 500 << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> &'static Job {
        JOBS.iter().find(|job| job.name == name).unwrap()
    }

    #[test]
    fn queries_name_all_columns() {
        assert_eq!(
            job("four").sql(),
            "SELECT o_orderkey, o_orderdate, l_quantity, l_extendedprice \
             FROM orders JOIN lineitem ON o_orderkey = l_orderkey"
        );
        assert_eq!(
            job("count").sql(),
            "SELECT count(*) FROM orders JOIN lineitem ON o_orderkey = l_orderkey"
        );
        assert!(job("left").sql().contains(" FROM orders LEFT JOIN lineitem ON "));
        let anti = job("anti-csv").sql();
        assert!(
            anti.ends_with(
                "l_comment FROM lineitem \
                 WHERE NOT EXISTS (SELECT 1 FROM orders WHERE o_orderkey = l_orderkey)"
            ),
            "{anti}"
        );
        assert_eq!(job("all-zstd").sql().matches(',').count(), 24);
    }

    #[test]
    fn other_engines_get_the_same_job() {
        let described = job("csv-gz").described(Path::new("/t"));
        assert_eq!(described["tables"][1]["path"], "/t/arrow/lineitem.arrow");
        assert_eq!(described["tables"][1]["format"], "arrow");
        assert_eq!(described["output"], json!({ "format": "csv", "compression": "gzip" }));
        let described = job("files").described(Path::new("/t"));
        assert_eq!(described["tables"][1]["path"], "/t/files/lineitem/");
        let described = job("anti-csv").described(Path::new("/t"));
        assert_eq!(described["join"], "anti");
        assert_eq!(described["tables"][0]["name"], "lineitem");
        assert!(job("count").described(Path::new("/t"))["output"].is_null());
    }

    #[test]
    fn strait_runs_as_a_user_would_run_it() {
        let arguments = |name: &str| job(name).arguments(Path::new("t"), Path::new("o")).join(" ");
        assert_eq!(
            arguments("all-zstd"),
            "join t/parquet/orders.parquet t/parquet/lineitem.parquet --on o_orderkey=l_orderkey \
             --type inner --progress never -o o --compression zstd"
        );
        assert!(arguments("count").ends_with("--progress never --count"));
        assert!(arguments("csv-gz").ends_with("l_extendedprice -o o"));
        let anti = "join t/csv/lineitem.csv t/parquet/orders.parquet --on l_orderkey=o_orderkey";
        assert!(arguments("anti-csv").starts_with(anti));
    }

    #[test]
    fn every_job_has_its_name() {
        let mut names = names();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 9);
    }
}

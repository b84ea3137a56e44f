//! Joins two CSV files into a third, within a memory limit. Readers and writers of other formats are
//! used in the same way: a join takes two `RecordBatchReader`s, and is one itself.
//!
//!     cargo run -p strait --example files -- orders.csv items.csv joined.csv order_id

use std::fs::File;
use std::io::{BufReader, Seek};
use std::sync::Arc;

use arrow::array::RecordBatchReader;
use arrow::csv::reader::Format;
use arrow::csv::{ReaderBuilder, Writer};
use strait::Join;

type Failure = Box<dyn std::error::Error>;

/// Reads a CSV file whose first line has the names of the columns.
fn csv(path: &str) -> Result<impl RecordBatchReader + Send + use<>, Failure> {
    let mut file = File::open(path)?;
    let format = Format::default().with_header(true);
    let (schema, _) = format.infer_schema(BufReader::new(&file), Some(1000))?;
    file.rewind()?;
    Ok(ReaderBuilder::new(Arc::new(schema)).with_format(format).build(file)?)
}

fn join(left: &str, right: &str, output: &str, key: &str) -> Result<usize, Failure> {
    let join = Join::inner().on(key).memory_limit(1 << 30);
    let mut writer = Writer::new(File::create(output)?);
    let mut rows = 0;
    for batch in join.run(csv(left)?, csv(right)?)? {
        let batch = batch?;
        rows += batch.num_rows();
        writer.write(&batch)?;
    }
    Ok(rows)
}

/// Without arguments, makes two small files first.
fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [left, right, output, key] = &arguments[..] {
        println!("{} rows in {output}", join(left, right, output, key)?);
        return Ok(());
    }
    let folder = std::env::temp_dir().join(format!("strait-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let path = |name: &str| folder.join(name).display().to_string();
    std::fs::write(path("orders.csv"), "order_id,customer\n1,Ada\n2,Bob\n")?;
    std::fs::write(path("items.csv"), "order_id,item\n2,pen\n1,ink\n2,paper\n")?;
    let rows = join(&path("orders.csv"), &path("items.csv"), &path("joined.csv"), "order_id")?;
    print!("{}", std::fs::read_to_string(path("joined.csv"))?);
    assert_eq!(rows, 3);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

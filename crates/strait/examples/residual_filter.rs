//! Joins on equal keys and one more condition: visits that happened after the account was opened.
//!
//!     cargo run -p strait --example residual_filter

use std::sync::Arc;

use arrow::array::{AsArray, BooleanArray, Int64Array, RecordBatch, RecordBatchIterator};
use arrow::datatypes::Int64Type;
use strait::{Filter, Join, JoinType, Side};

fn table(columns: [(&str, Vec<i64>); 2]) -> Result<RecordBatch, arrow::error::ArrowError> {
    let columns = columns.map(|(name, values)| (name, Arc::new(Int64Array::from(values)) as _));
    RecordBatch::try_from_iter(columns)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let accounts = table([("user", vec![1, 2, 3]), ("opened", vec![10, 20, 30])])?;
    let visits = table([("user", vec![1, 1, 2, 3]), ("time", vec![5, 15, 25, 29])])?;
    let reader = |batch: RecordBatch| {
        let schema = batch.schema();
        RecordBatchIterator::new([Ok(batch)], schema)
    };

    // The filter names its columns. It is called with batches of candidate pairs, perhaps several times
    // per batch of output, and returns one boolean per row.
    let columns = [(Side::Left, "opened"), (Side::Right, "time")];
    let later = Filter::new(columns, |pairs: &RecordBatch| {
        let opened = pairs.column(0).as_primitive::<Int64Type>();
        let time = pairs.column(1).as_primitive::<Int64Type>();
        Ok(opened
            .values()
            .iter()
            .zip(time.values())
            .map(|(o, t)| Some(t >= o))
            .collect::<BooleanArray>())
    });

    // Accounts without such a visit: a left anti join with a filter.
    let join = Join::new(JoinType::LeftAnti).on("user").filter(later);
    let mut users = Vec::new();
    for batch in join.run(reader(accounts), reader(visits))? {
        users.extend_from_slice(batch?.column(0).as_primitive::<Int64Type>().values());
    }
    println!("accounts without a visit after they were opened: {users:?}");
    assert_eq!(users, [3]);
    Ok(())
}

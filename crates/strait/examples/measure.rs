//! Times joins of two in-memory tables: `cargo run --release --example measure -- 24 24 sparse`.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator};
use strait::{Algorithm, Join, Side};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let log = |i: usize| arguments.get(i).and_then(|a| a.parse::<u32>().ok()).unwrap_or(22);
    let sparse = arguments.get(2).is_some_and(|a| a == "sparse");
    let (build, probe) = (1usize << log(0), 1usize << log(1));
    let spread = |i: i64| {
        if sparse { (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64 & i64::MAX } else { i }
    };
    // A permutation of the build keys, and probe keys uniform over them.
    let keys = |rows: usize, odd: u64| {
        (0..rows as u64).map(move |i| (i.wrapping_mul(odd) ^ (i >> 7)) as i64 & (build as i64 - 1))
    };
    let mut order: Vec<i64> = (0..build as i64).collect();
    let mut state = 1u64;
    for i in (1..order.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
    let table = |keys: Vec<i64>, name: &str| {
        let payload: Int64Array = keys.iter().map(|k| k * 3).collect();
        let keys: Int64Array = keys.into_iter().map(spread).collect();
        RecordBatch::try_from_iter([("k", Arc::new(keys) as _), (name, Arc::new(payload) as _)])
    };
    let left = table(order.clone(), "r")?;
    let right =
        table(keys(probe, 0x9e37_79b9_7f4a_7c15 | 1).map(|k| order[k as usize]).collect(), "s")?;
    let reader = |b: &RecordBatch| RecordBatchIterator::new([Ok(b.clone())], b.schema());
    for algorithm in [Algorithm::NoPartition, Algorithm::Radix, Algorithm::SortMerge] {
        let join = Join::inner().on("k").threads(2).algorithm(algorithm);
        for mode in ["count", "aggregate", "materialise"] {
            let mut times = Vec::new();
            let mut stages = String::new();
            for _ in 0..4 {
                let begun = Instant::now();
                let (rows, report) = match mode {
                    "count" => join.count(reader(&left), reader(&right))?,
                    "aggregate" => {
                        let sums = [(Side::Left, "r"), (Side::Right, "s")];
                        let (a, report) = join.aggregate(&sums, reader(&left), reader(&right))?;
                        assert_eq!(a.sums[0], a.sums[1]);
                        (a.rows, report)
                    }
                    _ => {
                        let mut joined = join.run(reader(&left), reader(&right))?;
                        let batches: Vec<_> = joined.by_ref().collect::<Result<_, _>>()?;
                        let rows = batches.iter().map(|b| b.num_rows() as u64).sum();
                        (rows, joined.report().ok_or("no report")?)
                    }
                };
                times.push(begun.elapsed().as_secs_f64());
                assert_eq!(rows, probe as u64);
                let each =
                    report.stages.iter().map(|(n, t)| format!("{n} {:.0}", t.as_secs_f64() * 1e3));
                stages = each.collect::<Vec<_>>().join(", ");
            }
            times.sort_by(f64::total_cmp);
            let rate = (build + probe) as f64 / times[1] / 1e6;
            println!("{:<13} {mode:<12} {rate:>7.1} M tuples/s   {stages} ms", algorithm.name());
        }
    }
    Ok(())
}

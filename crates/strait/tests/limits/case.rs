//! One join under a limit, in a child process.

use std::time::Duration;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow::util::display::array_value_to_string;
use strait::{Algorithm, Error, Filter, Join, JoinType, Side};
use strait_testkit::Rng;

use super::tables::{Kind, Shape};

/// How the output is read.
#[derive(Clone, Copy, Debug)]
enum Consumer {
    Fast,
    /// Sleeps before each of its first batches.
    Slow,
    /// Drops the reader after this many batches.
    Leaves(usize),
}

#[derive(Debug)]
struct Case {
    join: Join,
    limit: u64,
    left: Shape,
    right: Shape,
    consumer: Consumer,
}

/// Runs the case with this name, and prints its outcome.
pub(crate) fn run(name: &str) {
    let (kind, number) = name.split_once(' ').expect("a kind and a number");
    let number: u64 = number.parse().expect("a number");
    let case = match kind {
        "random" => random(number),
        "views" => selective(number as usize, Kind::View, 1),
        "slices" => selective(number as usize, Kind::Text, 8),
        other => panic!("there is no kind {other}"),
    };
    println!("{case:?}");
    // Read one batch of each side first, so that allocator and runtime have their memory before the
    // measurement begins.
    drop(case.left.reader().next());
    drop(case.right.reader().next());
    let before = status("VmRSS:");
    let outcome = joined(&case);
    let grown = status("VmHWM:").saturating_sub(before);
    match outcome {
        Ok(rows) => println!("rows: {rows}"),
        Err(Error::MemoryLimit { .. }) => println!("rows: refused"),
        Err(other) => panic!("{other}"),
    }
    println!("grown: {grown}\nlimit: {}", case.limit);
}

fn joined(case: &Case) -> Result<u64, Error> {
    let reader = case.join.run(case.left.reader(), case.right.reader())?;
    let (mut rows, mut batches) = (0, 0);
    for batch in reader {
        rows += batch.map_err(Error::from_arrow)?.num_rows() as u64;
        batches += 1;
        match case.consumer {
            Consumer::Leaves(after) if batches == after => break,
            Consumer::Slow if batches <= 20 => std::thread::sleep(Duration::from_millis(20)),
            _ => {}
        }
    }
    Ok(rows)
}

/// A memory figure of this process, in bytes.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("the kernel tells");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("such a line");
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
    kibibytes << 10
}

/// A small table matches one percent of a long table. The output is read slowly.
fn selective(threads: usize, kind: Kind, slices: usize) -> Case {
    let right = Shape {
        rows: 800_000,
        batch: 8192,
        keys: 100_000,
        text_key: false,
        payload: vec![kind, kind],
        text: 200,
        slices,
        seed: 7,
    };
    let left =
        Shape { rows: 1000, batch: 1000, payload: vec![Kind::Int], slices: 1, ..right.clone() };
    let limit = 64 << 20;
    let join = Join::inner().on("k").algorithm(Algorithm::NoPartition).threads(threads);
    let join = join.build_side(Side::Left).memory_limit(limit);
    Case { join, limit, left, right, consumer: Consumer::Slow }
}

fn random(seed: u64) -> Case {
    let rng = &mut Rng::new(seed);
    let keys = *rng.pick(&[500, 5000, 100_000]);
    let text_key = rng.chance(1, 3);
    let shape = |rng: &mut Rng, rows: usize| {
        let mut payload = Vec::new();
        for _ in 0..rng.between(0, 4) {
            payload.push(*rng.pick(&Kind::ALL));
        }
        Shape {
            rows,
            batch: *rng.pick(&[100, 1000, 8192]),
            keys,
            text_key,
            payload,
            text: *rng.pick(&[8, 30, 300]),
            slices: *rng.pick(&[1, 1, 10]),
            seed: rng.bits(),
        }
    };
    let (few, many) = (rng.between(100, 20_000), rng.between(20_000, 120_000));
    let left = shape(rng, few);
    // Limits the join to about two million pairs.
    let right = shape(rng, many.min(keys * 2_000_000 / few));
    let (left, right) = if rng.chance(1, 2) { (left, right) } else { (right, left) };
    let limit = *rng.pick(&[12 << 20, 24 << 20, 48 << 20, 96 << 20]);
    let mut join = Join::new(*rng.pick(&JoinType::ALL))
        .on("k")
        .algorithm(*rng.pick(&[Algorithm::NoPartition, Algorithm::Radix, Algorithm::SortMerge]))
        .threads(*rng.pick(&[1, 2, 5]))
        .batch_size(*rng.pick(&[256, 4096, 32 << 10]))
        .memory_limit(limit);
    if rng.chance(1, 3) {
        let column = |shape: &Shape| match shape.payload.first() {
            Some(kind) => format!("{kind:?}0"),
            None => "k".to_string(),
        };
        let columns = [(Side::Left, column(&left)), (Side::Right, column(&right))];
        let some = |batch: &RecordBatch| {
            // Depends on the values only: the place of a pair of rows in its batch depends on the join's
            // seed.
            let digits = |column: &ArrayRef, i: usize| {
                let text =
                    array_value_to_string(column, i).expect("values of any type have a text");
                text.bytes().map(u32::from).sum::<u32>()
            };
            let passes = |i: usize| {
                let there = batch.columns().iter().all(|column| column.is_valid(i));
                there && batch.columns().iter().map(|column| digits(column, i)).sum::<u32>() % 3 > 0
            };
            Ok((0..batch.num_rows()).map(|i| Some(passes(i))).collect::<BooleanArray>())
        };
        join = join.filter(Filter::new(columns, some));
    }
    let consumer = match rng.below(4) {
        0 => Consumer::Slow,
        1 => Consumer::Leaves(1 + rng.below(20)),
        _ => Consumer::Fast,
    };
    Case { join, limit, left, right, consumer }
}

/// Runs a small random join on one thread, and reads its output at once or late. Returns the number of rows,
/// or None if the limit does not suffice.
pub(crate) fn small(seed: u64, limit: u64, slow: bool) -> Option<u64> {
    let mut case = random(1000 + seed);
    for shape in [&mut case.left, &mut case.right] {
        shape.rows /= 10;
        shape.text = shape.text.min(30);
    }
    let join = case.join.threads(1).batch_size(256).memory_limit(limit);
    let consumer = if slow { Consumer::Slow } else { Consumer::Fast };
    match joined(&Case { join, consumer, ..case }) {
        Ok(rows) => Some(rows),
        Err(Error::MemoryLimit { .. }) => None,
        Err(other) => panic!("{other}"),
    }
}
